from __future__ import annotations

import pytest

from bisect_env.cluster.gpus import Gpu, choose_gpus, find_gpu, group_gpus, visible_gpus
from bisect_env.errors import ExitCode, InfrastructureError, UsageError

A, B, C, D = (f"GPU-{letter * 8}-0000-0000-0000-000000000000" for letter in "abcd")
FOUR = [Gpu(0, A), Gpu(1, B), Gpu(2, C), Gpu(3, D)]


def chosen(selection: str | None = None, variable: str | None = None) -> list[str]:
    return [gpu.uuid for gpu in choose_gpus(FOUR, selection, variable)]


def test_all_gpus_are_used_unless_something_says_otherwise() -> None:
    assert chosen() == [A, B, C, D]


@pytest.mark.parametrize("selection", ["0,2", " 0 , 2", f"{A},{C}", "GPU-a,GPU-c", "0,GPU-c"])
def test_gpus_are_named_by_index_uuid_or_its_beginning(selection: str) -> None:
    assert chosen(selection) == [A, C]


def test_the_order_of_the_user_is_kept() -> None:
    assert chosen("3,1") == [D, B]


@pytest.mark.parametrize(
    ("variable", "expected"),
    [("2,0", [C, A]), (f"{B}", [B]), ("1,7,0", [B]), ("1,-1,0", [B]), ("1,1", [B])],
)
def test_a_visibility_that_was_set_is_respected_as_cuda_reads_it(variable: str, expected: list[str]) -> None:
    assert chosen(variable=variable) == expected


def test_an_explicit_choice_wins_over_it() -> None:
    assert chosen("3", variable="0") == [D]


@pytest.mark.parametrize(
    ("selection", "problem"),
    [
        ("4", "'4' is no GPU"),
        ("0,0", "named twice"),
        ("GPU-", "'GPU-' is no GPU"),
        ("", "'' is no GPU"),
        ("²", "'²' is no GPU"),
    ],
)
def test_a_wrong_choice_is_refused_with_what_there_is(selection: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as error:
        choose_gpus(FOUR, selection, None)
    assert error.value.remedy


@pytest.mark.parametrize("variable", ["", "-1", "none"])
def test_hidden_gpus_are_an_error_that_says_so(variable: str) -> None:
    with pytest.raises(InfrastructureError, match="hides every GPU"):
        choose_gpus(FOUR, None, variable)


def test_a_machine_without_gpus_is_told_what_to_do() -> None:
    with pytest.raises(InfrastructureError, match="no GPU") as error:
        choose_gpus([], None, None)
    assert error.value.exit_code is ExitCode.INFRASTRUCTURE
    assert "--scheduler" in str(error.value)
    assert "trial.gpus: 0" in str(error.value)


def test_one_worker_for_as_many_gpus_as_a_trial_needs() -> None:
    assert group_gpus(FOUR, 1, None) == [(A,), (B,), (C,), (D,)]
    assert group_gpus(FOUR, 1, 2) == [(A,), (B,)]
    assert group_gpus(FOUR, 2, None) == [(A, B), (C, D)]
    assert group_gpus(FOUR, 3, None) == [(A, B, C)]


def test_more_than_there_is_cannot_be_grouped() -> None:
    with pytest.raises(InfrastructureError, match="asks for 5 GPUs, and 4 can be used"):
        group_gpus(FOUR, 5, None)
    with pytest.raises(UsageError, match="enough for 2 workers with 2 each"):
        group_gpus(FOUR, 2, 3)


def test_of_the_rotation_that_dask_cuda_makes_a_worker_hands_out_its_own_gpu_alone() -> None:
    # The second of four workers gets all four, its own first.
    assert visible_gpus("1,2,3,0", FOUR, 1) == (B,)
    assert visible_gpus(f"{C},{D},{A},{B}", FOUR, 2) == (C, D)
    assert visible_gpus(None, FOUR, 2) == (A, B)


def test_slices_of_a_gpu_are_taken_as_they_are() -> None:
    assert visible_gpus("MIG-1,MIG-2", FOUR, 1) == ("MIG-1",)


def test_without_nvml_uuids_are_enough_and_indices_are_not() -> None:
    assert visible_gpus(f"{A},{B}", None, 1) == (A,)
    for variable in ("0,1", None, ""):
        with pytest.raises(InfrastructureError, match="hands out 1 GPUs and can name 0"):
            visible_gpus(variable, None, 1)


def test_a_worker_cannot_hand_out_more_than_it_sees() -> None:
    with pytest.raises(InfrastructureError, match="hands out 2 GPUs and can name 1"):
        visible_gpus("3", FOUR, 2)


def test_an_ambiguous_beginning_names_nothing() -> None:
    assert find_gpu("GPU-", FOUR) is None
    assert find_gpu("GPU-b", FOUR) == FOUR[1]
