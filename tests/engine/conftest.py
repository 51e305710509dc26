from pathlib import Path

import pytest

from tests.engine.studies import Studies


@pytest.fixture
def studies(tmp_path: Path) -> Studies:
    return Studies(tmp_path)
