"""Runs the search of a study, and says how far it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bisect_env.answers.verdict_document import VerdictDocument, calls_bad
from bisect_env.engine import events
from bisect_env.engine.alone import ALONE, Alone
from bisect_env.engine.document import axis_infos, verdict_document
from bisect_env.engine.locking import Locking
from bisect_env.engine.reuse import trial_key
from bisect_env.engine.runner import Conditions, Runner
from bisect_env.engine.session import Session
from bisect_env.engine.settling import CheckTime, is_announced, look_between_kinds, only_trials
from bisect_env.matrix.grid import Combination, Index
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.signatures import shown
from bisect_env.search.coarsening import CoarsenedSearch
from bisect_env.search.goals import Goal, search_towards
from bisect_env.search.searcher import StudySearch
from bisect_env.search.verdict import Status
from bisect_env.storage.entries import StoredTrial
from bisect_env.trials.records import NONE, Machine, Perturbation, TrialRecord

SHOW_EVERY = 0.2
"""Seconds between two pictures of where the search stands."""
SAVE_EVERY = 5.0
"""Seconds between two verdicts stored on the way, for those who look at a running study."""


class StudyRunner(Runner):
    """A runner of one study until it is decided, its budget is spent, or the user stops it.

    Args:
        matrix: What is asked.
        locking: Locks its combinations.
        session: As for `Runner`.
        study_id: The open study.
        machines: As for `Runner`.
        goal: What the study wants to know.
        quick: Whether to end as soon as the answer stands, without checks.
        sure: Whether the checks take as long as they need.
        perturbation: Circumstances under which all trials run.
        user: As for `Runner`.
        began: When the command began with the study, by the clock of the session; None for now.

    Attributes:
        plan: The search, which chooses and answers.
    """

    plan: StudySearch

    def __init__(
        self,
        matrix: Matrix,
        locking: Locking,
        session: Session,
        study_id: str,
        *,
        machines: Collection[Machine] = (),
        goal: Goal = Goal.FIRST_BAD,
        quick: bool = False,
        sure: bool = False,
        perturbation: Perturbation = NONE,
        user: str | None = None,
        began: float | None = None,
    ) -> None:
        prepared = locking.prepared

        def conditions(index: Index) -> Conditions:
            return Conditions(trial_key(matrix, prepared, index, perturbation), None, perturbation)

        super().__init__(
            matrix,
            locking,
            lambda: search_towards(goal, prepared.grid, prepared.groups, matrix.file.search, quick=quick),
            session,
            study_id,
            conditions=conditions,
            machines=machines,
            user=user,
            max_trials=matrix.file.search.max_trials,
        )
        self._axes = axis_infos(self.grid)
        self._trials_alone = {
            one.payload["trial"] for one in session.store.decisions(study_id) if one.kind == ALONE
        }
        self._alone = Alone(matrix.file.trial.gpus)
        self._checks = CheckTime(session.clock() if began is None else began, is_sure=sure)
        self._shown_at = self._saved_at = float("-inf")

    # -- before and after ----------------------------------------------------------------------------------

    @property
    def missing(self) -> dict[Index, tuple[str, str]]:
        """Return status and reason of every combination that is known not to be runnable."""
        return self.state.missing()

    def document(self) -> VerdictDocument:
        """Return the verdict by now."""
        document = verdict_document(self.grid, self.plan, self.missing)
        if (why := self._alone.why_not(self.plan)) is not None:
            document = document.model_copy(update={"status": Status.LIKELY.value, "reason": why})
        return document

    @property
    def finished(self) -> bool:
        """Return whether no more trials are wanted."""
        return self.plan.finished and not self._alone.wanted(self.plan, 1)

    @property
    def has_answered(self) -> bool:
        """Return whether the answer stands, or stood while this command ran and checks have doubted it."""
        return self._checks.has_stood or self.plan.answered

    def tried(self, axis: str, verdict: VerdictDocument) -> list[tuple[str, str, str]]:
        """Return which values of an axis were tried, with all others as in the first bad combination.

        Args:
            axis: Its name.
            verdict: With a first bad combination.

        Returns:
            Value, verdict and reason of each.
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
            counts = self.state.counts.get(self._prepared.groups.get(index, index))
            if counts is not None and counts.counted:
                said = "bad" if is_bad({**first, axis: value}) else "good"
                found.append((value, said, f"({counts.bad} of {counts.counted} trials failed)"))
            elif index in missing:
                found.append((value, "skip", f"({missing[index][0]})"))
        return found

    def _observe(self, index: Index, trial: StoredTrial) -> None:
        if trial.trial_id in self._trials_alone:
            self._alone.count(index, trial.evidence, trial.outcome)

    def _begin_again(self) -> None:
        problems = self._trials.judge.two_problems if self._basis[0] != self._trials.target else None
        if problems is not None and not problems.lacking:
            signature = shown(problems.signature)
            text = (
                f"two failures that have nothing to do with each other: {problems.other} fails as "
                f"{problems.other_kind}, {problems.bad} as {signature}; this study looks for the latter, as "
                f"`bad: {{signature: '{signature}'}}` in `trial` says from the start"
            )
            self._warn([text])
        self._alone = Alone(self._matrix.file.trial.gpus)
        self._checks.has_stood = False
        super()._begin_again()

    # -- what is tried ---------------------------------------------------------------------------------------

    def _only(self) -> Mapping[Index, int] | None:
        return only_trials(self._matrix, self.grid, self._prepared.groups, self.state, self._trials.judge)

    def _go_further(self) -> bool:
        return self._try_alone() or super()._go_further()

    def _try_alone(self) -> bool:
        """Try both sides of the boundary without other trials on the GPU; return whether any trial ran."""
        chosen = self._alone.wanted(self.plan, self._sender.places_alone)
        if not chosen or self._stopped() or not self._session.is_in_time:
            return False
        self._start(chosen, alone=True)
        while self.state.running and not self._stopped():
            self._handle(self._sender.wait())
            self._sharing.renew(self._claims)
            self._show()
        self._wind_down()
        return True

    def _send(self, index: Index, trial_id: str, combination: Combination, *, alone: bool) -> None:
        super()._send(index, trial_id, combination, alone=alone)
        if alone:
            self._trials_alone.add(trial_id)

    def _recorded(self, record: TrialRecord) -> None:
        if record.trial_id in self._trials_alone:
            said = {"combination": record.combination.as_dict(), "trial": record.trial_id}
            self._store.record_decision(self._study_id, ALONE, said)

    # -- while it runs ---------------------------------------------------------------------------------------

    def _after_step(self) -> None:
        if (between := look_between_kinds(self.grid, self.state, self.plan, self._trials.judge)) is not None:
            self.plan.look_at(between)
        if self._checks.look(self.plan, self._clock()):
            document, left = self.document(), self.plan.checks_left
            if is_announced(document, left):
                self._notify(events.Answered(document, left, self._checks.seconds, self._axes))
        self._show()

    def _show(self) -> None:
        now = self._clock()
        if now >= self._saved_at + SAVE_EVERY:
            # The first one is stored when there is something to tell.
            if self._saved_at > 0 and self.plan.trials:
                self._store.save_verdict(self._study_id, self.document())
            self._saved_at = now
        if now < self._shown_at + SHOW_EVERY:
            return
        self._shown_at = now
        bad = self.plan.probability_bad()
        # Of a large matrix what was tried is drawn.
        drawn = self.state.counts if isinstance(self.plan, CoarsenedSearch) else self._prepared.groups
        shown_now: list[tuple[Combination, float]] = [
            (self.grid.combination(index), float(bad[index])) for index in sorted(drawn)
        ]
        self._notify(
            events.Progress(
                self.plan.trials,
                self.state.hits,
                dict(self._run_now()),
                self.document(),
                tuple(shown_now),
                {
                    self.grid.combination(index): (counts.bad, counts.counted)
                    for index, counts in self.state.counts.items()
                },
                self._only_passing(),
                self._axes,
                is_certain=self._matrix.file.search.crash_rate == 1.0,
            )
        )

    def _only_passing(self) -> tuple[Combination, int, float] | None:
        """Return combination, passes and rate while no failure was seen: see `events.Progress.passing`."""
        counts = self.state.counts
        if self.state.hits or not counts:
            return None
        bad = None if self.grid.bad is None else self._prepared.groups.get(self.grid.bad)
        end = bad if bad in counts else max(counts, key=lambda one: counts[one].good)
        assert end is not None
        return self.grid.combination(end), counts[end].good, self._matrix.file.search.min_crash_rate
