"""What a study's loop remembers beside the search, and when that is reason enough to stop.

All of it is rebuilt from the database when a study goes on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bisect_env.engine.prepare import Prepared
from bisect_env.engine.rules import VOIDS_BEFORE_STOP, Tally
from bisect_env.errors import InfrastructureError, NoEnvironmentError, UsageError
from bisect_env.matrix.grid import Index
from bisect_env.matrix.load import Matrix
from bisect_env.trials.records import Outcome, TrialRecord

_SHORT = 4
"""Lines of a builder's words that are told as a whole."""
_TRIED = 3
"""Combinations in which a command that cannot be run is tried before the matrix is to blame."""


@dataclass(slots=True)
class Mean:
    """A mean that forgets nothing."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """Take a value in."""
        self.total += value
        self.count += 1

    @property
    def value(self) -> float | None:
        """The mean, None before the first value."""
        return self.total / self.count if self.count else None


@dataclass(slots=True)
class Standing:
    """Where a study stands.

    Attributes:
        tallies: What trials said, for each combination that stands for its group.
        aside: Status and reason of combinations at which nothing can be learnt.
        build_seconds: Of environments.
        trial_seconds: Of trials that count.
        voids_in_a_row: Spoilt trials since the last one that was not.
        last_void: What spoilt the last one.
        saved_at: When the verdict so far was stored last, by the loop's clock.
        warned: What has been warned of.
    """

    tallies: defaultdict[Index, Tally] = field(default_factory=lambda: defaultdict(Tally))
    aside: dict[Index, tuple[str, str]] = field(default_factory=dict)
    build_seconds: Mean = field(default_factory=Mean)
    trial_seconds: Mean = field(default_factory=Mean)
    voids_in_a_row: int = 0
    last_void: str = ""
    saved_at: float = float("-inf")
    warned: set[str] = field(default_factory=set)

    @property
    def hits(self) -> int:
        """Bad trials."""
        return sum(tally.bad for tally in self.tallies.values())

    def missing(
        self, prepared: Prepared, members: Mapping[Index, Sequence[Index]]
    ) -> dict[Index, tuple[str, str]]:
        """Status and reason of every combination that cannot be run.

        Args:
            prepared: The study's combinations.
            members: Of each that stands for its group, the whole group.
        """
        known = {index: ("excluded", why) for index, why in prepared.grid.excluded.items()}
        known |= {
            index: ("env-unbuildable" if error.building else "env-unsolvable", error.message)
            for index, error in prepared.unsolvable.items()
        }
        for index, why in self.aside.items():
            known |= dict.fromkeys(members[index], why)
        return known

    def check_anything_built(self, combinations: int) -> None:
        """Without any trial it matters why.

        Raises:
            NoEnvironmentError: Every combination is aside, for builds that failed.
        """
        if len(self.aside) < combinations or any(t.failed_builds == 0 for t in self.tallies.values()):
            return
        reasons = [reason for _, reason in self.aside.values()]
        raise NoEnvironmentError(
            f"no environment could be built: {gist(reasons[-1]) if reasons else 'none is solvable'}",
            remedy="`bisect-env report` lists every combination with its reason",
        )

    def check_runnable(self, record: TrialRecord, matrix: Matrix, combinations: int) -> None:
        """A command that runs nowhere is a mistake in the matrix, not a property of combinations.

        Args:
            record: Of the last trial.
            matrix: What is run.
            combinations: That can be tried.

        Raises:
            UsageError: It could be run in none of those tried.
        """
        if record.outcome is not Outcome.NOT_RUNNABLE:
            return
        tried = [t for t in self.tallies.values() if t.good + t.bad + t.other + t.skip]
        if len(tried) >= min(_TRIED, combinations) and all(t.not_runnable for t in tried):
            raise UsageError(
                f"{matrix.path}: the trial's command cannot be run in any of {len(tried)} "
                f"combinations tried: {record.detail}",
                tried=" ".join(matrix.command(record.combination)),
                remedy="correct `trial.command` or `trial.files`, then start the same command again",
            )

    def check_infrastructure(self) -> None:
        """When one trial after the other is spoilt, the next will be, too.

        Raises:
            InfrastructureError: So many were in a row.
        """
        if self.voids_in_a_row >= VOIDS_BEFORE_STOP:
            raise InfrastructureError(
                f"{self.voids_in_a_row} trials in a row were spoilt; the last: {self.last_void}",
                tried="each was run again",
                remedy="mend that, then start the same command again: it goes on where it stopped",
            )


def gist(text: str) -> str:
    """The first line; of a short text all of them, for tools put the cause below what it led to. Pure."""
    lines: list[str] = [line.strip() for line in text.splitlines() if line.strip()]
    return ": ".join(lines if len(lines) <= _SHORT else lines[:1]) or "(no words)"
