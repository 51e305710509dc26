"""A stranger's tour: questions answered by somebody who has read the README alone, with its commands.

Every command comes from the table of the README; the stranger replaces the packages, scripts and files in it
by others, as a reader does. The packages are small ones of the public index.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.repositories import in_tree, pure, write

ROOT = Path(__file__).parent.parent
PACKAGING = "packaging is broken from 22.0 on (last good 21.3)"
JINJA = "jinja2 is broken from 3.1.0 on (last good 3.0.3)"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.network,
    pytest.mark.timeout(600),
]


def commands() -> dict[str, list[str]]:
    """Return the table of the README: each question with the code in its answer."""
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    return {question: re.findall(r"`([^`]+)`", answer) for question, answer in rows if "`" in answer}


class Stranger:
    """Somebody with an empty folder, a script and the README.

    Args:
        folder: The folder, with a database and a cache of its own.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "BISECT"))
        }
        self.env = {
            **names,
            "BISECT_ENV_DB": str(folder / "results.sqlite"),
            "BISECT_ENV_CACHE": str(folder / "cache"),
            "XDG_STATE_HOME": str(folder / "state"),
        }

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def ask(self, question: str, *more: str, **words: str) -> subprocess.CompletedProcess[str]:
        """Give the command that the README has for a question.

        Args:
            question: As it stands in the README.
            more: Words to add to the command.
            words: What to replace in the command, by names that the table below explains.
        """
        (command, *_) = commands()[question]
        for name, value in words.items():
            assert REPLACED[name] in command, f"the README says no {REPLACED[name]} in {command}"
            command = command.replace(REPLACED[name], value)
        program, *rest = shlex.split(command)
        assert program == "bisect-env"
        behind = rest.index("--") if "--" in rest else len(rest)
        return self.give(*rest[:behind], *more, *rest[behind:])

    def give(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Give a command in the folder."""
        return subprocess.run(
            [sys.executable, "-m", "bisect_env", *words],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )


REPLACED = {
    "package": "pyarrow>=20",
    "packages": '-p "torch>=2.5" -p cuml-cu13',
    "good": "green.lock",
    "bad": "red.lock",
    "suite": "pytest -x tests/test_io.py",
    "table": "-p numpy -p robust-laplacian",
    "target": " TARGET",
    "times": "-n 30",
    "rate": "0.05",
}
"""What a stranger replaces in the commands of the README."""


@pytest.fixture
def stranger(tmp_path: Path) -> Stranger:
    one = Stranger(tmp_path)
    one.write("repro.py", "from packaging.version import LegacyVersion\n")
    return one


def test_which_release_broke_it_and_everything_that_follows(stranger: Stranger) -> None:
    """Six questions, one after the other, about one failure."""
    done = stranger.ask("Which release broke my script?", "--always", package="packaging>=20.9,<24")
    assert "--always" in commands()["It always fails; it fails in a tenth of runs"][0]
    assert (done.returncode, done.stdout.partition(":")[0]) == (0, PACKAGING), done.stderr
    assert len(done.stdout.splitlines()) <= 40
    assert "ImportError" in done.stdout

    again = stranger.ask("See it fail again", target="", times="-n 3")
    assert (again.returncode, again.stdout.count("✗")) == (3, 3), again.stderr
    fixed = stranger.ask("Is it fixed?", target="", rate="0.2")
    assert fixed.returncode == 0, fixed.stderr
    assert fixed.stdout.splitlines()[-2].startswith("below the limit: ")

    crash = stranger.ask("Where does it crash, who waits for whom?", target="")
    assert crash.returncode == 3, crash.stderr
    assert "import-error in trial 1" in crash.stdout
    assert "guilty frame" in crash.stdout

    # The words of the question name its answer, too.
    asked = ' "packaging>=20.9,<24" repro.py'
    page = stranger.ask("The answer again, to send to somebody", target=asked)
    assert page.returncode == 0, page.stderr
    assert PACKAGING in (stranger.folder / "report.html").read_text("utf-8")

    cost = stranger.ask("What will it cost?", target="")
    assert (cost.returncode, "about" in cost.stdout) == (0, True), cost.stderr


def test_a_colleague_runs_what_was_sent(stranger: Stranger, tmp_path_factory: pytest.TempPathFactory) -> None:
    done = stranger.ask("Which release broke my script?", "--always", package="packaging>=21,<23")
    assert done.returncode == 0, done.stderr
    stranger.ask("The answer again, to send to somebody", target="")
    stranger.ask("Let somebody without this tool see it fail", target=" report.html")
    colleague = Stranger(tmp_path_factory.mktemp("colleague"))
    page = (stranger.folder / "report.html").read_text("utf-8")
    assert str(Path.home()) not in page
    colleague.write("report.html", page)
    again = colleague.give("run", "report.html")
    assert (again.returncode, again.stdout.partition(":")[0]) == (0, PACKAGING), again.stderr
    assert (stranger.folder / "repro" / "README.md").is_file()


def test_which_of_two_packages(stranger: Stranger) -> None:
    stranger.write("repro.py", "from jinja2 import Markup\n")
    done = stranger.ask(
        "Which of two packages is it, or both?",
        "--always",
        packages='-p "jinja2>=3.0,<3.2" -p "markupsafe>=2.1.3,<3"',
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(JINJA)


def test_this_lock_works_and_that_one_does_not(stranger: Stranger) -> None:
    stranger.write("green.lock", "jinja2==3.0.3\nmarkupsafe==2.1.3\npackaging==23.0\n")
    stranger.write("red.lock", "jinja2==3.1.4\nmarkupsafe==2.1.5\npackaging==24.0\n")
    stranger.write("repro.py", "from jinja2 import Markup\n")
    done = stranger.ask(
        "This lock works and that one does not: which package, which release?",
        "--always",
        "--python",
        f"{sys.version_info.major}.{sys.version_info.minor}",
        suite="python repro.py",
    )
    assert done.returncode == 0, done.stderr
    assert "jinja2" in done.stdout.splitlines()[0]
    assert "3.1.0" in done.stdout.splitlines()[0]
    explained = stranger.ask("Which package that came along is to blame?", "--json")
    assert explained.returncode == 0, explained.stderr
    (last, *_) = reversed(explained.stdout.splitlines())
    assert [json.loads(last)["changes"][i]["name"] for i in json.loads(last)["culprits"]] == ["jinja2"]


def test_which_commit(stranger: Stranger) -> None:
    """The folder is a clone of a package whose twelfth commit broke it."""
    tagged = pure("demo", 16, 12, files=in_tree("demo"))
    tagged[2].tags = ["v1.4"]
    commits = write(stranger.folder, tagged)
    stranger.write("repro.py", "import demo\nassert demo.works()\n")
    done = stranger.ask("Which commit?", "--always", suite="python repro.py")
    assert done.returncode == 0, done.stderr
    answer = f"demo {commits[11][:10]} (Change number 12 (#1012)) is the first bad commit"
    assert done.stdout.startswith(answer), done.stdout
    last_good = f"last good {commits[10][:10]}"
    assert last_good in done.stdout.splitlines()[0]


def test_what_works_with_what(stranger: Stranger) -> None:
    stranger.write("repro.py", "from jinja2 import Markup\n")
    done = stranger.ask(
        "What works with what?", "--always", table='-p "jinja2>=3.0.2,<3.1.2" -p "markupsafe>=2.1.4,<2.2"'
    )
    assert done.returncode == 0, done.stderr
    assert "jinja2" in done.stdout


def test_what_is_missing_here(stranger: Stranger) -> None:
    done = stranger.ask("What is missing on this machine?")
    assert done.returncode in (0, 6)
    assert "uv" in done.stdout
