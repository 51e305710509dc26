"""`bisect-env between`: which package change between two environments broke a command."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from bisect_env.answers.chapters import TracedReport
from bisect_env.answers.explanation import Explanation
from bisect_env.cli.asking import SOURCES, TrialFlags, asked_command, checked, refuse_left_behind
from bisect_env.cli.asking import save as save_question
from bisect_env.cli.commands import with_groups
from bisect_env.cli.conduct import conduct, reporting
from bisect_env.cli.explain_command import find_culprits, with_chapter
from bisect_env.cli.options import PYTHON, ExecutionOptions, SaveOption, ShownOptions, opt
from bisect_env.cli.output import tell
from bisect_env.cli.providing import open_provider
from bisect_env.cli.question import refuse_broken_scripts
from bisect_env.cli.report_command import print_answer
from bisect_env.cli.views import View, choose
from bisect_env.engine import events
from bisect_env.engine.between import (
    Ends,
    answer,
    lock_ends,
    moving_packages,
    no_environment,
    other_archives,
    read_ends,
    stored_environment,
    surroundings,
    withdrawn,
)
from bisect_env.engine.explain import failure_kinds
from bisect_env.engine.locking import Locking
from bisect_env.engine.missing import MissingModules
from bisect_env.engine.opening import expand_as_known
from bisect_env.environments.foreign_reading import ForeignEnvironment
from bisect_env.environments.lock import UnsolvableError
from bisect_env.errors import ExitCode, NoEnvironmentError, UsageError
from bisect_env.matrix.ask import Pair, pair_data, releases_data
from bisect_env.matrix.files import StudyFile
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import Solver
from bisect_env.report.model import Report
from bisect_env.storage.entries import TRACED
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
    python: Annotated[str, PYTHON] = "",
    no_versions: Annotated[
        bool, opt("--no-versions", "Stop at the package; do not bisect its releases.")
    ] = False,
    no_hashes: Annotated[
        bool, opt("--no-hashes", "Continue if an archive is not the one that its lock states.", SOURCES)
    ] = False,
    allow_source: Annotated[
        bool, opt("--allow-source", "Build packages that have no wheel.", SOURCES)
    ] = False,
    flags: TrialFlags,
    save: SaveOption = None,
    where: ExecutionOptions,
    shown: ShownOptions,
) -> None:
    """Find the change between two environments that broke a command.

    `bisect-env between green.lock red.lock -- pytest -x tests/test_io.py` makes both environments again,
    shows that one fails, finds the smallest set of changes that carries the failure, and bisects the releases
    of the culprit. `--python` is for files that state no Python. Ends with 0 if the answer reaches the
    confidence. The same command goes on after an interruption.
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

    view = choose(shown, plain=True)
    with reporting("between", shown, view):
        question, files = asked_command(flags, words[2:])
        ends = read_ends(words[0], words[1], python=python, stored=stored)
        refuse_left_behind(files, (one.name for end in (ends.good, ends.bad) for one in end.packages))
        for line in (ends.good.summary(), ends.bad.summary(), *(f"note: {text}" for text in ends.notes)):
            view(events.Said(line))
        good, bad = ends.wholes
        channels = question.channels or ends.channels
        pair = Pair(good, bad, question, channels, Solver(allow_source=allow_source))
        comparison = _Comparison(ends, pair, files, where, view)
        report, is_sure = comparison.run(save, versions=not no_versions, hashes=not no_hashes)
    print_answer(report, shown)
    raise typer.Exit(int(ExitCode.VERDICT if is_sure else ExitCode.NO_VERDICT))


@dataclass(slots=True)
class _Comparison:
    """A comparison of two environments that finds which package change broke a command.

    Up to three studies are run: of both environments, of the changed packages, and of the culprit's releases.
    """

    ends: Ends
    pair: Pair
    files: Sequence[StudyFile]
    where: ExecutionOptions
    view: View

    def run(self, save: Path | None, *, versions: bool, hashes: bool) -> tuple[Report, bool]:
        """Run all studies, and return the report and whether its answer reaches the wanted confidence."""
        matrix = self._matrix(hashes=hashes)
        refuse_broken_scripts(matrix)
        if save is not None:
            matrix = save_question(matrix, save)
        self._say("both environments are tried")
        missing = MissingModules((), enough=2)
        report = conduct(matrix, self.where, self.view, missing=missing)
        if not report.verdict.first_bad or not report.has_verdict:
            return report, report.has_verdict
        self._say("finding the smallest set of changes that carries the failure")
        explanation = find_culprits(matrix, report.study.id, self.where, self.view)
        found: Report | str = ""
        if versions:
            failure = "\n".join(f"{one.detail}\n{one.stack}" for one in report.failures)
            found = self._releases(explanation, matrix, failure)
        if isinstance(found, str):
            why_not = f"its releases were not bisected: {found}" if found else ""
            is_known, traced = True, TracedReport(sentence=answer(explanation, why_not))
        else:
            # A verdict that is not decided also names its best guess, and its sentence says "not known".
            is_known = found.has_verdict and found.verdict.first_bad is not None
            sentence = answer(explanation, found.sentence)
            traced = TracedReport(sentence=sentence, study=found.study.id, releases=found.sentence)
        is_sure = explanation.is_sure and is_known
        return with_chapter(report.study.id, TRACED, traced, self.where.db), is_sure

    def _matrix(self, *, hashes: bool) -> Matrix:
        """Return a matrix that compares both environments, after checking that each can be rebuilt.

        Raises:
            NoEnvironmentError: An environment cannot be rebuilt.
        """
        problems: dict[str, str] = {}
        for dependencies in ("resolve", "none"):
            solver = self.pair.solver.model_copy(update={"dependencies": dependencies})
            pair = replace(self.pair, solver=solver)
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

    def _releases(self, explanation: Explanation, matrix: Matrix, failure: str) -> Report | str:
        """Bisect the releases of the package that causes the failure, and return the report of this study.

        If this is impossible, return a sentence that says why.

        Args:
            explanation: The packages that cause the failure.
            matrix: Matrix of both ends.
            failure: Messages and stacks of failing trials.
        """
        provider = open_provider(matrix, self.where)
        moving = moving_packages(explanation, self.pair, withdrawn(provider), failure)
        if isinstance(moving, str):
            return moving
        with Store.open(self.where.db, read_only=True) as store:
            kinds = failure_kinds(store.trials(explanation.study), explanation.bad)
        for what, rest in surroundings(explanation, self.pair, moving):
            own = checked(releases_data(moving, rest, self.pair, kinds), self.files)
            with Store.open(self.where.db) as store:
                grid = expand_as_known(own, store, provider).grid
            ends = [end for end in (grid.good, grid.bad) if end is not None]
            with closing(Locking(own, grid, provider)) as locking:
                locking.lock_every(ends)
            if not locking.prepared.unsolvable.keys() & set(ends):
                names = " and ".join(one.name for one in moving)
                self._say(f"bisecting the releases of {names}, {what}")
                return conduct(own, self.where, self.view)
        return "no environment holds its releases beside the other packages"

    def _say(self, text: str) -> None:
        self.view(events.Said(text))
