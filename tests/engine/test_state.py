"""What a study does next, decided without a clock, a process or a database."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bisect_env.engine.locking import Prepared
from bisect_env.engine.next_work import BUILDS_AT_ONCE, NextWork, Wanted, expected_builds
from bisect_env.engine.state import (
    BUILDS_BEFORE_UNBUILDABLE,
    VOIDS_BEFORE_STOP,
    Finding,
    PutAside,
    StudyState,
)
from bisect_env.environments.lock import Lock, UnsolvableError
from bisect_env.errors import InfrastructureError, NoEnvironmentError
from bisect_env.matrix.grid import AxisKind, Grid, Index
from bisect_env.matrix.load import Matrix, load_matrix
from bisect_env.search.searcher import Search
from bisect_env.storage.entries import CombinationStatus
from bisect_env.trials.records import Evidence, Outcome
from tests.search.worlds import alone, grid

LINE = grid((10,), good=(0,), bad=(9,))


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    path = tmp_path_factory.mktemp("state") / "matrix.yaml"
    axes = "a0: {package: alpha, versions: ['1', '2']}"
    path.write_text(f"version: 1\nname: state\naxes: {{{axes}}}\ntrial: {{command: python -V}}\n")
    return load_matrix(path)


class Study:
    """A state with a real search, whose solvers, builds and trials answer when a test says so."""

    def __init__(self, matrix: Matrix, lattice: Grid = LINE, *, quick: bool = False) -> None:
        self.grid = lattice
        self.locks: dict[Index, Lock] = {}
        self.unsolvable: dict[Index, UnsolvableError] = {}
        self.search = Search(lattice, alone(lattice), quick=quick)
        prepared = Prepared(lattice, self.locks, self.unsolvable, alone(lattice))
        self.state = StudyState(matrix, prepared, self.search)
        self.next = NextWork(matrix, prepared, self.state)
        self._trials = 0

    def lock(self, *indices: Index, names: Mapping[Index, str] | None = None) -> list[Finding]:
        findings = []
        for index in indices:
            name = (names or {}).get(index, "-".join(map(str, index)))
            self.locks[index] = Lock(name, "3.11", "linux-64", (), "")
            findings += self.state.locked(index)
        return findings

    def hash_of(self, index: Index) -> str:
        return self.locks[index].content_hash

    def build(self, *indices: Index, seconds: float = 5.0) -> None:
        for index in indices:
            self.state.building.add(self.hash_of(index))
            self.state.built(self.hash_of(index), seconds)

    def fail(self, index: Index, message: str = "no wheel", *, transient: bool) -> list[Finding]:
        self.state.building.add(self.hash_of(index))
        return self.state.build_failed(self.hash_of(index), message, transient=transient)

    def start(self, indices: Iterable[Index]) -> None:
        for index in indices:
            self._trials += 1
            self.state.running[f"trial-{self._trials}"] = index

    def learn(self, index: Index, *, bad: bool, seconds: float = 1.0, times: int = 1) -> None:
        outcome, evidence = (Outcome.CRASH, Evidence.BAD) if bad else (Outcome.PASS, Evidence.GOOD)
        for _ in range(times):
            self.state.learn(index, outcome, evidence, duration=seconds, detail="")

    def flaky(self) -> None:
        """Both ends are there; the bad one fails now and then, often enough to be left for others."""
        self.lock(*self.grid.indices())
        self.build((0,), (9,))
        self.learn((0,), bad=False, times=5)
        for _ in range(5):
            self.learn((9,), bad=True)
            self.learn((9,), bad=False)


@pytest.fixture
def study(matrix: Matrix) -> Study:
    return Study(matrix)


@pytest.mark.parametrize("again", [False, True])
def test_trials_count_though_their_environment_cannot_be_built_any_more(study: Study, again: bool) -> None:
    study.lock(*study.grid.indices())
    study.build((2,))

    def learn() -> None:
        study.learn((0,), bad=False)
        study.learn((2,), bad=True, times=2)

    learn()
    study.state.put_aside((2,), CombinationStatus.UNBUILDABLE, "its files are gone")
    if again:
        study.state.begin_again(Search(study.grid, alone(study.grid)))
        learn()
    study.learn((2,), bad=True)  # it was running
    plan = study.state.plan
    assert isinstance(plan, Search)
    assert plan.counts((2,)) == (3, 3)
    assert plan.trials == 4
    assert (2,) not in plan.ask(20)


# -- whole studies ---------------------------------------------------------------------------------------


class Hosts:
    """Carries out what a state wants, in an order that chance decides, and minds how it was told.

    Args:
        study: Asks.
        rates: How often each combination fails.
        slots: Places for trials.
        rng: Decides what answers next, and what it says.
        shared: Combinations of one axis that are the same environment: value 0 to `shared` − 1, and so on.
    """

    def __init__(
        self, study: Study, rates: np.ndarray, slots: int, rng: np.random.Generator, shared: int
    ) -> None:
        self.study, self.rates, self.slots, self.rng = study, rates, slots, rng
        self.names = {index: f"{index[0] // shared}" for index in study.grid.indices()}
        self.locking: dict[Index, None] = {}
        self.building: dict[str, None] = {}
        self.builds: Counter[str] = Counter()

    def carry_out(self, wanted: Wanted) -> None:
        study, state = self.study, self.study.state
        certain = state.looks_certain
        for index in wanted.lock:
            assert index not in study.locks
            self.locking[index] = None
        for index in wanted.build:
            name = study.hash_of(index)
            assert name not in state.ready
            assert name not in state.building
            state.building.add(name)
            self.building[name] = None
            self.builds[name] += 1
        assert len(self.building) <= BUILDS_AT_ONCE[1]
        for index in wanted.start:
            assert study.hash_of(index) in state.ready
        study.start(wanted.start)
        if wanted.start:
            assert len(state.running) <= self.slots * (1 if certain else 2)

    def answer(self) -> None:
        """One solver, build or trial comes to its end."""
        study, state = self.study, self.study.state
        under_way: list[Index | str] = [*self.locking, *self.building, *state.running]
        assert under_way, "nothing is wanted of a study that is not finished"
        one = under_way[self.rng.integers(len(under_way))]
        if isinstance(one, tuple):
            del self.locking[one]
            study.lock(one, names=self.names)
        elif one in self.building:
            del self.building[one]
            state.built(one, 3.0)
        else:
            index = state.running.pop(one)
            study.learn(index, bad=bool(self.rng.random() < self.rates[index]), seconds=0.1)


@settings(max_examples=8)
@given(seed=st.integers(0, 2**32 - 1), slots=st.integers(1, 9), shared=st.integers(1, 3), rate=st.just(1.0))
@example(seed=0, slots=4, shared=1, rate=0.6)
def test_whatever_answers_first_the_study_comes_to_its_answer(
    matrix: Matrix, seed: int, slots: int, shared: int, rate: float
) -> None:
    rng = np.random.default_rng(seed)
    study = Study(matrix, quick=True)
    first = int(rng.integers(1, 10))
    rates = np.where(np.arange(10) >= first, rate, 0.0)
    hosts = Hosts(study, rates, slots, rng, shared)
    for _ in range(3000):
        if study.search.finished:
            break
        hosts.carry_out(study.next.decide(slots))
        hosts.carry_out(study.next.ahead(slots))
        hosts.answer()
    assert study.search.finished
    if rate == 1.0:
        assert study.search.verdict.best.first_bad == (first,)
    # Not even combinations that share an environment have it made twice.
    assert set(hosts.builds.values()) == {1}
    assert study.next.decide(slots) == Wanted()


# -- environments first ----------------------------------------------------------------------------------


def test_what_is_not_locked_is_locked_then_built_then_tried(study: Study) -> None:
    wanted = study.next.decide(2)
    locked = wanted.lock
    assert locked
    assert not wanted.build
    assert not wanted.start
    study.lock(*locked)
    wanted = study.next.decide(2)
    assert wanted.build
    assert {*wanted.build} <= {*locked}
    assert not wanted.start
    study.build(wanted.build[0])
    assert {*study.next.decide(2).start} == {wanted.build[0]}


def test_an_environment_is_made_once_for_all_that_share_it(matrix: Matrix) -> None:
    lattice = grid((2, 5), good=(0, 0), bad=(1, 4))
    study = Study(matrix, lattice)
    study.lock(*lattice.indices(), names={index: f"lock-{index[0]}" for index in lattice.indices()})
    wanted = study.next.decide(8)
    assert sorted(map(study.hash_of, wanted.build)) == ["lock-0", "lock-1"]
    for index in wanted.build:
        study.state.building.add(study.hash_of(index))
    assert study.next.decide(8) == Wanted()
    assert sorted(study.state.combinations_in("lock-1")) == [(1, n) for n in range(5)]
    study.state.built("lock-1", 2.0)
    wanted = study.next.decide(8)
    assert wanted.start
    assert {study.hash_of(index) for index in wanted.start} == {"lock-1"}
    assert wanted.build == ()


def test_locks_are_asked_for_in_the_order_of_the_search(matrix: Matrix) -> None:
    lattice = grid((6, 7), good=(0, 0), bad=(5, 6))
    study, alike = Study(matrix, lattice), Search(lattice, alone(lattice))
    asked = list(dict.fromkeys(alike.ask(5, build_cost=dict.fromkeys(lattice.indices(), 5.0))))
    assert len(asked) >= 2
    assert study.next.decide(5).lock[: len(asked)] == tuple(asked)
    # What the search wants first comes first, though others could be built at once.
    study.lock(*asked[1:])
    wanted = study.next.decide(5)
    assert wanted.lock[0] == asked[0]
    assert wanted.build[: len(asked) - 1] == tuple(asked[1:])


def test_no_more_is_begun_than_hosts_can_make(study: Study) -> None:
    study.lock(*study.grid.indices())
    begun = 0
    while wanted := study.next.decide(100).build:
        begun += len(wanted)
        assert begun <= BUILDS_AT_ONCE[1]
        for index in wanted:
            study.state.building.add(study.hash_of(index))
    assert begun


# -- trials ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.01, 100.0])
def test_no_trial_is_asked_early_while_failures_look_certain(study: Study, seconds: float) -> None:
    study.lock(*study.grid.indices())
    study.build(*study.grid.indices())
    study.learn((0,), bad=False, seconds=seconds)
    study.learn((9,), bad=True, seconds=seconds)
    assert study.state.looks_certain
    wanted = study.next.decide(3)
    assert 0 < len(wanted.start) <= 3
    study.start(wanted.start)
    while (more := study.next.decide(3).start) and len(study.state.running) < 3:
        study.start(more)
    assert len(study.state.running) <= 3
    assert study.next.decide(3).start == ()


def test_failures_look_certain_while_no_combination_both_fails_and_passes(study: Study) -> None:
    study.lock(*study.grid.indices())
    study.learn((9,), bad=True, times=8)
    study.learn((0,), bad=False, times=60)  # so often the check of an answer runs the last good one
    assert study.state.looks_certain
    study.learn((9,), bad=False)
    assert not study.state.looks_certain


def test_without_a_failure_many_passes_do_not_look_certain(study: Study) -> None:
    study.lock(*study.grid.indices())
    study.learn((9,), bad=False, times=3)
    assert study.state.looks_certain
    study.learn((9,), bad=False)
    assert not study.state.looks_certain


def test_commits_are_built_one_after_another_and_tried_at_the_same_time_once_built(matrix: Matrix) -> None:
    axis = dataclasses.replace(LINE.axes[0], kind=AxisKind.COMMIT)
    study = Study(matrix, dataclasses.replace(LINE, axes=(axis,)))
    study.lock(*study.grid.indices())
    study.build((0,), (9,))
    study.learn((0,), bad=False)
    study.learn((9,), bad=True, times=8)
    wanted = study.next.decide(3)
    assert len({*wanted.start, *wanted.build}) == 1
    # The trials that check a first answer, before commits are added around it, change nothing.
    study.learn((0,), bad=False, times=60)
    wanted = study.next.decide(3)
    assert len({*wanted.start, *wanted.build}) == 1
    study.build(*(index for index in study.grid.indices() if index not in [(0,), (9,)]))
    assert len(study.next.decide(3).start) > 1


@pytest.mark.parametrize(("seconds", "most"), [(0.01, 6), (100.0, 3)])
def test_of_short_flaky_trials_one_more_waits_at_each_place(study: Study, seconds: float, most: int) -> None:
    study.lock(*study.grid.indices())
    study.build(*study.grid.indices())
    study.learn((0,), bad=False, seconds=seconds, times=5)
    for bad in (True, False):
        study.learn((9,), bad=bad, seconds=seconds, times=5)
    assert not study.state.looks_certain
    wanted = study.next.decide(3)
    assert len(wanted.start) == most
    study.start(wanted.start)
    assert study.next.decide(3).start == ()


def test_idle_places_are_filled_only_where_failures_are_flaky(matrix: Matrix) -> None:
    certain = Study(matrix)
    certain.lock(*LINE.indices())
    certain.build((0,), (9,))
    certain.learn((0,), bad=False)
    certain.learn((9,), bad=True)
    wanted = certain.next.decide(4)
    assert wanted.build
    # But for the bad end, whose failure another one would confirm.
    assert wanted.start in ((), ((9,),))

    flaky = Study(matrix)
    flaky.flaky()
    wanted = flaky.next.decide(4)
    assert wanted.build
    assert not set(wanted.build) & {(0,), (9,)}
    assert wanted.start
    assert set(wanted.start) <= {(0,), (9,)}
    # Places that build, or try something, are not idle.
    for index in wanted.build:
        flaky.state.building.add(flaky.hash_of(index))
    assert len(flaky.next.decide(4).start) <= 4 - len(wanted.build)
    flaky.start([(9,)] * 4)
    assert flaky.next.decide(4).start == ()


def test_named_combinations_are_tried_alone_and_no_more_often_than_is_wanted(study: Study) -> None:
    assert study.next.decide(3, only={(9,): 3}) == Wanted(lock=((9,),))
    study.lock((0,), (9,))
    study.build((0,))
    assert study.next.decide(3, only={(9,): 3}) == Wanted(build=((9,),))
    study.build((9,))
    assert study.next.decide(3, only={(9,): 64}) == Wanted(start=((9,),) * 3)
    assert study.next.decide(8, only={(0,): 2, (9,): 3}) == Wanted(start=((0,),) * 2 + ((9,),) * 3)
    study.start([(0,), (9,)])
    assert study.next.decide(8, only={(0,): 2, (9,): 3}) == Wanted(start=((0,), (9,), (9,)))


# -- what counts -----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(list(Evidence))), max_size=40))
@settings(max_examples=40)
def test_other_failures_and_void_trials_never_move_the_posterior(
    matrix: Matrix, trials: list[tuple[int, Evidence]]
) -> None:
    study = Study(matrix, grid((6,)))
    counted_alone = Search(study.grid, alone(study.grid))
    for cell, evidence in trials:
        if evidence in (Evidence.GOOD, Evidence.BAD) and (cell,) not in study.state.aside:
            counted_alone.tell((cell,), hit=evidence is Evidence.BAD)
        study.state.learn((cell,), Outcome.CRASH, evidence, duration=1.0, detail="")
        if (cell,) in study.state.aside:
            # That it cannot be tried any more is known to both: an end that is gone changes what is asked.
            counted_alone.set_aside((cell,))
    np.testing.assert_array_equal(study.search.probability_bad(), counted_alone.probability_bad())
    assert study.search.trials == counted_alone.trials


# -- what cannot be made ---------------------------------------------------------------------------------


def test_what_fails_to_build_three_times_is_unbuildable(study: Study) -> None:
    study.lock((4,), (5,), names={(4,): "same", (5,): "same"})
    for _ in range(BUILDS_BEFORE_UNBUILDABLE - 1):
        assert study.fail((4,), transient=False) == []
    assert study.state.aside == {}
    found = study.fail((4,), "gcc: error", transient=False)
    assert found == [PutAside(index, "env-unbuildable", "gcc: error") for index in ((4,), (5,))]
    assert study.state.missing()[5,] == ("env-unbuildable", "gcc: error")
    # Whoever turns out to need the same environment needs no build to know.
    assert study.lock((6,), names={(6,): "same"}) == [PutAside((6,), "env-unbuildable", "gcc: error")]


def test_what_may_pass_is_unbuildable_once_others_can_be_built(study: Study) -> None:
    study.lock((4,), (5,))
    for attempt in range(BUILDS_BEFORE_UNBUILDABLE + 2):
        found = study.fail((4,), "timeout", transient=True)
        assert [type(one) for one in found] == ([str] if attempt == 0 else [])
    assert study.state.aside == {}
    study.build((5,))
    assert PutAside((4,), "env-unbuildable", "timeout") in study.fail((4,), "timeout", transient=True)


def test_a_network_that_is_gone_stops_the_study(study: Study) -> None:
    study.lock((4,), (5,))
    for attempt in range(VOIDS_BEFORE_STOP - 1):
        study.fail((4 + attempt % 2,), "timeout", transient=True)
    with pytest.raises(
        InfrastructureError, match=r"10 builds in a row failed; the last: building a0=5: timeout"
    ):
        study.fail((5,), "timeout", transient=True)
    assert study.state.aside == {}


def test_one_success_shows_that_the_network_is_there(study: Study) -> None:
    study.lock((0,), (4,), (5,))
    for _ in range(VOIDS_BEFORE_STOP - 1):
        study.fail((4,), "timeout", transient=True)
    study.build((0,))
    for _ in range(2 * VOIDS_BEFORE_STOP):
        study.fail((5,), "timeout", transient=True)
    assert study.state.aside[5,] == ("env-unbuildable", "timeout")


@pytest.mark.parametrize(("end", "name"), [((0,), "good"), ((9,), "bad")])
def test_a_stated_end_without_an_environment_is_no_study(study: Study, end: Index, name: str) -> None:
    study.unsolvable[end] = UnsolvableError("nothing fits")
    with pytest.raises(NoEnvironmentError, match=f"the stated {name} end, a0={end[0]}, has no environment"):
        study.state.locked(end)


@pytest.mark.parametrize(("building", "status"), [(False, "env-unsolvable"), (True, "env-unbuildable")])
def test_any_other_combination_without_one_is_left_out(study: Study, building: bool, status: str) -> None:
    study.unsolvable[3,] = UnsolvableError("nothing fits", building=building)
    assert study.state.locked((3,)) == [PutAside((3,), status, "nothing fits")]
    assert study.state.missing() == {(3,): (status, "nothing fits")}
    for _ in range(5):
        wanted = study.next.decide(8)
        assert (3,) not in wanted.lock
        study.lock(*wanted.lock)


def test_builds_near_to_those_that_failed_are_dearer_unless_one_in_between_was_made() -> None:
    near, far, farther = (expected_builds(20, {failed}, set()) for failed in (19, 15, 2))
    assert near > far > farther > 1
    assert expected_builds(20, {15}, {17}) == expected_builds(20, set(), {17}) == 1
