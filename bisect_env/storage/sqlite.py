"""Opens SQLite files, sets up their connections, and refuses places where they would be damaged."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from typing import Any

import psutil
from sqlalchemy import Connection, Engine, QueuePool, create_engine, event

from bisect_env.errors import StorageError
from bisect_env.storage import backend
from bisect_env.storage.backend import READING, Database, speaking
from bisect_env.storage.values import ANOTHER

# --------------------------------------------------------------------------------------------------
# Detecting network file systems, on which SQLite's write-ahead log (WAL) is not safe.
#
# The index of the WAL is shared memory. Two hosts share no memory, so both would write as if they were
# alone (https://sqlite.org/wal.html, "All processes using a database must be on the same host").

# Beginnings of file system types. The last two of the first list are cluster file systems: several hosts
# use one disk without shared memory.
_NETWORK = re.compile(
    "nfs|cifs|smb|ncpfs|afs|auristorfs|coda|ceph|lustre|gpfs|beegfs|fhgfs|glusterfs|panfs|pvfs|orangefs|wekafs"
    "|gfs2|ocfs2"
)
_NETWORK_FUSE = re.compile(
    "sshfs|s3fs|gcsfuse|goofys|rclone|davfs|juicefs|seaweedfs|mount-s3|blobfuse|curlftpfs|cvmfs|moosefs"
)


def network_file_system(path: PurePath, mounts: Iterable[tuple[str, str]]) -> str | None:
    """Return the type of the network file system that holds a path, such as `nfs`.

    Return None if the path is on a local file system. The function only computes; it does no input or output.

    Args:
        path: Absolute path without symbolic links.
        mounts: (mount point, file system type) in the order of mounting; the last one at a point counts.
    """
    holder: tuple[int, str] = (-1, "")
    for point, kind in mounts:
        mount = PurePath(point)
        if path.is_relative_to(mount) and len(mount.parts) >= holder[0]:
            holder = (len(mount.parts), kind)
    kind = holder[1].lower()
    _, is_fuse, driver = kind.partition("fuse.")
    is_network = _NETWORK.match(driver or kind) or (is_fuse and _NETWORK_FUSE.match(driver))
    return kind if is_network else None


def network_file_system_of(path: Path) -> str | None:
    """Return the type of the network file system that holds a path of this host.

    Return None if the path is on a local file system. The path need not exist.
    """
    mounts = [(partition.mountpoint, partition.fstype) for partition in psutil.disk_partitions(all=True)]
    return network_file_system(path.resolve(), mounts)


# --------------------------------------------------------------------------------------------------
# The file: checking its owner program, and opening it.


def open_file(path: Path, *, read_only: bool) -> Database:
    """Open the SQLite file of a results database. A missing file is created unless `read_only` is set.

    A new file gets the mode 0600, and a new directory the mode 0700.

    Raises:
        StorageError: The file is not a database of bisect-env, is damaged, cannot be reached, or lies on a
            network file system.
    """
    if kind := network_file_system_of(path):
        raise StorageError(
            f"{path} lies on a network file system ({kind}), where SQLite databases get destroyed",
            remedy="name a file on a disk of this machine with `--db` or BISECT_ENV_DB",
        )
    try:
        if not read_only:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Set the mode at creation: between creation and `chmod`, other users could open the file.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        status = path.stat()
    except FileNotFoundError as error:
        if read_only:
            raise backend.no_results(str(path)) from None
        raise _unreachable(path, error) from error
    except OSError as error:
        raise _unreachable(path, error) from error
    if stat.S_ISDIR(status.st_mode):
        raise StorageError(f"{path} is a directory", remedy="name a file in it with `--db`")
    if not stat.S_ISREG(status.st_mode):
        raise StorageError(f"{path} is not a regular file", remedy=ANOTHER)
    if not os.access(path, os.R_OK):
        raise _unreachable(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    # Open for reading first, because opening for writing changes the journal mode, even of foreign files.
    reader = Database(_engine(path, read_only=True), str(path))
    if read_only:
        return reader
    try:
        with speaking(str(path)), reader.reader.connect() as connection:
            backend.has_schema(connection, str(path))
    finally:
        reader.engine.dispose()
    for what in (path, path.parent):
        if not os.access(what, os.W_OK):
            raise StorageError(
                f"{path} cannot be written: {what} is read-only",
                remedy="make the file and its directory writable, or " + ANOTHER,
            )
    return Database(_engine(path, read_only=False), str(path))


def _unreachable(path: Path, error: OSError) -> StorageError:
    why = error.strerror or str(error)
    return StorageError(
        f"the database {path} cannot be reached: {why}", remedy="correct the path, or " + ANOTHER
    )


def _is_frozen(path: Path) -> bool:
    """Return whether nothing can change a database file: its directory is read-only, and nobody writes.

    WAL (write-ahead logging) cannot be used then.
    """
    if os.access(path.parent, os.W_OK):
        return False
    return not Path(f"{path}-wal").exists() and not Path(f"{path}-shm").exists()


class _Place:
    """A guard that checks that a database file is still the one that was opened.

    If a file is deleted or replaced, the old one lives on without a name for processes that have it open.
    Their writes are lost, and its log, which keeps its name, would be applied to the new file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = {"": path.stat()}

    def check(self) -> None:
        """Raise an error if the file was deleted or replaced after it was opened.

        This is called before each transaction.

        Raises:
            StorageError: The file was deleted or replaced.
        """
        if self._is_ours(""):
            for suffix in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    self._known[suffix] = Path(f"{self._path}{suffix}").stat()
            return
        for suffix in ("-wal", "-shm"):
            if self._is_ours(suffix):
                Path(f"{self._path}{suffix}").unlink(missing_ok=True)
        raise StorageError(
            f"the database {self._path} was deleted or replaced while it was in use",
            remedy="put it back and start the same command again, or start it again to measure anew",
        )

    def _is_ours(self, suffix: str) -> bool:
        try:
            found = Path(f"{self._path}{suffix}").stat()
        except OSError:
            return False
        return suffix in self._known and os.path.samestat(self._known[suffix], found)


# --------------------------------------------------------------------------------------------------
# Connections and transactions.


def connector(path: Path, *, read_only: bool) -> Callable[[], sqlite3.Connection]:
    """Return a function that opens a connection to an existing SQLite file.

    Args:
        path: The SQLite file.
        read_only: Whether SQLite must refuse to write.
    """
    frozen = "&immutable=1" if read_only and _is_frozen(path) else ""
    uri = f"{path.as_uri()}?mode={'ro' if read_only else 'rw'}{frozen}"
    return lambda: sqlite3.connect(uri, uri=True, check_same_thread=False)


def _engine(path: Path, *, read_only: bool) -> Engine:
    place = None if read_only else _Place(path)
    connect_anywhere = connector(path, read_only=read_only)

    def connect() -> sqlite3.Connection:
        if place is not None:
            place.check()
        return connect_anywhere()

    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool, **backend.ENGINE_OPTIONS)
    _set_up(engine, str(path), read_only=read_only)
    if place is not None:
        event.listen(engine, "begin", lambda _connection: place.check(), insert=True)
    return engine


def _use_wal(connection: Any) -> str:
    """Switch a connection to write-ahead logging (WAL); return the journal mode now in use.

    With WAL, readers and writers do not block each other.
    """
    until = time.monotonic() + backend.BUSY_SECONDS
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            # SQLite refuses this change, without waiting, while other processes open the new file.
            if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > until:
                raise
            time.sleep(0.01)


def _set_up(engine: Engine, shown: str, *, read_only: bool) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: Any) -> None:
        # The driver must not begin transactions of its own: it begins deferred ones, and a deferred
        # transaction that reads first and then writes fails at once when another wrote in between.
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {int(backend.BUSY_SECONDS * 1000)}")
        connection.execute("PRAGMA foreign_keys = ON")
        # Cache size in KiB, allocated on demand; the default of 2 MiB would reread large databases.
        connection.execute("PRAGMA cache_size = -65536")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
            return
        if _use_wal(connection) != "wal":
            raise StorageError(
                f"the file system of {shown} does not let processes share memory, which the database needs",
                remedy="name a file on a disk of this machine with `--db` or BISECT_ENV_DB",
            )

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        reading = read_only or connection.get_execution_options().get(READING, False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
