"""`bisect-env narrow`: from the first bad release to the first bad commit."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bisect_env.cli.asking import (
    MergesOption,
    SaveOption,
    SubdirectoryOption,
    kept,
    own_words,
)
from bisect_env.cli.execution_options import ExecutionOptions
from bisect_env.cli.options import (
    DatabaseOption,
    StudyArgument,
    with_groups,
)
from bisect_env.cli.output import say
from bisect_env.cli.run_command import answer
from bisect_env.cli.signals import stop_on_signals
from bisect_env.cli.views import ShownOptions, log_event, start_log

if TYPE_CHECKING:
    from bisect_env.engine import events
    from bisect_env.engine.narrow import Releases
    from bisect_env.matrix.ask import CommitRange


@with_groups(
    without=(
        "offline",
        "cluster",
    )
)
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
    import json

    from bisect_env.cli import views
    from bisect_env.engine.narrow import commits_text, is_of_commits, releases_of
    from bisect_env.engine.stored import matrix_of
    from bisect_env.errors import EndsNotAsStatedError, UsageError
    from bisect_env.matrix.load import load_matrix
    from bisect_env.report.build import report_document
    from bisect_env.report.text import print_report
    from bisect_env.storage.entries import COMMIT
    from bisect_env.storage.store import Store

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
        releases = releases_of(matrix, known.verdict or {})
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
            careful=True,
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
    """The commits of two releases, by their tags where none are named.

    Raises:
        UsageError: A release has no tag.
    """
    from bisect_env.engine.narrow import tag_of
    from bisect_env.environments.repository import Repository
    from bisect_env.environments.settings import default_cache_dir
    from bisect_env.errors import UsageError
    from bisect_env.matrix.ask import CommitRange
    from bisect_env.matrix.load import repository_at

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
