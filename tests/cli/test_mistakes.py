"""What a user may give by mistake, or a shell may do: a message and a documented code, never a traceback."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import bisect_env
from bisect_env.cli.output import in_own_form, own_form, to_repeat
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


def test_how_often_and_how_sure_can_be_said_beside_a_matrix_file(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BISECT_ENV_DB", str(tmp_path / "results.sqlite"))
    matrix = str(matrix_of(tmp_path, "1, 2"))
    code, _, err = run("plan", matrix, "--confidence", "0.5")
    assert (code, "do not fit" in err) == (2, True)
    code, out, _ = run("plan", matrix, "--rate", "0.25", "--json")
    assert (code, [one["crash_rate"] for one in json.loads(out)["forecast"]]) == (0, [0.25])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("report", "--format", "htm"), "'htm' is not one of"),
        (("report", "--format="), "'' is not one of"),
        (("run", "m.yaml", "--workers", "many"), "should be a valid integer"),
    ],
)
def test_a_wrong_value_of_an_option_is_told_without_the_name_of_an_error(
    run: RunCommand, words: tuple[str, ...], message: str
) -> None:
    code, _, err = run(*words)
    assert code == 2
    # typer wraps the message in a box.
    assert message in " ".join(err.replace("│", " ").split())
    assert "Value error" not in err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version: 1", "version: 2", "is not a format that this release reads; write version: 1"),
        ("python -c pass", "python -c '", "the command cannot be split into words"),
        ("[1, 2]", "[1, 1]", "line 4: axes.level.values: value '1' stands twice; remove one"),
        ("[1, 2]", "3", "line 4: axes.level.values: this should be a list, not '3'; write"),
    ],
)
def test_a_wrong_value_in_a_matrix_is_told_without_the_name_of_an_error(
    tmp_path: Path, run: RunCommand, old: str, new: str, message: str
) -> None:
    path = matrix_of(tmp_path, "1, 2")
    path.write_text(path.read_text().replace(old, new))
    code, _, err = run("plan", str(path))
    assert (code, "Value error" in err) == (2, False)
    assert message in err


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


@pytest.mark.slow
def test_a_log_that_cannot_be_written_to_the_end(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BISECT_ENV_DB", str(tmp_path / "results.sqlite"))
    full = Path("/dev/full")
    before = full.stat().st_mode
    code, _, err = run("run", str(matrix_of(tmp_path, "1, 2")), "--log-file", str(full))
    assert code in (0, 1)
    assert err.count("the log is incomplete") == 1
    assert "Traceback" not in err
    assert full.stat().st_mode == before


def test_a_log_of_somebody_else_keeps_its_mode(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BISECT_ENV_DB", str(tmp_path / "results.sqlite"))
    theirs, new = tmp_path / "theirs.log", tmp_path / "new.log"
    theirs.touch()
    theirs.chmod(0o666)
    for log, mode in ((theirs, 0o666), (new, 0o600)):
        code, _, err = run("between", "no-such-file", "b", "--log-file", str(log), "--", "python", "x.py")
        assert (code, f"log: {log}" in err) == (2, True), err
        assert log.stat().st_mode & 0o777 == mode


def test_an_argument_that_is_not_utf8(tmp_path: Path, run: RunCommand) -> None:
    code, _, err = run("run", str(tmp_path / "m\udcff.yaml"))
    assert code == 2
    assert "argument 2 is not UTF-8" in err


@pytest.mark.parametrize(
    ("variables", "words", "says"),
    [
        ({}, ["between", "~no-such-user/a", "b"], "~no-such-user/a begins with a home directory"),
        ({}, ["between", "x" * 300, "b"], "there is no such file"),
        ({}, ["db", "export", "~no-such-user/e"], "begins with a home directory"),
        ({}, ["report", "--db", "~no-such-user/r"], "begins with a home directory"),
        ({"BISECT_ENV_CACHE": "~no-such-user"}, ["run", "app>=1", "x.py"], "begins with a home directory"),
        ({"UV_DEFAULT_INDEX": "https://[bad/simple"}, ["run", "app>=1", "x.py"], "Invalid IPv6 URL"),
        ({"UV_FIND_LINKS": "https://[bad/"}, ["run", "app>=1", "x.py"], "Invalid IPv6 URL"),
    ],
)
def test_a_place_that_cannot_be_read(
    tmp_path: Path,
    run: RunCommand,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    words: list[str],
    says: str,
) -> None:
    for name, value in {"BISECT_ENV_DB": str(tmp_path / "r.sqlite"), **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text("import app\n")
    (tmp_path / "b").write_text("six==1.16.0\n")
    more = ["--", "python", "x.py"] if words[0] == "between" else []
    code, _, err = run(*words, *more)
    assert (code, says in err) == (2, True), err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("plan", "m.yaml", "--save", "LONG.yaml"), 2),
        (("plan", "six>=1", "LONG.py"), 2),
        (("plan", "--git", "LONG", "--from", "v1", "--", "python", "-c", "pass"), 2),
        (("trial", "m.yaml", "--at", "1", "--debug", "--output", "LONG"), 2),
        pytest.param(
            ("trial", "m.yaml", "--at", "1", "--debug", "--output", "/dev/null/x"),
            6,
            marks=pytest.mark.integration,
        ),
    ],
)
def test_a_path_that_cannot_be_used(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BISECT_ENV_DB", str(tmp_path / "results.sqlite"))
    matrix_of(tmp_path, "1, 2")
    found, _, err = run(*(word.replace("LONG", 300 * "a") for word in words))
    assert found == code, err
    assert re.search("File name too long|Not a directory", err)
    assert "remedy: " in err


def test_a_folder_that_may_not_be_listed(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "iterdir", refuse)
    code, _, err = run("plan", str(tmp_path / "m.yaml"))
    assert (code, "the file does not exist; correct the path" in err) == (2, True), err


def test_a_directory_that_was_removed(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    code, _, err = run("report", "--list")
    assert code == 2
    assert "the current directory does not exist any more" in err


def test_a_secret_of_the_command_line_is_not_printed(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").write_text("")
    words = ("--env", "API_TOKEN=hunter2secret", "--index", "http://127.0.0.1:9/simple")
    _, out, err = run("run", "-p", "six>=1", *words, "--", "python", "t.py")
    assert "API_TOKEN" in err
    assert "hunter2secret" not in out + err


def test_a_lock_of_somebody_else(tmp_path: Path, run: RunCommand) -> None:
    lock = tmp_path / "lock.yml"
    lock.write_text("version: 1\nmetadata: {platforms: [linux-64]}\npackage: []\n")
    code, _, err = run("report", "--diff", str(lock), str(lock))
    assert code == 6
    assert "lacks `custom_metadata`" in err


@pytest.mark.slow
@pytest.mark.integration
def test_closed_standard_output(tmp_path: Path) -> None:
    studies = Studies(tmp_path)
    studies.run(studies.matrix(PASS, rest=QUICK))
    before = studies.db.read_bytes()
    for words in ("report", "report --trials", "report --list", "query 'select 1'", "plan --schema"):
        db = "" if words == "plan --schema" else f"--db {studies.db}"
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
@pytest.mark.parametrize("stream", ["2>/dev/full", "2>&-", "2>&1 >/dev/null | true"])
def test_messages_that_cannot_be_written_change_no_exit_code(tmp_path: Path, stream: str) -> None:
    matrix_of(tmp_path, "1, 2")
    where = "--db results.sqlite --cache cache"
    for words, code in (
        (f"plan no.yaml {where}", 2),
        ("plan m.yaml --no-such-option", 2),
        (f"trial m.yaml --at level=1 --number 2 {where}", 0),
    ):
        command = f"set -o pipefail; {sys.executable} -m bisect_env {words} {stream}"
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, timeout=100)
        assert done.returncode == code, words


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
    _, out, _ = run("run", "--help-all")
    words = " ".join(out.split())
    for option in ("--workers N", "--to COMMIT", "--env NAME=VALUE"):
        assert option in words
    for command in ((), ("run",), ("plan",), ("trial",), ("report",), ("env",), ("env", "prune")):
        _, out, _ = run(*command, "--help" if command in ((), ("env",), ("env", "prune")) else "--help-all")
        for name in ("INTEGER", "<int", "<bool>", "<str>", "<path>", "<list"):
            assert name not in out, command


def test_what_the_next_command_needs_is_said() -> None:
    given = [
        "run",
        "m.yaml",
        "--skip",
        "2",
        "--db",
        "a",
        "--db",
        "b c.sqlite",
        "--cache=c",
        "--",
        "x",
        "--db",
        "d",
    ]
    assert to_repeat(given) == "add --db 'b c.sqlite' --cache c to these commands"
    assert to_repeat(["run", "m.yaml", "--quiet"]) == ""
    hidden = to_repeat(["run", "--db", "postgresql://u:secret@h/d", "--offline", "o"])
    assert "secret" not in hidden
    assert hidden.startswith("add --offline o to these commands; set BISECT_ENV_DB")


@pytest.mark.parametrize(
    ("program", "words", "form"),
    [
        ("bisect-env", [], "bisect-env"),
        ("tools/my env/bisect-env", [], "'tools/my env/bisect-env'"),
        (
            "/x/archive-v0/y/bin/bisect-env",
            ["uv", "tool", "uvx", "--from", "b @ git+url", "bisect-env"],
            None,
        ),
    ],
)
def test_printed_commands_begin_as_the_tool_was_started(
    monkeypatch: pytest.MonkeyPatch, program: str, words: list[str], form: str | None
) -> None:
    monkeypatch.setattr(sys, "argv", [program, "run", "m.yaml"])
    parent = [*words, "run", "m.yaml"] if words else ["sh"]
    monkeypatch.setattr(psutil.Process, "cmdline", lambda _: parent)
    own_form.cache_clear()
    try:
        wanted = form or "uvx --from 'b @ git+url' bisect-env"
        assert own_form() == wanted
        assert in_own_form("`bisect-env run m.yaml` goes on") == f"`{wanted} run m.yaml` goes on"
        assert in_own_form("bisect-env itself failed, found by bisect-env 0.1") == (
            "bisect-env itself failed, found by bisect-env 0.1"
        )
    finally:
        own_form.cache_clear()


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.network
@pytest.mark.parametrize("words", [("uvx",), ("uv", "tool", "run")])
def test_commands_that_uvx_prints_begin_with_it(tmp_path: Path, words: tuple[str, ...]) -> None:
    root, programs, (tool, *more) = Path(__file__).parents[2], Path(sys.executable).parent, words
    # A wheel of today: of a directory, uv keeps what it built before.
    build = ("build", "--wheel", "--no-build-isolation", "--python", sys.executable)
    subprocess.run(
        [str(programs / "uv"), *build, f"--out-dir={tmp_path}"],
        cwd=root,
        capture_output=True,
        check=True,
        timeout=280,
    )
    (wheel,) = tmp_path.glob("*.whl")
    start = [str(programs / tool), *more, "--from", str(wheel), "bisect-env"]
    (tmp_path / "repro.py").write_text("")
    done = subprocess.run(
        [*start, "run", "repro.py"],
        cwd=tmp_path,
        env={**os.environ, "BISECT_ENV_DB": str(tmp_path / "results.sqlite")},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert f": {' '.join(words)} --from {wheel} bisect-env run 'PACKAGE>=1.0' repro.py" in done.stderr


@pytest.mark.integration
def test_a_trial_is_shown_with_all_that_it_printed(tmp_path: Path, run: RunCommand) -> None:
    studies = Studies(tmp_path)
    script = "import sys; print('seen'); sys.exit('words' if int(sys.argv[1]) > 4 else 0)"
    studies.run(studies.matrix(script, rest=QUICK))
    db = str(studies.db)
    _, out, _ = run("report", "--db", db)
    command = re.search(r"bisect-env report --trial (\w+)", out)
    assert command is not None, out
    code, out, _ = run("report", "--trial", command[1], "--db", db)
    assert code == 0
    assert "outcome      exit-fail" in out
    assert "--- stdout\nseen\n" in out
    assert "--- stderr\nwords\n" in out
    code, out, _ = run("report", "--trial", command[1], "--json", "--db", db)
    assert json.loads(out)["stdout"] == "seen\n"
    assert run("report", "--trial", "zzz", "--db", db)[0] == 2
    for no_id in ("%'", "", "a'b"):
        code, _, err = run("report", "--trial", no_id, "--db", db)
        assert code == 2
        assert "is no id" in err
