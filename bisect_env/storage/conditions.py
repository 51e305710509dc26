"""From what a person types to a condition in SQL on `v_trials`. Pure."""

from __future__ import annotations

import re

COLUMNS = (
    *("trial_id", "study_id", "study", "combination", "lock_hash", "python", "platform", "outcome"),
    *("evidence", "returncode", "phase", "signature", "detail", "started_at", "recorded_at", "duration"),
    *("host", "worker", "gpu", "username", "cpu", "gpu_model", "driver", "trial_key"),
)
"""Of `v_trials`."""
_NUMBERS = {"returncode", "duration"}
_SHORT = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*(=|!=|<=|>=|<|>|~)\s*([^\s'\"()=~<>][^'\"()=~<>]*?)\s*")
_SQL_WORDS = re.compile(r"\b(and|or|like|in|is|not|between)\b", re.IGNORECASE)


def condition(text: str) -> str:
    """A condition in SQL.

    `outcome=crash`, `gpu_model~H100` (contains), `python=3.1*` and `duration>5` are short forms; a name that
    is no column is an axis (`torch=2.4.1`). Everything else is SQL as it stands.
    """
    short = _SHORT.fullmatch(text)
    if short is None or _SQL_WORDS.search(short[3]):
        return f"({text})"
    name, operator, value = short.groups()
    if name in _NUMBERS and re.fullmatch(r"-?\d+(\.\d+)?", value) and operator != "~":
        return f"({name} {operator} {value})"
    if name in COLUMNS:
        return f"({_compared(name, operator, value)})"
    if operator in ("=", "!="):
        negation = "NOT " if operator == "!=" else ""
        pair = _pattern(f'%["{name}","{value}"]%')
        return f"(combination {negation}LIKE {pair} ESCAPE '\\')"
    return f"({text})"


def package_condition(text: str) -> str | None:
    """The condition that a lock holds a package, such as `cuml=24.4.*`; None if it cannot be read."""
    short = re.fullmatch(r"\s*([\w.-]+)\s*(?:==?\s*([\w.*+!-]+))?\s*", text)
    if short is None:
        return None
    name = re.sub(r"[-_.]+", "-", short[1]).lower()
    version = "" if short[2] is None else f" AND {_compared('p.version', '=', short[2])}"
    return f"lock_hash IN (SELECT p.lock_hash FROM v_packages p WHERE p.name = {_literal(name)}{version})"


def _compared(name: str, operator: str, value: str) -> str:
    if operator == "~":
        return f"{name} LIKE {_pattern(f'%{value}%')} ESCAPE '\\'"
    if "*" in value and operator in ("=", "!="):
        negation = "NOT " if operator == "!=" else ""
        return f"{name} {negation}LIKE {_pattern(value)} ESCAPE '\\'"
    return f"{name} {operator} {_literal(value)}"


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _pattern(value: str) -> str:
    """A LIKE pattern in which `*` stands for anything, and `%` at the ends as well."""
    inner = value.strip("%")
    escaped = inner.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("*", "%")
    return _literal(value.replace(inner, escaped, 1) if inner else value)
