"""The report for people: rich on a terminal, plain lines elsewhere.

Everything that others wrote goes through `clean` first, and is printed as text, never as rich's markup.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from bisect_env.report.model import CombinationReport, FailureReport, Report
from bisect_env.report.numbers import interval, percent, probability
from bisect_env.report.origins import told_origins
from bisect_env.report.sentence import do_not_matter
from bisect_env.report.table import Row, Rows, columns, rows
from bisect_env.report.untrusted import clean, clean_lines, shortened

STACK_LINES = 12
REASON_WIDTH = 160
_PLAIN_WIDTH = 200
_SHORT_ID = 8
_COLOURS = {"bad": "red", "good": "green"}


def print_report(report: Report | Mapping[str, Any], stream: TextIO | None = None) -> None:
    """Print a report, or what `report_document` made of one.

    Args:
        report: What to show.
        stream: Where to; stdout if None. Characters that it cannot encode become `?`.
    """
    stream = sys.stdout if stream is None else stream
    whole = report if isinstance(report, Report) else Report.read(report)
    terminal = stream.isatty()
    text = report_text(
        whole, terminal=terminal, width=shutil.get_terminal_size().columns if terminal else None
    )
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()


def report_text(report: Report, *, terminal: bool = False, width: int | None = None) -> str:
    """The report as text.

    Args:
        report: What to show.
        terminal: Whether to use colours, as far as the environment (`NO_COLOR`, `TERM`) allows.
        width: Columns to wrap at; None wraps nothing.
    """
    target = io.StringIO()
    console = Console(
        file=target,
        force_terminal=terminal,
        width=width or _PLAIN_WIDTH,
        markup=False,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )
    for part in _parts(report):
        console.print(part, soft_wrap=width is None)
    lines = (line.rstrip() for line in target.getvalue().splitlines())
    return "\n".join(lines) + "\n"


def _parts(report: Report) -> Iterator[RenderableType]:
    yield Text(clean(report.sentence), style="bold")
    yield Text()
    yield Text(_summary(report))
    if report.reused:
        number = sum(origin.trials for origin in report.reused)
        yield Text(f"  {number} of these were measured before: {clean(told_origins(report.reused))}")
    yield from _ends(report)
    yield from _alternatives(report)
    if report.combinations:
        lines = rows(report)
        yield Text()
        yield _table(report, lines)
        if lines.hidden:
            yield Text(f"… and {lines.hidden} more combinations", style="dim")
    yield from _left_out(report)
    yield from _failures(report)
    for warning in report.warnings:
        yield Text(f"\nwarning: {clean(warning)}", style="yellow")
    yield Text(
        f"\nEverything as data: bisect-env report {report.study.id[:_SHORT_ID]} --format json", style="dim"
    )


def _summary(report: Report) -> str:
    study, counts = report.study, report.trial_counts
    uncounted = [
        f"{number} {name}"
        for name, number in (("other", counts.other), ("void", counts.void), ("skipped", counts.skip))
        if number
    ]
    status = _STATUS_WORDS.get(study.status, clean(study.status))
    beside = f"; not counted: {', '.join(uncounted)}" if uncounted else ""
    plural = "" if report.environments == 1 else "s"
    return (
        f"{clean(study.name)} (study {study.id[:_SHORT_ID]}, {status}): {report.trials} trials "
        f"({counts.bad} bad, {counts.good} good{beside}), {report.environments} environment{plural}"
    )


_STATUS_WORDS = {
    "open": "not ended",
    "finished": "ended",
    "interrupted": "interrupted",
    "failed": "stopped by an error",
}


def _ends(report: Report) -> Iterator[Text]:
    if not report.has_verdict:
        return
    for name, words in (("first_bad", "first bad"), ("last_good", "last good")):
        if cell := report.verdict.get(name):
            yield Text(f"  {words}   {_named(cell)}")
    for other in report.verdict.get("others") or ():
        culprits = clean(", ".join(other.get("culprit_axes") or ()))
        yield Text(f"  also bad from   {_named(other['first_bad'])} on (culprit {culprits})")
    if (no_other := report.verdict.get("no_other")) is not None:
        yield Text(f"  nothing else fails   probability {probability(no_other)}")
    axes = [axis.model_dump() for axis in report.axes]
    if unimportant := do_not_matter(report.verdict, axes):
        yield Text(f"  does not matter   {clean(', '.join(unimportant))}")


def _alternatives(report: Report) -> Iterator[Text]:
    candidates: Sequence[Mapping[str, Any]] = report.verdict.get("candidates") or ()
    for candidate in candidates[1:4] if report.verdict.get("status") != "confirmed" else ():
        chance = candidate.get("probability")
        if not chance or chance < 0.01:
            continue
        bad = candidate.get("first_bad")
        what = f"first bad {_named(bad)}" if bad else str(candidate.get("kind", "another answer"))
        culprits = ", ".join(candidate.get("culprit_axes") or ())
        yield Text(
            f"  or ({probability(chance)})   {what}" + (f" (culprit {clean(culprits)})" if culprits else "")
        )


def _table(report: Report, lines: Rows) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    names = columns(report)
    for name in names:
        table.add_column(clean(name), overflow="fold")
    for title in ("bad", "trials"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("rate (95 % interval)", no_wrap=True)
    table.add_column("")
    for row in lines.shown:
        style = _COLOURS.get(row.members[0].verdict or "", "dim")
        known = row.members[0].is_runnable
        table.add_row(
            *(Text(clean(row.values[name])) for name in names),
            str(row.bad) if known else "",
            str(row.counted) if known else "",
            _rate(row) if known else "",
            Text(_note(row, report), style=style),
        )
    return table


def _rate(row: Row) -> str:
    if not row.counted:
        return ""
    return f"{percent(row.bad / row.counted)} ({interval(*row.interval)})"


def _note(row: Row, report: Report) -> str:
    first = row.members[0]
    parts = []
    if not first.is_runnable:
        parts.append(first.status)
    else:
        untried = "not tried" if not any(m.other or m.skip for m in row.members) else "nothing counted"
        told = "" if row.counted else untried
        parts.append(f"{first.verdict} ({told})" if first.verdict and told else first.verdict or told)
    if other := sum(m.other for m in row.members if m.same_as is None):
        parts.append(f"{other} failed otherwise")
    if len(row.members) > 1:
        parts.append(f"{len(row.members)} combinations")
    elif first.same_as:
        differing = {a: v for a, v in first.same_as.items() if first.combination.get(a) != v}
        parts.append(f"same environment as {_named(differing)}")
    if report.has_verdict and first.combination == report.verdict.get("first_bad"):
        parts.append("← first bad")
    if report.has_verdict and first.combination == report.verdict.get("last_good"):
        parts.append("← last good")
    return ", ".join(part for part in parts if part)


def _left_out(report: Report) -> Iterator[Text]:
    groups: dict[tuple[str, str], list[CombinationReport]] = {}
    for one in report.combinations:
        if not one.is_runnable:
            groups.setdefault((one.status, shortened(clean(one.reason), REASON_WIDTH)), []).append(one)
    shown: dict[str, int] = {}
    for (status, reason), members in groups.items():
        shown[status] = shown.get(status, 0) + 1
        if shown[status] > 3:
            continue
        where = _named(members[0].combination) + (f" and {len(members) - 1} more" if len(members) > 1 else "")
        yield Text(
            f"{chr(10) if sum(shown.values()) == 1 else ''}{status}: {where}: {reason or 'no reason given'}"
        )
    for status, number in shown.items():
        if number > 3:
            yield Text(f"{status}: {number - 3} more reasons")


def _failures(report: Report) -> Iterator[Text]:
    bad = [failure for failure in report.failures if failure.evidence == "bad"]
    if not bad:
        return
    first = bad[0]
    total = report.trial_counts.bad
    yield Text(
        f"\nMost frequent failure ({first.trials} of {total} bad trials): {_described(first)}", style="bold"
    )
    if first.detail:
        yield Text(f"  {shortened(clean(first.detail), REASON_WIDTH)}")
    yield Text(f"  example: {_named(first.combination)} (trial {clean(first.trial)[:_SHORT_ID]})")
    for line in stack_lines(first.stack):
        yield Text(f"    {line}", style="dim")
    for other in bad[1:]:
        yield Text(f"  also ({other.trials}): {_described(other)}")


def stack_lines(stack: str, limit: int = STACK_LINES) -> list[str]:
    """The beginning and the end of a stack, safe to print; what is left out is said."""
    lines = [shortened(line, REASON_WIDTH) for line in clean_lines(stack).splitlines() if line.strip()]
    if len(lines) <= limit:
        return lines
    head, tail = limit // 2, limit - limit // 2
    return [*lines[:head], f"… {len(lines) - limit} lines …", *lines[-tail:]]


def _described(failure: FailureReport) -> str:
    """A signature in words: `crash:SIGSEGV in body, at orjson/__init__.py:dumps`."""
    try:
        _, kind, phase, *frames = json.loads(failure.signature)
    except ValueError:
        return clean(failure.outcome)
    text = f"{kind} in {phase}" if phase else str(kind)
    return shortened(clean(text + (f", at {frames[0]}" if frames else "")), REASON_WIDTH)


def _named(cell: Mapping[str, str]) -> str:
    return clean(" ".join(f"{axis}={value}" for axis, value in cell.items()))
