from __future__ import annotations

import hashlib
import os
from datetime import date

import pytest

from bisect_env.environments.interpreters import machine_interpreters
from bisect_env.environments.lock import Lock, UnsolvableError
from bisect_env.environments.provider import Environments
from bisect_env.environments.request import EnvironmentRequest
from bisect_env.errors import IndexUnavailableError, InfrastructureError, InterpreterNotFoundError
from bisect_env.matrix.scalars import cutoff

from .index_server import Release

pytestmark = pytest.mark.integration


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def locker(cache):
    return Environments(cache, timeout=60)


@pytest.fixture
def request_for(index, python):
    """Requests against the local index and the running Python."""

    def make(pins, *packages, **more):
        return EnvironmentRequest(python, pins, packages, index=index.url, **more)

    return make


def versions(lock: Lock) -> dict[str, str]:
    return {package.name: package.version for package in lock.packages}


def world(index):
    index.add("top", "1.0", uploaded="2020-01-01T10:00:00Z", requires=("below>=1",))
    index.add("top", "2.0", uploaded="2020-03-01T10:00:00Z", requires=("below>=2",))
    index.add("below", "1.0", uploaded="2020-01-01T10:00:00Z")
    index.add("below", "1.1", uploaded="2020-02-01T23:59:59Z")
    index.add("below", "2.0", uploaded="2020-03-01T10:00:00Z")


def test_pins_are_exact_and_the_rest_is_resolved(index, locker, request_for):
    world(index)
    lock = locker.solve(request_for({"top": "1.0"}))
    assert versions(lock) == {"below": "2.0", "top": "1.0"}
    below = lock.packages[0]
    release = index.packages["below"][2]
    assert below.url == f"{index.url.removesuffix('/simple')}/files/{release.filename}"
    assert below.sha256 == hashlib.sha256(release.content).hexdigest()


@pytest.mark.parametrize(
    ("day", "below"), [(date(2020, 1, 31), "1.0"), (date(2020, 2, 1), "1.1"), (date(2020, 3, 1), "2.0")]
)
def test_a_date_means_the_index_when_that_day_had_ended(index, locker, request_for, day, below):
    world(index)
    lock = locker.solve(request_for({"top": "1.0"}, exclude_newer=cutoff(str(day))))
    assert versions(lock)["below"] == below


def test_a_pin_from_after_the_date_has_no_solution(index, locker, request_for):
    world(index)
    with pytest.raises(UnsolvableError, match=r"top==2\.0") as raised:
        locker.solve(request_for({"top": "2.0"}, exclude_newer=cutoff("2020-02-01")))
    assert not raised.value.building


def test_an_index_without_dates_cannot_answer_for_a_day(index, locker, request_for):
    index.add("top", "1.0", uploaded=None)
    with pytest.raises(UnsolvableError, match="gives no upload dates"):
        locker.solve(request_for({"top": "1.0"}, exclude_newer=cutoff("2020-02-01")))


def test_of_a_source_distribution_without_a_date_the_whole_name_is_told(index, locker, request_for):
    made = Release("my-long-name-1.0.tar.gz", b"", None, yanked=False, requires_python=None, sha256="0" * 64)
    index.packages["my-long-name"] = [made]
    request = request_for({"my-long-name": "1.0"}, exclude_newer=cutoff("2020-02-01"), allow_source=True)
    with pytest.raises(UnsolvableError, match="gives no upload dates of my-long-name, so"):
        locker.solve(request)


def test_without_dependencies_only_what_is_named(index, locker, request_for):
    world(index)
    assert versions(locker.solve(request_for({"top": "2.0"}, dependencies="none"))) == {"top": "2.0"}
    both = request_for({"top": "2.0", "below": "1.0"}, dependencies="none")
    assert versions(locker.solve(both)) == {"top": "2.0", "below": "1.0"}
    with pytest.raises(UnsolvableError, match=r"top>=2\.0 depends on below>=2"):
        locker.solve(request_for({"top": "2.0", "below": "1.0"}))


def test_overrides_replace_what_metadata_say_but_never_a_pin(index, locker, request_for):
    world(index)
    lock = locker.solve(request_for({"top": "2.0"}, overrides=("below==1.0",)))
    assert versions(lock) == {"top": "2.0", "below": "1.0"}
    with pytest.raises(UnsolvableError, match=r"top is asked for as 2\.0, and an override makes it 1\.0"):
        locker.solve(request_for({"top": "2.0"}, overrides=("top==1.0",)))


def test_a_withdrawn_version_is_locked_when_it_is_pinned(index, locker, request_for):
    index.add("top", "1.0")
    index.add("top", "1.1", yanked=True)
    assert versions(locker.solve(request_for({"top": "1.1"}))) == {"top": "1.1"}
    assert versions(locker.solve(request_for({}, "top"))) == {"top": "1.0"}


def test_no_fitting_wheel(index, locker, request_for):
    index.add("top", "1.0", tag="cp27-cp27m-win_amd64")
    with pytest.raises(UnsolvableError, match=r"top==1\.0 has no wheels with a matching"):
        locker.solve(request_for({"top": "1.0"}))


def test_a_package_that_exists_nowhere(locker, request_for):
    with pytest.raises(UnsolvableError, match="nowhere was not found"):
        locker.solve(request_for({"nowhere": "1.0"}))


def test_hashes_that_the_index_does_not_state_are_made_up_for(index, locker, request_for):
    index.add("top", "1.0")
    index.style = "bare"
    (package,) = locker.solve(request_for({"top": "1.0"})).packages
    assert package.sha256 == hashlib.sha256(index.packages["top"][0].content).hexdigest()


def test_an_index_that_fails_is_no_property_of_the_combination(index, locker, request_for, monkeypatch):
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    world(index)
    index.on_request = lambda path: 500
    with pytest.raises(IndexUnavailableError, match="500 Internal Server Error") as raised:
        locker.solve(request_for({"top": "1.0"}))
    assert "remedy: check the network" in str(raised.value)


def test_of_two_indexes_the_one_that_fails_is_named(index, locker, request_for, monkeypatch):
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    world(index)
    failing = "http://127.0.0.1:9/simple"
    monkeypatch.setenv("UV_INDEX", failing)
    with pytest.raises(IndexUnavailableError, match=f"^the package index {failing} cannot be used"):
        locker.solve(request_for({"top": "1.0"}))


@pytest.mark.parametrize("status", [401, 403])
def test_an_index_that_wants_a_login_does_not_lack_the_package(
    index, locker, request_for, monkeypatch, status
):
    """uv says that it was not found, and why in a hint: if no other index is asked instead."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    world(index)
    index.on_request = lambda path: status
    with pytest.raises(
        IndexUnavailableError, match=f"{index.url} cannot be used: .*(?s:.)*{status}"
    ) as raised:
        locker.solve(request_for({"top": "1.0"}))
    assert "remedy: check the network, proxy, credentials" in str(raised.value)
    index.on_request = lambda path: 404
    with pytest.raises(UnsolvableError, match="top was not found"):
        locker.solve(request_for({"top": "1.0"}))


def test_an_index_that_hangs(index, locker, request_for, monkeypatch):
    import threading

    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "1")
    released = threading.Event()
    index.on_request = lambda path: released.wait(30) and None
    try:
        with pytest.raises(IndexUnavailableError, match="cannot be used"):
            locker.solve(request_for({"top": "1.0"}))
    finally:
        released.set()


def test_what_is_not_an_index(index, locker, request_for):
    index.raw["/simple/top/"] = ("application/vnd.pypi.simple.v1+json", b"nonsense")
    with pytest.raises((UnsolvableError, IndexUnavailableError), match="top"):
        locker.solve(request_for({"top": "1.0"}))


def test_the_same_request_gives_the_same_bytes(index, locker, request_for, tmp_path):
    world(index)
    one = locker.solve(request_for({"top": "1.0"}, "below<2"))
    assert Environments(tmp_path).solve(request_for({"top": "1.0"}, "below<2")).text == one.text
    # Another combination with the same files is the same environment.
    assert locker.solve(request_for({"top": "1.0", "below": "1.1"})) == one


def test_other_platforms_and_missing_pythons_are_told(locker):
    with pytest.raises(InfrastructureError, match="for win-64 cannot be locked on"):
        locker.solve(EnvironmentRequest("3.11", platform="win-64"))
    with pytest.raises(InterpreterNotFoundError, match="is not a Python version"):
        locker.solve(EnvironmentRequest("newest"))


def needs(version):
    here = [i.version for i in machine_interpreters().installed()]
    found = any(v == version or v.startswith(f"{version}.") for v in here)
    return pytest.mark.skipif(not found, reason=f"no Python {version} on this machine")


@pytest.mark.network
@pytest.mark.parametrize(
    ("python", "pins"),
    [
        pytest.param("3.11", {"orjson": "3.9.11"}, marks=needs("3.11")),
        pytest.param("3.11", {"orjson": "3.9.13"}, marks=needs("3.11")),
        pytest.param("3.8", {"regex": "2021.8.27"}, marks=needs("3.8")),
        pytest.param("2.7", {"futures": "3.3.0", "numpy": "1.16.6"}, marks=needs("2.7")),
    ],
)
def test_real_releases(locker, python, pins):
    assert versions(locker.solve(EnvironmentRequest(python, pins))) == pins


@pytest.mark.network
@needs("3.7")
def test_the_day_a_real_dependency_was_released(locker):
    def greenlet(day):
        request = EnvironmentRequest("3.7", {"gevent": "20.6.2"}, exclude_newer=cutoff(str(day)))
        return versions(locker.solve(request))["greenlet"]

    assert (greenlet(date(2020, 9, 21)), greenlet(date(2020, 9, 22))) == ("0.4.16", "0.4.17")


@pytest.mark.network
@needs("3.6")
def test_sources_only_where_they_are_allowed(locker):
    pins = {"better-exceptions-fork": "0.2.1.post6", "six": "1.16.0"}
    request = EnvironmentRequest(
        "3.6", pins, dependencies="none", allow_source=frozenset({"Better_Exceptions_Fork"})
    )
    assert {p.name: p.is_source for p in locker.solve(request).packages} == {
        "better-exceptions-fork": True,
        "six": False,
    }
    for allowed in (False, frozenset({"six"})):
        with pytest.raises(UnsolvableError, match="no usable wheels"):
            locker.solve(EnvironmentRequest("3.6", pins, dependencies="none", allow_source=allowed))
