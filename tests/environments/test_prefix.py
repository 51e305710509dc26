from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from bisect_env.cluster.perform import perform
from bisect_env.cluster.protocol import TrialCompleted, TrialRequest
from bisect_env.environments import integrity
from bisect_env.environments.download import sha256_of
from bisect_env.environments.integrity import MARKER
from bisect_env.environments.interpreters import machine_interpreters
from bisect_env.environments.lock import LockedPackage, UnbuildableError
from bisect_env.environments.lockfiles import make_lock
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.environments.progress import listening
from bisect_env.environments.provider import Environments
from bisect_env.environments.request import EnvironmentRequest
from bisect_env.errors import InfrastructureError
from bisect_env.matrix.versions import host_platform
from bisect_env.trials.records import Outcome
from tests.trials.trial_support import make_spec

from .index_server import BUILD_MADE, make_wheel

pytestmark = pytest.mark.integration

BUILD = """
import sys
from pathlib import Path
from bisect_env.environments.lockfiles import read_lock
from bisect_env.environments.prefix import ensure_prefix
prefix = ensure_prefix(read_lock(Path(sys.argv[1])), cache_dir=Path(sys.argv[2]))
print(prefix.path, prefix.build_seconds)
"""


@pytest.fixture
def lock(index, python):
    """A lock of two wheels that the local index serves; one has a command."""
    index.add("demo", "1.0", scripts={"demo-command": "demo:main"}, modules={"demo.py": MAIN})
    index.add("below", "2.0")
    return locked(index, python, "demo", "below")


MAIN = "import sys\ndef main():\n    print('demo', sys.prefix)\n"


def locked(index, python, *names):
    packages = [
        LockedPackage(
            name=name,
            version=release.filename.split("-")[1],
            manager="pip",
            url=f"{index.url.removesuffix('/simple')}/files/{release.filename}",
            sha256=release.sha256,
        )
        for name in names
        for release in index.packages[name]
    ]
    return make_lock(python, host_platform(), packages)


def run(prefix, code):
    return subprocess.run(
        [prefix.python, "-c", code], capture_output=True, text=True, check=True, cwd="/", env={}, timeout=60
    ).stdout.strip()


def wait_for_download(process, index, cache):
    """Wait until another process, which builds an environment, has asked the index for an archive."""
    deadline = time.monotonic() + 60
    while not (index.requests and leftovers(cache)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def leftovers(cache):
    """What is left of prefixes that were never finished."""
    found = [path for path in (cache / "prefixes").glob("[0-9a-f]*") if not (path / MARKER).exists()]
    return [path.name for path in [*found, *(cache / "trash").glob("*")]]


def test_a_prefix_holds_what_its_lock_says_and_is_built_once(lock, cache, index):
    prefix = ensure_prefix(lock, cache_dir=cache)
    assert prefix.path == cache / "prefixes" / lock.content_hash
    assert prefix.build_seconds > 0
    assert run(prefix, "import demo, below, sys; print(below.version, sys.prefix)") == f"2.0 {prefix.path}"
    command = subprocess.run(
        [prefix.path / "bin" / "demo-command"], capture_output=True, text=True, check=True
    )
    assert command.stdout == f"demo {prefix.path}\n", "the command names its own interpreter"
    with prefix.python.open("rb") as stream:
        assert stream.read(4) != b"#!/b", "the interpreter is no shell script"
    asked = len(index.requests)
    again = ensure_prefix(lock, cache_dir=cache)
    assert (again.path, again.python, again.build_seconds) == (prefix.path, prefix.python, 0.0)
    assert len(index.requests) == asked
    assert leftovers(cache) == []


def test_nothing_but_the_lock_is_asked_for(lock, cache, index):
    ensure_prefix(lock, cache_dir=cache)
    assert not [path for path in index.requests if path.startswith("/simple")]


def test_files_are_shared_between_prefixes(lock, cache, index, python):
    one = ensure_prefix(lock, cache_dir=cache)
    two = ensure_prefix(locked(index, python, "demo"), cache_dir=cache)
    files = [next(prefix.path.glob("lib/python*/site-packages/demo.py")) for prefix in (one, two)]
    assert files[0].samefile(files[1])
    asked = [path for path in index.requests if "demo" in path]
    assert len(asked) == 1, "the host sends no cache headers, and yet the archive is fetched once"


def test_a_wrong_hash_is_found_when_the_archive_is_in_the_cache(lock, cache, index, python):
    ensure_prefix(lock, cache_dir=cache)
    index.packages["demo"][0].sha256 = "00" * 32
    with pytest.raises(UnbuildableError, match="Hash mismatch"):
        ensure_prefix(locked(index, python, "demo"), cache_dir=cache)


def test_python_keeps_bytecode_beside_modules_and_nothing_else_may_be_written(lock, cache):
    prefix = ensure_prefix(lock, cache_dir=cache)
    (module,) = prefix.path.glob("lib/python*/site-packages/demo.py")
    assert not [path for path in prefix.path.rglob("*.pyc") if "demo" in path.name]
    state = integrity.state_of(prefix.path)
    assert not (module.parent.stat().st_mode | module.stat().st_mode) & 0o222
    assert run(prefix, "import demo; print(demo.__cached__)").startswith(str(module.parent / "__pycache__"))
    assert [path.name.split(".")[0] for path in (module.parent / "__pycache__").glob("demo*")] == ["demo"]
    assert integrity.look(prefix.path, state)
    integrity.UNCHANGED.clear()
    assert ensure_prefix(lock, cache_dir=cache).build_seconds == 0


def test_an_environment_without_packages(cache, python):
    prefix = ensure_prefix(make_lock(python, host_platform(), []), cache_dir=cache)
    assert run(prefix, "import sys; print(sys.prefix)") == str(prefix.path)


def test_a_file_that_is_not_the_one_that_was_locked(lock, cache, index):
    index.packages["demo"][0].content = make_wheel("demo", "1.0", modules={"demo.py": "evil = 1\n"})[1]
    with pytest.raises(UnbuildableError, match="Hash mismatch") as raised:
        ensure_prefix(lock, cache_dir=cache)
    assert raised.value.transient
    assert not (cache / "prefixes" / lock.content_hash).exists()
    assert leftovers(cache) == []


@pytest.mark.parametrize(("status", "transient"), [(500, True), (403, True), (404, False), (410, False)])
def test_which_failures_say_something_about_the_environment(
    lock, cache, index, monkeypatch, status, transient
):
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    index.on_request = lambda path: status
    with pytest.raises(UnbuildableError, match=str(status)) as raised:
        ensure_prefix(lock, cache_dir=cache)
    assert raised.value.transient is transient
    index.on_request = lambda path: None
    assert ensure_prefix(lock, cache_dir=cache).build_seconds > 0


def test_a_stalled_download_is_given_up(lock, cache, index):
    released = threading.Event()
    index.on_request = lambda path: released.wait(60) and None
    try:
        with pytest.raises(UnbuildableError, match="not finished in 1 s") as raised:
            ensure_prefix(lock, cache_dir=cache, timeout=1)
    finally:
        released.set()
    assert raised.value.transient


def test_sources_need_leave(cache, python):
    package = LockedPackage("demo", "1.0", "pip", "https://files.example/demo-1.0.tar.gz", "ab" * 32)
    for allowed in (False, frozenset({"other"})):
        with pytest.raises(UnbuildableError, match="which the matrix does not allow") as raised:
            ensure_prefix(
                make_lock(python, host_platform(), [package]), cache_dir=cache, allow_source=allowed
            )
        assert not raised.value.transient


def test_a_source_is_allowed_by_any_spelling_of_its_name(cache, python):
    """As for the solver."""
    package = LockedPackage("demo-lib", "1.0", "pip", "file:///nowhere/demo_lib-1.0.tar.gz", "ab" * 32)
    lock = make_lock(python, host_platform(), [package])
    with pytest.raises(UnbuildableError) as raised:
        ensure_prefix(lock, cache_dir=cache, allow_source=frozenset({"Demo_Lib"}))
    assert "does not allow" not in str(raised.value)
    assert "nowhere" in str(raised.value)


def test_a_source_is_built_anew_with_the_tools_of_another_date(index, cache, python, tmp_path, monkeypatch):
    for version, uploaded in (("1.0", "2023-01-01T00:00:00Z"), ("2.0", "2025-01-01T00:00:00Z")):
        index.add("tool", version, modules={"tool.py": f"V = {version!r}"}, uploaded=uploaded)
    back_end = (
        f"{BUILD_MADE}\nimport tool\n"
        "def build_wheel(folder, settings=None, metadata=None):\n"
        "    return build_made(folder, f'V = {tool.V!r}')\n"
    )
    project = '[build-system]\nrequires = ["tool"]\nbuild-backend = "back_end"\nbackend-path = ["."]\n'
    content = {"pyproject.toml": project, "back_end.py": back_end}
    content["PKG-INFO"] = "Metadata-Version: 2.1\nName: made\nVersion: 1.0\n"
    sdist = tmp_path / "made-1.0.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name, text in content.items():
            member = tarfile.TarInfo(f"made-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    package = LockedPackage("made", "1.0", "pip", sdist.as_uri(), sha256_of(sdist))
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    for date, built_with in (("2024-01-01T00:00:00Z", "1.0"), ("2026-01-01T00:00:00Z", "2.0")):
        lock = make_lock(python, host_platform(), [package], date)
        prefix = ensure_prefix(lock, cache_dir=cache, allow_source=True)
        assert run(prefix, "import made; print(made.V)") == built_with
        prefix.release()


def test_a_full_disk_is_transient_and_a_closed_cache_has_a_remedy(lock, cache, monkeypatch, tmp_path):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("bisect_env.environments.prefix.lockfiles.text", full)
        with pytest.raises(UnbuildableError, match="No space left") as raised:
            ensure_prefix(lock, cache_dir=cache)
    assert raised.value.transient
    assert leftovers(cache) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError, match="remedy: see that it can be written"):
        ensure_prefix(lock, cache_dir=tmp_path / "file")


def test_an_unusable_prefix_is_made_anew(lock, cache):
    prefix = ensure_prefix(lock, cache_dir=cache)
    prefix.python.unlink()
    prefix.python.symlink_to("/nowhere/python")
    assert ensure_prefix(lock, cache_dir=cache).build_seconds > 0
    assert run(prefix, "print(1)") == "1"
    (prefix.path / MARKER).unlink()
    assert ensure_prefix(lock, cache_dir=cache).build_seconds > 0
    assert leftovers(cache) == []


def test_four_processes_build_it_once(lock, cache, tmp_path):
    path = tmp_path / "demo.conda-lock.yml"
    path.write_text(lock.text)
    processes = [
        subprocess.Popen([sys.executable, "-c", BUILD, path, cache], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    answers = [process.communicate(timeout=100)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert {answer[0] for answer in answers} == {str(cache / "prefixes" / lock.content_hash)}
    assert sum(float(answer[1]) > 0 for answer in answers) == 1


def test_who_waits_for_the_build_of_another_process_is_told_so(lock, cache, index, tmp_path):
    path = tmp_path / "demo.conda-lock.yml"
    path.write_text(lock.text)
    released = threading.Event()
    index.on_request = lambda path: released.wait(60) and None
    process = subprocess.Popen([sys.executable, "-c", BUILD, path, cache])
    steps = []

    def take(step):
        steps.append(step.what)
        released.set()

    try:
        wait_for_download(process, index, cache)
        # Without the message the other build would never go on; this one fails then.
        with listening(take):
            assert ensure_prefix(lock, cache_dir=cache, timeout=5).build_seconds == 0
    finally:
        released.set()
        assert process.wait(60) == 0
    assert steps == ["waiting"]


def test_killed_in_the_middle_then_built_again(lock, cache, index, python, tmp_path):
    path = tmp_path / "demo.conda-lock.yml"
    path.write_text(lock.text)
    released = threading.Event()
    index.on_request = lambda path: released.wait(60) and None
    process = subprocess.Popen([sys.executable, "-c", BUILD, path, cache], start_new_session=True)
    try:
        wait_for_download(process, index, cache)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        # The installer still waits for the index, and would write into what is built in its place.
        assert leftovers(cache) == [lock.content_hash]
        other = ensure_prefix(make_lock(python, host_platform(), []), cache_dir=cache)
        assert run(other, "import sys; print(sys.prefix)") == str(other.path)
        with pytest.raises(UnbuildableError, match="another process has been building"):
            ensure_prefix(lock, cache_dir=cache, timeout=0.2)
        assert leftovers(cache) == [lock.content_hash]
    finally:
        released.set()
    prefix = ensure_prefix(lock, cache_dir=cache)
    assert run(prefix, "import below; print(below.version)") == "2.0"


def needs(version):
    here = [i.version for i in machine_interpreters().installed()]
    return pytest.mark.skipif(
        not any(v.startswith(f"{version}.") for v in here), reason=f"no Python {version} on this machine"
    )


@pytest.mark.network
@pytest.mark.parametrize(
    ("python", "pins", "code", "says"),
    [
        pytest.param(
            "3.6",
            {"better-exceptions-fork": "0.2.1.post6", "pygments": "2.5.2"},
            "import pkgutil; print('better_exceptions_fork' in [m.name for m in pkgutil.iter_modules()])",
            "True",
            marks=needs("3.6"),
        ),
        pytest.param(
            "3.7",
            {"greenlet": "0.4.16", "pygments": "2.5.2"},
            "import greenlet; print(greenlet.__version__)",
            "0.4.16",
            marks=needs("3.7"),
        ),
        pytest.param(
            "3.8",
            {"regex": "2021.8.27", "pygments": "2.5.2"},
            "import regex, importlib.metadata as m; print(m.version('regex'))",
            "2021.8.27",
            marks=needs("3.8"),
        ),
    ],
)
def test_old_pythons(cache, python, pins, code, says):
    environments = Environments(cache)
    request = EnvironmentRequest(python, pins, dependencies="none", allow_source=python == "3.6")
    lock = environments.lock(request)
    prefix = environments.ensure_prefix(lock, allow_source=request.allow_source)
    assert run(prefix, f"import sys; assert sys.version.startswith('{python}.'); {code}") == says
    command = [prefix.path / "bin" / "pygmentize", "-V"]
    assert "2.5.2" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert Path(run(prefix, "import sys; print(sys.prefix)")) == prefix.path


@pytest.mark.parametrize("when", ["before the trial", "during the trial"])
def test_a_failure_while_the_cache_was_taken_away_is_no_evidence(lock, cache, when):
    def build(lock, **options):
        prefix = ensure_prefix(lock, cache_dir=cache, **options)
        if when == "before the trial":
            (prefix.path / MARKER).unlink()
            next(prefix.path.glob("lib/python*/site-packages/demo.py")).parent.chmod(0o755)
            next(prefix.path.glob("lib/python*/site-packages/demo.py")).unlink()
        return prefix

    takes = f"import os\nos.rename({str(cache)!r}, {str(cache) + '-away'!r})\n"
    code = f"{takes if when == 'during the trial' else ''}import demo"
    spec = replace(make_spec(code), lock_hash=lock.content_hash)
    failed = perform(TrialRequest(spec, lock, False), build=build, cancelled=lambda: False, worker="w")
    assert isinstance(failed, TrialCompleted)
    assert failed.record.outcome is Outcome.IMPORT_ERROR
    assert failed.changes[-1].lock_hash == lock.content_hash
    assert failed.changes[-1].covers(failed.record)


def test_a_failure_where_files_were_taken_away_meanwhile_is_no_evidence(lock, cache, monkeypatch):
    build = partial(ensure_prefix, cache_dir=cache)

    def answer(code):
        spec = replace(make_spec(code), lock_hash=lock.content_hash)
        return perform(TrialRequest(spec, lock, False), build=build, cancelled=lambda: False, worker="w")

    site = "next(p for p in sys.path if p.endswith('site-packages'))"
    taken = f"import os, sys\nos.chmod({site}, 0o755)\nos.remove({site} + '/demo.py')\nimport demo"
    failed = answer(taken)
    assert isinstance(failed, TrialCompleted)
    (found,) = failed.changes  # so the runner counts the trial as void
    assert found.lock_hash == lock.content_hash
    assert found.covers(failed.record)
    again = answer("import demo")
    assert isinstance(again, TrialCompleted)
    assert again.record.outcome is Outcome.PASS
    assert again.changes == (found,), "it is told until the database has it"
    assert not found.covers(again.record)
    # Not only where something cannot be imported: a file that was changed may fail much later.
    place = f"{site} + '/demo.py'"
    changed = f"import os, sys, demo\nos.chmod({place}, 0o644)\nopen({place}, 'a').write('#')\n1 / 0"
    failed = answer(changed)
    assert isinstance(failed, TrialCompleted)
    assert failed.changes[-1].covers(failed.record)
    # What an earlier command left changed is void, too, back to the last look that found it as it was made.
    earlier = answer("import demo; 1 / 0")
    assert isinstance(earlier, TrialCompleted)
    (module,) = (cache / "prefixes" / lock.content_hash).glob("lib/python*/site-packages/demo.py")
    module.chmod(0o644)
    module.write_text("#")
    monkeypatch.setattr(integrity, "UNCHANGED", {})
    passed = answer("import demo")
    assert isinstance(passed, TrialCompleted)
    (*_, last) = passed.changes
    assert last not in failed.changes
    assert earlier.record.started_at <= last.since <= last.until <= passed.record.started_at
    assert not last.covers(passed.record)
    own = answer("import no_such_module")
    assert isinstance(own, TrialCompleted)
    assert own.record.outcome is Outcome.IMPORT_ERROR


def test_a_failure_where_a_sibling_was_written_to_is_no_evidence(lock, cache, index, python):
    """Hard links: what a passing trial writes into one environment is in all that share the file."""
    other = locked(index, python, "demo")

    def answer(of, code):
        spec = replace(make_spec(code), lock_hash=of.content_hash)
        request = TrialRequest(spec, of, False)
        build = partial(ensure_prefix, cache_dir=cache)
        return perform(request, build=build, cancelled=lambda: False, worker="w")

    for one in (lock, other):
        assert answer(one, "import demo").record.outcome is Outcome.PASS
    writes = (
        "import os, demo\nos.chmod(demo.__file__, 0o644)\nopen(demo.__file__, 'a').write('raise OSError')"
    )
    assert answer(lock, writes).record.outcome is Outcome.PASS
    failed = answer(other, "import demo")
    assert isinstance(failed, TrialCompleted)
    assert failed.changes[-1].lock_hash == other.content_hash
    assert failed.changes[-1].covers(failed.record)
    assert answer(other, "import demo").record.outcome is Outcome.PASS, "built again from a fresh archive"
    index.add("third", "1.0")
    assert answer(locked(index, python, "demo", "third"), "import demo").record.outcome is Outcome.PASS


def test_a_pass_that_waited_for_a_gpu_while_its_environment_was_found_changed_is_no_evidence(lock, cache):
    build = partial(ensure_prefix, cache_dir=cache)

    def answer(code, lend=None):
        spec = replace(make_spec(code), lock_hash=lock.content_hash)
        request = TrialRequest(spec, lock, False)
        return perform(request, build=build, cancelled=lambda: False, worker="w", lend=lend)

    def lend(spec, trial):
        """Lend GPUs after another trial has changed the environment and failed."""
        place = "demo.__file__"
        change = f"import os, demo\nos.chmod({place}, 0o644)\nopen({place}, 'a').write('#')\n1 / 0"
        assert answer(change).changes
        return trial((), None)

    passed = answer("import demo", lend)
    assert passed.record.outcome is Outcome.PASS
    assert any(change.covers(passed.record) for change in passed.changes)
