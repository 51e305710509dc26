"""`bisect-env between`: two environments in, the culprit and its first bad release out."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bisect_env.cli import between_command
from bisect_env.matrix.load import Matrix
from bisect_env.report.build import load_report
from bisect_env.report.formats import Format, formatted
from bisect_env.report.model import Report
from bisect_env.storage.store import Store
from tests.cli.asking import Asking, an_index
from tests.cli.calls import RunCommand
from tests.environments.conda_channel import Channel
from tests.environments.index_server import IndexServer, make_wheel

pytestmark = pytest.mark.integration

HELPER_FROM_THREE = """
    import app, helper
    assert int(helper.version) < 3
"""


@pytest.fixture
def index() -> Iterator[IndexServer]:
    """app 2 needs helper 2 or newer; other packages move along."""
    with an_index() as index:
        index.add("app", "1", requires=("helper<2",))
        index.add("app", "2", requires=("helper>=2",))
        for version in range(1, 6):
            for name in ("helper", "other", "third"):
                index.add(name, str(version))
        yield index


@pytest.fixture
def user(tmp_path: Path, index: IndexServer, run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> Asking:
    return Asking(tmp_path, run, monkeypatch, index.url)


GREEN = {"app": "1", "helper": "1", "other": "1", "third": "1"}
RED = {"app": "2", "helper": "5", "other": "4", "third": "2"}


@pytest.mark.slow
def test_from_two_lists_to_the_first_bad_release(user: Asking) -> None:
    user.script(HELPER_FROM_THREE)
    sides = (user.freeze("green.txt", **GREEN), user.freeze("red.txt", **RED))
    words = ("between", *sides, "--always", "--", "python", "repro.py")
    done = user.run(*words)
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    # No environment has helper 5 without app 2, or the other way round: the two are named together.
    assert first.startswith("Of 4 packages that changed, ")
    assert "helper 1 → 5" in first
    # The failure names one of them, and its releases can be had: the other follows.
    assert "helper 3 is the first bad version (last good 2" in first
    assert "green.txt: pip's requirements (pip freeze): 4 packages" in done.stderr


@pytest.mark.slow
def test_a_package_alone_and_its_releases(user: Asking, index: IndexServer) -> None:
    index.packages.pop("app")
    for version in ("1", "2"):
        index.add("app", version, requires=("helper",))
    user.script(HELPER_FROM_THREE)
    sides = (user.freeze("green.txt", **GREEN), user.freeze("red.txt", **RED))
    words = ("between", *sides, "--always", "--", "python", "repro.py")
    done = user.run(*words)
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first.startswith("Of 4 packages that changed, helper 1 → 5 alone carries the failure (")
    assert "helper 3 is the first bad version (last good 2" in first
    # The reports of the first study show the whole path, in every format.
    with Store.open(str(user.folder / "results.sqlite"), read_only=True) as store:
        studies = {study.name: study.id for study in store.studies()}
        report = load_report(store, studies["between"])
    for form in Format:
        if form == "csv":
            continue  # the table alone
        shown = formatted(report, form)
        assert "helper 3 is the first bad version" in shown
        assert studies["helper-releases"][:8] in shown, form


@pytest.mark.slow
def test_releases_without_an_answer_are_no_answer(
    user: Asking, index: IndexServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.packages.pop("app")
    for version in ("1", "2"):
        index.add("app", version, requires=("helper",))
    user.script(HELPER_FROM_THREE)
    sides = (user.freeze("green.txt", **GREEN), user.freeze("red.txt", **RED))
    conduct = between_command.conduct

    def out_of_trials(matrix: Matrix, *arguments: Any, **options: Any) -> Report:
        report = conduct(matrix, *arguments, **options)
        if "releases" not in matrix.name:
            return report
        verdict = report.verdict.model_copy(update={"status": "none"})
        return report.model_copy(update={"verdict": verdict})

    monkeypatch.setattr(between_command, "conduct", out_of_trials)
    done = user.run("between", *sides, "--always", "--", "python", "repro.py")
    assert done.returncode == 1, done.stderr
    assert "helper 1 → 5 alone carries the failure" in done.stdout


@pytest.mark.slow
def test_combinations_of_a_study_are_environments(user: Asking, index: IndexServer) -> None:
    index.packages.pop("app")
    for version in ("1", "2"):
        index.add("app", version, requires=("helper",))
    user.script(HELPER_FROM_THREE)
    sides = (user.freeze("green.txt", **GREEN), user.freeze("red.txt", **RED))
    run = ("--no-versions", "--always", "--", "python", "repro.py")
    assert user.run("between", *sides, *run).returncode == 0
    again = user.run("between", "between:last-good", "between:first-bad", *run)
    assert again.returncode == 0, again.stderr
    assert "between:last-good: a lock of bisect-env: 4 packages" in again.stderr
    assert "helper 1 → 5 alone carries the failure" in again.stdout
    assert "first bad version" not in again.stdout.splitlines()[0]


@pytest.mark.slow
def test_two_that_have_to_change_together_and_fail_sometimes(user: Asking, index: IndexServer) -> None:
    for name in ("app", "fourth", "fifth"):
        index.packages.pop(name, None)
        for version in range(1, 6):
            index.add(name, str(version))
    user.script(
        """
        import helper, other
        from planted import fails
        assert not (int(helper.version) >= 3 and int(other.version) >= 2 and fails(0.5))
        """
    )
    green = dict.fromkeys(("app", "helper", "other", "third", "fourth", "fifth"), "1")
    red = dict.fromkeys(green, "4")
    sides = (user.freeze("green.txt", **green), user.freeze("red.txt", **red))
    done = user.run("between", *sides, "--rate", "0.5", "--files", "planted.py", "--", "python", "repro.py")
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert "helper 1 → 4 together with other 1 → 4 carry the failure" in first
    assert "helper ≥ 3 with other ≥ 2 is broken" in first


@pytest.mark.slow
def test_neither_fails_here(user: Asking) -> None:
    user.script("import helper")
    sides = (user.freeze("green.txt", **GREEN), user.freeze("red.txt", **RED))
    done = user.run("between", *sides, "--always", "--", "python", "repro.py")
    assert done.returncode == 4, done.stderr
    assert "bad" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_missing_module_is_named_before_anything_is_searched(user: Asking) -> None:
    user.script("import numpy")
    sides = (user.freeze("green.txt", **GREEN), user.freeze("red.txt", **RED))
    done = user.run("between", *sides, "--", "python", "repro.py")
    assert done.returncode == 2
    # Which sentence it is depends on whether the bad one was built before the good one had failed twice.
    assert "the module 'numpy', which the command imports" in done.stderr
    # `between` has no option `--with`.
    assert "add the package that brings it to both environments" in done.stderr


def test_what_cannot_be_compared(user: Asking, tmp_path: Path) -> None:
    user.script("import helper")
    green, red = user.freeze("green.txt", **GREEN), user.freeze("red.txt", **RED)

    def refused(*arguments: str) -> str:
        code, _, err = user.run("between", *arguments, "--", "python", "repro.py")
        assert code in (2, 5), err
        assert "remedy:" in err
        assert "Traceback" not in err
        return err

    assert "hold the same packages" in refused(green, green)
    assert "there is no such file; beside it lies green.txt" in refused("gren.txt", red)
    conda = tmp_path / "conda.txt"
    conda.write_text("# platform: linux-64\npython=3.11.7=0\nhelper=1=0\n")
    assert "no environment lies between them" in refused("conda.txt", red)
    conda.write_text("# platform: osx-arm64\npython=3.11.7=0\nhelper=1=0\n")
    assert "it is for osx-arm64, and this is linux-64" in refused("conda.txt", "conda.txt")
    (tmp_path / "local.txt").write_text("-e /home/user/mine\n")
    assert "every package is left out" in refused("local.txt", red)
    # An archive that is another by now, and one that is on no index any more.
    content = make_wheel("helper", "5")[1]
    pins = "".join(f"{name}=={version}\n" for name, version in RED.items() if name != "helper")
    (tmp_path / "hashed.txt").write_text(f"helper==5 --hash=sha256:{'ab' * 32}\n{pins}")
    assert "helper 5" in refused(green, "hashed.txt")
    assert "--no-hashes" in refused(green, "hashed.txt")
    right = hashlib.sha256(content).hexdigest()
    (tmp_path / "hashed.txt").write_text(f"helper==5 --hash=sha256:{right}\n{pins}gone==1\n")
    words = refused(green, "hashed.txt")
    assert "hashed.txt cannot be made again" in words
    assert "gone" in words
    assert "two environments are needed" in user.run("between", green).stderr


def test_a_local_package_is_named_and_left_out(user: Asking) -> None:
    user.script("import helper")
    green, red = user.freeze("green.txt", **GREEN), user.freeze("red.txt", **RED)
    more = "-e git+https://code.example/x#egg=mine\ngone==1\n"
    (user.folder / red).write_text((user.folder / red).read_text() + more)
    code, _, err = user.run("between", green, red, "--", "python", "repro.py")
    assert code == 5
    assert "red.txt: left out: mine (an editable install" in err


@pytest.mark.slow
def test_two_conda_environments(tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = Channel(tmp_path / "channel")
    channel.add_python()
    for version in ("1", "2", "3", "4"):
        channel.add_library("helper", version, "py_0")
        channel.add_library("other", version, "py_0")
    channel.write()
    user = Asking(tmp_path, run, monkeypatch)
    user.script("import helper\nassert int(helper.__version__) < 3\n")
    entry = next(iter(json.loads((channel.folder / "linux-64/repodata.json").read_text())["packages.conda"]))
    python = f"{channel.url}/linux-64/{entry}"
    for name, version in (("green", "1"), ("red", "4")):
        urls = [python, *(f"{channel.url}/noarch/{lib}-{version}-py_0.conda" for lib in ("helper", "other"))]
        (tmp_path / f"{name}.txt").write_text("# platform: linux-64\n@EXPLICIT\n" + "\n".join(urls) + "\n")
    done = user.run("between", "green.txt", "red.txt", "--always", "--", "python", "repro.py")
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert "Of 2 packages that changed, helper 1 py_0 → 4 py_0 alone carries the failure" in first
    assert "helper 3 is the first bad version (last good 2" in first


EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
FLASK = Path(__file__).parents[1] / "cases" / "asked" / "werkzeug-in-flask"


@pytest.mark.slow
@pytest.mark.network
def test_the_scripts_for_continuous_integration(tmp_path: Path) -> None:
    """As a job runs them, from the index that is configured."""
    for name in ("green.txt", "red.txt", "repro.py"):
        shutil.copy(FLASK / name, tmp_path)
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "BISECT_ENV_DB": str(tmp_path / "results.sqlite"),
    }

    def job(script: str, *words: str) -> str:
        """The summary of a job that runs a script."""
        summary = tmp_path / "summary.md"
        summary.unlink(missing_ok=True)
        command = ["bash", EXAMPLES / script, *words, "summary.md", "--", "python", "repro.py"]
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stderr
        return summary.read_text("utf-8")

    assert "what broke is not a package" in job("bisect_red_run.sh", "green.txt", "green.txt")
    told = job("bisect_red_run.sh", "green.txt", "red.txt").splitlines()[0]
    assert "werkzeug 2.3.7 → 3.0.6 alone carries the failure" in told
    assert re.search(r"werkzeug 3\.0\.0 is (probably )?the first bad version", told)
    told = job("bisect_next_month.sh", "green.txt").splitlines()[0]
    assert "werkzeug 2.3.7 → " in told
    assert re.search(r"werkzeug 3\.0\.0 is (probably )?the first bad version", told)
