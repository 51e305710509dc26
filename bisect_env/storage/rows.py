"""Converts between table rows and plain data, and checks rows that others may have changed. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Json,
    NonNegativeInt,
    TypeAdapter,
    ValidationError,
    create_model,
)
from sqlalchemy import inspect
from sqlmodel import SQLModel

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.chapters import CommitReport, TracedReport
from bisect_env.answers.explanation import Explanation
from bisect_env.answers.verdict_document import AnswerPart, Cell, VerdictDocument
from bisect_env.environments.lock import Lock, LockFileError
from bisect_env.errors import without_kind
from bisect_env.matrix.grid import Combination
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
from bisect_env.storage.shared_text import shared_matrix_text
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
    UtcDateTime,
    clean,
    jsonable,
    public,
    read_json,
    shortened,
)
from bisect_env.trials.judge import TARGET, ChangedEnvironment, Target
from bisect_env.trials.records import (
    Evidence,
    Machine,
    Outcome,
    Perturbation,
    Phase,
    TrialFacts,
    TrialRecord,
)

# --------------------------------------------------------------------------------------------------
# Checks that rows have valid contents, because SQLite does not enforce types. The annotation of a column
# states its type, unless `_CONTENTS` gives a more exact one. A payload's type depends on the decision's kind.


def _check_signature(text: str) -> str:
    if text:
        read_signature(text)
    return text


_Signature = Annotated[str, AfterValidator(_check_signature)]


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
    transient: bool = False


class _Amplified(AnswerPart):
    perturbation: Perturbation
    signature: _Signature = ""
    reason: str = ""


_Key: Any = Annotated[Json[tuple[tuple[str, str], ...]], AfterValidator(Combination)]
_KEY: TypeAdapter[Combination] = TypeAdapter(_Key)
_CONTENTS: dict[type[SQLModel], dict[str, Any]] = {
    StudyRow: {
        "status": StudyStatus,
        "grid": tuple[AxisInfo, ...],
        "settings": _Settings,
        "target": Target,
        "files": tuple[_File, ...],
        "verdict": VerdictDocument | None,
    },
    CombinationRow: {"key": _Key, "status": CombinationStatus},
    TrialRow: {
        "outcome": Outcome,
        "phase": Phase,
        "copies": dict[Outcome, NonNegativeInt],
        "signature": _Signature,
    },
    MemberRow: {"evidence": Evidence},
}
_PAYLOADS: dict[str, type[AnswerPart]] = {
    AMPLIFIED: _Amplified,
    BUILT: _Build,
    BUILD_FAILED: _Build,
    COMMIT: CommitReport,
    EXPLAINED: Explanation,
    TRACED: TracedReport,
}


def name_of(row: SQLModel) -> str:
    """Return the name of a row for error messages, such as `row '4f0c' of studies`."""
    keys = inspect(type(row)).primary_key
    return f"row {', '.join(shortened(getattr(row, key.name)) for key in keys)} of {row.__tablename__}"


@cache
def _columns_of(table: type[SQLModel]) -> TypeAdapter[Any]:
    """Return a validator that checks the values in a row against the column types of its table.

    It is needed because SQLite does not enforce the types of columns.
    """
    columns: dict[str, Any] = {
        name: (Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation, ...)
        for name, field in table.model_fields.items()
    }
    columns |= {name: (kind, ...) for name, kind in _CONTENTS.get(table, {}).items()}
    # SQLite turns numbers that are too large into infinity.
    config = ConfigDict(allow_inf_nan=False)
    return TypeAdapter(create_model(f"{table.__name__}Columns", __config__=config, **columns))


_Document = TypeVar("_Document")


def read(
    kind: type[_Document] | TypeAdapter[_Document], document: object, where: str, column: str
) -> _Document:
    """Convert a stored JSON document to the type that it must have.

    Args:
        kind: The type, or a validator of it.
        document: The parsed document.
        where: Name of the row, for the message.
        column: Name of the column, for the message; "" if the keys of the document are columns.

    Raises:
        DamageError: The document has another type.
    """
    adapter = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
    try:
        # As JSON: strict validation of Python objects refuses lists where the model has tuples.
        return adapter.validate_json(json.dumps(document, default=_as_json), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in (column, *first["loc"]) if part != "")
        why = f"it holds {shortened(first['input'])}: {without_kind(first['msg'])}"
        raise DamageError(where, path, why) from None


def _as_json(value: object) -> object:
    # A list in a list, which no column may hold, stands for binary data in a column of another type.
    return value.isoformat() if isinstance(value, datetime) else [[repr(value)]]


def checked(row: SQLModel) -> Any:
    """Check the values of a row, and return them converted to the types of its columns.

    Raises:
        DamageError: A column holds a value of the wrong type, NaN or an infinity.
    """
    columns = {name: getattr(row, name) for name in type(row).model_fields}
    for name, value in columns.items():
        # Strict validation of JSON accepts texts of moments; the database has converted those that it can.
        if isinstance(value, str) and isinstance(inspect(type(row)).columns[name].type, UtcDateTime):
            raise DamageError(name_of(row), name, f"it holds {shortened(value)}, which is no moment in time")
    return read(_columns_of(type(row)), columns, name_of(row), "")


# --------------------------------------------------------------------------------------------------
# Conversion between rows and plain data.

LOGS = ("stdout", "stderr", "stack")
"""Names of the artefacts (stored files) that every trial may have."""
IMPORTED = "imported"
"""Name of the artefact with the versions that the script imported, as JSON. Equal ones are stored once."""


_DEFINITION = {one.name for one in fields(StudyDefinition)} & StudyRow.model_fields.keys() - {
    *("settings", "files")
}
"""Names of the fields of `StudyDefinition` that are stored unchanged in a column of the same name."""


def study_of(row: StudyRow) -> Study:
    """Convert a row of the table of studies to a `Study`.

    Raises:
        DamageError: The stored value is invalid.
    """
    found = checked(row)
    definition = StudyDefinition(
        **{name: getattr(found, name) for name in _DEFINITION}, settings=row.settings, user=found.username
    )
    return Study(
        id=found.id,
        definition=definition,
        status=found.status,
        verdict=found.verdict,
        created_at=found.created_at,
        finished_at=found.finished_at,
    )


def model_value(model: BaseModel) -> dict[str, Any]:
    """Convert a model, such as a verdict, to the JSON object that a column stores."""
    value: dict[str, Any] = jsonable(model.model_dump(mode="json"))
    return value


def grid_value(grid: Sequence[AxisInfo]) -> list[dict[str, Any]]:
    """Convert axes to the list of JSON objects that the column `grid` stores."""
    return [model_value(axis) for axis in grid]


def definition_values(definition: StudyDefinition) -> dict[str, Any]:
    """Return the columns of a study that are overwritten when the study is resumed, as a dict.

    These are all except its identity and `exclude_newer`.
    """
    return {
        **{name: clean(getattr(definition, name)) for name in ("version", "host", "matrix_path")},
        "username": clean(definition.user),
        "description": public(definition.description),
        "grid": grid_value(definition.grid),
        "settings": jsonable(definition.settings),
        "target": jsonable(TARGET.dump_python(definition.target, mode="json")),
        "matrix_text": clean(shared_matrix_text(definition.matrix_text)),
    }


def lock_rows(lock: Lock) -> tuple[LockRow, list[PackageRow]]:
    """Convert a lock to database rows: one for the lock, and one for each of its packages."""
    row = LockRow(
        content_hash=lock.content_hash,
        python=lock.python,
        platform=lock.platform,
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
        row: Row of the lock; its text is parsed.
        packages: Rows of its packages, in any order; they must agree with the text.

    Raises:
        DamageError: The text is no valid lock, has another hash, or contradicts the columns.
    """
    from bisect_env.environments.lockfiles import parse_lock  # brings a YAML parser, which few commands need

    where = name_of(row)
    checked(row)
    try:
        lock = parse_lock(row.text, name="it")
    except LockFileError as error:
        raise DamageError(where, "text", error.what) from None
    expected, expected_packages = lock_rows(lock)
    if checked(row) != checked(expected):
        raise DamageError(where, "text", "the other columns are not what it says")
    found, wanted = (sorted(tuple(checked(one)) for one in some) for some in (packages, expected_packages))
    if found != wanted:
        raise DamageError(where, "packages", "its packages are not those of the text")
    return lock


def combination_of(row: CombinationRow) -> CombinationState:
    """Convert a row of the table of combinations to a `CombinationState`.

    Raises:
        DamageError: The stored value is invalid.
    """
    found = checked(row)
    return CombinationState(found.key, found.status, found.reason, found.lock_hash)


def combination_from(key: object, where: str) -> Combination:
    """Parse the stored text of a combination and return the `Combination`.

    Raises:
        DamageError: The key is invalid.
    """
    return read(_KEY, key, where, "key")


def decision_of(row: DecisionRow) -> Decision:
    """Convert a row of the table of decisions to a `Decision`.

    Raises:
        DamageError: The stored value is invalid.
    """
    found = checked(row)
    if row.kind in _PAYLOADS:
        read(_PAYLOADS[row.kind], row.payload, name_of(row), "payload")
    return Decision(found.at, found.kind, row.payload)


def decision_row(study_id: str, kind: str, payload: Mapping[str, Any]) -> DecisionRow:
    """Create the database row for a decision of a study that is made now."""
    return DecisionRow(study_id=study_id, at=datetime.now(UTC), kind=clean(kind), payload=jsonable(payload))


_FACTS = [one.name for one in fields(TrialFacts) if one.name in TrialRow.model_fields]
_MACHINE = [one.name for one in fields(Machine)]


def trial_row(study_id: str, record: TrialRecord, trial_key: str, now: datetime) -> TrialRow:
    """Create the database row for the result of a trial. The logs are stored elsewhere.

    Args:
        study_id: Id of the study that records the trial.
        record: The trial's record.
        trial_key: Key under which other studies find it; "" for none.
        now: Time of recording.
    """
    facts: dict[str, Any] = {name: getattr(record, name) for name in _FACTS}
    facts |= {name: getattr(record.machine, name) for name in _MACHINE}
    times = {"started_at": facts.pop("started_at"), "recorded_at": now}
    return TrialRow(**jsonable(facts), **times, study_id=study_id, trial_key=trial_key)


def artefacts_of(record: TrialRecord) -> dict[str, bytes]:
    """Return the logs and other texts of a trial, as a dict from names to bytes without passwords.

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
        of_study: Row that links the trial to the study.
        row: Row with the facts of the trial.
        key: Stored text of the combination for which the trial counts in the study.

    Raises:
        DamageError: A row holds invalid content.
    """
    member = checked(of_study)
    return StoredTrial(
        **_facts(row, key),
        sequence=member.id,
        study_id=row.study_id,
        reused=member.reused,
        matched=member.matched,
        recorded_at=row.recorded_at,
    )


def change_of(row: ChangedRow) -> ChangedEnvironment:
    """Convert the database row of a changed environment to a `ChangedEnvironment`.

    Raises:
        DamageError: The row holds invalid content.
    """
    found = checked(row)
    return ChangedEnvironment(found.lock_hash, found.host, found.since, found.until)


def _facts(row: TrialRow, key: str) -> dict[str, Any]:
    """Check the row of a trial, and return its values as arguments for `TrialFacts`."""
    found = checked(row)
    return {
        **{name: getattr(found, name) for name in _FACTS},
        "combination": combination_from(key, name_of(row)),
        "machine": Machine(*(getattr(found, name) for name in _MACHINE)),
        "named": tuple(found.named),
    }


def whole_trial(row: TrialRow, key: str, logs: Mapping[str, bytes | None]) -> WholeTrial:
    """Convert the row and the logs of a trial to a `WholeTrial`.

    Logs that are None were deleted to save space.

    Raises:
        DamageError: The row or its logs hold invalid content.
    """
    facts = _facts(row, key)
    where = name_of(row)
    try:
        texts = {name: (logs.get(name) or b"").decode("utf-8", "surrogatepass") for name in LOGS}
    except UnicodeDecodeError as error:
        raise DamageError(where, "logs", f"they are not UTF-8 ({error.reason})") from None
    imported = read(dict[str, str], read_json(logs.get(IMPORTED) or b"{}"), where, IMPORTED)
    record = TrialRecord(**{**facts, **texts, "imported": imported})
    collected = any(content is None for content in logs.values())
    return WholeTrial(row.study_id, record, collected)
