from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.cli.calls import RunCommand, caller

# Where `nohup` started the tests, every child would ignore it as they do.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def own_signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What commands in this process do to signals, and to the path of its children, ends with the test."""
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCommand:
    return caller(monkeypatch, capsys)
