"""Questions to a database with a million trials: `python -m benchmarks.database [--trials N] [--db DB]`.

Every documented question, the report of a study, and what a running study asks for. Each answer is printed
with its time and its query plan's ways into `trials`; the exit code is 1 when one takes longer than two
seconds, or when a question about one study reads the trials of all.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert

from bisect_env.environments.lock import LockedPackage
from bisect_env.environments.lockfiles import make_lock
from bisect_env.matrix.grid import Combination
from bisect_env.report.build import load_report
from bisect_env.report.text import report_text
from bisect_env.storage.query import ask, condition, package_condition
from bisect_env.storage.rows import lock_rows
from bisect_env.storage.store import Store
from bisect_env.storage.tables import METADATA

LIMIT = 2.0
"""Seconds for one answer."""
STUDY_SIZE = 4000
PAGE = Path(__file__).parent.parent / "docs" / "reference" / "database.md"
_MACHINES = [("x86_64", "NVIDIA H100", "570.1"), ("x86_64", "NVIDIA A100", "570.1"), ("aarch64", "", "")]
_PACKAGES = 60


def fill(reference: str, trials: int) -> list[str]:
    """Write studies with trials, the quick way; gives their ids."""
    database = Store.open(reference).database
    chance = random.Random(1)
    studies = [f"{n:032x}" for n in range(1, max(2, trials // STUDY_SIZE) + 1)]
    try:
        with database.engine.begin() as connection:
            locks = _locks(connection)
            for number, study in enumerate(studies):
                _study(connection, study, number, locks, trials // len(studies), chance)
        if database.engine.dialect.name == "postgresql":
            with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql("VACUUM ANALYZE")
    finally:
        database.engine.dispose()
    return studies


def _locks(connection: Connection) -> list[str]:
    locks = []
    for torch in range(20):
        for cuml in range(20):
            versions = {"torch": f"2.{torch}.0", "cuml": f"24.{cuml:02d}.0"}
            versions |= {f"package-{n}": f"{n}.{torch}" for n in range(_PACKAGES)}
            packages = [
                LockedPackage(name, version, "pip", f"https://files.example/{name}-{version}.whl", "0" * 64)
                for name, version in versions.items()
            ]
            locks.append(make_lock("3.11", "linux-64", packages))
    pairs = [lock_rows(lock) for lock in locks]
    connection.execute(insert(METADATA.tables["locks"]), [row.model_dump() for row, _ in pairs])
    rows = [row.model_dump() for _, packages in pairs for row in packages]
    connection.execute(insert(METADATA.tables["packages"]), rows)
    return [lock.content_hash for lock in locks]


def _study(
    connection: Connection, study: str, number: int, locks: list[str], trials: int, chance: random.Random
) -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=number)
    grid = [
        {
            "name": "torch",
            "kind": "package",
            "direction": "regression",
            "values": [f"2.{n}.0" for n in range(20)],
        }
    ]
    verdict = {
        "status": "confirmed",
        "kind": "boundary",
        "first_bad": {"torch": "2.10.0"},
        "last_good": {"torch": "2.9.0"},
        "culprit_axes": ["torch"],
        "probability": 0.97,
    }
    row: dict[str, Any] = {"id": study, "name": f"study-{number}", "digest": study, "status": "finished"}
    row |= {"created_at": began, "updated_at": began, "finished_at": began, "exclude_newer": began}
    row |= {"version": "0", "host": "here", "username": "ann", "matrix_path": "m.yaml", "description": ""}
    row |= {"grid": grid, "settings": {}, "target": {}, "verdict": verdict}
    row |= {"matrix_text": "", "files": [], "fresh": False}
    connection.execute(insert(METADATA.tables["studies"]), [row])
    first = number * 20 + 1
    chosen = chance.sample(locks, 20)
    combinations = [
        {"id": first + n, "study_id": study, "key": Combination.of({"torch": f"2.{n}.0"}).key}
        | {"status": "solvable", "lock_hash": chosen[n], "reason": ""}
        for n in range(20)
    ]
    connection.execute(insert(METADATA.tables["combinations"]), combinations)
    machine = _MACHINES[number % 3]
    rows, members = [], []
    for n in range(trials):
        which = chance.randrange(20)
        bad = which >= 10 and chance.random() < 0.3
        at = began + timedelta(seconds=n)
        rows.append(
            {"trial_id": uuid.UUID(int=chance.getrandbits(128)).hex, "study_id": study}
            | {
                "sequence": number * trials + n + 1,
                "lock_hash": chosen[which],
                "returncode": -11 if bad else 0,
            }
            | {"outcome": "crash" if bad else "pass", "phase": "body", "iterations": 0}
            | {"started_at": at, "recorded_at": at, "duration": 1.5, "hash_seed": n}
            | {"copies": {"crash" if bad else "pass": 1}, "host": f"host-{n % 7}", "worker": f"w-{n % 8}"}
            | {"named": []}
            | {"gpu": f"GPU-{n % 8}", "detail": "SIGSEGV" if bad else ""}
            | {"signature": f'[1,"crash:SIGSEGV","body","x.py:f{n % 5}"]' if bad else ""}
            | {"trial_key": f"{number % 50:032x}{which:032x}"}
            | dict(zip(("cpu", "gpu_model", "driver"), machine, strict=True))
        )
        members.append(
            {"study_id": study, "trial_sequence": number * trials + n + 1, "combination_id": first + which}
            | {"reused": False, "matched": True, "evidence": "bad" if bad else "good"}
        )
    connection.execute(insert(METADATA.tables["trials"]), rows)
    connection.execute(insert(METADATA.tables["study_trials"]), members)


def questions(reference: str) -> dict[str, str]:
    """Name to SQL: what the documentation shows, and what `trials` asks."""
    examples = re.findall(r"\n([^\n]+\?)\n\n```sql\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    found: dict[str, str] = dict(examples)
    wanted = [condition("outcome=crash"), condition("gpu_model~H100"), str(package_condition("cuml=24.04.*"))]
    found["trials --where … --with cuml=24.04.*"] = (
        f"SELECT * FROM v_trials WHERE {' AND '.join(wanted)} ORDER BY recorded_at DESC LIMIT 100"
    )
    found["the combinations of one study"] = "SELECT * FROM v_combinations WHERE study_id = '{study}'"
    found["the trials of one study, by its name"] = (
        f"SELECT * FROM v_trials WHERE {condition('study=study-1')} ORDER BY recorded_at DESC LIMIT 100"
    )
    found["the crashes of one study"] = (
        "SELECT * FROM v_trials WHERE study_id = '{study}' AND outcome = 'crash' "
        "ORDER BY recorded_at LIMIT 100"
    )
    return found


def plan(reference: str, sql: str) -> list[str]:
    """How `trials` is read, in the database's own words."""
    database = Store.open(reference, read_only=True).database
    try:
        with database.reader.connect() as connection:
            if connection.dialect.name == "sqlite":
                rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}").all()
                lines = [str(row[3]) for row in rows]
                return [line for line in lines if re.match(r"(SCAN|SEARCH) (t|trials|r|reused)\b", line)]
            explained = connection.execution_options(no_parameters=True).exec_driver_sql(f"EXPLAIN {sql}")
            return [line.strip() for (line,) in explained if "Scan" in line and "trials" in line]
    finally:
        database.engine.dispose()


def timed(answer: Callable[[], object]) -> float:
    """Seconds of the second time: the first fills the caches of the file system."""
    answer()
    began = time.perf_counter()
    answer()
    return time.perf_counter() - began


def main() -> int:
    """Measure; 1 when something is over its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1_000_000)
    parser.add_argument("--db", help="an empty database; default: a temporary SQLite file")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bisect-env-bench-") as folder:
        reference = chosen.db or str(Path(folder) / "results.sqlite")
        began = time.perf_counter()
        studies = fill(reference, chosen.trials)
        print(
            f"{chosen.trials} trials in {len(studies)} studies: {time.perf_counter() - began:.0f} s to write"
        )
        return measure(reference, studies[len(studies) // 2])


def measure(reference: str, study: str) -> int:
    """Ask everything; 1 when something is over its limit."""
    failed = False

    def tell(name: str, seconds: float, ways: list[str], *, one_study: bool) -> None:
        nonlocal failed
        all_read = one_study and any(way.startswith(("SCAN t", "Seq Scan", "Parallel Seq")) for way in ways)
        failed |= seconds > LIMIT or all_read
        mark = "too slow" if seconds > LIMIT else "reads all trials" if all_read else "ok"
        print(f"{seconds:7.3f} s  {mark:<9} {name}")
        for way in dict.fromkeys(ways):
            print(f"{'':21}{way}")

    with Store.open(reference, read_only=True) as store:
        tell("report", timed(lambda: report_text(load_report(store, study))), [], one_study=True)
        tell("studies", timed(store.studies), [], one_study=False)
        known = store.study_trials(study)
        known.look()
        tell("news of a running study", timed(known.look), [], one_study=True)
        tell("what to collect", timed(lambda: store.collect(dry=True)), [], one_study=False)
    for name, template in questions(reference).items():
        sql = template.replace("{study}", study)

        def answer(sql: str = sql) -> None:
            with ask(reference, sql) as (_, rows):
                list(rows)

        tell(name, timed(answer), plan(reference, sql), one_study="{study}" in template)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
