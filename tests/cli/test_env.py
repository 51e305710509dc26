"""`bisect-env env` as people and programs meet it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from bisect_env.environments.lockfiles import make_lock
from bisect_env.environments.prefix import Prefix, ensure_prefix
from bisect_env.matrix.versions import host_platform
from tests.cli.asking import an_index
from tests.cli.calls import RunCommand, objects

pytestmark = pytest.mark.integration


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BISECT_ENV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def prefix(cache: Path) -> Prefix:
    """An environment of nothing but its Python."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    return ensure_prefix(make_lock(here, host_platform(), []), cache_dir=cache)


def test_an_empty_cache(cache: Path, run: RunCommand) -> None:
    assert "0 environments" in run("env", "ls")[1]
    assert run("env", "ls", "--check") == (0, "", "0 environments and archives checked, 0 changed\n")
    assert run("env", "prune", "--size", "0")[0] == 0
    assert not cache.exists()


def test_listing_and_taking_away(prefix: Prefix, cache: Path, run: RunCommand) -> None:
    code, out, _ = run("env", "ls")
    assert code == 0
    assert prefix.path.name[:12] in out
    listed, whole = objects(run("env", "ls", "--json")[1])
    assert whole["cache"] == str(cache)
    assert listed["content_hash"] == prefix.path.name
    assert listed["size"] >= listed["own"] > 0
    code, out, err = run("env", "prune", "--size", "0")
    assert (code, out) == (0, "")
    assert "1 in use stay" in err
    prefix.release()
    code, out, err = run("env", "prune", "--size", "0", "--dry-run")
    assert (code, out) == (0, f"{prefix.path.name}\n")
    assert err.startswith("would free")
    assert prefix.path.exists()
    assert run("env", "prune", "--older-than", "1")[1] == ""
    assert run("env", "prune", "--size", "0")[1] == f"{prefix.path.name}\n"
    assert not prefix.path.exists()


def test_changed_environments_are_data_as_well(prefix: Prefix, run: RunCommand) -> None:
    file = prefix.path / "pyvenv.cfg"
    file.chmod(0o644)
    file.write_text("changed")
    code, out, _ = run("env", "ls", "--check", "--json")
    assert code == 6
    assert objects(out) == [{"name": prefix.path.name[:12], "changed": True, "removed": False}]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["prune"], "nothing says what to remove"),
        (["prune", "--size", "lots"], "--size: 'lots' is not a size"),
        (["ls", "zzz", "--check"], "no environment begins with zzz"),
    ],
)
def test_what_cannot_be(arguments: list[str], says: str, cache: Path, run: RunCommand) -> None:
    code, out, err = run("env", *arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert "remedy: " in err


def test_a_study_refuses_a_limit_that_is_no_size(run: RunCommand) -> None:
    code, _, err = run("run", "matrices/quickstart.yaml", "--env-cache-size", "much", "--quiet")
    assert code == 2
    assert "--env-cache-size: 'much' is not a size" in err


def advised(err: str) -> str:
    return err.rpartition("next: copy it, and there: bisect-env ")[2].strip()


@pytest.mark.slow
def test_the_command_for_the_other_host_needs_no_database_of_this_one(
    cache: Path, run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BISECT_ENV_DB", "here.sqlite")
    (tmp_path / "repro.py").write_text("import lib; assert lib.version < '2'")
    words = ("lib>=1", "--always", "--", "python", "repro.py")
    with an_index() as index:
        for version in ("1", "2"):
            index.add("lib", version)
        own = ("--index", index.url, "--no-pythons", "-o", "away", "--cache", str(cache))
        code, _, err = run("env", "fetch", *own, *words)
        assert code == 0, err
        assert advised(err) == (f"run --index {index.url} 'lib>=1' --always --offline DIR -- python repro.py")
        monkeypatch.setenv("BISECT_ENV_DB", "there.sqlite")
        code, out, err = run(*shlex.split(advised(err).replace("DIR", "away")))
        assert (code, "lib is broken from 2 on" in out) == (0, True), err
        code, _, err = run("env", "fetch", "--no-pythons", "-o", "again", "lib")
        assert code == 0, err
    assert advised(err).startswith("run FILE --offline DIR (`bisect-env plan ")
    save = advised(err).partition("`bisect-env ")[2].partition("`")[0]
    code, _, err = run(*shlex.split(save.replace("FILE", "asked.yaml")))
    assert code == 0, err
    monkeypatch.setenv("BISECT_ENV_DB", "third.sqlite")
    code, out, err = run("run", "asked.yaml", "--offline", "again")
    assert (code, "lib is broken from 2 on" in out) == (0, True), err
