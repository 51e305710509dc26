"""`python -m tests.engine.killed FOLDER MATRIX INSTANT`: run a study, and die at an instant.

Instants are the beginning and the commit of each write transaction, counted from 0; -1 dies at none, and
`look` before environments are looked at, `note` before a change of one is stored. The number of instants that
passed is printed at the end. An answer is not checked further.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from bisect_env.cluster.pool import PoolExecutor
from bisect_env.cluster.protocol import PrefixRequest
from bisect_env.engine import settling
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.storage.backend import READING
from bisect_env.storage.study_trials import StudyTrials
from bisect_env.trials.judge import ChangedEnvironment
from tests.engine.studies import Studies


class DyingExecutor(PoolExecutor):
    """An executor that kills this process when an environment is to be looked at."""

    def prepare(self, request: PrefixRequest) -> None:
        if request.look:
            os.kill(os.getpid(), signal.SIGKILL)
        super().prepare(request)


def die(_trials: StudyTrials, _changed: ChangedEnvironment) -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    return False


def main(folder: str, matrix: str, instant: str) -> None:
    passed = 0
    if instant == "note":
        StudyTrials.note_change = die  # type: ignore[method-assign]

    def at_instant(connection: Any) -> None:
        nonlocal passed
        if connection.get_execution_options().get(READING, False):
            return
        if str(passed) == instant:
            os.kill(os.getpid(), signal.SIGKILL)
        passed += 1

    settling.CHECK_SECONDS = settling.CHECK_SHARE = 0.0
    event.listen(Engine, "begin", at_instant)
    event.listen(Engine, "commit", at_instant)
    studies = Studies(Path(folder))
    build = partial(ensure_prefix, cache_dir=studies.folder / "cache")
    make = partial(DyingExecutor, build, 2) if instant == "look" else None
    studies.run(Path(matrix), make_executor=make)
    print(passed)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
