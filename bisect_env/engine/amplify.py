"""Measures which circumstances make a study's failure frequent, and checks that the good end still passes.

None of these trials is evidence. What was found is stored with the study as a decision, and all of its trials
then run under it.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bisect_env.cluster.protocol import BuildFailed, Executor, PrefixProgress, PrefixReady, TrialCompleted
from bisect_env.engine.locking import Locking
from bisect_env.engine.runner import Runner
from bisect_env.engine.specs import target_of
from bisect_env.engine.stored import known_target
from bisect_env.environments.lock import Lock
from bisect_env.errors import InfrastructureError, NoEnvironmentError, StudyInterruptedError
from bisect_env.matrix.grid import Combination, Grid
from bisect_env.matrix.interpreter import can_repeat
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.signatures import FROM_BAD_END, shown
from bisect_env.search.circumstances import ENOUGH, SURE, Arm, better_half, clean_trials, probability_faster
from bisect_env.storage.entries import AMPLIFIED
from bisect_env.storage.store import Store
from bisect_env.trials.judge import Target, judge_alone
from bisect_env.trials.records import NONE, Evidence, Perturbation, TrialRecord
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
SPOILT = 10
"""Void trials in one batch after which the machine is to blame."""


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
        signature: Of the failure; "" where it has not shown.
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
            "base": _arm(self.base),
            "arm": None if self.arm is None else _arm(self.arm),
            "good": None if self.good is None else _arm(self.good),
            "tried": [{"name": one.name, **_arm(arm)} for one, arm in self.tried],
            "trials": self.trials,
            "signature": shown(self.signature),
        }


def _arm(arm: Arm) -> dict[str, Any]:
    return {"trials": arm.trials, "hits": arm.hits, "seconds": round(arm.seconds, 3)}


def known_perturbation(store: Store, study_id: str) -> Perturbation | None:
    """Under what a study's trials run, if that has been settled."""
    for decision in store.decisions(study_id):
        if decision.kind == AMPLIFIED:
            return Perturbation.from_json(decision.payload["perturbation"])
    return None


@dataclass(slots=True)
class Amplifier:
    """Tries circumstances.

    Attributes:
        matrix: What is run.
        executor: Where.
        notify: Hears in words what is being done.
        stopped: Looked at twice a second.
        target: What counts as bad; as the matrix says if None.
        cpus: CPUs that a trial may use.
        seed: For the draws that compare.
    """

    matrix: Matrix
    executor: Executor
    notify: Callable[[str], None] = lambda _text: None
    stopped: Callable[[], bool] = lambda: False
    target: Target | None = None
    cpus: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    seed: int = 0
    _signature: str = ""
    _trials: int = 0
    _runner: Runner = field(init=False)

    def __post_init__(self) -> None:
        self._runner = Runner(self.matrix, self.executor)

    def run(self, bad: tuple[Combination, Lock], good: tuple[Combination, Lock]) -> Amplified:
        """Find the circumstances under which the failure is most frequent for what it costs.

        Args:
            bad: The bad end with its lock.
            good: The good end with its lock.

        Raises:
            NoEnvironmentError: One of the environments cannot be made.
            InfrastructureError: Too many trials were spoilt.
            StudyInterruptedError: `stopped` said so.
        """
        found = self._look(bad, good)
        return replace(found, signature=self._signature, trials=self._trials)

    def _look(self, bad: tuple[Combination, Lock], good: tuple[Combination, Lock]) -> Amplified:
        for combination, lock in (bad, good):
            self._prepare(combination, lock)
        records, seconds = self._batch(bad, NONE, BASE_TRIALS)
        while not (failed := [record for record in records if self._is_bad(record)]):
            if len(records) >= BASE_MOST:
                # Without its signature another failure could be taken for it, and made frequent instead.
                base = Arm(len(records), 0, seconds)
                why = f"{_words(base)} at {bad[0]}: which failure is meant is not known yet"
                return Amplified(NONE, why, base)
            more, longer = self._batch(bad, NONE, BASE_TRIALS)
            records, seconds = records + more, seconds + longer
        self._signature = self._meant(failed)
        if self._signature:
            self.notify(f"the failure: {shown(self._signature)}")
        base = self._count(records, seconds)
        self.notify(f"as it is: {_words(base)}")
        if base.hits >= ENOUGH * base.trials:
            return Amplified(NONE, "it fails often enough as it is", base)
        seeds = sorted({record.hash_seed for record in failed})[:2]
        tried, left = self._rounds(bad, self._catalogue(seeds))
        sure = {one.name: probability_faster(arm, base, self._rng()) for one, arm in left}
        order = sorted(left, key=lambda pair: (-sure[pair[0].name], -pair[1].speed))
        why = "nothing raises the rate for its cost"
        for perturbation, arm in order[:CANDIDATES]:
            if not arm.hits or sure[perturbation.name] < HOPEFUL:
                continue
            again, base = self._final(bad, perturbation, base)
            if probability_faster(again, base, self._rng()) < SURE:
                continue
            clean, problem = self._good_end(good, perturbation, again)
            if problem:
                why = f"under {perturbation.name} the good end fails, too: {problem}"
                self.notify(why)
                continue
            passed = f"the good end passed {clean.trials} of {clean.trials}"
            reason = f"{_words(again)} against {_words(base)}; {passed}"
            return Amplified(perturbation, reason, base, again, clean, tuple(tried))
        return Amplified(NONE, why, base, tried=tuple(tried))

    def _meant(self, failed: Sequence[TrialRecord]) -> str:
        """Signature of the failure that is to become more frequent."""
        found = [record.signature for record in failed]
        if self.matrix.file.trial.bad.signature == FROM_BAD_END:
            # As the study itself settles it: by the first failure, not by the most frequent one.
            return next(filter(None, found), "")
        return Counter(found).most_common(1)[0][0]

    def _rounds(
        self, bad: tuple[Combination, Lock], arms: list[Perturbation]
    ) -> tuple[list[tuple[Perturbation, Arm]], list[tuple[Perturbation, Arm]]]:
        """Return what all came to, and those that were in to the end."""
        known = [Arm() for _ in arms]
        alive = list(range(len(arms)))
        for trials in ROUNDS:
            for i in alive:
                known[i] += self._measure(bad, arms[i], trials)
                self.notify(f"{arms[i].name}: {_words(known[i])}")
            order = better_half([known[i] for i in alive], least=CANDIDATES)
            alive = [alive[j] for j in order]
        return list(zip(arms, known, strict=True)), [(arms[i], known[i]) for i in alive]

    def _catalogue(self, seeds: Sequence[int]) -> list[Perturbation]:
        repeats = can_repeat(self.matrix.file.trial.effective_command)
        return list(catalogue(self.cpus, seeds, repeats=repeats))

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def _final(self, bad: tuple[Combination, Lock], perturbation: Perturbation, base: Arm) -> tuple[Arm, Arm]:
        """Fresh trials, in turns: a machine that slows down does so for both."""
        again = Arm()
        for _ in range(2):
            again += self._measure(bad, perturbation, FINAL // 2)
            base += self._measure(bad, NONE, FINAL // 4)
        self.notify(f"again {perturbation.name}: {_words(again)}")
        self.notify(f"again as it is: {_words(base)}")
        return again, base

    def _good_end(
        self, good: tuple[Combination, Lock], perturbation: Perturbation, arm: Arm
    ) -> tuple[Arm, str]:
        records, seconds = self._batch(good, perturbation, clean_trials(arm.rate))
        wrong = [record for record in records if self._evidence(record) is not Evidence.GOOD]
        problem = f"{len(wrong)} of {len(records)}, {wrong[0].detail}" if wrong else ""
        return Arm(len(records), len(wrong), seconds), problem

    def _measure(self, bad: tuple[Combination, Lock], perturbation: Perturbation, trials: int) -> Arm:
        return self._count(*self._batch(bad, perturbation, trials))

    def _count(self, records: Sequence[TrialRecord], seconds: float) -> Arm:
        hits = [record for record in records if self._is_bad(record) and self._is_same(record)]
        return Arm(len(records), len(hits), seconds)

    def _evidence(self, record: TrialRecord) -> Evidence:
        return judge_alone(record, self.target or target_of(self.matrix))

    def _is_bad(self, record: TrialRecord) -> bool:
        return self._evidence(record) is Evidence.BAD

    def _is_same(self, record: TrialRecord) -> bool:
        return not self._signature or matches(record.signature, self._signature)

    def _prepare(self, combination: Combination, lock: Lock) -> None:
        for answer in self._runner.answers(lock, lambda: None, self.stopped):
            if isinstance(answer, BuildFailed):
                raise NoEnvironmentError(
                    f"{combination}: its environment cannot be made: {answer.message}",
                    remedy="state other ends in the matrix, or leave amplifying out",
                )
        self._check()

    def _batch(
        self, end: tuple[Combination, Lock], perturbation: Perturbation, trials: int
    ) -> tuple[list[TrialRecord], float]:
        """Run trials on all places at once; those that count, and the seconds that they took together."""
        combination, lock = end
        runner = self._runner
        records: list[TrialRecord] = []
        spoilt = 0

        def start() -> None:
            room = min(runner.slots, trials - len(records)) - len(runner.running)
            for _ in range(room):
                runner.submit(uuid.uuid4().hex, combination, lock, perturbation=perturbation)

        started = time.monotonic()
        try:
            for answer in runner.answers(None, start, self.stopped):
                match answer:
                    case PrefixReady() | PrefixProgress():
                        continue
                    case TrialCompleted(record):
                        self._trials += 1
                        if self._evidence(record) is not Evidence.VOID:
                            records.append(record)
                            continue
                    case BuildFailed():
                        runner.prepare(lock)
                spoilt += 1
                if spoilt >= SPOILT:
                    raise InfrastructureError(
                        f"{spoilt} trials at {combination} were spoilt",
                        remedy="correct that, then start the same command again",
                    )
        finally:
            runner.end()
        self._check()
        return records, time.monotonic() - started

    def _check(self) -> None:
        if self.stopped():
            raise StudyInterruptedError(
                "stopped while looking for what makes the failure more frequent",
                remedy="the same command begins with that anew",
            )


def _words(arm: Arm) -> str:
    if not arm.trials:
        return "not tried"
    return f"{arm.hits} of {arm.trials} trials, {arm.seconds / arm.trials:.2f} s each"


def settle(
    matrix: Matrix,
    grid: Grid,
    locking: Locking,
    store: Store,
    study_id: str,
    executor: Callable[[], Executor],
    *,
    notify: Callable[[str], None],
    stopped: Callable[[], bool],
) -> Perturbation:
    """Return the circumstances of a study's trials: those settled before, or settled now.

    Args:
        matrix: As loaded.
        grid: As expanded.
        locking: Locks its ends.
        store: Where it is written.
        study_id: The open study.
        executor: Where trials run; called if there is something to find out.
        notify: Hears in words what is being done.
        stopped: Looked at twice a second.
    """
    if not matrix.file.search.amplify:
        return NONE
    known = known_perturbation(store, study_id)
    if known is not None:
        return known
    chosen = grid.ends
    locks = [] if chosen is None else [locking.lock_now(index) for index in chosen]
    solved = [lock for lock in locks if isinstance(lock, Lock)]
    if chosen is None or len(solved) < len(chosen):
        found = Amplified(NONE, "no good and bad end can be run, or told from the directions", Arm())
    else:
        good, bad = ((grid.combination(index), lock) for index, lock in zip(chosen, solved, strict=True))
        target = known_target(matrix, store, study_id)
        # Where the target is still open, its signature is what the study looks for from now on.
        found = Amplifier(matrix, executor(), notify, stopped, target).run(bad, good)
    # Another command of this study may have decided meanwhile: the first one counts, for both.
    known = known_perturbation(store, study_id)
    if known is None:
        store.record_decision(study_id, AMPLIFIED, found.as_json())
    how = f"under {found.perturbation.name}" if found.perturbation != NONE else "as they are"
    notify(f"trials run {how}: {found.reason}")
    return found.perturbation if known is None else known
