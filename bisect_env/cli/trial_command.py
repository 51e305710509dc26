"""`bisect-env trial`: run one combination again and again."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from bisect_env.cli.execution_options import ExecutionOptions
from bisect_env.cli.one_session import TrialLines, say, session
from bisect_env.cli.options import (
    AtOption,
    CacheOption,
    CacheSizeOption,
    DatabaseOption,
    GpusOption,
    JsonOption,
    MatrixArgument,
    OfflineOption,
    QuietOption,
    SchedulerFileOption,
    SchedulerOption,
    WorkersOption,
)
from bisect_env.cli.views import LogFileOption, VerboseOption, logged, start_log


def trial(
    matrix: MatrixArgument,
    at: AtOption = None,
    number: Annotated[
        int,
        typer.Option(
            "--number", "-n", min=1, max=1_000_000, help="Trials that count; spoilt ones are run again."
        ),
    ] = 10,
    db: DatabaseOption = None,
    workers: WorkersOption = None,
    gpus: GpusOption = None,
    scheduler: SchedulerOption = None,
    scheduler_file: SchedulerFileOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    cache: CacheOption = None,
    cache_size: CacheSizeOption = None,
    offline: OfflineOption = None,
    verbose: VerboseOption = False,
    log_file: LogFileOption = None,
) -> None:
    """Run trials of one combination: a line for each, and the rate of the failure at the end.

    They are stored, and `bisect-env run` starts from them. Ends with 3 if any was bad, else with 0.
    """
    from bisect_env.engine.state import Tally
    from bisect_env.errors import ExitCode, StudyInterruptedError
    from bisect_env.report.sentence import interval, percent
    from bisect_env.search.numeric import clopper_pearson

    start_log("trial", verbose=verbose, log_file=log_file, quiet=quiet)
    where = ExecutionOptions(workers, gpus, scheduler, scheduler_file, cache, cache_size, offline)

    def wanted(tally: Tally, running: int) -> int:
        # A combination that can teach nothing is not asked thirty times.
        done = tally.good + tally.bad + tally.other
        return 0 if tally.skip else number - done - running

    with session(matrix, at, db, where, logged(TrialLines(as_json=as_json, quiet=quiet))) as opened:
        combination = opened.one.single.combination
        if not (as_json or quiet):
            say(f"{combination} (environment {opened.one.single.lock.content_hash[:12]})", sys.stderr)
        tally = opened.trials.run(opened.one.single, wanted)
        stopped = opened.stopped()
    counted = tally.good + tally.bad
    low, high = clopper_pearson(tally.bad, counted)
    if as_json:
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
