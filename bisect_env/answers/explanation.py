"""The result of `bisect-env explain`: which changed packages cause a failure, as data and in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import Field

from bisect_env.answers.phrases import enumerated, probability
from bisect_env.answers.verdict_document import AnswerPart, Cell


class ChangedPackage(AnswerPart):
    """A package that differs between the good and the bad environment, with both versions."""

    name: str = Field(description="Name of the package.")
    old: str = Field(description="Version in the good environment.")
    new: str = Field(description="Version in the bad environment.")
    of_axis: bool = Field(default=False, description="Whether an axis of the matrix changes this package.")

    def __str__(self) -> str:
        return f"{self.name} {self.old} → {self.new}"


class IntermediateEnvironment(AnswerPart):
    """An environment between the good and the bad one, with its trials."""

    moved: tuple[int, ...] = Field(
        description="Positions in `changes` of the packages that have their version from the bad environment."
    )
    bad: int = Field(description="Bad trials.")
    trials: int = Field(description="Trials that are evidence.")
    interval: tuple[float, float] = Field(
        default=(0.0, 1.0), description="95 % interval of the failure rate."
    )

    @property
    def counts(self) -> str:
        """Return how many of the counted trials were bad as text, such as `34 of 40`."""
        return f"{self.bad} of {self.trials}"


class Explanation(AnswerPart):
    """The answer of `bisect-env explain`: which of the changed packages cause the failure."""

    sentence: str = Field(default="", description="The explanation in one sentence.")
    study: str = Field(default="", description="Id of the study whose failure is explained.")
    good: Cell = Field(description="The combination that passes.")
    bad: Cell = Field(description="The combination that fails.")
    changes: tuple[ChangedPackage, ...] = Field(
        default=(), description="Packages that differ between the two environments, packages of axes first."
    )
    kind: str = Field(
        description="Shape of the answer: `all` (fails only with all culprits together), `any` (fails "
        "with each culprit alone) or `whole` (fails only with all changes)."
    )
    culprits: tuple[int, ...] = Field(default=(), description="Positions in `changes` of the culprits.")
    tied: tuple[tuple[int, ...], ...] = Field(
        default=(), description="Further answers that no solvable environment can distinguish from this one."
    )
    perhaps: tuple[int, ...] = Field(
        default=(),
        description="Positions in `changes` of packages that may also be needed: no solvable environment "
        "has the culprits without them.",
    )
    required: tuple[int, ...] = Field(
        default=(), description="Those of `perhaps` that the culprits themselves require, by their metadata."
    )
    probability: float = Field(description="Probability of the answer, including the answers tied with it.")
    is_sure: bool = Field(description="Whether the stated confidence was reached.")
    intermediates: tuple[IntermediateEnvironment, ...] = Field(
        default=(), description="Environments that were tried, including both ends."
    )
    unsolvable: int = Field(default=0, description="Number of environments in between that have no solution.")
    otherwise: int = Field(
        default=0,
        description="Environments in between that failed in another way than the bad one.",
    )
    extras: dict[str, tuple[str, ...]] = Field(
        default={}, description="Package to the extras with which it is installed, as far as they are known."
    )

    @property
    def with_culprits(self) -> IntermediateEnvironment:
        """Return, of the tried environments that contain all culprits, the one with the fewest changes."""
        wanted = set(self.culprits)
        having = [one for one in self.intermediates if wanted <= set(one.moved)]
        return min(having, key=lambda one: (len(one.moved), -one.trials))

    @property
    def without_culprits(self) -> IntermediateEnvironment:
        """Return the tried environment with the most changes that, according to the answer, does not fail."""
        wanted = set(self.culprits)
        lacking = [one for one in self.intermediates if not self._carries(wanted, set(one.moved))]
        return max(lacking, key=lambda one: (len(one.moved), one.trials))

    @property
    def inseparable(self) -> tuple[int, ...]:
        """Return the positions of changes that occur only together, so that no trial can tell them apart.

        The result is empty if a change, or a set of changes, was identified as the cause.
        """
        if not self.tied:
            return ()
        return tuple(sorted({i for one in (self.culprits, *self.tied) for i in one}))

    @property
    def blamed(self) -> tuple[str, ...]:
        """Return the names of the packages that cause the failure; empty if the answer is not sure yet.

        Packages that no trial can tell apart are all included.
        """
        positions = (self.inseparable or self.culprits) if self.is_sure else ()
        return tuple(self.changes[i].name for i in positions)

    def _carries(self, wanted: set[int], moved: set[int]) -> bool:
        return bool(wanted & moved) if self.kind == "any" else wanted <= moved

    def in_words(self) -> str:
        """Return the answer in one sentence."""
        having, lacking = self.with_culprits, self.without_culprits
        evidence = f"({having.counts} bad, against {lacking.counts} without)"
        sure = f"probability {probability(self.probability)}"
        if len(self.changes) == 1:
            (only,) = self.changes
            return f"{only} is the only package that changed {evidence}"
        culprits = [self.changes[i] for i in self.culprits]
        if not self.is_sure:
            everything = tuple(range(len(self.changes)))
            # The two ends alone tell nothing about one of several changes.
            seen = f" {evidence}" if having.moved != everything or lacking.moved else ""
            text = f"not known yet; most likely {_joined(culprits, 'with')}{seen}"
            return f"{text}{self._in_another_way()}; {sure}"
        if self.kind == "whole":
            return f"nothing less than all {len(self.changes)} changes together carries the failure; {sure}"
        if self.tied:
            names = _joined([self.changes[i] for i in self.inseparable], "and")
            return (
                f"{names} cannot be told apart, for no environment has one without the others; among them is "
                f"what carries the failure {evidence}{self._in_another_way()}; {sure}"
            )
        doubts = f"{self._not_tried_without()}{self._in_another_way()}"
        return f"{self._blame(culprits)} {evidence}{doubts}; {sure}"

    def _in_another_way(self) -> str:
        """Return a clause about environments that failed in another way than the bad one, or ""."""
        if not self.otherwise:
            return ""
        what = "1 environment" if self.otherwise == 1 else f"{self.otherwise} environments"
        return f"; {what} in between failed in another way, which is not counted"

    def _not_tried_without(self) -> str:
        """Return a clause about further changes that the failure may need, or "" if there are none."""
        one = len(self.culprits) == 1
        required = _joined([self.changes[i] for i in self.required], "and")
        text = f", with {required}, which {'it requires' if one else 'they require'}" if required else ""
        rest = _joined([self.changes[i] for i in self.perhaps if i not in self.required], "and")
        if not rest:
            return text
        what = "it does" if one else "they do"
        return f"{text}; whether {what} without {rest} is not known, for no environment allows to try that"

    def _blame(self, culprits: Sequence[ChangedPackage]) -> str:
        named = _joined(culprits, "and" if self.kind == "any" else "together with")
        alone = {"any": "each carry", "all": "carry" if len(culprits) > 1 else "carries"}[self.kind]
        if len(culprits) == 1 and not self.perhaps:
            alone = "alone carries"
        axes = [change.name for change in self.changes if change.of_axis]
        if axes and not any(change.of_axis for change in culprits):
            word = "its dependency " if len(culprits) == 1 else "what came along: "
            return f"not {enumerated(axes, 'or')} itself: {word}{named} {alone} the failure"
        if len(culprits) == 1 and culprits[0].of_axis and not self.perhaps:
            return f"{named} itself, and nothing that came along, carries the failure"
        return f"{named} {alone} the failure"


def _joined(changes: Iterable[ChangedPackage], word: str) -> str:
    return f" {word} ".join(str(change) for change in changes)
