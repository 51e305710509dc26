"""Write what of the reference follows from the code: commands, keys, views, imports of packages, exit codes.

python -m tools.reference_pages
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import typer.main
from sqlalchemy import create_engine

from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.cli.app import application
from bisect_env.errors import EXIT_CODES
from bisect_env.matrix.schema import matrix_json_schema
from bisect_env.report.formats import report_json_schema
from bisect_env.storage import backend
from bisect_env.storage.tables import METADATA
from tools.import_graph import imports_svg, imports_table
from tools.pages import marked, table

DOCS = Path(__file__).parent.parent / "docs"
SCRIPT = "tools/reference_pages.py"


# -- commands ----------------------------------------------------------------------------------------------


def commands_page() -> str:
    """All commands with all options; those that several commands share stand once, at the end."""
    commands = _leaves("bisect-env", typer.main.get_command(application()))
    users: dict[tuple[str, str], list[str]] = {}
    for name, command in commands.items():
        for row in _options(command):
            users.setdefault(row, []).append(f"`{name.partition(' ')[2]}`")
    shared: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for row, names in users.items():
        if len(names) > 1:
            shared.setdefault(tuple(names), []).append(row)
    lines = [
        "# Commands",
        "",
        f"<!-- written by {SCRIPT} -->",
        "",
        "What `bisect-env COMMAND --help-all` says. [Options that several commands share](#shared-options)",
        "stand once, below. How commands end: [exit codes](exit-codes.md).",
        "",
    ]
    for name, command in commands.items():
        usage = " ".join(_usage(p) for p in command.params if p.param_type_name == "argument")
        lines += [f"## `{f'{name} {usage}'.strip()}`", "", *(command.help or "").strip().splitlines(), ""]
        if own := [row for row in _options(command) if len(users[row]) == 1]:
            lines += [table(("argument or option", "meaning"), own), ""]
    lines += ["## Shared options", ""]
    for names, rows in sorted(shared.items(), key=lambda item: -len(item[1])):
        lines += [f"{', '.join(names)}:", "", table(("argument or option", "meaning"), rows), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _leaves(name: str, command: Any) -> dict[str, Any]:
    inner = getattr(command, "commands", {})
    found = {} if inner else {name: command}
    for child, one in inner.items():
        found |= _leaves(f"{name} {child}", one)
    return found


def _options(command: Any) -> list[tuple[str, str]]:
    rows = [_parameter(p) for p in command.params if p.name != "help" and not getattr(p, "hidden", False)]
    return [row for row in rows if "--help-all" not in row[0]]


def _usage(parameter: Any) -> str:
    word = (parameter.metavar or parameter.name).upper().strip("{}[]")
    return word if parameter.required else f"[{word}]"


def _parameter(parameter: Any) -> tuple[str, str]:
    if parameter.param_type_name == "argument":
        name = f"`{_usage(parameter)}`"
    else:
        name = ", ".join(f"`{one}`" for one in (*parameter.opts, *parameter.secondary_opts))
        kind = parameter.type_descriptor.annotation
        if isinstance(kind, type) and issubclass(kind, Enum):
            name += f" `{'|'.join(str(one.value) for one in kind)}`"
        elif parameter.metavar:
            name += f" `{parameter.metavar}`"
    words = [(parameter.help or "").strip()]
    default = parameter.default
    if default not in (None, False, (), "") and not callable(default) and "default" not in words[0].lower():
        words.append(f"Default: `{default.value if isinstance(default, Enum) else default}`.")
    if parameter.envvar:
        words.append(f"Variable: `{parameter.envvar}`.")
    return name, " ".join(word for word in words if word)


# -- tables ------------------------------------------------------------------------------------------------


def exit_codes_table() -> str:
    """Every exit code, from the code that ends with it."""
    rows = [(str(int(code)), meaning, remedy) for code, (meaning, remedy) in EXIT_CODES.items()]
    return table(("code", "meaning", "what to do"), rows)


def matrix_keys_table() -> str:
    """Every key of a matrix file with its type, default and meaning, from its JSON schema."""
    schema = matrix_json_schema()
    definitions: dict[str, Any] = schema["$defs"]
    rows: list[tuple[str, ...]] = []

    def walk(model: dict[str, Any], prefix: str) -> None:
        for key, value in model.get("properties", {}).items():
            path = f"{prefix}{key}"
            meaning = value.get("description", "")
            default = "" if key not in model.get("required", ()) else "*required*"
            if "default" in value and value["default"] not in (None, [], {}, ""):
                shown = (
                    value["default"] if isinstance(value["default"], str) else json.dumps(value["default"])
                )
                default = f"`{shown}`" if not isinstance(value["default"], dict) else ""
            rows.append((f"`{path}`", _type(value), default, " ".join(meaning.split())))
            for name in _referenced(value):
                inner = definitions[name]
                if inner.get("properties") and name not in ("Rule",):
                    below = "axes.NAME." if key == "axes" else f"{path}."
                    walk({**inner, "properties": _new(inner["properties"], rows, below)}, below)

    walk(schema, "")
    return table(("key", "type", "default", "meaning"), rows)


def _new(properties: dict[str, Any], rows: list[tuple[str, ...]], prefix: str) -> dict[str, Any]:
    known = {row[0] for row in rows}
    return {key: value for key, value in properties.items() if f"`{prefix}{key}`" not in known}


def _referenced(value: Any) -> list[str]:
    if isinstance(value, dict):
        here = [value["$ref"].rpartition("/")[2]] if "$ref" in value else []
        return here + [name for key, inner in value.items() if key != "$ref" for name in _referenced(inner)]
    return [name for inner in value for name in _referenced(inner)] if isinstance(value, list) else []


def _type(value: dict[str, Any]) -> str:
    if "enum" in value:
        return " or ".join(f"`{one}`" for one in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    options = value.get("anyOf") or value.get("oneOf")
    if options:
        found = [_type(one) for one in options]
        return " or ".join(dict.fromkeys(one for one in found if one != "null"))
    if value.get("type") == "array":
        return "list"
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return _type(matrix_json_schema()["$defs"][name])
    kinds = value.get("type", "text")
    words = {
        "object": "mapping",
        "string": "text",
        "integer": "number",
        "boolean": "true or false",
        "array": "list",
    }
    return " or ".join(words.get(kind, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def verdict_keys_table() -> str:
    """Every key of a verdict with its meaning, and the names of the keys within it, from the JSON schema."""
    definitions: dict[str, Any] = report_json_schema()["$defs"]

    def within(value: Any) -> list[str]:
        names: list[str] = []
        for model in _referenced(value):
            for key, inner in definitions[model].get("properties", {}).items():
                below = within(inner)
                names.append(f"`{key}`" + (f" ({', '.join(below)})" if below else ""))
        return names

    rows = []
    for key, value in definitions[VerdictDocument.__name__]["properties"].items():
        inner = within(value)
        rows.append((f"`{key}`", value["description"] + (f" Has {', '.join(inner)}." if inner else "")))
    return table(("key", "meaning"), rows)


def views_table() -> str:
    """The views with their columns, from a database made for it."""
    engine = create_engine("sqlite://", creator=lambda: sqlite3.connect(":memory:"))
    rows = []
    with engine.begin() as connection:
        METADATA.create_all(connection)
        backend.make_views(connection)
        for name in sorted(backend.NAMES):
            found = connection.exec_driver_sql(f"PRAGMA table_info({name})").all()
            rows.append((f"`{name}`", backend.ONE_ROW[name], ", ".join(f"`{column[1]}`" for column in found)))
    engine.dispose()
    return table(("view", "one row is", "columns"), rows)


# -- writing -----------------------------------------------------------------------------------------------

PARTS: dict[str, tuple[str, Callable[[], str]]] = {
    "exit codes": ("reference/exit-codes.md", exit_codes_table),
    "keys": ("reference/matrix.md", matrix_keys_table),
    "verdict keys": ("reference/report.md", verdict_keys_table),
    "views": ("reference/database.md", views_table),
    "imports": ("architecture.md", imports_table),
}
WHOLE: dict[str, Callable[[], str]] = {
    "reference/cli.md": commands_page,
    "pictures/imports.svg": imports_svg,
}


def written() -> dict[Path, str]:
    """Every file as it should be.

    Raises:
        ValueError: A page lacks a mark.
    """
    files = {DOCS / name: make() for name, make in WHOLE.items()}
    for part, (name, make) in PARTS.items():
        path = DOCS / name
        files[path] = marked(files.get(path) or path.read_text("utf-8"), part, SCRIPT, make())
    return files


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, "utf-8")
