"""`bisect-env explain`: find the package change, or the commit, that causes a failure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import typer

from bisect_env.answers.explanation import Explanation
from bisect_env.answers.verdict_document import AnswerPart, VerdictDocument
from bisect_env.cli.asking import Flags, checked, commit_range
from bisect_env.cli.asking import save as save_question
from bisect_env.cli.commands import with_groups
from bisect_env.cli.conduct import conduct, reporting
from bisect_env.cli.options import (
    QUESTION,
    ExecutionOptions,
    SaveOption,
    ShownOptions,
    TargetArgument,
)
from bisect_env.cli.output import emit, say
from bisect_env.cli.report_command import exit_code, print_answer
from bisect_env.cli.target import find_target
from bisect_env.cli.views import View, choose
from bisect_env.cli.work import opened
from bisect_env.engine import events
from bisect_env.engine.explain import CulpritStudy
from bisect_env.engine.narrow import Releases, commits_data, releases_of, tag_of
from bisect_env.environments.repository import Repository
from bisect_env.environments.settings import default_cache_dir
from bisect_env.errors import EndsNotAsStatedError, ExitCode, StudyInterruptedError, UsageError
from bisect_env.matrix.load import Matrix, repository_at
from bisect_env.matrix.schema import CommitAxis
from bisect_env.report import words
from bisect_env.report.build import load_report
from bisect_env.report.model import Report
from bisect_env.storage.entries import COMMIT, Study
from bisect_env.storage.store import Store
from bisect_env.storage.weighing import weighed_study


@with_groups(panel=QUESTION)
def explain(
    words: TargetArgument = None,
    *,
    flags: Flags,
    save: SaveOption = None,
    where: ExecutionOptions,
    shown: ShownOptions,
) -> None:
    """Find the smallest set of package changes that causes the failure; with `--git`, the commit.

    Environments between last good and first bad (or `--good` and `--bad`) are solved, built and tried. With
    `--git`, both releases are looked up among the tags, built from their commits and tried; then the commits
    between them are bisected. Ends with 0 if the answer reaches the confidence, else with 1. The same command
    after an interruption goes on where it stopped.
    """
    asked = replace(flags, git="", from_="", to="", into_merges=False, subdirectory="")
    if not flags.git and flags != asked:
        raise UsageError(
            "--from, --to, --into-merges and --subdirectory belong to `--git`", remedy="add `--git`"
        )
    if save is not None and not flags.git:
        raise UsageError(
            "--save writes the question about commits, which `--git` asks",
            remedy="add `--git`, or write the question of a study with `bisect-env plan STUDY --save FILE`",
        )
    view = choose(shown, plain=True)
    with reporting("explain", shown, view):
        target = find_target(words or (), asked, db=where.db, without=("good", "bad"), answered=True)
        study = target.study
        assert study is not None
        ends = target.stated_ends(flags)
        if flags.git:
            if ends:
                raise UsageError(
                    "--good and --bad name combinations, and `--git` asks about commits",
                    remedy="name the commits with `--from` and `--to`",
                )
            _commit(target.matrix, study, commit_range(flags, flags.git, ""), save, where, view, shown)
        found = find_culprits(target.matrix, study.id, where, view, **ends)
    if shown.as_json:
        emit({"event": "explained", "schema": 1, **found.model_dump(mode="json")})
    else:
        say(text_of(found))
    raise typer.Exit(int(ExitCode.VERDICT if found.is_sure else ExitCode.NO_VERDICT))


# --------------------------------------------------------------------------------------------------
# Finding the changed packages that cause the failure.


def find_culprits(
    matrix: Matrix,
    study_id: str,
    where: ExecutionOptions,
    view: View,
    *,
    good: str | None = None,
    bad: str | None = None,
) -> Explanation:
    """Find the smallest set of package changes between two combinations that causes the failure.

    Args:
        matrix: Matrix of the study.
        study_id: Id of the answered study.
        where: Options for the place of trials.
        view: Shows what happens.
        good: Combination that passes; the last good one if None.
        bad: Combination that fails; the first bad one if None.

    Raises:
        StudyInterruptedError: The user stopped the search before the answer was sure.
    """
    with opened(matrix, where, view) as session:
        culprit = CulpritStudy(
            matrix,
            session.store.study(study_id),
            session,
            good=good,
            bad=bad,
            confidence=matrix.file.search.confidence,
        )
        explanation = culprit.run()
    if session.stopped() and not explanation.is_sure:
        raise StudyInterruptedError(
            "stopped; every trial that ended is stored", remedy="the same command goes on from here"
        )
    return explanation


def text_of(found: Explanation) -> str:
    """Return an explanation as text: the sentence, the changed packages, and the environments tried."""
    lines = [found.sentence, ""]
    marked = set(found.culprits)
    for position, change in enumerate(found.changes):
        lines.append(f"{'→' if position in marked else ' '} {change}{'  (axis)' if change.of_axis else ''}")
    lines += ["", "tried, with what was as in the bad environment:"]
    lines += [f"  {bad:>10} bad   {moved}" for moved, bad, _ in words.between(found)]
    if found.unsolvable:
        lines.append(f"  {found.unsolvable} more {'has' if found.unsolvable == 1 else 'have'} no environment")
    return "\n".join(lines)


# --------------------------------------------------------------------------------------------------
# From the first bad release to the first bad commit.


def _commit(
    matrix: Matrix,
    study: Study,
    wanted: CommitAxis,
    save: Path | None,
    where: ExecutionOptions,
    view: View,
    shown: ShownOptions,
) -> NoReturn:
    if where.offline is not None:
        raise UsageError("--offline: commits are fetched and built", remedy="leave it out")
    with Store.open(where.db, read_only=True) as store:
        releases = releases_of(matrix, weighed_study(store, study).verdict or VerdictDocument())
    commits = _between(releases, wanted, where.cache)
    said = f"{releases.package} {releases.good} is {commits.from_}, {releases.bad} is {commits.to}"
    view(events.Said(said))
    loaded = checked(commits_data(matrix, releases, commits), matrix.files)
    if save is not None:
        loaded = save_question(loaded, save)
    try:
        report = conduct(loaded, where, view)
    except EndsNotAsStatedError as error:
        raise EndsNotAsStatedError(
            f"what is built from {commits.from_} and {commits.to} does not behave as the releases "
            f"{releases.good} and {releases.bad} do: {error.what.partition(': ')[2]}",
            tried=error.tried,
            remedy="a wheel and a source build can differ (compilers, options, bundled libraries); if these "
            "are the wrong commits, name others with `--from` and `--to`",
        ) from None
    whole = report
    if report.commit is not None:
        fields = {"study": report.study.id, "sentence": report.sentence}
        whole = with_chapter(study.id, COMMIT, report.commit.model_copy(update=fields), where.db)
    print_answer(whole, shown)
    raise typer.Exit(exit_code(report))


def with_chapter(study_id: str, kind: str, chapter: AnswerPart, db: str | None) -> Report:
    """Store a further answer about a study, such as its first bad commit, and return the new report.

    Args:
        study_id: Id of the study.
        kind: Kind of the decision that holds the answer.
        chapter: The answer.
        db: Results database.
    """
    with Store.open(db) as store:
        store.record_if_new(study_id, kind, chapter.model_dump(mode="json"))
        return load_report(store, study_id)


def _between(releases: Releases, wanted: CommitAxis, cache: Path | None) -> CommitAxis:
    """Return the range of commits between the last good and the first bad release.

    If the user did not name the commit of a release, the tag of the release is used.

    Raises:
        UsageError: A release has no tag.
    """
    place = repository_at(wanted.git, Path.cwd())
    repository = Repository(place, cache.absolute() if cache else default_cache_dir())
    ends = [wanted.from_, wanted.to]
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
    known = {"git": place, "package": releases.package, "from_": ends[0], "to": ends[1]}
    return wanted.model_copy(update=known)
