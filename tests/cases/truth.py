"""Decides whether a verdict on one of the regressions of `matrices/` is right. Reads files, runs nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from bisect_env.matrix.grid import Direction
from bisect_env.matrix.load import load_matrix

MATRICES = Path(__file__).resolve().parents[2] / "matrices"
TRUTH = Path(__file__).parent / "truth"

HEAVY = frozenset({"torch_threads", "cudf_pandas"})
SHARED_TRUTH = {"quickstart": "orjson_window"}


def case_names() -> tuple[str, ...]:
    """Every matrix whose truth is known."""
    known = {path.stem for path in TRUTH.glob("*.jsonl")} | set(SHARED_TRUTH)
    return tuple(sorted(known & {path.stem for path in MATRICES.glob("*.yaml")}))


@dataclass(frozen=True)
class Cell:
    """What was seen at one combination.

    Attributes:
        values: Axis to value.
        built: Whether an environment could be made.
        bad: How often it failed in the way that the matrix is about.
        good: How often it passed.
    """

    values: Mapping[str, str]
    built: bool
    bad: int = 0
    good: int = 0

    @property
    def seen_bad(self) -> bool:
        return self.bad > 0

    @property
    def always_good(self) -> bool:
        return self.built and self.bad == 0 and self.good > 0

    @property
    def says_something(self) -> bool:
        """Unbuildable combinations, and those that fail in another way alone, say nothing."""
        return self.bad + self.good > 0

    def __str__(self) -> str:
        return " ".join(f"{axis}={value}" for axis, value in self.values.items())


def outcomes_of(status: str) -> frozenset[str]:
    """The outcomes that an exit status may stand for."""
    if status == "TIMEOUT":
        return frozenset({"hang"})
    if status == "0":
        return frozenset({"pass"})
    return frozenset({"crash"} if status.startswith("-") else {"exit-fail", "import-error"})


class Truth:
    """All combinations of a matrix, as they were seen.

    Args:
        axes: Axis to its values, in order.
        directions: Axis to direction.
        cells: Those that are known.
    """

    def __init__(
        self,
        axes: Mapping[str, Sequence[str]],
        directions: Mapping[str, Direction],
        cells: Iterable[Cell],
    ) -> None:
        self.axes = {name: tuple(values) for name, values in axes.items()}
        self.directions = dict(directions)
        self.cells = {self._key(cell.values): cell for cell in cells}

    @classmethod
    def load(cls, name: str) -> Truth:
        file = load_matrix(MATRICES / f"{name}.yaml").file
        axes = {axis: spec.listed or () for axis, spec in file.axes.items()}
        target = frozenset(file.trial.bad.outcomes)
        lines = (TRUTH / f"{SHARED_TRUTH.get(name, name)}.jsonl").read_text(encoding="utf-8").splitlines()
        cells = [_cell(json.loads(line), target) for line in lines]
        inside = [cell for cell in cells if all(cell.values[axis] in values for axis, values in axes.items())]
        return cls(axes, {axis: spec.direction for axis, spec in file.axes.items()}, inside)

    def _key(self, values: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(values[axis] for axis in self.axes)

    def complete(self, values: Mapping[str, str]) -> dict[str, str] | None:
        """The combination with axes of one value filled in; None when it is not on the axes."""
        whole = {
            axis: values.get(axis, all_[0] if len(all_) == 1 else "") for axis, all_ in self.axes.items()
        }
        on_axes = all(value in self.axes[axis] for axis, value in whole.items())
        return whole if on_axes and set(values) <= set(self.axes) else None

    def cell(self, values: Mapping[str, str]) -> Cell | None:
        return self.cells.get(self._key(values))

    def along(self, values: Mapping[str, str], axis: str, indices: Iterable[int]) -> Iterator[Cell]:
        """The known cells on a line through a combination, at these positions of the axis."""
        for i in indices:
            cell = self.cell({**values, axis: self.axes[axis][i]})
            if cell is not None:
                yield cell

    def good_neighbours(self, bad: Mapping[str, str], axis: str) -> list[Cell]:
        """The cells that may be called last good along one axis; empty when no boundary is there."""
        here = self.axes[axis].index(bad[axis])
        below = [c for c in self.along(bad, axis, range(here - 1, -1, -1)) if c.says_something]
        above = [c for c in self.along(bad, axis, range(here + 1, len(self.axes[axis]))) if c.says_something]
        match self.directions[axis]:
            case Direction.UNORDERED:
                return [cell for cell in (*below, *above) if cell.always_good]
            case Direction.REGRESSION:
                side = below
            case Direction.FIXED:
                side = above
            case _:
                # Broken, then fixed: "first bad" is where it broke, unless it was broken from the start.
                side = below if any(cell.always_good for cell in below) else above
        return side[:1] if side and side[0].always_good else []

    def called_bad(self, first_bad: Mapping[str, str], culprits: Iterable[str]) -> Iterator[Cell]:
        """The known cells that a verdict calls bad without a doubt."""
        culprits = list(culprits)
        for cell in self.cells.values():
            if all(self._on_bad_side(axis, cell.values[axis], first_bad[axis]) for axis in culprits):
                yield cell

    def _on_bad_side(self, axis: str, value: str, first_bad: str) -> bool:
        values = self.axes[axis]
        match self.directions[axis]:
            case Direction.REGRESSION:
                return values.index(value) >= values.index(first_bad)
            case Direction.FIXED:
                return values.index(value) <= values.index(first_bad)
            case _:
                return value == first_bad

    def answer(self) -> str:
        """All true boundaries, for people: `orjson 3.9.10 → 3.9.11`."""
        found: dict[str, None] = {}
        for cell in self.cells.values():
            for axis in self.axes:
                if cell.seen_bad and len(self.axes[axis]) > 1:
                    for good in self.good_neighbours(cell.values, axis):
                        found[f"{axis} {good.values[axis]} → {cell.values[axis]}"] = None
        return ", ".join(found)


def _cell(line: Mapping[str, Any], target: frozenset[str]) -> Cell:
    bad = good = 0
    for status, count in line.get("exit", {}).items():
        outcomes = outcomes_of(status)
        bad += count if outcomes & target else 0
        good += count if outcomes == {"pass"} else 0
    return Cell(line["cell"], line["built"], bad, good)


def check(case_name: str, report: Mapping[str, Any]) -> list[str]:
    """What is wrong with a verdict.

    Args:
        case_name: Stem of the matrix file.
        report: As `bisect-env report --format json` writes it.

    Returns:
        Nothing when the verdict is right.
    """
    return check_against(Truth.load(case_name), report)


def check_against(truth: Truth, report: Mapping[str, Any]) -> list[str]:
    """The rule of `check`, for any truth."""
    verdict = report.get("verdict") or {}
    if verdict.get("status") not in {"confirmed", "likely"}:
        return [f"no verdict ({verdict.get('reason') or 'no reason given'})"]
    ends: dict[str, Mapping[str, str]] = {}
    problems = []
    for end in ("first_bad", "last_good"):
        values = truth.complete(verdict.get(end) or {})
        if values is None:
            problems.append(f"{end} {verdict.get(end)} is no combination of the matrix")
        elif truth.cell(values) is None:
            problems.append(f"{end} {values} was not part of the sweep")
        else:
            ends[end] = values
    culprits = list(verdict.get("culprit_axes") or ())
    unknown = [axis for axis in culprits if axis not in truth.axes]
    if not culprits or unknown:
        problems.append(f"culprit axes are {unknown or 'missing'}")
    if problems:
        return problems
    kind = verdict.get("kind")
    if kind in ("any", "frontier", "pair", "table"):
        # Along a frontier every axis matters, and a combination lies at the boundary of one of them. The same
        # holds where any of several axes suffices.
        bad, good = ends["first_bad"], ends["last_good"]
        culprits = [axis for axis in culprits if bad[axis] != good[axis]]
    if kind in ("frontier", "pair", "table"):
        called = _excluded_is_bad(truth, verdict)
    else:
        called = _called_bad(truth, ends["first_bad"], culprits)
    return [
        *_ends_as_seen(truth, ends["first_bad"], ends["last_good"]),
        *_boundary(truth, ends["first_bad"], ends["last_good"], culprits),
        *called,
        *_unbuildable_named(truth, ends["first_bad"], ends["last_good"], report),
    ]


def _excluded_is_bad(truth: Truth, verdict: Mapping[str, Any]) -> Iterator[str]:
    """Whether the rules that a verdict gives leave out what was seen to fail, and nothing else."""
    rules = (verdict.get("compatibility") or {}).get("exclude")
    if not rules:
        return
    for cell in truth.cells.values():
        if not cell.says_something:
            continue
        excluded = any(
            all(
                SpecifierSet(what.replace("*", "")).contains(cell.values[axis])
                if isinstance(what, str)
                else cell.values[axis] in what
                for axis, what in one["when"].items()
            )
            for one in rules
        )
        if excluded and cell.always_good:
            yield f"{cell} is excluded, and was never seen to fail"
        if cell.seen_bad and not excluded:
            yield f"{cell} was seen to fail, and is not excluded"


def _ends_as_seen(truth: Truth, bad: Mapping[str, str], good: Mapping[str, str]) -> Iterator[str]:
    first_bad, last_good = truth.cell(bad), truth.cell(good)
    assert first_bad is not None
    assert last_good is not None
    if not first_bad.seen_bad:
        yield f"first bad {first_bad} was never seen to fail"
    if not last_good.always_good:
        yield f"last good {last_good} was seen to fail {last_good.bad} times, to pass {last_good.good} times"


def _boundary(
    truth: Truth, bad: Mapping[str, str], good: Mapping[str, str], culprits: Sequence[str]
) -> Iterator[str]:
    differing = [axis for axis in truth.axes if bad[axis] != good[axis]]
    if not differing:
        yield "first bad and last good are the same combination"
    for axis in differing:
        if axis not in culprits:
            yield f"last good differs on {axis}, which is not named as a culprit"
    for axis in culprits:
        neighbours = {cell.values[axis] for cell in truth.good_neighbours(bad, axis)}
        if not neighbours:
            yield f"{axis} is no culprit, or {bad[axis]} not its boundary"
        elif axis in differing and good[axis] not in neighbours:
            nearest = " or ".join(sorted(neighbours))
            yield f"last good has {axis}={good[axis]}, but {nearest} is next to first bad"


def _called_bad(truth: Truth, bad: Mapping[str, str], culprits: Sequence[str]) -> Iterator[str]:
    for cell in truth.called_bad(bad, culprits):
        if cell.always_good:
            yield f"the verdict calls {cell} bad, which passed all of {cell.good} runs"


def _unbuildable_named(
    truth: Truth, bad: Mapping[str, str], good: Mapping[str, str], report: Mapping[str, Any]
) -> Iterator[str]:
    differing = [axis for axis in truth.axes if bad[axis] != good[axis]]
    if len(differing) != 1:
        return
    (axis,) = differing
    low, high = sorted(truth.axes[axis].index(end[axis]) for end in (bad, good))
    entries = report.get("combinations") or []
    named = [entry.get("combination") for entry in entries if "env-un" in json.dumps(entry)]
    for cell in truth.along(bad, axis, range(low + 1, high)):
        if not cell.built and truth.directions[axis] is not Direction.UNORDERED and cell.values not in named:
            yield f"{cell} cannot be built and lies on the boundary, and the report does not say so"
