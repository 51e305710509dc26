"""Holds the words of help and messages: a file of expected texts for each group, in `tests/words`.

`make words` writes the files anew; the difference then shows in the commit.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.origins import Origin
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.cli.app import COMMANDS
from bisect_env.cli.views import Doing, describe
from bisect_env.engine import events
from bisect_env.environments.progress import BuildStep
from bisect_env.matrix.grid import AxisKind, Combination
from tests.cli.calls import RunCommand, caller

FOLDER = Path(__file__).parent / "words"
PANELS = list(dict.fromkeys(COMMANDS.values()))
INNER = {"env": ("ls", "prune", "fetch"), "db": ("info", "export", "merge", "gc")}
SCRIPTS = {"repro.py": "import six\n", "broken.py": "def (:\n", "notes.txt": "no matrix\n"}
MATRIX = """\
version: 1
name: small
axes: {level: {values: [1, 2]}}
trial: {command: python repro.py, files: [repro.py]}
"""
MISTAKES = {
    "questions": (
        'run "six==1.15.0,1.16.0" repro.py',
        "run six 1.15.0 repro.py",
        'run repro.py "six>=1.15"',
        "run repro.py",
        'run "six>=1.15"',
        'run "six=>1.15" repro.py',
        'run "six=1.15" repro.py',
        'run "six 1.15" repro.py',
        'run "six==1.15.0" "attrs==22" repro.py',
        'run "six>=1.15" missing.py',
        'run "six>=1.15" broken.py',
        'run "six>=1.15" repro.py --rate 10',
        'run "six>=1.15" repro.py --rate 0.001%',
        'run "six>=1.15" repro.py --rate 0.1 --always',
        'run "six>=1.15" repro.py --timeout 5parsecs',
        'run "six>=1.15" repro.py --step weekly',
        'run "six>=1.15" repro.py --env FOO',
        'run "six>=1.15" repro.py --from v1',
        'run "six[extra]>=1" repro.py',
        "run --git . -- python repro.py",
        "run --git . --from v1 --good 1.0 -- python repro.py",
        "run --since yesterday -- python repro.py",
        "run --since 2026-01-31 -p six --good 1.15 -- python repro.py",
        "run missing.yaml",
        "run small.yaml --good 1",
        "run small.yaml repro.py",
        "run small.yaml --quick --sure",
        "run small.yaml --skip 7",
        "between green.lock",
        "between green.lock red.lock -- python repro.py",
    ),
    "results": (
        "report",
        "report nothing",
        "report --diff last-good first-bad",
        "explain",
        "explain --from v1",
        "reproduce",
        "trial --at first-bad",
        "trial small.yaml",
        "trial small.yaml --at level=7",
        "trial small.yaml --at 7",
        "trial small.yaml --until-rate x --at level=1",
        "trial small.yaml --debug --amplify",
        "trial small.yaml --cuda",
        "run",
        "run six",
        "query 'select * from v_trials'",
        "query 'select * from trails'",
        "query 'select versoin from packages'",
        "report 'six>=1.15' repro.py",
        "reproduce 'six>=1.15' repro.py",
        "report --trial zzz",
        "env prune",
        "env ls --check zzz",
        "db merge missing.sqlite",
    ),
}
CELL = Combination.of({"six": "1.16.0"})
VERDICT = VerdictDocument(
    status="likely", probability=0.91, first_bad={"six": "1.16.0"}, last_good={"six": "1.15.0"}
)
AXES = (AxisInfo(name="six", kind=AxisKind.PACKAGE, values=["1.15.0", "1.16.0"], package="six"),)
EVENTS: tuple[events.Event, ...] = (
    events.StudyOpened("7f3845424cd8", "six", 0),
    events.StudyOpened("7f3845424cd8", "six", 12),
    events.Locked(12, 1, 2, 9),
    events.Reused(6, (Origin(study_id="a" * 32, study="six", user="ann", host="host", trials=6),)),
    events.SetAside((CELL, CELL), "env-unsolvable", "no wheel for this Python"),
    events.Warned("a package moved"),
    events.Said("starting workers"),
    events.Answered(VERDICT, 5, 10.0, AXES),
    events.Answered(VERDICT, 5, None, AXES),
)
STEPS = (
    BuildStep("waiting"),
    BuildStep("checking", "", 0, 0),
    BuildStep("fetching", "torch", 120_000_000, 900_000_000),
)


def is_pinned(name: str) -> bool:
    """Return whether a library has the version of requirements.lock: others draw help in other ways."""
    lock = (Path(__file__).parent.parent / "requirements.lock").read_text("utf-8")
    return f"\n{name}=={version(name)} " in lock


drawn = pytest.mark.skipif(not (is_pinned("typer") and is_pinned("rich")), reason="help looks otherwise")


def written(group: str, text: str) -> None:
    """Compare a text with the file of its group, or write the file.

    Args:
        group: Name of the file.
        text: The words of today.
    """
    path = FOLDER / f"{group}.txt"
    if os.environ.get("BISECT_ENV_WRITE_WORDS"):
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8"), "words changed: `make words` writes them anew"


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[[str], str]:
    """Gives a command in a folder with scripts and without results, and returns what a user reads."""
    for name, text in SCRIPTS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "small.yaml").write_text(MATRIX)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("BISECT_ENV_DB", str(tmp_path / "results.sqlite"))
    monkeypatch.setenv("BISECT_ENV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BISECT_ENV_LOG", os.devnull)
    call: RunCommand = caller(monkeypatch, capsys)

    def read(line: str) -> str:
        code, out, err = call(*shlex.split(line))
        said = (out + err).replace(str(tmp_path), "HERE")
        said = re.sub(r"^log: .*\n", "", said, flags=re.MULTILINE)
        ending = "" if code == 0 else f"ends with {code}\n"
        return f"$ bisect-env {line}\n{said}{ending}"

    return read


@drawn
@pytest.mark.parametrize("panel", PANELS)
def test_the_words_of_help(panel: str, run: Callable[[str], str]) -> None:
    names = [name for name, own in COMMANDS.items() if own == panel]
    lines = [""] if panel == PANELS[0] else []
    lines += [
        " ".join(words)
        for name in names
        for words in ((name,), *((name, one) for one in INNER.get(name, ())))
    ]
    texts = [run(f"{line} --help".strip()) for line in lines]
    written(f"help {panel}".lower().replace(" ", "-"), "\n".join(texts))


@drawn
def test_the_words_of_all_options(run: Callable[[str], str]) -> None:
    written("help-all", "\n".join(run(f"{name} --help-all") for name in ("run", "trial", "report")))


@pytest.mark.parametrize("group", MISTAKES)
def test_the_words_of_messages(group: str, run: Callable[[str], str]) -> None:
    written(f"messages-{group}", "\n".join(run(line) for line in MISTAKES[group]))


def test_the_words_of_progress() -> None:
    steps = [events.Building("h", step, 1, 3) for step in STEPS]
    doing = Doing(clock=lambda: 0.0)
    said = [str(describe(event)) for event in EVENTS]
    for step in steps:
        doing.update(step)
        said.append(doing.text)
    written("progress", "\n".join(said) + "\n")
