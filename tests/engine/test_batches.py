"""Trials that end together are one batch: what it costs, and that it changes no answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, event

from benchmarks.hot_path import study


@pytest.fixture
def commits() -> Iterator[list[object]]:
    """Of every database."""
    heard: list[object] = []
    take = heard.append
    event.listen(Engine, "commit", take)
    yield heard
    event.remove(Engine, "commit", take)


@pytest.mark.slow
def test_trials_that_end_together_are_recorded_and_decided_together(commits: list[object]) -> None:
    """Two transactions a batch: one records it, and one claims what follows from it."""
    few = study(64, 640, simulated=True)
    assert few["trials"] == 640
    least = len(commits)
    assert least < 640 / 4
    study(64, 1280, simulated=True)
    assert len(commits) - least < 3 * least
