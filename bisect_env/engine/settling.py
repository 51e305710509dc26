"""Decide which failure a study searches for, and for how long its answer is checked. Pure."""

from __future__ import annotations

import sys

from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.engine.locking import Prepared
from bisect_env.engine.state import StudyState
from bisect_env.errors import NoEnvironmentError
from bisect_env.matrix.grid import Grid, Index
from bisect_env.matrix.load import Matrix
from bisect_env.search.study_search import StudySearch
from bisect_env.trials.judge import Judge

CHECK_SECONDS, CHECK_SHARE = 1.0, 0.5
"""Maximum duration of the checks of an answer: the larger of this many seconds and this share of the time
that the trials before the answer took."""


class CheckTime:
    """The time limit for the trials that check the result of a study.

    Only the run time of trials counts, divided by the number of trials that run at the same time: builds,
    locks and waiting for a core take nothing from the checks.

    Args:
        is_sure: Whether the checks have no time limit.

    Attributes:
        has_stood: Whether the search has ever reached the wanted confidence, even if checks made it uncertain
            again.
        seconds: Maximum duration of the checks; None for no limit.
    """

    def __init__(self, *, is_sure: bool) -> None:
        self._is_sure = is_sure
        self._until: float | None = None
        self._is_over = False
        self.has_stood = False
        self.seconds: float | None = None

    def look(self, search: StudySearch, spent: float) -> bool:
        """Start the time limit of the checks when there is an answer, and end the checks when it is over.

        Args:
            search: The search of the study.
            spent: Run time of all trials of the study so far, in seconds (see the class).

        Returns:
            True if the search has reached the wanted confidence since the previous call.
        """
        if not search.answered:
            # A failure has made the answer uncertain again, maybe in a trial that outlasted the checks.
            self._until = None
            if self._is_over:
                self._is_over = False
                search.resume_checks()
            return False
        self.has_stood = True
        if self._until is None:
            self.seconds = None if self._is_sure else max(CHECK_SECONDS, CHECK_SHARE * spent)
            self._until = float("inf") if self.seconds is None else spent + self.seconds
            return True
        if spent >= self._until:
            search.end_checks()
            self._is_over = True
        return False


def is_announced(verdict: VerdictDocument, checks: int) -> bool:
    """Return whether to show the user that there is a result, and that it is being checked.

    Args:
        verdict: The verdict so far.
        checks: Number of trials that the checks still need.
    """
    return checks > 0 and verdict.status != "none" and not verdict.ends_wrong


def only_trials(
    matrix: Matrix, prepared: Prepared, state: StudyState, search: StudySearch, judge: Judge
) -> dict[Index, int] | None:
    """Return combinations to try before anything else, to learn which of several failures to search for.

    These are the bad end, if the study is about its failure and this is not known yet; two combinations that
    seem to have different problems, until both failed often enough; and, once the search has an answer, a
    combination between two that fail in different ways: if it passes, they have different problems.

    Args:
        matrix: The matrix of the study.
        prepared: Its combinations, and their groups.
        state: The state of the study.
        search: Its search.
        judge: The judge that has seen all trials of the study.

    Returns:
        For each combination the maximum number of simultaneous trials; None if the search may choose.

    Raises:
        NoEnvironmentError: The bad end, whose failure is meant, cannot be run.
    """
    grid, groups = prepared.grid, prepared.groups
    if not judge.target.is_open:
        problems = judge.two_problems
        lacking = {} if problems is None else problems.lacking
        places = {grid.find(combination): number for combination, number in lacking.items()}
        found = {groups[i]: number for i, number in places.items() if i is not None and i in groups}
        wanted = {index: number for index, number in found.items() if index not in state.aside}
        if not wanted and (between := _between_kinds(grid, state, search, judge)) is not None:
            wanted = {between: 1}
        return wanted or None
    bad_end = None if grid.bad is None else groups.get(grid.bad)
    if bad_end is None or bad_end in state.aside:
        raise NoEnvironmentError(
            f"{matrix.shown}: the bad end, whose failure the study is to look for, cannot be run",
            tried=state.aside[bad_end][1] if bad_end is not None else None,
            remedy="state another `bad`, or a `signature` instead of `from-bad-end`",
        )
    return {bad_end: sys.maxsize}


def _between_kinds(grid: Grid, state: StudyState, search: StudySearch, judge: Judge) -> Index | None:
    """Return a combination between two failures that the search takes for one problem, perhaps wrongly.

    The two combinations fail in different ways. If the one between passes, they have different problems.
    """
    positions = judge.places.line
    if judge.target.signature or not positions or not search.answered:
        return None
    line = {grid.combination(index): index for index in state.members if index not in state.aside}
    otherwise = {grid.combination(index) for index, counts in state.counts.items() if counts.other}
    ordered = sorted((one for one in line if one in positions), key=lambda one: positions[one])
    between = judge.between_kinds(ordered, otherwise)
    return None if between is None else line[between]
