"""Measure which circumstances make a study's failure frequent.

Under these circumstances, the good end must still pass. These trials belong to a separate study that no other
study reuses, because they are no evidence. The chosen circumstances (a `Perturbation`, such as CPU load
beside the script) are stored with the original study as a decision, and all its trials then run under them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from bisect_env.answers.axes import AxisInfo
from bisect_env.engine import events
from bisect_env.engine.locking import Locking
from bisect_env.engine.opening import open_derived
from bisect_env.engine.plans import BlockPlan, BlockRunner
from bisect_env.engine.series import Conditions, RunSetup
from bisect_env.engine.session import Session
from bisect_env.engine.specs import target_of
from bisect_env.engine.stored import LockedCombination
from bisect_env.environments.lock import Lock
from bisect_env.errors import NoEnvironmentError, StudyInterruptedError
from bisect_env.matrix.grid import AxisKind, Combination, Direction, Grid, Index
from bisect_env.matrix.interpreter import can_repeat
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.signatures import FROM_BAD_END, shown
from bisect_env.search.circumstances import (
    ENOUGH,
    SURE,
    Arm,
    better_half,
    good_end_trials,
    probability_faster,
)
from bisect_env.storage.entries import (
    AMPLIFIED,
    CombinationStatus,
    StoredTrial,
    Study,
    StudyStatus,
)
from bisect_env.storage.store import Store
from bisect_env.trials.records import NONE, PERTURBATION, Evidence, Perturbation
from bisect_env.trials.signature import matches

BASE_TRIALS = 24
"""Number of trials of the unperturbed script at first."""
MAX_BASE_TRIALS = 96
"""Maximum number of trials of the unperturbed script, if it does not fail."""
ROUNDS = (6, 12)
"""Number of trials of each remaining perturbation in each round. After a round, the better half remains."""
FRESH_TRIALS = 36
"""Number of fresh trials of a candidate. The unperturbed script gets half as many, because it already has
some."""
MIN_CHANCE = 0.6
"""Minimum probability that a candidate is better than the unperturbed script, for it to get these fresh
trials."""
CANDIDATES = 3
"""Maximum number of candidates that get fresh trials, if the first ones fail the comparison."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Environment variables that set the number of threads of numeric libraries."""


def catalogue(cpus: int, seeds: Sequence[int] = (), *, repeats: bool = False) -> tuple[Perturbation, ...]:
    """Return the perturbations to try (conditions, such as CPU load, that may make a failure more frequent).

    Args:
        cpus: Number of CPUs that a trial may use.
        seeds: Hash seeds (`PYTHONHASHSEED`) of trials that failed; with one of them, the failure may be
            certain.
        repeats: Whether the script can be run repeatedly within one process.
    """
    found = [
        Perturbation("2 copies at once", copies=2),
        Perturbation(f"{max(4, 2 * cpus)} copies at once", copies=max(4, 2 * cpus)),
        Perturbation("CPU load beside it", load=max(2, cpus)),
        Perturbation("CPU load beside it, at low priority", load=max(2, cpus), nice=19),
        Perturbation("freed memory overwritten", env={"MALLOC_PERTURB_": "165"}),
        Perturbation("one malloc arena", env={"MALLOC_ARENA_MAX": "1"}),
        Perturbation("Python's debug allocator", env={"PYTHONMALLOC": "debug"}),
        Perturbation("Python objects in malloc", env={"PYTHONMALLOC": "malloc"}),
        Perturbation("garbage collected at every chance", gc_threshold=1),
        Perturbation("one thread in numeric libraries", env=dict.fromkeys(_THREADS, "1")),
        Perturbation(
            f"{4 * max(2, cpus)} threads in numeric libraries",
            env=dict.fromkeys(_THREADS, str(4 * max(2, cpus))),
        ),
    ]
    found += [Perturbation(f"hash seed {seed} in every second trial", seeds=(seed,)) for seed in (0, *seeds)]
    if cpus > 1:
        found.append(Perturbation("one core", cpus=1))
    if repeats:
        found += [Perturbation(f"{n} times within a process", repeats=n) for n in (5, 25)]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Amplified:
    """The result of comparing perturbations (conditions that may make a failure more frequent).

    Attributes:
        perturbation: The chosen perturbation; `NONE` for the unperturbed script.
        reason: A sentence that gives the reason for the choice.
        base: Results of the unperturbed script at the bad end.
        arm: Results of the chosen perturbation at the bad end, in its last round; None if none was chosen.
        good: Results of the chosen perturbation at the good end; None if none was chosen.
        tried: All perturbations that were tried, with their results.
        trials: Total number of trials, including those of the good end.
        signature: Signature of the failure; "" if no failure was seen.
    """

    perturbation: Perturbation
    reason: str
    base: Arm
    arm: Arm | None = None
    good: Arm | None = None
    tried: tuple[tuple[Perturbation, Arm], ...] = ()
    trials: int = 0
    signature: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the result as a JSON object, in the form in which the database stores it."""
        return {
            "perturbation": PERTURBATION.dump_python(self.perturbation, mode="json", exclude_defaults=True),
            "reason": self.reason,
            "base": asdict(self.base),
            "arm": self.arm and asdict(self.arm),
            "good": self.good and asdict(self.good),
            "tried": [{"name": one.name, **asdict(arm)} for one, arm in self.tried],
            "trials": self.trials,
            "signature": shown(self.signature),
        }


def known_perturbation(store: Store, study_id: str) -> Perturbation | None:
    """Return the perturbation (such as CPU load) that was chosen for a study's trials.

    Returns None if none was chosen yet.
    """
    chosen = store.payloads(study_id, AMPLIFIED)
    return PERTURBATION.validate_python(chosen[0]["perturbation"]) if chosen else None


Batch = tuple[str, Perturbation, int]
"""A request for trials: the end (`good` or `bad`), the perturbation, and the number of trials."""
Steps = Generator[Batch, list[StoredTrial], Amplified]
GOOD, BAD = "good", "bad"


@dataclass(frozen=True, slots=True)
class AmplifySchedule:
    """The order in which perturbations (such as CPU load) are tried and compared.

    The schedule runs nothing: it yields requests for trials and receives their results.

    Attributes:
        matrix: The matrix of the study.
        arms: Returns the perturbations to try, given hash seeds of trials that failed.
        notify: Called with a sentence about each intermediate result.
    """

    matrix: Matrix
    arms: Callable[[Sequence[int]], Sequence[Perturbation]]
    notify: Callable[[str], None]

    def batches(self) -> Steps:
        """Yield requests for trials, and return the perturbation under which the failure shows soonest.

        What counts is the time that trials need to separate good from bad combinations. The result contains
        `NONE` if no perturbation helps. The caller sends the counted trials of each request back. It may send
        fewer than requested only if no more trials are possible at that end.
        """
        trials = yield BAD, NONE, BASE_TRIALS
        while not (failed := [trial for trial in trials if trial.evidence is Evidence.BAD]):
            more = yield BAD, NONE, BASE_TRIALS
            trials = [*trials, *more]
            if len(trials) >= MAX_BASE_TRIALS or len(more) < BASE_TRIALS:
                # Without the signature of a failure, another one could be made frequent instead.
                base = _arm_of(trials, "")
                why = f"{_words(base)} at the bad end: which failure is meant is not known yet"
                return Amplified(NONE, why, base)
        signature = self._meant(failed)
        if signature:
            self.notify(f"the failure: {shown(signature)}")
        base = _arm_of(trials, signature)
        self.notify(f"as it is: {_words(base)}")
        found = yield from self._compare(signature, base, sorted({one.hash_seed for one in failed})[:2])
        return replace(found, signature=signature)

    def _compare(self, signature: str, base: Arm, seeds: Sequence[int]) -> Steps:
        if base.hits >= ENOUGH * base.trials:
            return Amplified(NONE, "it fails often enough as it is", base)
        tried, left = yield from self._rounds(signature, list(self.arms(seeds)))
        sure = {one.name: probability_faster(arm, base, np.random.default_rng(0)) for one, arm in left}
        order = sorted(left, key=lambda pair: (-sure[pair[0].name], -pair[1].speed))
        why = "nothing raises the rate for its cost"
        for perturbation, arm in order[:CANDIDATES]:
            if not arm.hits or sure[perturbation.name] < MIN_CHANCE:
                continue
            again, base = yield from self._final(signature, perturbation, base)
            if probability_faster(again, base, np.random.default_rng(0)) < SURE:
                continue
            needed = good_end_trials(again.rate)
            passes = yield GOOD, perturbation, needed
            good = [trial for trial in passes if trial.evidence is Evidence.GOOD]
            wrong = [trial for trial in passes if trial.evidence not in (Evidence.GOOD, Evidence.SKIP)]
            if wrong:
                why = (
                    f"under {perturbation.name} the good end fails, too: {len(wrong)} of {len(passes)}, "
                    f"{wrong[0].detail}"
                )
                self.notify(why)
                continue
            if len(good) < needed:
                # Set aside, for example because the script skips there: nothing shows that it passes.
                why = f"the good end could not be run under {perturbation.name}"
                self.notify(why)
                continue
            clean = _arm_of(passes, "")
            passed = f"the good end passed {clean.trials} of {clean.trials}"
            reason = f"{_words(again)} against {_words(base)}; {passed}"
            return Amplified(perturbation, reason, base, again, clean, tuple(tried))
        return Amplified(NONE, why, base, tried=tuple(tried))

    def _meant(self, failed: Sequence[StoredTrial]) -> str:
        """Return the signature of the failure that the perturbations are to make more frequent.

        Args:
            failed: The bad trials of the unperturbed script.
        """
        found = [trial.signature for trial in failed]
        if self.matrix.file.trial.bad.signature == FROM_BAD_END:
            # As for the target of the study, take the first failure and not the most frequent one.
            return next(filter(None, found), "")
        return Counter(found).most_common(1)[0][0]

    def _rounds(
        self, signature: str, arms: list[Perturbation]
    ) -> Generator[
        Batch,
        list[StoredTrial],
        tuple[list[tuple[Perturbation, Arm]], list[tuple[Perturbation, Arm]]],
    ]:
        """Yield requests for trials of all perturbations, dropping the worse half after each round.

        Returns the results of all perturbations, and of those left after the last round.
        """
        known = [Arm() for _ in arms]
        alive = list(range(len(arms)))
        for trials in ROUNDS:
            for i in alive:
                known[i] += _arm_of((yield BAD, arms[i], trials), signature)
                self.notify(f"{arms[i].name}: {_words(known[i])}")
            order = better_half([known[i] for i in alive], least=CANDIDATES)
            alive = [alive[j] for j in order]
        return list(zip(arms, known, strict=True)), [(arms[i], known[i]) for i in alive]

    def _final(
        self, signature: str, perturbation: Perturbation, base: Arm
    ) -> Generator[Batch, list[StoredTrial], tuple[Arm, Arm]]:
        """Request more trials with and without a perturbation; return the results with it and without it.

        Trials with and without it alternate, so that a machine that slows down affects both.
        """
        again = Arm()
        for _ in range(2):
            again += _arm_of((yield BAD, perturbation, FRESH_TRIALS // 2), signature)
            base += _arm_of((yield BAD, NONE, FRESH_TRIALS // 4), signature)
        self.notify(f"again {perturbation.name}: {_words(again)}")
        self.notify(f"again as it is: {_words(base)}")
        return again, base


def _arm_of(trials: Sequence[StoredTrial], signature: str) -> Arm:
    hits = [
        trial
        for trial in trials
        if trial.evidence is Evidence.BAD and (not signature or matches(trial.signature, signature))
    ]
    return Arm(len(trials), len(hits), sum(trial.duration for trial in trials))


class BatchPlan(BlockPlan):
    """A plan that runs the batches of trials that a generator requests, one after another.

    Args:
        batches: The generator of requests, from `AmplifySchedule.batches`.
        place: Returns the index of the combination for an end (`good` or `bad`) and a perturbation.

    Attributes:
        found: The result, None until it is known.
    """

    def __init__(self, batches: Steps, place: Callable[[str, Perturbation], Index]) -> None:
        super().__init__()
        self._batches = batches
        self._place = place
        self._got: list[StoredTrial] = []
        self._aside: set[Index] = set()
        self._wanted: tuple[Index, int] | None = None
        self.found: Amplified | None = None
        self._advance(None)

    @property
    def finished(self) -> bool:
        """Return whether the comparison of perturbations has a result."""
        return self.found is not None

    def block(self, _places: int, *, is_idle: bool) -> tuple[Index, int] | None:
        """Return the combination of the current batch, and the number of trials that are still missing.

        Returns None if the result is known.
        """
        return self._wanted and (self._wanted[0], self._wanted[1] - len(self._got))

    def observe(self, index: Index, trial: StoredTrial) -> None:
        """Add a stored trial to the current batch, unless the trial is void or of another combination.

        A void trial is thereby repeated.
        """
        if trial.evidence is Evidence.VOID or self._wanted is None or index != self._wanted[0]:
            return
        self._got.append(trial)
        if len(self._got) >= self._wanted[1]:
            self._advance(self._got)

    def set_aside(self, index: Index) -> None:
        """Exclude a combination from further trials; if its batch is running, the batch ends early."""
        self._aside.add(index)
        if self._wanted is not None and self._wanted[0] == index:
            self._advance(self._got)

    def _advance(self, got: list[StoredTrial] | None) -> None:
        try:
            end, perturbation, number = next(self._batches) if got is None else self._batches.send(got)
        except StopIteration as last:
            self.found, self._wanted = last.value, None
            return
        self._wanted, self._got = (self._place(end, perturbation), number), []
        if self._wanted[0] in self._aside:
            self._advance([])


@dataclass(slots=True)
class Amplifier:
    """A search for the perturbation (such as CPU load) under which a failure shows soonest.

    What counts is the time that trials need to separate good from bad combinations.

    Attributes:
        matrix: The matrix.
        session: Database, environments and executor.
        study: The study whose trials will run under the perturbation; None if there is none.
    """

    matrix: Matrix
    session: Session
    study: Study | None = None

    def run(self, bad: LockedCombination, good: LockedCombination) -> Amplified:
        """Try perturbations on the bad and the good combination, and return the best one with its results.

        Args:
            bad: The bad end with its lock.
            good: The good end with its lock.

        Raises:
            NoEnvironmentError: The environment of an end cannot be built.
            InfrastructureError: Too many trials were void.
            StudyInterruptedError: The user stopped it.
        """
        repeats = can_repeat(self.matrix.file.trial.effective_command)

        named = {_AS_IT_IS: NONE}

        def arms(seeds: Sequence[int]) -> Sequence[Perturbation]:
            # If the evidence changes, other trials are failures. Seeds that have a name keep it, because
            # trials with them are stored under this name.
            known = [seed for name in _SEEDS if name in named for seed in named[name].seeds]
            wanted = [*dict.fromkeys([*known, *seeds])][: len(_SEEDS)]
            return catalogue(len(os.sched_getaffinity(0)), wanted, repeats=repeats)

        named |= {one.name: one for one in arms(())}
        # The hash seeds to try are known only after a failure.
        ends = {BAD: bad, GOOD: good}
        own = self._open([*named, *_SEEDS], ends)
        grid = own.grid

        def place(end: str, perturbation: Perturbation) -> Index:
            if perturbation not in named.values():
                named[next(name for name in _SEEDS if name not in named)] = perturbation
            around = next(name for name, one in named.items() if one == perturbation)
            return grid.index(Combination.of({_END: end, _AROUND: around}))

        def conditions(index: Index) -> Conditions:
            combination = grid.combination(index)
            around = named.get(combination[_AROUND], NONE)
            # No key, because trials that compare circumstances are no evidence for other studies.
            return Conditions("", ends[combination[_END]].combination, around)

        steps = AmplifySchedule(self.matrix, arms, self.session.say)
        known = {index: ends[grid.combination(index)[_END]].lock for index in grid.indices()}
        locking = Locking(self.matrix, grid, self.session.provider, known=known, is_whole=False)
        with closing(locking):
            setup = RunSetup(
                self.matrix,
                lambda: BatchPlan(steps.batches(), place),
                replace(self.session, notify=self._on_event),
                own.id,
                conditions,
            )
            runner = BlockRunner(setup, locking)
            runner.replay()
            runner.run()
        self.session.store.update_study(own.id, StudyStatus.FINISHED)
        self._check(runner, ends)
        assert isinstance(runner.plan, BatchPlan)
        assert runner.plan.found is not None
        return replace(runner.plan.found, trials=runner.plan.trials)

    def _open(self, names: Sequence[str], ends: Mapping[str, LockedCombination]) -> Study:
        # If the target of the study is still open, the signature of a failure becomes its target.
        store = self.session.store
        target = target_of(self.matrix) if self.study is None else store.target(self.study.id)
        axes = {_END: (GOOD, BAD), _AROUND: tuple(names)}
        definition = {
            "name": f"{self.matrix.name}: circumstances",
            "description": f"circumstances under which {ends[BAD].combination} fails and "
            f"{ends[GOOD].combination} does not",
            "grid": tuple(
                AxisInfo(name=name, kind=AxisKind.VALUE, direction=Direction.UNORDERED, values=values)
                for name, values in axes.items()
            ),
            "target": target.any_signature if target.is_open else target,
            "exclude_newer": None if self.study is None else self.study.exclude_newer,
            "fresh": True,
        }
        locks: dict[Index, Lock] = {
            (i, j): ends[end].lock for i, end in enumerate(axes[_END]) for j in range(len(names))
        }
        serves = "" if self.study is None else self.study.id
        return open_derived(store, self.matrix, serves, definition, locks)

    def _on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Warned):
            self.session.notify(event)

    def _check(self, runner: BlockRunner, ends: Mapping[str, LockedCombination]) -> None:
        for index, (status, reason) in runner.state.aside.items():
            if status is not CombinationStatus.SET_ASIDE:
                combination = ends[runner.grid.combination(index)[_END]].combination
                raise NoEnvironmentError(
                    f"{combination}: its environment cannot be made: {reason}",
                    remedy="state other ends in the matrix, or leave amplifying out",
                )
        if not runner.plan.finished:
            raise StudyInterruptedError(
                "stopped while looking for what makes the failure more frequent",
                remedy="the same command begins with that anew",
            )


_END, _AROUND = "end", "circumstances"
_AS_IT_IS = "as it is"
_SEEDS = ("hash seed of a failure", "hash seed of another failure")


def _words(arm: Arm) -> str:
    if not arm.trials:
        return "not tried"
    return f"{arm.hits} of {arm.trials} trials, {arm.seconds / arm.trials:.2f} s each"


def choose_perturbation(
    matrix: Matrix, grid: Grid, locking: Locking, session: Session, study_id: str
) -> Perturbation:
    """Return the perturbation (such as CPU load) under which a study's trials run.

    If the study has none yet, perturbations are compared now and the chosen one is stored.

    Args:
        matrix: The matrix of the study.
        grid: Its combinations.
        locking: Locks its ends.
        session: Database, environments and executor.
        study_id: Id of the open study.

    Returns:
        `NONE` if the matrix does not ask for `amplify`, or no perturbation helps.

    Raises:
        NoEnvironmentError: The environment of an end cannot be built.
        InfrastructureError: Too many trials were void.
        StudyInterruptedError: The user stopped it.
    """
    if not matrix.file.search.amplify:
        return NONE
    store = session.store
    known = known_perturbation(store, study_id)
    if known is not None:
        return known
    chosen = grid.ends
    locks = [] if chosen is None else [locking.lock_now(index) for index in chosen]
    solved = [lock for lock in locks if isinstance(lock, Lock)]
    if chosen is None or len(solved) < len(chosen):
        found = Amplified(NONE, "no good and bad end can be run, or told from the directions", Arm())
    else:
        ends = zip(chosen, solved, strict=True)
        good, bad = (LockedCombination(grid.combination(index), lock) for index, lock in ends)
        try:
            found = Amplifier(matrix, session, store.study(study_id)).run(bad, good)
        except StudyInterruptedError:
            if session.is_in_time:
                raise
            session.say("the budget is spent; what makes the failure more frequent is not known yet")
            return NONE
    # Another command of this study may have chosen at the same time; both use the first decision.
    known = known_perturbation(store, study_id)
    if known is None:
        store.record_decision(study_id, AMPLIFIED, found.as_json())
    how = f"under {found.perturbation.name}" if found.perturbation != NONE else "as they are"
    session.say(f"trials run {how}: {found.reason}")
    return found.perturbation if known is None else known
