"""Hostile archives, builds that look around, and another user at the same cache: with the real unpackers."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bisect_env.environments.cache import prune
from bisect_env.environments.lock import LockedPackage, UnbuildableError
from bisect_env.environments.lockfiles import make_lock
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.environments.provider import Environments
from bisect_env.environments.request import EnvironmentRequest, host_platform
from bisect_env.errors import InfrastructureError

from .conda_channel import Channel
from .index_server import BUILD_MADE, IndexServer, Release
from .test_prefix import lock

__all__ = ["lock"]
pytestmark = pytest.mark.integration

SECRET = "hunter2"
# Hooks of PEP 517 in the archive itself; each notes what it sees around it.
BACK_END = (
    BUILD_MADE
    + """
import json, os
def note(hook):
    facts = {"hook": hook, "environment": dict(os.environ)}
    with open(SEEN, "a") as file:
        file.write(json.dumps(facts) + "\\n")
def get_requires_for_build_wheel(config_settings=None):
    note("requires")
    return []
def build_wheel(folder, config_settings=None, metadata_directory=None):
    note("build")
    return build_made(folder, "x = 1\\n")
"""
)
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "back"\nbackend-path = ["."]\n'


def source_distribution(files: dict[str, str], links: dict[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return buffer.getvalue()


def add(index: IndexServer, name: str, filename: str, content: bytes) -> LockedPackage:
    digest = hashlib.sha256(content).hexdigest()
    index.packages[name] = [Release(filename, content, "2020-01-01T00:00:00Z", False, None, digest)]
    url = f"{index.url.removesuffix('/simple')}/files/{filename}"
    return LockedPackage(name, "1.0", "pip", url, digest)


def a_source(index: IndexServer, seen: Path) -> LockedPackage:
    """A package that an index has as source alone, whose build says what it sees."""
    files = {"pyproject.toml": PROJECT, "PKG-INFO": "Metadata-Version: 2.1\nName: made\nVersion: 1.0\n"}
    files["back.py"] = BACK_END.replace("SEEN", repr(str(seen)))
    content = source_distribution({f"made-1.0/{name}": text for name, text in files.items()})
    return add(index, "made", "made-1.0.tar.gz", content)


def test_a_build_sees_what_a_trial_sees_and_runs_once(
    index: IndexServer, cache: Path, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen.jsonl"
    a_source(index, seen)
    login = index.url.replace("http://", f"http://me:{SECRET}@")
    for name, value in {
        "GITHUB_TOKEN": SECRET,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "BISECT_ENV_DB": f"postgresql://me:{SECRET}@db.example/results",
        "UV_DEFAULT_INDEX": login,
        "UV_INDEX_MINE_PASSWORD": SECRET,
    }.items():
        monkeypatch.setenv(name, value)
    # The index wants the login: that it is no variable of the build does not keep uv from it.
    wanted = "Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode()
    index.on_request = lambda _path: None if index.headers[-1].get("authorization") == wanted else 401
    request = EnvironmentRequest(python, {"made": "1.0"}, allow_source=True)
    made = Environments(cache).solve(request)
    ensure_prefix(made, cache_dir=cache, allow_source=True).release()
    again = Environments(cache).solve(request)
    assert again.content_hash == made.content_hash
    notes = [json.loads(line) for line in seen.read_text().splitlines()]
    assert SECRET not in json.dumps(notes)
    assert [note["hook"] for note in notes].count("build") == 1
    environment = notes[-1]["environment"]
    assert environment["HOME"] == os.environ["HOME"]
    assert not {"GITHUB_TOKEN", "BISECT_ENV_DB", "UV_INDEX_MINE_PASSWORD"} & set(environment)
    assert index.headers[-1]["authorization"] == wanted


def test_a_build_cannot_read_the_logins_that_uv_uses(
    index: IndexServer, cache: Path, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those of the netrc file nor those of an address; and what a build requires is fetched."""
    seen = tmp_path / "seen"
    looks = f"""
import os, sys
def note():
    path = os.environ.get("NETRC", "")
    text = open(path).read() if os.path.exists(path) else ""
    with open({str(seen)!r}, "a") as file:
        file.write(repr((dict(os.environ), text)) + "\\n")
note()
import helper
"""
    project = PROJECT.replace("requires = []", 'requires = ["helper"]')
    build = "def build_wheel(folder, config_settings=None, metadata_directory=None):\n    note()\n"
    files = {
        "pyproject.toml": project,
        "PKG-INFO": "Metadata-Version: 2.1\nName: made\nVersion: 1.0\n",
        "back.py": f"{BUILD_MADE}{looks}{build}    return build_made(folder, 'x = 1\\n')\n",
    }
    content = source_distribution({f"made-1.0/{name}": text for name, text in files.items()})
    add(index, "made", "made-1.0.tar.gz", content)
    index.add("helper", "1.0")
    wanted = "Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode()
    index.on_request = lambda _path: None if index.headers[-1].get("authorization") == wanted else 401
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login me password {SECRET}\n")
    netrc.chmod(0o600)
    for number, (name, value) in enumerate(
        [
            ("NETRC", str(netrc)),
            ("UV_DEFAULT_INDEX", index.url.replace("http://", f"http://me:{SECRET}@")),
        ]
    ):
        with monkeypatch.context() as patch:
            patch.setenv("UV_DEFAULT_INDEX", index.url)
            patch.setenv(name, value)
            own = cache.with_name(f"cache-{number}")
            made = Environments(own).solve(EnvironmentRequest(python, {"made": "1.0"}, allow_source=True))
            ensure_prefix(made, cache_dir=own, allow_source=True).release()
    assert seen.read_text().count("\n") >= 4
    assert SECRET not in seen.read_text()


def hostile_wheel(members: dict[str, str], links: dict[str, str], record: bool) -> bytes:
    files = {
        "evil/__init__.py": "",
        "evil-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n",
        "evil-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        **members,
    }
    listed = [f"{name},," for name in (*files, *links)] if record else []
    files["evil-1.0.dist-info/RECORD"] = "\n".join([*listed, "evil-1.0.dist-info/RECORD,,", ""])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)
        for name, target in links.items():
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, target)
    return buffer.getvalue()


def refuse_or_keep_inside(made: object, cache: Path, outside: Path, *, allow_source: bool = False) -> None:
    """Nothing is written outside, and no link in what was made leads there."""
    before = sorted(outside.rglob("*"))
    try:
        prefix = ensure_prefix(made, cache_dir=cache, allow_source=allow_source)  # type: ignore[arg-type]
    except UnbuildableError:
        pass
    else:
        for path in prefix.path.rglob("*"):
            if path.is_symlink():
                assert not path.resolve().is_relative_to(outside), path
        prefix.release()
    assert sorted(outside.rglob("*")) == before


@pytest.mark.parametrize("record", [True, False], ids=["listed", "hidden"])
@pytest.mark.parametrize("kind", ["parent", "absolute", "link", "data"])
def test_a_hostile_wheel_stays_inside(
    index: IndexServer, cache: Path, python: str, tmp_path: Path, kind: str, record: bool
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    up = "../" * 12
    members, links = {
        "parent": ({f"{up}{str(outside)[1:]}/evil.py": "evil"}, {}),
        "absolute": ({f"{outside}/evil.py": "evil"}, {}),
        "link": ({"evil/way/evil.py": "evil"}, {"evil/way": str(outside)}),
        "data": ({f"evil-1.0.data/data/{up}{str(outside)[1:]}/evil.py": "evil"}, {}),
    }[kind]
    package = add(index, "evil", "evil-1.0-py3-none-any.whl", hostile_wheel(members, links, record))
    refuse_or_keep_inside(make_lock(python, host_platform(), [package]), cache, outside)


@pytest.mark.parametrize("kind", ["parent", "absolute", "link"])
def test_a_hostile_source_distribution_stays_inside(
    index: IndexServer, cache: Path, python: str, tmp_path: Path, kind: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    up = "../" * 12
    members, links = {
        "parent": ({f"evil-1.0/{up}{str(outside)[1:]}/evil.py": "evil"}, {}),
        "absolute": ({f"{outside}/evil.py": "evil"}, {}),
        "link": ({}, {"evil-1.0/way": str(outside)}),
    }[kind]
    files = {"evil-1.0/pyproject.toml": PROJECT, "evil-1.0/back.py": "raise SystemExit('built')", **members}
    content = source_distribution(files, links)
    if kind == "link":
        # A file through the link that comes before it.
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w:gz") as archive:
            for name, target in links.items():
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = tarfile.SYMTYPE, target
                archive.addfile(entry)
            for name, text in {**files, "evil-1.0/way/evil.py": "evil"}.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text.encode()))
        content = raw.getvalue()
    package = add(index, "evil", "evil-1.0.tar.gz", content)
    made = make_lock(python, host_platform(), [package])
    refuse_or_keep_inside(made, cache, outside, allow_source=True)


def conda_package(channel: Channel, record: dict[str, str]) -> LockedPackage:
    name = f"{record['name']}-{record['version']}-{record['build']}.conda"
    return LockedPackage(
        record["name"],
        record["version"],
        "conda",
        f"{channel.url}/{record['subdir']}/{name}",
        record["sha256"],
        record["build"],
        record["md5"],
    )


@pytest.mark.parametrize("kind", ["parent", "absolute", "link"])
def test_a_hostile_conda_package_stays_inside(cache: Path, python: str, tmp_path: Path, kind: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    channel = Channel(tmp_path / "channel")
    interpreter = channel.add_python(python)
    up = "../" * 12
    files, links = {
        "parent": ({f"{up}{str(outside)[1:]}/evil.py": "evil"}, {}),
        "absolute": ({f"{outside}/evil.py": "evil"}, {}),
        "link": ({"lib/way/evil.py": "evil"}, {"lib/way": str(outside)}),
    }[kind]
    evil = channel.add("evil", "1.0", files=files, links=links)
    channel.write()
    packages = [conda_package(channel, record) for record in (interpreter, evil)]
    made = make_lock(interpreter["version"], host_platform(), packages)
    before = sorted(outside.rglob("*"))
    with contextlib.suppress(UnbuildableError):
        ensure_prefix(made, cache_dir=cache).release()
    assert sorted(outside.rglob("*")) == before


BOMB = 1 << 30
ALLOWED = 200 << 20


def bomb_wheel() -> bytes:
    """A wheel of a megabyte with a member of a gigabyte."""
    buffer = io.BytesIO(hostile_wheel({}, {}, record=True))
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as archive:
        info = zipfile.ZipInfo("evil/bomb.bin")
        info.compress_type = zipfile.ZIP_DEFLATED
        with archive.open(info, "w") as member:
            for _ in range(BOMB >> 20):
                member.write(bytes(1 << 20))
    return buffer.getvalue()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 320 MiB of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=320m", "none", str(place)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True, capture_output=True, timeout=20)


def test_an_archive_that_fills_the_disk_says_nothing_of_the_environment_and_leaves_nothing(
    index: IndexServer, small_disk: Path, python: str
) -> None:
    package = add(index, "evil", "evil-1.0-py3-none-any.whl", bomb_wheel())
    with pytest.raises(UnbuildableError, match="No space left") as raised:
        ensure_prefix(make_lock(python, host_platform(), [package]), cache_dir=small_disk / "cache")
    assert raised.value.transient
    assert shutil.disk_usage(small_disk).free > 300 << 20


READER = """
import os, sys
from pathlib import Path
from bisect_env.environments.cache import hold
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
lease = hold(Path(sys.argv[1]) / sys.argv[2])
print((Path(sys.argv[1]) / sys.argv[2] / "pyvenv.cfg").is_file(), flush=True)
sys.stdin.readline()
lease.release()
"""


BUILDER = """
import os, sys
from pathlib import Path
from bisect_env.environments.lockfiles import read_lock
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.errors import BisectEnvError
made = read_lock(Path(sys.argv[1]))
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    prefix = ensure_prefix(made, cache_dir=Path(sys.argv[2]))
except BisectEnvError as error:
    print(error, "|", error.remedy)
else:
    print("used", prefix.path)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_who_may_not_execute_the_python_of_a_shared_cache_is_told_so(  # type: ignore[no-untyped-def]
    lock, cache: Path, tmp_path: Path
) -> None:
    prefix = ensure_prefix(lock, cache_dir=cache)
    prefix.release()
    open_to_all(tmp_path)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    python = prefix.path / "bin" / "python"
    # The owner's Python in the owner's home, as pyenv and uv have it.
    (home / "python").symlink_to(os.path.realpath(python))
    prefix.path.joinpath("bin").chmod(0o755)
    python.unlink()
    python.symlink_to(home / "python")
    stored = tmp_path / "lock.yml"
    stored.write_text(lock.text)
    stored.chmod(0o644)
    said = subprocess.run(
        [sys.executable, "-c", BUILDER, str(stored), str(cache)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert f"uses the Python {home / 'python'}" in said, said
    assert "may not execute" in said
    assert "--cache" in said


def open_to_all(folder: Path) -> None:
    """Let every user read what lies there, as a shared folder does."""
    for above in (folder, *folder.parents):
        if above.owner() == "root" and above != Path("/") and above.stat().st_mode & 0o005 != 0o005:
            above.chmod(above.stat().st_mode | 0o055)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_what_another_user_uses_stays_in_the_cache(lock, cache: Path, tmp_path: Path) -> None:
    ensure_prefix(lock, cache_dir=cache).release()
    open_to_all(tmp_path)
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(cache / "prefixes"), lock.content_hash],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert reader.stdout is not None
    assert reader.stdin is not None
    assert reader.stderr is not None
    with reader:
        assert reader.stdout.readline() == "True\n", reader.stderr.read()
        pruned = prune(cache, limit=0)
        assert (pruned.prefixes, pruned.in_use) == ((), (lock.content_hash,))
        reader.stdin.write("\n")
        reader.stdin.close()
        assert reader.wait(timeout=60) == 0, reader.stderr.read()
    assert prune(cache, limit=0).prefixes == (lock.content_hash,)


LOCKING = """
import fcntl, os, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
held = []
for folder, _, files in os.walk(sys.argv[1]):
    for name in files:
        if name.endswith((".lock", ".use")):
            try:
                held.append(os.open(os.path.join(folder, name), os.O_RDONLY))
                fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                print(os.path.join(folder, name))
            except OSError:
                pass
print("locked", flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_reader_of_a_shared_cache_cannot_keep_it_locked(  # type: ignore[no-untyped-def]
    lock, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = ensure_prefix(lock, cache_dir=cache)
    prefix.release()
    open_to_all(tmp_path)
    words = [sys.executable, "-c", LOCKING, str(cache)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdin is not None
        held = [Path(line.strip()) for line in iter(reader.stdout.readline, "locked\n")]
        # What an environment in use is known by stays open to readers; nothing else is.
        assert [path.name for path in held] == [f".{lock.content_hash}.use"]
        monkeypatch.setattr("bisect_env.environments.cache.LEASE_PATIENCE", 0.2)
        with pytest.raises(InfrastructureError, match=rf"process {reader.pid} of user nobody") as caught:
            ensure_prefix(lock, cache_dir=cache)
        assert "chmod 700" in str(caught.value.remedy)
        reader.stdin.write("\n")
        reader.stdin.flush()
        reader.wait(30)
    ensure_prefix(lock, cache_dir=cache).release()
