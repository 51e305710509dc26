from __future__ import annotations

import pytest

from tests.cli.calls import RunCommand, caller


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCommand:
    return caller(monkeypatch, capsys)
