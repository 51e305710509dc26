"""Trials of one combination, one after another, for those who ask without a search.

They are recorded in the study of the matrix, as any trial is: what was measured here is evidence there.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bisect_env.cluster.protocol import (
    BuildFailed,
    Executor,
    PrefixReady,
    PrefixRequest,
    TrialCompleted,
    TrialLost,
    TrialRequest,
)
from bisect_env.engine import events
from bisect_env.engine.rules import BUILDS_BEFORE_UNBUILDABLE, VOIDS_BEFORE_STOP, Tally, in_flight
from bisect_env.engine.specs import allowed_sources, lost_record, target_of, trial_files, trial_spec
from bisect_env.engine.target import StudyTarget
from bisect_env.environments.lock import Lock
from bisect_env.errors import InfrastructureError, NoEnvironmentError, UsageError
from bisect_env.matrix.checks import listed_values
from bisect_env.matrix.combination import Combination
from bisect_env.matrix.load import Matrix
from bisect_env.storage.store import Store
from bisect_env.trials.perturbation import NONE, Perturbation
from bisect_env.trials.records import Evidence, Outcome, TrialRecord

LOOK = 0.5
"""Seconds between two looks at whether the user wants to stop."""
CANCEL_GRACE = 30.0
"""Seconds for cancelled trials to be answered."""
MAKING = "making the environment, unless it is here already"
"""Said before the first trial, which may wait for it for minutes."""


@dataclass(frozen=True, slots=True)
class Single:
    """One combination, ready to be tried.

    Attributes:
        combination: Under which its trials are recorded.
        lock: Its environment.
        key: What makes trials of other studies the same measurement.
        values: What the command sees of the axes, if that is something else than `combination`.
        perturbation: Circumstances under which the study's trials run.
    """

    combination: Combination
    lock: Lock
    key: str
    values: Combination | None = None
    perturbation: Perturbation = NONE


Wanted = Callable[[Tally, int], int]
"""From what trials have said and how many run to how many more are wanted now; 0 when none run ends it."""


class SingleTrials:
    """Runs trials of single combinations.

    Args:
        matrix: What is run.
        store: Where trials are recorded.
        study_id: Their study.
        executor: Where they run; the caller closes it.
        notify: Hears of every trial once it is recorded.
        stopped: Looked at twice a second; true ends what runs.
    """

    def __init__(
        self,
        matrix: Matrix,
        store: Store,
        study_id: str,
        executor: Executor,
        *,
        notify: Callable[[events.Event], None],
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._matrix = matrix
        self._store = store
        self._study_id = study_id
        self._executor = executor
        self._notify = notify
        self._stopped = stopped
        wanted = matrix.file.trial.bad.signature
        self._target = StudyTarget(target_of(matrix), wanted, store, study_id, _bad_end(matrix))
        self._files = trial_files(matrix)
        self._allow_source = allowed_sources(matrix)
        self._seconds: float | None = None
        self._voids = 0

    @property
    def slots(self) -> int:
        """How many trials can run at the same time."""
        return self._executor.slots

    def run(
        self,
        single: Single,
        wanted: Wanted,
        ids: Iterator[str] | None = None,
        on_evidence: Callable[[Evidence], None] = lambda _evidence: None,
    ) -> Tally:
        """Run trials until no more are wanted.

        What runs then comes to its end and is recorded, too: to cut it off would favour quick outcomes.

        Args:
            single: What to try.
            wanted: Decides how many.
            ids: Of the trials; random ones if None.
            on_evidence: Hears what each trial says, in the order of recording, before more are wanted.

        Returns:
            What they said.

        Raises:
            NoEnvironmentError: The environment cannot be built.
            InfrastructureError: Too many trials in a row were spoilt.
            UsageError: The command cannot be run.
        """
        tally = Tally()
        running: set[str] = set()
        ready = False
        self._notify(events.Said(MAKING))
        self._prepare(single)
        try:
            while True:
                if ready:
                    self._submit(single, wanted(tally, len(running)), running, ids)
                if (ready and not running) or self._stopped():
                    return tally
                for completion in self._executor.wait(LOOK):
                    match completion:
                        case PrefixReady():
                            ready = True
                            self._made(single, completion)
                        case BuildFailed(trial_id):
                            ready = False
                            running.discard(trial_id)
                            tally.failed_builds += 1
                            self._build_failed(single, completion, tally.failed_builds)
                        case TrialCompleted(record, build_seconds, notes):
                            running.discard(record.trial_id)
                            self._warn(notes)
                            on_evidence(self._record(single, record, tally, build_seconds))
                        case TrialLost(trial_id, _, host):
                            running.discard(trial_id)
                            tally.lost_on |= {host} - {""}
                            on_evidence(self._record(single, _lost(single, completion), tally))
        finally:
            if running:
                self._cancel(single, running, tally)

    def _submit(self, single: Single, more: int, running: set[str], ids: Iterator[str] | None) -> None:
        if self._stopped():
            return
        room = in_flight(self._executor.slots, self._seconds) - len(running)
        for _ in range(min(more, room)):
            trial_id = uuid.uuid4().hex if ids is None else next(ids)
            spec = trial_spec(
                self._matrix,
                single.combination,
                single.lock,
                trial_id,
                self._files,
                values=single.values,
                perturbation=single.perturbation,
            )
            running.add(trial_id)
            self._executor.submit(TrialRequest(spec, single.lock, self._allow_source))
            self._notify(events.TrialStarted(trial_id, single.combination))

    def _prepare(self, single: Single) -> None:
        self._executor.prepare(PrefixRequest(single.lock, self._allow_source))

    def _made(self, single: Single, answer: PrefixReady) -> None:
        self._warn(answer.notes)
        if answer.build_seconds:
            built = (single.combination,)
            self._notify(events.Built(single.lock.content_hash, built, answer.build_seconds))

    def _build_failed(self, single: Single, failure: BuildFailed, times: int) -> None:
        """Begin again a few times: network trouble passes, and one host's disk is not all hosts'."""
        if times < BUILDS_BEFORE_UNBUILDABLE:
            self._warn([f"building {single.combination}: {failure.message}; it is tried again"])
            self._prepare(single)
            return
        if failure.transient:
            raise InfrastructureError(
                f"{single.combination}: its environment cannot be made: {failure.message}",
                tried=f"{times} times",
                remedy="mend that, then start the same command again",
            )
        raise NoEnvironmentError(
            f"{single.combination}: its environment cannot be built: {failure.message}",
            tried=f"{times} times",
            remedy="try another combination; `bisect-env plan MATRIX` lists them",
        )

    def _warn(self, texts: Sequence[str]) -> None:
        for text in texts:
            self._notify(events.Warned(text))

    def _record(
        self, single: Single, record: TrialRecord, tally: Tally, build_seconds: float = 0.0
    ) -> Evidence:
        evidence = self._target.judge(single.combination, record, repeated=tally.void > 0)
        self._store.record_trial(self._study_id, record, evidence, trial_key=single.key)
        tally.count(evidence)
        if evidence in (Evidence.GOOD, Evidence.BAD):
            self._seconds = record.duration
        self._notify(events.TrialFinished(record, evidence, build_seconds))
        if record.outcome is Outcome.NOT_RUNNABLE:
            raise UsageError(
                f"{self._matrix.path}: the trial's command cannot be run: {record.detail}",
                tried=" ".join(self._matrix.command(single.values or single.combination)),
                remedy="correct `trial.command` or `trial.files`, then start the same command again",
            )
        self._voids = self._voids + 1 if evidence is Evidence.VOID else 0
        if self._voids >= VOIDS_BEFORE_STOP:
            raise InfrastructureError(
                f"{self._voids} trials in a row were spoilt; the last: {record.outcome}: {record.detail}",
                tried="each was run again",
                remedy="mend that, then start the same command again",
            )
        return evidence

    def _cancel(self, single: Single, running: set[str], tally: Tally) -> None:
        """End what runs; what had come to its end before that is recorded."""
        self._executor.cancel()
        patience = time.monotonic() + CANCEL_GRACE
        while running and time.monotonic() < patience:
            for completion in self._executor.wait(LOOK):
                if isinstance(completion, TrialCompleted):
                    running.discard(completion.record.trial_id)
                    record = completion.record
                    evidence = self._target.judge(single.combination, record, repeated=tally.void > 0)
                    self._store.record_trial(self._study_id, record, evidence, trial_key=single.key)
                    tally.count(evidence)
                elif not isinstance(completion, PrefixReady):
                    running.discard(completion.trial_id)


def _bad_end(matrix: Matrix) -> Combination | None:
    """The stated bad end; axes with one value need not be stated."""
    stated = matrix.file.bad
    if stated is None:
        return None
    only = {name: values[0] for name, axis in matrix.file.axes.items() if (values := listed_values(axis))}
    return Combination.of({name: stated.get(name, only.get(name, "")) for name in matrix.file.axes})


def _lost(single: Single, lost: TrialLost) -> TrialRecord:
    return lost_record(lost.trial_id, single.combination, single.lock.content_hash, lost.reason, lost.host)
