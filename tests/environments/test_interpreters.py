from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bisect_env.environments.interpreters import (
    Interpreter,
    Interpreters,
    candidate_paths,
    machine_interpreters,
    probe,
)
from bisect_env.errors import InterpreterNotFoundError

HERE = ".".join(map(str, sys.version_info[:3]))


def planted(monkeypatch, *versions, fetch=lambda version: "the network is down"):
    """Interpreters that exist only as answers of the probe."""
    found = {}
    for place, version in enumerate(versions):
        final = "rc" not in version
        number = version.partition("rc")[0]
        path = Path(f"/place{place}/python{number}")
        found[path] = Interpreter(path, number, "cp" + "".join(number.split(".")[:2]), Path("/lib"), final)
    monkeypatch.setattr("bisect_env.environments.interpreters.probe", found.get)
    return Interpreters(lambda: list(found), fetch)


def test_newest_patch_unless_one_is_named(monkeypatch):
    pythons = planted(monkeypatch, "3.11.2", "3.11.10", "3.11.9", "3.12.0rc1")
    assert pythons.find("3.11").version == "3.11.10"
    assert pythons.find("3.11.2").version == "3.11.2"
    assert pythons.find("3.12").final is False


@pytest.mark.parametrize("version", ["2.7", "2.7.18", "3.1", "3.5.10"])
def test_an_old_python_is_refused_in_plain_words(monkeypatch, version):
    with pytest.raises(InterpreterNotFoundError, match=r"too old: environments are made for 3.6 and newer"):
        planted(monkeypatch, "3.11.2", "3.5.10").find(version)


def test_a_final_release_comes_before_a_newer_candidate(monkeypatch):
    assert planted(monkeypatch, "3.12.9rc1", "3.12.1").find("3.12").version == "3.12.1"


def test_of_equals_the_first_place_is_taken(monkeypatch):
    assert planted(monkeypatch, "3.9.1", "3.9.1").find("3.9").path == Path("/place0/python3.9.1")


def test_what_is_missing_is_fetched_once(monkeypatch):
    asked = []

    def fetch(version):
        asked.append(version)
        return "the network is down"

    pythons = planted(monkeypatch, "3.10.1", "3.9.2", fetch=fetch)
    for _ in range(3):
        with pytest.raises(InterpreterNotFoundError) as raised:
            pythons.find("3.14")
    assert asked == ["3.14"]
    text = str(raised.value)
    assert "there is no Python 3.14 on this machine; found: 3.9.2, 3.10.1" in text
    assert "the network is down" in text
    assert "remedy: install Python 3.14" in text


def test_what_was_fetched_is_used(monkeypatch):
    fetched = []
    pythons = planted(monkeypatch, "3.10.1", "3.14.0", fetch=lambda version: fetched.append(version) or "")
    everything = pythons.candidates
    pythons.candidates = lambda: everything() if fetched else everything()[:1]
    assert pythons.find("3.14").version == "3.14.0"


@pytest.mark.parametrize("version", ["", "3", "three", "3.11.x", ">=3.8", "3.11.7.1", "3.11\n"])
def test_what_is_no_version_is_said_so(monkeypatch, version):
    with pytest.raises(InterpreterNotFoundError, match="is not a Python version"):
        planted(monkeypatch, "3.11.1").find(version)


@pytest.mark.integration
def test_probe_sees_through_virtual_environments_and_refuses_scripts(tmp_path):
    found = probe(Path(sys.executable))
    assert found is not None
    assert found.version == HERE
    assert found.path.is_absolute()
    assert not found.path.is_symlink()
    assert Path(sys.prefix) not in found.path.parents or sys.prefix == sys.base_prefix
    shim = tmp_path / "python3"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    shim.chmod(0o755)
    assert probe(shim) is None
    assert probe(tmp_path / "missing") is None
    assert probe(Path("/bin/true")) is None


@pytest.mark.integration
def test_places_that_are_searched(monkeypatch, tmp_path):
    def plant(*parts):
        path = tmp_path.joinpath(*parts)
        path.parent.mkdir(parents=True)
        path.symlink_to(sys.executable)
        return path

    planted_paths = [
        plant("pyenv", "versions", "3.9.9", "bin", "python"),
        plant("uv", "cpython-3.9", "bin", "python3.9"),
        plant("path", "python3.9"),
        plant("conda", "bin", "python"),
        plant("conda", "envs", "a", "bin", "python"),
    ]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    paths = list(candidate_paths())
    assert [path for path in paths if path in planted_paths] == planted_paths
    assert Path(sys.executable) in paths


@pytest.mark.integration
def test_this_machine():
    found = machine_interpreters().find(HERE)
    assert found.version == HERE
    assert len({i.path for i in machine_interpreters().installed()}) == len(
        machine_interpreters().installed()
    )


def test_a_version_that_is_here_does_not_wait_for_one_that_is_fetched(monkeypatch):
    fetching, may_end = threading.Event(), threading.Event()

    def fetch(version):
        fetching.set()
        may_end.wait(20)
        return "the network is down"

    pythons = planted(monkeypatch, "3.10.1", fetch=fetch)
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(pythons.find, "3.14")
        assert fetching.wait(10)
        try:
            assert pool.submit(pythons.find, "3.10").result(timeout=5).version == "3.10.1"
        finally:
            may_end.set()
        with pytest.raises(InterpreterNotFoundError, match="the network is down"):
            asked.result()
