"""Run the search of a study, and report its progress."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bisect_env.answers.conclusion import verdict_document
from bisect_env.answers.remedies import Asked
from bisect_env.answers.verdict_document import VerdictDocument, calls_bad
from bisect_env.engine import events
from bisect_env.engine.alone import ALONE, Alone
from bisect_env.engine.document import axis_infos
from bisect_env.engine.locking import Locking
from bisect_env.engine.runner import TrialRunner
from bisect_env.engine.series import RunSetup
from bisect_env.engine.settling import CheckTime, is_announced, only_trials
from bisect_env.matrix.grid import Combination, Index
from bisect_env.matrix.signatures import shown
from bisect_env.search.searcher import Search
from bisect_env.search.study_search import StudySearch
from bisect_env.search.verdict import Status
from bisect_env.storage.entries import StoredTrial
from bisect_env.storage.weighing import digest_of

SHOW_EVERY = 0.2
"""Seconds between two progress events."""
SAVE_EVERY = 5.0
"""Seconds between two stored intermediate verdicts, for users who look at a running study."""


class StudyRunner(TrialRunner):
    """A runner of the search of one study, until it is finished, its budget is spent, or the user stops it.

    Args:
        setup: What is run, and where it is recorded; `make_plan` must return a search.
        locking: Locks the combinations of the study.
        is_sure: Whether the checks of the answer have no time limit.

    Attributes:
        plan: The search, which chooses trials and gives the verdict.
    """

    plan: StudySearch

    def __init__(self, setup: RunSetup, locking: Locking, *, is_sure: bool) -> None:
        super().__init__(setup, locking, max_trials=setup.matrix.file.search.max_trials)
        self._axes = axis_infos(setup.matrix, self.grid)
        self._trials_alone = {one.get("trial") for one in self._store.payloads(self._study_id, ALONE)}
        self._alone = Alone(setup.matrix.file.trial.gpus)
        self._checks = CheckTime(is_sure=is_sure)
        self._durations: dict[str, float] = {}
        self._shown_at = self._saved_at = float("-inf")
        self._announced: object = None

    # -- before and after ----------------------------------------------------------------------------------

    def document(self) -> VerdictDocument:
        """Return the present verdict of the search as a document that can be stored."""
        document = verdict_document(self.grid, self.plan, self.state.missing())
        if (why := self._alone.why_not(self.plan)) is not None:
            document = document.model_copy(update={"status": Status.LIKELY.value, "reason": why})
        return document

    def stored_document(self) -> VerdictDocument:
        """Return the present verdict with a digest of the trials that it rests on, to be stored."""
        digest = digest_of(self._trials.everything())
        return self.document().model_copy(update={"weighed": digest})

    @property
    def finished(self) -> bool:
        """Return whether no more trials are needed, including those that check the result."""
        return self.plan.finished and not self._is_in_doubt() and not self._wanted_alone(1)

    @property
    def has_answered(self) -> bool:
        """Return whether the search has a result now, or had one earlier while this command ran.

        A result does not count while the study may have met two problems.
        """
        return (self._checks.has_stood or self.plan.answered) and not self._is_in_doubt()

    def tried(self, axis: str, verdict: VerdictDocument) -> list[tuple[str, str, str]]:
        """Return the results of all values of one axis, with the other axes as in the first bad combination.

        Args:
            axis: Name of the axis.
            verdict: A verdict with a first bad combination.

        Returns:
            For each value: the value, `bad`, `good` or `skip`, and a remark.
        """
        first = verdict.first_bad or {}
        is_bad = calls_bad(verdict)
        place = next(i for i, one in enumerate(self.grid.axes) if one.name == axis)
        found = []
        missing = self.state.missing()
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
        if not trial.reused:
            self._durations[trial.trial_id] = trial.duration
        if trial.trial_id in self._trials_alone:
            self._alone.count(index, trial.evidence, trial.outcome)

    def _begin_again(self) -> None:
        problems = self._trials.judge.two_problems if self._basis[0] != self._trials.target else None
        if problems is not None and not problems.lacking:
            signature = shown(problems.signature)
            asked = Asked.of(self._matrix.path, self._matrix.file.axes)
            setting = asked.setting(f"bad: {{signature: '{signature}'}}", "trial")
            self._session.warn(
                f"two failures that have nothing to do with each other: {problems.other} fails as "
                f"{problems.other_kind}, {problems.bad} as {signature}; this study looks for the latter, as "
                f"{setting} says from the start"
            )
        self._alone = Alone(self._matrix.file.trial.gpus)
        self._checks.has_stood = False
        self._announced = None
        super()._begin_again()

    # -- what is tried ---------------------------------------------------------------------------------------

    def _only(self) -> Mapping[Index, int] | None:
        return only_trials(self._matrix, self._prepared, self.state, self.plan, self._trials.judge)

    def _wants_more(self) -> bool:
        return super()._wants_more() or (self._may_go_on and self._is_in_doubt())

    def _asked_next(self) -> Collection[Index]:
        doubtful = self._only() if self._is_in_doubt() else None
        return super()._asked_next() or list(doubtful or ())

    def _is_in_doubt(self) -> bool:
        """Return whether more failures are needed to decide if the script has one problem or two.

        The search may already have an answer, which takes two problems for one. Returns False if the budget
        of trials is spent.
        """
        if not self._trials_left or self._trials.judge.target.is_open:
            return False
        return self._only() is not None

    @property
    def _trials_left(self) -> int:
        """Return how many more trials may be counted before the study's budget of trials is spent."""
        return max(0, self._matrix.file.search.max_trials - self.plan.trials)

    def _wanted_alone(self, places: int) -> list[Index]:
        """Return which trials on unshared GPUs are needed next; see `Alone.wanted`."""
        wanted = self._alone.wanted(self.plan, places)
        return [index for index in wanted if index not in self.state.aside][: self._trials_left]

    def _go_further(self) -> bool:
        return self._try_alone() or super()._go_further()

    def _try_alone(self) -> bool:
        """Repeat trials of the last good and first bad combination on GPUs that no other trial uses.

        Returns whether any trial was wanted and there was time for it.
        """
        chosen = self._wanted_alone(self._slots_alone)
        if not chosen or self._stopped() or not self._session.is_in_time:
            return False
        self._start(chosen, alone=True)
        # No other trial is running. The marks of trials that never end have no effect.
        for trial_id, combination in self._claims().items():
            self._trials_alone.add(trial_id)
            said = {"combination": combination.as_dict(), "trial": trial_id}
            self._store.record_decision(self._study_id, ALONE, said)
        self._wind_down(waits=True)
        return True

    def _calls_bad(self, index: Index) -> bool:
        return bool(self.plan.probability_bad()[index] > 0.5)

    # -- while it runs ---------------------------------------------------------------------------------------

    def _after_step(self) -> None:
        if not self._is_in_doubt() and self._checks.look(self.plan, self._time_of_trials):
            document, left = self.document(), self.plan.checks_left
            pair = (document.first_bad, document.last_good)
            if is_announced(document, left) and pair != self._announced:
                # An answer that a check made uncertain for a moment is no news.
                self._announced = pair
                self._notify(events.Answered(document, left, self._checks.seconds, self._axes))
        self._show()

    @property
    def _time_of_trials(self) -> float:
        """Return the seconds that the trials of the study took, if as many ran at a time as can."""
        return sum(self._durations.values()) / self._slots

    def _show(self) -> None:
        now = self._clock()
        if now >= self._saved_at + SAVE_EVERY:
            # The first one is stored when there is something to tell.
            if self._saved_at > 0 and self.plan.trials:
                self._store.update_study(self._study_id, verdict=self.stored_document())
            self._saved_at = now
        if now < self._shown_at + SHOW_EVERY:
            return
        self._shown_at = now
        bad = self.plan.probability_bad()
        # Of a large matrix, only the combinations that were tried are drawn.
        is_staged = isinstance(self.plan, Search) and self.plan.is_staged
        drawn = self.state.counts if is_staged else self._prepared.groups
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
        """Return a combination that has only passed so far, to tell the user how rare a failure would be.

        Used for messages before the first failure. The result also contains its number of passes, and the
        smallest failure rate that the study searches for. Returns None once a failure was seen.
        """
        counts = self.state.counts
        if self.state.hits or not counts:
            return None
        bad = None if self.grid.bad is None else self._prepared.groups.get(self.grid.bad)
        end = bad if bad in counts else max(counts, key=lambda one: counts[one].good)
        assert end is not None
        return self.grid.combination(end), counts[end].good, self._matrix.file.search.min_crash_rate
