"""What was perhaps meant by a name that an index does not have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bisect_env.environments.index import near_names
from bisect_env.environments.lock import PackageNotFoundError, UnsolvableError
from bisect_env.environments.provider import Environments
from bisect_env.environments.request import EnvironmentRequest

from .index_server import IndexServer


def test_of_a_large_index_nothing_is_asked_but_its_first_page(index: IndexServer) -> None:
    index.raw["/simple/"] = ("text/html", b" " * 1_100_000)
    index.add("torch", "1.0")
    assert near_names("sklearn", index.url) == ("scikit-learn",)
    assert near_names("torhc", index.url) == ()
    assert set(index.requests) == {"/simple/"}


def test_a_small_index_lists_what_it_has(index: IndexServer, tmp_path: Path) -> None:
    names = [{"name": name} for name in ("torch", "torchvision", "scikit-learn")]
    listing = json.dumps({"meta": {"api-version": "1.0"}, "projects": names}).encode()
    index.raw["/simple/"] = ("application/vnd.pypi.simple.v1+json", listing)
    assert near_names("torch-vision", index.url) == ("torchvision",)
    assert near_names("sklearn", index.url)[0] == "scikit-learn"
    assert not [path for path in index.requests if path not in ("/simple/",)]
    index.raw["/simple/"] = ("text/html", b"<a href='torch/'>torch</a>")
    assert near_names("torc", index.url) == ("torch",)
    assert near_names("torch", index.url) == (), "it is listed, and has no page"
    (tmp_path / "torch").mkdir()
    assert near_names("torhc", tmp_path.as_uri()) == ("torch",)


def test_without_an_answer_there_is_no_advice() -> None:
    assert near_names("torch", "http://127.0.0.1:9/simple") == ()
    assert near_names("torch", "file:///nowhere/at/all") == ()


@pytest.mark.integration
def test_lists_and_ranges_name_what_was_meant(index: IndexServer, tmp_path: Path, python: str) -> None:
    index.add("torch", "1.0")
    environments = Environments(tmp_path, index=index.url)
    with pytest.raises(PackageNotFoundError, match="no package 'torhc'; did you mean torch"):
        environments.catalogue.versions("torhc", index=index.url)
    assert environments.catalogue.versions("zzzzzz", index=index.url) == []
    request = EnvironmentRequest(python, pins={"torhc": "1.0"}, index=index.url)
    found = environments.lock(request)
    assert isinstance(found, UnsolvableError)
    assert "There is no torhc; did you mean torch?" in found.message
