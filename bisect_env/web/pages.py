"""Serves the results database with Datasette: pages and queries, access control, and no writing."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import re
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from datasette import hookimpl
from datasette.app import Datasette
from datasette.database import Database
from datasette.plugins import pm
from datasette.utils import parse_metadata
from datasette.utils.asgi import Response
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from bisect_env.answers.untrusted import clean_lines
from bisect_env.errors import BisectEnvError, UsageError
from bisect_env.report.build import load_report
from bisect_env.report.one_trial import trial_text
from bisect_env.storage import sqlite
from bisect_env.storage.query import limit_memory, no_leaks
from bisect_env.storage.store import Store
from bisect_env.storage.tables import METADATA

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Content-Security-Policy of our own pages but the report's: no script runs, whatever a page holds."""
_LISTED = 500
"""Studies on the start page, the newest first."""


@cache
def _own(name: str) -> str:
    return files("bisect_env.web").joinpath(name).read_text("utf-8")


@cache
def questions() -> dict[str, dict[str, str]]:
    """Return the shipped questions on the views: name to `title` and `sql`."""
    found: dict[str, dict[str, str]] = parse_metadata(_own("questions.yaml"))["queries"]
    return found


def _page(**values: Any) -> str:
    """Return one of our own pages; everything in it is escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["lines"] = clean_lines
    text = environment.from_string(_own("page.html.j2")).render(**values)
    # Characters that UTF-8 cannot hold come from scripts that print bytes.
    return text.encode("utf-8", "replace").decode("utf-8")


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
        metadata={
            "title": "bisect-env",
            "description": f"Results in {shown}. Tables change between releases; the views stay.",
            "databases": {
                NAME: {"queries": questions(), "tables": {name: {"hidden": True} for name in METADATA.tables}}
            },
        },
        settings=_SETTINGS if token is None else {**_SETTINGS, "base_url": f"/{token}/"},
        cors=False,
        pdb=False,
    )
    served.add_database(ReadOnlyDatabase(served, path=str(path), is_mutable=True), name=NAME)
    return guarded(served.app(), token)


@contextlib.contextmanager
def our_pages(path: Path) -> Iterator[None]:
    """Register our pages with Datasette inside the block: its plugins are those of the whole process."""
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
    """Return an application that answers only browsers on this machine that know the token.

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
            (r"^/$", self._start),
            (r"^/-/report/(?P<study>[^/]+)$", self._report),
            (r"^/-/trial/(?P<trial>[^/]+)$", self._trial),
        ]

    @hookimpl  # type: ignore[untyped-decorator]
    def render_cell(self, value: object, column: str, datasette: Datasette) -> Markup | None:
        """Return a link for the id of a study or trial; Datasette escapes everything else."""
        target = {"study_id": "report", "trial_id": "trial"}.get(column)
        if target is None or not isinstance(value, str) or not _ID.fullmatch(value):
            return None
        address = datasette.urls.path(f"/-/{target}/{escape(value)}")
        return Markup(f'<a href="{address}">{escape(value)}</a>')

    async def _start(self) -> Response:
        def read() -> str:
            with Store.open(str(self._path), read_only=True) as store:
                studies = store.studies()
            return _page(
                title="bisect-env",
                up="",
                studies=studies[:_LISTED],
                more=len(studies) - _LISTED,
                database=NAME,
                questions=questions(),
            )

        return await _answer(read)

    async def _report(self, request: Any) -> Response:
        # Here, because the plotting library takes a second to import.
        from bisect_env.report import html

        def read() -> str:
            with Store.open(str(self._path), read_only=True) as store:
                report = load_report(store, store.study(request.url_vars["study"]).id)
            return html.html_text(report, served=True)

        return await _answer(read, html.policy())

    async def _trial(self, request: Any) -> Response:
        def read() -> str:
            with Store.open(str(self._path), read_only=True) as store:
                if (found := store.trial(request.url_vars["trial"])) is None:
                    raise UsageError("there is no such trial")
                text = trial_text(found, store.evidence(found))
            title = f"trial {found.record.trial_id}"
            return _page(title=title, up="../../", study=found.study_id, text=text)

        return await _answer(read)


async def _answer(read: Callable[[], str], policy: str = POLICY) -> Response:
    headers = {"content-security-policy": policy}
    try:
        return Response.html(await asyncio.to_thread(read), headers=headers)
    except BisectEnvError as error:
        text = _page(title="That did not work", up="../../", study=None, text=str(error))
        return Response.html(text, status=404, headers=headers)
