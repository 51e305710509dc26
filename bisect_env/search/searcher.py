"""Ask and tell: which combination to try next, and what is known by now.

Pure: no clock, no randomness, no I/O. The caller says what is pending and what an environment costs; the same
tells in any order give the same answers, so that a resumed study goes on as if it had never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Grid, Index
from bisect_env.search.acquisition import choose
from bisect_env.search.classes import Classes
from bisect_env.search.families import FloatArray
from bisect_env.search.posterior import Belief, Counts, update
from bisect_env.search.rates import RateGrid
from bisect_env.search.space import HypothesisSpace
from bisect_env.search.stopping import CAUTION, clean_trials, judge, quantile, required_confidence
from bisect_env.search.verdict import Answer, Status, Verdict, answer, capacity, entropy_bits

# How sure the prior must be of an end before trials go there first.
_END_CERTAINTY = 0.9
# Odds that a stated end is not as stated: people state what they saw, on another machine perhaps.
_STATED_END_DOUBT = 0.1
# How often the first bad combination must have failed: whoever reads "1 of 1" doubts it, and rightly.
_FAILURES = 2
_MOST_CANDIDATES = 10
# How often the bad end should have failed before the search leaves it, if it does not always fail.
_END_FAILURES = 3
_END_TRIALS = 180


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """When to stop.

    Attributes:
        confidence: Posterior that the answer must hold.
        min_crash_rate: Smallest crash rate that is looked for.
        max_trials: Counted trials after which the search ends whatever is known.
    """

    confidence: float = 0.95
    min_crash_rate: float = 0.02
    max_trials: int = 5000


class Search:
    """One question: where in the grid do trials begin to show the target?

    Args:
        grid: The lattice of combinations, with stated ends if there are any.
        groups: For each cell the cell that stands for it (combinations with one measurement share a group),
            missing for cells that cannot be run.
        settings: When to stop.
    """

    def __init__(
        self, grid: Grid, groups: Mapping[Index, Index], settings: SearchSettings | None = None
    ) -> None:
        self.settings = settings or SearchSettings()
        self._grid = grid
        self._space = HypothesisSpace(grid.shape, [axis.direction for axis in grid.axes])
        for end, is_bad in ((grid.good, False), (grid.bad, True)):
            if end is not None and end in groups:
                self._space.expect(groups[end], bad=is_bad, doubt=_STATED_END_DOUBT)
        self._rates = RateGrid.default(self.settings.min_crash_rate)
        self._counts = Counts(grid.shape, self._rates)
        self._group = np.full(grid.shape, -1, dtype=np.intp)
        for index, stands_for in groups.items():
            self._group[index] = np.ravel_multi_index(stands_for, grid.shape)
        # Trials that were under way when their combination was set aside are told all the same, and what was
        # counted there stays on record.
        self._stands_for = dict(groups)
        self._forget()

    # -- telling -----------------------------------------------------------------------------------------

    def tell(self, index: Index, *, hit: bool) -> None:
        """Count one trial of a combination: good or bad. Other outcomes and void trials are never told."""
        self._counts.add(self._standing_for(index), int(hit), 1)
        self._forget(classes=False)

    def set_aside(self, index: Index) -> None:
        """Nothing more can be learnt at this combination (unbuildable, skipped, always failing another way).

        Its whole group is asked no more; trials of it that were told, or still will be, keep counting.
        """
        if self._group[index] >= 0:
            self._group[self._group == self._group[index]] = -1
            self._forget()

    def _forget(self, *, classes: bool = True) -> None:
        for name in (
            "_belief",
            "_sure",
            "_required",
            "_clean",
            "verdict",
            *(("_classes", "_visible", "_ends") if classes else ()),
        ):
            self.__dict__.pop(name, None)

    def _standing_for(self, index: Index) -> Index:
        try:
            return self._stands_for[index]
        except KeyError:
            raise ValueError(f"combination {index} cannot be run") from None

    # -- what is known -----------------------------------------------------------------------------------

    @cached_property
    def _belief(self) -> Belief:
        return update(self._space, self._counts)

    @cached_property
    def _visible(self) -> NDArray[np.bool_]:
        """Cells that stand for a group that can be run."""
        flat = np.arange(self._group.size).reshape(self._group.shape)
        return np.asarray(self._group == flat)

    @cached_property
    def _classes(self) -> Classes:
        return Classes(self._space, self._visible)

    @property
    def trials(self) -> int:
        """Counted trials so far."""
        return int(self._counts.trials.sum())

    def counts(self, index: Index) -> tuple[int, int]:
        """Hits and counted trials of a combination (those of its whole group)."""
        cell = self._standing_for(index)
        return int(self._counts.hits[cell]), int(self._counts.trials[cell])

    def probability_bad(self) -> FloatArray:
        """Posterior that each combination is bad, shape of the grid."""
        return self._space.bad_mass(self._belief.hypotheses[:, None])[..., 0]

    # -- asking ------------------------------------------------------------------------------------------

    def ask(
        self,
        count: int,
        *,
        pending: Mapping[Index, int] | None = None,
        build_cost: Mapping[Index, float] | None = None,
    ) -> list[Index]:
        """Choose the next trials.

        Args:
            count: How many can start now.
            pending: Trials of each combination that run at this moment.
            build_cost: Price of each combination's environment in trials; missing = it exists.

        Returns:
            Cells that stand for their groups, `count` of them (fewer only when nothing can be run).
            A running or chosen trial counts as a pass that is still to come, which keeps parallel
            workers from all asking the same question.
        """
        if not self._visible.any():
            return []
        ahead = self._counts.copy()
        for index, running in (pending or {}).items():
            ahead.add(self._standing_for(index), 0, running)
        cost = np.zeros(self._grid.shape)
        for index, price in (build_cost or {}).items():
            if self._group[index] >= 0:
                cost[self._standing_for(index)] = price
        chosen: list[Index] = []
        while len(chosen) < count:
            belief = update(self._space, ahead) if chosen or pending else self._belief
            cell = self._next(ahead, belief, cost)
            chosen.append(cell)
            ahead.add(cell, 0, 1)
            cost[cell] = 0.0
        return chosen

    def _next(self, ahead: Counts, belief: Belief, cost: FloatArray) -> Index:
        return self._end_first(ahead, belief) or self._to_certify(ahead) or self._best(ahead, belief, cost)

    def _end_first(self, ahead: Counts, belief: Belief) -> Index | None:
        """A control at the good end, then the bad end until it shows the target or is doubted."""
        good, bad = self._ends
        if good is not None and ahead.trials[good] == 0:
            return good
        if bad is None or not self._more_at_bad_end(bad, ahead):
            return None
        doubted = float(self._space.bad_mass(belief.hypotheses[:, None])[(*bad, 0)]) < 0.5
        return None if doubted else bad

    def _more_at_bad_end(self, bad: Index, ahead: Counts) -> bool:
        """Whether the bad rate is still too little known to be worth searching with.

        Every later step is cheaper for knowing it: until the target showed anywhere, and at this end, unless
        each trial there showed it, `_END_FAILURES` times.
        """
        if not self._counts.hits.any():
            return True
        hits, trials = int(self._counts.hits[bad]), int(self._counts.trials[bad])
        return hits < _END_FAILURES and hits < trials and ahead.trials[bad] < _END_TRIALS

    @cached_property
    def _ends(self) -> tuple[Index | None, Index | None]:
        """The stated ends, else the cells of which the prior is sure."""
        prior = self._space.bad_mass(self._space.prior[:, None])[..., 0]
        lowest = np.where(self._visible, prior, np.inf)
        highest = np.where(self._visible, prior, -np.inf)
        good: Index | None = _position(lowest.argmin(), self._grid.shape)
        bad: Index | None = _position(highest.argmax(), self._grid.shape)
        good = good if good is not None and lowest[good] <= 1 - _END_CERTAINTY else None
        bad = bad if bad is not None and highest[bad] >= _END_CERTAINTY else None
        if self._grid.good is not None and self._group[self._grid.good] >= 0:
            good = self._standing_for(self._grid.good)
        if self._grid.bad is not None and self._group[self._grid.bad] >= 0:
            bad = self._standing_for(self._grid.bad)
        return good, bad

    def _to_certify(self, ahead: Counts) -> Index | None:
        """Once one answer is sure: the side of its boundary that was tried too little."""
        if not self._sure:
            return None
        verdict = self.verdict
        for cell, wanted in self._wanted(verdict.best):
            if ahead.trials[cell] < wanted:
                return cell
        return None

    def _wanted(self, best: Answer) -> list[tuple[Index, float]]:
        """Trials that each side of every boundary must have before the answer is confirmed."""
        wanted: list[tuple[Index, float]] = []
        pairs = [(b.bad, b.good) for b in best.boundaries]
        if not pairs and best.first_bad is not None and best.last_good is not None:
            pairs = [(best.first_bad, best.last_good)]
        for pair in pairs:
            bad, good = (self._standing_for(cell) for cell in pair)
            if self._counts.hits[bad] < _FAILURES:
                wanted.append((bad, math.inf))
            wanted.append((good, self._clean))
        return wanted

    @cached_property
    def _clean(self) -> int:
        """Passes that show a combination to be good, at a cautious estimate of the bad rate."""
        chances = self._belief.with_bad_rate.sum(axis=0) @ self._rates.kernel
        return clean_trials(quantile(self._rates.rates, chances, CAUTION))

    def _lacking(self, best: Answer) -> list[Index]:
        return [cell for cell, wanted in self._wanted(best) if self._counts.trials[cell] < wanted]

    def _best(self, ahead: Counts, belief: Belief, cost: FloatArray) -> Index:
        leading = float(self._classes.masses(belief.hypotheses).max())
        cell = choose(self._space, ahead, belief, cost, self._visible, leading)
        return _position(cell, self._grid.shape)

    # -- answering ---------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether more trials are not wanted: confirmed, or decided that nothing changes, or budget spent."""
        return self.trials >= self.settings.max_trials or not self._visible.any() or self._decided

    @property
    def _decided(self) -> bool:
        if self._ends_wrong():
            return True
        if not self._sure:
            return False
        verdict = self.verdict
        if verdict.status is Status.CONFIRMED or verdict.best.hypothesis.kind in ("never", "always"):
            return True
        return not verdict.best.boundaries and not self._lacking(verdict.best)

    @cached_property
    def _sure(self) -> bool:
        """Whether some answer holds the stated confidence; much cheaper than the whole verdict."""
        return bool(self._classes.masses(self._belief.hypotheses).max() >= self._required)

    @cached_property
    def _required(self) -> float:
        """Posterior at which an answer counts as sure."""
        bad_rate, _ = self._typical_rates()
        # The median: before many good trials the mean is made of backgrounds that nothing speaks for.
        chances = self._belief.with_background.sum(axis=0)
        return required_confidence(self.settings.confidence, bad_rate, quantile(self._rates.p0, chances, 0.5))

    def _typical_rates(self) -> tuple[float, float]:
        """Posterior means of the target rate of bad combinations and of good ones."""
        belief = self._belief
        bad_rate = float(belief.with_bad_rate.sum(axis=0) @ (self._rates.kernel @ self._rates.rates))
        return bad_rate, float(belief.with_background.sum(axis=0) @ self._rates.p0)

    @cached_property
    def verdict(self) -> Verdict:
        """The answer by now; a pure function of the counts."""
        belief = self._belief
        masses = self._classes.masses(belief.hypotheses)
        order = np.argsort(-masses, kind="stable")
        cut = int(np.searchsorted(np.cumsum(masses[order]), self.settings.confidence)) + 1
        shown = order[: min(cut, _MOST_CANDIDATES)]
        candidates = tuple(self._answer(int(c), float(masses[c])) for c in shown)
        best = candidates[0]
        # Posterior of each rate model, and of the best answer under it.
        sub = {}
        for sharing in (True, False):
            columns = (self._rates.spread == 0.0) == sharing
            joint = self._classes.masses(belief.with_bad_rate[:, columns].sum(axis=1))
            weight = float(joint.sum())
            under = joint / weight if weight > 0 else joint
            agrees = int(under.argmax()) == int(shown[0]) or weight < 1 - self.settings.confidence
            sub[sharing] = (float(under[shown[0]]), agrees)
        bad_rate, background = self._typical_rates()
        status, reason = judge(
            best,
            required=self._required,
            agreed=all(agrees for _, agrees in sub.values()),
            lacking=bool(self._lacking(best)),
        )
        left = entropy_bits(masses) / max(capacity(background, bad_rate), 1e-6)
        return Verdict(
            status=status,
            reason=reason,
            best=best,
            candidates=candidates,
            sharing=sub[True][0],
            differing=sub[False][0],
            bad_rate=bad_rate,
            background=background,
            ends_wrong=self._ends_wrong(),
            expected_left=0.0 if status is Status.CONFIRMED else left,
        )

    def _answer(self, number: int, probability: float) -> Answer:
        # Groups share their measurement, so that every member shows its group's counts.
        feasible = self._group >= 0
        flat = np.where(feasible, self._group, 0)
        return answer(
            self._classes.spokesman(number, self._group),
            probability,
            feasible,
            self._counts.hits.ravel()[flat],
            self._counts.trials.ravel()[flat],
        )

    def _ends_wrong(self) -> tuple[str, ...]:
        wrong = []
        bad = self.probability_bad()
        for name, end, is_bad in (("good", self._grid.good, False), ("bad", self._grid.bad, True)):
            if end is None or self._group[end] < 0:
                continue
            chance = float(bad[end])
            if (1 - chance if is_bad else chance) >= self.settings.confidence:
                wrong.append(name)
        return tuple(wrong)


def _position(flat: np.intp | int, shape: tuple[int, ...]) -> Index:
    return tuple(int(i) for i in np.unravel_index(int(flat), shape))
