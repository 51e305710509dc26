"""Tests of the snapshot that tells whether an installed environment is as it was made."""

from __future__ import annotations

import importlib.util
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from bisect_env.environments.integrity import is_unchanged, snapshot


@pytest.mark.parametrize(
    ("mode", "is_change"),
    [
        (py_compile.PycInvalidationMode.TIMESTAMP, False),
        (py_compile.PycInvalidationMode.CHECKED_HASH, False),
        (py_compile.PycInvalidationMode.UNCHECKED_HASH, True),
    ],
)
def test_bytecode_that_python_believes_unseen_is_a_change(
    tmp_path: Path, mode: py_compile.PycInvalidationMode, is_change: bool
) -> None:
    module = tmp_path / "demo.py"
    module.write_text("value = 1\n")
    (tmp_path / "__pycache__").mkdir()
    made = snapshot(tmp_path)
    other = tmp_path.with_name("other.py")
    other.write_text("value = 2  # longer\n")
    place = importlib.util.cache_from_source(str(module))
    py_compile.compile(str(other), cfile=place, dfile=str(module), doraise=True, invalidation_mode=mode)
    command = [sys.executable, "-c", "import demo; print(demo.value)"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert said == ("2\n" if is_change else "1\n"), "what a trial would import"
    assert is_unchanged(tmp_path, made) is not is_change
