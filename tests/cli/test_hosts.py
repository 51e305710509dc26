"""Hosts as they are: what surrounds a study never becomes its answer."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import RunCommand


@pytest.fixture
def noexec(tmp_path: Path) -> Iterator[Path]:
    """A file system from which nothing can be executed."""
    place = tmp_path / "scratch"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m,noexec", "none", str(place)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True, capture_output=True, timeout=20)


@pytest.mark.integration
def test_a_cache_that_is_mounted_noexec_is_refused_before_anything_is_built(
    run: RunCommand, noexec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first release with compiled code would be blamed."""
    monkeypatch.setenv("BISECT_ENV_CACHE", str(noexec / "cache"))
    (tmp_path / "m.yaml").write_text(
        "version: 1\nname: x\naxes: {n: {values: [1, 2]}}\ntrial: {command: python -c 'pass'}\n"
    )
    code, _, err = run("run", str(tmp_path / "m.yaml"))
    assert code == 6
    assert f"the cache {noexec / 'cache'} is on a file system that is mounted noexec" in err
    assert "BISECT_ENV_CACHE" in err
    assert not (noexec / "cache" / "prefixes").exists()
    code, out, _ = run("doctor")
    assert code == 6
    assert "✗ cache" in out


@pytest.mark.integration
def test_doctor_names_temporary_files_that_cannot_be_executed(
    run: RunCommand, noexec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(noexec))
    _, out, _ = run("doctor")
    assert f"{noexec} is mounted noexec" in out


def test_a_user_without_a_home_is_named(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where containers run with any user id, which has no entry among the users."""

    def nobody(_: int) -> None:
        raise KeyError("no such user")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", nobody)
    code, out, err = run("report")
    assert (code, out) == (6, "")
    assert err.startswith("error: there is no home directory: HOME is not set, and the user id ")
    assert "set HOME to a directory that can be written" in err
    assert run("--help")[0] == 0
