"""Passwords of database URLs never reach a message or a log."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bisect_env import cli
from bisect_env.matrix.secrets import without_passwords_in_code
from bisect_env.storage.store import Store


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql+psycopg://me:hunter2@db/results", "postgresql+psycopg://me:***@db/results"),
        ("--db=postgresql://me:hunter 2/x@db/r", "--db=postgresql://me:***@db/r"),
        ("postgresql://me@db/r?password=hunter2&x=1", "postgresql://me@db/r?password=***&x=1"),
        ("x sslpassword=hunter2 y", "x sslpassword=*** y"),
        ("sqlite:////data/r.sqlite", "sqlite:////data/r.sqlite"),
        ("a https://example.org:80/x", "a https://example.org:80/x"),
    ],
)
def test_without_passwords(text: str, shown: str) -> None:
    assert without_passwords_in_code(text) == shown


def test_the_log_of_a_defect_has_no_password(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "postgresql+psycopg://me:hunter2@db/results"

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError(f"no way to {url}")

    monkeypatch.setattr(Store, "open", broken)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["bisect-env", "report", "--db", url])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 70
    (log,) = tmp_path.rglob("defect-*.log")
    text = log.read_text(encoding="utf-8") + capsys.readouterr().err
    assert "me:***@db/results" in text
    assert "hunter2" not in text
