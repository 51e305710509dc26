"""`bisect-env between`: which package change between two environments broke a command."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from bisect_env.answers.explanation import Explanation
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.cli.asking import SOURCES, TrialFlags, asked_command, checked
from bisect_env.cli.asking import save as save_question
from bisect_env.cli.commands import with_groups
from bisect_env.cli.conduct import Reporter, conduct, reporting
from bisect_env.cli.explain_command import find_culprits
from bisect_env.cli.options import ExecutionOptions, SaveOption, ShownOptions, opt
from bisect_env.cli.output import emit, tell
from bisect_env.cli.report_command import show_report
from bisect_env.cli.target import refuse_broken_scripts
from bisect_env.cli.work import open_provider
from bisect_env.engine.between import (
    Ends,
    answer,
    lock_ends,
    moving_packages,
    no_environment,
    other_archives,
    read_ends,
    record,
    stored_environment,
    surroundings,
    withdrawn,
)
from bisect_env.engine.locking import Locking
from bisect_env.engine.missing import MissingModules
from bisect_env.engine.opening import expand_as_known
from bisect_env.environments.foreign import ForeignEnvironment
from bisect_env.environments.lock import UnsolvableError
from bisect_env.errors import ExitCode, NoEnvironmentError, UsageError
from bisect_env.matrix.ask import BAD, ENVIRONMENT, GOOD, Pair, pair_data, releases_data
from bisect_env.matrix.files import StudyFile
from bisect_env.matrix.load import Matrix
from bisect_env.report.build import report_document
from bisect_env.storage.entries import Study
from bisect_env.storage.store import Store


@with_groups()
def between(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="GOOD BAD -- COMMAND",
            help="The environment that works, the one that fails (lock files, `pip freeze`, directories, "
            "STUDY:COMBINATION), and what fails in it.",
            show_default=False,
        ),
    ] = None,
    *,
    python: Annotated[str, opt("--python", "Python of both, if the files state none.")] = "",
    no_versions: Annotated[
        bool, opt("--no-versions", "Stop at the package; do not bisect its releases.")
    ] = False,
    no_hashes: Annotated[
        bool, opt("--no-hashes", "Go on where an archive is not the one of a lock.", SOURCES)
    ] = False,
    allow_source: Annotated[
        bool, opt("--allow-source", "Build packages that have no wheel.", SOURCES)
    ] = False,
    flags: TrialFlags,
    save: SaveOption = None,
    where: ExecutionOptions,
    shown: ShownOptions,
) -> None:
    """Find which package change between two environments broke a command, and its first bad release.

    `bisect-env between green.lock red.lock -- pytest -x tests/test_io.py` makes both environments again,
    shows that one fails, finds the smallest set of changes that carries the failure, and bisects the releases
    of the culprit. Ends with 0 if the answer reaches the confidence. The same command goes on after an
    interruption.
    """
    if words is None or len(words) < 2:
        raise UsageError(
            "two environments are needed: one that works, and one that fails",
            remedy="bisect-env between green.lock red.lock -- COMMAND",
        )

    def stored(text: str) -> ForeignEnvironment | None:
        if ":" not in text or Path(text).exists():
            return None
        with Store.open(where.db, read_only=True) as store:
            return stored_environment(store, text)

    with reporting("between", shown, plain=True) as reporter:
        question, files = asked_command(flags, words[2:])
        ends = read_ends(words[0], words[1], python=python, stored=stored)
        if not (shown.quiet or shown.as_json):
            for line in (ends.good.summary(), ends.bad.summary(), *(f"note: {note}" for note in ends.notes)):
                tell(line)
        good, bad = ends.wholes
        channels = question.channels or ends.channels
        pair = Pair(good, bad, question, channels, allow_source=allow_source)
        comparison = _Comparison(ends, pair, files, where, reporter, shown)
        report, is_sure = comparison.run(save, versions=not no_versions, hashes=not no_hashes)
    if shown.as_json:
        emit({"event": "verdict", **report})
    else:
        show_report(report)
    raise typer.Exit(int(ExitCode.VERDICT if is_sure else ExitCode.NO_VERDICT))


@dataclass(slots=True)
class _Comparison:
    """Three studies in one database: of both ends, of what changed, and of the culprit's releases."""

    ends: Ends
    pair: Pair
    files: Sequence[StudyFile]
    where: ExecutionOptions
    reporter: Reporter
    shown: ShownOptions

    def run(self, save: Path | None, *, versions: bool, hashes: bool) -> tuple[dict[str, Any], bool]:
        """Return the report, and whether the answer reaches the confidence."""
        matrix = self._matrix(hashes=hashes)
        refuse_broken_scripts(matrix)
        if save is not None:
            matrix = save_question(matrix, save)
        self._say("both environments are tried")
        missing = MissingModules((), {ENVIRONMENT: (GOOD, BAD)})
        conclusion = conduct(matrix, self.where, self.reporter, missing=missing)
        verdict = VerdictDocument.model_validate(conclusion.report["verdict"])
        if not verdict.first_bad or not verdict.is_decided:
            return conclusion.report, conclusion.exit_code is ExitCode.VERDICT
        self._say("finding the smallest set of changes that carries the failure")
        study = self._study(matrix)
        explanation = find_culprits(matrix, study, self.where, self.shown)
        document, releases, why_not = None, None, ""
        if versions:
            said = [f"{one['detail']}\n{one['stack']}" for one in conclusion.report["failures"]]
            found = self._releases(explanation, matrix, "\n".join(said))
            if isinstance(found, str):
                why_not = found
            else:
                document, releases = found
        own = None if document is None else VerdictDocument.model_validate(document["verdict"])
        sentence = answer(explanation, own, why_not)
        with Store.open(self.where.db) as store:
            record(store, study, sentence, releases, "" if own is None else own.sentence)
            report = report_document(store, study.id)
        return report, explanation.is_sure and (not versions or own is None or own.first_bad is not None)

    def _matrix(self, *, hashes: bool) -> Matrix:
        """Return the matrix of both ends, each of which can be made again.

        Raises:
            NoEnvironmentError: One cannot.
        """
        problems: dict[str, str] = {}
        for dependencies in ("resolve", "none"):
            pair = replace(self.pair, dependencies=dependencies)
            matrix = checked(pair_data(pair), self.files)
            self._say("solving both environments")
            locks = lock_ends(matrix, open_provider(matrix, self.where))
            found = {name: one.message for name, one in locks.items() if isinstance(one, UnsolvableError)}
            if found:
                problems = problems or found
                continue
            if hashes and (others := other_archives(self.ends, locks)):
                raise NoEnvironmentError(
                    f"{len(others)} packages have other archives than the locks state: what is built "
                    "would not be what was locked",
                    tried="\n".join(others[:5]),
                    remedy="if that is well (another index, a file that was built again), add `--no-hashes`",
                )
            if dependencies == "none":
                why = next(iter(problems.values())).partition("\n")[0]
                tell(
                    "warning: packages of these environments contradict each other, so that their metadata "
                    f"are not asked: {why}"
                )
            self.pair = pair
            return matrix
        raise no_environment(self.ends, problems)

    def _study(self, matrix: Matrix) -> Study:
        with Store.open(self.where.db) as store:
            found = store.find_study(matrix.name, matrix.digest)
        assert found is not None
        return found

    def _releases(
        self, explanation: Explanation, matrix: Matrix, failure: str
    ) -> tuple[dict[str, Any], Study] | str:
        """Return the report over the culprit's releases and its study, or why there is none.

        Args:
            explanation: What carries the failure.
            matrix: Matrix of both ends.
            failure: What failing trials said.
        """
        provider = open_provider(matrix, self.where)
        moving = moving_packages(explanation, self.pair, withdrawn(provider), failure)
        if isinstance(moving, str):
            return moving
        for what, rest in surroundings(explanation, self.pair, moving):
            own = checked(releases_data(moving, rest, self.pair), self.files)
            with Store.open(self.where.db) as store:
                grid = expand_as_known(own, store, provider).grid
            ends = [end for end in (grid.good, grid.bad) if end is not None]
            with closing(Locking(own, grid, provider)) as locking:
                locking.lock_every(ends)
            if not locking.prepared.unsolvable.keys() & set(ends):
                names = " and ".join(one.name for one in moving)
                self._say(f"bisecting the releases of {names}, {what}")
                conclusion = conduct(own, self.where, self.reporter)
                return conclusion.report, self._study(own)
        return "no environment holds its releases beside the other packages"

    def _say(self, text: str) -> None:
        if not (self.shown.quiet or self.shown.as_json):
            tell(text)
