"""`bisect-env studies` and `trials`: list what the results database holds."""

from __future__ import annotations

import json
import string
from typing import Annotated

import typer

from bisect_env.answers.untrusted import clean, clean_lines
from bisect_env.cli.options import DatabaseOption
from bisect_env.cli.output import as_text, deliver, named
from bisect_env.errors import UsageError
from bisect_env.matrix.secrets import public_json
from bisect_env.matrix.signatures import shown
from bisect_env.storage.query import COLUMNS, ask, condition, package_condition
from bisect_env.storage.store import Store

JsonOption = Annotated[bool, typer.Option("--json", help="A JSON list of objects.")]
CsvOption = Annotated[bool, typer.Option("--csv", help="Comma-separated values.")]

_SHOWN = ("recorded_at", "study", "combination", "outcome", "evidence", "detail", "host", "username")


def studies(db: DatabaseOption = None, as_json: JsonOption = False, as_csv: CsvOption = False) -> None:
    """List the studies in the database, the newest first."""
    # Of trials alone, an index is enough; what was reused is a trial of another study.
    question = """
        SELECT s.id AS study_id, s.name AS study, s.status, v.status AS verdict,
          (SELECT count(*) FROM trials t WHERE t.study_id = s.id) AS trials,
          (SELECT count(*) FROM study_trials m WHERE m.study_id = s.id AND m.reused) AS reused,
          s.created_at, s.username, s.host, v.sentence
        FROM studies s LEFT JOIN v_verdicts v ON v.study_id = s.id
        ORDER BY s.created_at DESC, s.id
    """
    with ask(db, question) as (names, found):
        rows = [list(row) for row in found]
    if not as_json and not as_csv:
        for row in rows:
            row[0], row[6] = str(row[0])[:8], _moment(row[6])
    deliver(as_text(names, rows, as_json=as_json, as_csv=as_csv), None)


def trials(
    where: Annotated[
        list[str] | None,
        typer.Option(
            help="A condition: outcome=crash, gpu_model~H100, torch=2.4.1 (an axis), or SQL on v_trials; "
            "may be given several times."
        ),
    ] = None,
    package: Annotated[
        list[str] | None,
        typer.Option("--with", help="In whose environment is this package, such as cuml=24.4.*"),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000_000, help="The newest so many.")] = 100,
    show: Annotated[
        str | None,
        typer.Option(
            "--show",
            metavar="ID",
            help="One trial instead, by its id or the beginning of it: how it ran, stdout, stderr and stack.",
        ),
    ] = None,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """List trials, the newest first; JSON and CSV have every column of v_trials."""
    if show is not None:
        deliver(_one_trial(show, db, as_json=as_json), None)
        return

    conditions = [condition(text) for text in where or ()]
    for text in package or ():
        made = package_condition(text)
        if made is None:
            raise UsageError(f"--with: {text!r} names no package", remedy="write it like cuml=24.4.*")
        conditions.append(made)
    columns = COLUMNS if as_json or as_csv else _SHOWN
    question = (
        f"SELECT {', '.join(columns)} FROM v_trials "
        + (f"WHERE {' AND '.join(conditions)} " if conditions else "")
        + f"ORDER BY recorded_at DESC LIMIT {limit}"
    )
    with ask(db, question) as (names, found):
        rows = [list(row) for row in found]
    if not as_json and not as_csv:
        for row in rows:
            row[0], row[2] = _moment(row[0]), named(str(row[2]))
    deliver(as_text(names, rows, as_json=as_json, as_csv=as_csv), None)
    if len(rows) == limit:
        typer.echo(f"the newest {limit}; `--limit` shows more", err=True)


def _one_trial(beginning: str, db: str | None, *, as_json: bool) -> str:
    """Everything that is known about one trial."""
    if not beginning or not set(beginning) <= set(string.ascii_letters + string.digits + "-_"):
        raise UsageError(f"--show: {beginning!r} is no id", remedy="copy one from a report or from `trials`")
    escaped = beginning.replace("_", "\\_")
    question = f"SELECT trial_id FROM v_trials WHERE trial_id LIKE '{escaped}%' ESCAPE '\\' LIMIT 2"
    with ask(db, question) as (_, found):
        ids = [str(row[0]) for row in found]
    if len(ids) != 1:
        many = "more than one trial has" if ids else "no trial has"
        raise UsageError(
            f"{many} an id that begins with {beginning}", remedy="`bisect-env trials --json` lists them"
        )
    with Store.open(db, read_only=True) as store:
        whole = store.trial(ids[0])
        if whole is None:
            raise UsageError(f"the trial {ids[0]} is gone", remedy="`bisect-env trials --json` lists them")
        evidence = store.evidence(whole)
    record = whole.record
    facts: dict[str, object] = {
        "trial": record.trial_id,
        "study": whole.study_id,
        "combination": str(record.combination),
        "outcome": str(record.outcome),
        "evidence": str(evidence),
        "detail": record.detail,
        "signature": shown(record.signature),
        "exit status": record.returncode,
        "phase": str(record.phase),
        "started": f"{record.started_at:%Y-%m-%d %H:%M:%S} UTC",
        "seconds": round(record.duration, 3),
        "host": record.host,
        "worker": record.worker,
        "GPUs": record.gpu,
        "hash seed": record.hash_seed,
        "environment": record.lock_hash,
    }
    logs = {"stdout": record.stdout, "stderr": record.stderr, "stack": record.stack}
    if as_json:
        return json.dumps(public_json({**facts, **logs, "logs_collected": whole.collected}), indent=1) + "\n"
    lines = [f"{name:<12} {clean(str(value))}" for name, value in facts.items() if value not in ("", None)]
    if whole.collected:
        lines.append("some of its logs were collected to make room")
    for name, text in logs.items():
        lines += ["", f"--- {name}" + ("" if text.strip() else " (empty)")]
        lines += clean_lines(text).rstrip("\n").splitlines() if text.strip() else []
    return "\n".join(lines) + "\n"


def _moment(value: object) -> str:
    # SQLite gives a text, PostgreSQL a moment; both are UTC.
    return str(value)[:19]
