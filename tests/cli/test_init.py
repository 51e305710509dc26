"""`bisect-env init`, `doctor`, the log, completion: what a new user meets first."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from bisect_env.engine import doctor
from bisect_env.engine.doctor import Health, findings
from bisect_env.matrix.ask import PackageAnswer, TemplateAnswers, template
from bisect_env.matrix.load import load_matrix
from bisect_env.storage.store import Store
from tests.cli.calls import RunCommand
from tests.engine.studies import Studies

TORCH = ["--package", "torch", "--versions", ">=2.0,<2.6", "--script", "repro.py"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_flags_make_a_matrix_that_loads(here: Path, run: RunCommand) -> None:
    code, out, err = run("init", *TORCH, "--python", "3.10", "--gpus", "1")
    assert (code, out) == (0, "")
    assert "next: bisect-env plan matrix.yaml" in err
    matrix = load_matrix("matrix.yaml")
    assert matrix.name == "torch"
    assert matrix.file.trial.gpus == 1
    assert matrix.file.axes["torch"].versions == ">=2.0,<2.6"  # type: ignore[union-attr]
    assert "import torch" in (here / "repro.py").read_text()
    assert (here / "matrix.yaml").read_text().count("#") > 10


def test_several_packages_from_conda(here: Path, run: RunCommand) -> None:
    (here / "scripts").mkdir()
    (here / "scripts" / "own.py").write_text("mine")
    words = ["-p", "pytorch", "--versions", "2.4.1,2.5.1", "-p", "cuml", "--versions", ">=24.4"]
    code, _, err = run(
        "init", "m.yaml", *words, "--script", "scripts/own.py", "-c", "rapidsai", "-c", "conda-forge"
    )
    assert code == 0, err
    matrix = load_matrix("m.yaml")
    assert list(matrix.file.axes) == ["python", "pytorch", "cuml"]
    assert matrix.file.channels == ("rapidsai", "conda-forge")
    assert (here / "scripts" / "own.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--package", "torch"], "--versions is not given"),
        ([], "--package is not given"),
        (["--package", "torch", "--versions", ">=2.0,<2.6"], "--script is not given"),
        (
            ["--package", "torch", "--versions", "nonsense!", "--script", "a.py"],
            "these answers make no matrix",
        ),
        (["--package", "torch", "--versions", "2.0", "--script", "../a.py"], "lies outside"),
        ([*TORCH, "--versions", "2"], "more `--versions` than `--package`"),
        ([*TORCH, "--timeout", "never"], "these answers make no matrix"),
    ],
)
def test_what_makes_no_matrix_leaves_nothing(
    here: Path, run: RunCommand, words: list[str], says: str
) -> None:
    code, _, err = run("init", *words)
    assert code == 2
    assert says in err
    assert list(here.iterdir()) == []


def test_nothing_is_overwritten_unasked(here: Path, run: RunCommand) -> None:
    (here / "matrix.yaml").write_text("mine")
    assert run("init", *TORCH)[0] == 2
    assert run("init", *TORCH, "--force", "--timeout", "never")[0] == 2
    assert (here / "matrix.yaml").read_text() == "mine"
    assert run("init", *TORCH, "--force")[0] == 0


@pytest.mark.parametrize(
    "words", [TORCH, ["--package", "torch>=2.0,<2.6", "--script", "repro.py", "--always"]]
)
def test_what_is_overwritten_stays_until_all_of_the_new_is_there(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system can only be mounted by root")
    try:
        monkeypatch.chdir(place)
        (place / "repro.py").write_text("import torch\n")
        (place / "matrix.yaml").write_bytes("name: größe\n".encode("latin-1"))
        with (place / "full").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass
        code, _, err = run("init", *words, "--force")
        assert code == 6, err
        assert "No space left" in err
        assert (place / "matrix.yaml").read_bytes() == "name: größe\n".encode("latin-1")
        assert sorted(path.name for path in place.iterdir()) == ["full", "matrix.yaml", "repro.py"]
        (place / "full").unlink()
        code, _, err = run("init", *words, "--force")
        assert code == 0, err
        assert load_matrix("matrix.yaml").file.name == "torch"
    finally:
        monkeypatch.chdir(tmp_path)
        subprocess.run(["umount", str(place)], check=True)


def test_names_become_names_of_studies_and_axes() -> None:
    text = template(TemplateAnswers([PackageAnswer("Ruamel.Yaml", "0.17.0")], "my script.py", "3.11"))
    assert "name: ruamel_yaml\n" in text
    assert "  ruamel-yaml:\n" in text


@pytest.mark.slow
@pytest.mark.integration
def test_answers_are_asked_for_on_a_terminal(here: Path) -> None:
    parent, child = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "bisect_env", "init"], stdin=child, stdout=child, stderr=child
    ) as process:
        os.close(child)
        os.write(parent, b"numpy\n1.26.4, 2.0.0\nwork.py\n\n")
        said = b""
        while True:
            try:
                piece = os.read(parent, 4096)
            except OSError:  # the terminal is gone with its last process
                break
            said += piece
        assert process.wait(30) == 0, said
    os.close(parent)
    assert b"Package that is bisected" in said
    assert list(load_matrix("matrix.yaml").file.axes) == ["python", "numpy"]


def test_a_doctor_says_what_is_missing_and_what_it_costs(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BISECT_ENV_DB", str(tmp_path / "results.sqlite"))
    monkeypatch.setenv("BISECT_ENV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BISECT_ENV_CONTAINER_ENGINE", "no-such-engine")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    code, out, _ = run("doctor", "--json")
    assert code == 0
    found = {one["name"]: one for one in json.loads(out)}
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
    found = {one["name"]: one for one in json.loads(out)}
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
        [*words, "-v", "--workers", "1", "--offline", "/nowhere/user:secret@host"],
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode != 0
    done = subprocess.run(
        [*words, "-v", "--workers", "1"], env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 3, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("log: "))
    log = Path(line.removeprefix("log: "))
    assert log.stat().st_mode & 0o077 == 0
    written = log.read_text().splitlines()
    assert '"outcome": "exit-fail"' in "".join(written)
    # `-v` shows the same lines.
    assert set(written) <= set(done.stderr.splitlines())
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
        "COMP_WORDS": "bisect-env ver",
        "COMP_CWORD": "1",
    }
    command = [str(Path(sys.executable).with_name("bisect-env"))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["verify"]
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
        ["diagnose", "--at", "level=2", "-n", "1", "-v"],
        ["shell", "--at", "level=2"],
        ["amplify", "--bad", "level=2", "--good", "level=0", "-v"],
    ],
)
def test_what_should_be_known_of_a_combination_is_said(tmp_path: Path, words: list[str]) -> None:
    # It fails always, so that there is nothing to amplify.
    matrix = Studies(tmp_path).matrix("1 / 0", rest="exclude: [{when: {level: 2}, why: 'it is too old'}]")
    places = ["--db", str(tmp_path / "results.sqlite"), "--cache", str(tmp_path / "cache")]
    command, *more = words
    if "-v" in words:
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
    if "-v" in words:
        written = (tmp_path / "log").read_text().splitlines()
        assert "it is too old" in "".join(written)
        assert set(written) <= set(done.stderr.splitlines())
    # What is no evidence begins no study of the matrix.
    with Store.open(str(tmp_path / "results.sqlite"), read_only=True) as store:
        assert {study.name for study in store.studies()} <= {"planted: circumstances"}


def test_a_range_writes_the_matrix_that_run_would_answer(
    run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "repro.py").write_text("import orjson\n")
    code, _, err = run("init", "m.yaml", "-p", "orjson>=3.8", "--script", "repro.py", "--rate", "0.1")
    assert code == 0, err
    file = load_matrix(tmp_path / "m.yaml").file
    assert (file.axes["orjson"].versions, file.search.crash_rate) == (">=3.8", 0.1)
    before = (tmp_path / "m.yaml").read_text()
    words = ("-p", "orjson>=3.8", "--script", "missing.py", "--force")
    code, _, err = run("init", "m.yaml", *words)
    assert code == 2
    assert "missing.py does not exist" in err
    assert (tmp_path / "m.yaml").read_text() == before
