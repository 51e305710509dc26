from __future__ import annotations

import os
import sys

import pytest

from .index_server import IndexServer, serve

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture(autouse=True)
def no_user_settings(monkeypatch, tmp_path):
    """Neither the developer's uv nor pip settings nor a proxy change what a test sees."""
    for name in os.environ:
        if name.startswith(("UV_", "PIP_INDEX", "PIP_EXTRA", "BISECT_ENV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture(autouse=True)
def own_temp(monkeypatch, tmp_path):
    """What tests start may be killed at any instant: what it leaves then is not left in /tmp."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))


@pytest.fixture
def index():
    """A package index on this machine."""
    index = IndexServer()
    server = serve(index)
    yield index
    server.shutdown()
    server.server_close()


@pytest.fixture
def python():
    """Version of the interpreter that runs the tests: it is always there."""
    return HERE


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"
