"""How `exclude` and `include` rules choose combinations. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from packaging.specifiers import SpecifierSet

from bisect_env.matrix.grid import Combination
from bisect_env.matrix.scalars import cutoff
from bisect_env.matrix.schema import Axis, CommitAxis, DateAxis, PackageAxis, Rule
from bisect_env.matrix.versions import order_key, parse_range, same_version

_COMPARISON = re.compile(r"\s*(<=|>=|==|!=|<|>|~=|=)")

_LEAST_DIGITS = 4


def is_comparison(condition: str) -> bool:
    """Return whether a condition compares instead of naming a value."""
    return _COMPARISON.match(condition) is not None


def check_comparison(axis: Axis, condition: str) -> None:
    """Raise an error if a comparison does not apply to the axis.

    Raises:
        ValueError: The message names a remedy.
    """
    if isinstance(axis, PackageAxis):
        for operator, version in _pairs(condition) or [("", "")]:
            if not operator or not version:
                parse_range(condition)
        parse_range(condition)
    elif isinstance(axis, DateAxis):
        pairs = _pairs(condition)
        if not pairs or any(operator in {"~=", "="} for operator, _ in pairs):
            raise ValueError(f"{condition!r} is not a comparison of dates; write one like '>=2026-01-31'")
        for _, date in pairs:
            cutoff(date)
    else:
        text = f"{condition!r} compares, but the values of this axis have no order; list values"
        raise ValueError(text)  # noqa: TRY004 -- callers treat every refusal alike


def matching(axis: Axis, values: Iterable[str], condition: str) -> frozenset[str]:
    """Return the values of an axis that a condition of a rule names.

    Args:
        axis: The axis as the file has it.
        values: Its concrete values.
        condition: A value, or a comparison that `check_comparison` has accepted. A text that is itself a
            value of the axis always means that value.
    """
    known = list(values)
    if condition in known:
        return frozenset({condition})
    if isinstance(axis, PackageAxis):
        if not is_comparison(condition):
            return frozenset(v for v in known if same_version(v, condition, axis.manager))
        specifier = parse_range(condition)
        return frozenset(v for v in known if _contains(specifier, v, axis))
    if isinstance(axis, CommitAxis):
        # Both ends by the words of the file, any commit by the beginning of its hash.
        ends = {axis.from_: known[:1], axis.to: known[-1:]}
        if condition in ends:
            return frozenset(ends[condition])
        begins = [v for v in known if len(condition) >= _LEAST_DIGITS and v.startswith(condition.lower())]
        return frozenset(begins) if len(begins) == 1 else frozenset()
    if isinstance(axis, DateAxis):
        pairs = _pairs(condition) or [("==", condition)]
        return frozenset(
            v for v in known if all(_compare_dates(v, operator, date) for operator, date in pairs)
        )
    return frozenset()


def _contains(specifier: SpecifierSet, version: str, axis: PackageAxis) -> bool:
    try:
        order_key(version, axis.manager)
        return specifier.contains(version, prereleases=True)
    except ValueError:
        # A conda version outside PEP 440 compares with nothing; it can be named exactly.
        return False


def _pairs(condition: str) -> list[tuple[str, str]]:
    pairs = []
    for piece in condition.split(","):
        match = _COMPARISON.match(piece)
        if match is None:
            return []
        pairs.append((match[1], piece[match.end() :].strip()))
    return pairs


def _compare_dates(value: str, operator: str, date: str) -> bool:
    a, b = cutoff(value), cutoff(date)
    return {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b, "==": a == b, "!=": a != b}[operator]


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
        self._skip = {
            name: frozenset().union(*(matching(axis, values[name], c) for c in axis.skip))
            for name, axis in axes.items()
            if axis.skip
        }
        self._exclude = [(rule, _allowed(axes, values, rule)) for rule in exclude]
        self._include = [(rule, _allowed(axes, values, rule)) for rule in include]

    def skipping(self, combination: Combination) -> str | None:
        """Return the axis whose `skip` excludes a combination, None if none does."""
        return next((name for name, skipped in self._skip.items() if combination[name] in skipped), None)

    def excluding(self, combination: Combination) -> int | None:
        """Return the position in `exclude` of the rule that excludes a combination, None if none does."""
        if any(_matches(combination, allowed) for _, allowed in self._include):
            return None
        return next((i for i, (_, a) in enumerate(self._exclude) if _matches(combination, a)), None)

    def why_excluded(self, combination: Combination) -> str | None:
        """Return the reason why a combination is excluded, or None if it is not."""
        if (axis := self.skipping(combination)) is not None:
            return f"skipped: `skip` of {axis} names {combination[axis]}"
        if any(_matches(combination, allowed) for _, allowed in self._include):
            return None
        for rule, allowed in self._exclude:
            if _matches(combination, allowed):
                return rule.why
        if self._include and not self._exclude:
            return "no `include` rule names it"
        return None


def _allowed(
    axes: Mapping[str, Axis], values: Mapping[str, Sequence[str]], rule: Rule
) -> dict[str, frozenset[str]]:
    return {
        name: frozenset().union(*(matching(axes[name], values[name], c) for c in conditions))
        for name, conditions in rule.when.items()
    }


def _matches(combination: Combination, allowed: Mapping[str, frozenset[str]]) -> bool:
    return all(combination[axis] in values for axis, values in allowed.items())
