"""`--format html`: a single self-contained page with its heat map, posterior and timeline. Pure.

Jinja escapes all text from other people, and the page's security policy allows only its own script. This
module computes the geometry of the pictures; `page/` has a template for each, with light and dark colours.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any
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
    TimedBuild,
    TimedTrial,
    TimelineReport,
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
        posterior=posterior_picture(report),
        trace=words.trace(report),
        timeline=timeline_picture(report),
        lanes=_lanes(report),
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


def _lanes(report: Report) -> list[dict[str, Any]]:
    found = []
    for name, positions in lanes_of(report.timeline).items():
        trials = [report.timeline.trials[i] for i in positions]
        said = Counter(trial.evidence for trial in trials)
        found.append(
            {
                "name": name,
                "gpus": ", ".join(sorted({trial.gpu for trial in trials if trial.gpu})),
                "trials": len(trials),
                "busy": duration(sum(trial.seconds for trial in trials)),
                "said": ", ".join(f"{number} {evidence}" for evidence, number in said.most_common()),
            }
        )
    return found


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
# Plots of the posterior and of the timeline. Lengths are in pixels.

_WIDTH = 1000.0
_LETTER = 7.0
"""Width of a letter in pixels."""
_DASHES = ("", "8 4", "8 3 2 3", "2 3", "12 2", "2 2 8 2")
LANES = 40
"""Maximum number of lanes for workers; with more workers, each host has one lane."""
_GAP = 60.0
"""Longest pause in seconds that is drawn in full; longer pauses are shortened."""
_CUT = 12.0
"""Width of a shortened pause, in seconds of the time axis."""
_LANE = 30.0
_TICKS = 8
_NICE_SECONDS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200)


def _rendered(name: str, **values: Any) -> Markup:
    return Markup(_pages().get_template(name).render(**values))


@dataclass(frozen=True, slots=True)
class _PlotArea:
    """The size of a picture, and the edges of the plot inside the picture, in pixels."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float


def posterior_picture(report: Report) -> Markup | None:
    """Return a plot of the probability of each answer against the number of trials, with a legend below it.

    Return None if no trial was counted.
    """
    trace = report.posterior
    if not trace.points or not trace.answers:
        return None
    frame = _PlotArea(_WIDTH, 320, 62, _WIDTH - 30, 14, 270)
    most = max(trace.points[-1].trials, 1)

    def x(trials: float) -> float:
        return frame.left + (frame.right - frame.left) * trials / most

    def y(probability: float) -> float:
        return frame.bottom - (frame.bottom - frame.top) * probability / 1.02

    curves = []
    for i, answer in enumerate(trace.answers):
        points = " ".join(f"{x(one.trials):.1f},{y(one.probabilities[i]):.1f}" for one in trace.points)
        label = shortened(clean(answer.label), LINE_WIDTH)
        curves.append({"points": points, "label": label, "series": i % 6, "dash": _DASHES[i % len(_DASHES)]})
    step = nice_step(most / _TICKS)
    return _rendered(
        "posterior.html.j2",
        frame=frame,
        curves=curves,
        across=[(x(number), number) for number in range(0, most + 1, step)],
        down=[(y(quarter / 4), f"{25 * quarter} %") for quarter in range(5)],
    )


def nice_step(least: float) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, 50, ... that is at least `least`, for the scale of a plot."""
    steps = (factor * 10**power for power in itertools.count() for factor in (1, 2, 5))
    return int(next(step for step in steps if step >= least))


def timeline_picture(report: Report) -> Markup | None:
    """Return an SVG timeline with lanes for builds and workers, or None if nothing ran."""
    line = report.timeline
    if not line.trials and not line.builds:
        return None
    at, cuts = clock(line)
    lanes = lanes_of(line)
    names = [*(["builds"] if line.builds else []), *lanes]
    left = min(300.0, max(len(name) for name in names) * _LETTER + 20)
    top = 22.0 if cuts else 6.0
    bottom = top + _LANE * len(names)
    frame = _PlotArea(_WIDTH, bottom + 48, left, _WIDTH - 30, top, bottom)
    end = at(max(stop for _, stop in _spans(line))) or 1.0

    def x(drawn: float) -> float:
        return frame.left + (frame.right - frame.left) * drawn / end

    def bars(row: int, spans: Sequence[tuple[float, float]]) -> str:
        """Return an SVG path that draws all bars of one colour in one lane."""
        upper, high = frame.top + _LANE * row + 4, _LANE - 8
        found = []
        for start, length in spans:
            width = max(x(start + length) - x(start), 0.5)
            found.append(f"M{x(start):.1f} {upper:.0f}h{width:.1f}v{high:.0f}h-{width:.1f}z")
        return "".join(found)

    paths = []
    if line.builds:
        for failed, colour in ((False, "build"), (True, "failed")):
            spans = [_span(at, build) for build in line.builds if bool(build.failed) == failed]
            # Only the end of a failed build is known.
            spans = [(start, max(length, 0.4) if failed else length) for start, length in spans]
            paths.append((colour, bars(0, spans)))
    for row, lane in enumerate(lanes.values(), start=len(names) - len(lanes)):
        for evidence in ("good", "bad", "other", "void", "skip"):
            spans = [_span(at, line.trials[i]) for i in lane if line.trials[i].evidence == evidence]
            paths.append((evidence, bars(row, spans)))
    step = float(next((one for one in _NICE_SECONDS if one >= end / _TICKS), nice_step(end / _TICKS)))
    return _rendered(
        "timeline.svg.j2",
        frame=frame,
        paths=[(colour, path) for colour, path in paths if path],
        names=[
            (frame.top + _LANE * (row + 0.5), shortened(clean(name), 42)) for row, name in enumerate(names)
        ],
        across=[(x(number * step), duration(number * step)) for number in range(int(end / step) + 1)],
        pauses=[(x(at(moment) + _CUT / 2), f"{duration(skipped)} pause") for moment, skipped in cuts],
    )


def _spans(line: TimelineReport) -> list[tuple[float, float]]:
    trials = [(one.start, one.start + one.seconds) for one in line.trials]
    return trials + [(one.start, one.start + one.seconds) for one in line.builds]


def _span(at: Clock, one: TimedTrial | TimedBuild) -> tuple[float, float]:
    return at(one.start), at(one.start + one.seconds) - at(one.start)


def lanes_of(line: TimelineReport) -> dict[str, list[int]]:
    """Return the indexes of the trials in each lane of the timeline.

    Each worker has a lane. With more than `LANES` workers, each host has one.
    """
    by_worker: dict[str, list[int]] = {}
    by_host: dict[str, list[int]] = {}
    for i, trial in enumerate(line.trials):
        host = trial.host or "unknown host"
        by_host.setdefault(host, []).append(i)
        by_worker.setdefault(f"{host} {trial.worker}".strip(), []).append(i)
    return dict(sorted((by_worker if len(by_worker) <= LANES else by_host).items()))


Clock = Callable[[float], float]
"""A function from seconds since the study's start to seconds on the time axis, with pauses shortened."""


def clock(line: TimelineReport) -> tuple[Clock, list[tuple[float, float]]]:
    """Return a function that converts times to positions in the timeline, and a list of the long pauses.

    Long pauses are drawn shortened. Each is a pair of start and length in seconds.
    """
    spans = sorted(_spans(line))
    cuts = []
    end = spans[0][0] if spans else 0.0
    for start, stop in spans:
        if start - end > _GAP:
            cuts.append((end, start - end))
        end = max(end, stop)

    def at(moment: float) -> float:
        since = [(moment - start, length) for start, length in cuts if moment > start]
        return moment - sum(min(passed, length) - min(_CUT, passed) for passed, length in since)

    return at, cuts


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
