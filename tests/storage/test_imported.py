"""On each back end: what a trial imported is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlmodel import select

from bisect_env.storage import blobs
from bisect_env.storage.store import Store
from bisect_env.storage.tables import BlobRow
from bisect_env.trials.records import Outcome
from tests.storage.samples import opened_study, record, record_trial


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    own = str(tmp_path / "results.sqlite")
    where = own if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
    with Store.open(where) as store:
        yield store


def test_what_a_trial_imported_is_kept_and_equal_ones_are_stored_once(store: Store) -> None:
    study = opened_study(store)
    imported = {"python": "3.11.7", "torch": "2.4.0+cu121", "n\u00e9": "1"}
    trials = [record("2.0", Outcome.PASS, imported=imported) for _ in range(3)]
    trials.append(record("2.0", Outcome.PASS))
    for one in trials:
        record_trial(store, study.id, one)
    found = [store.trial(one.trial_id) for one in trials]
    assert [whole.record.imported for whole in found if whole] == [imported, imported, imported, {}]
    assert [whole.record == one for whole, one in zip(found, trials, strict=True) if whole] == [True] * 4
    with store.reading() as session:
        (blob,) = session.exec(select(BlobRow)).all()
    assert len(blobs.get(blob) or b"") == len(json.dumps(imported, ensure_ascii=False).encode())
