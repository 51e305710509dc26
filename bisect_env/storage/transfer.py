"""Copies studies between databases: export into a file, import from one, and merge.

Existing rows are kept and new rows are added, so copying again changes nothing. If a study was continued in
both databases, it gets the trials of both, the versions that either added, and the verdict that knew more
trials, which reports weigh anew. Rows are written in small
transactions, so that studies can run on the target meanwhile. After a kill, the same command copies the
rest.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from bisect_env.answers.axes import AxisInfo
from bisect_env.errors import StorageError, UsageError, expanded
from bisect_env.matrix.grid import AxisKind
from bisect_env.storage import blobs, rows
from bisect_env.storage.backend import speaking
from bisect_env.storage.entries import LEARNT, CombinationStatus
from bisect_env.storage.store import Store
from bisect_env.storage.study_trials import sequences_of
from bisect_env.storage.tables import (
    ArtefactRow,
    BlobRow,
    ChangedRow,
    CombinationRow,
    DecisionRow,
    MemberRow,
    StudyRow,
    TrialRow,
)
from bisect_env.storage.values import ANOTHER, DamageError, shortened
from bisect_env.trials.records import Evidence

# --------------------------------------------------------------------------------------------------
# Copying from one database into another, for export, import and merge.

_CHUNK = 300
"""Number of trials per transaction: large enough to be fast, small enough not to block other writers."""


@dataclass(slots=True)
class Merged:
    """Counts of the studies and trials that were read and added when one database was copied into another.

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
    source: Store,
    target: Store,
    chosen: Sequence[str] | None = None,
) -> Merged:
    """Copy the contents of one database into another.

    Args:
        source: Database to copy from. It is only read, in one unchanging state.
        target: Database to copy into, open for writing.
        chosen: Ids of studies; None for all. Studies whose trials these reuse are copied, too.

    Raises:
        UsageError: Source and target are the same database.
        StorageError: A database fails, or rows of the source contradict each other.
    """
    if source.shown == target.shown:
        raise UsageError(f"{source.shown} would be merged into itself", remedy="name another database")
    with source.reading() as reading:
        copier = _Copier(source, reading, target)
        query = select(StudyRow).order_by(col(StudyRow.created_at), col(StudyRow.id))
        if chosen is not None:
            query = query.where(col(StudyRow.id).in_(_with_origins(reading, chosen)))
        studies = reading.exec(query).all()
        try:
            copied = [study.id for study in studies if copier.study(study)]
            copier.changes(copied)
            for study_id in copied:
                copier.members(study_id)
        except IntegrityError as error:
            # In a damaged file, an index may lead to a row of a study that does not exist.
            raise StorageError(
                f"{source.shown} is damaged: {error.orig}", remedy="take it from a backup, or " + ANOTHER
            ) from error
        return copier.merged


def _with_origins(reading: Session, chosen: Sequence[str]) -> set[str]:
    """Return the ids of the chosen studies, and of all studies whose trials these reuse.

    Studies whose trials those reuse in turn are included, and so on.
    """
    found, new = set(chosen), set(chosen)
    while new:
        query = (
            select(TrialRow.study_id)
            .join(MemberRow, col(MemberRow.trial_sequence) == col(TrialRow.sequence))
            .where(col(MemberRow.study_id).in_(new))
            .distinct()
        )
        new = {*reading.exec(query)} - found
        found |= new
    return found


def _values(row: Any, *without: str) -> dict[str, Any]:
    return {name: getattr(row, name) for name in type(row).__table__.columns.keys() if name not in without}  # noqa: SIM118


def _knowledge(study: StudyRow) -> tuple[int, datetime]:
    """Return what one copy of a study knew: the number of trials in its verdict, and its date."""
    verdict = rows.study_of(study).verdict
    return 0 if verdict is None else verdict.trials, study.updated_at


def _joined_grid(mine: StudyRow, other: StudyRow) -> list[dict[str, Any]]:
    """Return the axes of two copies of a study, with the releases that either of them added at its answer."""
    axes = {axis.name: axis for axis in rows.study_of(other).definition.grid}
    joined: list[AxisInfo] = []
    for axis in rows.study_of(mine).definition.grid:
        one = axes.get(axis.name, axis)
        longer = max(axis, one, key=lambda which: len(which.values))
        values = longer.values
        if axis.kind is AxisKind.PACKAGE and not {*values} >= {*axis.values, *one.values}:
            with contextlib.suppress(InvalidVersion):
                values = tuple(sorted({*axis.values, *one.values}, key=Version))
        passed_over = tuple(value for value in longer.passed_over if value not in values)
        joined.append(longer.model_copy(update={"values": values, "passed_over": passed_over}))
    return rows.grid_value(joined)


class _Copier:
    def __init__(self, source: Store, reading: Session, target: Store) -> None:
        self._source = source
        self._reading = reading
        self._store = target
        self.merged = Merged()

    def study(self, study: StudyRow) -> bool:
        """Copy a study, and return whether this was possible.

        If its rows or locks are damaged, this is reported, and no row of the study is copied.
        """
        try:
            self._check(study)
            self._locks(study.id)
        except DamageError as error:
            self.merged.damaged.append(error.what)
            return False
        with self._store.writing() as session:
            self.merged.studies += 1
            known = session.get(StudyRow, study.id)
            if known is None:
                self.merged.new_studies += 1
                session.add(StudyRow(**_values(study)))
            else:
                grid = _joined_grid(known, study)
                if _knowledge(study) > _knowledge(known):
                    for name, value in _values(study, "id").items():
                        setattr(known, name, value)
                known.grid = grid
            blobs.put(session, self._contents(study))
            self._combinations(session, study.id)
            self._decisions(session, study.id)
            if known is not None:
                session.flush()
                self._store.study_trials(study.id).write_evidence(session)
        self._trials(study.id)
        return True

    def _check(self, study: StudyRow) -> None:
        rows.study_of(study)
        self._contents(study)
        self._source.combinations(study.id)
        self._source.decisions(study.id)

    def _contents(self, study: StudyRow) -> list[bytes]:
        """Return the stored contents of the files of a study."""
        digests = [file["content_hash"] for file in study.files if file["content_hash"]]
        found = (self._reading.get(BlobRow, digest) for digest in digests)
        return [content for blob in found if blob is not None and (content := blobs.get(blob))]

    def _locks_of(self, study_id: str) -> list[str]:
        here = select(CombinationRow.lock_hash).where(CombinationRow.study_id == study_id)
        there = select(TrialRow.lock_hash).where(TrialRow.study_id == study_id).distinct()
        wanted = {*self._reading.exec(here), *self._reading.exec(there)} - {None}
        return sorted(str(one) for one in wanted)

    def _locks(self, study_id: str) -> None:
        for lock_hash in self._locks_of(study_id):
            lock = self._source.lock(lock_hash)
            if lock is None:
                raise DamageError(
                    f"study {study_id}", "lock_hash", f"there is no lock {shortened(lock_hash)}"
                )
            self._store.save_locks([lock])

    def _combinations(self, session: Session, study_id: str) -> None:
        query = select(CombinationRow).where(CombinationRow.study_id == study_id)
        query = query.order_by(col(CombinationRow.id))
        known = {row.key: row for row in session.exec(query)}
        for row in self._reading.exec(query):
            mine = known.get(row.key)
            if mine is None:
                mine = CombinationRow(**_values(row, "id"))
                session.add(mine)
            elif mine.status == CombinationStatus.UNLOCKED:
                mine.status, mine.reason, mine.lock_hash = row.status, row.reason, row.lock_hash
            elif row.status in LEARNT and mine.status not in LEARNT and row.lock_hash == mine.lock_hash:
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
            with self._store.writing() as session:
                self._chunk(session, found)
            # Free the memory of copied rows.
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
            with speaking(self._source.shown):
                try:
                    rows.checked(row)
                    left = blobs.left_by(self._reading, row)
                except StorageError as error:
                    self.merged.damaged.append(error.what)
                    continue
            self.merged.new_trials += 1
            copy = TrialRow(**_values(row, "sequence"))
            session.add(copy)
            session.flush()
            assert copy.sequence is not None
            self._artefacts(session, left, copy.sequence)

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
        """Copy the records of changed environments, whose trials thus become void in the target, too.

        Args:
            study_ids: Studies whose locks have already been copied.
        """
        wanted = {lock_hash for study_id in study_ids for lock_hash in self._locks_of(study_id)}
        for row in self._reading.exec(select(ChangedRow).order_by(col(ChangedRow.id))):
            if row.lock_hash not in wanted:
                continue
            try:
                self._store.study_trials(study_ids[0]).note_change(rows.change_of(row))
            except DamageError as error:
                self.merged.damaged.append(error.what)

    def members(self, study_id: str) -> None:
        """Add trials to a study in the target that only the source's copy of the study has."""
        query = (
            select(MemberRow, TrialRow.trial_id, CombinationRow.key)
            .join(TrialRow, col(TrialRow.sequence) == col(MemberRow.trial_sequence))
            .join(CombinationRow, col(CombinationRow.id) == col(MemberRow.combination_id))
            .where(MemberRow.study_id == study_id)
            .order_by(col(MemberRow.id))
        )
        there = self._reading.exec(query).all()
        trials = self._store.study_trials(study_id)
        for i in range(0, len(there), _CHUNK):
            chunk = there[i : i + _CHUNK]
            with self._store.writing() as session:
                sequences = sequences_of(session, [trial_id for _, trial_id, _ in chunk])
                known = select(MemberRow.trial_sequence).where(
                    MemberRow.study_id == study_id, col(MemberRow.trial_sequence).in_(sequences.values())
                )
                missing = {*sequences.values()} - {*session.exec(known)}
                combinations = select(CombinationRow.key, CombinationRow.id)
                combinations = combinations.where(CombinationRow.study_id == study_id)
                places = {key: id_ for key, id_ in session.exec(combinations) if id_ is not None}
                lost = {key for _, _, key in chunk} - places.keys()
                self.merged.damaged += [
                    f"study {study_id} has trials of a combination {shortened(key)} that it does not have"
                    for key in sorted(lost)
                ]
                session.add_all(
                    [
                        MemberRow(
                            **_values(member, "id", "trial_sequence", "combination_id", "evidence"),
                            trial_sequence=sequences[trial_id],
                            combination_id=places[key],
                            evidence=str(Evidence.VOID),
                        )
                        for member, trial_id, key in chunk
                        # A trial that is damaged in the source was reported and not copied.
                        if sequences.get(trial_id) in missing and key in places
                    ]
                )
                trials.write_evidence(session)


# --------------------------------------------------------------------------------------------------
# Export into one file, import from one, merge with another: which databases, and how they appear.


def export(reference: str | None, file: Path, studies: Sequence[str] = ()) -> Merged:
    """Write all or some studies of a database into a new SQLite file, including logs.

    Args:
        reference: The database, as for `Store.open`.
        file: Path of the new file. It is created completely or not at all, with mode 0600.
        studies: Studies to export, named as for `Store.study`; if empty, all.

    Raises:
        UsageError: The file exists, or a study does not.
        StorageError: The database cannot be read, or the file not written.
    """
    file = expanded(file).absolute()
    if file.exists():
        raise UsageError(f"{file} exists", remedy="name a new file, or remove that one")
    if not file.parent.is_dir():
        raise UsageError(f"there is no directory {file.parent}", remedy="make it, or name another file")
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
    try:
        with Store.open(reference, read_only=True) as source, Store.open(str(part)) as target:
            merged = merge(source, target, [source.study(one).id for one in studies] or None)
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
    """Copy all studies and trials of another database into this one.

    The other database may be in use; it is not changed.

    Raises:
        StorageError: The other database has another schema than this release, or cannot be read.
    """
    with Store.open(other, read_only=True) as source, Store.open(reference) as target:
        return merge(source, target)
