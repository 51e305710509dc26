"""Every failing corner, one after the other.

One answer describes one set of bad combinations. Once it is confirmed, the combinations that it calls bad
are explained; a second search over all others, in which "nothing else fails" is as likely as not beforehand,
either confirms a further corner or becomes sure that there is none. And so on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from bisect_env.matrix.grid import Grid, Index
from bisect_env.search.families import FloatArray
from bisect_env.search.searcher import Search, SearchSettings
from bisect_env.search.space import Hypothesis
from bisect_env.search.verdict import Status, Verdict

_NO_OTHER = 0.5
# Chance of each combination outside a corner to belong to another one.
_STRAY = 0.03
_MOST_CORNERS = 8


class SearchAll:
    """A search that goes on to the next failing corner; asked and told like `Search`.

    Its verdict is that about the first corner.

    Args:
        grid: As for `Search`, and so are the others.
        groups: Cell to the cell that stands for it.
        settings: When to stop; the budget of trials is that of all corners together.
    """

    def __init__(
        self, grid: Grid, groups: Mapping[Index, Index], settings: SearchSettings | None = None
    ) -> None:
        self.settings = settings or SearchSettings()
        self._grid = grid
        self._groups = dict(groups)
        # Two causes that suffice each are two corners here, found one after the other.
        self._first = Search(grid, groups, settings, any_of=False, stray=_STRAY)
        # By the corners found before: the search for the next one, over what they do not explain.
        self._later: dict[tuple[Hypothesis, ...], Search] = {}
        self._set_aside: list[Index] = []

    @property
    def first(self) -> Search:
        """The search for the first corner."""
        return self._first

    def tell(self, index: Index, *, hit: bool) -> None:
        """Count one trial, in every search that has the combination."""
        self._first.tell(index, hit=hit)
        for search in self._later.values():
            if search.can_be_told(index):
                search.tell(index, hit=hit)

    def set_aside(self, index: Index) -> None:
        """Nothing more can be learnt at this combination."""
        self._first.set_aside(index)
        self._set_aside.append(index)
        for search in self._later.values():
            if search.can_be_told(index):
                search.set_aside(index)

    def ask(
        self,
        count: int,
        *,
        pending: Mapping[Index, int] | None = None,
        build_cost: Mapping[Index, float] | None = None,
        only: Collection[Index] | None = None,
        worth: float = 0.0,
    ) -> list[Index]:
        """Choose the next trials, for the corner that is being looked for; see `Search.ask`."""
        search = self._chain()[-1]
        known = {i: n for i, n in (pending or {}).items() if search.can_be_told(i)}
        if only is not None:
            only = {index for index in only if search.can_be_told(index)}
        return search.ask(count, pending=known, build_cost=build_cost, only=only, worth=worth)

    def foresee(
        self, pending: Mapping[Index, int], build_cost: Mapping[Index, float] | None = None
    ) -> list[Index]:
        """What would be asked next if a pending trial showed the target; see `Search.foresee`."""
        search = self._chain()[-1]
        return search.foresee({i: n for i, n in pending.items() if search.can_be_told(i)}, build_cost)

    @property
    def finished(self) -> bool:
        """Whether the last search is sure that nothing else fails, ended otherwise, or no budget is left."""
        if self.trials >= self.settings.max_trials:
            return True
        return self._chain()[-1].finished

    @property
    def trials(self) -> int:
        """Counted trials so far."""
        return self._first.trials

    @property
    def verdict(self) -> Verdict:
        """The answer about the first corner."""
        return self._first.verdict

    def counts(self, index: Index) -> tuple[int, int]:
        """Hits and counted trials of a combination (those of its whole group)."""
        return self._first.counts(index)

    @property
    def others(self) -> tuple[Verdict, ...]:
        """Verdicts about the further corners that are confirmed."""
        return tuple(s.verdict for s in self._chain()[1:] if s.verdict.status is Status.CONFIRMED)

    @property
    def no_other(self) -> float | None:
        """Posterior that nothing else fails; None while the first corner is not confirmed."""
        last = self._chain()[-1]
        if last is self._first:
            # With nothing left to try, nothing else can fail.
            return 1.0 if self.verdict.status is Status.CONFIRMED else None
        return last.probability_of_nothing if last.verdict.status is not Status.CONFIRMED else 1.0

    def probability_bad(self) -> FloatArray:
        """Posterior that each combination is bad, on account of any corner."""
        bad = self._first.probability_bad()
        for search in self._chain()[1:]:
            bad = np.where(search.has_cells, np.maximum(bad, search.probability_bad()), bad)
        return bad

    def _chain(self) -> list[Search]:
        """The searches so far, each over what those before it do not explain."""
        chain = [self._first]
        found: tuple[Hypothesis, ...] = ()
        groups = self._groups
        while len(found) < _MOST_CORNERS:
            last = chain[-1]
            if not last.finished or last.verdict.status is not Status.CONFIRMED:
                break
            found = (*found, last.verdict.best.hypothesis)
            bad = found[-1].bad_cells()
            groups = {i: cell for i, cell in groups.items() if not bad[cell]}
            if not groups:
                break
            if found not in self._later:
                self._later[found] = self._next_search(groups)
            chain.append(self._later[found])
        return chain

    def _next_search(self, groups: dict[Index, Index]) -> Search:
        grid = replace(self._grid, good=None, bad=None)
        search = Search(grid, groups, self.settings, nothing=_NO_OTHER, any_of=False)
        for cell in set(groups.values()):
            hits, trials = self.counts(cell)
            if trials:
                search.tell_counts(cell, hits, trials)
        for index in self._set_aside:
            if search.can_be_told(index):
                search.set_aside(index)
        return search
