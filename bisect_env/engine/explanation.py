"""What was found out about the packages that carry a failure, as data and in words. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bisect_env.report.numbers import probability
from bisect_env.search.intervals import clopper_pearson


@dataclass(frozen=True, slots=True)
class Moved:
    """A package that changed.

    Attributes:
        name: Of the package.
        old: What the good environment has.
        new: What the bad one has.
        of_axis: Whether an axis of the matrix moves it.
    """

    name: str
    old: str
    new: str
    of_axis: bool

    def __str__(self) -> str:
        return f"{self.name} {self.old} → {self.new}"


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Trials of an environment between the two.

    Attributes:
        moved: Positions of the packages that are as in the bad one.
        bad: Bad trials.
        trials: That are evidence.
    """

    moved: tuple[int, ...]
    bad: int
    trials: int

    @property
    def counts(self) -> str:
        """`34 of 40`."""
        return f"{self.bad} of {self.trials}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Which packages carry a failure.

    Attributes:
        study: Id of the study that is explained.
        good: The combination that passes, axis to value.
        bad: The one that fails.
        changes: Everything that changed between them, packages of axes first.
        kind: `all` (the culprits together), `any` (each by itself) or `whole` (nothing less than everything).
        culprits: Positions in `changes`.
        tied: Further answers that no environment tells from this one.
        probability: Of the answer, those tied to it included.
        is_sure: Whether the confidence was reached.
        hybrids: What was tried, both ends included.
        unsolvable: How many environments in between the solver refused.
    """

    study: str
    good: dict[str, str]
    bad: dict[str, str]
    changes: tuple[Moved, ...]
    kind: str
    culprits: tuple[int, ...]
    tied: tuple[tuple[int, ...], ...]
    probability: float
    is_sure: bool
    hybrids: tuple[Hybrid, ...]
    unsolvable: int

    @property
    def with_culprits(self) -> Hybrid:
        """The smallest environment tried that has the culprits: what carries the failure, and little else."""
        wanted = set(self.culprits)
        having = [h for h in self.hybrids if wanted <= set(h.moved)]
        return min(having, key=lambda h: (len(h.moved), -h.trials))

    @property
    def without_culprits(self) -> Hybrid:
        """Of those tried without them the one nearest to the bad end."""
        wanted = set(self.culprits)
        lacking = [h for h in self.hybrids if not self._carries(wanted, set(h.moved))]
        return max(lacking, key=lambda h: (len(h.moved), h.trials))

    def _carries(self, wanted: set[int], moved: set[int]) -> bool:
        return bool(wanted & moved) if self.kind == "any" else wanted <= moved

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        having, lacking = self.with_culprits, self.without_culprits
        evidence = f"({having.counts} bad, against {lacking.counts} without)"
        sure = f"probability {probability(self.probability)}"
        if len(self.changes) == 1:
            (only,) = self.changes
            return f"{only} is the only package that changed {evidence}"
        culprits = [self.changes[i] for i in self.culprits]
        if not self.is_sure:
            return f"not known yet; most likely {_joined(culprits, 'with')} {evidence}; {sure}"
        if self.kind == "whole":
            return f"nothing less than all {len(self.changes)} changes together carries the failure; {sure}"
        if self.tied:
            others = sorted({i for one in (self.culprits, *self.tied) for i in one})
            names = _joined([self.changes[i] for i in others], "and")
            return (
                f"{names} cannot be told apart, for no environment has one without the others; among them is "
                f"what carries the failure {evidence}; {sure}"
            )
        return f"{self._blame(culprits)} {evidence}; {sure}"

    def _blame(self, culprits: Sequence[Moved]) -> str:
        named = _joined(culprits, "and" if self.kind == "any" else "together with")
        alone = {"any": "each carry", "all": "carry" if len(culprits) > 1 else "carries"}[self.kind]
        if len(culprits) == 1:
            alone = "alone carries"
        axes = [change.name for change in self.changes if change.of_axis]
        if axes and not any(change.of_axis for change in culprits):
            word = "its dependency " if len(culprits) == 1 else "what came along: "
            return f"not {_names(axes)} itself: {word}{named} {alone} the failure"
        if len(culprits) == 1 and culprits[0].of_axis:
            return f"{named} itself, and nothing that came along, carries the failure"
        return f"{named} {alone} the failure"

    def document(self) -> dict[str, Any]:
        """The same as a JSON object; `read` is its inverse."""
        return {
            "schema": 1,
            **dataclasses.asdict(self),
            "hybrids": [
                {**dataclasses.asdict(h), "interval": list(clopper_pearson(h.bad, h.trials))}
                for h in self.hybrids
            ],
            "sentence": self.sentence,
        }

    @classmethod
    def read(cls, document: dict[str, Any]) -> Explanation:
        """An explanation from its document.

        Raises:
            KeyError: It is none.
        """
        return cls(
            study=str(document["study"]),
            good=dict(document["good"]),
            bad=dict(document["bad"]),
            changes=tuple(Moved(c["name"], c["old"], c["new"], c["of_axis"]) for c in document["changes"]),
            kind=str(document["kind"]),
            culprits=tuple(document["culprits"]),
            tied=tuple(tuple(one) for one in document["tied"]),
            probability=float(document["probability"]),
            is_sure=bool(document["is_sure"]),
            hybrids=tuple(Hybrid(tuple(h["moved"]), h["bad"], h["trials"]) for h in document["hybrids"]),
            unsolvable=int(document["unsolvable"]),
        )


def _joined(changes: Iterable[Moved], word: str) -> str:
    return f" {word} ".join(str(change) for change in changes)


def _names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
