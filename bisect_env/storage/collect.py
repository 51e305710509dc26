"""The collector: it keeps logs within a limit, and never drops what a verdict cites.

Trials themselves stay: to drop some would change the counts that every verdict rests on. A verdict cites the
first trial of every way of failing in its study, which reports show with its stack, and of the two
combinations between which it draws the line the first bad and the first good trial.

Files go in two steps: what is dropped is marked and committed, and only then removed. A collector that is
killed in between leaves a file that nobody names, never a name without its file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import select as select_columns
from sqlmodel import Session, col, delete, func, select

from bisect_env.matrix.combination import Combination
from bisect_env.storage import blobs, queries
from bisect_env.storage.tables import (
    ArtefactRow,
    BlobRow,
    CombinationRow,
    MetaRow,
    ReusedRow,
    StudyRow,
    TrialRow,
)
from bisect_env.trials.records import Evidence

if TYPE_CHECKING:
    from bisect_env.storage.sessions import Sessions

LIMIT = 10 * 2**30
"""Bytes that all logs may take together unless the database says otherwise."""
_LIMIT_FACT = "log_limit"


@dataclass(frozen=True, slots=True)
class Collected:
    """What the collector did, or would do.

    Attributes:
        limit: Bytes that logs may take.
        before: Bytes that they took.
        after: Bytes that they take now.
        logs: Contents dropped to keep the limit.
        orphans: Contents dropped because no trial refers to them.
        cited: Bytes that verdicts cite, which stay.
    """

    limit: int
    before: int
    after: int
    logs: int
    orphans: int
    cited: int


def limit_of(session: Session) -> int:
    """The limit that the database keeps."""
    value = session.exec(select(MetaRow.value).where(MetaRow.name == _LIMIT_FACT)).first()
    return int(value) if value is not None and value.isdecimal() else LIMIT


def stored(session: Session) -> int:
    """Bytes that logs take, compressed."""
    query = select(func.coalesce(func.sum(BlobRow.stored), 0)).where(col(BlobRow.collected).is_(False))
    return int(session.exec(query).one())


def cited_trials(session: Session) -> set[int]:
    """`sequence` of every trial that a verdict cites."""
    found: set[int] = set()
    query = select(StudyRow.id, StudyRow.verdict).where(col(StudyRow.verdict).is_not(None))
    for study_id, verdict in session.exec(query).all():
        groups = queries.failure_groups(study_id)
        found.update(session.execute(select_columns(groups.c.first)).scalars())
        for end, evidence in (("first_bad", Evidence.BAD), ("last_good", Evidence.GOOD)):
            values = (verdict or {}).get(end)
            if isinstance(values, dict) and values:
                found.update(_first_at(session, study_id, Combination.of(values).key, evidence))
    return found


def _first_at(session: Session, study_id: str, key: str, evidence: Evidence) -> list[int]:
    here = (col(CombinationRow.study_id) == study_id) & (col(CombinationRow.key) == key)
    own = (
        select(func.min(TrialRow.sequence))
        .join(CombinationRow, col(CombinationRow.id) == col(TrialRow.combination_id))
        .where(here, TrialRow.evidence == evidence.value)
    )
    reused = (
        select(func.min(ReusedRow.trial_sequence))
        .join(CombinationRow, col(CombinationRow.id) == col(ReusedRow.combination_id))
        .where(here, ReusedRow.evidence == evidence.value)
    )
    firsts = (session.exec(query).one() for query in (own, reused))
    return [int(first) for first in firsts if first is not None]


def collect(sessions: Sessions, limit: int | None, *, dry: bool) -> Collected:
    """As `Store.collect`."""
    folder = sessions._database.folder
    with sessions._reading() if dry else sessions._writing() as session:
        before = stored(session)
        limit = limit_of(session) if limit is None else limit
        orphans = _orphans(session)
        after = before - sum(orphans.values())
        cited = _blobs_of(session, cited_trials(session)) if after > limit else {}
        dropped: dict[str, int] = {}
        for digest, size in _oldest_first(session) if after > limit else ():
            if after <= limit:
                break
            if digest not in cited:
                dropped[digest] = size
                after -= size
        if not dry:
            session.merge(MetaRow(name=_LIMIT_FACT, value=str(limit)))
            for digest in dropped:
                row = session.get_one(BlobRow, digest)
                row.collected, row.data = True, None
            session.flush()
            for digest in orphans:
                session.exec(delete(BlobRow).where(col(BlobRow.content_hash) == digest))
    if not dry and folder is not None and folder.is_dir():
        with sessions._writing() as session:
            _remove_files(session, folder)
    return Collected(limit, before, after, len(dropped), len(orphans), sum(cited.values()))


def _orphans(session: Session) -> dict[str, int]:
    referred = select(ArtefactRow.content_hash).where(ArtefactRow.content_hash == BlobRow.content_hash)
    query = select(BlobRow.content_hash, BlobRow.stored, BlobRow.collected).where(~referred.exists())
    return {digest: 0 if gone else size for digest, size, gone in session.exec(query)}


def _blobs_of(session: Session, sequences: set[int]) -> dict[str, int]:
    found: dict[str, int] = {}
    ordered = sorted(sequences)
    for i in range(0, len(ordered), 500):
        query = (
            select(BlobRow.content_hash, BlobRow.stored)
            .join(ArtefactRow, col(ArtefactRow.content_hash) == col(BlobRow.content_hash))
            .where(col(ArtefactRow.trial_sequence).in_(ordered[i : i + 500]))
            .where(col(BlobRow.collected).is_(False))
        )
        found.update(dict(session.exec(query).all()))
    return found


def _oldest_first(session: Session) -> list[tuple[str, int]]:
    # By the youngest trial that left a content: what still happens is worth more than what happened once.
    youngest: Any = func.max(ArtefactRow.trial_sequence)
    query = (
        select(BlobRow.content_hash, BlobRow.stored)
        .join(ArtefactRow, col(ArtefactRow.content_hash) == col(BlobRow.content_hash))
        .where(col(BlobRow.collected).is_(False))
        .group_by(col(BlobRow.content_hash), col(BlobRow.stored))
        .order_by(youngest, col(BlobRow.content_hash))
    )
    return [(digest, size) for digest, size in session.exec(query)]


def _remove_files(session: Session, folder: Path) -> None:
    """Remove files that no row names; the write lock keeps writers from naming one meanwhile."""
    query = select(BlobRow.content_hash).where(col(BlobRow.collected).is_(False), col(BlobRow.data).is_(None))
    named = set(session.exec(query))
    for digest, path in blobs.files(folder):
        # Whoever writes a file holds the write lock until the row is committed: what is not named now is
        # of no use to anybody, unfinished files of killed writers included.
        if digest not in named:
            path.unlink(missing_ok=True)
