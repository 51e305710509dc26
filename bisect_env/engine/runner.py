"""Carries out what the state decides: starts trials and builds, records their results, and ends in order.

A trial is committed to the database before the state of its study hears of it, so that `kill -9` at any
instant loses nothing but trials that were still running. Resuming is replaying: the search is told what the
database has.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from bisect_env.answers.verdict_document import VerdictDocument, calls_bad
from bisect_env.cluster.protocol import (
    BuildFailed,
    Completion,
    Executor,
    PrefixChange,
    PrefixProgress,
    PrefixReady,
    PrefixRequest,
    TrialCompleted,
    TrialLost,
    TrialRequest,
    trials_per_gpu,
)
from bisect_env.engine import events
from bisect_env.engine.alone import ALONE, Alone
from bisect_env.engine.document import axes_document, verdict_document
from bisect_env.engine.locking import Locking
from bisect_env.engine.reuse import Reuse, trial_key
from bisect_env.engine.sharing import Sharing
from bisect_env.engine.specs import allowed_sources, lost_record, trial_files, trial_spec
from bisect_env.engine.state import Finding, PutAside, StudyState, Wanted, gist
from bisect_env.environments.lock import Lock
from bisect_env.errors import NoEnvironmentError, StudyInterruptedError
from bisect_env.matrix.grid import Combination, Index
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.signatures import shown
from bisect_env.search.coarsening import CoarsenedSearch
from bisect_env.search.goals import Goal, search_towards
from bisect_env.search.searcher import Search, StudySearch
from bisect_env.search.verdict import Status
from bisect_env.storage.entries import (
    BUILD_FAILED,
    BUILT,
    CombinationStatus,
    StoredTrial,
)
from bisect_env.storage.store import Store
from bisect_env.trials.judge import ChangedEnvironment
from bisect_env.trials.records import NONE, Evidence, Machine, Outcome, Perturbation, TrialRecord

LOOK = 0.5
"""Seconds between two looks at the budget and at Ctrl-C while trials run."""
CANCEL_GRACE = 30.0
"""Seconds for cancelled trials to be answered."""
GATHER = 0.05
"""Seconds for which answers wait for more of them, as long as no worker has to wait for what they lead to."""
PATIENCE, PATIENCE_MOST = 3.0, 0.4
"""How long trials that still run may go on once the answer is there: in mean durations of a trial, and in
seconds at most."""
CHECK_SECONDS, CHECK_SHARE = 10.0, 0.5
"""How long an answer may be checked: seconds, or this share of the time that it took if that is more."""
SHOW_EVERY = 0.2
"""Seconds between two pictures of where the search stands."""
SAVE_EVERY = 5.0
"""Seconds between two verdicts stored on the way, for those who look at a running study."""
FORETOLD, FORETELL_EVERY = 64, 4.0
"""Combinations up to which it is played what would end a study without failures; seconds between plays."""
FORETELL_TURN = 0.005
"""Seconds for which it is played each time that something is shown: trials wait for whoever plays."""
_CLAIMS = 4
"""How often to ask again at once when other commands claim faster."""
_PAUSE = 0.02
"""Seconds, growing with each attempt, that let two commands fall out of step."""


class Runner:
    """Sends trials and builds of one matrix to an executor, and keeps count of what runs.

    Args:
        matrix: What is run.
        executor: Where; the caller closes it.
        warn: Hears when fewer trials share a GPU from now on.

    Attributes:
        executor: As given.
        running: Trials that were sent off and are not answered yet, by id, with what each was lent of GPUs.
        gpus: What a trial is lent: of a shared GPU it grows when trials disturb each other.
    """

    def __init__(
        self, matrix: Matrix, executor: Executor, warn: Callable[[str], None] = lambda _text: None
    ) -> None:
        self.executor = executor
        self.running: dict[str, float] = {}
        self.gpus = matrix.file.trial.gpus
        self._warn = warn
        self._matrix = matrix
        self._files = trial_files(matrix)
        self._allow_source = allowed_sources(matrix)

    @property
    def slots(self) -> int:
        """How many trials can run at the same time."""
        return max(1, self.executor.slots // (self._on_a_gpu // trials_per_gpu(self.gpus)))

    @property
    def places_alone(self) -> int:
        """How many can while none shares its GPU with another."""
        return max(1, self.executor.slots // self._on_a_gpu)

    @property
    def _on_a_gpu(self) -> int:
        return trials_per_gpu(self._matrix.file.trial.gpus)

    def prepare(self, lock: Lock, *, look: bool = False) -> None:
        """Begin to make an environment, or to look whether it is still as it was made."""
        self.executor.prepare(PrefixRequest(lock, self._allow_source, look))

    def submit(
        self,
        trial_id: str,
        combination: Combination,
        lock: Lock,
        *,
        values: Combination | None = None,
        perturbation: Perturbation = NONE,
        alone: bool = False,
    ) -> None:
        """Send a trial off.

        Args:
            trial_id: Unique.
            combination: Under which it is recorded.
            lock: Its environment.
            values: What the command sees of the axes, if that is something else.
            perturbation: Circumstances under which it runs.
            alone: Whether it must not share a GPU, whatever the others do.
        """
        spec = trial_spec(
            *(self._matrix, combination, lock, trial_id, self._files),
            values=values,
            perturbation=perturbation,
            gpus=max(1, self.gpus) if alone else self.gpus,
        )
        self.running[trial_id] = spec.gpus
        self.executor.submit(TrialRequest(spec, lock, self._allow_source))

    def wait(self, timeout: float = LOOK) -> list[Completion]:
        """Return answers since the last call, after waiting up to `timeout` seconds for the first."""
        answers = self.executor.wait(timeout)
        for answer in answers:
            match answer:
                case TrialCompleted(record):
                    self.running.pop(record.trial_id, None)
                case TrialLost(trial_id, reason, crowded=True):
                    self._make_room(self.running.pop(trial_id, 1), reason)
                case BuildFailed(trial_id) | TrialLost(trial_id):
                    self.running.pop(trial_id, None)
                case PrefixReady() | PrefixProgress():
                    pass
        return answers

    def gather(self) -> list[Completion]:
        """Wait for answers as `wait` does, then a little longer while enough trials are queued.

        Recording answers, learning from them and deciding costs about the same for one as for twenty.
        """
        answers = self.wait()
        until = time.monotonic() + GATHER
        while answers and (left := until - time.monotonic()) > 0:
            if len(self.running) <= 1.5 * self.slots:
                break
            answers += self.wait(left)
        return answers

    def _make_room(self, lent: float, reason: str) -> None:
        """Let half as many trials share a GPU, if as many as now did when they disturbed each other."""
        if lent < 1 and lent == self.gpus:
            fewer = trials_per_gpu(self.gpus) // 2
            self.gpus = 1 / fewer if fewer > 1 else 1
            shown = (
                f"{fewer} trials share a GPU from now on"
                if fewer > 1
                else "trials have a GPU each from now on"
            )
            self._warn(f"{reason}; it is run again, and {shown}")

    def answers(
        self, lock: Lock | None, start: Callable[[], None], stopped: Callable[[], bool]
    ) -> Iterator[Completion]:
        """Run trials in one environment until none runs and none is wanted, or somebody wants to stop.

        Args:
            lock: The environment, which is made first; None where it is there.
            start: Sends off what is wanted now; asked whenever the environment is there.
            stopped: Looked at twice a second.
        """
        is_ready = lock is None
        if lock is not None:
            self.prepare(lock)
        while not stopped():
            if is_ready:
                start()
                if not self.running:
                    return
            for answer in self.wait():
                is_ready = isinstance(answer, PrefixReady) or (
                    is_ready and not isinstance(answer, BuildFailed)
                )
                yield answer

    def end(self) -> list[Completion]:
        """End what runs. Return what came meanwhile: trials that had ended before, and builds."""
        ended: list[Completion] = []
        if not self.running:
            return ended
        self.executor.cancel()
        patience = time.monotonic() + CANCEL_GRACE
        while self.running and time.monotonic() < patience:
            # A lost trial was ended here. A build that nobody hears of would be waited for without end.
            ended += [answer for answer in self.wait() if not isinstance(answer, TrialLost)]
        self.running.clear()
        return ended


class StudyRunner:
    """Runs one study until it is decided, its budget is spent, or the user stops it.

    Args:
        matrix: What is asked.
        locking: Its combinations, and who locks them.
        store: Where everything is written.
        study_id: The open study.
        notify: Hears of everything that happens.
        clock: Seconds that only grow.
        stopped: Looked at between steps; true ends the study in an orderly way.
        machines: Classes of machines on which trials will run: trials that other studies recorded there
            under the same keys are reused. None reuses nothing.
        goal: What the study wants to know.
        quick: Whether to end as soon as the answer stands, without checks.
        perturbation: Circumstances under which all trials run.
        user: Whose studies' trials may be reused; None for anybody's.
        deadline: When the study gives up, on the same clock; None for never.

    Attributes:
        grid: As expanded.
        search: What chooses and answers.
        state: Where the study stands.
        searching: Seconds spent on choosing what to do.
    """

    def __init__(
        self,
        matrix: Matrix,
        locking: Locking,
        store: Store,
        study_id: str,
        *,
        notify: Callable[[events.Event], None],
        clock: Callable[[], float] = time.monotonic,
        stopped: Callable[[], bool] = lambda: False,
        machines: Collection[Machine] = (),
        goal: Goal = Goal.FIRST_BAD,
        quick: bool = False,
        perturbation: Perturbation = NONE,
        user: str | None = None,
        deadline: float | None = None,
    ) -> None:
        self._matrix = matrix
        self._locking = locking
        self._prepared = locking.prepared
        self.grid = self._prepared.grid
        self._axes = axes_document(self.grid)
        self._store = store
        self._study_id = study_id
        self._notify = notify
        self._clock = clock
        self._stopped = stopped
        self._deadline = deadline
        self._perturbation = perturbation
        self._bad_end = None if self.grid.bad is None else self._prepared.groups.get(self.grid.bad)
        self._goal = goal
        self._quick = quick
        self.search = self._new_search()
        self.state = StudyState(matrix, self._prepared, self.search)
        self._trials = store.study_trials(study_id)
        self._basis = self._trials.basis
        self._sharing = Sharing(store, study_id, self._trials, clock=clock)
        self._keys: dict[Index, str] = {}
        self._reuse = Reuse(self._trials, self._keys, self._prepared, machines, user)
        self._locks_answered, self._locks_spent = 0, locking.spent
        self.searching = 0.0
        self._unsaved: list[Index] = []
        self._began_at = clock()
        self._check_until: float | None = None
        self._shown_at = self._saved_at = float("-inf")
        self._trials_alone = {one.payload["trial"] for one in store.decisions(study_id) if one.kind == ALONE}
        self._alone = Alone(matrix.file.trial.gpus)
        self._foretold: int | None = None
        self._play: tuple[int, Generator[None, None, int | None]] | None = None
        self._foretell_from = float("-inf")
        self._crowded: set[str] = set()
        self._ours: set[str] = set()
        self._unseen: set[str] = set()

    # -- before and after ----------------------------------------------------------------------------------

    @property
    def missing(self) -> dict[Index, tuple[str, str]]:
        """Status and reason of every combination that cannot be run, as far as that is known."""
        return self.state.missing()

    def document(self) -> VerdictDocument:
        """Return the verdict by now."""
        document = verdict_document(self.grid, self.search, self.missing)
        if (why := self._alone.why_not(self.search)) is not None:
            document = document.model_copy(update={"status": Status.LIKELY.value, "reason": why})
        return document

    @property
    def finished(self) -> bool:
        """Whether nothing more is to be tried."""
        return self.search.finished and not self._alone.wanted(self.search, 1)

    def tried(self, axis: str, verdict: VerdictDocument) -> list[tuple[str, str, str]]:
        """What was tried along an axis, all else as in the first bad combination: value, verdict, reason.

        Args:
            axis: Its name.
            verdict: With a first bad combination.
        """
        first = verdict.first_bad or {}
        is_bad = calls_bad(verdict)
        place = next(i for i, one in enumerate(self.grid.axes) if one.name == axis)
        found = []
        missing = self.missing
        for value in self.grid.axes[place].values:
            index = self.grid.find(Combination.of({**first, axis: value}))
            if index is None:
                continue
            tally = self.state.tallies.get(self._prepared.groups.get(index, index))
            if tally is not None and tally.bad + tally.good:
                said = "bad" if is_bad({**first, axis: value}) else "good"
                found.append((value, said, f"({tally.bad} of {tally.bad + tally.good} trials failed)"))
            elif index in missing:
                found.append((value, "skip", f"({missing[index][0]})"))
        return found

    def replay(self) -> int:
        """Tell the search what the database has already.

        Returns:
            Number of stored trials.
        """
        # Whoever locked before the study was open may have met what no solver makes.
        for refused in [one for one in self._prepared.unsolvable if one in self.state.members]:
            self._act(self.state.locked(refused))
        stored = self._sharing.news()
        self._basis = self._trials.basis
        # A study that could run its command nowhere was stopped for that; now it may be corrected.
        if any(trial.outcome is not Outcome.NOT_RUNNABLE for trial in stored):
            self._learn(stored)
        self._know([index for index in self.state.members if index in self._prepared.locks])
        self._learn_reused(self._reuse.look())
        for row in self._store.combinations(self._study_id):
            index = self._group_of(row.combination)
            if row.status == CombinationStatus.UNBUILDABLE and index is not None:
                self._act(self.state.put_aside(index, "env-unbuildable", row.reason))
        return len(stored)

    def hear_others(self, *, elsewhere: bool = True) -> int:
        """Read the results that other commands recorded for this study.

        Args:
            elsewhere: Whether to look at other studies as well.

        Returns:
            Number of trials that were news.
        """
        new = [*self._sharing.news(), *(self._reuse.look() if elsewhere else ())]
        self._learn(new)
        self.state.elsewhere = Counter()
        for combination, number in self._sharing.claimed.items():
            if (index := self._group_of(combination)) is not None:
                self.state.elsewhere[index] += number
        return len(new)

    def _learn(self, trials: Sequence[StoredTrial]) -> None:
        """Tell the state trials that the database has, in order; all again if they mean something else."""
        if self._trials.basis != self._basis:
            self._begin_again()
            return
        for trial in trials:
            index = self._group_of(trial.combination)
            if index is None:
                continue
            if trial.trial_id not in self._ours:
                self.state.seen.add(trial.lock_hash)
            if trial.trial_id in self._trials_alone:
                self._alone.heard(index, trial.evidence)
            self._act(
                self.state.learn(
                    index, trial.outcome, trial.evidence, duration=trial.duration, detail=trial.detail
                )
            )

    def _new_search(self) -> StudySearch:
        limits = self._matrix.file.search
        return search_towards(self._goal, self.grid, self._prepared.groups, limits, quick=self._quick)

    def _begin_again(self) -> None:
        """Tell a new search every trial: the study is about another failure, or some trials are void."""
        (before, _), self._basis = self._basis, self._trials.basis
        problems = self._trials.judge.two_problems if before != self._trials.target else None
        if problems is not None and not problems.lacking:
            signature = shown(problems.signature)
            text = (
                f"two failures that have nothing to do with each other: {problems.other} fails as "
                f"{problems.other_kind}, {problems.bad} as {signature}; this study looks for the latter, as "
                f"`bad: {{signature: '{signature}'}}` in `trial` says from the start"
            )
            self._warn([text])
        set_aside = {index for index, (status, _) in self.state.aside.items() if status == "set-aside"}
        self.search = self._new_search()
        self.state.begin_again(self.search)
        self._alone = Alone(self._matrix.file.trial.gpus)
        self._learn(self._trials.everything())
        for index in set_aside - self.state.aside.keys():
            for member in self.state.members[index]:
                combination = self.grid.combination(member)
                self._store.set_combination(self._study_id, combination, CombinationStatus.SOLVABLE, "")

    def _learn_reused(self, trials: Sequence[StoredTrial]) -> None:
        self._learn(trials)
        if reused := sum(trial.reused for trial in trials):
            self._notify(events.Reused(reused, tuple(self._store.origins(self._study_id))))

    def _group_of(self, combination: Combination) -> Index | None:
        """Return what stands for a stored combination; None where this command does not look at it."""
        found = self.grid.find(combination)
        return None if found is None else self._prepared.groups.get(found)

    def run(self, start: Callable[[], Executor]) -> None:
        """Go on until nothing more is to be learnt.

        Args:
            start: Starts the place where trials run, or waits until it stands; the caller closes it.

        Raises:
            NoEnvironmentError: Nothing can be run.
            InfrastructureError: Too many trials in a row were spoilt, or the cluster is lost.
            UsageError: The command cannot be run in any combination tried.
        """
        deadline = self._deadline
        # Solvers begin while the place where trials run may still be starting.
        self._lock(self.state.decide(2).lock)
        try:
            self._runner = Runner(self._matrix, start(), lambda text: self._warn([text]))
        except StudyInterruptedError:
            self._sharing.close()
            return  # nothing ran, and the study ends as any other that was stopped
        self._locking.on_done = self._runner.executor.wake
        try:
            while True:
                self._decide(deadline)
                if not self._try_alone(deadline) and not self._look_at_environments():
                    break
        finally:
            self._save_locked()
            self._sharing.close()
        if not self._stopped():
            self.state.check_anything_ran()

    def _decide(self, deadline: float | None) -> None:
        in_vain = 0
        while self._wants_more(deadline):
            known = self.search.trials, len(self.state.aside)
            is_idle = not self._work(deadline)
            # What still ran may have changed the answer, which then is not the answer yet.
            self._wind_down()
            self.hear_others()
            if not self._runner.running and not (asked := self.search.ask(1)):
                break
            if not is_idle or known != (self.search.trials, len(self.state.aside)):
                in_vain = 0
                continue
            # Others run what is wanted. If nobody does, to ask for ever would help nobody either.
            in_vain += not self.state.elsewhere
            if in_vain > _CLAIMS:
                raise RuntimeError(f"{self.grid.combination(asked[0])} is asked for, and cannot be begun")
            time.sleep(LOOK)

    def _wants_more(self, deadline: float | None) -> bool:
        return self._in_time(deadline) and not self.search.finished and not self._stopped()

    def _in_time(self, deadline: float | None) -> bool:
        return deadline is None or self._clock() < deadline

    def _try_alone(self, deadline: float | None) -> bool:
        """Try both sides of the boundary without neighbours, where trials share GPUs; whether any ran."""
        chosen = self._alone.wanted(self.search, self._runner.places_alone)
        if not chosen or self._stopped() or not self._in_time(deadline):
            return False
        self._start(chosen, alone=True)
        while self.state.running and not self._stopped():
            self._handle(self._runner.wait())
            self._sharing.renew(self._claims)
            self._show()
        self._wind_down()
        return True

    def _look_at_environments(self) -> bool:
        """Look at environments in which trials passed; return whether one is not as it was made."""
        known = self._basis
        waiting, self._unseen = self._unseen, set()
        locks = {lock.content_hash: lock for lock in self._prepared.locks.values()}
        for lock_hash in waiting:
            self._runner.prepare(locks[lock_hash], look=True)
        while waiting and not self._stopped():
            answers = self._runner.wait()
            self._handle(answers)
            waiting -= {one.lock_hash for one in answers if isinstance(one, PrefixReady | BuildFailed)}
        return self._basis != known

    def _note_change(self, change: PrefixChange) -> None:
        """Void the trials of an environment since it was last seen as it was made."""
        until = datetime.now(UTC)
        self._trials.note_change(ChangedEnvironment(change.lock_hash, change.host, change.since, until))
        built = ", ".join(str(self.grid.combination(i)) for i in self.state.living_in(change.lock_hash)[:1])
        text = (
            f"files of the environment of {built} were changed on {change.host}; its trials there since "
            f"{change.since:%H:%M:%S} UTC are not counted, and it is made again"
        )
        self._warn([text])
        self._learn([])

    # -- one step ------------------------------------------------------------------------------------------

    def _work(self, deadline: float | None) -> bool:
        """Go on until nothing is under way; whether anything was."""
        was_busy = False
        while self._wants_more(deadline):
            self._carry_out()
            state = self.state
            if not (state.running or state.building or self._locking.under_way):
                return was_busy
            was_busy = True
            if state.running or state.building:
                self._handle(self._runner.gather())
            else:
                self._locking.wait(LOOK)
            self._take_locks()
            self._look_between_kinds()
            if self._sharing.is_due:
                self.hear_others(elsewhere=False)
            self._sharing.renew(self._claims)
            self._bound_checks()
            self._show()
        return True

    def _bound_checks(self) -> None:
        """Say the answer as soon as it stands, and see that checking it further comes to an end."""
        if not self.search.answered:
            # A failure during the checks has opened the question again.
            self._check_until = None
            return
        now = self._clock()
        if self._check_until is None:
            seconds = max(CHECK_SECONDS, CHECK_SHARE * (now - self._began_at))
            self._check_until = now + seconds
            # On resuming, a replayed study may have looks that are due before it has an answer.
            if self.search.checks_left and (document := self.document()).status != "none":
                self._notify(events.Answered(document, self.search.checks_left, seconds, self._axes))
        elif now >= self._check_until:
            self.search.end_checks()

    def _end_in_vain(self) -> None:
        """Have trials ended that cannot change the answer any more; nothing is recorded of them."""
        now = self._clock()
        if chosen := self.state.hopeless(self._runner.slots, now):
            self.state.given_up(chosen)
            self._runner.executor.cancel(chosen)

    def _carry_out(self) -> None:
        """Do what the state wants, as often as other commands are faster with some of it."""
        self._end_in_vain()
        for attempt in range(_CLAIMS):
            slots = self._runner.slots
            only = self._only()
            began = time.perf_counter()
            wanted = self.state.decide_now(slots, only=only)
            self.searching += time.perf_counter() - began
            self._lock(wanted.lock)
            self._build(wanted)
            if self._start(wanted.start):
                began = time.perf_counter()
                ahead = self.state.decide_ahead(slots)
                self.searching += time.perf_counter() - began
                if ahead.lock:
                    self._locking.want_ahead(ahead.lock)
                self._build(ahead)
                return
            # Others are faster: what they did decides what is worth asking now.
            self._sharing.renew(self._claims, now=True)
            self.hear_others(elsewhere=False)
            time.sleep(_PAUSE * attempt)

    def _only(self) -> Mapping[Index, int] | None:
        """What to try alone while nobody knows which failure is meant, and how many at a time, or None."""
        if not self._trials.target.is_open:
            problems = self._trials.judge.two_problems
            lacking = {} if problems is None else problems.lacking
            found = {self._group_of(combination): number for combination, number in lacking.items()}
            return {i: n for i, n in found.items() if i is not None and i not in self.state.aside} or None
        bad_end = self._bad_end
        if bad_end is None or bad_end in self.state.aside:
            raise NoEnvironmentError(
                f"{self._matrix.path}: the bad end, whose failure the study is to look for, cannot be run",
                tried=self.state.aside[bad_end][1] if bad_end is not None else None,
                remedy="state another `bad`, or a `signature` instead of `from-bad-end`",
            )
        return {bad_end: sys.maxsize}

    def _look_between_kinds(self) -> None:
        """Look between failures of different kinds once an answer stands: a pass there tells them apart."""
        search = self.search
        if self._trials.target.signature or not isinstance(search, Search) or not search.answered:
            return
        positions = self._trials.judge.places.line
        if not positions or not search.verdict.certain:
            return
        line = {
            self.grid.combination(index): index
            for index in self.state.members
            if index not in self.state.aside
        }
        ordered = sorted((one for one in line if one in positions), key=lambda one: positions[one])
        if (between := self._trials.judge.between_kinds(ordered)) is not None:
            search.look_at(line[between])

    def _lock(self, indices: Iterable[Index]) -> None:
        self._locking.want(indices)

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
        spent, self._locks_spent = self._locking.spent - self._locks_spent, self._locking.spent
        self._notify(events.LockProgress(self._locks_answered, total, spent))
        new = [index for index in answered if index in prepared.locks and index in self.state.members]
        if self._know(new):
            self._learn_reused(self._reuse.look(new))

    def _save_locked(self) -> None:
        """Store what was locked since the last time: before anything that names it, and not for itself."""
        if not self._unsaved:
            return
        locks = self._prepared.locks
        self._store.save_locks(self._study_id, [locks[index] for index in self._unsaved if index in locks])
        self._store.save_combinations(
            self._study_id, [self._prepared.state(index) for index in self._unsaved]
        )
        self._unsaved = []

    def _know(self, indices: Collection[Index]) -> bool:
        """Make the keys under which trials of other studies may be found."""
        for index in indices:
            self._keys[index] = trial_key(self._matrix, self._prepared, index, self._perturbation)
        return bool(indices)

    def _build(self, wanted: Wanted) -> None:
        for index in wanted.build:
            lock = self._prepared.locks[index]
            self.state.begun(lock.content_hash)
            self._runner.prepare(lock)

    def _start(self, chosen: Sequence[Index], *, alone: bool = False) -> bool:
        """Claim trials and send those off that no other command was faster with.

        Args:
            chosen: Their combinations.
            alone: Whether they must not share a GPU.

        Returns:
            Whether all of them could be claimed.
        """
        if not chosen:
            return True
        wants = [(uuid.uuid4().hex, self.grid.combination(index)) for index in chosen]
        decision = {
            "combinations": [combination.as_dict() for _, combination in wants],
            "after_trials": self.search.trials,
            "best": self.search.leading,
        }
        with self._store.together():
            self._save_locked()
            won = self._sharing.claim(wants, self._run_now(), ("ask", decision))
        for index, (trial_id, combination), ours in zip(chosen, wants, won, strict=True):
            if ours:
                lock = self._prepared.locks[index]
                self.state.started(trial_id, index, self._clock())
                self._runner.submit(trial_id, combination, lock, perturbation=self._perturbation, alone=alone)
                if alone:
                    self._trials_alone.add(trial_id)
                self._notify(events.TrialStarted(trial_id, combination))
        return all(won)

    def _run_now(self) -> Counter[Combination]:
        """Return how many trials of each combination run."""
        running = Counter(self.state.running.values())
        return Counter({self.grid.combination(index): number for index, number in running.items()})

    def _claims(self) -> dict[str, Combination]:
        """Return what runs, as others are to know it."""
        return {trial: self.grid.combination(index) for trial, index in self.state.running.items()}

    def _wind_down(self) -> None:
        """Let trials that are about to end do so, then end the others.

        Ending them all at once would favour quick outcomes: a hang takes longer than a pass.
        """
        grace = min(PATIENCE * (self.state.trial_seconds.value or 0.0), PATIENCE_MOST)
        patience = self._clock() + grace
        while self.state.running and (left := patience - self._clock()) > 0 and not self._stopped():
            self._handle(self._runner.wait(min(LOOK, left)))
        self._handle(self._runner.end())
        self.state.nothing_runs()
        self._sharing.renew(dict, now=True)

    # -- answers -------------------------------------------------------------------------------------------

    def _handle(self, answers: Sequence[Completion]) -> None:
        """Record what trials did, all at once, and only then learn from it."""
        recorded: list[tuple[Index, TrialRecord, float]] = []
        changes: list[PrefixChange] = []
        for answer in answers:
            match answer:
                case TrialCompleted(record, build_seconds, notes):
                    self._warn(notes)
                    if record.trial_id in self.state.running:
                        recorded.append((self.state.ended(record.trial_id), record, build_seconds))
                case TrialLost(trial_id, reason, host, crowded, change=change):
                    changes += [] if change is None else [change]
                    if trial_id not in self.state.running:
                        continue
                    is_given_up = trial_id in self.state.ending
                    index = self.state.ended(trial_id)
                    if is_given_up:
                        self._sharing.release([trial_id])
                        text = "is ended before its time: it cannot change the answer any more"
                        self._notify(events.Said(f"a trial of {self.grid.combination(index)} {text}"))
                        continue
                    if crowded:
                        # Neither the host nor the script: our own crowding.
                        self._crowded.add(trial_id)
                    elif answer.under_trial:
                        self.state.lost(index, host)
                    combination = self.grid.combination(index)
                    lock_hash = self._prepared.locks[index].content_hash
                    record = lost_record(trial_id, combination, lock_hash, reason, host)
                    recorded.append((index, record, 0.0))
                case PrefixProgress(lock_hash, step):
                    state = self.state
                    self._notify(events.Building(lock_hash, step, len(state.ready), len(state.building)))
                case PrefixReady(lock_hash, seconds, notes, changed):
                    changes += changed
                    self._warn(notes)
                    self._built(lock_hash, seconds)
                case BuildFailed(trial_id, lock_hash, message, transient):
                    if trial_id and trial_id in self.state.running:
                        self.state.ended(trial_id)
                        self._sharing.release([trial_id])
                    failure = {"lock": lock_hash, "reason": gist(message)}
                    self._store.record_decision(self._study_id, BUILD_FAILED, failure)
                    self._act(self.state.build_failed(lock_hash, message, transient=transient))
        self._record(recorded)
        for change in changes:
            self._note_change(change)

    def _built(self, lock_hash: str, seconds: float) -> None:
        self.state.built(lock_hash, seconds)
        if seconds:
            built = tuple(self.grid.combination(index) for index in self.state.living_in(lock_hash))
            self._notify(events.Built(lock_hash, built, seconds))
            self._record_build(lock_hash, seconds)

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
            # A failing trial was followed by a look already.
            if trial.evidence is Evidence.GOOD:
                self._unseen.add(record.lock_hash)
            if build_seconds:
                self.state.build_seconds.add(build_seconds)
                self._record_build(record.lock_hash, build_seconds)
            self._notify(events.TrialFinished(record, trial.evidence, build_seconds))
            if trial.trial_id in self._trials_alone:
                said = {"combination": record.combination.as_dict(), "trial": record.trial_id}
                self._store.record_decision(self._study_id, ALONE, said)
        self._learn(news)
        for trial in recorded:
            if trial.trial_id not in self._crowded:
                self.state.check(ours[trial.trial_id][0], trial.evidence)

    def _act(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            if not isinstance(finding, PutAside):
                self._warn([finding.text])
                continue
            self._save_locked()
            members = tuple(self.grid.combination(member) for member in self.state.members[finding.index])
            status = _STATUS.get(finding.status, CombinationStatus.SET_ASIDE)
            if status is not CombinationStatus.UNSOLVABLE:
                for combination in members:
                    self._store.set_combination(self._study_id, combination, status, finding.reason)
            self._notify(events.SetAside(members, finding.status, finding.reason))

    # -- telling --------------------------------------------------------------------------------------------

    def _warn(self, texts: Iterable[str]) -> None:
        for text in texts:
            self._notify(events.Warned(text))

    def _show(self) -> None:
        now = self._clock()
        if now >= self._saved_at + SAVE_EVERY:
            # The first one is stored when there is something to tell.
            if self._saved_at > 0 and self.search.trials:
                self._store.save_verdict(self._study_id, self.document())
            self._saved_at = now
        if now < self._shown_at + SHOW_EVERY:
            return
        self._shown_at = now
        bad = self.search.probability_bad()
        # Of a large matrix what was tried is drawn.
        drawn = self.state.tallies if isinstance(self.search, CoarsenedSearch) else self._prepared.groups
        shown: list[tuple[Combination, float]] = [
            (self.grid.combination(index), float(bad[index])) for index in sorted(drawn)
        ]
        self._notify(
            events.Progress(
                self.search.trials,
                self.state.hits,
                dict(self._run_now()),
                self.document(),
                tuple(shown),
                {
                    self.grid.combination(index): (tally.bad, tally.bad + tally.good)
                    for index, tally in self.state.tallies.items()
                },
                self._only_passing(),
                self._ends_after(now),
                self._axes,
            )
        )

    def _only_passing(self) -> tuple[Combination, int, float] | None:
        """Return what is known of a failure that nobody has seen yet: see `events.Progress.passing`."""
        tallies = self.state.tallies
        if self.state.hits or not tallies:
            return None
        end = self._bad_end if self._bad_end in tallies else max(tallies, key=lambda one: tallies[one].good)
        assert end is not None
        return self.grid.combination(end), tallies[end].good, self._matrix.file.search.min_crash_rate

    def _ends_after(self, now: float) -> tuple[int, float] | None:
        """Return what would end a study in which nothing fails; played seldom, and on small grids alone."""
        search = self.search
        if self.state.hits or not search.trials or not isinstance(search, Search):
            return None
        if len(self.state.members) > FORETOLD or search.finished:
            return None
        if self._play is None and now >= self._foretell_from:
            self._play = search.trials, search.play_passes()
        if self._play is not None:
            self._play_on(*self._play, now + FORETELL_TURN)
        if self._foretold is None or self._foretold <= search.trials:
            return None
        return self._foretold - search.trials, self._matrix.file.search.min_crash_rate

    def _play_on(self, since: int, play: Generator[None, None, int | None], until: float) -> None:
        try:
            while self._clock() < until:
                next(play)
        except StopIteration as end:
            self._foretold = None if end.value is None else since + int(end.value)
            self._play, self._foretell_from = None, self._clock() + FORETELL_EVERY


_STATUS = {
    "env-unbuildable": CombinationStatus.UNBUILDABLE,
    "env-unsolvable": CombinationStatus.UNSOLVABLE,
}
