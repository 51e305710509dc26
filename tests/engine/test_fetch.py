"""A directory for hosts without a network: fetched, copied file by file, and enough for a whole study."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bisect_env.cluster.pool import PoolExecutor
from bisect_env.engine.fetch import Fetched, fetch_study
from bisect_env.environments.bundle import Bundle, BundledAnswers
from bisect_env.environments.cache import take_away
from bisect_env.environments.download import obtain
from bisect_env.environments.interpreters import Interpreters, fetch_python, offline_environment
from bisect_env.environments.lock import LockedPackage, UnbuildableError
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.environments.provider import Environments, OfflineEnvironments
from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.matrix.load import load_matrix
from tests.engine.studies import PYTHON, Studies
from tests.environments.conda_channel import Channel
from tests.environments.conftest import index, no_user_settings
from tests.environments.index_server import BUILD_MADE, IndexServer, Release, make_wheel

__all__ = ["index", "no_user_settings"]
pytestmark = pytest.mark.integration

COMMAND = [sys.executable, "-m", "bisect_env"]
BACK_END = f"""{BUILD_MADE}
def get_requires_for_build_wheel(config_settings=None):
    return []
def build_wheel(folder, config_settings=None, metadata_directory=None):
    return build_made(folder, "origin = 'source'\\n")
"""
SOURCE = {
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "back"\nbackend-path = ["."]\n'
    '[project]\nname = "made"\nversion = "1.0"\n',
    "back.py": BACK_END,
    "PKG-INFO": "Metadata-Version: 2.1\nName: made\nVersion: 1.0\n",
}


def source_distribution() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in SOURCE.items():
            entry = tarfile.TarInfo(f"made-1.0/{name}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


@pytest.fixture
def matrix(studies: Studies, index: IndexServer) -> Path:
    """Four versions of a package, the last two of which crash."""
    for version in ("1.0", "1.1", "1.2", "1.3"):
        index.add("culprit", version, requires=("below",))
    index.add("below", "5.0", modules={"below.py": f"x = '{'b' * 30_000}'\n"})
    return written(
        studies,
        """
        import below, culprit
        assert len(below.x) == 30_000
        assert culprit.version < "1.2"
        """,
        axes='culprit: {package: culprit, versions: ">=1.0", step: patch}',
        rest=f"index: {index.url}",
    )


def written(studies: Studies, script: str, **replace: str) -> Path:
    path = studies.matrix(script, **replace)
    path.write_text(path.read_text().replace(" {level}", ""))
    return path


def fetched(studies: Studies, matrix: Path, root: Path, **options: Any) -> Fetched:
    loaded = load_matrix(matrix)
    provider = Environments(studies.folder / "cache", index=loaded.file.index)
    return fetch_study(
        loaded,
        provider=provider,
        root=root,
        cache_dir=studies.folder / "cache",
        pythons=False,
        **options,
    )


def copied(source: Path, target: Path, files: list[Path]) -> None:
    for file in files:
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)


def files_of(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def archived(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in files_of(root) if path.parent.name != "studies"}


def no_network() -> list[str]:
    """Begins a command that has a loopback interface and no other."""
    words = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    try:
        able = subprocess.run([*words, "true"], capture_output=True, timeout=20, check=False).returncode == 0
    except FileNotFoundError:
        able = False
    if not able:
        pytest.skip("this host does not allow network namespaces")
    return words


def test_a_directory_that_cannot_be_written_is_said_with_the_option(studies: Studies, matrix: Path) -> None:
    (studies.folder / "file").touch()
    with pytest.raises(InfrastructureError, match="cannot be written") as caught:
        fetched(studies, matrix, studies.folder / "file" / "bundle")
    assert "another directory with --output;" in (caught.value.remedy or "")


@pytest.mark.slow
def test_a_study_without_a_network_from_a_copy_made_file_by_file(
    studies: Studies, matrix: Path, index: IndexServer, tmp_path: Path
) -> None:
    begin = no_network()
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    bundle, copy = tmp_path / "bundle", tmp_path / "elsewhere" / "copy"
    done = fetched(studies, matrix, bundle)
    assert (done.environments, done.unsolvable, done.archives, done.warnings) == (4, 0, 5, ())
    files = files_of(bundle)
    assert not any(path.is_symlink() for path in files)
    random.Random(seed).shuffle(files)
    env = {
        **os.environ,
        "BISECT_ENV_CACHE": str(tmp_path / "cache-there"),
        "BISECT_ENV_DB": str(tmp_path / "there.sqlite"),
        "BISECT_ENV_LOCKFILES": str(tmp_path / "locks-there"),
    }

    def there() -> subprocess.CompletedProcess[str]:
        words = [*begin, *COMMAND, "run", str(matrix), "--offline", str(copy), "--quiet"]
        return subprocess.run(words, env=env, capture_output=True, text=True, timeout=100, check=False)

    copied(bundle, copy, [f for f in files if f.parent.name == "studies"] + files[: len(files) // 2])
    half = there()
    assert half.returncode == 6, half.stderr
    assert "is not complete" in half.stderr
    assert "remedy: copy the rest" in half.stderr
    copied(bundle, copy, files[len(files) // 2 :])
    shutil.rmtree(bundle)
    asked = len(index.requests)
    whole = there()
    assert whole.returncode == 0, whole.stderr
    assert "culprit 1.2 is the first bad version (last good 1.1)" in whole.stdout
    assert len(index.requests) == asked
    assert "Traceback" not in half.stderr + whole.stderr


def test_fetching_again_goes_on(studies: Studies, matrix: Path, index: IndexServer, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    last = "/files/culprit-1.3-py3-none-any.whl"

    def fail_after_locking(_what: str, done: int, total: int) -> None:
        if done == total:
            index.on_request = lambda path: 500 if path == last else None

    with pytest.raises(InfrastructureError, match="the same command again: it goes on"):
        fetched(studies, matrix, bundle, on_progress=fail_after_locking)
    assert not (bundle / "studies").exists()
    assert len(list((bundle / "archives").rglob("*.whl"))) >= 1
    index.on_request = lambda path: None
    first = fetched(studies, matrix, bundle)
    before = archived(bundle)
    index.add("culprit", "1.4", uploaded="2999-01-01T00:00:00Z")
    asked = [path for path in index.requests if path.startswith("/files/")]
    assert fetched(studies, matrix, bundle) == first
    assert archived(bundle) == before
    assert [path for path in index.requests if path.startswith("/files/")] == asked
    assert fetched(studies, matrix, bundle).size == first.size
    assert fetched(studies, matrix, bundle) == first
    assert archived(bundle) == before


def test_an_interruption_waits_for_no_download(
    studies: Studies, matrix: Path, index: IndexServer, tmp_path: Path
) -> None:
    for minor in range(4, 16):
        index.add("culprit", f"1.{minor}", requires=("below",))
    may_go_on = threading.Event()
    asked: list[str] = []

    def all_but_the_first_wait(path: str) -> None:
        if path.startswith("/files/"):
            asked.append(path)
            if len(asked) > 1:
                may_go_on.wait(60)

    def interrupted(what: str, done: int, total: int) -> None:
        if what == "fetching":
            raise KeyboardInterrupt
        if done == total:
            index.on_request = all_but_the_first_wait

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        fetched(studies, matrix, tmp_path / "bundle", on_progress=interrupted)
    assert time.monotonic() - began < 30
    may_go_on.set()
    for thread in threading.enumerate():
        if thread.name.startswith("fetch"):
            thread.join(30)
    assert len(asked) <= 6, "one that ended, those under way, and what began in its place"


def test_another_state_of_the_matrix_is_refused(
    studies: Studies, matrix: Path, index: IndexServer, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle"
    fetched(studies, matrix, bundle)
    text = matrix.read_text()
    matrix.write_text(text.replace("trial:", "packages: {pypi: [below<6]}\ntrial:"))
    provider = OfflineEnvironments(bundle, "planted", tmp_path / "cache")
    with pytest.raises(InfrastructureError, match="fetched for another state of the matrix") as raised:
        studies.run(matrix, provider=provider)
    assert raised.value.remedy
    matrix.write_text(text.replace("culprit:", "other: {package: below, versions: '>1'}\n  culprit:"))
    with pytest.raises(InfrastructureError, match="no answer for the versions of below"):
        studies.run(matrix, provider=provider)
    with pytest.raises(UsageError, match="holds nothing for the matrix 'other', but for planted"):
        OfflineEnvironments(bundle, "other")


def test_a_study_that_began_with_a_network_keeps_its_day(
    studies: Studies, matrix: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle"
    studies.run(matrix)
    fetched(studies, matrix, bundle)
    path = bundle / "studies" / "planted.json"
    path.write_text(path.read_text().replace('"as_of": "2', '"as_of": "1'))
    with pytest.raises(UsageError, match="the directory was fetched as of 1"):
        studies.run(matrix, provider=OfflineEnvironments(bundle, "planted", tmp_path / "cache"))


@pytest.mark.slow
def test_what_is_damaged_is_named(studies: Studies, matrix: Path, tmp_path: Path, index: IndexServer) -> None:
    bundle = tmp_path / "bundle"
    fetched(studies, matrix, bundle)

    def check() -> subprocess.CompletedProcess[str]:
        words = [*COMMAND, "env", "fetch", str(matrix), "-o", str(bundle), "--check"]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)

    assert check().returncode == 0
    (below,) = bundle.rglob("below*.whl")
    content = bytearray(below.read_bytes())
    content[100] ^= 1
    below.write_bytes(content)
    found = check()
    assert found.returncode == 6
    assert found.stdout == f"damaged: {below.relative_to(bundle)}\n"
    lock = Bundle(bundle).lock(next(iter((bundle / "locks").iterdir())).name.partition(".")[0])
    other = make_wheel("below", "5.0", modules={"below.py": "evil = 1\n"})[1]
    for damaged in (bytes(content), other):
        below.write_bytes(damaged)
        with pytest.raises(UnbuildableError, match="is not what was fetched") as raised:
            ensure_prefix(lock, cache_dir=tmp_path / "cache-2", offline=bundle)
        assert "below" in raised.value.message
        assert raised.value.transient
    below.unlink()
    found = check()
    assert found.stdout == f"missing: {below.relative_to(bundle)}\n"
    with pytest.raises(UnbuildableError, match=r"is not in .* on this host") as raised:
        ensure_prefix(lock, cache_dir=tmp_path / "cache-2", offline=bundle)
    assert raised.value.transient
    many = json.dumps({"format": 1, "locks": {f"{i:064x}": ["as of old"] for i in range(300)}})
    for spoilt, why in (
        ("{", "JSON"),
        ("[]", "JSON"),
        ('{"format": 2}', "matrix: Field required"),
        (many, "format: Input should be 2"),
        ('{"format": 2, "matrix": "m", "as_of": "2026-01-01T00:00:00"}', "as_of: "),
        (
            '{"format": 2, "matrix": "m", "as_of": "2026-01-01T00:00:00Z", "files": {"'
            + "x" * 300
            + '": [1, "'
            + "0" * 64
            + '"]}}',
            "files",
        ),
    ):
        (bundle / "studies" / "planted.json").write_text(spoilt)
        found = check()
        assert found.returncode == 6, found.stderr
        assert f"cannot be read: {why}" in found.stderr
        assert len(found.stderr) < 1000


@pytest.mark.parametrize(
    "attack", ["pipe", "endless", "link out", "huge", "pipe for answers", "deep answers"]
)
def test_a_hostile_directory_neither_hangs_nor_leads_outside(
    studies: Studies, matrix: Path, tmp_path: Path, attack: str, index: IndexServer
) -> None:
    root, outside = tmp_path / "bundle", tmp_path / "outside"
    fetched(studies, matrix, root)
    (below,) = root.rglob("below*.whl")
    answers = root / "studies" / "planted.json"
    if attack == "link out":
        (root / "archives").rename(outside)
        (root / "archives").symlink_to(outside)
    elif attack == "huge":
        with below.open("wb") as stream:
            stream.truncate(1 << 40)  # takes no room
    elif attack == "pipe for answers":
        answers.unlink()
        os.mkfifo(answers)
    elif attack == "deep answers":
        answers.write_text("[" * 100_000)
    else:
        below.unlink()
        os.mkfifo(below) if attack == "pipe" else below.symlink_to("/dev/zero")
    before = sorted(outside.rglob("*"))
    with pytest.raises(InfrastructureError):
        OfflineEnvironments(root, "planted", tmp_path / "cache-there")
    with pytest.raises(InfrastructureError):
        fetched(studies, matrix, root)
    assert sorted(outside.rglob("*")) == before


def bytes_read() -> int:
    """Bytes that this process and those that it has waited for have read, from files and pipes alike."""
    facts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(facts["rchar"])


def test_an_offline_rebuild_reads_no_archive_again(
    studies: Studies, index: IndexServer, tmp_path: Path
) -> None:
    size = 60_000_000
    index.add("large", "1.0", modules={"large.py": "", "large.dat": "x" * size})
    matrix = written(
        studies,
        "import large",
        axes="large: {package: large, versions: ['1.0']}",
        rest=f"index: {index.url}",
    )
    bundle, cache = tmp_path / "bundle", tmp_path / "cache-there"
    fetched(studies, matrix, bundle)
    held = Bundle(bundle)
    (answer,) = held.read("planted").locks.values()
    assert isinstance(answer, str)
    lock = held.lock(answer)
    read = []
    for _ in range(2):
        before = bytes_read()
        prefix = ensure_prefix(lock, cache_dir=cache, offline=bundle)
        read.append(bytes_read() - before)
        assert list(prefix.path.glob("lib/python*/site-packages/large.dat"))
        prefix.release()
        take_away(cache, prefix.path)
        assert not prefix.path.exists()
    first, again = read
    assert first >= size
    assert again < size / 2


def test_a_source_distribution_is_built_where_there_is_a_network(
    studies: Studies, index: IndexServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = source_distribution()
    digest = hashlib.sha256(content).hexdigest()
    index.packages["made"] = [
        Release("made-1.0.tar.gz", content, "2020-01-01T00:00:00Z", False, None, digest)
    ]
    matrix = written(
        studies,
        "import made; assert made.origin == 'source'",
        axes="made: {package: made, versions: ['1.0']}",
        rest=f"index: {index.url}\nsolver: {{allow_source: [made]}}",
    )
    bundle = tmp_path / "bundle"
    assert fetched(studies, matrix, bundle).warnings == ()
    index.on_request = lambda path: 500
    provider = OfflineEnvironments(bundle, "planted", tmp_path / "cache-there")
    answers = Bundle(bundle).read("planted").locks.values()
    (lock,) = {answer for answer in answers if isinstance(answer, str)}
    prefix = provider.ensure_prefix(Bundle(bundle).lock(lock), allow_source=frozenset({"made"}))
    said = subprocess.run(
        [prefix.python, "-c", "import made; print(made.origin)"], capture_output=True, text=True, check=True
    )
    assert said.stdout == "source\n"
    checked = Bundle(bundle)
    assert (checked.missing(checked.read("planted")), checked.damaged(checked.read("planted"))) == ([], [])
    (wheel,) = Bundle(bundle).built(digest, PYTHON).iterdir()
    content = wheel.read_bytes()
    wheel.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    name = f"archives/{digest}/built-{PYTHON}/{wheel.name}"
    assert checked.damaged(checked.read("planted")) == [name]
    with pytest.raises(UnbuildableError, match="is not what was fetched"):
        ensure_prefix(
            Bundle(bundle).lock(lock), cache_dir=tmp_path / "cache-2", allow_source=True, offline=bundle
        )
    wheel.write_bytes(content[:-1])
    assert checked.missing(checked.read("planted")) == [name]
    shutil.rmtree(Bundle(bundle).built(digest, PYTHON))
    assert checked.missing(checked.read("planted")) == [name]
    with pytest.raises(UnbuildableError, match="holds no wheel made from made"):
        ensure_prefix(
            Bundle(bundle).lock(lock),
            cache_dir=tmp_path / "cache-3",
            allow_source=True,
            offline=bundle,
        )


def test_an_interpreter_travels_too(
    index: IndexServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = "{}.{}.{}".format(*sys.version_info[:3])
    stage = tmp_path / "python.tar.gz"
    home = Path(sys.base_prefix)
    skipped = {"test", "site-packages", "idlelib", "ensurepip", "tkinter", "lib2to3", "__pycache__"}

    def kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        name = Path(entry.name).name
        return None if name in skipped or name.startswith("config-") else entry

    with tarfile.open(stage, "w:gz", compresslevel=1) as archive:
        for path in (home / "bin" / f"python{PYTHON}", home / "lib" / f"python{PYTHON}"):
            archive.add(path, f"python/{path.relative_to(home)}", filter=kept)
        link = tarfile.TarInfo("python/bin/python")
        link.type, link.linkname = tarfile.SYMTYPE, f"python{PYTHON}"
        archive.addfile(link)
        for library in home.glob(f"lib/libpython{PYTHON}*.so*"):
            archive.add(library, f"python/lib/{library.name}")
    content = stage.read_bytes()
    server = index.url.removesuffix("/simple")
    major, minor, patch = sys.version_info[:3]
    key = f"cpython-{version}-linux-x86_64-gnu"
    entry = {
        "name": "cpython",
        "arch": {"family": "x86_64", "variant": None},
        "os": "linux",
        "libc": "gnu",
        "major": major,
        "minor": minor,
        "patch": patch,
        "prerelease": "",
        "url": f"{server}/python.tar.gz",
        "sha256": hashlib.sha256(content).hexdigest(),
        "variant": None,
        "build": "20260101",
    }
    index.raw["/python.tar.gz"] = ("application/gzip", content)
    index.raw["/pythons.json"] = ("application/json", json.dumps({key: entry}).encode())
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS_JSON_URL", f"{server}/pythons.json")
    bundle = tmp_path / "bundle"
    assert fetch_python(version, bundle) == ""
    assert len(list((bundle / "pythons").glob("*python.tar.gz"))) == 1
    assert fetch_python("3.99", bundle) != ""
    whole = Bundle(bundle)
    whole.write(BundledAnswers(matrix="planted", as_of=datetime.now(UTC)), [])
    (kept,) = (bundle / "pythons").glob("*python.tar.gz")
    assert (whole.missing(whole.read("planted")), whole.damaged(whole.read("planted"))) == ([], [])
    archive_before = kept.read_bytes()
    kept.write_bytes(archive_before[:-1] + bytes([archive_before[-1] ^ 1]))
    assert whole.damaged(whole.read("planted")) == [f"pythons/{kept.name}"]
    kept.write_bytes(archive_before)
    monkeypatch.delenv("UV_PYTHON_DOWNLOADS_JSON_URL")
    index.on_request = lambda path: 500
    installed = tmp_path / "there"
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(installed))
    assert offline_environment(bundle)["UV_OFFLINE"] == "1"
    from bisect_env.environments.interpreters import fetch_with_uv, listed_by_uv

    pythons = Interpreters(
        lambda: tuple(one for one in listed_by_uv() if installed in one.path.parents),
        fetch=lambda wanted: fetch_with_uv(wanted, environ=offline_environment(bundle)),
    )
    assert pythons.find(PYTHON).version == version
    assert installed in pythons.find(PYTHON).path.parents


def conda_matrix(studies: Studies, channel: Channel, address: str) -> Path:
    channel.add_python()
    for version in ("1.0", "2.0", "3.0"):
        channel.add_library("culprit", version, depends=["below"])
    channel.add_library("below", "5.0")
    channel.write()
    path = studies.folder / "matrix.yaml"
    path.write_text(
        f"""\
version: 1
name: planted
axes:
  python: {{package: python, manager: conda, versions: ["{PYTHON}"]}}
  culprit: {{package: culprit, manager: conda, versions: ">=1.0"}}
channels: ["{address}"]
trial:
  command: python -c "import below, culprit; assert culprit.__version__ < '2'"
"""
    )
    return path


def test_a_study_of_conda_packages_without_its_channel(studies: Studies, tmp_path: Path) -> None:
    channel = Channel(tmp_path / "channel")
    matrix = conda_matrix(studies, channel, channel.url)
    bundle, cache = tmp_path / "bundle", tmp_path / "cache-there"
    assert fetched(studies, matrix, bundle).archives == 5
    shutil.rmtree(channel.folder)
    report = studies.run(
        matrix,
        provider=OfflineEnvironments(bundle, "planted", cache),
        make_executor=lambda: PoolExecutor(partial(ensure_prefix, cache_dir=cache, offline=bundle), 2),
    ).report
    assert report["verdict"]["first_bad"]["culprit"] == "2.0"


def test_conda_archives_are_fetched_from_the_users_mirrors(
    studies: Studies, index: IndexServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = Channel(tmp_path / "channel")
    server = channel.serve(index)
    public = "https://conda.example.invalid/demo"

    def configure(*mirrors: str) -> None:
        (tmp_path / "condarc").write_text(
            f"mirrored_channels:\n  demo: {list(mirrors)}\ncustom_channels:\n"
            "  demo: https://conda.example.invalid\n"
        )

    monkeypatch.setenv("CONDARC", str(tmp_path / "condarc"))
    configure(f"{server}/gone", server)
    conda_matrix(studies, channel, server)
    package = LockedPackage(
        name="below",
        version="5.0",
        manager="conda",
        url=f"{public}/noarch/below-5.0-0.conda",
        sha256=hashlib.sha256((channel.folder / "noarch" / "below-5.0-0.conda").read_bytes()).hexdigest(),
        build="0",
    )
    assert obtain(package, tmp_path / "here").exists()
    configure(f"{server}/gone")
    with pytest.raises(UnbuildableError, match=r"cannot be fetched: .*404 Not Found") as raised:
        obtain(package, tmp_path / "elsewhere")
    assert not raised.value.transient
