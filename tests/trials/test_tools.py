"""What a tool says when it fails, in one line."""

import sys

import pytest

from bisect_env.trials.stacks import run_tool


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import absent_module", "ModuleNotFoundError: No module named 'absent_module'"),
        ("import sys; sys.exit('permission denied\\nuse sudo')", "permission denied"),
        ("raise SystemExit(3)", "exit code 3"),
    ],
)
def test_why_a_tool_failed_in_a_line(code: str, why: str) -> None:
    said = run_tool([sys.executable, "-c", code], 60.0)
    assert (said.ok, said.why) == (False, why)
