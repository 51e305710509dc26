from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from bisect_env.environments.lock import LockedPackage
from bisect_env.environments.request import (
    CommitRecipe,
    CommitSource,
    CondaRequest,
    EnvironmentRequest,
)
from bisect_env.errors import UsageError
from bisect_env.matrix.scalars import cutoff
from bisect_env.matrix.versions import host_platform, may_build


@pytest.mark.parametrize(
    "text",
    [
        "--index-url http://evil",
        "-r /etc/passwd",
        "six\n--index-url http://evil",
        "six==",
        "",
        "a b",
        "./folder",
        "six\r-r x",
    ],
)
def test_what_is_no_requirement_never_reaches_the_solver(text):
    with pytest.raises(UsageError, match="remedy: write it like"):
        EnvironmentRequest("3.11", packages=(text,))
    with pytest.raises(UsageError):
        EnvironmentRequest("3.11", overrides=(text,))


def test_a_pin_cannot_smuggle_a_line_either():
    with pytest.raises(UsageError):
        EnvironmentRequest("3.11", {"six": "1.0\n--index-url http://evil"})


def test_pins_become_exact_requirements_and_keep_extras():
    request = EnvironmentRequest("3.11", {"dask[array]": "2024.1.0", "six": "1.16.0"}, ("numpy<2",))
    assert request.requirements == ("dask[array]==2024.1.0", "six==1.16.0", "numpy<2")


def test_key_knows_what_matters_and_not_in_which_order():
    one = EnvironmentRequest("3.11", {"a": "1", "b": "2"}, ("c", "d"), allow_source=frozenset({"x", "y"}))
    two = EnvironmentRequest("3.11", {"b": "2", "a": "1"}, ("d", "c"), allow_source=frozenset({"y", "x"}))
    assert one.key == two.key
    mixed = EnvironmentRequest(
        "3.11", conda=CondaRequest(("c1", "c2"), packages=("m", "n")), archives=("y", "x")
    )
    other = EnvironmentRequest(
        "3.11", conda=CondaRequest(("c1", "c2"), packages=("n", "m")), archives=("x", "y")
    )
    assert mixed.key == other.key
    assert mixed.key != EnvironmentRequest("3.11", conda=CondaRequest(("c2", "c1"), packages=("n", "m"))).key
    others = [
        EnvironmentRequest("3.12", {"a": "1", "b": "2"}, ("c", "d")),
        EnvironmentRequest("3.11", {"a": "1", "b": "3"}, ("c", "d")),
        EnvironmentRequest("3.11", {"a": "1", "b": "2"}, ("c", "d"), dependencies="none"),
        EnvironmentRequest("3.11", {"a": "1", "b": "2"}, ("c", "d"), exclude_newer=cutoff("2020-01-01")),
    ]
    assert len({one.key, *(other.key for other in others)}) == 5


def test_the_whole_day_counts_in_utc():
    assert cutoff("2020-09-22") == datetime(2020, 9, 23, tzinfo=UTC)
    assert cutoff("2020-12-31") == datetime(2021, 1, 1, tzinfo=UTC)
    request = EnvironmentRequest(
        "3.7", exclude_newer=datetime(2020, 9, 23, 2, tzinfo=timezone(timedelta(hours=2)))
    )
    assert request.exclude_newer_text == "2020-09-23T00:00:00Z"
    with pytest.raises(ValueError, match="time zone"):
        EnvironmentRequest("3.7", exclude_newer=datetime(2020, 9, 23))  # noqa: DTZ001


def test_allowed_builds_are_compared_by_normal_name():
    request = EnvironmentRequest("3.6", allow_source=frozenset({"Better_Exceptions.Fork"}))
    assert may_build(request.allow_source, "better-exceptions-fork")
    assert not may_build(request.allow_source, "six")
    assert host_platform().partition("-")[0] in ("linux", "osx")


@pytest.mark.parametrize(
    ("repository", "locked"),
    [
        ("ssh://git@host.example/x.git", "ssh://git@host.example/x.git"),
        ("ssh://me:secret@host.example:2222/x.git", "ssh://me@host.example:2222/x.git"),
        ("https://token@host.example/x.git", "https://host.example/x.git"),
    ],
)
def test_a_locked_commit_keeps_the_user_of_its_address_and_no_password(repository, locked):
    package = CommitSource("demo", repository, "a" * 40).locked("1.0")
    assert package.url == f"git+{locked}@{'a' * 40}"
    assert CommitSource.of(package).repository == locked


def test_a_switch_whose_name_looks_secret_tells_builds_apart():
    def digest(value):
        return CommitSource("demo", "/r", "a" * 40, CommitRecipe(env=(("BYPASS_SIMD", value),))).digest

    assert digest("0") != digest("1")


def test_a_wheel_is_known_by_the_path_of_its_address():
    def is_source(url):
        return LockedPackage("a", "1", "pip", url, "0" * 64).is_source

    assert not is_source("https://host/a-1-py3-none-any.whl?sv=1#sha256=0")
    assert is_source("https://host/a-1.tar.gz?name=a.whl")
