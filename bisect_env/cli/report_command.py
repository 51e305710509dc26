"""`bisect-env report`: show what studies found, their trials, and how environments differ."""

from __future__ import annotations

import string
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import platformdirs
import typer

from bisect_env.answers.untrusted import clean, clean_lines
from bisect_env.cli.commands import with_groups
from bisect_env.cli.options import STUDY, DatabaseOption, JsonOption, StudyArgument, opt
from bisect_env.cli.output import deliver, deliver_rows, emit, in_own_form, named, tell, to_repeat
from bisect_env.cli.references import find_study
from bisect_env.engine.stored import stored_combination
from bisect_env.environments.difference import PackageChange, counted, difference, project_urls
from bisect_env.environments.lock import Lock
from bisect_env.environments.lockfiles import read_lock
from bisect_env.environments.settings import default_cache_dir
from bisect_env.errors import ExitCode, UsageError
from bisect_env.report import words
from bisect_env.report.build import load_report
from bisect_env.report.formats import formatted, report_schema_text
from bisect_env.report.model import Report
from bisect_env.report.one_trial import trial_facts, trial_logs, trial_text
from bisect_env.report.text import print_report
from bisect_env.secrets import public_json
from bisect_env.storage.backend import TRIAL_COLUMNS
from bisect_env.storage.entries import Study
from bisect_env.storage.query import ask, condition, package_condition
from bisect_env.storage.store import Store


class Format(StrEnum):
    """Formats of a report."""

    TEXT = "text"
    HTML = "html"
    MARKDOWN = "md"
    JSON = "json"
    JUNIT = "junit"
    CSV = "csv"


TRIALS = "Trials"


def show_report(document: Report | dict[str, object], *, details: bool = False) -> None:
    """Print a report on stdout, and on stderr what the commands in it need besides."""
    print_report(document, details=details, completed=in_own_form)
    if note := to_repeat(sys.argv[1:]):
        tell(clean_lines(note))


@with_groups()
def report(
    study: StudyArgument = None,
    *,
    form: Annotated[Format, opt("--format -f", "Format of the report.")] = Format.TEXT,
    output: Annotated[Path | None, opt("--output -o", "Write to this file; default: stdout.")] = None,
    details: Annotated[
        bool, opt("--details", "Show every combination, and everything that is known of the answer.")
    ] = False,
    in_browser: Annotated[bool, opt("--open", "Open the report in a browser, as an HTML file.")] = False,
    studies: Annotated[bool, opt("--list", "List the studies, the newest first.")] = False,
    trials: Annotated[
        bool, opt("--trials", "List trials, the newest first: of a named study, or of all.")
    ] = False,
    diff: Annotated[
        tuple[str, str] | None,
        opt(
            "--diff",
            "List the packages that differ between two combinations (last-good first-bad), lock files "
            "or hashes of locks.",
            metavar="FROM TO",
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        opt(
            "--where",
            "Only trials with outcome=crash, gpu_model~H100, torch=2.4.1 (an axis), or SQL on v_trials.",
            TRIALS,
        ),
    ] = None,
    package: Annotated[
        list[str] | None, opt("--with", "Only trials with this package, such as cuml=24.4.*", TRIALS)
    ] = None,
    limit: Annotated[int, opt("--limit", "At most so many.", TRIALS, min=1, max=10_000_000)] = 100,
    trial: Annotated[
        str | None,
        opt(
            "--trial",
            "Show one trial, by the beginning of its id: how it ran, stdout, stderr and stack.",
            TRIALS,
            metavar="ID",
        ),
    ] = None,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, opt("--csv", "Lists as comma-separated values.", TRIALS)] = False,
    schema: Annotated[bool, opt("--schema", "Print the JSON schema of reports.", STUDY)] = False,
    db: DatabaseOption = None,
) -> None:
    """Show what a study found: verdict, rates, combinations and failures.

    Ends with 0 if there is a verdict, and with 1 if there is none yet. `--list`, `--trials` and `--diff` show
    the studies, trials and packages behind it; with `--json` and `--csv` lists have every column.
    """
    if schema:
        deliver(report_schema_text(), output)
    elif studies:
        _list_studies(db, as_json=as_json, as_csv=as_csv)
    elif trial is not None:
        _show_trial(trial, db, as_json=as_json)
    elif trials or where or package:
        conditions = [condition(text) for text in where or ()] + [_package(text) for text in package or ()]
        if study is not None:
            with Store.open(db, read_only=True) as store:
                conditions.append(f"study_id = '{find_study(study, store).id}'")
        _list_trials(conditions, limit, db, as_json=as_json, as_csv=as_csv)
    elif diff is not None:
        _show_difference(diff, study, db, as_json=as_json)
    else:
        _show(study, db, Format.JSON if as_json else form, output, details=details, in_browser=in_browser)


def _show(
    reference: str | None,
    db: str | None,
    form: Format,
    output: Path | None,
    *,
    details: bool,
    in_browser: bool,
) -> None:
    form = Format.HTML if in_browser else form
    on_terminal = form is Format.TEXT and output is None
    with Store.open(db, read_only=True) as store:
        found = load_report(store, find_study(reference, store).id, posterior=not on_terminal)
    if in_browser and output is None:
        output = platformdirs.user_cache_path("bisect-env") / "reports" / f"{found.study.id}.html"
        output.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if on_terminal:
        show_report(found, details=details)
    else:
        deliver(formatted(found, form.value), output)
    if in_browser and output is not None:
        webbrowser.open(output.absolute().as_uri())
        tell(f"opened {output}")
    raise typer.Exit(int(ExitCode.VERDICT if found.has_verdict else ExitCode.NO_VERDICT))


# --------------------------------------------------------------------------------------------------
# Studies and trials as lists.

_STUDIES = """
    SELECT s.id AS study_id, s.name AS study, s.status, v.status AS verdict,
      (SELECT count(*) FROM trials t WHERE t.study_id = s.id) AS trials,
      (SELECT count(*) FROM study_trials m WHERE m.study_id = s.id AND m.reused) AS reused,
      s.created_at, s.username, s.host, v.sentence
    FROM studies s LEFT JOIN v_verdicts v ON v.study_id = s.id
    ORDER BY s.created_at DESC, s.id
"""
# Of trials alone, an index is enough; what was reused is a trial of another study.
_SHOWN = ("recorded_at", "study", "combination", "outcome", "evidence", "detail", "host", "username")


def _list_studies(db: str | None, *, as_json: bool, as_csv: bool) -> None:
    with ask(db, _STUDIES) as (names, found):
        rows = [list(row) for row in found]
    if not as_json and not as_csv:
        for row in rows:
            row[0], row[6] = str(row[0])[:8], _moment(row[6])
    deliver_rows(names, rows, as_json=as_json, as_csv=as_csv)


def _list_trials(
    conditions: Sequence[str], limit: int, db: str | None, *, as_json: bool, as_csv: bool
) -> None:
    columns = tuple(TRIAL_COLUMNS) if as_json or as_csv else _SHOWN
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
    deliver_rows(names, rows, as_json=as_json, as_csv=as_csv)
    if len(rows) == limit:
        tell(f"the newest {limit}; `--limit` shows more")


def _package(text: str) -> str:
    made = package_condition(text)
    if made is None:
        raise UsageError(f"--with: {text!r} names no package", remedy="write it like cuml=24.4.*")
    return made


def _show_trial(beginning: str, db: str | None, *, as_json: bool) -> None:
    """Print everything that is known about one trial."""
    remedy = "`bisect-env report --trials --json` lists them"
    if not beginning or not set(beginning) <= set(string.ascii_letters + string.digits + "-_"):
        raise UsageError(f"--trial: {beginning!r} is no id", remedy=remedy)
    escaped = beginning.replace("_", "\\_")
    question = f"SELECT trial_id FROM v_trials WHERE trial_id LIKE '{escaped}%' ESCAPE '\\' LIMIT 2"
    with ask(db, question) as (_, found):
        ids = [str(row[0]) for row in found]
    if len(ids) != 1:
        many = "more than one trial has" if ids else "no trial has"
        raise UsageError(f"{many} an id that begins with {beginning}", remedy=remedy)
    with Store.open(db, read_only=True) as store:
        whole = store.trial(ids[0])
        if whole is None:
            raise UsageError(f"the trial {ids[0]} is gone", remedy=remedy)
        evidence = store.evidence(whole)
    if as_json:
        facts = {**trial_facts(whole, evidence), **trial_logs(whole), "logs_collected": whole.collected}
        emit(public_json(facts))
    else:
        deliver(trial_text(whole, evidence))


def _moment(value: object) -> str:
    # SQLite gives a text, PostgreSQL a moment; both are UTC.
    return str(value)[:19]


# --------------------------------------------------------------------------------------------------
# Packages that differ between two environments.

_HASH_DIGITS = 8
_SIGNS = {"added": "+", "removed": "-", "changed": "~", "rebuilt": "≈", "moved": "→"}


def _show_difference(sides: tuple[str, str], study: str | None, db: str | None, *, as_json: bool) -> None:
    (old_name, old), (new_name, new), axes = _sides(sides, study, db)
    places = default_cache_dir() / "prefixes"
    urls = project_urls(places / lock.content_hash for lock in (new, old))
    changes = difference(old, new, axes, urls)
    if not as_json:
        deliver(_text(old_name, new_name, changes))
        return
    ends = {"before": (old_name, old), "after": (new_name, new)}
    named_ends = {end: {"name": name, "lock": lock.content_hash} for end, (name, lock) in ends.items()}
    emit({"schema": 1, **named_ends, "changes": [asdict(change) for change in changes]})


def _sides(
    sides: tuple[str, str], reference: str | None, db: str | None
) -> tuple[tuple[str, Lock], tuple[str, Lock], Sequence[str]]:
    files = {side: read_lock(Path(side)) for side in sides if side.endswith((".yml", ".yaml"))}
    if len(files) == len(set(sides)):
        return (sides[0], files[sides[0]]), (sides[1], files[sides[1]]), ()
    with Store.open(db, read_only=True) as store:
        found = find_study(reference, store)
        first, second = (
            (side, files[side]) if side in files else _stored(store, found, side) for side in sides
        )
        return first, second, found.definition.packages


def _stored(store: Store, study: Study, side: str) -> tuple[str, Lock]:
    if len(side) >= _HASH_DIGITS and set(side) <= set(string.hexdigits):
        hashes = {s.lock_hash for s in store.combinations(study.id) if s.lock_hash}
        matching = [known for known in hashes if known.startswith(side.lower())]
        lock = store.lock(matching[0]) if len(matching) == 1 else None
        if lock is None:
            raise UsageError(
                f"no lock of the study {study.name} has a hash that begins with {side}",
                remedy="`bisect-env report --format json` lists each combination with its lock",
            )
        return lock.content_hash[:12], lock
    one = stored_combination(store, study, side)
    return str(one.combination), one.lock


def _text(before: str, after: str, changes: Sequence[PackageChange]) -> str:
    rows = []
    for one in changes:
        name, old, new, note = words.change(one)
        rows.append([_SIGNS[one.kind], name, old, new, "  ".join(filter(None, (note, clean(one.home))))])
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
    lines = [f"from {clean(before)}", f"to   {clean(after)}", counted(changes), ""]
    split = sum(change.of_axis for change in changes)
    for position, row in enumerate(rows):
        if 0 < split == position:
            lines.append("")
        padded = [f"{cell:<{width}}" for cell, width in zip(row, [*widths, 0], strict=True)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines).rstrip("\n") + "\n"
