"""The goals of a study, and the search that belongs to each."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from bisect_env.matrix.grid import Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.corners import CornerSearch
from bisect_env.search.searcher import StudySearch
from bisect_env.search.table import TableSearch
from bisect_env.search.zoom import search_for


class Goal(StrEnum):
    """A goal that a study can have."""

    FIRST_BAD = "first-bad"
    """Where it begins to fail."""
    EVERY_CONFIGURATION = "every-configuration"
    """The same, and where else it does."""
    TABLE = "table"
    """Which combinations fail, and which do not."""


def search_towards(
    goal: Goal, grid: Grid, groups: Mapping[Index, Index], limits: SearchLimits, *, quick: bool = False
) -> StudySearch:
    """Return the search for a goal.

    Args:
        goal: What the study is to find.
        grid: As for `Search`.
        groups: As for `Search`.
        limits: As for `Search`.
        quick: As for `Search`; only a search for the first bad combination uses it.
    """
    match goal:
        case Goal.TABLE:
            return TableSearch(grid, groups, limits)
        case Goal.EVERY_CONFIGURATION:
            return CornerSearch(grid, groups, limits)
        case _:
            return search_for(grid, groups, limits, quick=quick)
