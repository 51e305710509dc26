"""Stores compressed contents by their hash: small ones in the database, large ones in files beside it.

A file is on the disk before the row that names it is committed, so that a stored trial always has its logs;
what a killed writer leaves is a file that no row names, and `collect` takes it away. Writers and the
collector hold the database's write lock, so that neither sees the other's work half done.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from sqlalchemy import bindparam, insert, select, update
from sqlmodel import Session

from bisect_env.errors import StorageError
from bisect_env.storage.tables import METADATA, BlobRow

INLINE = 16 * 1024
"""Compressed bytes up to which a content lies in the database, where it costs no file."""
LARGEST = 64 * 1024 * 1024
"""Bytes of one content: a core file of a CUDA process does not belong into a database."""
SUFFIX = ".artefacts"
"""Of the directory beside a SQLite file."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
BLOBS = METADATA.tables["blobs"]


_HERE = select(BLOBS.c.content_hash, BLOBS.c.collected).where(
    BLOBS.c.content_hash.in_(bindparam("digests", expanding=True))
)
_AGAIN = update(BLOBS).where(BLOBS.c.content_hash == bindparam("digest"))


def put(session: Session, folder: Path | None, contents: Sequence[bytes]) -> list[str]:
    """Store contents in the writing session that is given.

    Args:
        session: Of a writer, who holds the write lock.
        folder: Where files go; None keeps everything in the database.
        contents: None of them empty.

    Returns:
        The sha256 of each as hex digits.

    Raises:
        StorageError: A file cannot be written.
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
        beside = folder if len(packed) > INLINE else None
        if beside is not None:
            _write(beside, digest, packed)
        row = {"stored": len(packed), "collected": False, "data": packed if beside is None else None}
        if digest in collected:
            again.append({"digest": digest, **row})
        else:
            new.append({"content_hash": digest, "size": len(content), **row})
    if new:
        connection.execute(insert(BLOBS), new)
    if again:
        connection.execute(_AGAIN, again)
    return digests


def get(row: BlobRow, folder: Path | None) -> bytes | None:
    """A content; None when it was collected.

    It is unpacked to the size that its row says and not a byte further, and that size is held to what we
    would store: four megabytes that others wrote may unpack to four gigabytes.

    Raises:
        StorageError: It is gone, or not what its hash and its size say.
    """
    digest: object = row.content_hash
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise _broken("?", "its hash is none")
    if row.collected:
        return None
    size: object = row.size
    if not isinstance(size, int) or not 0 <= size <= LARGEST:
        raise _broken(digest, f"a size of {size!r:.40} is none")
    packed = row.data
    if packed is None:
        packed = _read(path_of(folder or Path(), row.content_hash), row.content_hash)
    if not isinstance(packed, bytes):
        raise _broken(row.content_hash, "it is no binary data")
    unpacker = zlib.decompressobj()
    try:
        # One byte more than there should be: zero would mean without a limit.
        content = unpacker.decompress(packed, row.size + 1)
    except zlib.error as error:
        raise _broken(row.content_hash, str(error)) from error
    if len(content) != row.size or not unpacker.eof:
        raise _broken(row.content_hash, f"it does not unpack to the {row.size} bytes that its row says")
    if hashlib.sha256(content).hexdigest() != row.content_hash:
        raise _broken(row.content_hash, "its content has changed")
    return content


def _read(path: Path, digest: str) -> bytes:
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            # A pipe would wait for ever, and a link leads to somebody's file.
            raise _broken(digest, "there is no regular file")
        if status.st_size > 2 * LARGEST:
            raise _broken(digest, f"its file has {status.st_size} bytes")
        return path.read_bytes()
    except OSError as error:
        raise _broken(digest, error.strerror or str(error)) from error


def path_of(folder: Path, digest: str) -> Path:
    """The path of a content beside the database."""
    return folder / digest[:2] / f"{digest[2:]}.z"


def files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every content that lies beside the database, with its hash, and what killed writers left (hash "")."""
    for path in sorted(folder.glob("??/*")):
        whole = path.suffix == ".z" and len(path.stem) == 62
        yield (path.parent.name + path.stem if whole else "", path)


def _write(folder: Path, digest: str, packed: bytes) -> None:
    path = path_of(folder, digest)
    temporary = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        # Whoever may read the database may read its logs.
        mode = _mode_of_database(folder)
        for directory in (folder, path.parent):
            if not directory.is_dir():
                directory.mkdir(exist_ok=True)
                # A directory of a team hands its group on, to this one as well.
                inherited = directory.stat().st_mode & stat.S_ISGID
                directory.chmod(mode | (mode & 0o444) >> 2 | inherited)
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(packed)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise StorageError(
            f"a log cannot be written to {folder}: {error.strerror or error}",
            remedy="make room there, or make it writable, then start the same command again",
        ) from error


def _mode_of_database(folder: Path) -> int:
    database = folder.with_name(folder.name.removesuffix(SUFFIX))
    try:
        return stat.S_IMODE(database.stat().st_mode) & 0o666
    except FileNotFoundError:
        return 0o600


def _sync(directory: Path) -> None:
    # Without it a power cut may undo the rename, after the row was committed.
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _broken(digest: str, why: str) -> StorageError:
    return StorageError(
        f"the stored log {digest[:12]} cannot be read ({why})",
        remedy="take the database and the directory beside it from a backup, or name another with `--db`",
    )
