"""Directories that a lock says are somebody's; what nobody holds is found, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bisect_env.temporary import left_behind, make_held

ROOT = Path(__file__).parents[2]


def test_what_is_held_is_left_alone_and_what_is_free_is_found() -> None:
    held, lock = make_held("p-")
    free, other = make_held("p-")
    os.close(other)
    assert list(left_behind("p-")) == [free]
    os.utime(held, (0, 0))
    assert list(left_behind("p-")) == [free]
    os.close(lock)
    assert set(left_behind("p-")) == {held, free}


def test_what_is_no_directory_of_ours_is_left_alone(private_temp: Path) -> None:
    (private_temp / "p-file").touch()
    os.mkfifo(private_temp / "p-fifo")  # opening one may wait for ever
    (private_temp / "elsewhere").mkdir()
    (private_temp / "p-link").symlink_to("elsewhere")
    (private_temp / "q-dir").mkdir()
    assert list(left_behind("p-")) == []
    if os.geteuid() == 0:
        (private_temp / "p-others").mkdir()
        os.chown(private_temp / "p-others", 12345, 12345)
        assert list(left_behind("p-")) == []


@pytest.mark.slow
@pytest.mark.integration
def test_nobody_takes_away_what_another_process_has_just_made(private_temp: Path) -> None:
    """Between its making and its locking a directory looks as if it were left behind."""
    program = """
import os, shutil, sys
from bisect_env.temporary import left_behind, make_held
for _ in range(400):
    path, lock = make_held("p-")
    (path / "file").touch()
    for old in left_behind("p-"):
        shutil.rmtree(old)
    (path / "file").unlink()
    if sys.argv[1] == "tidy":
        path.rmdir()
    os.close(lock)
"""
    env = {**os.environ, "TMPDIR": str(private_temp), "PYTHONPATH": str(ROOT)}
    running = [
        subprocess.Popen([sys.executable, "-c", program, how], env=env, stderr=subprocess.PIPE, text=True)
        for how in ("tidy", "tidy", "leaves them", "leaves them")
    ]
    for process in running:
        _, err = process.communicate(timeout=90)
        assert process.returncode == 0, err
    for old in left_behind("p-"):
        shutil.rmtree(old)
    assert list(private_temp.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next_and_nothing_of_the_users(tmp_path: Path) -> None:
    mine = tmp_path / "bisect-env-notes"
    mine.mkdir()
    code = "from bisect_env.temporary import temporary\nwith temporary('lock') as f:\n print(f, flush=True)\n"
    code += " input()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        assert left.name.startswith("bisect-env-")
        again = "from bisect_env.temporary import remove_left_behind\nremove_left_behind()"
        env = {**os.environ, "TMPDIR": str(tmp_path)}
        subprocess.run([sys.executable, "-c", again], check=True, timeout=60, env=env)
        assert left.is_dir(), "it is in use"
        process.kill()
    assert left.is_dir()
    subprocess.run([sys.executable, "-c", again], check=True, timeout=60, env=env)
    assert not left.exists()
    assert mine.is_dir()
