"""Shows a running study as a live table, plain lines without a terminal, or JSON lines for programs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Self, TextIO

from rich import live
from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.origins import origins_text
from bisect_env.answers.phrases import and_more, brief, duration, how_many, percent, probability
from bisect_env.answers.sentence import sentence
from bisect_env.answers.untrusted import clean, shortened
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.cli.log import log_event
from bisect_env.cli.options import ShownOptions
from bisect_env.cli.output import shown_line, tell
from bisect_env.engine import events
from bisect_env.environments.progress import BuildStep
from bisect_env.errors import StudyInterruptedError
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.history import readable
from bisect_env.report.model import labels
from bisect_env.search.numeric import clopper_pearson
from bisect_env.secrets import public_json
from bisect_env.trials.records import Evidence

ROWS = 14
"""Maximum number of combinations in the live table, which shows the most doubtful ones."""
_BAR = 20
"""Width of a bar in characters."""
REFRESH_PER_SECOND = 4
PLAIN_EVERY = 5.0
"""Minimum number of seconds between two different progress lines without a terminal."""
DETAIL_WIDTH = 120
"""Maximum number of characters of a failing trial's message in a line."""
PLAIN_AGAIN = 30.0
"""Seconds after which an unchanged progress line is repeated."""


class View(AbstractContextManager["View"]):
    """The base class of views, which log events and show them. Leaving a view's block cleans the terminal.

    Attributes:
        has_failed: Whether an error was shown.
    """

    has_failed = False

    def __call__(self, event: events.Event) -> None:
        """Log one event, and show it."""
        log_event(event)
        self.has_failed = self.has_failed or isinstance(event, events.Failed)
        self.show(event)

    def show(self, event: events.Event) -> None:
        """Show an event of the study to the user."""
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        """Do nothing, because this view leaves nothing to clean up."""


class PlainView(View):
    """A view that prints a line for each important event, for logs and pipes."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._shown_at = float("-inf")
        self._shown = (False, "")
        self._doing = Doing(clock)
        self._again: Counter[str] = Counter()
        self._hinted: set[str] = set()

    def show(self, event: events.Event) -> None:
        """Print the lines of an event, if it has any."""
        for text in self._lines(event):
            print(shown_line(text), file=self._stream, flush=True)

    def _lines(self, event: events.Event) -> Iterator[str]:
        self._doing.update(event)
        text = describe(event)
        if isinstance(event, events.Progress | events.LockProgress | events.Building):
            text = self._due(event, text)
            if text is None:
                return
        if isinstance(event, events.TrialFinished) and text is not None:
            # Print a failure once; later equal failures are only counted.
            if text in self._again:
                self._again[text] += 1
                return
            self._again[text] = 0
        elif isinstance(event, events.Progress | events.Concluded | events.Failed):
            for line, more in self._again.items():
                if more:
                    yield f"{line.partition(' (')[0]}: {how_many(more, 'more time')}"
                    self._again[line] = 0
        if text is not None:
            yield self._with_new_hints(text)

    def _with_new_hints(self, text: str) -> str:
        """Return a progress line without the hints that an earlier line gave."""
        for hint in _HINTS:
            if hint in text and hint in self._hinted:
                text = text.replace(hint, "")
            elif hint in text:
                self._hinted.add(hint)
        return text

    def _due(self, event: events.Event, text: str | None) -> str | None:
        """Return the progress line to print now, or None if no line should be printed yet.

        A changed line is printed after a few seconds, an unchanged one after `PLAIN_AGAIN` seconds.
        """
        is_doing = not isinstance(event, events.Progress) or not (event.trials or event.running)
        # Before the first trial, only the work on environments can be shown.
        if is_doing and (self._doing.text or isinstance(event, events.Progress)):
            text = self._doing.text or "making environments"
        if text is None:
            return None
        # The amount within a step changes all the time; only another step counts as new.
        key = (is_doing, self._doing.step if is_doing and self._doing.text else text)
        wait = PLAIN_AGAIN if key == self._shown else PLAIN_EVERY
        if key[0] == self._shown[0] and self._clock() < self._shown_at + wait:
            return None
        self._shown, self._shown_at = key, self._clock()
        return text


class QuietView(PlainView):
    """A view that prints only warnings."""

    def show(self, event: events.Event) -> None:
        """Print the event if it is a warning."""
        if isinstance(event, events.Warned):
            super().show(event)


_STEPS = {
    "checking": "verifying installed files",
    "waiting": "waiting for another command, which is building the same environment",
}


class Doing:
    """The current step of solving or building, as text such as `locking 3 of 10`.

    Args:
        clock: Function that returns monotonic seconds.

    Attributes:
        step: The present step, without its progress.
        text: The present step with its progress; "" if nothing is being solved or built.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: dict[tuple[str, str], float] = {}
        self.step = self.text = ""

    def update(self, event: events.Event) -> None:
        """Update the text according to an event."""
        match event:
            case events.LockProgress(done, total) if done < total:
                self.step, self.text = "locking", f"locking {done} of {total}"
            case events.Building(lock_hash, step, ready, _):
                what = _STEPS.get(step.what, f"{step.what} {step.package}".rstrip())
                left = self._left(lock_hash, step)
                amount = f": {decimal(step.done)} of {decimal(step.total)}{left}" if step.total else ""
                self.step = what
                self.text = f"{what}{amount}; environment {ready + 1}"
            case events.LockProgress() | events.Built() | events.TrialFinished():
                self.step = self.text = ""

    def _left(self, lock_hash: str, step: BuildStep) -> str:
        now = self._clock()
        began = self._began.setdefault((lock_hash, step.what), now)
        if not step.done or now <= began:
            return ""
        seconds = (now - began) * (step.total - step.done) / step.done
        return f", about {duration(seconds)} left" if seconds >= 1 else ""


def describe(event: events.Event) -> str | None:
    """Return one line of text for an event, or None if the event is not shown as a line."""
    match event:
        case events.StudyOpened(study_id, name, resumed):
            again = f", going on after {how_many(resumed, 'trial')}" if resumed else ""
            return f"study {study_id} ({name}){again}"
        case events.Reused(trials, origins):
            so_far, sources = sum(origin.trials for origin in origins), origins_text(origins)
            if so_far > trials:
                return f"{how_many(trials, 'more trial')} measured before, {so_far} by now ({sources})"
            were = "that was" if trials == 1 else "that were"
            return f"starts from {how_many(trials, 'trial')} {were} measured before ({sources})"
        case events.Locked():
            without = f", {event.unsolvable} without a solution" if event.unsolvable else ""
            out = f", {event.excluded} excluded" if event.excluded else ""
            known = f"{how_many(event.combinations, 'combination')}{out}{without}"
            if event.environments is None:
                return known
            distinct = "environment" if event.environments == 1 else "distinct environments"
            return f"{known}: {event.environments} {distinct}"
        case events.SetAside(combinations, status, reason):
            return f"set aside: {and_more([*map(str, combinations)], 1)} ({status}: {brief(reason)})"
        case events.Warned(text):
            return f"warning: {text}"
        case events.Said(text):
            return text
        case events.TrialFinished(record, evidence) if evidence is Evidence.BAD:
            detail = shortened(record.detail, DETAIL_WIDTH)
            return f"{record.outcome}: {record.combination} ({detail})"
        case events.Answered():
            checks = how_many(event.checks, "more trial")
            # How little the last good side was tried is said once its checks have ended.
            unchecked = event.verdict.model_copy(update={"cleared": (), "reason": ""})
            answer = _verdict_text(unchecked, event.axes)
            if event.seconds is None:
                return f"answer: {answer}; now checking it with up to {checks} (Ctrl-C ends that)"
            limit = f"{event.seconds:.0f} s at most"
            return f"answer: {answer}; now checking it for {limit} (`--sure` checks on: up to {checks})"
        case events.Progress():
            return "; ".join(_progress_texts(event, _answer_so_far(event.verdict)))
        case _:
            return None


def _verdict_text(verdict: VerdictDocument, axes: Sequence[AxisInfo]) -> str:
    """Return the current verdict in one sentence, with readable names instead of commit hashes."""
    return readable(sentence(verdict, axes), labels(axes))


def _answer_so_far(verdict: VerdictDocument) -> str:
    """Return a short text that says how far an unfinished study has come.

    The text is "" if no answer has a probability yet: an incomplete table has none.
    """
    if verdict.table is not None:
        return f"{how_many(verdict.table.good + verdict.table.bad, 'combination')} called good or bad so far"
    return f"best answer so far {probability(verdict.probability)}" if verdict.probability else ""


def _progress_texts(progress: events.Progress, answer: str) -> list[str]:
    """Return short texts about the results so far and about what remains to be done.

    Args:
        progress: The present state of the study.
        answer: The best answer in words; left out as long as nothing has failed.
    """
    seen, left = how_many(progress.trials, "trial"), _what_is_left(progress)
    if progress.passing is not None:
        texts = [seen, passing_text(progress), left]
    else:
        texts = [f"{seen}, {progress.hits} of them bad", answer, left, always_text(progress)]
    return [text for text in texts if text]


_ENDS_HERE = " (Ctrl-C ends it here; with `--always`, or `--rate 0.5`, fewer passes are enough)"
_EVERY_TIME = "if it should fail every time, `--always` ends this now"
_EVERY_TIME = "it failed every time so far: the same command with `--always` ends sooner"
_HINTS = (_ENDS_HERE, f"; {_EVERY_TIME}")
"""Parts of progress lines that plain output has once, because they say what the user may do."""
FEW_PASSES = 10
"""Minimum number of passes that are mentioned; fewer passes exclude too little."""
_OFTEN = 3
"""Minimum number of repeated failures, without a pass, after which a failure seems to occur every time."""


def passing_text(progress: events.Progress) -> str:
    """Return a text with the highest failure rate that a bad end may have after passing all trials so far.

    Return "" if a trial has failed, or if there are fewer than `FEW_PASSES` passes.
    """
    if progress.passing is None or progress.passing[1] < FEW_PASSES:
        return ""
    combination, passes, floor = progress.passing
    _, most = clopper_pearson(0, passes, 0.90)  # one-sided: 95 %
    known = f"{combination} passed {passes} times: it fails in less than {percent(most)} of runs, if at all"
    if most <= floor:
        return known
    return f"{known}{_ENDS_HERE}"


def always_text(progress: events.Progress) -> str:
    """Return a hint to use `--always` if the failing combinations have failed in every trial.

    The first failure of a combination does not count, because it is what makes the combination a failing one:
    each version of a flaky package that failed in its only trial has failed every time.

    Return "" after fewer than three failures that count, with `--always`, or if few trials are left.
    """
    failing = [(hits, trials) for hits, trials in progress.counts.values() if hits]
    every_time = sum(hits - 1 for hits, _ in failing) >= _OFTEN and all(
        hits == trials for hits, trials in failing
    )
    left = progress.verdict.expected_left or 0.0
    if not every_time or progress.is_certain or left < FEW_PASSES:
        return ""
    return _EVERY_TIME


def _what_is_left(progress: events.Progress) -> str:
    """Return a text about what remains to be done before the study ends."""
    if progress.passing is not None:
        combination, _, rate = progress.passing
        python = combination.as_dict().get("python")
        on = f" on Python {python}" if python else ""
        return f"no failure yet{on}; continuing until a failure rate of {percent(rate)} can be ruled out"
    left = round(progress.verdict.expected_left or 0.0)
    # The number of checks that an answer needs is not known in advance.
    return f"about {how_many(left, 'trial')} left" if left else "checking the answer"


class JsonView(View):
    """A view that prints events on stdout as JSON lines with the keys `event` and `time`.

    Messages for people go to stderr, so that the last line on stdout is the answer.

    Args:
        stream: Where to print.
        quiet: Whether to print only warnings, errors and the answer.
    """

    def __init__(self, stream: TextIO, *, quiet: bool = False) -> None:
        self._stream = stream
        self._quiet = quiet

    def show(self, event: events.Event) -> None:
        """Print the event as a line of JSON."""
        if self._quiet and not isinstance(event, events.Warned | events.Failed | events.Concluded):
            return
        if isinstance(event, events.Said):
            tell(event.text)
            return
        document = event.as_json()
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        document = {"event": document["event"], "time": now, **document}
        # Plain ASCII, because scripts print arbitrary bytes and the locale's encoding may lack characters.
        try:
            print(json.dumps(public_json(document)), file=self._stream, flush=True)
        except BrokenPipeError:
            # Without this, Python reports the broken pipe again when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            raise StudyInterruptedError(
                "the program that read the events has ended; every trial that ended is stored",
                remedy="give the same command again: it goes on from here",
            ) from None


class LiveView(View):
    """A view that shows a table on the terminal: likely answers, running trials and remaining work."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._began = clock()
        self._live = live.Live(console=console, refresh_per_second=REFRESH_PER_SECOND, transient=True)
        self._title = "preparing"
        self._doing = Doing(clock)
        self._progress: events.Progress | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the table, so that later output starts on a clean terminal."""
        self._live.stop()

    def show(self, event: events.Event) -> None:
        """Bring the table up to date with an event, and print warnings and messages above it."""
        self._doing.update(event)
        match event:
            case events.StudyOpened():
                self._title = f"{event.name} (study {event.study})"
            case events.Progress():
                self._progress = event
            case events.Failed() | events.Concluded():
                return
        shown = events.Locked | events.Reused | events.Warned | events.SetAside | events.Answered
        if isinstance(event, shown):
            self._live.console.print(Text(shown_line(describe(event) or "")), highlight=False)
        self._live.update(self.drawn())

    def drawn(self) -> RenderableType:
        """Return the live table in its current state."""
        title = Text(clean(self._title), style="bold")
        if self._progress is None:
            return Group(title, Text(f"{clean(self._doing.text) or 'preparing'} · {self._elapsed()}"))
        doing = [Text(clean(self._doing.text), style="dim")] if self._doing.text else []
        return Group(title, self._table(self._progress), *doing, self._summary(self._progress))

    def _table(self, progress: events.Progress) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("combination")
        table.add_column("trials", justify="right")
        table.add_column("bad", justify="right")
        for name in ("probability of being bad", "", ""):
            table.add_column(name)
        for combination, bad in interesting(progress, ROWS):
            hits, trials = progress.counts.get(combination, (0, 0))
            running = progress.running.get(combination, 0)
            style = "red" if bad > 0.5 else "green"
            table.add_row(
                escape(str(combination)),
                str(trials or "·"),
                Text(str(hits or "·"), style="red" if hits else ""),
                ProgressBar(1.0, bad, width=_BAR, complete_style=style, finished_style=style),
                f"{bad:.0%}",
                f"running {running}" if running else "",
            )
        return table

    def _summary(self, progress: events.Progress) -> Text:
        # The sentence already contains the probability.
        answer = f"so far: {_verdict_text(progress.verdict, progress.axes)}"
        return Text(clean(" · ".join([self._elapsed(), *_progress_texts(progress, answer)])))

    def _elapsed(self) -> str:
        return duration(max(0.0, self._clock() - self._began))


def interesting(progress: events.Progress, rows: int) -> list[tuple[Combination, float]]:
    """Return the combinations to show in the live table, each with its probability of being bad.

    The running combinations and the most doubtful ones are chosen, in the order of the grid.

    Args:
        progress: The present state of the study.
        rows: Maximum number of combinations; up to a third of them are reserved for those that have failed.
    """

    def openness(item: tuple[int, tuple[Combination, float]]) -> tuple[bool, float]:
        _, (combination, bad) = item
        return (combination in progress.running, bad * (1 - bad))

    ranked = sorted(enumerate(progress.probability_bad), key=openness, reverse=True)
    kept = [item for item in ranked if progress.counts.get(item[1][0], (0, 0))[0]][: max(1, rows // 3)]
    chosen = [*kept, *(item for item in ranked if item not in kept)][:rows]
    return [pair for _, pair in sorted(chosen, key=lambda item: item[0])]


def choose(shown: ShownOptions, *, plain: bool = False) -> View:
    """Return the view for a command: JSON lines, a live table, plain lines or only warnings.

    JSON is printed on stdout, everything else on stderr.

    Args:
        shown: Options of what is shown.
        plain: Whether to print lines even on a terminal, instead of the live table.
    """
    if shown.as_json:
        return JsonView(sys.stdout, quiet=shown.quiet)
    if shown.quiet:
        return QuietView(sys.stderr)
    console = Console(stderr=True)
    is_live = console.is_terminal and not plain
    return LiveView(console) if is_live else PlainView(sys.stderr)
