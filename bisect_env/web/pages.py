"""Serves the results database with Datasette: pages and queries, access control, and no writing."""

from __future__ import annotations

import asyncio
import hmac
import re
import sqlite3
from collections.abc import Awaitable, Callable
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
from markupsafe import Markup

from bisect_env.errors import BisectEnvError, UsageError
from bisect_env.report import html
from bisect_env.report.build import load_report
from bisect_env.report.one_trial import trial_text
from bisect_env.storage import sqlite
from bisect_env.storage.query import limit_memory, no_leaks
from bisect_env.storage.store import Store
from bisect_env.storage.tables import METADATA

NAME = "results"
"""Name of the database in addresses."""
_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")
_SETTINGS = {
    # Pages must not be cached, because the database may change while it is served.
    "default_cache_ttl": 0,
    "sql_time_limit_ms": 5000,
    "allow_download": False,
    "suggest_facets": False,
    "truncate_cells_html": 300,
}
# Datasette's pages contain inline scripts; everything from or to other addresses is forbidden.
_DATASETTE_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@cache
def questions() -> dict[str, dict[str, str]]:
    """Return the SQL queries that the web pages offer.

    Each query has a name, which is the key of the dict, a `title` and the `sql`.
    """
    text = files("bisect_env.web").joinpath("questions.yaml").read_text("utf-8")
    found: dict[str, dict[str, str]] = parse_metadata(text)["queries"]
    return found


Scope = dict[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


class ReadOnlyDatabase(Database):  # type: ignore[misc]
    """A Datasette database that is opened read-only and with limited memory."""

    def connect(self, write: bool = False) -> sqlite3.Connection:
        """Return a connection that can only read the database.

        Raises:
            PermissionError: `write` is true.
        """
        if write:
            raise PermissionError("the results are served for reading")
        connection = sqlite.connector(Path(self.path), read_only=True)()
        connection.execute("PRAGMA query_only = ON")
        # Datasette limits only the time of a query.
        limit_memory(connection)
        connection.set_authorizer(no_leaks)
        # Readers wait only for a writer that is finishing its write-ahead log.
        connection.execute("PRAGMA busy_timeout = 5000")
        return connection

    async def execute(self, *args: Any, **options: Any) -> Any:
        """Run a query; errors are shown to the visitor but not on the server's stderr."""
        return await super().execute(*args, **{**options, "log_sql_errors": False})


def make_app(path: Path, shown: str, token: str) -> Asgi:
    """Return the web application that shows the database and never writes to it.

    Call it once in a process, because Datasette's plugins are global.

    Args:
        path: SQLite file with the schema of this release.
        shown: Name of the database for users; for a copy, the name of the original.
        token: The secret at the start of every path (see `guarded`).
    """
    pm.register(_Plugin(path), name="bisect-env")
    # If rich is installed, Datasette prints each exception with local variables, even for a mistyped query.
    handler: Any = pm.get_plugin("datasette.handle_exception")
    handler.rich = None
    served = Datasette(
        files=[],
        metadata={
            "title": "bisect-env",
            "description": f"Results in {shown}. Tables change between releases; the views stay.",
            "databases": {
                NAME: {"queries": questions(), "tables": {name: {"hidden": True} for name in METADATA.tables}}
            },
        },
        settings={**_SETTINGS, "base_url": f"/{token}/"},
        cors=False,
        pdb=False,
    )
    served.add_database(ReadOnlyDatabase(served, path=str(path), is_mutable=True), name=NAME)
    return guarded(served.app(), token)


def guarded(app: Asgi, token: str) -> Asgi:
    """Wrap an application so that it refuses requests without the secret token or for another host name.

    Two attacks are prevented:

    * DNS rebinding: the owner of another site lets its name point to 127.0.0.1, so that the browser treats
      both as one site. Requests with another host name are refused.
    * Other users of this machine can reach 127.0.0.1 too. They do not know the token at the start of every
      path. A cookie would not be safe, because browsers send it to all ports of a host.

    Args:
        app: The application to protect.
        token: The secret at the start of every path.
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
        said, _, path = scope["path"].removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode(), said.encode("utf-8", "replace")):
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

        # Datasette puts the token in front of the path of the request to make links of it.
        raw = scope["raw_path"].removeprefix(b"/").partition(b"/")[2]
        below = {"path": f"/{path}", "raw_path": b"/" + raw}
        await app({**scope, **below}, receive, send_with_policy)

    return guard


class _Plugin:
    """A Datasette plugin that adds pages for reports and trials, and links to these pages."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Datasette looks for static files and templates in the package with the plugin's name.
        self.__name__ = "bisect_env.web"

    @hookimpl  # type: ignore[untyped-decorator]
    def register_routes(self) -> list[tuple[str, Callable[..., Awaitable[Response]]]]:
        """Return the URL patterns of the added pages, each with the function that answers the request."""
        return [
            (r"^/$", self._start),
            (r"^/-/report/(?P<study>[^/]+)$", self._report),
            (r"^/-/trial/(?P<trial>[^/]+)$", self._trial),
        ]

    @hookimpl  # type: ignore[untyped-decorator]
    def render_cell(self, value: object, column: str, datasette: Datasette) -> Markup | None:
        """Return a link if a value is the id of a study or trial, or None for any other value.

        Datasette then shows the value as text.
        """
        target = {"study_id": "report", "trial_id": "trial"}.get(column)
        if target is None or not isinstance(value, str) or not _ID.fullmatch(value):
            return None
        address = datasette.urls.path(f"/-/{target}/{escape(value)}")
        return Markup(f'<a href="{address}">{escape(value)}</a>')

    async def _start(self, datasette: Datasette) -> Response:
        return Response.redirect(datasette.urls.path(f"/{NAME}/studies"))

    async def _report(self, request: Any) -> Response:
        def read(store: Store) -> str:
            report = load_report(store, store.study(request.url_vars["study"]).id)
            return html.html_text(report, served=True)

        return await self._answer(read, Response.html, {"content-security-policy": html.policy()})

    async def _trial(self, request: Any) -> Response:
        def read(store: Store) -> str:
            found = store.trial(request.url_vars["trial"])
            if found is None:
                raise UsageError("there is no such trial")
            return trial_text(found, store.evidence(found))

        return await self._answer(read, Response.text, {})

    async def _answer(
        self, read: Callable[[Store], str], respond: Callable[..., Response], headers: dict[str, str]
    ) -> Response:
        def with_store() -> str:
            with Store.open(str(self._path), read_only=True) as store:
                # Scripts print arbitrary bytes, which become characters that UTF-8 cannot encode.
                return read(store).encode("utf-8", "replace").decode("utf-8")

        try:
            return respond(await asyncio.to_thread(with_store), headers=headers)
        except BisectEnvError as error:
            return Response.text(f"{error}\n", status=404)
