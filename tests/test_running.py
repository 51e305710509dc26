"""Other programs are run: what they say while they run is passed on line by line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bisect_env.running import run_tool


def test_lines_after_a_very_long_one_are_passed_on(tmp_path: Path) -> None:
    code = "import sys, time\nprint('x' * 900_000, 'end', file=sys.stderr, flush=True)\n"
    code += "time.sleep(1.5)\nprint('Downloading', file=sys.stderr, flush=True)\n"
    heard: list[str] = []
    done = run_tool(
        [sys.executable, "-c", code], env={**os.environ}, cwd=tmp_path, timeout=60, on_line=heard.append
    )
    assert done.returncode == 0
    assert heard[-1] == "Downloading"
