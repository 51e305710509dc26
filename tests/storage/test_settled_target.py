"""Which failure a study is about is settled once, whoever asks, on each back end."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bisect_env.storage.store import Store
from tests.storage.samples import opened_study


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    own = str(tmp_path / "results.sqlite")
    where = own if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
    with Store.open(where) as store:
        yield store


def test_nothing_is_settled_at_first(store: Store) -> None:
    study = opened_study(store)
    assert store.target(study.id) is None


def test_of_many_commands_the_first_settles_it(store: Store) -> None:
    study = opened_study(store)

    def settle(number: int) -> tuple[str, str]:
        return store.settle_target(study.id, f'[2,"crash:{number}","body"]', str(number))

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(settle, range(16)))
    assert len(set(answers)) == 1
    assert store.target(study.id) == answers[0]
    assert store.settle_target(study.id, "another", "x") == answers[0]
    assert [decision.kind for decision in store.decisions(study.id)].count("target") == 1
