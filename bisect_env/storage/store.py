"""The store: everything that a study knows, where many processes can write and read it.

**Consistency.** A method that writes has committed when it returns; what it wrote is then there for every
other process, and survives the death of this one at any instant. It either happens as a whole or not at all.

**Idempotence.** Saying the same thing twice is saying it once: a trial is known by its id, a lock by its
content, a combination by its study and its values.

**Immutability.** A recorded trial never changes.

**Order.** `trials` and `decisions` come in the order in which they were recorded.

**Concurrency.** Any number of processes and threads may write at once; they wait for each other, nobody is
turned away before a minute. Readers see one state of the database, and neither wait nor make others wait.

**Exceptions.** `StorageError` when the database cannot do it, with words for the user. `ValueError` when the
caller names a study, combination or lock that is not there: a defect, except where `UsageError` is named.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from bisect_env.environments.lock import Lock
from bisect_env.matrix.combination import Combination
from bisect_env.storage import queries, rows
from bisect_env.storage.backend import Database
from bisect_env.storage.connect import open_database
from bisect_env.storage.failures import speaking
from bisect_env.storage.records import (
    CombinationState,
    CombinationStatus,
    Counts,
    Decision,
    FailureGroup,
    StoredTrial,
    Study,
    StudyDefinition,
    StudyStatus,
    WholeTrial,
)
from bisect_env.storage.references import find_study
from bisect_env.storage.tables import (
    CombinationRow,
    DecisionRow,
    LockRow,
    PackageRow,
    StudyRow,
)
from bisect_env.storage.values import clean, jsonable, public
from bisect_env.trials.records import Evidence, TrialRecord


class Store:
    """An open results database; see the module for what it promises."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._local = threading.local()

    @classmethod
    def open(cls, url_or_path: str | None = None, *, read_only: bool = False) -> Store:
        """Open the database, making it first if it is not there.

        Args:
            url_or_path: What the user said; None for `BISECT_ENV_DB`, then the user's data directory.
            read_only: Open an existing database and refuse to write.

        Raises:
            UsageError: The reference cannot be understood.
            StorageError: It is no database of ours, is damaged, has another schema, cannot be reached or
                lies on a network file system. It was not changed.
        """
        return cls(open_database(url_or_path, read_only=read_only))

    def close(self) -> None:
        """Give the connections back; may be called twice."""
        self._database.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def shown(self) -> str:
        """The database as messages name it, without a password."""
        return self._database.shown

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """All that this thread reads inside is one state of the database, whatever others write."""
        if getattr(self._local, "session", None) is not None:
            yield
            return
        with self._reading() as session:
            self._local.session = session
            try:
                yield
            finally:
                self._local.session = None

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Session]:
        if (shared := getattr(self._local, "session", None)) is not None:
            yield shared
            return
        with speaking(self.shown), Session(self._database.reader) as session:
            yield session

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Session]:
        with speaking(self.shown), Session(self._database.engine) as session:
            yield session
            session.commit()

    # -- studies -------------------------------------------------------------------------------------------

    def find_study(self, name: str, digest: str) -> Study | None:
        """The newest study with this name and digest, finished or not."""
        with self._reading() as session:
            row = _newest(session, name, digest)
            return rows.study_of(row) if row else None

    def open_study(self, definition: StudyDefinition) -> Study:
        """Go on with the study of this name and digest, or begin one.

        An existing study takes over everything from the definition but `exclude_newer`, which keeps its
        first value: what was resolved must stay resolved. One that was interrupted or failed is open again;
        one that is finished stays so until `reopen`.
        """
        now = datetime.now(UTC)
        values = rows.definition_values(definition)
        with self._writing() as session:
            row = _newest(session, definition.name, definition.digest)
            if row is None:
                row = StudyRow(
                    id=uuid.uuid4().hex,
                    name=definition.name,
                    digest=definition.digest,
                    status=StudyStatus.OPEN.value,
                    created_at=now,
                    updated_at=now,
                    exclude_newer=definition.exclude_newer,
                    **values,
                )
                session.add(row)
            else:
                for name, value in values.items():
                    setattr(row, name, value)
                row.updated_at = now
                if row.status != StudyStatus.FINISHED:
                    row.status, row.finished_at = StudyStatus.OPEN.value, None
            session.flush()
            # Read back, so that a new study and one that goes on look alike to the last digit.
            session.refresh(row)
            return rows.study_of(row)

    def save_verdict(self, study_id: str, verdict: dict[str, Any]) -> None:
        """Store the verdict so far, for those who look at a study that is still going."""
        with self._writing() as session:
            row = _study(session, study_id)
            row.verdict, row.updated_at = jsonable(verdict), datetime.now(UTC)

    def finish_study(self, study_id: str, status: str, verdict: dict[str, Any] | None) -> None:
        """End a study.

        Args:
            study_id: Which one.
            status: `finished`, `interrupted` or `failed`.
            verdict: The verdict document; None keeps the one stored last.

        Raises:
            ValueError: Another status.
        """
        ended = StudyStatus(status)
        if ended is StudyStatus.OPEN:
            raise ValueError("an open study has not ended")
        now = datetime.now(UTC)
        with self._writing() as session:
            row = _study(session, study_id)
            row.status, row.finished_at, row.updated_at = ended.value, now, now
            if verdict is not None:
                row.verdict = jsonable(verdict)

    def reopen(self, study_id: str) -> None:
        """Go on with a study that had ended; its verdict stays until the next one."""
        with self._writing() as session:
            row = _study(session, study_id)
            row.status, row.finished_at, row.updated_at = StudyStatus.OPEN.value, None, datetime.now(UTC)

    def study(self, reference: str | None = None) -> Study:
        """The study that a user means.

        Args:
            reference: An id, a unique beginning of one, or a name (its newest study); None for the newest
                study of all.

        Raises:
            UsageError: There is none, or several ids begin so.
        """
        return find_study(self.studies(), reference, self.shown)

    def studies(self) -> list[Study]:
        """Every study, the newest first."""
        with self._reading() as session:
            query = select(StudyRow).order_by(col(StudyRow.created_at).desc(), col(StudyRow.id))
            return [rows.study_of(row) for row in session.exec(query)]

    # -- combinations and locks ----------------------------------------------------------------------------

    def save_locks(self, study_id: str, locks: Iterable[Lock]) -> None:
        """Store locks that are not there yet, with their packages."""
        wanted = {lock.content_hash: lock for lock in locks}
        with self._writing() as session:
            _study(session, study_id)
            query = select(LockRow.content_hash).where(col(LockRow.content_hash).in_(wanted))
            known = set(session.exec(query))
            now = datetime.now(UTC)
            new = [lock for content_hash, lock in wanted.items() if content_hash not in known]
            session.add_all(rows.lock_row(lock, now) for lock in new)
            session.flush()
            session.add_all(package for lock in new for package in rows.package_rows(lock))

    def lock(self, content_hash: str) -> Lock | None:
        """A stored lock, whole."""
        with self._reading() as session:
            row = session.get(LockRow, content_hash)
            if row is None:
                return None
            query = select(PackageRow).where(PackageRow.lock_hash == content_hash)
            # Sorted here: a server sorts texts as its locale does.
            packages = sorted(session.exec(query), key=lambda package: (package.name, package.manager))
            return rows.lock_of(row, packages)

    def save_combinations(self, study_id: str, states: Iterable[CombinationState]) -> None:
        """Store what is known about combinations before anything runs.

        What running has taught is not forgotten: an `unbuildable` or `set-aside` combination that comes as
        `solvable` with the same lock stays what it is.

        Raises:
            ValueError: A status that is none, or a lock that is not stored.
        """
        with self._writing() as session, _constraints("a lock that is not stored"):
            _study(session, study_id)
            query = select(CombinationRow).where(CombinationRow.study_id == study_id)
            known = {row.key: row for row in session.exec(query)}
            for state in states:
                key, status = clean(state.combination.key), CombinationStatus(state.status)
                row = known.get(key)
                if row is None:
                    row = CombinationRow(study_id=study_id, key=key, status="", reason="")
                    session.add(row)
                    known[key] = row
                elif (
                    status is CombinationStatus.SOLVABLE
                    and CombinationStatus(row.status).is_learnt
                    and row.lock_hash == state.lock_hash
                ):
                    continue
                row.status, row.reason, row.lock_hash = status.value, public(state.reason), state.lock_hash
            session.flush()

    def set_combination(self, study_id: str, combination: Combination, status: str, reason: str) -> None:
        """Store what running has taught about a combination; its lock stays.

        Raises:
            ValueError: A status that is none, or a combination that the study does not have.
        """
        checked = CombinationStatus(status)
        with self._writing() as session:
            row = _combination(session, study_id, combination)
            row.status, row.reason = checked.value, public(reason)

    def combinations(self, study_id: str) -> list[CombinationState]:
        """Every combination of a study, in the order in which they were saved first."""
        with self._reading() as session:
            query = select(CombinationRow).where(CombinationRow.study_id == study_id)
            return [rows.combination_of(row) for row in session.exec(query.order_by(col(CombinationRow.id)))]

    # -- trials --------------------------------------------------------------------------------------------

    def record_trial(self, study_id: str, record: TrialRecord, evidence: Evidence) -> bool:
        """Store a trial; when this returns, it is there for good.

        Returns:
            False when a trial with this id was there already, which then stays as it is.

        Raises:
            ValueError: The study does not have this combination, or its lock is not stored.
        """
        try:
            with self._writing() as session:
                if queries.has_trial(session, record.trial_id):
                    return False
                combination = _combination(session, study_id, record.combination)
                assert combination.id is not None
                row = rows.trial_row(study_id, combination.id, record, evidence, datetime.now(UTC))
                session.add(row)
                session.flush()
                assert row.sequence is not None
                session.add(rows.log_row(row.sequence, record))
            return True
        except IntegrityError as error:
            # A back end without our write lock lets two writers both see that the trial is not there yet.
            with self._reading() as session:
                if queries.has_trial(session, record.trial_id):
                    return False
            raise ValueError(f"trial {record.trial_id} names a lock that is not stored") from error

    def trials(self, study_id: str) -> list[StoredTrial]:
        """Every trial of a study in the order of recording, without logs."""
        with self._reading() as session:
            return queries.trials(session, study_id)

    def trial(self, trial_id: str) -> WholeTrial | None:
        """One trial with its logs."""
        with self._reading() as session:
            return queries.trial(session, trial_id)

    def counts(self, study_id: str) -> dict[Combination, Counts]:
        """How many trials of each combination said what; combinations without trials are left out."""
        with self._reading() as session:
            return queries.counts(session, study_id)

    def failures(self, study_id: str) -> list[FailureGroup]:
        """The ways in which trials failed (bad and other ones), the most frequent first."""
        with self._reading() as session:
            return queries.failures(session, study_id)

    def environments(self, study_id: str) -> int:
        """Number of distinct locks in which trials of a study ran; spoilt trials do not count."""
        with self._reading() as session:
            return queries.environments(session, study_id)

    # -- decisions -----------------------------------------------------------------------------------------

    def record_decision(self, study_id: str, kind: str, payload: dict[str, Any]) -> None:
        """Store something that was decided, for those who want to follow the study later."""
        with self._writing() as session:
            _study(session, study_id)
            session.add(
                DecisionRow(
                    study_id=study_id, at=datetime.now(UTC), kind=clean(kind), payload=jsonable(payload)
                )
            )

    def decisions(self, study_id: str) -> list[Decision]:
        """Everything that was decided in a study, in order."""
        with self._reading() as session:
            query = select(DecisionRow).where(DecisionRow.study_id == study_id).order_by(col(DecisionRow.id))
            return [Decision(row.at, row.kind, row.payload) for row in session.exec(query)]


def _newest(session: Session, name: str, digest: str) -> StudyRow | None:
    query = select(StudyRow).where(StudyRow.name == name, StudyRow.digest == digest)
    return session.exec(query.order_by(col(StudyRow.created_at).desc())).first()


def _study(session: Session, study_id: str) -> StudyRow:
    row = session.get(StudyRow, study_id)
    if row is None:
        raise ValueError(f"there is no study {study_id}")
    return row


def _combination(session: Session, study_id: str, combination: Combination) -> CombinationRow:
    query = select(CombinationRow).where(CombinationRow.study_id == study_id)
    row = session.exec(query.where(CombinationRow.key == clean(combination.key))).first()
    if row is None:
        raise ValueError(f"study {study_id} has no combination {combination}")
    return row


@contextlib.contextmanager
def _constraints(what: str) -> Iterator[None]:
    try:
        yield
    except IntegrityError as error:
        raise ValueError(f"a row names {what}") from error
