"""What a build tells while it goes on, and that it ends before it fills the disk."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from bisect_env.environments.lock import UnbuildableError
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.environments.progress import Archives, BuildStep, listening

from .test_prefix import locked

BEGUN = ["Downloading torch (506.1MiB)", "Downloading libcudf-cu13 (328.0MiB)", "Using Python 3.11"]


def steps_of(lines: list[str], folder: Path) -> list[BuildStep]:
    steps: list[BuildStep] = []
    archives = Archives("unpacking", {"torch": "2.11.0", "libcudf-cu13": "26.6.0"}, folder)
    with listening(steps.append):
        for line in lines:
            archives.take_line(line)
    return steps


def test_the_largest_archive_and_the_bytes_of_all_are_told(tmp_path: Path) -> None:
    torch, cudf = int(506.1 * 2**20), 328 * 2**20
    steps = steps_of([*BEGUN, " Downloaded torch", " Downloaded libcudf-cu13", " Downloaded torch"], tmp_path)
    assert steps == [
        BuildStep("unpacking", "torch 2.11.0", 0, torch),
        BuildStep("unpacking", "torch 2.11.0", 0, torch + cudf),
        BuildStep("unpacking", "libcudf-cu13 26.6.0", torch, torch + cudf),
        BuildStep("unpacking", "", torch + cudf, torch + cudf),
    ]


def test_archives_for_which_there_is_no_room_are_refused_with_what_is_missing(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(UnbuildableError, match=r"has .* free, and .* GB are missing") as error:
        steps_of([f"Downloading torch ({free / 2**30:.1f}GiB)"], tmp_path)
    assert error.value.transient


def test_nobody_need_listen(tmp_path: Path) -> None:
    Archives("unpacking", {}, tmp_path).take_line(BEGUN[0])


@pytest.mark.integration
def test_a_build_says_where_it_is(
    index: Any, python: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Too large for uv to be silent about, and for us to leave its modules for later.
    blob = random.Random(1).randbytes(3 << 20).hex()
    index.add("big", "1.0", modules={"big_data.py": f"text = {blob!r}\n"})
    steps: list[BuildStep] = []
    with listening(steps.append):
        ensure_prefix(locked(index, python, "big"), cache_dir=cache)
    assert steps[-1].what == "checking"
    assert [step for step in steps if step.what == "downloading" and step.package == "big 1.0"], steps
    assert max(step.total for step in steps) > 1 << 20
