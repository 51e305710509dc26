"""Prefixes that are put together from what installers did before: the same, in every byte, or not at all."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bisect_env.environments import bytecode, install_manifest, prefix
from bisect_env.environments.cache import prune, verify
from bisect_env.environments.install_manifest import UnfitError, assemble
from bisect_env.environments.integrity import remove_tree
from bisect_env.environments.interpreters import machine_interpreters
from bisect_env.environments.lockfiles import make_lock
from bisect_env.environments.prefix import MARKER, ensure_prefix
from bisect_env.environments.provider import Locker
from bisect_env.environments.request import CondaRequest, EnvironmentRequest
from bisect_env.matrix.versions import host_platform

from .conda_channel import Channel
from .test_cache import BUILDERS, forget, module_of, spoil
from .test_hostile import a_source
from .test_prefix import leftovers, lock, locked, run

__all__ = ["lock"]
pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Let every environment count as a large one: only those are remembered."""
    monkeypatch.setattr(bytecode, "SMALL", -1)


@pytest.fixture
def no_installers(monkeypatch):
    """From the call on, whoever asks uv or rattler for a prefix fails."""

    def forbid():
        def never(*args, **kwargs):
            raise AssertionError("an installer was asked")

        monkeypatch.setattr(prefix, "make_empty", never)
        monkeypatch.setattr(prefix, "install", never)
        monkeypatch.setattr(prefix.conda_process, "fill", never)

    return forbid


@pytest.fixture
def installs(monkeypatch):
    """Counts how often the installers fill a prefix."""
    count = []
    for module, name in ((prefix, "make_empty"), (prefix.conda_process, "fill")):
        begin = getattr(module, name)
        counted = lambda *args, begin=begin, **options: count.append(1) or begin(*args, **options)  # noqa: E731
        monkeypatch.setattr(module, name, counted)
    return count


def everything(prefix: Path) -> dict[str, tuple]:
    """Each file, link and directory of a prefix, with all that one can see of it; its own name neutral."""
    found = {}
    for path in sorted(prefix.rglob("*")):
        name = str(path.relative_to(prefix))
        if name in (MARKER, "conda-lock.yml"):
            continue
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        elif path.is_dir():
            found[name] = ("directory", mode)
        elif path.suffix == ".pyc":
            found[name] = ("bytecode", mode)  # it names the time at which the archive was unpacked
        else:
            found[name] = (mode, path.read_bytes().replace(os.fsencode(prefix.name), b"<hash>"))
    return found


def rebuilt(lock, cache, **options):
    """The prefix of a lock, made once more."""
    remove_tree(cache / "prefixes")
    forget()
    return ensure_prefix(lock, cache_dir=cache, **options)


class TestWheels:
    def test_what_is_known_needs_no_installer_and_is_the_same(
        self, lock, index, python, cache, tmp_path, no_installers
    ):
        """Two environments teach what a third one needs that was never there before."""
        index.add("third", "3.0", scripts={"third": "third:main"}, modules={"third.py": "main = print\n"})
        for names in (("demo", "below"), ("third",)):
            ensure_prefix(locked(index, python, *names), cache_dir=cache)
        wanted = locked(index, python, "demo", "third")
        by_installer = ensure_prefix(wanted, cache_dir=tmp_path / "other" / "cache")
        seen = everything(by_installer.path)
        asked = len(index.requests)
        no_installers()
        prefix = ensure_prefix(wanted, cache_dir=cache)
        assert everything(prefix.path) == seen
        assert len(index.requests) == asked
        assert run(prefix, "import demo, third; print(third.__name__)") == "third"
        done = subprocess.run([prefix.path / "bin/demo-command"], capture_output=True, text=True, check=True)
        assert done.stdout == f"demo {prefix.path}\n"
        assert [c for c in verify(cache) if c.damaged] == []
        forget()
        assert ensure_prefix(wanted, cache_dir=cache).build_seconds == 0, "it is as its marker says"

    def test_files_are_shared_with_the_archive(self, lock, cache, no_installers):
        ensure_prefix(lock, cache_dir=cache)
        no_installers()
        prefix = rebuilt(lock, cache)
        (archive,) = cache.glob("uv/archive-v*/*/demo.py")
        assert module_of(prefix, "demo").samefile(archive)

    def test_one_file_of_several_packages(self, index, python, cache, no_installers):
        """As nvidia/__init__.py is in the wheels of CUDA's libraries."""
        for name in ("left", "right"):
            modules = {"shared/__init__.py": "", f"shared/{name}.py": "x = 1\n"}
            index.add(name, "1.0", modules=modules)
        both = locked(index, python, "left", "right")
        first = everything(ensure_prefix(both, cache_dir=cache).path)
        no_installers()
        assert everything(rebuilt(both, cache).path) == first
        for name in ("left", "right"):
            prefix = ensure_prefix(locked(index, python, name), cache_dir=cache)
            (folder,) = prefix.path.glob("lib/python*/site-packages/shared")
            assert {path.name for path in folder.glob("*.py")} == {"__init__.py", f"{name}.py"}
            assert len(list(folder.glob("__pycache__/*.pyc"))) == 2
            assert run(prefix, f"import shared.{name}; print(shared.{name}.x)") == "1"

    def test_different_files_in_one_place_are_the_installers_affair(self, index, python, cache, installs):
        for name in ("left", "right"):
            index.add(name, "1.0", modules={"same.py": f"x = '{name}'\n"})
            ensure_prefix(locked(index, python, name), cache_dir=cache)
        known = {p.name: install_manifest.load(cache, p.name) for p in install_manifest.all_manifests(cache)}
        with pytest.raises(UnfitError):
            assemble(cache / "prefixes" / "place", cache / "prefixes" / ("0" * 64), cache, known)

    def test_sources_are_installed_each_time(self, index, cache, python, tmp_path, installs):
        made = a_source(index, tmp_path / "seen.jsonl")
        source = make_lock(python, host_platform(), [made])
        ensure_prefix(source, cache_dir=cache, allow_source=True)
        rebuilt(source, cache, allow_source=True)
        assert (len(installs), install_manifest.all_manifests(cache)) == (2, [])

    def test_an_environment_without_packages(self, cache, python, no_installers):
        empty = make_lock(python, host_platform(), [])
        first = everything(ensure_prefix(empty, cache_dir=cache).path)
        no_installers()
        prefix = rebuilt(empty, cache)
        assert everything(prefix.path) == first
        assert run(prefix, "import sys; print(sys.prefix)") == str(prefix.path)


class TestDoubt:
    """Whatever is not as it was when its hash was looked at is for the installer to judge."""

    def test_a_kept_file_that_was_written_to(self, lock, cache, installs):
        prefix = ensure_prefix(lock, cache_dir=cache)
        seen = everything(prefix.path)
        spoil(prefix.path / "bin" / "demo-command")
        again = rebuilt(lock, cache)
        assert len(installs) == 2
        assert everything(again.path) == seen
        assert len(installs) == 2
        rebuilt(lock, cache)
        assert len(installs) == 2, "it was remembered anew"

    def test_a_file_of_the_empty_environment_that_was_written_to(self, lock, cache, installs):
        prefix = ensure_prefix(lock, cache_dir=cache)
        seen = everything(prefix.path)
        spoil(prefix.path / "pyvenv.cfg")
        forget()
        again = ensure_prefix(lock, cache_dir=cache)
        assert (len(installs), everything(again.path)) == (2, seen)

    def test_an_archive_that_is_gone(self, lock, cache, installs):
        seen = everything(ensure_prefix(lock, cache_dir=cache).path)
        for archive in cache.glob("uv/archive-v*/*"):
            remove_tree(archive)
        assert everything(rebuilt(lock, cache).path) == seen
        assert len(installs) == 2

    def test_a_list_that_was_damaged(self, lock, cache, installs):
        seen = everything(ensure_prefix(lock, cache_dir=cache).path)
        for place in install_manifest.all_manifests(cache):
            listing = place / "part.json"
            listing.write_bytes(listing.read_bytes().replace(b"demo", b"dema"))
        assert len([c for c in verify(cache) if c.damaged]) >= 1
        assert everything(rebuilt(lock, cache).path) == seen
        assert len(installs) == 2
        assert [c for c in verify(cache) if c.damaged] == []

    def test_rot_in_a_kept_file_is_found_by_verify(self, lock, cache, installs):
        prefix = ensure_prefix(lock, cache_dir=cache)
        seen = everything(prefix.path)
        path = prefix.path / "bin" / "activate"
        before = path.stat()
        spoil(path)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        (found,) = (c for c in verify(cache) if c.damaged)
        assert (found.name[:6], found.damaged) == ("parts/", {"base": 1})
        assert [c.removed for c in verify(cache, repair=True) if c.damaged] == [True]
        assert everything(rebuilt(lock, cache).path) == seen

    def test_other_installers_other_parts(self, lock, cache, python, monkeypatch):
        interpreter = machine_interpreters().find(python)
        here = install_manifest.keys(lock, cache, interpreter)
        assert install_manifest.keys(lock, cache / "elsewhere", interpreter).keys() == here.keys()
        assert not set(install_manifest.keys(lock, cache / "elsewhere", interpreter).values()) & set(
            here.values()
        )
        monkeypatch.setattr(install_manifest, "package_version", lambda tool: "99")
        assert not set(install_manifest.keys(lock, cache, interpreter).values()) & set(here.values())

    def test_where_nothing_can_be_linked(self, lock, cache, monkeypatch, installs):
        def refuse(*args, **kwargs):
            raise PermissionError(1, "Operation not permitted")

        with monkeypatch.context() as patched:
            patched.setattr(os, "link", refuse)
            ensure_prefix(lock, cache_dir=cache)
            assert install_manifest.all_manifests(cache) == []
        ensure_prefix(lock, cache_dir=cache)
        rebuilt(lock, cache)
        assert install_manifest.all_manifests(cache)
        monkeypatch.setattr(os, "link", refuse)
        rebuilt(lock, cache)
        assert len(installs) == 3
        assert leftovers(cache) == []


def test_parts_go_with_what_they_were_made_for(lock, cache):
    prefix = ensure_prefix(lock, cache_dir=cache)
    (cache / "parts" / ".new-left-by-somebody-killed").mkdir()
    prune(cache)
    assert len(install_manifest.all_manifests(cache)) == 3, "the prefix is in use"
    prefix.release()
    prune(cache)
    assert list((cache / "parts").iterdir()) == []


@pytest.mark.slow
def test_killed_while_it_is_put_together(index, python, cache, tmp_path):
    """Also while parts are written: every fourth time they have to be made again."""
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    index.add("many", "1.0", modules={f"many/part{n}.py": f"x = {n}\n" for n in range(400)})
    wanted = locked(index, python, "many")
    seen = everything(ensure_prefix(wanted, cache_dir=cache).path)
    path = tmp_path / "many.conda-lock.yml"
    path.write_text(wanted.text)
    final = cache / "prefixes" / wanted.content_hash
    # In another process, too, every environment counts as a large one.
    builders_of_large = f"from bisect_env.environments import bytecode\nbytecode.SMALL = -1\n{BUILDERS}"
    command = [sys.executable, "-c", builders_of_large, path, cache]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as builders:
        for n in range(24):
            remove_tree(cache / "prefixes")
            if n % 4 == 0:
                remove_tree(cache / "parts")
            builders.stdin.write("\n")
            builders.stdin.flush()
            child = int(builders.stdout.readline())
            time.sleep(chance.uniform(0, 0.3 if n % 4 == 0 else 0.04))
            with contextlib.suppress(ProcessLookupError):  # it was faster
                os.killpg(child, signal.SIGKILL)
            assert builders.stdout.readline() == "ended\n"
            if final.exists():
                assert everything(final) == seen
    assert everything(ensure_prefix(wanted, cache_dir=cache).path) == seen
    assert leftovers(cache) == []
    assert [c for c in verify(cache) if c.damaged] == []


PLACEHOLDER = "/opt/placehold" + "_placehold" * 24


@pytest.fixture
def conda_lock(tmp_path, cache, python):
    """Packages that name their prefix in every way that conda knows."""
    channel = Channel(tmp_path / "channel")
    channel.add_python()
    channel.add(
        "named",
        "1.0",
        files={
            "etc/named.conf": f"root={PLACEHOLDER}/etc and {PLACEHOLDER}\n",
            "lib/named.bin": b"\x7fELF" + PLACEHOLDER.encode() + b"/lib\0\0tail",
            "bin/named": f"#!{PLACEHOLDER}/bin/python\nprint('named')\n",
            "share/plain.txt": "nothing of the kind\n",
        },
        links={"etc/link.conf": "named.conf"},
        executable=["bin/named"],
        placeholders={
            "etc/named.conf": (PLACEHOLDER, "text"),
            "lib/named.bin": (PLACEHOLDER, "binary"),
            "bin/named": (PLACEHOLDER, "text"),
        },
    )
    channel.add_library("pure", "1.0", entry_points=["pure-command = pure:main"], code="main = print\n")
    channel.write()
    return _locked_conda(channel, cache, python, "named", "pure")


def _locked_conda(channel, cache, python, *names, **more):
    conda = CondaRequest(channels=(channel.url,), pins=dict.fromkeys(names, "1.0"))
    return Locker(cache).lock(EnvironmentRequest(python, conda=conda, **more))


class TestConda:
    def test_what_is_known_needs_no_installer_and_is_the_same(
        self, conda_lock, cache, tmp_path, python, no_installers
    ):
        first = ensure_prefix(conda_lock, cache_dir=cache)
        channel = Channel.__new__(Channel)
        channel.folder = tmp_path / "channel"
        other = _locked_conda(channel, cache, python, "named")
        # The other package's files, and the directory of its bytecode.
        gone = ("pure", "site-packages/__pycache__")
        seen = {p: facts for p, facts in everything(first.path).items() if not any(g in p for g in gone)}
        assert os.fsencode(str(first.path)) in (first.path / "lib/named.bin").read_bytes()
        no_installers()
        prefix = ensure_prefix(other, cache_dir=cache)
        found = everything(prefix.path)
        meta = "conda-meta/named-1.0-0.json"
        assert {p: f for p, f in found.items() if p != meta} == {p: f for p, f in seen.items() if p != meta}
        assert str(prefix.path) in (prefix.path / "etc/named.conf").read_text()
        assert (prefix.path / "lib/named.bin").read_bytes().endswith(b"tail")
        assert subprocess.run([prefix.path / "bin/named"], capture_output=True).stdout == b"named\n"
        assert [c for c in verify(cache) if c.damaged] == [], "the list states the new hashes"
        assert (prefix.path / meta).read_bytes() != (first.path / meta).read_bytes()
        # And what an installer makes of that lock is the same to the last byte, list included.
        remove_tree(prefix.path)
        remove_tree(cache / "parts")
        assert found[meta][1] == _installed(other, cache)[meta][1]

    def test_wheels_on_top(self, index, conda_lock, tmp_path, cache, python, monkeypatch, no_installers):
        monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
        index.add("demo", "1.0", scripts={"demo-command": "demo:main"}, modules={"demo.py": "main = print\n"})
        channel = Channel.__new__(Channel)
        channel.folder = tmp_path / "channel"
        mixed = _locked_conda(channel, cache, python, "named", pins={"demo": "1.0"})
        assert {p.manager for p in mixed.packages} == {"conda", "pip"}
        first = everything(ensure_prefix(mixed, cache_dir=cache).path)
        alone = _locked_conda(channel, cache, python, pins={"demo": "1.0"})
        no_installers()
        assert everything(rebuilt(mixed, cache).path) == first
        prefix = ensure_prefix(alone, cache_dir=cache)
        command = prefix.path / "bin" / "demo-command"
        assert str(prefix.path) in command.read_text()
        assert subprocess.run([command], check=False).returncode == 0
        assert [c for c in verify(cache) if c.damaged] == []

    def test_packages_that_share_a_path_are_left_to_rattler(self, tmp_path, cache, python, installs):
        channel = Channel(tmp_path / "channel")
        channel.add_python()
        for name in ("left", "right"):
            channel.add(name, "1.0", files={"share/same.txt": f"{name}\n", f"share/{name}": name})
        channel.write()
        both = _locked_conda(channel, cache, python, "left", "right")
        ensure_prefix(both, cache_dir=cache)
        assert (len(installs), len(install_manifest.all_manifests(cache))) == (1, 0)
        for name in ("left", "right"):
            ensure_prefix(_locked_conda(channel, cache, python, name), cache_dir=cache)
        rebuilt(both, cache)
        assert len(installs) == 4, "known one by one, and yet not together"


def _installed(lock, cache):
    """What a prefix looks like that the installers fill, asked again where they were forbidden."""
    code = (
        "import sys; from pathlib import Path\n"
        "from bisect_env.environments.lockfiles import read_lock\n"
        "from bisect_env.environments.prefix import ensure_prefix\n"
        "ensure_prefix(read_lock(Path(sys.argv[1])), cache_dir=Path(sys.argv[2]))\n"
    )
    path = cache.parent / "other.conda-lock.yml"
    path.write_text(lock.text)
    subprocess.run([sys.executable, "-c", code, path, cache], check=True)
    return everything(cache / "prefixes" / lock.content_hash)
