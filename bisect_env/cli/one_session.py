"""What `trial` and `verify` share: a combination, a place for its trials, and how each trial is shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from bisect_env.cli.execution_options import ExecutionOptions
from bisect_env.cli.signals import stop_on_signals

if TYPE_CHECKING:
    from bisect_env.engine import events
    from bisect_env.engine.single import One, SingleTrials
    from bisect_env.storage.store import Store

_SIGNS = {"good": "✓", "bad": "✗", "other": "!", "skip": "-", "void": "?"}


@dataclass(frozen=True, slots=True)
class Session:
    """An open session.

    Attributes:
        one: The combination and its study.
        store: Open for writing.
        trials: Runs its trials.
        stopped: Whether the user wants to stop.
    """

    one: One
    store: Store
    trials: SingleTrials
    stopped: Callable[[], bool]


@contextmanager
def session(
    matrix: Path,
    at: str | None,
    db: str | None,
    where: ExecutionOptions,
    show: Callable[[events.Event], None],
) -> Iterator[Session]:
    """Open the study of a matrix at one combination, and close everything afterwards.

    Args:
        matrix: Path of the matrix file.
        at: Which combination, as `--at` has it.
        db: The results database, as `--db` has it.
        where: The options that say where trials run.
        show: Hears of everything that happens.

    Raises:
        BisectEnvError: Whatever a user can mend.
    """
    from bisect_env.engine import events
    from bisect_env.engine.single import SingleTrials, open_one
    from bisect_env.matrix.load import load_matrix
    from bisect_env.storage.store import Store

    stopped = stop_on_signals()
    loaded = load_matrix(matrix)
    place, provider = where.open(loaded)
    with Store.open(db) as store, closing(place):
        one = open_one(loaded, at, store=store, provider=provider, notify=show)
        show(events.Said(where.starting))
        trials = SingleTrials(
            loaded, store, one.study.id, place.executor(), notify=show, stopped=stopped.is_set
        )
        yield Session(one, store, trials, stopped.is_set)


class TrialLines:
    """One line a trial on stdout; what else there is to say goes to stderr.

    Args:
        as_json: An object a line instead.
        quiet: No line a trial.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self._as_json = as_json
        self._quiet = quiet
        self.count = 0
        self._builds: Callable[[events.Event], None] | None = None

    def __call__(self, event: events.Event) -> None:
        """Show one event."""
        from bisect_env.cli.views import PlainView, timed
        from bisect_env.engine import events
        from bisect_env.matrix.secrets import public_json

        match event:
            case events.TrialFinished():
                self.count += 1
                if self._as_json:
                    say(json.dumps(public_json(timed(event))))
                elif not self._quiet:
                    say(_line(self.count, event))
            case events.Warned(text):
                say(f"warning: {text}", sys.stderr)
            case events.Said(text) if not self._quiet:
                say(text, sys.stderr)
            case events.Building() if not self._quiet:
                self._builds = self._builds or PlainView(sys.stderr)
                self._builds(event)
            case events.Built(_, _, seconds) if not self._quiet:
                say(f"environment made in {seconds:.1f} s", sys.stderr)


def _line(number: int, event: events.TrialFinished) -> str:
    record, evidence = event.record, str(event.evidence)
    sign = _SIGNS[evidence]
    parts = [f"{sign} {number:>3}", f"{record.outcome:<12}", f"{record.duration:7.2f} s"]
    notes = [] if evidence == "good" else [record.detail]
    if evidence not in ("good", "bad"):
        notes.append({"other": "not counted", "skip": "nothing to learn here", "void": "spoilt"}[evidence])
    return "  ".join([*parts, "; ".join(note for note in notes if note)]).rstrip()


def tell(event: events.Event) -> None:
    """Show what is being done and what is doubtful: for commands that have no other use for events."""
    from bisect_env.engine import events

    if isinstance(event, events.Said):
        say(event.text, sys.stderr)
    warn(event)


def warn(event: events.Event) -> None:
    """Show an event if it is a warning: for commands that have no other use for events."""
    from bisect_env.engine import events

    if isinstance(event, events.Warned):
        say(f"warning: {event.text}", sys.stderr)


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a line, whatever the stream's encoding can show."""
    from bisect_env.matrix.secrets import without_passwords
    from bisect_env.report.untrusted import clean_lines

    stream = sys.stdout if stream is None else stream
    public = clean_lines(without_passwords(text))
    encoding = stream.encoding or "utf-8"
    stream.write(public.encode(encoding, "replace").decode(encoding) + "\n")
    stream.flush()
