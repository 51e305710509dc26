"""`bisect-env plan`: what a study would run and cost, without running anything."""

from __future__ import annotations

import sys
import time
from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Any

import numpy as np
import typer

from bisect_env.answers.phrases import and_more, how_many
from bisect_env.answers.untrusted import clean, clean_lines, command_line, shortened
from bisect_env.cli.asking import A_QUESTION, Flags, given_options
from bisect_env.cli.asking import save as save_question
from bisect_env.cli.commands import with_groups
from bisect_env.cli.options import (
    ExecutionOptions,
    JsonOption,
    SaveOption,
    SchemaOption,
    ShownOptions,
    TargetArgument,
    opt,
    refuse_others,
)
from bisect_env.cli.output import deliver, emit, say, tell
from bisect_env.cli.providing import open_provider
from bisect_env.cli.target import announce, find_target
from bisect_env.engine.forecast import Forecast, forecast
from bisect_env.engine.locking import Locking, Prepared, of_commits, unlocked
from bisect_env.matrix.expand import expand
from bisect_env.matrix.history import readable
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.problems import dotted
from bisect_env.matrix.schema import schema_text
from bisect_env.report.words import named
from bisect_env.storage.entries import CombinationStatus

_SEED = 20_260_101
_REASON = 240
"""Maximum number of characters of a reason in a line; `--json` has the whole reason."""
_PLAYED = 20
"""Maximum number of simulated studies per forecast."""
_FORECAST = 1.0
"""Default time limit for all forecasts together, in seconds."""
_LISTED = 20_000
"""Number of combinations above which runnable ones are only counted, unless `--combinations` lists them."""
PLAN = "The plan"


@with_groups(without=("devices", "scheduler", "scheduler_file", "cache_size", "offline"))
def plan(
    context: typer.Context,
    words: TargetArgument = None,
    *,
    flags: Flags,
    save: SaveOption = None,
    schema: SchemaOption = False,
    every: Annotated[bool, opt("--combinations", "List combinations that can be run, too.", PLAN)] = False,
    why: Annotated[
        bool, opt("--why", "Show the solver's whole text for what has no environment.", PLAN)
    ] = False,
    seconds: Annotated[
        float | None,
        opt(
            "--forecast SECONDS",
            "How long to simulate studies for the forecast; default: 1.",
            PLAN,
            min=0.0,
            max=86_400.0,
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
    where: ExecutionOptions,
) -> None:
    """Show combinations, exclusions with reasons and expected trials; nothing is built, no trial runs.

    With `--save FILE` it writes a matrix file instead, which can be edited and run. Where
    `solver.allow_source` allows source distributions, solving builds them to read their metadata.
    """
    given = given_options(context)
    if schema:
        refuse_others("--schema", given)
        deliver(schema_text())
        return
    if save is not None:
        refuse_others("--save", given, (A_QUESTION, "--cache"))
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
        # Print the plan before the forecast, which takes a second.
        _print(document, whole=every, why=why)
        sys.stdout.flush()
    seconds = _FORECAST if seconds is None else seconds
    end = time.monotonic()
    for rate in rates:
        end += seconds / len(rates)

        def is_in_time(end: float = end) -> bool:
            return time.monotonic() < end

        played = forecast(
            prepared.grid,
            prepared.groups,
            np.random.default_rng(_SEED),
            crash_rate=rate,
            studies=_PLAYED,
            limits=loaded.file.search,
            workers=where.workers or 1,
            going_on=is_in_time,
        )
        if played is not None:
            document["forecast"].append(_cost(loaded, played, document["environments"]))
    if as_json:
        emit(document)
    else:
        _print_forecast(document)


def _document(matrix: Matrix, prepared: Prepared, *, listed: bool) -> dict[str, Any]:
    """Return the plan as a dict. The caller must fill the empty list `forecast`."""
    grid = prepared.grid
    combinations = []
    counts: Counter[str] = Counter()
    for index in grid.indices():
        runs = index in prepared.locks
        if runs and not listed and index not in prepared.warnings:
            counts["solvable"] += 1
            continue
        row: dict[str, Any] = {"combination": grid.combination(index).as_dict()}
        state = prepared.state(index)
        row["status"] = str(state.status)
        if runs:
            row |= {"lock": state.lock_hash, "warnings": list(prepared.warnings.get(index, ()))}
        elif state.status != CombinationStatus.UNLOCKED:
            # Environments of commits are unlocked until they are built.
            row["reason"] = state.reason
        if (rule := grid.excluded.get(index)) is not None:
            row["rule"] = {"key": dotted(rule.key), "line": matrix.line(*rule.key)}
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


def _cost(matrix: Matrix, forecast: Forecast, environments: int) -> dict[str, Any]:
    """Return the expected cost of a study (trials, environments and GPU hours) as a dict.

    Args:
        matrix: The question.
        forecast: Forecast of the study.
        environments: Number of distinct environments in the plan; the forecast cannot exceed this number.
    """
    # The time limit is the longest that a trial can take.
    seconds, gpus = float(matrix.file.trial.timeout), matrix.file.trial.gpus
    distinct = float(environments)
    return {
        "crash_rate": forecast.crash_rate,
        "studies": forecast.studies,
        "trials": forecast.trials,
        "trials_90_percent_range": list(forecast.trials_range),
        # Combinations that differ only on value axes share an environment.
        "environments": min(forecast.environments, distinct),
        "environments_90_percent_range": [min(end, distinct) for end in forecast.environments_range],
        "trial_seconds": seconds,
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
    """Return a solver's message on one line, without headings and the characters that draw a tree."""
    lines = [line.strip(" │├└─╰▶\t").removesuffix(":") for line in reason.splitlines()]
    for heading in _HEADINGS:
        lines = [line.removeprefix(heading).lstrip(": ") for line in lines]
    return "; ".join(line for line in lines if line)


_HEADINGS = (
    "Cannot solve the request because of",
    "The following packages are incompatible",
    "No solution found when resolving dependencies",
)


def _line(indent: int, text: str) -> None:
    """Print an indented text on one line without wrapping, so that `grep` finds whole lines."""
    say(" " * indent + clean(readable(text)))


def _print(document: dict[str, Any], *, whole: bool, why: bool = False) -> None:
    rows = document["combinations"]
    by_status = Counter(document["counts"])
    _line(0, document["matrix"])
    for axis in document["axes"]:
        values = axis["values"]
        shown = ", ".join(values if len(values) <= 8 else [*values[:3], "…", *values[-3:]])
        _line(2, f"{axis['name']} ({axis['direction']}, {how_many(len(values), 'value')}): {shown}")
        for value, reason in axis["dropped"].items():
            _line(4, f"left out: {value} ({reason})")
    counts = ", ".join(f"{by_status[status]} {word}" for status, word in _WORDS.items() if by_status[status])
    environments = how_many(document["environments"], "distinct environment")
    _line(0, f"{how_many(by_status.total(), 'combination')}: {counts}; {environments}")
    for row in rows:
        if row["status"] in ("solvable", "unlocked") and not whole:
            continue
        reason = shortened(one_line(clean_lines(row.get("reason", ""))), _REASON)
        if rule := row.get("rule"):
            reason += f" ({rule['key']}, line {rule['line']})"
        _line(2, f"{named(row['combination'])}: {_WORDS[row['status']]}" + (f": {reason}" if reason else ""))
        for text in (
            clean_lines(row["reason"]).splitlines() if why and row["status"].startswith("env-") else ()
        ):
            _line(6, text)
    groups: dict[str, list[str]] = {}
    for row in rows:
        for warning in row.get("warnings", ()):
            groups.setdefault(warning, []).append(named(row["combination"]))
    for warning, names in groups.items():
        _line(2, f"warning: {and_more(names, 1)}: {warning}")


def _print_forecast(document: dict[str, Any]) -> None:
    for cost in document["forecast"]:
        low, high = cost["trials_90_percent_range"]
        environments = how_many(round(cost["environments"]), "environment")
        fewest, most = (round(end) for end in cost["environments_90_percent_range"])
        if fewest != most:
            environments += f" ({fewest} to {most})"
        _line(
            0,
            f"at a crash rate of {cost['crash_rate']:g}: about {cost['trials']:.0f} trials "
            f"(90 % of studies: {low:.0f} to {high:.0f}) in about {environments}" + _gpu_hours(cost),
        )
    if not document["forecast"]:
        alone = sum(document["counts"].get(status, 0) for status in ("solvable", "unlocked")) < 2
        _line(
            0,
            "there is nothing to search: fewer than two combinations can be run"
            if alone
            else "no forecast of trials: no simulated study ended in time; "
            "`--forecast 60` simulates for a minute",
        )


def _gpu_hours(cost: dict[str, Any]) -> str:
    if not cost["gpus_per_trial"]:
        return ""
    low, high = cost["gpu_hours_90_percent_range"]
    gpus = f"{cost['gpus_per_trial']:g} GPU{'s' if cost['gpus_per_trial'] > 1 else ''}"
    return (
        f", at most {cost['gpu_hours']:.3g} GPU-hours (90 %: {low:.3g} to {high:.3g}) "
        f"at {cost['trial_seconds']:g} s and {gpus} a trial"
    )
