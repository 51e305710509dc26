"""`bisect-env diagnose`: run one combination until it fails, under the tools of this host."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bisect_env.cli.execution_options import ExecutionOptions
from bisect_env.cli.options import AtOption, DatabaseOption, MatrixArgument, with_groups
from bisect_env.cli.output import say, tell, warn
from bisect_env.cli.signals import stop_on_signals
from bisect_env.cli.views import ShownOptions, log_event, logged, start_log

if TYPE_CHECKING:
    from bisect_env.engine.diagnose import Diagnosis
    from bisect_env.matrix.load import Matrix
    from bisect_env.trials.records import Evidence, TrialRecord


_OPEN = (
    "the matrix takes its failure from the bad end, where no study has seen one yet: any failure that fits "
    "`trial.bad` is looked at"
)


@with_groups(without=("workers", "scheduler", "scheduler_file", "cluster", "quiet"))
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
    from bisect_env.engine import events
    from bisect_env.engine.diagnose import SANITIZERS, Tools
    from bisect_env.engine.diagnose import diagnose as run
    from bisect_env.engine.evidence import allowed_sources, known_target
    from bisect_env.engine.single import MAKING, look_up
    from bisect_env.errors import ExitCode, StudyInterruptedError, UsageError
    from bisect_env.matrix.load import load_matrix
    from bisect_env.storage.store import Store
    from bisect_env.trials.run import TrialCancelledError

    if sanitizer is not None and sanitizer not in SANITIZERS:
        raise UsageError(f"--sanitizer: {sanitizer!r} is none", remedy=f"take {', '.join(SANITIZERS)}")
    start_log("diagnose", shown)
    stopped = stop_on_signals()
    loaded = load_matrix(matrix)
    heard = logged(warn if shown.as_json else tell)
    uuids = _gpus(loaded, where.gpus)
    _, provider = where.open(loaded)
    with Store.open(db) as store:
        one = look_up(loaded, at, store=store, provider=provider, notify=heard)
        study_id = None if one.study is None else one.study.id
        target, is_open = known_target(loaded, store, study_id)
    folder = _new_folder(output, f"{loaded.name}-{one.single.lock.content_hash[:8]}")

    def show(text: str) -> None:
        log_event(events.Said(text))
        if not shown.as_json:
            say(text, sys.stderr)

    def told(number: int, record: TrialRecord, evidence: Evidence) -> None:
        show(f"{number:>3}  {evidence:<5}  {record.outcome}: {record.detail}")

    show(f"{one.single.combination} (environment {one.single.lock.content_hash[:12]})")
    show(MAKING)
    prefix = provider.ensure_prefix(one.single.lock, allow_source=allowed_sources(loaded))
    try:
        found = run(
            loaded,
            one.single,
            prefix,
            folder,
            limit=limit,
            tools=Tools(cuda, sanitizer or ""),
            target=target,
            notes=[_OPEN] if is_open else [],
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
    """The GPUs of this host that a trial gets."""
    import os

    count = matrix.file.trial.gpus
    if not count:
        return ()
    from bisect_env.cluster.gpus import choose_gpus, group_gpus, open_nvml

    chosen = choose_gpus(open_nvml().gpus(), selection, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return group_gpus(chosen, count, None)[0]


def _new_folder(output: Path | None, name: str) -> Path:
    from bisect_env.errors import UsageError

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
    from bisect_env.report.sentence import how_many

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
