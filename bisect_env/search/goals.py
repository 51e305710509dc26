"""The goals of a study, and the search for each goal."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from bisect_env.matrix.grid import Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.corners import CornerSearch
from bisect_env.search.searcher import Search
from bisect_env.search.study_search import StudySearch
from bisect_env.search.table_search import TableSearch


class Goal(StrEnum):
    """The goal of a study: to find the first bad version, every failing configuration, or all labels."""

    FIRST_BAD = "first-bad"
    """The change at which the failure begins (for example: the first bad version of torch)."""
    EVERY_CONFIGURATION = "every-configuration"
    """The first bad change, and in addition every other minimal failing configuration."""
    TABLE = "table"
    """A label for every combination: does it fail or not?"""


def search_towards(
    goal: Goal, grid: Grid, groups: Mapping[Index, Index], limits: SearchLimits, *, quick: bool = False
) -> StudySearch:
    """Create the search that pursues the given goal, such as the first bad version.

    Args:
        goal: The goal of the study.
        grid: The lattice of combinations, as for `Search`.
        groups: The representative of each combination that can be run, as for `Search`.
        limits: When to stop, as for `Search`.
        quick: Whether to skip the final checks, as for `Search`; only `Goal.FIRST_BAD` uses it.
    """
    match goal:
        case Goal.TABLE:
            return TableSearch(grid, groups, limits)
        case Goal.EVERY_CONFIGURATION:
            return CornerSearch(grid, groups, limits)
        case _:
            return Search(grid, groups, limits, quick=quick)
