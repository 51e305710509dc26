"""The pictures of a report: heat map, posterior and timeline, as SVG that belongs to a page. Pure."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import re
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from bisect_env.report import words
from bisect_env.report.model import (
    AxisInfo,
    CombinationReport,
    Report,
    TimedBuild,
    TimedTrial,
    TimelineReport,
)
from bisect_env.report.sentence import duration, interval, percent
from bisect_env.report.untrusted import clean, shortened

# --------------------------------------------------------------------------------------------------
# Pictures by matplotlib as SVG that belongs to a page: its colours, its fonts, words for each part. Pure.
#
# matplotlib draws; here its output is parsed again, so that colours become the page's own (light or dark),
# parts can be pointed at, reached with the keyboard and read aloud, and no id of one picture meets
# another's.

# Before it is imported: it would tell a user of a report, on stderr, of its fonts and directories.
logging.getLogger("matplotlib").setLevel(logging.ERROR)


# Colours that matplotlib is told stand for the page's: no picture uses these for themselves.
_THEME = ("ink", "muted", "line", "paper", "good", "bad", "other", "void", "skip", "build", "hatch", "heat")
COLOURS = {name: f"#0102{number:02x}" for number, name in enumerate(_THEME)}
"""Name of a colour of the page to what matplotlib is told."""
SERIES = tuple(f"#0103{number:02x}" for number in range(6))
"""Colours of curves."""
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_RC: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "bisect-env",
    "text.color": COLOURS["ink"],
    "axes.edgecolor": COLOURS["line"],
    "axes.labelcolor": COLOURS["ink"],
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "xtick.labelcolor": COLOURS["ink"],
    "ytick.labelcolor": COLOURS["ink"],
    "grid.color": COLOURS["line"],
    "hatch.color": COLOURS["hatch"],
    "hatch.linewidth": 1.2,
    "font.size": 9.0,
    # What others wrote is shown as it is, never as a formula.
    "text.parse_math": False,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_PIXELS = 96 / 72
"""Of a page to a point of print."""
_NOT_OURS = {"backend", "backend_fallback", "interactive", "toolbar", "timezone", "date.epoch"}
_ONE_AT_A_TIME = threading.RLock()


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a picture that can be pointed at.

    Attributes:
        label: What it says, read aloud and shown on pointing.
        data: `data-` attributes for the page's script.
    """

    label: str
    data: Mapping[str, str] = field(default_factory=dict)


def mixed(colour: str, percent: int) -> str:
    """What stands for a colour of the page mixed with its paper: 0 is paper, 100 the colour."""
    return f"#02{_THEME.index(colour):02x}{max(0, min(100, percent)):02x}"


def figure(width: float, height: float) -> Figure:
    """An empty picture; inches at 72 pixels each. Use within `style()`."""
    made = Figure(figsize=(width, height))
    FigureCanvasSVG(made)
    made.patch.set_visible(False)
    return made


@contextlib.contextmanager
def style() -> Iterator[None]:
    """The settings under which pictures are made, whatever the user's own."""
    plain = {name: value for name, value in mpl.rcParamsDefault.items() if name not in _NOT_OURS}
    settings: Any = {**plain, **_RC}
    # They are the whole process's, and `bisect-env serve` makes pages in threads.
    with _ONE_AT_A_TIME, mpl.rc_context(settings):
        yield


def page_svg(picture: Figure, name: str, title: str, parts: Mapping[str, Part] | None = None) -> Markup:
    """A picture as an `<svg>` element.

    Args:
        picture: As drawn, its parts with their names as `gid`.
        name: Unique on the page.
        title: What the picture shows, in words.
        parts: By their names; one of them takes the focus, the script moves it.
    """
    target = io.StringIO()
    picture.savefig(
        target, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
    )
    root = ET.fromstring(target.getvalue())
    parts = parts or {}
    for parent in list(root.iter()):
        for child in list(parent):
            # matplotlib's style would be one for the whole page.
            if child.tag in (f"{{{_SVG}}}style", f"{{{_SVG}}}metadata"):
                parent.remove(child)
    used = set(re.findall(r"url\(#([^)]+)\)|\"#([^\"]+)\"", target.getvalue()))
    referenced = {one for pair in used for one in pair if one}
    for element in root.iter():
        _themed(element)
        if parts and element.tag == f"{{{_SVG}}}text":
            # Parts are read aloud with all that they say; their texts alone say too little.
            element.set("aria-hidden", "true")
        own = element.attrib.pop("id", None)
        if own in referenced:
            element.set("id", f"{name}-{own}")
        elif own is not None and own in parts:
            _told(element, parts[own])
        for attribute, value in element.attrib.items():
            if attribute == f"{{{_XLINK}}}href" and value.startswith("#"):
                element.set(attribute, f"#{name}-{value[1:]}")
            elif "url(#" in value:
                element.set(attribute, value.replace("url(#", f"url(#{name}-"))
    root.attrib.pop("version", None)
    # As wide as it was drawn where there is room: a wide matrix is scrolled, not squeezed.
    width = root.attrib.pop("width").removesuffix("pt")
    root.attrib.pop("height")
    root.set("style", f"width: {float(width) * _PIXELS:.0f}px")
    root.set("role", "group" if parts else "img")
    root.set("aria-label", title)
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _XLINK)
    # ElementTree escapes every text and attribute.
    return Markup(ET.tostring(root, encoding="unicode"))


def _told(element: ET.Element, part: Part) -> None:
    element.set("role", "img")
    element.set("aria-label", part.label)
    element.set("tabindex", "-1")
    element.set("class", "part")
    for key, value in part.data.items():
        element.set(f"data-{key}", value)
    title = ET.Element(f"{{{_SVG}}}title")
    title.text = part.label
    element.insert(0, title)


_STANDS_FOR = re.compile(r"#0(?:1(02|03)([0-9a-f]{2})|2([0-9a-f]{2})([0-9a-f]{2}))")


def _themed(element: ET.Element) -> None:
    """Colours of the page for what stands for them, fonts of the page for matplotlib's."""
    declared = element.get("style", "")
    for name in ("fill", "stroke"):
        # Only a declaration may hold a variable.
        if _STANDS_FOR.fullmatch(element.get(name, "")):
            declared = f"{name}: {element.attrib.pop(name)}; {declared}"
    declared = re.sub(r"font-family: [^;]+;?", "", declared)
    declared = re.sub(r"font: ([0-9.]+px)[^;]*", r"font-size: \1", declared)
    declared = _STANDS_FOR.sub(_colour, declared)
    if declared:
        element.set("style", declared)


def _colour(found: re.Match[str]) -> str:
    kind, number, base, percent = found.groups()
    if kind == "02":
        return f"var(--{_THEME[int(number, 16)]})"
    if kind == "03":
        return f"var(--series-{int(number, 16)})"
    return f"color-mix(in srgb, var(--{_THEME[int(base, 16)]}) {int(percent, 16)}%, var(--paper))"


# --------------------------------------------------------------------------------------------------
# The posterior as it moved, and what ran when. Pure.

_WIDTH = 10.5
_DASHES: tuple[str | tuple[int, tuple[int, ...]], ...] = (
    "-",
    "--",
    "-.",
    ":",
    (0, (6, 1)),
    (0, (1, 1, 4, 1)),
)
LANES = 40
"""Workers that have a lane of their own; with more, each host has one."""
_GAP = 60.0
"""Seconds in which nothing ran that are drawn as they were; longer pauses are cut."""
_CUT = 12.0
"""Seconds that a cut takes."""
_LANE = 0.32


def posterior_picture(report: Report) -> Markup | None:
    """The probability of each answer against the number of trials; None where nothing was counted."""
    course = report.posterior
    if not course.points or not course.answers:
        return None
    with style():
        picture = figure(_WIDTH, 3.4)
        axes = picture.add_axes((0.065, 0.15, 0.66, 0.8))
        numbers = [point.trials for point in course.points]
        for i, answer in enumerate(course.answers):
            axes.plot(
                numbers,
                [point.probabilities[i] for point in course.points],
                color=SERIES[i % len(SERIES)],
                linestyle=_DASHES[i % len(_DASHES)],
                linewidth=2.6 if i == 0 else 1.5,
                label=shortened(clean(answer.label), 34),
                zorder=10 - i,
            )
        axes.set_xlim(0, max(numbers[-1], 1))
        axes.set_ylim(0, 1.02)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
        axes.grid(axis="y", linewidth=0.6)
        axes.set_xlabel("counted trials")
        axes.set_ylabel("probability")
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, handlelength=3.2)
        return page_svg(picture, "posterior", "Probability of each answer against the number of trials")


def timeline_picture(report: Report) -> Markup | None:
    """Lanes of builds and workers; None where nothing ran."""
    line = report.timeline
    if not line.trials and not line.builds:
        return None
    at, cuts = clock(line)
    lanes = lanes_of(line)
    names = [*(["builds"] if line.builds else []), *lanes]
    above = 0.25 if cuts else 0.05
    height = 0.55 + above + _LANE * len(names)
    left = min(3.2, max(len(name) for name in names) * 0.075 + 0.25)
    with style():
        picture = figure(_WIDTH, height)
        axes = picture.add_axes(
            (left / _WIDTH, 0.55 / height, 1 - (left + 0.3) / _WIDTH, 1 - (0.55 + above) / height)
        )
        row = 0
        if line.builds:
            for failed, colour in ((False, "build"), (True, "bad")):
                spans = [_span(at, build) for build in line.builds if bool(build.failed) == failed]
                # Of a failed build only its end is known.
                spans = [(start, max(length, 0.4) if failed else length) for start, length in spans]
                hatch = "///" if failed else None
                axes.broken_barh(spans, (row + 0.12, 0.76), facecolors=COLOURS[colour], hatch=hatch)
            row += 1
        for lane in lanes.values():
            for evidence in ("good", "bad", "other", "void", "skip"):
                spans = [_span(at, line.trials[i]) for i in lane if line.trials[i].evidence == evidence]
                axes.broken_barh(spans, (row + 0.12, 0.76), facecolors=COLOURS[evidence])
            row += 1
        end = max(stop for _, stop in _spans(line))
        for moment, skipped in cuts:
            place, colour = at(moment) + _CUT / 2, COLOURS["muted"]
            axes.axvline(place, color=colour, linestyle=":", linewidth=1.2)
            axes.text(
                place, -0.1, f"{duration(skipped)} pause", fontsize=7, ha="center", va="bottom", color=colour
            )
        axes.set_xlim(0, at(end) or 1.0)
        axes.set_ylim(len(names), 0)
        axes.set_yticks([i + 0.5 for i in range(len(names))], [shortened(clean(name), 42) for name in names])
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_formatter(lambda value, _position: duration(float(value)))
        axes.set_xlabel("since the beginning" + (", pauses left out" if cuts else ""))
        return page_svg(picture, "timeline", "When each worker ran trials, and when environments were built")


def _spans(line: TimelineReport) -> list[tuple[float, float]]:
    trials = [(one.start, one.start + one.seconds) for one in line.trials]
    return trials + [(one.start, one.start + one.seconds) for one in line.builds]


def _span(at: Clock, one: TimedTrial | TimedBuild) -> tuple[float, float]:
    return at(one.start), at(one.start + one.seconds) - at(one.start)


def lanes_of(line: TimelineReport) -> dict[str, list[int]]:
    """Positions of trials by worker; by host where there are too many workers."""
    by_worker: dict[str, list[int]] = {}
    by_host: dict[str, list[int]] = {}
    for i, trial in enumerate(line.trials):
        host = trial.host or "unknown host"
        by_host.setdefault(host, []).append(i)
        by_worker.setdefault(f"{host} {trial.worker}".strip(), []).append(i)
    return dict(sorted((by_worker if len(by_worker) <= LANES else by_host).items()))


class Clock:
    """Seconds of the study to seconds on the picture, without long pauses."""

    def __init__(self, cuts: Sequence[tuple[float, float]]) -> None:
        self._cuts = cuts

    def __call__(self, moment: float) -> float:
        """Where a moment lies."""
        shift = 0.0
        for start, length in self._cuts:
            if moment > start:
                shift += min(moment - start, length) - min(_CUT, moment - start)
        return moment - shift


def clock(line: TimelineReport) -> tuple[Clock, list[tuple[float, float]]]:
    """A clock that leaves out pauses, and the pauses: where they begin, and how long they are."""
    spans = sorted(_spans(line))
    cuts = []
    end = spans[0][0] if spans else 0.0
    for start, stop in spans:
        if start - end > _GAP:
            cuts.append((end, start - end))
        end = max(end, stop)
    return Clock(cuts), cuts


# --------------------------------------------------------------------------------------------------
# The matrix as a heat map: rates by colour and in words, a slice for each value of further axes. Pure.

MOST_CELLS = 2500
"""Cells that are drawn; of larger matrices the slices that say most, the table of combinations has all."""
_CELL = (0.82, 0.7)
"""Width and height of a cell in inches."""
_LABEL = 0.075
"""Width of a letter."""
_LONGEST = 24
"""Letters of a value on an axis."""
_REASON = 400
"""Letters of a reason."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One heat map.

    Attributes:
        fixed: Further axes and their values here.
        picture: The `<svg>`.
    """

    fixed: Mapping[str, str]
    picture: Markup


@dataclass(frozen=True, slots=True)
class HeatMap:
    """All slices of the matrix.

    Attributes:
        across: Axis whose values are the columns.
        down: Axis whose values are the rows, None where one axis is all there is.
        controls: Further axes with several values, and these values.
        slices: In matrix order.
        left_out: Slices that are not drawn.
    """

    across: AxisInfo
    down: AxisInfo | None
    controls: tuple[AxisInfo, ...]
    slices: tuple[Slice, ...]
    left_out: int


def heat_map(report: Report) -> HeatMap | None:
    """Draw the matrix; None where there is none."""
    if not report.axes or not report.combinations:
        return None
    across, down, further = layout(report)
    groups: dict[tuple[str, ...], list[CombinationReport]] = {}
    for one in report.combinations:
        groups.setdefault(tuple(one.combination.get(axis.name, "") for axis in further), []).append(one)
    size = len(across.values) * (len(down.values) if down else 1)
    most = max(1, MOST_CELLS // size)
    ranked = sorted(groups, key=lambda key: _worth(groups[key], report), reverse=True)
    shown = set(ranked[:most])
    slices = []
    for number, (key, members) in enumerate(groups.items()):
        if key in shown:
            fixed = {axis.name: value for axis, value in zip(further, key, strict=True)}
            slices.append(Slice(fixed, _drawn(f"map{number}", fixed, members, across, down, report)))
    return HeatMap(
        across,
        down,
        tuple(axis for axis in further if len(axis.values) > 1),
        tuple(slices),
        len(groups) - len(slices),
    )


def layout(report: Report) -> tuple[AxisInfo, AxisInfo | None, list[AxisInfo]]:
    """Which axis runs across, which down, and which are left: culprits first, then the longest."""
    culprits = set(report.verdict.get("culprit_axes") or ())
    order = sorted(report.axes, key=lambda axis: (axis.name not in culprits, -len(axis.values)))
    chosen = [axis for axis in order if len(axis.values) > 1][:2] or order[:1]
    chosen.sort(key=lambda axis: -len(axis.values))
    further = [axis for axis in report.axes if axis not in chosen]
    return chosen[0], chosen[1] if len(chosen) > 1 else None, further


def _worth(members: Sequence[CombinationReport], report: Report) -> tuple[bool, int, int]:
    ends = [report.verdict.get("first_bad"), report.verdict.get("last_good")]
    return (
        any(one.combination in ends for one in members),
        sum(one.bad for one in members),
        sum(one.counted for one in members),
    )


def _drawn(
    name: str,
    fixed: Mapping[str, str],
    members: Sequence[CombinationReport],
    across: AxisInfo,
    down: AxisInfo | None,
    report: Report,
) -> Markup:
    columns, lines = len(across.values), len(down.values) if down else 1
    labels = [shortened(clean(value), _LONGEST) for value in (down.values if down else ())]
    left = max((len(label) for label in labels), default=0) * _LABEL + (0.6 if down else 0.15)
    tilted = any(len(value) * _LABEL > _CELL[0] - 0.1 for value in across.values)
    below = 0.55 + (min(_LONGEST, max(map(len, across.values))) * _LABEL * 0.7 if tilted else 0.0)
    width, height = left + columns * _CELL[0] + 0.1, lines * _CELL[1] + below + 0.1
    place = {
        (value, other): (x, y)
        for x, value in enumerate(across.values)
        for y, other in enumerate(down.values if down else ("",))
    }
    with style():
        picture = figure(width, height)
        axes = picture.add_axes(
            (left / width, below / height, columns * _CELL[0] / width, lines * _CELL[1] / height)
        )
        axes.set_xlim(0, columns)
        axes.set_ylim(lines, 0)
        for side in axes.spines.values():
            side.set_visible(False)
        axes.tick_params(length=0)
        axes.set_xticks(
            [x + 0.5 for x in range(columns)],
            [shortened(clean(value), _LONGEST) for value in across.values],
            rotation=30 if tilted else 0,
            ha="right" if tilted else "center",
        )
        axes.set_yticks([y + 0.5 for y in range(len(labels))], labels)
        axes.set_xlabel(clean(across.name), fontweight="bold")
        if down:
            axes.set_ylabel(clean(down.name), fontweight="bold")
        parts: dict[str, Part] = {}
        for one in members:
            other = one.combination.get(down.name, "") if down else ""
            where = place.get((one.combination.get(across.name, ""), other))
            if where is not None:
                gid = f"{name}-{where[0]}-{where[1]}"
                _cell(axes, gid, where, one, report)
                data = {"x": str(where[0]), "y": str(where[1])}
                parts[gid] = Part(cell_words(one, report), data)
        title = f"Rates by {clean(across.name)}" + (f" and {clean(down.name)}" if down else "")
        return page_svg(picture, name, title + (f", where {words.named(fixed)}" if fixed else ""), parts)


def cell_words(one: CombinationReport, report: Report) -> str:
    """Everything that a cell says, in one line."""
    parts = [words.named(one.combination), _tag(one, report)]
    if one.rate is not None:
        shown = f"{percent(one.rate)}, 95 % interval {interval(*one.interval)}"
        parts.append(f"{one.bad} of {one.counted} trials bad ({shown})")
    parts += [cell_note(one), f"called {one.verdict}" if one.verdict else ""]
    return "; ".join(part for part in parts if part)


def cell_note(one: CombinationReport) -> str:
    """What rate and verdict do not say: why there is none, what was not counted, whose trials these are."""
    parts = []
    if not one.is_runnable:
        parts.append(f"{one.status}: {shortened(clean(one.reason), _REASON) or 'no reason given'}")
    elif one.rate is None:
        parts.append("nothing counted" if one.other or one.skip or one.void else "not tried")
    uncounted = ((one.other, "failed otherwise"), (one.void, "void"), (one.skip, "skipped"))
    parts += [f"{number} {what}" for number, what in uncounted if number]
    if one.same_as:
        parts.append(f"measured as {words.named(one.same_as)}")
    if one.is_runnable and one.reason:
        parts.append(shortened(clean(one.reason), _REASON))
    return "; ".join(parts)


def _tag(one: CombinationReport, report: Report) -> str:
    if report.has_verdict:
        for key, tag in (("first_bad", "first bad"), ("last_good", "last good")):
            if one.combination == report.verdict.get(key):
                return tag
    return ""


def _cell(axes: Axes, gid: str, where: tuple[int, int], one: CombinationReport, report: Report) -> None:
    x, y = where
    tag = _tag(one, report)
    level = 0 if not one.rate else round(12 + 88 * math.sqrt(one.rate))
    fill = mixed("paper", 0)
    if not one.is_runnable:
        fill = mixed("hatch", 15)
    elif one.rate is not None:
        fill = mixed("heat", level) if one.rate else mixed("good", 22)
    # As an artist that is not clipped: a patch would have its limits and its clip path worked out, thousands
    # of times.
    axes.add_artist(
        Rectangle(
            (x + 0.03, y + 0.04),
            0.94,
            0.92,
            gid=gid,
            facecolor=fill,
            hatch=None if one.is_runnable else "///",
            edgecolor=COLOURS[{"first bad": "bad", "last good": "good"}.get(tag, "line")],
            linewidth=3.0 if tag else 0.8,
            linestyle="-" if tag or one.rate is not None or not one.is_runnable else ":",
            transform=axes.transData,
            clip_on=False,
        )
    )
    lines = _lines(one)
    if tag:
        lines.insert(0, (tag, 7.5, "bold"))
    step = 0.9 / (len(lines) + 1)
    for number, (text, size, weight) in enumerate(lines, start=1):
        font: dict[str, Any] = {"fontsize": size, "fontweight": weight, "color": COLOURS["ink"]}
        axes.text(x + 0.5, y + 0.05 + number * step, text, ha="center", va="center", clip_on=False, **font)


def _lines(one: CombinationReport) -> list[tuple[str, float, str]]:
    if not one.is_runnable:
        return [(one.status.removeprefix("env-"), 7.5, "normal")]
    if one.rate is None:
        return [("uncounted" if one.other or one.skip or one.void else "–", 8.0, "normal")]
    return [
        (percent(one.rate), 10.0, "bold"),
        (interval(*one.interval), 7.5, "normal"),
        (f"{one.bad} of {one.counted}{' =' if one.same_as else ''}", 7.5, "normal"),
    ]
