"""Converts between table rows and plain data, and checks rows that others may have changed. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model
from sqlmodel import SQLModel

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.chapters import CommitReport, TracedReport
from bisect_env.answers.explanation import Explanation
from bisect_env.answers.verdict_document import AnswerPart, Cell, VerdictDocument
from bisect_env.environments.lock import Lock, LockFileError
from bisect_env.errors import without_kind
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.shared_text import shared_matrix_text
from bisect_env.matrix.signatures import read_signature
from bisect_env.secrets import without_credentials, without_passwords
from bisect_env.storage.entries import (
    AMPLIFIED,
    BUILD_FAILED,
    BUILT,
    COMMIT,
    EXPLAINED,
    TRACED,
    CombinationState,
    CombinationStatus,
    Decision,
    StoredTrial,
    Study,
    StudyDefinition,
    StudyStatus,
    WholeTrial,
)
from bisect_env.storage.tables import (
    ChangedRow,
    CombinationRow,
    DecisionRow,
    LockRow,
    MemberRow,
    PackageRow,
    StudyRow,
    TrialRow,
)
from bisect_env.storage.values import (
    DamageError,
    clean,
    jsonable,
    member,
    public,
    read_json,
    shortened,
)
from bisect_env.trials.judge import TARGET, ChangedEnvironment
from bisect_env.trials.records import Evidence, Machine, Outcome, Phase, TrialFacts, TrialRecord

# --------------------------------------------------------------------------------------------------
# Checks that rows have valid contents, because SQLite does not enforce types. The annotation of a column
# states its type; JSON documents are validated by their models.


class _Ends(AnswerPart):
    good: Cell | None = None
    bad: Cell | None = None


class _Settings(AnswerPart):
    ends: _Ends | None = None


class _File(AnswerPart):
    name: str
    content_hash: str | None
    executable: bool


class _Build(AnswerPart):
    lock: str = ""
    seconds: float | None = None
    reason: str | None = None


class _Amplified(AnswerPart):
    perturbation: dict[str, Any]
    reason: str = ""


_GRID = TypeAdapter(tuple[AxisInfo, ...])
_FILES = TypeAdapter(tuple[_File, ...])
_PAYLOADS: dict[str, type[AnswerPart]] = {
    AMPLIFIED: _Amplified,
    BUILT: _Build,
    BUILD_FAILED: _Build,
    COMMIT: CommitReport,
    EXPLAINED: Explanation,
    TRACED: TracedReport,
}

_TRIAL_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")


@cache
def _columns_of(table: type[SQLModel]) -> TypeAdapter[Any]:
    """Return a validator for the values in a row of a table.

    It is needed because SQLite does not enforce the types of columns.
    """
    columns: dict[str, Any] = {
        name: (Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation, ...)
        for name, field in table.model_fields.items()
    }
    # SQLite turns numbers that are too large into infinity.
    config = ConfigDict(strict=True, allow_inf_nan=False)
    return TypeAdapter(create_model(f"{table.__name__}Columns", __config__=config, **columns))


def _damage(error: ValidationError, where: str, column: str) -> DamageError:
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in (column, *first["loc"]) if part != "")
    return DamageError(where, path, f"it holds {shortened(first['input'])}: {without_kind(first['msg'])}")


def check_row(row: SQLModel, where: str) -> None:
    """Raise an error if a row contains a value that its column does not allow.

    Such a value has another type than the column, or is NaN or an infinity.

    Args:
        row: A row of one of our tables.
        where: Name of the row, for the message.

    Raises:
        DamageError: A column of `row` holds a value of the wrong type, NaN or an infinity.
    """
    columns = {name: getattr(row, name) for name in type(row).model_fields}
    try:
        _columns_of(type(row)).validate_python(columns, strict=True)
    except ValidationError as error:
        raise _damage(error, where, "") from None


def _named(kind: str, row_id: object) -> str:
    """Return a name of a row for error messages, such as `trial 4f0c`.

    An invalid id is quoted.
    """
    return (
        f"{kind} {row_id}"
        if isinstance(row_id, str) and _TRIAL_ID.fullmatch(row_id)
        else f"{kind} {shortened(row_id)}"
    )


# --------------------------------------------------------------------------------------------------
# Conversion between rows and plain data.

LOGS = ("stdout", "stderr", "stack")
"""Artefacts that every trial may have."""
IMPORTED = "imported"
"""The artefact that holds, as JSON, the versions that the script imported; mostly the same for all trials
of a combination, and then stored once."""


_DEFINITION = {one.name for one in fields(StudyDefinition)} & StudyRow.model_fields.keys() - {
    *("grid", "target", "files")
}
"""Fields that are stored without conversion."""


def study_of(row: StudyRow) -> Study:
    """Convert a row of the table of studies to a `Study`.

    Raises:
        DamageError: The stored value is invalid.
    """
    where = _named("study", row.id)
    check_row(row, where)
    _read(_Settings, row.settings, where, "settings")
    _read(_FILES, row.files, where, "files")
    definition = StudyDefinition(
        **{name: getattr(row, name) for name in _DEFINITION},
        grid=_read(_GRID, row.grid, where, "grid"),
        target=_read(TARGET, row.target, where, "target"),
        user=row.username,
    )
    return Study(
        id=row.id,
        definition=definition,
        status=member(StudyStatus, row.status, where),
        verdict=None if row.verdict is None else verdict_of(row.verdict, where),
        created_at=row.created_at,
        updated_at=row.updated_at,
        finished_at=row.finished_at,
    )


def verdict_of(document: object, where: str) -> VerdictDocument:
    """Convert a stored JSON document to a verdict.

    Raises:
        DamageError: The stored value is invalid.
    """
    return _read(VerdictDocument, document, where, "verdict")


_Document = TypeVar("_Document")


def _read(
    kind: TypeAdapter[_Document] | type[_Document], document: object, where: str, column: str
) -> _Document:
    adapter = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
    try:
        # As JSON: strict validation of Python objects refuses lists where the model has tuples.
        return adapter.validate_json(json.dumps(document), strict=True)
    except ValidationError as error:
        raise _damage(error, where, column) from None


def model_value(model: BaseModel) -> dict[str, Any]:
    """Convert a model, such as a verdict, to the JSON object that a column stores."""
    value: dict[str, Any] = jsonable(model.model_dump(mode="json"))
    return value


def grid_value(grid: Sequence[AxisInfo]) -> list[dict[str, Any]]:
    """Convert axes to the list of JSON objects that the column `grid` stores."""
    return [model_value(axis) for axis in grid]


def definition_values(definition: StudyDefinition) -> dict[str, Any]:
    """Return the values of those columns of a study that may change when the study is resumed.

    These are all except its identity and `exclude_newer`.
    """
    return {
        **{name: clean(getattr(definition, name)) for name in ("version", "host", "matrix_path")},
        "username": clean(definition.user),
        "description": public(definition.description),
        "grid": grid_value(definition.grid),
        "settings": jsonable(definition.settings),
        "target": jsonable(definition.target.as_json()),
        "matrix_text": clean(shared_matrix_text(definition.matrix_text)),
    }


def lock_rows(lock: Lock, now: datetime) -> tuple[LockRow, list[PackageRow]]:
    """Convert a lock to database rows: that of the lock, and those of its packages."""
    row = LockRow(
        content_hash=lock.content_hash,
        python=lock.python,
        platform=lock.platform,
        created_at=now,
        text=clean(lock.text),
    )
    packages = [
        PackageRow(
            lock_hash=lock.content_hash,
            manager=package.manager,
            name=package.name,
            version=package.version,
            build=package.build,
            url=without_credentials(package.url),
            sha256=package.sha256,
        )
        for package in lock.packages
    ]
    return row, packages


def lock_of(row: LockRow, packages: list[PackageRow]) -> Lock:
    """Convert the database rows of a lock to a `Lock`, and check the lock against its hash.

    Environments are built from locks, so a lock that somebody else could have written is never used.

    Args:
        row: The row with the text, from which the lock is read.
        packages: Its packages in any order; they must agree with the text.

    Raises:
        DamageError: The text is no valid lock, has another hash, or contradicts the columns.
    """
    from bisect_env.environments.lockfiles import parse_lock  # brings a YAML parser, which few commands need

    where = _named("lock", row.content_hash)
    check_row(row, where)
    try:
        lock = parse_lock(row.text, name="it")
    except LockFileError as error:
        raise DamageError(where, "text", error.what) from None
    if lock.content_hash != row.content_hash:
        raise DamageError(where, "text", f"its content has the hash {lock.content_hash[:12]}")
    for column in ("python", "platform"):
        if getattr(row, column) != getattr(lock, column):
            raise DamageError(where, column, "it is not what the text says")
    for package in packages:
        check_row(package, f"a package of {where}")
    said = sorted((p.manager, p.name, p.version, p.build, p.url, p.sha256) for p in packages)
    if said != sorted((p.manager, p.name, p.version, p.build, p.url, p.sha256) for p in lock.packages):
        raise DamageError(where, "packages", "its packages are not those of the text")
    return lock


def combination_of(row: CombinationRow) -> CombinationState:
    """Convert a row of the table of combinations to a `CombinationState`.

    Raises:
        DamageError: The stored value is invalid.
    """
    where = f"combination {shortened(row.key)} of study {shortened(row.study_id)}"
    check_row(row, where)
    status = member(CombinationStatus, row.status, where)
    return CombinationState(combination_from(row.key, where), status, row.reason, row.lock_hash)


def combination_from(key: object, where: str) -> Combination:
    """Convert the stored text of a combination to a `Combination`.

    Raises:
        DamageError: The key is invalid.
    """
    data = read_json(key)
    pairs = data if isinstance(data, list) else None
    if pairs is None or not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)
        for pair in pairs
    ):
        raise DamageError(where, "key", f"it holds {shortened(key)}, which is no combination")
    return Combination(tuple((axis, value) for axis, value in pairs))


def decision_of(row: DecisionRow) -> Decision:
    """Convert a row of the table of decisions to a `Decision`.

    Raises:
        DamageError: The stored value is invalid.
    """
    where = f"decision {row.id} of study {shortened(row.study_id)}"
    check_row(row, where)
    if row.kind in _PAYLOADS:
        _read(_PAYLOADS[row.kind], row.payload, where, "payload")
    return Decision(row.at, row.kind, row.payload)


def decision_row(study_id: str, kind: str, payload: Mapping[str, Any]) -> DecisionRow:
    """Convert a decision that is made now to a new database row."""
    return DecisionRow(study_id=study_id, at=datetime.now(UTC), kind=clean(kind), payload=jsonable(payload))


_FACTS = [one.name for one in fields(TrialFacts) if one.name in TrialRow.model_fields]
_MACHINE = [one.name for one in fields(Machine)]
_STORED: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("host", "worker", "gpu"), clean),
    **dict.fromkeys(("signature", "detail"), public),
    "outcome": lambda outcome: str(Outcome(outcome)),
    "phase": lambda phase: str(Phase(phase)),
    "duration": float,
    "killed_by_us": bool,
    "copies": lambda copies: {str(Outcome(outcome)): int(number) for outcome, number in copies.items()},
    "iterations": int,
}
"""Functions that convert facts to column values, for facts that need conversion."""


def trial_row(study_id: str, record: TrialRecord, trial_key: str, now: datetime) -> TrialRow:
    """Convert a trial to a new database row, without its logs.

    Args:
        study_id: Id of the study that records it.
        record: The trial's record.
        trial_key: Key under which other studies find it; "" for none.
        now: Time of recording.
    """
    facts: dict[str, Any] = {name: getattr(record, name) for name in _FACTS}
    facts |= {name: convert(facts[name]) for name, convert in _STORED.items()}
    facts |= {name: clean(getattr(record.machine, name)) for name in _MACHINE}
    return TrialRow(**facts, study_id=study_id, trial_key=trial_key, recorded_at=now)


def artefacts_of(record: TrialRecord) -> dict[str, bytes]:
    """Return the logs and other texts of a trial by name, as bytes and without passwords.

    NUL and lone surrogates are kept.
    """
    texts = {name: getattr(record, name) for name in LOGS}
    if record.imported:
        texts[IMPORTED] = json.dumps(dict(record.imported), sort_keys=True, ensure_ascii=False)
    return {
        name: without_passwords(text).encode("utf-8", "surrogatepass") for name, text in texts.items() if text
    }


def stored_trial(of_study: MemberRow, row: TrialRow, key: str) -> StoredTrial:
    """Convert the database rows of a trial to a `StoredTrial`, without logs.

    A `Judge` determines the evidence of the trial later.

    Args:
        of_study: The study's row about the trial.
        row: The trial's facts.
        key: Key of the combination that it counts for in the study.

    Raises:
        DamageError: A row holds invalid content.
    """
    facts = _facts(row, key)
    check_member(of_study)
    return StoredTrial(
        **facts,
        sequence=of_study.id or 0,
        study_id=row.study_id,
        reused=of_study.reused,
        matched=of_study.matched,
        recorded_at=row.recorded_at,
    )


def change_of(row: ChangedRow) -> ChangedEnvironment:
    """Return the `ChangedEnvironment` that a row describes.

    Raises:
        DamageError: The row holds invalid content.
    """
    check_row(row, f"change {shortened(row.id)} of an environment")
    return ChangedEnvironment(row.lock_hash, row.host, row.since, row.until)


def check_member(row: MemberRow) -> None:
    """Raise an error if a row that links a trial to a study holds invalid content.

    Raises:
        DamageError: The row holds invalid content.
    """
    where = f"trial {shortened(row.trial_sequence)} of study {shortened(row.study_id)}"
    check_row(row, where)
    member(Evidence, row.evidence, where)


def _facts(row: TrialRow, key: str) -> dict[str, Any]:
    return {**check_trial(row), "combination": combination_from(key, _named("trial", row.trial_id))}


def check_trial(row: TrialRow) -> dict[str, Any]:
    """Check the row of a trial, and return its values as arguments for `TrialFacts`.

    The combination is missing, because the row does not contain it.

    Raises:
        DamageError: They are not what we store.
    """
    where = _named("trial", row.trial_id)
    check_row(row, where)
    if row.signature:
        try:
            read_signature(row.signature)
        except (ValueError, TypeError):
            raise DamageError(
                where, "signature", f"it holds {shortened(row.signature)}, which is none"
            ) from None
    return {
        **{name: getattr(row, name) for name in _FACTS},
        "outcome": member(Outcome, row.outcome, where),
        "phase": member(Phase, row.phase, where),
        "copies": {member(Outcome, outcome, where): number for outcome, number in row.copies.items()},
        "machine": Machine(*(getattr(row, name) for name in _MACHINE)),
    }


def whole_trial(row: TrialRow, key: str, logs: Mapping[str, bytes | None]) -> WholeTrial:
    """Convert the row and the logs of a trial to a `WholeTrial`.

    Logs that are None were deleted to save space.

    Raises:
        DamageError: The row or its logs hold invalid content.
    """
    facts = _facts(row, key)
    where = _named("trial", row.trial_id)
    try:
        texts = {name: (logs.get(name) or b"").decode("utf-8", "surrogatepass") for name in LOGS}
    except UnicodeDecodeError as error:
        raise DamageError(where, "logs", f"they are not UTF-8 ({error.reason})") from None
    imported = read_json(logs.get(IMPORTED) or b"{}")
    if not isinstance(imported, dict) or not all(isinstance(value, str) for value in imported.values()):
        raise DamageError(where, IMPORTED, f"it holds {shortened(imported)}, not versions")
    record = TrialRecord(**{**facts, **texts, "imported": imported})
    collected = any(content is None for content in logs.values())
    return WholeTrial(row.study_id, record, row.recorded_at, collected)
