from __future__ import annotations

import json
import re

import pytest

from bisect_env.environments.lock import LockedPackage, LockFileError, UnsolvableError
from bisect_env.environments.lockfiles import index_text, make_lock, parse_lock, read_lock, write_locks
from bisect_env.errors import InfrastructureError
from bisect_env.matrix.grid import Combination


def lock(version: str):
    url = f"https://files.example/six-{version}-py2.py3-none-any.whl"
    return make_lock("3.11", "linux-64", [LockedPackage("six", version, "pip", url, "ab" * 32)])


def results():
    return {
        Combination.of({"six": "1.16", "size": "1"}).key: lock("1.16"),
        Combination.of({"six": "1.16", "size": "2"}).key: lock("1.16"),
        Combination.of({"six": "1.17", "size": "1"}).key: lock("1.17"),
        Combination.of({"six": "9", "size": "ä"}).key: UnsolvableError("there is no six==9"),
        Combination.of({"six": "0.1", "size": "1"}).key: UnsolvableError("gcc failed", building=True),
    }


def test_one_file_for_each_environment_and_an_index_of_combinations(tmp_path):
    folder = write_locks(tmp_path / "lockfiles", "demo", results())
    names = sorted(path.name for path in folder.iterdir())
    assert names == sorted(
        [f"{lock(v).content_hash}.conda-lock.yml" for v in ("1.16", "1.17")] + ["index.json"]
    )
    listed = json.loads((folder / "index.json").read_text())["combinations"]
    index = {Combination.of(one["combination"]).key: one for one in listed}
    assert set(index) == set(results())
    for key, result in results().items():
        if isinstance(result, UnsolvableError):
            assert (index[key]["unsolvable"], index[key].get("building", False)) == (
                result.message,
                result.building,
            )
        else:
            assert index[key]["lock"] == result.content_hash
            assert read_lock(folder / f"{index[key]['lock']}.conda-lock.yml") == result
    assert parse_lock(lock("1.16").text) == lock("1.16")


def test_the_same_results_give_the_same_bytes_and_stale_locks_go(tmp_path):
    folder = write_locks(tmp_path, "demo", results())
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    write_locks(tmp_path, "demo", dict(reversed(results().items())))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    write_locks(tmp_path, "demo", {Combination.of({"six": "1.17"}).key: lock("1.17")})
    assert [path.name for path in folder.glob("*.yml")] == [f"{lock('1.17').content_hash}.conda-lock.yml"]


def test_index_is_plain_json_in_combination_order():
    data = json.loads(index_text(results()))
    assert data["version"] == 1
    assert data["combinations"][0] == {
        "combination": {"six": "0.1", "size": "1"},
        "unsolvable": "gcc failed",
        "building": True,
    }


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\0b"])
def test_a_name_cannot_leave_the_folder(tmp_path, name):
    with pytest.raises(ValueError, match="cannot be the name of a directory"):
        write_locks(tmp_path, name, {})


def test_what_cannot_be_read_or_written_is_named(tmp_path):
    with pytest.raises(LockFileError, match=re.escape(str(tmp_path / "x.yml"))):
        read_lock(tmp_path / "x.yml")
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError, match="lock files cannot be written"):
        write_locks(tmp_path / "file", "demo", {})
