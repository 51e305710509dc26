"""Trials of one combination by themselves, and showing that a crash is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from bisect_env.cluster.pool import PoolExecutor
from bisect_env.engine import events
from bisect_env.engine.locking import Locking
from bisect_env.engine.opening import study_date
from bisect_env.engine.plans import OneCombinationPlan
from bisect_env.engine.session import Session
from bisect_env.engine.single import ChosenCombination, open_combination, run_trials
from bisect_env.engine.verify import Verification, Verifier
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.environments.provider import Environments
from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.matrix.expand import expand
from bisect_env.matrix.load import load_matrix
from bisect_env.report.build import load_report
from bisect_env.search.rate_test import RateClaim
from bisect_env.storage.entries import EvidenceCounts
from bisect_env.storage.store import Store
from tests.engine.studies import Studies
from tests.environments.index_server import IndexServer, serve

pytestmark = pytest.mark.integration

CRASHES_FROM_5 = """
    import os, sys
    from planted import fails
    if int(sys.argv[1]) >= 5 and fails(0.5, sys.argv[1]):
        os.abort()
"""


class Opened:
    """One combination of a study, ready to be tried."""

    def __init__(
        self,
        studies: Studies,
        store: Store,
        chosen: ChosenCombination,
        executor: PoolExecutor,
        stopped: Callable[[], bool],
    ) -> None:
        self.studies, self.store, self.chosen = studies, store, chosen
        self.study = chosen.study
        self.session = Session(
            store, Environments(studies.folder / "cache"), lambda: executor, studies.events.append, stopped
        )

    def run(self, number: int) -> EvidenceCounts:
        make_plan = partial(OneCombinationPlan, self.chosen.index, number)
        return run_trials(self.chosen, make_plan, self.session)[1]

    def verify(self, verifier: Verifier) -> Verification:
        return verifier.run(self.session)


@contextmanager
def opened(
    studies: Studies, path: Path, at: str, stopped: Callable[[], bool] = lambda: False
) -> Iterator[Opened]:
    cache = studies.folder / "cache"
    matrix = load_matrix(path)
    executor = PoolExecutor(partial(ensure_prefix, cache_dir=cache), 2)
    with Store.open(str(studies.db)) as store, closing(executor):
        chosen = open_combination(
            matrix, at, store=store, provider=Environments(cache), notify=studies.events.append
        )
        yield Opened(studies, store, chosen, executor, stopped)


def test_trials_are_recorded_and_a_study_starts_from_them(studies: Studies) -> None:
    path = studies.matrix(CRASHES_FROM_5)
    with opened(studies, path, "level=9") as one:
        tally = one.run(8)
        assert tally.good + tally.bad == 8
        assert len(one.store.trials(one.study.id)) == 8
        assert one.store.study(one.study.id).status == "interrupted"
        assert load_report(one.store, one.study.id).trial_counts.bad == tally.bad
    conclusion = studies.run(path)
    assert conclusion.report["study"]["id"] == one.study.id
    nine = next(c for c in conclusion.report["combinations"] if c["combination"]["level"] == "9")
    assert nine["good"] + nine["bad"] >= 8
    assert [c["combination"]["level"] for c in conclusion.report["combinations"]] == list("0123456789")
    # And what the study found can be named afterwards.
    with opened(studies, path, "first-bad") as one:
        assert one.chosen.combination["level"] == conclusion.report["verdict"]["first_bad"]["level"]


def test_a_flawless_combination_is_shown_to_be_below(studies: Studies) -> None:
    path = studies.matrix(CRASHES_FROM_5)
    with opened(studies, path, "level=4") as one:
        verifier = Verifier(one.chosen, one.store, max_rate=0.2, confidence=0.9)
        found = one.verify(verifier)
        assert found.claim is RateClaim.BELOW
        assert (found.bad, found.trials) == (0, verifier.clean_needed)
        assert found.below < 0.2
        assert len(one.store.trials(one.study.id)) == found.trials
        # The test has ended: the next one begins anew.
        assert Verifier(one.chosen, one.store, max_rate=0.2, confidence=0.9).resumed == 0


def test_a_crash_that_is_there_is_shown_to_be_above(studies: Studies) -> None:
    path = studies.matrix(CRASHES_FROM_5)
    with opened(studies, path, "level=5") as one:
        found = one.verify(Verifier(one.chosen, one.store, max_rate=0.05, confidence=0.95))
        assert found.claim is RateClaim.ABOVE
        assert found.interval[1] > 0.05
        assert found.claim == "above"


def test_an_interrupted_test_goes_on(studies: Studies) -> None:
    path = studies.matrix(CRASHES_FROM_5)

    def ended() -> int:
        return sum(isinstance(event, events.TrialFinished) for event in studies.events)

    with opened(studies, path, "level=0", stopped=lambda: ended() >= 5) as one:
        found = one.verify(Verifier(one.chosen, one.store, max_rate=0.2, confidence=0.9))
        assert found.claim is None
        stored = len(one.store.trials(one.study.id))
        assert stored >= 5
    with opened(studies, path, "level=0") as one:
        other = Verifier(one.chosen, one.store, max_rate=0.1, confidence=0.9)
        assert other.resumed == 0
        verifier = Verifier(one.chosen, one.store, max_rate=0.2, confidence=0.9)
        assert verifier.resumed == stored
        found = one.verify(verifier)
        assert found.claim is RateClaim.BELOW
        assert found.trials == len(one.store.trials(one.study.id)) == verifier.clean_needed


def test_a_limit_ends_it_without_a_claim(studies: Studies) -> None:
    path = studies.matrix(CRASHES_FROM_5)
    with opened(studies, path, "level=0") as one:
        found = one.verify(Verifier(one.chosen, one.store, max_rate=0.01, confidence=0.99, max_trials=6))
        assert (found.claim, found.trials) == (None, 6)
        said = "the limit of 6 trials is reached; 463 more passes would show a lower rate"
        assert found.why_stopped == f"{said}, and the same command goes on"


def test_what_always_fails_in_another_way_proves_nothing(studies: Studies) -> None:
    path = studies.matrix("raise SystemExit(3)", trial="bad: {outcomes: [crash]}")
    with opened(studies, path, "level=0") as one:
        found = one.verify(Verifier(one.chosen, one.store, max_rate=0.1, confidence=0.9))
        assert (found.claim, found.trials) == (None, 0)
        assert "always fails in another way" in found.why_stopped


def test_a_command_that_cannot_run_and_an_environment_that_cannot_be(studies: Studies) -> None:
    path = studies.matrix("pass", trial="bad: {outcomes: [crash]}")
    path.write_text(path.read_text().replace("python script.py", "absent-program script.py"))
    with opened(studies, path, "level=0") as one, pytest.raises(UsageError) as refused:
        one.run(3)
    assert "absent-program" in str(refused.value)
    (studies.folder / "cache").mkdir(exist_ok=True)
    path = studies.matrix("pass")
    with opened(studies, path, "level=0") as one:
        prefixes = studies.folder / "cache" / "prefixes"
        prefixes.rename(studies.folder / "gone") if prefixes.exists() else None
        prefixes.write_text("in the way")
        with pytest.raises(InfrastructureError):
            one.run(3)


def test_one_is_locked_as_the_whole_study_would(studies: Studies) -> None:
    index = IndexServer()
    server = serve(index)
    try:
        for minor in range(5):
            needs = {0: "helper<2", 2: "helper>9"}.get(minor, "helper")
            index.add("lib", f"1.{minor}", requires=(needs,))
        # Locked without its neighbours, the newest lib would get the newest helper.
        index.add("helper", "1.0")
        index.add("helper", "2.0")
        versions = ", ".join(f"'1.{minor}'" for minor in range(5))
        path = studies.matrix(
            "pass", axes=f"lib: {{package: lib, versions: [{versions}]}}", rest=f"index: {index.url}"
        )
        path.write_text(path.read_text().replace(" {level}", ""))
        matrix = load_matrix(path)
        provider = Environments(studies.folder / "cache", index=index.url)
        with Store.open(str(studies.db)) as store:
            as_of = study_date(store.find_study(matrix.name, matrix.digest), None)
        grid = expand(matrix, provider.catalogue, as_of)
        whole = Locking(matrix, grid, provider).lock_all()
        assert list(whole.unsolvable) == [(0, 2)]
        newest = {package.name: package.version for package in whole.locks[(0, 4)].packages}
        assert newest == {"lib": "1.4", "helper": "1.0"}
        # Another cache, another order, one at a time: another machine.
        elsewhere = Environments(studies.folder / "other-cache", index=index.url)
        for place in reversed(list(grid.indices())):
            with closing(Locking(matrix, grid, elsewhere)) as locking:
                alone = locking.lock_now(place)
            expected = whole.locks.get(place)
            assert getattr(alone, "text", None) == getattr(expected, "text", None), place
        again = Locking(matrix, grid, elsewhere, workers=4).lock_all()
        assert {k: lock.text for k, lock in again.locks.items()} == {
            k: lock.text for k, lock in whole.locks.items()
        }
        # Solved afresh it gets what an upgrade would bring, as a study and alone.
        path.write_text(path.read_text() + "\nsolver: {dependencies: newest}\n")
        afresh = load_matrix(path)
        assert afresh.digest != matrix.digest
        whole = Locking(afresh, grid, provider).lock_all()
        newest = {package.name: package.version for package in whole.locks[(0, 4)].packages}
        assert newest == {"lib": "1.4", "helper": "2.0"}
        with closing(Locking(afresh, grid, elsewhere)) as locking:
            alone = locking.lock_now((0, 4))
        assert getattr(alone, "text", None) == whole.locks[(0, 4)].text
    finally:
        server.shutdown()
        server.server_close()
