"""`bisect-env trial`: run one combination again and again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from bisect_env.answers.phrases import how_many, interval, percent
from bisect_env.cli.asking import Flags
from bisect_env.cli.commands import with_groups
from bisect_env.cli.conduct import reporting
from bisect_env.cli.options import (
    AtOption,
    ExecutionOptions,
    SaveOption,
    ShownOptions,
    TargetArgument,
    opt,
    share,
)
from bisect_env.cli.output import emit, say, tell
from bisect_env.cli.target import FoundTarget, announce, find_target
from bisect_env.cli.views import View, lines, timed
from bisect_env.cli.work import Work, opened
from bisect_env.cluster.gpus import choose_gpus, group_gpus, open_nvml
from bisect_env.engine import events
from bisect_env.engine.amplify import Amplified, Amplifier
from bisect_env.engine.diagnose import SANITIZERS, Diagnosis, Tools, diagnose
from bisect_env.engine.opening import expand_as_known
from bisect_env.engine.plans import SoMany
from bisect_env.engine.single import MAKING, ChosenCombination, look_up, open_one, run_trials
from bisect_env.engine.specs import allowed_sources, target_of, within_limits
from bisect_env.engine.verify import Verification, Verifier
from bisect_env.errors import ExitCode, StudyInterruptedError, UsageError
from bisect_env.matrix.grid import Grid
from bisect_env.matrix.load import Matrix
from bisect_env.search.numeric import clopper_pearson
from bisect_env.search.rate_test import RateClaim
from bisect_env.secrets import public_json
from bisect_env.storage.entries import EvidenceCounts
from bisect_env.trials.records import NONE, Evidence, TrialRecord
from bisect_env.trials.run import TrialCancelledError

MORE = "More than a number of trials"
_NUMBER, _DEBUGGED = 10, 50
_EXTREME = 1e-6
"""Rates nearer to 0 or 1 would take longer to test than anybody waits."""
_SIGNS = {"good": "✓", "bad": "✗", "other": "!", "skip": "-", "void": "?"}


@with_groups()
def trial(
    words: TargetArgument = None,
    *,
    at: AtOption = None,
    number: Annotated[
        int | None,
        opt(
            "--number -n",
            "Trials at most; default: 10, with `--debug` 50, with `--until-rate` as many as it takes.",
            min=1,
            max=1_000_000,
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        float | None,
        opt(
            "--until-rate",
            "Run trials until the failure rate is shown to be below this, or above it: 0.01, or 1%.",
            parser=share,
            metavar="SHARE",
        ),
    ] = None,
    debug: Annotated[
        bool, opt("--debug", "Run until it fails, with core file, stacks and the guilty frame.")
    ] = False,
    amplify: Annotated[
        bool, opt("--amplify", "Find circumstances under which the failure is more frequent.")
    ] = False,
    flags: Flags,
    fresh: Annotated[
        bool, opt("--fresh", "Begin an interrupted `--until-rate` from the start.", MORE)
    ] = False,
    output: Annotated[Path | None, opt("--output -o", "New folder for what `--debug` finds.", MORE)] = None,
    cuda: Annotated[
        bool, opt("--cuda", "With `--debug`: set CUDA_LAUNCH_BLOCKING, and keep a core of the GPU.", MORE)
    ] = False,
    sanitizer: Annotated[
        str | None,
        opt(
            "--sanitizer",
            "With `--debug`: run under compute-sanitizer: memcheck, racecheck, initcheck or synccheck.",
            MORE,
        ),
    ] = None,
    save: SaveOption = None,
    where: ExecutionOptions,
    shown: ShownOptions,
) -> None:
    """Run trials of one combination: a line for each, and the failure rate at the end.

    They are stored, and `bisect-env run` starts from them; those of `--debug` and `--amplify` count nowhere.
    Ends with 3 if any failed, or the rate is above the limit, else with 0; `--amplify` ends with 0 if it
    found something, else with 1.
    """
    modes = {"--until-rate": until is not None, "--debug": debug, "--amplify": amplify}
    if len(asked := [name for name, is_asked in modes.items() if is_asked]) > 1:
        raise UsageError(f"{' and '.join(asked)} exclude each other", remedy="give one of them")
    for name, is_given in (("--output", output), ("--cuda", cuda), ("--sanitizer", sanitizer)):
        if is_given and not debug:
            raise UsageError(f"{name} belongs to `--debug`", remedy="add `--debug`, or leave it out")
    with reporting("trial", shown):
        target = find_target(
            words or (), flags, db=where.db, to=save, without=("good", "bad") if amplify else ()
        )
        announce(target, shown)
        if debug:
            tools = Tools(cuda, _sanitizer(sanitizer))
            code = _debug(target.matrix, at, number or _DEBUGGED, output, tools, where, shown)
        elif amplify:
            code = _amplify(target, flags, where, shown)
        else:
            show = TrialLines(shown)
            with opened(target.matrix, where, show) as work:
                chosen = _chosen(target.matrix, at, work, where, shown)
                if until is None:
                    code = _count(chosen, number or _NUMBER, work, shown)
                else:
                    confidence = flags.confidence or target.matrix.file.search.confidence
                    code = _until(chosen, until, confidence, number, work, shown, fresh=fresh)
    raise typer.Exit(int(code))


class TrialLines(View):
    """Prints one line for each trial on stdout, and other events on stderr.

    Args:
        shown: With JSON, each trial is an object instead; if quiet, nothing is printed of it.
    """

    def __init__(self, shown: ShownOptions) -> None:
        self._shown = shown
        self._others = lines(shown)
        self._count = 0

    def __call__(self, event: events.Event) -> None:
        """Show one event."""
        if not isinstance(event, events.TrialFinished):
            self._others(event)
            return
        self._count += 1
        if self._shown.as_json:
            emit(public_json(timed(event)))
        elif not self._shown.quiet:
            say(_line(self._count, event))


def _line(number: int, event: events.TrialFinished) -> str:
    record, evidence = event.record, str(event.evidence)
    sign = _SIGNS[evidence]
    parts = [f"{sign} {number:>3}", f"{record.outcome:<12}", f"{record.duration:7.2f} s"]
    notes = [] if evidence == "good" else [record.detail]
    if evidence not in ("good", "bad"):
        notes.append("nothing to learn here" if evidence == "skip" else "not counted")
    return "  ".join([*parts, "; ".join(note for note in notes if note)]).rstrip()


def _chosen(
    matrix: Matrix, at: str | None, work: Work, where: ExecutionOptions, shown: ShownOptions
) -> ChosenCombination:
    session = work.session
    chosen = open_one(matrix, at, store=session.store, provider=session.provider, notify=session.notify)
    session.say(where.starting)
    if not (shown.as_json or shown.quiet):
        tell(f"{chosen.combination} (environment {chosen.lock.content_hash[:12]})")
    return chosen


# --------------------------------------------------------------------------------------------------
# A number of trials.


def _count(chosen: ChosenCombination, number: int, work: Work, shown: ShownOptions) -> ExitCode:
    _, tally, _ = run_trials(chosen, lambda: SoMany(chosen.index, number), work.session)
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
        say("no trial counts" + (": nothing can be learnt at this combination" if tally.skip else ""))
    if work.stopped:
        raise StudyInterruptedError(
            "interrupted; every trial that ended is stored", remedy="the same command runs as many again"
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
# Trials until the rate is known.

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
    work: Work,
    shown: ShownOptions,
    *,
    fresh: bool,
) -> ExitCode:
    for name, value, usual in (("--until-rate", rate, 0.01), ("--confidence", confidence, 0.95)):
        if not _EXTREME <= value <= 1 - _EXTREME:
            raise UsageError(f"{name} is {value:g}", remedy=f"give a number between 0 and 1, such as {usual}")
    verifier = Verifier(
        chosen, work.session.store, max_rate=rate, confidence=confidence, max_trials=limit, fresh=fresh
    )
    again = f", going on after {how_many(verifier.resumed, 'trial')}" if verifier.resumed else ""
    tell(
        f"{chosen.combination}: {verifier.clean_needed} trials without a failure would "
        f"show a rate below {rate:.4g}{again}"
    )
    found = verifier.run(work.session)
    if shown.as_json:
        emit(found.document())
    else:
        say(verification_text(found))
    if work.stopped and found.claim is None:
        raise StudyInterruptedError(
            f"interrupted after {how_many(found.trials, 'trial')}, all of them stored",
            remedy="the same command goes on from here",
        )
    return _CODES[found.claim]


def verification_text(found: Verification) -> str:
    """Return the outcome of a test as people read it. Pure."""
    name = " ".join(f"{axis}={value}" for axis, value in found.combination.items())
    limit, sure = percent(found.max_rate), percent(found.confidence)
    seen = f"{found.bad} of {found.trials} trials were bad"
    if found.claim is RateClaim.BELOW:
        behind = f"{found.trials - found.bad} clean runs stand behind that"
        alone = f"{found.bad or 'zero'} in {found.trials} alone means below {percent(found.below)}"
        claim = f"{name} fails in fewer than {limit} of runs ({sure} sure)"
        return f"below the limit: {claim}: {seen}\n{behind}; {alone}"
    rate = f"{percent(found.rate)}, 95 % interval {interval(*found.interval)}"
    if found.claim is RateClaim.ABOVE:
        return f"above the limit: {name} fails in more than {limit} of runs ({sure} sure): {seen} ({rate})"
    why = f"; {found.why_stopped}" if found.why_stopped else ""
    return f"not shown: {name} may fail in more or fewer than {limit} of runs: {seen} ({rate}){why}"


# --------------------------------------------------------------------------------------------------
# Until it fails, under the tools of this host.

_OPEN = (
    "the matrix takes its failure from the bad end, where no study has seen one yet: any failure that fits "
    "`trial.bad` is looked at"
)


def _sanitizer(name: str | None) -> str:
    if name is not None and name not in SANITIZERS:
        raise UsageError(f"--sanitizer: {name!r} is none", remedy=f"take {', '.join(SANITIZERS)}")
    return name or ""


def _debug(
    matrix: Matrix,
    at: str | None,
    limit: int,
    output: Path | None,
    tools: Tools,
    where: ExecutionOptions,
    shown: ShownOptions,
) -> ExitCode:
    for name, value in (("--workers", where.workers), ("--scheduler", where.scheduler)):
        if value is not None:
            raise UsageError(
                f"{name}: `--debug` runs one trial at a time on this host", remedy="leave it out"
            )
    with opened(matrix, where, lines(shown)) as work:
        store, provider, show = work.session.store, work.session.provider, work.session.notify
        one = look_up(matrix, at, store=store, provider=provider, notify=show)
        known = one.expansion.study
        target = target_of(matrix) if known is None else store.target(known.id)
        folder = _new_folder(output, f"{matrix.name}-{one.lock.content_hash[:8]}")

        def show_trial(number: int, record: TrialRecord, evidence: Evidence) -> None:
            show(events.Said(f"{number:>3}  {evidence:<5}  {record.outcome}: {record.detail}"))

        show(events.Said(f"{one.combination} (environment {one.lock.content_hash[:12]})"))
        show(events.Said(MAKING))
        lock = within_limits(matrix, one.lock)
        prefix = provider.ensure_prefix(lock, allow_source=allowed_sources(matrix))
        try:
            found = diagnose(
                matrix,
                one,
                prefix,
                folder,
                limit=limit,
                tools=tools,
                target=target,
                perturbation=one.perturbation,
                notes=[_OPEN] if target.is_open else [],
                gpus=_gpus(matrix, where.devices),
                on_trial=show_trial,
                stopped=work.session.stopped,
            )
        except TrialCancelledError:
            raise StudyInterruptedError(
                "interrupted before the failure showed", remedy="the same command begins again"
            ) from None
        finally:
            prefix.release()
    _print_diagnosis(found, as_json=shown.as_json)
    return ExitCode.FAILURE_SEEN if found.shown else ExitCode.NO_VERDICT


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
            raise UsageError(f"--output: {output} is there already", remedy="name a new folder")
        return output
    folder = Path("diagnosis")
    number = 1
    while (folder / f"{name}-{number}").exists():
        number += 1
    return folder / f"{name}-{number}"


def _print_diagnosis(found: Diagnosis, *, as_json: bool) -> None:
    if as_json:
        document = json.loads((found.folder / "diagnosis.json").read_text("utf-8"))
        emit({**document, "folder": str(found.folder), "files": list(found.files)})
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


# --------------------------------------------------------------------------------------------------
# Circumstances under which the failure is more frequent.


def _amplify(target: FoundTarget, flags: Flags, where: ExecutionOptions, shown: ShownOptions) -> ExitCode:
    matrix = target.matrix
    with opened(matrix, where, lines(shown)) as work:
        session = work.session
        expansion = expand_as_known(matrix, session.store, session.provider)
        # In a question in words they state the ends of the matrix itself.
        given = {} if target.words else {"good": flags.good, "bad": flags.bad}
        texts = {end: ",".join(text) for end, text in given.items() if text}
        if expansion.grid.ends is not None:
            ends = zip(("good", "bad"), expansion.grid.ends, strict=True)
            texts = {**{end: _text(expansion.grid, index) for end, index in ends}, **texts}
        if {"good", "bad"} - texts.keys():
            raise UsageError(
                "the directions of the axes do not say which ends are good and bad",
                remedy="give --good and --bad",
            )
        ends_of = {
            end: look_up(
                matrix,
                text,
                store=session.store,
                provider=session.provider,
                notify=session.notify,
                as_of=expansion.as_of,
                flag=f"--{end}",
            )
            for end, text in texts.items()
        }
        study = ends_of["bad"].expansion.study
        failure = target_of(matrix) if study is None else session.store.target(study.id)
        session.say(f"bad end: {ends_of['bad'].combination}; good end: {ends_of['good'].combination}")
        session.say(where.starting)
        session.say(MAKING)
        found = Amplifier(matrix, session, study, failure).run(ends_of["bad"], ends_of["good"])
    _print_amplified(found, as_json=shown.as_json)
    return ExitCode.VERDICT if found.perturbation != NONE else ExitCode.NO_VERDICT


def _text(grid: Grid, index: tuple[int, ...]) -> str:
    return ",".join(f"{axis}={value}" for axis, value in grid.combination(index).items)


def _print_amplified(found: Amplified, *, as_json: bool) -> None:
    document: dict[str, Any] = found.as_json()
    if as_json:
        emit(document)
        return
    rows = [("as it is", document["base"]), *((one["name"], one) for one in document["tried"])]
    width = max(len(name) for name, _ in rows)
    for name, arm in rows:
        each = f"{arm['seconds'] / arm['trials']:8.2f} s" if arm["trials"] else ""
        say(f"{name:<{width}}  {arm['hits']:>3} of {arm['trials']:>3}  {each}".rstrip())
    if found.arm is None:
        say(f"nothing to go on with: {found.reason}")
        return
    say(f"best: {found.perturbation.name} ({found.reason})")
    say(f"saves about {percent(1.0 - found.base.speed / found.arm.speed)} of the time that trials take")
    say("with `search: {amplify: true}` in the matrix, `bisect-env run` looks for it and runs its trials so")
