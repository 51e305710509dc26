"""Trials that change installed files: what ran in such an environment since it was last looked at is void."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bisect_env.cluster.pool import PoolExecutor
from bisect_env.cluster.protocol import Completion, PrefixReady, PrefixRequest, TrialCompleted
from bisect_env.engine import events, runner
from bisect_env.environments.cache import verify
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.errors import InfrastructureError, StudyInterruptedError
from bisect_env.storage.entries import StudyStatus
from bisect_env.storage.query import ask
from bisect_env.storage.store import Store
from bisect_env.storage.transfer import merge_databases
from bisect_env.trials.judge import ChangedEnvironment
from bisect_env.trials.records import Evidence, Outcome
from tests.engine.studies import PYTHON, Studies
from tests.environments.index_server import IndexServer, serve

pytestmark = pytest.mark.integration

NOBODY = 65534


@pytest.fixture
def index() -> Iterator[IndexServer]:
    server = IndexServer()
    running = serve(server)
    for version in ("1.0", "2.0", "3.0", "4.0"):
        server.add("app", version, modules={"app.py": "", "app_extra.py": ""})
    yield server
    running.shutdown()
    running.server_close()


def matrix(studies: Studies, index: IndexServer, script: str) -> Path:
    (studies.folder / "script.py").write_text(script)
    path = studies.folder / "matrix.yaml"
    path.write_text(
        f"version: 1\nname: changed\nindex: {index.url}\naxes:\n"
        f"  python: {{package: python, versions: ['{PYTHON}']}}\n"
        "  app: {package: app, versions: ['1.0', '2.0', '3.0', '4.0']}\n"
        "trial: {command: python script.py, files: [script.py], timeout: 20s}\n"
    )
    return path


# The first trial of 2.0 that finds the file as it was changes it; from then on 2.0 behaves differently.
CHANGES = """
import app, importlib.metadata, os, pathlib, sys
version = importlib.metadata.version("app")
file = pathlib.Path(app.__file__)
changed = "changed" in file.read_text()
once = {once!r} + version
if version == "2.0" and not changed and not os.path.exists(once):
    open(once, "w").close()
    file.chmod(0o644)
    with file.open("a") as out:
        out.write("# changed\\n")
{then}
"""


def told(studies: Studies) -> list[str]:
    return [event.text for event in studies.events if isinstance(event, events.Warned)]


def check(studies: Studies, first_bad: str, axis: str = "app") -> None:
    """See that the answer is right, and that of what counts nothing ran in a changed environment."""
    with closing(Store.open(str(studies.db), read_only=True)) as store:
        study = store.study()
        assert study.verdict is not None
        assert study.verdict.first_bad is not None
        assert study.verdict.first_bad[axis] == first_bad
        trials = store.trials(study.id)
        bad = int(first_bad[0])
        for trial in trials:
            if trial.evidence in (Evidence.GOOD, Evidence.BAD):
                expected = Evidence.BAD if int(trial.combination[axis][0]) >= bad else Evidence.GOOD
                assert trial.evidence is expected
        assert any(trial.evidence is Evidence.VOID for trial in trials)
        # What the script did is stored as it was: no worker was lost.
        assert all(trial.outcome is not Outcome.WORKER_LOST for trial in trials)
    with ask(str(studies.db), "SELECT trial_id, evidence FROM v_trials") as (_, rows):
        assert {row[0]: row[1] for row in rows} == {t.trial_id: str(t.evidence) for t in trials}
    # A database that takes them over knows of the change, too.
    other = str(studies.folder / "other.sqlite")
    for _ in range(2):
        merge_databases(other, str(studies.db))
        with closing(Store.open(other, read_only=True)) as store:
            assert {t.trial_id: t.evidence for t in store.trials(study.id)} == {
                t.trial_id: t.evidence for t in trials
            }
    changes = "SELECT lock_hash, host, since, until FROM changed_environments ORDER BY id"
    with ask(other, changes) as (_, here), ask(str(studies.db), changes) as (_, there):
        assert [*here] == [*there]


@pytest.mark.slow
def test_a_change_that_makes_later_trials_fail_is_not_taken_for_a_bad_version(
    studies: Studies, index: IndexServer
) -> None:
    then = "sys.exit(3 if changed else version >= '3.0')"
    studies.run(matrix(studies, index, CHANGES.format(once=str(studies.folder / "once"), then=then)))
    assert any("files of the environment" in text and "app=2.0" in text for text in told(studies))
    check(studies, "3.0")


# The trial in the second environment changes a file of app 1.0, which all have from the installer's cache.
CHANGES_WHAT_ALL_SHARE = """
import app, importlib.metadata, os, pathlib, sys
version = importlib.metadata.version("below")
file = pathlib.Path(app.__file__)
changed = "changed" in file.read_text()
once, began = pathlib.Path({once!r}), pathlib.Path({once!r} + "-first")
if not began.exists():
    began.write_text(version)
elif began.read_text() != version and not once.exists():
    once.write_text(version + " " + str(os.stat(file).st_nlink))
    file.chmod(0o644)
    with file.open("a") as out:
        out.write("# changed\\n")
sys.exit(3 if changed else version >= "3.0")
"""


@pytest.mark.slow
def test_a_change_of_a_file_that_environments_share_counts_in_none_of_them(
    studies: Studies, index: IndexServer
) -> None:
    for version in ("1.0", "2.0", "3.0", "4.0"):
        index.add("below", version, modules={"below.py": ""})
    once = studies.folder / "once"
    path = matrix(studies, index, CHANGES_WHAT_ALL_SHARE.format(once=str(once)))
    axes = "  app: {package: app, versions: ['1.0']}\n  below: {package: below, versions: "
    path.write_text(path.read_text().replace("  app: {package: app, versions: ", axes))
    studies.run(path, slots=1)
    changer, links = once.read_text().split()
    assert int(links) > 1, "the file is not shared here"
    check(studies, "3.0", "below")
    with closing(Store.open(str(studies.db), read_only=True)) as store:
        void = {t.combination["below"] for t in store.trials(store.study().id) if t.evidence is Evidence.VOID}
    assert void - {changer}, "what ran in another environment after the change is void, too"


# 2.0 is bad; the trial that changes it passes already, as do all that follow in that environment.
PASSES_FROM_THEN_ON = (
    "sys.exit(version >= '2.0' and not (version == '2.0' and 'changed' in file.read_text()))"
)


def passes_from_then_on(studies: Studies, index: IndexServer) -> Path:
    then = PASSES_FROM_THEN_ON
    return matrix(studies, index, CHANGES.format(once=str(studies.folder / "once"), then=then))


@pytest.mark.slow
def test_a_change_that_makes_later_trials_pass_is_seen_before_the_verdict(
    studies: Studies, index: IndexServer
) -> None:
    studies.run(passes_from_then_on(studies, index))
    assert any("files of the environment" in text and "app=2.0" in text for text in told(studies))
    check(studies, "2.0")


@pytest.mark.slow
def test_a_change_is_seen_when_the_user_stops_after_the_answer(studies: Studies, index: IndexServer) -> None:
    def answered() -> bool:
        return any(isinstance(event, events.Answered) for event in studies.events)

    path = passes_from_then_on(studies, index)
    with pytest.raises(StudyInterruptedError):
        studies.run(path, sure=True, stopped=answered)
    assert any("files of the environment" in text and "app=2.0" in text for text in told(studies))
    studies.run(path)
    check(studies, "2.0")


class FastClock(PoolExecutor):
    """An executor of a host whose clock is an hour ahead of that of the command."""

    def wait(self, timeout: float | None = None) -> list[Completion]:
        return [_an_hour_later(answer) for answer in super().wait(timeout)]


def _an_hour_later(answer: Completion) -> Completion:
    hour = timedelta(hours=1)
    if not isinstance(answer, TrialCompleted | PrefixReady):
        return answer
    later = [replace(one, since=one.since + hour, until=one.until + hour) for one in answer.changes]
    answer = replace(answer, changes=tuple(later))
    if isinstance(answer, PrefixReady):
        return answer
    return replace(answer, record=replace(answer.record, started_at=answer.record.started_at + hour))


@pytest.mark.slow
def test_trials_are_void_by_the_clock_of_their_host(studies: Studies, index: IndexServer) -> None:
    build = partial(ensure_prefix, cache_dir=studies.folder / "cache")
    studies.run(passes_from_then_on(studies, index), make_executor=lambda: FastClock(build, 2))
    check(studies, "2.0")


class ChangedAgain(PoolExecutor):
    """An executor of a host that reports three changes together with a trial that they cover."""

    def wait(self, timeout: float | None = None) -> list[Completion]:
        answers: list[Completion] = []
        for answer in super().wait(timeout):
            if isinstance(answer, TrialCompleted):
                one = answer.record
                changes = tuple(
                    ChangedEnvironment(
                        one.lock_hash, one.host, one.started_at - timedelta(seconds=n), datetime.now(UTC)
                    )
                    for n in range(3)
                )
                answers.append(replace(answer, changes=changes))
            else:
                answers.append(answer)
        return answers


def test_a_trial_that_ends_with_the_study_is_stored(studies: Studies, index: IndexServer) -> None:
    build = partial(ensure_prefix, cache_dir=studies.folder / "cache")
    path = matrix(studies, index, "")
    with pytest.raises(InfrastructureError, match="were changed 3 times by trials"):
        studies.run(path, make_executor=lambda: ChangedAgain(build, 1))
    with closing(Store.open(str(studies.db), read_only=True)) as store:
        trials = store.trials(store.study().id)
    assert trials
    assert all((trial.outcome, trial.evidence) == (Outcome.PASS, Evidence.VOID) for trial in trials)


@pytest.mark.slow
@pytest.mark.parametrize("quick", [False, True])
def test_a_change_is_seen_after_the_command_was_killed_before_it_looked(
    studies: Studies, index: IndexServer, quick: bool
) -> None:
    path = passes_from_then_on(studies, index)
    words = [sys.executable, "-m", "tests.engine.killed", str(studies.folder), str(path), "look"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    studies.run(path, quick=quick)
    assert any("files of the environment" in text and "app=2.0" in text for text in told(studies))
    check(studies, "2.0")


@pytest.mark.slow
def test_a_change_is_not_lost_when_the_command_is_killed_before_it_is_stored(
    studies: Studies, index: IndexServer
) -> None:
    """The environment is made again by then, and looks as if nothing had happened."""
    path = passes_from_then_on(studies, index)
    words = [sys.executable, "-m", "tests.engine.killed", str(studies.folder), str(path), "note"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with ask(str(studies.db), "SELECT count(*) FROM changed_environments") as (_, rows):
        assert list(rows) == [(0,)]
    studies.run(path)
    assert any("files of the environment" in text and "app=2.0" in text for text in told(studies))
    check(studies, "2.0")


@pytest.mark.slow
def test_passes_of_a_study_that_was_killed_before_it_looked_are_not_reused_unseen(
    studies: Studies, index: IndexServer
) -> None:
    path = passes_from_then_on(studies, index)
    words = [sys.executable, "-m", "tests.engine.killed", str(studies.folder), str(path), "look"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    other = path.with_name("other.yaml")
    other.write_text(path.read_text().replace("name: changed", "name: other"))
    conclusion = studies.run(other)
    assert conclusion.report["reused"]
    assert conclusion.report["verdict"]["first_bad"]["app"] == "2.0"


# 2.0 is bad until the environment is changed: by the first of its trials, which passes already, or by others.
WAYS = """
import importlib.metadata, os, pathlib, sys
def change(extra, way):
    extra.parent.chmod(0o755)
    if way == "add":
        extra.with_name("added.py").touch()
    elif way == "remove":
        extra.unlink()
    else:
        extra.chmod(0o644)
        with extra.open("a") as out:
            out.write("# changed")
def is_changed(extra, way):
    if way == "add":
        return extra.with_name("added.py").exists()
    return not extra.exists() or extra.read_text() != ""
"""
IN_A_TRIAL = (
    WAYS
    + """
import app
extra, way, once = pathlib.Path(app.__file__).with_name("app_extra.py"), {way!r}, pathlib.Path({once!r})
version = importlib.metadata.version("app")
if {by_a_trial} and version == "2.0" and not once.exists():
    once.touch()
    change(extra, way)
sys.exit(version >= "2.0" and not (version == "2.0" and is_changed(extra, way)))
"""
)


def script(studies: Studies, way: str, *, by_a_trial: bool) -> str:
    return IN_A_TRIAL.format(way=way, once=str(studies.folder / "once"), by_a_trial=by_a_trial)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["add", "remove", "append"])
def test_what_a_trial_adds_removes_or_changes_is_never_counted(
    studies: Studies, index: IndexServer, way: str
) -> None:
    studies.run(matrix(studies, index, script(studies, way, by_a_trial=True)))
    check(studies, "2.0")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("way", ["add", "remove", "append"])
def test_a_trial_that_becomes_another_user_changes_nothing(index: IndexServer, way: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        studies = Studies(Path(folder))
        as_nobody = f"""
def change_as_nobody(extra, way):
    child = os.fork()
    if not child:
        os.setgroups([])
        os.setgid({NOBODY})
        os.setuid({NOBODY})
        try:
            change(extra, way)
        except PermissionError:
            os._exit(13)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 13
"""
        text = script(studies, way, by_a_trial=True).replace(
            "    change(extra, way)\nsys", "    change_as_nobody(extra, way)\nsys"
        )
        studies.run(matrix(studies, index, text.replace("import app\n", f"{as_nobody}import app\n", 1)))
        assert (studies.folder / "once").exists()
        with closing(Store.open(str(studies.db), read_only=True)) as store:
            study = store.study()
            assert study.verdict is not None
            assert study.verdict.first_bad is not None
            assert study.verdict.first_bad["app"] == "2.0"
            assert all(trial.evidence is not Evidence.VOID for trial in store.trials(study.id))
        assert not [one for one in verify(studies.folder / "cache") if one.changed]


def as_nobody(beside: Path) -> list[str]:
    """Return the beginning of a command that runs as another user, who can start the Python of these tests.

    Args:
        beside: An empty folder.
    """
    words = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
    base = Path(sys.base_prefix).resolve()
    closed = [folder for folder in (base, *base.parents) if not folder.stat().st_mode & 0o001]
    if closed:
        # In a mount namespace of its own the closed folder is replaced by one that holds this Python alone.
        mounts = 'mount --bind "$1" "$3" && mount -t tmpfs -o mode=755 tmpfs "$2" && mkdir -p "$1"'
        mounts += ' && mount --bind "$3" "$1" && shift 3 && exec "$@"'
        places = (base, closed[-1], beside)
        words = ["unshare", "--mount", "sh", "-c", mounts, "sh", *map(str, places), *words]
    if subprocess.run([*words, sys.executable, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip("this host lets no other user run these tests' Python")
    return words


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_whole_study_of_another_user(index: IndexServer) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        studies = Studies(home)
        then = f"assert os.getuid() == {NOBODY}\nsys.exit(3 if changed else version >= '3.0')"
        path = matrix(studies, index, CHANGES.format(once=str(home / "once"), then=then))
        for place in (home, *home.iterdir()):
            os.chown(place, NOBODY, NOBODY)
        (home / "python").mkdir()
        begin = as_nobody(home / "python")
        env = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
        env |= {"HOME": folder, "TMPDIR": folder, "BISECT_ENV_CACHE": str(home / "cache")}
        env |= {"BISECT_ENV_DB": str(studies.db), "BISECT_ENV_LOCKFILES": str(home / "locks")}
        done = subprocess.run(
            [*begin, sys.executable, "-m", "bisect_env", "run", str(path)],
            env=env,
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "the first bad version" in done.stdout
        assert "app 3.0 is " in done.stdout
        assert "files of the environment" in done.stderr
        made = [*(home / "cache" / "prefixes").iterdir(), studies.db]
        assert {place.stat().st_uid for place in made} == {NOBODY}
        check(studies, "3.0")


class ChangedBetween(PoolExecutor):
    """An executor of a host on which somebody changes an environment between two trials."""

    def __init__(self, cache: Path, way: str) -> None:
        super().__init__(partial(ensure_prefix, cache_dir=cache), 1)
        self.cache = cache
        self.way = way

    def wait(self, timeout: float | None = None) -> list[Completion]:
        answers = super().wait(timeout)
        for answer in answers:
            if isinstance(answer, TrialCompleted) and answer.record.combination["app"] == "2.0" and self.way:
                prefix = self.cache / "prefixes" / answer.record.lock_hash
                (extra,) = prefix.glob("lib/python*/site-packages/app_extra.py")
                code = f"{WAYS}\nchange(pathlib.Path({str(extra)!r}), {self.way!r})"
                subprocess.run([sys.executable, "-c", code], check=True)
                self.way = ""
        return answers


@pytest.mark.slow
@pytest.mark.parametrize("way", ["add", "remove", "append"])
def test_what_others_change_between_trials_is_never_counted(
    studies: Studies, index: IndexServer, way: str
) -> None:
    executor = partial(ChangedBetween, studies.folder / "cache", way)
    studies.run(matrix(studies, index, script(studies, way, by_a_trial=False)), make_executor=executor)
    check(studies, "2.0")


class ToldByAnother(PoolExecutor):
    """An executor of a host on which another command finds a change of environments first, and stores it."""

    def __init__(self, studies: Studies) -> None:
        super().__init__(partial(ensure_prefix, cache_dir=studies.folder / "cache"), 2)
        self.db = str(studies.db)
        self.found: dict[str, ChangedEnvironment] = {}

    def prepare(self, request: PrefixRequest) -> None:
        if request.look and not self.found:
            note_all_changed(self.db, self.found)
        super().prepare(request)

    def wait(self, timeout: float | None = None) -> list[Completion]:
        return [
            replace(answer, changes=(*answer.changes, self.found[answer.lock_hash]))
            if isinstance(answer, PrefixReady) and answer.lock_hash in self.found
            else answer
            for answer in super().wait(timeout)
        ]


def note_all_changed(db: str, found: dict[str, ChangedEnvironment]) -> None:
    """Store that every environment of the study was changed before its first trial; add this to `found`."""
    with closing(Store.open(db)) as store:
        study = store.study()
        trials = store.trials(study.id)
        since = min(trial.started_at for trial in trials) - timedelta(seconds=1)
        for trial in trials:
            if trial.lock_hash not in found:
                change = ChangedEnvironment(trial.lock_hash, trial.host, since, datetime.now(UTC))
                found[trial.lock_hash] = change
                assert store.study_trials(study.id).note_change(change)


def check_verdict_counts(studies: Studies) -> None:
    """See that a confirmed verdict rests on trials that count."""
    with closing(Store.open(str(studies.db), read_only=True)) as store:
        study = store.study()
        evidence = [trial.evidence for trial in store.trials(study.id)]
        assert Evidence.VOID in evidence
        assert study.verdict is not None
        if study.verdict.status == "confirmed":
            assert Evidence.BAD in evidence
            assert Evidence.GOOD in evidence


def test_a_change_that_another_command_stored_first_voids_the_answer(studies: Studies) -> None:
    report = studies.run(
        studies.matrix("import sys\nsys.exit(int(sys.argv[1]) >= 6)\n"),
        make_executor=lambda: ToldByAnother(studies),
    ).report
    assert (report["verdict"]["status"] != "none", report["verdict"]["first_bad"]["level"]) == (True, "6")
    check_verdict_counts(studies)


def test_a_verdict_is_not_stored_over_a_change_that_came_with_it(
    studies: Studies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command stores the change while this one writes its verdict."""
    found: dict[str, ChangedEnvironment] = {}
    update = Store.update_study

    def update_study(store: Store, study_id: str, *args: Any, **kwargs: Any) -> None:
        update(store, study_id, *args, **kwargs)
        if not found and StudyStatus.FINISHED in args:
            note_all_changed(str(studies.db), found)

    monkeypatch.setattr(Store, "update_study", update_study)
    studies.run(studies.matrix("import sys\nsys.exit(int(sys.argv[1]) >= 6)\n"))
    assert found
    check_verdict_counts(studies)


class LooksForEver(PoolExecutor):
    """An executor of a host on which no look at an environment ever ends; the user stops the command then."""

    def __init__(self, studies: Studies) -> None:
        super().__init__(partial(ensure_prefix, cache_dir=studies.folder / "cache"), 2)
        self.looks = 0
        self.waits = 0

    def prepare(self, request: PrefixRequest) -> None:
        self.looks += request.look
        if not request.look:
            super().prepare(request)

    def wait(self, timeout: float | None = None) -> list[Completion]:
        if self.looks:
            self.waits += 1
            assert self.waits < 1000, "the command waits though the user has stopped it"
            time.sleep(0.01)
        return super().wait(timeout)


def test_a_command_that_is_stopped_while_it_looks_ends_without_a_verdict(
    studies: Studies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LOOK_GRACE", 0.1)
    path = studies.matrix("import sys\nsys.exit(int(sys.argv[1]) >= 6)\n")
    executor = LooksForEver(studies)
    with pytest.raises(StudyInterruptedError):
        studies.run(path, make_executor=lambda: executor, stopped=lambda: executor.looks > 0)
    with closing(Store.open(str(studies.db), read_only=True)) as store:
        assert store.study().status is StudyStatus.INTERRUPTED
    assert studies.run(path).report["verdict"]["first_bad"]["level"] == "6"
