"""Bisect the regressions of `matrices/` through the command line, and compare with the known answers.

`python -m tests.cases.run_cases [--heavy] [NAME ...]`; exit code 1 when any verdict is wrong.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cases.truth import HEAVY, MATRICES, Truth, case_names, check

PROGRAM = Path(sys.executable).with_name("bisect-env")
HEADINGS = ("case", "true answer", "verdict", "right?", "trials", "environments", "seconds")


@dataclass(frozen=True)
class Result:
    """One row of the table.

    Attributes:
        name: Of the case.
        answer: The true one.
        verdict: What the program said.
        problems: Why it is wrong; empty when it is right.
        trials: How many it took.
        environments: How many were built.
        seconds: Wall time of `bisect-env run`.
    """

    name: str
    answer: str
    verdict: str
    problems: tuple[str, ...]
    trials: str
    environments: str
    seconds: float

    def row(self) -> tuple[str, ...]:
        right = "no" if self.problems else "yes"
        numbers = (self.trials, self.environments, f"{self.seconds:.0f}")
        return (self.name, self.answer, self.verdict, right, *numbers)


def run_case(name: str, folder: Path, limit: float) -> Result:
    """Bisect one case in a database of its own; what the program wrote stays in `folder`."""
    database = folder / f"{name}.db"
    events, log = folder / f"{name}.events.jsonl", folder / f"{name}.log"
    command = [PROGRAM, "run", MATRICES / f"{name}.yaml", "--db", database, "--json"]
    started = time.monotonic()
    with events.open("wb") as out, log.open("wb") as err:
        try:
            code: int | str = subprocess.run(
                command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, timeout=limit, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = f"stopped after {limit:.0f} s"
    seconds = time.monotonic() - started
    report, trouble = read_report(database)
    problems = [trouble] if trouble else check(name, report)
    if problems and code != 0:
        problems.append(f"`bisect-env run` ended with {code}; its last words: {tail(log)}")
    return Result(
        name,
        Truth.load(name).answer(),
        describe(report),
        tuple(problems),
        count(report.get("trials")),
        count(report.get("environments")),
        seconds,
    )


def read_report(database: Path) -> tuple[Mapping[str, Any], str | None]:
    """The newest study's report, or why there is none."""
    command = [PROGRAM, "report", "--db", database, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    try:
        report = json.loads(done.stdout)
    except json.JSONDecodeError:
        last = " ".join(done.stderr.split())[-300:]
        return {}, f"`bisect-env report` ended with {done.returncode} and no JSON: {last}"
    return (report, None) if isinstance(report, dict) else ({}, "the report is no JSON object")


def describe(report: Mapping[str, Any]) -> str:
    """The verdict in a few words: `orjson 3.9.10 → 3.9.11 (confirmed)`."""
    verdict = report.get("verdict") or {}
    bad, good = verdict.get("first_bad") or {}, verdict.get("last_good") or {}
    moved = [
        f"{axis} {good.get(axis, '?')} → {bad.get(axis, '?')}" for axis in bad if bad[axis] != good.get(axis)
    ]
    others = [axis for axis in verdict.get("culprit_axes") or () if bad.get(axis) == good.get(axis)]
    text = ", ".join(moved + [f"{axis} {bad.get(axis)}" for axis in others]) or verdict.get("reason") or "-"
    return f"{text} ({verdict.get('status', 'none')})"


def count(value: Any) -> str:
    """A number, or the length of a list."""
    return str(len(value)) if isinstance(value, list | dict) else "-" if value is None else str(value)


def tail(log: Path) -> str:
    return " ".join(log.read_text(encoding="utf-8", errors="replace").split())[-300:]


def table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in (HEADINGS, *rows)) for i in range(len(HEADINGS))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows]
    heading = "  ".join(text.ljust(width) for text, width in zip(HEADINGS, widths, strict=True))
    return "\n".join(line.rstrip() for line in (heading, "-" * len(heading), *lines))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases (default: all that are not heavy)")
    parser.add_argument("--heavy", action="store_true", help="the cases with large downloads instead")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep databases, events and logs there")
    parser.add_argument("--limit", type=float, default=1800, metavar="SECONDS", help="of one case")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(case_names()))
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(case_names())}")
    names = options.names or [name for name in case_names() if (name in HEAVY) == options.heavy]
    with tempfile.TemporaryDirectory(prefix="bisect-env-cases-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        results = []
        for name in names:
            print(f"{name} ...", file=sys.stderr, flush=True)
            results.append(run_case(name, folder, options.limit))
            print(f"{name}: {'; '.join(results[-1].problems) or 'right'}", file=sys.stderr, flush=True)
    print(table([result.row() for result in results]))
    for result in results:
        for problem in result.problems:
            print(f"{result.name}: {problem}")
    return 1 if any(result.problems for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
