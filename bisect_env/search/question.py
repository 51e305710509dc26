"""Asks one question of a space of hypotheses: what to try next, and what is known so far. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.acquisition import ONE, choose, information
from bisect_env.search.families import Family, FloatArray
from bisect_env.search.goodness_of_fit import log10_bayes_factor, unexplained
from bisect_env.search.knowledge import Knowledge
from bisect_env.search.nonmonotone import DOUBT, could_be_better
from bisect_env.search.posterior import Belief
from bisect_env.search.stopping import (
    CAUTION,
    FAILURES,
    clean_trials,
    judge,
    quantile,
    required_confidence,
)
from bisect_env.search.tallies import Counts, position
from bisect_env.search.untested_intervals import checks, passes, untested_intervals
from bisect_env.search.verdict import Answer, Status, Verdict, answer, capacity, entropy_bits

# How sure the prior must be of an end before trials go there first.
_END_CERTAINTY = 0.9
_MOST_CANDIDATES = 10
# How often the bad end should have failed before the search leaves it, if it does not always fail.
_END_FAILURES = 3
_END_TRIALS = 180
# Before "never" or "always", combinations spread over the whole lattice are tried at least once each.
_SPREAD = 5
# Share of the bad rate at which the good end may fail.
_CONTROL = 0.5
# How often the good end is tried before an answer is confirmed, where fewer passes would show nothing.
_CONTROLS = 8
# Combinations among which the trials of one call are shared out, at most.
_CHOICES = 8
# How far apart chances of being bad are that tell of other things; and of the passes that clear a combination
# the part that it gets at a time: where failures are rare the best one stays the best for several trials.
_APART = 0.3
_OF_CLEAN = 4
# Pending cells whose hit is thought through: each costs an update of the posterior.
_FORESEEN = 3


class Question(Knowledge):
    """A search for where in the grid trials begin to show the target, under one set of hypotheses.

    Args:
        grid: The lattice of combinations, with stated ends if there are any.
        groups: For each cell the cell that stands for it (combinations with one measurement share a group),
            missing for cells that cannot be run.
        limits: When to stop.
        families: Value sets, one family per axis, instead of those that belong to the axes' directions.

    Attributes:
        proves_first: Whether both sides of the boundary need the trials of `proof` before the answer stands;
            otherwise the caller checks the answer afterwards.
    """

    proves_first = True

    def __init__(
        self,
        grid: Grid,
        groups: Mapping[Index, Index],
        limits: SearchLimits | None = None,
        *,
        families: Sequence[Family] | None = None,
    ) -> None:
        self.limits = limits or SearchLimits()
        super().__init__(
            grid,
            groups,
            min_rate=self.limits.min_crash_rate,
            stated_rate=self.limits.crash_rate,
            families=families,
        )

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
        """Choose the next trials.

        Args:
            count: How many can start now.
            pending: Trials of each combination that run at this moment.
            build_cost: Price of each combination's environment in trials; missing = it exists.
            only: Cells to choose from because the others have to wait; None for all.
            worth: With `only`: minimum score of the best of them, as a share of the best score of all.

        Returns:
            Cells that stand for their groups, `count` of them (fewer only when nothing can be run, or no cell
            of `only` is worth it).
            A running or chosen trial counts as a future pass, which keeps parallel workers from all trying
            the same cell.
        """
        if not self.visible.any():
            return []
        ahead = self.seen.copy()
        for index, running in (pending or {}).items():
            ahead.add(self.representative_of(index), 0, running)
        cost = self.prices(build_cost)
        belief = self._believe(ahead) if pending else self._belief
        chosen: list[Index] = []
        while len(chosen) < count:
            room = count - len(chosen)
            first = self._end_first(ahead, belief) or self._to_certify(ahead)
            if first is not None and (only is None or first in only):
                # What else they should do is known without these trials.
                shares = {first: min(room, -(-count // 2))}
            elif only is None:
                shares = self._shared_out(room, ahead, belief, cost)
            else:
                cell = self._best_of(only, ahead, belief, worth)
                shares = {} if cell is None else {cell: room}
            if not shares:
                break
            for cell, share in shares.items():
                chosen += [cell] * share
                ahead.add(cell, 0, share)
                cost[cell] = 0.0
        return chosen

    def _shared_out(self, room: int, ahead: Counts, belief: Belief, cost: FloatArray) -> dict[Index, int]:
        """Return how many trials to give to the best cell and, if there is room, to other informative cells.

        Computing another posterior for each choice would take too long. Instead, the other cells are those
        whose probability of being bad differs: cells that are bad together tell much the same.

        Args:
            room: Trials to share out.
            ahead: Counts so far, including trials under way.
            belief: The posterior given these counts, or part of them.
            cost: Price of each environment in trials, shape of the lattice.
        """
        best, score, bad = self._best(ahead, belief, cost)
        each = max(1, min(-(-room // _CHOICES), self._clean), self._clean // _OF_CLEAN)
        shares = {best: min(each, room)}
        last, left = best, room - shares[best]
        while left:
            score = score * np.minimum(np.abs(bad - bad[last]) / _APART, 1.0)
            if score.max() <= 0:
                shares[last] += left
                break
            last = position(int(score.argmax()), self._grid.shape)
            shares[last] = shares.get(last, 0) + min(each, left)
            left -= min(each, left)
        return shares

    def foresee(
        self, pending: Mapping[Index, int], build_cost: Mapping[Index, float] | None = None
    ) -> list[Index]:
        """Return the cells that would be asked next if a pending trial showed the target.

        The cell most likely to be bad comes first. `ask` returns the cells for the case that all pending
        trials pass. Both together are the environments worth building while those trials run.

        Args:
            pending: Trials of each combination that run at this moment.
            build_cost: As in `ask`.
        """
        if not self.visible.any():
            return []
        cost = self.prices(build_cost)
        bad = self.probability_bad()
        cells = sorted(
            {self.representative_of(index) for index in pending}, key=lambda cell: (-bad[cell], cell)
        )
        wanted: list[Index] = []
        for cell in cells[:_FORESEEN]:
            ahead = self.seen.copy()
            ahead.add(cell, 1, 1)
            wanted.append(self._next(ahead, self._believe(ahead), cost))
        return list(dict.fromkeys(wanted))

    def _next(self, ahead: Counts, belief: Belief, cost: FloatArray) -> Index:
        first = self._end_first(ahead, belief) or self._to_certify(ahead)
        return self._best(ahead, belief, cost)[0] if first is None else first

    def _end_first(self, ahead: Counts, belief: Belief) -> Index | None:
        """Return the good end if it is untried, else the bad end until it fails or is doubted, else None."""
        good, bad = self._ends
        if good is not None and ahead.trials[good] == 0:
            return good
        if bad is None or not self._more_at_bad_end(bad, ahead):
            return None
        doubted = float(self._space.bad_mass(belief.hypotheses[:, None])[(*bad, 0)]) < 0.5
        return None if doubted else bad

    def _more_at_bad_end(self, bad: Index, ahead: Counts) -> bool:
        """Return whether the bad end needs more trials because the bad rate is too uncertain.

        Knowing the rate makes every later step cheaper. More trials are wanted until the target has been
        seen anywhere. Then they are wanted only if a trial of this end passed, until `_END_FAILURES` of
        them failed or `_END_TRIALS` of them were run.
        """
        if not self.seen.hits.any():
            return True
        hits, trials = int(self.seen.hits[bad]), int(self.seen.trials[bad])
        return hits < _END_FAILURES and hits < trials and ahead.trials[bad] < _END_TRIALS

    def forget(self, *, classes: bool = True) -> None:
        """Drop cached results, including those of this subclass."""
        super().forget(classes=classes)
        for name in ("_sure", "_required", "_clean", "verdict", *(("_ends", "_spread") if classes else ())):
            self.__dict__.pop(name, None)

    @cached_property
    def _ends(self) -> tuple[Index | None, Index | None]:
        """Return the stated ends, or else the cells that the prior is sure of."""
        prior = self._space.bad_mass(self._space.prior[:, None])[..., 0]
        lowest = np.where(self.visible, prior, np.inf)
        highest = np.where(self.visible, prior, -np.inf)
        good: Index | None = position(lowest.argmin(), self._grid.shape)
        bad: Index | None = position(highest.argmax(), self._grid.shape)
        good = good if good is not None and lowest[good] <= 1 - _END_CERTAINTY else None
        bad = bad if bad is not None and highest[bad] >= _END_CERTAINTY else None
        if self._grid.good is not None and self.group[self._grid.good] >= 0:
            good = self.representative_of(self._grid.good)
        if self._grid.bad is not None and self.group[self._grid.bad] >= 0:
            bad = self.representative_of(self._grid.bad)
        return good, bad

    def _to_certify(self, ahead: Counts) -> Index | None:
        """Return, once one answer is sure, a cell that still lacks trials to prove it; else None."""
        if not self._sure:
            return None
        verdict = self.verdict
        for cell, wanted in self._wanted(verdict.best):
            if ahead.trials[cell] < wanted:
                return cell
        return None

    def _wanted(self, best: Answer) -> list[tuple[Index, float]]:
        """Return cells with the number of trials that each must have before the answer stands."""
        if best.hypothesis.kind == "never":
            return [(cell, 1) for cell in self._spread]
        if best.hypothesis.kind == "always":
            # Where failures are frequent, a combination that passed is not yet one that fails as well.
            enough = passes(self.typical_rates()[0]) or 1
            return [(cell, 1 if self.seen.hits[cell] else enough) for cell in self._spread]
        return self.proof(best) if self.proves_first else []

    def proof(self, best: Answer) -> list[tuple[Index, float]]:
        """Return the trials that each side of every boundary must have; infinite until it has failed enough.

        The first bad combination must have failed and the last good one passed. A control and the middle
        of each long untested interval must have passed, too, where that is cheap.
        """
        wanted: list[tuple[Index, float]] = []
        pairs = [(b.bad, b.good) for b in best.boundaries]
        if not pairs and best.first_bad is not None and best.last_good is not None:
            pairs = [(best.first_bad, best.last_good)]
        for pair in pairs:
            bad, good = (self.representative_of(cell) for cell in pair)
            if self.seen.hits[bad] < FAILURES:
                wanted.append((bad, math.inf))
            wanted.append((good, self._clean))
        end = self._ends[0]
        if end is not None and not best.hypothesis.is_bad(end):
            hits = float(self.seen.hits[end])
            # A control that failed as often as bad combinations do is none until it passes, too; and one
            # pass shows nothing where bad combinations often pass.
            controls = hits / (_CONTROL * self.typical_rates()[0])
            passed = (self.seen.trials - self.seen.hits)[best.hypothesis.bad_cells()]
            wanted.append((end, max(controls, min(self._clean, _CONTROLS) if passed.any() else 0)))
        if self._whole:
            checked = checks(best, self._grid, self.group >= 0, self.counts, self.typical_rates()[0])
            wanted += [(self.representative_of(cell), trials) for cell, trials in checked]
        return wanted

    @cached_property
    def _spread(self) -> list[Index]:
        """Return some cells spread from one end of the lattice to the other."""
        cells = np.flatnonzero(self.visible)
        if not len(cells):
            return []
        places = np.unique(np.linspace(0, len(cells) - 1, _SPREAD).round().astype(int))
        return [position(int(cells[place]), self._grid.shape) for place in places]

    @cached_property
    def _clean(self) -> int:
        """Return how many passes show a combination to be good, at a cautious estimate of the bad rate."""
        chances = self._belief.bad_rates @ self.rates.kernel
        return clean_trials(quantile(self.rates.rates, chances, CAUTION))

    def _lacking(self, best: Answer) -> list[Index]:
        return [cell for cell, wanted in self._wanted(best) if self.seen.trials[cell] < wanted]

    def _best(self, ahead: Counts, belief: Belief, cost: FloatArray) -> tuple[Index, FloatArray, FloatArray]:
        """Return the cell with the best score, and for all cells the score and the probability to be bad."""
        leading = float(self._classes.masses(belief.hypotheses).max())
        cell, score, bad = choose(self._space, ahead, belief, cost, self.visible, leading)
        return position(cell, self._grid.shape), score, bad

    def _best_of(self, only: Collection[Index], ahead: Counts, belief: Belief, worth: float) -> Index | None:
        told = np.where(self.visible, information(self._space, ahead, belief, ONE)[..., 0], -np.inf)
        best = max((cell for cell in only if self.visible[cell]), key=lambda cell: told[cell], default=None)
        return best if best is not None and told[best] >= worth * told.max() else None

    # -- answering ---------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Return whether no more trials are wanted.

        That is so once the answer is confirmed, it is decided that nothing changes, or the budget is
        spent.
        """
        return self.trials >= self.limits.max_trials or not self.visible.any() or self._decided

    @property
    def is_confirmed(self) -> bool:
        """Return whether the verdict is confirmed; cheap as long as no answer is sure."""
        return self._sure and self.verdict.status is Status.CONFIRMED

    @property
    def may_be_doubted(self) -> bool:
        """Return whether the hypotheses may be too narrow: at the end, or if the trials contradict them."""
        if not self.seen.hits.any() or self.is_confirmed:
            return self.is_confirmed
        return self.could_be_better() > DOUBT

    def could_be_better(self) -> float:
        """Return an upper bound of how much better another history could explain the counts (log factor)."""
        return could_be_better(self.seen, self._belief, self._space)

    @property
    def _decided(self) -> bool:
        if self._ends_wrong():
            return True
        if not self._sure:
            return False
        best = self.verdict.best
        if best.hypothesis.kind not in ("never", "always") and best.boundaries:
            return self.verdict.status is Status.CONFIRMED
        return not self._lacking(best)

    @cached_property
    def _sure(self) -> bool:
        """Return whether some answer reaches the stated confidence; much cheaper than the whole verdict."""
        return bool(self._masses.max() >= self._required)

    @cached_property
    def _required(self) -> float:
        """Return the posterior at which an answer counts as sure."""
        bad_rate, _ = self.typical_rates()
        # The median: before many good trials the mean is made of backgrounds that nothing speaks for.
        chances = self._belief.backgrounds
        return required_confidence(self.limits.confidence, bad_rate, quantile(self.rates.p0, chances, 0.5))

    @cached_property
    def verdict(self) -> Verdict:
        """Return the answer so far; a pure function of the counts."""
        belief = self._belief
        masses = self._masses
        order = np.argsort(-masses, kind="stable")
        cut = int(np.searchsorted(np.cumsum(masses[order]), self.limits.confidence)) + 1
        shown = order[: min(cut, _MOST_CANDIDATES)]
        candidates = tuple(self._answer(int(c), float(masses[c])) for c in shown)
        best = candidates[0]
        # Posterior of each rate model, and of the best answer under it.
        sub = {}
        for sharing in (True, False):
            columns = (self.rates.spread == 0.0) == sharing
            joint = self._classes.masses(belief.weight * belief.by_rate[:, columns].sum(axis=1)[belief.of])
            weight = float(joint.sum())
            under = joint / weight if weight > 0 else joint
            agrees = int(under.argmax()) == int(shown[0]) or weight < 1 - self.limits.confidence
            sub[sharing] = (float(under[shown[0]]), agrees)
        bad_rate, background = self.typical_rates()
        status, reason = judge(
            best,
            required=self._required,
            agreed=all(agrees for _, agrees in sub.values()),
            lacking=bool(self._lacking(best)),
        )
        of, beliefs = self._classes.of, (belief.hypotheses, self._space.prior)
        these = of == order[0]
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
            expected_left=0.0 if self._is_over(status, best) else left,
            expected_environments=0 if self._is_over(status, best) else self._environments_left(masses),
            against_nothing=log10_bayes_factor(*beliefs, these, self._no_difference),
            against_next=None if len(order) < 2 else log10_bayes_factor(*beliefs, these, of == order[1]),
            unexplained=unexplained(best.hypothesis, self.seen),
            untested=untested_intervals(best, self._grid, self.group >= 0, self.counts, bad_rate)
            if self._whole
            else (),
            monotone=self._is_plain(int(order[0])),
        )

    def _is_over(self, status: Status, best: Answer) -> bool:
        return status is Status.CONFIRMED or (
            best.hypothesis.kind in ("never", "always") and self._sure and not self._lacking(best)
        )

    @property
    def _no_difference(self) -> NDArray[np.bool_]:
        classes = self._classes
        return np.isin(classes.of, (classes.never, classes.always))

    def _environments_left(self, masses: FloatArray) -> int:
        """Estimate how many new environments are needed: about one per missing bit, as in bisection."""
        untried = int(np.count_nonzero(self.visible & (self.seen.trials == 0)))
        return min(untried, math.ceil(entropy_bits(masses) - 1e-9))

    def _answer(self, number: int, probability: float) -> Answer:
        # Groups share their measurement, so that every member shows its group's counts.
        feasible = self.group >= 0
        flat = np.where(feasible, self.group, 0)
        return answer(
            self._classes.representative(number, self.group),
            probability,
            feasible,
            self.seen.hits.ravel()[flat],
            self.seen.trials.ravel()[flat],
            every_change=not self._is_plain(number),
        )

    def _ends_wrong(self) -> tuple[str, ...]:
        wrong = []
        for name, end, is_bad in (("good", self._grid.good, False), ("bad", self._grid.bad, True)):
            if end is None or self.group[end] < 0:
                continue
            chance = self._chance_bad(end)
            if (1 - chance if is_bad else chance) >= self.limits.confidence:
                wrong.append(name)
        return tuple(wrong)
