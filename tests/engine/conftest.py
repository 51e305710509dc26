from pathlib import Path

import pytest

from bisect_env.engine import settling
from tests.engine.studies import Studies


@pytest.fixture(autouse=True)
def checks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that stands gets no time for its checks, but where a test is about them, and in slow tests.

    For a certain failure they are sixty passes of the last good combination: most of a small study's time.
    """
    if not any(request.node.get_closest_marker(name) for name in ("checked", "slow")):
        monkeypatch.setattr(settling, "CHECK_SECONDS", 0.0)
        monkeypatch.setattr(settling, "CHECK_SHARE", 0.0)


@pytest.fixture
def studies(tmp_path: Path) -> Studies:
    return Studies(tmp_path)
