"""Serves archives that are stored in pieces to uv as whole files, without copying them.

uv unpacks what it downloads as it comes and keeps that alone; an archive on a disk it wants whole, and it
unpacks it again when the file is another one than before. So pieces are served by HTTP, to this host alone,
under an address that is the same in every process: what uv has under it, it does not ask for again. To uv it
is a proxy, through which nothing else can be reached.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

_HOST = "pieces.bisect-env.invalid"


def address(sha256: str, name: str) -> str:
    """The address at which uv asks for an archive."""
    return f"http://{_HOST}/{sha256}/{quote(name)}"


@contextlib.contextmanager
def served(archives: Mapping[str, Sequence[Path]]) -> Iterator[dict[str, str]]:
    """Serve archives while the block runs.

    Args:
        archives: Their addresses, and the pieces of each in order.

    Yields:
        Environment variables with which uv finds them, and no network beside them.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.pieces = {urlsplit(url).path: paths for url, paths in archives.items()}  # type: ignore[attr-defined]
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    proxy = f"http://127.0.0.1:{server.server_address[1]}"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    try:
        yield {
            **{name: proxy for upper in names for name in (upper, upper.lower())},
            **dict.fromkeys(("NO_PROXY", "no_proxy"), ""),
            "UV_OFFLINE": "0",
        }
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """Answers with pieces, one after the other."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """A whole archive."""
        url = urlsplit(self.path)
        pieces: Mapping[str, Sequence[Path]] = self.server.pieces  # type: ignore[attr-defined]
        paths = pieces.get(url.path) if url.hostname in (None, _HOST) else None
        if paths is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(sum(path.stat().st_size for path in paths)))
        self.send_header("Cache-Control", "max-age=365000000, immutable")
        self.end_headers()
        self.wfile.flush()
        for path in paths:
            with path.open("rb") as stream:
                self.connection.sendfile(stream)

    def do_CONNECT(self) -> None:
        """What would be the network."""
        self.send_error(403)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- its name there
        """Nobody reads it."""
