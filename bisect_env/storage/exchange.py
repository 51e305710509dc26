"""Export into one file, import from one, merge with another: which databases, and how they appear."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bisect_env.errors import StorageError, UsageError
from bisect_env.storage import maintenance
from bisect_env.storage.backend import Database
from bisect_env.storage.connect import open_any_schema, open_database
from bisect_env.storage.failures import speaking
from bisect_env.storage.store import Store
from bisect_env.storage.transfer import Merged, merge

Progress = Callable[[Merged], None]


@contextlib.contextmanager
def _opened(reference: str | None, *, read_only: bool) -> Iterator[Database]:
    database = open_database(reference, read_only=read_only)
    try:
        with speaking(database.shown):
            yield database
    finally:
        database.engine.dispose()


def export(
    reference: str | None, file: Path, studies: Sequence[str] = (), *, on_progress: Progress = lambda _m: None
) -> Merged:
    """Write a database, or some of its studies, into one new SQLite file, logs and all.

    Args:
        reference: As `Store.open` takes it.
        file: Must not exist; it appears whole or not at all, mode 0600.
        studies: References of studies as `Store.study` takes them; none for all.
        on_progress: Called as trials are written.

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
            merged = merge(source, target, chosen, one_file=True, on_progress=on_progress)
        part.replace(file)
    except OSError as error:
        raise StorageError(
            f"{file} cannot be written: {error.strerror or error}", remedy="name another file"
        ) from error
    finally:
        for name in (part.name, f"{part.name}-wal", f"{part.name}-shm", f".{part.name}.lock"):
            part.with_name(name).unlink(missing_ok=True)
    return merged


def import_file(reference: str | None, file: Path, *, on_progress: Progress = lambda _m: None) -> Merged:
    """Add what a file holds, be it of this release's schema or of an older one; the file stays as it is.

    Raises:
        StorageError: It is no database of ours, or of a newer release.
    """
    file = file.expanduser().absolute()
    with tempfile.TemporaryDirectory(prefix="bisect-env-import-") as folder:
        # A copy, made by SQLite itself: the file may have a log beside it, and be upgraded here.
        copy = Path(folder) / "import.sqlite"
        original = open_any_schema(str(file), read_only=True)
        original.engine.dispose()
        try:
            with (
                contextlib.closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as old,
                contextlib.closing(sqlite3.connect(copy)) as new,
            ):
                old.backup(new)
        except sqlite3.Error as error:
            raise StorageError(
                f"{file} cannot be read: {error}", remedy="take it from a backup, or name another file"
            ) from error
        maintenance.upgrade(str(copy))
        with _opened(str(copy), read_only=True) as source, _opened(reference, read_only=False) as target:
            named = Database(source.engine, source.reader, str(file), original.folder)
            return merge(named, target, on_progress=on_progress)


def merge_databases(reference: str | None, other: str, *, on_progress: Progress = lambda _m: None) -> Merged:
    """Add what another database holds; it may be in use, and stays as it is.

    Raises:
        StorageError: It has another schema than this release's, or cannot be read.
    """
    with _opened(other, read_only=True) as source, _opened(reference, read_only=False) as target:
        return merge(source, target, on_progress=on_progress)
