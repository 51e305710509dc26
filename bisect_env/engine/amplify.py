"""Measures which circumstances make a study's failure frequent, and checks that the good end still passes.

These trials are a study of their own, which no other study reuses: they are no evidence. What was found is
stored with the study as a decision, and all of its trials then run under it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from bisect_env.answers.axes import AxisInfo
from bisect_env.engine import events
from bisect_env.engine.locking import Locking
from bisect_env.engine.opening import open_derived
from bisect_env.engine.plans import BlockPlan, BlockRunner
from bisect_env.engine.runner import Conditions
from bisect_env.engine.session import Session
from bisect_env.engine.specs import target_of
from bisect_env.engine.stored import LockedCombination
from bisect_env.environments.lock import Lock
from bisect_env.errors import NoEnvironmentError, StudyInterruptedError
from bisect_env.matrix.grid import AxisKind, Combination, Direction, Grid, Index
from bisect_env.matrix.interpreter import can_repeat
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.signatures import FROM_BAD_END, shown
from bisect_env.search.circumstances import ENOUGH, SURE, Arm, better_half, clean_trials, probability_faster
from bisect_env.storage.entries import (
    AMPLIFIED,
    StoredTrial,
    Study,
    StudyStatus,
)
from bisect_env.storage.store import Store
from bisect_env.trials.judge import Target
from bisect_env.trials.records import NONE, Evidence, Perturbation
from bisect_env.trials.signature import matches

BASE_TRIALS = 24
"""Trials of the script as it is, to begin with."""
BASE_MOST = 96
"""The same at most, until it has failed once."""
ROUNDS = (6, 12)
"""Trials for each circumstance that is still in, round after round; after each the better half stays."""
FINAL = 36
"""Fresh trials for a candidate; half as many for the script as it is, which has had some."""
HOPEFUL = 0.6
"""Probability of being faster below which no candidate is worth that."""
CANDIDATES = 3
"""How many are tried to the end, should the first not hold what it promised."""
_PURPOSE = ": circumstances"
"""End of the names of studies of circumstances."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Variables that set how many threads numeric libraries use."""


def catalogue(cpus: int, seeds: Sequence[int] = (), *, repeats: bool = False) -> tuple[Perturbation, ...]:
    """Return the perturbations that are worth trying on a machine. Pure.

    Args:
        cpus: CPUs that trials may use.
        seeds: Hash seeds of trials that failed: with one of them a failure may be certain.
        repeats: Whether the script can be run again within its process.
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
    """The circumstances that were found.

    Attributes:
        perturbation: The circumstances to go on with; `NONE` for the script as it is.
        reason: Why, in a sentence.
        base: The script as it is, at the bad end.
        arm: The same under the perturbation, in its last round; None without one.
        good: The good end under it.
        tried: All that was tried, with what it came to.
        trials: How many trials it took, those of the good end too.
        signature: Signature of the failure; "" if it was not seen.
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
        """Return the document that is stored."""
        return {
            "perturbation": self.perturbation.as_json(),
            "reason": self.reason,
            "base": asdict(self.base),
            "arm": self.arm and asdict(self.arm),
            "good": self.good and asdict(self.good),
            "tried": [{"name": one.name, **asdict(arm)} for one, arm in self.tried],
            "trials": self.trials,
            "signature": shown(self.signature),
        }


def known_perturbation(store: Store, study_id: str) -> Perturbation | None:
    """Return the perturbation of a study's trials, None if none was chosen yet."""
    for decision in store.decisions(study_id):
        if decision.kind == AMPLIFIED:
            return Perturbation.from_json(decision.payload["perturbation"])
    return None


def circumstances_of(store: Store, study_id: str) -> list[str]:
    """Return the ids of the studies in which circumstances were tried for a study."""
    return [
        study.id
        for study in store.studies()
        if study.definition.settings.get("explains") == study_id and study.name.endswith(_PURPOSE)
    ]


Batch = tuple[str, Perturbation, int]
"""At which end, under what, and how many trials."""
Steps = Generator[Batch, list[StoredTrial], Amplified]
Batches = Generator[Batch | Amplified, list[StoredTrial], None]
GOOD, BAD = "good", "bad"


@dataclass(frozen=True, slots=True)
class Amplifying:
    """A schedule of perturbations to try. Pure: it receives trials and returns which to run next.

    Attributes:
        matrix: What is run.
        arms: Returns the circumstances to try, given hash seeds of trials that failed.
        notify: Called with a sentence about what was found.
        seed: For the draws that compare.
    """

    matrix: Matrix
    arms: Callable[[Sequence[int]], Sequence[Perturbation]]
    notify: Callable[[str], None]
    seed: int = 0

    def batches(self) -> Batches:
        """Yield batches of trials to run, and at last what to go on with.

        Each batch is answered with its counted trials. An answer has fewer trials than requested only if no
        more can be had at that end.
        """
        yield (yield from self._steps())

    def _steps(self) -> Steps:
        """Return the circumstances under which the failure is most frequent for what it costs."""
        trials = yield BAD, NONE, BASE_TRIALS
        while not (failed := [trial for trial in trials if trial.evidence is Evidence.BAD]):
            more = yield BAD, NONE, BASE_TRIALS
            trials = [*trials, *more]
            if len(trials) >= BASE_MOST or len(more) < BASE_TRIALS:
                # Without its signature another failure could be taken for it, and made frequent instead.
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
        sure = {one.name: probability_faster(arm, base, self._rng()) for one, arm in left}
        order = sorted(left, key=lambda pair: (-sure[pair[0].name], -pair[1].speed))
        why = "nothing raises the rate for its cost"
        for perturbation, arm in order[:CANDIDATES]:
            if not arm.hits or sure[perturbation.name] < HOPEFUL:
                continue
            again, base = yield from self._final(signature, perturbation, base)
            if probability_faster(again, base, self._rng()) < SURE:
                continue
            passes = yield GOOD, perturbation, clean_trials(again.rate)
            wrong = [trial for trial in passes if trial.evidence is not Evidence.GOOD]
            if wrong:
                why = (
                    f"under {perturbation.name} the good end fails, too: {len(wrong)} of {len(passes)}, "
                    f"{wrong[0].detail}"
                )
                self.notify(why)
                continue
            clean = _arm_of(passes, "")
            passed = f"the good end passed {clean.trials} of {clean.trials}"
            reason = f"{_words(again)} against {_words(base)}; {passed}"
            return Amplified(perturbation, reason, base, again, clean, tuple(tried))
        return Amplified(NONE, why, base, tried=tuple(tried))

    def _meant(self, failed: Sequence[StoredTrial]) -> str:
        """Return the signature of the failure that is to become more frequent."""
        found = [trial.signature for trial in failed]
        if self.matrix.file.trial.bad.signature == FROM_BAD_END:
            # As the study itself settles it: by the first failure, not by the most frequent one.
            return next(filter(None, found), "")
        return Counter(found).most_common(1)[0][0]

    def _rounds(
        self, signature: str, arms: list[Perturbation]
    ) -> Generator[
        Batch,
        list[StoredTrial],
        tuple[list[tuple[Perturbation, Arm]], list[tuple[Perturbation, Arm]]],
    ]:
        """Return what all arms came to, and those that were in to the end."""
        known = [Arm() for _ in arms]
        alive = list(range(len(arms)))
        for trials in ROUNDS:
            for i in alive:
                known[i] += _arm_of((yield BAD, arms[i], trials), signature)
                self.notify(f"{arms[i].name}: {_words(known[i])}")
            order = better_half([known[i] for i in alive], least=CANDIDATES)
            alive = [alive[j] for j in order]
        return list(zip(arms, known, strict=True)), [(arms[i], known[i]) for i in alive]

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def _final(
        self, signature: str, perturbation: Perturbation, base: Arm
    ) -> Generator[Batch, list[StoredTrial], tuple[Arm, Arm]]:
        """Return both with fresh trials, in turns: a machine that slows down does so for both."""
        again = Arm()
        for _ in range(2):
            again += _arm_of((yield BAD, perturbation, FINAL // 2), signature)
            base += _arm_of((yield BAD, NONE, FINAL // 4), signature)
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
    """A plan of batches of trials, each asked for once the one before has ended.

    Args:
        batches: Asks for them.
        place: Returns the index of an end under some circumstances.

    Attributes:
        found: What to go on with, once that is known.
    """

    def __init__(self, batches: Batches, place: Callable[[str, Perturbation], Index]) -> None:
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
        """Return whether the result is known."""
        return self.found is not None

    def block(self, _places: int, *, is_idle: bool) -> tuple[Index, int] | None:
        """Return the rest of the batch."""
        return self._wanted and (self._wanted[0], self._wanted[1] - len(self._got))

    def observe(self, index: Index, trial: StoredTrial) -> None:
        """Process a recorded trial of any kind; void ones are run again."""
        if trial.evidence is Evidence.VOID or self._wanted is None or index != self._wanted[0]:
            return
        self._got.append(trial)
        if len(self._got) >= self._wanted[1]:
            self._advance(self._got)

    def set_aside(self, index: Index) -> None:
        """Exclude a perturbation without useful trials: its batch ends with the trials that it has."""
        self._aside.add(index)
        if self._wanted is not None and self._wanted[0] == index:
            self._advance(self._got)

    def _advance(self, got: list[StoredTrial] | None) -> None:
        step = next(self._batches) if got is None else self._batches.send(got)
        if isinstance(step, Amplified):
            self.found, self._wanted = step, None
            return
        end, perturbation, number = step
        self._wanted, self._got = (self._place(end, perturbation), number), []
        if self._wanted[0] in self._aside:
            self._advance([])


@dataclass(slots=True)
class Amplifier:
    """A search for the perturbation under which a failure is most frequent.

    Attributes:
        matrix: The matrix.
        session: Database, environments and executor.
        study: Study that will run under the perturbation; None if the matrix has no study.
        target: What counts as bad; as the matrix says if None.
        cpus: Number of CPUs that a trial may use.
    """

    matrix: Matrix
    session: Session
    study: Study | None = None
    target: Target | None = None
    cpus: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))

    def run(self, bad: LockedCombination, good: LockedCombination) -> Amplified:
        """Find the perturbation under which the failure is most frequent for its cost.

        Args:
            bad: The bad end with its lock.
            good: The good end with its lock.

        Raises:
            NoEnvironmentError: One of the environments cannot be made.
            InfrastructureError: Too many trials were void.
            StudyInterruptedError: `stopped` said so.
        """
        repeats = can_repeat(self.matrix.file.trial.effective_command)

        def arms(seeds: Sequence[int]) -> Sequence[Perturbation]:
            return catalogue(self.cpus, seeds, repeats=repeats)

        named = {_AS_IT_IS: NONE, **{one.name: one for one in arms(())}}
        # Which hash seeds failed is known once something has.
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
            # No key: what was run to choose among circumstances is no evidence.
            return Conditions("", ends[combination[_END]].combination, around)

        steps = Amplifying(self.matrix, arms, self.session.say)
        with closing(self._locking(own, grid, ends)) as locking:
            runner = BlockRunner(
                self.matrix,
                locking,
                lambda: BatchPlan(steps.batches(), place),
                self.session.notifying(self._on_event),
                own.id,
                conditions=conditions,
                waits=True,
            )
            runner.replay()
            runner.run()
        self.session.store.finish_study(own.id, StudyStatus.FINISHED, None)
        self._check(runner, ends)
        assert isinstance(runner.plan, BatchPlan)
        assert runner.plan.found is not None
        return replace(runner.plan.found, trials=runner.plan.trials)

    def _open(self, names: Sequence[str], ends: Mapping[str, LockedCombination]) -> Study:
        target = self.target or target_of(self.matrix)
        axes = {_END: (GOOD, BAD), _AROUND: tuple(names)}
        definition = {
            "name": f"{self.matrix.name}{_PURPOSE}",
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
        return open_derived(self.session.store, self.matrix, serves, definition, locks)

    def _locking(self, own: Study, grid: Grid, ends: Mapping[str, LockedCombination]) -> Locking:
        known = {index: ends[grid.combination(index)[_END]].lock for index in grid.indices()}
        return Locking(self.matrix, grid, self.session.provider, known=known, among=list(known))

    def _on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Warned):
            self.session.notify(event)

    def _check(self, runner: BlockRunner, ends: Mapping[str, LockedCombination]) -> None:
        for index, (status, reason) in runner.state.aside.items():
            if status.startswith("env-"):
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


def settle(matrix: Matrix, grid: Grid, locking: Locking, session: Session, study_id: str) -> Perturbation:
    """Return the circumstances of a study's trials; they are determined now if they were not before.

    Args:
        matrix: The matrix.
        grid: Its combinations.
        locking: Locks its ends.
        session: Database, environments and executor.
        study_id: The open study.

    Raises:
        NoEnvironmentError: The environment of an end cannot be made.
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
        target = store.target(study_id)
        # If the target is still open, its signature becomes the target of the study.
        try:
            found = Amplifier(matrix, session, store.study(study_id), target).run(bad, good)
        except StudyInterruptedError:
            if session.is_in_time:
                raise
            session.say("the budget is spent; what makes the failure more frequent is not known yet")
            return NONE
    # Another command of this study may have decided meanwhile: both use the first decision.
    known = known_perturbation(store, study_id)
    if known is None:
        store.record_decision(study_id, AMPLIFIED, found.as_json())
    how = f"under {found.perturbation.name}" if found.perturbation != NONE else "as they are"
    session.say(f"trials run {how}: {found.reason}")
    return found.perturbation if known is None else known
