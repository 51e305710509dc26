"""`bisect-env explain`, `narrow` and `amplify`: from the answer of a study to what is behind it."""

from __future__ import annotations

import json
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from bisect_env.answers.explanation import Explanation
from bisect_env.answers.phrases import percent
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.cli import views
from bisect_env.cli.asking import (
    MergesOption,
    SaveOption,
    SubdirectoryOption,
    kept,
    own_words,
)
from bisect_env.cli.grouping import with_groups
from bisect_env.cli.options import DatabaseOption, ExecutionOptions, MatrixArgument, StudyArgument
from bisect_env.cli.output import say, tell, warn
from bisect_env.cli.places import open_place
from bisect_env.cli.run_command import answer
from bisect_env.cli.signals import stop_on_signals
from bisect_env.cli.views import ShownOptions, log_event, logged, start_log
from bisect_env.engine import events
from bisect_env.engine.amplify import Amplified, Amplifier
from bisect_env.engine.explain import CulpritStudy
from bisect_env.engine.narrow import Releases, commits_text, is_of_commits, releases_of, tag_of
from bisect_env.engine.opening import expand_as_known
from bisect_env.engine.session import Session
from bisect_env.engine.single import MAKING, look_up
from bisect_env.engine.specs import target_of
from bisect_env.engine.stored import matrix_of
from bisect_env.environments.repository import Repository
from bisect_env.environments.settings import default_cache_dir
from bisect_env.errors import EndsNotAsStatedError, ExitCode, StudyInterruptedError, UsageError
from bisect_env.matrix.ask import CommitRange
from bisect_env.matrix.grid import Grid
from bisect_env.matrix.load import Matrix, load_matrix, repository_at
from bisect_env.report.build import report_document
from bisect_env.report.text import print_report
from bisect_env.storage.entries import COMMIT, Study
from bisect_env.storage.store import Store
from bisect_env.trials.records import NONE

# --------------------------------------------------------------------------------------------------
# `bisect-env explain`: which of the packages that changed carries the failure.

_MAX_TRIALS = 2000


@with_groups()
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
    say(
        json.dumps({"schema": 1, **explanation.model_dump(mode="json")}, indent=2)
        if shown.as_json
        else text_of(explanation)
    )
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
    place, provider = open_place(where, loaded)

    culprit = CulpritStudy(
        loaded,
        study,
        Session(store, provider, place.executor, logged(warn if quiet else tell), stopped.is_set),
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
    """Return the sentence, and what was tried. Pure."""
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


# --------------------------------------------------------------------------------------------------
# `bisect-env narrow`: from the first bad release to the first bad commit.


@with_groups(without=("offline",))
def narrow(
    study: StudyArgument = None,
    *,
    git: Annotated[
        str, typer.Option("--git", help="Address of the package's repository, or path of a clone.")
    ] = "",
    first: Annotated[
        str, typer.Option("--from", help="Commit of the last good release; default: its tag.")
    ] = "",
    last: Annotated[
        str, typer.Option("--to", help="Commit of the first bad release; default: its tag.")
    ] = "",
    merges: MergesOption = False,
    subdirectory: SubdirectoryOption = "",
    save: SaveOption = None,
    db: DatabaseOption = None,
    where: ExecutionOptions,
    shown: ShownOptions,
) -> None:
    """Find the commit that broke what a study has found the first bad release of.

    Last good and first bad release are looked up among the tags, built from their commits and tried: where
    these do not behave as the releases did, nothing can be found between them. Then the commits are bisected,
    and the study of releases gets a chapter in its report. Ends with 0 if the answer reaches the confidence.
    The same command goes on after an interruption.
    """
    if not git:
        raise UsageError("the repository is missing", remedy="name it: bisect-env narrow --git URL-or-path")
    start_log("narrow", shown)
    stopped = stop_on_signals()
    silent = shown.quiet or shown.as_json
    with Store.open(db, read_only=True) as store:
        known = store.study(study)
        if study is None:
            # The newest may be the one that an earlier call of this command began.
            asked = (one for one in store.studies() if not is_of_commits(one))
            known = next(asked, known)
        matrix = matrix_of(known)
        releases = releases_of(matrix, known.verdict or VerdictDocument())
    commits = _between(releases, git, first, last, where.cache)
    commits = replace(commits, every=merges, subdirectory=subdirectory)
    if not silent:
        say(
            f"{releases.package} {releases.good} is {commits.first}, {releases.bad} is {commits.last}",
            sys.stderr,
        )
    text = commits_text(matrix, releases, commits, command_line=own_words())
    files = {file.name: matrix.path.absolute().parent / file.name for file in matrix.files}
    loaded = load_matrix(kept(text, files, save, quiet=silent))
    view = views.choose(as_json=False, quiet=silent, plain=shown.verbose)

    def notify(event: events.Event) -> None:
        log_event(event)
        view(event)

    try:
        conclusion = answer(
            loaded,
            where=where,
            db=db,
            view=view,
            notify=notify,
            stopped=stopped,
            lockfiles=loaded.path.absolute().parent / "lockfiles",
        )
    except EndsNotAsStatedError as error:
        raise EndsNotAsStatedError(
            f"what is built from {commits.first} and {commits.last} does not behave as the releases "
            f"{releases.good} and {releases.bad} do: {error.what.partition(': ')[2]}",
            tried=error.tried,
            remedy="a wheel and a source build can differ (compilers, options, bundled libraries); if these "
            "are the wrong commits, name others with `--from` and `--to`",
        ) from None
    found: dict[str, Any] | None = conclusion.report.get("commit")
    with Store.open(db) as store:
        if found is not None:
            own = store.find_study(loaded.name, loaded.digest)
            assert own is not None
            sentence = str(conclusion.report["verdict"]["sentence"])
            payload = {**found, "study": own.id, "sentence": sentence}
            before = [one.payload for one in store.decisions(known.id) if one.kind == COMMIT]
            if not before or before[-1] != payload:
                store.record_decision(known.id, COMMIT, payload)
        report = report_document(store, known.id) if found is not None else conclusion.report
    if shown.as_json:
        say(json.dumps(report))
    else:
        print_report(report)
    raise typer.Exit(int(conclusion.exit_code))


def _between(releases: Releases, git: str, first: str, last: str, cache: Path | None) -> CommitRange:
    """Return the commits of two releases, by their tags where none are named.

    Raises:
        UsageError: A release has no tag.
    """
    place = repository_at(git, Path.cwd())
    repository = Repository(place, cache.absolute() if cache else default_cache_dir())
    ends = [first, last]
    if not all(ends):
        repository.update()
        tags = repository.tags()
        for i, (flag, version) in enumerate((("--from", releases.good), ("--to", releases.bad))):
            ends[i] = ends[i] or tag_of(version, releases.package, tags) or ""
            if not ends[i]:
                shown = ", ".join(tags[-5:]) or "none"
                raise UsageError(
                    f"{repository.shown} has no tag for {releases.package} {version} (its tags end with "
                    f"{shown})",
                    remedy=f"name its commit: `{flag} COMMIT`",
                )
    repository.resolve(*ends)
    return CommitRange(place, releases.package, ends[0], ends[1])


# --------------------------------------------------------------------------------------------------
# `bisect-env amplify`: find what makes a failure more frequent.


@with_groups(without=("quiet",))
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
    collector, in one to three hundred trials, which count nowhere. Ends with 0 if
    something was found, else with 1. `search: {amplify: true}` in the matrix does the same before a study,
    and runs its trials so.
    """
    start_log("amplify", shown)
    stopped = stop_on_signals()
    loaded = load_matrix(matrix)
    heard = logged(warn if shown.as_json else tell)
    place, provider = open_place(where, loaded)
    with Store.open(db) as store, closing(place):
        expansion = expand_as_known(loaded, store, provider)
        known_ends = expansion.grid.ends
        if known_ends is None and (bad is None or good is None):
            raise UsageError(
                "the directions of the axes do not say which ends are good and bad",
                remedy="state `good` and `bad` in the matrix, or give --good and --bad",
            )
        texts = {"good": good, "bad": bad}
        if known_ends is not None:
            for end, index in zip(("good", "bad"), known_ends, strict=True):
                texts[end] = texts[end] or _text(expansion.grid, index)
        found_ends = {
            end: look_up(loaded, text, store=store, provider=provider, notify=heard, as_of=expansion.as_of)
            for end, text in texts.items()
        }
        bad_end, good_end = found_ends["bad"], found_ends["good"]
        study = bad_end.expansion.study
        target = target_of(loaded) if study is None else store.target(study.id)
        session = Session(store, provider, place.executor, heard, stopped.is_set)
        session.say(f"bad end: {bad_end.combination}; good end: {good_end.combination}")
        session.say(where.starting)
        session.say(MAKING)
        found = Amplifier(loaded, session, study, target).run(bad_end, good_end)
    _print(found, as_json=shown.as_json)
    raise typer.Exit(int(ExitCode.VERDICT if found.perturbation != NONE else ExitCode.NO_VERDICT))


def _text(grid: Grid, index: tuple[int, ...]) -> str:
    return ",".join(f"{axis}={value}" for axis, value in grid.combination(index).items)


def _print(found: Amplified, *, as_json: bool) -> None:

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
