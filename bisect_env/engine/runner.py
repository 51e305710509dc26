"""Runs trials: asks a plan what to try, locks, builds, claims, sends, records, and tells the plan.

A trial is committed to the database before the plan is told of it, so that `kill -9` at any instant loses
nothing but trials that were still running. Resuming is replaying: the plan is told what the database has.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bisect_env.cluster.protocol import (
    BuildFailed,
    Completion,
    PrefixProgress,
    PrefixReady,
    TrialCompleted,
    TrialLost,
)
from bisect_env.engine import events
from bisect_env.engine.locking import Locking
from bisect_env.engine.next_work import NextWork, Wanted
from bisect_env.engine.sender import LOOK, Sender
from bisect_env.engine.session import Session
from bisect_env.engine.sharing import Sharing
from bisect_env.engine.specs import lost_record
from bisect_env.engine.state import Finding, PutAside, StudyState, brief
from bisect_env.errors import StudyInterruptedError
from bisect_env.matrix.grid import Combination, Index
from bisect_env.matrix.load import Matrix
from bisect_env.search.plan import Plan
from bisect_env.storage.entries import BUILD_FAILED, BUILT, CombinationStatus, StoredTrial
from bisect_env.trials.judge import ChangedEnvironment
from bisect_env.trials.records import NONE, Evidence, Machine, Outcome, Perturbation, TrialRecord

GRACE_TRIALS, GRACE_SECONDS = 3.0, 0.4
"""Time that running trials get to end once the plan is finished: a number of mean trial durations, and its
maximum in seconds."""
_ATTEMPTS = 4
"""How often to decide again at once when other commands claim faster."""
_PAUSE = 0.02
"""Seconds, growing with each attempt, that let two commands fall out of step."""
_LOST = 1000
"""Numbers of a series that cancelled and lost trials may have used up."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """How the trials of a combination run.

    Attributes:
        key: What makes trials of other studies the same measurement; "" if nothing does.
        values: Values of the axes that the command sees; None for those of the combination.
        perturbation: Circumstances that are to make the failure more frequent.
    """

    key: str
    values: Combination | None = None
    perturbation: Perturbation = NONE


class Series(Container[str]):
    """A source of ids for new trials, which tells whether a trial is one of them.

    Ids are computed from the id of the series and a number, so that a later command finds its trials.

    Args:
        series_id: 32 hex digits; "" for a new series.
        stored: Ids of the trials of the study, if the series may have some already.

    Attributes:
        resumed: Number of trials of the series that are stored already.
    """

    def __init__(self, series_id: str = "", stored: Collection[str] = ()) -> None:
        self._space = uuid.UUID(series_id) if series_id else uuid.uuid4()
        # Trials were started in the order of their numbers, and some may never have ended.
        names = (self._named(number) for number in range(len(stored) + _LOST if stored else 0))
        self._ids = {*names} & {*stored}
        self.resumed = len(self._ids)
        self._numbers = itertools.count()

    def _named(self, number: int) -> str:
        return uuid.uuid5(self._space, str(number)).hex

    def new_id(self) -> str:
        """Return the next id that no stored trial has; its trial belongs to the series from now on."""
        trial_id = next(name for n in self._numbers if (name := self._named(n)) not in self._ids)
        self._ids.add(trial_id)
        return trial_id

    def __contains__(self, trial_id: object) -> bool:
        return trial_id in self._ids


class Runner:
    """A runner of the trials that a plan wants; it records them in a study.

    Args:
        matrix: What is run.
        locking: Locks the combinations that the plan wants.
        make_plan: Returns a plan that was told nothing; called again when trials mean something else than
            the plan was told.
        session: Database, environments and executor of the command.
        study_id: The open study.
        conditions: Returns how the trials of a combination with a lock run; the key has to stay the same.
        series: Trials that the plan receives; all trials of the study if None.
        machines: Classes of machines on which trials will run: trials that other studies recorded there
            under the same keys are reused. None reuses nothing.
        user: User whose trials may be reused; None for all users.
        max_trials: Trials that count, at most; None for any number.
        waits: Whether trials that still run when the plan is finished come to their end. Else, or when the
            budget is spent, they are ended after a moment.

    Attributes:
        plan: What chooses.
        state: Where the study stands.
        searching: Seconds spent on choosing what to do.
        unseen: Locks of environments in which trials passed that were not looked at since.
    """

    def __init__(
        self,
        matrix: Matrix,
        locking: Locking,
        make_plan: Callable[[], Plan],
        session: Session,
        study_id: str,
        *,
        conditions: Callable[[Index], Conditions],
        series: Series | None = None,
        machines: Collection[Machine] = (),
        user: str | None = None,
        max_trials: int | None = None,
        waits: bool = False,
    ) -> None:
        self._matrix = matrix
        self._locking = locking
        self._prepared = locking.prepared
        self.grid = self._prepared.grid
        self._make_plan = make_plan
        self._session = session
        self._store = store = session.store
        self._study_id = study_id
        self._conditions = conditions
        self._notify, self._stopped, self._clock = session.notify, session.stopped, session.clock
        self._is_whole = series is None
        self._series = series or Series()
        self._waits = waits
        self.plan = make_plan()
        self.state = StudyState(matrix, self._prepared, self.plan)
        self._next = NextWork(matrix, self._prepared, self.state, max_trials=max_trials)
        self._trials = store.study_trials(study_id)
        self._basis = self._trials.basis
        self._sharing = Sharing(store, study_id, self._trials, clock=session.clock)
        self._keys: dict[Index, str] = {}
        self._machines, self._user = machines, user
        self._locks_answered = 0
        self._unsaved: list[Index] = []
        self._crowded: set[str] = set()
        self._ours: set[str] = set()
        self._changes: set[ChangedEnvironment] = set()
        self.unseen: set[str] = set()

    # -- before and after ----------------------------------------------------------------------------------

    def replay(self) -> None:
        """Add the trials in the database to the plan."""
        # A combination may have been found to have no solution before the study was open.
        for refused in [one for one in self._prepared.unsolvable if one in self.state.members]:
            self._act(self.state.locked(refused))
        stored = self._sharing.news()
        self._basis = self._trials.basis
        # A study that could run its command nowhere was stopped for that; now it may be corrected.
        if any(trial.outcome is not Outcome.NOT_RUNNABLE for trial in stored):
            self._learn(stored)
        self._know([index for index in self.state.members if index in self._prepared.locks])
        self._learn_reused(self._measured_elsewhere(self._keys))

    def take_unbuildable(self) -> None:
        """Set aside the combinations that an earlier command found to be unbuildable."""
        for row in self._store.combinations(self._study_id):
            index = self._group_of(row.combination)
            if row.status == CombinationStatus.UNBUILDABLE and index is not None:
                self._act(self.state.put_aside(index, "env-unbuildable", row.reason))

    def read_others(self, *, elsewhere: bool = True) -> int:
        """Read the results that other commands recorded for this study.

        Args:
            elsewhere: Whether to look at other studies as well.

        Returns:
            Number of trials that were news.
        """
        new = [*self._sharing.news(), *(self._measured_elsewhere(self._keys) if elsewhere else ())]
        self._learn(new)
        self.state.elsewhere = Counter()
        for combination, number in self._sharing.claimed.items():
            if (index := self._group_of(combination)) is not None:
                self.state.elsewhere[index] += number
        return len(new)

    def _learn(self, trials: Sequence[StoredTrial]) -> None:
        """Add stored trials to the state in order, or all trials again if their evidence has changed."""
        if self._trials.basis != self._basis:
            self._begin_again()
            return
        for trial in trials:
            index = self._group_of(trial.combination)
            if index is None or not (self._is_whole or trial.trial_id in self._series):
                continue
            if trial.trial_id not in self._ours:
                self.state.seen.add(trial.lock_hash)
            # A failing trial was followed by a look. The study that a reused one is from may have been killed
            # before it looked.
            if trial.evidence is Evidence.GOOD:
                self.unseen.add(trial.lock_hash)
            self._observe(index, trial)
            self._act(
                self.state.learn(
                    index, trial.outcome, trial.evidence, duration=trial.duration, detail=trial.detail
                )
            )

    def _observe(self, index: Index, trial: StoredTrial) -> None:
        """Process a trial before it is added to the state."""

    def _begin_again(self) -> None:
        """Start a new plan with every trial, because the target has changed or some trials became void."""
        self._basis = self._trials.basis
        set_aside = {index for index, (status, _) in self.state.aside.items() if status == "set-aside"}
        self.plan = self._make_plan()
        self.state.begin_again(self.plan)
        self._learn(self._trials.everything())
        for index in set_aside - self.state.aside.keys():
            for member in self.state.members[index]:
                combination = self.grid.combination(member)
                self._store.set_combination(self._study_id, combination, CombinationStatus.SOLVABLE, "")

    def _measured_elsewhere(self, among: Iterable[Index]) -> list[StoredTrial]:
        """Reuse trials of these combinations that other studies recorded, as `StudyTrials.reuse` does."""
        keys = {self._keys[index]: self.grid.combination(index) for index in among}
        return self._trials.reuse(keys, self._machines, self._user) if self._machines else []

    def _learn_reused(self, trials: Sequence[StoredTrial]) -> None:
        self._learn(trials)
        if reused := sum(trial.reused for trial in trials):
            self._notify(events.Reused(reused, tuple(self._store.origins(self._study_id))))

    def _group_of(self, combination: Combination) -> Index | None:
        """Return the representative of a stored combination; None if this command does not use it."""
        found = self.grid.find(combination)
        return None if found is None else self._prepared.groups.get(found)

    def run(self) -> None:
        """Run trials until the plan is finished.

        Raises:
            NoEnvironmentError: Nothing can be run.
            InfrastructureError: Too many trials in a row were void, or the cluster is lost.
            UsageError: The command cannot be run in any combination tried.
        """
        # Solvers begin while the place where trials run may still be starting.
        self._locking.want(self._next.decide(2).lock)
        try:
            self._sender = Sender(self._matrix, self._session.start(), self._session.warn)
        except StudyInterruptedError:
            self._sharing.close()
            return  # nothing ran, and the study ends as any other that was stopped
        self._locking.on_done = self._sender.executor.wake
        try:
            self._pursue()
            while self._go_further():
                self._pursue()
        finally:
            self._save_locked()
            self._sharing.close()
        if not self._stopped():
            self.state.check_anything_ran()

    def _go_further(self) -> bool:
        """Do the final checks of a finished plan; return whether it may need more trials after them."""
        return self._look_at_environments()

    def _pursue(self) -> None:
        """Run trials until the plan is finished."""
        idle_turns = 0
        while self._wants_more():
            known = self.plan.trials, len(self.state.aside)
            is_idle = not self._work()
            # What still ran may have changed the answer, which then is not the answer yet.
            self._wind_down()
            self.read_others()
            if not self._sender.running and not (asked := self.plan.ask(1)):
                break
            if not is_idle or known != (self.plan.trials, len(self.state.aside)):
                idle_turns = 0
                continue
            # Other commands run what is wanted; if none does, nothing will ever change.
            idle_turns += not self.state.elsewhere
            if idle_turns > _ATTEMPTS:
                raise RuntimeError(f"{self.grid.combination(asked[0])} is asked for, and cannot be begun")
            time.sleep(LOOK)

    @property
    def has_answered(self) -> bool:
        """Return whether the plan has an answer, even if it wants more trials to check it."""
        return self.plan.finished

    def _wants_more(self) -> bool:
        return self._session.is_in_time and not self.plan.finished and not self._stopped()

    def _look_at_environments(self) -> bool:
        """Check environments in which trials passed; return whether one has changed.

        A user who stops gets no verdict without this check, but need not wait for it if there will be none.
        """
        known = self._basis
        if self._stopped() and not self.has_answered:
            return False
        locks = {lock.content_hash: lock for lock in self._prepared.locks.values()}
        waiting, self.unseen = self.unseen & locks.keys(), set()
        for lock_hash in waiting:
            self._sender.prepare(locks[lock_hash], look=True)
        while waiting:
            answers = self._sender.wait()
            self._handle(answers)
            waiting -= {one.lock_hash for one in answers if isinstance(one, PrefixReady | BuildFailed)}
        return self._basis != known

    def _note_change(self, change: ChangedEnvironment, ended: Sequence[TrialRecord]) -> None:
        """Mark the trials of an environment as void from when it was last seen unchanged.

        Hosts report all changes that they ever found: most are known, or met no trial of this study.
        """
        self._changes.add(change)
        self._save_locked()
        is_new = self._trials.note_change(change)
        if not is_new or not any(change.covers(one) for one in (*self._trials.everything(), *ended)):
            return
        there = self.state.combinations_in(change.lock_hash)
        built = str(self.grid.combination(there[0])) if there else change.lock_hash[:12]
        text = (
            f"files of the environment of {built} were changed on {change.host}; its trials there since "
            f"{change.since:%H:%M:%S} UTC are not counted, and it is made again"
        )
        self._warn([text])
        self._learn([])
        self.state.changed(change.lock_hash, built)

    # -- one step ------------------------------------------------------------------------------------------

    def _work(self) -> bool:
        """Run until nothing is in progress; return whether anything was."""
        was_busy = False
        while self._wants_more():
            self._carry_out()
            state = self.state
            if not (state.running or state.building or self._locking.under_way):
                return was_busy
            was_busy = True
            if state.running or state.building:
                self._handle(self._sender.gather())
            else:
                self._locking.wait(LOOK)
            self._take_locks()
            if self._sharing.is_due:
                self.read_others(elsewhere=False)
            self._sharing.renew(self._claims)
            self._after_step()
        return True

    def _after_step(self) -> None:
        """Do what else is due while trials run."""

    def _carry_out(self) -> None:
        """Start what the state wants; repeat if other commands have claimed some of it."""
        for attempt in range(_ATTEMPTS):
            slots = self._sender.slots
            only = self._only()
            wanted = self._next.decide(slots, only=only)
            self._locking.want(wanted.lock)
            self._build(wanted)
            if self._start(wanted.start):
                ahead = self._next.ahead(slots)
                if ahead.lock:
                    self._locking.want_ahead(ahead.lock)
                self._build(ahead)
                return
            # Others are faster: what they did decides what is worth asking now.
            self._sharing.renew(self._claims, now=True)
            self.read_others(elsewhere=False)
            time.sleep(_PAUSE * attempt)

    def _only(self) -> Mapping[Index, int] | None:
        """Return the only combinations to try, and how many trials at a time; None where the plan decides."""
        return None

    def _take_locks(self) -> None:
        answered = self._locking.take()
        if not answered:
            return
        prepared = self._prepared
        self._unsaved += answered
        for index in answered:
            self._act(self.state.locked(index))
        self._locks_answered += len(answered)
        total = self._locks_answered + self._locking.under_way
        self._notify(events.LockProgress(self._locks_answered, total))
        new = [index for index in answered if index in prepared.locks and index in self.state.members]
        if self._know(new):
            self._learn_reused(self._measured_elsewhere(new))

    def _save_locked(self) -> None:
        """Store new locks before anything refers to them."""
        if not self._unsaved:
            return
        locks = self._prepared.locks
        self._store.save_locks(self._study_id, [locks[index] for index in self._unsaved if index in locks])
        self._store.save_combinations(
            self._study_id, [self._prepared.state(index) for index in self._unsaved]
        )
        self._unsaved = []

    def _know(self, indices: Collection[Index]) -> bool:
        """Note the keys of combinations with a new lock; return whether there are any."""
        for index in indices:
            self._keys[index] = self._conditions(index).key
        return bool(indices)

    def _build(self, wanted: Wanted) -> None:
        for index in wanted.build:
            lock = self._prepared.locks[index]
            self.state.begun(lock.content_hash)
            self._sender.prepare(lock)

    def _start(self, chosen: Sequence[Index], *, alone: bool = False) -> bool:
        """Claim trials and start those that no other command has claimed.

        Args:
            chosen: Their combinations.
            alone: Whether they must not share a GPU.

        Returns:
            Whether all of them could be claimed.
        """
        if not chosen:
            return True
        wants = [(self._series.new_id(), self.grid.combination(index)) for index in chosen]
        decision = {
            "combinations": [combination.as_dict() for _, combination in wants],
            "after_trials": self.plan.trials,
        }
        self._save_locked()
        won = self._sharing.claim(wants, self._run_now(), ("ask", decision))
        for index, (trial_id, combination), ours in zip(chosen, wants, won, strict=True):
            if ours:
                self.state.started(trial_id, index)
                self._send(index, trial_id, combination, alone=alone)
        return all(won)

    def _send(self, index: Index, trial_id: str, combination: Combination, *, alone: bool) -> None:
        how = self._conditions(index)
        self._sender.submit(
            trial_id,
            combination,
            self._prepared.locks[index],
            values=how.values,
            perturbation=how.perturbation,
            alone=alone,
        )
        self._notify(events.TrialStarted(trial_id, combination))

    def _run_now(self) -> Counter[Combination]:
        """Return how many trials of each combination run."""
        running = Counter(self.state.running.values())
        return Counter({self.grid.combination(index): number for index, number in running.items()})

    def _claims(self) -> dict[str, Combination]:
        """Return the trials that run, as others are to know them."""
        return {trial: self.grid.combination(index) for trial, index in self.state.running.items()}

    def _wind_down(self) -> None:
        """Wait for trials that are about to end, then end the others.

        Ending them all at once would favour quick outcomes: a hang takes longer than a pass.
        """
        grace = min(GRACE_TRIALS * (self.state.trial_seconds.value or 0.0), GRACE_SECONDS)
        waits = self._waits and self._session.is_in_time
        deadline = float("inf") if waits else self._clock() + grace
        while self.state.running and (left := deadline - self._clock()) > 0 and not self._stopped():
            self._handle(self._sender.wait(min(LOOK, left)))
            self._sharing.renew(self._claims)
        self._handle(self._sender.end())
        self.state.nothing_runs()
        self._sharing.renew(dict, now=True)

    # -- answers -------------------------------------------------------------------------------------------

    def _handle(self, answers: Sequence[Completion]) -> None:
        """Record what trials did, all at once, and only then learn from it."""
        recorded: list[tuple[Index, TrialRecord, float]] = []
        changes: dict[ChangedEnvironment, None] = {}
        for answer in answers:
            match answer:
                case TrialCompleted(record, build_seconds, notes, found):
                    changes |= dict.fromkeys(found)
                    self._warn(notes)
                    if record.trial_id in self.state.running:
                        recorded.append((self.state.ended(record.trial_id), record, build_seconds))
                case TrialLost():
                    if answer.trial_id in self.state.running:
                        recorded.append(self._lost(answer))
                case PrefixProgress(lock_hash, step):
                    state = self.state
                    self._notify(events.Building(lock_hash, step, len(state.ready), len(state.building)))
                case PrefixReady(lock_hash, seconds, notes, found):
                    changes |= dict.fromkeys(found)
                    self._warn(notes)
                    self._built(lock_hash, seconds)
                case BuildFailed():
                    self._build_failed(answer)
        # Before the trials are recorded: what failed because of a change is not evidence for a moment.
        for change in changes.keys() - self._changes:
            self._note_change(change, [record for _, record, _ in recorded])
        self._record(recorded)

    def _lost(self, lost: TrialLost) -> tuple[Index, TrialRecord, float]:
        index = self.state.ended(lost.trial_id)
        if lost.crowded:
            # Neither the host's fault nor the script's: our trials disturbed each other.
            self._crowded.add(lost.trial_id)
        elif lost.under_trial:
            self.state.lost(index, lost.host)
        lock_hash = self._prepared.locks[index].content_hash
        combination = self.grid.combination(index)
        return index, lost_record(lost.trial_id, combination, lock_hash, lost.reason, lost.host), 0.0

    def _built(self, lock_hash: str, seconds: float) -> None:
        self.state.built(lock_hash, seconds)
        if seconds:
            built = tuple(self.grid.combination(index) for index in self.state.combinations_in(lock_hash))
            self._notify(events.Built(lock_hash, built, seconds))
            self._record_build(lock_hash, seconds)

    def _build_failed(self, failed: BuildFailed) -> None:
        self._forget(failed.trial_id)
        failure = {"lock": failed.lock_hash, "reason": brief(failed.message)}
        self._store.record_decision(self._study_id, BUILD_FAILED, failure)
        self._act(self.state.build_failed(failed.lock_hash, failed.message, transient=failed.transient))

    def _forget(self, trial_id: str) -> None:
        """Give up a trial that did not run, if it is one of this command; it may be started anew."""
        if trial_id in self.state.running:
            self.state.ended(trial_id)
            self._sharing.release([trial_id])

    def _record_build(self, lock_hash: str, seconds: float) -> None:
        self._store.record_decision(self._study_id, BUILT, {"lock": lock_hash, "seconds": seconds})

    def _record(self, ended: Sequence[tuple[Index, TrialRecord, float]]) -> None:
        if not ended:
            return
        ours = {record.trial_id: (record, build_seconds) for _, record, build_seconds in ended}
        self._ours |= ours.keys()
        news = self._trials.record([(record, self._keys[index]) for index, record, _ in ended])
        recorded = [trial for trial in news if trial.trial_id in ours]
        for trial in recorded:
            record, build_seconds = ours[trial.trial_id]
            if build_seconds:
                self.state.build_seconds.add(build_seconds)
                self._record_build(record.lock_hash, build_seconds)
            self._recorded(record)
            self._notify(events.TrialFinished(record, trial.evidence, build_seconds))
        self._learn(news)
        for trial in recorded:
            if trial.trial_id not in self._crowded:
                self.state.check(ours[trial.trial_id][0], trial.evidence)

    def _recorded(self, record: TrialRecord) -> None:
        """Process a trial of this command that has been stored."""

    def _act(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            if not isinstance(finding, PutAside):
                self._warn([finding.text])
                continue
            self._save_locked()
            members = tuple(self.grid.combination(member) for member in self.state.members[finding.index])
            status = _STATUS.get(finding.status, CombinationStatus.SET_ASIDE)
            # A few trials of one combination say nothing of what the study does with it.
            if status is not CombinationStatus.UNSOLVABLE and self._is_whole:
                for combination in members:
                    self._store.set_combination(self._study_id, combination, status, finding.reason)
            self._notify(events.SetAside(members, finding.status, finding.reason))

    def _warn(self, texts: Iterable[str]) -> None:
        for text in texts:
            self._notify(events.Warned(text))


_STATUS = {
    "env-unbuildable": CombinationStatus.UNBUILDABLE,
    "env-unsolvable": CombinationStatus.UNSOLVABLE,
}
