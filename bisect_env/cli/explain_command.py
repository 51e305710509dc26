"""`bisect-env explain`: from the answer of a study to the package, or the commit, that is behind it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bisect_env.answers.explanation import Explanation
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.cli.asking import COMMITS, Flags, checked, commit_range
from bisect_env.cli.asking import save as save_question
from bisect_env.cli.commands import with_groups
from bisect_env.cli.conduct import Reporter, conduct, reporting
from bisect_env.cli.options import (
    STUDY,
    ExecutionOptions,
    SaveOption,
    ShownOptions,
    TargetArgument,
    opt,
)
from bisect_env.cli.output import emit, say
from bisect_env.cli.references import has_database
from bisect_env.cli.report_command import show_report
from bisect_env.cli.target import FoundTarget, find_target
from bisect_env.cli.views import lines
from bisect_env.cli.work import opened
from bisect_env.engine.explain import CulpritStudy
from bisect_env.engine.narrow import Releases, commits_data, is_of_commits, releases_of, tag_of
from bisect_env.engine.stored import matrix_of
from bisect_env.environments.repository import Repository
from bisect_env.environments.settings import default_cache_dir
from bisect_env.errors import EndsNotAsStatedError, ExitCode, StudyInterruptedError, UsageError
from bisect_env.matrix.load import Matrix, repository_at
from bisect_env.matrix.schema import CommitAxis
from bisect_env.report import words
from bisect_env.report.build import report_document
from bisect_env.storage.entries import COMMIT, Study
from bisect_env.storage.store import Store

MAX_TRIALS = 2000


@with_groups(without=("git", "first", "last", "merges", "subdirectory"))
def explain(
    words: TargetArgument = None,
    *,
    flags: Flags,
    git: Annotated[
        str, opt("--git", "Find the commit instead: address of the package's repository, or path of a clone.")
    ] = "",
    first: Annotated[str, opt("--from", "Commit of the last good release; default: its tag.", COMMITS)] = "",
    last: Annotated[str, opt("--to", "Commit of the first bad release; default: its tag.", COMMITS)] = "",
    merges: Annotated[
        bool, opt("--into-merges", "If a merge brought the failure in, search what it merged.", COMMITS)
    ] = False,
    subdirectory: Annotated[
        str, opt("--subdirectory", "Directory of the package in the repository.", COMMITS)
    ] = "",
    max_trials: Annotated[
        int, opt("--max-trials", "Give up after so many trials.", STUDY, min=1)
    ] = MAX_TRIALS,
    save: SaveOption = None,
    where: ExecutionOptions,
    shown: ShownOptions,
) -> None:
    """Find the smallest set of package changes that carries the failure; with `--git`, the commit.

    Environments between last good and first bad (or `--good` and `--bad`) are solved, built and tried. With
    `--git`, both releases are looked up among the tags, built from their commits and tried; then the commits
    between them are bisected. Ends with 0 if the answer reaches the confidence, else with 1. The same command
    after an interruption goes on where it stopped.
    """
    if not git and (first or last or merges or subdirectory):
        raise UsageError(
            "--from, --to, --into-merges and --subdirectory belong to `--git`", remedy="add `--git`"
        )
    with reporting("explain", shown) as reporter:
        target = find_target(words or (), flags, db=where.db, without=("good", "bad"))
        study = _answered(target, where.db, named=bool(words) or flags.asks)
        if not (flags.good and flags.bad):
            _refuse_unanswered(study)
        if git:
            commits = commit_range(git, "", first, last, merges=merges, subdirectory=subdirectory)
            code = _commit(target.matrix, study, commits, reporter, save, where, shown)
        else:
            code = _culprits(target, study, flags, max_trials, where, shown)
    raise typer.Exit(int(code))


def _answered(target: FoundTarget, db: str | None, *, named: bool) -> Study:
    """Return the study of a target; of the latest ones the latest that does not ask about commits itself.

    Raises:
        UsageError: There is none.
    """
    if target.study is not None and named:
        return target.study
    found = None
    if has_database(db):
        with Store.open(db, read_only=True) as store:
            if target.study is not None:
                # The newest may be the one that an earlier call of this command began.
                return next((one for one in store.studies() if _may_be_meant(one)), target.study)
            found = store.find_study(target.matrix.name, target.matrix.digest)
    if found is None:
        raise UsageError(
            f"there is no answer to explain yet: {target.matrix.shown} was not run",
            remedy="give the same words to `bisect-env run` first",
        )
    return found


def _refuse_unanswered(study: Study) -> None:
    """Refuse a study without an answer to explain.

    Raises:
        UsageError: It has none.
    """
    verdict = study.verdict
    if verdict is None or not verdict.first_bad or not verdict.last_good:
        raise UsageError(
            f"the study {study.name} has no first bad combination that could be explained",
            remedy=f"`bisect-env run {study.id[:8]}` goes on with it; or give `--good` and `--bad`",
        )


def _may_be_meant(study: Study) -> bool:
    return not is_of_commits(study) and "explains" not in study.definition.settings


# --------------------------------------------------------------------------------------------------
# Which of the packages that changed carries the failure.


def _culprits(
    target: FoundTarget,
    study: Study,
    flags: Flags,
    max_trials: int,
    where: ExecutionOptions,
    shown: ShownOptions,
) -> ExitCode:
    explanation = find_culprits(
        target.matrix,
        study,
        where,
        shown,
        # In a question in words they state the ends of the matrix itself.
        good=None if target.words else ",".join(flags.good or ()) or None,
        bad=None if target.words else ",".join(flags.bad or ()) or None,
        max_trials=max_trials,
    )
    if shown.as_json:
        emit({"event": "explained", "schema": 1, **explanation.model_dump(mode="json")})
    else:
        say(text_of(explanation))
    return ExitCode.VERDICT if explanation.is_sure else ExitCode.NO_VERDICT


def find_culprits(
    matrix: Matrix,
    study: Study,
    where: ExecutionOptions,
    shown: ShownOptions,
    *,
    good: str | None = None,
    bad: str | None = None,
    max_trials: int = MAX_TRIALS,
) -> Explanation:
    """Search among the packages between two combinations.

    Args:
        matrix: Matrix of the study.
        study: The answered study.
        where: Options that say where trials run.
        shown: Options of what is shown.
        good: Combination that passes; the last good one if None.
        bad: Combination that fails; the first bad one if None.
        max_trials: Maximum number of trials.

    Raises:
        StudyInterruptedError: The user stopped it before it was sure.
    """
    with opened(matrix, where, lines(shown)) as work:
        culprit = CulpritStudy(
            matrix,
            study,
            work.session,
            good=good,
            bad=bad,
            confidence=matrix.file.search.confidence,
            max_trials=max_trials,
        )
        explanation = culprit.run()
    if work.stopped and not explanation.is_sure:
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
    reporter: Reporter,
    save: Path | None,
    where: ExecutionOptions,
    shown: ShownOptions,
) -> ExitCode:
    if where.offline is not None:
        raise UsageError("--offline: commits are fetched and built", remedy="leave it out")
    with Store.open(where.db, read_only=True) as store:
        matrix = matrix_of(store, study)
    releases = releases_of(matrix, study.verdict or VerdictDocument())
    commits = _between(releases, wanted, where.cache)
    if not (shown.quiet or shown.as_json):
        text = f"{releases.package} {releases.good} is {commits.from_}, {releases.bad} is {commits.to}"
        say(text, sys.stderr)
    loaded = checked(commits_data(matrix, releases, commits), matrix.files)
    if save is not None:
        loaded = save_question(loaded, save)
    try:
        conclusion = conduct(loaded, where, reporter)
    except EndsNotAsStatedError as error:
        raise EndsNotAsStatedError(
            f"what is built from {commits.from_} and {commits.to} does not behave as the releases "
            f"{releases.good} and {releases.bad} do: {error.what.partition(': ')[2]}",
            tried=error.tried,
            remedy="a wheel and a source build can differ (compilers, options, bundled libraries); if these "
            "are the wrong commits, name others with `--from` and `--to`",
        ) from None
    report = _with_chapter(study, loaded, conclusion.report, where.db)
    if shown.as_json:
        emit({"event": "verdict", **report})
    else:
        show_report(report)
    return conclusion.exit_code


def _with_chapter(study: Study, commits: Matrix, report: dict[str, Any], db: str | None) -> dict[str, Any]:
    """Give the study of releases a chapter on the commit, if there is one, and return its report."""
    found = report.get("commit")
    if found is None:
        return report
    with Store.open(db) as store:
        own = store.find_study(commits.name, commits.digest)
        assert own is not None
        payload = {**found, "study": own.id, "sentence": str(report["verdict"]["sentence"])}
        before = [one.payload for one in store.decisions(study.id) if one.kind == COMMIT]
        if not before or before[-1] != payload:
            store.record_decision(study.id, COMMIT, payload)
        return report_document(store, study.id)


def _between(releases: Releases, wanted: CommitAxis, cache: Path | None) -> CommitAxis:
    """Return the commits of two releases, by their tags where none are named.

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
