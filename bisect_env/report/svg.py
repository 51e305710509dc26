"""Pictures by matplotlib as SVG that belongs to a page: its colours, its fonts, words for each part. Pure.

matplotlib draws; here its output is parsed again, so that colours become the page's own (light or dark),
parts can be pointed at, reached with the keyboard and read aloud, and no id of one picture meets another's.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

# Before it is imported: it would tell a user of a report, on stderr, of its fonts and directories.
logging.getLogger("matplotlib").setLevel(logging.ERROR)

import matplotlib as mpl  # noqa: E402
from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

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
