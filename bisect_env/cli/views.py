"""Shows a running study as a live table, plain lines without a terminal, or JSON lines for programs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, Self, TextIO

from rich import live
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.origins import origins_text
from bisect_env.answers.phrases import duration, how_many, probability
from bisect_env.answers.sentence import sentence
from bisect_env.answers.untrusted import clean, shortened
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.cli.options import ShownOptions
from bisect_env.cli.output import in_own_form
from bisect_env.engine import events
from bisect_env.environments.progress import BuildStep
from bisect_env.errors import StudyInterruptedError
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.history import readable
from bisect_env.search.numeric import clopper_pearson
from bisect_env.secrets import public_json, without_passwords
from bisect_env.trials.records import Evidence

ROWS = 14
"""Combinations in the live table; those nearest to the open question."""
REFRESH_PER_SECOND = 4
PLAIN_EVERY = 5.0
"""Seconds between two progress lines where there is no terminal, if they say something new."""
PLAIN_STEP = 2.0
"""The same for steps of builds, of which each is news."""
DETAIL_WIDTH = 120
"""Characters of a failing trial's message in a line."""
PLAIN_AGAIN = 30.0
"""Seconds after which the same is said again."""


class View(AbstractContextManager["View"]):
    """Hears of events and shows them; a context manager that cleans the terminal up."""

    def __call__(self, event: events.Event) -> None:
        """Show one event."""
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        """Do nothing: there is nothing to clean up."""


class QuietView(View):
    """Shows warnings alone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, event: events.Event) -> None:
        """Show one event."""
        if isinstance(event, events.Warned):
            print(
                f"warning: {clean(without_passwords(in_own_form(event.text)))}", file=self._stream, flush=True
            )


class PlainView(View):
    """Prints a line for each important event, for logs and pipes."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._shown_at = float("-inf")
        self._shown = (False, "")
        self._doing = Doing(clock)
        self._again: Counter[str] = Counter()

    def __call__(self, event: events.Event) -> None:
        """Show one event."""
        for text in self._lines(event):
            print(clean(without_passwords(in_own_form(text))), file=self._stream, flush=True)

    def _lines(self, event: events.Event) -> Iterator[str]:
        self._doing.update(event)
        text = describe(event)
        if isinstance(event, events.Progress | events.LockProgress | events.Building):
            text = self._due(event, text)
            if text is None:
                return
        if isinstance(event, events.TrialFinished):
            # The same failure is a line once, and a number from then on.
            if text is not None and text in self._again:
                self._again[text] += 1
                return
            if text is not None:
                self._again[text] = 0
        elif isinstance(event, events.Progress | events.Concluded | events.Failed):
            for line, more in self._again.items():
                if more:
                    yield f"{line.partition(' (')[0]}: {how_many(more, 'more time')}"
                    self._again[line] = 0
        if text is not None:
            yield text

    def _due(self, event: events.Event, text: str | None) -> str | None:
        """Return a line about how far things are, if it is news or has not been said for long."""
        is_doing = not isinstance(event, events.Progress) or not (event.trials or event.running)
        # Before the first trial, what is done for it is all that there is to say.
        if is_doing and (self._doing.text or isinstance(event, events.Progress)):
            text = self._doing.text or "making environments"
        if text is None:
            return None
        # How far one step is changes all the time: that it is another one is news.
        key = (is_doing, self._doing.step if is_doing and self._doing.text else text)
        if key == self._shown:
            wait = PLAIN_AGAIN
        else:
            wait = 0.0 if key[0] != self._shown[0] else PLAIN_STEP if is_doing else PLAIN_EVERY
        if self._clock() < self._shown_at + wait:
            return None
        self._shown, self._shown_at = key, self._clock()
        return text


_STEPS = {"checking": "verifying installed files"}


class Doing:
    """Describes what a study does while no trial ends: solving and building.

    Args:
        clock: Seconds that only grow.

    Attributes:
        step: What is done, without how far it is.
        text: The same with it; "" when there is nothing to say.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: dict[tuple[str, str], float] = {}
        self.step = self.text = ""

    def update(self, event: events.Event) -> None:
        """Learn from an event."""
        match event:
            case events.LockProgress(done, total) if done < total:
                self.step, self.text = "locking", f"locking {done} of {total}"
            case events.LockProgress():
                self.step = self.text = ""
            case events.Building(lock_hash, step, ready, _):
                what = _STEPS.get(step.what, f"{step.what} {step.package}".rstrip())
                left = self._left(lock_hash, step)
                amount = f": {_of(step.done, step.total)}{left}" if step.total else ""
                self.step = what
                self.text = f"{what}{amount}; environment {ready + 1}"
            case events.Built() | events.TrialFinished():
                self.step = self.text = ""
            case _:
                pass

    def _left(self, lock_hash: str, step: BuildStep) -> str:
        now = self._clock()
        began = self._began.setdefault((lock_hash, step.what), now)
        if not step.done or now <= began:
            return ""
        seconds = (now - began) * (step.total - step.done) / step.done
        return f", about {duration(seconds)} left" if seconds >= 1 else ""


def _of(done: int, total: int) -> str:
    unit, size = ("GB", 1e9) if total >= 1e9 else ("MB", 1e6)
    digits = 1 if total >= 1e9 else 0
    return f"{done / size:.{digits}f} of {total / size:.{digits}f} {unit}"


def describe(event: events.Event) -> str | None:
    """Return one line for an event, None for events that are too frequent to be lines."""
    match event:
        case events.StudyOpened(study_id, name, resumed):
            again = f", going on after {how_many(resumed, 'trial')}" if resumed else ""
            return f"study {study_id} ({name}){again}"
        case events.Reused(trials, origins):
            so_far, told = sum(origin.trials for origin in origins), origins_text(origins)
            if so_far > trials:
                return f"{how_many(trials, 'more trial')} measured before, {so_far} by now ({told})"
            were = "that was" if trials == 1 else "that were"
            return f"starts from {how_many(trials, 'trial')} {were} measured before ({told})"
        case events.Locked():
            without = f", {event.unsolvable} without a solution" if event.unsolvable else ""
            out = f", {event.excluded} excluded" if event.excluded else ""
            known = f"{how_many(event.combinations, 'combination')}{out}{without}"
            if event.environments is None:
                return known
            distinct = "environment" if event.environments == 1 else "distinct environments"
            return f"{known}: {event.environments} {distinct}"
        case events.SetAside(combinations, status, reason):
            more = f" and {len(combinations) - 1} more" if len(combinations) > 1 else ""
            first = next(iter(reason.splitlines()), "")
            return f"set aside: {combinations[0]}{more} ({status}: {first})"
        case events.Warned(text):
            return f"warning: {text}"
        case events.Said(text):
            return text
        case events.TrialFinished(record, evidence, _) if evidence is Evidence.BAD:
            detail = shortened(record.detail, DETAIL_WIDTH)
            return f"{record.outcome}: {record.combination} ({detail})"
        case events.Answered():
            checks = how_many(event.checks, "more trial")
            answer = _verdict_text(event.verdict, event.axes)
            if event.seconds is None:
                return f"answer: {answer}; now checking it with up to {checks} (Ctrl-C ends that)"
            limit = f"{event.seconds:.0f} s at most"
            return f"answer: {answer}; now checking it for {limit} (`--sure` checks on: up to {checks})"
        case events.Progress():
            words, left = passing_text(event), _what_is_left(event)
            if event.passing is not None:
                return "; ".join(filter(None, (_seen(event), words, left)))
            best = probability(event.verdict.probability or 0.0)
            known = f"{_seen(event)}, {event.hits} of them bad; best answer so far {best}; {left}"
            return "; ".join(filter(None, (known, always_text(event))))
        case _:
            return None


def _verdict_text(verdict: VerdictDocument, axes: Sequence[AxisInfo]) -> str:
    """Return the verdict so far in one sentence, with commits as people read them."""
    names = {value: label for axis in axes for value, label in axis.labels.items()}
    return readable(sentence(verdict, axes), names)


def _seen(progress: events.Progress) -> str:
    return how_many(progress.trials, "trial")


FEW_PASSES = 10
"""Passes below which they exclude too little to be mentioned."""
_OFTEN = 3
"""Failures at least that, without a pass beside them, look like one that comes every time."""


def passing_text(progress: events.Progress) -> str:
    """Return what a bad end that has only passed so far excludes, and how to stop there; else "". Pure."""
    if progress.passing is None or progress.passing[1] < FEW_PASSES:
        return ""
    combination, passes, floor = progress.passing
    _, most = clopper_pearson(0, passes, 0.90)  # one-sided: 95 %
    known = f"{combination} passed {passes} times: it fails in less than {_percent(most)} of runs, if at all"
    if most <= floor:
        return known
    return f"{known} (Ctrl-C ends it here; with `--always`, or `--rate 0.5`, fewer passes are enough)"


def always_text(progress: events.Progress) -> str:
    """Return that the failure came every time, if the search still looks for a rare one; else "". Pure."""
    failing = [(hits, trials) for hits, trials in progress.counts.values() if hits]
    every_time = sum(hits for hits, _ in failing) >= _OFTEN and all(
        hits == trials for hits, trials in failing
    )
    left = progress.verdict.expected_left or 0.0
    if not every_time or progress.is_certain or left < FEW_PASSES:
        return ""
    return "it failed every time so far: the same command with `--always` ends sooner"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


def _what_is_left(progress: events.Progress) -> str:
    """Return what would end a study, in words."""
    if progress.passing is not None:
        least = _percent(progress.passing[2])
        return f"no failure yet; continuing until a failure rate of {least} can be ruled out"
    left = round(progress.verdict.expected_left or 0.0)
    # How many of its checks an answer will need is not known.
    return f"about {how_many(left, 'trial')} left" if left else "checking the answer"


class JsonView(View):
    """One JSON object a line on stdout; `event` names its kind, `time` says when it was printed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, event: events.Event) -> None:
        """Show one event."""
        # ASCII: stdout's encoding is the locale's, and what a script printed may be no text at all.
        try:
            print(json.dumps(public_json(timed(event))), file=self._stream, flush=True)
        except BrokenPipeError:
            # Python would complain once more when it flushes at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            raise StudyInterruptedError(
                "the program that read the events has ended; every trial that ended is stored",
                remedy="give the same command again: it goes on from here",
            ) from None


def timed(event: events.Event) -> dict[str, Any]:
    """Return an event as a JSON object with the moment, UTC, behind its kind."""
    document = event.as_json()
    kind = document.pop("event")
    return {"event": kind, "time": datetime.now(UTC).isoformat(timespec="milliseconds"), **document}


class LiveView(View):
    """A table that is redrawn in place: where the posterior mass is, what runs, what is left."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:

        self._console = console
        self._clock = clock
        self._began = clock()
        self._live = live.Live(console=console, refresh_per_second=REFRESH_PER_SECOND, transient=True)
        self._title = "preparing"
        self._doing = Doing(clock)
        self._counts: dict[Combination, list[int]] = {}
        self._progress: events.Progress | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the table away; what follows is printed on a clean terminal."""
        self._live.stop()

    def __call__(self, event: events.Event) -> None:
        """Show one event."""
        self._doing.update(event)
        match event:
            case events.StudyOpened():
                self._title = f"{event.name} (study {event.study})"
            case events.TrialFinished(record, evidence, _):
                counts = self._counts.setdefault(record.combination, [0, 0])
                counts[0] += evidence is Evidence.BAD
                counts[1] += evidence in (Evidence.GOOD, Evidence.BAD)
            case events.Progress():
                self._progress = event
                # What was stored before this command began is there from the start.
                for combination, (hits, trials) in event.counts.items():
                    self._counts[combination] = [hits, trials]
            case events.Failed() | events.Concluded():
                return
            case _:
                pass
        shown = events.Locked | events.Reused | events.Warned | events.SetAside | events.Answered
        if isinstance(event, shown):
            self._live.console.print(
                Text(clean(without_passwords(in_own_form(describe(event) or "")))), highlight=False
            )
        self._live.update(self.drawn())

    def drawn(self) -> RenderableType:
        """Return the text that is on the screen now."""
        title = Text(clean(self._title), style="bold")
        if self._progress is None:
            return Group(title, Text(f"{clean(self._doing.text) or 'preparing'} · {self._elapsed()}"))
        doing = [Text(clean(self._doing.text), style="dim")] if self._doing.text else []
        return Group(title, self._table(self._progress), *doing, self._summary(self._progress))

    def _table(self, progress: events.Progress) -> Table:

        table = Table(box=None, pad_edge=False, header_style="dim")
        for name, justify in (("combination", "left"), ("trials", "right"), ("bad", "right")):
            table.add_column(name, justify="right" if justify == "right" else "left")
        table.add_column("probability of being bad")
        table.add_column("")
        failing = {combination for combination, (hits, _) in self._counts.items() if hits}
        for combination, bad in interesting(progress, ROWS, failing):
            hits, trials = self._counts.get(combination, [0, 0])
            running = progress.running.get(combination, 0)
            table.add_row(
                escape(str(combination)),
                str(trials or "·"),
                Text(str(hits or "·"), style="red" if hits else ""),
                Text(bar(bad), style="red" if bad > 0.5 else "green"),
                f"running {running}" if running else "",
            )
        return table

    def _summary(self, progress: events.Progress) -> Text:

        words, left = passing_text(progress), _what_is_left(progress)
        if progress.passing is not None:
            known = (self._elapsed(), _seen(progress), clean(words))
            return Text(" · ".join(filter(None, (*known, left))))
        # The sentence says its probability itself.
        return Text(
            f"{self._elapsed()} · {_seen(progress)}, {progress.hits} bad · {left} · "
            f"so far: {clean(_verdict_text(progress.verdict, progress.axes))}"
        )

    def _elapsed(self) -> str:
        return duration(max(0.0, self._clock() - self._began))


def interesting(
    progress: events.Progress, rows: int, failing: Collection[Combination] = ()
) -> list[tuple[Combination, float]]:
    """Return the combinations whose answer is most open, and those that run now, in the grid's order.

    Args:
        progress: Where the study stands.
        rows: How many at most.
        failing: Those that have failed: some are among the rows, however little is open about them.
    """

    def openness(item: tuple[int, tuple[Combination, float]]) -> tuple[bool, float]:
        _, (combination, bad) = item
        return (combination in progress.running, bad * (1 - bad))

    ranked = sorted(enumerate(progress.probability_bad), key=openness, reverse=True)
    kept = [item for item in ranked if item[1][0] in failing][: max(1, rows // 3)]
    chosen = [*kept, *(item for item in ranked if item not in kept)][:rows]
    return [pair for _, pair in sorted(chosen, key=lambda item: item[0])]


_BAR = 20
"""Characters of a bar."""


def bar(fraction: float) -> str:
    """Return a bar that is filled up to `fraction`."""
    filled = round(fraction * _BAR)
    return "█" * filled + "░" * (_BAR - filled) + f" {fraction:4.0%}"


def lines(shown: ShownOptions) -> View:
    """Return a view that prints lines on stderr, of warnings alone if the user wants JSON or quiet."""
    return QuietView(sys.stderr) if shown.as_json or shown.quiet else PlainView(sys.stderr)


def choose(shown: ShownOptions, *, plain: bool = False) -> View:
    """Choose the view: JSON on stdout, or text on stderr; with `plain` as lines even on a terminal."""
    if shown.as_json:
        return JsonView(sys.stdout)
    if shown.quiet:
        return QuietView(sys.stderr)
    console = Console(stderr=True)
    return LiveView(console) if console.is_terminal and not plain else PlainView(sys.stderr)
