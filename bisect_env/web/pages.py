"""Serves the results database with Datasette: pages and queries, access control, and no writing."""

from __future__ import annotations

import contextlib
import hmac
import re
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any

from datasette import hookimpl
from datasette.app import Datasette
from datasette.database import Database
from datasette.plugins import pm
from datasette.utils.asgi import Response
from markupsafe import Markup

from bisect_env.answers.untrusted import clean_lines
from bisect_env.errors import BisectEnvError
from bisect_env.matrix import signatures
from bisect_env.report.build import load_report
from bisect_env.storage import sqlite
from bisect_env.storage.entries import WholeTrial
from bisect_env.storage.query import limit_memory, no_leaks
from bisect_env.storage.store import Store
from bisect_env.storage.tables import METADATA
from bisect_env.trials.records import Evidence

# --------------------------------------------------------------------------------------------------
# Pages of our own beside the report: a trial with its logs, and what went wrong. Pure.
#
# Everything that others wrote is escaped, and no page may run a script, whatever it holds.

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Content-Security-Policy of these pages."""
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;color:#222}"
    "pre{background:#f6f6f6;border:1px solid #ddd;padding:.8rem;overflow-x:auto;white-space:pre-wrap}"
    "th{text-align:left;padding-right:1.5rem;vertical-align:top;font-weight:600}a{color:#0645ad}"
)


def page(title: str, body: str) -> str:
    """Return a whole page, two levels below the first one; the title is escaped here, the body is HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f'<body><p><a href="../../">bisect-env</a></p><h1>{escape(title)}</h1>{body}</body></html>'
    )


def trial_page(trial: WholeTrial, evidence: Evidence) -> str:
    """Return a page that shows a trial with its evidence and its logs."""
    record = trial.record
    facts = {
        "combination": str(record.combination),
        "outcome": f"{record.outcome}: {record.detail}",
        "evidence": str(evidence),
        "return code": "" if record.returncode is None else str(record.returncode),
        "started": f"{record.started_at:%Y-%m-%d %H:%M:%S} UTC, {record.duration:.3f} s",
        "host": f"{record.host} ({record.worker})",
        "machine": f"{record.machine} {record.gpu}".strip(),
        "phase": str(record.phase),
        "signature": signatures.shown(record.signature),
        "imported": ", ".join(f"{name} {version}" for name, version in record.imported.items()),
        "lock": record.lock_hash,
    }
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(clean_lines(value))}</td></tr>"
        for name, value in facts.items()
    )
    body = f'<p><a href="../report/{escape(trial.study_id)}">its study</a></p><table>{rows}</table>'
    if trial.collected:
        body += "<p>Some of its logs were dropped to make room.</p>"
    for name in ("stack", "stderr", "stdout"):
        text = getattr(record, name)
        if text:
            # Characters that UTF-8 cannot hold come from scripts that print bytes.
            shown = clean_lines(text).encode("utf-8", "replace").decode("utf-8")
            body += f"<h2>{name}</h2><pre>{escape(shown)}</pre>"
    return page(f"trial {record.trial_id}", body)


# --------------------------------------------------------------------------------------------------
# Questions that people ask, as Datasette's canned queries on the stable views. Pure.

QUESTIONS: dict[str, tuple[str, str]] = {
    "studies": (
        "Every study, with its report",
        """\
SELECT id AS study_id, name AS study, status, created_at, username, host, id AS report
FROM studies ORDER BY created_at DESC""",
    ),
    "verdicts": (
        "What was found, the newest first",
        """\
SELECT study_id, study, study_status, status AS verdict, sentence, created_at, username, host
FROM v_verdicts ORDER BY created_at DESC""",
    ),
    "crashing_versions": (
        "Which versions of a package has anyone seen crash beside a version of another?",
        """\
SELECT p.version, count(*) AS crashes, max(t.recorded_at) AS last_seen
FROM v_trials t
JOIN v_packages p ON p.lock_hash = t.lock_hash AND p.name = :package
JOIN v_packages o ON o.lock_hash = t.lock_hash AND o.name = :beside
WHERE o.version LIKE :version || '%' AND t.outcome = 'crash'
  AND t.gpu_model LIKE '%' || :gpu_model || '%'
GROUP BY p.version ORDER BY p.version""",
    ),
    "crashes": (
        "How often did each crash come, and where was it seen last?",
        """\
SELECT signature, count(*) AS trials, count(DISTINCT study_id) AS studies,
  max(recorded_at) AS last_seen, max(trial_id) AS trial_id
FROM v_trials WHERE outcome = 'crash' GROUP BY signature ORDER BY trials DESC LIMIT 100""",
    ),
    "failures_of_a_study": (
        "The failing trials of a study, the newest first",
        """\
SELECT trial_id, combination, outcome, evidence, detail, recorded_at, host, gpu_model
FROM v_trials WHERE study = :study AND evidence IN ('bad', 'other')
ORDER BY recorded_at DESC LIMIT 200""",
    ),
    "machines": (
        "Does a failure depend on the machine?",
        """\
SELECT cpu, gpu_model, driver, sum(CASE WHEN evidence = 'bad' THEN 1 ELSE 0 END) AS bad,
  count(*) AS trials
FROM v_trials WHERE evidence IN ('good', 'bad') GROUP BY cpu, gpu_model, driver""",
    ),
    "hosts": (
        "On which hosts does infrastructure spoil trials?",
        """\
SELECT host, count(*) AS trials, sum(CASE WHEN evidence = 'void' THEN 1 ELSE 0 END) AS spoilt
FROM v_trials GROUP BY host ORDER BY spoilt DESC""",
    ),
}
"""Name to title and SQL."""


def metadata(database: str, tables: list[str], shown: str) -> dict[str, Any]:
    """Return the settings for Datasette: titles, queries and hidden tables.

    Args:
        database: Its name there.
        tables: Names of the tables behind the views.
        shown: The database as messages name it.
    """
    return {
        "title": "bisect-env",
        "description": f"Results in {shown}. Tables change between releases; the views stay.",
        "databases": {
            database: {
                "queries": {name: {"title": title, "sql": sql} for name, (title, sql) in QUESTIONS.items()},
                "tables": {name: {"hidden": True} for name in tables},
            }
        },
    }


# --------------------------------------------------------------------------------------------------
# Datasette on the results database: what it serves, to whom, and that it cannot write.

NAME = "results"
"""Of the database in addresses."""
_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")
_SETTINGS = {
    # The file may be written to while it is served: what was true is not to be kept.
    "default_cache_ttl": 0,
    "sql_time_limit_ms": 5000,
    "allow_download": False,
    "suggest_facets": False,
    "truncate_cells_html": 300,
}
# Datasette's own pages have scripts in them; nothing is to come from, or go to, anywhere else.
_DATASETTE_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

Scope = dict[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


class ReadOnlyDatabase(Database):  # type: ignore[misc]
    """The file, opened as every reader of ours opens it."""

    def connect(self, write: bool = False) -> sqlite3.Connection:
        """Return a connection that SQLite itself keeps from writing.

        Raises:
            PermissionError: Somebody wants to write.
        """
        if write:
            raise PermissionError("the results are served for reading")
        connection = sqlite.connector(Path(self.path), read_only=True)()
        connection.execute("PRAGMA query_only = ON")
        # What a question may take of memory; of time, Datasette looks after it.
        limit_memory(connection)
        connection.set_authorizer(no_leaks)
        # Readers wait for nobody but a writer that is just finishing its log.
        connection.execute("PRAGMA busy_timeout = 5000")
        return connection

    async def execute(self, *args: Any, **options: Any) -> Any:
        """Run a question; what is wrong with it is shown to the visitor alone, not on the server's stderr."""
        return await super().execute(*args, **{**options, "log_sql_errors": False})


def make_app(path: Path, shown: str, token: str | None) -> Asgi:
    """Return the application.

    Args:
        path: SQLite file of ours, of this release's schema.
        shown: The database as messages name it: a copy is shown under its origin's name.
        token: See `guarded`.
    """
    served = Datasette(
        files=[],
        metadata=metadata(NAME, [*METADATA.tables], shown),
        settings=_SETTINGS if token is None else {**_SETTINGS, "base_url": f"/{token}/"},
        cors=False,
        pdb=False,
    )
    served.add_database(ReadOnlyDatabase(served, path=str(path), is_mutable=True), name=NAME)
    return guarded(served.app(), token)


@contextlib.contextmanager
def our_pages(path: Path) -> Iterator[None]:
    """Datasette knows plugins of the whole process: ours is one while this lasts."""
    plugin = _Plugin(path)
    pm.register(plugin, name="bisect-env")
    # Where rich is installed, Datasette prints every exception with its local variables, a mistyped question
    # as well.
    handler: Any = pm.get_plugin("datasette.handle_exception")
    printer, handler.rich = handler.rich, None
    try:
        yield
    finally:
        handler.rich = printer
        pm.unregister(name="bisect-env")


def guarded(app: Asgi, token: str | None) -> Asgi:
    """Only for browsers on this machine that know the token, and only for the pages themselves.

    A page of another site cannot read ours; but its owner can let its name point to 127.0.0.1 once it is
    loaded, and the browser then takes both for one site. The name it asked for gives that away.

    Every user of this machine reaches 127.0.0.1. The token is the beginning of every path, which no page of
    another port learns. A cookie would be sent to them all: browsers keep cookies of a host without its port.

    Args:
        app: What is guarded.
        token: None lets every user of this machine in.
    """

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").partition(":")[0]
        if host not in ("127.0.0.1", "localhost"):
            await Response.text("ask for http://127.0.0.1\n", status=403).asgi_send(send)
            return
        said = scope["path"].removeprefix("/").partition("/")[0]
        if token is not None and not hmac.compare_digest(token.encode(), said.encode("utf-8", "replace")):
            text = "open the address that `bisect-env serve` printed: it ends with a token\n"
            await Response.text(text, status=403).asgi_send(send)
            return

        async def send_with_policy(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = [(name.lower(), value) for name, value in message.get("headers", [])]
                added = {
                    b"content-security-policy": _DATASETTE_POLICY.encode(),
                    b"x-content-type-options": b"nosniff",
                    b"referrer-policy": b"no-referrer",
                }
                known = {name for name, _ in own}
                own += [(name, value) for name, value in added.items() if name not in known]
                message = {**message, "headers": own}
            await send(message)

        await app(scope, receive, send_with_policy)

    return guard


class _Plugin:
    """Our pages, and links to them from Datasette's."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Datasette looks for static files and templates in the package of this name.
        self.__name__ = "bisect_env.web"

    @hookimpl  # type: ignore[untyped-decorator]
    def register_routes(self) -> list[tuple[str, Callable[..., Awaitable[Response]]]]:
        """Return the pages."""
        return [
            # Datasette's own first page counts tables, of which none is for people.
            (r"^/$", self._start),
            (r"^/-/report/(?P<study>[^/]+)$", self._report),
            (r"^/-/trial/(?P<trial>[^/]+)$", self._trial),
        ]

    @hookimpl  # type: ignore[untyped-decorator]
    def render_cell(
        self, value: object, column: str, table: str | None, datasette: Datasette
    ) -> Markup | None:
        """Links from ids to pages; everything else is escaped by Datasette."""
        is_study = column in ("study_id", "report") or (table, column) == ("studies", "id")
        target = "report" if is_study else {"trial_id": "trial"}.get(column)
        if target is None or not isinstance(value, str) or not _ID.fullmatch(value):
            return None
        shown = "report" if column == "report" else escape(value)
        address = datasette.urls.path(f"/-/{target}/{escape(value)}")
        return Markup(f'<a href="{address}">{shown}</a>')

    @hookimpl  # type: ignore[untyped-decorator]
    def menu_links(self, datasette: Datasette) -> list[dict[str, str]]:
        """Return the way to the reports."""
        return [{"href": datasette.urls.path(f"/{NAME}/studies"), "label": "Studies and reports"}]

    async def _start(self, datasette: Datasette) -> Response:
        return Response.redirect(datasette.urls.path(f"/{NAME}/studies"))

    async def _report(self, request: Any) -> Response:
        # Here, because the plotting library takes a second to import.
        from bisect_env.report import html

        def read() -> str:
            with Store.open(str(self._path), read_only=True) as store:
                report = load_report(store, store.study(request.url_vars["study"]).id)
            return html.html_text(report, served=True)

        return await _answer(read, html.policy())

    async def _trial(self, request: Any) -> Response:
        def read() -> str | None:
            with Store.open(str(self._path), read_only=True) as store:
                found = store.trial(request.url_vars["trial"])
                return None if found is None else trial_page(found, store.evidence(found))

        return await _answer(read)


async def _answer(read: Callable[[], str | None], policy: str = POLICY) -> Response:
    import asyncio

    headers = {"content-security-policy": policy}
    try:
        text = await asyncio.to_thread(read)
    except BisectEnvError as error:
        text = page("That did not work", f"<pre>{escape(str(error))}</pre>")
        return Response.html(text, status=404, headers=headers)
    if text is None:
        return Response.html(page("There is no such trial", ""), status=404, headers=headers)
    return Response.html(text, headers=headers)
