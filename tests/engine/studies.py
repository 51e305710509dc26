"""Whole studies for the tests of the engine: real matrices, real processes, a real database.

The environments hold no package, so that they are made in a moment and need no index: what changes from one
combination to the next is a value that the script reads.
"""

import sys
import textwrap
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bisect_env.cli.report_command import exit_code
from bisect_env.cluster.choose import Place
from bisect_env.cluster.pool import PoolExecutor
from bisect_env.cluster.protocol import Executor
from bisect_env.engine import events
from bisect_env.engine.session import Session
from bisect_env.engine.study import StudyRun
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.environments.provider import EnvironmentProvider, Environments
from bisect_env.errors import ExitCode
from bisect_env.matrix.load import load_matrix
from bisect_env.report.build import report_document
from bisect_env.report.model import Report
from bisect_env.search.goals import Goal
from bisect_env.storage.store import Store
from tests import planted

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class Done:
    """The report with which a study has ended, and the exit code that a command gives for it."""

    report: dict[str, Any]

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode(exit_code(Report.read(self.report)))


def crash_from_six(before: str = "") -> str:
    """A script that crashes from level 6 on, after some lines of its own."""
    lines = textwrap.dedent(before).strip("\n")
    return f"import os, sys, time\n{lines}\nif int(sys.argv[1]) >= 6:\n    os.abort()\n"


def wait_while(held: Path) -> str:
    """A line of a script that waits as long as a file is there: no trial ends before the test says so."""
    return f"while os.path.exists({str(held)!r}): time.sleep(0.02)"


def pause_while(slow: Path, seconds: float) -> str:
    """A line of a script that takes its time as long as a file is there."""
    return f"if os.path.exists({str(slow)!r}): time.sleep({seconds})"


CRASH_FROM_SIX = crash_from_six()
QUICK = "search: {confidence: 0.8, min_crash_rate: 0.4}"
"""For tests that need a study with an answer, and not one that is sure."""


class Studies:
    """Runs studies in a folder; keeps the events of the last one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.db = folder / "results.sqlite"
        self.events: list[events.Event] = []

    def matrix(self, script: str, **replace: str) -> Path:
        """Write a matrix with a value axis `level` (0 to 9 unless replaced) and its script."""
        keys = {
            "axes": "level: {values: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}",
            "trial": "",
            "rest": "",
            **replace,
        }
        (self.folder / "script.py").write_text(textwrap.dedent(script))
        files = ["script.py"]
        if f"from {planted.MODULE} import" in script:
            files.append(planted.plant(self.folder).name)
        path = self.folder / "matrix.yaml"
        path.write_text(
            textwrap.dedent(
                """\
                version: 1
                name: planted
                axes:
                  python: {package: python, versions: ["%s"]}
                %s
                trial:
                  command: python script.py {level}
                  files: [%s]
                  timeout: 20s
                %s
                %s
                """
            )
            % (
                PYTHON,
                textwrap.indent(textwrap.dedent(keys["axes"]), "  "),
                ", ".join(files),
                textwrap.indent(textwrap.dedent(keys["trial"]), "  "),
                textwrap.dedent(keys["rest"]),
            )
        )
        return path

    def run(
        self,
        path: Path,
        *,
        stopped: Callable[[], bool] = lambda: False,
        slots: int = 2,
        provider: EnvironmentProvider | None = None,
        make_executor: Callable[[], Executor] | None = None,
        fresh: bool = False,
        only_mine: bool = False,
        goal: Goal = Goal.FIRST_BAD,
        quick: bool = False,
        sure: bool = False,
    ) -> Done:
        """Run a study in this process with an inline executor."""
        cache = self.folder / "cache"
        matrix = load_matrix(path)
        place = Place(
            make_executor or (lambda: PoolExecutor(partial(ensure_prefix, cache_dir=cache), slots)), stopped
        )
        found = provider or Environments(cache, index=matrix.file.index)
        with Store.open(str(self.db)) as store, closing(place):
            report = StudyRun(
                matrix,
                Session(store, found, place.executor, self.events.append, stopped),
                report_document,
                lockfiles=self.folder / "lockfiles",
                fresh=fresh,
                only_mine=only_mine,
                goal=goal,
                quick=quick,
                sure=sure,
            ).run()
        return Done(report)
