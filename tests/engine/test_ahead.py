"""What is made before a study asks for it is what the study asks for."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bisect_env.cli.run_command import LATER
from bisect_env.engine.locking import Locking, environment_request, make_ends_ahead, unfit
from bisect_env.environments.lock import Lock
from bisect_env.environments.provider import Environments
from bisect_env.matrix.expand import expand
from bisect_env.matrix.load import load_matrix
from bisect_env.storage.entries import CombinationStatus
from tests.environments.conftest import HERE
from tests.environments.index_server import IndexServer, serve

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


def test_the_environments_of_both_ends_are_there(index: IndexServer, tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(
        f"version: 1\nname: ahead\nindex: {index.url}\naxes:\n"
        f"  python: {{package: python, versions: ['{HERE}']}}\n"
        "  app: {package: app, versions: '>=1', step: every}\ntrial: {command: python -c 'import app'}\n"
    )
    matrix = load_matrix(path)
    provider = Environments(tmp_path / "cache", index=matrix.file.index)
    make_ends_ahead(matrix, provider, datetime.now(UTC))
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
