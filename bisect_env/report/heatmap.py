"""The matrix as a heat map: rates by colour and in words, a slice for each value of further axes. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from bisect_env.report import words
from bisect_env.report.model import AxisInfo, CombinationReport, Report
from bisect_env.report.numbers import interval, percent
from bisect_env.report.svg import COLOURS, Part, figure, mixed, page_svg, style
from bisect_env.report.untrusted import clean, shortened

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
