"""Formats the compatibility table for a page, a bug report or a spreadsheet. Pure.

Rows and columns are the two axes that matter most; each combination of the others has a table of its own. A
combination that was not tried itself stands in brackets: the trials of others say what it is.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bisect_env.report.model import AxisInfo, CombinationReport, Report
from bisect_env.report.untrusted import clean

WORDS = {"good": "works", "bad": "fails", "": "?", "out": "-"}
MARKS = {"good": "✓", "bad": "✗", "": "?", "out": "–"}
MOST_SLICES = 30
"""Tables that a report shows."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of the table.

    Attributes:
        called: `good`, `bad`, `out` for one that cannot be tried, or "" for one that is not known.
        tried: Whether its own trials say so.
        counts: `3/10` for one that failed and passed, else "".
    """

    called: str
    tried: bool
    counts: str

    def text(self, marks: Mapping[str, str]) -> str:
        """The text in the table."""
        mark = marks[self.called]
        if self.called in ("good", "bad") and not self.tried:
            return f"({mark})"
        return f"{mark} {self.counts}".rstrip()


@dataclass(frozen=True, slots=True)
class TableSlice:
    """The table at one combination of the further axes.

    Attributes:
        fixed: Further axes and their values; those with one value left out.
        across: Values of the columns.
        down: Values of the rows.
        rows: One for each value of `down`.
    """

    fixed: Mapping[str, str]
    across: tuple[str, ...]
    down: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def layout(report: Report) -> tuple[AxisInfo, AxisInfo | None, list[AxisInfo]]:
    """Which axis runs across, which down, and which are left: culprits first, then the longest."""
    culprits = set(report.verdict.get("culprit_axes") or ())
    order = sorted(report.axes, key=lambda axis: (axis.name not in culprits, -len(axis.values)))
    chosen = [axis for axis in order if len(axis.values) > 1][:2] or order[:1]
    chosen.sort(key=lambda axis: -len(axis.values))
    further = [axis for axis in report.axes if axis not in chosen]
    return chosen[0], chosen[1] if len(chosen) > 1 else None, further


def slices(report: Report) -> list[TableSlice]:
    """The tables; empty where the study did not ask for one."""
    if "table" not in report.verdict or not report.axes:
        return []
    across, down, further = layout(report)
    groups: dict[tuple[str, ...], dict[tuple[str, str], CombinationReport]] = {}
    for one in report.combinations:
        key = tuple(one.combination.get(axis.name, "") for axis in further)
        row = one.combination.get(down.name, "") if down else ""
        groups.setdefault(key, {})[one.combination.get(across.name, ""), row] = one
    several = {axis.name for axis in further if len(axis.values) > 1}
    rows = down.values if down else ("",)
    return [
        TableSlice(
            {axis.name: clean(v) for axis, v in zip(further, key, strict=True) if axis.name in several},
            tuple(clean(value) for value in across.values),
            tuple(clean(value) for value in rows),
            tuple(tuple(_cell(members.get((value, row))) for value in across.values) for row in rows),
        )
        for key, members in groups.items()
    ]


def _cell(one: CombinationReport | None) -> Cell:
    if one is None or not one.is_runnable:
        return Cell("out", tried=False, counts="")
    counts = f"{one.bad}/{one.counted}" if 0 < one.bad < one.counted else ""
    return Cell(one.verdict or "", tried=one.counted > 0, counts=counts)


def lines(report: Report) -> Iterator[str]:
    """The tables in plain text."""
    found = slices(report)
    if not found:
        return
    across, down, _ = layout(report)
    for one in found[:MOST_SLICES]:
        if one.fixed:
            yield " ".join(f"{axis}={value}" for axis, value in one.fixed.items())
        if down is None:
            # One axis alone is read from top to bottom.
            head = [clean(across.name), ""]
            body = [[value, cell.text(WORDS)] for value, cell in zip(one.across, one.rows[0], strict=True)]
        else:
            head = [f"{clean(down.name)} \\ {clean(across.name)}", *one.across]
            body = [
                [value, *(cell.text(WORDS) for cell in row)]
                for value, row in zip(one.down, one.rows, strict=True)
            ]
        widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
        for row in [head, *body]:
            yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        yield ""
    if len(found) > MOST_SLICES:
        yield f"… and {len(found) - MOST_SLICES} more tables"
    yield "(works), (fails): not tried itself, known from others; -: cannot be tried"


def constraints(report: Report) -> list[tuple[str, list[str]]]:
    """Requirements to paste into a package's metadata, and the releases that they are for."""
    told = report.verdict.get("compatibility") or {}
    found = []
    for one in told.get("constraints") or ():
        when = " and ".join(f"{clean(axis)} {clean(span)}" for axis, span in one["when"].items())
        needs = [f"{clean(name)}{_specifier(str(span))}" for name, span in one["needs"].items()]
        found.append((when, needs))
    return found


def _specifier(span: str) -> str:
    span = clean(span)
    return "" if span == "*" else span if span[:1] in "<>=!~" else f"=={span}"


def exclude_rules(report: Report) -> list[str]:
    """Lines for the `exclude` of a matrix file, which then leaves out what fails."""
    rules: Sequence[Mapping[str, Any]] = (report.verdict.get("compatibility") or {}).get("exclude") or ()
    found = ["exclude:"] if rules else []
    for rule in rules:
        conditions = ", ".join(f"{clean(axis)}: {_quoted(what)}" for axis, what in rule["when"].items())
        found.append(f"  - when: {{{conditions}}}")
    return found


def _quoted(what: str | Sequence[str]) -> str:
    if isinstance(what, str):
        return "'" + clean(what).replace("'", "''") + "'"
    return f"[{', '.join(_quoted(one) for one in what)}]"


def csv_text(report: Report) -> str:
    """`--format csv`: one line for each combination of a study."""
    calls = {
        frozenset(one["combination"].items()): one
        for one in (report.verdict.get("table") or {}).get("calls") or ()
    }
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [axis.name for axis in report.axes]
    writer.writerow([*names, "status", "verdict", "tried", "probability", "bad", "trials", "low", "high"])
    for one in report.combinations:
        call = calls.get(frozenset(one.combination.items())) or {}
        chance = call.get("probability")
        writer.writerow(
            [
                *(_safe(one.combination.get(name, "")) for name in names),
                one.status,
                one.verdict or "",
                "yes" if one.counted else "no",
                "" if chance is None else f"{chance:.4f}",
                one.bad,
                one.counted,
                *(f"{end:.4f}" for end in one.interval),
            ]
        )
    return text.getvalue()


def _safe(text: str) -> str:
    """A value that no spreadsheet takes for a formula."""
    text = clean(text)
    return f"'{text}" if text[:1] in "=+-@" else text
