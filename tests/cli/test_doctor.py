"""`bisect-env doctor`, the log, completion, and warnings about a combination."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bisect_env.engine import doctor
from bisect_env.engine.doctor import Health, findings
from bisect_env.storage.store import Store
from tests.cli.calls import RunCommand, objects
from tests.engine.studies import Studies


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_doctor_says_what_is_missing_and_what_it_costs(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BISECT_ENV_DB", str(tmp_path / "results.sqlite"))
    monkeypatch.setenv("BISECT_ENV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BISECT_ENV_CONTAINER_ENGINE", "no-such-engine")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    code, out, _ = run("doctor", "--json")
    assert code == 0
    found = {one["name"]: one for one in objects(out)}
    assert {"machine", "cache", "database", "uv", "rattler", "dask", "gpus", "core files"} <= found.keys()
    for name in ("uv", "rattler", "dask", "cache", "database"):
        assert found[name]["health"] == "ok", found[name]
    for name in ("containers", "package index"):
        assert found[name]["health"] == "missing", found[name]
        assert found[name]["cost"]
        assert found[name]["remedy"]
    assert not (tmp_path / "results.sqlite").exists()
    (tmp_path / "results.sqlite").write_text("no database")
    code, out, _ = run("doctor")
    assert code == 6
    assert "✗ database" in out


HOSTILE = "import os\nopen({ran!r}, 'a').write(__name__ + ' ')\nraise SystemExit(1)\n"
"""A module of another user, which notes that it ran."""


def leave_modules(folder: Path) -> Path:
    """Put modules with names of the standard library's into a folder; return the file in which they note."""
    ran = folder / "ran"
    for name in ("re", "typing", "enum", "json", "asyncio"):
        (folder / f"{name}.py").write_text(HOSTILE.format(ran=str(ran)))
    return ran


def test_a_doctor_runs_nothing_that_lies_in_the_current_directory(
    here: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = leave_modules(here)
    monkeypatch.setenv("BISECT_ENV_DB", str(here / "results.sqlite"))
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    _, out, _ = run("doctor", "--json")
    found = {one["name"]: one for one in objects(out)}
    assert found["rattler"]["health"] == "ok", found["rattler"]
    assert not ran.exists(), ran.read_text()


WORKERS = """
import sys
sys.path.append({root!r})
if __name__ == "__main__":
    from tests.cluster.cores import cores_executor
    from tests.cluster.executor_contract import build, collect, request
    executor = cores_executor(build, 1)
    executor.submit(request())
    print(collect(executor, 1)[0].record.outcome)
    executor.close()
"""


@pytest.mark.integration
@pytest.mark.slow
def test_workers_run_nothing_that_lies_in_the_current_directory(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    ran = leave_modules(shared)
    program = tmp_path / "program.py"
    program.write_text(WORKERS.format(root=str(Path(__file__).parents[2])))
    done = subprocess.run(
        [sys.executable, "-P", program],
        cwd=shared,
        # As every command of ours sets it for what it starts.
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert not ran.exists(), ran.read_text()
    assert done.returncode == 0, done.stderr
    assert done.stdout == "pass\n"


def test_a_check_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken() -> None:
        raise RuntimeError("the check is ill")

    monkeypatch.setattr(doctor, "open_nvml", broken)
    found = {one.name: one for one in findings(tmp_path, str(tmp_path / "db.sqlite"))}
    assert found["gpus"].health is Health.BROKEN
    assert "the check is ill" in found["gpus"].detail


@pytest.mark.slow
@pytest.mark.integration
def test_a_log_tells_what_happened(tmp_path: Path) -> None:
    matrix = Studies(tmp_path).matrix("raise SystemExit(3)")
    env = {
        **os.environ,
        "BISECT_ENV_DB": str(tmp_path / "results.sqlite"),
        "BISECT_ENV_CACHE": str(tmp_path / "cache"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    words = [sys.executable, "-m", "bisect_env", "trial", str(matrix), "--at", "level=2", "-n", "1"]
    done = subprocess.run(
        [*words, "--workers", "1", "--offline", "/nowhere/user:secret@host"],
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode != 0
    done = subprocess.run(
        [*words, "--workers", "1"], env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 3, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("log: "))
    log = Path(line.removeprefix("log: "))
    assert log.stat().st_mode & 0o077 == 0
    written = log.read_text().splitlines()
    assert '"outcome": "exit-fail"' in "".join(written)
    # Whoever wants to see it while the command runs names stderr.
    done = subprocess.run(
        [*words, "--workers", "1", "--log-file", "/dev/stderr"],
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert '"outcome": "exit-fail"' in done.stderr
    done = subprocess.run(
        [*words, "--log-file", str(tmp_path / "no" / "log")],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


@pytest.mark.slow
@pytest.mark.integration
def test_completion_and_colours() -> None:
    env = {
        **os.environ,
        "_BISECT_ENV_COMPLETE": "complete_bash",
        "COMP_WORDS": "bisect-env bet",
        "COMP_CWORD": "1",
    }
    command = [str(Path(sys.executable).with_name("bisect-env"))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["between"]
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "FORCE_", "PY_COLORS"))}
    for colours, wanted in (({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)):
        done = subprocess.run(
            [*command, "--help"], env={**plain, **colours}, capture_output=True, text=True, timeout=60
        )
        assert ("\x1b[3" in done.stdout or "\x1b[1;3" in done.stdout) is wanted


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(
    "words",
    [
        ["trial", "--debug", "--at", "level=2", "-n", "1"],
        ["shell", "--at", "level=2"],
        ["trial", "--amplify", "--bad", "level=2", "--good", "level=0"],
    ],
)
def test_what_should_be_known_of_a_combination_is_said(tmp_path: Path, words: list[str]) -> None:
    # It fails always, so that there is nothing to amplify.
    matrix = Studies(tmp_path).matrix("1 / 0", rest="exclude: [{when: {level: 2}, why: 'it is too old'}]")
    places = ["--db", str(tmp_path / "results.sqlite"), "--cache", str(tmp_path / "cache")]
    command, *more = words
    if command == "trial":
        more += ["--log-file", str(tmp_path / "log")]
    done = subprocess.run(
        [sys.executable, "-m", "bisect_env", command, str(matrix), *more, *places],
        stdin=subprocess.DEVNULL,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "warning: python=" in done.stderr
    assert "is excluded in the matrix: it is too old" in done.stderr
    assert "Traceback" not in done.stderr
    if command == "trial":
        assert "it is too old" in (tmp_path / "log").read_text()
    # What is no evidence begins no study of the matrix.
    with Store.open(str(tmp_path / "results.sqlite"), read_only=True) as store:
        assert {study.name for study in store.studies()} <= {"planted: circumstances"}
