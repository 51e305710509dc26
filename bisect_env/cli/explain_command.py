"""`bisect-env explain`: which of the packages that changed carries the failure."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bisect_env.cli.execution_options import ExecutionOptions
from bisect_env.cli.options import (
    DatabaseOption,
    StudyArgument,
    with_groups,
)
from bisect_env.cli.output import say, warn
from bisect_env.cli.signals import stop_on_signals
from bisect_env.cli.views import ShownOptions, log_event, start_log

if TYPE_CHECKING:
    import threading

    from bisect_env.engine.explain import Explanation
    from bisect_env.matrix.load import Matrix
    from bisect_env.storage.entries import Study
    from bisect_env.storage.store import Store

_MAX_TRIALS = 2000


@with_groups(without=("cluster",))
def explain(
    study: StudyArgument = None,
    *,
    matrix: Annotated[
        Path | None, typer.Option("--matrix", help="Its matrix file, if it lies elsewhere by now.")
    ] = None,
    good: Annotated[
        str | None, typer.Option("--good", help="A combination that passes; default: the last good one.")
    ] = None,
    bad: Annotated[
        str | None, typer.Option("--bad", help="One that fails; default: the first bad one.")
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(help="Of the answer; default: the matrix's.", min=0.5, max=0.9999)
    ] = None,
    max_trials: Annotated[int, typer.Option(min=1, help="Give up after so many.")] = _MAX_TRIALS,
    db: DatabaseOption = None,
    where: ExecutionOptions,
    shown: ShownOptions,
) -> None:
    """Find the smallest set of package changes that carries the failure.

    Environments between last good and first bad are solved, built and tried. Ends with 0 if the answer
    reaches the confidence, else with 1. The same command after an interruption goes on where it stopped.
    """
    from bisect_env.engine.stored import matrix_of
    from bisect_env.errors import ExitCode
    from bisect_env.storage.store import Store

    start_log("explain", shown)
    stopped = stop_on_signals()
    with Store.open(db, read_only=True) as store:
        # Opened for writing, a mistyped database would come into being.
        chosen = store.study(study).id
    with Store.open(db) as store:
        found = store.study(chosen)
        explanation = find_culprits(
            matrix_of(found, matrix),
            found,
            store,
            where,
            stopped=stopped,
            quiet=shown.quiet,
            good=good,
            bad=bad,
            confidence=confidence,
            max_trials=max_trials,
        )
    say(json.dumps(explanation.document(), indent=2) if shown.as_json else text_of(explanation))
    raise typer.Exit(int(ExitCode.VERDICT if explanation.is_sure else ExitCode.NO_VERDICT))


def find_culprits(
    loaded: Matrix,
    study: Study,
    store: Store,
    where: ExecutionOptions,
    *,
    stopped: threading.Event,
    quiet: bool,
    good: str | None = None,
    bad: str | None = None,
    confidence: float | None = None,
    max_trials: int = _MAX_TRIALS,
) -> Explanation:
    """Search among the packages between two combinations, with the place for trials opened and closed.

    Args:
        loaded: Matrix of the study.
        study: Which one.
        store: Open for writing.
        where: Trials run.
        stopped: Set when the user wants to stop.
        quiet: Tell warnings alone.
        good: Combination that passes; the last good one if None.
        bad: Combination that fails; the first bad one if None.
        confidence: Of the answer; the matrix's if None.
        max_trials: Where to give up.

    Raises:
        StudyInterruptedError: The user stopped it before it was sure.
    """
    from bisect_env.engine import events
    from bisect_env.engine.explain import CulpritStudy
    from bisect_env.engine.single import SingleTrials
    from bisect_env.errors import StudyInterruptedError

    place, provider = where.open(loaded)

    def heard(event: events.Event) -> None:
        culprit.heard(event)
        log_event(event)
        warn(event)

    def make_trials(study_id: str) -> SingleTrials:
        return SingleTrials(loaded, store, study_id, place.executor(), notify=heard, stopped=stopped.is_set)

    def tell(text: str) -> None:
        if not quiet or text.startswith("warning:"):
            say(text, sys.stderr)

    culprit = CulpritStudy(
        loaded,
        study,
        store,
        provider,
        make_trials,
        tell=tell,
        stopped=stopped.is_set,
        good=good,
        bad=bad,
        confidence=confidence or loaded.file.search.confidence,
        max_trials=max_trials,
    )
    with closing(place):
        explanation = culprit.run()
    if stopped.is_set() and not explanation.is_sure:
        raise StudyInterruptedError(
            "interrupted; every trial that ended is stored", remedy="the same command goes on from here"
        )
    return explanation


def text_of(found: Explanation) -> str:
    """The sentence, and what was tried. Pure."""
    lines = [found.sentence, ""]
    marked = set(found.culprits)
    for position, change in enumerate(found.changes):
        lines.append(f"{'→' if position in marked else ' '} {change}{'  (axis)' if change.of_axis else ''}")
    lines += ["", "tried, with what was as in the bad environment:"]
    for intermediate in sorted(
        found.intermediates, key=lambda intermediate: (len(intermediate.moved), intermediate.moved)
    ):
        names = ", ".join(found.changes[i].name for i in intermediate.moved)
        everything = len(intermediate.moved) == len(found.changes)
        shown = "everything" if everything else names or "nothing"
        lines.append(f"  {intermediate.counts:>10} bad   {shown}")
    if found.unsolvable:
        lines.append(f"  {found.unsolvable} more {'has' if found.unsolvable == 1 else 'have'} no environment")
    return "\n".join(lines)
