"""The cache of a host, with real prefixes: damage is found, what is in use stays, kills do no harm."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from bisect_env.environments import integrity
from bisect_env.environments import prefix as prefix_module
from bisect_env.environments.bundle import Bundle
from bisect_env.environments.cache import (
    archives_lock,
    entries,
    free_bytes,
    growth,
    hold,
    lock_file,
    lock_path,
    prune,
    take_away,
    taking_away,
    usage,
    verify,
)
from bisect_env.environments.download import obtain
from bisect_env.environments.integrity import MARKER, changes_of
from bisect_env.environments.lock import UnbuildableError
from bisect_env.environments.lockfiles import make_lock
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.environments.provider import Environments
from bisect_env.environments.request import CondaRequest, EnvironmentRequest
from bisect_env.environments.settings import parse_size
from bisect_env.errors import UsageError
from bisect_env.matrix.versions import host_platform
from bisect_env.temporary import remove_tree

from .conda_channel import Channel
from .test_prefix import leftovers, lock, locked, run

__all__ = ["lock"]
pytestmark = pytest.mark.integration

HOLD = """
import sys, time
from pathlib import Path
from bisect_env.environments.cache import hold
lease = hold(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(100)
"""
# Imports once, then builds in a fork for each line that it reads: kills are to hit builds, not imports.
BUILDERS = """
import os, sys
from pathlib import Path
from bisect_env.environments.lockfiles import read_lock
from bisect_env.environments.prefix import ensure_prefix
lock = read_lock(Path(sys.argv[1]))
for _ in sys.stdin:
    child = os.fork()
    if not child:
        os.setsid()
        print(os.getpid(), flush=True)
        ensure_prefix(lock, cache_dir=Path(sys.argv[2]))
        os._exit(0)
    os.waitpid(child, 0)
    print("ended", flush=True)
"""
BULK = "x = '" + "a" * 400_000 + "'\n"


@pytest.fixture(autouse=True)
def _new_process(monkeypatch):
    """Each test begins as a process does that has looked at no prefix yet."""
    monkeypatch.setattr(integrity, "UNCHANGED", {})


def forget():
    integrity.UNCHANGED.clear()


def module_of(prefix, name):
    (path,) = prefix.path.glob(f"lib/python*/site-packages/{name}.py")
    return path


def spoil(path: Path) -> None:
    """Write into a file without another inode, as a script does that patches a library it finds."""
    path.chmod(0o644)
    with path.open("r+b") as stream:
        stream.write(b"#spoilt#")


def test_files_and_directories_are_read_only(lock, cache):
    prefix = ensure_prefix(lock, cache_dir=cache)
    site = module_of(prefix, "demo").parent
    assert not module_of(prefix, "demo").stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
    assert not site.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
    assert run(prefix, "import demo; print(demo.main.__name__)") == "main"


def test_a_prefix_that_was_written_to_is_made_anew_from_a_fresh_archive(lock, cache, index):
    first = ensure_prefix(lock, cache_dir=cache)
    spoil(module_of(first, "demo"))
    forget()
    fetched = len([path for path in index.requests if "demo" in path])
    again = ensure_prefix(lock, cache_dir=cache)
    assert len(changes_of(first.path)) == 1
    assert "was changed since it was made" in again.notes[0]
    assert "demo-1.0" in again.notes[1]
    assert "below" not in again.notes[1]
    assert module_of(again, "demo").read_text().startswith("import sys")
    assert len([path for path in index.requests if "demo" in path]) == fetched + 1
    assert [found.changed for found in verify(cache)] == [False] * 3
    assert leftovers(cache) == []


def test_what_was_added_to_a_prefix_is_noticed(lock, cache):
    prefix = ensure_prefix(lock, cache_dir=cache)
    site = module_of(prefix, "demo").parent
    site.chmod(0o755)
    (site / "sitecustomize.py").write_text("raise SystemExit(3)\n")
    forget()
    again = ensure_prefix(lock, cache_dir=cache)
    assert again.build_seconds > 0
    assert run(again, "print(1)") == "1"


def test_a_damaged_archive_is_found_by_the_next_prefix_that_is_made_from_it(lock, cache, index, python):
    ensure_prefix(lock, cache_dir=cache)
    (archive,) = cache.glob("uv/archive-v*/*/demo.py")
    spoil(archive)
    prefix = ensure_prefix(locked(index, python, "demo"), cache_dir=cache)
    assert "demo-1.0" in prefix.notes[0]
    assert "fetched again" in prefix.notes[0]
    assert run(prefix, "import demo; print(demo.main.__name__)") == "main"


def test_a_wheel_that_disagrees_with_its_own_list_is_built(index, cache, python):
    wrong = {"odd-1.0.dist-info/METADATA": "\n", "odd/sub/__init__.py": "x = 1\n"}
    index.add("odd", "1.0", modules={"odd/sub/__init__.py": "", "odd/__init__.py": ""}, added=wrong)
    prefix = ensure_prefix(locked(index, python, "odd"), cache_dir=cache)
    assert run(prefix, "import odd.sub; print(odd.sub.x)") == "1"


def test_archives_that_change_again_and_again_are_an_error(lock, cache, monkeypatch):
    monkeypatch.setattr(
        prefix_module.integrity,
        "changed_archives",
        lambda _prefix, _cache: list(cache.glob("uv/archive-v*/*")),
    )
    with pytest.raises(UnbuildableError, match="archives in the cache change while") as raised:
        ensure_prefix(lock, cache_dir=cache)
    assert raised.value.transient
    assert leftovers(cache) == []
    assert not (cache / "prefixes" / lock.content_hash).exists()


def test_verify_looks_at_everything_and_takes_away_what_is_not_in_use(lock, cache):
    prefix = ensure_prefix(lock, cache_dir=cache)
    spoil(module_of(prefix, "demo"))
    found = {c.name for c in verify(cache) if c.changed}
    assert lock.content_hash[:12] in found
    assert len(found) == 2, "the prefix and the archive that it shares the file with"
    assert [c.removed for c in verify(cache, [lock.content_hash[:6]], repair=True)] == [False], "in use"
    prefix.release()
    assert [c.removed for c in verify(cache, [lock.content_hash[:6]], repair=True)] == [True]
    assert not prefix.path.exists()
    assert len(changes_of(prefix.path)) == 1, "what ran in it is still void"
    assert [c.removed for c in verify(cache, repair=True) if c.changed] == [True]
    again = ensure_prefix(lock, cache_dir=cache)
    assert module_of(again, "demo").read_text().startswith("import sys")


def test_what_a_killed_builder_left_is_pruned(lock, cache):
    prefix = ensure_prefix(lock, cache_dir=cache)
    half = cache / "prefixes" / ("0" * 64)
    (half / "lib").mkdir(parents=True)
    # An installer that outlives its command has inherited the lock of the build.
    with lock_file(lock_path(half), exclusive=True, timeout=0.0) as held:
        assert held is not None
        prune(cache)
        assert half.exists()
    prune(cache)
    assert not half.exists()
    assert prefix.path.exists()


def test_least_recently_used_goes_first_and_what_is_in_use_stays(index, python, cache):
    locks = []
    for name in ("one", "two", "three"):
        index.add(name, "1.0", modules={f"{name}.py": BULK})
        locks.append(locked(index, python, name))
    held = [ensure_prefix(lock, cache_dir=cache) for lock in locks]
    for number, prefix in enumerate(held):
        os.utime(cache / "prefixes" / f".{prefix.path.name}.use", (1e9 + number, 1e9 + number))
    assert [entry.path for entry in entries(cache)] == [prefix.path for prefix in held]
    held[1].release()
    held[2].release()
    leftover = cache / "trash" / "half-removed" / "file"
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    full = usage(cache)
    dry = prune(cache, limit=full - 300_000, dry_run=True)
    assert usage(cache) == full
    assert leftover.exists()
    done = prune(cache, limit=full - 300_000)
    assert not leftover.exists()
    assert done.prefixes == (locks[1].content_hash,)
    assert done.in_use == (locks[0].content_hash,)
    assert (dry.prefixes, dry.freed, dry.archives) == (done.prefixes, done.freed, 1)
    assert usage(cache) == pytest.approx(done.left, abs=20_000)
    assert usage(cache) <= full - 300_000
    assert held[0].path.exists()
    assert held[2].path.exists()
    assert run(ensure_prefix(locks[1], cache_dir=cache), "import two; print(len(two.x))") == "400000"


def test_a_limit_is_kept_while_environments_are_built(index, python, cache):
    limit = 2_200_000
    for number in range(6):
        index.add(f"big{number}", "1.0", modules={f"big{number}.py": BULK})
        ensure_prefix(locked(index, python, f"big{number}"), cache_dir=cache, cache_limit=limit).release()
        assert usage(cache) <= limit
        assert entries(cache)[-1].path.exists(), "the one that was just asked for is in use"
    assert len(entries(cache)) < 6


def test_a_cache_is_kept_within_a_default_limit_and_measured_when_it_may_have_grown(
    index, python, cache, monkeypatch
):
    monkeypatch.setenv("BISECT_ENV_CACHE_SIZE", "2200000")
    for number in range(6):
        index.add(f"big{number}", "1.0", modules={f"big{number}.py": BULK})
        ensure_prefix(locked(index, python, f"big{number}"), cache_dir=cache).release()
    assert len(entries(cache)) < 6
    monkeypatch.setenv("BISECT_ENV_CACHE_SIZE", "1EB")
    for name in ("other", "more"):
        index.add(name, "1.0")
        ensure_prefix(locked(index, python, name), cache_dir=cache).release()
        measured = json.loads((cache / "measured.json").read_text())
    index.add("last", "1.0")
    ensure_prefix(locked(index, python, "last"), cache_dir=cache).release()
    now = json.loads((cache / "measured.json").read_text())
    assert now["at"] == measured["at"], "there was no need"
    assert now["bytes"] > measured["bytes"]


def test_a_cache_that_has_grown_says_so(lock, cache):
    ensure_prefix(lock, cache_dir=cache)
    free = free_bytes(cache)
    assert growth(cache, free + 1_000_000_000) == ""
    said = growth(cache, free + 5_000_000_000)
    assert f"the cache {cache} takes {usage(cache) / 1e9:.1f} GB" in said
    assert "bisect-env env prune --size" in said


def test_nobody_waits_while_files_of_the_cache_are_deleted(lock, cache, monkeypatch):
    ensure_prefix(lock, cache_dir=cache).release()
    place = cache / "prefixes" / lock.content_hash
    deleted = []

    def delete(folder):
        with (
            lock_file(archives_lock(cache), exclusive=True, timeout=0) as archives,
            taking_away(place) as is_free,
        ):
            deleted.append((archives is not None, is_free))
        remove_tree(folder)

    monkeypatch.setattr("bisect_env.environments.cache.remove_tree", delete)
    assert prune(cache).prefixes == (lock.content_hash,)
    assert len(deleted) == 3
    assert set(deleted) == {(True, True)}
    assert not list((cache / "trash").iterdir())


def test_everything_goes_when_nothing_is_in_use(lock, cache):
    prefix = ensure_prefix(lock, cache_dir=cache)
    assert prune(cache).in_use == (lock.content_hash,)
    prefix.release()
    assert prune(cache, unused_since=time.time() - 3600).prefixes == ()
    done = prune(cache)
    assert (done.prefixes, done.archives) == ((lock.content_hash,), 2)
    assert entries(cache) == []
    assert run(ensure_prefix(lock, cache_dir=cache), "import demo, below; print(1)") == "1"


def test_while_somebody_installs_archives_stay(lock, cache):
    ensure_prefix(lock, cache_dir=cache).release()
    with lock_file(archives_lock(cache), exclusive=False, timeout=1):
        done = prune(cache)
    assert (len(done.prefixes), done.archives) == (1, 0)


def test_a_lease_ends_with_its_process(lock, cache, tmp_path):
    ensure_prefix(lock, cache_dir=cache).release()
    folder = cache / "prefixes"
    holding = subprocess.Popen(
        [
            sys.executable,
            "-c",
            HOLD,
            folder / lock.content_hash,
        ],
        stdout=subprocess.PIPE,
    )
    assert holding.stdout is not None
    holding.stdout.readline()
    with taking_away(folder / lock.content_hash) as free:
        assert not free
    holding.kill()
    holding.communicate()
    with taking_away(folder / lock.content_hash) as free:
        assert free


def test_a_lease_is_not_fooled_by_a_file_that_is_taken_away_meanwhile(tmp_path):
    with taking_away(tmp_path / "prefix") as free:
        assert free
    lease = hold(tmp_path / "prefix")
    with taking_away(tmp_path / "prefix") as free:
        assert not free
    lease.release()
    lease.release()


def installers_of(cache):
    """Processes whose command names something in a cache."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(cache) in word for word in process.cmdline()):
                found.append(process.pid)
    return found


@pytest.mark.slow
def test_killed_at_random_instants_nothing_half_made_is_ever_used(lock, cache, tmp_path):
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    path = tmp_path / "demo.conda-lock.yml"
    path.write_text(lock.text)
    sound = 0
    final = cache / "prefixes" / lock.content_hash
    builders = subprocess.Popen(
        [sys.executable, "-c", BUILDERS, path, cache],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert builders.stdin
    assert builders.stdout
    with builders:
        for _ in range(30):
            builders.stdin.write("\n")
            builders.stdin.flush()
            child = int(builders.stdout.readline())
            # A build from archives that are known is over in a moment; one from the first on is not.
            time.sleep(chance.uniform(0, chance.choice((0.03, 0.3))))
            with contextlib.suppress(ProcessLookupError):  # it had come to its end
                os.killpg(child, signal.SIGKILL)
            assert builders.stdout.readline() == "ended\n"
            if (final / MARKER).exists():
                assert [c.changed for c in verify(cache, [lock.content_hash])] == [False]
                assert run(ensure_prefix(lock, cache_dir=cache), "import demo, below; print(1)") == "1"
                sound += 1
                remove_tree(cache / "prefixes")
            if chance.random() < 0.3:
                remove_tree(cache)
    print("finished before the kill:", sound)
    # An installer outlives the builder that was killed, and holds its place until it ends.
    patience = time.monotonic() + 30
    while installers_of(cache):
        assert time.monotonic() < patience
        time.sleep(0.02)
    prefix = ensure_prefix(lock, cache_dir=cache)
    assert run(prefix, "import demo, below; print(below.version)") == "2.0"
    assert leftovers(cache) == []


def test_a_prefix_without_packages_is_unchanged(cache, python):
    ensure_prefix(make_lock(python, host_platform(), []), cache_dir=cache)
    assert [c.changed for c in verify(cache)] == [False]


@pytest.mark.parametrize(("text", "size"), [("20GB", 20_000_000_000), ("512 MiB", 512 * 2**20), ("0", 0)])
def test_sizes(text, size):
    assert parse_size(text, "--size") == size


def test_what_is_no_size():
    with pytest.raises(UsageError, match="--size: 'lots' is not a size"):
        parse_size("lots", "--size")


@pytest.fixture
def conda_lock(tmp_path, cache, python):
    channel = Channel(tmp_path / "channel")
    channel.add_python()
    channel.add_library("of-conda", "1.0", python=python)
    channel.write()
    conda = CondaRequest(channels=(channel.url,), pins={"of-conda": "1.0"})
    return Environments(cache).solve(EnvironmentRequest(python, conda=conda))


def test_damage_in_a_conda_package_is_mended_too(conda_lock, cache):
    first = ensure_prefix(conda_lock, cache_dir=cache)
    assert [c.changed for c in verify(cache)] == [False] * 3
    spoil(module_of(first, "of_conda"))
    changed = [c.name for c in verify(cache) if c.changed]
    assert changed == [conda_lock.content_hash[:12], "conda/pkgs/of-conda-1.0-0"]
    forget()
    again = ensure_prefix(conda_lock, cache_dir=cache)
    assert "of-conda-1.0-0" in again.notes[1]
    assert run(again, "import of_conda; print(of_conda.__version__)") == "1.0"
    assert [c.changed for c in verify(cache)] == [False] * 3


def test_conda_packages_are_evicted_with_what_was_made_from_them(conda_lock, cache):
    ensure_prefix(conda_lock, cache_dir=cache).release()
    done = prune(cache)
    assert (done.prefixes, done.archives) == ((conda_lock.content_hash,), 2)
    assert run(ensure_prefix(conda_lock, cache_dir=cache), "import of_conda; print(1)") == "1"


def test_a_wheels_list_inside_a_conda_package_is_not_believed(tmp_path, cache, python):
    channel = Channel(tmp_path / "channel")
    channel.add_python()
    site = f"lib/python{python}/site-packages"
    stale = "changed.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n"
    channel.add(
        "changed",
        "1.0",
        depends=["python"],
        files={
            f"{site}/changed.py": "x = 1\n",
            f"{site}/changed-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: changed\n",
            f"{site}/changed-1.0.dist-info/RECORD": stale,
        },
    )
    channel.write()
    conda = CondaRequest(channels=(channel.url,), pins={"changed": "1.0"})
    lock = Environments(cache).solve(EnvironmentRequest(python, conda=conda))
    assert ensure_prefix(lock, cache_dir=cache).notes == ()


def test_conda_archives_come_from_a_directory_where_there_is_no_channel(conda_lock, cache, tmp_path):
    bundle = Bundle(tmp_path / "bundle")
    for package in conda_lock.packages:
        obtain(package, bundle.folder(package.sha256))
    remove_tree(tmp_path / "channel")
    prefix = ensure_prefix(conda_lock, cache_dir=tmp_path / "cache-there", offline=bundle.root)
    assert run(prefix, "import of_conda; print(of_conda.__version__)") == "1.0"
    (archive,) = bundle.folder(conda_lock.packages[0].sha256).glob("*")
    archive.write_bytes(archive.read_bytes()[:-1] + b"?")
    with pytest.raises(UnbuildableError, match="Hash mismatch"):
        ensure_prefix(conda_lock, cache_dir=tmp_path / "cache-2", offline=bundle.root)


def test_what_environments_share_is_told(index, python, cache):
    index.add("common", "1.0", modules={"common.py": f"text = {'x' * 50_000!r}\n"})
    index.add("one", "1.0")
    index.add("two", "1.0")
    for own in ("one", "two"):
        ensure_prefix(locked(index, python, "common", own), cache_dir=cache).release()
    found = entries(cache)
    assert len(found) == 2
    assert all(50_000 < entry.shared < entry.size for entry in found)


def test_a_directory_goes_while_another_process_empties_the_trash(tmp_path):
    prefix = tmp_path / "prefixes" / "one"
    ended = threading.Event()

    def empty_trash() -> None:
        while not ended.is_set():
            prune(tmp_path)

    other = threading.Thread(target=empty_trash)
    other.start()
    try:
        for _ in range(300):
            prefix.mkdir(parents=True, exist_ok=True)
            take_away(tmp_path, prefix)
            assert not prefix.exists()
    finally:
        ended.set()
        other.join()
