"""Stores compressed contents by their hash, each once."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Sequence

from sqlalchemy import bindparam, insert, select, update
from sqlmodel import Session

from bisect_env.errors import StorageError
from bisect_env.storage.tables import METADATA, BlobRow

LARGEST = 64 * 1024 * 1024
"""Bytes of one content: a core file of a CUDA process does not belong into a database."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
BLOBS = METADATA.tables["blobs"]


_HERE = select(BLOBS.c.content_hash, BLOBS.c.collected).where(
    BLOBS.c.content_hash.in_(bindparam("digests", expanding=True))
)
_AGAIN = update(BLOBS).where(BLOBS.c.content_hash == bindparam("digest"))


def put(session: Session, contents: Sequence[bytes]) -> list[str]:
    """Store contents in the given writing session.

    Args:
        session: A writing session, which holds the write lock.
        contents: None of them empty.

    Returns:
        The sha256 of each as hex digits.
    """
    digests = [hashlib.sha256(content).hexdigest() for content in contents]
    wanted = dict(zip(digests, contents, strict=True))
    if not wanted:
        return digests
    connection = session.connection()
    collected = {row.content_hash: row.collected for row in connection.execute(_HERE, {"digests": [*wanted]})}
    new: list[dict[str, object]] = []
    again: list[dict[str, object]] = []
    for digest, content in wanted.items():
        if digest in collected and not collected[digest]:
            continue
        packed = zlib.compress(content, 6)
        row = {"stored": len(packed), "collected": False, "data": packed}
        if digest in collected:
            again.append({"digest": digest, **row})
        else:
            new.append({"content_hash": digest, "size": len(content), **row})
    if new:
        connection.execute(insert(BLOBS), new)
    if again:
        connection.execute(_AGAIN, again)
    return digests


def get(row: BlobRow) -> bytes | None:
    """Return a content; None if it was collected.

    It is unpacked at most to the size that its row states, and that size is limited to what we would
    store: four megabytes that somebody else wrote may unpack to four gigabytes.

    Raises:
        StorageError: The content does not match its hash and size.
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
        # One byte more than there should be: zero would mean without a limit.
        content = unpacker.decompress(row.data, size + 1)
    except zlib.error as error:
        raise _broken(digest, str(error)) from error
    if len(content) != size or not unpacker.eof:
        raise _broken(digest, f"it does not unpack to the {size} bytes that its row states")
    if hashlib.sha256(content).hexdigest() != digest:
        raise _broken(digest, "its content has changed")
    return content


def _broken(digest: str, why: str) -> StorageError:
    return StorageError(
        f"the stored log {digest[:12]} cannot be read ({why})",
        remedy="take the database from a backup, or name another with `--db`",
    )
