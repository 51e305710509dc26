"""Ask the questions of `asked/questions.yaml` through the command line, and compare with the known answers.

`python -m tests.cases.run_asked [NAME ...]`; exit code 1 when any answer is wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "asked"
PROGRAM = Path(sys.executable).with_name("bisect-env")
LIMIT = 1800.0


def questions() -> dict[str, dict[str, Any]]:
    """Name to command and truth."""
    loaded: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "questions.yaml").read_text("utf-8"))
    return loaded


def problems(report: Mapping[str, Any], truth: Mapping[str, Any], releases: Mapping[str, Any]) -> list[str]:
    """What is wrong with an answer; empty where it is right. Pure.

    Args:
        report: Of the first study.
        truth: As the file has it.
        releases: Report of the culprit's releases, empty where there is none.
    """
    found = []
    for end in ("first_bad", "last_good"):
        for axis, value in (truth.get(end) or {}).items():
            said = (report["verdict"].get(end) or {}).get(axis)
            if said != str(value):
                found.append(f"{end} is {axis} {said}, not {value}")
    if "culprits" in truth:
        explanation = report.get("explanation") or {"culprits": [], "changes": []}
        said = sorted(explanation["changes"][i]["name"] for i in explanation["culprits"])
        if said != sorted(truth["culprits"]):
            found.append(f"the culprits are {said}, not {truth['culprits']}")
    for axis, value in truth.get("releases", {}).items():
        said = (releases.get("verdict", {}).get("first_bad") or {}).get(axis)
        if said != str(value):
            found.append(f"the first bad release of {axis} is {said}, not {value}")
    return found


def ask(name: str, question: Mapping[str, Any], folder: Path) -> tuple[bool, str]:
    """Ask one question in a database of its own; whether the answer is right, and a line about it."""
    own = {"BISECT_ENV_DB": str(folder / f"{name}.sqlite")}
    env = {**os.environ, **own}
    started = time.monotonic()
    with (folder / f"{name}.log").open("wb") as log:
        done = subprocess.run(
            [PROGRAM, *map(str, question["command"])],
            cwd=FOLDER / name,
            env=env,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            timeout=LIMIT,
            check=False,
        )
    seconds = time.monotonic() - started

    def report(reference: str) -> dict[str, Any]:
        command = [PROGRAM, "report", reference, "--format", "json"]
        shown = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        loaded: dict[str, Any] = json.loads(shown.stdout)
        return loaded

    is_pair = question["command"][0] == "between"
    if done.returncode != 0:
        words = (folder / f"{name}.log").read_text("utf-8", "replace").strip().splitlines()[-3:]
        return False, f"ended with {done.returncode} after {seconds:.0f} s: {' / '.join(words)}"
    first = report("between") if is_pair else report(studies(env)[0])
    releases = report(first["traced"]["study"]) if is_pair and first["traced"]["study"] else {}
    wrong = problems(first, question["truth"], releases)
    line = f"{seconds:.0f} s: {'; '.join(wrong) or first['verdict']['sentence']}"
    return not wrong, line


def studies(env: Mapping[str, str]) -> list[str]:
    """Ids of a database's studies, the newest first."""
    shown = subprocess.run(
        [PROGRAM, "report", "--list", "--json"], env=dict(env), capture_output=True, text=True, check=True
    )
    return [str(json.loads(line)["study_id"]) for line in shown.stdout.splitlines()]


def main(names: list[str]) -> int:
    """Ask them all, or those named."""
    known = questions()
    folder = Path(tempfile.mkdtemp(prefix="bisect-env-asked-"))
    wrong = 0
    for name in names or known:
        right, line = ask(name, known[name], folder)
        wrong += not right
        print(f"{'right' if right else 'WRONG'}  {name}: {line}", flush=True)
    print(f"{wrong} wrong; logs in {folder}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
