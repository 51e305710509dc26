from __future__ import annotations

import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bisect_env.environments.interpreters import (
    Interpreter,
    Interpreters,
    candidate_paths,
    listed_by_uv,
    machine_interpreters,
)
from bisect_env.errors import InfrastructureError, InterpreterNotFoundError
from bisect_env.running import Finished

HERE = ".".join(map(str, sys.version_info[:3]))


def planted(*versions, fetch=lambda version: "the network is down"):
    """Interpreters that exist nowhere."""
    found = tuple(
        Interpreter(Path(f"/place{n}/python"), version.partition("rc")[0], "rc" not in version)
        for n, version in enumerate(versions)
    )
    return Interpreters(lambda: found, fetch)


def test_newest_patch_unless_one_is_named():
    pythons = planted("3.11.2", "3.11.10", "3.11.9", "3.12.0rc1")
    assert pythons.find("3.11").version == "3.11.10"
    assert pythons.find("3.11.2").version == "3.11.2"
    assert pythons.find("3.12").final is False


@pytest.mark.parametrize("version", ["2.7", "2.7.18", "3.1", "3.5.10"])
def test_an_old_python_is_refused_in_plain_words(version):
    with pytest.raises(InterpreterNotFoundError, match=r"too old: environments are made for 3.6 and newer"):
        planted("3.11.2", "3.5.10").find(version)


def test_a_final_release_comes_before_a_newer_candidate():
    assert planted("3.12.9rc1", "3.12.1").find("3.12").version == "3.12.1"


def test_of_equals_the_first_place_is_taken():
    assert planted("3.9.1", "3.9.1").find("3.9").path == Path("/place0/python")


def test_what_is_missing_is_fetched_once():
    asked = []

    def fetch(version):
        asked.append(version)
        return "the network is down"

    pythons = planted("3.10.1", "3.9.2", fetch=fetch)
    for _ in range(3):
        with pytest.raises(InterpreterNotFoundError) as raised:
            pythons.find("3.14")
    assert asked == ["3.14"]
    text = str(raised.value)
    assert "there is no Python 3.14 on this machine; found: 3.9.2, 3.10.1" in text
    assert "the network is down" in text
    assert "remedy: install Python 3.14" in text


def test_what_was_fetched_is_used():
    fetched = []
    pythons = planted("3.10.1", "3.14.0", fetch=lambda version: fetched.append(version) or "")
    everything = pythons.listed
    pythons.listed = lambda: everything() if fetched else everything()[:1]
    assert pythons.find("3.14").version == "3.14.0"


@pytest.mark.parametrize("version", ["", "3", "three", "3.11.x", ">=3.8", "3.11.7.1", "3.11\n"])
def test_what_is_no_version_is_said_so(version):
    with pytest.raises(InterpreterNotFoundError, match="is not a Python version"):
        planted("3.11.1").find(version)


@pytest.mark.integration
def test_virtual_environments_are_seen_through_and_shims_passed_over(tmp_path, monkeypatch):
    (tmp_path / "shims").mkdir()
    shim = tmp_path / "shims" / "python3"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'shims'}:{Path(sys.executable).parent}")
    monkeypatch.setenv("BISECT_ENV_CACHE", str(tmp_path / "cache"))
    found = [one for one in listed_by_uv() if one.version == HERE]
    assert Path(sys.base_prefix).resolve() in found[0].path.parents
    assert not [one for one in found if one.path.is_symlink() or tmp_path in one.path.parents]


@pytest.mark.integration
def test_paths_are_whole_where_there_is_no_directory_for_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BISECT_ENV_CACHE", str(tmp_path / "missing" / "cache"))
    found = listed_by_uv()
    assert HERE in [one.version for one in found]
    assert all(one.path.is_absolute() and os.access(one.path, os.X_OK) for one in found)


@pytest.mark.integration
def test_places_that_are_searched(monkeypatch, tmp_path):
    wanted = [
        tmp_path / "pyenv" / "versions" / "3.9.9" / "bin" / "python",
        tmp_path / "path" / "python3.9",
        tmp_path / "conda" / "bin" / "python",
        tmp_path / "conda" / "envs" / "a" / "bin" / "python",
    ]
    for path in wanted:
        path.parent.mkdir(parents=True)
        path.symlink_to(sys.executable)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    paths = list(candidate_paths())
    assert [path for path in paths if path in wanted] == wanted
    assert Path(sys.executable) in paths


@pytest.mark.integration
def test_this_machine():
    found = machine_interpreters().find(HERE)
    assert found.version == HERE
    assert len({i.path for i in machine_interpreters().installed()}) == len(
        machine_interpreters().installed()
    )


def test_a_version_that_is_here_does_not_wait_for_one_that_is_fetched():
    fetching, may_end = threading.Event(), threading.Event()

    def fetch(version):
        fetching.set()
        may_end.wait(20)
        return "the network is down"

    pythons = planted("3.10.1", fetch=fetch)
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(pythons.find, "3.14")
        assert fetching.wait(10)
        try:
            assert pool.submit(pythons.find, "3.10").result(timeout=5).version == "3.10.1"
        finally:
            may_end.set()
        with pytest.raises(InterpreterNotFoundError, match="the network is down"):
            asked.result()


@pytest.mark.parametrize(
    ("machine", "arch", "is_listed"),
    [("ppc64le", "powerpc64le", True), ("x86_64", "x86", False), ("aarch64", "aarch64", True)],
)
def test_a_python_is_for_this_machine_whatever_uv_calls_it(tmp_path, monkeypatch, machine, arch, is_listed):
    entry = {"path": sys.executable, "version": HERE, "implementation": "cpython", "arch": arch}
    answer = Finished(0, json.dumps([entry]), "")
    monkeypatch.setattr("bisect_env.environments.interpreters.Uv.run", lambda *_args, **_more: answer)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setenv("BISECT_ENV_CACHE", str(tmp_path))
    assert [one.version for one in listed_by_uv()] == [HERE] * is_listed


def test_a_file_in_the_place_of_the_cache_is_told(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    cache.write_text("in the way")
    monkeypatch.setenv("BISECT_ENV_CACHE", str(cache))
    with pytest.raises(InfrastructureError, match=r"the cache .*cache cannot be written"):
        listed_by_uv()
