"""The search that a study asks and tells: which combination to try next, and what is known so far.

Pure: no clock, no randomness, no I/O. The caller says what is pending and what an environment costs; the same
tells in any order give the same answers, so that a resumed study goes on as if it had never stopped.

How the question is put follows from the counts alone:

* As long as every combination that was tried always failed or always passed, the failure is taken to be
  *certain*, which most are, and one trial tells good from bad (`bisect.py`).
* Otherwise the hypotheses that change along each axis as its direction says are weighed (`question.py`),
  and, where the trials so far speak against that, those that may change more often (`history.py`).
* Where after half the trials that trying every combination would take none of them is sure, or where
  something else explains the counts far better, each combination is called good or bad by itself
  (`labels.py`) and those labels are bisected.

Once the answer stands (`answered`), it is checked: a look into the longest part that nobody tried, and the
last good combinations until a failure rate of `clean_rate` is excluded there (`checks.py`). The study is
`finished` after that, or at once with `quick`, or when `end_checks` was called. A failure during the checks
opens the question again.

What is asked may be fewer than there is room for, and none while trials are pending: a worker without a trial
that is worth its time rests. `set_aside` may be called at any time.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import numpy as np

from bisect_env.matrix.grid import AxisKind, Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.bisect import Bisection
from bisect_env.search.checks import Check, apart_checks, clean_checks, cleared, untested_checks
from bisect_env.search.families import FloatArray
from bisect_env.search.labels import chances, labels, usual_trials
from bisect_env.search.nonmonotone import RARE, Histories, histories
from bisect_env.search.plan import Plan
from bisect_env.search.question import Question
from bisect_env.search.rates import RateGrid
from bisect_env.search.stopping import FAILURES
from bisect_env.search.untested_intervals import untested_intervals
from bisect_env.search.verdict import Answer, Status, Verdict

__all__ = ["Search", "StudySearch"]

_BELIEVED = 0.5
"""Posterior from which on a history that is not monotone is searched for whatever else is known. As the prior
is 0.04 for an axis, it takes a Bayes factor of 24: *strong* evidence in the scale of Kass and Raftery."""
CERTAIN = 0.85
"""Prior that a failure is certain. Of twelve upgrade failures collected from issue trackers ten were."""
_USUAL_ERROR, _CERTAIN_ERROR, _UNCHECKED_ERROR, _DOUBTS = 0.05, 0.03, 0.006, 2
"""A failure that comes in half of all runs may look certain in the first eight trials. One trial more makes
that half as likely; where failures are flaky as much takes ten. So an answer about a certain failure is left
a part of the stated error, and of a smaller error an even smaller part; a small one where nothing is checked
once the answer stands."""
_BEYOND_HALVING = 3
"""Where nothing is checked, a change among n versions has an answer after ⌈log₂ n⌉ trials and these, whatever
the truth is: of a certain failure one more would seldom tell anything."""
_REPEATED = 2
"""How many of them are repetitions where many places were looked at at once."""
_SPARE = 6
"""Trials beyond one for each combination until which that is doubted."""
_LIKELY = 0.4
"""Chance of what a look may show from which on its consequences are prepared by trials."""
_UNSEEN = 7
"""Trials of a bad end that nobody stated before other combinations are tried, too, for any failure at all."""
_FAR_BETTER = 25.0
"""Log of the Bayes factor from which on some table must explain the counts better than the best rule."""
_MOST_SWEPT = 64
"""Combinations that are tried once each as long as nothing has failed."""


class StudySearch(Plan, Protocol):
    """A plan that searches a grid for an answer, with defaults for searches that do not check theirs."""

    @property
    def answered(self) -> bool:
        """Return whether the answer stands."""
        return self.finished

    @property
    def checks_left(self) -> int:
        """Return how many trials the checks of a standing answer still need."""
        return 0

    def end_checks(self) -> None:
        """Skip further checks: the search is finished as soon as the answer stands."""
        return

    def look_at(self, index: Index) -> None:
        """Add a combination to the checks of the answer, if this search makes checks."""
        return

    @property
    def verdict(self) -> Verdict:
        """Return the answer so far."""
        ...

    def counts(self, index: Index) -> tuple[int, int]:
        """Return hits and counted trials of a combination."""
        ...

    def probability_bad(self) -> FloatArray:
        """Return the probability that each combination is bad, shape of the grid."""
        ...


class Search:
    """A search for where in the grid trials begin to show the target.

    Args:
        grid: The lattice of combinations, with stated ends if there are any.
        groups: For each cell the cell that stands for it (combinations with one measurement share a group),
            missing for cells that cannot be run.
        limits: When to stop.
        quick: Whether the search ends as soon as the answer stands, without checks.
    """

    def __init__(
        self,
        grid: Grid,
        groups: Mapping[Index, Index],
        limits: SearchLimits | None = None,
        *,
        quick: bool = False,
    ) -> None:
        self.limits = limits or SearchLimits()
        self._quick = quick
        self._certain_error = _certain_error(self.limits.confidence, quick=quick)
        self._grid = grid
        self._narrow = Question(grid, groups, self.limits)
        # A look at a commit that was not tried costs a build.
        self._is_of_commits = any(axis.kind is AxisKind.COMMIT for axis in grid.axes)
        self._shape, self._directions = grid.shape, [axis.direction for axis in grid.axes]
        self._wide: tuple[Histories, Question] | None = None
        # What proves an answer is tried once it stands.
        self._narrow.proves_first = False
        self._checks_ended = quick
        self._doubted: Index | None = None
        narrow = self._narrow
        self._bisection = Bisection(
            *(grid, narrow.space, narrow.group),
            # What is left after the doubt that the failure is certain is still what was stated.
            self.limits.confidence / (1.0 - self._certain_error),
            confidence=self.limits.confidence,
            control=not quick,
        )

    @cached_property
    def _question(self) -> Question:
        """Return the question with the hypotheses that the counts call for: plain ones or wider histories."""
        narrow = self._narrow
        if not narrow.may_be_doubted:
            return narrow
        possible = histories(self._shape, self._directions, narrow.tried)
        if possible is None:
            return narrow
        limit = max(1.0 - self.limits.confidence, RARE) if narrow.is_confirmed else _BELIEVED
        return self._over(possible) if narrow.chance_not_monotone(possible) > limit else narrow

    def _over(self, possible: Histories) -> Question:
        """Return a copy of this question whose hypotheses may change more often. Cached."""
        if self._wide is None or self._wide[0] is not possible:
            self._wide = possible, self._narrow.over(possible)
        return self._wide[1]

    def _forget(self, *, classes: bool) -> None:
        for name in ("_question", "_certain", "_labelled", "_answer_stands", "verdict", "checks"):
            self.__dict__.pop(name, None)
        if self._wide is not None:
            self._wide[1].forget(classes=classes)

    # -- telling -----------------------------------------------------------------------------------------

    def tell(self, index: Index, *, hit: bool) -> None:
        """Count one trial of a combination, good or bad.

        Other outcomes and void trials must not be counted.
        """
        self.tell_counts(index, int(hit), 1)

    def tell_counts(self, index: Index, hits: int, trials: int) -> None:
        """Count several trials of a combination at once."""
        if trials:
            self._narrow.tell_counts(index, hits, trials)
            self._forget(classes=False)

    def can_be_told(self, index: Index) -> bool:
        """Return whether the combination was one that can be run when the search began."""
        return self._narrow.can_be_told(index)

    def set_aside(self, index: Index) -> None:
        """Exclude a combination: no more trials of it are possible. See `Tallies.set_aside`."""
        self._narrow.set_aside(index)
        self._bisection.forget()
        self._forget(classes=True)

    def end_checks(self) -> None:
        """Skip further checks: the search is finished as soon as the answer stands."""
        self._checks_ended = True

    def look_at(self, index: Index) -> None:
        """Add a combination to the checks of the answer, unless it was tried: it may not be bad."""
        self._doubted = index
        self.__dict__.pop("checks", None)

    # -- certain failures --------------------------------------------------------------------------------

    @cached_property
    def _certain(self) -> bool:
        """Return whether all trials agree with a certain failure, and one was seen or is expected next."""
        labels = self._narrow.unanimous()
        if labels is None:
            return False
        self._bisection.relabel(labels)
        if any(labels.values()):
            return True
        bad = self._bisection.ends[1]
        # Where nothing failed yet, a bad end that was not tried is expected to; without one, any rule is.
        if bad is not None:
            return bad not in labels
        found = self._bisection.found
        return found.how == "rule" and not found.settled and len(labels) < _MOST_SWEPT

    # -- flaky failures that no rule describes -----------------------------------------------------------

    @cached_property
    def _labelled(self) -> dict[Index, float] | None:
        """Return the probability that each combination is bad by itself.

        None unless the search uses labels.
        """
        narrow = self._narrow
        if self._certain or not narrow.total_hits:
            return None
        if sum(size > 1 for size in self._shape) < 2:
            return None
        chance: dict[Index, float] | None = None
        if self._question.finished:
            chance = chances(narrow.seen)
            if not self._speak_otherwise(chance):
                return None
        rates = narrow.typical_rates()
        everything = narrow.visible_count * usual_trials(*rates)
        if chance is None:
            if self.trials < everything / 2 and self._question.could_be_better() <= _FAR_BETTER:
                return None
            chance = chances(narrow.seen)
        self._bisection.relabel(labels(narrow.seen, chance, self._label_confidence, rates[0]))
        return chance

    @property
    def _label_confidence(self) -> float:
        return 1.0 - (1.0 - self.limits.confidence) / 3

    def _speak_otherwise(self, chance: Mapping[Index, float]) -> bool:
        """Return whether the trials of some combination contradict the answer that nothing changes.

        A rule may contradict more trials than that answer does, and then is no better.
        """
        verdict = self._question.verdict
        if verdict.ends_wrong or verdict.best.hypothesis.kind not in ("never", "always"):
            return False
        bad = verdict.best.hypothesis.kind == "always"
        return any((p < 0.5) is bad for p in chance.values())

    @property
    def _one_sided(self) -> list[Index]:
        """Return, if all labels are alike, the tried cells that may have the other label, likeliest first."""
        chance, known = self._labelled or {}, self._bisection.labels
        if len(set(known.values())) > 1:
            return []
        bad = any(known.values())
        other = {cell: 1.0 - p if bad else p for cell, p in chance.items() if cell not in known}
        may = [cell for cell, p in other.items() if p > 0.5]
        return sorted(may, key=lambda cell: (-other[cell], cell))

    def _labelled_cells(
        self, count: int, pending: Mapping[Index, int], only: Collection[Index] | None
    ) -> list[Index]:
        """Return trials of the combinations that need a label, as many of each as it probably needs."""
        usual = usual_trials(*self._narrow.typical_rates())
        chunk = max(1, usual // 2)
        waiting = [cell for cell, running in pending.items() if running >= chunk]
        wanted = [cell for cell in self._one_sided if cell not in waiting and (only is None or cell in only)]
        wanted = wanted or self._bisection.next(max(1, -(-count // chunk)), pending=waiting, only=only)
        chosen: list[Index] = []
        for cell in wanted:
            room = min(count - len(chosen), chunk - pending.get(cell, 0))
            chosen += [cell] * max(room, 0)
        return chosen

    def _certain_cells(
        self,
        count: int,
        pending: Mapping[Index, int],
        cost: FloatArray | None,
        only: Collection[Index] | None,
    ) -> list[Index]:
        """Return the next trials while failures look certain, so that one trial separates good from bad."""
        chosen = self._bisection.next(count, pending=pending, cost=cost, only=only)
        room = min(count, len(chosen) + self._room_beside_looks(pending))
        if len(chosen) < room:
            for cell, wanted in self._to_certify():
                lacking = wanted - self.counts(cell)[1] - pending.get(cell, 0)
                if only is None or cell in only:
                    chosen += [cell] * min(max(lacking, 0), room - len(chosen))
        if not chosen:
            repeats = self._repeats_beside(pending)
            chosen = [cell for cell in repeats if only is None or cell in only][:count]
        return chosen

    def _repeats_beside(self, pending: Mapping[Index, int]) -> list[Index]:
        """Return first bad combinations to repeat while the last open look is running.

        They belong to the answers that this look leaves possible, and `_to_certify` wants a second failure
        of them whatever the look shows. Repeating them now saves a round.
        """
        open_ = [cell for cell, running in pending.items() if running and cell not in self._bisection.labels]
        if self._quick or len(open_) != 1:
            return []
        chance = float(self._bisection.probability_bad()[open_[0]])
        likely = {True: chance, False: 1.0 - chance}
        wanted: list[Index] = []
        # Of equally likely ones that first which has failed already.
        for bad in sorted(likely, key=lambda bad: (-round(likely[bad], 6), bad)):
            if likely[bad] < _LIKELY:
                continue
            found = self._bisection.supposing({open_[0]: bad}).found
            first = found.answers[0].first_bad if found.settled else None
            if first is not None:
                cell = self._narrow.representative_of(first)
                lacking = FAILURES - self.counts(cell)[1] - pending.get(cell, 0)
                wanted += [cell] * max(lacking, 0)
        return wanted

    def _to_certify(self) -> list[tuple[Index, int]]:
        """Return combinations to try again before the answer stands, with the number of trials to reach."""
        found = self._bisection.found
        end = self._wrong_end()
        if end is not None:
            return [(end, FAILURES)]
        if not found.settled or found.untried:
            return []
        best = found.answers[0]
        if best.first_bad is None:
            return []
        bad_sides = (best.first_bad, *(b.bad for b in best.boundaries))
        sides = dict.fromkeys(map(self._narrow.representative_of, bad_sides))
        # All that will be wanted if failures stay certain, so that workers need not wait for one another.
        trials = {cell: self.counts(cell)[1] for cell in sides}
        wanted = {cell: FAILURES for cell in sides if trials[cell] < FAILURES}
        passes: dict[Index, int] = {}
        while True:
            fail = sum(n - trials[cell] for cell, n in wanted.items())
            more = fail + sum(n - self.counts(cell)[1] for cell, n in passes.items())
            failures = int(self._narrow.total_hits) + fail
            doubt, doubtful = self._doubts(failures, passes)
            if doubtful is None or self._is_sure_if_certain(best.probability, doubt, self.trials + more):
                return [*wanted.items(), *passes.items()]
            # One more failure speaks against all that is in doubt, one more pass against the most doubtful.
            once_more = {**passes, doubtful: passes.get(doubtful, self.counts(doubtful)[1]) + 1}
            if self._doubts(failures + 1, passes)[0] < self._doubts(failures, once_more)[0]:
                least = min(sides, key=lambda cell: wanted.get(cell, trials[cell]))
                wanted[least] = wanted.get(least, trials[least]) + 1
            else:
                passes = once_more

    def _is_sure_if_certain(self, probability: float, doubt: float, trials: int) -> bool:
        """Return whether an answer stands even if the failure may be flaky and only look certain.

        Args:
            probability: Probability of the answer if the failure is certain.
            doubt: From `_doubts`.
            trials: Number of counted trials by then.
        """
        if trials >= self._narrow.visible_count + _SPARE:
            return probability >= self.limits.confidence * (1.0 + doubt)
        is_usual = 1.0 - self.limits.confidence >= _USUAL_ERROR - 1e-9
        if is_usual and self._quick and self._bisection.changes_once:
            # That a stated good end passed says nothing of what lies before it.
            looks, apart = self._bisection.looks, len(self._bisection.labels) - self._bisection.looks
            enough = math.ceil(math.log2(max(self._narrow.visible_count, 2))) + _BEYOND_HALVING
            # More than one worker looks at alone.
            at_once = looks > enough - _REPEATED
            return trials - apart >= (looks + _REPEATED if at_once else enough)
        return (1.0 - self._certain_error) * (1.0 + doubt) <= 1.0

    def _wrong_end(self) -> Index | None:
        """Return the stated good end if it failed."""
        end = self._grid.good
        if end is None or not self._narrow.can_run(end):
            return None
        cell = self._narrow.representative_of(end)
        return cell if self._bisection.labels.get(cell) else None

    @property
    def _certain_probability(self) -> tuple[float, Index | None]:
        """Return the probability of the answer if failures may be flaky, and the most doubtful good cell.

        Combinations that passed may be bad if the failure is not certain. With the prior `CERTAIN` that it
        is, and rates r equally likely on a log scale else, k failures of bad ones and n passes of bad ones
        weigh

            Z(k, n) = CERTAIN · [n = 0] + (1 − CERTAIN) · mean over r of r^k (1 − r)^n

        and every rule that calls bad whatever failed, and combinations besides that passed n times
        together, counts with Z(k, n) / Z(k, 0) against those that agree with all that was seen.
        """
        best = self._bisection.found.answers[0].probability
        doubt, doubtful = self._doubts(int(self._narrow.total_hits))
        return best / (1.0 + doubt), doubtful

    def _doubts(self, failures: int, passes: Mapping[Index, int] | None = None) -> tuple[float, Index | None]:
        """Return the weight of all rivals relative to the answer, and the good cell that most call bad.

        Args:
            failures: k; see `_certain_probability`.
            passes: n of some cells, where it should differ from the counts.
        """
        rivals = self._bisection.rivals
        if not len(rivals.weight):
            return 0.0, None
        given = passes or {}
        counted = np.array([given.get(cell, self.counts(cell)[1]) for cell in rivals.cells], dtype=np.float64)
        least = self.limits.min_crash_rate
        sure = _flaky_weights(failures, np.zeros(1), least)[0]
        weights = rivals.weight * _flaky_weights(failures, rivals.calls @ counted, least) / sure
        return float(weights.sum()), rivals.cells[int((weights @ rivals.calls).argmax())]

    # -- asking ------------------------------------------------------------------------------------------

    def ask(
        self,
        count: int,
        *,
        pending: Mapping[Index, int] | None = None,
        build_cost: Mapping[Index, float] | None = None,
        only: Collection[Index] | None = None,
        worth: float = 0.0,
    ) -> list[Index]:
        """Choose the next trials, at most `count`; fewer, or none, if no more are worth their time.

        Args:
            count: How many can start now.
            pending: Trials of each combination that run at this moment.
            build_cost: Price of each combination's environment in trials; missing = it exists.
            only: Cells to choose from because the others have to wait; None for all.
            worth: With `only`: minimum score of the best of them, as a share of the best score of all.

        Returns:
            Cells that stand for their groups; a cell appears once per trial.
        """
        if count <= 0 or not self._narrow.visible_count:
            return []
        running = self._narrow.by_cell(pending or {})
        if self._answer_stands:
            return self._checking(count, running, only)
        if self._labelled is not None:
            return self._labelled_cells(count, running, only)
        if not self._certain:
            if not self._narrow.total_hits:
                count = min(count, self._room_beside_looks(running))
            if count <= 0:
                return []
            swept = self._sweep(count, running, build_cost, only)
            return swept or self._question.ask(
                count, pending=pending, build_cost=build_cost, only=only, worth=worth
            )
        cost = self._narrow.prices(build_cost) if build_cost else None
        return self._certain_cells(count, running, cost, only)

    def _checking(
        self, count: int, pending: Mapping[Index, int], only: Collection[Index] | None
    ) -> list[Index]:
        chosen: list[Index] = []
        for check in self.checks:
            if only is None or check.cell in only:
                wanted = check.wanted - pending.get(check.cell, 0)
                chosen += [check.cell] * min(max(wanted, 0), count - len(chosen))
        return chosen

    def _room_beside_looks(self, pending: Mapping[Index, int]) -> int:
        """Return how many repetitions may start while a combination is tried for the first time.

        That combination may be the only bad one, or change the answer. Repetitions meanwhile would use up
        the budget in which a certain failure has an answer: one trial per combination and `_SPARE` more.
        """
        if not any(n and not self.counts(cell)[1] for cell, n in pending.items()):
            return sys.maxsize
        return max(0, self._narrow.visible_count + _SPARE - self.trials - sum(pending.values()))

    def _sweep(
        self,
        count: int,
        pending: Mapping[Index, int],
        build_cost: Mapping[Index, float] | None,
        only: Collection[Index] | None,
    ) -> list[Index]:
        """Return untried combinations as long as nothing failed, because the bad end may not be bad.

        This is done only if no bad end was stated. Environments are built only as fast as trials have paid
        for them.
        """
        if only is not None or self._narrow.total_hits or self._grid.bad is not None:
            return []
        labels = self._narrow.unanimous() or {}
        bad = self._bisection.ends[1]
        left = min(_MOST_SWEPT, self._narrow.visible_count) - len(labels)
        prices = list((build_cost or {}).values())
        price = float(np.median(prices)) if prices else 0.0
        if left <= 0:
            return []
        chosen: list[Index] = []
        if bad is not None:
            tried = self.counts(bad)[1] + pending.get(bad, 0)
            chosen = [bad] * min(count, max(0, math.ceil(_UNSEEN + 2 * price) - tried))
        if len(chosen) < count and price * len(labels) <= 2 * self.trials:
            self._bisection.relabel(labels)
            chosen += self._bisection.scattered(min(count - len(chosen), left), pending)
        return chosen

    def foresee(
        self, pending: Mapping[Index, int], build_cost: Mapping[Index, float] | None = None
    ) -> list[Index]:
        """Return the combinations that would be asked for either result of the pending trials.

        Args:
            pending: Trials of each combination that run at this moment.
            build_cost: As in `ask`.

        Returns:
            Cells whose environments are worth making meanwhile, the likeliest first.
        """
        if not self._narrow.visible_count:
            return []
        running = self._narrow.by_cell(pending)
        if self._answer_stands:
            return self._checking(1, running, None)
        if self._certain or self._labelled is not None:
            return self._bisection.foresee(running, self._narrow.prices(build_cost) if build_cost else None)
        return self._question.foresee(pending, build_cost)

    # -- answering ---------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Return whether no more trials are wanted: the answer is checked, or the budget is spent."""
        if self.trials >= self.limits.max_trials or not self._narrow.visible_count:
            return True
        return self._answer_stands and (self._checks_ended or not self.checks)

    @property
    def answered(self) -> bool:
        """Return whether the answer stands; later trials only check it."""
        return self._answer_stands

    @cached_property
    def _answer_stands(self) -> bool:
        if self._labelled is not None:
            found = self._bisection.found
            return found.settled and not found.untried and not self._one_sided
        if not self._certain:
            return self._question.finished
        found = self._bisection.found
        if self._wrong_end() is not None:
            return not self._to_certify_lacks()
        if not any(self._bisection.labels.values()):
            return False
        return found.settled and not found.untried and not self._to_certify_lacks()

    def _to_certify_lacks(self) -> bool:
        return any(self.counts(cell)[1] < wanted for cell, wanted in self._to_certify())

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """Return the checks that a standing answer still needs, in order; empty before it stands."""
        if not self._answer_stands:
            return ()
        verdict = self.verdict
        if verdict.status is not Status.CONFIRMED:
            return ()
        can_run = self._narrow.group >= 0
        wanted: list[Check] = []
        if not self._certain and self._labelled is None:
            wanted = self._proof(verdict)
        elif self._certain and not self._is_of_commits:
            wanted = untested_checks(verdict.best, self._grid, can_run, self.counts)
            doubted = self._doubted
            if doubted is not None and can_run[doubted] and not self.counts(doubted)[1]:
                wanted.insert(0, Check(doubted, 1, "untested"))
        if self._labelled is not None:
            wanted = apart_checks(verdict.best, self.counts, self.limits, len(self._labelled))
        wanted += clean_checks(verdict.best, can_run, self.counts, self.limits)
        found: dict[Index, Check] = {}
        for check in wanted:
            cell = self._narrow.representative_of(check.cell)
            before = found.get(cell)
            if before is None or before.wanted < check.wanted:
                found[cell] = Check(cell, check.wanted, check.why)
        return tuple(found.values())

    def _proof(self, verdict: Verdict) -> list[Check]:
        """Return the checks that prove a flaky failure's answer: the trials that each side still lacks."""
        sides = {b.bad: "first bad" for b in verdict.best.boundaries}
        sides |= {b.good: "last good" for b in verdict.best.boundaries}
        usual = max(1, round(1.0 / max(verdict.bad_rate, 1e-6)))
        found = []
        for cell, trials in self._question.proof(verdict.best):
            lacking = usual if math.isinf(trials) else math.ceil(trials - self.counts(cell)[1])
            if lacking > 0:
                found.append(Check(cell, lacking, sides.get(cell, "untested")))
        return found

    @property
    def checks_left(self) -> int:
        """Return how many trials the checks still need."""
        return 0 if self._checks_ended else sum(check.wanted for check in self.checks)

    @cached_property
    def verdict(self) -> Verdict:
        """Return the answer so far; a pure function of the counts."""
        if self._labelled is not None:
            return self._labelled_verdict(self._labelled)
        return self._certain_verdict() if self._certain else self._with_cleared(self._question.verdict)

    def _labelled_verdict(self, chance: Mapping[Index, float]) -> Verdict:
        found = self._bisection.found
        best = found.answers[0]
        stands = self._answer_stands
        bad_rate, background = self._narrow.rates_under(best.hypothesis)
        sides = [cell for b in best.boundaries for cell in (b.bad, b.good)]
        sides += [cell for cell in (best.first_bad, best.last_good) if cell is not None and not sides]
        surely = [chance.get(self._narrow.representative_of(cell), 0.5) for cell in dict.fromkeys(sides)]
        sure = math.prod(max(p, 1.0 - p) for p in surely) if found.settled else best.probability
        best = replace(best, probability=sure)
        status, reason = _certain_status(found.how, best, stands)
        if status is Status.CONFIRMED:
            reason = f"probability {sure:.3f}; {_LABELLED.get(found.how, _LABELLED['pair'])}"
        left = found.bits * usual_trials(bad_rate, background)
        verdict = Verdict(
            status=status,
            reason=reason,
            best=best,
            candidates=(best,),
            sharing=sure,
            differing=sure,
            bad_rate=bad_rate,
            background=background,
            expected_left=0.0 if stands else left,
            expected_environments=0 if stands else math.ceil(found.bits - 1e-9),
            against_nothing=self._against_nothing(),
            monotone=found.how in ("rule", "none"),
        )
        return self._with_cleared(verdict)

    def _with_cleared(self, verdict: Verdict) -> Verdict:
        if verdict.status is not Status.CONFIRMED:
            return verdict
        can_run = self._narrow.group >= 0
        return replace(verdict, cleared=cleared(verdict.best, can_run, self.counts, self.limits))

    def _certain_verdict(self) -> Verdict:
        found = self._bisection.found
        best = found.answers[0]
        stands = self._answer_stands
        bad_rate, background = self._narrow.rates_under(best.hypothesis)
        chance, _ = self._certain_probability if found.settled else (best.probability, None)
        best = replace(best, probability=chance)
        status, reason = _certain_status(found.how, best, stands)
        wrong = ("good",) if stands and self._wrong_end() is not None else ()
        if stands and not wrong and self._bad_end_passes(best):
            wrong = ("bad",)
        verdict = Verdict(
            status=status,
            reason=reason,
            best=best,
            candidates=(best, *found.answers[1:]),
            sharing=chance,
            differing=chance,
            bad_rate=bad_rate,
            background=background,
            ends_wrong=wrong,
            expected_left=0.0 if stands else found.bits + len(self._to_certify()) + len(found.untried),
            expected_environments=0 if stands else math.ceil(found.bits - 1e-9) + len(found.untried),
            against_nothing=self._against_nothing(),
            monotone=found.how in ("rule", "none"),
            untested=untested_intervals(best, self._grid, self._narrow.group >= 0, self.counts, 0.999),
            certain=True,
        )
        return self._with_cleared(verdict)

    def _bad_end_passes(self, best: Answer) -> bool:
        """Return whether the stated bad end only passed and is good by an answer."""
        end = self._grid.bad
        if end is None or self._narrow.group[end] < 0:
            return False
        hits, trials = self.counts(end)
        return trials > 0 and not hits and not best.hypothesis.is_bad(end)

    def _against_nothing(self) -> float | None:
        """Return the decimal logarithm of the Bayes factor against a common rate: 1 / ∫ r^k (1 − r)^n dr."""
        hits, trials = self._narrow.total_hits, self.trials
        if not hits or hits == trials:
            return None
        log_beta = math.lgamma(hits + 1) + math.lgamma(trials - hits + 1) - math.lgamma(trials + 2)
        return -log_beta / math.log(10.0)

    @property
    def trials(self) -> int:
        """Return the number of counted trials so far."""
        return self._narrow.trials

    def counts(self, index: Index) -> tuple[int, int]:
        """Return hits and counted trials of a combination's group."""
        return self._narrow.counts(index)

    def probability_bad(self) -> FloatArray:
        """Return the posterior that each combination is bad, shape of the grid."""
        if self._labelled is not None or self._certain:
            return self._bisection.probability_bad()
        return self._question.probability_bad()

    @property
    def rates(self) -> RateGrid:
        """Return the prior for rates."""
        return self._narrow.rates


def _certain_error(confidence: float, *, quick: bool) -> float:
    """Return the share of the stated error allowed to answers about failures that only look certain."""
    most = _UNCHECKED_ERROR if quick else _CERTAIN_ERROR
    return most * min((1.0 - confidence) / _USUAL_ERROR, 1.0) ** _DOUBTS


def _flaky_weights(failures: int, passes: FloatArray, least: float) -> FloatArray:
    """Return Z(k, n) of `Search._certain_probability` for each n."""
    rates = np.geomspace(least, 1.0, 60)
    flaky = (rates**failures * (1.0 - rates) ** passes[:, None]).mean(axis=1)
    return np.asarray(CERTAIN * (passes == 0) + (1.0 - CERTAIN) * flaky, dtype=np.float64)


_HOW = {
    "rule": "every bad combination failed and every good one passed",
    "changes": "the history changes more often than its direction says; every bad combination failed and "
    "every good one passed",
    "frontier": "what is bad lies beyond a staircase; every bad combination failed and every good one passed",
    "pair": "no simple rule describes what fails; these two neighbours differ, whatever the rest does",
}


_LABELLED = {
    "rule": "a rule describes the combinations that were called good or bad",
    "frontier": "what is bad lies beyond a staircase",
    "pair": "no simple rule describes what fails; these two neighbours differ, whatever the rest does",
}


def _certain_status(how: str, best: Answer, stands: bool) -> tuple[Status, str]:
    if best.hypothesis.kind == "never":
        return Status.NONE, "no failure was seen"
    if best.hypothesis.kind == "always":
        return Status.NONE, (
            "always bad: every combination that was tried shows the failure"
            if stands
            else "no combination was seen to pass"
        )
    if stands and not best.boundaries:
        return Status.LIKELY, (
            "of combinations that can be run, no two that differ on one axis alone lie on both sides"
        )
    if stands:
        return Status.CONFIRMED, _HOW[how]
    if best.probability <= 0.5:
        return Status.NONE, "no answer is likely enough yet"
    return Status.LIKELY, "both sides of the boundary, or versions far from it, need more trials"
