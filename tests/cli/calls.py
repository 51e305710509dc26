"""Commands called in this process: what they print and how they end."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from bisect_env import cli

Run = tuple[int, str, str]
RunCommand = Callable[..., Run]


def caller(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Gives exit code, stdout and stderr of a command."""

    def call(*arguments: str) -> Run:
        monkeypatch.setattr(sys, "argv", ["bisect-env", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call
