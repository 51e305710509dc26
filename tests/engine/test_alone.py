"""Trials on GPUs of their own that confirm what trials on shared GPUs found; no GPU is touched."""

from __future__ import annotations

from bisect_env.engine.alone import Alone
from bisect_env.matrix.grid import AxisKind, Direction, Grid, GridAxis
from bisect_env.search.searcher import Search
from bisect_env.trials.records import Evidence, Outcome


def test_dates_with_one_environment_are_confirmed_by_trials_of_any_of_them() -> None:
    days = GridAxis("day", AxisKind.DATE, ("d0", "d1", "d2", "d3"), Direction.REGRESSION)
    # Two dates each have the same lock; the last good date is not the one that stands for both.
    groups = {(0,): (0,), (1,): (0,), (2,): (2,), (3,): (2,)}
    search = Search(Grid((days,)), groups)
    while not search.finished:
        (index,) = search.ask(1)
        search.tell(index, hit=index >= (2,))
    assert (search.verdict.best.last_good, search.verdict.best.first_bad) == ((1,), (2,))
    alone = Alone(0.5)
    assert alone.why_not(search) is not None
    wanted = alone.wanted(search, 2)
    # A runner counts a trial for the combination that stands for its group.
    assert {*wanted} == {(0,), (2,)}
    for index in wanted:
        is_bad = index == (2,)
        alone.count(index, Evidence.BAD if is_bad else Evidence.GOOD, Outcome.PASS)
    assert alone.wanted(search, 2) == []
    assert alone.why_not(search) is None
