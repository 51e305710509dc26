"""A package index on this machine, with wheels made on the spot and every way of misbehaving."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import ssl
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def make_wheel(
    name: str,
    version: str,
    *,
    tag: str = "py3-none-any",
    requires: tuple[str, ...] = (),
    extras: tuple[str, ...] = (),
    requires_python: str | None = None,
    modules: dict[str, str] | None = None,
    scripts: dict[str, str] | None = None,
    added: dict[str, str] | None = None,
) -> tuple[str, bytes]:
    """A wheel's file name and bytes; the module named like the package holds its version.

    `added` is put behind the end of a file after the list of hashes was made, as in some published wheels.
    """
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    metadata += [f"Provides-Extra: {extra}" for extra in extras]
    if requires_python:
        metadata.append(f"Requires-Python: {requires_python}")
    files = {f"{module}.py": f"version = {version!r}\n", **(modules or {})}
    files[f"{info}/METADATA"] = "\n".join(metadata) + "\n"
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n"
    if scripts:
        lines = [f"{script} = {target}" for script, target in scripts.items()]
        files[f"{info}/entry_points.txt"] = "\n".join(["[console_scripts]", *lines, ""])
    record = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(text.encode())}")
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""])
    for path, text in (added or {}).items():
        files[path] += text
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), text)
    return f"{module}-{version}-{tag}.whl", buffer.getvalue()


BUILD_MADE = """
import base64, hashlib, zipfile
def build_made(folder, code):
    name = "made-1.0-py3-none-any.whl"
    files = {
        "made.py": code,
        "made-1.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: made\\nVersion: 1.0\\n",
        "made-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\n"
        "Tag: py3-none-any\\n",
    }
    lines = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(text)}\\n")
    files["made-1.0.dist-info/RECORD"] = "".join(lines) + "made-1.0.dist-info/RECORD,,\\n"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return name
"""
"""Of a build back end that needs nothing, because it lies in the source distribution itself."""


@dataclass
class Release:
    filename: str
    content: bytes
    uploaded: str | None
    yanked: bool
    requires_python: str | None
    sha256: str | None


@dataclass
class IndexServer:
    """What the server holds; change it while it runs."""

    url: str = ""
    style: str = "json"
    packages: dict[str, list[Release]] = field(default_factory=dict)
    on_request: Callable[[str], int | None] = lambda path: None
    """Called with each path; a status given back is answered instead of the content."""
    raw: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    """Beginning of a path to a folder whose files are served below it."""
    requests: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def add(
        self,
        name: str,
        version: str,
        *,
        uploaded: str | None = "2020-01-01T00:00:00Z",
        yanked: bool = False,
        sha256: str | None = None,
        **wheel,
    ) -> None:
        filename, content = make_wheel(name, version, **wheel)
        digest = sha256 or hashlib.sha256(content).hexdigest()
        self.packages.setdefault(name, []).append(
            Release(filename, content, uploaded, yanked, wheel.get("requires_python"), digest)
        )

    def page(self, name: str) -> tuple[str, bytes]:
        releases = self.packages[name]
        if self.style == "bare":  # what `python -m http.server` shows
            links = [f'<li><a href="/files/{r.filename}">{r.filename}</a></li>' for r in releases]
            return "text/html; charset=utf-8", f"<html><body>{''.join(links)}</body></html>".encode()
        if self.style == "html":
            links = []
            for r in releases:
                extra = f' data-upload-time="{r.uploaded}"' if r.uploaded else ""
                extra += ' data-yanked=""' if r.yanked else ""
                links.append(f'<a href="/files/{r.filename}#sha256={r.sha256}"{extra}>{r.filename}</a>')
            return "text/html", f"<html><body>{''.join(links)}</body></html>".encode()
        files = [
            {
                "filename": r.filename,
                "url": f"/files/{r.filename}",
                "hashes": {"sha256": r.sha256},
                "yanked": r.yanked,
                **({"upload-time": r.uploaded} if r.uploaded else {}),
                **({"requires-python": r.requires_python} if r.requires_python else {}),
            }
            for r in releases
        ]
        data = {"meta": {"api-version": "1.1"}, "name": name, "files": files, "versions": []}
        return "application/vnd.pypi.simple.v1+json", json.dumps(data).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    """Whoever finds a short queue full asks again after a second."""


class _Handler(BaseHTTPRequestHandler):
    index: IndexServer

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.index.requests.append(self.path)
        self.index.headers.append({name.lower(): value for name, value in self.headers.items()})
        status = self.index.on_request(self.path)
        kind, body = "text/plain", b"no"
        if status is None:
            status, kind, body = self._find()
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client that we kept waiting is gone

    def _find(self) -> tuple[int, str, bytes]:
        if self.path in self.index.raw:
            return 200, *self.index.raw[self.path]
        for start, folder in self.index.folders.items():
            file = folder / self.path.removeprefix(start).lstrip("/")
            if self.path.startswith(f"{start}/") and file.is_file():
                return 200, "application/octet-stream", file.read_bytes()
        parts = self.path.strip("/").split("/")
        if parts == ["simple"]:
            names = {
                "meta": {"api-version": "1.1"},
                "projects": [{"name": name} for name in self.index.packages],
            }
            return 200, "application/vnd.pypi.simple.v1+json", json.dumps(names).encode()
        if parts[0] == "simple" and len(parts) == 2 and parts[1] in self.index.packages:
            return 200, *self.index.page(parts[1])
        for releases in self.index.packages.values():
            for release in releases:
                if parts == ["files", release.filename]:
                    return 200, "application/octet-stream", release.content
        return 404, "text/plain", b"no"

    def log_message(self, *args: object) -> None:
        pass


def serve(index: IndexServer, tls: ssl.SSLContext | None = None) -> ThreadingHTTPServer:
    handler = type("Handler", (_Handler,), {"index": index})
    server = _Server(("127.0.0.1", 0), handler)
    if tls is not None:
        # In the thread of each connection: a client that does not trust us must not keep others waiting.
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.handle_error = lambda *_: None
    scheme = "http" if tls is None else "https"
    index.url = f"{scheme}://127.0.0.1:{server.server_port}/simple"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return server
