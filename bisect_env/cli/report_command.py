"""`bisect-env report`: show what studies found, their trials, and how environments differ."""

from __future__ import annotations

import contextlib
import json
import shutil
import string
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Annotated, NoReturn

import platformdirs
import typer

from bisect_env.answers.phrases import aligned, and_more
from bisect_env.answers.untrusted import clean, clean_lines, write
from bisect_env.cli.asking import A_QUESTION, Flags, given_options
from bisect_env.cli.commands import with_groups
from bisect_env.cli.options import (
    QUESTION,
    DatabaseOption,
    SchemaOption,
    ShownOptions,
    TableOptions,
    TargetArgument,
    opt,
    output_option,
    refuse_others,
)
from bisect_env.cli.output import deliver, deliver_rows, emit, in_own_form, tell, to_repeat
from bisect_env.cli.target import find_study
from bisect_env.engine.stored import stored_combination
from bisect_env.environments.difference import PackageChange, counted, difference, project_urls
from bisect_env.environments.lock import Lock
from bisect_env.environments.lockfiles import read_lock
from bisect_env.environments.settings import default_cache_dir
from bisect_env.errors import ExitCode, UsageError
from bisect_env.report.build import load_report
from bisect_env.report.formats import Format, formatted, report_schema_text
from bisect_env.report.model import Report
from bisect_env.report.one_trial import trial_facts, trial_logs, trial_text
from bisect_env.report.text import report_text
from bisect_env.report.words import change as change_words
from bisect_env.report.words import named
from bisect_env.secrets import public_json
from bisect_env.storage.backend import TRIAL_COLUMNS
from bisect_env.storage.entries import Study
from bisect_env.storage.query import (
    ask,
    condition,
    evidence_condition,
    package_condition,
    refuse_unknown_names,
)
from bisect_env.storage.store import Store
from bisect_env.storage.weighing import weighed_study
from bisect_env.trials.records import Evidence

TRIALS = "Trials"
_LOCKS = (".yml", ".yaml")
_LIMIT = 100
"""Default for the maximum number of listed trials."""


def show_report(report: Report, *, details: bool = False) -> None:
    """Print a report on stdout, and on stderr the options to add to the commands in the report."""
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else None
    write(in_own_form(report_text(report, details=details, terminal=terminal, width=width)), sys.stdout)
    if note := to_repeat(sys.argv[1:]):
        tell(clean_lines(note))


def exit_code(report: Report) -> int:
    """Return the exit code of a command that ends with a report: 0 if the report has an answer, else 1."""
    return int(ExitCode.VERDICT if report.has_verdict else ExitCode.NO_VERDICT)


def print_answer(report: Report, shown: ShownOptions) -> None:
    """Print the report of a finished command, as text or as JSON."""
    if shown.as_json:
        emit({"event": "verdict", **report.document()})
    else:
        show_report(report)


@with_groups(panel=QUESTION)
def report(
    context: typer.Context,
    words: TargetArgument = None,
    *,
    form: Annotated[Format, opt("--format -f", "Format of the report.")] = Format.TEXT,
    output: Annotated[Path | None, output_option()] = None,
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
            "--diff FROM TO",
            "List the packages that differ between two combinations (last-good first-bad) or lock files.",
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        opt(
            "--where CONDITION",
            "Only trials with outcome=crash, gpu_model~H100, torch=2.4.1 (an axis), or SQL on v_trials.",
            TRIALS,
        ),
    ] = None,
    installed: Annotated[
        list[str] | None,
        opt("--installed PACKAGE", "Only trials with this package installed, such as cuml=24.4.*", TRIALS),
    ] = None,
    limit: Annotated[
        int | None,
        opt(
            "--limit N",
            "Maximum number of trials to list; default: 100.",
            TRIALS,
            min=1,
            max=10_000_000,
            show_default=False,
        ),
    ] = None,
    trial: Annotated[
        str | None,
        opt(
            "--trial ID",
            "Show one trial, by the beginning of its id: how it ran, stdout, stderr and stack.",
            TRIALS,
        ),
    ] = None,
    flags: Flags,
    table: TableOptions,
    schema: SchemaOption = False,
    db: DatabaseOption = None,
) -> None:
    """Show what a study found: verdict, rates, combinations, failures.

    The report goes to stdout, or into the file of `--output`. The exit code is 0 if there is a verdict, else
    1. `--list`, `--trials` and `--diff` show the studies, trials and packages behind it; with `--json` and
    `--csv`, lists have every column.
    """
    given = given_options(context)
    is_named = A_QUESTION in given
    implied = Format.CSV if table.as_csv else Format.JSON if table.as_json else Format.TEXT
    implied = Format.HTML if in_browser else implied
    wants_trials = bool(trials or where or installed)
    if form in (Format.TEXT, implied):
        given = [name for name in given if name != "--format"]
    if wants_trials and not trials:
        given.append("--trials")
    _refuse_without_effect(given, diff or ())
    if in_browser and str(output) == "-":
        raise UsageError("--open opens a file, and `--output -` writes none", remedy="name a file")
    locks = {side: read_lock(Path(side)) for side in diff or () if side.endswith(_LOCKS)}
    if schema:
        deliver(report_schema_text(), output)
    elif studies:
        _list_studies(db, table, output)
    elif diff is not None and len(locks) == len(set(diff)):
        _show_difference([(side, locks[side]) for side in diff], (), table, output)
    else:
        with Store.open(db, read_only=True) as store:
            if trial is not None:
                _show_trial(trial, store, db, table, output)
                return
            study = find_study(words, flags, store) if is_named or not wants_trials else None
            if study is None or wants_trials:
                _list_trials(study, where or (), installed or (), limit or _LIMIT, store, db, table, output)
            elif diff is not None:
                sides = [
                    (side, locks[side]) if side in locks else _stored(store, study, side) for side in diff
                ]
                _show_difference(sides, study.definition.packages, table, output)
            else:
                _show(
                    study,
                    store,
                    form if implied is Format.TEXT else implied,
                    output,
                    details=details,
                    in_browser=in_browser,
                )


_MODES = {
    "--schema": ("--output",),
    "--list": ("--output", "--json", "--csv"),
    "--trial": ("--output", "--json"),
    "--trials": (A_QUESTION, "--where", "--installed", "--limit", "--output", "--json", "--csv"),
    "--diff": (A_QUESTION, "--output", "--json"),
    # These formats have every detail.
    "--open": (A_QUESTION, "--output", "--details"),
    "--json": (A_QUESTION, "--output", "--details"),
    "--csv": (A_QUESTION, "--output", "--details"),
}
"""The option that chooses a mode of the command, to the options that have an effect beside it.

The first mode whose option is given is the mode of the command: `--list --json` is a list.
"""


def _refuse_without_effect(given: Sequence[str], sides: Sequence[str]) -> None:
    """Raise an error if options are given that have no effect beside the others.

    Args:
        given: Names of the options that were given.
        sides: Values of `--diff`.

    Raises:
        UsageError: There are such options.
    """
    mode = next(filter(given.__contains__, _MODES), None)
    if mode is None:
        refuse_others("a report", {"--limit"}.intersection(given))
        return
    from_files = mode == "--diff" and all(side.endswith(_LOCKS) for side in sides)
    refuse_others(mode, given, [one for one in _MODES[mode] if not from_files or one != A_QUESTION])


def _show(
    study: Study, store: Store, form: Format, output: Path | None, *, details: bool, in_browser: bool
) -> NoReturn:
    found = load_report(store, study.id)
    if in_browser and output is None:
        # Not in the cache of environments, which users may share.
        output = platformdirs.user_cache_path("bisect-env") / "reports" / f"{study.id}.html"
        with contextlib.suppress(OSError):  # `deliver` says that there is no such directory
            output.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if form is Format.TEXT and output is None:
        show_report(found, details=details)
    else:
        deliver(formatted(found, form), output)
    if in_browser and output is not None:
        webbrowser.open(output.absolute().as_uri())
        tell(f"opened {output}")
    raise typer.Exit(exit_code(found))


# --------------------------------------------------------------------------------------------------
# Studies and trials as lists.

_STUDIES = """
    SELECT s.id AS study_id, s.name AS study, s.status, v.status AS verdict,
      (SELECT count(*) FROM trials t WHERE t.study_id = s.id) AS trials,
      (SELECT count(*) FROM study_trials m WHERE m.study_id = s.id AND m.reused) AS reused,
      s.created_at, s.username, s.host, v.sentence, v.kind, v.culprit_axes
    FROM studies s LEFT JOIN v_verdicts v ON v.study_id = s.id
    ORDER BY s.created_at DESC, s.id
"""
# Counting trials alone needs only an index. A reused trial belongs to another study.
_CULPRITS = 2
"""Number of packages that the list of studies names as the culprit of a failure."""
_SHOWN = ("recorded_at", "study", "combination", "outcome", "evidence", "detail", "host", "username")


def _list_studies(db: str | None, table: TableOptions, output: Path | None) -> None:
    with ask(db, _STUDIES) as (names, found):
        rows = [list(row) for row in found]
    _weigh_anew(db, rows, names.index("verdict"), names.index("sentence"))
    if not table.as_json and not table.as_csv:
        for row in rows:
            culprits, kind = row.pop(), row.pop()
            row[0], row[6] = str(row[0])[:8], _moment(row[6])
            if kind == "explanation" and (packages := json.loads(str(culprits))):
                row[3] = f"culprit {and_more(packages, _CULPRITS)}"
        names = names[:-2]
    deliver_rows(names, rows, table, output)


def _weigh_anew(db: str | None, rows: Sequence[list[object]], status: int, sentence: int) -> None:
    """Replace the verdicts of listed studies that are older than some of their trials, as reports do.

    Args:
        db: The database.
        rows: The studies; the first column is the id.
        status: Column of the verdict's status.
        sentence: Column of the verdict's sentence.
    """
    with Store.open(db, read_only=True) as store:
        studies = {study.id: study for study in store.studies()}
        for row in rows:
            study = studies.get(str(row[0]))
            if study is not None and weighed_study(store, study).verdict != study.verdict:
                found = load_report(store, study.id).verdict
                row[status], row[sentence] = found.status, found.sentence


def _list_trials(
    study: Study | None,
    where: Sequence[str],
    installed: Sequence[str],
    limit: int,
    store: Store,
    db: str | None,
    table: TableOptions,
    output: Path | None,
) -> None:
    """Print the newest trials that meet all conditions.

    The evidence of a trial (good, bad, void, …) is computed from all trials of its study. The column
    `evidence` of the view repeats this only for SQL that users write.
    """

    @cache
    def evidence(study_id: str) -> dict[str, Evidence]:
        return {trial.trial_id: trial.evidence for trial in store.trials(study_id)}

    is_short = not table.as_json and not table.as_csv
    columns = _SHOWN if is_short else tuple(TRIAL_COLUMNS)
    wanted = [evidence_condition(text) for text in where]
    conditions = [condition(text) for text, one in zip(where, wanted, strict=True) if one is None]
    refuse_unknown_names(db, where)
    conditions += map(package_condition, installed)
    accepted = set(Evidence).intersection(*(one for one in wanted if one is not None))
    if study is not None:
        conditions.append(f"study_id = '{study.id}'")
    question = (
        f"SELECT trial_id, study_id, {', '.join(columns)} FROM v_trials "
        + (f"WHERE {' AND '.join(conditions)} " if conditions else "")
        + "ORDER BY recorded_at DESC, trial_id"
        # SQL cannot select by evidence: then rows are read until enough of them are accepted.
        + (f" LIMIT {limit}" if len(accepted) == len(Evidence) else "")
    )
    at = columns.index("evidence")
    rows: list[list[object]] = []
    with ask(db, question) as (_, found):
        for trial_id, study_id, *row in found:
            row[at] = said = evidence(study_id).get(trial_id, Evidence.VOID)
            if said in accepted:
                rows.append(row)
            if len(rows) == limit:
                break
    if is_short:
        for row in rows:
            row[0], row[2] = _moment(row[0]), named(dict(json.loads(str(row[2]))))
    deliver_rows(columns, rows, table, output)
    if len(rows) == limit:
        tell(f"the newest {limit}; `--limit` shows more")


def _show_trial(
    beginning: str, store: Store, db: str | None, table: TableOptions, output: Path | None
) -> None:
    """Print everything that is known about one trial."""
    remedy = "`bisect-env report --trials --json` lists them"
    if not beginning or not set(beginning) <= set(string.ascii_letters + string.digits + "-_"):
        raise UsageError(f"--trial: {beginning!r} is no id", remedy=remedy)
    question = f"SELECT trial_id FROM v_trials WHERE {condition(f'trial_id={beginning}*')} LIMIT 2"
    with ask(db, question) as (_, found):
        ids = [str(row[0]) for row in found]
    if len(ids) != 1:
        many = "more than one trial has" if ids else "no trial has"
        raise UsageError(f"{many} an id that begins with {beginning}", remedy=remedy)
    whole = store.trial(ids[0])
    if whole is None:
        raise UsageError(f"the trial {ids[0]} is gone", remedy=remedy)
    evidence = store.evidence(whole)
    if table.as_json:
        facts = {**trial_facts(whole, evidence), **trial_logs(whole), "logs_collected": whole.collected}
        emit(public_json(facts), output)
    else:
        deliver(trial_text(whole, evidence), output)


def _moment(value: object) -> str:
    # SQLite returns a text, PostgreSQL a datetime; both are in UTC.
    return str(value)[:19]


# --------------------------------------------------------------------------------------------------
# Packages that differ between two environments.

_SIGNS = {"added": "+", "removed": "-", "changed": "~", "rebuilt": "≈", "moved": "→"}


def _show_difference(
    sides: Sequence[tuple[str, Lock]], axes: Sequence[str], table: TableOptions, output: Path | None
) -> None:
    (old_name, old), (new_name, new) = sides
    places = default_cache_dir() / "prefixes"
    urls = project_urls(places / lock.content_hash for lock in (new, old))
    changes = difference(old, new, axes, urls)
    if not table.as_json:
        deliver(_text(old_name, new_name, changes), output)
        return
    ends = zip(("before", "after"), sides, strict=True)
    named_ends = {end: {"name": name, "lock": lock.content_hash} for end, (name, lock) in ends}
    emit({"schema": 1, **named_ends, "changes": [asdict(change) for change in changes]}, output)


def _stored(store: Store, study: Study, side: str) -> tuple[str, Lock]:
    one = stored_combination(store, study, side)
    return str(one.combination), one.lock


def _text(before: str, after: str, changes: Sequence[PackageChange]) -> str:
    rows = []
    for one in changes:
        name, old, new, note = change_words(one)
        rows.append([_SIGNS[one.kind], name, old, new, "  ".join(filter(None, (note, clean(one.home))))])
    lines = [f"from {clean(before)}", f"to   {clean(after)}", counted(changes), ""]
    split = sum(change.of_axis for change in changes)
    shown = aligned(rows)
    lines += [*shown[:split], *([""] if 0 < split < len(shown) else []), *shown[split:]]
    return "\n".join(lines).rstrip("\n") + "\n"
