"""Stores file contents (logs, scripts) compressed and by hash, so that equal contents are stored once."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence

from sqlmodel import Session, col, select

from bisect_env.storage.rows import name_of
from bisect_env.storage.tables import ArtefactRow, BlobRow, TrialRow
from bisect_env.storage.values import DamageError

LARGEST = 64 * 1024 * 1024
"""Maximum size of one content in bytes, to keep files such as CUDA core dumps out of the database."""


def put(session: Session, contents: Sequence[bytes]) -> list[str]:
    """Store contents in compressed form, equal ones only once, and return their sha256 hashes.

    Args:
        session: A writing session, which holds the write lock.
        contents: The contents to store, none of them empty.

    Returns:
        The sha256 of each content, in hex digits.
    """
    digests = [hashlib.sha256(content).hexdigest() for content in contents]
    here = select(BlobRow.content_hash).where(
        col(BlobRow.content_hash).in_(digests), col(BlobRow.data).is_not(None)
    )
    known = set(session.exec(here))
    for digest, content in dict(zip(digests, contents, strict=True)).items():
        if digest not in known:
            session.merge(BlobRow(content_hash=digest, data=zlib.compress(content, 6)))
    session.flush()
    return digests


def get(row: BlobRow) -> bytes | None:
    """Return the uncompressed content of a row, or None if the content was deleted to save space.

    At most `LARGEST` bytes are unpacked: four megabytes that another program wrote may unpack to four
    gigabytes.

    Raises:
        DamageError: The content does not match its hash.
    """
    if row.data is None:
        return None
    try:
        content = zlib.decompressobj().decompress(row.data, LARGEST + 1)
    except (TypeError, zlib.error) as error:
        raise DamageError(name_of(row), "data", str(error)) from error
    if hashlib.sha256(content).hexdigest() != row.content_hash:
        raise DamageError(name_of(row), "data", "it is not the content with this hash")
    return content


def left_by(session: Session, trial: TrialRow) -> list[tuple[str, BlobRow, bytes | None]]:
    """Return the name, row and content of each file that a trial left, sorted by name.

    The content is None if it was deleted to save space.

    Raises:
        DamageError: A content does not match its hash.
    """
    query = (
        select(ArtefactRow.name, BlobRow)
        .join(BlobRow, col(BlobRow.content_hash) == col(ArtefactRow.content_hash))
        .where(ArtefactRow.trial_sequence == trial.sequence)
        .order_by(col(ArtefactRow.name))
    )
    return [(name, blob, get(blob)) for name, blob in session.exec(query)]
