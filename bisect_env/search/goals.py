"""The goals of a study, and the search that belongs to each."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from bisect_env.matrix.grid import Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.coarsening import search_for
from bisect_env.search.multiple import SearchAll
from bisect_env.search.searcher import SearchSettings, StudySearch
from bisect_env.search.table import TableSearch


class Goal(StrEnum):
    """The goals that a study can have."""

    FIRST_BAD = "first-bad"
    """Where it begins to fail."""
    EVERY_CONFIGURATION = "every-configuration"
    """The same, and where else it does."""
    TABLE = "table"
    """Which combinations fail, and which do not."""


def settings_of(
    limits: SearchLimits,
    *,
    quick: bool = False,
    thrifty: bool = False,
    careful: bool = False,
    leaves: bool = False,
) -> SearchSettings:
    """Return the settings of a search that a matrix describes.

    Args:
        limits: As the matrix has them.
        quick: As for `SearchSettings`, as are the others.
        thrifty: Likewise.
        careful: Likewise.
        leaves: Likewise.
    """
    return SearchSettings(
        limits.confidence,
        limits.min_crash_rate,
        limits.max_trials,
        clean_rate=limits.clean_rate,
        crash_rate=limits.crash_rate,
        quick=quick,
        thrifty=thrifty,
        careful=careful,
        leaves=leaves,
    )


def search_towards(
    goal: Goal, grid: Grid, groups: Mapping[Index, Index], settings: SearchSettings
) -> StudySearch:
    """Return the search for a goal.

    Args:
        goal: What the study wants to know.
        grid: As for `Search`.
        groups: As for `Search`.
        settings: As for `Search`.
    """
    match goal:
        case Goal.TABLE:
            return TableSearch(grid, groups, settings)
        case Goal.EVERY_CONFIGURATION:
            return SearchAll(grid, groups, settings)
        case _:
            return search_for(grid, groups, settings)
