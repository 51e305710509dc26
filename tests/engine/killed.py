"""`python -m tests.engine.killed FOLDER MATRIX INSTANT`: run a study, and die at an instant.

Instants are the beginning and the commit of each write transaction, counted from 0; -1 dies at none. The
number of instants that passed is printed at the end. An answer is not checked further.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from bisect_env.engine import searching
from bisect_env.storage.backend import READING
from tests.engine.studies import Studies


def main(folder: str, matrix: str, instant: int) -> None:
    passed = 0

    def at_instant(connection: Any) -> None:
        nonlocal passed
        if connection.get_execution_options().get(READING, False):
            return
        if passed == instant:
            os.kill(os.getpid(), signal.SIGKILL)
        passed += 1

    searching.CHECK_SECONDS = searching.CHECK_SHARE = 0.0
    event.listen(Engine, "begin", at_instant)
    event.listen(Engine, "commit", at_instant)
    Studies(Path(folder)).run(Path(matrix))
    print(passed)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
