"""What is made before a study asks for it is what the study asks for."""

from __future__ import annotations

import importlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from bisect_env.cli.run_command import LATER
from bisect_env.cluster.choose import Starting
from bisect_env.cluster.pool import PoolExecutor
from bisect_env.cluster.protocol import Completion, Executor, TrialLost
from bisect_env.engine.ahead import Ahead, Begun
from bisect_env.engine.locking import Locking, environment_request, unfit
from bisect_env.engine.study import run_study
from bisect_env.environments.lock import Lock, LockResult
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.environments.provider import Environments
from bisect_env.environments.request import EnvironmentRequest
from bisect_env.errors import InfrastructureError
from bisect_env.matrix.expand import expand
from bisect_env.matrix.grid import Index
from bisect_env.matrix.load import load_matrix
from bisect_env.storage.entries import CombinationStatus
from bisect_env.storage.glance import Glance
from bisect_env.storage.store import Store
from tests.environments.conftest import HERE
from tests.environments.index_server import IndexServer, serve
from tests.report.samples import orjson_study

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("module", LATER)
def test_what_a_command_imports_ahead_is_there(module: str) -> None:
    importlib.import_module(f"bisect_env.{module}")


@pytest.fixture
def index() -> Iterator[IndexServer]:
    server = IndexServer()
    running = serve(server)
    for version in ("1.0", "2.0", "3.0"):
        server.add("app", version, requires=["below"])
    server.add("below", "1.5")
    yield server
    running.shutdown()
    running.server_close()


def refused() -> Executor:
    raise AssertionError("no trial was to be started")


def question(folder: Path, index: IndexServer, *, trial: str = "", script: str = "", rest: str = "") -> Path:
    """A matrix whose script fails from 2.0 on, and says in `runs` that it ran."""
    (folder / "repro.py").write_text(
        "import app, importlib.metadata as m, sys\n"
        f"open({str(folder / 'runs')!r}, 'a').write(m.version('app') + '\\n')\n{script}\n"
        "sys.exit(m.version('app') != '1.0')\n"
    )
    path = folder / "matrix.yaml"
    path.write_text(
        f"version: 1\nname: ahead\nindex: {index.url}\naxes:\n"
        f"  python: {{package: python, versions: ['{HERE}']}}\n"
        "  app: {package: app, versions: '>=0', step: every}\n"
        f"trial: {{command: python repro.py, files: [repro.py]{trial}}}\n{rest}"
    )
    return path


@dataclass
class Studied:
    """A study that may have been begun ahead.

    Attributes:
        begun: Ids of the trials that were started before the database was open.
        recorded: Ids of the trials that were recorded.
        runs: How often the script ran.
        first_bad: The answer.
    """

    begun: set[str]
    recorded: list[str]
    runs: int
    first_bad: str


def study(
    folder: Path,
    path: Path,
    *,
    fresh: bool = False,
    quick: bool = True,
    after: int = 0,
    patience: float = 30.0,
    workers: int = 2,
    knows: bool = False,
) -> Studied:
    """Ask a question whose study is opened once so many trials have ended, or so many seconds have passed.

    `knows` says whether what begins ahead knows of `quick`, too.
    """
    matrix = load_matrix(path)
    cache, db = folder / "cache", folder / "results.db"
    provider = Environments(cache, index=matrix.file.index)
    place = Starting(lambda: PoolExecutor(partial(ensure_prefix, cache_dir=cache), workers))
    glance = Glance(str(db))
    ahead = Ahead(
        matrix,
        provider,
        datetime.now(UTC).replace(microsecond=0),
        executor=place.get,
        may_try=lambda _lock: fresh or not glance.may_know_study(matrix.name, matrix.digest),
        quick=quick and knows,
    )
    ahead.begin()
    grid = expand(matrix, provider.catalogue, datetime.now(UTC))
    until = time.monotonic() + patience
    while after and time.monotonic() < until:
        ended = (folder / "runs").read_text().count("\n") if (folder / "runs").exists() else 0
        after = 0 if ended >= after else after
        time.sleep(0.02)
    begun = set(ahead.take(grid).trials.values())
    with closing(place), Store.open(str(db)) as store:
        conclusion = run_study(
            matrix,
            store=store,
            provider=provider,
            make_executor=place.get,
            lockfiles=None,
            notify=lambda _event: None,
            quick=quick,
            fresh=fresh,
            ahead=ahead,
        )
        recorded = [one.trial_id for one in store.trials(conclusion.report["study"]["id"])]
    runs = (folder / "runs").read_text().count("\n")
    return Studied(begun, recorded, runs, conclusion.report["verdict"]["first_bad"]["app"])


def test_trials_of_both_ends_and_what_comes_after_begin_before_the_database_is_open(
    index: IndexServer, tmp_path: Path
) -> None:
    """They are recorded as all others, and a study that goes on begins none."""
    path = question(tmp_path, index)
    first = study(tmp_path, path)
    assert len(first.begun) == 3, "both ends, and the only version between them"
    assert first.begun <= {*first.recorded}
    assert first.first_bad == "2.0"
    assert first.runs == len(first.recorded), "every trial that ran was recorded"
    again = study(tmp_path, path)
    assert (again.begun, again.recorded, again.runs) == (set(), first.recorded, first.runs)
    anew = study(tmp_path, path, fresh=True)
    assert len(anew.begun) == 3
    assert anew.begun <= {*anew.recorded}


def test_what_trials_show_is_followed_before_the_database_is_open(index: IndexServer, tmp_path: Path) -> None:
    for version in range(4, 33):
        index.add("app", f"{version}.0")
    found = study(tmp_path, question(tmp_path, index), after=6)
    # Two workers ask for two at a time: both ends, two places between, and what is asked because of these.
    assert len(found.begun) >= 6
    assert found.begun <= {*found.recorded}, "all are the study's"
    assert found.first_bad == "2.0"
    assert len(found.recorded) <= 14


def test_without_checks_what_trials_show_is_followed_as_well(index: IndexServer, tmp_path: Path) -> None:
    for version in range(4, 33):
        index.add("app", f"{version}.0")
    found = study(tmp_path, question(tmp_path, index), after=5, knows=True)
    assert len(found.begun) >= 5
    assert found.begun <= {*found.recorded}
    assert found.first_bad == "2.0"
    assert len(found.recorded) <= 12


def test_what_no_solver_makes_is_known_to_the_study_that_takes_over(
    index: IndexServer, tmp_path: Path
) -> None:
    """What a solver refuses only when it is asked, as both ends here, is not asked for for ever."""
    index.add("app", "0.5", requires=["no-such-package"])
    for version in range(4, 33):
        index.add("app", f"{version}.0")
    index.add("app", "33.0", requires=["no-such-package"])
    found = study(tmp_path, question(tmp_path, index), quick=False, after=4)
    assert len(found.begun) >= 4, "what lies inside of both ends was begun"
    assert found.begun <= {*found.recorded}
    assert found.first_bad == "2.0"


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("_turn", range(8))
def test_whatever_was_begun_and_met_before_the_answer_is_the_true_one(
    index: IndexServer, tmp_path: Path, _turn: int
) -> None:
    """Some releases have no environment, by what they need or by a broken wheel; some trials take long."""
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    del index.packages["app"]
    count = chance.randint(2, 24)
    first_bad = chance.randint(1, count - 1)
    # One good and one bad release are whole.
    whole = {chance.randrange(first_bad), chance.randrange(first_bad, count)}
    share = chance.choice([0.0, 0.2, 0.6])
    for number in range(count):
        fate = chance.choice(["unsolvable", "unsolvable", "broken"]) if chance.random() < share else ""
        if number in whole or not fate:
            whole.add(number)
            index.add("app", f"{number}.0")
        elif fate == "broken":
            index.add("app", f"{number}.0", sha256="0" * 64)
        else:
            index.add("app", f"{number}.0", requires=["no-such-package"])
    path = question(
        tmp_path,
        index,
        script=f"import random, time; time.sleep(random.choice([0, 0, 0.3]))\n"
        f"sys.exit(int(m.version('app').split('.')[0]) >= {first_bad})",
    )
    found = study(
        tmp_path,
        path,
        quick=chance.random() < 0.3,
        after=chance.randint(0, 9),
        patience=chance.uniform(0.0, 2.0),
        workers=chance.choice([1, 2, 6]),
        knows=True,
    )
    assert found.first_bad == f"{min(one for one in whole if one >= first_bad)}.0"


def test_a_failure_at_both_ends_is_left_to_the_study(index: IndexServer, tmp_path: Path) -> None:
    for version in range(4, 33):
        index.add("app", f"{version}.0")
    path = question(tmp_path, index, script="raise SystemExit(1)")
    matrix = load_matrix(path)
    provider = Environments(tmp_path / "cache", index=matrix.file.index)
    with closing(PoolExecutor(partial(ensure_prefix, cache_dir=tmp_path / "cache"), 2)) as executor:
        ahead = Ahead(
            matrix, provider, datetime.now(UTC), executor=lambda: executor, may_try=lambda _lock: True
        )
        ahead.begin().join(60)
        begun = ahead.take(expand(matrix, provider.catalogue, datetime.now(UTC)))
        assert len(begun.trials) == 4, "both ends, and what was asked for while nobody knew"
        ahead.drop()


def test_where_the_target_is_open_the_bad_end_alone_is_tried(index: IndexServer, tmp_path: Path) -> None:
    """The locks are those that the study would make."""
    matrix = load_matrix(
        question(
            tmp_path,
            index,
            trial=", bad: {signature: from-bad-end}",
            rest=f"bad: {{python: '{HERE}', app: '3.0'}}\n",
        )
    )
    provider = Environments(tmp_path / "cache", index=matrix.file.index)
    with closing(PoolExecutor(partial(ensure_prefix, cache_dir=tmp_path / "cache"), 2)) as executor:
        ahead = Ahead(
            matrix, provider, datetime.now(UTC), executor=lambda: executor, may_try=lambda _lock: True
        )
        ahead.begin()
        grid = expand(matrix, provider.catalogue, datetime.now(UTC))
        begun = ahead.take(grid)
        assert set(begun.trials) == {(0, 2)}
        locks = Locking(matrix, grid, provider, ahead.as_of)
        assert {place: locks.lock_now(place) for place in begun.locks} == begun.locks
        locks.close()


def test_trials_that_were_begun_in_vain_are_ended(index: IndexServer, tmp_path: Path) -> None:
    matrix = load_matrix(question(tmp_path, index, script="import time; time.sleep(60)"))
    provider = Environments(tmp_path / "cache", index=matrix.file.index)
    with closing(PoolExecutor(partial(ensure_prefix, cache_dir=tmp_path / "cache"), 2)) as executor:
        ahead = Ahead(
            matrix, provider, datetime.now(UTC), executor=lambda: executor, may_try=lambda _lock: True
        )
        ahead.begin()
        begun = ahead.take(expand(matrix, provider.catalogue, datetime.now(UTC))).trials
        assert set(begun) == {(0, 0), (0, 1), (0, 2)}
        ahead.drop()
        ended: list[Completion] = []
        while len(ended) < 3:
            ended += executor.wait(20)
    assert {type(one) for one in ended} == {TrialLost}


def test_what_begins_before_the_database_is_open_does_not_load_what_opens_it() -> None:
    code = (
        "import sys, bisect_env.cli.run_command, bisect_env.engine.ahead, bisect_env.cluster.choose, "
        "bisect_env.cluster.pool\n"
        "print({'numpy', 'sqlalchemy', 'sqlmodel', 'alembic', 'scipy', 'distributed'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_another_grid_takes_nothing_over(index: IndexServer, tmp_path: Path) -> None:
    matrix = load_matrix(question(tmp_path, index))
    provider = Environments(tmp_path / "cache", index=matrix.file.index)
    ahead = Ahead(matrix, provider, datetime.now(UTC), executor=refused)
    ahead.begin()
    grid = expand(matrix, provider.catalogue, datetime.now(UTC))
    longer = replace(grid.axes[1], values=(*grid.axes[1].values, "4.0"))
    assert ahead.take(replace(grid, axes=(grid.axes[0], longer))) == Begun()


def test_a_glance_at_a_database(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    assert not Glance(str(path)).may_know_study("a", "b"), "no file"
    with Store.open(str(path)) as store:
        study = orjson_study(store).study
        digest = study.definition.digest
        lock_hash = store.trials(study.id)[0].lock_hash
        for glance in (Glance(str(path)), Glance(None, {"BISECT_ENV_DB": str(path)})):
            assert glance.may_know_study(study.name, digest)
            assert glance.may_know_trials(lock_hash)
            assert not glance.may_know_study(study.name, "another")
            assert not glance.may_know_study("another", digest)
            assert not glance.may_know_trials("0" * 64)
    path.write_bytes(b"something else")
    assert Glance(str(path)).may_know_study("a", "b"), "what cannot be read may know anything"
    assert Glance("postgresql://server/results").may_know_trials("0" * 64)


def test_the_environments_of_both_ends_are_there(index: IndexServer, tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(
        f"version: 1\nname: ahead\nindex: {index.url}\naxes:\n"
        f"  python: {{package: python, versions: ['{HERE}']}}\n"
        "  app: {package: app, versions: '>=0', step: every}\ntrial: {command: python -c 'import app'}\n"
    )
    matrix = load_matrix(path)
    provider = Environments(tmp_path / "cache", index=matrix.file.index)
    ahead = Ahead(matrix, provider, datetime.now(UTC), executor=refused)
    running = ahead.begin()
    asked_at = time.monotonic()
    ahead.wait_for_solver(30.0)
    assert time.monotonic() - asked_at < 20.0, "it runs long before that"
    running.join()
    ahead.wait_for_solver(30.0)
    assert time.monotonic() - asked_at < 20.0, "nobody waits for a solver that has answered"
    grid = expand(matrix, provider.catalogue, datetime.now(UTC))
    spent = []
    for place in ((0, 0), (0, 1), (0, 2)):
        lock = provider.lock(environment_request(matrix, grid.combination(place), datetime.now(UTC)))
        assert isinstance(lock, Lock)
        prefix = provider.ensure_prefix(lock)
        prefix.release()
        spent.append(prefix.build_seconds)
    assert spent[0] == spent[2] == 0 < spent[1]


def test_what_the_index_has_for_no_such_python_is_known_before_a_solver_is_asked(
    index: IndexServer, tmp_path: Path
) -> None:
    index.add("app", "4.0", requires_python=">=3.99")
    index.add("app", "0.5", requires_python="<3.0")
    path = tmp_path / "matrix.yaml"
    path.write_text(
        f"version: 1\nname: ahead\nindex: {index.url}\naxes:\n"
        f"  python: {{package: python, versions: ['{HERE}', '3.99']}}\n"
        "  app: {package: app, versions: '>=0', step: every}\n"
        "  level: {values: [1, 2]}\ntrial: {command: python -c 'import app'}\n"
    )
    matrix = load_matrix(path)
    provider = Environments(tmp_path / "cache", index=matrix.file.index)
    grid = expand(matrix, provider.catalogue, datetime.now(UTC))
    assert grid.axes[1].values == ("1.0", "2.0", "3.0", "4.0"), "0.5 fits neither"
    found = unfit(matrix, grid)
    assert set(found) == {(0, 3, 0), (0, 3, 1)}
    assert f"app 4.0: asks for Python >=3.99, not for {HERE}" in found[0, 3, 0].message
    locking = Locking(matrix, grid, provider, datetime.now(UTC))
    assert set(grid.indices()) - set(locking.prepared.groups) == set(found)
    assert locking.prepared.state((0, 3, 1)).status == CombinationStatus.UNSOLVABLE
    assert locking.under_way == 0
    locking.close()


def test_what_is_wanted_does_not_wait_for_what_may_be(index: IndexServer, tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(
        f"version: 1\nname: ahead\nindex: {index.url}\nsolver: {{dependencies: newest}}\naxes:\n"
        f"  python: {{package: python, versions: ['{HERE}']}}\n"
        "  app: {package: app, versions: '>=0', step: every}\ntrial: {command: python -c 'import app'}\n"
    )
    matrix = load_matrix(path)
    go_on = threading.Event()
    asked: list[str] = []

    class Slow(Environments):
        def lock(self, request: EnvironmentRequest, prefer: Lock | None = None) -> LockResult:
            asked.append(request.requirements[0])
            assert go_on.wait(30)
            return super().lock(request, prefer)

    provider = Slow(tmp_path / "cache", index=matrix.file.index)
    grid = expand(matrix, provider.catalogue, datetime.now(UTC))
    locking = Locking(matrix, grid, provider, datetime.now(UTC), workers=1)
    locking.want_ahead([(0, 0), (0, 1)])
    locking.want_ahead([(0, 0), (0, 2), (0, 1)])
    locking.want([(0, 1)])
    patience = time.monotonic() + 30
    while len(asked) < 2 and time.monotonic() < patience:
        time.sleep(0.01)
    assert [one.rpartition("==")[2] for one in asked] == ["1.0", "2.0"], "one of each kind"
    go_on.set()
    found: list[Index] = []
    while len(found) < 3 and time.monotonic() < patience:
        locking.wait(1.0)
        found += locking.take()
    assert set(found) == set(locking.prepared.locks) == {(0, 0), (0, 1), (0, 2)}
    locking.close()


def test_an_error_while_locking_ahead_counts_only_once_that_lock_is_needed(
    index: IndexServer, tmp_path: Path
) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(
        f"version: 1\nname: ahead\nindex: {index.url}\nsolver: {{dependencies: newest}}\naxes:\n"
        f"  python: {{package: python, versions: ['{HERE}']}}\n"
        "  app: {package: app, versions: '>=0', step: every}\ntrial: {command: python -c 'import app'}\n"
    )
    matrix = load_matrix(path)

    class Broken(Environments):
        def lock(self, request: EnvironmentRequest, prefer: Lock | None = None) -> LockResult:
            if request.requirements[0].endswith("==2.0"):
                raise InfrastructureError("the solver broke", remedy="none")
            return super().lock(request, prefer)

    provider = Broken(tmp_path / "cache", index=matrix.file.index)
    grid = expand(matrix, provider.catalogue, datetime.now(UTC))
    with closing(Locking(matrix, grid, provider, datetime.now(UTC), workers=1)) as locking:
        broken = next(one for one in grid.indices() if grid.combination(one).as_dict()["app"] == "2.0")
        other = next(one for one in grid.indices() if one != broken)
        locking.want_ahead([broken])
        while locking.under_way:
            locking.wait(1.0)
            assert locking.take() == []
        assert isinstance(locking.lock_now(other), Lock)
        with pytest.raises(InfrastructureError, match="the solver broke"):
            locking.lock_now(broken)
