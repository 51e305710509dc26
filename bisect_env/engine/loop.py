"""The loop of one study: ask → submit → record → tell → stop.

A trial is committed to the database before the search hears of it, so that `kill -9` at any instant loses
nothing but trials that were still running. Resuming is replaying: the search is told what the database has.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any

from bisect_env.cluster.protocol import (
    BuildFailed,
    Completion,
    Executor,
    PrefixReady,
    TrialCompleted,
    TrialLost,
)
from bisect_env.engine import events
from bisect_env.engine.asking import Asker
from bisect_env.engine.builds import Builds
from bisect_env.engine.document import verdict_document
from bisect_env.engine.prepare import Prepared
from bisect_env.engine.reuse import Reuse, trial_key
from bisect_env.engine.rules import (
    BUILDS_BEFORE_UNBUILDABLE,
    build_cost,
    in_flight,
    says_bad,
)
from bisect_env.engine.sharing import Sharing
from bisect_env.engine.specs import allowed_sources, lost_record, target_of
from bisect_env.engine.standing import Standing, gist
from bisect_env.engine.target import StudyTarget
from bisect_env.errors import NoEnvironmentError
from bisect_env.matrix.grid import Combination, Index
from bisect_env.matrix.load import Matrix
from bisect_env.search.every import AnySearch, SearchAll, is_zoomed
from bisect_env.search.searcher import SearchSettings
from bisect_env.search.zoom import search_for
from bisect_env.storage.records import BUILD_FAILED, BUILT, CombinationStatus, StoredTrial
from bisect_env.storage.store import Store
from bisect_env.trials.records import NONE, Evidence, Machine, Outcome, Perturbation, TrialRecord

SAVE_EVERY = 5.0
"""Seconds between two verdicts stored on the way, for those who look at a running study."""
PATIENCE = 3.0
"""How long to wait for running trials once the answer is there, in mean durations of a trial."""
CANCEL_GRACE = 30.0
"""Seconds for cancelled trials to be answered."""
LOOK = 0.5
"""Seconds between two looks at the budget and at Ctrl-C while trials run."""
_CLAIMS = 4
"""How often to ask again at once when other commands claim faster."""
_PAUSE = 0.02
"""Seconds, growing with each attempt, that let two commands fall out of step."""


class StudyLoop:
    """Runs one study until it is decided, its budget is spent, or somebody stops it.

    Args:
        matrix: What is asked.
        prepared: Its combinations, locked.
        store: Where everything is written.
        study_id: The open study.
        notify: Hears of everything that happens.
        clock: Seconds that only grow.
        stopped: Looked at between steps; true ends the study in an orderly way.
        machines: Classes of machines on which trials will run: trials that other studies recorded there
            under the same keys are reused. None reuses nothing.
        every_corner: Whether to go on to further failing corners once one is confirmed.
        perturbation: Circumstances under which all trials run.
    """

    def __init__(
        self,
        matrix: Matrix,
        prepared: Prepared,
        store: Store,
        study_id: str,
        *,
        notify: Callable[[events.Event], None],
        clock: Callable[[], float] = time.monotonic,
        stopped: Callable[[], bool] = lambda: False,
        machines: Collection[Machine] = (),
        every_corner: bool = False,
        perturbation: Perturbation = NONE,
    ) -> None:
        self._matrix = matrix
        self._prepared = prepared
        self.grid = prepared.grid
        self._store = store
        self._study_id = study_id
        self._notify = notify
        self._clock = clock
        self._stopped = stopped
        self._bad_end = None if self.grid.bad is None else prepared.groups.get(self.grid.bad)
        wanted = matrix.file.trial.bad.signature
        self._target = StudyTarget(target_of(matrix), wanted, store, study_id, self._bad_end)
        self._members: defaultdict[Index, list[Index]] = defaultdict(list)
        for index, stands_for in prepared.groups.items():
            self._members[stands_for].append(index)
        settings = matrix.file.search
        self.search: AnySearch = (SearchAll if every_corner else search_for)(
            self.grid,
            prepared.groups,
            SearchSettings(
                settings.confidence,
                settings.min_crash_rate,
                settings.max_trials,
                clean_rate=settings.clean_rate,
                crash_rate=settings.crash_rate,
            ),
        )
        self._state = Standing()
        self._sharing = Sharing(store, study_id, clock=clock)
        self._builds = Builds(prepared.locks, allowed_sources(matrix))
        self._asker = Asker(
            matrix, prepared, self.search, self._sharing, self._builds, self._members, notify, perturbation
        )
        self._keys = {index: trial_key(matrix, prepared, index, perturbation) for index in self._members}
        self._reuse = Reuse(store, study_id, self._keys, prepared, self._target, machines)

    # -- before and after ----------------------------------------------------------------------------------

    @property
    def missing(self) -> dict[Index, tuple[str, str]]:
        """Status and reason of every combination that cannot be run."""
        return self._state.missing(self._prepared, self._members)

    def document(self) -> dict[str, Any]:
        """The verdict by now."""
        return verdict_document(self.grid, self.search, self.missing)

    def replay(self) -> int:
        """Tell the search what the database has already.

        Returns:
            Number of stored trials.
        """
        stored = self._sharing.news()
        # A study that could run its command nowhere was stopped for that; now it may be mended.
        if any(trial.outcome is not Outcome.NOT_RUNNABLE for trial in stored):
            self._learn_stored(stored)
        before = self._store.reused(self._study_id)
        new = self._reuse.look()
        self._learn_stored([*before, *new])
        if new:
            self._notify(events.Reused(len(new), tuple(self._store.origins(self._study_id))))
        for row in self._store.combinations(self._study_id):
            index = self._prepared.groups.get(self.grid.index(row.combination))
            if (
                row.status == CombinationStatus.UNBUILDABLE
                and index is not None
                and index not in self._state.aside
            ):
                self._put_aside(index, "env-unbuildable", row.reason)
        return len(stored)

    def hear_others(self, *, elsewhere: bool = True) -> int:
        """Learn what other commands have found out meanwhile about the same study: it is one study.

        Args:
            elsewhere: Whether to look at other studies as well.

        Returns:
            Number of trials that were news.
        """
        new = [*self._sharing.news(), *(self._reuse.look() if elsewhere else ())]
        self._learn_stored(new)
        return len(new)

    def _learn_stored(self, trials: Sequence[StoredTrial]) -> None:
        voids = self._state.voids_in_a_row
        for trial in trials:
            index = self._prepared.groups.get(self.grid.index(trial.combination))
            if index is not None:
                self._builds.seen.add(trial.lock_hash)
                self._learn(index, trial.outcome, trial.evidence, trial.duration, trial.detail)
        self._state.voids_in_a_row = voids

    def run(self, executor: Executor) -> None:
        """Go on until nothing more is to be learnt.

        Args:
            executor: Where trials run; the caller closes it.

        Raises:
            NoEnvironmentError: Nothing can be run.
            InfrastructureError: Too many trials in a row were spoilt, or the cluster is lost.
            UsageError: The command cannot be run in any combination tried.
        """
        self._asker.executor = executor
        budget = self._matrix.file.search.budget
        deadline = None if budget is None else self._clock() + budget
        try:
            while self._wants_more(deadline):
                self._work(deadline)
                # What still ran may have changed the answer, which then is not the answer yet.
                self._wind_down()
                self.hear_others()
                if not self._asker.running and not self.search.ask(1):
                    break
        finally:
            self._sharing.close()
        if not self.search.trials and not self._stopped():
            self._state.check_anything_built(len(self._members))

    def _work(self, deadline: float | None) -> None:
        while self._wants_more(deadline):
            waits = self._fill()
            if not self._asker.running and not waits:
                return
            self._take(LOOK)
            if self._sharing.is_due:
                self.hear_others(elsewhere=False)
            self._sharing.renew(self._asker.claims())
            self._report_progress()

    def _fill(self) -> bool:
        """Start as many trials as there is room for; whether there is something to wait for but trials."""
        state = self._state
        free = in_flight(self._asker.executor.slots, state.trial_seconds.value) - len(self._asker.running)
        price = build_cost(state.build_seconds.value, state.trial_seconds.value)
        for attempt in range(_CLAIMS):
            if free <= 0 or self.search.finished:
                break
            asked = self._asker.fill(free, price, only=self._only())
            free -= asked.started
            if not asked.lost:
                return bool(self._builds.under_way)
            # Others are faster: what they did decides what is worth asking now.
            self._sharing.renew(self._asker.claims(), now=True)
            self.hear_others(elsewhere=False)
            time.sleep(_PAUSE * attempt)
        else:
            return True
        return bool(self._builds.under_way)

    def _only(self) -> Index | None:
        """The one combination to try while nobody knows which failure is meant; None for all."""
        self._target.look()
        if not self._target.is_open:
            return None
        bad_end = self._bad_end
        if bad_end is None or bad_end in self._state.aside:
            raise NoEnvironmentError(
                f"{self._matrix.path}: the bad end, whose failure the study is to look for, cannot be run",
                tried=self._state.aside[bad_end][1] if bad_end is not None else None,
                remedy="state another `bad`, or a `signature` instead of `from-bad-end`",
            )
        return bad_end

    def _wants_more(self, deadline: float | None) -> bool:
        in_time = deadline is None or self._clock() < deadline
        return in_time and not self.search.finished and not self._stopped()

    def _take(self, timeout: float) -> None:
        for completion in self._asker.executor.wait(timeout):
            self._handle(completion)

    def _wind_down(self) -> None:
        """Let trials that are about to end do so, then end the others.

        Ending them all at once would favour quick outcomes: a hang takes longer than a pass.
        """
        patience = self._clock() + PATIENCE * (self._state.trial_seconds.value or 0.0)
        while self._asker.running and self._clock() < patience and not self._stopped():
            self._take(min(LOOK, max(0.0, patience - self._clock())))
        self._asker.executor.cancel()
        patience = self._clock() + CANCEL_GRACE
        while self._asker.running and self._clock() < patience:
            for completion in self._asker.executor.wait(LOOK):
                if isinstance(completion, TrialCompleted):
                    self._handle(completion)
                elif not isinstance(completion, PrefixReady):
                    self._asker.running.pop(completion.trial_id, None)
        self._sharing.renew(self._asker.claims(), now=True)

    # -- learning ------------------------------------------------------------------------------------------

    def _handle(self, completion: Completion) -> None:
        match completion:
            case TrialCompleted(record, build_seconds, notes):
                index = self._asker.running.pop(record.trial_id)
                for note in notes:
                    self._notify(events.Warned(note))
                self._record(index, record, build_seconds)
            case PrefixReady(lock_hash, build_seconds, notes):
                self._builds.hear(completion)
                for note in notes:
                    self._notify(events.Warned(note))
                if build_seconds:
                    self._state.build_seconds.add(build_seconds)
                    members = self._builds.combinations(lock_hash, self._members)
                    built = tuple(self.grid.combination(index) for index in members)
                    self._notify(events.Built(lock_hash, built, build_seconds))
                    self._record_build(lock_hash, build_seconds)
            case BuildFailed(trial_id, lock_hash, message):
                self._builds.hear(completion)
                failure = {"lock": lock_hash, "reason": gist(message)}
                self._store.record_decision(self._study_id, BUILD_FAILED, failure)
                if trial_id:
                    self._asker.running.pop(trial_id)
                    self._sharing.release([trial_id])
                self._build_failed(self._builds.combinations(lock_hash, self._members), completion)
            case TrialLost(trial_id, reason, host):
                index = self._asker.running.pop(trial_id)
                combination = self.grid.combination(index)
                lock_hash = self._prepared.locks[index].content_hash
                if host:
                    self._state.tallies[index].lost_on.add(host)
                self._record(index, lost_record(trial_id, combination, lock_hash, reason, host), 0.0)

    def _record_build(self, lock_hash: str, seconds: float) -> None:
        self._store.record_decision(self._study_id, BUILT, {"lock": lock_hash, "seconds": seconds})

    def _record(self, index: Index, record: TrialRecord, build_seconds: float) -> None:
        tally = self._state.tallies[index]
        evidence = self._target.judge(index, record, repeated=tally.void > 0)
        self._store.record_trial(self._study_id, record, evidence, trial_key=self._keys[index])
        self._sharing.recorded(record.trial_id, record.combination)
        if build_seconds:
            self._state.build_seconds.add(build_seconds)
            self._record_build(record.lock_hash, build_seconds)
        self._notify(events.TrialFinished(record, evidence, build_seconds))
        if evidence is Evidence.VOID:
            self._state.last_void = f"{record.outcome}: {record.detail}"
        self._learn(index, record.outcome, evidence, record.duration, record.detail)
        self._state.check_runnable(record, self._matrix, len(self._members))
        self._state.check_infrastructure()

    def _learn(
        self, index: Index, outcome: Outcome, evidence: Evidence, duration: float, detail: str
    ) -> None:
        state = self._state
        tally = state.tallies[index]
        tally.count(evidence)
        state.voids_in_a_row = state.voids_in_a_row + 1 if evidence is Evidence.VOID else 0
        tally.not_runnable += outcome is Outcome.NOT_RUNNABLE
        if index in state.aside:
            return
        if (bad := says_bad(evidence)) is not None:
            state.trial_seconds.add(duration)
            self.search.tell(index, hit=bad)
        if (why := tally.why_aside()) is not None:
            self._put_aside(index, "set-aside", f"{outcome}: {detail}; {why}" if tally.skip else why)
        elif (lost := tally.many_lost()) is not None:
            self._warn_once(f"lost-{index}", f"{self.grid.combination(index)}: {lost}")
        elif tally.other >= 3 and tally.other > tally.good + tally.bad:
            self._warn_once(
                f"other-{index}",
                f"{self.grid.combination(index)} often fails in another way ({outcome}); "
                "that can hide the answer",
            )

    def _build_failed(self, indices: Sequence[Index], failure: BuildFailed) -> None:
        if failure.transient:
            combination = self.grid.combination(indices[0])
            self._state.last_void = f"building {combination}: {gist(failure.message)}"
            self._state.voids_in_a_row += 1
            self._warn_once(f"build-{indices[0]}", f"{self._state.last_void}; it is tried again")
            self._state.check_infrastructure()
            return
        for index in indices:
            tally = self._state.tallies[index]
            tally.failed_builds += 1
            if tally.failed_builds >= BUILDS_BEFORE_UNBUILDABLE and index not in self._state.aside:
                self._put_aside(index, "env-unbuildable", failure.message)

    def _put_aside(self, index: Index, status: str, reason: str) -> None:
        self._state.aside[index] = (status, reason)
        self.search.set_aside(index)
        members = tuple(self.grid.combination(member) for member in self._members[index])
        unbuildable = status == Outcome.ENV_UNBUILDABLE
        stored = CombinationStatus.UNBUILDABLE if unbuildable else CombinationStatus.SET_ASIDE
        for combination in members:
            self._store.set_combination(self._study_id, combination, stored, reason)
        self._notify(events.SetAside(members, status, reason))

    # -- telling --------------------------------------------------------------------------------------------

    def _warn_once(self, key: str, text: str) -> None:
        if key not in self._state.warned:
            self._state.warned.add(key)
            self._notify(events.Warned(text))

    def _report_progress(self) -> None:
        bad = self.search.probability_bad()
        # Of a large matrix what was tried is drawn.
        drawn = self._state.tallies if is_zoomed(self.search) else self._prepared.groups
        running = Counter(self.grid.combination(i) for i in self._asker.running.values())
        shown: list[tuple[Combination, float]] = [
            (self.grid.combination(index), float(bad[index])) for index in sorted(drawn)
        ]
        self._notify(
            events.Progress(
                self.search.trials, self._state.hits, dict(running), self.document(), tuple(shown)
            )
        )
