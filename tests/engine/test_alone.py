"""Trials on GPUs of their own that confirm what trials on shared GPUs found; no GPU is touched."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bisect_env.cluster.pool import PoolExecutor
from bisect_env.cluster.protocol import TrialRequest
from bisect_env.engine.alone import ALONE, Alone
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.matrix.grid import AxisKind, Direction, Grid, GridAxis
from bisect_env.search.searcher import Search
from bisect_env.search.study_search import StudySearch
from bisect_env.storage.store import Store
from bisect_env.trials.records import Evidence, Outcome
from tests.engine.studies import Studies


def test_dates_with_one_environment_are_confirmed_by_trials_of_any_of_them() -> None:
    days = GridAxis("day", AxisKind.DATE, ("d0", "d1", "d2", "d3"), Direction.REGRESSION)
    # Two dates each have the same lock; the last good date is not the one that stands for both.
    groups = {(0,): (0,), (1,): (0,), (2,): (2,), (3,): (2,)}
    search = Search(Grid((days,)), groups)
    while not search.finished:
        (index,) = search.ask(1)
        search.tell(index, hit=index >= (2,))
    assert (search.verdict.best.last_good, search.verdict.best.first_bad) == ((1,), (2,))
    alone = Alone(0.5)
    assert alone.why_not(search) is not None
    wanted = alone.wanted(search, 2)
    # A runner counts a trial for the combination that stands for its group.
    assert {*wanted} == {(0,), (2,)}
    for index in wanted:
        is_bad = index == (2,)
        alone.count(index, Evidence.BAD if is_bad else Evidence.GOOD, Outcome.PASS)
    assert alone.wanted(search, 2) == []
    assert alone.why_not(search) is None


class OnCores(PoolExecutor):
    """An executor that runs trials which ask for a share of a GPU without one."""

    def submit(self, request: TrialRequest) -> None:
        super().submit(replace(request, spec=replace(request.spec, gpus=0)))


def shared(studies: Studies, most: int = 60) -> Path:
    return studies.matrix(
        "import sys\nsys.exit(int(sys.argv[1]) >= 2)\n",
        axes="level: {values: [0, 1, 2, 3]}",
        trial="gpus: 0.5",
        rest=f"search: {{confidence: 0.9, min_crash_rate: 0.5, max_trials: {most}}}",
    )


def run(studies: Studies, path: Path, *, slots: int = 2, quick: bool = False) -> dict[str, Any]:
    build = partial(ensure_prefix, cache_dir=studies.folder / "cache")
    done = studies.run(path, make_executor=lambda: OnCores(build, slots), quick=quick)
    verdict: dict[str, Any] = done.report["verdict"]
    return verdict


def trials_of(studies: Studies) -> tuple[int, int]:
    """Return the number of trials, and of those that ran on a GPU of their own."""
    with Store.open(str(studies.db), read_only=True) as store:
        study = store.study()
        return len(store.trials(study.id)), len(store.payloads(study.id, ALONE))


@pytest.mark.integration
def test_a_study_goes_on_after_another_command_was_faster_with_a_trial_alone(
    studies: Studies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other command records trials of the wanted combinations right before this one claims its own."""
    wanted, claim = Alone.wanted, Store.claim
    claims = [0]

    def record_elsewhere(levels: Sequence[int]) -> None:
        with Store.open(str(studies.db)) as store:
            study = store.study()
            other = store.study_trials(study.id)
            trials = [t for t in other.look() if int(t.combination["level"]) in levels]
            stored = [store.trial(trial.trial_id) for trial in trials]
            again = [replace(one.record, trial_id=uuid.uuid4().hex) for one in stored if one is not None]
            assert other.record([(record, "") for record in again])

    def and_the_other_command(self: Alone, search: StudySearch, places: int) -> list[tuple[int, ...]]:
        chosen = wanted(self, search, places)
        if chosen and not claims[0]:
            claims[0] = 1
            record_elsewhere([index[-1] for index in chosen])
        return chosen

    def counted(*args: Any, **kwargs: Any) -> list[bool]:
        claims[0] += bool(claims[0])
        assert claims[0] < 100, "the runner claims the same trials without end"
        return claim(*args, **kwargs)

    monkeypatch.setattr(Alone, "wanted", and_the_other_command)
    monkeypatch.setattr(Store, "claim", counted)
    verdict = run(studies, shared(studies))
    assert claims[0]
    assert (verdict["status"] != "none", verdict["first_bad"]["level"]) == (True, "2")


@pytest.mark.slow
@pytest.mark.integration
def test_trials_alone_are_part_of_the_budget_of_trials(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("whole", "limited")]
    for folder in folders:
        folder.mkdir()
    whole, limited = map(Studies, folders)
    # One trial after the other and no checks, so that both studies try the same.
    assert run(whole, shared(whole), slots=1, quick=True)["status"] != "none"
    most, alone = trials_of(whole)
    assert alone == 2
    verdict = run(limited, shared(limited, most - 1), slots=1, quick=True)
    assert trials_of(limited) == (most - 1, 1)
    assert verdict["status"] != "confirmed"
