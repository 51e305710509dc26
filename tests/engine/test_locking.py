"""Combinations are locked in the order in which they are wanted, and what cannot be locked is known early."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bisect_env.engine.locking import Locking, unfit
from bisect_env.environments.lock import Lock, LockResult
from bisect_env.environments.provider import Environments
from bisect_env.environments.request import EnvironmentRequest
from bisect_env.errors import InfrastructureError
from bisect_env.matrix.expand import expand
from bisect_env.matrix.grid import Index
from bisect_env.matrix.load import load_matrix
from bisect_env.storage.entries import CombinationStatus
from tests.environments.conftest import HERE
from tests.environments.index_server import IndexServer, serve

pytestmark = pytest.mark.integration


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
    locking = Locking(matrix, grid, provider)
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
    locking = Locking(matrix, grid, provider, workers=1)
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
        locking.want_ahead([(0, 0), (0, 2), (0, 1)])
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
    with closing(Locking(matrix, grid, provider, workers=1)) as locking:
        broken = next(one for one in grid.indices() if grid.combination(one).as_dict()["app"] == "2.0")
        other = next(one for one in grid.indices() if one != broken)
        locking.want_ahead([broken])
        while locking.under_way:
            locking.wait(1.0)
            assert locking.take() == []
        assert isinstance(locking.lock_now(other), Lock)
        with pytest.raises(InfrastructureError, match="the solver broke"):
            locking.lock_now(broken)


def test_equal_requests_are_solved_once_and_an_anchor_before_all_others(
    index: IndexServer, tmp_path: Path
) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(
        f"version: 1\nname: once\nindex: {index.url}\naxes:\n"
        f"  python: {{package: python, versions: ['{HERE}']}}\n"
        "  app: {package: app, versions: '>=0', step: every}\n"
        "  level: {values: [1, 2, 3]}\ntrial: {command: python -c 'import app'}\n"
    )
    matrix = load_matrix(path)
    asked: list[tuple[str, bool]] = []

    class Counting(Environments):
        def lock(self, request: EnvironmentRequest, prefer: Lock | None = None) -> LockResult:
            asked.append((request.requirements[0], prefer is not None))
            return super().lock(request, prefer)

    provider = Counting(tmp_path / "cache", index=matrix.file.index)
    grid = expand(matrix, provider.catalogue, datetime.now(UTC))
    with closing(Locking(matrix, grid, provider)) as locking:
        # The last version has the first as its anchor, which is stored, too.
        locking.want([(0, 2, 1)])
        while locking.under_way:
            locking.wait(1.0)
            locking.take()
        assert asked == [("app==1.0", False), ("app==3.0", True)]
        assert {one[1] for one in locking.prepared.locks} == {0, 2}
        assert len(locking.lock_all().locks) == 9
    assert asked == [("app==1.0", False), ("app==3.0", True), ("app==2.0", True)]


MATRIX = (
    "version: 1\nname: anchors\nindex: {url}\naxes:\n"
    "  python: {{package: python, versions: ['{here}']}}\n"
    "  app: {{package: app, versions: '>=0', step: every}}\ntrial: {{command: python -c 'import app'}}\n"
)


def test_an_anchor_that_cannot_be_locked_fails_with_the_combination_that_needs_it(
    index: IndexServer, tmp_path: Path
) -> None:
    """The index is not asked a second time for what failed already."""
    path = tmp_path / "matrix.yaml"
    path.write_text(MATRIX.format(url=index.url, here=HERE))
    matrix = load_matrix(path)
    failed = threading.Event()
    may_go_on = threading.Event()

    class Broken(Environments):
        def lock(self, request: EnvironmentRequest, prefer: Lock | None = None) -> LockResult:
            if not failed.is_set():
                failed.set()
                raise InfrastructureError("the index is away", remedy="none")
            may_go_on.wait(60)
            return super().lock(request, prefer)

    provider = Broken(tmp_path / "cache", index=matrix.file.index)
    grid = expand(matrix, provider.catalogue, datetime.now(UTC))
    with closing(Locking(matrix, grid, provider)) as locking:
        try:
            with pytest.raises(InfrastructureError, match="the index is away"):
                locking.lock_now((0, 2))
        finally:
            may_go_on.set()


def test_no_solver_starts_after_the_command_has_ended(index: IndexServer, tmp_path: Path) -> None:
    for version in range(4, 10):
        index.add("app", f"{version}.0", requires=["below"])
    path = tmp_path / "matrix.yaml"
    path.write_text(MATRIX.format(url=index.url, here=HERE))
    matrix = load_matrix(path)
    asked: list[str] = []
    begun, ended = threading.Event(), threading.Event()

    class Killed(Environments):
        def lock(self, request: EnvironmentRequest, prefer: Lock | None = None) -> LockResult:
            asked.append(request.requirements[0])
            begun.set()
            assert ended.wait(30)
            raise InfrastructureError("killed", remedy="none")

    provider = Killed(tmp_path / "cache", index=matrix.file.index)
    grid = expand(matrix, provider.catalogue, datetime.now(UTC))
    locking = Locking(matrix, grid, provider)
    done: list[None] = []
    locking.on_done = lambda: done.append(None)
    locking.want([(0, number) for number in range(1, 8)])
    assert begun.wait(30)
    under_way = locking.under_way
    locking.close()
    ended.set()
    until = time.monotonic() + 30
    while len(done) < under_way and time.monotonic() < until:
        time.sleep(0.01)
    assert len(done) == under_way
    assert asked == ["app==1.0"]
