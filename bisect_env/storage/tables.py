"""The tables of the database; a change needs a new `SCHEMA_VERSION`.

Enumerations are stored as text and checked in code, times are UTC, and a combination is known by its
canonical key. (No `from __future__ import annotations` here: SQLModel reads the annotations.)
"""

from typing import Any

from pydantic import AwareDatetime
from sqlalchemy import (
    DDL,
    JSON,
    BigInteger,
    Column,
    Double,
    Index,
    MetaData,
    Text,
    UniqueConstraint,
    event,
    text,
)
from sqlmodel import Field, SQLModel

from bisect_env.storage.values import Bytes, UtcDateTime

SCHEMA_VERSION = 7
"""Version of the schema. Raise it when a table changes."""

APPLICATION_ID = 0x62656E76
"""Application id in the header of SQLite files: `benv` in ASCII."""


class _Table(SQLModel):
    # A separate registry keeps our tables apart from those of an application that also uses SQLModel.
    metadata = MetaData()


class MetaRow(_Table, table=True):
    """One property of the database, such as its schema version: a name and a value.

    The property `schema` is the version of the schema.
    """

    __tablename__ = "meta"
    name: str = Field(primary_key=True)
    value: str


class StudyRow(_Table, table=True):
    """One study, as a database row: its matrix, its settings, its status and its verdict."""

    __tablename__ = "studies"
    __table_args__ = (Index("ix_studies_name_digest", "name", "digest"),)
    id: str = Field(primary_key=True, regex=r"^[0-9a-f]{32}$")
    name: str
    digest: str
    status: str
    created_at: AwareDatetime = Field(sa_type=UtcDateTime, index=True)
    updated_at: AwareDatetime = Field(sa_type=UtcDateTime)
    finished_at: AwareDatetime | None = Field(default=None, sa_type=UtcDateTime)
    exclude_newer: AwareDatetime | None = Field(default=None, sa_type=UtcDateTime)
    version: str
    host: str
    username: str
    matrix_path: str
    description: str = Field(sa_type=Text)
    grid: list[dict[str, Any]] = Field(sa_type=JSON)
    settings: dict[str, Any] = Field(sa_type=JSON)
    target: dict[str, Any] = Field(sa_type=JSON)
    verdict: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))
    matrix_text: str = Field(sa_type=Text)
    files: list[dict[str, Any]] = Field(default_factory=list, sa_type=JSON)
    fresh: bool


class LockRow(_Table, table=True):
    """One locked environment, as a database row. All combinations and studies with this lock share it."""

    __tablename__ = "locks"
    content_hash: str = Field(primary_key=True, regex=r"^[0-9a-f]{64}$")
    python: str
    platform: str
    text: str = Field(sa_type=Text)


class PackageRow(_Table, table=True):
    """One package of a lock, as a database row."""

    __tablename__ = "packages"
    __table_args__ = (Index("ix_packages_name_version", "name", "version"),)
    lock_hash: str = Field(primary_key=True, foreign_key="locks.content_hash")
    manager: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    version: str
    build: str
    url: str
    sha256: str


class CombinationRow(_Table, table=True):
    """One combination of a study's matrix with its status and lock, as a database row."""

    __tablename__ = "combinations"
    # Keys are long if a study has hundreds of axes (one for each package that differs). PostgreSQL's B-trees
    # take at most 2704 bytes, so there the digest of a key is unique, and a hash index finds keys.
    __table_args__ = (
        UniqueConstraint("study_id", "key", name="uq_combinations_study_id_key").ddl_if("sqlite"),
        Index("uq_combinations_study_id_md5", "study_id", text("md5(key)"), unique=True).ddl_if("postgresql"),
    )
    id: int | None = Field(default=None, primary_key=True)
    study_id: str = Field(foreign_key="studies.id")
    key: str
    status: str
    lock_hash: str | None = Field(default=None, foreign_key="locks.content_hash", index=True)
    reason: str = Field(sa_type=Text)


# As an `Index`, it would import all of SQLAlchemy's dialect, without which SQLite does.
event.listen(
    CombinationRow.metadata.tables["combinations"],
    "after_create",
    DDL("CREATE INDEX ix_combinations_key ON %(fullname)s USING hash (key)").execute_if(  # type: ignore[no-untyped-call]
        dialect="postgresql"
    ),
)


class TrialRow(_Table, table=True):
    """The result of one trial without its logs, as a database row that never changes."""

    __tablename__ = "trials"
    __table_args__ = (
        # Used to find trials that other studies have measured.
        Index("ix_trials_trial_key", "trial_key", "cpu"),
        Index("ix_trials_recorded_at", "recorded_at"),
        Index("ix_trials_outcome", "outcome", "lock_hash", "gpu_model", "study_id"),
        Index("ix_trials_machine", "cpu", "gpu_model", "driver", "study_id"),
        Index("ix_trials_host", "host", "study_id"),
    )
    sequence: int | None = Field(default=None, primary_key=True)
    trial_id: str = Field(unique=True, regex=r"^[0-9A-Za-z_-]{1,64}$")
    study_id: str = Field(foreign_key="studies.id", index=True)
    lock_hash: str = Field(foreign_key="locks.content_hash", index=True)
    outcome: str
    returncode: int | None = Field(default=None, sa_type=BigInteger)
    phase: str
    started_at: AwareDatetime = Field(sa_type=UtcDateTime)
    recorded_at: AwareDatetime = Field(sa_type=UtcDateTime)
    duration: float
    hash_seed: int = Field(sa_type=BigInteger)
    copies: dict[str, int] = Field(sa_type=JSON)
    iterations: int = Field(ge=0)
    host: str
    worker: str
    gpu: str
    signature: str = Field(sa_type=Text)
    detail: str = Field(sa_type=Text)
    trial_key: str
    cpu: str
    gpu_model: str
    driver: str
    named: list[str] = Field(sa_type=JSON)


class MemberRow(_Table, table=True):
    """A link between a trial and a study: the study recorded the trial, or reuses it from another study.

    `evidence` follows from the facts of all trials of the study and is written with them, for SQL that users
    write. The program computes it whenever it reads trials.
    """

    __tablename__ = "study_trials"
    __table_args__ = (
        UniqueConstraint("study_id", "trial_sequence", name="uq_study_trials_study_trial"),
        # Used to find trials that were recorded since the last look.
        Index("ix_study_trials_study_id", "study_id", "id"),
        # Used by `v_combinations`.
        Index("ix_study_trials_combination_evidence", "combination_id", "evidence"),
    )
    id: int | None = Field(default=None, primary_key=True)
    study_id: str = Field(foreign_key="studies.id")
    trial_sequence: int = Field(foreign_key="trials.sequence", index=True)
    combination_id: int = Field(foreign_key="combinations.id")
    reused: bool
    matched: bool
    evidence: str


class ChangedRow(_Table, table=True):
    """A period in which the files of an environment on a host were changed, as a database row.

    Trials of that environment in the period are void.
    """

    __tablename__ = "changed_environments"
    id: int | None = Field(default=None, primary_key=True)
    lock_hash: str = Field(foreign_key="locks.content_hash", index=True)
    host: str
    since: AwareDatetime = Field(sa_type=UtcDateTime)
    until: AwareDatetime = Field(sa_type=UtcDateTime)


class ClaimRow(_Table, table=True):
    """The reservation of one trial by the command that runs the trial, as a database row.

    It is deleted when the trial is recorded, and has no effect after its lease has expired.
    """

    __tablename__ = "claims"
    trial_id: str = Field(primary_key=True)
    study_id: str = Field(foreign_key="studies.id", index=True)
    combination_id: int = Field(foreign_key="combinations.id", index=True)
    holder: str = Field(index=True)
    expires_at: float = Field(sa_type=Double)


class BlobRow(_Table, table=True):
    """A compressed file content, identified by its sha256.

    `data` is null after the content was deleted to save space.
    """

    __tablename__ = "blobs"
    content_hash: str = Field(primary_key=True)
    data: bytes | None = Field(default=None, sa_type=Bytes)


class ArtefactRow(_Table, table=True):
    """A file that a trial left, such as `stdout`, `stderr` or `stack`.

    Empty files have no row.
    """

    __tablename__ = "artefacts"
    trial_sequence: int = Field(primary_key=True, foreign_key="trials.sequence")
    name: str = Field(primary_key=True)
    content_hash: str = Field(foreign_key="blobs.content_hash", index=True)


class DecisionRow(_Table, table=True):
    """A note about something that was decided or found during a study, as a database row."""

    __tablename__ = "decisions"
    id: int | None = Field(default=None, primary_key=True)
    study_id: str = Field(foreign_key="studies.id", index=True)
    at: AwareDatetime = Field(sa_type=UtcDateTime)
    kind: str
    payload: dict[str, Any] = Field(sa_type=JSON)


METADATA: MetaData = _Table.metadata
"""Metadata of all tables above."""
