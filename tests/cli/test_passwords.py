"""Passwords of database URLs never reach a message or a log."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from bisect_env import cli
from bisect_env.secrets import without_passwords_in_code
from bisect_env.storage.store import Store
from tests.cli.calls import RunCommand
from tests.report.samples import orjson_study, orjson_verdict
from tests.storage.conftest import postgres, postgres_url
from tests.storage.postgres_server import PASSWORD

__all__ = ["postgres", "postgres_url"]


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


@pytest.mark.integration
def test_printed_commands_have_no_password(postgres_url: str, run: RunCommand) -> None:
    with Store.open(postgres_url) as store:
        study = orjson_study(store)
        study.finished(orjson_verdict())
    code, out, err = run("report", "--db", postgres_url)
    assert code == 0
    out += err
    assert quote(PASSWORD, safe=" ")[:10] not in out
    assert "hunter2" not in out
    assert "set BISECT_ENV_DB" in out
    code, _, err = run("report", "nowhere", "--db", postgres_url)
    assert (code, "hunter2" in err) == (2, False)
