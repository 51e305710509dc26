from __future__ import annotations

import sqlite3

import pytest

from bisect_env.errors import UsageError
from bisect_env.storage.backend import TRIAL_COLUMNS
from bisect_env.storage.query import condition, package_condition


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("outcome=crash", "(outcome = 'crash')"),
        (" outcome != pass ", "(outcome != 'pass')"),
        ("gpu_model~H100", "(lower(CAST(gpu_model AS text)) LIKE lower('%H100%') ESCAPE '\\')"),
        ("gpu_model~100%_", "(lower(CAST(gpu_model AS text)) LIKE lower('%100\\%\\_%') ESCAPE '\\')"),
        ("python=3.1*", "(lower(CAST(python AS text)) LIKE lower('3.1%') ESCAPE '\\')"),
        ("returncode=-11", "(returncode = -11)"),
        ("duration>5.5", "(duration > 5.5)"),
        ("started_at>=2026-11-02 08:00", "(started_at >= '2026-11-02 08:00')"),
        ("python >= '3.9'", "(python >= '3.9')"),
        (
            "torch=2.4.1",
            "(lower(CAST(combination AS text)) LIKE lower('%[\"torch\",\"2.4.1\"]%') ESCAPE '\\')",
        ),
        (
            "torch!=2.4.*",
            "(lower(CAST(combination AS text)) NOT LIKE lower('%[\"torch\",\"2.4.%\"]%') ESCAPE '\\')",
        ),
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
            columns = ", ".join(f"1 AS {name}" for name in TRIAL_COLUMNS)
            database.execute(f"SELECT * FROM (SELECT {columns}) WHERE {sql}")


def test_packages() -> None:
    found = package_condition("Cuml_cu12==24.4.*")
    assert found is not None
    assert "p.name = 'cuml-cu12' AND lower(CAST(p.version AS text)) LIKE lower('24.4.%')" in found
    assert "version" not in package_condition("torch")
    with pytest.raises(UsageError, match="names no package"):
        package_condition("torch'; --")


@pytest.mark.parametrize("text", ["torch=*.1", "torch!=2.*.1", "torch=2.*.*"])
def test_a_star_within_the_value_of_an_axis_could_reach_another_axis(text: str) -> None:
    with pytest.raises(UsageError, match="only at the end"):
        condition(text)


@pytest.mark.parametrize("text", ["python>=3.9", "driver < 570.1", "host>a"])
def test_texts_are_not_ordered_since_versions_would_be_in_the_wrong_order(text: str) -> None:
    with pytest.raises(UsageError, match=r"SQL compares [a-z]+ as text"):
        condition(text)
