"""What the documentation shows is true: commands and options exist, and the first run ends as it says."""

import itertools
import os
import pydoc
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from bisect_env.cli.app import application, menu
from bisect_env.matrix.load import load_matrix
from tests.cli.calls import caller

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if "_site" not in page.parts),
]


def shown_commands() -> list[tuple[str, str]]:
    """Every command of a console or shell block, with the page that shows it."""
    found = []
    for page in PAGES:
        for kind, block in BLOCK.findall(page.read_text("utf-8")):
            lines = block.replace("\\\n", " ").splitlines()
            if kind == "console":
                lines = [line.partition("$ ")[2] for line in lines if PROMPT.match(line)]
            found += [(page.name, line.strip()) for line in lines if line.strip()]
    return found


BLOCK = re.compile(r"```(console|bash|sh)\n(.*?)```", re.DOTALL)
PROMPT = re.compile(r"[a-z0-9]*\$ ")
NOT_RUN = {
    # Words that a command begins with, or holds, to the reason why it is not run here.
    "export": "sets a variable",
    "#": "a comment",
    "kubectl": "needs a Kubernetes cluster",
    "podman": "builds an image; tests/containers runs containers where an engine is there",
    "dask": "starts a cluster; tests/cluster/test_remote.py does, with these options",
    "openssl": "makes certificates; tests/cluster/test_tls.py makes the same",
    "CUDA_VISIBLE_DEVICES": "needs GPUs",
    "createuser": "needs a PostgreSQL server of one's own; tests/storage/postgres_server.py starts one",
    "createdb": "needs a PostgreSQL server of one's own",
    "chmod": "a folder below /srv",
    "pip install": "installs what `make setup` has installed",
    "make": "run by continuous integration",
    "git clone": "needs the address of a published repository",
    "cd ": "goes to another folder",
    "bisect-env map -p": "tries a hundred real environments; tests/cli/test_map.py asks about made ones",
    "uvx": "installs the command: what it runs then is in tests/cli/test_asking.py",
    'bisect-env run "': "asks an index for minutes: tests/cli/test_asking.py",
    "bisect-env run -p": "asks an index for minutes: tests/cli/test_asking.py",
    "bisect-env run --git": "needs a repository: tests/cli/test_commits.py",
    "bisect-env between": "needs two environments: tests/cli/test_between.py",
    "docs/examples/bisect_": "needs two environments: tests/cli/test_between.py",
    "bisect-env explain": "needs packages that differ: tests/engine/test_culprit.py does",
    "bisect-env serve": "runs until it is ended: tests/web",
    "--scheduler": "needs a cluster: tests/cluster/test_remote.py",
    "--devices": "needs GPUs: benchmarks/gpu_check.py",
    "bisect-env run matrices/fork_start_method_cuda": "needs a GPU",
    "bisect-env run matrices/cuda_illegal": "needs a GPU",
    "bisect-env trial matrices/cuda_illegal": "needs a GPU",
    "bisect-env run matrices/cuda_clients": "needs a GPU",
    "bisect-env run matrices/gil_driver": "needs a GPU",
}
ENDS = {
    "bisect-env trial matrices/quickstart.yaml --at orjson=3.9.11": 3,
    "--at first-bad": 3,
    "--amplify": 1,
}
"""How commands end that do not end with 0; a failure that is certain cannot be made more frequent."""


def reason_not_to_run(line: str) -> str | None:
    for words, reason in NOT_RUN.items():
        if line.startswith(words) or (words.startswith("--") and f" {words}" in line):
            return reason
    return None


def words_after(program: str, line: str) -> list[str] | None:
    words = shlex.split(line, comments=True)
    return words[words.index(program) + 1 :] if program in words else None


@cache
def program() -> Any:
    return typer.main.get_command(application())


def test_the_list_of_commands_says_of_each_what_its_own_help_says() -> None:
    for name, said in typer.main.get_command(menu()).commands.items():  # type: ignore[attr-defined]
        command = program().commands[name]
        assert (command.help or "").strip().split("\n")[0] == said.help, name


@cache
def targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def what_is_wrong_with(line: str) -> str | None:
    try:
        ours = words_after("bisect-env", line)
    except ValueError:
        return "no shell can read it"
    if ours:
        # What stands behind `--` is the user's own command.
        ours = ours[: ours.index("--")] if "--" in ours else ours
        command = program()
        for word in ours:
            if not hasattr(command, "commands"):
                break
            if word not in command.commands:
                return f"no command {word}"
            command = command.commands[word]
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        shown = {word.split("=")[0] for word in ours[1:] if word.startswith("-")}
        if shown - known:
            return f"no option {sorted(shown - known)}"
    made = {word for word in words_after("make", line) or [] if "=" not in word}
    if made - targets():
        return f"no target {sorted(made - targets())}"
    return None if ours or reason_not_to_run(line) else "say in NOT_RUN why it is not run"


def test_commands_that_are_shown_exist() -> None:
    shown = shown_commands()
    wrong = [f"{page}: {line}: {why}" for page, line in shown if (why := what_is_wrong_with(line))]
    assert wrong == []
    assert len(shown) > 70


def kind_of(line: str) -> tuple[str, ...]:
    """A command with `…` for the matrix, and for the value of each option that takes one."""
    words = words_after("bisect-env", line) or []
    found: list[str] = []
    for before, word in itertools.pairwise(["", *words]):
        takes_one = before.startswith("--") and before not in ("--json", "--format")
        is_value = takes_one and not word.startswith("-")
        found.append("…" if word.endswith(".yaml") or is_value else word)
    return tuple(found)


def inline_commands() -> list[tuple[str, str]]:
    """Every `bisect-env …` in the midst of a text."""
    found = []
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
        found += [(page.name, line) for line in re.findall(r"`(bisect-env [^`]+)`", text)]
    return sorted(set(found))


def test_commands_in_the_midst_of_a_text_exist() -> None:
    command = typer.main.get_command(application())
    wrong = []
    for page, line in inline_commands():
        here = command
        # What follows `--` are the script's own words.
        words = line.partition(" -- ")[0].replace("\\|", "|").replace("…", "").split()[1:]
        while words and hasattr(here, "commands") and words[0] in here.commands:
            here = here.commands[words.pop(0)]
        if hasattr(here, "commands") and words and not words[0].startswith("-") and words[0] != "COMMAND":
            wrong.append(f"{page}: {line}: no command {words[0]}")
        known = {option for parameter in here.params for option in parameter.opts} | {"--help", "-h"}
        options = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        if not hasattr(here, "commands") and not options <= known:
            wrong.append(f"{page}: {line}: no option {sorted(options - known)}")
    assert wrong == []
    assert len(inline_commands()) > 40


PLANTED = """\
version: 1
name: quickstart
axes:
  python: {package: python, versions: ["%s"]}
  orjson: {values: ["3.9.8", "3.9.9", "3.9.10", "3.9.11"]}
trial:
  command: python script.py {orjson}
  files: [script.py]
  timeout: 20s
"""


@pytest.mark.slow
@pytest.mark.integration
def test_commands_that_are_shown_do_what_they_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command of every page, once, in the order of the pages, on a small study of the same names."""
    shown = [line for _, line in shown_commands()]
    ours = [line for line in shown if words_after("bisect-env", line) and not reason_not_to_run(line)]
    # Commands that differ in the values of their options alone are one.
    lines = list({kind_of(line): line for line in reversed(ours)}.values())[::-1]
    # What the others need.
    lines.sort(key=lambda line: line != "bisect-env run matrices/quickstart.yaml")
    matrices = {
        word for line in lines for word in shlex.split(line) if word.endswith("aml") and "=" not in word
    }
    for name in matrices:
        folder = (tmp_path / name).parent
        folder.mkdir(exist_ok=True)
        (tmp_path / name).write_text(PLANTED % f"{sys.version_info.major}.{sys.version_info.minor}")
        (folder / "script.py").write_text("import sys\nsys.exit(sys.argv[1] == '3.9.11')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BISECT_ENV_CACHE", str(tmp_path / "cache"))
    run = caller(monkeypatch, capsys)
    done = []
    for line in lines:
        if "other.sqlite" in line:
            shutil.copy("results.sqlite", "other.sqlite")
        words = words_after("bisect-env", line)
        assert words is not None
        # On the other side of the gap there is another database.
        here = "offline.sqlite" if "--offline" in line else "results.sqlite"
        monkeypatch.setenv("BISECT_ENV_DB", str(tmp_path / here))
        code, _out, err = run(*words)
        expected = next((code for beginning, code in ENDS.items() if beginning in line), 0)
        assert code == expected, f"{line}: {err}"
        done.append(line)
    assert len(done) > 25
    assert (tmp_path / "report.html").read_text("utf-8").startswith("<!doctype html>")


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+)", page.read_text("utf-8")):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_every_word_of_the_glossary_is_in_the_code() -> None:
    """Its last column names a module, or something in one."""
    page = (ROOT / "docs" / "reference" / "glossary.md").read_text("utf-8")
    names = re.findall(r"\| `(bisect_env\.[\w.]+)` \|$", page, re.MULTILINE)
    assert len(names) > 40
    assert [name for name in names if pydoc.locate(name) is None] == []
    words = re.findall(r"^\| ([^|`]+?) \| ", page, re.MULTILINE)
    assert sorted({word for word in words if word != "word" and words.count(word) > 1}) == []


def test_modules_that_pages_name_exist() -> None:
    roots = (ROOT, ROOT / "bisect_env", ROOT / "bisect_env" / "trials")
    wrong = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in PAGES
        for name in re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|csv))`", page.read_text("utf-8"))
        if not any((root / name).exists() for root in roots)
    ]
    assert wrong == []


def test_every_decision_says_what_was_chosen_and_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"^([a-z/*]+)$", (folder / "index.md").read_text("utf-8"), re.MULTILINE)
    pages = {page for name in listed for page in folder.glob(f"{name}.md")}
    assert pages == set(folder.rglob("*.md")) - {folder / "index.md"}
    for page in pages:
        text = page.read_text("utf-8")
        assert text.startswith("# "), page.name
        assert "**Choice" in text, page.name


def test_every_matrix_that_is_shipped_loads() -> None:
    for path in sorted((ROOT / "matrices").glob("*.yaml")):
        load_matrix(path)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The command of a wheel that is installed where nothing else of the repository is."""

    def uv(*words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "uv", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    # Hatchling is among the development tools: nothing is fetched to build with.
    uv(
        "build",
        "--wheel",
        "--no-build-isolation",
        "--python",
        sys.executable,
        "--out-dir",
        str(tmp_path / "dist"),
    )
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    uv("venv", "--python", sys.executable, str(tmp_path / "venv"))
    uv("pip", "install", "--python", str(tmp_path / "venv" / "bin" / "python"), str(wheel))
    return tmp_path / "venv" / "bin" / "bisect-env"


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.network
@pytest.mark.timeout(600)
def test_the_first_command_ends_as_the_readme_says_from_an_installed_wheel(
    installed: Path, tmp_path: Path
) -> None:
    here = tmp_path / "elsewhere"
    shutil.copytree(ROOT / "matrices", here / "matrices")
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        "BISECT_ENV_DB": str(tmp_path / "results.sqlite"),
        "BISECT_ENV_CACHE": str(tmp_path / "cache"),
        "BISECT_ENV_LOCKFILES": str(tmp_path / "lockfiles"),
    }

    def run(*words: str) -> str:
        done = subprocess.run(
            [str(installed), *words],
            cwd=here,
            env=env,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
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
    assert claim in run("report", "--format", "html")
    assert '"type": "object"' in run("plan", "--schema")
    run("db", "info", "--check")


@pytest.mark.integration
@pytest.mark.network
@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_the_tutorial_is_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command of the tutorial as it stands there, on the real packages."""
    shutil.copytree(ROOT / "matrices", tmp_path / "matrices")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BISECT_ENV_DB", str(tmp_path / "results.sqlite"))
    monkeypatch.setenv("BISECT_ENV_CACHE", str(tmp_path / "cache"))
    run = caller(monkeypatch, capsys)
    said = {}
    for page, line in shown_commands():
        if page == "tutorial.md":
            words = words_after("bisect-env", line)
            assert words is not None
            code, said[line], err = run(*words)
            assert code == (3 if words[0] == "trial" and code else 0), f"{line}: {err}"
    answer = "orjson 3.9.11 is the first bad version (last good 3.9.10): crashed in "
    assert said["bisect-env run matrices/quickstart.yaml"].startswith(answer)
    assert said["bisect-env report"].startswith(answer)
    assert "~  orjson  3.9.10  3.9.11" in said["bisect-env report --diff last-good first-bad"]
    assert "the one you asked about" in said["bisect-env report --diff last-good first-bad"]
    assert answer in (tmp_path / "report.html").read_text("utf-8")
    assert answer in (tmp_path / "report.md").read_text("utf-8")
