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
from typing import Any

from bisect_env.cluster.protocol import (
    BuildFailed,
    Completion,
    Executor,
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
from bisect_env.engine.evidence import (
    StudyTarget,
    allowed_sources,
    another_problem,
    lost_record,
    target_of,
    trial_files,
    trial_spec,
    where_kinds_change,
)
from bisect_env.engine.locking import Locking, of_commits
from bisect_env.engine.reuse import Reuse, trial_key
from bisect_env.engine.sharing import Sharing
from bisect_env.engine.state import Finding, PutAside, StudyState, Tally, Wanted, gist
from bisect_env.environments.lock import Lock
from bisect_env.errors import NoEnvironmentError, StudyInterruptedError
from bisect_env.matrix.grid import Combination, Direction, Index
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.signatures import read_signature, shown
from bisect_env.search.goals import Goal, search_towards, settings_of
from bisect_env.search.multiple import is_coarsened
from bisect_env.search.searcher import Search, StudySearch
from bisect_env.search.verdict import Status
from bisect_env.storage.entries import (
    BUILD_FAILED,
    BUILT,
    CombinationStatus,
    StoredTrial,
)
from bisect_env.storage.store import Store
from bisect_env.trials.records import NONE, Evidence, Machine, Outcome, Perturbation, TrialRecord
from bisect_env.trials.signature import matches

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


class TargetSettledError(Exception):
    """It has turned out which failure the study is about: what was learnt is to be learnt again."""


_AT_EACH_END = 3
"""Failures at each end before two kinds of them are taken for two problems."""


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

    def prepare(self, lock: Lock) -> None:
        """Begin to make an environment."""
        self.executor.prepare(PrefixRequest(lock, self._allow_source))

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

    def take_over(self, trial_id: str) -> None:
        """Wait for a trial that was sent off by somebody else."""
        self.running[trial_id] = self.gpus

    def wait(self, timeout: float = LOOK, heard: Sequence[Completion] = ()) -> list[Completion]:
        """Answers since the last call, after waiting for the first; none when the time is over.

        Args:
            timeout: Seconds.
            heard: Answers that somebody else was given before, which come first.
        """
        answers = [*heard, *self.executor.wait(timeout)]
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
        """As `wait`, and what comes while more trials are submitted than can run at the same time.

        To record answers, to learn from them and to decide costs about the same for one as for twenty.
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
        careful: Whether both stated ends are tried even where environments are dear.
        leaves: Whether the search may want commits that are no values of its axis.
        user: Whose studies' trials may be reused; None for anybody's.
        deadline: When the study gives up, on the same clock; None for never.
        begun: Ids of trials that were submitted already, by combination; they are taken over, or ended.
        answers: What the executor has said of them.

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
        careful: bool = False,
        leaves: bool = False,
        user: str | None = None,
        deadline: float | None = None,
        begun: Mapping[Index, str] | None = None,
        answers: Sequence[Completion] = (),
    ) -> None:
        self._matrix = matrix
        self._begun, self._answers = dict(begun or {}), answers
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
        wanted = matrix.file.trial.bad.signature
        self._target = StudyTarget(target_of(matrix), wanted, store, study_id, self._bad_end)
        settings = settings_of(
            matrix.file.search, quick=quick, thrifty=of_commits(self.grid), careful=careful, leaves=leaves
        )
        self.search: StudySearch = search_towards(goal, self.grid, self._prepared.groups, settings)
        self.state = StudyState(matrix, self._prepared, self.search)
        self._ends = self._both_ends()
        self._ways: dict[Index, dict[str, tuple[str, str]]] = {}
        self._sharing = Sharing(store, study_id, clock=clock)
        self._keys: dict[Index, str] = {}
        self._reuse = Reuse(store, study_id, self._keys, self._prepared, self._target, machines, user)
        self._locks_answered, self._locks_spent = 0, locking.spent
        self.searching = 0.0
        self._unsaved: list[Index] = []
        self._began_at = clock()
        self._check_until: float | None = None
        self._shown_at = self._saved_at = float("-inf")
        self._alone = Alone(self.grid, matrix.file.trial.gpus, store.decisions(study_id))
        self._trials_alone: set[str] = set()
        self._foretold: int | None = None
        self._play: tuple[int, Generator[None, None, int | None]] | None = None
        self._foretell_from = float("-inf")
        self._crowded: set[str] = set()

    def _both_ends(self) -> tuple[Index, Index] | None:
        """What stands for the good and the bad end: as stated, else the ends of the axes; or None."""
        axes = self.grid.axes
        if self.grid.good is not None and self.grid.bad is not None:
            found: tuple[Index, Index] = (self.grid.good, self.grid.bad)
        elif all(axis.direction in (Direction.REGRESSION, Direction.FIXED) for axis in axes):
            # An axis with one value has no ends.
            last = [len(axis.values) - 1 for axis in axes]
            fixed = [axis.direction is Direction.FIXED for axis in axes]
            good = tuple(end if turned else 0 for end, turned in zip(last, fixed, strict=True))
            found = (good, tuple(0 if turned else end for end, turned in zip(last, fixed, strict=True)))
        else:
            return None
        groups = self._prepared.groups
        good_end, bad_end = groups.get(found[0]), groups.get(found[1])
        return None if good_end is None or bad_end is None or good_end == bad_end else (good_end, bad_end)

    # -- before and after ----------------------------------------------------------------------------------

    @property
    def missing(self) -> dict[Index, tuple[str, str]]:
        """Status and reason of every combination that cannot be run, as far as that is known."""
        return self.state.missing()

    def document(self) -> dict[str, Any]:
        """The verdict by now."""
        document = verdict_document(self.grid, self.search, self.missing)
        if (why := self._alone.why_not(self.search)) is not None:
            document |= {"status": str(Status.LIKELY), "reason": why}
        return document

    @property
    def finished(self) -> bool:
        """Whether nothing more is to be tried."""
        return self.search.finished and not self._alone.wanted(self.search, 1)

    def tried(self, axis: str, document: Mapping[str, Any]) -> list[tuple[str, str, str]]:
        """What was tried along an axis, all else as in the first bad combination: value, verdict, reason.

        Args:
            axis: Its name.
            document: The verdict.
        """
        # Here: nobody needs the model of reports before there is an answer.
        from bisect_env.report.model import calls_bad

        first = document["first_bad"]
        is_bad = calls_bad(document)
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
        # A study that could run its command nowhere was stopped for that; now it may be corrected.
        if any(trial.outcome is not Outcome.NOT_RUNNABLE for trial in stored):
            self._learn_stored(stored)
        before = self._store.reused(self._study_id)
        self._know([index for index in self.state.members if index in self._prepared.locks])
        new = self._reuse.look()
        self._learn_stored([*before, *new])
        if new:
            self._notify(events.Reused(len(new), tuple(self._store.origins(self._study_id))))
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
        self._learn_stored(new)
        self.state.elsewhere = Counter()
        for combination, number in self._sharing.claimed.items():
            if (index := self._group_of(combination)) is not None:
                self.state.elsewhere[index] += number
        return len(new)

    def _learn_stored(self, trials: Sequence[StoredTrial]) -> None:
        for trial in trials:
            index = self._group_of(trial.combination)
            if index is not None:
                self.state.seen.add(trial.lock_hash)
                self._note_way(index, trial.evidence, trial.signature, trial.trial_id)
                self._act(
                    self.state.learn(
                        index, trial.outcome, trial.evidence, duration=trial.duration, detail=trial.detail
                    )
                )

    def _group_of(self, combination: Combination) -> Index | None:
        """What stands for a stored combination; None where this command does not look at it."""
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
        # Solvers begin while the place where trials run may still be starting; what was begun knows more.
        if not self._begun:
            self._lock(self.state.decide(2).lock)
        try:
            self._runner = Runner(self._matrix, start(), lambda text: self._warn([text]))
        except StudyInterruptedError:
            self._sharing.close()
            return  # nothing ran, and the study ends as any other that was stopped
        self._locking.on_done = self._runner.executor.wake
        try:
            self._take_over()
            while True:
                self._decide(deadline)
                if not self._try_alone(deadline):
                    break
        finally:
            self._save_locked()
            self._sharing.close()
        if not self._stopped():
            self.state.check_anything_ran()

    def _take_over(self) -> None:
        """Claim the trials that were begun before the study was open; if that cannot be done, end them.

        All or none, whatever they did: of them nothing was looked at yet.
        """
        begun, self._begun = self._begun, {}
        if not begun:
            return
        tallies, only = self.state.tallies, self._only()
        fits = all(index in self.state.members and index not in self.state.aside for index in begun)
        fits = fits and not self.search.finished and (only is None or set(begun) <= set(only))
        fits = fits and all(tallies[index] == Tally() and not self.state.elsewhere[index] for index in begun)
        if not fits or not self._start([*begun], begun=begun):
            self._runner.executor.cancel()
        elif self.state.running:
            # They may have ended long ago: nothing is decided before that is known.
            self._handle(self._runner.wait(0.0, self._answers))

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
            self._settle()
            self._take_locks()
            if self._sharing.is_due:
                self.hear_others(elsewhere=False)
            self._sharing.renew(self._claims)
            self._bound_checks()
            self._show()
        return True

    def _bound_checks(self) -> None:
        """Say the answer as soon as it stands, and see that checking it further comes to an end."""
        if not isinstance(self.search, Search) or not self.search.answered:
            # A failure during the checks has opened the question again.
            self._check_until = None
            return
        now = self._clock()
        if self._check_until is None:
            seconds = max(CHECK_SECONDS, CHECK_SHARE * (now - self._began_at))
            self._check_until = now + seconds
            if self.search.checks_left:
                self._notify(events.Answered(self.document(), self.search.checks_left, seconds, self._axes))
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
        self._target.look()
        if not self._target.is_open:
            return self._where_ends_differ()
        bad_end = self._bad_end
        if bad_end is None or bad_end in self.state.aside:
            raise NoEnvironmentError(
                f"{self._matrix.path}: the bad end, whose failure the study is to look for, cannot be run",
                tried=self.state.aside[bad_end][1] if bad_end is not None else None,
                remedy="state another `bad`, or a `signature` instead of `from-bad-end`",
            )
        return {bad_end: sys.maxsize}

    def _where_ends_differ(self) -> Mapping[Index, int] | None:
        """Ends that have to fail more often before two kinds of failures are taken for two problems."""
        lacking = {end: _AT_EACH_END - self.state.tallies[end].bad for end in self._two_problems()}
        return {end: number for end, number in lacking.items() if number > 0} or None

    def _two_problems(self) -> tuple[Index, ...]:
        """Good and bad end where both have only failed, in ways that have nothing in common; else none."""
        if self._target.compares or self._ends is None:
            return ()
        if any(end in self.state.aside or not self._ways.get(end) for end in self._ends):
            return ()
        if any(self.state.tallies[end].good for end in self._ends):
            return ()
        good, bad = (set(self._ways[end]) for end in self._ends)
        return () if good & bad else self._ends

    def _part_of_another_problem(self) -> tuple[Index, ...]:
        """Where an answer stands, what fails beyond a pass and as the bad end never does, and that end.

        What was tried may not show whether something passes in between: then that is looked at first.
        """
        several = [place for place, axis in enumerate(self.grid.axes) if len(axis.values) > 1]
        if self._target.compares or self._ends is None or len(several) != 1 or not self._fails_in_kinds:
            return ()
        search = self.search
        if not isinstance(search, Search) or not search.answered or not search.verdict.certain:
            return ()
        place, tallies, (good_end, bad_end) = several[0], self.state.tallies, self._ends
        if self.grid.axes[place].direction is Direction.UNORDERED:
            return ()
        towards = 1 if good_end[place] > bad_end[place] else -1
        line = sorted(
            (one for one in self.state.members if one not in self.state.aside),
            key=lambda one: towards * one[place],
        )
        line = [one for one in line if towards * (one[place] - bad_end[place]) >= 0]
        tried = [n for n, one in enumerate(line) if tallies[one].bad or tallies[one].good]
        if any(tallies[line[n]].bad and not self._ways.get(line[n]) for n in tried):
            return ()
        ways = [{kind: way[0] for kind, way in self._ways.get(line[n], {}).items()} for n in tried]
        changes = [(tried[low], tried[high]) for low, high in where_kinds_change(ways)]
        if open_ := [change for change in changes if change[1] - change[0] > 1]:
            search.look_at(line[sum(open_[0]) // 2])
        if (other := another_problem(ways)) is None or line[tried[0]] != bad_end:
            return ()
        return line[tried[other]], bad_end

    @property
    def _fails_in_kinds(self) -> bool:
        """Whether failures of more than one kind were seen."""
        return len({kind for ways in self._ways.values() for kind in ways}) > 1

    def _settle(self) -> None:
        """Take the bad end's failure for the one that is looked for, once that is known to be another one.

        Raises:
            TargetSettledError: It was settled now.
        """
        pair = self._two_problems()
        if pair and min(self.state.tallies[end].bad for end in pair) < _AT_EACH_END:
            return
        pair = pair or self._part_of_another_problem()
        if not pair:
            return
        self._handle(self._runner.end())
        self.state.nothing_runs()
        (other, _), (told, (signature, trial_id)) = (next(iter(self._ways[one].items())) for one in pair)
        self._target.settle(signature, trial_id)
        judged = {
            trial.trial_id: Evidence.OTHER
            for trial in (*self._store.trials(self._study_id), *self._store.reused(self._study_id))
            if trial.evidence is Evidence.BAD and not matches(trial.signature, self._target.rule.signature)
        }
        self._store.judge_again(self._study_id, judged)
        good, bad = (self.grid.combination(one) for one in pair)
        wanted = f"`bad: {{signature: '{shown(signature)}'}}` in `trial`"
        text = (
            f"two failures that have nothing to do with each other: {good} fails as {other}, {bad} as {told}"
        )
        self._warn([f"{text}; this study looks for the latter, as {wanted} says from the start"])
        raise TargetSettledError

    def _note_way(self, index: Index, evidence: Evidence, signature: str, trial_id: str) -> None:
        """Remember how a combination fails: outcome and exception, and a trial that shows it."""
        if evidence is Evidence.BAD and signature:
            way = read_signature(signature).kind
            self._ways.setdefault(index, {}).setdefault(way, (signature, trial_id))

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
        if self._know(new) and (taken := self._reuse.look(new)):
            self._learn_stored(taken)
            self._notify(events.Reused(len(taken), tuple(self._store.origins(self._study_id))))

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

    def _start(
        self, chosen: Sequence[Index], *, alone: bool = False, begun: Mapping[Index, str] | None = None
    ) -> bool:
        """Claim trials and send them off; whether all of them are ours.

        Args:
            chosen: Their combinations.
            alone: Whether they must not share a GPU.
            begun: Ids of those that run already; unless all are ours, none is taken.
        """
        if not chosen:
            return True
        begun = begun or {}
        wants = [(begun.get(index) or uuid.uuid4().hex, self.grid.combination(index)) for index in chosen]
        decision = {
            "combinations": [combination.as_dict() for _, combination in wants],
            "after_trials": self.search.trials,
            "best": self.search.leading,
        }
        with self._store.together():
            self._save_locked()
            won = self._sharing.claim(wants, self._run_now(), ("ask", decision))
        if begun and not all(won):
            self._sharing.release([trial_id for (trial_id, _), ours in zip(wants, won, strict=True) if ours])
            return False
        for index, (trial_id, combination), ours in zip(chosen, wants, won, strict=True):
            if ours:
                lock = self._prepared.locks[index]
                self.state.started(trial_id, index, self._clock())
                if index in begun:
                    self._runner.take_over(trial_id)
                    self.state.begun(lock.content_hash)
                    self._runner.prepare(lock)
                else:
                    self._runner.submit(
                        trial_id, combination, lock, perturbation=self._perturbation, alone=alone
                    )
                if alone:
                    self._trials_alone.add(trial_id)
                self._notify(events.TrialStarted(trial_id, combination))
        return all(won)

    def _run_now(self) -> Counter[Combination]:
        """How many trials of each combination run."""
        running = Counter(self.state.running.values())
        return Counter({self.grid.combination(index): number for index, number in running.items()})

    def _claims(self) -> dict[str, Combination]:
        """What runs, as others are to know it."""
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
        for answer in answers:
            match answer:
                case TrialCompleted(record, build_seconds, notes):
                    self._warn(notes)
                    if record.trial_id in self.state.running:
                        recorded.append((self.state.ended(record.trial_id), record, build_seconds))
                case TrialLost(trial_id, reason, host, crowded):
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
                case PrefixReady(lock_hash, seconds, notes):
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
        judged: list[tuple[TrialRecord, Evidence, str]] = []
        spoilt = Counter(index for index in self.state.tallies if self.state.tallies[index].void)
        for index, record, _ in ended:
            evidence = self._target.judge(index, record, repeated=spoilt[index] > 0)
            spoilt[index] += evidence is Evidence.VOID
            judged.append((record, evidence, self._keys[index]))
        self._store.record_trials(self._study_id, judged)
        for (index, record, build_seconds), (_, evidence, _) in zip(ended, judged, strict=True):
            self._sharing.recorded(record.trial_id, record.combination)
            if build_seconds:
                self.state.build_seconds.add(build_seconds)
                self._record_build(record.lock_hash, build_seconds)
            self._notify(events.TrialFinished(record, evidence, build_seconds))
            self._note_way(index, evidence, record.signature, record.trial_id)
            self._act(
                self.state.learn(
                    index, record.outcome, evidence, duration=record.duration, detail=record.detail
                )
            )
            if record.trial_id in self._trials_alone and evidence in (Evidence.GOOD, Evidence.BAD):
                self._alone.heard(index, evidence)
                said = {"combination": record.combination.as_dict(), "evidence": str(evidence)}
                self._store.record_decision(self._study_id, ALONE, {**said, "trial": record.trial_id})
            if record.trial_id not in self._crowded:
                self.state.check(record, evidence)

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
        drawn = self.state.tallies if is_coarsened(self.search) else self._prepared.groups
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
        """What is known of a failure that nobody has seen yet: see `events.Progress.passing`."""
        tallies = self.state.tallies
        if self.state.hits or not tallies:
            return None
        end = self._bad_end if self._bad_end in tallies else max(tallies, key=lambda one: tallies[one].good)
        assert end is not None
        return self.grid.combination(end), tallies[end].good, self._matrix.file.search.min_crash_rate

    def _ends_after(self, now: float) -> tuple[int, float] | None:
        """What would end a study in which nothing fails; played seldom, and on small grids alone."""
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
