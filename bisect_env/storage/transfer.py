"""Copies studies between databases: export into a file, import from one, and merge.

What is there already stays; what is new is added; saying it twice is saying it once. A study that both know,
because it was copied once and went on in both, gets the trials of both, and the verdict that was stored last.
Everything is written in small transactions, so that studies which run on the target go on meanwhile; whoever
is killed in between starts the same command again.
"""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlmodel import Session, col, select

from bisect_env.errors import StorageError, UsageError
from bisect_env.storage import blobs, maintenance, rows
from bisect_env.storage.backend import Database, open_any_schema, open_database, speaking
from bisect_env.storage.entries import CombinationStatus
from bisect_env.storage.sqlite import connector
from bisect_env.storage.store import Store
from bisect_env.storage.tables import (
    ArtefactRow,
    BlobRow,
    CombinationRow,
    DecisionRow,
    LockRow,
    PackageRow,
    ReusedRow,
    StudyRow,
    TrialRow,
)
from bisect_env.storage.values import DamageError, shortened
from bisect_env.temporary import temporary

# --------------------------------------------------------------------------------------------------
# From one database into another: export, import and merge are one thing.

_CHUNK = 300
"""Trials of one transaction: long enough to be quick, short enough that nobody waits."""


@dataclass(slots=True)
class Merged:
    """The result of a merge.

    Attributes:
        studies: Studies that were read.
        new_studies: Of those, how many the target did not know.
        trials: Trials that were read.
        new_trials: Of those, how many the target did not have.
        conflicts: Ids of trials that both have and that differ; the target's stayed.
        damaged: What was left out because it is not what we store, a sentence each.
    """

    studies: int = 0
    new_studies: int = 0
    trials: int = 0
    new_trials: int = 0
    conflicts: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


def merge(
    source: Database,
    target: Database,
    chosen: Sequence[str] | None = None,
    *,
    one_file: bool = False,
) -> Merged:
    """Add what one database has to another.

    Args:
        source: Only read, as one state.
        target: Open for writing.
        chosen: Ids of studies, None for all; those whose trials they reuse come along.
        one_file: Keep every log in the target's tables.

    Raises:
        UsageError: They are one database.
        StorageError: One of them fails.
    """
    if source.shown == target.shown:
        raise UsageError(f"{source.shown} would be merged into itself", remedy="name another database")
    with speaking(source.shown), Session(source.reader) as reading:
        copier = _Copier(reading, source.folder, target, None if one_file else target.folder)
        wanted = _with_origins(reading, chosen)
        copied = [study.id for study in _studies(reading, wanted) if copier.study(study)]
        for study_id in copied:
            copier.reused(study_id)
        return copier.merged


def _studies(reading: Session, wanted: set[str] | None) -> Iterator[StudyRow]:
    query = select(StudyRow).order_by(col(StudyRow.created_at), col(StudyRow.id))
    return (study for study in reading.exec(query).all() if wanted is None or study.id in wanted)


def _with_origins(reading: Session, chosen: Sequence[str] | None) -> set[str] | None:
    if chosen is None:
        return None
    wanted = set(chosen)
    query = (
        select(TrialRow.study_id)
        .join(ReusedRow, col(ReusedRow.trial_sequence) == col(TrialRow.sequence))
        .where(col(ReusedRow.study_id).in_(chosen))
        .distinct()
    )
    return wanted | set(reading.exec(query))


def _values(row: Any, *without: str) -> dict[str, Any]:
    return {name: getattr(row, name) for name in type(row).__table__.columns.keys() if name not in without}  # noqa: SIM118


class _Copier:
    def __init__(
        self,
        reading: Session,
        folder: Path | None,
        target: Database,
        target_folder: Path | None,
    ) -> None:
        self._reading = reading
        self._folder = folder
        self._target = target
        self._target_folder = target_folder
        self._keys: dict[int, str] = {}
        self.merged = Merged()

    def study(self, study: StudyRow) -> bool:
        """Copy a study; one whose rows or locks are damaged is named, and nothing of it is used."""
        try:
            self._check(study)
        except (DamageError, StorageError) as error:
            self.merged.damaged.append(_in_words(error))
            return False
        self._locks(study.id)
        with self.writing() as session:
            self.merged.studies += 1
            known = session.get(StudyRow, study.id)
            if known is None:
                self.merged.new_studies += 1
                session.add(StudyRow(**_values(study)))
            elif study.updated_at > known.updated_at:
                for name, value in _values(study, "id").items():
                    setattr(known, name, value)
            session.flush()
            ids = self._combinations(session, study.id)
            self._decisions(session, study.id)
            session.commit()
        self._trials(study.id, ids)
        return True

    def _check(self, study: StudyRow) -> None:
        rows.study_of(study)
        for combination in self._reading.exec(
            select(CombinationRow).where(CombinationRow.study_id == study.id)
        ):
            rows.combination_of(combination)
        for decision in self._reading.exec(select(DecisionRow).where(DecisionRow.study_id == study.id)):
            rows.decision_of(decision)
        for lock_hash in self._locks_of(study.id):
            row = self._reading.get(LockRow, lock_hash)
            if row is None:
                raise DamageError(
                    f"study {study.id}", "lock_hash", f"there is no lock {shortened(lock_hash)}"
                )
            query = select(PackageRow).where(PackageRow.lock_hash == lock_hash)
            rows.lock_of(row, list(self._reading.exec(query)))

    def writing(self) -> Session:
        return Session(self._target.engine)

    def _locks_of(self, study_id: str) -> list[str]:
        here = select(CombinationRow.lock_hash).where(CombinationRow.study_id == study_id)
        there = select(TrialRow.lock_hash).where(TrialRow.study_id == study_id).distinct()
        wanted = {*self._reading.exec(here), *self._reading.exec(there)} - {None}
        return sorted(str(one) for one in wanted)

    def _locks(self, study_id: str) -> None:
        for lock_hash in self._locks_of(study_id):
            with self.writing() as session:
                if session.get(LockRow, lock_hash) is not None:
                    continue
                session.add(LockRow(**_values(self._reading.get_one(LockRow, lock_hash))))
                session.flush()
                packages = select(PackageRow).where(PackageRow.lock_hash == lock_hash)
                session.add_all(PackageRow(**_values(p)) for p in self._reading.exec(packages))
                session.commit()

    def _combinations(self, session: Session, study_id: str) -> dict[int, int]:
        """Ids there to ids here."""
        query = select(CombinationRow).where(CombinationRow.study_id == study_id)
        query = query.order_by(col(CombinationRow.id))
        known = {row.key: row for row in session.exec(query)}
        ids: dict[int, int] = {}
        for row in self._reading.exec(query):
            mine = known.get(row.key)
            if mine is None:
                mine = CombinationRow(**_values(row, "id"))
                session.add(mine)
                session.flush()
            elif _is_learnt(row) and not _is_learnt(mine) and row.lock_hash == mine.lock_hash:
                mine.status, mine.reason = row.status, row.reason
            assert row.id is not None
            assert mine.id is not None
            ids[row.id] = mine.id
            self._keys[row.id] = row.key
        return ids

    def _decisions(self, session: Session, study_id: str) -> None:
        query = select(DecisionRow).where(DecisionRow.study_id == study_id).order_by(col(DecisionRow.id))
        known = {(row.at, row.kind, repr(row.payload)) for row in session.exec(query)}
        for row in self._reading.exec(query):
            if (row.at, row.kind, repr(row.payload)) not in known:
                session.add(DecisionRow(**_values(row, "id")))

    def _trials(self, study_id: str, ids: dict[int, int]) -> None:
        last = 0
        while True:
            query = select(TrialRow).where(TrialRow.study_id == study_id)
            query = query.where(col(TrialRow.sequence) > last).order_by(col(TrialRow.sequence))
            found = self._reading.exec(query.limit(_CHUNK)).all()
            if not found:
                return
            last = found[-1].sequence or 0
            with self.writing() as session:
                self._chunk(session, found, ids)
                session.commit()
            # What was copied need not stay in memory.
            self._reading.expunge_all()

    def _chunk(self, session: Session, found: Sequence[TrialRow], ids: dict[int, int]) -> None:
        wanted = [row.trial_id for row in found]
        query = select(TrialRow).where(col(TrialRow.trial_id).in_(wanted))
        known = {row.trial_id: row for row in session.exec(query)}
        self.merged.trials += len(found)
        for row in found:
            mine = known.get(row.trial_id)
            if mine is not None:
                if (mine.outcome, mine.lock_hash) != (row.outcome, row.lock_hash):
                    self.merged.conflicts.append(row.trial_id)
                continue
            assert row.sequence is not None
            try:
                rows.stored_trial(row, self._keys[row.combination_id])
                left = list(self._left_by(row.sequence))
            except (DamageError, StorageError, KeyError) as error:
                self.merged.damaged.append(_in_words(error))
                continue
            self.merged.new_trials += 1
            copy = TrialRow(
                **_values(row, "sequence", "combination_id"), combination_id=ids[row.combination_id]
            )
            session.add(copy)
            session.flush()
            assert copy.sequence is not None
            self._artefacts(session, left, copy.sequence)

    def _left_by(self, sequence: int) -> Iterator[tuple[str, BlobRow, bytes | None]]:
        """What a trial left: name, row and content, which is what its hash says."""
        query = (
            select(ArtefactRow.name, BlobRow)
            .join(BlobRow, col(BlobRow.content_hash) == col(ArtefactRow.content_hash))
            .where(ArtefactRow.trial_sequence == sequence)
        )
        for name, blob in self._reading.exec(query):
            yield name, blob, blobs.get(blob, self._folder)

    def _artefacts(
        self, session: Session, left: Sequence[tuple[str, BlobRow, bytes | None]], ours: int
    ) -> None:
        for name, blob, content in left:
            if content is not None:
                blobs.put(session, self._target_folder, [content])
            elif session.get(BlobRow, blob.content_hash) is None:
                session.add(BlobRow(**_values(blob, "data")))
                session.flush()
            session.add(ArtefactRow(trial_sequence=ours, name=name, content_hash=blob.content_hash))

    def reused(self, study_id: str) -> None:
        query = (
            select(TrialRow.trial_id, CombinationRow.key, ReusedRow.evidence)
            .join(ReusedRow, col(ReusedRow.trial_sequence) == col(TrialRow.sequence))
            .join(CombinationRow, col(CombinationRow.id) == col(ReusedRow.combination_id))
            .where(ReusedRow.study_id == study_id)
        )
        cited = self._reading.exec(query).all()
        for i in range(0, len(cited), _CHUNK):
            with self.writing() as session:
                for trial_id, key, evidence in cited[i : i + _CHUNK]:
                    trial = session.exec(
                        select(TrialRow.sequence).where(TrialRow.trial_id == trial_id)
                    ).first()
                    if trial is None:
                        continue  # it is damaged where it comes from, and was named
                    here = select(CombinationRow.id).where(CombinationRow.study_id == study_id)
                    combination = session.exec(here.where(CombinationRow.key == key)).first()
                    if combination is None:
                        self.merged.damaged.append(_in_words(KeyError(key)))
                        continue
                    row = ReusedRow(
                        study_id=study_id,
                        trial_sequence=trial,
                        combination_id=combination,
                        evidence=evidence,
                    )
                    session.merge(row)
                session.commit()


def _in_words(error: Exception) -> str:
    if isinstance(error, DamageError):
        return f"{error.where}, column {error.column}: {error.why}"
    if isinstance(error, StorageError):
        return error.what
    return f"a trial names combination {error}, which its study does not have"


def _is_learnt(row: CombinationRow) -> bool:
    return CombinationStatus(row.status).is_learnt


# --------------------------------------------------------------------------------------------------
# Export into one file, import from one, merge with another: which databases, and how they appear.


@contextlib.contextmanager
def _opened(reference: str | None, *, read_only: bool) -> Iterator[Database]:
    database = open_database(reference, read_only=read_only)
    try:
        with speaking(database.shown):
            yield database
    finally:
        database.engine.dispose()


def export(reference: str | None, file: Path, studies: Sequence[str] = ()) -> Merged:
    """Write a database, or some of its studies, into one new SQLite file, logs and all.

    Args:
        reference: As `Store.open` takes it.
        file: Must not exist; it appears whole or not at all, mode 0600.
        studies: References of studies as `Store.study` takes them; none for all.

    Raises:
        UsageError: The file exists, or a study does not.
        StorageError: The database cannot be read, or the file not written.
    """
    file = file.expanduser().absolute()
    if file.exists():
        raise UsageError(f"{file} exists", remedy="name a new file, or remove that one")
    if not file.parent.is_dir():
        raise UsageError(f"there is no directory {file.parent}", remedy="make it, or name another file")
    with Store.open(reference, read_only=True) as store:
        chosen = [store.study(one).id for one in studies] or None
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
    try:
        with _opened(reference, read_only=True) as source, _opened(str(part), read_only=False) as target:
            merged = merge(source, target, chosen, one_file=True)
        part.replace(file)
    except OSError as error:
        raise StorageError(
            f"{file} cannot be written: {error.strerror or error}", remedy="name another file"
        ) from error
    finally:
        for name in (part.name, f"{part.name}-wal", f"{part.name}-shm", f".{part.name}.lock"):
            part.with_name(name).unlink(missing_ok=True)
    return merged


def import_file(reference: str | None, file: Path) -> Merged:
    """Add what a file holds, be it of this release's schema or of an older one; the file stays as it is.

    Raises:
        StorageError: It is no database of ours, or of a newer release.
    """
    file = file.expanduser().absolute()
    with temporary("import") as folder:
        # A copy, made by SQLite itself: the file may have a log beside it, and be upgraded here.
        copy = folder / "import.sqlite"
        original = open_any_schema(str(file), read_only=True)
        original.engine.dispose()
        try:
            with (
                contextlib.closing(connector(file, read_only=True)()) as old,
                contextlib.closing(sqlite3.connect(copy)) as new,
            ):
                old.backup(new)
        except sqlite3.Error as error:
            raise StorageError(
                f"{file} cannot be read: {error}", remedy="take it from a backup, or name another file"
            ) from error
        maintenance.upgrade(str(copy))
        with _opened(str(copy), read_only=True) as source, _opened(reference, read_only=False) as target:
            named = Database(source.engine, source.reader, str(file), original.folder)
            return merge(named, target)


def merge_databases(reference: str | None, other: str) -> Merged:
    """Add what another database holds; it may be in use, and stays as it is.

    Raises:
        StorageError: It has another schema than this release's, or cannot be read.
    """
    with _opened(other, read_only=True) as source, _opened(reference, read_only=False) as target:
        return merge(source, target)
