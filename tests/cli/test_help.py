"""Help fits a screen, and a word means the same thing in every command."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from bisect_env.cli.app import COMMANDS, application
from tests.cli.calls import RunCommand

LINES = 40
TARGETS = ("run", "map", "plan", "trial", "explain", "shell", "reproduce", "report")


@cache
def commands() -> dict[str, Any]:
    """Every command by its words."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(application()).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found |= {f"{name} {one}": command for one, command in inner.items()} if inner else {name: command}
    return found


def options(name: str) -> dict[str, Any]:
    return {one.opts[0]: one for one in commands()[name].params if one.param_type_name == "option"}


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("name", ["", "env", "db", *sorted(commands())])
def test_help_fits_a_screen(
    name: str, columns: int, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = run(*name.split(), "--help")
    assert code == 0
    lines = out.rstrip("\n").splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= columns


@pytest.mark.parametrize("name", ["", "env", "db", *sorted(commands())])
def test_every_command_shows_all_its_options(name: str, run: RunCommand) -> None:
    code, out, err = run(*name.split(), "--help-all")
    assert (code, err) == (0, "")
    for option in options(name) if name in commands() else ():
        assert option in out or option == "--help-all"


def test_there_are_a_dozen_commands_in_four_groups(run: RunCommand) -> None:
    _, out, _ = run("--help")
    places = [out.index(f"─ {panel} ─") for panel in ("Ask", "Look closer", "Results", "Look after")]
    assert places == sorted(places)
    assert len(COMMANDS) <= 14
    for name in (
        "init",
        "schema",
        "verify",
        "diagnose",
        "amplify",
        "narrow",
        "studies",
        "trials",
        "diff",
        "fetch",
    ):
        code, _, err = run(name)
        assert (code, "No such command" in err) == (2, True)


@pytest.mark.parametrize("name", TARGETS)
def test_all_options_are_shown_when_asked_for(name: str, run: RunCommand) -> None:
    _, short, _ = run(name, "--help")
    _, whole, _ = run(name, "--help-all")
    hidden = [option for option, one in options(name).items() if one.rich_help_panel]
    assert len(hidden) > 10
    for option in options(name):
        assert option in whole
        assert option in hidden or option in short
    assert not [option for option in hidden if f"│ {option} " in short]


def test_the_options_that_most_people_need_come_first() -> None:
    first = [option for option, one in options("run").items() if not one.rich_help_panel]
    assert first == ["--package", "--with", "--good", "--bad", "--python", "--always", "--help-all"]


def test_what_run_takes_other_commands_take() -> None:
    """All the options of a question, but those for commits where another use is made of them."""
    question = {name for name, one in options("run").items() if one.rich_help_panel not in ("The study",)}
    question -= {"--all", "--quick", "--sure"}
    lacking = {name: question - set(options(name)) for name in ("map", "trial")}
    assert lacking == {"map": set(), "trial": set()}
    elsewhere = {"--workers", "--devices", "--scheduler", "--scheduler-file", "--env-cache-size", "--offline"}
    elsewhere |= {"--quiet", "--log-file", "--json", "--cache"}
    for name in ("plan", "shell", "explain", "reproduce", "report"):
        assert question - elsewhere <= set(options(name)), name


def test_an_option_means_the_same_thing_wherever_it_appears() -> None:
    said: defaultdict[str, set[str]] = defaultdict(set)
    for name in commands():
        for option, one in options(name).items():
            said[option].add(str(one.help))
    assert {option: texts for option, texts in said.items() if len(texts) > 1} == {}
    assert [name for name in commands() if "--number" in options(name)] == ["trial"]


@pytest.mark.slow
def test_help_takes_little_longer_than_that_of_any_program_of_typer(tmp_path: Path) -> None:
    bare = tmp_path / "bare.py"
    command = "@app.command()\ndef {0}(): 'Does {0}.'\n"
    body = "".join(command.format(name) for name in ("one", "two"))
    bare.write_text(f"import typer\napp = typer.Typer()\n{body}app()\n")

    def seconds(*words: str) -> float:
        taken = []
        for _ in range(9):
            # Of the processor, not of the clock: other tests run beside this one.
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *words, "--help"], stdout=subprocess.DEVNULL, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return min(taken)

    seconds(str(bare))
    assert seconds("-m", "bisect_env") < 1.5 * seconds(str(bare))
