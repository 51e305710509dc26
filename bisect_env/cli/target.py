"""Finds what a command is about: a question, or a study in the results database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bisect_env.answers.untrusted import command_line
from bisect_env.cli.asking import (
    Flags,
    option_name,
    refuse_beside,
    save,
    shown_question,
    with_search,
)
from bisect_env.cli.options import ShownOptions
from bisect_env.cli.output import tell
from bisect_env.cli.question import FoundTarget, asked_target, refuse_broken_scripts
from bisect_env.cli.spelling import SCRIPTS, is_file, names_matrix
from bisect_env.engine.narrow import is_of_commits
from bisect_env.engine.stored import matrix_of, refuse_strangers, was_asked_here
from bisect_env.errors import UsageError
from bisect_env.storage.backend import has_database
from bisect_env.storage.entries import COMMIT, TRACED, Study
from bisect_env.storage.store import Store


def find_target(
    words: Sequence[str],
    flags: Flags,
    *,
    db: str | None,
    runs: bool = True,
    to: Path | None = None,
    without: Sequence[str] = (),
    answered: bool = False,
) -> FoundTarget:
    """Find what a command line names: a matrix file, a stored study, a report, or a question in words.

    Args:
        words: Words of the command line: none, one that names a matrix, study or report, or a question.
        flags: The options of a question.
        db: Results database that may have the study.
        runs: Whether the command runs what the question says; then studies that others asked are refused.
        to: Matrix file to write the question to; the target is then read from this file.
        without: Fields of the flags that the command uses for something else.
        answered: Whether a study must have asked the question before; it is then the study of the target.
            Without words, studies of commits and those that `explain` began are passed over.

    Raises:
        UsageError: There is no such target.
        MatrixError: The matrix file is invalid.
    """
    asked = asked_target(list(words), flags, without)
    target = asked or _stored(words[0] if words else None, db, passing_over=answered)
    if target.study is not None:
        refuse_beside(flags, f"the study {target.study.name}", without=without)
        if runs:
            refuse_strangers(target.study)
    target = replace(target, matrix=with_search(target.matrix, flags))
    if runs:
        refuse_broken_scripts(target.matrix)
    if answered and target.study is None:
        if not has_database(db):
            raise UsageError(
                f"there is no answer to explain yet: {target.shown} was not run",
                remedy="give the same words to `bisect-env run` first",
            )
        with Store.open(db, read_only=True) as store:
            try:
                target = replace(target, study=asked_study(target, store, same=True))
            except UsageError:
                # `--good` and `--bad` may also name two combinations of the question without them.
                if not target.words or not (flags.good or flags.bad):
                    raise
                plain = replace(flags, good=None, bad=None)
                target = find_target(words, plain, db=db, runs=runs, without=without, answered=True)
                return replace(target, words=False)
    return target if to is None else FoundTarget(save(target.matrix, to), words=target.words)


def find_study(words: Sequence[str] | None, flags: Flags, store: Store) -> Study:
    """Return the stored study that a command line names, in any of the ways that `find_target` takes.

    A question, a matrix file or a report names the newest study that asked the same question. A matrix file
    that was changed or removed since names the newest study of its path.

    Args:
        words: Words of the command line, as for `find_target`; none for the latest study.
        flags: The options of a question.
        store: Store with the studies.

    Raises:
        UsageError: There is no such study.
        MatrixError: The matrix file is invalid.
    """
    words = list(words or ())
    is_word = len(words) == 1 and not flags.asks
    is_script = is_word and words[0].endswith(SCRIPTS)
    is_missing = is_word and names_matrix(words[0]) and not is_file(words[0])
    asked = None if is_script or is_missing else asked_target(words, flags, ())
    if asked is not None:
        # Settings of the search are words of the question as well, but the study is the same with others.
        return asked_study(asked, store)
    try:
        study = _study(store, words[0] if words else None)
    except UsageError as error:
        if not is_script:
            raise
        studies = command_line("bisect-env", "report", "--list")
        raise UsageError(
            f"{words[0]} is a script: the package that was asked about is missing",
            tried=error.tried,
            remedy=f"name the package before it, or a study by its id or its name, which `{studies}` shows",
        ) from None
    if given := flags.given():
        raise UsageError(
            f"{option_name(given[0])} belongs to a question, and the study {study.name} was asked before",
            remedy="leave it out, or give the words of the question",
        )
    return study


def asked_study(target: FoundTarget, store: Store, *, same: bool = False) -> Study:
    """Return the newest study that asked the question of a target.

    Args:
        target: A matrix file, a report or a question in words.
        store: Store with the studies.
        same: Whether only a study with exactly this question counts. If False, a study of the same matrix
            file, before the file was changed, counts, too.

    Raises:
        UsageError: There is no such study.
    """
    matrix = target.matrix
    if (found := store.find_study(matrix.name, matrix.digest)) is not None:
        return found
    studies = store.studies()
    path = None if matrix.path is None else str(matrix.path)
    for one in studies if path is not None and not same else ():
        # Paths are stored as they were given, so another directory may have had another matrix there.
        if one.definition.matrix_path == path and one.name == matrix.name:
            tell(f"{path} was changed since; this is what it asked on {one.created_at:%Y-%m-%d}")
            return one
    near = [f"the study {one.id[:8]} ({one.name})" for one in studies if one.name == matrix.name][:1]
    again = command_line("bisect-env", "run", target.shown)
    raise UsageError(
        f"there is no study of {target.shown} in {store.shown}",
        tried=f"{near[0]} asked something else: another range, script, Python or setting" if near else None,
        remedy=f"begin it: {'give the same words to `bisect-env run`' if target.words else again}",
    )


_RECENT = 5
"""Number of earlier studies among which the one is looked for whose answer the latest study is part of."""


def _study(store: Store, reference: str | None) -> Study:
    """Return the study that a reference names, or the one that the user asked last.

    `between` and `explain --git` run further studies for the last part of their answer. The study that has
    the whole answer counts as asked last, although it began earlier.

    Raises:
        UsageError: There is no such study.
    """
    study = store.study(reference)
    if reference is not None:
        return study
    for one in store.studies()[: _RECENT + 1]:
        parts = (*store.payloads(one.id, TRACED), *store.payloads(one.id, COMMIT))
        if any(part.get("study") == study.id for part in parts):
            return one
    return study


def _stored(reference: str | None, db: str | None, *, passing_over: bool) -> FoundTarget:
    """Find a stored study, and return the study with its matrix as the target of a command.

    Raises:
        UsageError: There is no such study.
    """
    if not has_database(db):
        what = "nothing was asked" if reference is None else f"{reference!r} is no matrix file and no study"
        raise UsageError(
            f"{what}, and there is no results database yet",
            remedy='name a matrix file, or a range and a script: bisect-env run "orjson>=3.8" repro.py',
        )
    with Store.open(db, read_only=True) as store:
        try:
            study = _study(store, reference)
        except UsageError as error:
            asked = command_line("bisect-env", "run", reference or "PACKAGE", "repro.py")
            raise UsageError(
                error.what, tried=error.tried, remedy=f"{error.remedy}; a package needs its script: {asked}"
            ) from None
        if reference is None and passing_over and is_of_commits(study):
            own = (one for one in store.studies() if "explains" not in one.definition.settings)
            study = next((one for one in own if not is_of_commits(one)), study)
        return FoundTarget(matrix_of(store, study), study)


def announce(target: FoundTarget, shown: ShownOptions) -> None:
    """Print how a question on the command line was understood, so that the user can check it."""
    if target.words and not (shown.quiet or shown.as_json):
        is_known = target.matrix.path is not None or was_asked_here(target.matrix.digest)
        again = "" if is_known else " (`--save FILE` writes it to a file)"
        tell(f"asked as the study {target.matrix.name}{again}:\n{shown_question(target.matrix)}")
