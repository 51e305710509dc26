"""`bisect-env report` and schemas, and how every command ends."""

from __future__ import annotations

import errno
import functools
import json
import os
import shlex
import stat
import subprocess
import sys
import tempfile
import webbrowser
from functools import cache
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.errors import StorageError, StudyInterruptedError
from bisect_env.matrix.schema import schema_text
from bisect_env.report.formats import report_schema_text
from bisect_env.storage.entries import COMMIT, TRACED, StudyDefinition
from bisect_env.storage.store import Store
from tests.cli.calls import RunCommand
from tests.report.samples import StudyBuilder, axis, orjson_study, orjson_verdict
from tests.storage.samples import definition, lock, states


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "results.sqlite"
    monkeypatch.setenv("BISECT_ENV_DB", str(path))
    with Store.open(str(path)) as store:
        study = orjson_study(store)
        study.finished(orjson_verdict())
        StudyBuilder(store, [axis("a", "1", "2")], name="unfinished")
    return path


def test_a_study_with_a_verdict(db: Path, run: RunCommand) -> None:
    code, out, err = run("report", "orjson_crash")
    assert (code, err) == (0, "")
    assert out.startswith("orjson 3.9.11 is the first bad version (last good 3.9.10): crashed in 3 of 18")
    assert "\x1b" not in out


@pytest.mark.parametrize("kind", [TRACED, COMMIT])
def test_the_last_question_is_the_one_that_the_user_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: RunCommand, kind: str
) -> None:
    """`between` and `explain --git` have the releases or commits of their answer found by a later study."""
    monkeypatch.setenv("BISECT_ENV_DB", str(tmp_path / "results.sqlite"))
    with Store.open() as store:
        asked = StudyBuilder(store, [axis("environment", "good", "bad")]).study
        part = store.open_study(StudyDefinition("releases", "other", "", "version: 1\n"))
        assert json.loads(run("report", "--json")[1])["study"]["id"] == part.id
        day = "2026-01-01T00:00:00Z"
        dates = {"authored": day, "committed": day}
        commit = {"axis": "lib", "package": "lib", "commit": "0" * 40, **dates}
        chapter: dict[str, object] = {"study": part.id, "sentence": "lib 3 broke it"}
        if kind == COMMIT:
            chapter |= {**commit, "last_good": {"commit": "1" * 40, "subject": ""}}
        store.record_decision(asked.id, kind, chapter)
    assert json.loads(run("report", "--json")[1])["study"]["id"] == asked.id
    assert json.loads(run("report", "releases", "--json")[1])["study"]["id"] == part.id


def test_a_script_without_its_package(db: Path, run: RunCommand) -> None:
    code, _, err = run("report", "flaky.py")
    assert code == 2
    assert "flaky.py is a script: the package that was asked about is missing" in err
    assert "orjson_crash" in err
    assert "report --list` shows" in err


def test_a_study_without_one(db: Path, run: RunCommand) -> None:
    code, out, err = run("report")
    assert (code, err) == (1, "")
    assert out.startswith("No verdict: the study has not come to a verdict yet\n")


def test_data_on_stdout(db: Path, run: RunCommand) -> None:
    code, out, err = run("report", "orjson_crash", "--format", "json", "--db", str(db))
    assert (code, err) == (0, "")
    assert json.loads(out)["verdict"]["first_bad"]["orjson"] == "3.9.11"


def test_a_path_in_the_database_is_one_word_of_the_commands_to_paste(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "it's mine; really.sqlite"
    with Store.open(str(path)) as store:
        # What a terminal obeys is taken out when it is printed: within quotes it can end them.
        hostile = definition(matrix_path="m'\x1b[31m'; touch ran; '")
        study = store.open_study(hostile)
        store.save_locks([lock("1.0"), lock("2.0")])
        store.save_combinations(study.id, states())
        store.update_study(
            study.id, "finished", VerdictDocument(status="confirmed", first_bad={"orjson": "2.0"})
        )
    monkeypatch.chdir(tmp_path)
    _, out, err = run("report", "--details", "--db", str(path))
    assert shlex.split(err.removeprefix("add ").partition(" to these commands")[0]) == ["--db", str(path)]
    lines = [line.strip() for line in out.splitlines() if "bisect-env " in line]
    assert len(lines) >= 4
    for line in lines:
        words = shlex.split(line[line.index("bisect-env ") :], comments=True)
        assert "ran" not in words
        assert "touch" not in words
    assert sum("m''; touch ran; '" in shlex.split(line, comments=True) for line in lines) >= 2


@pytest.mark.parametrize("hidden", ["", " ", "\x01", "\u200b"])
def test_a_path_in_the_database_is_no_option_of_the_commands_to_paste(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    path = tmp_path / "results.sqlite"
    with Store.open(str(path)) as store:
        study = store.open_study(definition(matrix_path=f"{hidden}--log-file=over"))
        store.save_locks([lock("1.0"), lock("2.0")])
        store.save_combinations(study.id, states())
        store.update_study(
            study.id, "finished", VerdictDocument(status="confirmed", first_bad={"orjson": "2.0"})
        )
    monkeypatch.chdir(tmp_path)
    _, out, _ = run("report", "--details", "--db", str(path))
    words = [word for line in out.splitlines() if "--log-file" in line for word in line.split()]
    assert "./--log-file=over" in words
    assert "--log-file=over" not in words


def test_csv_means_the_same_for_a_report_and_for_lists(db: Path, run: RunCommand) -> None:
    assert run("report", "orjson_crash", "--csv") == run("report", "orjson_crash", "--format", "csv")
    assert run("report", "orjson_crash", "--csv", "--json")[0] == 2


@pytest.mark.parametrize(
    "words",
    [
        ("--list",),
        ("--list", "--csv"),
        ("--trials", "--json"),
        ("--diff", "last-good", "first-bad", "orjson_crash"),
        ("--diff", "last-good", "first-bad", "orjson_crash", "--json"),
        ("--trial", "TRIAL"),
        ("--trial", "TRIAL", "--json"),
    ],
)
def test_lists_go_into_a_file_as_well(
    db: Path, run: RunCommand, tmp_path: Path, words: tuple[str, ...]
) -> None:
    trial = json.loads(run("report", "--trials", "--json")[1].partition("\n")[0])["trial_id"]
    words = tuple(trial if word == "TRIAL" else word for word in words)
    file = tmp_path / "list"
    code, printed, _ = run("report", *words)
    assert (code, bool(printed)) == (0, True)
    assert run("report", *words, "--output", str(file))[:2] == (0, "")
    assert file.read_text() == printed


def test_by_the_beginning_of_an_id(db: Path, run: RunCommand) -> None:
    with Store.open(str(db), read_only=True) as store:
        study_id = store.study("orjson_crash").id
    assert json.loads(run("report", study_id[:12], "-f", "json")[1])["study"]["id"] == study_id


@pytest.mark.parametrize("form", ["text", "json"])
def test_into_a_file(db: Path, run: RunCommand, tmp_path: Path, form: str) -> None:
    file = tmp_path / "report.out"
    file.write_text("old")
    file.chmod(0o640)
    code, out, err = run("report", "orjson_crash", "--format", form, "--output", str(file))
    assert (code, out, err) == (0, "", "")
    assert "3.9.11" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert sorted(path.name for path in tmp_path.iterdir() if "report" in path.name) == ["report.out"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["report", "orjson_crush"], 2, "did you mean orjson_crash?"),
        (["report", "--db", "/gone/results.sqlite"], 6, "there are no results in /gone/results.sqlite"),
        (["report", "--db", "/"], 6, "is a directory"),
        (["report", "--db", "mysql://me:secret@x/y"], 2, "keeps its results in SQLite"),
        (["report", "--output", "/gone/file", "orjson_crash"], 2, "there is no directory /gone"),
        (["report", "--output", "/", "orjson_crash"], 2, "is a directory"),
        (["report", "--output", "/proc/version", "orjson_crash"], 6, "cannot be written"),
        (["report", "--format", "yaml"], 2, "yaml"),
        (["report", "--wrong"], 2, "No such option"),
        (["nonsense"], 2, "No such command"),
    ],
)
def test_what_goes_wrong(db: Path, run: RunCommand, arguments: list[str], code: int, said: str) -> None:
    ended, out, err = run(*arguments)
    assert ended == code
    assert said in " ".join(err.split())
    assert out == ""
    assert "Traceback" not in err
    assert "secret" not in err


@pytest.mark.parametrize("words", [(), ("--output", "own.html")])
def test_a_report_in_a_browser(
    db: Path, run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}\n')
    browser.chmod(0o755)
    monkeypatch.setattr(webbrowser, "_tryorder", None)  # browsers are looked for once a process
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    code, out, err = run("report", "orjson_crash", "--open", *words)
    assert (code, out) == (0, ""), err
    page = Path(urlsplit(opened.read_text()).path)
    assert page.parent == (tmp_path if words else tmp_path / "cache" / "bisect-env" / "reports")
    assert "orjson 3.9.11 is the first bad version" in page.read_text()
    if not words:
        assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700


def test_where_no_page_for_a_browser_can_be_written_another_file_is_named(
    db: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    code, _, err = run("report", "orjson_crash", "--open")
    assert code == 2
    assert "there is no directory /proc/nowhere/bisect-env/reports" in err
    assert "name another file" in err


def test_to_explain_makes_no_database(run: RunCommand, tmp_path: Path) -> None:
    mistyped = tmp_path / "mistyped.sqlite"
    code, _, err = run("explain", "--quiet", "--db", str(mistyped))
    assert code == 2
    assert "there is no results database yet" in err
    assert not mistyped.exists()


def test_to_explain_refuses_to_save_what_it_does_not_ask(db: Path, run: RunCommand, tmp_path: Path) -> None:
    file = tmp_path / "matrix.yaml"
    code, _, err = run("explain", "orjson_crash", "--quiet", "--save", str(file))
    assert (code, file.exists()) == (2, False)
    assert "--save writes the question about commits, which `--git` asks" in err


def test_options_without_a_meaning_in_a_mode_are_refused(db: Path, run: RunCommand) -> None:
    known = ("orjson_crash", "--quiet", "--bad", "orjson=3.9.11")
    for words, said in (
        (("report", "--trial", "1", "--csv"), "--trial does not use --csv"),
        (("report", "--diff", "last-good", "first-bad", "--csv"), "--diff does not use --csv"),
        (("trial", *known, "--amplify", "-n", "3"), "`--amplify` compares the good and the bad end"),
        (
            ("trial", *known, "--amplify", "--at", "first-bad"),
            "`--amplify` compares the good and the bad end",
        ),
    ):
        code, _, err = run(*words)
        assert (code, said in err) == (2, True), words


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "--schema", "--list"], "--schema does not use --list"),
        (["report", "nosuchstudy", "--list"], "--list does not use a question or a study"),
        (["report", "--list", "--trials"], "--list does not use --trials"),
        (["report", "--list", "--limit", "3"], "--list does not use --limit"),
        (["report", "--trial", "a", "--format", "html"], "--trial does not use --format"),
        (["report", "--trials", "--diff", "last-good", "first-bad"], "--trials does not use --diff"),
        (["report", "--installed", "six", "--details"], "--trials does not use --details"),
        (["report", "--limit", "3"], "a report does not use --limit"),
        (["report", "--format", "html", "--json"], "--json does not use --format"),
        (["report", "--open", "--json"], "--open does not use --json"),
        (["report", "--open", "--output", "-"], "--open opens a file"),
        (["plan", "--schema", "m.yaml"], "--schema does not use a question or a study"),
        (["plan", "m.yaml", "--save", "n.yaml", "--why"], "--save does not use --why"),
        (["trial", "m.yaml", "--fresh"], "--fresh begins a series of `--until-rate` anew"),
        (["trial", "m.yaml", "--debug", "--cuda", "--sanitizer", "memcheck"], "--cuda and --sanitizer"),
    ],
)
def test_no_option_is_ignored(run: RunCommand, arguments: list[str], said: str) -> None:
    code, _, err = run(*arguments)
    assert code == 2, err
    assert said in err
    assert "remedy" in err


def test_the_schema(run: RunCommand, tmp_path: Path) -> None:
    assert run("plan", "--schema") == (0, schema_text(), "")
    file = tmp_path / "schema.json"
    assert run("report", "--schema", "--output", str(file)) == (0, "", "")
    assert file.read_text(encoding="utf-8") == report_schema_text()


def test_help_and_version(run: RunCommand) -> None:
    code, out, _ = run("--help")
    assert code == 0
    for command in ("run", "plan", "report", "db"):
        assert f" {command} " in out
    assert run("-h")[0] == 0
    assert run("--version")[1].startswith("bisect-env ")
    # No command is a usage error, as it is for git.
    assert run()[0] == 2


def test_a_defect_ends_with_one_line_and_a_log(
    db: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("wires\x1b[31m crossed\nsecond line")

    monkeypatch.setattr(Store, "open", broken)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    code, out, err = run("report")
    assert (code, out) == (70, "")
    (line,) = err.splitlines()
    assert line.startswith(
        "error: bisect-env itself failed (RuntimeError: wires crossed); please report it with "
    )
    log = Path(line.rpartition(" ")[2])
    assert log.is_relative_to(tmp_path / "state")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    text = log.read_text(encoding="utf-8")
    assert "Traceback (most recent call last)" in text
    assert "second line" in text


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_a_system_call_that_the_host_refuses_is_no_defect(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))  # as a sandbox answers

    monkeypatch.setattr(Store, "open", refused)
    code, out, err = run("report")
    assert (code, out) == (6, "")
    assert err.startswith(f"error: this host refuses a system call: {os.strerror(number)} (")
    assert "docs/reference/host.md" in err


def test_a_defect_without_a_place_for_its_log(
    db: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(Store, "open", lambda *_, **__: 1 / 0)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "file"))
    code, _, err = run("report")
    assert code == 70
    assert "no log file could be written" in err


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (KeyboardInterrupt(), 130, ""),
        # Who pressed Ctrl-C made no mistake.
        (StudyInterruptedError("stopped", remedy="go on"), 130, "stopped\n  remedy: go on\n"),
        (StorageError("it\x1b[2J broke", remedy="mend it"), 6, "error: it broke\n  remedy: mend it\n"),
    ],
)
def test_how_commands_end(
    db: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int, said: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(Store, "open", fail)
    assert run("report") == (code, "", said)


@pytest.mark.slow
@pytest.mark.integration
def test_the_installed_command_in_a_narrow_world(db: Path) -> None:
    """No UTF-8, a reader that leaves, and help that does not load what it does not need."""
    program = Path(sys.executable).with_name("bisect-env")
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [program, "report", "orjson_crash"], env=env, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"interval 3.6?41 %" in done.stdout
    gone = subprocess.Popen(
        [program, "report", "orjson_crash"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert gone.stdout is not None
    gone.stdout.close()
    assert gone.stderr is not None
    err = gone.stderr.read()
    gone.stderr.close()
    gone.wait(timeout=60)
    assert b"Traceback" not in err
    assert gone.returncode in (0, 1)


LOADED = """
import sys
sys.argv = ["bisect-env", *sys.argv[1:]]
from bisect_env.cli import main
try:
    main()
finally:
    print("loaded:", *sorted(sys.modules), file=sys.stderr)
"""
FEW = {"annotated_doc", "bisect_env", "packaging", "psutil", "shellingham", "typer", "yaml"}
"""What every command may load: the command line."""
TOLD = {"attr", "markdown_it", "mdurl", "pygments", "rich"}
"""What shows text on a terminal, and help."""
MODELS = {"annotated_types", "pydantic", "pydantic_core", "typing_extensions", "typing_inspection"}
STORE = {"greenlet", "platformdirs", "sqlalchemy", "sqlmodel", *MODELS}
REPORT = {"numpy", "ruamel", *TOLD}
WORDS = {"uv"}
"""What questions in words need: uv finds the versions of Python."""
INDEX = {"backports", "certifi", "charset_normalizer", "idna", "requests", "urllib3", "uv"}


@cache
def installed() -> frozenset[str]:
    """What can be imported here because a distribution brought it."""
    return frozenset(metadata.packages_distributions())


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (["--help"], TOLD | MODELS),
        (["--version"], set[str]()),
        (["report", "--list"], STORE | REPORT | WORDS),
        (["report", "--trials"], STORE | REPORT | WORDS),
        (["query", "select 1"], STORE),
        (["report", "orjson_crash"], STORE | REPORT | WORDS),
        (["report", "orjson_crash", "-f", "html"], STORE | REPORT | WORDS | {"jinja2", "markupsafe"}),
        (["plan", "m.yaml"], STORE | INDEX | REPORT),
        (["run", "m.yaml", "--quick", "--json"], STORE | REPORT | INDEX),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_a_command_loads(
    db: Path, tmp_path: Path, words: list[str], allowed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No command waits for what it does not need: Dask, solvers and statistics above all."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text(
        "version: 1\nname: m\naxes: {size: {values: [0, 1], direction: regression}}\n"
        "trial: {command: \"python -c 'import sys; sys.exit({size})'\"}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stderr.splitlines()[-1].split()[1:])
    public = {name.partition(".")[0] for name in loaded if not name.startswith("_")}
    assert public & installed() <= FEW | allowed
    # Trials on the cores of this host need no Dask.
    assert "--json" not in words or not public & {"distributed", "scipy"}
    # The set-up compiles what a command loads: it loads it.
    kept = {name for name in loaded - set_up() if name.partition(".")[0] in installed() - {"bisect_env"}}
    assert not kept


@functools.cache
def set_up() -> frozenset[str]:
    """What `make setup` loads, for Python to keep its bytecode."""
    code = "import sys\nfrom tools.bytecode import load\nload()\nprint(*sys.modules)"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60, check=True
    )
    return frozenset(done.stdout.split())


def test_a_report_alone_is_enough_to_ask_again(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another folder, with another database: the report holds the matrix and the script."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    (here / "repro.py").write_text("import sys\nsys.exit(int(sys.argv[1]) >= 3)\n")
    (here / "m.yaml").write_text(
        "version: 1\nname: shared\naxes:\n  level: {values: [1, 2, 3, 4]}\n"
        "trial: {command: 'python repro.py {level}', files: [repro.py]}\n"
    )
    db = ("--db", str(tmp_path / "one.sqlite"))
    monkeypatch.chdir(here)
    assert run("run", "m.yaml", "--quick", *db)[0] == 0
    assert run("report", *db, "--format", "html", "-o", str(there / "report.html"))[0] == 0
    (here / "repro.py").unlink()
    monkeypatch.chdir(there)
    other = ("--db", str(tmp_path / "other.sqlite"))
    code, out, err = run("run", "report.html", "--quick", *other)
    assert (code, "level 3" in out) == (0, True), err
    assert not (there / "lockfiles").exists(), "they are written beside matrix files alone"
    code, _, err = run("run", "report.html", "--with", "six", *other)
    assert (code, "the report report.html" in err) == (2, True)
    for words in (("report",), ("reproduce", "--at", "first-bad", "--output", "bundle")):
        assert run(*words, "report.html", *other)[0] == 0
    # Somebody else's database does not have it.
    third = ("--db", str(tmp_path / "third.sqlite"))
    Store.open(third[1]).close()
    for command in ("report", "reproduce"):
        code, _, err = run(command, "report.html", *third)
        assert (code, "there is no study of report.html" in err) == (2, True)
        assert "begin it: bisect-env run report.html" in err


def test_options_of_a_question_are_refused_beside_a_study_and_not_beside_the_question(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text(
        "version: 1\nname: stated\naxes:\n  level: {values: [1, 2, 3, 4]}\n"
        "trial: {command: \"python -c 'import sys; sys.exit({level} >= 3)'\"}\n"
    )
    db = ("--db", str(tmp_path / "one.sqlite"))
    assert run("run", "m.yaml", "--quick", "--always", *db)[0] == 0
    assert run("report", "m.yaml", "--always", *db)[0] == 0
    for refused in (("--confidence", "0.9"), ("--trials", "--with", "six"), ("stated", "--rate", "0.1")):
        code, out, err = run("report", *refused, *db)
        assert (code, out) == (2, "")
        assert "belongs to a question, and the study stated was asked before" in err
        assert "leave it out" in err


def test_a_matrix_names_no_study_of_another_directory_that_had_the_same_path(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = str(tmp_path / "results.sqlite")
    with Store.open(db) as store:
        study = store.open_study(definition(matrix_path="matrix.yaml"))
        store.save_locks([lock("1.0"), lock("2.0")])
        store.save_combinations(study.id, states())
        verdict = VerdictDocument(status="confirmed", first_bad={"orjson": "2.0"})
        store.update_study(study.id, "finished", verdict)
    monkeypatch.chdir(tmp_path)
    text = "version: 1\nname: {}\naxes: {{level: {{values: [1, 2]}}}}\ntrial: {{command: python -c pass}}\n"
    Path("matrix.yaml").write_text(text.format("another"))
    code, out, err = run("report", "matrix.yaml", "--db", db)
    assert (code, out) == (2, "")
    assert "there is no study of matrix.yaml" in err
    # The same matrix, which was changed since.
    Path("matrix.yaml").write_text(text.format(study.name))
    code, out, err = run("report", "matrix.yaml", "--db", db)
    assert code == 0
    assert "matrix.yaml was changed since; this is what it asked on 20" in err


@pytest.mark.parametrize("ending", [".html", ".yaml", "/x", ""])
def test_a_word_that_is_too_long_for_a_path_is_no_file(db: Path, run: RunCommand, ending: str) -> None:
    code, out, err = run("report", "x" * 300 + ending, "--db", str(db))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "remedy: " in err
