"""The report for terminals: formatted by rich there, and plain lines elsewhere.

Text from other people is cleaned by `clean` and printed literally, never as rich markup.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from bisect_env.answers.phrases import first_few
from bisect_env.answers.untrusted import clean, clean_lines, command_line, shortened
from bisect_env.report import words
from bisect_env.report.model import FailureReport, Report
from bisect_env.report.words import Rows, columns

STACK_LINES = 12
_IN_SHORT = (
    *("also bad", "thinly tested", "explained", "its releases"),
    *("commit", "pull request", "or one of", "compare"),
)
LAST_LINES = 5
"""Maximum number of lines of the failure in the short answer."""
WARNINGS = 3
"""Maximum number of warnings in the short answer."""
ADVICE = 2
"""Maximum number of pieces of advice in the short answer."""
CHANGES = 12
"""Maximum number of changed packages that are listed."""
_PLAIN_WIDTH = 200
_COLOURS = {"bad": "red", "good": "green"}


def report_text(
    report: Report, *, details: bool = True, terminal: bool = False, width: int | None = None
) -> str:
    """Return a report as text for terminals.

    Args:
        report: The report to format.
        details: Whether to return the whole report. If False, the text fits a screen: the sentence, the
            combinations on both sides of the boundary with their rates, the last lines of the failure, and
            the commands that may come next.
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
    for part in _parts(report) if details else _answer(report):
        console.print(part, soft_wrap=width is None)
    lines = (line.rstrip() for line in target.getvalue().splitlines())
    return "\n".join(lines) + "\n"


def _answer(report: Report) -> Iterator[RenderableType]:
    yield Text(clean(report.sentence), style="bold")
    yield from _tables(report, words.neighbours(report))
    for title, what in words.ends(report):
        if title in _IN_SHORT:
            yield Text(f"{title}: {what}")
    for chance, what in words.alternatives(report):
        yield Text(f"or ({chance}): {what}")
    for title, what in words.commit(report.commit) if report.commit else ():
        if title in _IN_SHORT:
            yield Text(f"{title}: {what}")
    bad = [failure for failure in report.failures if failure.evidence == "bad"]
    if bad:
        first = bad[0]
        often = f"{first.trials} of {report.trial_counts.bad} bad trials"
        yield Text(f"\n{words.described(first)} ({often})", style="bold")
        last = stack_lines(first.stack)[-LAST_LINES:] or [shortened(clean(first.detail), words.REASON_WIDTH)]
        yield Text("\n".join(f"    {line}" for line in last), style="dim")
        yield Text(f"all that it printed: {_shown_by(first)}", style="dim")
    notes = [f"warning: {clean(warning)}" for warning in report.warnings]
    if notes:
        yield Text(
            "\n" + "\n".join(first_few(notes, WARNINGS, one="more warning", many="more warnings")),
            style="yellow",
        )
    if report.advice:
        yield Text("\n" + "\n".join(f"→ {clean(line)}" for line in report.advice[:ADVICE]), style="yellow")
    yield Text("\nNext:", style="dim")
    yield Text("\n".join(f"  {line}" for line in next_commands(report)), style="dim")


def next_commands(report: Report) -> list[str]:
    """Return one or two commands that the user may give next, each with a comment.

    The last one shows the full report.
    """
    study = report.study.id[: words.SHORT_ID]
    details = command_line("bisect-env", "report", study, "--details")
    everything = f"{details}  # everything; a page to share: --format html -o report.html"
    changes = () if report.difference is None else report.difference.changes
    if report.has_verdict and len(changes) > 1 and report.explanation is None:
        explain = command_line("bisect-env", "explain", study)
        return [f"{explain}  # which of the {len(changes)} packages that changed matter", everything]
    is_answered = report.has_verdict or report.verdict.kind == "explanation"
    why = "to see it again" if is_answered else "to go on"
    steps = [f"{clean(step.commands[0]).partition(' # ')[0]}  # {why}" for step in report.reproduce]
    return [*steps[:1], everything]


def _parts(report: Report) -> Iterator[RenderableType]:
    yield Text(clean(report.sentence), style="bold")
    for line in report.advice:
        yield Text(f"  → {clean(line)}", style="yellow")
    yield Text()
    yield Text(words.summary(report))
    for line in filter(None, (words.reused(report), words.timing(report))):
        yield Text(f"  {line}")
    known = list(words.ends(report))
    for title, what in known:
        yield Text(f"  {title:<{max(len(name) for name, _ in known)}}   {what}")
    for chance, what in words.alternatives(report):
        yield Text(f"  or ({chance})   {what}")
    yield from _tables(report, words.rows(report))
    yield from _left_out(report)
    yield from _failures(report)
    yield from _difference(report)
    yield from _commit(report)
    for warning in report.warnings:
        yield Text(f"\nwarning: {clean(warning)}", style="yellow")
    yield from _ways_on(report)


def _tables(report: Report, lines: Rows) -> Iterator[RenderableType]:
    """Yield the compatibility tables of `bisect-env map`; for other studies, one table of the given rows."""
    if table := list(words.table_lines(report)):
        yield Text("\n" + "\n".join(table))
        yield from _requirements(report)
    elif lines.shown:
        yield Text()
        yield _table(report, lines)
        if lines.more:
            yield Text(lines.more, style="dim")


def _requirements(report: Report) -> Iterator[Text]:
    """Yield package requirements and `exclude` rules that users can paste into their own files."""
    for when, needs in words.constraints(report):
        yield Text(f"  {when + ': ' if when else ''}{', '.join(needs)}")
    if rules := words.exclude_rules(report):
        yield Text("\nAs rules of a matrix:", style="dim")
        yield Text("\n".join(f"  {line}" for line in rules))


def _table(report: Report, lines: Rows) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    names = columns(report)
    for name in names:
        shown.add_column(clean(name), overflow="fold")
    for title in ("bad", "trials"):
        shown.add_column(title, justify="right", no_wrap=True)
    shown.add_column("rate (95 % interval)", no_wrap=True)
    shown.add_column("")
    for row in lines.shown:
        style = _COLOURS.get(row.members[0].verdict or "", "dim")
        shown.add_row(
            *(Text(clean(row.values[name])) for name in names),
            *row.numbers(),
            Text(words.note(row, report), style=style),
        )
    return shown


def _left_out(report: Report) -> Iterator[Text]:
    found = words.left_out(report)
    if lines := [f"{status}: {f'{where}: ' if where else ''}{why}" for status, where, why in found]:
        yield Text("\n" + "\n".join(lines))


def _failures(report: Report) -> Iterator[Text]:
    bad = [failure for failure in report.failures if failure.evidence == "bad"]
    if not bad:
        return
    first = bad[0]
    total = report.trial_counts.bad
    yield Text(
        f"\nMost frequent failure ({first.trials} of {total} bad trials): {words.described(first)}",
        style="bold",
    )
    if first.detail:
        yield Text(f"  {shortened(clean(first.detail), words.REASON_WIDTH)}")
    yield Text(f"  example: {words.named(first.combination)} (all that it printed: {_shown_by(first)})")
    for line in stack_lines(first.stack):
        yield Text(f"    {line}", style="dim")
    for other in bad[1:]:
        yield Text(f"  also ({other.trials}): {words.described(other)}")


def _shown_by(failure: FailureReport) -> str:
    return command_line("bisect-env", "report", "--trial", failure.trial[: words.SHORT_ID])


_PREFIX = re.compile(r"(?:/[^/\s\"']+)+/prefixes/[0-9a-f]{64}/")
"""Path of an environment in the cache."""


def stack_lines(stack: str, limit: int = STACK_LINES) -> list[str]:
    """Return the first and last lines of a stack, with a line between them that counts the omitted lines.

    The lines are safe to print. A stack of at most `limit` lines is returned whole. Paths in an environment
    begin at it, so that the name of the function is not cut off.
    """
    said = _PREFIX.sub("", clean_lines(stack))
    lines = [shortened(line, words.REASON_WIDTH) for line in said.splitlines() if line.strip()]
    if len(lines) <= limit:
        return lines
    head, tail = limit // 2, limit - limit // 2
    return [*lines[:head], f"… {len(lines) - limit} lines …", *lines[-tail:]]


def _difference(report: Report) -> Iterator[Text]:
    found = report.difference
    if found is None:
        return
    yield Text(f"\n{found.summary[:1].upper()}{found.summary[1:]}", style="bold")
    lines = []
    for name, before, after, beside in map(words.change, found.changes):
        lines.append(f"  {name} {before} → {after}{f'  {beside}' if beside else ''}")
    if lines:
        yield Text("\n".join(first_few(lines, CHANGES, one="more package", many="more packages")))


def _commit(report: Report) -> Iterator[Text]:
    if report.commit is None:
        return
    yield Text("\nThe first bad commit", style="bold")
    for title, what in words.commit(report.commit):
        yield Text(f"  {title:<12}   {what}")
    for line in words.diffstat(report.commit, CHANGES):
        yield Text(f"    {line}", style="dim")


def _ways_on(report: Report) -> Iterator[Text]:
    if report.reproduce:
        yield Text("\nHow to reproduce:", style="dim")
    for step in report.reproduce:
        yield Text("\n".join(f"  {clean(command)}" for command in step.commands), style="dim")
    shown = ("bisect-env", "report", report.study.id[: words.SHORT_ID], "--format")
    yield Text(f"\nTo read in a browser: {command_line(*shown, 'html', '-o', 'report.html')}", style="dim")
    yield Text(f"Everything as data: {command_line(*shown, 'json')}", style="dim")
