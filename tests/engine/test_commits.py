"""Whole studies over commits: the first bad one is found, with few builds, past those that do not build."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from benchmarks.commit_plays import descendants, git_bisect
from benchmarks.commits import merges
from benchmarks.repositories import Change, git, in_tree, module, pure, write
from bisect_env.engine.document import bisect_log, comparison, named_commits, pull_request
from bisect_env.engine.events import TrialFinished
from bisect_env.environments.commits import CommitBuilder
from bisect_env.environments.interpreters import machine_interpreters
from bisect_env.environments.repository import Repository
from bisect_env.environments.request import CommitSource
from bisect_env.environments.uv_tool import Uv
from bisect_env.errors import InfrastructureError, StudyInterruptedError, UsageError
from bisect_env.report.html import html_text
from bisect_env.report.markdown import markdown_text
from bisect_env.report.model import Report
from bisect_env.report.text import report_text
from bisect_env.storage.store import Store
from tests.engine.studies import PYTHON, Studies
from tests.planted import plant
from tests.report import samples

pytestmark = pytest.mark.integration

SCRIPT = "import demo\nassert demo.works(), 'planted'\n"


def matrix(studies: Studies, place: Path, *, keys: str = "", rest: str = "", script: str = SCRIPT) -> Path:
    (studies.folder / "script.py").write_text(script)
    path = studies.folder / "matrix.yaml"
    path.write_text(
        f"version: 1\nname: commits\naxes:\n  python: {{package: python, versions: ['{PYTHON}']}}\n"
        f"  demo: {{git: {place.name}, package: demo, from: v1.0, to: v1.1{keys}}}\n"
        f"trial: {{command: python script.py, timeout: 20s}}\n{rest}"
    )
    return path


def repository(studies: Studies, changes: list[Change]) -> tuple[Path, list[str]]:
    place = studies.folder / "demo repo"
    return place, write(place, changes)


def builds(studies: Studies) -> int:
    return len(list((studies.folder / "cache" / "commits").glob("*/*.whl")))


def verdict(conclusion: Any) -> Any:
    return conclusion.report["verdict"]


@pytest.mark.slow
@pytest.mark.parametrize("bad", [9, pytest.param(40, marks=pytest.mark.slow)])
def test_the_first_bad_commit_takes_as_many_builds_as_git_and_both_ends(studies: Studies, bad: int) -> None:
    place, commits = repository(studies, pure("demo", 40, bad, files=in_tree("demo")))
    rest = "good: {demo: v1.0}\nbad: {demo: v1.1}\nsearch: {crash_rate: 1}\n"
    conclusion = studies.run(matrix(studies, place, rest=rest))
    assert verdict(conclusion)["first_bad"]["demo"] == commits[bad - 1]
    assert verdict(conclusion)["last_good"]["demo"] == commits[bad - 2]
    said = verdict(conclusion)["sentence"]
    assert f"demo {commits[bad - 1][:10]} (Change number {bad} (#{1000 + bad})) is the first bad comm" in said
    # git bisect tries 5 or 6 of 39, and takes both ends on trust.
    assert builds(studies) <= 6 + 2


ENDS = "good: {demo: v1.0}\nbad: {demo: v1.1}\n"


@pytest.mark.slow
def test_a_merge_is_gone_into_where_all_of_a_history_is_asked_about(studies: Studies) -> None:
    #  1 - 2 - 3 ---------- 8 - 9      8 merges 7, and 5 is the first bad one
    #       \\- 4 - 5 - 6 - 7 /
    def change(number: int, **more: Any) -> Change:
        bad = number in (5, 6, 7, 8, 9)
        return Change({"demo.py": module(number, 1.0 if bad else 0.0)}, **more)

    changes = [
        Change({**in_tree("demo"), "demo.py": module(1, 0.0)}, tags=["v1.0"]),
        change(2),
        change(3),
        change(4, parents=[2]),
        *map(change, (5, 6, 7)),
        change(8, parents=[3, 7], subject="Merge pull request #77 from ann/faster"),
        change(9, tags=["v1.1"]),
    ]
    place, commits = repository(studies, changes)
    plain = studies.run(matrix(studies, place, rest=ENDS))
    assert verdict(plain)["first_bad"]["demo"] == commits[7]
    every = studies.run(matrix(studies, place, keys=", history: all", rest=ENDS))
    assert verdict(every)["first_bad"]["demo"] == commits[4]
    assert verdict(every)["last_good"]["demo"] == commits[3]


@pytest.mark.slow
def test_a_merge_whose_sides_are_both_good_is_the_culprit_itself(studies: Studies) -> None:
    changes = [
        Change({**in_tree("demo"), "demo.py": module(1, 0.0)}, tags=["v1.0"]),
        Change({"demo.py": module(2, 0.0)}),
        Change({"demo.py": module(3, 0.0)}, parents=[1]),
        Change({"demo.py": module(4, 0.0)}),
        Change({"demo.py": module(5, 1.0)}, "Merge branch 'faster'", parents=[2, 4]),
        Change({"demo.py": module(6, 1.0)}, tags=["v1.1"]),
    ]
    place, commits = repository(studies, changes)
    conclusion = studies.run(matrix(studies, place, keys=", history: all", rest=ENDS))
    found = verdict(conclusion)
    assert found["first_bad"]["demo"] == commits[4]
    assert found["last_good"]["demo"] == commits[3]
    report = Report.read(conclusion.report)
    assert report.commit is not None
    assert report.commit.is_merge
    assert f"{commits[4]} (a merge)" in report_text(report)


@pytest.mark.slow
@pytest.mark.checked
def test_commits_of_merged_branches_take_as_many_builds_as_git_does_and_both_ends(studies: Studies) -> None:
    case = merges(1.0)
    place, commits = repository(studies, case.changes)
    history = Repository(str(place), studies.folder / "mirrors").history("v1.0", "v1.1", every=True)
    theirs = git_bisect(place, history, descendants(history, commits[case.bad - 1]))
    path = matrix(studies, place, keys=", history: all", rest=f"{ENDS}search: {{crash_rate: 1}}\n")
    conclusion = studies.run(path)
    assert verdict(conclusion)["first_bad"]["demo"] == commits[case.bad - 1]
    assert verdict(conclusion)["last_good"]["demo"] == commits[case.bad - 2]
    # Git takes both ends on trust.
    assert builds(studies) <= len(theirs) + 2
    # A second command goes on with the commits that were added around the answer.
    again = studies.run(path)
    assert verdict(again) == verdict(conclusion)
    assert again.report["trials"] == conclusion.report["trials"]


@pytest.mark.slow
def test_a_study_of_merged_branches_goes_on_where_it_was_stopped(studies: Studies) -> None:
    case = merges(1.0)
    place, commits = repository(studies, case.changes)
    path = matrix(studies, place, keys=", history: all", rest=f"{ENDS}search: {{crash_rate: 1}}\n")

    def stopped_early() -> bool:
        return sum(isinstance(event, TrialFinished) for event in studies.events) >= 4

    with pytest.raises(StudyInterruptedError):
        studies.run(path, stopped=stopped_early)
    conclusion = studies.run(path)
    assert verdict(conclusion)["first_bad"]["demo"] == commits[case.bad - 1]
    # What the first command had built is not built again.
    history = Repository(str(place), studies.folder / "mirrors").history("v1.0", "v1.1", every=True)
    theirs = git_bisect(place, history, descendants(history, commits[case.bad - 1]))
    # Git takes both ends on trust, and builds nothing for a trial that may follow one that is stopped.
    assert builds(studies) <= len(theirs) + 4


@pytest.mark.slow
def test_a_flaky_failure_of_a_merged_branch_is_traced_line_by_line(studies: Studies) -> None:
    case = merges(1.0)
    place, commits = repository(studies, case.changes)
    plant(studies.folder)
    script = "import demo\nfrom planted import fails\nassert demo.works() or not fails(0.6), 'planted'\n"
    path = matrix(studies, place, keys=", history: all", rest=ENDS, script=script)
    path.write_text(path.read_text().replace("timeout:", "files: [script.py, planted.py], timeout:"))
    conclusion = studies.run(path)
    assert verdict(conclusion)["first_bad"]["demo"] == commits[case.bad - 1]
    assert builds(studies) <= 20


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["stated", "worked-out"])
def test_a_commit_is_built_once_whenever_that_is(studies: Studies, dynamic: bool) -> None:
    changes = pure("demo", 12, 8, files=in_tree("demo", version="" if dynamic else "1.0"))
    changes[8].files["broken"] = "x"  # type: ignore[index]
    changes[9].files["broken"] = None  # type: ignore[index]
    place, commits = repository(studies, changes)
    log = studies.folder / "builds"
    keys = f", build: {{env: {{BUILDS: {log}}}}}"
    rest = ENDS + "search: {crash_rate: 1}\n"
    conclusion = studies.run(matrix(studies, place, keys=keys, rest=rest))
    assert verdict(conclusion)["first_bad"]["demo"] == commits[7]
    failed = [one for one in conclusion.report["combinations"] if one["status"] == "env-unbuildable"]
    assert len(log.read_text().splitlines()) == builds(studies) + len(failed) <= 4 + 3


@pytest.mark.slow
def test_builds_are_made_ahead_where_that_is_wanted(studies: Studies) -> None:
    files = {**in_tree("demo"), "slow": "0.5"}
    place, commits = repository(studies, pure("demo", 16, 11, files=files))
    rest = ENDS + "search: {crash_rate: 1}\n"
    log = studies.folder / "builds"
    keys = f", build: {{ahead: true, env: {{BUILDS: {log}}}}}"
    conclusion = studies.run(matrix(studies, place, keys=keys, rest=rest))
    assert verdict(conclusion)["first_bad"]["demo"] == commits[10]
    begun = sorted(map(float, log.read_text().split()))
    assert any(later - earlier < 0.5 for earlier, later in itertools.pairwise(begun)), "at the same time"
    assert len(begun) <= 2 * 5


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["stated", "worked-out"])
def test_commits_that_do_not_build_are_told_with_their_log(studies: Studies, dynamic: bool) -> None:
    changes = pure("demo", 12, 8, files=in_tree("demo", version="" if dynamic else "1.0"))
    changes[5].files["broken"] = "frobnicate.c:12"  # type: ignore[index]
    changes[8].files["broken"] = None  # type: ignore[index]
    place, commits = repository(studies, changes)
    conclusion = studies.run(matrix(studies, place, rest=ENDS))
    found = verdict(conclusion)
    assert found["first_bad"]["demo"] == commits[8]
    assert found["last_good"]["demo"] == commits[4]
    between = [one["combination"]["demo"] for one in found["boundaries"][0]["between"]]
    assert between == commits[5:8]
    said = found["sentence"]
    assert said.startswith(
        f"the first bad commit of demo is one of these 4: {commits[5][:10]} (Change number 6"
    )
    assert said.count("(Change number 7 (#1007))") == 1
    reasons = {
        one["reason"] for one in conclusion.report["combinations"] if one["status"] == "env-unbuildable"
    }
    assert any("cannot compile frobnicate.c:12" in reason for reason in reasons)


@pytest.mark.slow
def test_a_commit_is_found_that_fails_with_one_value_beside_it_alone(studies: Studies) -> None:
    place, commits = repository(studies, pure("demo", 8, 5, files=in_tree("demo")))
    script = "import demo, sys\nassert demo.works() or sys.argv[1] == 'slow', 'planted'\n"
    path = matrix(
        studies, place, rest="good: {demo: v1.0, mode: slow}\nbad: {demo: v1.1, mode: fast}\n", script=script
    )
    text = path.read_text().replace("command: python script.py", "command: 'python script.py {mode}'")
    path.write_text(text.replace("trial:", "  mode: {values: [slow, fast]}\ntrial:"))
    found = verdict(studies.run(path))
    assert found["first_bad"] == {"python": PYTHON, "demo": commits[4], "mode": "fast"}
    assert sorted(found["culprit_axes"]) == ["demo", "mode"]


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["the first", "the last", "both"])
def test_ends_that_do_not_build_leave_an_answer_between_those_that_do(studies: Studies, ends: str) -> None:
    changes = pure("demo", 10, 6, files=in_tree("demo"))
    if ends != "the last":
        changes[0].files = {**changes[0].files, "broken": "the first"}
        changes[1].files = {**changes[1].files, "broken": None}
    if ends != "the first":
        changes[-1].files = {**changes[-1].files, "broken": "the last"}
    place, commits = repository(studies, changes)
    conclusion = studies.run(matrix(studies, place, rest=f"{ENDS}search: {{crash_rate: 1}}\n"))
    assert verdict(conclusion)["first_bad"]["demo"] == commits[5], verdict(conclusion)["sentence"]
    assert verdict(conclusion)["last_good"]["demo"] == commits[4]


@pytest.mark.slow
def test_a_failure_in_one_run_of_five_is_traced_to_its_commit(studies: Studies) -> None:
    place, commits = repository(studies, pure("demo", 24, 17, rate=1.0, files=in_tree("demo")))
    plant(studies.folder)
    script = "import demo\nfrom planted import fails\nassert demo.works() or not fails(0.2), 'planted'\n"
    path = matrix(studies, place, rest=ENDS + "search: {crash_rate: 0.2}\n", script=script)
    path.write_text(path.read_text().replace("timeout:", "files: [script.py, planted.py], timeout:"))
    conclusion = studies.run(path)
    assert verdict(conclusion)["first_bad"]["demo"] == commits[16]
    assert builds(studies) <= 12


@pytest.mark.slow
@pytest.mark.parametrize(("stated", "most"), [("search: {crash_rate: 1}\n", 11 + 2), ("", 11 + 3)])
def test_of_many_commits_some_are_tried_and_then_those_around_the_answer(
    studies: Studies, stated: str, most: int
) -> None:
    """Halving takes 11 builds and both ends.

    If the failure rate is not stated, a commit that passed may still be bad. Then the halves are unequal, and
    how unequal depends on how long builds and trials take: one build more, for this culprit.
    """
    place, commits = repository(studies, pure("demo", 1500, 777, files=in_tree("demo")))
    conclusion = studies.run(matrix(studies, place, rest=ENDS + stated))
    found = verdict(conclusion)
    assert found["first_bad"]["demo"] == commits[776]
    assert found["last_good"]["demo"] == commits[775]
    assert builds(studies) <= most
    again = studies.run(studies.folder / "matrix.yaml")
    assert again.report["verdict"] == conclusion.report["verdict"]


@pytest.mark.slow
def test_a_study_goes_on_with_the_commits_it_began_with(studies: Studies) -> None:
    place, commits = repository(studies, pure("demo", 12, 8, files=in_tree("demo")))
    path = matrix(studies, place, rest="good: {demo: v1.0}\nbad: {demo: main}\n")
    path.write_text(path.read_text().replace("to: v1.1", "to: main"))
    first = studies.run(path)
    git(place, "update-ref", "refs/heads/main", commits[9])
    again = studies.run(path)
    assert verdict(first)["first_bad"] == verdict(again)["first_bad"]
    assert again.report["axes"][1]["values"] == commits


@pytest.mark.slow
def test_nothing_of_the_user_is_written_to(studies: Studies) -> None:
    place, _ = repository(studies, pure("demo", 6, 4, files=in_tree("demo")))
    git(place, "checkout", "--quiet", "main")
    (place / "demo.py").write_text("being edited")
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    studies.run(matrix(studies, place, rest=ENDS))
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before


def test_what_is_no_commit_is_refused_before_anything_is_built(studies: Studies) -> None:
    place, _ = repository(studies, pure("demo", 6, 4, files=in_tree("demo")))
    path = matrix(studies, place)
    path.write_text(path.read_text().replace("to: v1.1", "to: v7"))
    with pytest.raises(UsageError, match="no commit v7"):
        studies.run(path)
    assert not studies.db.exists() or not Store.open(str(studies.db)).studies()


@pytest.mark.parametrize(
    ("said", "first"),
    [("ggbbgg..", 2), ("ggbbggbb", 2), ("ggbbggbb", 6), ("bbgsgbb.", 5), ("gsggbbbb", 4), ("bbgg....", 1)],
)
def test_git_reads_the_log_of_a_failure_that_comes_and_goes(tmp_path: Path, said: str, first: int) -> None:
    git(tmp_path, "init", "--quiet")
    commits = []
    for number in range(len(said)):
        who = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
        git(tmp_path, *who, "commit", "--quiet", "--allow-empty", "--message", f"Change {number}")
        commits.append(git(tmp_path, "rev-parse", "HEAD").strip())
    words = {"g": "good", "b": "bad", "s": "skip"}
    tried = [(commit, words[one], "") for commit, one in zip(commits, said, strict=True) if one in words]
    log = tmp_path / "bisect.log"
    log.write_text("\n".join(bisect_log(tried, commits[first], {}, is_sure=True)) + "\n")
    told = git(tmp_path, "bisect", "replay", str(log))
    is_boundary = said[first - 1] == "g"
    assert ("# first bad commit" in log.read_text()) == ("g" in said[:first])
    if is_boundary:
        assert f"{commits[first]} is the first bad commit" in told


@pytest.mark.slow
def test_the_report_says_whose_commit_it_is_and_what_it_changes(studies: Studies, tmp_path: Path) -> None:
    place, commits = repository(studies, pure("demo", 12, 8, files=in_tree("demo")))
    git(place, "remote", "add", "origin", "git@github.example.org:ann/demo.git")
    report = studies.run(matrix(studies, place, rest=ENDS)).report
    found = report["commit"]
    assert (found["commit"], found["last_good"]["commit"]) == (commits[7], commits[6])
    assert (found["author"], found["subject"]) == ("Ann Author", "Change number 8 (#1008)")
    assert (found["pull_request"], found["is_merge"]) == (1008, False)
    assert found["files"] == [["demo.py", 2, 2]]
    assert found["compare"] == f"https://github.example.org/ann/demo/compare/{commits[6]}...{commits[7]}"
    # What was tried can be told to git again, in a clone of one's own.
    log = tmp_path / "bisect.log"
    log.write_text("\n".join(found["log"]) + "\n")
    git(tmp_path, "clone", "--quiet", str(place), "own")
    assert f"{commits[7]} is the first bad commit" in git(tmp_path / "own", "bisect", "replay", str(log))
    for text in (
        report_text(Report.read(report)),
        markdown_text(Report.read(report)),
        html_text(Report.read(report)),
    ):
        assert commits[7] in text
        assert "demo.py  +2 −2" in text
        assert "#1008" in text


@pytest.mark.parametrize(
    ("subject", "number"),
    [
        ("Fix it (#12)", 12),
        ("Merge pull request #7 from ann/x", 7),
        ("Speed up (!34)", 34),
        ("See #12", None),
        ("Fix (#12) again", None),
    ],
)
def test_subjects_that_name_a_pull_request(subject: str, number: int | None) -> None:
    assert pull_request(subject) == number


@pytest.mark.parametrize(
    ("forge", "address"),
    [
        ("https://github.com/numpy/numpy.git", "https://github.com/numpy/numpy/compare/a...b"),
        ("git@gitlab.com:group/sub/demo.git", "https://gitlab.com/group/sub/demo/-/compare/a...b"),
        ("ssh://git@forge.example.org:2222/ann/demo", "https://forge.example.org/ann/demo/compare/a...b"),
        ("/home/ann/demo", ""),
        ("", ""),
        ("https://example.org/", ""),
    ],
)
def test_forges_that_compare(forge: str, address: str) -> None:
    assert comparison(forge, "a", "b") == address


def test_a_secret_of_a_build_reaches_it_and_is_stored_nowhere(
    studies: Studies, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = pure("demo", 4, 3, files=in_tree("demo"))
    asked = "import os, sys\nprint('given', os.environ['GITHUB_TOKEN'], file=sys.stderr)\n"
    asked += "assert (os.environ['GITHUB_TOKEN'], os.environ['FLAG']) == ('hunter' + '2', 'a b')\n"
    changes[0].files = {**changes[0].files, "backend.py": f"{asked}{changes[0].files['backend.py']}"}
    changes[1].files = {**changes[1].files, "broken": "it"}
    changes[2].files = {**changes[2].files, "broken": None}
    place, commits = repository(studies, changes)
    (studies.folder / "script.py").write_text(SCRIPT)
    keys = ", build: {env: {GITHUB_TOKEN: hunter2, FLAG: a b}}"
    conclusion = studies.run(matrix(studies, place, keys=keys, rest=ENDS))
    assert verdict(conclusion)["first_bad"]["demo"] == commits[2]
    assert "given ***" in str(conclusion.report)
    assert "hunter2" not in str(conclusion.report)
    kept = [studies.db, *(studies.folder / "lockfiles").rglob("*"), *(studies.folder / "cache").rglob("*")]
    files = [one for one in kept if one.is_file() and not one.is_symlink()]
    assert [one for one in files if b"hunter2" in one.read_bytes()] == []
    # Where the value is not known, a build says so, and nothing is built without it.
    monkeypatch.delenv("BISECT_ENV_BUILD_ENV_GITHUB_TOKEN")
    with Store.open(str(studies.db), read_only=True) as store:
        locks = [state.lock_hash for state in store.combinations(store.study().id) if state.lock_hash]
        found = store.lock(locks[0])
    assert found is not None
    (package,) = (one for one in found.packages if one.name == "demo")
    here = machine_interpreters().find(PYTHON)
    elsewhere = studies.folder / "elsewhere"
    with pytest.raises(InfrastructureError, match=r"GITHUB_TOKEN[^$]*BISECT_ENV_BUILD_ENV_GITHUB_TOKEN"):
        CommitBuilder(elsewhere, Uv(elsewhere)).wheel(CommitSource.of(package), here)


@pytest.mark.parametrize(
    ("bad", "good", "named"), [("c" * 40, "b" * 40, ("c" * 40, "b" * 40, [])), ("b" * 40, "c" * 40, None)]
)
def test_the_last_bad_commit_is_not_called_the_first(bad: str, good: str, named: object) -> None:
    axes = [samples.axis("lib", *(letter * 40 for letter in "abcd"), direction="either", kind="commit")]
    document = samples.verdict(axes, {"lib": bad}, {"lib": good})
    assert named_commits(document, samples.infos(axes), "lib") == named
