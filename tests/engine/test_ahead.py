"""What is made before a study asks for it is what the study asks for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bisect_env.engine.locking import environment_request, make_ends_ahead
from bisect_env.environments.lock import Lock
from bisect_env.environments.provider import Environments
from bisect_env.matrix.expand import expand
from bisect_env.matrix.load import load_matrix
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


def test_the_environments_of_both_ends_are_there(index: IndexServer, tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(
        f"version: 1\nname: ahead\nindex: {index.url}\naxes:\n  python: {{package: python, versions: ['{HERE}']}}\n"
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
