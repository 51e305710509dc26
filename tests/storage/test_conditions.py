from __future__ import annotations

import sqlite3

import pytest

from bisect_env.storage.query import COLUMNS, condition, package_condition


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("outcome=crash", "(outcome = 'crash')"),
        (" outcome != pass ", "(outcome != 'pass')"),
        ("gpu_model~H100", "(lower(gpu_model) LIKE '%h100%' ESCAPE '\\')"),
        ("gpu_model~100%_", "(lower(gpu_model) LIKE '%100\\%\\_%' ESCAPE '\\')"),
        ("python=3.1*", "(lower(python) LIKE '3.1%' ESCAPE '\\')"),
        ("returncode=-11", "(returncode = -11)"),
        ("duration>5.5", "(duration > 5.5)"),
        ("torch=2.4.1", "(lower(combination) LIKE '%[\"torch\",\"2.4.1\"]%' ESCAPE '\\')"),
        ("torch!=2.4.*", "(lower(combination) NOT LIKE '%[\"torch\",\"2.4.%\"]%' ESCAPE '\\')"),
        ("outcome = 'crash'", "(outcome = 'crash')"),
        ("outcome='crash' AND evidence='bad'", "(outcome='crash' AND evidence='bad')"),
        ("outcome = crash or pass", "(outcome = crash or pass)"),
        ("duration > 1 AND returncode < 0", "(duration > 1 AND returncode < 0)"),
        ("signature IS NOT NULL", "(signature IS NOT NULL)"),
    ],
)
def test_what_people_type(text: str, sql: str) -> None:
    assert condition(text) == sql
    if "crash or" not in sql:
        with sqlite3.connect(":memory:") as database:
            columns = ", ".join(f"1 AS {name}" for name in COLUMNS)
            database.execute(f"SELECT * FROM (SELECT {columns}) WHERE {sql}")


def test_packages() -> None:
    found = package_condition("Cuml_cu12==24.4.*")
    assert found is not None
    assert "p.name = 'cuml-cu12' AND lower(p.version) LIKE '24.4.%'" in found
    assert "version" not in (package_condition("torch") or "version")
    assert package_condition("torch'; --") is None
