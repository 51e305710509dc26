"""`bisect-env run RANGE SCRIPT`: a question without a file, as a user gives it."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bisect_env.cli.asking import TrialFlags, asked_command
from tests.cli.asking import Asking, an_index
from tests.cli.calls import RunCommand
from tests.environments.index_server import IndexServer

pytestmark = pytest.mark.integration

FROM_4 = r"app is (probably )?broken from 4 on \(last good 3\)"
"""How an answer begins; the checks take as long as trials did, and may not be over."""
BROKEN_FROM_FOUR = """
    import app
    assert int(app.version) < 4
"""


@pytest.fixture
def index() -> Iterator[IndexServer]:
    with an_index() as index:
        for version in range(1, 8):
            index.add("app", str(version))
        index.add("other", "1")
        yield index


@pytest.fixture
def user(tmp_path: Path, index: IndexServer, run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> Asking:
    asking = Asking(tmp_path, run, monkeypatch, index.url)
    asking.script(BROKEN_FROM_FOUR)
    return asking


def test_a_range_and_a_script_are_enough(user: Asking) -> None:
    done = user.run("run", "app>=1", "repro.py", "--always", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["verdict"]["first_bad"]["app"], said["verdict"]["last_good"]["app"]) == ("4", "3")
    # Nothing is left in the user's folder but what was there, and the same question is the same study.
    left = {path.name for path in user.folder.iterdir() if not path.name.startswith(".")}
    assert left <= {"repro.py", "planted.py", "results.sqlite", "cache", "state"}
    again = user.run("run", "app>=1", "repro.py", "--always")
    assert again.returncode == 0
    assert "going on after" in again.stderr
    assert again.stdout.startswith("app is broken from 4 on (last good 3)")


@pytest.mark.slow
def test_a_question_asked_once_is_named_from_then_on(user: Asking) -> None:
    """Its script may be gone: the database has it."""
    asked = user.run("run", "app>=1", "repro.py", "--always")
    assert asked.returncode == 0, asked.stderr
    (user.folder / "repro.py").unlink()
    user.index = ""
    study = json.loads(user.run("report", "--json").stdout)["study"]["id"]
    for reference in ([], ["app"], [study[:6]]):
        again = user.run("run", *reference)
        assert again.returncode == 0, again.stderr
        assert "going on after" in again.stderr
        assert again.stdout.splitlines()[0] == asked.stdout.splitlines()[0]
    tried = user.run("trial", "--at", "first-bad", "-n", "1")
    assert tried.returncode == 3, tried.stderr
    assert user.run("trial", "app", "--at", "3", "-n", "1").returncode == 0
    listing = f"import os; open({str(user.folder / 'seen')!r}, 'w').write(' '.join(os.listdir()))"
    seen = user.run("shell", "app", "--at", "last-good", "--", "python", "-c", listing)
    assert seen.returncode == 0, seen.stderr
    assert "repro.py" in (user.folder / "seen").read_text()
    assert user.run("plan", "--json").returncode == 0
    assert user.run("reproduce", "-o", "bundle").returncode == 0
    assert "assert int(app.version) < 4" in (user.folder / "bundle" / "repro.py").read_text()
    # The words say no more than the study does: they cannot contradict it.
    refused = user.run("run", "app", "--with", "other==1")
    assert (refused.returncode, "--with belongs to a question" in refused.stderr) == (2, True)


@pytest.mark.parametrize("command", ["plan", "trial", "map", "explain", "shell"])
def test_what_run_takes_other_commands_take(user: Asking, command: str) -> None:
    question = ["app==5", "repro.py", "--always"]
    if command == "explain":
        refused = user.run("explain", *question)
        assert (refused.returncode, "was not run" in refused.stderr) == (2, True)
        return
    more = {"shell": ["--", "true"], "trial": ["-n", "2"]}.get(command, [])
    done = user.run(command, *question, *more)
    assert done.returncode == {"trial": 3}.get(command, 0), done.stderr
    assert "unexpected" not in done.stderr


@pytest.mark.slow
def test_what_was_asked_in_words_is_reported_and_reproduced_in_the_same_words(user: Asking) -> None:
    address = user.index
    question, options = ("app>=1", "repro.py"), ("-p", "app>=1", "--", "python", "repro.py")
    never = user.run("report", *question)
    assert (never.returncode, "there are no results" in never.stderr) == (6, True)
    asked = user.run("run", *question, "--always")
    assert asked.returncode == 0, asked.stderr
    answer = asked.stdout.splitlines()[0]
    other = user.run("run", "other==1", "repro.py")
    assert other.returncode != 0
    # The latest study is another one: the words name this one.
    for words in ((), ("app",), question, options):
        user.index = address if words in (question, options) else ""
        done = user.run("report", *words)
        assert (done.stdout.splitlines()[0] == answer) is (words != ()), done.stderr
    assert len(user.run("report", *question, "--trials", "--csv").stdout.splitlines()) > 3
    assert "app" in user.run("report", *question, "--diff", "last-good", "first-bad").stdout
    assert user.run("report", *question, "-f", "html", "-o", "report.html").returncode == 0
    user.script("import app")
    changed = user.run("report", *question)
    assert changed.returncode == 2
    assert "there is no study of this question" in changed.stderr
    assert "(app) asked something else" in changed.stderr
    assert "begin it: give the same words to `bisect-env run`" in changed.stderr
    user.script(BROKEN_FROM_FOUR)
    assert user.run("reproduce", *question, "-o", "words").returncode == 0
    user.index = ""
    assert user.run("report", "report.html").stdout.splitlines()[0] == answer
    assert user.run("reproduce", "report.html", "-o", "page").returncode == 0
    files = [sorted(path.name for path in (user.folder / name).iterdir()) for name in ("words", "page")]
    assert files[0] == files[1]
    refused = user.run("reproduce", "report.html", "--with", "six")
    assert (refused.returncode, "the report report.html asks already" in refused.stderr) == (2, True)


def test_what_was_asked_in_words_is_explained_in_the_same_words(user: Asking, index: IndexServer) -> None:
    for version in ("1", "2"):
        index.add("helper", version, modules={"helper.py": f"works = {version} > 1\n"})
    index.add("main", "1", requires=("other", "helper"))
    index.add("main", "2", requires=("other", "helper<2"))
    question = ("main>=1", "repro.py", "--always")
    user.script("import helper\nassert helper.works\n")
    assert user.run("run", *question, "--quick").returncode == 0
    assert user.run("run", "other==1", "repro.py", "--always").returncode == 1
    done = user.run("explain", *question)
    assert done.returncode == 0, done.stderr
    assert "→ helper 2 → 1" in done.stdout
    user.script("import helper\nassert helper.works, 1\n")
    changed = user.run("explain", *question)
    assert (changed.returncode, "there is no study of this question" in changed.stderr) == (2, True)


@pytest.mark.slow
def test_a_question_of_somebody_else_is_not_run_by_its_name(
    user: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert user.run("run", "app>=1", "repro.py", "--always").returncode == 0
    user.index = ""
    (user.folder / "colleague").mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(user.folder / "colleague"))
    monkeypatch.chdir(user.folder / "colleague")
    for words in (["run"], ["trial", "app", "--at", "first-bad"], ["shell", "--at", "first-bad"], ["plan"]):
        refused = user.run(*words)
        assert refused.returncode == 2
        assert "--save FILE" in refused.stderr
    # Reading is free, and whoever has looked at what would run can run it.
    assert user.run("report").returncode == 0
    assert user.run("plan", "app", "--save", "m.yaml").returncode == 0
    assert "int(app.version) < 4" in (user.folder / "colleague" / "repro.py").read_text()
    assert user.run("run", "m.yaml").returncode == 0
    assert user.run("run", "app").returncode == 0


def test_gpus_are_what_a_trial_needs_and_devices_those_to_use(user: Asking) -> None:
    user.run("plan", "app>=1", "repro.py", "--gpus", "0.25", "--save", "m.yaml")
    assert yaml.safe_load((user.folder / "m.yaml").read_text())["trial"]["gpus"] == 0.25
    user.index = ""
    refused = user.run("run", "m.yaml", "--gpus", "1")
    assert (refused.returncode, "--gpus belongs to a question" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("ends", "meant"),
    [
        (("--good", "2.5", "--bad", "6"), "app 2.5, which is no release; did you mean 2?"),
        (("--good", "2", "--bad", "5.5"), "app 5.5, which is no release; did you mean 6?"),
        (("--good", "5.5", "--bad", "2"), "app 5.5, which is no release; did you mean 6?"),
        (("--good", "2.5"), "app 2.5, which is no release; did you mean 2 or 3?"),
    ],
)
def test_an_end_that_is_no_release_is_told_the_one_that_was_meant(
    user: Asking, ends: tuple[str, ...], meant: str
) -> None:
    """Never one towards the other end: what was asked for lies between."""
    refused = user.run("run", "-p", "app", *ends, "--", "python", "repro.py")
    assert refused.returncode == 2, refused.stderr
    assert meant in refused.stderr


def test_swapped_ends_are_said_to_be_swapped(user: Asking) -> None:
    done = user.run("run", "-p", "app", "--good", "6", "--bad", "2", "--always", "--", "python", "repro.py")
    assert done.returncode == 4, done.stderr
    assert "exchange `--good` and `--bad`" in done.stderr
    assert "list older versions" not in done.stderr


def test_remedies_have_the_form_in_which_was_asked(user: Asking) -> None:
    user.script("import app\nopen('data.csv')\n")
    words = ("-p", "app", "--good", "2", "--bad", "6", "--always")
    done = user.run("run", *words, "--", "python", "repro.py")
    assert (done.returncode, "the stated good combination is bad" in done.stderr) == (4, True), done.stderr
    assert "add `--files data.csv`; else correct `--good` and `--bad`, or" in done.stderr
    assert "`bad` in `trial` of a matrix file (`--save` writes one)" in done.stderr
    assert user.run("plan", *words, "--save", "m.yaml", "--", "python", "repro.py").returncode == 0
    user.index = ""
    done = user.run("run", "m.yaml")
    assert done.returncode == 4, done.stderr
    assert (
        "write `files: [repro.py, data.csv]` in `trial`; else correct `good` and `bad` in the matrix, or"
        in done.stderr
    )
    assert "--" not in done.stderr.rpartition("remedy:")[2]


def test_a_syntax_error_is_told_before_environments_are_made(user: Asking) -> None:
    user.script("import app\nassert int(app.version) < 4:\n")
    done = user.run("run", "app>=1", "repro.py")
    assert done.returncode == 2
    assert "the script cannot run: repro.py, line 2: SyntaxError" in done.stderr
    assert not (user.folder / "cache").exists()


@pytest.mark.parametrize("deep", ["x = " + "+".join(["1"] * 20_000), "x = " + "-" * 20_000 + "1"])
def test_a_script_that_is_too_deep_to_be_parsed_here_is_left_to_its_own_python(
    user: Asking, deep: str
) -> None:
    user.script(deep + "\n")
    done = user.run("plan", "app>=1", "repro.py")
    assert done.returncode == 0, done.stderr


def test_a_folder_named_like_the_package_is_no_matrix(user: Asking) -> None:
    (user.folder / "app").mkdir()
    done = user.run("run", "app", "repro.py", "--always", "--quick")
    assert done.returncode == 0, done.stderr
    assert re.match(FROM_4, done.stdout)


@pytest.mark.slow
def test_what_was_asked_can_be_saved_and_run_again(user: Asking) -> None:
    words = ["-p", "app", "--with", "other==1", "--good", "2", "--bad", "app=6", "--save", "m.yaml"]
    done = user.run("run", *words, "--", "python", "repro.py")
    assert done.returncode == 0, done.stderr
    assert "app 4 is the first bad version" in done.stdout
    saved = yaml.safe_load((user.folder / "m.yaml").read_text())
    assert saved["packages"] == {"pypi": ["other==1"]}
    assert (saved["good"], saved["bad"]) == ({"app": "2"}, {"app": "6"})
    assert (user.folder / "m.yaml").read_text().startswith("# bisect-env run ")
    assert user.run(*("run", *words), "--", "python", "repro.py").returncode == 0, "it asks the same"
    other = user.run("run", "-p", "app", "--save", "m.yaml", "--", "python", "repro.py")
    assert (other.returncode, "exists, and contains another question" in other.stderr) == (2, True)
    user.index = ""
    again = user.run("run", "m.yaml")
    assert "going on after" in again.stderr
    refused = user.run("run", "m.yaml", "--with", "other==1")
    assert refused.returncode == 2
    assert "--with belongs to a question on the command line" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "remedy"), [((), "--with pyyaml"), (("--save", "m.yaml"), "add `packages: [pyyaml]`")]
)
def test_a_module_that_no_environment_has_is_named_at_once(
    user: Asking, more: tuple[str, ...], remedy: str
) -> None:
    user.script("import yaml, app")
    done = user.run("run", "app>=1", "repro.py", *more)
    assert done.returncode == 2
    # Which sentence it is depends on whether the bad one was built before the good one had failed twice.
    assert "the module 'yaml', which the command imports" in done.stderr
    assert remedy in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_script_says_what_it_needs_itself(user: Asking) -> None:
    user.script(
        """\
        # /// script
        # dependencies = ["other", "app"]
        # ///
        import app, other
        assert int(app.version) < 4
        """
    )
    done = user.run("run", "app>=3,<6", "repro.py", "--always", "--quiet")
    assert done.returncode == 0, done.stderr
    assert re.match(FROM_4, done.stdout)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "nothing was asked"),
        (("app", "repro.py", "--since", "2024-01-01"), "with --since all words are the command"),
        (("app",), "'app' is no matrix file and no study"),
        (("repro.py",), "repro.py is a script: the package that is asked about is missing"),
        (("app>=1",), "nothing to run was given"),
        (("app>=1", "repo.py"), "did you mean 'repro.py'?"),
        (("app>=90", "repro.py"), "the index has 1 to 7"),
        (("ap>=1", "repro.py"), "did you mean app?"),
        (("app=>1", "repro.py"), "write it as 'app>=1'"),
        (("app>=1", "other>=2", "repro.py"), '-p "A>=1" -p "B>=2" -- COMMAND'),
        (("app>=1", "repro.py", "--rate", "0.5", "--always"), "--always is --rate 1"),
        (
            ("six==1.15.0,1.16.0", "repro.py"),
            "a matrix file: `bisect-env plan 'six>=1.15.0,<=1.16.0' repro.py",
        ),
        (("app", "1.5", "repro.py"), "bisect-env run app==1.5 repro.py"),
        (("repro.py", "app>=1"), "bisect-env run 'app>=1' repro.py"),
        (("app=1", "repro.py"), "write it as app==1"),
        (("app 1", "repro.py"), "write it as app==1"),
        (("app>=1", "repro.py", "--rate", "0"), "--rate 0"),
        (("app>=1", "repro.py", "--rate", "10"), "say 1, 0.5 or 10%"),
        (("app>=1", "repro.py", "--env", "X"), "--env X is no variable"),
        (("app>=1", "repro.py", "--good", "other=1"), "--good other=1"),
        (("app>=1", "repro.py", "--step", "huge"), "'huge' is not known; choose from"),
        (("app>=1", "repro.py", "--python", "9.9"), "9.9"),
        (("missing.yaml",), "does not exist"),
    ],
)
def test_what_cannot_be_asked(user: Asking, arguments: tuple[str, ...], says: str) -> None:
    if "missing.yaml" in arguments:
        user.index = ""
    code, _, err = user.run("run", *arguments)
    assert code in (2, 5, 6), err
    assert says in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_secret_reaches_the_trial_and_nothing_that_others_read(
    user: Asking, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.script("""
        import app, os
        assert os.environ["API_TOKEN"] == "hunter2"
        assert int(app.version) < 4
    """)
    words = ["run", "app>=1", "repro.py", "--always", "--env", "API_TOKEN=hunter2"]
    done = user.run(*words, "--log-file", "log")
    assert re.match(FROM_4, done.stdout), done.stderr
    assert user.run(*words, "--save", "m.yaml").returncode == 0
    # The matrix itself needs the value; its comment, which shows the command, does not.
    path = user.folder / "m.yaml"
    first, _, rest = path.read_text().partition("\n")
    assert ("hunter2" in first, rest.count("hunter2")) == (False, 1)
    assert path.stat().st_mode & 0o777 == 0o600
    assert "hunter2" not in (user.folder / "log").read_text()
    assert run("db", "export", "all.benv")[0] == 0
    for path in (*user.folder.glob("*.benv"), *user.folder.glob("results.sqlite*")):
        assert b"hunter2" not in path.read_bytes()
    # Without its secret the study cannot be gone on with; with it, it can.
    user.index = ""
    refused = user.run("run", "app")
    assert refused.returncode == 2
    assert "the value of API_TOKEN may be a secret" in refused.stderr
    monkeypatch.setenv("API_TOKEN", "another")
    assert "secrets in them are not stored" in user.run("run", "app").stderr
    monkeypatch.setenv("API_TOKEN", "hunter2")
    again = user.run("run", "app")
    assert again.returncode == 0, again.stderr


def test_a_password_of_the_database_is_in_no_file_and_in_no_command(
    user: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql://me:hunter2@127.0.0.1:1/r"
    monkeypatch.delenv("BISECT_ENV_DB")
    done = user.run("run", "app>=1", "repro.py", "--save", "m.yaml", "--db", url, "--log-file", "log")
    assert done.returncode == 6, done.stderr
    assert "me:***@127.0.0.1" in done.stderr
    for text in (
        done.stdout,
        done.stderr,
        (user.folder / "m.yaml").read_text(),
        (user.folder / "log").read_text(),
    ):
        assert "hunter2" not in text


def test_a_rejected_question_is_not_kept(user: Asking) -> None:
    words = ["run", "app>=1", "repro.py", "--always", "--save", "q.yaml"]
    done = user.run(*words, "--timeout", "0s")
    assert (done.returncode, "this cannot be asked" in done.stderr) == (2, True)
    assert not (user.folder / "q.yaml").exists()
    assert user.run(*words, "--timeout", "20s").returncode == 0


def test_a_question_is_saved_as_a_whole_or_not_at_all(user: Asking) -> None:
    matrix = user.folder / "m.yaml"
    matrix.write_bytes("name: größe\n".encode("latin-1"))
    refused = user.run("plan", "app>=1", "repro.py", "--save", "m.yaml")
    assert (refused.returncode, "exists, and contains another question" in refused.stderr) == (2, True)
    assert matrix.read_bytes() == "name: größe\n".encode("latin-1")
    refused = user.run("plan", "app>=1", "repro.py", "--save", "no/m.yaml")
    assert (refused.returncode, "there is no directory" in refused.stderr) == (2, True)


def test_a_full_disk_leaves_no_half_of_a_saved_question(
    user: Asking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system can only be mounted by root")
    try:
        with (place / "full").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass
        words = ("plan", "app>=1", "repro.py", "--save", str(place / "m.yaml"))
        done = user.run(*words)
        assert (done.returncode, "No space left" in done.stderr) == (6, True), done.stderr
        assert [path.name for path in place.iterdir()] == ["full"]
        (place / "full").unlink()
        assert user.run(*words).returncode == 0
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_table_of_what_has_no_environment_ends_with_a_message(user: Asking) -> None:
    code, _, err = user.run("map", "-p", "app>=1", "--with", "other==99", "--", "python", "repro.py")
    assert code not in (0, 70), err
    assert "other" in err


def test_a_header_behind_a_byte_order_mark_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    header = '# /// script\n# dependencies = ["six"]\n# ///\n'
    Path("repro.py").write_text(header, encoding="utf-8-sig")
    question, _ = asked_command(TrialFlags(), ["repro.py"])
    assert question.inline.dependencies == ("six",)
