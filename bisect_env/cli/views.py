"""Shows a running study as a live table, plain lines or JSON lines, and writes the command's log."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Self, TextIO

import platformdirs
import psutil
import typer
from rich import live
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bisect_env import __version__
from bisect_env.answers.origins import told_origins
from bisect_env.answers.phrases import duration, how_many, probability
from bisect_env.answers.sentence import sentence
from bisect_env.answers.untrusted import clean
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.cli.options import JsonOption
from bisect_env.cli.output import own_command, with_options
from bisect_env.engine import events
from bisect_env.environments.progress import BuildStep
from bisect_env.errors import StudyInterruptedError, UsageError
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.history import readable
from bisect_env.matrix.secrets import public_json, without_passwords, without_passwords_in_code
from bisect_env.search.numeric import clopper_pearson
from bisect_env.trials.records import Evidence

# --------------------------------------------------------------------------------------------------
# How a running study is shown: a live table, plain lines without a terminal, JSON lines for programs.

ROWS = 14
"""Combinations in the live table; those nearest to the open question."""
REFRESH_PER_SECOND = 4
PLAIN_EVERY = 5.0
"""Seconds between two progress lines where there is no terminal, if they say something new."""
PLAIN_STEP = 2.0
"""The same for steps of builds, of which each is news."""
PLAIN_AGAIN = 30.0
"""Seconds after which the same is said again."""


class View(AbstractContextManager["View"]):
    """Hears of events and shows them; a context manager that cleans the terminal up."""

    def __call__(self, event: events.Event) -> None:
        """Show one event."""
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        """Nothing to clean up."""


def process_age() -> float:
    """Seconds since this process was started, to a hundredth.

    `psutil.Process().create_time()` adds the time of the machine's start, which Linux states in whole
    seconds: up to a second too early.
    """
    if not sys.platform.startswith("linux"):
        return time.time() - psutil.Process().create_time()
    # Behind the name in parentheses, which may contain anything, come the fields from the third on; the
    # process's start is the 22nd, in ticks since the machine's start (proc_pid_stat(5)).
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


class Timings:
    """When a command reached what, in seconds since its process was started, and what took how long."""

    def __init__(self) -> None:
        self._reached: dict[str, float] = {}
        self._sums: defaultdict[str, float] = defaultdict(float)

    def heard(self, event: events.Event) -> None:
        """Note when something happened for the first time, and add up what took time."""
        match event:
            case events.StudyOpened():
                self._reach("study opened")
            case events.Locked(seconds=seconds):
                if seconds:
                    self._lock(seconds)
            case events.LockProgress(_, _, seconds):
                self._lock(seconds)
            case events.Built(_, _, seconds):
                self._sums["building, all together"] += seconds
            case events.TrialStarted():
                self._reach("first trial begun")
            case events.TrialFinished(record, _, _):
                self._reach("first trial recorded")
                self._sums["trials, all together"] += record.duration
            case events.Answered():
                self._reach("answer")
            case events.Concluded(_, searching):
                self._reach("answer")
                self._reach("report")
                self._sums["searching, all together"] += searching
            case _:
                pass

    def end(self) -> None:
        """Note that all is closed, and only the report is to be printed."""
        self._reach("end")

    def _lock(self, seconds: float) -> None:
        self._reach("first lock")
        self._sums["locking, all together"] += seconds

    def _reach(self, what: str) -> None:
        self._reached.setdefault(what, process_age())

    @property
    def seconds(self) -> dict[str, float]:
        """Everything noted by now, in the order in which it happened, and the sums after it."""
        return {what: round(value, 3) for what, value in (*self._reached.items(), *self._sums.items())}

    def lines(self) -> list[str]:
        """Return the timings as lines for people."""
        return [f"{what:24} {seconds:8.2f} s" for what, seconds in self.seconds.items()]


class QuietView(View):
    """Shows warnings alone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, event: events.Event) -> None:
        """Show one event."""
        if isinstance(event, events.Warned):
            print(f"warning: {clean(without_passwords(event.text))}", file=self._stream, flush=True)


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
            print(clean(without_passwords(text)), file=self._stream, flush=True)

    def _lines(self, event: events.Event) -> Iterator[str]:
        self._doing.heard(event)
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
                    yield f"{line}: {more} more time{'' if more == 1 else 's'}"
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


_STEPS = {"checking": "looking at what was installed"}


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

    def heard(self, event: events.Event) -> None:
        """Learn from an event."""
        match event:
            case events.LockProgress(done, total) if done < total:
                self.step, self.text = "locking", f"locking {done} of {total}"
            case events.LockProgress():
                self.step = self.text = ""
            case events.Building(lock_hash, step, ready, building):
                what = _STEPS.get(step.what, f"{step.what} {step.package}".rstrip())
                left = self._left(lock_hash, step)
                amount = f": {_of(step.done, step.total)}{left}" if step.total else ""
                self.step = what
                self.text = f"{what}{amount}; environment {ready + 1} of {ready + building}"
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
    """One line for an event, None for events that are too frequent to be lines."""
    match event:
        case events.StudyOpened(study_id, name, resumed):
            again = f", going on after {how_many(resumed, 'trial')}" if resumed else ""
            return f"study {study_id} ({name}){again}"
        case events.Reused(trials, origins):
            so_far, told = sum(origin.trials for origin in origins), told_origins(origins)
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
            return f"{record.outcome}: {record.combination} ({record.detail})"
        case events.Answered():
            checks = how_many(event.checks, "more trial")
            answer = _told(event.verdict, event.axes)
            if event.seconds is None:
                return f"answer: {answer}; now checking it with up to {checks} (Ctrl-C ends that)"
            limit = f"{event.seconds:.0f} s at most"
            return f"answer: {answer}; now checking it for {limit} (`--sure` checks on: up to {checks})"
        case events.Progress():
            words, left = told_passing(event), _what_is_left(event)
            if event.passing is not None:
                return "; ".join(filter(None, (f"{_seen(event)}, none of them bad", words, left)))
            best = probability(event.verdict.probability or 0.0)
            return f"{_seen(event)}, {event.hits} of them bad; best answer so far {best}; {left}"
        case _:
            return None


def _told(verdict: VerdictDocument, axes: Sequence[Mapping[str, Any]]) -> str:
    """Return the verdict so far in one sentence, with commits as people read them."""
    names = {value: label for axis in axes for value, label in (axis.get("labels") or {}).items()}
    return readable(sentence(verdict, axes), names)


def _seen(progress: events.Progress) -> str:
    return how_many(progress.trials, "trial")


FEW_PASSES = 10
"""Passes below which they exclude too little to be told."""


def told_passing(progress: events.Progress) -> str:
    """What a bad end that has only passed so far excludes, and how to stop there; "" if it has not. Pure."""
    if progress.passing is None or progress.passing[1] < FEW_PASSES:
        return ""

    combination, passes, floor = progress.passing
    _, most = clopper_pearson(0, passes, 0.90)  # one-sided: 95 %
    known = (
        f"{combination} has passed {passes} times: it fails in less than {_percent(most)} of runs, if at all"
    )
    if most <= floor:
        return known
    ending = f"Ctrl-C ends it here, `search: {{min_crash_rate: {most:.1g}}}` there by itself"
    return f"{known}; going on to {_percent(floor)} ({ending})"


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
    """One JSON object a line on stdout; `event` names its kind, `time` says when it was told."""

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
                "whoever read the events reads no more; every trial that ended is stored",
                remedy="give the same command again: it goes on from here",
            ) from None


def timed(event: events.Event) -> dict[str, Any]:
    """Return an event as a JSON object with the moment, UTC, behind its kind."""
    document = as_json(event)
    kind = document.pop("event")
    return {"event": kind, "time": datetime.now(UTC).isoformat(timespec="milliseconds"), **document}


def as_json(event: events.Event) -> dict[str, Any]:
    """Return an event as a JSON object."""
    match event:
        case events.StudyOpened():
            return {
                "event": "study",
                "study": event.study_id,
                "name": event.name,
                "resumed_trials": event.resumed,
            }
        case events.Reused():
            return {
                "event": "reused",
                "trials": event.trials,
                "from": [dataclasses.asdict(origin) for origin in event.origins],
            }
        case events.Said():
            return {"event": "said", "text": event.text}
        case events.LockProgress():
            return {"event": "locking", "done": event.done, "total": event.total}
        case events.Locked():
            return {
                "event": "locked",
                "combinations": event.combinations,
                "excluded": event.excluded,
                "unsolvable": event.unsolvable,
                "environments": event.environments,
                "withdrawn": [list(item) for item in event.withdrawn],
            }
        case events.Answered():
            return {
                "event": "answered",
                "verdict": event.verdict.model_dump(mode="json"),
                "checks": event.checks,
                "seconds": event.seconds,
            }
        case events.TrialStarted():
            return {
                "event": "started",
                "trial": event.trial_id,
                "combination": event.combination.as_dict(),
            }
        case events.TrialFinished(record, evidence, build_seconds):
            return {
                "event": "trial",
                "trial": record.trial_id,
                "combination": record.combination.as_dict(),
                "outcome": str(record.outcome),
                "evidence": str(evidence),
                "detail": record.detail,
                "returncode": record.returncode,
                "seconds": round(record.duration, 4),
                "build_seconds": round(build_seconds, 3),
            }
        case events.Building():
            return {
                "event": "building",
                "lock": event.lock_hash,
                "step": event.step.what,
                "package": event.step.package,
                "bytes_done": event.step.done,
                "bytes_total": event.step.total,
                "environments_ready": event.ready,
                "environments_building": event.building,
            }
        case events.Built():
            return {
                "event": "built",
                "lock": event.lock_hash,
                "combinations": [c.as_dict() for c in event.combinations],
                "seconds": round(event.seconds, 3),
            }
        case events.SetAside():
            return {
                "event": "set-aside",
                "combinations": [c.as_dict() for c in event.combinations],
                "status": event.status,
                "reason": event.reason,
            }
        case events.Warned():
            return {"event": "warning", "text": event.text}
        case events.Progress():
            return {
                "event": "progress",
                "trials": event.trials,
                "bad": event.hits,
                "probability": event.verdict.probability,
                "first_bad": event.verdict.first_bad,
                "expected_left": event.verdict.expected_left,
            }
        case events.Failed():
            return {
                "event": "error",
                "exit_code": event.exit_code,
                "what": event.what,
                "tried": event.tried,
                "remedy": None if event.remedy is None else with_options(event.remedy, sys.argv[1:]),
                "problems": list(event.problems),
            }
        case events.Concluded():
            return {"event": "verdict", **event.report}


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
        self._doing.heard(event)
        match event:
            case events.StudyOpened():
                self._title = f"{event.name} (study {event.study_id})"
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
            self._live.console.print(Text(clean(without_passwords(describe(event) or ""))), highlight=False)
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

        words, left = told_passing(progress), _what_is_left(progress)
        if progress.passing is not None:
            known = (self._elapsed(), f"{_seen(progress)}, none of them bad", clean(words))
            return Text(" · ".join(filter(None, (*known, left))))
        # The sentence says its probability itself.
        return Text(
            f"{self._elapsed()} · {_seen(progress)}, {progress.hits} bad · {left} · "
            f"so far: {clean(_told(progress.verdict, progress.axes))}"
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


def choose(*, as_json: bool, quiet: bool, plain: bool = False) -> View:
    """Choose the view: JSON on stdout, or text on stderr; with `plain` as lines even on a terminal."""
    if as_json:
        return JsonView(sys.stdout)
    if quiet:
        return QuietView(sys.stderr)

    console = Console(stderr=True)
    return LiveView(console) if console.is_terminal and not plain else PlainView(sys.stderr)


# --------------------------------------------------------------------------------------------------
# The log of a command that runs trials: everything that happened, in a file whose path is printed.
#
# What a terminal shows is chosen for people who watch; the log is for those who ask later why. Passwords
# are taken out, and what trials print is in the database, not here.


@dataclasses.dataclass(frozen=True, slots=True)
class ShownOptions:
    """The options of what a command shows and logs; a group, see `with_groups`."""

    as_json: JsonOption = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show warnings and the answer alone.")] = False
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show on stderr what goes into the log, too.")
    ] = False
    log_file: Annotated[
        Path | None,
        typer.Option(
            "--log-file",
            envvar="BISECT_ENV_LOG",
            help="Where the log goes; default: a new file for each command.",
        ),
    ] = None


KEPT = 50
"""Logs that are kept where no file is named; older ones go."""

_log = logging.getLogger("bisect_env.command")


def start_log(command: str, options: ShownOptions) -> None:
    """Begin the log of a command, and print its path unless the command is to be quiet.

    A named file is added to; without one there is a new file in the user's log directory.

    Raises:
        UsageError: The named file cannot be written. Without a named one, a directory that cannot be
            written means no log, which is said.
    """
    logger = logging.getLogger("bisect_env")
    logger.setLevel(logging.DEBUG)
    form = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    form.converter = time.gmtime
    form.default_time_format, form.default_msec_format = "%Y-%m-%dT%H:%M:%S", "%s.%03dZ"
    if options.verbose:
        shown = logging.StreamHandler(sys.stderr)
        shown.setFormatter(form)
        logger.addHandler(shown)
    try:
        path = options.log_file or _new_file(command)
        written = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        if options.log_file is not None:
            raise UsageError(
                f"the log {options.log_file} cannot be written: {error.strerror}",
                remedy="name another `--log-file`",
            ) from None
        typer.echo(f"no log is written: {error}", err=True)
        return
    if path.is_file():  # the modes of /dev/null are not ours to change
        path.chmod(0o600)
    written.setFormatter(form)
    logger.addHandler(written)
    _log.info("%s: %s", __version__, without_passwords_in_code(own_command(sys.argv[1:])))
    if not options.quiet:
        typer.echo(f"log: {path}", err=True)


class _LogFile(logging.FileHandler):
    """Writes the log; a disk that is full costs the log, and is said once."""

    _has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name that logging gave it
        """Say why nothing more is written.

        Args:
            record: Lost.
        """
        if not self._has_failed:
            self._has_failed = True
            typer.echo(f"the log is not whole: {sys.exc_info()[1]}", err=True)


def _new_file(command: str) -> Path:

    folder = Path(platformdirs.user_log_dir("bisect-env"))
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    # The newest stay: names sort by time.
    old = sorted(folder.glob("command-*.log"))
    for path in old[: max(0, len(old) - KEPT + 1)]:
        with contextlib.suppress(OSError):
            path.unlink()
    return folder / f"command-{stamp}-{command}.log"


def logged(show: Callable[[events.Event], None]) -> Callable[[events.Event], None]:
    """Wrap a view so that each event is written to the log, too."""

    def both(event: events.Event) -> None:
        log_event(event)
        show(event)

    return both


def log_event(event: events.Event) -> None:
    """Write an event into the log."""
    if not _log.isEnabledFor(logging.DEBUG):
        return
    if isinstance(event, events.LockProgress | events.Progress):
        return  # what they say follows from the others
    document = public_json(as_json(event))
    if isinstance(event, events.Concluded):
        # The whole report is in the database.
        document = {"event": "verdict", "verdict": document.get("verdict")}
    kind = document.pop("event")
    level = {"warning": logging.WARNING, "error": logging.ERROR}.get(kind, logging.DEBUG)
    _log.log(level, "%s %s", kind, json.dumps(document, ensure_ascii=False))
