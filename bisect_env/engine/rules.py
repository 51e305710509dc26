"""The study's small decisions about what a combination is still good for. Pure.

A combination that never passes and never shows the target, because it always fails another way, hides the
answer: after a few such trials it is set aside, as `git bisect skip` would. One that fails the other way only
now and then goes on; its other failures are shown and never counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bisect_env.trials.records import Evidence

OTHER_BEFORE_ASIDE = 3
"""Other failures of a combination without any counted trial."""
OTHER_PER_COUNTED = 4.0
"""With counted trials: other failures for each of them, once there are `OTHER_MANY`."""
OTHER_MANY = 20
BUILDS_BEFORE_UNBUILDABLE = 3
"""Failed builds of one environment before it counts as unbuildable."""
LOSSES_FOR_FINDING = 3
"""Different hosts on which trials of one combination were lost before that is told as a finding."""
VOIDS_BEFORE_STOP = 10
"""Void trials in a row, wherever, after which the infrastructure is to blame and the study stops."""


@dataclass(slots=True)
class Tally:
    """What the trials of one group of combinations have said.

    Attributes:
        good: Passes.
        bad: Target outcomes.
        other: Failures of another kind.
        void: Trials that infrastructure spoilt.
        skip: Trials that said nothing can be learnt.
        failed_builds: Builds of its environment that failed.
        not_runnable: Trials whose command could not be run at all.
        lost_on: Hosts that went away, or lost their GPU, under its trials.
    """

    good: int = 0
    bad: int = 0
    other: int = 0
    void: int = 0
    skip: int = 0
    failed_builds: int = 0
    not_runnable: int = 0
    lost_on: set[str] = field(default_factory=set)

    def count(self, evidence: Evidence) -> None:
        """Add one trial."""
        setattr(self, str(evidence), getattr(self, str(evidence)) + 1)

    def many_lost(self) -> str | None:
        """A finding of its own when trials took several hosts down, which one bad host would not explain."""
        if len(self.lost_on) < LOSSES_FOR_FINDING:
            return None
        return f"its trials were lost on {len(self.lost_on)} hosts ({', '.join(sorted(self.lost_on))})"

    def why_aside(self) -> str | None:
        """Why nothing more should be tried here, or None."""
        counted = self.good + self.bad
        if counted == 0 and (lost := self.many_lost()):
            return lost
        if self.skip:
            return "the trial said that nothing can be learnt here"
        if counted == 0 and self.other >= OTHER_BEFORE_ASIDE:
            return f"always fails in another way ({self.other} of {self.other} trials)"
        if self.other >= OTHER_MANY and self.other > OTHER_PER_COUNTED * counted:
            return f"mostly fails in another way ({self.other} of {self.other + counted} trials)"
        return None


def says_bad(evidence: Evidence) -> bool | None:
    """What a trial tells the search: whether its combination showed the target, or nothing at all.

    Failures of another kind, spoilt trials and skips are None: they never reach the posterior.
    """
    return {Evidence.BAD: True, Evidence.GOOD: False}.get(evidence)


def build_cost(build_seconds: float | None, trial_seconds: float | None) -> float:
    """Price of a new environment in trials, from what was measured so far.

    Args:
        build_seconds: Mean over builds, None before the first.
        trial_seconds: Mean over trials, None before the first.
    """
    if build_seconds is None or not trial_seconds:
        # Nothing is known yet; a few trials is the price of a small environment with a warm cache.
        return 5.0
    return min(build_seconds / trial_seconds, 500.0)


def in_flight(slots: int, trial_seconds: float | None) -> int:
    """How many trials to keep submitted.

    Short trials need a second one waiting at each worker, or workers idle while the search thinks; long ones
    do not, and every trial asked too early is asked knowing less.
    """
    waiting = slots if trial_seconds is not None and trial_seconds < 0.5 else 0
    return slots + waiting
