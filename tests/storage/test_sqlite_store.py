"""The store on SQLite: the contract, and what is peculiar to files."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bisect_env.errors import StorageError, UsageError
from bisect_env.storage import backend
from bisect_env.storage.store import Store
from bisect_env.storage.tables import SCHEMA_VERSION
from tests.storage.contract import Reopen, StoreContract
from tests.storage.samples import definition, opened_study, record, record_trial


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data of mine?" / "results#1.sqlite"


@pytest.fixture
def reference(path: Path) -> str:
    return str(path)


class TestSqliteStore(StoreContract):
    pass


def sql(path: Path, *statements: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        rows = []
        for statement in statements:
            rows += connection.execute(statement).fetchall()
        connection.commit()
        return rows
    finally:
        connection.close()


def test_a_new_database_is_private_whole_and_alone(path: Path) -> None:
    before = os.umask(0)
    try:
        with Store.open(str(path)) as store:
            opened_study(store)
            for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
                assert stat.S_IMODE(name.stat().st_mode) == 0o600
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert sql(path, "PRAGMA journal_mode", "PRAGMA integrity_check") == [("wal",), ("ok",)]
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name]


def test_every_connection_is_set_up(reopen: Reopen) -> None:
    with reopen().database.engine.connect() as connection:
        settings = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "foreign_keys", "busy_timeout", "query_only")
        ]
    assert settings == ["wal", 1, 60_000, 0]


def test_writers_take_the_lock_at_once_and_readers_do_not(reopen: Reopen, path: Path) -> None:
    # A deferred writer would get here and fail later, when another has written in between.
    store = reopen()
    other = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        with store.database.engine.begin(), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        with store.database.reader.begin():
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
    finally:
        other.close()


def test_reading_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"no results in .*gone.sqlite[^$]*bisect-env run MATRIX"):
        Store.open(str(tmp_path / "gone.sqlite"), read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_a_new_database(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    with Store.open(str(path)) as store:
        assert store.studies() == []


def test_a_database_behind_a_link_is_the_same_one(tmp_path: Path) -> None:
    real, link = tmp_path / "real.sqlite", tmp_path / "link.sqlite"
    with Store.open(str(real)) as store:
        study = opened_study(store)
    link.symlink_to(real)
    with Store.open(str(link)) as store:
        assert store.study().id == study.id
    assert link.is_symlink()


def test_the_environment_names_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BISECT_ENV_DB", f"sqlite:///{tmp_path}/named.sqlite")
    with Store.open() as store:
        assert store.shown == str(tmp_path / "named.sqlite")
    assert (tmp_path / "named.sqlite").exists()


def test_a_network_file_system_is_refused_before_anything_is_made(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bisect_env.storage.sqlite.network_file_system_of", lambda path: "nfs4")
    for read_only in (False, True):
        with pytest.raises(
            StorageError, match=r"network file system \(nfs4\)[^$]*remedy: .*a disk of this machine"
        ):
            Store.open(str(path), read_only=read_only)
    assert not path.parent.exists()


# -- files that are no database of ours, or no longer -----------------------------------------------------


def names(folder: Path) -> list[str]:
    # SQLite leaves the shared memory of a connection that may not write, and its empty log.
    return sorted(file.name for file in folder.iterdir() if not file.name.endswith(("-wal", "-shm")))


def refused(path: Path, match: str) -> None:
    """It is refused for reading and for writing, and stays as it is to the last byte."""
    before = path.read_bytes() if path.is_file() else None
    beside = names(path.parent)
    for read_only in (False, True):
        with pytest.raises(StorageError, match=match) as caught:
            Store.open(str(path), read_only=read_only)
        assert str(path) in str(caught.value)
        assert "remedy: " in str(caught.value)
    assert (path.read_bytes() if path.is_file() else None) == before
    assert names(path.parent) == beside


def read_everything(store: Store) -> int:
    trials = store.trials(store.study().id)
    return sum(store.trial(trial.trial_id) is not None for trial in trials)


@pytest.fixture(scope="module")
def fifty_trials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fifty") / "filled.sqlite"
    with Store.open(str(path)) as store:
        study = opened_study(store)
        for _ in range(50):
            record_trial(store, study.id, record(stdout=os.urandom(600).hex()))
    return path


@pytest.fixture
def filled(fifty_trials: Path, tmp_path: Path) -> Path:
    """A database of fifty trials, for this test to damage."""
    return Path(shutil.copy(fifty_trials, tmp_path))


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("remember the milk\n" * 20)
    refused(path, "not a SQLite database")


def test_a_database_of_another_program(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    sql(path, "CREATE TABLE studies (id TEXT)")
    refused(path, r"tables of another program \(studies\); it was left as it is")


def test_a_directory(tmp_path: Path) -> None:
    refused(tmp_path, "is a directory")


def test_something_that_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "not a regular file")


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot be reached: (Not a directory|File exists)"):
        Store.open(str(tmp_path / "file" / "results.sqlite"))


@pytest.mark.parametrize("kept", [50, 4096, 0.5])
def test_a_file_that_is_cut_off(filled: Path, kept: float) -> None:
    size = int(kept if kept > 1 else filled.stat().st_size * kept)
    os.truncate(filled, size)
    refused(filled, r"is damaged|is not a SQLite database")


def test_a_file_that_is_damaged_inside(filled: Path) -> None:
    size = filled.stat().st_size
    with filled.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    refused(filled, r"is damaged|lacks a part|failed")


def test_damage_that_shows_later_is_told_as_well(filled: Path) -> None:
    ((page, page_size),) = sql(
        filled, "SELECT rootpage, page_size FROM sqlite_master, pragma_page_size WHERE name = 'blobs'"
    )
    with filled.open("r+b") as file:
        file.seek((int(str(page)) - 1) * int(str(page_size)))
        file.write(b"\xff" * int(str(page_size)))
    with Store.open(str(filled)) as store, pytest.raises(StorageError, match="is damaged"):
        read_everything(store)


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        (SCHEMA_VERSION + 1, "newer release[^$]*remedy: install the newest release"),
        (0, "older release[^$]*remedy: use the release that wrote it"),
    ],
)
def test_another_schema(filled: Path, schema: int, match: str) -> None:
    sql(filled, f"UPDATE meta SET value = '{schema}' WHERE name = 'schema'")
    refused(filled, match)


@pytest.mark.parametrize(
    ("statement", "match"),
    [
        ("DELETE FROM meta", "does not say which schema"),
        ("UPDATE meta SET value = 'two' WHERE name = 'schema'", "does not say which schema"),
        ("DROP TABLE meta", "lacks a part"),
    ],
)
def test_a_database_that_somebody_changed(filled: Path, statement: str, match: str) -> None:
    sql(filled, statement)
    refused(filled, match)


@pytest.mark.parametrize(
    ("statement", "match"),
    [
        (
            "UPDATE trials SET outcome = 'imploded'",
            "column outcome: it holds 'imploded': Input should be 'harness-error', ",
        ),
        (
            "UPDATE studies SET grid = '[{'",
            "is damaged: row '[0-9a-f]{32}' of studies, column grid: it holds '\\[{'",
        ),
        ("UPDATE blobs SET data = x'00'", "is damaged: row '[0-9a-f]+.* of blobs, column data: "),
        ("UPDATE blobs SET data = x'789c030000000001'", "not the content with this hash"),
        ("UPDATE blobs SET data = x'789c4bacf0600000024c00e9'", "of blobs, column data"),
        ("UPDATE blobs SET data = 'text'", "a bytes-like object is required"),
        ("DROP TABLE blobs", "lacks a part"),
    ],
)
def test_content_that_somebody_changed(filled: Path, statement: str, match: str) -> None:
    sql(filled, "PRAGMA foreign_keys = OFF", statement)
    with Store.open(str(filled), read_only=True) as store, pytest.raises(StorageError, match=match):
        read_everything(store)


def test_a_writer_who_never_gives_way_is_named(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "BUSY_SECONDS", 0.1)
    holder = sqlite3.connect(filled, isolation_level=None)
    try:
        with Store.open(str(filled)) as store:
            holder.execute("BEGIN IMMEDIATE")
            with pytest.raises(
                StorageError, match=r"held by another process[^$]*start the same command again"
            ):
                store.open_study(definition("another"))
            assert store.study().name == "orjson"
    finally:
        holder.close()


def as_nobody(action: str, path: Path) -> str:
    """What a user without any rights is told; as root, who may do everything, we become somebody else."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            with Store.open(str(path), read_only=action == "read") as store:
                answer = f"{len(store.trials(store.study().id))} trials"
        except StorageError as error:
            answer = str(error)
        except BaseException as error:  # noqa: BLE001 - the child must answer and end, whatever happened
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


@pytest.fixture
def public(filled: Path) -> Iterator[Path]:
    """The database where anybody can reach it (pytest's own directories are private)."""
    folder = Path(tempfile.mkdtemp(prefix="bisect-env-test-"))
    folder.chmod(0o755)
    copy = folder / "results.sqlite"
    shutil.copy(filled, copy)
    yield copy
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_read_only_file_can_be_read_and_not_written(public: Path) -> None:
    public.chmod(0o444)
    public.parent.chmod(0o555)
    assert as_nobody("read", public) == "50 trials"
    message = as_nobody("write", public)
    assert "cannot be written" in message
    assert "make the file and its directory writable" in message


def test_a_file_of_somebody_else_cannot_be_read(public: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can make a file that its reader does not own")
    public.chmod(0o600)
    assert "cannot be reached: Permission denied" in as_nobody("read", public)


def test_a_place_where_nothing_can_be_made(public: Path) -> None:
    public.parent.chmod(0o555)
    assert "cannot be reached" in as_nobody("write", public.with_name("new.sqlite"))


@pytest.mark.parametrize("folder", ["/proc", "/sys", "/dev/null"])
def test_a_place_that_is_no_directory_for_files(folder: str) -> None:
    with pytest.raises(StorageError, match="cannot be reached"):
        Store.open(f"{folder}/new.sqlite")


@pytest.mark.parametrize("reference", ["sqlite://", "sqlite:///:memory:", "mysql://me:secret@db/results"])
def test_urls_that_cannot_be_served(reference: str) -> None:
    with pytest.raises(UsageError) as caught:
        Store.open(reference)
    assert "secret" not in str(caught.value)


def noise(seed: int, size: int = 200_000) -> str:
    """Text that does not compress to nothing."""
    return random.Random(seed).randbytes(size // 2).hex()


# -- a database that goes away ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["deleted", "replaced", "moved away"])
def test_a_database_that_goes_away_is_noticed_and_leaves_no_log_to_the_next(tmp_path: Path, how: str) -> None:
    """SQLite would put the log of the old one into whatever has its name."""
    path, other = tmp_path / "results.sqlite", tmp_path / "other.sqlite"
    Store.open(str(other)).close()
    content = other.read_bytes()
    with Store.open(str(path)) as store:
        study = opened_study(store)
        assert Path(f"{path}-wal").stat().st_size > 0
        match how:
            case "deleted":
                path.unlink()
            case "replaced":
                other.replace(path)
            case _:
                path.rename(tmp_path / "kept.sqlite")
        with pytest.raises(StorageError, match="deleted or replaced while it was in use"):
            record_trial(store, study.id, record())
        assert not Path(f"{path}-wal").exists()
    assert path.exists() == (how == "replaced")
    if how == "replaced":
        assert path.read_bytes() == content
    with Store.open(str(path)) as store:
        assert store.studies() == []


def test_a_log_without_its_database_is_not_that_of_the_next(tmp_path: Path) -> None:
    """As a command leaves it that was killed after somebody had deleted the database."""
    path = tmp_path / "results.sqlite"
    with Store.open(str(path)) as store:
        opened_study(store)
        log = Path(f"{path}-wal").read_bytes()
    path.unlink()
    Path(f"{path}-wal").write_bytes(log)
    with Store.open(str(path)) as store:
        assert store.studies() == []
