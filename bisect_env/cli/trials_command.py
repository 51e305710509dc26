"""`bisect-env studies` and `bisect-env trials`: look around in the results database."""

from __future__ import annotations

from typing import Annotated

import typer

DatabaseOption = Annotated[
    str | None,
    typer.Option("--db", envvar="BISECT_ENV_DB", help="Results database: a file or a URL."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="A JSON list of objects.")]
CsvOption = Annotated[bool, typer.Option("--csv", help="Comma-separated values.")]

_SHOWN = ("recorded_at", "study", "combination", "outcome", "evidence", "detail", "host", "username")


def studies(db: DatabaseOption = None, as_json: JsonOption = False, as_csv: CsvOption = False) -> None:
    """List the studies in the database, the newest first."""
    from bisect_env.cli.output import as_text, deliver
    from bisect_env.storage.query import ask

    # Of trials alone, an index is enough; what was reused is a trial of another study.
    question = """
        SELECT s.id AS study_id, s.name AS study, s.status, v.status AS verdict,
          (SELECT count(*) FROM trials t WHERE t.study_id = s.id) AS trials,
          (SELECT count(*) FROM reused r WHERE r.study_id = s.id) AS reused,
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
    db: DatabaseOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """List trials, the newest first; JSON and CSV have every column of v_trials."""
    from bisect_env.cli.output import as_text, deliver, named
    from bisect_env.errors import UsageError
    from bisect_env.storage.query import COLUMNS, ask, condition, package_condition

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


def _moment(value: object) -> str:
    # SQLite gives a text, PostgreSQL a moment; both are UTC.
    return str(value)[:19]
