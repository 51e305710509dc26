"""`bisect-env reproduce` and `shell`: what they give works without us, or inside an environment."""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from bisect_env.cli.reproduce_command import observed
from bisect_env.cluster.pool import PoolExecutor
from bisect_env.engine.plans import OneCombinationPlan
from bisect_env.engine.reproduction import ObservedFailure, reproduction
from bisect_env.engine.session import Session
from bisect_env.engine.single import open_combination, run_trials
from bisect_env.engine.stored import stored_combination
from bisect_env.environments.lock import IMAGE, LockedPackage
from bisect_env.environments.lockfiles import make_lock
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.environments.provider import Environments
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.load import load_matrix
from bisect_env.storage.entries import AMPLIFIED
from bisect_env.storage.store import Store
from bisect_env.trials.records import NONE, PERTURBATION, Outcome, Perturbation
from tests.cli.calls import RunCommand
from tests.engine.studies import Studies
from tests.environments.index_server import IndexServer, make_wheel, serve
from tests.environments.test_difference import conda, wheel
from tests.report.samples import StudyBuilder, axis, verdict

SCRIPT = """
    import lib, os, sys
    if lib.version == "2.0.1" and sys.argv[1] == "9":
        os.abort()
"""
UV = Path(sys.executable).with_name("uv")


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A study with trials, and its index while it is looked at."""
    index = IndexServer()
    server = serve(index)
    for version in ("1.0.0", "2.0.1"):
        index.add("lib", version)
    studies = Studies(tmp_path)
    path = studies.matrix(
        SCRIPT,
        axes="lib: {package: lib, versions: [1.0.0, 2.0.1]}\nlevel: {values: [0, 9]}",
        trial="env: {OMP_NUM_THREADS: 3, API_TOKEN: abc123}",
        rest=f"index: {index.url}\ndescription: it dies",
    )
    monkeypatch.setenv("BISECT_ENV_DB", str(studies.db))
    monkeypatch.setenv("BISECT_ENV_CACHE", str(tmp_path / "cache"))
    matrix, cache = load_matrix(path), tmp_path / "cache"
    executor = PoolExecutor(partial(ensure_prefix, cache_dir=cache), 2)
    with Store.open(str(studies.db)) as store:
        one = open_combination(
            matrix,
            "lib=2,level=9",
            store=store,
            provider=Environments(cache, index=index.url),
            notify=lambda event: None,
        )
        session = Session(store, Environments(cache, index=index.url), lambda: executor)
        run_trials(one, lambda: OneCombinationPlan(one.index, 2), session)
        executor.close()
    yield path
    server.shutdown()
    server.server_close()


@pytest.mark.integration
def test_a_bundle_runs_without_us(study: Path, run: RunCommand, tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    code, _, err = run("reproduce", "--at", "lib=2,level=9", "-o", str(target))
    assert code == 0, err
    readme = (target / "README.md").read_text()
    assert readme.startswith("# it dies\n")
    assert "it failed in 2 of 2 runs" in readme
    assert "Fatal Python error: Aborted" in readme
    everything = "".join(path.read_text() for path in target.rglob("*") if path.is_file())
    assert "abc123" not in everything
    assert "bisect-env run" not in everything
    assert "values that may be secrets are left out: API_TOKEN.\n" in readme
    # Without uv, too, there is a last step that runs it.
    assert readme.count('PATH="$PWD/env/bin:$PATH" ./run.sh 100') == 2
    # Word by word as the README says; only the tools' places are this machine's.
    steps = readme.partition("```sh\n")[2].partition("```")[0].splitlines()
    env = {**os.environ, "PATH": f"{UV.parent}:{os.environ['PATH']}", "UV_CACHE_DIR": str(tmp_path / "uv")}
    for step in steps[:2]:
        subprocess.run(["sh", "-c", step], cwd=target, env=env, check=True, timeout=100)
    broken = subprocess.run(["sh", "-c", steps[2]], cwd=target, env=env, capture_output=True, text=True)
    assert broken.returncode != 0
    assert "API_TOKEN: may be a secret and is left out" in broken.stderr
    step = steps[2].replace("./run.sh 100", "./run.sh 3")
    done = subprocess.run(
        ["sh", "-c", step],
        cwd=target,
        env={**env, "API_TOKEN": "x"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout == "3 of 3 runs failed\n", done.stderr
    assert done.returncode == 1


@pytest.mark.integration
def test_a_bundle_of_the_first_bad_says_where_it_does_not_fail(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = IndexServer()
    server = serve(index)
    try:
        for number in range(1, 5):
            index.add("lib", f"{number}.0")
        studies = Studies(tmp_path)
        path = studies.matrix(
            "import lib; assert int(lib.version[0]) < 3",
            axes="lib: {package: lib, versions: ['1.0', '2.0', '3.0', '4.0']}",
            rest=f"index: {index.url}",
        )
        path.write_text(path.read_text().replace(" {level}", ""))
        studies.run(path)
    finally:
        server.shutdown()
        server.server_close()
    monkeypatch.setenv("BISECT_ENV_DB", str(studies.db))
    for which in ("first-bad", "last-good"):
        code, _, err = run("reproduce", "--at", which, "-o", str(tmp_path / which))
        assert code == 0, err
    readme = (tmp_path / "first-bad" / "README.md").read_text()
    assert re.search(r"With python [0-9.]+, lib 2.0 it failed in 0 of [1-9][0-9]* runs\.", readme)
    assert "What changed from there to here:\n\n- lib: 2.0 → 3.0\n" in readme
    assert "What changed" not in (tmp_path / "last-good" / "README.md").read_text()


@pytest.mark.parametrize("name", ["x.tar.gz", "x.TGZ", "x.zip"])
def test_a_name_of_an_archive_is_refused(run: RunCommand, tmp_path: Path, name: str) -> None:
    code, _, err = run("reproduce", "-o", str(tmp_path / name))
    assert code == 2
    assert f"{name} is named like an archive, and this command writes a directory" in err
    assert f"name a directory, such as {tmp_path / 'x'};" in err
    assert not (tmp_path / name).exists()


@pytest.mark.integration
def test_a_folder_that_is_read_only_is_said(study: Path, run: RunCommand, tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system can only be mounted by root")
    try:
        code, _, err = run("reproduce", "--at", "lib=2,level=9", "-o", str(place / "bundle"))
        assert code == 6, err
        assert "Read-only file system" in err
        assert "--output" in err
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.integration
def test_a_file_that_only_the_database_names_is_not_installed(
    study: Path, run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filename, content = make_wheel("lib", "2.0.1", modules={"lib.py": "version = 'of somebody else'\n"})
    (tmp_path / filename).write_bytes(content)
    hostile = LockedPackage(
        "lib", "2.0.1", "pip", (tmp_path / filename).as_uri(), hashlib.sha256(content).hexdigest()
    )
    db = os.environ["BISECT_ENV_DB"]
    with Store.open(db) as store:
        known = store.study(None)
        (state,) = (one for one in store.combinations(known.id) if one.lock_hash is not None)
        before = store.lock(state.lock_hash)
        lock = make_lock(before.python, before.platform, [hostile])
        store.save_locks([lock])
    with sqlite3.connect(db) as writer:
        writer.execute("UPDATE combinations SET lock_hash = ?", (lock.content_hash,))
    code, _, err = run("reproduce", "--at", "lib=2,level=9", "-o", str(tmp_path / "bundle"))
    assert code == 2, err
    assert filename in err
    assert "no command of yours" in err
    for path in ("first", "second"):
        said = tmp_path / path
        check = f"import lib; open({str(said)!r}, 'w').write(lib.version)"
        run("shell", str(study), "--at", "lib=2,level=9", "--", "python", "-c", check)
        assert said.read_text() == "2.0.1"


@pytest.mark.integration
def test_files_of_an_index_that_the_matrix_names_are_installed(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the database has them: the lock was solved here."""
    places = {"DB": "results.sqlite", "CACHE": "cache"}
    for name, place in places.items():
        monkeypatch.setenv(f"BISECT_ENV_{name}", str(tmp_path / place))
    page = tmp_path / "simple" / "lib" / "index.html"
    page.parent.mkdir(parents=True)
    links = []
    for version in ("1.0", "2.0", "3.0"):
        filename, content = make_wheel("lib", version)
        (tmp_path / filename).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        uploaded = 'data-upload-time="2020-01-01T00:00:00Z"'
        links.append(f'<a href="../../{filename}#sha256={digest}" {uploaded}>{filename}</a>')
    page.write_text("".join(links))
    studies = Studies(tmp_path)
    path = studies.matrix(
        "import lib; assert int(lib.version[0]) < 3",
        axes="lib: {package: lib, versions: ['1.0', '2.0', '3.0']}",
        rest=f"index: {(tmp_path / 'simple').as_uri()}",
    )
    path.write_text(path.read_text().replace(" {level}", ""))
    studies.run(path)
    (tmp_path / "simple").rename(tmp_path / "gone")
    assert run("reproduce", "-o", str(tmp_path / "bundle"))[0] == 0
    # Another user, or another host, has not solved it.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    code, _, err = run("reproduce", "-o", str(tmp_path / "other"))
    assert code == 2, err


@pytest.mark.integration
def test_a_bundle_has_the_circumstances_of_an_amplified_study(
    study: Path, run: RunCommand, tmp_path: Path
) -> None:
    around = Perturbation("much at once", copies=3, load=4, env={"MALLOC_PERTURB_": "165"}, seeds=(77,))
    with Store.open(os.environ["BISECT_ENV_DB"]) as store:
        payload = {"perturbation": PERTURBATION.dump_python(around, mode="json", exclude_defaults=True)}
        store.record_decision(store.study(None).id, AMPLIFIED, payload)
    assert run("reproduce", "--at", "lib=2,level=9", "-o", str(tmp_path / "bundle"))[0] == 0
    script = (tmp_path / "bundle" / "run.sh").read_text()
    assert "export MALLOC_PERTURB_=165\n" in script
    assert "# Trials ran 3 copies at once" in script
    readme = (tmp_path / "bundle" / "README.md").read_text()
    assert "ran under special circumstances (much at once): do so here, too: start 3 times as many" in readme
    assert "keep 4 CPUs busy" in readme


@pytest.mark.parametrize(
    ("trial", "around", "seeds"),
    [
        ("", NONE, ["1", "2", "3", "4", "5"]),
        ("", Perturbation("seeds", seeds=(77, 88)), ["77", "2", "88", "4", "77"]),
        ("env: {PYTHONHASHSEED: 7}", Perturbation("seeds", seeds=(77,)), ["7"] * 5),
    ],
)
def test_runs_of_a_bundle_have_the_hash_seeds_of_trials(
    tmp_path: Path, trial: str, around: Perturbation, seeds: list[str]
) -> None:
    script = "import os; print(os.environ['PYTHONHASHSEED'])"
    matrix = load_matrix(Studies(tmp_path).matrix(script, trial=trial))
    lock = make_lock("3.11", "linux-64", [wheel("lib", "1")])
    cell = Combination.of({"python": "3.11", "level": "3"})
    for file in reproduction(matrix, cell, lock, ObservedFailure(), perturbation=around):
        (tmp_path / file.name).write_bytes(file.content)
    done = subprocess.run(["sh", "run.sh", "5"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[:-1] == seeds


@pytest.mark.integration
def test_the_same_bundle_is_the_same_directory(study: Path, run: RunCommand, tmp_path: Path) -> None:
    found = []
    for number in ("1", "2"):
        target = tmp_path / number
        assert run("reproduce", "--at", "lib=2,level=9", "-o", str(target))[0] == 0
        paths = [path for path in sorted(target.rglob("*")) if path.is_file()]
        found.append({str(path.relative_to(target)): path.read_bytes() for path in paths})
    assert found[0] == found[1]
    assert (tmp_path / "1" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert {"README.md", "conda-lock.yml", "script.py", "Dockerfile"} <= found[0].keys()
    code, _, err = run("reproduce", "--at", "lib=2,level=9", "-o", str(tmp_path / "1"))
    assert code == 2
    assert "exists" in err
    # It comes into a directory that is there: a mistyped path is not made.
    code, _, err = run("reproduce", "--at", "lib=2,level=9", "-o", str(tmp_path / "no" / "folder"))
    assert code == 6
    assert "folder cannot be written: No such file or directory" in err
    assert not (tmp_path / "no").exists()
    # It is what the study ran, whatever became of the script since.
    study.with_name("script.py").write_text("pass")
    assert run("reproduce", "--at", "lib=2,level=9", "-o", str(tmp_path / "other"))[0] == 0
    assert "os.abort" in (tmp_path / "other" / "script.py").read_text()


def test_trials_of_an_equal_environment_are_told_in_the_bundle(tmp_path: Path) -> None:
    """Days of the index with one lock share trials, which are recorded for the first of these days."""
    days = [f"2026-01-0{day}" for day in range(1, 5)]
    axes = [axis("day", *days, kind="date", direction="fixed")]
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        study = StudyBuilder(store, axes)
        study.fill(lock_of=lambda cell: "old" if cell["day"] < days[2] else "new")
        study.trials({"day": days[0]}, Outcome.CRASH, 5, "old", detail="SIGSEGV", stack="where it died")
        study.trials({"day": days[2]}, Outcome.PASS, 7, "new")
        found = study.finished(verdict(axes, {"day": days[1]}, {"day": days[2]}))
        seen = observed(store, found, stored_combination(store, found, "first-bad"))
    assert (seen.bad, seen.trials, seen.detail, seen.stack) == (5, 5, "SIGSEGV", "where it died")
    assert seen.contrast is not None
    assert (seen.contrast.bad, seen.contrast.trials) == (0, 7)


def test_a_bundle_names_no_home_of_its_author(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/lustre/ann")
    axes = [axis("lib", "1", "2")]
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        study = StudyBuilder(store, axes)
        study.passes({"lib": "1"}, 5)
        said = {"detail": "no /lustre/ann/data", "stack": 'File "/home/bob/x.py", line 1'}
        study.trials({"lib": "2"}, Outcome.EXIT_FAIL, 5, **said)
        found = study.finished(verdict(axes, {"lib": "2"}, {"lib": "1"}))
        seen = observed(store, found, stored_combination(store, found, "first-bad"))
    assert (seen.detail, seen.stack) == ("no ~/data", 'File "~/x.py", line 1')


@pytest.mark.slow
@pytest.mark.integration
def test_a_shell_has_the_environment(study: Path) -> None:
    words = [sys.executable, "-m", "bisect_env", "shell", str(study), "--at", "lib=2,level=9"]
    say = "import lib, os, sys; print(lib.version, os.environ['BISECT_ENV_LEVEL'], os.listdir('.'))"
    done = subprocess.run(
        [*words, "--", "python", "-c", say], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "2.0.1 9 ['script.py']\n", done.stderr
    env = {**os.environ, "SHELL": "/bin/sh"}
    done = subprocess.run(
        words,
        input="echo $OMP_NUM_THREADS; kill -9 $$\n",
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.returncode) == ("3\n", 137), done.stderr
    # What `pip install` would change is neither this program nor the system.
    tools = f"{sys.prefix}/bin"
    done = subprocess.run(
        [*words, "--", "sh", "-c", "echo $PATH; echo $PIP_REQUIRE_VIRTUALENV"],
        env={**os.environ, "PATH": f"{tools}/:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    path, alone = done.stdout.splitlines()
    assert tools not in [part.rstrip("/") for part in path.split(":")]
    assert alone == "1"
    done = subprocess.run([*words, "--", "no-such-program"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "no-such-program cannot be run" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bundle_of_conda_packages(tmp_path: Path) -> None:
    matrix = load_matrix(Studies(tmp_path).matrix("pass"))
    lock = make_lock("3.11.9", "linux-64", [conda("python", "3.11.9", "h1"), wheel("lib", "1")])
    made = reproduction(matrix, Combination.of({"python": "3.11", "level": "3"}), lock, ObservedFailure())
    files = {file.name: file for file in made}
    assert files["explicit.txt"].content.decode().splitlines()[1:] == [
        "@EXPLICIT",
        f"{lock.packages[1].url}#{'0' * 32}",
    ]
    assert b"lib==1 --hash=sha256:" in files["requirements.txt"].content
    assert b"micromamba create" in files["Dockerfile"].content
    assert b"it was not run yet" in files["README.md"].content
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / "matrix.yaml").write_text(
        (tmp_path / "matrix.yaml").read_text().replace("[script.py]", "[script.py, README.md]")
    )
    taken = load_matrix(tmp_path / "matrix.yaml")
    with pytest.raises(ValueError, match=r"README\.md would be overwritten"):
        reproduction(taken, Combination.of({"python": "3.11", "level": "3"}), lock, ObservedFailure())


def test_a_bundle_of_an_image_needs_no_tool_of_the_image(tmp_path: Path) -> None:
    matrix = load_matrix(Studies(tmp_path).matrix("pass"))
    cell = Combination.of({"python": "3.11", "level": "3"})
    name = f"registry.example/it@sha256:{'0' * 64}"
    image = LockedPackage("it", "0" * 12, IMAGE, name, "0" * 64)

    def made(python: str, *packages: LockedPackage) -> dict[str, list[str]]:
        lock = make_lock(python, "linux-64", [image, *packages])
        files = reproduction(matrix, cell, lock, ObservedFailure())
        return {file.name: file.content.decode().splitlines() for file in files}

    wheels = made("3.11.7", wheel("lib", "1"))["Dockerfile"]
    assert wheels[0] == f"FROM {name}"
    assert "COPY --from=ghcr.io/astral-sh/uv:latest /uv /bin/uv" in wheels
    sync = "uv pip sync --python /env/bin/python --require-hashes requirements.txt"
    assert f"RUN uv venv --python 3.11.7 /env && {sync}" in wheels
    assert 'ENV PATH="/env/bin:$PATH"' in wheels
    assert not any("pip install" in line for line in wheels)
    conda_packages = made("3.11.9", conda("python", "3.11.9", "h1"))["Dockerfile"]
    assert conda_packages[0] == f"FROM {name}"
    assert "COPY --from=mambaorg/micromamba:latest /bin/micromamba /bin/micromamba" in conda_packages
    # Without an axis for Python, trials use what the image has.
    assert not any("uv" in line for line in made("")["Dockerfile"])
