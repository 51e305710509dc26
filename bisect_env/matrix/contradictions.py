"""Finds contradictions between keys of a matrix file that are valid on their own. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from bisect_env.matrix.grid import Direction, GridAxis
from bisect_env.matrix.problems import Path, Problem, line_of, near
from bisect_env.matrix.rules import condition_problem, named_value
from bisect_env.matrix.scalars import package_of, placeholders
from bisect_env.matrix.schema import (
    LEAST_RATE,
    Axis,
    CommitAxis,
    DateAxis,
    EnvironmentAxis,
    MatrixFile,
    PackageAxis,
    Packages,
    WholeEnvironment,
    axes_in_variable,
    variable,
)
from bisect_env.matrix.signatures import FROM_BAD_END

_EXTRA_ALONE = re.compile(r"[\w.-]+\s*\[[^]]*\]")
"""A requirement that asks for an extra of a package, of any version."""


def cross_checks(file: MatrixFile, lines: Mapping[Path, int]) -> list[Problem]:
    """Find all keys of a matrix file that contradict each other, although each is valid on its own.

    Args:
        file: The validated matrix file.
        lines: Path of each key to its line number, for the messages.
    """
    found = [
        *_axes_among_themselves(file),
        *_packages_once(file),
        *_channels(file),
        *_indexes(file),
        *_placeholders(file),
        *rule_contradictions(file),
        *end_contradictions(file, {name: axis.listed for name, axis in file.axes.items()}),
        *_target(file),
        *_rates(file),
        *_commits(file),
    ]
    pypi = ("packages", "pypi")
    if pypi not in lines:
        # `packages: [...]` is a short form of `packages: {pypi: [...]}`.
        found = [((path[0], *path[2:]) if path[:2] == pypi else path, text) for path, text in found]
    return [Problem(text, line_of(path, lines)) for path, text in found]


Contradiction = tuple[Path, str]
"""Path of the key to blame, and the message."""


def _axes_among_themselves(file: MatrixFile) -> Iterator[Contradiction]:
    variables: dict[str, str] = {}
    for name in file.axes:
        other = variables.setdefault(variable(name), name)
        if other != name:
            text = f"the axes {other!r} and {name!r} share the variable {variable(name)}; rename one"
            yield ("axes", name), text
    dates = [name for name, axis in file.axes.items() if isinstance(axis, DateAxis)]
    whole = [name for name, axis in file.axes.items() if isinstance(axis, EnvironmentAxis)]
    for name in whole[1:]:
        yield ("axes", name), f"the axes {whole[0]!r} and {name!r} are both environments; merge them into one"
    for name in dates[1:]:
        yield ("axes", name), f"the axes {dates[0]!r} and {name!r} are both dates; keep one"
    if file.solver.engine == "conda-lock" and (dates or file.exclude_newer is not None):
        text = "conda-lock knows no channel as it was on a day; solve with rattler, or remove the date"
        yield ("solver",), text
    if dates and file.exclude_newer is not None:
        text = f"exclude_newer contradicts the date axis {dates[0]!r}, which sets it; remove exclude_newer"
        yield ("exclude_newer",), text


def _packages_once(file: MatrixFile) -> Iterator[Contradiction]:
    """Yield a contradiction for each package that is named in two places of the file."""
    axes: dict[str, str] = {}
    for name, axis in file.axes.items():
        if isinstance(axis, PackageAxis | CommitAxis):
            other = axes.setdefault(axis.canonical_package, name)
            if other != name:
                text = f"the axes {other!r} and {name!r} are both about {axis.package!r}; merge them into one"
                yield ("axes", name, "package"), text
    # Compare names in a common spelling, because names of conda packages may contain underscores.
    by_axis = {package_of(package): f"the axis {name!r}" for package, name in axes.items()}
    lists: list[tuple[Path, Packages, dict[str, str]]] = [(("packages",), file.packages, by_axis)]
    anywhere = {package_of(text): "`packages`" for text in (*file.packages.pypi, *file.packages.conda)}
    for name, axis in file.axes.items():
        for value, one in axis.environments.items() if isinstance(axis, EnvironmentAxis) else ():
            lists.append((("axes", name, "environments", value), one, anywhere | by_axis))
    for path, packages, elsewhere in lists:
        if isinstance(packages, WholeEnvironment) and packages.python and "python" in by_axis:
            text = f"the environment has a Python, and {by_axis['python']} has one, too; remove one of them"
            yield (*path, "python"), text
        for manager, texts in (("pypi", packages.pypi), ("conda", packages.conda)):
            seen: set[str] = set()
            for i, text in enumerate(texts):
                package = package_of(text)
                # An axis gives the version of a package, and `packages` may ask for an extra of it.
                is_extra = manager == "pypi" and _EXTRA_ALONE.fullmatch(text) and package in by_axis
                if (where := elsewhere.get(package)) and not is_extra:
                    yield (*path, manager, i), f"{text!r} is about a package that {where} names; remove it"
                elif package in seen and ";" not in text:
                    yield (*path, manager, i), f"{text!r} names {package!r} a second time; merge the two"
                seen.add(package)


def _channels(file: MatrixFile) -> Iterator[Contradiction]:
    if file.channels:
        return
    text = "comes from conda, and the file names no channel; add `channels: [conda-forge]` or others"
    for name, axis in file.axes.items():
        if axis.uses_conda:
            key = "manager" if isinstance(axis, PackageAxis) else "environments"
            yield ("axes", name, key), f"the axis {name!r} {text}"
            return
    if file.packages.conda:
        yield ("packages", "conda"), f"{file.packages.conda[0]!r} {text}"


def _indexes(file: MatrixFile) -> Iterator[Contradiction]:
    for name, axis in file.axes.items():
        if isinstance(axis, PackageAxis) and axis.index is not None and axis.index not in file.indexes:
            text = f"there is no index {axis.index!r} in `indexes`; {near(axis.index, file.indexes)}"
            yield ("axes", name, "index"), f"the axis {name!r}: {text}"


def _placeholders(file: MatrixFile) -> Iterator[Contradiction]:
    words: list[tuple[Path, str, str]] = []
    if file.executor is not None:
        words.append((("executor", "image"), "executor.image", file.executor.image))
    command = enumerate(file.trial.command)
    words += [(("trial", "command", i), "trial.command", word) for i, word in command]
    named = [(path, key, name) for path, key, word in words for name in placeholders(word)]
    variables = file.trial.env.items()
    named += [
        (("trial", "env", key), f"trial.env.{key}", name)
        for key, text in variables
        for name in axes_in_variable(text)
    ]
    for path, key, name in named:
        if name not in file.axes:
            literal = f", or write {{{{{name}}}}} for the braces" if key.startswith("trial.env") else ""
            yield path, f"{key}: {{{name}}} is no axis; {near(name, file.axes)}{literal}"


def rule_contradictions(
    file: MatrixFile, found: Mapping[str, GridAxis] | None = None
) -> Iterator[Contradiction]:
    """Yield a contradiction for each condition of a rule that is invalid for its axis.

    Args:
        file: Content of the matrix file.
        found: Name of a range axis to the axis with the values that were found for it. Values of other range
            axes are not checked.
    """
    known = found or {}
    for name, axis in file.axes.items():
        for i, value in enumerate(axis.skip):
            if problem := condition_problem(axis, name, value, known.get(name), where="`skip`"):
                yield ("axes", name, "skip", i), problem
    rules = [(("exclude", i), rule) for i, rule in enumerate(file.exclude)]
    rules += [(("include", i), rule) for i, rule in enumerate(file.include)]
    for path, rule in rules:
        for name, conditions in rule.when.items():
            inside: Path = (*path, "when", name)
            if name not in file.axes:
                yield inside, f"the rule names the axis {name!r}; {near(name, file.axes)}"
                continue
            axis = file.axes[name]
            for i, condition in enumerate(conditions):
                problem = condition_problem(axis, name, condition, known.get(name))
                if problem:
                    yield (*inside, i), problem


def end_contradictions(
    file: MatrixFile, found: Mapping[str, tuple[str, ...] | None]
) -> Iterator[Contradiction]:
    """Yield a contradiction for each mistake in the combinations that are stated as good and bad.

    They contradict each other if both are the same combination, or if each value of the good one equals the
    bad value or lies further in the direction of failure.

    Args:
        file: Content of the matrix file.
        found: Axis name to the values of the axis; None if they are not known yet, so that a stated value
            cannot be checked.
    """
    for end, values in (("good", file.good), ("bad", file.bad)):
        if values is None:
            continue
        for name in values:
            if name not in file.axes:
                yield (end, name), f"{end} names the axis {name!r}; {near(name, file.axes)}"
        for name, axis in file.axes.items():
            if problem := _end_value_problem(end, name, found.get(name), axis, values.get(name)):
                yield (end, name), problem
    good, bad = (end_index(file, end, found) for end in (file.good, file.bad))
    if good is None or bad is None:
        return
    if good == bad:
        yield ("bad",), "good and bad are the same combination; correct one"
    elif all(
        _not_better(axis.direction, one, other)
        for axis, one, other in zip(file.axes.values(), good, bad, strict=True)
    ):
        text = (
            "by the directions of the axes, whatever breaks `bad` breaks `good` too; "
            "if you mixed them up, swap good and bad; or correct a `direction`"
        )
        yield ("good",), text


def _commits(file: MatrixFile) -> Iterator[Contradiction]:
    """Yield a contradiction for each commit axis that is unordered or combined with conda packages."""
    for name, axis in file.axes.items():
        if not isinstance(axis, CommitAxis):
            continue
        if file.uses_conda:
            text = "commits are built for Pythons that are no conda packages; take the packages from PyPI"
            yield ("axes", name), f"the axis {name!r}: {text}"
        if axis.direction is Direction.UNORDERED:
            text = f"the axis {name!r}: commits have an order; leave `direction: unordered` out"
            yield ("axes", name, "direction"), text


def _target(file: MatrixFile) -> Iterator[Contradiction]:
    if file.trial.bad.signature == FROM_BAD_END and file.bad is None:
        text = f"`{FROM_BAD_END}` needs a combination that is known to be bad; add the key `bad`"
        yield ("trial", "bad", "signature"), text


def _rates(file: MatrixFile) -> Iterator[Contradiction]:
    rate, lowest = file.search.crash_rate, file.search.min_crash_rate
    if rate is not None and rate < lowest:
        text = f"crash_rate is {rate:g}, and no rate below min_crash_rate ({lowest:g}) is looked for"
        yield ("search", "crash_rate"), f"{text}; add `min_crash_rate: {max(rate / 4, LEAST_RATE):.1g}`"


def _end_value_problem(
    end: str, name: str, values: tuple[str, ...] | None, axis: Axis, value: str | None
) -> str | None:
    """Return an error message if the key `good` or `bad` gives a wrong value for an axis.

    Return None if the value is right, or if the values of the axis are not known yet.

    Args:
        end: Key of the matrix file, `good` or `bad`, for the message.
        name: Name of the axis.
        values: Values of the axis; None if they are not known yet.
        axis: The axis.
        value: Value stated for the axis; None if the key does not name the axis.
    """
    if values is None:
        return None
    if value is None:
        if len(values) == 1:
            return None
        return f"{end} says nothing about the axis {name!r}, which has {len(values)} values; add it"
    if named_value(axis, values, value) is None:
        return f"{end} has {name}: {value}, which is not on the axis; {near(value, values)}"
    return None


def end_index(
    file: MatrixFile, stated: Mapping[str, str] | None, found: Mapping[str, tuple[str, ...] | None]
) -> tuple[int, ...] | None:
    """Return the position of each value of the combination that the matrix file states as good or bad.

    Return None if it states none, or if the values of an axis are not known or lack the stated one.

    Args:
        file: Content of the matrix file.
        stated: Content of the key `good` or `bad`.
        found: Axis name to the values of the axis; None if they are not known yet.
    """
    if stated is None:
        return None
    index = []
    for name, axis in file.axes.items():
        values = found.get(name) or ()
        text = stated.get(name, values[0] if len(values) == 1 else "")
        value = named_value(axis, values, text)
        if value is None:
            return None
        index.append(values.index(value))
    return tuple(index)


def _not_better(direction: Direction, good: int, bad: int) -> bool:
    if direction is Direction.REGRESSION:
        return good >= bad
    if direction is Direction.FIXED:
        return good <= bad
    return good == bad
