"""`bisect-env run RANGE SCRIPT`: a question without a file, as a user gives it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cli.asking import Asking, an_index
from tests.cli.calls import RunCommand
from tests.environments.index_server import IndexServer

pytestmark = pytest.mark.integration

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
    done = user.run("run", "app>=1", "repro.py", "--always", "--json", "--timings")
    assert done.returncode == 0, done.stderr
    said, timings = (json.loads(line) for line in done.stdout.splitlines()[-2:])
    assert (said["verdict"]["first_bad"]["app"], said["verdict"]["last_good"]["app"]) == ("4", "3")
    reached = ["study opened", "first trial begun", "first trial recorded", "answer", "report", "end"]
    assert [one for one in timings["seconds"] if one in reached] == reached
    assert all(timings["seconds"][f"{what}, all together"] for what in ("locking", "trials", "building"))
    assert 0 < timings["seconds"]["searching, all together"] < timings["seconds"]["end"]
    # Nothing is left in the user's folder but what was there, and the same question is the same study.
    left = {path.name for path in user.folder.iterdir() if not path.name.startswith(".")}
    assert left <= {"repro.py", "planted.py", "results.sqlite", "cache", "asked"}
    again = user.run("run", "app>=1", "repro.py", "--always")
    assert again.returncode == 0
    assert "going on after" in again.stderr
    assert again.stdout.startswith("app is broken from 4 on (last good 3)")


def test_a_folder_named_like_the_package_is_no_matrix(user: Asking) -> None:
    (user.folder / "app").mkdir()
    done = user.run("run", "app", "repro.py", "--always", "--quick")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("app is broken from 4 on (last good 3)")


@pytest.mark.slow
def test_what_was_asked_can_be_saved_and_run_again(user: Asking) -> None:
    words = ["-p", "app", "--with", "other==1", "--good", "2", "--bad", "app=6", "--save", "m.yaml"]
    done = user.run("run", *words, "--", "python", "repro.py")
    assert done.returncode == 0, done.stderr
    assert "app 4 is the first bad version" in done.stdout
    saved = yaml.safe_load((user.folder / "m.yaml").read_text())
    assert saved["packages"] == ["other==1"]
    assert (saved["good"], saved["bad"]) == ({"app": "2"}, {"app": "6"})
    assert (user.folder / "m.yaml").read_text().startswith("# bisect-env run ")
    user.index = ""
    again = user.run("run", "m.yaml")
    assert "going on after" in again.stderr
    refused = user.run("run", "m.yaml", "--with", "other==1")
    assert refused.returncode == 2
    assert "--with belongs to a question on the command line" in refused.stderr


@pytest.mark.slow
def test_a_module_that_no_environment_has_is_named_at_once(user: Asking) -> None:
    user.script("import yaml, app")
    done = user.run("run", "app>=1", "repro.py")
    assert done.returncode == 2
    assert "no environment has the module 'yaml'" in done.stderr
    assert "--with pyyaml" in done.stderr
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
    assert done.stdout.startswith("app is broken from 4 on (last good 3)")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "nothing was asked"),
        (("repro.py",), "repro.py is a script: the package that is asked about is missing"),
        (("app>=1",), "nothing to run was given"),
        (("app>=1", "repo.py"), "the script repo.py does not exist; beside it lies repro.py"),
        (("app>=90", "repro.py"), "the index has 1 to 7"),
        (("ap>=1", "repro.py"), "did you mean app?"),
        (("app=>1", "repro.py"), "'app=>1' is no package with versions"),
        (("app>=1", "other>=2", "repro.py"), '-p "A>=1" -p "B>=2" -- COMMAND'),
        (("app>=1", "repro.py", "--rate", "0.5", "--always"), "--always is --rate 1"),
        (("app>=1", "repro.py", "--rate", "0"), "--rate 0"),
        (("app>=1", "repro.py", "--env", "X"), "--env X is no variable"),
        (("app>=1", "repro.py", "--good", "other=1"), "--good other=1"),
        (("app>=1", "repro.py", "--step", "huge"), "what was asked makes no matrix"),
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


def test_a_secret_reaches_the_trial_and_nothing_that_others_read(user: Asking, run: RunCommand) -> None:
    user.script("""
        import app, os
        assert os.environ["API_TOKEN"] == "hunter2"
        assert int(app.version) < 4
    """)
    words = ["run", "app>=1", "repro.py", "--always", "--env", "API_TOKEN=hunter2"]
    done = user.run(*words, "--save", "m.yaml", "--log-file", "log")
    assert done.stdout.startswith("app is broken from 4 on (last good 3)"), done.stderr
    assert user.run(*words).returncode == 0
    matrices = [user.folder / "m.yaml", *user.folder.glob("asked/*/matrix.yaml")]
    assert len(matrices) == 2
    for path in matrices:
        # The matrix itself needs the value; its comment, which shows the command, does not.
        first, _, rest = path.read_text().partition("\n")
        assert ("hunter2" in first, rest.count("hunter2")) == (False, 1)
        assert path.stat().st_mode & 0o777 == 0o600
    assert "hunter2" not in (user.folder / "log").read_text()
    assert run("db", "export", "all.benv")[0] == 0
    for path in user.folder.glob("*.benv"):
        assert b"hunter2" not in path.read_bytes()


def test_a_rejected_question_is_not_kept(user: Asking) -> None:
    words = ["run", "app>=1", "repro.py", "--always", "--save", "q.yaml"]
    done = user.run(*words, "--timeout", "0s")
    assert (done.returncode, "makes no matrix" in done.stderr) == (2, True)
    assert not (user.folder / "q.yaml").exists()
    assert user.run(*words, "--timeout", "20s").returncode == 0
