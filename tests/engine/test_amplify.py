"""Circumstances are found at the bad end, checked at the good one, and the study runs under them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from bisect_env.cluster.pool import PoolExecutor
from bisect_env.cluster.protocol import TrialRequest
from bisect_env.engine import amplify, events
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.errors import ExitCode
from bisect_env.matrix.grid import AxisKind, Direction, Grid, GridAxis
from bisect_env.storage.entries import AMPLIFIED
from bisect_env.storage.store import Store
from bisect_env.trials.judge import ChangedEnvironment
from bisect_env.trials.records import Perturbation
from tests.engine.studies import Studies

pytestmark = pytest.mark.integration

TRIED = (
    Perturbation("harmless", env={"HARMLESS": "1"}),
    Perturbation("hunts", env={"HUNTS": "1"}),
    Perturbation("breaks everything", env={"BREAKS": "1"}),
    Perturbation("fails another way", env={"OTHER": "1"}),
)
FLAKY = """
    import os, sys
    from planted import fails
    level = int(sys.argv[1])
    def defect(): raise ValueError("the defect")
    def other(): raise KeyError("something else")
    def broken(): raise ValueError("the defect")
    if "BREAKS" in os.environ:
        defect()
    if level >= 6:
        if "OTHER" in os.environ:
            other()
        if fails(0.75, "hunted-%d" % level) if "HUNTS" in os.environ else fails(0.08, level):
            defect()
"""
"""What breaks everything is far better than what hunts, and that than nothing: no load turns them round."""


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amplify, "catalogue", lambda _cpus, _seeds, repeats: TRIED)


@pytest.mark.slow
def test_the_study_runs_under_what_makes_it_fail_most(studies: Studies) -> None:
    path = studies.matrix(FLAKY, rest="good: {level: 0}\nbad: {level: 9}\nsearch: {amplify: true}")
    done = studies.run(path)
    assert done.exit_code is ExitCode.VERDICT
    assert done.report["verdict"]["first_bad"]["level"] == "6"
    said = [event.text for event in studies.events if isinstance(event, events.Said)]
    assert any(text.startswith("under breaks everything the good end fails, too") for text in said)
    # On a busy machine, a later event may say that trials take longer than passes do.
    (chosen,) = [text for text in said if text.startswith("trials run under ")]
    assert chosen.startswith("trials run under hunts: ")
    with Store.open(str(studies.db)) as store:
        study = store.study()
        assert amplify.known_perturbation(store, study.id) == TRIED[1]
        (decision,) = [one for one in store.decisions(study.id) if one.kind == AMPLIFIED]
        trials = store.trials(study.id)
    # What was measured to find it is no evidence, and fails the same way alone.
    assert decision.payload["good"]["hits"] == 0
    tried = {one["name"]: one for one in decision.payload["tried"]}
    assert tried["fails another way"]["hits"] == 0
    assert tried["hunts"]["hits"] > tried["harmless"]["hits"]
    assert len(trials) == sum(isinstance(event, events.TrialFinished) for event in studies.events)
    assert decision.payload["trials"] > 100
    bad = [trial for trial in trials if int(trial.combination["level"]) >= 6]
    assert sum(trial.evidence == "bad" for trial in bad) > 0.5 * len(bad)
    # Once settled, it is not looked for again.
    studies.events.clear()
    studies.run(path)
    assert not [event for event in studies.events if isinstance(event, events.Said)]


@pytest.mark.slow
def test_what_the_good_end_cannot_be_run_under_is_not_chosen(
    studies: Studies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amplify, "catalogue", lambda _cpus, _seeds, repeats: TRIED[1:2])
    script = f'{FLAKY}    elif "HUNTS" in os.environ:\n        sys.exit(125)\n'
    ends = "good: {level: 0}\nbad: {level: 9}"
    studies.run(studies.matrix(script, rest=f"{ends}\nsearch: {{amplify: true, max_trials: 5}}"))
    said = [event.text for event in studies.events if isinstance(event, events.Said)]
    assert said[-1] == "trials run as they are: the good end could not be run under hunts"


def test_a_study_under_other_circumstances_is_another_study(studies: Studies) -> None:
    from bisect_env.matrix.load import load_matrix

    plain = load_matrix(studies.matrix(FLAKY)).digest
    assert load_matrix(studies.matrix(FLAKY, rest="search: {confidence: 0.9}")).digest == plain
    assert load_matrix(studies.matrix(FLAKY, rest="search: {amplify: true}")).digest != plain


@pytest.mark.slow
def test_a_failure_that_is_certain_is_left_alone(studies: Studies) -> None:
    script = "import sys\nif int(sys.argv[1]) >= 4: raise ValueError"
    done = studies.run(studies.matrix(script, rest="search: {amplify: true}"))
    assert done.report["verdict"]["first_bad"]["level"] == "4"
    said = [event.text for event in studies.events if isinstance(event, events.Said)][-1]
    assert said == "trials run as they are: it fails often enough as it is"


@pytest.mark.slow
def test_a_failure_that_never_shows_is_not_looked_for(
    studies: Studies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its signature is not known, so that anything else might be made frequent instead."""
    monkeypatch.setattr(amplify, "MAX_BASE_TRIALS", 48)
    script = "import os\nif 'OTHER' in os.environ: 1 / 0"
    done = studies.run(studies.matrix(script, rest="search: {amplify: true, max_trials: 10}"))
    assert done.exit_code is ExitCode.NO_VERDICT
    said = [event.text for event in studies.events if isinstance(event, events.Said)]
    assert said[-1].startswith("trials run as they are: 0 of 48 trials")


def test_the_budget_bounds_the_search_for_circumstances(studies: Studies) -> None:
    script = "import time; time.sleep(0.25)"
    path = studies.matrix(script, rest="search: {amplify: true, budget: 2s}")
    began = time.monotonic()
    done = studies.run(path)
    # The trials at the bad end alone would take more than a minute.
    assert time.monotonic() - began < 10
    assert done.exit_code is ExitCode.NO_VERDICT
    with Store.open(str(studies.db)) as store:
        study = store.study(done.report["study"]["id"])
        assert amplify.known_perturbation(store, study.id) is None
        assert store.trials(study.id) == []


@pytest.mark.slow
def test_what_is_amplified_is_what_the_study_then_looks_for(
    studies: Studies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`from-bad-end` means the first failure there, not the most frequent one."""
    from bisect_env.matrix.signatures import read_signature

    monkeypatch.setattr(amplify, "catalogue", lambda _cpus, _seeds, repeats: TRIED[1:2])
    monkeypatch.setattr(amplify, "BASE_TRIALS", 12)
    monkeypatch.setattr(amplify, "FRESH_TRIALS", 12)
    script = f"""
        import os, sys
        from planted import fails
        def early(): raise ValueError("the first")
        def later(): raise KeyError("the frequent one")
        if int(sys.argv[1]) >= 6:
            early() if "HUNTS" in os.environ else None
            try:
                os.mkdir({str(studies.folder / "begun")!r})
            except FileExistsError:
                later() if fails(0.5) else None
            else:
                early()
    """
    path = studies.matrix(
        script,
        axes="level: {values: [5, 6, 7]}",
        trial="bad: {signature: from-bad-end}",
        rest="bad: {level: 7}\nsearch: {amplify: true, confidence: 0.8, min_crash_rate: 0.4}",
    )
    # One trial after another: which one fails first is planted.
    report = studies.run(path, slots=1).report
    assert read_signature(report["target"]).frames[0] == "script.py:early"
    assert report["verdict"]["first_bad"]["level"] == "6"
    with Store.open(str(studies.db)) as store:
        study = store.study()
        (decision,) = [one for one in store.decisions(study.id) if one.kind == AMPLIFIED]
        target = store.target(study.id)
    assert not target.is_open
    shown = str(read_signature(target.signature))
    assert decision.payload["signature"] == shown == str(read_signature(report["target"]))
    assert decision.payload["base"]["hits"] == 1
    said = [event.text for event in studies.events if isinstance(event, events.Said)]
    assert f"the failure: {shown}" in said
    assert said[-1].startswith("trials run under hunts: ")


def test_ends() -> None:
    up = GridAxis("up", AxisKind.VALUE, ("1", "2", "3"), Direction.REGRESSION)
    down = GridAxis("down", AxisKind.VALUE, ("1", "2"), Direction.FIXED)
    either = GridAxis("either", AxisKind.VALUE, ("1", "2"), Direction.EITHER)
    alone = GridAxis("alone", AxisKind.VALUE, ("1",), Direction.UNORDERED)
    assert Grid((up, down, alone)).ends == ((0, 1, 0), (2, 0, 0))
    assert Grid((up, down), bad=(1, 0)).ends == ((0, 1), (1, 0))
    assert Grid((up, either)).ends is None
    assert Grid((up, either), good=(0, 0), bad=(2, 1)).ends == ((0, 0), (2, 1))


class ChangedWhileSeedsAreTried(PoolExecutor):
    """An executor of a host on which another command finds a change when the first seed is tried."""

    def __init__(self, studies: Studies) -> None:
        super().__init__(partial(ensure_prefix, cache_dir=studies.folder / "cache"), 2)
        self.db = str(studies.db)
        self.voided = 0

    def submit(self, request: TrialRequest) -> None:
        if request.spec.perturbation.seeds and not self.voided:
            with closing(Store.open(self.db)) as store:
                trials = [trial for study in store.studies() for trial in store.trials(study.id)]
                self.voided = len(trials)
                since = min(trial.started_at for trial in trials) - timedelta(seconds=1)
                last = trials[0]
                change = ChangedEnvironment(last.lock_hash, last.host, since, datetime.now(UTC))
                store.study_trials(store.studies()[0].id).note_change(change)
        super().submit(request)


@pytest.mark.slow
def test_seeds_are_compared_to_the_end_though_the_trials_that_named_them_became_void(
    studies: Studies, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seeded(_cpus: int, seeds: Sequence[int], *, repeats: bool) -> tuple[Perturbation, ...]:
        return tuple(Perturbation(f"hash seed {seed}", seeds=(seed,)) for seed in seeds)

    monkeypatch.setattr(amplify, "catalogue", seeded)
    script = """
        import sys
        from planted import fails
        if int(sys.argv[1]) >= 6 and fails(0.15):
            raise ValueError("the defect")
    """
    path = studies.matrix(script, rest="good: {level: 0}\nbad: {level: 9}\nsearch: {amplify: true}")
    executor = ChangedWhileSeedsAreTried(studies)
    studies.run(path, make_executor=lambda: executor, quick=True)
    assert executor.voided
    with Store.open(str(studies.db)) as store:
        (found,) = [one for study in store.studies() for one in store.payloads(study.id, AMPLIFIED)]
    assert 1 <= len(found["tried"]) <= 2
