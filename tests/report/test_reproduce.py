"""The commands that show a failure again are right for each kind of environment, and they run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.environments.lock import Lock, LockedPackage
from bisect_env.report.build import at, load_report, own_date, steps
from bisect_env.storage.store import Store
from tests.engine.studies import Studies
from tests.report.samples import StudyBuilder, axis, orjson_study, orjson_verdict, verdict


def test_axes_with_one_value_are_left_out() -> None:
    axes = [AxisInfo(name="python", values=("3.11",)), AxisInfo(name="a", values=("1", "2"))]
    assert at({"python": "3.11", "a": "2"}, axes) == "a=2"


def test_each_kind_of_environment_has_its_way(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        study = orjson_study(store).finished(orjson_verdict())
    wheel = LockedPackage("a", "1", "pip", "https://x.example/a-1-py3-none-any.whl", "00")
    conda = LockedPackage("a", "1", "conda", "https://x.example/linux-64/a-1-0.conda", "00")
    ways = [
        [
            c
            for step in steps(
                study, (), study.verdict or VerdictDocument(), Lock("h", "3.11", "linux-64", (one,), "")
            )
            for c in step.commands
        ]
        for one in (wheel, conda)
    ]
    assert "uv pip sync --python env/bin/python --require-hashes requirements.txt" in ways[0]
    assert "conda-lock install --prefix ./env conda-lock.yml" in ways[1]
    assert not any(
        "reproduce" in c
        for step in steps(study, (), study.verdict or VerdictDocument(), None)
        for c in step.commands
    )


def test_the_date_of_the_matrix_is_the_one_that_counts(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        builder = StudyBuilder(store, [axis("a", "1", "2")])
        (on,) = load_report(store, builder.study.id).reproduce
        assert on.commands == (f"bisect-env run {builder.study.definition.matrix_path}",)
        plain = builder.finished(verdict(builder.axes, {"a": "2"}, {"a": "1"}))
        assert own_date(plain) is None
        assert "exclude_newer: 2026-11-01T00:00:00Z" in load_report(store, plain.id).reproduce[-1].title


@pytest.mark.slow
@pytest.mark.integration
def test_the_commands_of_a_report_show_the_failure(tmp_path: Path) -> None:
    """Every command that a real study's report gives, in a shell, one after the other."""
    studies = Studies(tmp_path)
    script = "import sys\nif int(sys.argv[1]) >= 6: raise RuntimeError('as planted')\n"
    matrix = studies.matrix(script, rest="exclude_newer: 2026-10-31")
    studies.run(matrix)
    with Store.open(str(studies.db)) as store:
        report = load_report(store, store.study().id)
    assert "exclude_newer" not in report.reproduce[-1].title
    assert f"{report.study.exclude_newer:%Y-%m-%d}" == "2026-11-01"
    tools = Path(sys.executable).parent
    env = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "BISECT_ENV_DB": str(studies.db),
        "BISECT_ENV_CACHE": str(tmp_path / "cache"),
    }
    without, alone, again = report.reproduce

    def run(commands: tuple[str, ...]) -> tuple[int, str]:
        text = "\n".join(["set -e", *commands])
        done = subprocess.run(
            ["bash", "-c", text], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200
        )
        return done.returncode, done.stdout + done.stderr

    code, said = run((*without.commands[:-1], without.commands[-1].replace("100", "3")))
    assert "3 of 3" in said, (code, said)
    assert run(alone.commands[:1])[0] == 3
    assert run(alone.commands[1:])[0] == 0
    code, said = run(again.commands)
    assert (code, (report.verdict.first_bad or {})["level"]) == (0, "6")
    assert "level 6 is the first bad value" in said
