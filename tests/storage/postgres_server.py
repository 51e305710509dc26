"""A PostgreSQL server of the tests' own: on a free port, with passwords, gone when its starter is."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

PASSWORD = "hunter2%/@: æ"
"""Of the superuser; every character that URLs must escape."""
REQUIRED = "BISECT_ENV_TEST_POSTGRES"
"""Set to `required`, the tests fail instead of skipping where there is no server."""
_PATIENCE = 60.0


@dataclass(frozen=True)
class Server:
    port: int
    log: Path

    def parameters(self, database: str = "postgres") -> dict[str, object]:
        return {
            "host": "127.0.0.1",
            "port": self.port,
            "user": "owner",
            "password": PASSWORD,
            "dbname": database,
        }

    def url(self, database: str, *, user: str = "owner", password: str = PASSWORD) -> str:
        from sqlalchemy import URL

        made = URL.create("postgresql+psycopg", user, password, "127.0.0.1", self.port, database)
        return made.render_as_string(hide_password=False)

    def run(self, *statements: str, database: str = "postgres") -> list[tuple[object, ...]]:
        rows: list[tuple[object, ...]] = []
        with psycopg.connect(**self.parameters(database), autocommit=True) as connection:  # type: ignore[arg-type]
            for statement in statements:
                cursor = connection.execute(statement)  # type: ignore[call-overload]
                rows += cursor.fetchall() if cursor.description else []
        return rows

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """A database of its own; its name."""
        name = f"t{uuid.uuid4().hex}"
        self.run(f"CREATE DATABASE {name}")
        try:
            yield name
        finally:
            self.run(f"DROP DATABASE {name} WITH (FORCE)")


def binaries() -> Path | None:
    """The directory of a server's programs, the newest that is installed."""

    def major(path: Path) -> int:
        return int(path.parent.name) if path.parent.name.isdecimal() else 0

    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=major)
    found = [path for path in debian if (path / "initdb").exists() and (path / "postgres").exists()]
    if found:
        return found[-1]
    initdb = shutil.which("initdb")
    return Path(initdb).resolve().parent if initdb else None


def _unprivileged() -> str | None:
    """The user who shall run the server: PostgreSQL refuses to be root."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    return None


def _dies_with_us() -> None:
    # PR_SET_PDEATHSIG: a test run that is killed leaves no server behind. SIGQUIT is "immediate shutdown".
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)


@contextlib.contextmanager
def running(programs: Path) -> Iterator[Server]:
    user = _unprivileged()
    folder = Path(tempfile.mkdtemp(prefix="bisect-env-postgres-"))
    process: subprocess.Popen[bytes] | None = None
    try:
        secret = folder / "password"
        secret.write_text(PASSWORD, encoding="utf-8")
        if user:
            for path in (folder, secret):
                shutil.chown(path, user)
        environ = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8", "HOME": str(folder)}
        subprocess.run(
            [
                *(programs / "initdb", "-D", folder / "data", "-U", "owner", "--pwfile", secret),
                *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"),
            ],
            user=user,
            cwd=folder,
            env=environ,
            check=True,
            capture_output=True,
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = Server(port, folder / "log")
        # The server itself is never killed in a test that counts trials: nothing needs its disk's promise.
        settings = ["fsync=off", "listen_addresses=127.0.0.1", "log_statement=all", "max_connections=120"]
        with server.log.open("wb") as log:
            process = subprocess.Popen(
                [programs / "postgres", "-D", folder / "data", "-p", str(port), "-k", folder]
                + [word for setting in settings for word in ("-c", setting)],
                user=user,
                cwd=folder,
                env=environ,
                stdout=log,
                stderr=log,
                preexec_fn=_dies_with_us,
            )
        _wait(server, process)
        yield server
    finally:
        if process is not None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            server.run("SELECT 1")
            return
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(server.log.read_text(errors="replace")) from None
            time.sleep(0.05)
