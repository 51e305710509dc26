"""Decides which failure a study means, and for how long its answer is checked. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.engine.state import StudyState
from bisect_env.errors import NoEnvironmentError
from bisect_env.matrix.grid import Grid, Index
from bisect_env.matrix.load import Matrix
from bisect_env.search.searcher import StudySearch
from bisect_env.trials.judge import Judge

CHECK_SECONDS, CHECK_SHARE = 3.0, 0.5
"""How long an answer may be checked: seconds, or this share of the time that it took if that is more."""


class CheckTime:
    """The time in which the answer of a study is checked.

    Args:
        began: When the command began with the study.
        is_sure: Whether the checks take as long as they need.

    Attributes:
        has_stood: Whether the answer stood at any time, even if checks have doubted it since.
        seconds: How long the checks may take; None for any time.
    """

    def __init__(self, began: float, *, is_sure: bool) -> None:
        self._began = began
        self._is_sure = is_sure
        self._until: float | None = None
        self.has_stood = False
        self.seconds: float | None = None

    def look(self, search: StudySearch, now: float) -> bool:
        """Return whether the answer stands since this look; end its checks when their time is over."""
        if not search.answered:
            # A failure during the checks has opened the question again.
            self._until = None
            return False
        self.has_stood = True
        if self._until is None:
            self.seconds = None if self._is_sure else max(CHECK_SECONDS, CHECK_SHARE * (now - self._began))
            self._until = float("inf") if self.seconds is None else now + self.seconds
            return True
        if now >= self._until:
            search.end_checks()
        return False


def is_announced(verdict: VerdictDocument, checks: int) -> bool:
    """Return whether users are told that an answer stands and is checked from now on.

    Args:
        verdict: The verdict so far. On resuming, looks may be due before there is an answer.
        checks: Trials that the checks want.
    """
    return checks > 0 and verdict.status == "confirmed" and not verdict.ends_wrong


def only_trials(
    matrix: Matrix, grid: Grid, groups: Mapping[Index, Index], state: StudyState, judge: Judge
) -> dict[Index, int] | None:
    """Return what to try alone while it is not known which failure is meant, and how many at a time.

    Args:
        matrix: What is asked.
        grid: Its combinations.
        groups: Each combination that may be runnable, with the one that stands for its group.
        state: What is known of the study.
        judge: With all trials of the study.

    Returns:
        None if the search chooses.

    Raises:
        NoEnvironmentError: The bad end, whose failure is meant, cannot be run.
    """
    if not judge.target.is_open:
        problems = judge.two_problems
        lacking = {} if problems is None else problems.lacking
        places = {grid.find(combination): number for combination, number in lacking.items()}
        found = {groups[i]: number for i, number in places.items() if i is not None and i in groups}
        return {index: number for index, number in found.items() if index not in state.aside} or None
    bad_end = None if grid.bad is None else groups.get(grid.bad)
    if bad_end is None or bad_end in state.aside:
        raise NoEnvironmentError(
            f"{matrix.shown}: the bad end, whose failure the study is to look for, cannot be run",
            tried=state.aside[bad_end][1] if bad_end is not None else None,
            remedy="state another `bad`, or a `signature` instead of `from-bad-end`",
        )
    return {bad_end: sys.maxsize}


def look_between_kinds(grid: Grid, state: StudyState, search: StudySearch, judge: Judge) -> Index | None:
    """Return a combination between failures of different kinds, None if there is none.

    A pass there shows that they are two problems.

    Args:
        grid: The combinations of the study.
        state: What is known of the study.
        search: With an answer, or without.
        judge: With all trials of the study.
    """
    positions = judge.places.line
    if judge.target.signature or not search.answered or not positions or not search.verdict.certain:
        return None
    line = {grid.combination(index): index for index in state.members if index not in state.aside}
    ordered = sorted((one for one in line if one in positions), key=lambda one: positions[one])
    between = judge.between_kinds(ordered)
    return None if between is None else line[between]
