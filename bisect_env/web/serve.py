"""Serves the results database until the command is ended."""

from __future__ import annotations

import contextlib
import importlib.util
import secrets
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from bisect_env.errors import UsageError
from bisect_env.storage.backend import database_location, shown_location
from bisect_env.storage.store import Store
from bisect_env.storage.transfer import export
from bisect_env.temporary import temporary

LOOPBACK = "127.0.0.1"


def serve(reference: str | None, port: int, *, tell: Callable[[str, str | None], None]) -> None:
    """Serve the database in a browser until Ctrl-C.

    Args:
        reference: Path or URL of the database, as for `Store.open`.
        port: Port to listen on; 0 for any free one.
        tell: Called once with the address, and with a note if a copy of the database is served.

    Raises:
        UsageError: Datasette is not installed, or the port is taken.
        StorageError: There is no database that this release can use.
    """
    if importlib.util.find_spec("datasette") is None:
        raise UsageError("Datasette is not installed", remedy="pip install 'bisect-env[web]'")
    with _file(reference) as (path, note), listening(port) as listener:
        # Imported here because these packages are optional, and importing them takes two seconds.
        import uvicorn

        from bisect_env.web.pages import make_app

        token = secrets.token_urlsafe(24)
        app = make_app(path, shown_location(reference), token)
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", access_log=False))
        tell(f"http://{LOOPBACK}:{listener.getsockname()[1]}/{token}/", note)
        # uvicorn shuts down and then raises the signal again.
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listener])


@contextlib.contextmanager
def _file(reference: str | None) -> Iterator[tuple[Path, str | None]]:
    location = database_location(reference)
    if isinstance(location, Path):
        Store.open(reference, read_only=True).close()
        yield location, None
        return
    with temporary("serve") as folder:
        copy = folder / "results.sqlite"
        done = export(reference, copy)
        size = f"{done.studies} studies, {done.trials} trials"
        note = f"this is a copy of {shown_location(reference)} as it is now ({size}); "
        yield copy, f"{note}start the command again to see what comes later"


@contextlib.contextmanager
def listening(port: int) -> Iterator[socket.socket]:
    """Open a listening socket on the loopback address for the duration of the block.

    Other machines cannot reach this address.

    Raises:
        UsageError: The port is taken, or needs privileges.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError as error:
            raise UsageError(
                f"port {port} of {LOOPBACK} cannot be used: {error.strerror}",
                remedy="name another one above 1023 with `--port`, or 0 for any",
            ) from error
        # Early requests now wait until the server runs, instead of being refused.
        listener.listen()
        yield listener
