"""Small questions with a planted truth, asked by the real command: one script, whose arguments are values."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from tests.cli.asking import Asking
from tests.engine.studies import PYTHON

EIGHT = {"n": [str(n) for n in range(1, 9)]}
_HEAD = """
import os, sys, time
{names} = sys.argv[1:]

def calls(name):
    # How often this was called before, by all trials together.
    with open(os.path.join({folder!r}, "calls-" + name), "ab") as file:
        file.write(b".")
        file.flush()
        return file.seek(0, os.SEEK_END) - 1
"""


def matrix(
    ask: Asking,
    script: str,
    *,
    axes: Mapping[str, Sequence[str]] = EIGHT,
    directions: Mapping[str, str] | None = None,
    trial: Mapping[str, Any] | None = None,
    **rest: Any,
) -> str:
    """Write `m.yaml` and its script, which has the values as variables and `calls`; return the file's name.

    The values of an axis `n` are numbers in the script.
    """
    head = _HEAD.format(names=", ".join([*axes, "*_"]), folder=str(ask.folder))
    head += "n = int(n)\n" if "n" in axes else ""
    (ask.folder / "t.py").write_text(head + textwrap.dedent(script))
    own: dict[str, dict[str, Any]] = {name: {"values": list(values)} for name, values in axes.items()}
    for name, direction in (directions or {}).items():
        own[name]["direction"] = direction
    command = " ".join(["python", "t.py", *(f"{{{name}}}" for name in axes)])
    data = {
        "version": 1,
        "name": "x",
        "axes": {"python": {"package": "python", "versions": [PYTHON]}, **own},
        "trial": {"command": command, "files": ["t.py"], **(trial or {})},
        **rest,
    }
    (ask.folder / "m.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
    return "m.yaml"


def report(ask: Asking, *words: str) -> dict[str, Any]:
    """Return the report of the latest study, or of the named one, as a JSON object."""
    done = ask.run("report", *words, "--format", "json")
    assert done.stdout, done.stderr
    return dict(json.loads(done.stdout))


def at(found: Mapping[str, Any], **values: str) -> dict[str, Any]:
    """Return what a report says of one combination."""
    return next(dict(one) for one in found["combinations"] if one["combination"].items() >= values.items())
