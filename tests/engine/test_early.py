"""The ends of a new question are locked while the program is imported, and only such a question uses them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bisect_env.engine.early import EarlyLocks
from bisect_env.engine.locking import Locking
from bisect_env.environments.lock import Lock, LockResult
from bisect_env.environments.provider import Environments
from bisect_env.environments.request import EnvironmentRequest
from bisect_env.errors import InfrastructureError
from bisect_env.matrix.expand import expand
from bisect_env.matrix.grid import Grid
from bisect_env.matrix.load import Matrix, load_matrix
from bisect_env.matrix.versions import Release
from bisect_env.running import run_tool
from tests.environments.conftest import HERE
from tests.environments.index_server import IndexServer, serve

pytestmark = pytest.mark.integration


class Counting(Environments):
    """A provider that counts what it locks, and locks nothing before it may."""

    def __init__(self, cache: Path, index: str | None) -> None:
        super().__init__(cache, index=index)
        self.asked: list[str] = []
        self.begun, self.go_on = threading.Event(), threading.Event()

    def lock(self, request: EnvironmentRequest, prefer: Lock | None = None) -> LockResult:
        self.asked.append(request.requirements[0])
        self.begun.set()
        assert self.go_on.wait(60)
        return super().lock(request, prefer)


@pytest.fixture
def index() -> Iterator[IndexServer]:
    server = IndexServer()
    running = serve(server)
    for version in ("1.0", "2.0", "3.0", "4.0"):
        server.add("app", version)
    yield server
    running.shutdown()
    running.server_close()


def asked_of(index: IndexServer, folder: Path) -> Matrix:
    path = folder / "matrix.yaml"
    path.write_text(
        f"version: 1\nname: early\nindex: {index.url}\naxes:\n"
        f"  python: {{package: python, versions: ['{HERE}']}}\n"
        "  app: {package: app, versions: '>=0', step: every}\ntrial: {command: python -c 'import app'}\n"
    )
    return load_matrix(path)


def finish(locking: Locking) -> None:
    while locking.under_way:
        locking.wait(60)
        locking.take()


def test_a_study_takes_over_the_solvers_of_both_ends_and_asks_for_neither_again(
    index: IndexServer, tmp_path: Path
) -> None:
    matrix = asked_of(index, tmp_path)
    provider = Counting(tmp_path / "cache", matrix.file.index)
    with closing(EarlyLocks(matrix, provider)) as early:
        assert provider.begun.wait(60)
        grid = expand(matrix, provider.catalogue, datetime.now(UTC))
        locking = early.take(grid)
        assert locking is not None
        assert early.take(grid) is None, "they have one owner"
    provider.go_on.set()
    with closing(locking):
        locking.lock_every([(0, 0), (0, 3)])
        assert {*locking.prepared.locks} == {(0, 0), (0, 3)}
        assert provider.asked == ["app==1.0", "app==4.0"]
        locking.lock_now((0, 1))
    assert provider.asked == ["app==1.0", "app==4.0", "app==2.0"]


def test_a_grid_with_other_versions_takes_nothing_over(index: IndexServer, tmp_path: Path) -> None:
    matrix = asked_of(index, tmp_path)
    provider = Counting(tmp_path / "cache", matrix.file.index)
    grid = expand(matrix, provider.catalogue, datetime.now(UTC))
    other = replace(grid, axes=(grid.axes[0], replace(grid.axes[1], values=("1.0", "2.0"))))
    with closing(EarlyLocks(matrix, provider)) as early:
        assert early.take(other) is None
        provider.go_on.set()
        taken = early.take(grid)
        assert taken is not None
        taken.close()


def test_commits_are_not_looked_up_early(index: IndexServer, tmp_path: Path) -> None:
    """Both would wait for the lock of the repository, and the result of the first would be dropped."""

    matrix = asked_of(index, tmp_path)
    axis = "  app: {git: /srv/app, package: app, from: v1, to: v2}\n"
    text = "".join(axis if "package: app" in one else one + "\n" for one in matrix.text.splitlines())
    (tmp_path / "matrix.yaml").write_text(text)
    provider = Counting(tmp_path / "cache", matrix.file.index)
    asked: list[str] = []
    provider.catalogue.commits = lambda *_, **__: asked.append("commits")  # type: ignore[method-assign,assignment]
    with closing(EarlyLocks(load_matrix(tmp_path / "matrix.yaml"), provider)) as early:
        assert early.take(expand(matrix, provider.catalogue, datetime.now(UTC))) is None
    assert (asked, provider.asked) == ([], [])


def test_a_tool_that_lists_versions_ends_with_the_command(index: IndexServer, tmp_path: Path) -> None:
    matrix = asked_of(index, tmp_path)
    provider = Counting(tmp_path / "cache", matrix.file.index)
    codes: list[int] = []

    def versions(*_asked: object, **_named: object) -> list[Release]:
        provider.begun.set()
        codes.append(run_tool(["sleep", "60"], env=dict(os.environ), cwd=tmp_path, timeout=90).returncode)
        return []

    provider.catalogue.versions = versions  # type: ignore[method-assign]
    early = EarlyLocks(matrix, provider)
    assert provider.begun.wait(60)
    early.close()
    assert early.take(Grid(())) is None
    assert codes in ([], [-signal.SIGKILL]), "it was killed, unless it had not begun"


def test_what_fails_early_is_left_for_the_study_to_say(index: IndexServer, tmp_path: Path) -> None:
    matrix = asked_of(index, tmp_path)
    provider = Counting(tmp_path / "cache", "http://127.0.0.1:9/simple/")
    with closing(EarlyLocks(matrix, provider)) as early:
        grid = expand(matrix, Environments(index=matrix.file.index).catalogue, datetime.now(UTC))
        assert early.take(grid) is None
    assert provider.asked == []


def test_no_solver_begins_after_the_command_has_ended(index: IndexServer, tmp_path: Path) -> None:
    matrix = asked_of(index, tmp_path)
    provider = Counting(tmp_path / "cache", matrix.file.index)
    early = EarlyLocks(matrix, provider)
    assert provider.begun.wait(60)
    early.close()
    provider.go_on.set()
    grid = expand(matrix, provider.catalogue, datetime.now(UTC))
    locking = early.take(grid)
    assert locking is not None
    with pytest.raises(InfrastructureError, match="has ended"):
        finish(locking)
    assert provider.asked == ["app==1.0"], "the second end waits for the first, and was not begun"
