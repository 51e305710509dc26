"""Keeps the state and the plan of a study in step with its database, and records what trials did.

A trial is committed to the database before the plan learns of it, so that `kill -9` at any instant loses
nothing but trials that were still running. To resume a study, its stored trials are passed to the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from bisect_env.answers.phrases import brief
from bisect_env.cluster.protocol import (
    BuildFailed,
    Completion,
    PrefixProgress,
    PrefixReady,
    TrialCompleted,
    TrialLost,
)
from bisect_env.engine import events
from bisect_env.engine.locking import Prepared
from bisect_env.engine.opening import save_prepared
from bisect_env.engine.series import RunSetup
from bisect_env.engine.sharing import Sharing
from bisect_env.engine.specs import lost_record
from bisect_env.engine.state import HOST_PROGRAM, TRIED_BEFORE_BLAME, Finding, StudyState
from bisect_env.matrix.grid import Combination, Index
from bisect_env.storage.entries import BUILD_FAILED, BUILT, CombinationStatus, StoredTrial
from bisect_env.trials.judge import VOID, ChangedEnvironment
from bisect_env.trials.records import Evidence, Outcome, TrialRecord


class Learner:
    """The state and the plan of a study, both updated from the trials in the study's database.

    Args:
        setup: What is run, and where it is recorded.
        prepared: The combinations of the matrix; locks may be added at any time.

    Attributes:
        grid: The combinations of the matrix.
        plan: The plan that chooses the trials.
        state: The state of the study.
        unchecked: Locks of environments in which trials passed and which were not checked since.
    """

    def __init__(self, setup: RunSetup, prepared: Prepared) -> None:
        session = setup.session
        self._setup, self._prepared = setup, prepared
        self._matrix, self._session, self._study_id = setup.matrix, session, setup.study_id
        self.grid = prepared.grid
        self._store = store = session.store
        self._notify, self._stopped, self._clock = session.notify, session.stopped, session.clock
        self._series = setup.series
        self._is_whole = setup.series is None
        self.plan = setup.make_plan()
        self.state = StudyState(setup.matrix, prepared, self.plan)
        self._trials = store.study_trials(setup.study_id)
        self._basis = self._trials.basis
        self._sharing = Sharing(store, setup.study_id, self._trials, clock=session.clock)
        self._keys: dict[Index, str] = {}
        self._unsaved: list[Index] = []
        self._crowded: set[str] = set()
        self._changes: set[ChangedEnvironment] = set()
        self.unchecked: set[str] = set()

    # -- stored trials -------------------------------------------------------------------------------------

    def replay(self) -> None:
        """Pass the trials that the database already contains to the plan.

        Trials of other studies that can be reused are included.

        Raises:
            NoEnvironmentError: A stated end, or every combination, is known to have no environment.
        """
        # A combination may have been found to have no solution before the study was open. It is in no group
        # then if all were locked, but a stated end must be reported even so.
        ends = (self.grid.good, self.grid.bad)
        for refused in [one for one in self._prepared.unsolvable if one in self.state.members or one in ends]:
            self._apply_findings(self.state.locked(refused))
        stored = self._sharing.news()
        self._basis = self._trials.basis
        self._learn_anew(stored)
        self._reuse([index for index in self.state.members if index in self._prepared.locks])
        self.state.check_anything_ran()

    def take_unbuildable(self) -> None:
        """Exclude the combinations whose environments an earlier command failed to build."""
        for row in self._store.combinations(self._study_id):
            index = self._group_of(row.combination)
            if row.status == CombinationStatus.UNBUILDABLE and index is not None:
                # It is stored, and was shown when it was found.
                self.state.put_aside(index, CombinationStatus.UNBUILDABLE, row.reason)

    def exclude(self, indices: Mapping[Index, str]) -> None:
        """Start no more trials of combinations whose earlier trials count.

        Args:
            indices: Each combination with the reason. Combinations that share their trials with one that is
                not excluded are ignored.
        """
        for index, why in indices.items():
            members = self.state.members.get(group := self._prepared.groups.get(index, index), [])
            if indices.keys() >= {*members}:
                self.state.put_aside(group, CombinationStatus.EXCLUDED, why)

    def read_others(self) -> bool:
        """Read trials that other commands have recorded since the last read, and pass them to the plan.

        Returns whether any trial was new to this command, or the meaning of earlier trials has changed.
        """
        known = self._basis
        new = self._sharing.news()
        self._learn(new)
        self.state.elsewhere = Counter()
        for combination, number in self._sharing.claimed.items():
            if (index := self._group_of(combination)) is not None:
                self.state.elsewhere[index] += number
        return bool(new) or self._basis != known

    def _learn(self, trials: Sequence[StoredTrial]) -> None:
        """Pass stored trials, in order, to the state and the plan of the study.

        If the meaning of earlier trials has changed (good, bad or void), start again with all trials instead.
        """
        if self._trials.basis != self._basis:
            self._begin_again()
            return
        learned: dict[Index, None] = {}
        for trial in trials:
            index = self._group_of(trial.combination)
            if index is None or (self._series is not None and trial.trial_id not in self._series):
                continue
            self.state.seen.add(trial.lock_hash)
            # Environments of failing trials are checked at once, those of passing ones at the end of a study;
            # a study from which a trial is reused may have been killed before that.
            if trial.evidence is Evidence.GOOD:
                self.unchecked.add(trial.lock_hash)
            self._observe(index, trial)
            self.state.learn(
                index, trial.outcome, trial.evidence, duration=trial.duration, detail=trial.detail
            )
            learned[index] = None
        if any(map(self.state.is_wrongly_aside, learned)):
            self._begin_again()
            return
        for index in learned:
            self._apply_findings(self.state.weigh(index))

    def _observe(self, index: Index, trial: StoredTrial) -> None:
        """Handle a stored trial before it is added to the state; subclasses override this method."""

    def _begin_again(self) -> None:
        """Replace the plan by a new one, and pass all stored trials to it.

        This is necessary if the target failure has changed, or if some trials became void.
        """
        self._basis = self._trials.basis
        self.plan = self._setup.make_plan()
        self.state.begin_again(self.plan)
        self._learn_anew(self._trials.everything())

    def _learn_anew(self, trials: Sequence[StoredTrial]) -> None:
        """Pass all stored trials to a new state and a new plan, which know no trials yet.

        If trials no longer justify the exclusion of a combination, its stored state becomes solvable again.
        """
        self._learn(_since_it_ran(trials, enough=min(TRIED_BEFORE_BLAME, len(self.state.members))))
        # A series excludes no combination of its study, see `_apply_findings`.
        for row in self._store.combinations(self._study_id) if self._is_whole else ():
            index = self.grid.find(row.combination)
            stands_for = self._group_of(row.combination)
            if row.status is not CombinationStatus.SET_ASIDE or index is None or stands_for is None:
                continue
            if stands_for not in self.state.aside or self.state.counts[stands_for].counted:
                warnings = "; ".join(self._prepared.warnings.get(index, ()))
                solvable = CombinationStatus.SOLVABLE
                self._store.set_combination(self._study_id, row.combination, solvable, warnings)

    def _reuse(self, locked: Collection[Index]) -> None:
        """Compute the keys of combinations that were just locked, and reuse trials that have these keys.

        A key is a hash that equal trials of all studies share.
        """
        self._keys |= {index: self._setup.conditions(index).key for index in locked}
        trials = self._measured_elsewhere(locked)
        self._learn(trials)
        if reused := sum(trial.reused for trial in trials):
            self._notify(events.Reused(reused, tuple(self._store.origins(self._study_id))))

    def _measured_elsewhere(self, among: Iterable[Index]) -> list[StoredTrial]:
        """Copy reusable trials of other studies into this study, and return these trials."""
        keys = {self._keys[index]: self.grid.combination(index) for index in among}
        machines = self._setup.machines() if keys else ()
        return self._trials.reuse(keys, machines, self._setup.user) if machines else []

    def _group_of(self, combination: Combination) -> Index | None:
        """Return the representative of all combinations with the same environment and values as a given one.

        Returns None if the grid of this command does not contain the combination, or the combination cannot
        be run.
        """
        found = self.grid.find(combination)
        return None if found is None else self._prepared.groups.get(found)

    # -- locks and findings --------------------------------------------------------------------------------

    def _save_locked(self) -> None:
        """Store the locks that were solved since the last call, before trials refer to them."""
        if self._unsaved:
            save_prepared(self._store, self._study_id, self._prepared, self._unsaved)
            self._unsaved = []

    def _apply_findings(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            if isinstance(finding, str):
                self._session.warn(finding)
                continue
            self._save_locked()
            members = tuple(self.grid.combination(member) for member in self.state.members[finding.index])
            # If this command runs only a series, the study itself does not exclude the combination.
            if finding.status is not CombinationStatus.UNSOLVABLE and self._is_whole:
                for combination in members:
                    self._store.set_combination(self._study_id, combination, finding.status, finding.reason)
            self._notify(events.SetAside(members, finding.status, finding.reason))

    # -- answers -------------------------------------------------------------------------------------------

    def _handle(self, answers: Sequence[Completion]) -> None:
        """Store ended trials in one transaction, and process the other answers of the executor.

        The plan receives the recorded trials.
        """
        recorded: list[tuple[Index, TrialRecord]] = []
        changes: dict[ChangedEnvironment, None] = {}
        failed: list[BuildFailed] = []
        for answer in answers:
            match answer:
                case TrialCompleted(record, found):
                    changes |= dict.fromkeys(found)
                    if record.trial_id in self.state.running:
                        recorded.append((self.state.running.pop(record.trial_id), record))
                case TrialLost():
                    if answer.trial_id in self.state.running:
                        recorded.append(self._lost(answer))
                case PrefixProgress(lock_hash, step):
                    state = self.state
                    self._notify(events.Building(lock_hash, step, len(state.ready), len(state.building)))
                case PrefixReady(lock_hash, seconds, notes, found):
                    changes |= dict.fromkeys(found)
                    for note in notes:
                        self._session.warn(note)
                    self._built(lock_hash, seconds)
                case BuildFailed():
                    failed.append(answer)
        # Do this before recording the trials, so that failures caused by a change are never evidence.
        ended = [record for _, record in recorded]
        changed = [self._note_change(change, ended) for change in changes.keys() - self._changes]
        self._record(recorded)
        # What may end the study comes last, so that no trial is lost with it.
        for answer in failed:
            self._build_failed(answer)
        for lock_hash, built in filter(None, changed):
            self.state.changed(lock_hash, built)

    def _lost(self, lost: TrialLost) -> tuple[Index, TrialRecord]:
        index = self.state.running.pop(lost.trial_id)
        if lost.crowded:
            # Our own trials disturbed each other, so neither the host nor the script is the cause.
            self._crowded.add(lost.trial_id)
        elif lost.under_trial:
            self.state.lost(index, lost.host)
        lock_hash = self._prepared.locks[index].content_hash
        combination = self.grid.combination(index)
        return index, lost_record(lost.trial_id, combination, lock_hash, lost.reason, lost.host)

    def _built(self, lock_hash: str, seconds: float) -> None:
        self.state.built(lock_hash, seconds)
        if seconds:
            built = tuple(self.grid.combination(index) for index in self.state.combinations_in(lock_hash))
            self._notify(events.Built(lock_hash, built, seconds))
            self._store.record_decision(self._study_id, BUILT, {"lock": lock_hash, "seconds": seconds})

    def _build_failed(self, failed: BuildFailed) -> None:
        if failed.trial_id in self.state.running:
            # The trial did not run, and may be started anew.
            del self.state.running[failed.trial_id]
            self._sharing.release([failed.trial_id])
        failure = {
            "lock": failed.lock_hash,
            "reason": brief(failed.message),
            "transient": failed.transient,
        }
        self._store.record_decision(self._study_id, BUILD_FAILED, failure)
        self._apply_findings(
            self.state.build_failed(failed.lock_hash, failed.message, transient=failed.transient)
        )

    def _record(self, ended: Sequence[tuple[Index, TrialRecord]]) -> None:
        if not ended:
            return
        ours = {record.trial_id: record for _, record in ended}
        news = self._trials.record([(record, self._keys[index]) for index, record in ended])
        recorded = [trial for trial in news if trial.trial_id in ours]
        for trial in recorded:
            self._notify(events.TrialFinished(ours[trial.trial_id], trial.evidence))
        self._learn(news)
        lost_hosts: set[str] = set()
        for trial in recorded:
            record = ours[trial.trial_id]
            # All trials of a host end with it; that is one loss, whatever other hosts do.
            was_counted = record.outcome is Outcome.WORKER_LOST and record.host in lost_hosts
            if record.outcome is Outcome.WORKER_LOST and record.host:
                lost_hosts.add(record.host)
            if trial.trial_id not in self._crowded and not was_counted:
                self.state.check(record, trial.evidence)

    def _note_change(
        self, change: ChangedEnvironment, ended: Sequence[TrialRecord]
    ) -> tuple[str, str] | None:
        """Mark trials as void that ran in an environment after its files may have been changed.

        These are the trials since the environment was last seen unchanged. Hosts report all changes that they
        ever found, most of which are known or affect no trial of this study. Returns the content hash of the
        lock and a combination with this environment, for messages; None if no trial became void.
        """
        self._changes.add(change)
        self._save_locked()
        is_new = self._trials.note_change(change)
        if not is_new or not any(change.covers(one) for one in (*self._trials.everything(), *ended)):
            return None
        there = self.state.combinations_in(change.lock_hash)
        built = str(self.grid.combination(there[0])) if there else change.lock_hash[:12]
        self._session.warn(
            f"files of the environment of {built} were changed on {change.host}; its trials there since "
            f"{change.since:%H:%M:%S} UTC are not counted, and it is made again"
        )
        self._learn([])
        return change.lock_hash, built


def _since_it_ran(trials: Sequence[StoredTrial], *, enough: int) -> list[StoredTrial]:
    """Leave out trials that could not be run and after which an earlier command stopped.

    The cause may have been corrected since.

    Args:
        trials: All trials of the study, in the order in which they were stored.
        enough: Number of combinations in which nothing could be run, after which a command stops.
    """
    nothing = VOID | {Outcome.NOT_RUNNABLE}
    ran = next((place for place, trial in enumerate(trials) if trial.outcome not in nothing), len(trials))
    lost = [trial for trial in trials[:ran] if trial.outcome is Outcome.NOT_RUNNABLE]
    stopped = len({trial.combination for trial in lost}) >= enough or any(
        HOST_PROGRAM in trial.detail for trial in lost
    )
    if ran < len(trials) and not stopped:
        return list(trials)
    return [*(trial for trial in trials[:ran] if trial.outcome is not Outcome.NOT_RUNNABLE), *trials[ran:]]
