"""`bisect-env amplify`: find what makes a failure more frequent."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bisect_env.cli.execution_options import ExecutionOptions
from bisect_env.cli.options import (
    DatabaseOption,
    MatrixArgument,
    with_groups,
)
from bisect_env.cli.output import say, tell, warn
from bisect_env.cli.signals import stop_on_signals
from bisect_env.cli.views import ShownOptions, logged, start_log

if TYPE_CHECKING:
    from bisect_env.engine.amplify import Amplified
    from bisect_env.matrix.grid import Grid


@with_groups(without=("cluster", "quiet"))
def amplify(
    matrix: MatrixArgument,
    *,
    bad: Annotated[
        str | None,
        typer.Option("--bad", help="Combination that fails, as for `--at`; default: as the matrix says."),
    ] = None,
    good: Annotated[
        str | None,
        typer.Option("--good", help="Combination that passes, as for `--at`; default: as the matrix says."),
    ] = None,
    db: DatabaseOption = None,
    where: ExecutionOptions,
    shown: ShownOptions,
) -> None:
    """Find circumstances under which the failure is more frequent, and the good end still clean.

    Tried are copies at once, load beside it, fewer cores, allocators, threads, hash seeds and the garbage
    collector, in one to three hundred trials. They are not stored and count nowhere. Ends with 0 if
    something was found, else with 1. `search: {amplify: true}` in the matrix does the same before a study,
    and runs its trials so.
    """
    from bisect_env.engine import events
    from bisect_env.engine.amplify import Amplifier, ends
    from bisect_env.engine.evidence import known_target
    from bisect_env.engine.single import MAKING, look_up
    from bisect_env.engine.study import study_date
    from bisect_env.errors import ExitCode, UsageError
    from bisect_env.matrix.expand import expand
    from bisect_env.matrix.load import load_matrix
    from bisect_env.storage.store import Store
    from bisect_env.trials.records import NONE

    start_log("amplify", shown)
    stopped = stop_on_signals()
    loaded = load_matrix(matrix)
    heard = logged(warn if shown.as_json else tell)
    place, provider = where.open(loaded)
    with Store.open(db) as store, closing(place):
        as_of = study_date(loaded, store, provider.as_of)
        grid = expand(loaded, provider.catalogue, as_of)
        corners = ends(grid)
        if corners is None and (bad is None or good is None):
            raise UsageError(
                "the directions of the axes do not say which ends are good and bad",
                remedy="state `good` and `bad` in the matrix, or give --good and --bad",
            )
        texts = {"good": good, "bad": bad}
        if corners is not None:
            for end, index in zip(("good", "bad"), corners, strict=True):
                texts[end] = texts[end] or _text(grid, index)
        found_ends = {
            end: look_up(loaded, text, store=store, provider=provider, notify=heard, as_of=as_of)
            for end, text in texts.items()
        }
        bad_end, good_end = (found_ends[end].single for end in ("bad", "good"))
        study = found_ends["bad"].study
        target, _ = known_target(loaded, store, None if study is None else study.id)

        def show(text: str) -> None:
            heard(events.Said(text))

        show(f"bad end: {bad_end.combination}; good end: {good_end.combination}")
        show(where.starting)
        amplifier = Amplifier(loaded, place.executor(), show, stopped.is_set, target)
        show(MAKING)
        found = amplifier.run((bad_end.combination, bad_end.lock), (good_end.combination, good_end.lock))
    _print(found, as_json=shown.as_json)
    raise typer.Exit(int(ExitCode.VERDICT if found.perturbation != NONE else ExitCode.NO_VERDICT))


def _text(grid: Grid, index: tuple[int, ...]) -> str:
    return ",".join(f"{axis}={value}" for axis, value in grid.combination(index).items)


def _print(found: Amplified, *, as_json: bool) -> None:
    from bisect_env.report.sentence import percent

    document: dict[str, Any] = found.as_json()
    if as_json:
        say(json.dumps(document))
        return
    rows = [("as it is", document["base"]), *((one["name"], one) for one in document["tried"])]
    width = max(len(name) for name, _ in rows)
    for name, arm in rows:
        each = f"{arm['seconds'] / arm['trials']:8.2f} s" if arm["trials"] else ""
        say(f"{name:<{width}}  {arm['hits']:>3} of {arm['trials']:>3}  {each}".rstrip())
    best = found.perturbation
    if found.arm is None:
        say(f"nothing to go on with: {found.reason}")
        return
    say(f"best: {best.name} ({found.reason})")
    say(f"saves about {percent(1.0 - found.base.speed / found.arm.speed)} of the time that trials take")
    say("with `search: {amplify: true}` in the matrix, `bisect-env run` looks for it and runs its trials so")
