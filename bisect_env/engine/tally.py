"""Counts what the trials of a combination said, and decides when it is set aside. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from bisect_env.trials.records import Evidence

OTHER_BEFORE_ASIDE = 3
"""Failures of another kind after which a combination without counted trials is set aside."""
OTHER_PER_COUNTED = 4.0
"""Failures of another kind per counted trial above which a combination is set aside, from `OTHER_MANY` on."""
OTHER_MANY = 20
LOSSES_FOR_FINDING = 3
"""Number of hosts lost during trials of one combination after which the user is told."""


@dataclass(slots=True)
class Tally:
    """Counts of the trials of one group of combinations, by their evidence.

    A combination that always fails in another way than the target hides the answer: after a few such trials
    it is set aside, as by `git bisect skip`. One that fails in another way only sometimes is kept; its other
    failures are shown and never counted.

    Attributes:
        good: Passes.
        bad: Target outcomes.
        other: Failures of another kind.
        void: Trials that do not count because of a fault of the infrastructure.
        skip: Trials that said nothing can be learnt.
        failed_builds: Builds of its environment that failed.
        not_runnable: Trials whose command could not be run at all.
        lost_on: Hosts that were lost, or lost their GPU, during its trials.
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

    def add(self, other: Tally) -> None:
        """Add the trials of another tally."""
        for evidence in Evidence:
            setattr(self, str(evidence), getattr(self, str(evidence)) + getattr(other, str(evidence)))
        self.lost_on |= other.lost_on

    def many_lost(self) -> str | None:
        """Return a reason to exclude a combination whose trials took several hosts down, else None."""
        if len(self.lost_on) < LOSSES_FOR_FINDING:
            return None
        return f"its trials were lost on {len(self.lost_on)} hosts ({', '.join(sorted(self.lost_on))})"

    def why_aside(self) -> str | None:
        """Return why no more trials should run here, or None."""
        counted = self.good + self.bad
        if counted == 0 and (lost := self.many_lost()):
            return lost
        if self.skip:
            return "the script cannot run here, or skips it (exit code 125)"
        if counted == 0 and self.other >= OTHER_BEFORE_ASIDE:
            return f"always fails in another way ({self.other} of {self.other} trials)"
        if self.other >= OTHER_MANY and self.other > OTHER_PER_COUNTED * counted:
            return f"mostly fails in another way ({self.other} of {self.other + counted} trials)"
        return None


def says_bad(evidence: Evidence) -> bool | None:
    """Return true for bad and false for good evidence; None for evidence that does not count.

    Failures of another kind, void trials and skips are None: they never reach the posterior.
    """
    return {Evidence.BAD: True, Evidence.GOOD: False}.get(evidence)
