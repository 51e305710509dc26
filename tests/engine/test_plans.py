"""Plans that try one combination at a time, without processes and a database."""

from __future__ import annotations

from collections import Counter

from bisect_env.engine.explain import CulpritPlan
from bisect_env.engine.intermediates import changes_of
from bisect_env.matrix.grid import Index
from bisect_env.search.culprits import CulpritSearch


def test_an_environment_set_aside_is_tried_no_more_while_its_trials_still_run() -> None:
    """Two trials run at the same time and end one after the other, so that the plan is never idle."""
    slots, culprit, others_before_aside = 2, 2, 3
    plan = CulpritPlan(CulpritSearch(4, (0, 20), (20, 20)), 2000)
    first = plan.ask(slots)[0]
    running: list[Index] = []
    began: Counter[Index] = Counter()
    others = 0
    while not plan.finished:
        asked = plan.ask(slots - len(running), pending=Counter(running))
        running += asked
        began.update(asked)
        index = running.pop(0)
        if index != first:
            plan.tell(index, hit=culprit in changes_of(index))
            continue
        # The first environment always fails in another way.
        others += 1
        if others == others_before_aside:
            plan.set_aside(first)
        assert began[first] < 20, "it was set aside"
    assert plan.search.answer.changes == {culprit}
    assert began[first] <= others_before_aside + slots


def test_no_more_trials_are_begun_than_may_be_counted() -> None:
    plan = CulpritPlan(CulpritSearch(6, (0, 20), (6, 20)), 5)
    running: list[Index] = []
    while not plan.finished:
        running += plan.ask(4 - len(running), pending=Counter(running))
        assert plan.trials + len(running) <= 5
        plan.tell(running.pop(0), hit=False)
    assert plan.trials == 5
    assert not running
