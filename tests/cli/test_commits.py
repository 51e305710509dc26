"""Down to the commit on the command line: `run --git`, and `explain --git` from a release to its commit."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.commits import compiled
from benchmarks.repositories import Change, git, in_tree, module, pure, write
from bisect_env.engine.narrow import tag_of
from bisect_env.report.build import load_report
from bisect_env.report.formats import Format, formatted
from bisect_env.storage.store import Store
from tests.cli.asking import Asking, an_index
from tests.cli.calls import RunCommand
from tests.cluster.dask_processes import DaskProcesses
from tests.environments.index_server import IndexServer

pytestmark = pytest.mark.integration


@pytest.fixture
def index() -> Iterator[IndexServer]:
    with an_index() as index:
        yield index


@pytest.fixture
def user(tmp_path: Path, index: IndexServer, run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> Asking:
    return Asking(tmp_path, run, monkeypatch, index.url)


@pytest.mark.slow
def test_one_line_asks_for_the_commit(user: Asking) -> None:
    place = user.folder / "my clone"
    # Its version is worked out by the build, so that to lock it is to build it.
    commits = write(place, pure("demo", 20, 12, files=in_tree("demo", version="")))
    user.script("import demo\nassert demo.works()\n")
    words = ("--git", "my clone", "--from", "v1.0", "--to", "v1.1", "--always", "--", "python", "repro.py")
    done = user.run("run", *words)
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first.startswith(f"demo {commits[11][:10]} (Change number 12 (#1012)) is the first bad commit")
    assert "pull request: #1012" in done.stdout
    # What `git bisect` takes of 19, and both ends.
    assert len(list((user.folder / "cache" / "commits").glob("*/*.whl"))) <= 7
    assert "package: demo, from: v1.0" in done.stderr
    again = user.run("run", *words)
    assert again.stdout.splitlines()[0] == first
    user.index = ""
    explained = user.run("explain")
    assert explained.returncode == 2
    assert "are commits: no other package is looked for" in explained.stderr
    assert "remedy: the commit is the answer" in explained.stderr
    shown = user.run("reproduce", "--output", "repro")
    assert shown.returncode == 0, shown.stderr
    readme = (user.folder / "repro" / "README.md").read_text()
    assert f"demo: 1.0 at {commits[10][:10]} → 1.0 at {commits[11][:10]}" in readme
    assert f"built from a commit of `{place}`" in readme.replace("%20", " ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--git", "clone", "--", "python", "repro.py"), "--git needs `--from`"),
        (("--git", "nowhere", "--from", "v1.0", "repro.py"), "there is no repository"),
        (("--git", "clone", "--from", "v9", "-p", "demo", "repro.py"), "has no commit v9"),
        (("--git", "clone", "--from", "v1.1", "-p", "demo", "repro.py"), "no commit lies between"),
        (("--git", "clone", "--from", "v1.0", "--good", "1", "repro.py"), "--good is about releases"),
        (("--git", "clone", "--from", "v1.0", "-p", "demo>=1", "repro.py"), "is a range of releases"),
        (("--git", "clone", "--from", "v1.0", "repro.py"), "name it: `-p NAME`"),
        (
            ("--git", "below", "--from", "v1.0", "repro.py"),
            "it has my python/: add `--subdirectory 'my python'`",
        ),
        (("--from", "v1.0", "demo>=1", "repro.py"), "--from belongs to `--git`"),
    ],
)
def test_what_cannot_be_asked_is_refused(user: Asking, words: tuple[str, ...], message: str) -> None:
    changes = pure("demo", 3, 2, files={"setup.py": "from setuptools import setup; setup(name='demo')"})
    write(user.folder / "clone", changes)
    files = {f"my python/{path}": content for path, content in in_tree("demo").items()}
    write(user.folder / "below", [Change(files, tags=["v1.0"]), Change({"README": "2"})])
    user.script("import demo\n")
    code, _, err = user.run("run", *words)
    assert code == 2, err
    assert message in err
    assert "remedy:" in err
    assert "Traceback" not in err


def releases(user: Asking, index: IndexServer, *, differing: bool = False) -> list[str]:
    """Releases 1.0 to 1.4 of a package whose repository has ten commits from each to the next."""
    changes, bad = [], 27
    for number in range(1, 42):
        fails = number >= bad
        rate = 1.0 if fails and not differing else 0.0
        files: dict[str, bytes | str | None] = {"demo.py": module(number, rate)}
        files |= in_tree("demo") if number == 1 else {}
        tags = []
        if number % 10 == 1:
            version = f"1.{number // 10}"
            tags.append(f"demo-{version}")
            text = module(number, 1.0 if fails else 0.0)
            index.add("demo", version, modules={"demo.py": text})
        changes.append(Change(files, f"Change {number} (#{number})", tags=tags))
    return write(user.folder / "clone", changes)


@pytest.mark.slow
def test_from_the_first_bad_release_to_the_commit(user: Asking, index: IndexServer) -> None:
    commits = releases(user, index)
    user.script("import demo\nassert demo.works()\n")
    done = user.run("run", "demo>=1", "repro.py", "--always")
    assert "demo is broken from 1.3 on (last good 1.2)" in done.stdout.splitlines()[0], done.stderr
    user.index = ""
    narrowed = user.run("explain", "--git", "clone")
    assert narrowed.returncode == 0, narrowed.stderr
    assert "demo 1.2 is demo-1.2, 1.3 is demo-1.3" in narrowed.stderr
    said = f"demo {commits[26][:10]} (Change 27 (#27)) is the first bad commit"
    assert said in narrowed.stdout.splitlines()[0]
    # The study of releases tells it from then on, in every format; and the command can be given again.
    with Store.open(str(user.folder / "results.sqlite"), read_only=True) as store:
        report = load_report(store, next(one.id for one in store.studies() if one.name == "demo"))
    for form in Format:
        assert form == "csv" or commits[26][:10] in formatted(report, form), form
    again = user.run("explain", "--git", "clone", "--json")
    assert json.loads(again.stdout.splitlines()[-1])["commit"]["commit"] == commits[26]
    mixed = user.run("explain", "--git", "clone", "--good", "demo=1.1")
    assert (mixed.returncode, "`--git` asks about commits" in mixed.stderr) == (2, True)
    # Without words, the releases are explained, though the study of the commits is the latest.
    explained = user.run("explain")
    assert "are commits" not in explained.stderr
    assert "→ demo 1.2 → 1.3" in explained.stdout


@pytest.mark.slow
def test_commits_that_do_not_behave_as_the_releases_are_said_so(user: Asking, index: IndexServer) -> None:
    releases(user, index, differing=True)
    user.script("import demo\nassert demo.works()\n")
    user.run("run", "demo>=1", "repro.py", "--always")
    user.index = ""
    done = user.run("explain", "--git", "clone")
    assert done.returncode == 4, done.stdout
    assert "built from demo-1.2 and demo-1.3 does not behave as the releases 1.2 and 1.3" in done.stderr


@pytest.mark.slow
def test_a_release_without_a_tag_is_asked_for(user: Asking, index: IndexServer) -> None:
    commits = releases(user, index)
    user.script("import demo\nassert demo.works()\n")
    user.run("run", "demo>=1", "repro.py", "--always")
    user.index = ""
    git(user.folder / "clone", "tag", "-d", "demo-1.3")
    done = user.run("explain", "--git", "clone")
    assert done.returncode == 2
    assert "no tag for demo 1.3" in done.stderr
    assert "--to COMMIT" in done.stderr
    given = user.run("explain", "--git", "clone", "--to", commits[30])
    assert given.returncode == 0, given.stderr
    assert commits[26][:10] in given.stdout.splitlines()[0]


@pytest.mark.parametrize(
    ("tag", "others"),
    [
        ("v1.2.3", ["v1.2.30", "v1.2.3rc1"]),
        ("1.2.3", ["other-1.2.3"]),
        ("my-pkg-1.2.3", ["1.2.4", "other-1.2.3"]),
        ("my_pkg-v1.2.3", []),
        ("release/1.2.3", ["release/1.2"]),
        ("rel_1_2_3", ["rel_1_2_4"]),
        ("release-v1.2.3", []),
        ("v1.2.3.0", ["v1.2"]),
        (None, ["v1.2", "v1.2.3rc1", "other/v1.2.3"]),
    ],
)
def test_tags_of_releases(tag: str | None, others: list[str]) -> None:
    tags = [*others, *([tag] if tag else [])]
    assert tag_of("1.2.3", "my-pkg", tags) == tag


@pytest.mark.parametrize("tag", ["lib2-1.0", "lib2-v1.0", "lib2_1.0", "lib2/1.0", "v1.0"])
def test_a_digit_of_the_name_is_no_part_of_the_version_in_a_tag(tag: str) -> None:
    assert tag_of("1.0", "lib2", [tag, "lib2-2.0", "lib3-1.0"]) == tag


@pytest.mark.slow
def test_a_study_that_was_killed_during_a_build_goes_on(user: Asking) -> None:
    place = user.folder / "clone"
    changes = pure("demo", 8, 6, files={**in_tree("demo"), "slow": "1"})
    commits = write(place, changes)
    user.script("import demo\nassert demo.works()\n")
    words = ["--git", "clone", "--from", "v1.0", "--to", "v1.1", "--always", "repro.py"]
    process = user.start("run", *words)
    folder = user.folder / "cache" / "commits"
    deadline = time.monotonic() + 60
    # In the middle of the second build.
    while time.monotonic() < deadline:
        if list(folder.glob("*/*.whl")) and list(folder.glob(".build-*/source/slow")):
            break
        time.sleep(0.02)
    process.kill()
    process.communicate()
    built = {path.name for path in folder.glob("*/*.whl")}
    assert built
    done = user.run("run", *words)
    assert done.returncode == 0, done.stderr
    assert commits[5][:10] in done.stdout.splitlines()[0]
    assert not list(folder.glob(".build-*"))
    # Both ends, three halvings of the seven others, and one that might have been next.
    assert len(list(folder.glob("*/*.whl"))) <= 6


@pytest.mark.slow
def test_after_raising_the_limits_of_builds_no_trial_is_repeated(user: Asking) -> None:
    write(user.folder / "clone", pure("demo", 8, 5, files=in_tree("demo")))
    ran = user.folder / "ran"
    user.index = ""
    user.script(f"import demo\nopen({str(ran)!r}, 'a').write('ran\\n')\nassert demo.works()\n")
    path = user.folder / "matrix.yaml"
    text = """
        version: 1
        name: limits
        axes:
          demo: {git: clone, package: demo, from: v1.0, to: v1.1, build: {time_limit: 10m%s}}
        trial: {command: python repro.py, files: [repro.py]}
    """
    verdicts, studies = [], set()
    for more in ("", ", ahead: true", ", memory: 8GB", ", memory: 16GB"):
        user.script(text % more, path.name)
        done = user.run("run", path.name, "--quick", "--json")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout.splitlines()[-1])
        verdicts.append(report["verdict"]["first_bad"])
        studies.add(report["study"]["id"])
        if not more:
            trials = len(ran.read_text().splitlines())
    assert len(ran.read_text().splitlines()) == trials
    assert verdicts[1:] == verdicts[:-1]
    assert len(studies) == 3, "to build more beside what is wanted asks nothing else"


@pytest.mark.slow
def test_a_plan_says_what_commits_will_cost_and_builds_none(user: Asking) -> None:
    commits = write(user.folder / "clone", pure("demo", 40, 12, files=in_tree("demo")))
    user.script("import demo\n")
    (user.folder / "matrix.yaml").write_text(
        "version: 1\nname: planned\naxes: {demo: {git: clone, package: demo, from: v1.0}}\n"
        "trial: {command: python repro.py}\ngood: {demo: v1.0}\nbad: {demo: HEAD}\n"
    )
    user.index = ""
    code, out, err = user.run("plan", "matrix.yaml", "--forecast", "60")
    assert code == 0, err
    assert f"demo (regression, 40 values): {commits[0][:10]}, " in out
    assert "40 combinations: 40 to be built when wanted; 40 distinct environments" in out
    found = re.search(r"crash rate of 1: about \d+ trials .* in about (\d+) environments", out)
    assert found is not None, out
    assert int(found[1]) <= 8
    assert not list((user.folder / "cache" / "commits").glob("*"))
    _, whole, err = user.run("plan", "matrix.yaml", "--combinations", "--forecast", "0")
    assert f"demo={commits[7][:10]}: to be built when wanted" in whole, err


@pytest.mark.slow
@pytest.mark.parametrize("files", [in_tree("demo"), None], ids=["asks-for-nothing", "setuptools"])
def test_a_bare_clone_does_without_a_network(
    user: Asking, files: dict[str, bytes | str | None] | None
) -> None:
    commits = write(user.folder / "clone", pure("demo", 8, 6, files=files))
    git(user.folder, "clone", "--quiet", "--bare", "clone", "bare.git")
    shutil.rmtree(user.folder / "clone")
    user.script("import demo\nassert demo.works()\n")
    user.index = ""
    words = ("run", "--git", "bare.git", "--from", "v1.0", "--always", "repro.py", "--to")
    if files is None:
        # What builds ask for is in the cache once any of them was made.
        user.run_apart(*words, commits[1])
    user.env["UV_OFFLINE"] = "1"
    done = user.run_apart(*words, "v1.1")
    assert done.returncode == 0, done.stderr
    assert f"demo {commits[5][:10]}" in done.stdout.splitlines()[0]


@pytest.mark.slow
def test_a_host_without_a_compiler_is_told_and_its_trials_go_elsewhere(user: Asking) -> None:
    changes = compiled(1.0).changes[:14]
    changes[-1].tags = ["v1.1"]
    commits = write(user.folder / "clone", changes)
    user.script("import demo\nassert demo.works()\n")
    user.index = ""
    # Each host has a cache of its own, and so has the command.
    del user.env["BISECT_ENV_CACHE"]
    user.env["XDG_CACHE_HOME"] = str(user.folder / "home")
    bare = user.folder / "bin"
    bare.mkdir()
    (bare / "git").symlink_to(str(shutil.which("git")))
    with DaskProcesses(user.folder) as dask:
        dask.scheduler()
        dask.worker("--name", "able", env={"BISECT_ENV_CACHE": str(user.folder / "one")})
        lacking = {"BISECT_ENV_CACHE": str(user.folder / "other"), "PATH": str(bare)}
        dask.worker("--host", "127.0.0.2", "--name", "bare", env=lacking)
        words = ("--git", "clone", "--from", "v1.0", "--to", "v1.1", "-p", "demo", "--always", "repro.py")
        done = user.run_apart("run", "--scheduler", dask.address, *words)
    assert done.returncode == 0, done.stderr + dask.logs()
    assert commits[11][:10] in done.stdout.splitlines()[0]
    assert done.stderr.count("on 127.0.0.2 an environment cannot be made") == 1, done.stderr
    assert re.search(r"\(this host has no [\w-]*(gcc|cc|clang)\); its trials run elsewhere", done.stderr)
    with Store.open(str(user.folder / "results.sqlite"), read_only=True) as store:
        trials = store.trials(store.study(None).id)
    assert {trial.worker for trial in trials} == {"able"}
