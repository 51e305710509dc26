"""Opens SQLite files, sets up their connections, and refuses places where they would be damaged."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePath
from typing import Any

from sqlalchemy import Connection, Engine, QueuePool, create_engine, event

from bisect_env.errors import StorageError
from bisect_env.storage import backend
from bisect_env.storage.backend import ANOTHER, READING, Database, speaking
from bisect_env.storage.blobs import SUFFIX
from bisect_env.storage.tables import APPLICATION_ID
from bisect_env.temporary import file_locks

# --------------------------------------------------------------------------------------------------
# Whether a file lies on a network file system, where SQLite's WAL is not safe.
#
# WAL's index is memory shared between processes; two hosts do not share memory, so that both would write as
# if they were alone (https://sqlite.org/wal.html, "All processes using a database must be on the same
# host").

_NETWORK = frozenset(
    {
        *(
            "nfs",
            "nfs3",
            "nfs4",
            "cifs",
            "smb",
            "smb2",
            "smb3",
            "smbfs",
            "ncpfs",
            "afs",
            "auristorfs",
            "coda",
        ),
        *("ceph", "lustre", "gpfs", "beegfs", "fhgfs", "glusterfs", "panfs", "pvfs2", "orangefs", "wekafs"),
        # Cluster file systems: one disk, several hosts, no shared memory.
        *("gfs2", "ocfs2"),
    }
)
_NETWORK_FUSE = frozenset(
    {
        *(
            "sshfs",
            "glusterfs",
            "ceph",
            "ceph-fuse",
            "s3fs",
            "gcsfuse",
            "goofys",
            "rclone",
            "davfs",
            "davfs2",
        ),
        *("juicefs", "seaweedfs", "mount-s3", "blobfuse", "blobfuse2", "curlftpfs", "cvmfs2", "moosefs"),
    }
)


def network_file_system(path: PurePath, mounts: Iterable[tuple[str, str]]) -> str | None:
    """The type of the network file system that holds a path, None when it is a local one. Pure.

    Args:
        path: Absolute and without symbolic links.
        mounts: (mount point, file system type) in the order of mounting; of two at one point the last counts.
    """
    holder: tuple[int, str] = (-1, "")
    for point, kind in mounts:
        mount = PurePath(point)
        if path.is_relative_to(mount) and len(mount.parts) >= holder[0]:
            holder = (len(mount.parts), kind)
    kind = holder[1].lower()
    _, is_fuse, driver = kind.partition("fuse.")
    network = driver in _NETWORK_FUSE | _NETWORK if is_fuse else kind in _NETWORK
    return kind if network else None


def network_file_system_of(path: Path) -> str | None:
    """The type of the network file system that holds a path of this machine, which need not exist yet."""
    import psutil

    mounts = [(partition.mountpoint, partition.fstype) for partition in psutil.disk_partitions(all=True)]
    return network_file_system(path.resolve(), mounts)


# --------------------------------------------------------------------------------------------------
# The SQLite file itself: whose it is, whether it is whole, and how a new one appears.
#
# **Nothing foreign is overwritten.** A file is opened only when it is empty or its header says that it is
# ours. **A new database appears whole or not at all.** It is made beside its place and renamed, under a
# file lock: whoever opens it meanwhile sees no file or a complete one, and the change to WAL, which SQLite
# refuses without waiting while anybody else has the file open, happens before there is anybody else.

_MAGIC = b"SQLite format 3\0"
_HEADER = 100
_LOCK_PATIENCE = 60.0
_BESIDE = ("-wal", "-shm")
"""What SQLite names the log of a database, and its index."""


def header_problem(header: bytes, size: int, application_id: int, *, has_wal: bool = False) -> str | None:
    """What is wrong with the beginning of a file that should be one of our databases; None if nothing. Pure.

    The layout is that of https://sqlite.org/fileformat2.html#the_database_header.

    Args:
        header: Its first 100 bytes, or all of it.
        size: Of the file in bytes, at least 1.
        application_id: Ours.
        has_wal: Whether a write-ahead log lies beside it, which may hold pages that the file lacks.
    """
    if not header.startswith(_MAGIC):
        # A file that was cut off within its first bytes is still no database of anybody's.
        return "is not a SQLite database"
    if len(header) < _HEADER:
        return "is cut off"
    if int.from_bytes(header[68:72], "big") != application_id:
        return "is a SQLite database of another program"
    page_size = int.from_bytes(header[16:18], "big")
    page_size = 65536 if page_size == 1 else page_size
    pages = int.from_bytes(header[28:32], "big")
    # The page count is valid only if the last writer knew of it ("version-valid-for").
    counts = header[24:28] == header[92:96]
    if counts and not has_wal and pages * page_size > size:
        return f"is cut off: {size} of {pages * page_size} bytes are there"
    return None


def is_new(path: Path, application_id: int) -> bool:
    """Whether there is no database yet: no file, or an empty one.

    Raises:
        StorageError: There is something that is not ours, or that cannot be read.
    """
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise StorageError(f"{path} is a directory", remedy="name a file in it with `--db`")
        if not stat.S_ISREG(status.st_mode):
            raise StorageError(f"{path} is not a regular file", remedy=ANOTHER)
        if status.st_size == 0:
            return True
        with path.open("rb") as file:
            header = file.read(_HEADER)
        wal = Path(f"{path}-wal")
        has_wal = wal.exists() and wal.stat().st_size > 0
    except FileNotFoundError:
        return True
    except OSError as error:
        raise _unreachable(path, error) from error
    if problem := header_problem(header, status.st_size, application_id, has_wal=has_wal):
        remedy = "take it from a backup, or " + ANOTHER if "cut off" in problem else ANOTHER
        raise StorageError(f"{path} {problem}; it was left as it is", remedy=remedy)
    return False


def refuse_network(path: Path) -> None:
    """Refuse a place where two hosts would destroy the database.

    Raises:
        StorageError: It lies on a network file system.
    """
    if kind := network_file_system_of(path):
        raise StorageError(
            f"{path} lies on a network file system ({kind}), where SQLite databases get destroyed",
            remedy="name a file on a disk of this machine with `--db` or BISECT_ENV_DB",
        )


def create(path: Path, fill: Callable[[Path], None], application_id: int) -> None:
    """Make a new database if there is still none.

    Args:
        path: Where it shall appear, mode 0600; its directory is made, mode 0700.
        fill: Makes the tables in the file that it is given, and closes it.
        application_id: Ours.

    Raises:
        StorageError: It cannot be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = path.with_name(f".{path.name}.lock")
        # Where no file can be made, a file lock would wait as if somebody else held it.
        os.close(os.open(lock, os.O_CREAT | os.O_RDWR, 0o600))
        with file_locks().FileLock(lock, timeout=_LOCK_PATIENCE, mode=0o600):
            if not is_new(path, application_id):
                return
            with _beside(path) as temporary:
                fill(temporary)
                _refuse_unless_whole(temporary, path, application_id)
                for suffix in _BESIDE:
                    # Of a database that was deleted under its users: SQLite would put it into the new one.
                    Path(f"{path}{suffix}").unlink(missing_ok=True)
                temporary.replace(path)
    except file_locks().Timeout as error:
        raise StorageError(
            f"another process has been making {path} for {_LOCK_PATIENCE:.0f} s",
            remedy="try again, or " + ANOTHER,
        ) from error
    except OSError as error:
        raise _unreachable(path, error) from error


def _refuse_unless_whole(made: Path, path: Path, application_id: int) -> None:
    """SQLite moves its log into the file when the last connection closes, and does not say if that fails."""
    log = Path(f"{made}-wal")
    try:
        whole = not is_new(made, application_id) and not (log.exists() and log.stat().st_size)
    except StorageError:
        whole = False
    if not whole:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[Path]:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.new")
    # The mode is set at birth: between open and chmod others could open the file.
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        yield temporary
    finally:
        for suffix in ("", *_BESIDE):
            Path(f"{temporary}{suffix}").unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Say that a database cannot be written before anything is computed for it.

    Raises:
        StorageError: The file or its directory is read-only.
    """
    for what in (path, path.parent):
        if not os.access(what, os.W_OK):
            raise StorageError(
                f"{path} cannot be written: {what} is read-only",
                remedy="make the file and its directory writable, or " + ANOTHER,
            )


def connector(path: Path, *, read_only: bool) -> Callable[[], sqlite3.Connection]:
    """How to open the file, which must exist: nothing is created here.

    Args:
        path: The file.
        read_only: Whether SQLite itself shall refuse to write.
    """
    mode = "ro" if read_only else "rw"
    suffix = "&immutable=1" if read_only and _is_frozen(path) else ""
    uri = f"{path.as_uri()}?mode={mode}{suffix}"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True, check_same_thread=False)

    return connect


def _is_frozen(path: Path) -> bool:
    """Whether nobody writes here and we cannot make the shared memory that WAL needs even for reading."""
    if os.access(path.parent, os.W_OK):
        return False
    return not Path(f"{path}-wal").exists() and not Path(f"{path}-shm").exists()


def _unreachable(path: Path, error: OSError) -> StorageError:
    why = error.strerror or str(error)
    return StorageError(
        f"the database {path} cannot be reached: {why}", remedy="correct the path, or " + ANOTHER
    )


# --------------------------------------------------------------------------------------------------
# All that is peculiar to SQLite about opening, connections and transactions.


def open_file(path: Path, *, read_only: bool) -> Database:
    """Open a SQLite file; make it first if it is to be written and is not there.

    Raises:
        StorageError: It is not ours, not whole, cannot be reached, or lies where it would be destroyed.
    """
    refuse_network(path)
    if is_new(path, APPLICATION_ID):
        if read_only:
            raise StorageError(
                f"there are no results in {path}",
                remedy="start `bisect-env run MATRIX` first, or name another with `--db` or BISECT_ENV_DB",
            )
        create(path, _fill, APPLICATION_ID)
    if not read_only:
        check_writable(path)
    # A link to the database leads to its logs, too.
    folder = Path(f"{path.resolve()}{SUFFIX}")
    return Database.of(_engine(path, read_only=read_only), str(path), folder)


def _fill(path: Path) -> None:
    engine = _engine(path, read_only=False)
    try:
        with speaking(str(path)), engine.begin() as connection:
            connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
            backend.make_schema(connection)
    finally:
        # The last connection to close writes the log back into the file and removes it.
        engine.dispose()


class _Place:
    """The file that is written to, and whether it is still the one that was opened.

    A database that somebody deletes or replaces lives on, without a name, for those who have it open. What
    they write is lost; and its log, which keeps its name, would be taken for that of whatever is put there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._known = {"": path.stat()}
        except OSError as error:
            raise _unreachable(path, error) from error

    def check(self) -> None:
        """See that it is still there, before each transaction.

        Raises:
            StorageError: It is not.
        """
        if self._is_ours(""):
            for suffix in _BESIDE:
                with contextlib.suppress(FileNotFoundError):
                    self._known[suffix] = Path(f"{self._path}{suffix}").stat()
            return
        self.clean()
        raise StorageError(
            f"the database {self._path} was deleted or replaced while it was in use",
            remedy="put it back and start the same command again, or start it again to measure anew",
        )

    def clean(self) -> None:
        """Take our log away from a database that is not ours."""
        if self._is_ours(""):
            return
        for suffix in _BESIDE:
            if self._is_ours(suffix):
                Path(f"{self._path}{suffix}").unlink(missing_ok=True)

    def _is_ours(self, suffix: str) -> bool:
        known = self._known.get(suffix)
        try:
            found = Path(f"{self._path}{suffix}").stat()
        except OSError:
            return False
        if known is not None and os.path.samestat(known, found):
            return True
        # A log may have been made after the last look, of a file that was gone already then.
        return bool(suffix) and any(os.path.samestat(one, found) for one in _open_files())


def _open_files() -> Iterator[os.stat_result]:
    """What this process has open."""
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 -- names
            with contextlib.suppress(OSError, ValueError):
                yield os.fstat(int(name))


def _engine(path: Path, *, read_only: bool) -> Engine:
    place = None if read_only else _Place(path)
    connect = connector(path, read_only=read_only)

    def connect_there() -> sqlite3.Connection:
        if place is not None:
            place.check()
        return connect()

    engine = create_engine(
        "sqlite://",
        creator=connect_there,
        poolclass=QueuePool,
        **backend.ENGINE_OPTIONS,
    )
    _set_up(engine, str(path), read_only=read_only)
    if place is not None:
        event.listen(engine, "begin", lambda _connection: place.check(), insert=True)
        event.listen(engine, "engine_disposed", lambda _engine: place.clean())
    return engine


def _set_up(engine: Engine, shown: str, *, read_only: bool) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: Any) -> None:
        # The driver must not begin transactions of its own: it begins deferred ones, and a deferred
        # transaction that reads first and then writes fails at once when another wrote in between.
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {int(backend.BUSY_SECONDS * 1000)}")
        connection.execute("PRAGMA foreign_keys = ON")
        # KiB, taken as they are needed; the default of 2 MiB reads large databases again and again.
        connection.execute("PRAGMA cache_size = -65536")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
            return
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StorageError(
                f"the file system of {shown} does not let processes share memory, which the database needs",
                remedy="name a file on a disk of this machine with `--db` or BISECT_ENV_DB",
            )

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        reading = read_only or connection.get_execution_options().get(READING, False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
