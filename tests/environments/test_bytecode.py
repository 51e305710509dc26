"""Modules of a prefix are compiled once, as Python itself would have it, and for all prefixes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bisect_env.cluster.perform import BytecodeQueue
from bisect_env.environments import bytecode, install_manifest
from bisect_env.environments.cache import verify
from bisect_env.environments.integrity import remove_tree
from bisect_env.environments.prefix import count_use, ensure_prefix, lacks_bytecode, look, state_of
from bisect_env.environments.provider import Locker
from bisect_env.environments.request import CondaRequest, EnvironmentRequest
from bisect_env.environments.uv_tool import Finished

from .conda_channel import Channel
from .test_cache import forget, module_of, spoil
from .test_prefix import lock, locked, run

__all__ = ["lock"]
pytestmark = pytest.mark.integration

WHERE = "def where():\n    return where.__code__.co_filename\n"


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Let every environment count as a large one."""
    monkeypatch.setattr(bytecode, "SMALL", -1)


@pytest.fixture
def compiled(monkeypatch):
    """Notes which modules are compiled."""
    seen = []

    def watch(argv, **options):
        seen.extend(Path(line).name for line in Path(argv[-1]).read_text().splitlines())
        return run_tool(argv, **options)

    run_tool = bytecode.run_tool
    monkeypatch.setattr(bytecode, "run_tool", watch)
    return seen


def bytecode_of(module: Path) -> Path:
    (path,) = (module.parent / "__pycache__").glob(f"{module.stem}.*.pyc")
    return path


def imports(prefix, name):
    """Which bytecode Python takes for a module, by its own account; None if it compiles the module."""
    done = subprocess.run(
        [prefix.python, "-v", "-c", f"import {name}"],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONDONTWRITEBYTECODE": "1"},
    )
    taken = [line for line in done.stderr.splitlines() if line.startswith("# code object from")]
    (mine,) = [line for line in taken if f"/{name}." in line]
    return Path(mine.split("'")[1]) if mine.rstrip("'").endswith(".pyc") else None


def test_python_takes_it_and_knows_where_modules_are(index, python, cache, compiled):
    index.add("demo", "1.0", modules={"demo.py": WHERE, "demo_more.py": "x = 1\n"})
    index.add("below", "2.0")
    first = ensure_prefix(locked(index, python, "demo"), cache_dir=cache)
    assert sorted(compiled) == ["demo.py", "demo_more.py"]
    second = ensure_prefix(locked(index, python, "demo", "below"), cache_dir=cache)
    assert sorted(compiled) == ["below.py", "demo.py", "demo_more.py"], "what is known is not compiled again"
    remove_tree(first.path)
    forget()
    first = ensure_prefix(locked(index, python, "demo"), cache_dir=cache)
    assert len(compiled) == 3
    for prefix in (first, second):
        module = module_of(prefix, "demo")
        assert imports(prefix, "demo") == bytecode_of(module)
        assert run(prefix, "import demo; print(demo.where())") == str(module)
    both = [bytecode_of(module_of(prefix, "demo")) for prefix in (first, second)]
    assert both[0].samefile(both[1])
    assert not both[0].stat().st_mode & 0o222


def test_what_is_no_python_is_left_alone(index, python, cache):
    index.add("demo", "1.0", modules={"demo.py": "x = 1\n", "template.py": "class {{ name }}: pass\n"})
    prefix = ensure_prefix(locked(index, python, "demo"), cache_dir=cache)
    assert prefix.notes == ()
    assert imports(prefix, "demo")
    assert not list(prefix.path.rglob("template.*.pyc"))


def test_nothing_that_hooks_into_the_start_of_python_is_run(index, python, cache, tmp_path):
    hook = f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
    index.add("demo", "1.0", modules={"demo.py": "x = 1\n", "demo.pth": hook, "sitecustomize.py": hook})
    prefix = ensure_prefix(locked(index, python, "demo"), cache_dir=cache)
    assert bytecode_of(module_of(prefix, "demo"))
    assert not (tmp_path / "ran").exists()
    run(prefix, "import demo")
    assert (tmp_path / "ran").exists()


def test_tests_of_a_package_are_not_compiled_and_can_be_imported(index, python, cache):
    index.add("demo", "1.0", modules={"demo/__init__.py": "", "demo/tests/__init__.py": "x = 1\n"})
    prefix = ensure_prefix(locked(index, python, "demo"), cache_dir=cache)
    assert bytecode_of(module_of(prefix, "demo"))
    assert list(prefix.path.rglob("tests/**/*.pyc")) == []
    assert run(prefix, "import demo.tests; print(demo.tests.x)") == "1"


def test_bytecode_that_a_package_brings_stays(index, python, cache):
    """numpy has some that is stale; its list states its hash."""
    brought = Path(importlib.util.cache_from_source("demo.py"))
    index.add("demo", "1.0", modules={"demo.py": "x = 1\n", f"__pycache__/{brought.name}": "stale"})
    wanted = locked(index, python, "demo")
    prefix = ensure_prefix(wanted, cache_dir=cache)
    assert bytecode_of(module_of(prefix, "demo")).read_text() == "stale"
    assert [c for c in verify(cache) if c.damaged] == []
    remove_tree(prefix.path)
    forget()
    again = ensure_prefix(wanted, cache_dir=cache)
    assert bytecode_of(module_of(again, "demo")).read_text() == "stale"
    assert run(again, "import demo; print(demo.x)") == "1"


def test_bytecode_that_was_written_to_is_damage(lock, cache):
    prefix = ensure_prefix(lock, cache_dir=cache)
    sound = bytecode_of(module_of(prefix, "demo")).read_bytes()
    spoil(bytecode_of(module_of(prefix, "demo")))
    assert [c.damaged for c in verify(cache) if c.damaged] == [{"demo-1.0": 1}]
    forget()
    again = ensure_prefix(lock, cache_dir=cache)
    assert again.build_seconds > 0
    assert bytecode_of(module_of(again, "demo")).read_bytes() == sound
    assert imports(again, "demo")
    assert [c for c in verify(cache) if c.damaged] == []


def test_rot_in_bytecode_is_found_by_verify(lock, cache):
    prefix = ensure_prefix(lock, cache_dir=cache)
    path = bytecode_of(module_of(prefix, "demo"))
    before = path.stat()
    spoil(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert [c.damaged for c in verify(cache) if c.damaged] == [{"demo-1.0": 1}]


def test_an_archive_that_is_fetched_again_is_compiled_again(lock, cache, compiled):
    prefix = ensure_prefix(lock, cache_dir=cache)
    for archive in cache.glob("uv/archive-v*/*"):
        remove_tree(archive)
    remove_tree(prefix.path)
    forget()
    for _ in range(2):
        again = ensure_prefix(lock, cache_dir=cache)
        assert imports(again, "demo") == bytecode_of(module_of(again, "demo"))
        assert sorted(compiled) == ["below.py", "below.py", "demo.py", "demo.py"]
        remove_tree(again.path)
        forget()


def test_conda_packages_too(tmp_path, cache, python):
    channel = Channel(tmp_path / "channel")
    channel.add_python()
    channel.add_library("pure", "1.0", code=WHERE)
    channel.add_library("built", "1.0", python=python)
    channel.write()
    conda = CondaRequest((channel.url,), pins={"pure": "1.0", "built": "1.0"})
    wanted = Locker(cache).lock(EnvironmentRequest(python, conda=conda))
    prefix = ensure_prefix(wanted, cache_dir=cache)
    for _ in range(2):
        for name in ("pure", "built"):
            assert imports(prefix, name)
        assert run(prefix, "import pure; print(pure.where())") == str(module_of(prefix, "pure"))
        remove_tree(prefix.path)
        forget()
        prefix = ensure_prefix(wanted, cache_dir=cache)
    assert len(install_manifest.all_manifests(cache)) == 4
    assert [c for c in verify(cache) if c.damaged] == []


@pytest.mark.parametrize(
    ("finished", "said"),
    [
        (Finished(-9, "", "", timed_out=True), "compiling modules took longer than"),
        (Finished(-11, "", "no thread"), "compiling modules ended with -11: no thread"),
    ],
)
def test_an_environment_is_used_without_it(lock, cache, monkeypatch, finished, said):
    monkeypatch.setattr(bytecode, "run_tool", lambda *_, **__: finished)
    prefix = ensure_prefix(lock, cache_dir=cache)
    (note,) = prefix.notes
    assert said in note
    assert run(prefix, "import demo, below; print(below.version)") == "2.0"


def test_of_two_builders_at_once_one_keeps_its_bytecode(index, python, cache, monkeypatch):
    index.add("shared", "1.0", modules={"shared.py": WHERE})
    index.add("first", "1.0")
    index.add("second", "1.0")
    locks = [locked(index, python, "shared", own) for own in ("first", "second")]
    both, run_tool = threading.Barrier(2, timeout=30), bytecode.run_tool

    def together(argv, **options):
        both.wait()
        return run_tool(argv, **options)

    monkeypatch.setattr(bytecode, "run_tool", together)
    with ThreadPoolExecutor(2) as pool:
        prefixes = list(pool.map(lambda one: ensure_prefix(one, cache_dir=cache), locks))
    modules = [module_of(prefix, "shared") for prefix in prefixes]
    first, second = (bytecode_of(module) for module in modules)
    assert first.samefile(second)
    for prefix in prefixes:
        assert imports(prefix, "shared") == bytecode_of(module_of(prefix, "shared"))
        prefix.release()
    assert all(not checked.damaged for checked in verify(cache))


class TestSmall:
    @pytest.fixture(autouse=True)
    def large(self):
        """None of these is."""

    def test_the_first_trial_does_without_and_the_second_has_it_made(self, lock, cache, compiled):
        prefix = count_use(ensure_prefix(lock, cache_dir=cache))
        assert compiled == []
        assert imports(prefix, "demo") is None
        state = state_of(prefix.path)
        second = count_use(ensure_prefix(lock, cache_dir=cache))
        assert sorted(compiled) == ["below.py", "demo.py"]
        module = module_of(second, "demo")
        assert imports(second, "demo") == bytecode_of(module)
        assert not (bytecode_of(module).stat().st_mode | module.parent.stat().st_mode) & 0o222
        assert look(prefix.path, state) is None, "the first trial has not changed it, and nobody else"
        forget()
        third = count_use(ensure_prefix(lock, cache_dir=cache))
        assert third.build_seconds == 0
        assert third.notes == ()
        assert len(compiled) == 2

    def test_two_at_once_compile_once(self, lock, cache, compiled):
        count_use(ensure_prefix(lock, cache_dir=cache))
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: count_use(ensure_prefix(lock, cache_dir=cache)), range(8)))
        assert sorted(compiled) == ["below.py", "demo.py"]
        assert all(imports(prefix, "demo") for prefix in found)

    def test_no_trial_waits_for_it(self, lock, cache, compiled, monkeypatch):
        may_compile, run_tool = threading.Event(), bytecode.run_tool

        def later(argv, **options):
            assert may_compile.wait(30)
            return run_tool(argv, **options)

        monkeypatch.setattr(bytecode, "run_tool", later)
        queue, path = BytecodeQueue(), ensure_prefix(lock, cache_dir=cache).path
        for _ in range(4):
            assert queue.used(ensure_prefix(lock, cache_dir=cache))
        state = state_of(path)
        assert look(path, state) is None, "a trial that ends meanwhile finds nothing changed"
        may_compile.set()
        done = time.monotonic() + 20
        while lacks_bytecode(prefix := ensure_prefix(lock, cache_dir=cache)) and time.monotonic() < done:
            prefix.release()
            time.sleep(0.02)
        assert imports(prefix, "demo") == bytecode_of(module_of(prefix, "demo"))
        assert look(path, state) is None
        assert not queue.used(prefix), "there is nothing left to do"

    def test_a_trial_that_ends_while_a_use_is_noted_finds_nothing_changed(self, lock, cache, monkeypatch):
        prefix = ensure_prefix(lock, cache_dir=cache)
        state, replace, found = state_of(prefix.path), Path.replace, []

        def replaced(path, target):
            found.append(look(prefix.path, state) is None)
            return replace(path, target)

        monkeypatch.setattr(Path, "replace", replaced)
        count_use(prefix)
        assert found == [True]
        assert look(prefix.path, state) is None
        assert [path.name for path in (cache / "prefixes").glob(".build-*")] == []

    def test_what_was_written_to_is_noticed(self, lock, cache):
        for _ in range(2):
            prefix = count_use(ensure_prefix(lock, cache_dir=cache))
        state = state_of(prefix.path)
        spoil(bytecode_of(module_of(prefix, "demo")))
        assert look(prefix.path, state) is not None
        again = ensure_prefix(lock, cache_dir=cache)
        assert again.build_seconds > 0
        assert run(again, "import demo, below; print(below.version)") == "2.0"

    def test_trials_go_on_where_it_cannot_be_made(self, lock, cache, monkeypatch):
        monkeypatch.setattr(bytecode, "run_tool", lambda *_, **__: Finished(-9, "", "", timed_out=True))
        count_use(ensure_prefix(lock, cache_dir=cache))
        prefix = count_use(ensure_prefix(lock, cache_dir=cache))
        (note,) = prefix.notes
        assert "compiling modules took longer than" in note
        assert run(prefix, "import demo, below; print(below.version)") == "2.0"
