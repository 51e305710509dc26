"""Databases for the tests of the store."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.storage import postgres_server
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
