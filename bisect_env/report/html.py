"""`--format html`: a single self-contained page with its heat map. Pure.

Jinja escapes all text from other people, and the page's security policy allows only its own script. This
module computes the geometry of the pictures; `page/` has a template for each, with light and dark colours.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.resources import files
from urllib.parse import urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from bisect_env.answers.phrases import duration, interval, percent, probability
from bisect_env.answers.untrusted import LINE_WIDTH, clean, shortened, shown_lines
from bisect_env.matrix.history import readable
from bisect_env.report import words
from bisect_env.report.model import (
    CombinationReport,
    Report,
    labels,
)
from bisect_env.report.shared_question import question_files

LISTED = 3000
"""Maximum number of combinations in the table; in larger matrices, untried runnable ones are left out."""


def html_text(report: Report, *, served: bool = False) -> str:
    """Return the report as an HTML page with a final newline.

    Args:
        report: The report to show.
        served: Whether `bisect-env serve` shows the page, which then has links to the other served pages.
    """
    page = _pages().get_template("report.html.j2")
    text: str = page.render(
        report=report,
        served=served,
        policy=policy(),
        css=Markup(_own("style.css")),
        script=Markup(_own("script.js")),
        summary=words.summary(report),
        reused=words.reused(report),
        timing=words.timing(report),
        ends=words.ends(report),
        alternatives=words.alternatives(report),
        compatibility=words.table_grid(report),
        mark_cell=_mark_cell,
        requirements=words.constraints(report),
        rules=words.exclude_rules(report),
        map=heat_map(report),
        heat_cell=lambda one: None if one is None else _heat_cell(one, report),
        chosen=report.verdict.first_bad or {},
        listed=_listed(report),
        unlisted=_unlisted(report),
        labels=labels(report.axes),
        machines=words.machines(report),
        question_files=question_files(report.question),
    )
    # Scripts print arbitrary bytes, which become characters that UTF-8 cannot encode.
    return text.encode("utf-8", "replace").decode("utf-8") + "\n"


@cache
def policy() -> str:
    """Return the content security policy of the page, which allows only its own script and inline styles."""
    digest = base64.b64encode(hashlib.sha256(_own("script.js").encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _own(name: str) -> str:
    return files("bisect_env.report").joinpath("page", name).read_text("utf-8").strip()


@cache
def _pages() -> Environment:
    environment = Environment(
        loader=PackageLoader("bisect_env.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        px=lambda value: f"{value:.1f}".removesuffix(".0"),
        one_line=lambda text: shortened(clean(str(text or "")), LINE_WIDTH),
        prose=_prose,
        lines=lambda text: shown_lines(str(text)),
        named=words.named,
        percent=_known(percent),
        interval=lambda pair: interval(*pair),
        probability=_known(probability),
        number=_known("{:.3g}".format),
        odds=_known(_odds),
        axis_value=lambda value: shortened(clean(readable(value)), _LONGEST),
        table_title=words.table_title,
        duration=duration,
        moment=_moment,
        described=words.described,
        change=words.change,
        between=words.between,
        readable=readable,
        commit_rows=words.commit,
        diffstat=lambda found: words.diffstat(found, 200),
        cell_note=cell_note,
        is_address=_is_address,
    )
    return environment


def _known(form: Callable[[float], str]) -> Callable[[float | None], str]:
    """Extend a number format to accept None: return a function that formats None as ""."""
    return lambda value: "" if value is None else form(value)


def _prose(text: str) -> Markup:
    """Return a line of text as escaped HTML, in which text in backticks becomes code."""
    # Escape before replacing backticks, so that the text contains no other markup.
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(shortened(clean(text), LINE_WIDTH)))))


def _moment(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _is_address(text: str) -> bool:
    """Return whether a text is a web address that the page may link to."""
    try:
        return urlsplit(text).scheme in ("http", "https")
    except ValueError:
        return False


def _listed(report: Report) -> list[CombinationReport]:
    if len(report.combinations) <= LISTED:
        return list(report.combinations)
    # Tried combinations come first, so that none of them is left out for one that cannot be run.
    places = [place for place, one in enumerate(report.combinations) if one.outcomes or not one.is_runnable]
    kept = sorted(places, key=lambda place: not report.combinations[place].outcomes)[:LISTED]
    return [report.combinations[place] for place in sorted(kept)]


def _unlisted(report: Report) -> str:
    """Return a sentence that counts the combinations which `_listed` leaves out, or "" if there are none."""
    every, listed = report.combinations, _listed(report)
    tried = sum(bool(one.outcomes) for one in every) - sum(bool(one.outcomes) for one in listed)
    untried = len(every) - len(listed) - tried
    counted = [f"{tried} more that were tried"] if tried else []
    counted += [f"{untried} more that nobody tried"] if untried else []
    return f"{' and '.join(counted)} are left out." if counted else ""


def _odds(log10: float) -> str:
    """Return a Bayes factor as odds such as `100 to 1`.

    The odds say how many times better the answer explains the trials than the alternative does.

    Args:
        log10: Decimal logarithm of the factor.
    """
    if log10 < 0:
        return "none: the trials are explained better by it"
    factor = f"10^{log10:.0f}" if log10 >= 6 else f"{10.0**log10:,.{0 if log10 >= 1 else 1}f}"
    return f"{factor} to 1 (Bayes factor)"


# --------------------------------------------------------------------------------------------------
# The matrix as tables, one for each combination of further axes: heat map and compatibility table.

MOST_CELLS = 2500
"""Maximum number of drawn cells; in larger matrices, only the most informative slices are drawn."""
_LONGEST = 24
"""Maximum number of letters of an axis value."""
_REASON = 400
"""Maximum number of letters of a reason."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """One cell of an HTML table.

    Attributes:
        label: Description, read aloud and shown on hovering.
        background: CSS declaration of its colour; empty if a style of the page sets it.
        styles: Names of styles of the page.
        lines: Text of the cell, with the style of each line.
    """

    label: str
    background: str
    styles: str
    lines: tuple[tuple[str, str], ...]


def heat_map(report: Report) -> words.MatrixGrid | None:
    """Return the tables of failure rates that are drawn, or None if there are no axes or combinations."""
    grid = words.matrix_grid(report)
    if grid is None:
        return None
    most = max(1, MOST_CELLS // max(1, sum(map(len, grid.slices[0].rows))))
    ranked = sorted(grid.slices, key=lambda one: _worth(one, report), reverse=True)
    kept = {id(one) for one in ranked[:most]}
    return grid.with_slices([one for one in grid.slices if id(one) in kept])


def _worth(one: words.GridSlice, report: Report) -> tuple[bool, int, int]:
    ends, members = [report.verdict.first_bad, report.verdict.last_good], one.members
    return (
        any(member.combination in ends for member in members),
        sum(member.bad for member in members),
        sum(member.counted for member in members),
    )


def _mark_cell(one: CombinationReport | None) -> _Cell:
    """Return the cell that shows a combination in a compatibility table."""
    said = words.called(one)
    label = {"good": "works", "bad": "fails", "out": "cannot be tried"}.get(said, "not known")
    tried = one is not None and one.counted > 0
    where = "" if one is None else f"{words.named(one.combination)}: "
    styles = f"{said or 'unknown'}{'' if tried else ' inferred'}"
    return _Cell(where + label, "", styles, (("", words.cell_text(one, words.MARKS)),))


def cell_words(one: CombinationReport, report: Report) -> str:
    """Return one line that describes a combination fully: its values, rate, remarks and verdict."""
    parts = [words.named(one.combination), words.side_of(one, report)]
    if one.rate is not None:
        shown = f"{percent(one.rate)}, 95 % interval {interval(*one.interval)}"
        parts.append(f"{one.bad} of {one.counted} trials bad ({shown})")
    parts += [cell_note(one), f"called {one.verdict}" if one.verdict else ""]
    return "; ".join(part for part in parts if part)


def cell_note(one: CombinationReport) -> str:
    """Return remarks on a combination, such as why it has no rate or how many trials were not counted."""
    parts = []
    if not one.is_runnable:
        parts.append(f"{one.status}: {shortened(clean(one.reason), _REASON) or 'no reason given'}")
    elif one.rate is None and not words.uncounted(one):
        parts.append("not tried")
    parts += words.uncounted(one)
    if one.same_as:
        parts.append(f"measured as {words.named(one.same_as)}")
    if one.is_runnable and one.reason:
        parts.append(shortened(clean(one.reason), _REASON))
    return "; ".join(parts)


def _heat_cell(one: CombinationReport, report: Report) -> _Cell:
    tag = words.side_of(one, report)
    styles = ["first-bad" if tag.endswith("bad") else "last-good"] if tag else []
    background = ""
    if not one.is_runnable:
        styles.append("hatched")
    elif one.rate is None:
        styles.append("untried")
    else:
        colour, share = ("heat", 12 + 88 * math.sqrt(one.rate)) if one.rate else ("good", 22.0)
        background = f"background: color-mix(in srgb, var(--{colour}) {share:.0f}%, var(--paper))"
    lines = [*([("strong", tag)] if tag else []), *_lines(one)]
    return _Cell(cell_words(one, report), background, " ".join(styles), tuple(lines))


def _lines(one: CombinationReport) -> list[tuple[str, str]]:
    if not one.is_runnable:
        return [("", one.status.removeprefix("env-"))]
    if one.rate is None:
        return [("", "uncounted" if one.other or one.skip or one.void else "–")]
    return [
        ("rate", percent(one.rate)),
        ("", interval(*one.interval)),
        ("", f"{one.bad} of {one.counted}{' =' if one.same_as else ''}"),
    ]
