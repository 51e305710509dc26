"""What a user may give by mistake, or a shell may do: a message and a documented code, never a traceback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bisect_env
from bisect_env.cli.output import with_options
from tests.cli.calls import RunCommand
from tests.engine.studies import QUICK, Studies

PASS = "import sys; sys.exit(int(sys.argv[1]) > 4)"


def matrix_of(folder: Path, values: str, more: str = "") -> Path:
    path = folder / "m.yaml"
    path.write_text(
        f"version: 1\nname: m\naxes:\n  level: {{values: [{values}]{more}}}\n"
        "trial: {command: python -c pass}\n"
    )
    return path


@pytest.mark.parametrize(("count", "more"), [(40_000, ""), (1_000, ", direction: either")])
def test_an_axis_that_is_too_long_is_refused_at_once(
    tmp_path: Path, run: RunCommand, count: int, more: str
) -> None:
    values = ",".join(map(str, range(count)))
    code, _, err = run("plan", str(matrix_of(tmp_path, values, more)))
    assert code == 2
    assert f"the axis 'level' has {count} values" in err


@pytest.mark.parametrize(
    "words",
    [
        ("trial", "m.yaml", "-n", "99999999999999999999"),
        ("plan", "m.yaml", "--workers", "99999999999999"),
        ("run", "m.yaml", "--workers", "99999999999999"),
    ],
)
def test_numbers_that_cannot_be_meant(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    matrix_of(tmp_path, "1, 2")
    monkeypatch.chdir(tmp_path)
    code, _, err = run(*words)
    assert code == 2
    assert words[-2].lstrip("-") in err or "number" in err
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    "text",
    [
        "index: http://a:99999/",
        "exclude_newer: '0001-01-01T00:00:00+14:00'",
        "exclude_newer: '9999-12-31T23:59:59-14:00'",
        f"axes: {{level: {{package: six, versions: '>=3.{'9' * 5000}'}}}}",
        f"packages: {{pypi: ['six; {'(' * 3000}os_name==\"a\"{')' * 3000}']}}",
    ],
)
def test_values_that_libraries_choke_on(tmp_path: Path, run: RunCommand, text: str) -> None:
    matrix = matrix_of(tmp_path, "1, 2")
    kept = matrix.read_text().splitlines()
    if text.startswith("axes"):
        del kept[2:4]
    matrix.write_text("\n".join([*kept, text, ""]))
    code, _, err = run("plan", str(matrix))
    assert code == 2
    assert f": {text.partition(':')[0]}" in err


def test_a_log_that_cannot_be_written_to_the_end(tmp_path: Path, run: RunCommand) -> None:
    full = Path("/dev/full")
    before = full.stat().st_mode
    code, _, err = run("run", str(matrix_of(tmp_path, "1, 2")), "--log-file", str(full))
    assert code in (0, 1)
    assert err.count("the log is not whole") == 1
    assert "Traceback" not in err
    assert full.stat().st_mode == before


def test_an_argument_that_is_not_utf8(tmp_path: Path, run: RunCommand) -> None:
    code, _, err = run("run", str(tmp_path / "m\udcff.yaml"))
    assert code == 2
    assert "argument 2 is not UTF-8" in err


def test_a_directory_that_was_removed(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    code, _, err = run("studies")
    assert code == 2
    assert "the current directory does not exist any more" in err


def test_a_secret_of_the_command_line_is_not_printed(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BISECT_ENV_ASKED", str(tmp_path / "asked"))
    (tmp_path / "t.py").write_text("")
    words = ("--env", "API_TOKEN=hunter2secret", "--index", "http://127.0.0.1:9/simple")
    _, out, err = run("run", "-p", "six>=1", *words, "--", "python", "t.py")
    assert "API_TOKEN" in err
    assert "hunter2secret" not in out + err


def test_a_lock_of_somebody_else(tmp_path: Path, run: RunCommand) -> None:
    lock = tmp_path / "lock.yml"
    lock.write_text("version: 1\nmetadata: {platforms: [linux-64]}\npackage: []\n")
    code, _, err = run("diff", str(lock), str(lock))
    assert code == 6
    assert "lacks `custom_metadata`" in err


@pytest.mark.slow
@pytest.mark.integration
def test_closed_standard_output(tmp_path: Path) -> None:
    studies = Studies(tmp_path)
    studies.run(studies.matrix(PASS, rest=QUICK))
    before = studies.db.read_bytes()
    for words in ("report", "trials", "studies", "query 'select 1'", "schema"):
        db = "" if words == "schema" else f"--db {studies.db}"
        done = subprocess.run(
            ["sh", "-c", f"{sys.executable} -m bisect_env {words} {db} >&-"],
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, (words, done.stderr)
        assert "standard output is closed" in done.stderr
    assert studies.db.read_bytes() == before


@pytest.mark.slow
@pytest.mark.integration
def test_without_an_installation_there_is_a_version_all_the_same() -> None:
    code = (
        "import importlib.metadata as m, sys\n"
        "def gone(name): raise m.PackageNotFoundError(name)\n"
        "m.version = gone\n"
        "sys.argv = ['bisect-env', '--version']\n"
        "import runpy; runpy.run_module('bisect_env', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=dict(os.environ)
    )
    assert (done.returncode, done.stdout) == (0, f"bisect-env {bisect_env.__version__}\n"), done.stderr


def test_help_calls_values_by_words(run: RunCommand) -> None:
    _, out, _ = run("run", "--help")
    words = " ".join(out.split())
    for option in ("--workers N", "--to COMMIT", "--good,--start VERSION", "--env NAME=VALUE"):
        assert option in words
    for command in ((), ("run",), ("plan",), ("diff",), ("env",), ("env", "prune")):
        _, out, _ = run(*command, "--help")
        for name in ("INTEGER", "<int", "<bool>", "<str>", "<path>", "<list"):
            assert name not in out, command


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bisect-env run m.yaml   goes on", "bisect-env run m.yaml --db 'a b.sqlite' --cache c   goes on"),
        ("`bisect-env plan m.yaml` lists", "`bisect-env plan m.yaml --cache c` lists"),
        ("bisect-env report 12 --db other", "bisect-env report 12 --db other"),
        ("give `bisect-env trials --show 1`.", "give `bisect-env trials --show 1 --db 'a b.sqlite'`."),
        (
            "bisect-env trial m.yaml --at a=1 # first bad",
            "bisect-env trial m.yaml --at a=1 --db 'a b.sqlite' --cache c # first bad",
        ),
        ("a bisect-env 1.0", "a bisect-env 1.0"),
    ],
)
def test_commands_to_be_given_next_carry_the_options_of_this_one(text: str, expected: str) -> None:
    assert with_options(text, ["run", "m.yaml", "--db", "a b.sqlite", "--cache=c", "--quiet"]) == expected
    assert with_options(text, ["run", "m.yaml", "--quiet"]) == text


def test_a_command_that_goes_on_asks_the_same_question() -> None:
    given = ["run", "m.yaml", "--skip", "2.1.0", "--all", "--skip=lib=1 2", "--db", "a", "--db", "b"]
    text = "`bisect-env run m.yaml` goes on; `bisect-env report 12` shows it"
    assert with_options(text, given) == (
        "`bisect-env run m.yaml --skip 2.1.0 --skip 'lib=1 2' --all --db b` goes on; "
        "`bisect-env report 12 --db b` shows it"
    )


@pytest.mark.integration
def test_a_trial_is_shown_with_all_that_it_printed(tmp_path: Path, run: RunCommand) -> None:
    studies = Studies(tmp_path)
    script = "import sys; print('seen'); sys.exit('words' if int(sys.argv[1]) > 4 else 0)"
    studies.run(studies.matrix(script, rest=QUICK))
    db = str(studies.db)
    _, out, _ = run("report", "--db", db)
    command = re.search(r"bisect-env trials --show (\w+) --db", out)
    assert command is not None, out
    code, out, _ = run("trials", "--show", command[1], "--db", db)
    assert code == 0
    assert "outcome      exit-fail" in out
    assert "--- stdout\nseen\n" in out
    assert "--- stderr\nwords\n" in out
    code, out, _ = run("trials", "--show", command[1], "--json", "--db", db)
    assert json.loads(out)["stdout"] == "seen\n"
    assert run("trials", "--show", "zzz", "--db", db)[0] == 2
    assert run("trials", "--show", "%'", "--db", db)[0] == 2
