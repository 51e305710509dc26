"""Copies studies between databases: export into a file, import from one, and merge.

What is there already stays; what is new is added; saying it twice is saying it once. A study that both know,
because it was copied once and went on in both, gets the trials of both, and the verdict that was stored last.
Everything is written in small transactions, so that studies which run on the target go on meanwhile. After
a kill, the same command copies the rest.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from bisect_env.errors import StorageError, UsageError
from bisect_env.storage import blobs, rows
from bisect_env.storage.backend import ANOTHER, Database, open_database, speaking
from bisect_env.storage.entries import CombinationStatus
from bisect_env.storage.store import Store
from bisect_env.storage.tables import (
    ArtefactRow,
    BlobRow,
    ChangedRow,
    CombinationRow,
    DecisionRow,
    LockRow,
    MemberRow,
    PackageRow,
    StudyRow,
    TrialRow,
)
from bisect_env.storage.values import DamageError, shortened

# --------------------------------------------------------------------------------------------------
# From one database into another: export, import and merge are one thing.

_CHUNK = 300
"""Trials of one transaction: long enough to be quick, short enough that nobody waits."""


@dataclass(slots=True)
class Merged:
    """The result of a merge.

    Attributes:
        studies: Number of studies that were read.
        new_studies: Number of these that the target did not have.
        trials: Number of trials that were read.
        new_trials: Number of these that the target did not have.
        conflicts: Ids of trials that differ between the databases; the target's version was kept.
        damaged: Rows left out because of invalid content, one sentence each.
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
) -> Merged:
    """Copy the contents of one database into another.

    Args:
        source: Read only, as one state.
        target: Open for writing.
        chosen: Ids of studies, None for all; studies whose trials they reuse are included.

    Raises:
        UsageError: Both are the same database.
        StorageError: One of them fails, or rows of the source contradict each other.
    """
    if source.shown == target.shown:
        raise UsageError(f"{source.shown} would be merged into itself", remedy="name another database")
    with speaking(source.shown), Session(source.reader) as reading:
        copier = _Copier(reading, target)
        wanted = _with_origins(reading, chosen)
        try:
            copied = [study.id for study in _studies(reading, wanted) if copier.study(study)]
            copier.changes(copied)
            for study_id in copied:
                copier.members(study_id)
        except IntegrityError as error:
            # In a damaged file, an index may lead to a row that names a study that is not there.
            raise StorageError(
                f"{source.shown} is damaged: {error.orig}", remedy="take it from a backup, or " + ANOTHER
            ) from error
        return copier.merged


def _studies(reading: Session, wanted: set[str] | None) -> Iterator[StudyRow]:
    query = select(StudyRow).order_by(col(StudyRow.created_at), col(StudyRow.id))
    return (study for study in reading.exec(query).all() if wanted is None or study.id in wanted)


def _with_origins(reading: Session, chosen: Sequence[str] | None) -> set[str] | None:
    if chosen is None:
        return None
    query = (
        select(TrialRow.study_id)
        .join(MemberRow, col(MemberRow.trial_sequence) == col(TrialRow.sequence))
        .where(col(MemberRow.study_id).in_(chosen))
        .distinct()
    )
    return {*chosen, *reading.exec(query)}


def _values(row: Any, *without: str) -> dict[str, Any]:
    return {name: getattr(row, name) for name in type(row).__table__.columns.keys() if name not in without}  # noqa: SIM118


class _Copier:
    def __init__(
        self,
        reading: Session,
        target: Database,
    ) -> None:
        self._reading = reading
        self._target = target
        self.merged = Merged()

    def study(self, study: StudyRow) -> bool:
        """Copy a study; if its rows or locks are damaged, report it and copy nothing of it."""
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
            for file in study.files:
                blob = self._reading.get(BlobRow, file["content_hash"]) if file["content_hash"] else None
                if blob is not None and (content := blobs.get(blob)):
                    blobs.put(session, [content])
            session.flush()
            self._combinations(session, study.id)
            self._decisions(session, study.id)
            session.commit()
        self._trials(study.id)
        return True

    def _check(self, study: StudyRow) -> None:
        rows.study_of(study)
        for file in study.files:
            blob = self._reading.get(BlobRow, file["content_hash"]) if file["content_hash"] else None
            if blob is not None:
                blobs.get(blob)
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

    def _combinations(self, session: Session, study_id: str) -> None:
        query = select(CombinationRow).where(CombinationRow.study_id == study_id)
        query = query.order_by(col(CombinationRow.id))
        known = {row.key: row for row in session.exec(query)}
        for row in self._reading.exec(query):
            mine = known.get(row.key)
            if mine is None:
                mine = CombinationRow(**_values(row, "id"))
                session.add(mine)
            elif _is_learnt(row) and not _is_learnt(mine) and row.lock_hash == mine.lock_hash:
                mine.status, mine.reason = row.status, row.reason

    def _decisions(self, session: Session, study_id: str) -> None:
        query = select(DecisionRow).where(DecisionRow.study_id == study_id).order_by(col(DecisionRow.id))
        known = {(row.at, row.kind, repr(row.payload)) for row in session.exec(query)}
        for row in self._reading.exec(query):
            if (row.at, row.kind, repr(row.payload)) not in known:
                session.add(DecisionRow(**_values(row, "id")))

    def _trials(self, study_id: str) -> None:
        last = 0
        while True:
            query = select(TrialRow).where(TrialRow.study_id == study_id)
            query = query.where(col(TrialRow.sequence) > last).order_by(col(TrialRow.sequence))
            found = self._reading.exec(query.limit(_CHUNK)).all()
            if not found:
                return
            last = found[-1].sequence or 0
            with self.writing() as session:
                self._chunk(session, found)
                session.commit()
            # What was copied need not stay in memory.
            self._reading.expunge_all()

    def _chunk(self, session: Session, found: Sequence[TrialRow]) -> None:
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
                rows.check_trial(row)
                left = list(self._left_by(row.sequence))
            except (DamageError, StorageError) as error:
                self.merged.damaged.append(_in_words(error))
                continue
            self.merged.new_trials += 1
            copy = TrialRow(**_values(row, "sequence"))
            session.add(copy)
            session.flush()
            assert copy.sequence is not None
            self._artefacts(session, left, copy.sequence)

    def _left_by(self, sequence: int) -> Iterator[tuple[str, BlobRow, bytes | None]]:
        """Yield name, row and content of each file that a trial left; the content's hash is verified."""
        query = (
            select(ArtefactRow.name, BlobRow)
            .join(BlobRow, col(BlobRow.content_hash) == col(ArtefactRow.content_hash))
            .where(ArtefactRow.trial_sequence == sequence)
        )
        for name, blob in self._reading.exec(query):
            yield name, blob, blobs.get(blob)

    def _artefacts(
        self, session: Session, left: Sequence[tuple[str, BlobRow, bytes | None]], ours: int
    ) -> None:
        for name, blob, content in left:
            if content is not None:
                blobs.put(session, [content])
            elif session.get(BlobRow, blob.content_hash) is None:
                session.add(BlobRow(**_values(blob, "data")))
                session.flush()
            session.add(ArtefactRow(trial_sequence=ours, name=name, content_hash=blob.content_hash))

    def changes(self, study_ids: Sequence[str]) -> None:
        """Copy the known changes of environments, which make trials void here as well.

        Args:
            study_ids: Studies whose locks have already been copied.
        """
        wanted = {lock_hash for study_id in study_ids for lock_hash in self._locks_of(study_id)}
        with self.writing() as session:
            known = [rows.change_of(row) for row in session.exec(select(ChangedRow))]
        for row in self._reading.exec(select(ChangedRow).order_by(col(ChangedRow.id))):
            if row.lock_hash not in wanted:
                continue
            try:
                changed = rows.change_of(row)
            except DamageError as error:
                self.merged.damaged.append(_in_words(error))
                continue
            if changed not in known:
                Store(self._target).study_trials(study_ids[0]).note_change(changed)

    def members(self, study_id: str) -> None:
        """Add to a study in the target the trials that only the source's study has."""
        query = (
            select(MemberRow, TrialRow.trial_id, CombinationRow.key)
            .join(TrialRow, col(TrialRow.sequence) == col(MemberRow.trial_sequence))
            .join(CombinationRow, col(CombinationRow.id) == col(MemberRow.combination_id))
            .where(MemberRow.study_id == study_id)
            .order_by(col(MemberRow.id))
        )
        there = self._reading.exec(query).all()
        trials = Store(self._target).study_trials(study_id)
        for i in range(0, len(there), _CHUNK):
            chunk = there[i : i + _CHUNK]
            with self.writing() as session:
                sequences = _sequences(session, [trial_id for _, trial_id, _ in chunk])
                known = select(MemberRow.trial_sequence).where(
                    MemberRow.study_id == study_id, col(MemberRow.trial_sequence).in_(sequences.values())
                )
                missing = {*sequences.values()} - {*session.exec(known)}
                combinations = select(CombinationRow.key, CombinationRow.id)
                places = dict(session.exec(combinations.where(CombinationRow.study_id == study_id)).all())
                lost = {key for _, _, key in chunk} - places.keys()
                self.merged.damaged += [
                    f"study {study_id} has trials of a combination {shortened(key)} that it does not have"
                    for key in sorted(lost)
                ]
                trials.admit(
                    session,
                    [
                        {
                            "trial_sequence": sequences[trial_id],
                            "combination_id": places[key],
                            "reused": member.reused,
                            "matched": member.matched,
                        }
                        for member, trial_id, key in chunk
                        # A trial that is damaged in the source was named and is not here.
                        if sequences.get(trial_id) in missing and key in places
                    ],
                )
                session.commit()


def _sequences(session: Session, trial_ids: Sequence[str]) -> dict[str, int]:
    query = select(TrialRow.trial_id, TrialRow.sequence).where(col(TrialRow.trial_id).in_(trial_ids))
    return {trial_id: sequence for trial_id, sequence in session.exec(query) if sequence is not None}


def _in_words(error: DamageError | StorageError) -> str:
    if isinstance(error, DamageError):
        return f"{error.where}, column {error.column}: {error.why}"
    return error.what


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
    """Write a database, or some of its studies, into a new SQLite file, including logs.

    Args:
        reference: As `Store.open` takes it.
        file: Must not exist; it is created completely or not at all, with mode 0600.
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
            merged = merge(source, target, chosen)
        part.replace(file)
    except OSError as error:
        raise StorageError(
            f"{file} cannot be written: {error.strerror or error}", remedy="name another file"
        ) from error
    finally:
        for name in (part.name, f"{part.name}-wal", f"{part.name}-shm"):
            part.with_name(name).unlink(missing_ok=True)
    return merged


def merge_databases(reference: str | None, other: str) -> Merged:
    """Add the contents of another database, which may be in use and is not changed.

    Raises:
        StorageError: It has another schema than this release's, or cannot be read.
    """
    with _opened(other, read_only=True) as source, _opened(reference, read_only=False) as target:
        return merge(source, target)
