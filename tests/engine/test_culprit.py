"""Which package carries the failure: real locks from a real index, real environments, real trials."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from bisect_env.answers.explanation import Explanation
from bisect_env.cluster.pool import PoolExecutor
from bisect_env.engine import events, explain
from bisect_env.engine.explain import CulpritStudy
from bisect_env.engine.intermediates import Between, Demands
from bisect_env.engine.plans import OneCombinationPlan
from bisect_env.engine.session import Session
from bisect_env.engine.single import open_combination, run_trials
from bisect_env.environments.lock import Lock, LockedPackage, UnsolvableError
from bisect_env.environments.lockfiles import make_lock
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.environments.provider import Environments
from bisect_env.environments.request import EnvironmentRequest
from bisect_env.errors import StudyInterruptedError, UsageError
from bisect_env.matrix.load import load_matrix
from bisect_env.report.build import load_report
from bisect_env.storage.entries import EXPLAINED, StudyStatus
from bisect_env.storage.store import Store
from tests.engine.studies import Studies
from tests.environments.index_server import IndexServer, serve

pytestmark = pytest.mark.integration


@pytest.fixture
def index() -> Iterator[IndexServer]:
    index = IndexServer()
    server = serve(index)
    yield index
    server.shutdown()
    server.server_close()


class Explained:
    """Trials at two ends, and the search for the culprit between them."""

    def __init__(self, studies: Studies, path: Path) -> None:
        self.studies = studies
        self.matrix = load_matrix(path)
        self.cache = studies.folder / "cache"
        self.said: list[str] = []

    @contextmanager
    def open(self) -> Iterator[tuple[Store, Environments, PoolExecutor]]:
        executor = PoolExecutor(partial(ensure_prefix, cache_dir=self.cache), 2)
        try:
            with Store.open(str(self.studies.db)) as store:
                yield store, Environments(self.cache, index=self.matrix.file.index), executor
        finally:
            executor.close()

    def tried(self, *ends: tuple[str, int]) -> None:
        with self.open() as (store, provider, executor):
            for at, number in ends:
                one = open_combination(self.matrix, at, store=store, provider=provider, notify=lambda e: None)
                start = partial(lambda here: here, executor)
                session = Session(store, provider, start, self.studies.events.append)
                run_trials(one, partial(OneCombinationPlan, one.index, number), session)

    def explain(
        self, good: str, bad: str, stopped: Callable[[], bool] = lambda: False, **options: float
    ) -> Explanation:
        with self.open() as (store, provider, executor):
            study = store.study(self.matrix.name)

            culprit = CulpritStudy(
                self.matrix,
                study,
                Session(store, provider, lambda: executor, self.listen, stopped),
                good=good,
                bad=bad,
                **options,  # type: ignore[arg-type]
            )
            found = culprit.run()
            if not stopped():
                document = [d.payload for d in store.decisions(study.id) if d.kind == EXPLAINED][-1]
                assert Explanation.model_validate(json.loads(json.dumps(document))) == found
                assert store.study(None).id == study.id
            return found

    def listen(self, event: events.Event) -> None:
        if isinstance(event, events.Said | events.Warned):
            self.said.append(event.text)

    def trials(self) -> int:
        with Store.open(str(self.studies.db)) as store:
            return sum(len(store.trials(study.id)) for study in store.studies())


def matrix(studies: Studies, index: IndexServer, script: str, axes: str) -> Explained:
    path = studies.matrix(script, axes=axes, rest=f"index: {index.url}")
    path.write_text(path.read_text().replace(" {level}", ""))
    return Explained(studies, path)


FLAKY = """
    import os, {module}, app
    from planted import fails
    if {module}.version == "{version}" and fails(0.6):
        os.abort()
"""


def apps(index: IndexServer) -> None:
    """app 2 holds helper back, and brings a glue of its own; other things stay."""
    index.add("app", "1", requires=("helper", "other", "glue==1"))
    index.add("app", "2", requires=("helper<2", "other", "fresh", "glue==2"))
    for name in ("helper", "other", "glue"):
        index.add(name, "1")
        index.add(name, "2")
    index.add("fresh", "1")


APP = "app: {package: app, versions: ['1', '2']}"


@pytest.mark.slow
def test_the_search_reports_what_it_does_however_long_one_environment_is_tried(
    studies: Studies, index: IndexServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain, "TELL_EVERY", 0.0)
    apps(index)
    ours = matrix(studies, index, FLAKY.format(module="helper", version="1"), APP)
    ours.tried(("app=1", 12), ("app=2", 12))
    ours.explain("app=1", "app=2")
    assert ours.said[0] == "comparing two environments, which differ in 4 packages"
    assert any(re.fullmatch(r"\d+ trials of .* as in the bad one .*", text) for text in ours.said)


@pytest.mark.slow
def test_not_the_package_itself_but_its_dependency(studies: Studies, index: IndexServer) -> None:
    apps(index)
    ours = matrix(studies, index, FLAKY.format(module="helper", version="1"), APP)
    ours.tried(("app=1", 12), ("app=2", 12))
    found = ours.explain("app=1", "app=2")
    assert [str(change) for change in found.changes] == [
        "app 1 → 2",
        "fresh absent → 1",
        "glue 1 → 2",
        "helper 2 → 1",
    ]
    assert found.sentence.startswith(
        "not app itself: its dependency helper 2 → 1 alone carries the failure ("
    )
    assert found.is_sure
    # Its trials are a study of their own, whose report says what was found.
    with Store.open(str(studies.db)) as store:
        (own,) = [study for study in store.studies() if study.name.endswith(": culprit")]
        report = load_report(store, own.id)
    assert report.sentence == found.sentence
    assert report.verdict.culprit_axes == ("helper",)
    assert [step.commands for step in report.reproduce] == [("bisect-env explain",)]
    # An interrupted search goes on with what it has.
    before = ours.trials()
    assert ours.explain("app=1", "app=2").sentence == found.sentence
    assert ours.trials() == before


@pytest.mark.slow
def test_a_solver_says_what_changes_need_where_metadata_does_not(
    studies: Studies, index: IndexServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Environments, "requirements", lambda _self, _lock: None)
    apps(index)
    ours = matrix(studies, index, FLAKY.format(module="glue", version="2"), APP)
    ours.tried(("app=1", 12), ("app=2", 12))
    with pytest.raises(StudyInterruptedError, match="stopped while asking the solver"):
        ours.explain("app=1", "app=2", stopped=lambda: True)
    with Store.open(str(studies.db)) as store:
        (own,) = [study for study in store.studies() if study.name.endswith(": culprit")]
    assert own.status is StudyStatus.INTERRUPTED
    assert own.verdict is None
    found = ours.explain("app=1", "app=2")
    assert "asking the solver what each of 4 changes needs" in ours.said
    assert found.is_sure
    assert {found.changes[i].name for i in found.inseparable} == {"app", "glue"}


@pytest.mark.slow
def test_the_failure_is_that_of_the_bad_end_of_the_study_that_is_explained(
    studies: Studies, index: IndexServer
) -> None:
    """Its own study knows no bad end: every failure was another one there, and the search did not end."""
    apps(index)
    path = studies.matrix(
        FLAKY.format(module="helper", version="1"),
        axes=APP,
        trial="bad: {signature: from-bad-end}",
        rest=f"index: {index.url}\nbad: {{app: '2'}}",
    )
    path.write_text(path.read_text().replace(" {level}", ""))
    ours = Explained(studies, path)
    ours.tried(("app=1", 12), ("app=2", 12))
    found = ours.explain("app=1", "app=2")
    assert found.is_sure
    assert found.sentence.startswith(
        "not app itself: its dependency helper 2 → 1 alone carries the failure ("
    )


@pytest.mark.slow
def test_what_is_pinned_together_is_blamed_together(studies: Studies, index: IndexServer) -> None:
    apps(index)
    ours = matrix(studies, index, FLAKY.format(module="glue", version="2"), APP)
    ours.tried(("app=1", 12), ("app=2", 12))
    found = ours.explain("app=1", "app=2")
    assert found.is_sure
    blamed = {found.changes[i].name for one in (found.culprits, *found.tied) for i in one}
    assert blamed == {"app", "glue"}
    assert "cannot be told apart" in found.sentence
    assert found.unsolvable > 0


def test_an_interrupted_search_goes_on(studies: Studies, index: IndexServer) -> None:
    apps(index)
    ours = matrix(studies, index, FLAKY.format(module="helper", version="1"), APP)
    ours.tried(("app=1", 12), ("app=2", 12))
    before = ours.trials()
    found = ours.explain("app=1", "app=2", stopped=lambda: ours.trials() > before)
    assert not found.is_sure
    assert found.sentence.startswith("not known yet; most likely")
    stopped_at = ours.trials()
    assert stopped_at > before
    assert ours.explain("app=1", "app=2").is_sure
    assert ours.trials() > stopped_at


@pytest.mark.parametrize(
    ("good", "bad", "says"),
    [
        ("app=2", "app=1", "was never seen to fail"),
        ("app=1", "app=1", "no package differs"),
        ("last-good", "app=2", "there is no last-good yet"),
    ],
)
def test_what_cannot_be_explained(
    studies: Studies, index: IndexServer, good: str, bad: str, says: str
) -> None:
    apps(index)
    ours = matrix(studies, index, FLAKY.format(module="helper", version="1"), APP)
    ours.tried(("app=1", 1), ("app=2", 12))
    with pytest.raises(UsageError, match=says):
        ours.explain(good, bad)


def test_a_transitive_culprit_of_a_date(studies: Studies, index: IndexServer) -> None:
    for name in ("app", "helper", "other", "third", "glue"):
        needs = {"app": ("helper", "other", "third", "glue")}.get(name, ())
        index.add(name, "1", requires=needs, uploaded="2020-01-01T00:00:00Z")
        if name != "app":
            needs = ("third==2",) if name == "glue" else ()
            index.add(name, "2", requires=needs, uploaded="2020-02-01T00:00:00Z")
    script = FLAKY.format(module="helper", version="2")
    ours = matrix(studies, index, script, "day: {dates: {from: 2020-01-15, to: 2020-02-15, step: 31d}}")
    ours.matrix.path.write_text(ours.matrix.path.read_text() + "\npackages: [app]\n")
    ours = Explained(studies, ours.matrix.path)
    ours.tried(("day=2020-01-15", 12), ("day=2020-02-15", 12))
    found = ours.explain("day=2020-01-15", "day=2020-02-15")
    assert found.is_sure
    assert found.sentence.startswith("helper 1 → 2 alone carries the failure (")
    assert found.without_culprits.bad == 0
    assert found.without_culprits.trials > 0
    assert found.with_culprits.bad > 0


@pytest.mark.slow
@pytest.mark.network
def test_a_real_transitive_culprit(studies: Studies) -> None:
    """gevent was pinned and died all the same: greenlet 0.4.17 had another layout (gevent/gevent#1678)."""
    root = Path(__file__).parent.parent.parent
    ours = Explained(studies, root / "matrices" / "gevent_date.yaml")
    ours.tried(("day=2020-09-08", 3), ("day=2020-10-07", 3))
    found = ours.explain("day=2020-09-08", "day=2020-10-07")
    assert len(found.changes) == 3
    assert found.sentence.startswith("greenlet 0.4.16 → 0.4.17 alone carries the failure (")


@pytest.mark.slow
@pytest.mark.network
def test_a_real_culprit_behind_an_axis_that_is_not_to_blame(studies: Studies) -> None:
    """requests 2.30 allowed urllib3 2, which requests-toolbelt 0.10.1 cannot be imported with."""
    root = Path(__file__).parent.parent.parent
    ours = Explained(studies, root / "matrices" / "requests_urllib3.yaml")
    ours.tried(("requests=2.29.0", 3), ("requests=2.30.0", 3))
    found = ours.explain("requests=2.29.0", "requests=2.30.0")
    assert [change.name for change in found.changes] == ["requests", "urllib3"]
    assert found.sentence.startswith("not requests itself: its dependency urllib3 1.26.")
    # Nothing has urllib3 2 without requests 2.30: no environment in between was left untried.
    assert " carries the failure (" in found.sentence
    assert "with requests 2.29.0 → 2.30.0, which it requires" in found.sentence
    assert found.unsolvable == 1


def wheel(name: str, version: str) -> LockedPackage:
    url = f"https://example.org/{name}-{version}-py3-none-any.whl"
    return LockedPackage(name, version, "pip", url, hashlib.sha256(url.encode()).hexdigest())


def two_ends(names: str) -> Between:
    """Each package has version 1 at the good end and 2 at the bad one."""
    good, bad = (make_lock("3.11", "linux-64", [wheel(n, v) for n in names]) for v in ("1", "2"))
    return Between.of(good, bad, EnvironmentRequest("3.11"), ())


def test_a_solution_is_located_by_the_versions_of_both_ends_alone() -> None:
    between = two_ends("abc")

    def solved(**versions: str) -> Lock:
        return make_lock("3.11", "linux-64", [wheel(*one) for one in versions.items()])

    assert between.locate(solved(a="2", b="1", c="2"), frozenset()) == {0, 2}
    assert between.locate(solved(a="1", b="1", c="1"), frozenset([1])) == frozenset()
    assert between.locate(solved(a="2", b="3", c="1"), frozenset()) is None
    assert between.locate(solved(a="2", b="1"), frozenset()) is None
    assert between.locate(UnsolvableError("none"), frozenset()) is None


def test_what_a_change_takes_along_is_the_least_that_is_sound() -> None:
    """Against every mixture, where anything may ask for anything that its own end has."""
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    names = "abcdef"
    between = two_ends(names)
    everything = between.everything
    for _ in range(60):
        asked = [
            {
                name: [
                    f"{other}{chance.choice(['==', '~='])}{end}.0"
                    for other in names
                    if other != name and chance.random() < 0.15
                ]
                for name in names
            }
            for end in ("1", "2")
        ]
        demands = Demands(between, *asked)
        sets = (frozenset(s) for k in range(7) for s in itertools.combinations(range(6), k))
        sound = [one for one in sets if not demands.unmet(one)]
        forced, released = demands.closures()
        for position in range(6):
            having = [one for one in sound if position in one]
            assert forced[position] == frozenset.intersection(*having)
            lacking = [one for one in sound if position not in one]
            assert released[position] == everything - frozenset.union(*lacking)


def test_demands_that_say_nothing_about_a_mixture() -> None:
    between = two_ends("ab")
    for text in (
        "c>=1; python_version < '3'",  # of another interpreter
        "b>=9",  # not met where it comes from: an environment made by hand
        "b==2; extra == 'all'",
        "what is this",
        'b==2; os_name ~= "posix"',
    ):
        demands = Demands(between, {"a": [text]}, {"a": [text]})
        assert demands.unmet(frozenset([0])) == []
    demands = Demands(between, {}, {"a": ["B>=2"]})
    assert demands.unmet(frozenset([0])) == [("a", "b")]
    lock = demands.lock(frozenset([1]))
    assert [(p.name, p.version) for p in lock.packages] == [("a", "1"), ("b", "2")]
    assert demands.lock(between.everything).content_hash == between.bad.content_hash
