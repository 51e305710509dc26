"""Finds every failing configuration, one after the other.

One answer describes one set of bad combinations. Once it is confirmed, the combinations that it calls bad
are explained; a second search over all others, in which "nothing else fails" is as likely as not beforehand,
either confirms a further configuration or becomes sure that there is none. And so on.

Two questions are asked of what is not explained. *Whether* anything else fails: one configuration more or
none. And, once that is likely, *which*: a `ConfigurationQuestion`, for there may be two configurations more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np

from bisect_env.matrix.grid import Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.coarsening import CoarsenedSearch
from bisect_env.search.configuration import ConfigurationQuestion
from bisect_env.search.families import FloatArray
from bisect_env.search.question import Question
from bisect_env.search.searcher import MakeQuestion, Search, StudySearch
from bisect_env.search.space import Hypothesis, is_large
from bisect_env.search.verdict import Status, Verdict

_NO_OTHER = 0.5
_MOST_CONFIGURATIONS = 8

_OneConfiguration: TypeAlias = "Search | CoarsenedSearch"


class SearchAll(StudySearch):
    """A search that goes on to the next failing configuration; asked and told like `Search`.

    Its verdict is that about the first configuration.

    Args:
        grid: As for `Search`, and so are the others.
        groups: Cell to the cell that stands for it.
        limits: When to stop; the budget of trials is that of all configurations together.
    """

    def __init__(self, grid: Grid, groups: Mapping[Index, Index], limits: SearchLimits | None = None) -> None:
        self.limits = limits or SearchLimits()
        self._grid = grid
        self._groups = groups
        self._first = _search(ConfigurationQuestion, grid, groups, self.limits)
        # By the configurations found before: the searches over what they do not explain.
        self._later: dict[tuple[Hypothesis, ...], _Rest] = {}
        self._tried: dict[Index, None] = {}
        self._set_aside: list[Index] = []

    def tell(self, index: Index, *, hit: bool) -> None:
        """Count one trial, in every search that has the combination."""
        self._first.tell(index, hit=hit)
        self._tried[self._groups[index]] = None
        for rest in self._later.values():
            rest.tell_counts(index, int(hit), 1)

    def set_aside(self, index: Index) -> None:
        """Nothing more can be learnt at this combination."""
        self._first.set_aside(index)
        self._set_aside.append(index)
        for rest in self._later.values():
            rest.set_aside(index)

    def ask(
        self,
        count: int,
        *,
        pending: Mapping[Index, int] | None = None,
        build_cost: Mapping[Index, float] | None = None,
        only: Collection[Index] | None = None,
        worth: float = 0.0,
    ) -> list[Index]:
        """Choose the next trials, for the configuration that is being looked for; see `Search.ask`."""
        search = self._asked()
        if count <= 0:
            return []
        known = {i: n for i, n in (pending or {}).items() if search.can_be_told(i)}
        if only is not None:
            only = {index for index in only if search.can_be_told(index)}
        return search.ask(count, pending=known, build_cost=build_cost, only=only, worth=worth)

    def foresee(
        self, pending: Mapping[Index, int], build_cost: Mapping[Index, float] | None = None
    ) -> list[Index]:
        """Cells that would be asked next if a pending trial showed the target; see `Search.foresee`."""
        search = self._asked()
        return search.foresee({i: n for i, n in pending.items() if search.can_be_told(i)}, build_cost)

    @property
    def finished(self) -> bool:
        """Whether the last search is sure that nothing else fails, ended otherwise, or no budget is left."""
        return self.trials >= self.limits.max_trials or self._asked().finished

    @property
    def trials(self) -> int:
        """Counted trials so far."""
        return self._first.trials

    @property
    def verdict(self) -> Verdict:
        """The answer about the first configuration."""
        return self._first.verdict

    def counts(self, index: Index) -> tuple[int, int]:
        """Hits and counted trials of a combination (those of its whole group)."""
        return self._first.counts(index)

    @property
    def coarsened(self) -> bool:
        """Whether the lattice is too large to look at every combination."""
        return isinstance(self._first, CoarsenedSearch)

    @property
    def others(self) -> tuple[Verdict, ...]:
        """Verdicts about the further configurations that are confirmed."""
        return tuple(search.verdict for search in self._chain()[0][1:])

    @property
    def no_other(self) -> float | None:
        """Posterior that nothing else fails; None while the first configuration is not confirmed."""
        found, rest = self._chain()
        if not found:
            return None
        # With nothing left to try, nothing else can fail.
        return 1.0 if rest is None else rest.whether.probability_of_nothing

    def probability_bad(self) -> FloatArray:
        """Posterior that each combination is bad, on account of any configuration."""
        found, rest = self._chain()
        bad = self._first.probability_bad()
        explained = np.zeros(self._grid.shape, dtype=bool)
        later: list[_OneConfiguration] = [*found[1:], *([rest.asked] if rest is not None else [])]
        for configuration, search in zip(found, later, strict=False):
            explained |= configuration.verdict.best.hypothesis.bad_cells()
            bad = np.where(explained, bad, np.maximum(bad, search.probability_bad()))
        return bad

    def _asked(self) -> _OneConfiguration:
        """Return the search whose question is open."""
        found, rest = self._chain()
        if rest is not None:
            return rest.asked
        return found[-1] if found else self._first

    def _chain(self) -> tuple[list[_OneConfiguration], _Rest | None]:
        """Return the searches that are confirmed, and what they leave; None where there is nothing left."""
        found: list[_OneConfiguration] = []
        rest: _Rest | None = None
        search = self._first
        while len(found) < _MOST_CONFIGURATIONS and _is_confirmed(search):
            found.append(search)
            rest = self._rest(tuple(one.verdict.best.hypothesis for one in found))
            if rest is None or rest.nothing_likely:
                break
            search = rest.which
        return found, rest

    def _rest(self, found: tuple[Hypothesis, ...]) -> _Rest | None:
        if found not in self._later:
            groups = _Remainder(self._groups, found)
            if next(iter(groups), None) is None:
                return None
            rest = _Rest(self._grid, groups, self.limits)
            for cell in self._tried:
                rest.tell_counts(cell, *self.counts(cell))
            for index in self._set_aside:
                rest.set_aside(index)
            self._later[found] = rest
        return self._later[found]


def _is_confirmed(search: _OneConfiguration) -> bool:
    # `finished` first: it looks no further than need be, and most of the time it is false.
    return search.finished and search.verdict.status is Status.CONFIRMED


def is_coarsened(search: StudySearch) -> bool:
    """Return whether a search's lattice is too large to look at every combination."""
    return search.coarsened if isinstance(search, SearchAll) else isinstance(search, CoarsenedSearch)


class _Rest:
    """What some configurations do not explain: whether anything fails there, and which configuration.

    Attributes:
        whether: One configuration more or none.
        which: One configuration of several.
    """

    def __init__(self, grid: Grid, groups: Mapping[Index, Index], limits: SearchLimits) -> None:
        grid = replace(grid, good=None, bad=None)
        self.whether = _search(partial(Question, nothing=_NO_OTHER, any_of=False), grid, groups, limits)
        self.which = _search(partial(ConfigurationQuestion, nothing=_NO_OTHER), grid, groups, limits)

    @property
    def nothing_likely(self) -> bool:
        """Whether it is at least as likely as not that nothing fails."""
        return self.whether.probability_of_nothing >= _NO_OTHER

    @property
    def asked(self) -> _OneConfiguration:
        """The one whose question is open."""
        return self.whether if self.nothing_likely else self.which

    def tell_counts(self, index: Index, hits: int, trials: int) -> None:
        if self.whether.can_be_told(index):
            self.whether.tell_counts(index, hits, trials)
            self.which.tell_counts(index, hits, trials)

    def set_aside(self, index: Index) -> None:
        if self.whether.can_be_told(index):
            self.whether.set_aside(index)
            self.which.set_aside(index)


class _Remainder(Mapping[Index, Index]):
    """The combinations that some configurations do not call bad, with their representatives; not copied."""

    def __init__(self, groups: Mapping[Index, Index], configurations: tuple[Hypothesis, ...]) -> None:
        self._groups, self._configurations = groups, configurations

    def __getitem__(self, index: Index) -> Index:
        cell = self._groups[index]
        if any(configuration.is_bad(cell) for configuration in self._configurations):
            raise KeyError(index)
        return cell

    def __iter__(self) -> Iterator[Index]:
        return (index for index in self._groups if index in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _search(
    make: MakeQuestion, grid: Grid, groups: Mapping[Index, Index], limits: SearchLimits
) -> _OneConfiguration:
    if is_large(grid.shape, [axis.direction for axis in grid.axes]):
        return CoarsenedSearch(grid, groups, limits, make=make)
    return Search(grid, groups, limits, make=make)
