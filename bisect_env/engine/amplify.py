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


Steps = Generator[tuple[Index, int], list[StoredTrial], Amplified]
"""Generator of requests for trials (a combination and a number), which receives their results."""
GOOD, BAD = "good", "bad"
_END, _AROUND = "end", "circumstances"
_AS_IT_IS = "as it is"
_SEEDS = ("hash seed of a failure", "hash seed of another failure")
"""Names of the circumstances whose hash seeds are known only after a failure."""


class CircumstancePlan(BlockPlan):
    """A plan that compares perturbations (such as CPU load) at the bad and the good end of a study.

    It requests one batch of trials after another.

    Args:
        matrix: The matrix of the study.
        grid: A grid with the axes `end` and `circumstances`.
        named: Perturbations by their value on the axis `circumstances`, including `NONE`. Perturbations with
            hash seeds of failures are added, and keep their names if evidence changes, because trials with
            them are stored under these names.
        notify: Called with a sentence about each intermediate result.

    Attributes:
        found: The result, None until it is known.
    """

    def __init__(
        self, matrix: Matrix, grid: Grid, named: dict[str, Perturbation], notify: Callable[[str], None]
    ) -> None:
        super().__init__()
        self._matrix = matrix
        self._grid = grid
        self._named = named
        self._notify = notify
        self._steps = self._batches()
        self._got: list[StoredTrial] = []
        self._aside: set[Index] = set()
        self._wanted: tuple[Index, int] | None = None
        self.found: Amplified | None = None
        self._advance(None)

    @property
    def finished(self) -> bool:
        """Return whether the perturbations have been compared, so that no more trials are needed."""
        return self.found is not None

    def block(self, _places: int, *, is_idle: bool) -> tuple[Index, int] | None:
        """Return which combination to try now, and how many trials of the current batch are still missing.

        Returns None if there is no batch.
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
            self._wanted = next(self._steps) if got is None else self._steps.send(got)
        except StopIteration as last:
            self.found, self._wanted = last.value, None
            return
        self._got = []
        if self._wanted[0] in self._aside:
            self._advance([])

    # -- the order of the batches ----------------------------------------------------------------------------

    def _batches(self) -> Steps:
        """Request trials step by step, and return the perturbation under which the failure shows soonest.

        What counts is the time that trials need to separate good from bad combinations. The result contains
        `NONE` if no perturbation helps. The counted trials of each request are sent back; they are fewer than
        requested only if no more trials are possible at that end.
        """
        as_it_is = self._place(BAD, NONE)
        trials = yield as_it_is, BASE_TRIALS
        while not (failed := [trial for trial in trials if trial.evidence is Evidence.BAD]):
            more = yield as_it_is, BASE_TRIALS
            trials = [*trials, *more]
            if len(trials) >= MAX_BASE_TRIALS or len(more) < BASE_TRIALS:
                # Without the signature of a failure, another one could be made frequent instead.
                base = _arm_of(trials, "")
                why = f"{_words(base)} at the bad end: which failure is meant is not known yet"
                return Amplified(NONE, why, base)
        signature = self._sought_signature(failed)
        if signature:
            self._notify(f"the failure: {shown(signature)}")
        base = _arm_of(trials, signature)
        self._notify(f"as it is: {_words(base)}")
        if base.hits >= ENOUGH * base.trials:
            return Amplified(NONE, "it fails often enough as it is", base, signature=signature)
        arms = self._arms(sorted({one.hash_seed for one in failed}))
        return (yield from self._compare(signature, base, arms))

    def _compare(self, signature: str, base: Arm, arms: Sequence[Perturbation]) -> Steps:
        tried, left = yield from self._rounds(signature, arms)
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
            passes = yield self._place(GOOD, perturbation), needed
            good = [trial for trial in passes if trial.evidence is Evidence.GOOD]
            wrong = [trial for trial in passes if trial.evidence not in (Evidence.GOOD, Evidence.SKIP)]
            if wrong:
                why = (
                    f"under {perturbation.name} the good end fails, too: {len(wrong)} of {len(passes)}, "
                    f"{wrong[0].detail}"
                )
                self._notify(why)
                continue
            if len(good) < needed:
                # Set aside, for example because the script skips there: nothing shows that it passes.
                why = f"the good end could not be run under {perturbation.name}"
                self._notify(why)
                continue
            clean = _arm_of(passes, "")
            passed = f"the good end passed {clean.trials} of {clean.trials}"
            reason = f"{_words(again)} against {_words(base)}; {passed}"
            return Amplified(perturbation, reason, base, again, clean, tuple(tried), signature=signature)
        return Amplified(NONE, why, base, tried=tuple(tried), signature=signature)

    def _place(self, end: str, perturbation: Perturbation) -> Index:
        around = next(name for name, one in self._named.items() if one == perturbation)
        return self._grid.index(Combination.of({_END: end, _AROUND: around}))

    def _arms(self, seeds: Sequence[int]) -> Sequence[Perturbation]:
        """Return the perturbations to compare, including some with the hash seeds of trials that failed.

        Args:
            seeds: Hash seeds of the trials that failed; the first ones are used. Their perturbations get
                names.
        """
        named = self._named
        known = [seed for name in _SEEDS if name in named for seed in named[name].seeds]
        wanted = [*dict.fromkeys([*known, *seeds])][: len(_SEEDS)]
        arms = _catalogue_of(self._matrix, wanted)
        for one in arms:
            if one not in named.values():
                named[next(name for name in _SEEDS if name not in named)] = one
        return arms

    def _sought_signature(self, failed: Sequence[StoredTrial]) -> str:
        """Return the signature (identity) of the failure that perturbations are to make more frequent.

        Args:
            failed: The bad trials of the unperturbed script.
        """
        found = [trial.signature for trial in failed]
        if self._matrix.file.trial.bad.signature == FROM_BAD_END:
            # As for the target of the study, take the first failure and not the most frequent one.
            return next(filter(None, found), "")
        return Counter(found).most_common(1)[0][0]

    def _rounds(
        self, signature: str, arms: Sequence[Perturbation]
    ) -> Generator[
        tuple[Index, int],
        list[StoredTrial],
        tuple[list[tuple[Perturbation, Arm]], list[tuple[Perturbation, Arm]]],
    ]:
        """Request trials of all perturbations in rounds, and drop the worse half after each round.

        Returns the results of all perturbations, and of those left after the last round.
        """
        known = [Arm() for _ in arms]
        alive = list(range(len(arms)))
        for trials in ROUNDS:
            for i in alive:
                known[i] += _arm_of((yield self._place(BAD, arms[i]), trials), signature)
                self._notify(f"{arms[i].name}: {_words(known[i])}")
            order = better_half([known[i] for i in alive], least=CANDIDATES)
            alive = [alive[j] for j in order]
        return list(zip(arms, known, strict=True)), [(arms[i], known[i]) for i in alive]

    def _final(
        self, signature: str, perturbation: Perturbation, base: Arm
    ) -> Generator[tuple[Index, int], list[StoredTrial], tuple[Arm, Arm]]:
        """Request more trials with and without a perturbation, and return the results of both.

        The result with the perturbation comes first. Trials with and without it alternate, so that a machine
        that slows down affects both.
        """
        again = Arm()
        for _ in range(2):
            again += _arm_of((yield self._place(BAD, perturbation), FRESH_TRIALS // 2), signature)
            base += _arm_of((yield self._place(BAD, NONE), FRESH_TRIALS // 4), signature)
        self._notify(f"again {perturbation.name}: {_words(again)}")
        self._notify(f"again as it is: {_words(base)}")
        return again, base


def _catalogue_of(matrix: Matrix, seeds: Sequence[int] = ()) -> Sequence[Perturbation]:
    repeats = can_repeat(matrix.file.trial.command)
    return catalogue(len(os.sched_getaffinity(0)), seeds, repeats=repeats)


def _arm_of(trials: Sequence[StoredTrial], signature: str) -> Arm:
    hits = [
        trial
        for trial in trials
        if trial.evidence is Evidence.BAD and (not signature or matches(trial.signature, signature))
    ]
    return Arm(len(trials), len(hits), sum(trial.duration for trial in trials))


def _words(arm: Arm) -> str:
    if not arm.trials:
        return "not tried"
    return f"{arm.hits} of {arm.trials} trials, {arm.seconds / arm.trials:.2f} s each"


def amplified(
    matrix: Matrix, session: Session, study: Study | None, *, bad: LockedCombination, good: LockedCombination
) -> Amplified:
    """Find the perturbation (such as CPU load) under which a failure shows soonest, by trials of both ends.

    What counts is the time that trials need to separate good from bad combinations.

    Args:
        matrix: The matrix.
        session: Database, environments and executor.
        study: The study whose trials will run under the perturbation; None if there is none.
        bad: The bad end with its lock.
        good: The good end with its lock.

    Raises:
        NoEnvironmentError: The environment of an end cannot be built.
        InfrastructureError: Too many trials were void.
        StudyInterruptedError: The user stopped it.
    """
    ends = {GOOD: good, BAD: bad}
    named = {_AS_IT_IS: NONE, **{one.name: one for one in _catalogue_of(matrix)}}
    own = _open(matrix, session.store, study, ends, [*named, *_SEEDS])
    grid = own.grid

    def notify(event: events.Event) -> None:
        if isinstance(event, events.Warned):
            session.notify(event)

    def conditions(index: Index) -> Conditions:
        combination = grid.combination(index)
        around = named.get(combination[_AROUND], NONE)
        # No key, because trials that compare circumstances are no evidence for other studies.
        return Conditions("", ends[combination[_END]].combination, around)

    known = {index: ends[grid.combination(index)[_END]].lock for index in grid.indices()}
    with closing(Locking(matrix, grid, session.provider, known=known, is_whole=False)) as locking:
        setup = RunSetup(
            matrix,
            lambda: CircumstancePlan(matrix, grid, named, session.say),
            replace(session, notify=notify),
            own.id,
            conditions,
        )
        runner = BlockRunner(setup, locking)
        runner.replay()
        runner.run()
    session.store.update_study(own.id, StudyStatus.FINISHED)
    for index, (status, reason) in runner.state.aside.items():
        if status is not CombinationStatus.SET_ASIDE:
            combination = ends[grid.combination(index)[_END]].combination
            raise NoEnvironmentError(
                f"{combination}: its environment cannot be made: {reason}",
                remedy="state other ends in the matrix, or leave amplifying out",
            )
    assert isinstance(runner.plan, CircumstancePlan)
    if runner.plan.found is None:
        raise StudyInterruptedError(
            "stopped while looking for what makes the failure more frequent",
            remedy="the same command begins with that anew",
        )
    return replace(runner.plan.found, trials=runner.plan.trials)


def _open(
    matrix: Matrix,
    store: Store,
    study: Study | None,
    ends: Mapping[str, LockedCombination],
    names: Sequence[str],
) -> Study:
    # If the target of the study is still open, the signature of a failure becomes its target.
    target = target_of(matrix) if study is None else store.target(study.id)
    definition = {
        "name": f"{matrix.name}: circumstances",
        "description": f"circumstances under which {ends[BAD].combination} fails and "
        f"{ends[GOOD].combination} does not",
        "grid": tuple(
            AxisInfo(name=name, kind=AxisKind.VALUE, direction=Direction.UNORDERED, values=values)
            for name, values in ((_END, tuple(ends)), (_AROUND, tuple(names)))
        ),
        "target": target.any_signature if target.is_open else target,
        "exclude_newer": None if study is None else study.exclude_newer,
        "fresh": True,
    }
    locks: dict[Index, Lock] = {
        (i, j): end.lock for i, end in enumerate(ends.values()) for j in range(len(names))
    }
    return open_derived(store, matrix, "" if study is None else study.id, definition, locks)


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
            found = amplified(matrix, session, store.study(study_id), bad=bad, good=good)
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
