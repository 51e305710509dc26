"""Locks of whole matrices: equal everywhere, like their neighbours, and each of them runs."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import textwrap
from datetime import UTC, datetime

import pytest

from bisect_env.engine.locking import Locking
from bisect_env.environments.lock import Lock, UnsolvableError
from bisect_env.environments.lockfiles import SUFFIX, write_locks
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.environments.provider import Environments
from bisect_env.matrix.expand import expand
from bisect_env.matrix.load import load_matrix

from .conda_channel import Channel

pytestmark = pytest.mark.integration
NOW = datetime(2026, 1, 31, tzinfo=UTC)


def world(folder, python, seed):
    """A channel in which `top` and `side` move, and pull at many small packages below them."""
    rng = random.Random(seed)
    channel = Channel(folder)
    channel.add_python()
    for name, version in itertools.product("abcdefgh", range(1, 6)):
        below = [f"{other} >={rng.randint(1, version)}" for other in "abcdefgh"[: "abcdefgh".index(name)]]
        chosen = [f"lib-{one}" for one in rng.sample(below, min(2, len(below)))]
        channel.add_library(f"lib-{name}", f"{version}.0", depends=chosen)
    for name, version in itertools.product(("top", "side"), range(1, 5)):
        wanted = [f"lib-{n} {rng.choice(['>=', '<='])}{rng.randint(2, 4)}" for n in rng.sample("abcdefgh", 3)]
        constrains = ["side <4"] if (name, version) == ("top", 4) else []
        channel.add_library(name, f"{version}.0", depends=wanted, constrains=constrains)
    channel.write()
    return channel


@pytest.fixture
def matrix_of(tmp_path):
    def load(channel, text):
        path = tmp_path / "matrix.yaml"
        head = f"version: 1\nname: demo\nchannels: [{channel}]\ntrial: {{command: python -c pass}}\n"
        path.write_text(head + textwrap.dedent(text))
        return load_matrix(path)

    return load


def locked(matrix, cache, workers=2, index=None):
    provider = Environments(cache, index=index)
    grid = expand(matrix, provider.catalogue, NOW)
    return Locking(matrix, grid, provider, workers=workers).lock_all()


AXES = """
axes:
  python: {package: python, manager: conda, versions: ["%s"]}
  top: {package: top, manager: conda, versions: ">=1"}
  side: {package: side, manager: conda, versions: ">=1"}
  load: {values: [small, large]}
"""


ONE_AXIS = 'axes:\n  python: {package: python, versions: ["%s"]}\n'

VERSIONS = """
import importlib, json, sys
versions = {name: importlib.import_module(name.replace("-", "_")).__version__ for name in sys.argv[1:]}
print(json.dumps(versions))
"""


def names(lock):
    return {package.name: package.version for package in lock.packages}


def test_two_caches_two_runs_and_any_parallelism_give_the_same_bytes(tmp_path, python, matrix_of):
    seed = random.randrange(10**6)
    print("seed", seed)
    channel = world(tmp_path / "channel", python, seed)
    matrix = matrix_of(channel.url, AXES % python)
    written = []
    for run, workers in enumerate((1, 4)):
        if run:
            # The same records in another order.
            for data in channel.repodata.values():
                data["packages.conda"] = dict(sorted(data["packages.conda"].items(), reverse=True))
            channel.write()
        prepared = locked(matrix, tmp_path / f"cache{run}", workers)
        results = {**prepared.locks, **prepared.unsolvable}
        folder = tmp_path / f"locks{run}"
        write_locks(folder, "demo", {prepared.grid.combination(i).key: r for i, r in results.items()})
        written.append({path.name: path.read_bytes() for path in (folder / "demo").iterdir()})
    assert written[0] == written[1]
    assert any(name.endswith(SUFFIX) for name in written[0])


def test_values_share_an_environment(tmp_path, python, matrix_of):
    channel = world(tmp_path / "channel", python, 1)
    prepared = locked(matrix_of(channel.url, AXES % python), tmp_path / "cache")
    assert len(prepared.locks) + len(prepared.unsolvable) == 32
    assert prepared.environments <= 16
    for index, lock in prepared.locks.items():
        assert prepared.locks[(*index[:3], 1 - index[3])] is lock


def test_a_neighbour_keeps_what_it_can(tmp_path, python, matrix_of):
    channel = Channel(tmp_path / "channel")
    channel.add_python()
    for version in ("1.0", "2.0", "3.0"):
        channel.add_library("below", version)
    channel.add_library("top", "1.0", depends=["below <3"])
    channel.add_library("top", "2.0", depends=["below"])
    channel.add_library("top", "3.0", depends=["below >=3"])
    channel.write()
    axes = ONE_AXIS + "  top: {package: top, manager: conda, versions: [1.0, 2.0, 3.0]}\n"
    prepared = locked(matrix_of(channel.url, axes % python), tmp_path / "cache")
    versions = [names(prepared.locks[0, i])["below"] for i in range(3)]
    assert versions == ["2.0", "2.0", "3.0"], "2.0 stays where nothing asks for more"


def test_a_neighbour_without_a_lock_is_passed_over(tmp_path, python, matrix_of):
    channel = Channel(tmp_path / "channel")
    channel.add_python()
    for version in ("1.0", "2.0"):
        channel.add_library("below", version)
    channel.add_library("top", "1.0", depends=["below <2"])
    channel.add_library("top", "2.0", depends=["below >7"])
    channel.add_library("top", "3.0", depends=["below"])
    channel.write()
    axes = ONE_AXIS + "  top: {package: top, manager: conda, versions: [1.0, 2.0, 3.0]}\n"
    prepared = locked(matrix_of(channel.url, axes % python), tmp_path / "cache")
    assert isinstance(prepared.unsolvable[0, 1], UnsolvableError)
    assert "below >7" in prepared.unsolvable[0, 1].message
    assert names(prepared.locks[0, 2])["below"] == "1.0"


def test_wheels_keep_to_their_neighbour_too_but_not_along_dates(tmp_path, index, python, matrix_of):
    index.add("below", "1.0", uploaded="2020-01-01T00:00:00Z")
    index.add("below", "2.0", uploaded="2020-03-01T00:00:00Z")
    index.add("top", "1.0", requires=("below<2",))
    index.add("top", "2.0", requires=("below",))
    axes = (
        'axes:\n  python: {package: python, versions: ["%s"]}\n  top: {package: top, versions: [1.0, 2.0]}\n'
    )
    (tmp_path / "channel").mkdir()
    prepared = locked(matrix_of("unused", axes % python + f"index: {index.url}\n"), tmp_path / "cache")
    assert [names(prepared.locks[0, i])["below"] for i in range(2)] == ["1.0", "1.0"]
    axes = ONE_AXIS + "  day: {dates: [2020-02-01, 2020-04-01]}\npackages: [below]\n"
    prepared = locked(matrix_of("unused", axes % python + f"index: {index.url}\n"), tmp_path / "cache")
    assert [names(prepared.locks[0, i])["below"] for i in range(2)] == ["1.0", "2.0"]


def test_every_lock_of_a_channel_installs_and_runs(tmp_path, python, matrix_of):
    seed = random.randrange(10**6)
    print("seed", seed)
    channel = world(tmp_path / "channel", python, seed)
    prepared = locked(matrix_of(channel.url, AXES % python), tmp_path / "cache")
    for lock in {lock.content_hash: lock for lock in prepared.locks.values()}.values():
        prefix = ensure_prefix(lock, cache_dir=tmp_path / "cache")
        wanted = {name: version for name, version in names(lock).items() if name != "python"}
        command = [prefix.python, "-c", VERSIONS, *wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout) == wanted
    assert isinstance(next(iter(prepared.locks.values())), Lock)


def test_a_range_is_looked_up_in_the_channel(tmp_path, python, matrix_of):
    channel = Channel(tmp_path / "channel")
    channel.add_python()
    for version in ("2.0.9", "2.1.0", "2.1.1", "2.2.0", "2.5.1", "2.6.0"):
        channel.add_library("demo", version, build=f"cuda_{version[2]}")
    channel.add_library("demo", "2.3.0", build="cpu_0")
    channel.add_library("demo", "2.4.0", build="cuda_0", python="2.7")
    channel.add_library("demo", "2.4.1rc1", build="cuda_0")
    channel.add_library("demo", "2.5.2", build="cuda_0", timestamp=1_800_000_000_000)
    channel.write()
    other = tmp_path / "channel" / "win-64"
    other.mkdir()
    record = {"name": "demo", "version": "2.4.5", "build": "cuda_0", "build_number": 0, "depends": []}
    builds = {"demo-2.4.5-cuda_0.conda": {**record, "subdir": "win-64"}}
    data = {"info": {"subdir": "win-64"}, "packages": {}, "packages.conda": builds}
    (other / "repodata.json").write_text(json.dumps(data))
    matrix = matrix_of(
        channel.url,
        f"""
        axes:
          demo: {{package: demo, manager: conda, build: cuda*, versions: ">=2.1,<2.6"}}
          python: {{package: python, manager: conda, versions: ["{python}"]}}
        exclude_newer: 2026-01-31
        """,
    )
    axis = expand(matrix, Environments(tmp_path / "cache").catalogue, NOW).axes[0]
    assert axis.values == ("2.1.1", "2.2.0", "2.5.1"), "the newest patch release of each minor version"
    assert axis.dropped == {
        "2.3.0": "no build matches cuda*",
        "2.4.0": f"no build for Python {python}",
        "2.4.1rc1": "pre-release",
        "2.4.5": "no build for linux-64",
        "2.5.2": "uploaded on 2027-01-15, after exclude_newer",
    }
