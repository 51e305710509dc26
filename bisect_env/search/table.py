"""Calls every combination of a table good or bad, with as few environments as possible. Pure.

Asked and told like `Search`. A combination that was tried carries a *label*, from one trial where failures
are certain, else from as many as its counts need (`labels.py`). What was not tried is called what a
description says that agrees with all labels; of those that do the simplest is used:

* a frontier, a band, or a frontier and a band (`staircase.py`): the same one at all values of axes without
  order, else one of their own at each;
* none: then every combination is tried. No table takes more environments than there are combinations.

A description that agrees is not yet true. To name one of 2^b takes b labels, which agree with one by chance;
labels beyond these are its *proofs*, n of them. A table without order has as many with chance 2^−n. If the
description holds without exception with probability π, and else each combination is an exception with some
probability ε of which nothing is known (Jeffreys' prior, Beta(½, ½)), the next one is an exception with

    P = (1 − π) E[ε (1 − ε)^n] / (π + (1 − π) E[(1 − ε)^n])

and combinations are tried where most is taken for granted until P is below what the confidence leaves. Each
release has to have passed at least once where it is called good: one that is broken altogether is the
commonest exception. π is ½ for the first description, and half as much for each that was given up before it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.bisect import described
from bisect_env.search.families import FloatArray
from bisect_env.search.labels import chances, labels, usual_trials
from bisect_env.search.rates import RateGrid
from bisect_env.search.searcher import StudySearch
from bisect_env.search.space import Hypothesis
from bisect_env.search.staircase import Staircase, beyond, ordered_axes, staircases
from bisect_env.search.stopping import clean_trials
from bisect_env.search.tallies import Tallies
from bisect_env.search.verdict import Answer, Status, Verdict, answer

__all__ = ["TableSearch"]

MOST_CALLED = 20_000
"""Combinations of a table, each of which is called good or bad after every trial."""
_CHANGES = 3
"""Changes on the way upward up to which a table is described."""
_FAILURES, _REPEATED = 3, 6
"""How often one combination must have failed before failures are taken to be certain, and how many failures
in all must have been repeated: in environments that exist, and what fails in half of runs does not pass for
certain."""
_AGAIN, _MOST_AGAIN = 3, 10
"""Trials of a combination that alone speaks against a description; and where failures are certain how many
trials at most there are beside the first of each combination."""
_ALONE = 2
"""Combinations that may be wrong when a description is contradicted; more of them are right."""
_SURE, _SURER = 0.2, 0.1
"""Share of the error that a label may have, for it says what others are, too; and of that the share of the
label of such a combination."""
_RARE, _MOST = 0.1, 6
"""A combination that fails no more often than this is not tried on before others were, and none more than so
many times as often as one usually is."""
_CORNERS = 4
"""Ordered axes up to which every corner of the lattice is tried first."""
_HOLDS = 0.5
"""π of the first description."""
_NO_ORDER = 0.125
"""Share of the error that is left to tables without order, of which a part agrees with every description."""


@dataclass(frozen=True, eq=False)
class _Described:
    """A description of the table that agrees with all labels.

    Attributes:
        bad: Which cells it calls bad, where it is decided.
        decided: Which cells it decides.
        holds: Prior that it holds without exception.
        stairs: The staircase, followed by others that the labels allow.
        alike: Axes without order along which the description is constant.
    """

    bad: NDArray[np.bool_]
    decided: NDArray[np.bool_]
    holds: float
    stairs: tuple[Staircase, ...]
    alike: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Called:
    """The label that the table gives to one combination, and its probability.

    Attributes:
        bad: Whether it is called bad.
        tried: Whether the label comes from the combination's own trials.
        probability: Probability that the label is right.
    """

    bad: bool
    tried: bool
    probability: float


class TableSearch(StudySearch):
    """A search that calls every combination good or bad.

    Args:
        grid: The lattice, with stated ends if there are any.
        groups: As for `Search`.
        limits: When to stop.
    """

    def __init__(self, grid: Grid, groups: Mapping[Index, Index], limits: SearchLimits | None = None) -> None:
        self.limits = limits or SearchLimits()
        self._grid = grid
        rates = RateGrid.default(self.limits.min_crash_rate, self.limits.crash_rate)
        self._known = Tallies(grid, groups, rates)
        self._ordered = ordered_axes(grid)

    # -- telling -----------------------------------------------------------------------------------------

    def tell(self, index: Index, *, hit: bool) -> None:
        """Count one trial of a combination: good or bad."""
        self._known.tell(index, hit=hit)
        self.forget()

    def set_aside(self, index: Index) -> None:
        """Exclude a combination at any time: no more trials of it are possible."""
        self._known.set_aside(index)
        self.__dict__.pop("_first", None)
        self.forget()

    def forget(self) -> None:
        """Drop cached results."""
        for name in (
            "_labels",
            "_doubtful",
            "_said",
            "_table",
            "_description",
            "_again",
            "_checks",
            "called",
            "table_verdict",
            "verdict",
        ):
            self.__dict__.pop(name, None)

    # -- labels ------------------------------------------------------------------------------------------

    @cached_property
    def _said(self) -> tuple[dict[Index, float], int]:
        """Return the probability that each tried combination is bad, and how many trials one needs."""
        counts = self._known.seen
        unanimous = self._known.unanimous()
        if unanimous is not None:
            return {cell: float(bad) for cell, bad in unanimous.items()}, 1
        chance = chances(counts)
        sure = [cell for cell, p in chance.items() if p >= 0.5]
        hits, trials = (sum(float(of[cell]) for cell in sure) for of in (counts.hits, counts.trials))
        rate = max(hits / trials if trials else 0.0, self.limits.min_crash_rate)
        rest = [cell for cell in chance if cell not in sure]
        hits, trials = (sum(float(of[cell]) for cell in rest) for of in (counts.hits, counts.trials))
        return chance, usual_trials(min(rate, 1.0), hits / trials if trials else 0.0)

    @property
    def _is_certain(self) -> bool:
        return self._known.unanimous() is not None

    @cached_property
    def _labels(self) -> dict[Index, bool]:
        """Return the label of each runnable combination that was tried enough: true means bad."""
        chance, usual = self._said
        if self._is_certain:
            return {cell: p >= 0.5 for cell, p in chance.items()}
        rate = 1.0 - 0.05 ** (1.0 / usual)
        error = _SURE * (1.0 - self.limits.confidence)
        found = labels(self._known.seen, chance, 1.0 - error, rate)
        surer = labels(self._known.seen, chance, 1.0 - _SURER * error, rate)
        for cell in self._alone(found):
            if cell not in surer:
                del found[cell]
        # Before anything is known to be bad, a background looks like a rare failure: then others say more.
        often = {cell for cell in chance if self._known.seen.trials[cell] >= self._often}
        return {cell: p >= 0.5 for cell, p in chance.items() if cell in often and cell not in found} | found

    @property
    def _often(self) -> int:
        """Return after how many trials a combination gets the likelier label while no others are known."""
        return 2 * clean_trials(max(_RARE, self.limits.min_crash_rate))

    @cached_property
    def _doubtful(self) -> list[Index]:
        """Return combinations whose label is merely the likelier one and may change."""
        if self._is_certain:
            return []
        chance, usual = self._said
        error, trials = _SURE * (1.0 - self.limits.confidence), self._known.seen.trials
        return [
            cell
            for cell, p in chance.items()
            if min(p, 1.0 - p) > error and trials[cell] < _MOST * usual and self._known.can_run(cell)
        ]

    def _in_table(self, known: Mapping[Index, bool]) -> NDArray[np.int8]:
        """Return labels in the shape of the lattice, applied to whole groups: 1 bad, 0 good, -1 unknown."""
        flat = np.full(self._known.group.size, -1, dtype=np.int8)
        for cell, bad in known.items():
            flat[np.ravel_multi_index(cell, self._grid.shape)] = bad
        group = self._known.group.ravel()
        shown = np.where(group >= 0, flat[np.maximum(group, 0)], flat)
        return np.asarray(shown.reshape(self._grid.shape), dtype=np.int8)

    @cached_property
    def _table(self) -> NDArray[np.int8]:
        return self._in_table(self._labels)

    def _alone(self, known: Mapping[Index, bool]) -> list[Index]:
        """Return the few labelled combinations without which the labels would form a frontier."""
        table = self._in_table(known)
        axes = self._ordered
        if not axes or staircases(table, self._grid, 1, self._known.visible):
            return []
        fewest: list[Index] = []
        for turned in product((False, True), repeat=len(axes)):
            back = [axis for axis, is_back in zip(axes, turned, strict=True) if is_back]
            forth = [axis for axis in axes if axis not in back]
            for odd in (
                (table == 0) & beyond(table == 1, axes, back),
                (table == 1) & beyond(table == 0, axes, forth),
            ):
                cells = [c for c in known if odd[c]]
                if not fewest or len(cells) < len(fewest):
                    fewest = cells
        return fewest if len(fewest) <= _ALONE else []

    @cached_property
    def _again(self) -> list[tuple[Index, int]]:
        """Return combinations to try again before their labels are trusted, and the trials to reach."""
        counts = self._known.seen
        chance, usual = self._said
        found: dict[Index, int] = {}
        if self._is_certain:
            bad = self._failing
            if bad:
                found[max(bad, key=lambda cell: counts.trials[cell])] = _FAILURES
            if self._repeats_left:
                found |= {cell: 2 for cell in bad if counts.trials[cell] < 2}
            room = _MOST_AGAIN - (self.trials - len(chance)) - self._repeats_left
            for cell in self._alone(self._labels):
                lacking = max(0, _AGAIN - int(counts.trials[cell]))
                if lacking <= room:
                    found[cell] = _AGAIN
                    room -= lacking
        else:
            chunk = max(1, usual // 2)
            found = {
                cell: int(counts.trials[cell]) + chunk
                for cell in chance
                if cell not in self._labels and self._known.can_run(cell)
            }
        return [(cell, wanted) for cell, wanted in found.items() if counts.trials[cell] < wanted]

    @property
    def _failing(self) -> list[Index]:
        """Return the combinations that always failed; empty if some combination both failed and passed."""
        labels = self._known.unanimous() or {}
        return sorted(cell for cell, bad in labels.items() if bad and self._known.can_run(cell))

    @property
    def _repeats_left(self) -> int:
        """Return how many failures still have to be repeated before failures count as certain."""
        failing = self._failing
        repeated = sum(int(self._known.seen.trials[cell]) - 1 for cell in failing)
        return max(0, _REPEATED - repeated) if failing else 0

    # -- descriptions ------------------------------------------------------------------------------------

    @cached_property
    def _description(self) -> _Described | None:
        """Return the simplest description that agrees with all labels; None if there is none."""
        holds = _HOLDS
        unordered = tuple(i for i, n in enumerate(self._grid.shape) if n > 1 and i not in self._ordered)
        for alike in dict.fromkeys((unordered, ())):
            table = _joined(self._table, alike)
            if table is None:
                continue
            visible = _any(self._known.visible, alike)
            for changes in range(1, _CHANGES + 1):
                found = staircases(table, self._grid, changes, visible, anyway=True)
                if found:
                    found.sort(key=lambda one: one.bits)
                    return self._described(found, holds, alike)
                holds /= 2
        return None

    def _described(self, found: list[Staircase], holds: float, alike: tuple[int, ...]) -> _Described:
        best, *rest = found
        # Which way a frontier runs is not known before all ways that are likely agree.
        limit = best.bits - math.log2(1.0 - self.limits.confidence)
        others = tuple(one for one in rest if one.bits < limit and best.changes == 1)
        decided = best.decided
        for other in others:
            decided = decided & other.decided & (other.lowest == best.lowest)
        shape = self._grid.shape
        bad, everywhere = (np.broadcast_to(one, shape) for one in (best.lowest, decided))
        return _Described(bad, everywhere, holds, (best, *others), alike)

    def _proofs(self, description: _Described) -> float:
        """Return the number of labels beyond those that were needed to single out the description."""
        return max(0.0, len(self._labels) - description.stairs[0].bits)

    @cached_property
    def _checks(self) -> tuple[list[Index], float]:
        """Return the combinations to try although the description decides them, best first.

        And P of the module.
        """
        description = self._description
        open_ = self._cells(self._known.visible & (self._table < 0))
        if description is None or not open_:
            return [], 0.0
        proofs = self._proofs(description)
        chance = exception(description.holds, proofs)
        error, wanted = 1.0 - self.limits.confidence, 0
        while (
            exception(description.holds, proofs + wanted) > error
            or 2.0 ** -(proofs + wanted) > error * _NO_ORDER
        ):
            wanted += 1
        passed = self._known.visible & (self._table == 0)
        several = sum(n > 1 for n in self._grid.shape) > 1
        axes = [axis for axis in range(len(self._grid.shape)) if several]
        lacking = [self._lacking(description, axis, passed) for axis in axes]
        # How far each is from what was tried, as a share of the axes: where most is taken for granted.
        scale = np.maximum(np.array(self._grid.shape, dtype=np.float64) - 1.0, 1.0)
        places = np.array(open_, dtype=np.float64) / scale
        apart = np.full(len(open_), np.inf)
        for cell in self._labels:
            apart = np.minimum(apart, np.abs(places - np.array(cell) / scale).sum(axis=1))
        chosen: list[Index] = []
        while len(chosen) < len(open_):
            new = [0 if description.bad[cell] else self._covers(cell, lacking) for cell in open_]
            if not any(new) and len(chosen) >= wanted:
                break
            place = int((len(scale) * np.array(new) + apart).argmax())
            chosen.append(open_[place])
            for value, some in zip(open_[place], lacking, strict=False):
                some.discard(value)
            apart = np.minimum(apart, np.abs(places - places[place]).sum(axis=1))
            apart[place] = -np.inf
        return chosen, chance

    @staticmethod
    def _covers(cell: Index, lacking: list[set[int]]) -> int:
        return sum(place in some for place, some in zip(cell, lacking, strict=False))

    def _lacking(self, description: _Described, axis: int, passed: NDArray[np.bool_]) -> set[int]:
        """Return values of an axis that are called good somewhere but have not passed anywhere."""
        across = tuple(other for other in range(len(self._grid.shape)) if other != axis)
        called_good = np.asarray((self._known.visible & ~description.bad).any(axis=across))
        good = called_good & ~np.asarray(passed.any(axis=across))
        return {int(value) for value in np.flatnonzero(good)}

    def _cells(self, mask: NDArray[np.bool_]) -> list[Index]:
        return list(map(tuple, np.argwhere(mask).tolist()))

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
        """Return the next trials, at most `count`; arguments as for `Search.ask`."""
        if count <= 0 or not self._known.visible_count:
            return []
        running = self._known.by_cell(pending or {})
        allowed = self._known.visible
        if only is not None:
            allowed = np.zeros_like(allowed)
            for cell in only:
                allowed[cell] = self._known.visible[cell]
        chosen: list[Index] = []

        def take(cell: Index, wanted: int) -> None:
            if allowed[cell] and len(chosen) < count:
                chosen.extend([cell] * min(max(wanted - running.get(cell, 0), 0), count - len(chosen)))

        for cell, wanted in self._again:
            take(cell, wanted - self.counts(cell)[1])
        chunk = max(1, self._said[1] // 2)
        looking = {cell for cell in (*running, *chosen) if cell not in self._labels}
        cost = self._known.prices(build_cost) if build_cost else None
        for cell in self._new(-(-(count - len(chosen)) // chunk), looking, cost, allowed):
            take(cell, chunk)
        if not chosen and not looking:
            for cell in self._suspects:
                take(cell, self._enough_passes - self.counts(cell)[1])
            for cell in self._doubtful:
                take(cell, chunk)
            if left := self._repeats_left:
                cell = min(self._failing, key=lambda one: self.counts(one)[1])
                take(cell, left)
        return chosen

    def _new(
        self,
        count: int,
        looking: Collection[Index],
        cost: FloatArray | None,
        allowed: NDArray[np.bool_],
    ) -> list[Index]:
        """Return the unlabelled combinations to try next."""
        if count <= 0:
            return []
        unknown = allowed & (self._table < 0)
        for cell in looking:
            unknown[cell] = False
        first = [cell for cell in self._first if cell not in self._labels]
        if waiting := [cell for cell in first if cell not in looking]:
            return [cell for cell in waiting if unknown[cell]][:count]
        if any(cell in looking for cell in first):
            return []
        description = self._description
        if description is None:
            price = np.zeros(self._grid.shape) if cost is None else cost
            return sorted(self._cells(unknown), key=lambda cell: price[cell])[:count]
        open_ = self._known.visible & (self._table < 0) & ~description.decided
        if not open_.any():
            return [cell for cell in self._checks[0] if unknown[cell]][:count]
        chosen: list[Index] = []
        for stairs in description.stairs:
            if len(chosen) < count:
                taken = [*looking, *chosen]
                chosen += self._cuts(count - len(chosen), stairs, description.alike, taken, unknown & open_)
        return chosen

    def _cuts(
        self,
        count: int,
        stairs: Staircase,
        alike: tuple[int, ...],
        taken: Collection[Index],
        open_: NDArray[np.bool_],
    ) -> list[Index]:
        """Return combinations that decide most of a staircase, each at the least tried unordered values."""
        flat = [tuple(0 if i in alike else place for i, place in enumerate(cell)) for cell in taken]
        visible = _any(self._known.visible, alike)
        allowed = open_.copy()
        for cell in taken:
            allowed[cell] = False
        cells = stairs.next(count, list(dict.fromkeys(flat)), visible, _any(allowed, alike))
        chosen: list[Index] = []
        for cell in cells:
            line = tuple(slice(None) if i in alike else place for i, place in enumerate(cell))
            here = np.zeros_like(allowed)
            here[line] = allowed[line]
            tried = [*self._labels, *taken, *chosen]
            chosen.append(
                min(
                    self._cells(here),
                    key=lambda one: sum(one[i] == other[i] for other in tried for i in alike),
                )
            )
        return chosen

    @cached_property
    def _first(self) -> list[Index]:
        """Return the combinations to try first: the stated ends and the corners of the lattice."""
        axes, last = self._ordered, [n - 1 for n in self._grid.shape]
        if len(axes) <= _CORNERS:
            corners = list(product(*({0, n} if i in axes else {0} for i, n in enumerate(last))))
        else:
            corners = [(0,) * len(last), tuple(last)]
        stated = [end for end in (self._grid.good, self._grid.bad) if end is not None]
        ends = [self._known.representative_of(end) for end in stated if self._known.can_run(end)]
        places = np.argwhere(self._known.visible)
        if not len(places):
            return ends
        near = [
            tuple(places[np.abs(places - np.array(one)).sum(axis=1).argmin()].tolist()) for one in corners
        ]
        return list(dict.fromkeys([*ends, *near]))

    @property
    def _suspects(self) -> list[Index]:
        """Return, if nothing failed, the ends and corners with too few passes, in reverse order."""
        if self._known.total_hits or not self._known.visible_count:
            return []
        return [cell for cell in self._first[::-1] if self.counts(cell)[1] < self._enough_passes]

    @property
    def _enough_passes(self) -> int:
        rate = min(self.limits.crash_rate or 1.0, 1.0)
        return clean_trials(max(min(rate, self.limits.clean_rate), self.limits.min_crash_rate))

    def foresee(
        self, pending: Mapping[Index, int], build_cost: Mapping[Index, float] | None = None
    ) -> list[Index]:
        """Return combinations that may come next, so that their environments can be built meanwhile."""
        if not self._known.visible_count:
            return []
        looking = set(self._known.by_cell(pending))
        cost = self._known.prices(build_cost) if build_cost else None
        return self._new(1, looking, cost, self._known.visible)

    # -- answering ---------------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Return whether every combination is called good or bad at the stated confidence."""
        if (
            self._again
            or self._suspects
            or self._repeats_left
            or any(cell not in self._labels for cell in self._first)
        ):
            return False
        unknown = self._known.visible & (self._table < 0)
        description = self._description
        if not unknown.any():
            return True
        if description is None or (unknown & ~description.decided).any():
            return False
        return not self._checks[0]

    @property
    def finished(self) -> bool:
        """Return whether no more trials are wanted."""
        if self.trials >= self.limits.max_trials or not self._known.visible_count:
            return True
        return self.is_complete

    @property
    def answered(self) -> bool:
        """Return whether the table is complete."""
        return self.is_complete

    @property
    def trials(self) -> int:
        """Return the number of counted trials so far."""
        return self._known.trials

    def counts(self, index: Index) -> tuple[int, int]:
        """Return hits and counted trials of a combination's group."""
        return self._known.counts(index)

    @cached_property
    def called(self) -> dict[Index, Called]:
        """Return the label of each combination that has one so far."""
        chance, _ = self._said
        description = self._description
        found: dict[Index, Called] = {}
        exceptional = self._checks[1] if description is not None and self.is_complete else 0.5
        for index in self._cells(self._known.group >= 0):
            cell = self._known.representative_of(index)
            if cell in self._labels:
                bad = self._labels[cell]
                sure = chance[cell] if bad else 1.0 - chance[cell]
                found[index] = Called(bad, tried=True, probability=sure)
            elif description is not None and description.decided[cell]:
                found[index] = Called(bool(description.bad[cell]), tried=False, probability=1.0 - exceptional)
        return found

    def probability_bad(self) -> FloatArray:
        """Return the probability that each combination is bad, shape of the grid; 0.5 if it has no label."""
        bad = np.full(self._grid.shape, 0.5)
        for cell, one in self.called.items():
            bad[cell] = one.probability if one.bad else 1.0 - one.probability
        return bad

    @cached_property
    def verdict(self) -> Verdict:
        """Return the answer so far; a pure function of the counts."""
        return self.table_verdict

    @cached_property
    def table_verdict(self) -> Verdict:
        """Return the answer about the table as a whole."""
        complete = self.is_complete
        called = self.called
        bad = np.zeros(self._grid.shape, dtype=bool)
        for cell, one in called.items():
            bad[cell] = one.bad
        best = self._answer(bad)
        bad_rate, background = self._known.rates_under(best.hypothesis)
        sure = min((one.probability for one in called.values()), default=0.0)
        best = replace(best, probability=sure if complete else 0.0)
        unknown = int(np.count_nonzero(self._known.group >= 0)) - len(called)
        status, reason = Status.NONE, f"{unknown} combinations are not called good or bad yet"
        if complete:
            status, reason = (
                Status.CONFIRMED,
                f"each combination is what it is called, probability {sure:.3f}",
            )
        return Verdict(
            status=status,
            reason=reason,
            best=best,
            candidates=(best,),
            sharing=best.probability,
            differing=best.probability,
            bad_rate=bad_rate,
            background=background,
            expected_left=0.0 if complete else float(math.isqrt(unknown) + 1),
            expected_environments=0 if complete else math.isqrt(unknown) + 1,
            certain=self._is_certain,
        )

    def _answer(self, bad: NDArray[np.bool_]) -> Answer:
        """Return the table as an answer: the bad combinations and their boundaries."""
        feasible = self._known.group >= 0
        counts = self._known.seen
        flat = np.where(feasible, self._known.group, 0)
        kind = "never" if not bad.any() else "always" if bad[feasible].all() else "table"
        hypothesis = described(kind, bad)
        if kind != "table":
            everywhere = tuple(np.full(n, kind == "always") for n in self._grid.shape)
            hypothesis = Hypothesis(kind, everywhere, ())
        hits, trials = counts.hits.ravel()[flat], counts.trials.ravel()[flat]
        return answer(hypothesis, 1.0, feasible, hits, trials)


def _any(cells: NDArray[np.bool_], axes: tuple[int, ...]) -> NDArray[np.bool_]:
    """Reduce some axes to one place each: true where any of their values is."""
    return np.asarray(cells.any(axis=axes, keepdims=True))


def _joined(table: NDArray[np.int8], axes: tuple[int, ...]) -> NDArray[np.int8] | None:
    """Merge the labels of all values of some axes; None if they contradict each other."""
    bad, good = (_any(table == label, axes) for label in (1, 0))
    if (bad & good).any():
        return None
    return np.asarray(np.where(bad, 1, np.where(good, 0, -1)), dtype=np.int8)


def exception(holds: float, proofs: float) -> float:
    """Return P of the module: the probability that the next combination is an exception.

    Args:
        holds: π.
        proofs: n, the number of combinations so far that were no exception.
    """

    def mean(exceptions: float) -> float:
        """Return E[ε^exceptions (1 − ε)^proofs] under Beta(½, ½)."""
        a, b = 0.5 + exceptions, 0.5 + proofs
        return math.exp(math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)) / math.pi

    return (1.0 - holds) * mean(1.0) / (holds + (1.0 - holds) * mean(0.0))
