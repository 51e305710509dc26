"""Studies some or all of whose combinations have no environment, as is known before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bisect_env.errors import NoEnvironmentError
from tests.engine.studies import PYTHON, Studies
from tests.environments.index_server import IndexServer, serve

pytestmark = pytest.mark.integration


@pytest.fixture
def index() -> Iterator[IndexServer]:
    server = IndexServer()
    running = serve(server)
    server.add("app", "1.0", requires=("nosuch",))
    server.add("app", "2.0")
    server.add("app", "3.0")
    yield server
    running.shutdown()
    running.server_close()


def dated(studies: Studies, index: IndexServer, versions: str, ends: str, days: str) -> Path:
    """Write a matrix of the package `app` with an axis of dates, so that all is locked before trials."""
    path = studies.matrix(
        "pass",
        axes=f"app: {{package: app, versions: [{versions}]}}\nday: {{dates: [{days}]}}",
        rest=f"index: {index.url}\n{ends}",
    )
    path.write_text(path.read_text().replace(" {level}", ""))
    return path


@pytest.mark.parametrize(("good", "bad", "refused"), [("1.0", "3.0", "good"), ("2.0", "4.0", "bad")])
def test_a_stated_end_without_an_environment_is_told_at_once(
    studies: Studies, index: IndexServer, good: str, bad: str, refused: str
) -> None:
    index.add("app", "4.0", requires=("nosuch",))
    ends = f"good: {{app: '{good}'}}\nbad: {{app: '{bad}'}}"
    path = dated(studies, index, "'1.0', '2.0', '3.0', '4.0'", ends, str(datetime.now(UTC).date()))
    with pytest.raises(NoEnvironmentError, match=f"the stated {refused} end, .* has no environment"):
        studies.run(path)


def test_a_stated_end_for_whose_python_there_is_no_release_is_told_at_once(
    studies: Studies, index: IndexServer
) -> None:
    index.add("app", "4.0", requires_python=">=3.99")
    path = studies.matrix(
        "pass",
        axes="app: {package: app, versions: ['2.0', '3.0', '4.0']}",
        rest=f"index: {index.url}\n"
        f"good: {{python: '{PYTHON}', app: '2.0'}}\nbad: {{python: '{PYTHON}', app: '4.0'}}",
    )
    text = path.read_text().replace(" {level}", "")
    path.write_text(text.replace(f'["{PYTHON}"]', f'["{PYTHON}", "3.99"]'))
    with pytest.raises(NoEnvironmentError, match=r"the stated bad end, .*app=4.0.* has no environment"):
        studies.run(path)


@pytest.mark.parametrize("ends", ["", "good: {day: 2026-01-01}\nbad: {day: 2026-02-01}"])
def test_a_study_without_any_environment_has_no_verdict(
    studies: Studies, index: IndexServer, ends: str
) -> None:
    with pytest.raises(NoEnvironmentError, match=r"has no environment|has an environment"):
        studies.run(dated(studies, index, "'1.0'", ends, "2026-01-01, 2026-02-01"))
