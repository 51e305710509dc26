"""What the documentation shows is true: commands and options exist, and the first run ends as it says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from bisect_env.cli.app import app
from bisect_env.matrix.load import load_matrix

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = [sys.executable, "-m", "bisect_env"]


def shown_commands() -> list[tuple[str, str]]:
    """Every line with a `$ ` in a console block, with the page that shows it."""
    found = []
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            found += [(page.name, line[2:]) for line in block.splitlines() if line.startswith("$ ")]
    return found


def words_after(program: str, line: str) -> list[str] | None:
    words = shlex.split(line, comments=True)
    return words[words.index(program) + 1 :] if program in words else None


@pytest.mark.parametrize(("page", "line"), shown_commands())
def test_commands_in_console_blocks_exist(page: str, line: str) -> None:
    ours = words_after("bisect-env", line)
    if ours:
        command = typer.main.get_command(app)
        for word in ours:
            if not hasattr(command, "commands"):
                break
            command = command.commands[word]
        known = {option for parameter in command.params for option in parameter.opts}
        shown = {word.split("=")[0] for word in ours[1:] if word.startswith("-")}
        assert shown <= known | {"--help"}, f"{page} shows unknown options"
    made = words_after("make", line)
    if made:
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(made) <= set(targets), f"{page} shows unknown targets"


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+)", page.read_text("utf-8")):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_every_matrix_that_is_shipped_loads() -> None:
    for path in sorted((ROOT / "matrices").glob("*.yaml")):
        load_matrix(path)


@pytest.mark.integration
@pytest.mark.network
@pytest.mark.timeout(300)
def test_the_first_command_ends_as_the_readme_says(tmp_path: Path) -> None:
    env = {
        **os.environ,
        "BISECT_ENV_DB": str(tmp_path / "results.sqlite"),
        "BISECT_ENV_CACHE": str(tmp_path / "cache"),
        "BISECT_ENV_LOCKFILES": str(tmp_path / "lockfiles"),
    }

    def run(*words: str) -> str:
        done = subprocess.run(
            [*COMMAND, *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "17 combinations" in run("plan", "matrices/quickstart.yaml")
    said = run("run", "matrices/quickstart.yaml").splitlines()[0]
    shown = (ROOT / "README.md").read_text("utf-8")
    claim = said.partition(":")[0]
    assert claim == "orjson 3.9.11 is the first bad version (last good 3.9.10)"
    assert claim in shown
    assert said in run("report")
    assert '"type": "object"' in run("schema")
