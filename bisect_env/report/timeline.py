"""What ran when: trials and builds on one clock. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

from bisect_env.report.model import TimedBuild, TimedTrial, TimelineReport
from bisect_env.storage.records import BUILD_FAILED, BUILT, CombinationState, Decision, StoredTrial

LIMIT = 2000
"""Trials that are listed; of more every second, third, … one."""


def timeline(
    states: Sequence[CombinationState], trials: Sequence[StoredTrial], decisions: Sequence[Decision]
) -> TimelineReport:
    """Put trials and builds on one clock.

    Args:
        states: Every combination, in the report's order.
        trials: The study's own.
        decisions: What was decided; builds are among it.
    """
    position = {state.combination: i for i, state in enumerate(states)}
    members: defaultdict[str, list[int]] = defaultdict(list)
    for i, state in enumerate(states):
        if state.lock_hash:
            members[state.lock_hash].append(i)
    builds = [
        (
            decision.at - timedelta(seconds=float(decision.payload.get("seconds") or 0.0)),
            str(decision.payload.get("lock", "")),
            float(decision.payload.get("seconds") or 0.0),
            str(decision.payload.get("reason") or "failed") if decision.kind == BUILD_FAILED else "",
        )
        for decision in decisions
        if decision.kind in (BUILT, BUILD_FAILED)
    ]
    known = sorted((t for t in trials if t.combination in position), key=lambda t: (t.started_at, t.sequence))
    moments: list[datetime] = [*(t.started_at for t in known), *(start for start, *_ in builds)]
    if not moments:
        return TimelineReport()
    begin = min(moments)
    shown = known[:: max(1, math.ceil(len(known) / LIMIT))]
    return TimelineReport(
        begin=begin,
        trials=tuple(
            TimedTrial(
                trial=t.trial_id,
                combination=position[t.combination],
                outcome=str(t.outcome),
                evidence=str(t.evidence),
                start=_seconds(t.started_at - begin),
                seconds=round(t.duration, 3),
                host=t.host,
                worker=t.worker,
                gpu=t.gpu,
            )
            for t in shown
        ),
        builds=tuple(
            TimedBuild(
                lock=lock,
                combinations=tuple(members[lock]),
                start=_seconds(start - begin),
                seconds=round(seconds, 3),
                failed=failed,
            )
            for start, lock, seconds, failed in sorted(builds)
        ),
        left_out=len(known) - len(shown),
    )


def _seconds(delta: timedelta) -> float:
    return round(delta.total_seconds(), 3)
