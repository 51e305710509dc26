from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bisect_env.engine.evidence import DEFAULT_OUTCOMES, NEVER_TARGET, SKIPPED, VOID, Target, judge
from bisect_env.matrix.grid import Combination
from bisect_env.trials.records import Evidence, Outcome, Phase, TrialRecord

REFERENCE = Path(__file__).parents[2] / "docs" / "outcomes.md"


def record(outcome: Outcome, returncode: int | None = 1, **changes: object) -> TrialRecord:
    values: dict[str, object] = {
        "trial_id": "t",
        "combination": Combination.of({"a": "1"}),
        "lock_hash": "0",
        "outcome": outcome,
        "detail": "",
        "returncode": returncode,
        "phase": Phase.BODY,
        "started_at": datetime.now(UTC),
        "duration": 1.0,
    }
    return TrialRecord(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_under_the_default_target(outcome: Outcome) -> None:
    expected = (
        Evidence.GOOD if outcome is Outcome.PASS
        else Evidence.BAD if outcome in DEFAULT_OUTCOMES
        else Evidence.VOID if outcome in VOID | {Outcome.CUDA_INIT}
        else Evidence.SKIP if outcome in SKIPPED
        else Evidence.OTHER
    )  # fmt: skip
    assert judge(record(outcome), Target()) is expected


@pytest.mark.parametrize("outcome", sorted(NEVER_TARGET))
def test_infrastructure_is_never_bad_whatever_a_study_says(outcome: Outcome) -> None:
    target = Target(outcomes=frozenset(Outcome))
    assert judge(record(outcome), target) in (Evidence.VOID, Evidence.SKIP)


def test_memory_can_be_the_symptom() -> None:
    assert judge(record(Outcome.HOST_OOM), Target()) is Evidence.VOID
    assert judge(record(Outcome.HOST_OOM), Target(outcomes=frozenset({Outcome.HOST_OOM}))) is Evidence.BAD


def test_a_failure_that_is_not_the_target_is_other() -> None:
    target = Target(outcomes=frozenset({Outcome.HANG}))
    assert judge(record(Outcome.CRASH), target) is Evidence.OTHER
    assert judge(record(Outcome.HANG), target) is Evidence.BAD


def test_signals_and_exit_codes_narrow_their_own_outcome_only() -> None:
    target = Target(signals=frozenset({11}), exit_codes=frozenset({3}))
    assert judge(record(Outcome.CRASH, -11), target) is Evidence.BAD
    assert judge(record(Outcome.CRASH, -6), target) is Evidence.OTHER
    assert judge(record(Outcome.EXIT_FAIL, 3), target) is Evidence.BAD
    assert judge(record(Outcome.EXIT_FAIL, 4), target) is Evidence.OTHER
    assert judge(record(Outcome.HANG, -6), target) is Evidence.BAD


def test_output_patterns() -> None:
    target = Target(output=(r"^deadlock \d+$", "never"))
    assert judge(record(Outcome.CRASH, stdout="x\ndeadlock 42\n"), target) is Evidence.BAD
    assert judge(record(Outcome.CRASH, stderr="deadlock 42"), target) is Evidence.BAD
    assert judge(record(Outcome.CRASH, stdout="deadlock"), target) is Evidence.OTHER
    assert judge(record(Outcome.PASS, 0, stdout="deadlock 42"), target) is Evidence.GOOD


def test_a_pass_can_be_the_target() -> None:
    target = Target(outcomes=frozenset({Outcome.PASS}), output=("wrong",))
    assert judge(record(Outcome.PASS, 0, stdout="wrong sum"), target) is Evidence.BAD
    assert judge(record(Outcome.PASS, 0, stdout="right"), target) is Evidence.GOOD


def test_a_signature_narrows_too() -> None:
    target = Target(signature='[1,"crash:SIGSEGV","body","a.py:f"]')
    assert judge(record(Outcome.CRASH, -11, signature=target.signature), target) is Evidence.BAD
    other = '[1,"crash:SIGSEGV","body","elsewhere.py:zzz"]'
    assert judge(record(Outcome.CRASH, -11, signature=other), target) is Evidence.OTHER


def test_a_failed_cuda_initialisation_is_void_once() -> None:
    target = Target(outcomes=frozenset({Outcome.CUDA_INIT}))
    assert judge(record(Outcome.CUDA_INIT), target) is Evidence.VOID
    assert judge(record(Outcome.CUDA_INIT), target, repeated=True) is Evidence.BAD
    assert judge(record(Outcome.CUDA_INIT), Target(), repeated=True) is Evidence.OTHER


def test_the_reference_page_lists_every_outcome_in_order() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \|", REFERENCE.read_text(), re.MULTILINE)
    assert rows == [str(outcome) for outcome in Outcome]
