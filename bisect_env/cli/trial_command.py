"""`bisect-env trial`: run one combination several times."""

from __future__ import annotations

import itertools
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from bisect_env.answers.phrases import how_many, interval, percent
from bisect_env.answers.remedies import Asked
from bisect_env.cli.asking import Flags, given_options
from bisect_env.cli.commands import with_groups
from bisect_env.cli.conduct import reporting
from bisect_env.cli.options import (
    QUESTION,
    AtOption,
    ExecutionOptions,
    FreshOption,
    SaveOption,
    ShownOptions,
    TargetArgument,
    opt,
    output_option,
    share_of,
)
from bisect_env.cli.output import emit, say
from bisect_env.cli.question import FoundTarget
from bisect_env.cli.target import announce, find_target
from bisect_env.cli.views import PlainView, View, choose
from bisect_env.cli.work import environment_of, opened
from bisect_env.cluster.gpus import choose_gpus, group_gpus, open_nvml
from bisect_env.engine import events
from bisect_env.engine.amplify import Amplified, amplified, known_perturbation
from bisect_env.engine.diagnose import SANITIZERS, Diagnosis, Tools, diagnose
from bisect_env.engine.opening import Expansion, expand_as_known
from bisect_env.engine.plans import OneCombinationPlan
from bisect_env.engine.session import Session
from bisect_env.engine.single import (
    ENVIRONMENT_NOTICE,
    ChosenCombination,
    look_up,
    open_combination,
    run_trials,
)
from bisect_env.engine.specs import target_of
from bisect_env.engine.stored import named_combinations
from bisect_env.engine.verify import Verification, Verifier
from bisect_env.errors import ExitCode, StudyInterruptedError, UsageError
from bisect_env.matrix.load import Matrix
from bisect_env.report.words import named
from bisect_env.search.numeric import clopper_pearson
from bisect_env.search.rate_test import RateClaim
from bisect_env.storage.entries import EvidenceCounts
from bisect_env.storage.store import Store
from bisect_env.trials.records import NONE, Evidence, Outcome, TrialRecord
from bisect_env.trials.run import TrialCancelledError

DEBUG = "With --debug"
_NUMBER, _DEBUGGED = 10, 50
_EXTREME = 1e-6
"""Minimum distance of a tested rate from 0 and 1; closer rates would need too many trials."""
_DEBUGGING = ("--output", "--cuda", "--sanitizer")
"""Options that have an effect only with `--debug`."""
_ELSEWHERE = ("--workers", "--scheduler", "--scheduler-file")
"""Options that have no effect with `--debug`."""
_SIGNS = {"good": "✓", "bad": "✗", "other": "!", "skip": "-", "void": "?"}


@with_groups(panel=QUESTION)
def trial(
    context: typer.Context,
    words: TargetArgument = None,
    *,
    at: AtOption = None,
    number: Annotated[
        int | None,
        opt(
            "--number -n N",
            "Trials at most; default: 10, with `--debug` 50, with `--until-rate` as many as it takes.",
            min=1,
            max=1_000_000,
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        float | None,
        opt(
            "--until-rate SHARE",
            "Run trials until the failure rate is shown to be below this, or above it: 0.01, or 1%.",
            parser=share_of("--until-rate"),
        ),
    ] = None,
    debug: Annotated[
        bool, opt("--debug", "Run until it fails; keep core file and stacks, and name the failing frame.")
    ] = False,
    amplify: Annotated[
        bool, opt("--amplify", "Find circumstances that make the failure more frequent.")
    ] = False,
    flags: Flags,
    fresh: FreshOption = False,
    output: Annotated[Path | None, output_option(DEBUG)] = None,
    cuda: Annotated[
        bool, opt("--cuda", "Set CUDA_LAUNCH_BLOCKING, and keep a core of the GPU.", DEBUG)
    ] = False,
    sanitizer: Annotated[
        str | None,
        opt(
            "--sanitizer SANITIZER",
            "Run under compute-sanitizer: memcheck, racecheck, initcheck or synccheck.",
            DEBUG,
        ),
    ] = None,
    save: SaveOption = None,
    where: ExecutionOptions,
    shown: ShownOptions,
) -> None:
    """Run trials of one combination, and print its failure rate.

    Trials are stored, and `bisect-env run` starts from them; those of `--debug` and `--amplify` do not count.
    The exit code is 3 if a trial failed or the rate is above the limit, else 0. With `--amplify` it is 0 if
    such circumstances were found, else 1. `--debug` writes into a new directory below `diagnosis`, or into
    that of `--output`.
    """
    given = given_options(context)
    for exclusive in (("--until-rate", "--debug", "--amplify"), ("--cuda", "--sanitizer")):
        if len(both := [name for name in exclusive if name in given]) > 1:
            raise UsageError(f"{' and '.join(both)} exclude each other", remedy="give one of them")
    for name in given:
        if name in _DEBUGGING and not debug:
            raise UsageError(f"{name} belongs to `--debug`", remedy="add `--debug`, or leave it out")
        if name in _ELSEWHERE and debug:
            raise UsageError(
                f"{name}: `--debug` runs one trial at a time on this host", remedy="leave it out"
            )
    if fresh and until is None:
        raise UsageError(
            "--fresh begins a series of `--until-rate` anew",
            remedy="add `--until-rate`, or leave it out: other trials are always new",
        )
    if until is not None and not _EXTREME <= until <= 1 - _EXTREME:
        raise UsageError(f"--until-rate is {until:g}", remedy="give a number between 0 and 1, such as 0.01")
    if amplify and {"--at", "--number"}.intersection(given):
        raise UsageError(
            "`--amplify` compares the good and the bad end, in as many trials as that takes",
            remedy="leave out --at and --number, or name other ends with --good and --bad",
        )
    has_lines = not (debug or amplify or shown.as_json or shown.quiet)
    view = TrialLines() if has_lines else choose(shown, plain=True)
    with reporting("trial", shown, view):
        target = find_target(
            words or (), flags, db=where.db, to=save, without=("good", "bad") if amplify else ()
        )
        announce(target, shown)
        if debug:
            if sanitizer is not None and sanitizer not in SANITIZERS:
                raise UsageError(
                    f"--sanitizer: {sanitizer!r} is none", remedy=f"take {', '.join(SANITIZERS)}"
                )
            tools = Tools(cuda, sanitizer or "")
            code = _debug(target.matrix, at, number or _DEBUGGED, output, tools, where, view, shown)
        elif amplify:
            code = _amplify(target, flags, where, view, shown)
        else:
            with opened(target.matrix, where, view) as session:
                chosen = open_combination(
                    target.matrix, at, store=session.store, provider=session.provider, notify=session.notify
                )
                session.say(where.starting)
                session.say(f"{chosen.combination} (environment {chosen.lock.content_hash[:12]})")
                if until is None:
                    code = _count(chosen, number or _NUMBER, session, shown)
                else:
                    confidence = flags.confidence or target.matrix.file.search.confidence
                    code = _until(chosen, until, confidence, number, session, shown, fresh=fresh)
    raise typer.Exit(int(code))


class TrialLines(PlainView):
    """A view that prints a line for each trial on stdout, and lines for other events on stderr."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._count = 0

    def show(self, event: events.Event) -> None:
        """Print a finished trial as a line on stdout, and the lines of any other event on stderr."""
        if isinstance(event, events.TrialFinished):
            self._count += 1
            say(_line(self._count, event))
        else:
            super().show(event)


def _line(number: int, event: events.TrialFinished) -> str:
    record, evidence = event.record, str(event.evidence)
    sign = _SIGNS[evidence]
    parts = [f"{sign} {number:>3}", f"{record.outcome:<12}", f"{record.duration:7.2f} s"]
    notes = [] if evidence == "good" else [record.detail]
    if evidence not in ("good", "bad"):
        notes.append("the script skipped it" if record.outcome is Outcome.SKIP else "not counted")
    return "  ".join([*parts, "; ".join(note for note in notes if note)]).rstrip()


# --------------------------------------------------------------------------------------------------
# A fixed number of trials.


def _count(chosen: ChosenCombination, number: int, session: Session, shown: ShownOptions) -> ExitCode:
    _, tally, why = run_trials(chosen, lambda: OneCombinationPlan(chosen.index, number), session)
    counted = tally.good + tally.bad
    if shown.as_json:
        emit(_rate(chosen, tally))
    elif counted:
        others = f"; {tally.other} failed in another way" if tally.other else ""
        say(
            f"{tally.bad} of {counted} trials were bad: {percent(tally.bad / counted)} "
            f"(95 % interval {interval(*clopper_pearson(tally.bad, counted))}){others}"
        )
    else:
        is_skipped = (Evidence.SKIP, Outcome.SKIP) in tally.by_outcome
        reason = "the script skipped this combination" if is_skipped else why
        say("no trial counts" + (f": {reason}" if reason else ""))
    if session.stopped():
        raise StudyInterruptedError(
            "stopped; every trial that ended is stored", remedy="the same command runs as many again"
        )
    if counted == 0:
        return ExitCode.NO_VERDICT
    return ExitCode.FAILURE_SEEN if tally.bad else ExitCode.VERDICT


def _rate(chosen: ChosenCombination, tally: EvidenceCounts) -> dict[str, Any]:
    counted = tally.good + tally.bad
    return {
        "event": "rate",
        "combination": chosen.combination.as_dict(),
        "trials": counted,
        "bad": tally.bad,
        "other": tally.other,
        "void": tally.void,
        "skip": tally.skip,
        "rate": tally.bad / counted if counted else None,
        "interval": list(clopper_pearson(tally.bad, counted)),
    }


# --------------------------------------------------------------------------------------------------
# `--until-rate`: trials until the failure rate is known to be below or above the limit.

_CODES = {
    RateClaim.BELOW: ExitCode.VERDICT,
    RateClaim.ABOVE: ExitCode.FAILURE_SEEN,
    None: ExitCode.NO_VERDICT,
}


def _until(
    chosen: ChosenCombination,
    rate: float,
    confidence: float,
    limit: int | None,
    session: Session,
    shown: ShownOptions,
    *,
    fresh: bool,
) -> ExitCode:
    verifier = Verifier(
        chosen, session.store, max_rate=rate, confidence=confidence, max_trials=limit, fresh=fresh
    )
    again = f", going on after {how_many(verifier.resumed, 'trial')}" if verifier.resumed else ""
    session.say(
        f"{chosen.combination}: {how_many(verifier.clean_needed, 'trial')} without a failure would "
        f"show a rate below {rate:.4g}{again}"
    )
    found = verifier.run(session)
    if shown.as_json:
        emit({"event": "verified", **asdict(found)})
    else:
        say(verification_text(found))
    if session.stopped() and found.claim is None:
        raise StudyInterruptedError(
            f"stopped after {how_many(found.trials, 'trial')}, all of them stored",
            remedy="the same command goes on from here",
        )
    return _CODES[found.claim]


def verification_text(found: Verification) -> str:
    """Return as text whether the failure rate is shown to be below or above the limit."""
    name = named(found.combination)
    limit, sure = percent(found.max_rate), percent(found.confidence)
    seen = f"{found.bad} of {found.trials} trials were bad"
    if found.claim is RateClaim.BELOW:
        behind = f"{how_many(found.trials - found.bad, 'trial')} passed"
        alone = f"{found.bad or 'zero'} in {found.trials} alone means below {percent(found.below)}"
        claim = f"{name} fails in fewer than {limit} of runs ({sure} sure)"
        return f"below the limit: {claim}: {seen}\n{behind}; {alone}"
    rate = f"{percent(found.rate)}, 95 % interval {interval(*found.interval)}"
    if found.claim is RateClaim.ABOVE:
        return f"above the limit: {name} fails in more than {limit} of runs ({sure} sure): {seen} ({rate})"
    why = f"; {found.why_stopped}" if found.why_stopped else ""
    return f"not shown: {name} may fail in more or fewer than {limit} of runs: {seen} ({rate}){why}"


# --------------------------------------------------------------------------------------------------
# `--debug`: trials until one fails, under the debugging tools of this host.

_OPEN = (
    "the matrix takes its failure from the bad end, where no study has seen one yet: any failure that fits "
    "`trial.bad` is looked at"
)


def _debug(
    matrix: Matrix,
    at: str | None,
    limit: int,
    output: Path | None,
    tools: Tools,
    where: ExecutionOptions,
    view: View,
    shown: ShownOptions,
) -> ExitCode:
    with opened(matrix, where, view) as session:
        store, provider, show = session.store, session.provider, session.notify
        expansion = expand_as_known(matrix, store, provider)
        one = look_up(expansion, at, store=store, provider=provider, notify=show)
        known = expansion.study
        target = target_of(matrix) if known is None else store.target(known.id)
        around = None if known is None else known_perturbation(store, known.id)
        folder = _new_folder(output, f"{matrix.name}-{one.lock.content_hash[:8]}")

        def show_trial(number: int, record: TrialRecord, evidence: Evidence) -> None:
            show(events.Said(f"{number:>3}  {evidence:<5}  {record.outcome}: {record.detail}"))

        show(events.Said(f"{one.combination} (environment {one.lock.content_hash[:12]})"))
        show(events.Said(ENVIRONMENT_NOTICE))
        prefix = environment_of(matrix, one.lock, provider)
        try:
            found = diagnose(
                matrix,
                one,
                prefix,
                folder,
                limit=limit,
                tools=tools,
                target=target,
                perturbation=around or NONE,
                notes=[_OPEN] if target.is_open else [],
                gpus=_gpus(matrix, where.devices),
                on_trial=show_trial,
                stopped=session.stopped,
            )
        except TrialCancelledError:
            raise StudyInterruptedError(
                "stopped before the failure showed", remedy="the same command begins again"
            ) from None
        finally:
            prefix.release()
    _print_diagnosis(found, as_json=shown.as_json)
    return ExitCode.FAILURE_SEEN if found.shown else ExitCode.NO_VERDICT


def _gpus(matrix: Matrix, selection: str | None) -> tuple[str, ...]:
    """Return the GPUs of this host that one trial may use."""
    count = matrix.file.trial.gpus
    if not count:
        return ()
    chosen = choose_gpus(open_nvml().gpus(), selection, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return group_gpus(chosen, count, None)[0]


def _new_folder(output: Path | None, name: str) -> Path:
    if output is not None:
        if output.exists():
            raise UsageError(f"--output: {output} is there already", remedy="name a new folder")
        return output
    folders = (Path("diagnosis", f"{name}-{number}") for number in itertools.count(1))
    return next(folder for folder in folders if not folder.exists())


def _print_diagnosis(found: Diagnosis, *, as_json: bool) -> None:
    if as_json:
        document = json.loads((found.folder / "diagnosis.json").read_text("utf-8"))
        emit({"event": "diagnosis", **document, "folder": str(found.folder), "files": list(found.files)})
        return
    trials = how_many(found.trials, "trial")
    if found.shown:
        say(f"{found.record.outcome} in trial {found.trials}: {found.record.detail}")
    else:
        say(f"the failure did not show in {trials}; the last: {found.record.outcome}: {found.record.detail}")
    for line in found.findings:
        say(line)
    for text in found.notes:
        say(f"note: {text}")
    say(f"kept in {found.folder}: {', '.join(found.files)}")


# --------------------------------------------------------------------------------------------------
# `--amplify`: circumstances under which the failure is more frequent.


def _amplify(
    target: FoundTarget, flags: Flags, where: ExecutionOptions, view: View, shown: ShownOptions
) -> ExitCode:
    matrix = target.matrix
    with opened(matrix, where, view) as session:
        expansion = expand_as_known(matrix, session.store, session.provider)
        texts = _ends(session.store, expansion) | target.stated_ends(flags)
        if {"good", "bad"} - texts.keys():
            raise UsageError(
                "neither an answer nor the directions of the axes say which ends are good and bad",
                remedy="give --good and --bad, or ask `bisect-env run` first",
            )
        ends_of = {
            end: look_up(
                expansion,
                text,
                store=session.store,
                provider=session.provider,
                notify=session.notify,
                flag=f"--{end}",
            )
            for end, text in texts.items()
        }
        session.say(f"bad end: {ends_of['bad'].combination}; good end: {ends_of['good'].combination}")
        session.say(where.starting)
        session.say(ENVIRONMENT_NOTICE)
        found = amplified(matrix, session, expansion.study, **ends_of)
    _print_amplified(found, Asked.of(matrix.path, matrix.file.axes), as_json=shown.as_json)
    return ExitCode.VERDICT if found.perturbation != NONE else ExitCode.NO_VERDICT


def _ends(store: Store, expansion: Expansion) -> dict[str, str]:
    """Return the good and the bad end of a question, as texts for `--good` and `--bad`.

    They are the two ends of the matrix, or else the combinations of the study's answer. The dict is empty if
    there are neither.
    """
    grid = expansion.grid
    if grid.ends is not None:
        ends = zip(("good", "bad"), grid.ends, strict=True)
        return {end: ",".join(map("=".join, grid.combination(index).items)) for end, index in ends}
    named = {} if expansion.study is None else named_combinations(store, expansion.study)
    return {"good": "last-good", "bad": "first-bad"} if {"first-bad", "last-good"} <= named.keys() else {}


def _print_amplified(found: Amplified, asked: Asked, *, as_json: bool) -> None:
    if as_json:
        emit({"event": "amplified", **found.as_json()})
        return
    rows = [("as it is", found.base), *((one.name, arm) for one, arm in found.tried)]
    width = max(len(name) for name, _ in rows)
    for name, arm in rows:
        each = f"{arm.seconds / arm.trials:8.2f} s" if arm.trials else ""
        say(f"{name:<{width}}  {arm.hits:>3} of {arm.trials:>3}  {each}".rstrip())
    if found.arm is None:
        say(f"nothing makes the failure more frequent: {found.reason}")
        return
    say(f"best: {found.perturbation.name} ({found.reason})")
    say(f"saves about {percent(1.0 - found.base.speed / found.arm.speed)} of the time that trials take")
    lines = asked.setting("search: {amplify: true}")
    say(f"with {lines}, `bisect-env run` looks for such circumstances and runs its trials under them")
