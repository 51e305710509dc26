"""`bisect-env trial`, `verify` and `diagnose`: run one combination again and again."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from bisect_env.answers.phrases import how_many, interval, percent
from bisect_env.cli.grouping import with_groups
from bisect_env.cli.options import AtOption, DatabaseOption, ExecutionOptions, MatrixArgument, share
from bisect_env.cli.output import say, tell, warn
from bisect_env.cli.places import open_place
from bisect_env.cli.signals import stop_on_signals
from bisect_env.cli.views import PlainView, ShownOptions, log_event, logged, start_log, timed
from bisect_env.cluster.gpus import choose_gpus, group_gpus, open_nvml
from bisect_env.engine import events
from bisect_env.engine.diagnose import SANITIZERS, Diagnosis, Tools
from bisect_env.engine.diagnose import diagnose as run
from bisect_env.engine.plans import SoMany
from bisect_env.engine.session import Session
from bisect_env.engine.single import MAKING, ChosenCombination, look_up, open_one, run_trials
from bisect_env.engine.specs import allowed_sources, target_of, within_limits
from bisect_env.engine.verify import Verification, Verifier
from bisect_env.errors import ExitCode, StudyInterruptedError, UsageError
from bisect_env.matrix.load import Matrix, load_matrix
from bisect_env.matrix.secrets import public_json
from bisect_env.search.numeric import clopper_pearson
from bisect_env.search.rate_test import RateClaim
from bisect_env.storage.store import Store
from bisect_env.trials.records import Evidence, TrialRecord
from bisect_env.trials.run import TrialCancelledError

_EXTREME = 1e-6
"""Nearer to 0 or 1 a test would take longer than anybody waits."""

_SIGNS = {"good": "✓", "bad": "✗", "other": "!", "skip": "-", "void": "?"}


@contextmanager
def session(
    matrix: Path,
    at: str | None,
    db: str | None,
    where: ExecutionOptions,
    show: Callable[[events.Event], None],
) -> Iterator[tuple[ChosenCombination, Session]]:
    """Open the study of a matrix at one combination, and close everything afterwards.

    Args:
        matrix: Path of the matrix file.
        at: Which combination, as `--at` has it.
        db: The results database, as `--db` has it.
        where: The options that say where trials run.
        show: Called with everything that happens.

    Raises:
        BisectEnvError: Whatever a user can correct.
    """
    stopped = stop_on_signals()
    loaded = load_matrix(matrix)
    place, provider = open_place(where, loaded)
    with Store.open(db) as store, closing(place):
        chosen = open_one(loaded, at, store=store, provider=provider, notify=show)
        show(events.Said(where.starting))
        yield chosen, Session(store, provider, place.executor, show, stopped.is_set)


class TrialLines:
    """Prints one line for each trial on stdout, and everything else on stderr.

    Args:
        shown: With JSON an object for each trial instead; if quiet, none.
    """

    def __init__(self, shown: ShownOptions) -> None:
        self._as_json = shown.as_json
        self._quiet = shown.quiet
        self.count = 0
        self._builds: Callable[[events.Event], None] | None = None

    def __call__(self, event: events.Event) -> None:
        """Show one event."""
        match event:
            case events.TrialFinished():
                self.count += 1
                if self._as_json:
                    say(json.dumps(public_json(timed(event))))
                elif not self._quiet:
                    say(_line(self.count, event))
            case events.Warned(text):
                say(f"warning: {text}", sys.stderr)
            case events.SetAside(_, _, reason):
                say(f"warning: nothing more is tried here: {reason}", sys.stderr)
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
        notes.append("nothing to learn here" if evidence == "skip" else "not counted")
    return "  ".join([*parts, "; ".join(note for note in notes if note)]).rstrip()


@with_groups()
def trial(
    matrix: MatrixArgument,
    *,
    at: AtOption = None,
    number: Annotated[
        int,
        typer.Option(
            "--number", "-n", min=1, max=1_000_000, help="Trials that count; void ones are run again."
        ),
    ] = 10,
    db: DatabaseOption = None,
    where: ExecutionOptions,
    shown: ShownOptions,
) -> None:
    """Run trials of one combination: a line for each, and the rate of the failure at the end.

    They are stored, and `bisect-env run` starts from them. Ends with 3 if any was bad, else with 0.
    """
    start_log("trial", shown)
    with session(matrix, at, db, where, logged(TrialLines(shown))) as (chosen, opened):
        combination = chosen.combination
        if not (shown.as_json or shown.quiet):
            say(f"{combination} (environment {chosen.lock.content_hash[:12]})", sys.stderr)
        _, tally, _ = run_trials(chosen, lambda: SoMany(chosen.index, number), opened)
        stopped = opened.stopped()
    counted = tally.good + tally.bad
    low, high = clopper_pearson(tally.bad, counted)
    if shown.as_json:
        document = {
            "event": "rate",
            "combination": combination.as_dict(),
            "trials": counted,
            "bad": tally.bad,
            "other": tally.other,
            "void": tally.void,
            "skip": tally.skip,
            "rate": tally.bad / counted if counted else None,
            "interval": [low, high],
        }
        say(json.dumps(document))
    elif counted:
        others = f"; {tally.other} failed in another way" if tally.other else ""
        say(
            f"{tally.bad} of {counted} trials were bad: {percent(tally.bad / counted)} "
            f"(95 % interval {interval(low, high)}){others}"
        )
    else:
        say("no trial counts" + (": nothing can be learnt at this combination" if tally.skip else ""))
    if stopped:
        raise StudyInterruptedError(
            "interrupted; every trial that ended is stored", remedy="the same command runs as many again"
        )
    if counted == 0:
        raise typer.Exit(int(ExitCode.NO_VERDICT))
    raise typer.Exit(int(ExitCode.FAILURE_SEEN if tally.bad else ExitCode.VERDICT))


@with_groups()
def verify(
    matrix: MatrixArgument,
    *,
    at: AtOption = None,
    max_rate: Annotated[
        float,
        typer.Option(
            parser=share, metavar="SHARE", help="Fewer than this share of trials may be bad: 0.01, or 1%."
        ),
    ] = 0.01,
    confidence: Annotated[
        float, typer.Option(parser=share, metavar="SHARE", help="Of the answer: 0.95, or 95%.")
    ] = 0.95,
    max_trials: Annotated[
        int | None,
        typer.Option(min=1, help="Give up after so many; default: ten times what no failure would take."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin anew, even where an interrupted test could go on.")
    ] = False,
    db: DatabaseOption = None,
    where: ExecutionOptions,
    shown: ShownOptions,
) -> None:
    """Run one combination until its crash rate is shown to be below a limit, or above it.

    Ends with 0 if it is below, with 3 if it is above, and with 1 if neither could be shown. The same command
    after an interruption goes on where it stopped.
    """
    for name, value, usual in (("--max-rate", max_rate, 0.01), ("--confidence", confidence, 0.95)):
        if not _EXTREME <= value <= 1 - _EXTREME:
            raise UsageError(f"{name} is {value:g}", remedy=f"give a number between 0 and 1, such as {usual}")
    start_log("verify", shown)
    with session(matrix, at, db, where, logged(TrialLines(shown))) as (chosen, opened):
        verifier = Verifier(
            chosen,
            opened.store,
            max_rate=max_rate,
            confidence=confidence,
            max_trials=max_trials,
            fresh=fresh,
        )
        again = f", going on after {how_many(verifier.resumed, 'trial')}" if verifier.resumed else ""
        say(
            f"{chosen.combination}: {verifier.clean_needed} trials without a failure would "
            f"show a rate below {max_rate:.4g}{again}",
            sys.stderr,
        )
        found = verifier.run(opened)
        stopped = opened.stopped() and found.claim is None
    say(json.dumps(found.document()) if shown.as_json else told(found))
    if stopped:
        raise StudyInterruptedError(
            f"interrupted after {how_many(found.trials, 'trial')}, all of them stored",
            remedy="the same command goes on from here",
        )
    codes = {
        RateClaim.BELOW: ExitCode.VERDICT,
        RateClaim.ABOVE: ExitCode.FAILURE_SEEN,
        None: ExitCode.NO_VERDICT,
    }
    raise typer.Exit(int(codes[found.claim]))


def told(found: Verification) -> str:
    """Return the outcome of a test as people read it. Pure."""
    name = " ".join(f"{axis}={value}" for axis, value in found.combination.items())
    limit, sure = percent(found.max_rate), percent(found.confidence)
    seen = f"{found.hits} of {found.trials} trials were bad"
    if found.claim is RateClaim.BELOW:
        behind = f"{found.trials - found.hits} clean runs stand behind that"
        alone = f"{found.hits or 'zero'} in {found.trials} alone means below {percent(found.below)}"
        claim = f"{name} fails in fewer than {limit} of runs ({sure} sure)"
        return f"below the limit: {claim}: {seen}\n{behind}; {alone}"
    rate = f"{percent(found.rate)}, 95 % interval {interval(*found.interval)}"
    if found.claim is RateClaim.ABOVE:
        return f"above the limit: {name} fails in more than {limit} of runs ({sure} sure): {seen} ({rate})"
    why = f"; {found.why_stopped}" if found.why_stopped else ""
    return f"not shown: {name} may fail in more or fewer than {limit} of runs: {seen} ({rate}){why}"


# --------------------------------------------------------------------------------------------------
# `bisect-env diagnose`: run one combination until it fails, under the tools of this host.

_OPEN = (
    "the matrix takes its failure from the bad end, where no study has seen one yet: any failure that fits "
    "`trial.bad` is looked at"
)


@with_groups(without=("workers", "scheduler", "scheduler_file", "quiet"))
def diagnose(
    matrix: MatrixArgument,
    *,
    at: AtOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Give up after so many trials.")] = 50,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for what is found; a new one.")
    ] = None,
    cuda: Annotated[
        bool, typer.Option("--cuda", help="Set CUDA_LAUNCH_BLOCKING, and keep a core of the GPU.")
    ] = False,
    sanitizer: Annotated[
        str | None,
        typer.Option(help="Run under compute-sanitizer: memcheck, racecheck, initcheck or synccheck."),
    ] = None,
    db: DatabaseOption = None,
    where: ExecutionOptions,
    shown: ShownOptions,
) -> None:
    """Run one combination on this host until it fails, and say which frame is guilty and who waits for whom.

    Its trials are not stored and count nowhere. Core file, stacks and output are kept in a folder. Ends with
    3 if the failure showed, else with 1.
    """
    if sanitizer is not None and sanitizer not in SANITIZERS:
        raise UsageError(f"--sanitizer: {sanitizer!r} is none", remedy=f"take {', '.join(SANITIZERS)}")
    start_log("diagnose", shown)
    stopped = stop_on_signals()
    loaded = load_matrix(matrix)
    heard = logged(warn if shown.as_json else tell)
    uuids = _gpus(loaded, where.gpus)
    _, provider = open_place(where, loaded)
    with Store.open(db) as store:
        one = look_up(loaded, at, store=store, provider=provider, notify=heard)
        known = one.expansion.study
        target = target_of(loaded) if known is None else store.target(known.id)
    folder = _new_folder(output, f"{loaded.name}-{one.lock.content_hash[:8]}")

    def show(text: str) -> None:
        log_event(events.Said(text))
        if not shown.as_json:
            say(text, sys.stderr)

    def told(number: int, record: TrialRecord, evidence: Evidence) -> None:
        show(f"{number:>3}  {evidence:<5}  {record.outcome}: {record.detail}")

    show(f"{one.combination} (environment {one.lock.content_hash[:12]})")
    show(MAKING)
    lock = within_limits(loaded, one.lock)
    prefix = provider.ensure_prefix(lock, allow_source=allowed_sources(loaded))
    try:
        found = run(
            loaded,
            one,
            prefix,
            folder,
            limit=limit,
            tools=Tools(cuda, sanitizer or ""),
            target=target,
            perturbation=one.perturbation,
            notes=[_OPEN] if target.is_open else [],
            gpus=uuids,
            on_trial=told,
            stopped=stopped.is_set,
        )
    except TrialCancelledError:
        raise StudyInterruptedError(
            "interrupted before the failure showed", remedy="the same command begins anew"
        ) from None
    finally:
        prefix.release()
    _print(found, as_json=shown.as_json)
    raise typer.Exit(int(ExitCode.FAILURE_SEEN if found.shown else ExitCode.NO_VERDICT))


def _gpus(matrix: Matrix, selection: str | None) -> tuple[str, ...]:
    """Return the GPUs of this host that a trial gets."""
    count = matrix.file.trial.gpus
    if not count:
        return ()

    chosen = choose_gpus(open_nvml().gpus(), selection, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return group_gpus(chosen, count, None)[0]


def _new_folder(output: Path | None, name: str) -> Path:

    if output is not None:
        if output.exists():
            raise UsageError(f"--output: {output} is there already", remedy="name a folder that is not")
        return output
    folder = Path("diagnosis")
    number = 1
    while (folder / f"{name}-{number}").exists():
        number += 1
    return folder / f"{name}-{number}"


def _print(found: Diagnosis, *, as_json: bool) -> None:
    if as_json:
        document = json.loads((found.folder / "diagnosis.json").read_text("utf-8"))
        say(json.dumps({**document, "folder": str(found.folder), "files": list(found.files)}))
        return

    trials = how_many(found.trials, "trial")
    if found.shown:
        say(f"{found.record.outcome} in trial {found.trials}: {found.record.detail}")
    else:
        say(f"the failure did not show in {trials}; the last: {found.record.outcome}: {found.record.detail}")
    for line in found.findings:
        say(line)
    for note in found.notes:
        say(f"note: {note}")
    say(f"kept in {found.folder}: {', '.join(found.files)}")
