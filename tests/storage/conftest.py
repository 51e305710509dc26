"""Databases for the tests of the store."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from bisect_env.storage.store import Store
from tests.storage import postgres_server
from tests.storage.contract import Reopen
from tests.storage.postgres_server import Server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A running PostgreSQL server, one for each process of the test run."""
    programs = postgres_server.binaries()
    if programs is None:
        reason = "no PostgreSQL server here (Debian: apt-get install postgresql)"
        if os.environ.get(postgres_server.REQUIRED) == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    with postgres_server.running(programs) as server:
        yield server


@pytest.fixture
def postgres_url(postgres: Server) -> Iterator[str]:
    """The URL of an empty database, with its password."""
    with postgres.database() as name:
        yield postgres.url(name)


@pytest.fixture
def reopen(reference: str) -> Iterator[Reopen]:
    """Opens the database of the module's `reference` once more, for writing."""
    stores: list[Store] = []

    def open_again() -> Store:
        stores.append(Store.open(reference))
        return stores[-1]

    yield open_again
    for store in stores:
        store.close()
