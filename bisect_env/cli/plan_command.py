"""`bisect-env plan`: what a study would run and cost, without running anything."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.console import Console
from rich.text import Text

from bisect_env.answers.phrases import how_many
from bisect_env.answers.untrusted import clean, clean_lines, command_line, shortened
from bisect_env.cli.asking import Flags
from bisect_env.cli.asking import save as save_question
from bisect_env.cli.commands import with_groups
from bisect_env.cli.options import ExecutionOptions, JsonOption, ShownOptions, TargetArgument, opt
from bisect_env.cli.output import deliver, emit, tell
from bisect_env.cli.target import announce, find_target
from bisect_env.cli.work import open_provider
from bisect_env.engine.forecast import Forecast, forecast
from bisect_env.engine.locking import Locking, Prepared, of_commits, unlocked
from bisect_env.matrix.expand import expand
from bisect_env.matrix.history import readable
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.problems import dotted
from bisect_env.matrix.rules import RuleSet
from bisect_env.matrix.schema import schema_text

_SEED = 20_260_101
_REASON = 240
"""Characters of a reason that a line shows; `--json` has all of it."""
_PLAYED = 20
"""Studies played for a forecast, if there is time for so many."""
_FORECAST = 1.0
"""Seconds for all forecasts, unless more are asked for: nobody waits long to read how long it will take."""
_GRACE = 0.25
"""Seconds more for the round that is being played when time is up."""
_LISTED = 20_000
"""Combinations above which those that can be run are counted, unless `--combinations` lists them."""


PLAN = "The plan"


@with_groups(without=("devices", "scheduler", "scheduler_file", "cache_size", "offline"))
def plan(
    words: TargetArgument = None,
    *,
    flags: Flags,
    save: Annotated[
        Path | None, opt("--save", "Only write the question to this matrix file, and its scripts.")
    ] = None,
    schema: Annotated[
        bool, opt("--schema", "Only print the JSON schema of matrix files, for editors.")
    ] = False,
    every: Annotated[bool, opt("--combinations", "List combinations that can be run, too.", PLAN)] = False,
    why: Annotated[
        bool, opt("--why", "Show the solver's whole text for what has no environment.", PLAN)
    ] = False,
    background: Annotated[
        float,
        opt("--background", "Assumed rate of the failure in good combinations.", PLAN, min=0.0, max=0.5),
    ] = 0.0,
    trial_seconds: Annotated[
        float | None,
        opt(
            "--trial-seconds",
            "Assumed seconds of a trial; default: its time limit, which is the most.",
            PLAN,
            min=0.001,
        ),
    ] = None,
    forecast: Annotated[
        float,
        opt(
            "--forecast",
            "How long to simulate studies for the forecast.",
            PLAN,
            min=0.0,
            max=86_400.0,
            metavar="SECONDS",
        ),
    ] = _FORECAST,
    as_json: JsonOption = False,
    where: ExecutionOptions,
) -> None:
    """Show combinations, exclusions with reasons and expected trials; nothing is built, no trial runs.

    With `--save FILE` it writes a matrix file instead, which can be edited and run. Where
    `solver.allow_source` allows source distributions, solving builds them to read their metadata.
    """
    if schema:
        deliver(schema_text())
        return
    target = find_target(words or (), flags, db=where.db, runs=save is None)
    if save is not None:
        save_question(target.matrix, save)
        tell(f"{save} is written; next: {command_line('bisect-env', 'run', str(save))}")
        return
    announce(target, ShownOptions(as_json))
    loaded = target.matrix
    if loaded.file.solver.allow_source:
        tell(
            "solver.allow_source: to read their metadata, source distributions are built on this machine, "
            "and their build scripts run"
        )
    provider = open_provider(loaded, where)
    grid = expand(loaded, provider.catalogue, datetime.now(UTC))
    prepared = unlocked(grid) if of_commits(grid) else Locking(loaded, grid, provider).lock_all()
    stated = loaded.file.search.crash_rate
    rates = (stated,) if stated else (1.0, max(0.1, loaded.file.search.min_crash_rate))
    document = _document(loaded, prepared, listed=every or len(prepared.groups) <= _LISTED)
    if not as_json:
        # What is certain can be read while studies are played.
        _print(document, whole=every, why=why)
        sys.stdout.flush()
    for rate in rates:
        seconds = forecast / len(rates)
        if played := _forecast(loaded, prepared, rate, background, where.workers or 1, seconds):
            document["forecast"].append(_cost(loaded, played, document["environments"], trial_seconds))
    if as_json:
        emit(document)
    else:
        _print_forecast(document)


def _forecast(
    matrix: Matrix, prepared: Prepared, rate: float, background: float, workers: int, seconds: float
) -> Forecast | None:
    """Return what studies show that are played for so many seconds, in a thread: a step may take longer."""
    found: list[Forecast | None] = []
    end = time.monotonic() + seconds

    def play() -> None:

        found.append(
            forecast(
                prepared.grid,
                prepared.groups,
                np.random.default_rng(_SEED),
                crash_rate=rate,
                background=background,
                studies=_PLAYED,
                limits=matrix.file.search,
                workers=workers,
                going_on=lambda: time.monotonic() < end,
            )
        )

    # Ends with this process at the latest.
    player = threading.Thread(target=play, name="forecast", daemon=True)
    player.start()
    player.join(seconds + _GRACE)
    return found[0] if found else None


def _document(matrix: Matrix, prepared: Prepared, *, listed: bool) -> dict[str, Any]:
    """Return the plan without its forecasts, which follow under `forecast`."""
    grid = prepared.grid
    combinations = []
    rules = RuleSet(
        matrix.file.axes,
        {axis.name: axis.values for axis in grid.axes},
        matrix.file.exclude,
        matrix.file.include,
    )
    counts: Counter[str] = Counter()
    for index in grid.indices():
        runs = index in prepared.locks
        if runs and not listed and index not in prepared.warnings:
            counts["solvable"] += 1
            continue
        row: dict[str, Any] = {"combination": grid.combination(index).as_dict()}
        if index in grid.excluded:
            row |= {"status": "excluded", "reason": grid.excluded[index]}
            if (rule := rules.excluding(grid.combination(index))) is not None:
                row["rule"] = {"key": dotted(rule.key), "line": matrix.line(*rule.key)}
        elif index in prepared.unsolvable:
            error = prepared.unsolvable[index]
            row |= {
                "status": "env-unbuildable" if error.building else "env-unsolvable",
                "reason": error.message,
            }
        elif not runs:
            # Of commits, which are locked when they are built.
            row["status"] = "unlocked"
        else:
            row |= {"status": "solvable", "lock": prepared.locks[index].content_hash}
            row["warnings"] = list(prepared.warnings.get(index, ()))
        counts[row["status"]] += 1
        combinations.append(row)
    return {
        "schema": 1,
        "matrix": matrix.name,
        "axes": [
            {
                "name": axis.name,
                "kind": str(axis.kind),
                "direction": str(axis.direction),
                "values": list(axis.values),
                "dropped": dict(axis.dropped),
            }
            for axis in grid.axes
        ],
        "environments": int(prepared.environments or len(prepared.groups)),
        "counts": dict(counts),
        "combinations": combinations,
        "forecast": [],
    }


def _cost(
    matrix: Matrix, forecast: Forecast, environments: int, trial_seconds: float | None
) -> dict[str, Any]:
    """Return a forecast as the document tells it; `environments` is how many distinct ones there are."""
    seconds, gpus = trial_seconds or float(matrix.file.trial.timeout), matrix.file.trial.gpus
    distinct = float(environments)
    return {
        "crash_rate": forecast.crash_rate,
        "background": forecast.background,
        "studies": forecast.studies,
        "trials": forecast.trials,
        "trials_90_percent_range": list(forecast.trials_range),
        # Combinations that differ in values alone share an environment.
        "environments": min(forecast.environments, distinct),
        "environments_90_percent_range": [min(end, distinct) for end in forecast.environments_range],
        "trial_seconds": seconds,
        "trial_seconds_is_timeout": trial_seconds is None,
        "gpus_per_trial": gpus,
        "gpu_hours": forecast.gpu_hours(seconds, gpus)[0],
        "gpu_hours_90_percent_range": list(forecast.gpu_hours(seconds, gpus)[1:]),
    }


_WORDS = {
    "solvable": "buildable",
    "excluded": "excluded",
    "env-unsolvable": "unsolvable",
    "env-unbuildable": "unbuildable",
    "unlocked": "to be built when wanted",
}


def one_line(reason: str) -> str:
    """Return a solver's text without the tree that it draws over several lines."""
    lines = [line.strip(" │├└─╰▶\t").removesuffix(":") for line in reason.splitlines()]
    for heading in _HEADINGS:
        lines = [line.removeprefix(heading).lstrip(": ") for line in lines]
    return "; ".join(line for line in lines if line)


_HEADINGS = (
    "Cannot solve the request because of",
    "The following packages are incompatible",
    "No solution found when resolving dependencies",
)


def _printer() -> Callable[..., None]:
    """Return what prints a line: its indent, its text and perhaps a style."""
    # One fact a line and no folding: a plan is read with grep as often as by eye.
    console = Console(highlight=False, soft_wrap=True)

    def line(indent: int, text: str, style: str = "") -> None:
        console.print(Text(" " * indent + clean(readable(text)), style=style))

    return line


def _print(document: dict[str, Any], *, whole: bool, why: bool = False) -> None:

    line = _printer()
    rows = document["combinations"]
    by_status = Counter(document["counts"])
    line(0, document["matrix"], "bold")
    for axis in document["axes"]:
        values = axis["values"]
        shown = ", ".join(values if len(values) <= 8 else [*values[:3], "…", *values[-3:]])
        line(2, f"{axis['name']} ({axis['direction']}, {how_many(len(values), 'value')}): {shown}")
        for value, reason in axis["dropped"].items():
            line(4, f"left out: {value} ({reason})", "dim")
    counts = ", ".join(f"{by_status[status]} {word}" for status, word in _WORDS.items() if by_status[status])
    environments = how_many(document["environments"], "distinct environment")
    line(0, f"{how_many(by_status.total(), 'combination')}: {counts}; {environments}")
    for row in rows:
        if row["status"] in ("solvable", "unlocked") and not whole:
            continue
        named = " ".join(f"{axis}={value}" for axis, value in row["combination"].items())
        reason = shortened(one_line(clean_lines(row.get("reason", ""))), _REASON)
        if rule := row.get("rule"):
            reason += f" ({rule['key']}, line {rule['line']})"
        line(2, f"{named}: {_WORDS[row['status']]}" + (f": {reason}" if reason else ""))
        for text in (
            clean_lines(row["reason"]).splitlines() if why and row["status"].startswith("env-") else ()
        ):
            line(6, text, "dim")
    groups: dict[str, list[str]] = {}
    for row in rows:
        for warning in row.get("warnings", ()):
            named = " ".join(f"{axis}={value}" for axis, value in row["combination"].items())
            groups.setdefault(warning, []).append(named)
    for warning, names in groups.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        line(2, f"warning: {names[0]}{more}: {warning}", "yellow")


def _print_forecast(document: dict[str, Any]) -> None:
    line = _printer()
    for cost in document["forecast"]:
        low, high = cost["trials_90_percent_range"]
        environments = how_many(round(cost["environments"]), "environment")
        fewest, most = (round(end) for end in cost["environments_90_percent_range"])
        if fewest != most:
            environments += f" ({fewest} to {most})"
        line(
            0,
            f"at a crash rate of {cost['crash_rate']:g}: about {cost['trials']:.0f} trials "
            f"(90 % of studies: {low:.0f} to {high:.0f}) in about {environments}" + _gpu_hours(cost),
        )
    if not document["forecast"]:
        alone = sum(document["counts"].get(status, 0) for status in ("solvable", "unlocked")) < 2
        line(
            0,
            "nothing can be told apart: no two combinations that can be run could differ"
            if alone
            else "no forecast of trials: no study could be played to its end in time; "
            "`--forecast 60` plays for a minute",
        )


def _gpus(number: float) -> str:
    return f"{number:g} GPU{'s' if number > 1 else ''}"


def _gpu_hours(cost: dict[str, Any]) -> str:
    if not cost["gpus_per_trial"]:
        return ""
    low, high = cost["gpu_hours_90_percent_range"]
    most = "at most " if cost["trial_seconds_is_timeout"] else ""
    return (
        f", {most}{cost['gpu_hours']:.3g} GPU-hours (90 %: {low:.3g} to {high:.3g}) "
        f"at {cost['trial_seconds']:g} s and {_gpus(cost['gpus_per_trial'])} a trial"
    )
