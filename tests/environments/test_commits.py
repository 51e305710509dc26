"""Packages are built from commits: once, within limits, with tools of their time, and never in silence."""

from __future__ import annotations

import fcntl
import multiprocessing
import pickle
import shutil
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.commits import compiled
from benchmarks.repositories import Change, in_tree, pure, write
from bisect_env.environments import repository
from bisect_env.environments.cache import lock_file, lock_path, prune
from bisect_env.environments.commits import CommitBuilder, build_limit, package_of_project, stated_version
from bisect_env.environments.interpreters import Interpreter, machine_interpreters
from bisect_env.environments.lock import BuildLimit, Lock, LockedPackage, UnbuildableError, UnsolvableError
from bisect_env.environments.lockfiles import make_lock, parse_lock, requirements_text
from bisect_env.environments.prefix import Prefix, ensure_prefix
from bisect_env.environments.progress import listening
from bisect_env.environments.provider import Environments
from bisect_env.environments.repository import Repository
from bisect_env.environments.request import CommitRecipe, CommitSource, EnvironmentRequest
from bisect_env.environments.uv_tool import Uv
from bisect_env.matrix.scalars import cutoff
from bisect_env.matrix.versions import PackageIndex

pytestmark = pytest.mark.integration

FIRST = {**in_tree("demo", version=""), "demo.py": "N = 1\n"}
PROJECT = str(FIRST["pyproject.toml"])


@pytest.fixture
def here() -> Interpreter:
    return machine_interpreters().find(f"{sys.version_info.major}.{sys.version_info.minor}")


@pytest.fixture
def commits(tmp_path: Path) -> CommitBuilder:
    return CommitBuilder(tmp_path / "cache", Uv(tmp_path / "cache"))


def source(place: Path, commit: str, **build: object) -> CommitSource:
    return CommitSource("demo", str(place), commit, CommitRecipe(**build))  # type: ignore[arg-type]


def test_a_commit_is_built_once_and_kept(tmp_path: Path, commits: CommitBuilder, here: Interpreter) -> None:
    place = tmp_path / "demo"
    one, two = write(place, [Change(FIRST), Change({"version": "1.1.dev1"})])
    wheel = commits.wheel(source(place, two), here)
    assert wheel.version == "1.1.dev1"
    assert wheel.seconds > 0
    again = commits.wheel(source(place, two), here)
    assert again == wheel
    assert commits.wheel(source(place, one), here).version == "1.0"
    # The user's clone has no work tree, and gets none.
    assert [path.name for path in place.iterdir()] == [".git"]
    assert {path.name for path in wheel.path.parent.iterdir()} == {wheel.path.name, "wheel.json"}


def test_what_was_built_and_mirrored_is_pruned_and_had_again(
    tmp_path: Path, commits: CommitBuilder, here: Interpreter
) -> None:
    cache = tmp_path / "cache"
    place = tmp_path / "demo"
    built = write(place, pure("demo", 2, 2, files=in_tree("demo")))
    commits.wheel(source(place, built[0]), here)
    mirror = Repository(str(place), cache).mirror
    objects = {path: path.stat().st_mode for path in (place / ".git").rglob("*")}
    checking_out = tmp_path / "out"
    checking_out.mkdir()
    with Repository(str(place), cache).checked_out(built[0], checking_out):
        # What a build reads from stays.
        assert prune(cache).archives == 1
        assert mirror.is_dir()
        assert not list((cache / "commits").glob("*/*.whl"))
    assert prune(cache).archives == 1
    assert not mirror.exists()
    assert {path: path.stat().st_mode for path in (place / ".git").rglob("*")} == objects
    assert commits.wheel(source(place, built[1]), here).path.is_file()


def test_a_damaged_wheel_is_built_again(tmp_path: Path, commits: CommitBuilder, here: Interpreter) -> None:
    (commit,) = write(tmp_path / "demo", [Change(FIRST)])
    wheel = commits.wheel(source(tmp_path / "demo", commit), here)
    wheel.path.write_bytes(b"cut short")
    again = commits.wheel(source(tmp_path / "demo", commit), here)
    assert again.path.stat().st_size > 100


def test_a_build_that_fails_says_so_with_its_last_words(
    tmp_path: Path, commits: CommitBuilder, here: Interpreter
) -> None:
    (commit,) = write(tmp_path / "demo", [Change({**FIRST, "broken": "frobnicate.c:12"})])
    builds = tmp_path / "builds"
    noted = source(tmp_path / "demo", commit, env=(("BUILDS", str(builds)),))
    for _ in range(3):
        with pytest.raises(UnbuildableError, match=r"cannot compile frobnicate\.c:12") as caught:
            commits.wheel(noted, here)
        assert not caught.value.transient
        assert commit[:10] in caught.value.message
    # The other attempts were answered from memory.
    assert len(builds.read_text().splitlines()) == 1


def test_a_build_has_limits_of_its_own(tmp_path: Path, commits: CommitBuilder, here: Interpreter) -> None:
    place = tmp_path / "demo"
    slow, hungry = write(
        place, [Change({**FIRST, "slow": "60"}), Change({"slow": None, "hungry": str(3_000_000_000)})]
    )
    with pytest.raises(UnbuildableError, match="took longer than 1 s"):
        commits.wheel(source(place, slow, time_limit=1.0), here)
    with pytest.raises(UnbuildableError, match="MemoryError"):
        commits.wheel(source(place, hungry, memory=2_500_000_000), here)


@pytest.mark.slow
def test_a_raised_limit_leaves_the_environment_the_same(tmp_path: Path, python: str) -> None:
    """So trials of it are not repeated; and a build that the old limit ended is begun again."""
    place = tmp_path / "demo"
    (commit,) = write(place, [Change({**FIRST, "slow": "3"})])
    locks = [
        make_lock(python, "linux-64", [source(place, commit, time_limit=limit, memory=memory).locked("1.0")])
        for limit, memory in ((1.0, 0), (600.0, 8_000_000_000))
    ]
    assert locks[0] == locks[1]
    with pytest.raises(UnbuildableError, match="took longer than 1 s"):
        ensure_prefix(replace(locks[0], limits=(BuildLimit("demo", 1.0, 0),)), cache_dir=tmp_path / "cache")
    raised = pickle.loads(pickle.dumps(replace(locks[0], limits=(BuildLimit("demo", 600.0, 0),))))
    prefix = ensure_prefix(raised, cache_dir=tmp_path / "cache")
    assert next(prefix.path.glob("lib/python*/site-packages/demo.py")).is_file()
    prefix.release()


def test_what_is_not_fetched_is_refused_unless_it_may_be_missing(
    tmp_path: Path, commits: CommitBuilder, here: Interpreter
) -> None:
    place = tmp_path / "demo"
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    module, large = write(
        place,
        [
            Change(FIRST, modules={"vendored": "1" * 40}),
            Change({"vendored": None, ".gitattributes": "*.bin filter=lfs\n", "data.bin": pointer}),
        ],
    )
    with pytest.raises(UnbuildableError, match=r"submodules, which are not fetched \(vendored\)"):
        commits.wheel(source(place, module), here)
    with pytest.raises(UnbuildableError, match=r"git-lfs, which are not fetched \(data\.bin\)"):
        commits.wheel(source(place, large), here)
    assert commits.wheel(source(place, module, partial=True), here).version == "1.0"
    assert commits.wheel(source(place, large, partial=True), here).version == "1.0"


def test_a_package_in_a_subdirectory_is_built_there(
    tmp_path: Path, commits: CommitBuilder, here: Interpreter
) -> None:
    below = {f"python/demo here/{path}": content for path, content in FIRST.items()}
    (commit,) = write(tmp_path / "demo", [Change({"README": "no project", **below})])
    wheel = commits.wheel(source(tmp_path / "demo", commit, subdirectory="python/demo here"), here)
    with zipfile.ZipFile(wheel.path) as members:
        assert "demo.py" in members.namelist()
    with pytest.raises(UnbuildableError, match="elsewhere"):
        commits.wheel(source(tmp_path / "demo", commit, subdirectory="elsewhere"), here)


def test_builds_see_the_variables_they_are_given_and_no_secrets(
    tmp_path: Path, commits: CommitBuilder, here: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAG", "of the shell")
    place = tmp_path / "demo"
    (commit,) = write(place, [Change(FIRST)])
    plain = commits.wheel(source(place, commit), here)
    given = commits.wheel(source(place, commit, env=(("FLAG", "ccache gcc"),)), here)
    assert b"FLAG = None" in _member(plain.path)
    assert b"FLAG = 'ccache gcc'" in _member(given.path)


def test_builds_see_no_password_of_an_address_of_archives(tmp_path: Path, here: Interpreter, index) -> None:
    place, told = tmp_path / "demo", tmp_path / "told"
    back_end = str(FIRST["backend.py"])
    tells = f"import os\nopen({str(told)!r}, 'w').write(str({{**os.environ}}))\n{back_end}"
    (commit,) = write(place, [Change({**FIRST, "backend.py": tells})])
    index.raw = {f"/links{n}": ("text/html", b"<html></html>") for n in (1, 2)}
    host = index.url.removeprefix("http://").removesuffix("/simple")
    links = [f"http://me:hunter@{host}/links{n}" for n in (1, 2)]
    CommitBuilder(tmp_path / "cache", Uv(tmp_path / "cache", find_links=links)).wheel(
        source(place, commit), here
    )
    asked = {
        path
        for path, headers in zip(index.requests, index.headers, strict=True)
        if "authorization" in headers
    }
    assert asked == {"/links1", "/links2"}
    assert "hunter" not in told.read_text()


def test_a_failed_build_shows_no_line_of_a_secret(
    tmp_path: Path, commits: CommitBuilder, here: Interpreter
) -> None:
    place = tmp_path / "demo"
    tells = "import os, sys\nprint(os.environ['DEPLOY_KEY'], {**os.environ}, file=sys.stderr)\nsys.exit(3)\n"
    (commit,) = write(place, [Change({**FIRST, "backend.py": tells})])
    key = "-----BEGIN PRIVATE KEY-----\nplanted-5566\n-----END PRIVATE KEY-----\n"
    with pytest.raises(UnbuildableError) as caught:
        commits.wheel(source(place, commit, env=(("DEPLOY_KEY", key),)), here)
    assert "DEPLOY_KEY" in str(caught.value)
    assert "planted" not in str(caught.value)


def test_a_compiler_cache_is_called_and_told_the_directory_in_which_builds_differ(
    tmp_path: Path, commits: CommitBuilder, here: Interpreter
) -> None:
    place = tmp_path / "demo"
    (commit, *_) = write(place, compiled(1.0).changes[:2])
    calls = tmp_path / "calls"
    wrapper = tmp_path / "ccache"
    wrapper.write_text(f'#!/bin/sh\necho "$CCACHE_BASEDIR $PWD $*" >> {calls}\nexec "$@"\n')
    wrapper.chmod(0o755)
    commits.wheel(source(place, commit, env=(("CC", f"{wrapper} gcc"),)), here)
    compiling = next(line for line in calls.read_text().splitlines() if " -c " in line)
    base, where, compiler, *_ = compiling.split()
    assert (where, compiler) == (base, "gcc")


def _member(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read("demo.py")


def _build(place: Path, commit: str, cache: Path, here: Interpreter) -> None:
    CommitBuilder(cache, Uv(cache)).wheel(source(place, commit), here)


def test_a_build_that_was_killed_is_begun_again(
    tmp_path: Path, commits: CommitBuilder, here: Interpreter
) -> None:
    place, cache = tmp_path / "demo", tmp_path / "cache"
    (commit,) = write(place, [Change({**FIRST, "slow": "2"})])
    process = multiprocessing.get_context("spawn").Process(target=_build, args=(place, commit, cache, here))
    process.start()
    deadline = time.monotonic() + 100
    while not list((cache / "commits").glob("*/source/slow")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert prune(cache).archives == 0, "what is being built stays"
    process.kill()
    process.join()
    assert list((cache / "commits").glob("*/source/slow"))
    wheel = commits.wheel(source(place, commit), here)
    assert wheel.version == "1.0"
    assert {path.name for path in wheel.path.parent.iterdir()} == {wheel.path.name, "wheel.json"}


@pytest.mark.slow
def test_a_repository_that_does_not_answer_keeps_nobody_from_an_environment(
    tmp_path: Path, python: str, here: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look-up of one process waits for another's; meanwhile the prefix and the wheel are not locked."""
    place, cache = tmp_path / "demo", tmp_path / "cache"
    (commit,) = write(place, [Change(FIRST)])
    made = make_lock(python, "linux-64", [source(place, commit).locked("1.0")])
    mirror = Repository(str(place), cache).mirror
    mirror.parent.mkdir(parents=True)
    monkeypatch.setattr(repository, "PATIENCE", 5.0)
    failures: list[Exception] = []

    def build() -> None:
        try:
            ensure_prefix(made, cache_dir=cache)
        except UnbuildableError as error:
            failures.append(error)

    with lock_file(mirror.with_name(f".{mirror.stem}.lock"), exclusive=True, timeout=1.0):
        waiting = threading.Thread(target=build)
        waiting.start()
        time.sleep(1.0)
        free = lock_path(cache / "prefixes" / made.content_hash)
        with lock_file(free, exclusive=True, timeout=0.0) as fd:
            assert fd is not None
        assert not list((cache / "commits").glob(".*.lock"))
        waiting.join()
    (failure,) = failures
    assert "another process has been fetching" in str(failure)
    ensure_prefix(made, cache_dir=cache).release()


def test_a_wheel_stays_while_its_environment_waits_to_be_built(
    tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else git would be asked again, and others would wait for it: here the repository is gone."""
    place, cache = tmp_path / "demo", tmp_path / "cache"
    (commit,) = write(place, [Change(FIRST)])
    made = make_lock(python, "linux-64", [source(place, commit).locked("1.0")])
    prefix = cache / "prefixes" / made.content_hash
    prefix.parent.mkdir(parents=True)
    with lock_file(lock_path(prefix), exclusive=True, timeout=1.0) as fd, ThreadPoolExecutor() as pool:
        assert fd is not None
        waiting = threading.Event()

        def build() -> Prefix:
            with listening(lambda step: waiting.set() if step.what == "waiting" else None):
                return ensure_prefix(made, cache_dir=cache)

        built = pool.submit(build)
        assert waiting.wait(60)
        prune(cache)
        shutil.rmtree(place)
        shutil.rmtree(Repository(str(place), cache).mirror, ignore_errors=True)
        fcntl.flock(fd, fcntl.LOCK_UN)
        built.result().release()
    prune(cache)
    assert not list(cache.glob("commits/*/*.whl")), "it is free again"


def test_a_lock_says_all_that_is_needed(tmp_path: Path) -> None:
    build = CommitRecipe(
        "python/co re",
        (("CC", "ccache gcc"), ("X", "a=b&c#d")),
        ("setuptools<60", "wheel"),
        "2024-01-01T00:00:00Z",
        partial=True,
        index="https://packages.example.org/simple",
    )
    made = CommitSource("demo", str(tmp_path / "with space#hash"), "a" * 40, build)
    read = CommitSource.of(made.locked("1.0"))
    assert read == made
    remote = CommitSource("demo", "https://ann:secret@example.org/demo.git", "a" * 40)
    assert "secret" not in remote.url
    assert CommitSource.of(remote.locked("1.0")).repository == "https://example.org/demo.git"


def test_builds_are_made_with_tools_of_their_time(here: Interpreter) -> None:
    old, new = cutoff("2019-01-01"), cutoff("2026-03-01")
    python = Interpreter(here.path, "3.11.7")
    assert build_limit(old, python) == "2022-10-24T00:00:00Z"
    assert build_limit(new, python) == "2026-03-02T00:00:00Z"


def test_metadata_is_read_where_a_project_states_all_of_it() -> None:
    text = """
    [project]
    name = "De.mo"
    version = "1.0.0RC1"
    requires-python = ">=3.9"
    dependencies = ["numpy>=2; python_version > '3.8'"]
    optional-dependencies = {fast = ["numba"]}
    """
    assert stated_version(text, "de-mo") == "1.0.0rc1"
    assert stated_version(text.replace("version =", "dynamic = ['version']\nx ="), "de-mo") is None
    assert stated_version(text.replace("dependencies =", "x =") + "[tool.poetry]", "de-mo") is None
    assert stated_version(text, "other") is None
    assert stated_version("", "de-mo") is None


def test_the_package_of_a_repository_is_what_its_files_say() -> None:
    assert package_of_project({"pyproject.toml": "[project]\nname = 'a'"}) == "a"
    assert package_of_project({"pyproject.toml": "[tool.poetry]\nname = 'b'"}) == "b"
    assert package_of_project({"pyproject.toml": "x", "setup.cfg": "[metadata]\nname = c\n[x]\n"}) == "c"
    assert package_of_project({"pyproject.toml": None, "setup.cfg": "[x]\nname = d"}) is None


def test_a_commit_is_locked_and_installed_with_its_dependencies(tmp_path: Path, python: str, index) -> None:
    index.add("helper", "1.0")
    place = tmp_path / "demo"
    project = PROJECT.replace('dynamic = ["version"]', 'version = "1.0"\ndependencies = ["helper"]')
    fails = Change({"pyproject.toml": PROJECT, "broken": "x"})
    first, broken = write(place, [Change({**FIRST, "pyproject.toml": project}), fails])
    environments = Environments(tmp_path / "cache", index=index.url)

    def request(commit: str) -> EnvironmentRequest:
        return EnvironmentRequest(python, index=index.url, commits=(source(place, commit),))

    lock = environments.lock(request(first))
    assert isinstance(lock, Lock)
    assert [(one.name, one.version) for one in lock.packages] == [("demo", "1.0"), ("helper", "1.0")]
    assert not list((tmp_path / "cache").glob("commits/*/*.whl")), "what is stated needs no build"
    prefix = ensure_prefix(lock, cache_dir=tmp_path / "cache")
    assert (next(prefix.path.glob("lib/python*/site-packages/demo.py"))).read_text().startswith("N = 1")
    prefix.release()
    failed = environments.lock(request(broken))
    assert isinstance(failed, UnsolvableError)
    assert failed.building
    assert "cannot compile x" in failed.message


def test_where_a_commit_says_its_dependencies_come_from_is_for_its_developers(
    tmp_path: Path, python: str, index
) -> None:
    index.add("helper", "1.0")
    index.add("nightly", "1.0")
    project = PROJECT.replace('dynamic = ["version"]', 'version = "1.0"\ndependencies = ["helper"]')
    project += '[tool.uv.sources]\nhelper = {url = "https://host.invalid/helper-2.0-py3-none-any.whl"}\n'
    (commit,) = write(tmp_path / "demo", [Change({**FIRST, "pyproject.toml": project})])
    request = EnvironmentRequest(
        python,
        {"nightly": "1.0"},
        index=index.url,
        indexes=(PackageIndex("own", index.url, True),),
        sources={"nightly": "own"},
        commits=(source(tmp_path / "demo", commit),),
    )
    lock = Environments(tmp_path / "cache", index=index.url).lock(request)
    assert isinstance(lock, Lock), lock
    assert [one.name for one in lock.packages] == ["demo", "helper", "nightly"]


@pytest.mark.parametrize("requires", [(), ("setuptools<69", "wheel")])
def test_setuptools_of_the_index_builds_a_package(
    tmp_path: Path, commits: CommitBuilder, here: Interpreter, requires: tuple[str, ...]
) -> None:
    place = tmp_path / "real"
    built = write(place, pure("real", 3, 2))
    wheel = commits.wheel(CommitSource("real", str(place), built[2], CommitRecipe(requires=requires)), here)
    assert wheel.version == "1.0"


def test_an_extension_is_compiled_and_a_host_without_a_compiler_says_so(
    tmp_path: Path, commits: CommitBuilder, here: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "demo"
    built = write(place, compiled(1.0).changes[:2])
    wheel = commits.wheel(source(place, built[1]), here)
    assert "cp3" in wheel.path.name
    bare = tmp_path / "bin"
    bare.mkdir()
    git = shutil.which("git")
    assert git is not None
    (bare / "git").symlink_to(git)
    monkeypatch.setenv("PATH", str(bare))
    other = CommitBuilder(tmp_path / "cache", Uv(tmp_path / "cache"))
    with pytest.raises(UnbuildableError, match=r"\(this host has no [\w-]*(gcc|cc|clang)\)") as caught:
        other.wheel(source(place, built[0]), here)
    assert caught.value.transient, "it is the host's, and another may have one"


def test_what_others_install_names_the_commit(tmp_path: Path) -> None:
    build = CommitRecipe(subdirectory="core", env=(("CC", "gcc"),))
    made = CommitSource("demo", "https://example.org/demo.git", "a" * 40, build).locked("1.0")
    plain = LockedPackage(
        "numpy", "2.0.0", "pip", "https://example.org/numpy-2.0.0-py3-none-any.whl", "b" * 64
    )
    lines = requirements_text([made, plain]).splitlines()[1:]
    assert lines == [f"demo @ git+https://example.org/demo.git@{'a' * 40}#subdirectory=core", "numpy==2.0.0"]
    lock = make_lock("3.11", "linux-64", [made, plain])
    assert parse_lock(lock.text) == lock
    assert lock.has_commits
