"""`bisect-env report --diff` on a stored study and on lock files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.environments.lockfiles import make_lock
from bisect_env.matrix.grid import Combination
from bisect_env.storage.entries import CombinationState, CombinationStatus, StudyDefinition
from bisect_env.storage.store import Store
from tests.cli.calls import RunCommand
from tests.environments.test_difference import wheel

LOCKS = [
    make_lock("3.11", "linux-64", [wheel("torch", version), wheel("numpy", numpy), *extra])
    for version, numpy, extra in (
        ("2.1", "1.26", []),
        ("2.2", "1.26", [wheel("filelock", "3")]),
        ("2.3", "2.0", [wheel("filelock", "3")]),
    )
]


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "results.sqlite"
    monkeypatch.setenv("BISECT_ENV_DB", str(path))
    monkeypatch.setenv("BISECT_ENV_CACHE", str(tmp_path / "cache"))
    versions = ["2.1", "2.2", "2.3", "2.4", "2.5", "2.6"]
    axis = AxisInfo(name="torch", values=tuple(versions), package="torch")
    with Store.open(str(path)) as store:
        study = store.open_study(StudyDefinition("t", "d", "t.yaml", "version: 1\n", grid=(axis,)))
        store.save_locks(LOCKS)
        states = [
            CombinationState(Combination.of({"torch": v}), CombinationStatus.SOLVABLE, "", lock.content_hash)
            for v, lock in zip(versions, LOCKS, strict=False)
        ]
        none = CombinationState(Combination.of({"torch": "2.4"}), CombinationStatus.UNSOLVABLE, "no wheel")
        out = CombinationState(Combination.of({"torch": "2.5"}), CombinationStatus.EXCLUDED, "broken wheel")
        store.save_combinations(study.id, [*states, none, out])
        verdict = VerdictDocument(status="confirmed", first_bad={"torch": "2.3"}, last_good={"torch": "2.2"})
        store.update_study(study.id, "finished", verdict)
    return path


def test_from_last_good_to_first_bad(db: Path, run: RunCommand) -> None:
    code, out, err = run("report", "--diff", "last-good", "first-bad")
    assert (code, err) == (0, "")
    assert out == (
        "from torch=2.2\nto   torch=2.3\n2 packages changed (the one you asked about, and 1 more)\n\n"
        "~  torch  2.2   2.3\n\n"
        "~  numpy  1.26  2.0\n"
    )


def test_from_last_bad_to_first_good_of_a_fix(db: Path, run: RunCommand) -> None:
    """A fix is named by the words of its report, and a regression is not."""
    code, _out, err = run("report", "--diff", "last-bad", "first-good")
    assert code == 2
    assert "the study has no last-bad\n  remedy: it has first-bad, last-good" in err
    with Store.open(str(db)) as store:
        fix = VerdictDocument(status="confirmed", first_bad={"torch": "2.2"}, last_good={"torch": "2.3"})
        store.update_study(store.study().id, "finished", fix)
    code, out, err = run("report", "--diff", "last-bad", "first-good")
    assert (code, err) == (0, "")
    assert out.startswith("from torch=2.2\nto   torch=2.3\n")


def test_any_two_combinations_and_files(db: Path, run: RunCommand, tmp_path: Path) -> None:
    _, out, _ = run("report", "--diff", "torch=2.1", "torch=2.2", "--json")
    document = json.loads(out)
    assert [(c["name"], c["kind"], c["of_axis"]) for c in document["changes"]] == [
        ("torch", "changed", True),
        ("filelock", "added", False),
    ]
    assert document["changes"][1]["after"]["sha256"] == wheel("filelock", "3").sha256
    one, other = tmp_path / "one.yml", tmp_path / "other.yml"
    one.write_text(LOCKS[0].text)
    other.write_text(LOCKS[2].text)
    assert "+  filelock  —     3" in run("report", "--diff", str(one), str(other))[1]
    assert "+  filelock" in run("report", "--diff", "torch=2.1", str(other))[1]
    assert run("report", "--diff", "torch=2.1", "torch=2.1")[1].endswith("no package differs\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["torch=9", "torch=2.1"], "no value of the axis torch"),
        (["torch=2.4", "torch=2.1"], "torch=2.4 has no environment: no wheel"),
        (["torch=2.5", "torch=2.1"], "torch=2.5 is excluded in the matrix: broken wheel"),
        (["torch=2.6", "torch=2.1"], "torch=2.6 was not locked yet"),
        (["absent.yml", "torch=2.1"], "absent.yml cannot be read"),
        (["numpy", "torch=2.1"], "error: 'numpy' is no value of the axis torch"),
    ],
)
def test_what_cannot_be_compared_is_named(db: Path, run: RunCommand, words: list[str], says: str) -> None:
    code, out, err = run("report", "--diff", *words)
    assert code != 0
    assert out == ""
    assert says in err
    assert "remedy" in err
