"""One point of the matrix: a value for every axis."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Combination:
    """One value per axis, in the matrix's axis order; hashable, so that it can key counts.

    Attributes:
        items: Pairs (axis name, value). Values are text: `3.10` is a version, not a number.
    """

    items: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, values: Mapping[str, str]) -> Combination:
        """Take the axes in the mapping's order."""
        return cls(tuple(values.items()))

    @classmethod
    def from_key(cls, key: str) -> Combination:
        """Read back what `key` wrote."""
        return cls(tuple((str(axis), str(value)) for axis, value in json.loads(key)))

    @property
    def key(self) -> str:
        """A canonical JSON text: equal combinations have equal keys, in every process and release."""
        return json.dumps(self.items, separators=(",", ":"), ensure_ascii=False)

    def as_dict(self) -> dict[str, str]:
        """Axis name to value, in axis order."""
        return dict(self.items)

    def __getitem__(self, axis: str) -> str:
        for name, value in self.items:
            if name == axis:
                return value
        raise KeyError(axis)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.items)

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.items)
