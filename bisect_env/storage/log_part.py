"""The part of the store that keeps what trials left: logs and other files, within a limit."""

from __future__ import annotations

from sqlmodel import Session, col, select

from bisect_env.errors import UsageError
from bisect_env.storage import blobs, collect, queries
from bisect_env.storage.collect import Collected
from bisect_env.storage.sessions import Sessions
from bisect_env.storage.tables import ArtefactRow, TrialRow
from bisect_env.storage.values import clean

LARGEST = 64 * 1024 * 1024
"""Bytes of one artefact; a core file of a CUDA process does not belong into a database."""


class LogPart(Sessions):
    """Artefacts."""

    def add_artefact(self, trial_id: str, name: str, content: bytes) -> None:
        """Store a file that a trial left, compressed; equal contents are stored once.

        Raises:
            ValueError: The trial is not stored, or has another artefact of this name.
            UsageError: It is too large.
        """
        if len(content) > LARGEST:
            raise UsageError(
                f"the artefact {name!r} has {len(content)} bytes, more than {LARGEST}",
                remedy="keep it elsewhere, and store its name",
            )
        with self._writing() as session:
            sequence = _sequence(session, trial_id)
            digest = blobs.put(session, self._database.folder, content)
            key = (sequence, clean(name))
            known = session.get(ArtefactRow, key)
            if known is not None and known.content_hash != digest:
                raise ValueError(f"trial {trial_id} has another artefact {name!r}")
            if known is None:
                session.add(ArtefactRow(trial_sequence=sequence, name=key[1], content_hash=digest))

    def artefacts(self, trial_id: str) -> dict[str, bytes | None]:
        """Everything that a trial left, by name; what was collected is None.

        Raises:
            ValueError: The trial is not stored.
        """
        with self._reading() as session:
            return queries.artefacts(session, _sequence(session, trial_id), self._database.folder)

    def collect(self, limit: int | None = None, *, dry: bool = False) -> Collected:
        """Drop what no trial refers to, and the oldest logs beyond a limit; never what a verdict cites.

        Args:
            limit: Bytes that all logs together may take; it is kept for later. None takes the one kept.
            dry: Change nothing, say what would be dropped.
        """
        return collect.collect(self, limit, dry=dry)

    def logs_beyond_limit(self) -> bool:
        """Whether the logs take more than the limit that the database keeps."""
        with self._reading() as session:
            return collect.stored(session) > collect.limit_of(session)


def _sequence(session: Session, trial_id: str) -> int:
    query = select(TrialRow.sequence).where(col(TrialRow.trial_id) == trial_id)
    sequence = session.exec(query).first()
    if sequence is None:
        raise ValueError(f"there is no trial {trial_id}")
    return sequence
