"""How the conditions of `exclude`, `include` and `skip` choose values and combinations. Pure."""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bisect_env.matrix.grid import Combination
from bisect_env.matrix.problems import Path, near
from bisect_env.matrix.scalars import cutoff
from bisect_env.matrix.schema import Axis, CommitAxis, DateAxis, PackageAxis, Rule
from bisect_env.matrix.versions import order_key, parse_range, same_version

_COMPARISON = re.compile(r"\s*(<=|>=|==|!=|<|>|~=|=)\s*")
_COMPARE = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}

_LEAST_DIGITS = 4
"""Digits of a hash that name a commit."""


def matching(axis: Axis, values: Iterable[str], condition: str) -> tuple[str, ...]:
    """Return the values of an axis that a condition of a rule names, in their order.

    Args:
        axis: The axis as the file has it.
        values: Its concrete values.
        condition: A value or a comparison. A text that is itself a value of the axis always means that value.

    Raises:
        ValueError: The axis knows no such comparison or date; the message names a remedy.
    """
    known = tuple(values)
    if condition in known:
        return (condition,)
    if _COMPARISON.match(condition):
        return _compared(axis, known, condition)
    match axis:
        case PackageAxis():
            return tuple(v for v in known if same_version(v, condition, axis.manager))
        case DateAxis():
            instant = cutoff(condition)
            return tuple(v for v in known if cutoff(v) == instant)
        case CommitAxis():
            # Both ends by the words of the file, any commit by the beginning of its hash.
            ends = {axis.from_: known[:1], axis.to: known[-1:]}
            if condition in ends:
                return ends[condition]
            begins = [v for v in known if len(condition) >= _LEAST_DIGITS and v.startswith(condition.lower())]
            return tuple(begins) if len(begins) == 1 else ()
    return ()


def _compared(axis: Axis, values: Sequence[str], condition: str) -> tuple[str, ...]:
    """Return the values that a comparison such as `>=2.1,<2.6` names."""
    if isinstance(axis, PackageAxis):
        specifier = parse_range(condition)

        def contains(version: str) -> bool:
            try:
                order_key(version, axis.manager)
                return specifier.contains(version, prereleases=True)
            except ValueError:
                # A conda version outside PEP 440 compares with nothing; it can be named exactly.
                return False

        return tuple(value for value in values if contains(value))
    if isinstance(axis, DateAxis):
        found = [(_COMPARISON.match(piece), piece) for piece in condition.split(",")]
        pairs = [(_COMPARE.get(sign[1]), piece[sign.end() :].strip()) for sign, piece in found if sign]
        bounds = [(compare, cutoff(date)) for compare, date in pairs if compare]
        if len(bounds) < len(found):
            raise ValueError(f"{condition!r} is not a comparison of dates; write one like '>=2026-01-31'")
        return tuple(value for value in values if all(is_so(cutoff(value), day) for is_so, day in bounds))
    raise ValueError(f"{condition!r} compares, but the values of this axis have no order; list values")


def named_value(axis: Axis, values: Sequence[str], text: str) -> str | None:
    """Return the value of an axis that a text names; None if there is none, or if the text compares."""
    if _COMPARISON.match(text) and text not in values:
        return None
    try:
        return next(iter(matching(axis, values, text)), None)
    except ValueError:
        return None


def condition_problem(axis: Axis, name: str, condition: str) -> str | None:
    """Return why a condition cannot be one of a rule about an axis, or None.

    Args:
        axis: The axis as the file has it; nothing is asked of an index.
        name: Its name.
        condition: A value or a comparison.
    """
    values = axis.listed
    if _COMPARISON.match(condition):
        try:
            matching(axis, values or (), condition)
        except ValueError as error:
            return f"the rule about {name!r}: {error}"
    elif values is not None and named_value(axis, values, condition) is None:
        return f"the rule names {condition!r}, which is not on the axis {name!r}; {near(condition, values)}"
    return None


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The rule that excludes a combination.

    Attributes:
        key: Path of the key in the matrix file that excludes it.
        why: The reason that is shown.
    """

    key: Path
    why: str


class RuleSet:
    """All rules of a matrix, with their conditions resolved to values once for each axis.

    Args:
        axes: Name to axis, in order.
        values: Name to concrete values.
        exclude: Rules that exclude combinations.
        include: Rules that include them again; without `exclude`, the only combinations to keep.
    """

    def __init__(
        self,
        axes: Mapping[str, Axis],
        values: Mapping[str, Sequence[str]],
        exclude: Collection[Rule],
        include: Collection[Rule],
    ) -> None:
        def resolved(name: str, conditions: Iterable[str]) -> frozenset[str]:
            return frozenset(v for one in conditions for v in matching(axes[name], values[name], one))

        def allowed(rule: Rule) -> dict[str, frozenset[str]]:
            return {name: resolved(name, conditions) for name, conditions in rule.when.items()}

        self._skip = {name: resolved(name, axis.skip) for name, axis in axes.items() if axis.skip}
        self._exclude = [(rule.why, allowed(rule)) for rule in exclude]
        self._include = [allowed(rule) for rule in include]

    def excluding(self, combination: Combination) -> Exclusion | None:
        """Return what excludes a combination, or None."""
        for axis, values in self._skip.items():
            if combination[axis] in values:
                return Exclusion(
                    ("axes", axis, "skip"), f"skipped: `skip` of {axis} names {combination[axis]}"
                )
        if any(_matches(combination, allowed) for allowed in self._include):
            return None
        for i, (why, allowed) in enumerate(self._exclude):
            if _matches(combination, allowed):
                return Exclusion(("exclude", i), why)
        if self._include and not self._exclude:
            return Exclusion(("include",), "no `include` rule names it")
        return None


def _matches(combination: Combination, allowed: Mapping[str, frozenset[str]]) -> bool:
    return all(combination[axis] in values for axis, values in allowed.items())
