"""The posterior as it moved, and what ran when. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from bisect_env.report.model import Report, TimedBuild, TimedTrial, TimelineReport
from bisect_env.report.numbers import duration
from bisect_env.report.svg import COLOURS, SERIES, figure, page_svg, style
from bisect_env.report.untrusted import clean, shortened

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
