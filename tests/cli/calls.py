"""Commands called in this process: what they print and how they end."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from bisect_env import cli

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Run = tuple[int, str, str]
RunCommand = Callable[..., Run]


def objects(out: str) -> list[Any]:
    """Return what a command printed with `--json`: one object a line."""
    return [json.loads(line) for line in out.splitlines()]


def caller(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Gives exit code, stdout and stderr of a command."""

    def call(*arguments: str) -> Run:
        monkeypatch.setattr(sys, "argv", ["bisect-env", *arguments])
        monkeypatch.setenv("PYTHONSAFEPATH", "")  # what the command sets ends with the test
        before = {number: signal.getsignal(number) for number in HANDLED}
        try:
            with pytest.raises(SystemExit) as ended:
                cli.main()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call
