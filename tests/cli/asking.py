"""Commands that ask without a file, in a folder of their own, against an index on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import planted
from tests.cli.calls import RunCommand
from tests.environments.index_server import IndexServer, serve


class Answer(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


class Asking:
    """A user's folder with a script, in which commands are given.

    Args:
        folder: Where this process is from here on.
        run: Calls a command in this process.
        monkeypatch: What undoes the above.
        index: Address of the index that is given to every command.
    """

    def __init__(
        self, folder: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch, index: str = ""
    ) -> None:
        self.folder = folder
        self.index = index
        self._call = run
        self.env = {
            **os.environ,
            "BISECT_ENV_DB": str(folder / "results.sqlite"),
            "BISECT_ENV_CACHE": str(folder / "cache"),
            "XDG_STATE_HOME": str(folder / "state"),
        }
        monkeypatch.chdir(folder)
        for name in ("BISECT_ENV_DB", "BISECT_ENV_CACHE", "XDG_STATE_HOME"):
            monkeypatch.setenv(name, self.env[name])

    def script(self, text: str, name: str = "repro.py") -> None:
        """Write the script, and what makes its failures random where it uses that."""
        (self.folder / name).write_text(textwrap.dedent(text))
        planted.plant(self.folder)

    def freeze(self, name: str, **versions: str) -> str:
        """Write what `pip freeze` would say."""
        lines = (f"{package}=={version}\n" for package, version in versions.items())
        (self.folder / name).write_text("".join(lines))
        return name

    def run(self, *arguments: str) -> Answer:
        """Give a command; the index is added to those that take one."""
        return Answer(*self._call(*self._words(arguments)))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Give a command to a process of its own, with the environment `env`."""
        return subprocess.Popen(
            [sys.executable, "-m", "bisect_env", *self._words(arguments)],
            cwd=self.folder,
            env=self.env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run_apart(self, *arguments: str) -> Answer:
        """Give a command to a process of its own, and wait for its end."""
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=200)
        return Answer(process.returncode, out, err)

    def _words(self, arguments: tuple[str, ...]) -> tuple[str, ...]:
        return (arguments[0], *(["--index", self.index] if self.index else []), *arguments[1:])


@contextmanager
def an_index() -> Iterator[IndexServer]:
    """An empty index that is served."""
    index = IndexServer()
    server = serve(index)
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
