"""Searches lattices of millions of combinations, by looking closely only where it matters so far.

`Search` keeps a row for every hypothesis. But hypotheses that agree on every combination tried so far have
one likelihood, and differ in their prior alone. So some values of each axis are *active*: its ends, all that
were tried, and as many more as are needed that no likely set of bad values is left vague. `Search` runs over
the active values; each of its sets stands for all fine ones that look the same there, with their priors:

    π(coarse set) = Σ π(s)  over the fine sets s with S(s)[active] = coarse set

As the prior is a product over the axes, this is the posterior of the whole lattice, not an approximation of
it, summed over what cannot be told apart yet. A set whose share grows is split at the value that halves it:
an answer is never sure before its boundary is known to the last value.

What is given up: ordered axes that change more than twice are not looked for, and only the last good
combinations are checked once an answer stands.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction, Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.checks import Check, clean_checks, cleared
from bisect_env.search.families import CoarseAxis, FloatArray, alike, family
from bisect_env.search.question import Question
from bisect_env.search.searcher import Search, StudySearch
from bisect_env.search.space import Hypothesis, is_large
from bisect_env.search.verdict import Answer, Boundary, Status, Verdict, entropy_bits

# Share of an axis's belief that one set may hold before it is split, by the number of axes with a choice.
_COARSEST = {1: 0.03, 2: 0.06, 3: 0.12}
_COARSEST_ELSE = 0.2
# An axis less likely than this to matter is not split at all.
_MATTERS = 0.02
_PATIENCE = 2.0


def search_for(
    grid: Grid, groups: Mapping[Index, Index], limits: SearchLimits | None = None, *, quick: bool = False
) -> Search | CoarsenedSearch:
    """Return an exact search if the lattice is small enough, else a coarsened one.

    Arguments as for `Search`.
    """
    large = is_large(grid.shape, [axis.direction for axis in grid.axes])
    return (CoarsenedSearch if large else Search)(grid, groups, limits, quick=quick)


class CoarsenedSearch(StudySearch):
    """A search over a lattice of any size, with the methods of `Search`.

    Args:
        grid: The lattice.
        groups: As in `Search`; looked up, never listed.
        limits: When to stop.
        quick: Whether the search ends as soon as the answer stands, without checks.
    """

    trials = 0

    def __init__(
        self,
        grid: Grid,
        groups: Mapping[Index, Index],
        limits: SearchLimits | None = None,
        *,
        quick: bool = False,
    ) -> None:
        self.limits = limits or SearchLimits()
        self._grid, self._groups = grid, groups
        self._checks_ended = quick
        self._checked: tuple[tuple[int, int], tuple[Check, ...]] | None = None
        self._families = [family(axis.direction, len(axis.values), gaps=False) for axis in grid.axes]
        choices = sum(n > 1 for n in grid.shape)
        self._coarsest = _COARSEST.get(choices, _COARSEST_ELSE)
        self._told: dict[Index, tuple[int, int]] = {}
        self._aside: list[Index] = []
        self._pending: frozenset[Index] = frozenset()
        self._axes: list[CoarseAxis] = []
        self._search: Question | None = None
        self._looked_at = -1

    # -- telling -----------------------------------------------------------------------------------------

    def can_be_told(self, index: Index) -> bool:
        """Return whether the combination was one that can be run when the search began."""
        return index in self._groups

    def representative_of(self, index: Index) -> Index:
        """Return the cell that stands for a combination's group."""
        try:
            return self._groups[index]
        except KeyError:
            raise ValueError(f"combination {index} cannot be run") from None

    def tell(self, index: Index, *, hit: bool) -> None:
        """Count one trial of a combination."""
        self.tell_counts(index, int(hit), 1)

    def tell_counts(self, index: Index, hits: int, trials: int) -> None:
        """Count several trials of a combination at once."""
        cell = self.representative_of(index)
        before = self._told.get(cell, (0, 0))
        self._told[cell] = (before[0] + hits, before[1] + trials)
        self.trials += trials
        if self._search is None:
            return
        here = self._here(cell)
        if here is None:
            self._search = None
        else:
            self._search.tell_counts(here, hits, trials)

    def set_aside(self, index: Index) -> None:
        """Exclude a combination: no more trials of it are possible."""
        cell = self._groups.get(index)
        if cell is not None and cell not in self._aside:
            self._aside.append(cell)
            self._search = None

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
        """Choose the next trials; see `Search.ask`.

        Prices are looked up only for cells that may be chosen.
        """
        search = self._with(pending or {})
        if self.answered and not self._checks_ended:
            running = pending or {}
            checks = [one for one in self.checks if only is None or one.cell in only]
            wanted = [[one.cell] * max(0, one.wanted - running.get(one.cell, 0)) for one in checks]
            return list(itertools.chain(*wanted))[:count]
        here = {self._here(index): running for index, running in (pending or {}).items()}
        chosen = search.ask(
            count,
            pending={cell: running for cell, running in here.items() if cell is not None},
            build_cost=self._prices(search, build_cost),
            only=None if only is None else {cell for cell in self._cells() if self._there(cell) in only},
            worth=worth,
        )
        return [self._there(cell) for cell in chosen]

    def foresee(
        self, pending: Mapping[Index, int], build_cost: Mapping[Index, float] | None = None
    ) -> list[Index]:
        """Return the cells that would be asked next if a pending trial showed the target.

        See `Search.foresee`.
        """
        search = self._with(pending)
        if self.answered and not self._checks_ended:
            return [check.cell for check in self.checks]
        here = {self._here(index): running for index, running in pending.items()}
        known = {cell: running for cell, running in here.items() if cell is not None}
        return [self._there(cell) for cell in search.foresee(known, self._prices(search, build_cost))]

    def _prices(self, search: Question, build_cost: Mapping[Index, float] | None) -> dict[Index, float]:
        if not build_cost:
            return {}
        prices = {
            cell: build_cost.get(self._there(cell), 0.0) for cell in self._cells() if search.can_be_told(cell)
        }
        return {cell: price for cell, price in prices.items() if price}

    # -- answering ---------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Return whether no more trials are wanted.

        That is so once the answer stands and is checked, or the budget is spent.
        """
        if self.trials >= self.limits.max_trials:
            return True
        return self.answered and (self._checks_ended or not self.checks)

    @property
    def answered(self) -> bool:
        """Return whether the answer stands; later trials only check it."""
        return self._now().finished

    @property
    def checks(self) -> tuple[Check, ...]:
        """Return the checks of last good combinations that a standing answer still needs."""
        known = (self.trials, len(self._aside))
        if self._checked is None or self._checked[0] != known:
            verdict = self.verdict
            found: list[Check] = []
            if self.answered and verdict.status is Status.CONFIRMED:
                found = clean_checks(verdict.best, self._can_run, self.counts, self.limits)
            self._checked = known, tuple(found)
        return self._checked[1]

    @property
    def checks_left(self) -> int:
        """Return how many trials the checks still need."""
        return 0 if self._checks_ended else sum(check.wanted for check in self.checks)

    def end_checks(self) -> None:
        """Skip further checks: the search is finished as soon as the answer stands."""
        self._checks_ended = True

    @property
    def _can_run(self) -> _CanRun:
        return _CanRun(self._grid.shape, self._groups, frozenset(self._aside))

    @property
    def verdict(self) -> Verdict:
        """Return the answer so far, on the whole lattice."""
        search = self._now()
        verdict = search.verdict
        hidden = entropy_bits(search.probabilities)
        factor = (hidden + self._hidden_bits(search)) / hidden if hidden > 0.01 else 1.0
        reason = verdict.reason
        if verdict.unexplained:
            reason += "; a matrix of this size is not searched for an axis that changes more than twice"
        best = self._whole(verdict.best)
        is_confirmed = verdict.status is Status.CONFIRMED
        return replace(
            verdict,
            reason=reason,
            best=best,
            cleared=cleared(best, self._can_run, self.counts, self.limits) if is_confirmed else (),
            candidates=tuple(self._whole(candidate) for candidate in verdict.candidates),
            expected_left=verdict.expected_left * factor,
            expected_environments=math.ceil(verdict.expected_environments * factor),
            unexplained=tuple(replace(one, index=self._there(one.index)) for one in verdict.unexplained),
        )

    def counts(self, index: Index) -> tuple[int, int]:
        """Return hits and counted trials of a combination's group."""
        return self._told.get(self.representative_of(index), (0, 0))

    def probability_bad(self) -> FloatArray:
        """Return the posterior that each combination is bad, shape of the grid.

        Between active values the posterior is interpolated linearly, which is exact for an axis that
        changes once at an equally likely place.
        """
        bad = self._now().probability_bad()
        for i, (axis, size) in enumerate(zip(self._axes, self._grid.shape, strict=True)):
            rows = np.stack(
                [np.interp(np.arange(size), axis.active, unit) for unit in np.eye(len(axis.active))]
            )
            bad = np.moveaxis(np.tensordot(bad, rows, axes=(i, 0)), -1, i)
        return np.asarray(bad, dtype=np.float64)

    # -- which values are active ---------------------------------------------------------------------------

    def _with(self, pending: Mapping[Index, int]) -> Question:
        """Return the search over the active values, which include all values of running combinations."""
        self._pending = frozenset(self._groups[index] for index in pending if index in self._groups)
        search = self._now()
        if any(self._here(cell) is None for cell in self._pending):
            self._search = None
            search = self._now()
        return search

    def _now(self) -> Question:
        """Return the search over the active values, refined first if trials call for it."""
        if self._search is not None and self._looked_at != self.trials:
            self._looked_at = self.trials
            shares = self._shares(self._search)
            if any(
                self._split(i, q, self._axes[i].active, _PATIENCE) is not None for i, q in enumerate(shares)
            ):
                self._search = None
        if self._search is None:
            self._refine()
        assert self._search is not None
        return self._search

    def _refine(self) -> None:
        needed = [self._needed(axis) for axis in range(len(self._families))]
        search = self._over(needed)
        active = []
        for axis, share in enumerate(self._shares(search)):
            values = set(needed[axis])
            while (more := self._split(axis, share, np.array(sorted(values)), 1.0)) is not None:
                values.add(more)
            active.append(sorted(values))
        self._search = search if active == needed else self._over(active)
        self._looked_at = self.trials

    def _needed(self, axis: int) -> list[int]:
        """Return the values of an axis that tried cells, running cells and ends use.

        All values if unordered.
        """
        size = self._grid.shape[axis]
        if self._grid.axes[axis].direction is Direction.UNORDERED:
            return list(range(size))
        cells = [*self._told, *self._pending, *(end for end in (self._grid.good, self._grid.bad) if end)]
        return sorted({0, size - 1, *(cell[axis] for cell in cells)})

    def _over(self, active: list[list[int]]) -> Question:
        """Return a search over some values of each axis that has been given all counts."""
        self._axes = [
            CoarseAxis.over(fine, values) for fine, values in zip(self._families, active, strict=True)
        ]
        axes = tuple(
            replace(axis, values=tuple(axis.values[i] for i in values))
            for axis, values in zip(self._grid.axes, active, strict=True)
        )
        self._places = [{value: place for place, value in enumerate(values)} for values in active]
        groups: dict[Index, Index] = {}
        first: dict[Index, Index] = {}
        for cell in itertools.product(*(range(len(values)) for values in active)):
            stands_for = self._groups.get(self._value(cell))
            if stands_for is not None:
                groups[cell] = first.setdefault(stands_for, cell)
        self._first = first
        ends = [self._place(end) if end is not None else None for end in (self._grid.good, self._grid.bad)]
        search = Question(
            Grid(axes, good=ends[0], bad=ends[1]),
            groups,
            self.limits,
            families=[axis.coarse for axis in self._axes],
        )
        for index, (hits, trials) in self._told.items():
            here = self._here(index)
            assert here is not None
            search.tell_counts(here, hits, trials)
        for index in self._aside:
            if (here := self._here(index)) is not None:
                search.set_aside(here)
        return search

    def _shares(self, search: Question) -> list[FloatArray]:
        """Return the posterior of each fine set of each axis; row 0 means "does not matter"."""
        shares = []
        for coarse, fine, axis in zip(search.by_set(), self._families, self._axes, strict=True):
            whole = np.bincount(axis.of, weights=fine.prior)
            within = fine.prior / np.where(whole > 0, whole, 1.0)[axis.of]
            within[0] = 1.0
            shares.append(coarse[axis.of] * within)
        return shares

    def _split(self, axis: int, share: FloatArray, active: NDArray[np.intp], patience: float) -> int | None:
        """Return the value that halves the most probable unsplit class of sets.

        None if all are small enough.
        """
        matters = float(share[1:].sum())
        if matters < _MATTERS:
            return None
        sets = self._families[axis].sets
        of = alike(sets, active)
        held = np.bincount(of[1:], weights=share[1:] / matters)
        for row in np.argsort(-held, kind="stable"):
            if held[row] <= patience * self._coarsest:
                return None
            members = 1 + np.flatnonzero(of[1:] == row)
            weight = share[members]
            called_bad = weight @ sets[members] / max(float(weight.sum()), 1e-300)
            value = int(np.abs(called_bad - 0.5).argmin())
            if 1e-9 < called_bad[value] < 1 - 1e-9:
                return value
        return None

    def _hidden_bits(self, search: Question) -> float:
        """Return approximately the entropy, in bits, within the sets that are not split yet."""
        shares = self._shares(search)
        coarse = search.by_set()
        return sum(entropy_bits(q[1:]) - entropy_bits(c[1:]) for q, c in zip(shares, coarse, strict=True))

    # -- from active values to all and back -----------------------------------------------------------------

    def _cells(self) -> list[Index]:
        return list(self._first.values())

    def _value(self, cell: Index) -> Index:
        return tuple(int(axis.active[i]) for axis, i in zip(self._axes, cell, strict=True))

    def _place(self, index: Index) -> Index | None:
        places = [self._places[axis].get(i) for axis, i in enumerate(index)]
        return None if None in places else tuple(place for place in places if place is not None)

    def _here(self, index: Index) -> Index | None:
        """Return the active cell that stands for a combination's group."""
        stands_for = self._groups.get(index)
        return None if stands_for is None else self._first.get(stands_for)

    def _there(self, cell: Index) -> Index:
        """Return the combination that stands for an active cell's group."""
        value = self._value(cell)
        return self._groups.get(value, value)

    def _whole(self, found: Answer) -> Answer:
        """Return an answer over active values as one over all values; values in between count as good."""
        hypothesis = found.hypothesis
        if hypothesis.kind in ("never", "always"):
            fill = hypothesis.kind == "always"
            sets = tuple(np.full(n, fill) for n in self._grid.shape)
        else:
            sets = tuple(
                self._fine(i, bad) if i in hypothesis.culprits else np.full(n, hypothesis.kind == "all")
                for i, (bad, n) in enumerate(zip(hypothesis.sets, self._grid.shape, strict=True))
            )
        return Answer(
            Hypothesis(hypothesis.kind, sets, hypothesis.culprits),
            tuple(
                Boundary(b.axis, self._value(b.bad), self._value(b.good), tuple(map(self._value, b.between)))
                for b in found.boundaries
            ),
            None if found.first_bad is None else self._value(found.first_bad),
            None if found.last_good is None else self._value(found.last_good),
            found.probability,
        )

    def _fine(self, axis: int, bad: NDArray[np.bool_]) -> NDArray[np.bool_]:
        sets = self._families[axis].sets[1:]
        alike = np.flatnonzero(((sets[:, self._axes[axis].active] > 0) == bad).all(axis=1))
        return np.asarray(sets[alike[sets[alike].sum(axis=1).argmin()]] > 0)


@dataclass(frozen=True)
class _CanRun:
    """A lookup of which combinations of a large lattice can be run."""

    shape: tuple[int, ...]
    groups: Mapping[Index, Index]
    aside: frozenset[Index]

    def __getitem__(self, index: Index) -> bool:
        cell = self.groups.get(index)
        return cell is not None and cell not in self.aside
