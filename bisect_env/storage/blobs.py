"""Stores compressed contents by their hash, each once."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Sequence

from sqlmodel import Session, col, select

from bisect_env.storage.tables import ArtefactRow, BlobRow, TrialRow
from bisect_env.storage.values import DamageError

LARGEST = 64 * 1024 * 1024
"""Maximum size of one content in bytes, to keep files such as CUDA core dumps out of the database."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


def put(session: Session, contents: Sequence[bytes]) -> list[str]:
    """Compress contents and store each one once; return their hashes.

    Args:
        session: A writing session, which holds the write lock.
        contents: None of them empty.

    Returns:
        The sha256 of each as hex digits.
    """
    digests = [hashlib.sha256(content).hexdigest() for content in contents]
    query = select(BlobRow.content_hash, BlobRow.collected).where(col(BlobRow.content_hash).in_(digests))
    collected = dict(session.exec(query).all())
    for digest, content in dict(zip(digests, contents, strict=True)).items():
        if not collected.get(digest, True):
            continue
        data = zlib.compress(content, 6)
        size, stored = len(content), len(data)
        row = BlobRow(content_hash=digest, size=size, stored=stored, collected=False, data=data)
        if digest in collected:
            session.merge(row)
        else:
            session.add(row)
    session.flush()
    return digests


def get(row: BlobRow) -> bytes | None:
    """Return the unpacked content of a row, or None if the content was deleted to save space.

    At most as many bytes are unpacked as the row states, and that number is limited to what we would store:
    four megabytes that somebody else wrote may unpack to four gigabytes.

    Raises:
        DamageError: The content does not match its hash and size.
    """
    digest: object = row.content_hash
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise _broken("?", "its hash is none")
    if row.collected:
        return None
    size: object = row.size
    if not isinstance(size, int) or not 0 <= size <= LARGEST:
        raise _broken(digest, f"a size of {size!r:.40} is none")
    if not isinstance(row.data, bytes):
        raise _broken(digest, "it is no binary data")
    unpacker = zlib.decompressobj()
    try:
        # Allow one byte more than stated, because a limit of zero would mean no limit.
        content = unpacker.decompress(row.data, size + 1)
    except zlib.error as error:
        raise _broken(digest, str(error)) from error
    if len(content) != size or not unpacker.eof:
        raise _broken(digest, f"it does not unpack to the {size} bytes that its row states")
    if hashlib.sha256(content).hexdigest() != digest:
        raise _broken(digest, "its content has changed")
    return content


def left_by(session: Session, trial: TrialRow) -> list[tuple[str, BlobRow, bytes | None]]:
    """Return the name, row and content of each file that a trial left, sorted by name.

    The content is None if it was deleted to save space.

    Raises:
        DamageError: A content does not match its hash and size.
    """
    query = (
        select(ArtefactRow.name, BlobRow)
        .join(BlobRow, col(BlobRow.content_hash) == col(ArtefactRow.content_hash))
        .where(ArtefactRow.trial_sequence == trial.sequence)
        .order_by(col(ArtefactRow.name))
    )
    return [(name, blob, get(blob)) for name, blob in session.exec(query)]


def _broken(digest: str, why: str) -> DamageError:
    return DamageError(f"stored log {digest[:12]}", "data", why)
