"""A verdict as data: the model that is stored, reported and published. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from bisect_env.matrix.grid import Direction

Cell = dict[str, str]
"""A combination: axis name to value, in matrix order."""


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None


Number = Annotated[float | None, AfterValidator(_finite)]
"""A number that JSON can represent; infinity and NaN become None."""


class AnswerPart(BaseModel):
    """The base class of every part of a stored answer."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class IterationRate(AnswerPart):
    """The failure rate per iteration, for trials that run the script several times within one process."""

    rate: float = Field(description="Failures divided by iterations.")
    low: float = Field(description="Lower end of the 95 % interval.")
    high: float = Field(description="Upper end of the 95 % interval.")


class MeasuredRate(AnswerPart):
    """The failure rate of one combination with its exact 95 % interval (Clopper and Pearson)."""

    hits: int = Field(description="Bad trials.")
    trials: int = Field(description="Trials that are evidence.")
    rate: float = Field(description="Bad trials divided by trials; 0 without trials.")
    low: float = Field(description="Lower end of the 95 % interval.")
    high: float = Field(description="Upper end of the 95 % interval.")
    iterations: int = Field(
        default=0, description="Iterations of these trials, where the script is repeated within a process."
    )
    per_iteration: IterationRate | None = Field(
        default=None, description="Failure rate of single iterations; null where there are none."
    )


class UntriedCombination(AnswerPart):
    """A combination at a boundary between good and bad that could not be tried."""

    combination: Cell | None = Field(description="Axis name to value.")
    status: str = Field(description="Why it could not be tried, in a word: `env-unsolvable`, `set-aside`, …")
    reason: str = Field(description="Why it could not be tried, in a sentence.")


class NeighbourPair(AnswerPart):
    """A bad combination and its good neighbour along one culprit axis."""

    axis: str = Field(description="Name of the axis.")
    bad: Cell | None = Field(default=None, description="The bad combination.")
    good: Cell | None = Field(default=None, description="The good combination.")
    between: tuple[UntriedCombination, ...] = Field(
        default=(), description="Combinations between the two that could not be tried."
    )

    def untried_values(self) -> list[str]:
        """Return the values on `axis` of the untried combinations between the two, "?" for an unknown one."""
        return [(one.combination or {}).get(self.axis, "?") for one in self.between]


class CandidateAnswer(AnswerPart):
    """A possible answer to a study's question, with its probability."""

    kind: str | None = Field(default=None, description="Shape of the answer; see `kind` of the verdict.")
    first_bad: Cell | None = Field(default=None, description="The bad combination at its boundary.")
    last_good: Cell | None = Field(default=None, description="The good combination at its boundary.")
    culprit_axes: tuple[str, ...] = Field(default=(), description="Names of the axes that matter.")
    probability: Number = Field(default=None, description="Probability of this answer.")


class FurtherFailure(CandidateAnswer):
    """A further failing configuration, which `bisect-env run --all` found."""

    status: Literal["confirmed", "likely", "none"] = Field(
        default="none", description="How sure this answer is; see `status` of the verdict."
    )
    bad_rate: MeasuredRate | None = Field(default=None, description="Failure rate at `first_bad`.")
    bad_values: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description="Culprit axis to its bad values."
    )


class RateModels(AnswerPart):
    """The probability of the answer if all bad combinations share one failure rate, and if they differ."""

    sharing: Number = Field(default=None, description="Probability if all bad combinations share one rate.")
    differing: Number = Field(default=None, description="Probability if their rates differ.")


class BayesFactors(AnswerPart):
    """How many times better the answer explains the trials than other answers do (Bayes factors).

    The fields are decimal logarithms between -300 and 300.
    """

    log10_against_no_difference: Number = Field(
        default=None, description="Decimal logarithm of the Bayes factor against *never* and *always bad*."
    )
    log10_against_runner_up: Number = Field(
        default=None, description="Decimal logarithm of the Bayes factor against the second answer."
    )


class UnexplainedCombination(AnswerPart):
    """A combination whose trials the answer does not explain."""

    combination: Cell = Field(description="Axis name to value.")
    called_bad: bool = Field(description="Whether the answer calls it bad.")
    hits: int = Field(description="Bad trials.")
    trials: int = Field(description="Trials that are evidence.")
    chance: Number = Field(
        description="Probability of a result at least this far from the answer's prediction."
    )


class UntestedValues(AnswerPart):
    """Neighbouring values of one axis that the answer calls good or bad although they have too few trials."""

    axis: str = Field(description="Name of the axis.")
    first: Cell = Field(description="The lowest of these combinations.")
    last: Cell = Field(
        description="The highest of these combinations; it differs from `first` only on `axis`."
    )
    called_bad: bool = Field(description="Whether the answer calls them bad.")
    length: int = Field(description="Number of values, without those that cannot be run.")
    trials: int = Field(description="Trials of these combinations; if they are called bad, no trial failed.")
    chance: Number = Field(
        description="Probability that this many trials all pass at the failure rate of bad combinations."
    )


class ClearedCombination(AnswerPart):
    """A last good combination, with the failure rate that its trials rule out."""

    combination: Cell = Field(description="Axis name to value.")
    hits: int = Field(description="Bad trials.")
    trials: int = Field(description="Trials that are evidence.")
    below: float = Field(description="Upper limit of its failure rate, at the stated confidence.")
    wanted: int = Field(description="Trials still needed to exclude the rate that was asked for.")


class VersionConstraint(AnswerPart):
    """A requirement on one axis for a range of versions of another."""

    when: Cell = Field(description="Axis name to the range of versions for which it holds; empty for all.")
    needs: Cell = Field(description="Axis name to the range of versions that works.")


class ExclusionRule(AnswerPart):
    """A rule for `exclude` of a matrix file, which leaves out combinations that fail."""

    when: dict[str, str | tuple[str, ...]] = Field(
        description="Axis name to a range of versions, or to a list of values."
    )


class Compatibility(AnswerPart):
    """The versions of one or two axes that work together."""

    sentence: str = Field(description="The versions that work together, in one sentence.")
    constraints: tuple[VersionConstraint, ...] = Field(
        default=(), description="Requirements for the metadata of a package."
    )
    exclude: tuple[ExclusionRule, ...] = Field(default=(), description="Rules for a matrix file.")


class CalledCombination(AnswerPart):
    """A combination with its label, good or bad, in the compatibility table."""

    combination: Cell = Field(description="Axis name to value.")
    verdict: Literal["good", "bad"] = Field(
        description="Whether the answer calls the combination good or bad."
    )
    tried: bool = Field(description="Whether the combination was tried itself.")
    probability: Number = Field(description="Probability that the label is right.")


class CompatibilityTable(AnswerPart):
    """The result of `bisect-env map`: which combinations are good and which are bad."""

    good: int = Field(description="Number of combinations that are called good.")
    bad: int = Field(description="Number of combinations that are called bad.")
    tried: int = Field(description="Number of labelled combinations that were tried.")
    complete: bool = Field(description="Whether every combination that can be run is called good or bad.")
    calls: tuple[CalledCombination, ...] = Field(default=(), description="One object for each combination.")


class VerdictDocument(AnswerPart):
    """The verdict of a study. The default values describe a study that has no verdict yet."""

    status: Literal["confirmed", "likely", "none"] = Field(
        default="none",
        description="How sure the answer is: `confirmed` (its probability reaches the stated confidence, "
        "both sides of the boundary were tried, and each last good combination passed so often that a "
        "failure rate of `clean_rate` is excluded there), `likely` (there is an answer, but one of these "
        "conditions is not met, for example because checks were cut short), or `none`.",
    )
    sentence: str = Field(default="", description="The verdict in one sentence.")
    reason: str = Field(
        default="the study has not come to a verdict yet", description="Why the verdict has this status."
    )
    kind: str | None = Field(
        default=None,
        description="Shape of the answer. `all`: bad where every culprit axis has a bad value; `any`: bad "
        "where at least one has; `frontier`: bad beyond a staircase in several axes (see `compatibility`); "
        "`pair`: no simple rule describes what is bad, only `first_bad` and `last_good` are known; `table`: "
        "each combination by itself (see `table`); `never`; `always`; `explanation`: of an environment "
        "between two others. Null before the first verdict.",
    )
    first_bad: Cell | None = Field(
        default=None,
        description="The bad combination of the boundary, axis name to value; for the direction `fixed` the "
        "last bad one. Null where nothing, or everything, is bad.",
    )
    last_good: Cell | None = Field(
        default=None,
        description="Its good neighbour, axis name to value; for the direction `fixed` the first good one.",
    )
    culprit_axes: tuple[str, ...] = Field(default=(), description="Names of the axes that matter.")
    probability: Number = Field(
        default=None, description="Probability of this answer; null before the first verdict."
    )
    bad_values: dict[str, tuple[str, ...]] = Field(default={}, description="Culprit axis to its bad values.")
    pattern: dict[str, tuple[str, ...]] = Field(
        default={},
        description="Of a `pair`: an axis with the values at which all tried combinations failed; all those "
        "tried at its other values passed. Empty if there is no such axis.",
    )
    directions: dict[str, Direction] = Field(
        default={}, description="Axis name to its direction: where its bad values may lie."
    )
    boundaries: tuple[NeighbourPair, ...] = Field(
        default=(),
        description="One pair for each culprit axis; if `monotone` is false, or for the direction `either`, "
        "one for each change.",
    )
    bad_rate: MeasuredRate | None = Field(default=None, description="Failure rate at `first_bad`.")
    good_rate: MeasuredRate | None = Field(default=None, description="Failure rate at `last_good`.")
    candidates: tuple[CandidateAnswer, ...] = Field(
        default=(),
        description="Answers that together hold the stated confidence, the most probable first.",
    )
    models: RateModels = Field(
        default=RateModels(), description="Probability of the answer under both models of failure rates."
    )
    typical_bad_rate: Number = Field(
        default=None, description="Posterior mean of the failure rate of bad combinations."
    )
    background_rate: Number = Field(
        default=None, description="Posterior mean of the failure rate of good combinations."
    )
    ends_wrong: tuple[str, ...] = Field(
        default=(), description="Ends whose trials contradict the matrix: `good`, `bad`."
    )
    trials: int = Field(default=0, description="Trials that are evidence.")
    weighed: str = Field(
        default="",
        description="Digest of the counts of these trials: where it differs, trials came after the verdict.",
    )
    expected_left: Number = Field(default=None, description="Estimated number of trials still needed.")
    expected_environments_left: Number = Field(
        default=None, description="Estimated number of environments still to be built."
    )
    bayes_factors: BayesFactors = Field(
        default=BayesFactors(), description="Bayes factors of the answer against other answers."
    )
    chance_of_luck: Number = Field(
        default=None,
        description="Probability that `last_good` passes each of its trials although it fails as often as "
        "the lower end of `bad_rate`; null where it failed.",
    )
    monotone: bool = Field(
        default=True,
        description="False where the answer is a history that changes more often than an axis's direction "
        "says.",
    )
    unexplained: tuple[UnexplainedCombination, ...] = Field(
        default=(), description="Combinations whose trials the answer does not explain."
    )
    untested: tuple[UntestedValues, ...] = Field(
        default=(),
        description="Values that the answer calls good or bad without enough trials (`chance` above 0.05), "
        "on the lines through the boundary: for each ordered culprit axis the longest run of values, for "
        "every other axis all runs.",
    )
    certain: bool = Field(
        default=False,
        description="Whether every bad combination always failed and every good one always passed.",
    )
    cleared: tuple[ClearedCombination, ...] = Field(
        default=(), description="Last good combinations of an answer that stands."
    )
    compatibility: Compatibility | None = Field(
        default=None,
        description="Requirements that describe a frontier between two axes, or a table; null for other "
        "answers.",
    )
    table: CompatibilityTable | None = Field(
        default=None, description="The table of `bisect-env map`; null for other commands."
    )
    others: tuple[FurtherFailure, ...] | None = Field(
        default=None,
        description="Further failing configurations; null unless `bisect-env run --all` was asked.",
    )
    no_other: Number = Field(
        default=None,
        description="Probability that nothing else fails, of `bisect-env run --all`; null before the first "
        "configuration is confirmed.",
    )

    @property
    def is_decided(self) -> bool:
        """Return whether there is an answer, confirmed or likely."""
        return self.status != "none"

    def untried_before_first_bad(self, axis: str) -> list[str]:
        """Return the untried values of an axis directly before the first bad one, in ascending order."""
        for boundary in self.boundaries:
            if boundary.axis == axis and boundary.bad == self.first_bad:
                return boundary.untried_values()
        return []

    def direction(self, axis: str) -> Direction:
        """Return the direction of an axis."""
        return self.directions.get(axis, Direction.REGRESSION)


def calls_bad(verdict: VerdictDocument) -> Callable[[Mapping[str, str]], bool | None]:
    """Return a function that takes a combination and returns whether the verdict calls it bad.

    The function returns None if the verdict says nothing about the combination. For a verdict of the kind
    `all`, a combination is bad iff it has a bad value on every culprit axis; for `any`, iff on at least one.
    A table labels each combination by itself.
    """
    if verdict.table is None:
        return lambda combination: _is_called_bad(verdict, combination)
    said = {frozenset(one.combination.items()): one.verdict == "bad" for one in verdict.table.calls}
    return lambda combination: said.get(frozenset(combination.items()))


def _is_called_bad(verdict: VerdictDocument, combination: Mapping[str, str]) -> bool | None:
    if not verdict.is_decided:
        return None
    if verdict.kind in ("never", "always"):
        return verdict.kind == "always"
    inside = [combination.get(axis) in values for axis, values in verdict.bad_values.items()]
    if verdict.kind not in ("all", "any") or not inside:
        return None
    if verdict.kind == "any":
        return any(inside)
    return all(inside) or any(
        all(combination.get(axis) in values for axis, values in other.bad_values.items())
        for other in verdict.others or ()
        if other.bad_values
    )
