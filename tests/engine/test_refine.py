"""Ranges that list some releases: around the answer every release is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bisect_env.engine import events, settling
from bisect_env.errors import UsageError
from tests.engine.studies import Studies
from tests.environments.index_server import IndexServer, serve

FAILS_FROM_TWO = """
    import sys, lib
    sys.exit(lib.version >= "2")
"""


@pytest.fixture
def index() -> Iterator[IndexServer]:
    found = IndexServer()
    for version in ("1.0.0", "1.0.1", "1.1.0", "2.0.0", "2.0.1", "2.1.0"):
        found.add("lib", version)
    server = serve(found)
    yield found
    server.shutdown()
    server.server_close()


def question(studies: Studies, index: IndexServer, more: str = "") -> Path:
    axes = f"lib: {{package: lib, versions: '>=1', step: minor{more}}}"
    path = studies.matrix(FAILS_FROM_TWO, axes=axes, rest=f"index: {index.url}")
    path.write_text(path.read_text().replace(" {level}", ""))
    return path


@pytest.mark.checked
@pytest.mark.integration
def test_releases_around_the_answer_are_looked_at(studies: Studies, index: IndexServer) -> None:
    path = question(studies, index)
    report = studies.run(path).report
    assert report["verdict"]["first_bad"]["lib"] == "2.0.0"
    assert report["verdict"]["last_good"]["lib"] == "1.1.0"
    assert "among those listed" not in report["verdict"]["sentence"]
    studies.events.clear()
    again = studies.run(path).report
    assert again["verdict"]["first_bad"]["lib"] == "2.0.0"
    assert not [event for event in studies.events if isinstance(event, events.TrialStarted)]


@pytest.mark.slow
@pytest.mark.integration
def test_checks_take_half_of_the_time_of_the_whole_study(
    studies: Studies, index: IndexServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "CHECK_SHARE", 0.5)
    path = question(studies, index)
    script = studies.folder / "script.py"
    script.write_text("import time\ntime.sleep(0.9)\n" + script.read_text())
    told: list[tuple[float, float]] = []

    class Noting(list[events.Event]):
        spent = 0.0

        def append(self, event: events.Event) -> None:
            if isinstance(event, events.TrialFinished):
                self.spent += event.record.duration
            if isinstance(event, events.Answered) and event.seconds is not None:
                told.append((event.seconds, self.spent / 2))

    studies.events = Noting()
    studies.run(path)
    seconds, spent = told[-1]
    # The answer was found by the runner before this one, which looked at the listed releases alone. Two slots
    # run trials, whose time counts, not that of builds.
    assert seconds == pytest.approx(max(1.0, 0.5 * spent), rel=0.3)


@pytest.mark.slow
@pytest.mark.checked
@pytest.mark.integration
@pytest.mark.parametrize("more", ["budget: 60s, ", ""])
def test_the_budget_of_time_is_that_of_the_whole_study(
    studies: Studies, index: IndexServer, more: str
) -> None:
    path = question(studies, index)
    script = studies.folder / "script.py"
    script.write_text("import time\ntime.sleep(0.25)\n" + script.read_text())
    path.write_text(path.read_text() + "search: {budget: 6s, crash_rate: 1, clean_rate: 0.1}\n")
    report = studies.run(path, slots=1).report
    # The checks alone take 29 trials, more than 7 s. Releases around the answer, and checks, share the rest.
    assert report["verdict"]["first_bad"]["lib"] == "2.0.0"
    assert 0 < report["trials"] <= 6 / 0.25 + 1
    # So does the same command again; a larger one, or none, is what is missing.
    assert studies.run(path, slots=1).report["trials"] == report["trials"]
    path.write_text(path.read_text().replace("budget: 6s, ", more))
    ended = studies.run(path, slots=1).report["trials"]
    assert ended > report["trials"]
    # A study that ended by itself answers at once.
    assert studies.run(path, slots=1).report["trials"] == ended


@pytest.mark.integration
def test_a_matrix_may_want_the_listed_releases_alone(studies: Studies, index: IndexServer) -> None:
    report = studies.run(question(studies, index, ", refine: false")).report
    assert report["verdict"]["first_bad"]["lib"] == "2.0.1"
    assert "among those listed" in report["verdict"]["sentence"]
    assert "2.0.0" in report["verdict"]["sentence"]


@pytest.mark.integration
def test_a_program_of_the_host_is_refused_at_once(studies: Studies, index: IndexServer) -> None:
    path = question(studies, index)
    path.write_text(path.read_text().replace("python script.py", "tar --version"))
    with pytest.raises(UsageError, match="allow_host"):
        studies.run(path)
