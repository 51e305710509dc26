from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_env.cluster.protocol import WorkerOffer, slots, why_never

numbers = st.integers(min_value=0, max_value=9)
offers = st.lists(st.builds(WorkerOffer, st.just("tcp://h:1"), st.just("h"), st.integers(1, 9), numbers))


def offer(threads: int = 1, gpus: int = 0) -> WorkerOffer:
    return WorkerOffer("tcp://h:1", "h", threads, gpus)


@pytest.mark.parametrize(
    ("workers", "gpus", "expected"),
    [
        ([], 0, 0),
        ([offer(4)], 0, 4),
        ([offer(4), offer(1)], 0, 5),
        ([offer(4)], 1, 0),
        ([offer(1, 1), offer(1, 1)], 1, 2),
        ([offer(8, 4)], 1, 4),
        ([offer(2, 4)], 1, 2),  # more GPUs than threads
        ([offer(8, 5)], 2, 2),  # one is left over
        ([offer(8, 1), offer(8, 1)], 2, 0),  # a trial does not span workers
    ],
)
def test_slots(workers: list[WorkerOffer], gpus: int, expected: int) -> None:
    assert slots(workers, gpus) == expected


@given(offers, st.integers(1, 9))
def test_a_trial_is_refused_exactly_when_workers_are_there_and_none_could_run_it(
    workers: list[WorkerOffer], gpus: int
) -> None:
    could = any(worker.gpus >= gpus for worker in workers)
    assert (why_never(workers, gpus) is None) == (could or not workers)


@given(offers)
def test_trials_without_gpus_are_never_refused(workers: list[WorkerOffer]) -> None:
    assert why_never(workers, 0) is None


def test_the_refusal_says_what_there_is() -> None:
    assert why_never([offer(1, 1), offer(1, 3)], 4) == (
        "a trial asks for 4 GPUs, and no worker hands them out (2 workers are there, the best has 3)"
    )
    assert why_never([offer()], 1) == (
        "a trial asks for 1 GPU, and no worker hands them out (the only worker is there, none has any)"
    )


def test_an_offer_is_read_from_what_the_scheduler_says() -> None:
    info = {"host": "10.0.0.7", "nthreads": 4, "resources": {"GPU": 2.0}, "name": "w"}
    assert WorkerOffer.of("tcp://10.0.0.7:1", info) == WorkerOffer("tcp://10.0.0.7:1", "10.0.0.7", 4, 2)
    assert WorkerOffer.of("a", {**info, "resources": {}}).gpus == 0
