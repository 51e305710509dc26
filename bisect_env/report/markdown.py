"""`--format md`: a report that can be pasted into a bug report. Pure.

Text from other people is shown as code, so that it cannot be a link, a mention or markup. Where code is not
possible, the text is escaped.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from bisect_env.answers.phrases import how_many
from bisect_env.answers.untrusted import clean, clean_lines, escaped, shortened
from bisect_env.report import words
from bisect_env.report.model import FailureReport, Report, StepReport
from bisect_env.report.shared_question import question_files
from bisect_env.report.text import stack_lines
from bisect_env.report.words import MARKS, columns, rows

MOST = 60_000
"""Maximum number of characters of the report; GitHub accepts 65,536."""
CHANGES = 60
"""Maximum number of changed packages that are listed; packages of axes come first."""
_STACK_LINES = (60, 20)
"""Maximum number of stack lines of the most frequent failure, and of each other failure."""
_FILE_LINES = 120
"""Maximum number of lines of a file that is included."""
_LINE = 4_000
"""Maximum number of characters of a sentence."""
_NOTE = 400
"""Characters reserved for the note on omitted sections."""
_OPEN = 12
"""Maximum number of changed packages that are shown without a click."""


def markdown_text(report: Report) -> str:
    """Return the report as GitHub-flavoured Markdown of at most `MOST` characters.

    Sections that do not fit are left out. The text ends with a newline.
    """
    sections = [*_sections(report, _STACK_LINES)]
    if sum(len(text) for _, text in sections) > MOST:
        # Shorten stacks first: they are the longest part, and the database has them.
        sections = [*_sections(report, (10, 4))]
    # Keep each section for which there is room; the largest sections come last.
    room, kept, left_out = MOST - _NOTE, [], []
    for name, text in sections:
        if len(text) <= room:
            room -= len(text)
            kept.append(text)
        elif name not in left_out:
            left_out.append(name)
    note = f"Left out, because it is too long here: {', '.join(left_out)}. `--format html` has it.\n"
    return "".join([*kept, *([note] if left_out else [])])


def _sections(report: Report, stacks: tuple[int, int]) -> Iterator[tuple[str, str]]:
    """Yield the name and the Markdown text of each section of the report.

    Each text is valid Markdown without the other sections.
    """
    parts = (
        ("the answer", _answer(report)),
        *(("the compatibility table", lines) for lines in _compatibility(report)),
        ("the rates", _rates(report)),
        ("the failures", _failures(report, stacks)),
        ("the packages", _difference(report)),
        ("the explanation", _explanation(report)),
        ("the commit", _commit(report)),
        ("how to reproduce it", _reproduce(report)),
        ("the question", _question(report)),
    )
    for name, lines in parts:
        if text := "\n".join(lines):
            yield name, text + "\n"


def _answer(report: Report) -> Iterator[str]:
    yield f"**{escaped(shortened(report.sentence, _LINE))}**"
    yield ""
    for line in report.advice:
        yield f"> [!TIP]\n> {prose(shortened(clean(line), _LINE))}\n"
    for line in (words.summary(report), words.reused(report), words.timing(report)):
        if line:
            yield f"- {escaped(shortened(line, _LINE))}"
    yield ""
    yield from _versions(report)
    for chance, what in words.alternatives(report):
        yield f"- or ({chance}): {escaped(what)}"
    for warning in report.warnings:
        yield f"> [!WARNING]\n> {prose(shortened(clean(warning), _LINE))}\n"


def _versions(report: Report) -> Iterator[str]:
    table: list[tuple[str, str]] = [(title, cell(what)) for title, what in words.ends(report)]
    study = report.study
    if study.exclude_newer is not None:
        table.append(("packages as of", f"{study.exclude_newer:%Y-%m-%d %H:%M:%S} UTC"))
    table += [("machine", cell(machine)) for machine in words.machines(report)]
    if study.version:
        table.append(("found by", f"bisect-env {escaped(clean(study.version))}"))
    yield from _table(("", ""), table)


def _compatibility(report: Report) -> Iterator[Iterator[str]]:
    """Yield an iterator of lines for each compatibility table, and for the notes on the tables."""
    grid = words.table_grid(report)
    if grid is None:
        return
    yield iter(["### Compatibility\n"])
    for one in grid.slices:
        yield _slice(grid, one)
    if grid.more:
        yield iter([f"{grid.more}; `--format csv` has them.\n"])
    yield iter(["✓ works, ✗ fails, in brackets: not tried itself, known from others; – cannot be tried.\n"])
    yield _requirements(report)


def _slice(grid: words.MatrixGrid, one: words.GridSlice) -> Iterator[str]:
    if title := words.table_title(grid, one):
        yield f"{code(title)}:\n"
    (corner, *heads), *body = words.table_rows(grid, one, MARKS)
    yield from _table((escaped(corner), *map(cell, heads)), [(cell(value), *marks) for value, *marks in body])


def _requirements(report: Report) -> Iterator[str]:
    if rows := words.constraints(report):
        yield "Requirements:\n"
        lines = []
        for when, needs in rows:
            lines += [f"# {when}"] * bool(when) + needs
        yield from fenced(lines, "text")
        yield ""
    if rules := words.exclude_rules(report):
        yield "As rules of a matrix:\n"
        yield from fenced(rules, "yaml")
        yield ""


def _rates(report: Report) -> Iterator[str]:
    if not report.combinations:
        return
    names = columns(report)
    found = rows(report)
    yield "### Rates\n"
    lines = [
        (*(cell(row.values[name]) for name in names), *row.numbers(), escaped(words.note(row, report)))
        for row in found.shown
    ]
    heads = (*(escaped(clean(name)) for name in names), "bad", "trials", "rate (95 % interval)", "")
    yield from _table(heads, lines)
    if found.more:
        yield f"{found.more}\n"
    missing = words.left_out(report)
    if missing:
        yield "Could not be tried:\n"
        yield from (
            f"- {status}: {code(where) + ': ' if where else ''}{code(why)}" for status, where, why in missing
        )
        yield ""


def _failures(report: Report, stacks: tuple[int, int]) -> Iterator[str]:
    if not report.failures:
        return
    yield "### Failures\n"
    for number, failure in enumerate(report.failures):
        yield from _failure(failure, stacks[min(number, 1)], is_open=number == 0)


def _failure(failure: FailureReport, limit: int, *, is_open: bool) -> Iterator[str]:
    counts = "" if failure.evidence == "bad" else ", not what the study is about"
    yield f"{code(words.described(failure))} ({how_many(failure.trials, 'trial')}{counts})\n"
    if failure.detail:
        yield code(shortened(clean(failure.detail), words.REASON_WIDTH)) + "\n"
    lines = stack_lines(failure.stack, limit)
    if lines:
        yield f"<details{' open' if is_open else ''}><summary>Stack of one of them</summary>\n"
        yield f"{code(words.named(failure.combination))}, trial {code(clean(failure.trial))}\n"
        yield from fenced(lines, "text")
        yield "\n</details>\n"


def _difference(report: Report) -> Iterator[str]:
    found = report.difference
    if found is None:
        return
    yield "### Packages that changed\n"
    yield f"{escaped(found.summary[:1].upper() + found.summary[1:])}.\n"
    if not found.changes:
        return
    long = len(found.changes) > _OPEN
    if long:
        yield "<details><summary>All of them</summary>\n"
    lines = []
    for one in found.changes[:CHANGES]:
        name, before, after, beside = (cell(part) if part else "" for part in words.change(one))
        lines.append((name, before, after, beside, _linked(one.home)))
    yield from _table(("package", *report.sides_in_order, "", "page"), lines)
    if len(found.changes) > CHANGES:
        yield f"… and {len(found.changes) - CHANGES} more\n"
    if long:
        yield "</details>\n"


def _explanation(report: Report) -> Iterator[str]:
    found = report.explanation
    if found is None:
        return
    yield f"**{escaped(clean(found.sentence))}**\n"
    yield "<details><summary>Environments in between</summary>\n"
    lines = [(cell(moved), bad, rate) for moved, bad, rate in words.between(found)]
    yield from _table(("as on the bad side", "bad trials", "95 % interval"), lines)
    yield "</details>\n"


def _commit(report: Report) -> Iterator[str]:
    found = report.commit
    if found is None:
        return
    yield "### The first bad commit\n"
    yield from _table(
        ("", ""),
        [(title, _linked(what) if title == "compare" else cell(what)) for title, what in words.commit(found)],
    )
    yield from fenced(words.diffstat(found, CHANGES), "text")
    yield ""
    if found.log:
        yield "<details><summary>For git bisect replay</summary>\n"
        yield from fenced([shortened(clean(line), words.REASON_WIDTH) for line in found.log], "sh")
        yield "\n</details>\n"


def _reproduce(report: Report) -> Iterator[str]:
    if not report.reproduce:
        return
    yield "### How to reproduce\n"
    for step in report.reproduce:
        yield f"{escaped(clean(step.title))}:\n"
        yield from fenced([clean(command) for command in step.commands], "sh")
        yield ""
        yield from _files(step)


def _question(report: Report) -> Iterator[str]:
    """Yield the lines of the section with the matrix, the script and its other files."""
    files = question_files(report.question)
    if not files:
        return
    yield "### Ask again\n"
    yield "Save these files into one folder, and run there `bisect-env run matrix.yaml`.\n"
    for file in files:
        yield f"<details><summary>{html.escape(clean(file.name))}</summary>\n"
        yield from fenced([clean_lines(line) for line in file.text.rstrip("\n").split("\n")], "")
        yield "\n</details>\n"
    if report.question.left_out:
        names = ", ".join(code(clean(name)) for name in report.question.left_out)
        yield f"Too large, no text, or with a password in it: {names}\n"


def _files(step: StepReport) -> Iterator[str]:
    """Yield Markdown lines that show the package lists of an environment.

    These lines are for readers without the database or the directory of files.
    """
    for name, content in step.files.items():
        lines = [clean(line) for line in content.splitlines()]
        if len(lines) > _FILE_LINES:
            yield f"{code(name)} has {len(lines)} lines; attach the directory.\n"
            continue
        yield f"<details><summary>{html.escape(clean(name))} of the environment that fails</summary>\n"
        yield from fenced(lines, "text")
        yield "\n</details>\n"


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    if not lines:
        return
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    yield from (f"| {' | '.join(cells)} |" for cells in lines)
    yield ""


def code(text: str) -> str:
    """Return a text as Markdown code on one line, for use outside of tables."""
    text = clean(text)
    if not text:
        return ""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    room = " " if longest else ""
    return f"{fence}{room}{text}{room}{fence}"


def cell(text: str) -> str:
    """Return a text as Markdown code for a table cell, with vertical bars escaped."""
    return code(text).replace("|", "\\|")


def prose(text: str) -> str:
    """Return a line of text as Markdown, in which text in backticks becomes code and the rest is escaped."""
    parts = re.split("`([^`]+)`", text)
    return "".join(code(part) if number % 2 else escaped(part) for number, part in enumerate(parts))


def fenced(lines: Sequence[str], language: str) -> list[str]:
    """Return lines as a Markdown code block whose fence is longer than any run of backticks in the lines."""
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", *lines, fence]


def _linked(address: str) -> str:
    """Return a web address as a Markdown link, or "" if the address is not valid."""
    cleaned = clean(address)
    if not re.fullmatch(r"https?://[^\s<>|`\\]+", cleaned):
        return ""
    return f"<{cleaned}>"
