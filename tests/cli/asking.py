"""Commands that ask without a file, in a folder of their own, against an index on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import planted
from tests.environments.index_server import IndexServer, serve


class Asking:
    """A user's folder with a script."""

    def __init__(self, folder: Path, index: str = "") -> None:
        self.folder = folder
        self.index = index
        self.env = {
            **os.environ,
            "BISECT_ENV_DB": str(folder / "results.sqlite"),
            "BISECT_ENV_CACHE": str(folder / "cache"),
            "BISECT_ENV_ASKED": str(folder / "asked"),
        }

    def enter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Be in the folder, for commands that are called in this process."""
        monkeypatch.chdir(self.folder)
        for name in ("BISECT_ENV_DB", "BISECT_ENV_CACHE", "BISECT_ENV_ASKED"):
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

    def run(self, *arguments: str, timeout: float = 200) -> subprocess.CompletedProcess[str]:
        """Give a command; the index is added to those that take one."""
        more = ["--index", self.index] if self.index else []
        return subprocess.run(
            [sys.executable, "-m", "bisect_env", arguments[0], *more, *arguments[1:]],
            cwd=self.folder,
            env=self.env,
            text=True,
            capture_output=True,
            timeout=timeout,
            check=False,
        )


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
