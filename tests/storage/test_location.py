from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import URL

from bisect_env.errors import UsageError
from bisect_env.storage.backend import database_location, shown_url


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("/data/r.sqlite", "/data/r.sqlite"),
        ("sqlite:////data/r.sqlite", "/data/r.sqlite"),
        ("sqlite+pysqlite:////data/r.sqlite", "/data/r.sqlite"),
        ("/data/odd name?#%41.db", "/data/odd name?#%41.db"),
    ],
)
def test_paths_and_urls(reference: str, expected: str) -> None:
    assert database_location(reference) == Path(expected)


def test_relative_and_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert database_location("r.db") == tmp_path / "r.db"
    assert database_location("sqlite:///r.db") == tmp_path / "r.db"
    assert database_location("~/r.db") == Path("/home/me/r.db")


def test_the_order_of_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/home/me/data")
    monkeypatch.setenv("BISECT_ENV_DB", "/b.db")
    assert database_location("/a.db") == Path("/a.db")
    assert database_location(None) == Path("/b.db")
    monkeypatch.setenv("BISECT_ENV_DB", "")
    assert database_location(None) == Path("/home/me/data/bisect-env/results.sqlite")


@pytest.mark.parametrize(
    ("reference", "match"),
    [
        ("", "no name"),
        ("  ", "no name"),
        ("a\0b", "no name"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite://host/path", "a path and nothing else"),
        ("sqlite:////data/r.db?mode=ro", "a path and nothing else"),
        ("sqlite+aiosqlite:////data/r.db", "a path and nothing else"),
        (
            "postgresql+psycopg2://me:hunter2@db/results",
            r"reached through psycopg[^$]*postgresql\+psycopg://",
        ),
        ("postgresql+psycopg://me:hunter2@db", "names no database"),
        ("postgresql+psycopg2://me@db/results?password=hunter2", "reached through psycopg"),
        ("mysql://me:hunter2@db/results", "in SQLite or PostgreSQL, not in mysql"),
        ("http//://hunter2:x", "cannot be read"),
        ("postgresql://me:hunter2@db:port/results", "cannot be read"),
    ],
)
def test_what_cannot_be(reference: str, match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        database_location(reference)
    assert "hunter2" not in str(caught.value)
    assert "remedy: " in str(caught.value)


@pytest.mark.parametrize("scheme", ["postgresql+psycopg", "postgresql", "postgres"])
def test_a_server(scheme: str) -> None:
    url = database_location(f"{scheme}://me:hunter2@db:5433/results?sslmode=require&password=hunter2")
    assert isinstance(url, URL)
    assert (url.drivername, url.host, url.port, url.database) == ("postgresql+psycopg", "db", 5433, "results")
    assert (url.password, url.query["sslmode"]) == ("hunter2", "require")
    assert shown_url(url) == "postgresql+psycopg://me:***@db:5433/results"


@pytest.mark.parametrize("reference", ["~no-such-user/x.sqlite", "sqlite:///~no-such-user/x.sqlite"])
def test_the_home_of_a_user_who_does_not_exist_is_a_mistake_of_the_user(reference: str) -> None:
    with pytest.raises(UsageError, match="no-such-user"):
        database_location(reference)
