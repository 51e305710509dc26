"""Applies the rules of a matrix (`exclude`, `include` and `skip`) to values and combinations. Pure.

A rule consists of *conditions*. A condition is a value of an axis, or a comparison such as `>=2.1,<2.6`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from bisect_env.matrix.grid import Combination, Exclusion, GridAxis
from bisect_env.matrix.problems import near
from bisect_env.matrix.scalars import cutoff
from bisect_env.matrix.schema import Axis, CommitAxis, DateAxis, PackageAxis, Rule
from bisect_env.matrix.versions import Manager, check_version, order_key, parse_range, same_version

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
"""Minimum number of digits of a shortened commit hash in a condition."""


def matching(axis: Axis, values: Iterable[str], condition: str) -> tuple[str, ...]:
    """Return the values of an axis that meet a condition, such as `2.3.1` or `>=2.1,<2.6`.

    The result has the order of `values`.

    Args:
        axis: Axis as defined in the matrix file.
        values: Values of the axis.
        condition: Value or comparison. Text that is equal to a value of the axis always means that value.

    Raises:
        ValueError: The comparison or date is invalid for this axis; the message names a remedy.
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
            # The first and last commit can be named as in the file, any commit by the beginning of its hash.
            ends = {axis.from_: known[:1], axis.to: known[-1:]}
            if condition in ends:
                return ends[condition]
            begins = [v for v in known if len(condition) >= _LEAST_DIGITS and v.startswith(condition.lower())]
            return tuple(begins) if len(begins) == 1 else ()
    return ()


def _compared(axis: Axis, values: Sequence[str], condition: str) -> tuple[str, ...]:
    """Return the values of an axis that meet a comparison such as `>=2.1,<2.6`.

    Raises:
        ValueError: The comparison is invalid, or the values of the axis have no order.
    """
    if isinstance(axis, DateAxis):
        return _within(values, condition, cutoff, "dates; write one like '>=2026-01-31'")
    if not isinstance(axis, PackageAxis):
        raise ValueError(  # noqa: TRY004 -- callers show a ValueError as the mistake of the user
            f"{condition!r} compares, but the values of this axis have no order; list values"
        )
    if axis.uses_conda and not set("*~") & set(condition):
        return _within(values, condition, _conda_key, "versions; write one like '>=2.1,<2.6'")
    specifier = parse_range(condition)

    def contains(version: str) -> bool:
        try:
            order_key(version, axis.manager)
            return specifier.contains(version, prereleases=True)
        except ValueError:
            # A conda version that is not valid in PEP 440 meets no pattern; it can be named exactly.
            return False

    return tuple(value for value in values if contains(value))


def _conda_key(version: str) -> Any:
    return order_key(check_version(version, Manager.CONDA), Manager.CONDA)


def _within(values: Iterable[str], condition: str, read: Callable[[str], Any], kind: str) -> tuple[str, ...]:
    """Return the values between the bounds of a comparison such as `>=2.1,<2.6`.

    Args:
        values: Values to compare.
        condition: The comparison: one or more operators, each with a value.
        read: Function that converts a value to a sort key, and raises ValueError if it is invalid.
        kind: End of the message about an invalid comparison: what is compared, and a remedy.
    """
    found = [(_COMPARISON.match(piece), piece) for piece in condition.split(",")]
    pairs = [(_COMPARE.get(sign[1]), piece[sign.end() :].strip()) for sign, piece in found if sign]
    bounds = [(compare, read(value)) for compare, value in pairs if compare]
    if len(bounds) < len(found):
        raise ValueError(f"{condition!r} is not a comparison of {kind}")
    return tuple(value for value in values if all(is_so(read(value), bound) for is_so, bound in bounds))


def named_value(axis: Axis, values: Sequence[str], text: str) -> str | None:
    """Find the value of an axis that a user's text names, such as a shortened commit hash, or return None.

    A comparison such as `>=2.1` names no value.
    """
    if _COMPARISON.match(text) and text not in values:
        return None
    try:
        return next(iter(matching(axis, values, text)), None)
    except ValueError:
        return None


def condition_problem(
    axis: Axis, name: str, condition: str, found: GridAxis | None = None, *, where: str = "the rule"
) -> str | None:
    """Return an error message if a condition of a rule is invalid for an axis, or None if it is valid.

    Package indexes are not queried, so values of a range are checked only if `found` is given.

    Args:
        axis: Axis as defined in the matrix file.
        name: Name of the axis.
        condition: Value or comparison.
        found: The axis with the values that were found for its range. A condition may also name a release or
            commit that was left out.
        where: Where the user wrote the condition, for the message.
    """
    values = axis.listed if found is None else found.values
    left = () if found is None else (*found.dropped, *found.passed_over)
    if _COMPARISON.match(condition):
        try:
            matching(axis, values or (), condition)
        except ValueError as error:
            return f"{where} about {name!r}: {error}"
    elif values is not None and not any(named_value(axis, some, condition) for some in (values, left)):
        return f"{where} names {condition!r}, which is not on the axis {name!r}; {near(condition, values)}"
    return None


class RuleSet:
    """All rules of a matrix, prepared so that many combinations can be checked quickly.

    Args:
        axes: Name to axis, in the order of the matrix.
        values: Name of each axis to its values.
        exclude: Rules that exclude combinations.
        include: Rules that keep combinations although a rule of `exclude` matches. If `exclude` is empty, all
            combinations that match no rule of `include` are excluded.
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
        """Return the rule that excludes a combination, with the reason, or None if no rule does."""
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
