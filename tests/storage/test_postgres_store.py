"""The store on a real PostgreSQL server: the contract, and what is peculiar to servers."""

from __future__ import annotations

from urllib.parse import quote

import psycopg
import pytest
from sqlalchemy.engine import make_url

from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.errors import BisectEnvError, StorageError, UsageError
from bisect_env.storage import backend, postgres
from bisect_env.storage.query import ask
from bisect_env.storage.store import Store
from tests.storage.contract import Reopen, StoreContract
from tests.storage.postgres_server import PASSWORD, Server
from tests.storage.samples import combination, definition, opened_study, record, record_trial

pytestmark = pytest.mark.integration


@pytest.fixture
def reference(postgres_url: str) -> str:
    return postgres_url


class TestPostgresStore(StoreContract):
    pass


def name_of(url: str) -> str:
    return str(make_url(url).database)


def refused(url: str, match: str, kind: type[BisectEnvError] = StorageError) -> str:
    with pytest.raises(kind, match=match) as caught:
        Store.open(url).close()
    text = f"{caught.value} {caught.value.__cause__} {caught.value!r}"
    assert PASSWORD not in text
    assert quote(PASSWORD, safe="") not in text
    assert "remedy: " in str(caught.value)
    return str(caught.value)


def test_the_password_is_neither_shown_nor_stored(postgres: Server, postgres_url: str) -> None:
    with Store.open(postgres_url) as store:
        opened_study(store)
        assert (
            store.shown == f"postgresql+psycopg://owner:***@127.0.0.1:{postgres.port}/{name_of(postgres_url)}"
        )
        assert PASSWORD not in repr(store.database)
    for table in ("meta", "studies", "decisions"):
        rows = postgres.run(f"SELECT t::text FROM {table} t", database=name_of(postgres_url))
        assert "hunter2" not in str(rows)


def test_long_keys_of_combinations_are_found_by_a_hash_index(postgres: Server, postgres_url: str) -> None:
    """A B-tree takes at most 2,704 bytes, and a key of hundreds of axes has more."""
    with Store.open(postgres_url) as store:
        opened_study(store)
    found = postgres.run("SELECT indexdef FROM pg_indexes", database=name_of(postgres_url))
    assert "ix_combinations_key ON public.combinations USING hash (key)" in str(found)


def test_what_cannot_be_reached_is_told_without_the_password(postgres: Server, postgres_url: str) -> None:
    name = name_of(postgres_url)
    assert "~/.pgpass" in refused(
        postgres.url(name, password=PASSWORD + "x"), r"owner:\*\*\*@.* does not let this user in"
    )
    refused(postgres.url("gone"), "/gone does not exist[^$]*createdb")
    refused(postgres_url.replace(str(postgres.port), "1"), "cannot be reached[^$]*check that the server runs")
    refused(f"{postgres_url}?sslpassword=hunter2&nonsense=hunter2", "failed")


def test_without_the_driver(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]
    refused(postgres_url, r"not installed[^$]*bisect-env\[postgres\]", UsageError)


def test_reading_makes_nothing(postgres: Server, postgres_url: str) -> None:
    with pytest.raises(StorageError, match=r"no results in .*[^$]*bisect-env run MATRIX"):
        Store.open(postgres_url, read_only=True)
    query = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'"
    assert postgres.run(query, database=name_of(postgres_url)) == [(0,)]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE studies (id text)",
        "CREATE TABLE meta (id text)",
        "CREATE TABLE meta (name text, value text)",
    ],
)
def test_tables_of_another_program(postgres: Server, postgres_url: str, statement: str) -> None:
    postgres.run(statement, database=name_of(postgres_url))
    refused(postgres_url, "tables of another program")
    query = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'"
    assert postgres.run(query, database=name_of(postgres_url)) == [(1,)]


@pytest.mark.parametrize(("schema", "match"), [(999, "newer release"), (0, "older release")])
def test_another_schema(postgres: Server, postgres_url: str, schema: int, match: str) -> None:
    Store.open(postgres_url).close()
    postgres.run(f"UPDATE meta SET value = '{schema}' WHERE name = 'schema'", database=name_of(postgres_url))
    refused(postgres_url, match)


def test_a_user_who_may_only_read(postgres: Server, postgres_url: str, reopen: Reopen) -> None:
    opened_study(reopen())
    name = name_of(postgres_url)
    postgres.run(
        f"CREATE ROLE r{name} LOGIN PASSWORD 'looker'",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO r{name}",
        database=name,
    )
    try:
        url = postgres.url(name, user=f"r{name}", password="looker")
        with Store.open(url, read_only=True) as reader:
            assert reader.study().name == "orjson"
        with Store.open(url) as store, pytest.raises(StorageError, match="may not be accessed by this user"):
            store.open_study(definition("another"))
    finally:
        postgres.run(f"DROP OWNED BY r{name}", f"DROP ROLE r{name}", database=name)


def test_a_writer_who_never_gives_way_is_named(
    postgres: Server, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(postgres_url) as holder:
        monkeypatch.setattr(backend, "BUSY_SECONDS", 0.2)
        with Store.open(postgres_url) as store:
            with (
                holder.database.engine.begin(),
                pytest.raises(StorageError, match=r"held by another writer[^$]*pg_stat_activity"),
            ):
                store.open_study(definition())
            store.open_study(definition())


def test_a_server_that_was_restarted_is_found_again(
    postgres: Server, postgres_url: str, reopen: Reopen
) -> None:
    store = reopen()
    study = opened_study(store)
    postgres.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'bisect-env' "
        f"AND datname = '{name_of(postgres_url)}'"
    )
    assert record_trial(store, study.id, record())


def test_a_connection_that_breaks_while_writing_leaves_nothing_half_done(
    postgres: Server, postgres_url: str, reopen: Reopen, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = reopen()
    study = opened_study(store)

    def cut(*_: object) -> None:
        postgres.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'bisect-env' "
            f"AND datname = '{name_of(postgres_url)}'"
        )

    with monkeypatch.context() as patch:
        patch.setattr("bisect_env.storage.rows.artefacts_of", cut)
        with pytest.raises((StorageError, psycopg.Error), match="was shut down"):
            record_trial(store, study.id, record())
    assert store.trials(study.id) == []
    assert record_trial(store, study.id, record())


def test_who_may_only_insert_changes_nothing_that_is_there(postgres: Server, postgres_url: str) -> None:
    name = name_of(postgres_url)
    with Store.open(postgres_url) as store:
        study = opened_study(store)
        record_trial(store, study.id, record())
    postgres.run(
        f"CREATE ROLE i{name} LOGIN PASSWORD 'inserter'",
        f"GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA public TO i{name}",
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO i{name}",
        database=name,
    )
    tables = ("studies", "locks", "packages", "combinations", "trials", "blobs", "decisions")
    before = {t: postgres.run(f"SELECT * FROM {t} ORDER BY 1, 2", database=name) for t in tables}
    try:
        with Store.open(postgres.url(name, user=f"i{name}", password="inserter")) as store:
            for change in (
                lambda: store.open_study(definition()),
                lambda: store.update_study(study.id, "finished", VerdictDocument(status="confirmed")),
                lambda: store.set_combination(study.id, combination("1.0"), "env-unbuildable", "no"),
                lambda: record_trial(store, study.id, record("1.0")),
            ):
                with pytest.raises(StorageError, match="may not be accessed by this user"):
                    change()
            with psycopg.connect(
                **{**postgres.parameters(name), "user": f"i{name}", "password": "inserter"}  # type: ignore[arg-type]
            ) as connection:
                connection.execute(
                    "INSERT INTO locks VALUES (%s, %s, 'linux-64', 'x')", ["f" * 64, "3.11\nRUN id"]
                )
                connection.commit()
                # With a limit of nothing the owner's next collection would drop the logs of others.
                with pytest.raises(psycopg.errors.UniqueViolation):
                    connection.execute("INSERT INTO meta VALUES ('log_limit', '0')")
            assert store.study(study.id) == study
        with Store.open(postgres_url) as owner:
            assert owner.collect(None, dry=True).limit == 10 * 2**30
        with (
            Store.open(postgres_url, read_only=True) as reader,
            pytest.raises(StorageError, match=r"damaged: row 'f{49}.* of locks"),
        ):
            reader.lock("f" * 64)
        postgres.run(f"DELETE FROM locks WHERE content_hash = '{'f' * 64}'", database=name)
        after = {t: postgres.run(f"SELECT * FROM {t} ORDER BY 1, 2", database=name) for t in tables}
        assert after == before
    finally:
        postgres.run(f"DROP OWNED BY i{name}", f"DROP ROLE i{name}", database=name)


_EVIL = """
CREATE FUNCTION {schema}.evil() RETURNS trigger LANGUAGE plpgsql AS $$
  BEGIN INSERT INTO bait.ran VALUES (current_user); RETURN NEW; END $$;
CREATE FUNCTION {schema}.evil(varchar, varchar) RETURNS boolean LANGUAGE plpgsql AS $$
  BEGIN INSERT INTO bait.ran VALUES (current_user); RETURN $1::text = $2::text; END $$;
CREATE OPERATOR {schema}.= (LEFTARG = varchar, RIGHTARG = varchar, FUNCTION = {schema}.evil)
"""


def test_a_colleagues_tables_triggers_and_operators_are_not_used(postgres: Server, postgres_url: str) -> None:
    name = name_of(postgres_url)
    with Store.open(postgres_url) as store:
        opened_study(store)
    tables = [
        str(t)
        for (t,) in postgres.run("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", database=name)
    ]
    postgres.run(
        f"CREATE ROLE c{name} LOGIN PASSWORD 'colleague'",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO c{name}",
        # Before PostgreSQL 15 everybody has the latter.
        f"GRANT CREATE ON DATABASE {name} TO c{name}; GRANT CREATE ON SCHEMA public TO c{name}",
        database=name,
    )
    try:
        colleague = {**postgres.parameters(name), "user": f"c{name}", "password": "colleague"}
        with psycopg.connect(**colleague, autocommit=True) as connection:  # type: ignore[arg-type]
            # Named like the user whose rights are wanted: searched first by default.
            connection.execute("CREATE SCHEMA owner; CREATE SCHEMA bait; CREATE TABLE bait.ran (who text)")
            connection.execute(
                "GRANT USAGE ON SCHEMA bait, owner TO PUBLIC; GRANT INSERT ON bait.ran TO PUBLIC"
            )
            for schema in ("owner", "public"):
                connection.execute(_EVIL.format(schema=schema).encode())
            for table in tables:
                connection.execute(
                    f"CREATE TABLE owner.{table} AS SELECT * FROM public.{table}; "
                    f"CREATE TRIGGER evil BEFORE INSERT OR UPDATE OR DELETE ON owner.{table} "
                    "FOR EACH ROW EXECUTE FUNCTION owner.evil()".encode()
                )
            connection.execute("CREATE VIEW owner.v_trials AS SELECT owner.evil('a', 'a')")
        with Store.open(postgres_url) as store:
            study = opened_study(store)
            record_trial(store, study.id, record())
            store.update_study(study.id, "finished", VerdictDocument(status="confirmed"))
            assert len(store.trials(study.id)) == 1
        assert postgres.run("SELECT * FROM bait.ran", database=name) == []
        assert postgres.run("SELECT count(*) FROM public.trials", database=name) == [(1,)]
        with pytest.raises(UsageError, match="the operator ="), ask(postgres_url, "SELECT * FROM v_trials"):
            pass
    finally:
        postgres.run(f"DROP OWNED BY c{name} CASCADE", f"DROP ROLE c{name}", database=name)


@pytest.mark.parametrize(
    "question",
    [
        "SELECT lo_from_bytea(0, 'left behind')",
        "SELECT pg_catalog.\"lo_from_bytea\" /* */ (0, 'left behind')",
        "SELECT U&\"\\006co_from_bytea\"(0, 'left behind')",
        "SELECT pg_read_file('PG_VERSION')",
        "SELECT set_config('statement_timeout', '0', false)",
        "SELECT query_to_xml('SELECT lo_creat(-1)', true, true, '')",
        "SELECT theirs.evil()",
        "SELECT * FROM theirs.trials",
    ],
)
def test_a_question_with_effects_is_refused(postgres: Server, postgres_url: str, question: str) -> None:
    name = name_of(postgres_url)
    Store.open(postgres_url).close()
    evil = "CREATE FUNCTION theirs.evil() RETURNS oid AS 'SELECT lo_creat(-1)' LANGUAGE sql STABLE"
    postgres.run("CREATE SCHEMA theirs", evil, database=name)
    postgres.run("CREATE VIEW theirs.trials AS SELECT theirs.evil()", database=name)
    with pytest.raises(UsageError, match="cannot be answered"), ask(postgres_url, question) as (_, rows):
        list(rows)
    assert postgres.run("SELECT count(*) FROM pg_largeobject_metadata", database=name) == [(0,)]


def test_a_question_beyond_a_limit_of_postgresql_is_no_damage(postgres_url: str) -> None:
    Store.open(postgres_url).close()
    with (
        pytest.raises(UsageError, match="cannot be answered"),
        ask(postgres_url, "SELECT chr(0)") as (_, rows),
    ):
        list(rows)


def test_harmless_functions_are_answered(postgres_url: str) -> None:
    Store.open(postgres_url).close()
    question = "SELECT lower('A'), count(*) + 0 * length('lo_creat'), random() < 2 FROM v_trials"
    with ask(postgres_url, question) as (_, rows):
        assert list(rows) == [("a", 0, True)]
