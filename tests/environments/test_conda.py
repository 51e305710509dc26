"""conda: from a request over a lock to a prefix that runs, with a channel made on the spot."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

from bisect_env.environments.lock import PackageNotFoundError, UnbuildableError, UnsolvableError
from bisect_env.environments.lockfiles import parse_lock
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.environments.provider import Environments
from bisect_env.environments.request import CondaRequest, EnvironmentRequest
from bisect_env.errors import UsageError
from bisect_env.matrix.versions import host_platform

from .conda_channel import Channel

pytestmark = pytest.mark.integration


@pytest.fixture
def channel(tmp_path, python):
    """`top` needs `below`, which is for all Pythons and brings a command."""
    channel = Channel(tmp_path / "channel")
    channel.add_python()
    main = "import sys\ndef main():\n    print('below', sys.prefix)\n"
    for version in ("1.0", "2.0"):
        channel.add_library("below", version, code=main, entry_points=["below-command = below:main"])
    channel.add_library("top", "3.0", python=python, depends=["below >=1.5", "below <9|>10"])
    channel.write()
    return channel


def request(channel, python, *, packages=(), virtual=None, exclude_newer=None, **pins):
    conda = CondaRequest(
        channels=(channel.url,) if isinstance(channel, Channel) else channel,
        pins=pins,
        packages=packages,
        virtual_packages=virtual or {},
    )
    return EnvironmentRequest(python, conda=conda, exclude_newer=exclude_newer)


def run(prefix, code):
    return subprocess.run(
        [prefix.python, "-c", code], capture_output=True, text=True, check=True, cwd="/", env={}, timeout=60
    ).stdout.strip()


def read_by_conda_lock(path):
    with warnings.catch_warnings():
        # Its vendored conda warns of its own plans as it is imported.
        warnings.simplefilter("ignore")
        from conda_lock.lockfile import parse_conda_lock_file
    return parse_conda_lock_file(path)


def test_a_request_becomes_a_lock_and_a_prefix_that_runs(channel, cache, python):
    lock = Environments(cache).solve(request(channel, python, top="3.0"))
    assert [(p.name, p.version, p.manager) for p in lock.packages] == [
        ("below", "2.0", "conda"),
        ("python", lock.python, "conda"),
        ("top", "3.0", "conda"),
    ]
    prefix = ensure_prefix(lock, cache_dir=cache)
    said = run(prefix, "import top, below, sys; print(top.__version__, below.__version__, sys.prefix)")
    assert said == f"3.0 2.0 {prefix.path}"
    command = subprocess.run(
        [prefix.path / "bin" / "below-command"], capture_output=True, text=True, check=True
    )
    assert command.stdout == f"below {prefix.path}\n", "the command names the place that it was renamed to"
    assert ensure_prefix(lock, cache_dir=cache).build_seconds == 0.0


def test_conda_lock_and_rattler_read_the_lock(channel, cache, python, tmp_path):
    lock = Environments(cache).solve(request(channel, python, top="3.0"))
    path = tmp_path / "conda-lock.yml"
    path.write_text(lock.text)
    theirs = {package.name: package for package in read_by_conda_lock(path).package}
    assert {name: (p.url, p.hash.sha256) for name, p in theirs.items()} == {
        p.name: (p.url, p.sha256) for p in lock.packages
    }
    assert theirs["top"].dependencies == {"below": ">=1.5,(<9|>10)", "python": f"{python}.*"}
    code = (
        "import sys, os, rattler\n"
        "file = rattler.LockFile.from_path(sys.argv[1])\n"
        "(platform,) = file.platforms()\n"
        "for record in file.default_environment().conda_repodata_records_for_platform(platform):\n"
        "    print(record.url, record.sha256.hex())\n"
        "sys.stdout.flush(); os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.splitlines()) == sorted(f"{p.url} {p.sha256}" for p in lock.packages)
    assert parse_lock(lock.text) == lock


def test_conda_lock_renders_an_explicit_file(channel, cache, python, tmp_path):
    lock = Environments(cache).solve(request(channel, python, top="3.0"))
    (tmp_path / "conda-lock.yml").write_text(lock.text)
    command = [sys.executable, "-m", "conda_lock", "render", "-k", "explicit", "-p", host_platform()]
    subprocess.run([*command, "conda-lock.yml"], cwd=tmp_path, check=True, capture_output=True, timeout=100)
    rendered = (tmp_path / f"conda-{host_platform()}.lock").read_text().splitlines()
    assert "@EXPLICIT" in rendered
    assert {line for line in rendered if "://" in line} == {f"{p.url}#{p.md5}" for p in lock.packages}


def test_no_solution_keeps_the_solvers_words(channel, cache, python):
    with pytest.raises(UnsolvableError, match=r"below.*1\.0|top"):
        Environments(cache).solve(request(channel, python, top="3.0", below="1.0"))


def test_a_package_that_no_channel_has_gets_near_names(channel, cache, python):
    with pytest.raises(
        PackageNotFoundError, match="no conda channel has a package 'bellow'; did you mean below"
    ):
        Environments(cache).solve(request(channel, python, bellow="1.0"))


def test_a_spec_that_cannot_be_read(channel, cache, python):
    with pytest.raises(UsageError, match="a conda spec cannot be read"):
        Environments(cache).solve(request(channel, python, packages=("below >>1",)))


def test_an_archive_on_disk_that_is_not_the_one_that_was_locked(channel, cache, python):
    lock = Environments(cache).solve(request(channel, python, top="3.0"))
    channel.add_library("top", "3.0", python=python, code="evil = 1\n")
    with pytest.raises(UnbuildableError, match=r"Hash mismatch for top 3\.0: the lock says") as raised:
        ensure_prefix(lock, cache_dir=cache)
    assert raised.value.transient
    assert not (cache / "prefixes" / lock.content_hash).exists()
