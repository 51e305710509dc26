from __future__ import annotations

import gzip
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from packaging.version import Version

from bisect_env.environments.index import PypiCatalogue, day_of
from bisect_env.environments.lock import PackageNotFoundError
from bisect_env.errors import IndexUnavailableError

pytestmark = pytest.mark.integration


def filled(index):
    index.add("demo", "1.10", uploaded="2021-03-04T05:06:07.5Z", requires_python=">=3.8")
    index.add("demo", "1.9", uploaded="2021-01-01T00:00:00Z", yanked=True)
    index.add("demo", "2.0rc1", uploaded="2021-05-01T00:00:00Z")
    index.add("demo", "1.2", uploaded="2020-02-02T00:00:00Z", tag="cp38-cp38-win_amd64")
    index.add("demo", "1.2", uploaded="2020-02-01T00:00:00Z", tag="cp37-cp37m-win_amd64")
    return index


@pytest.mark.parametrize("style", ["json", "html"])
def test_releases_in_order_with_dates_and_marks(index, style):
    filled(index).style = style
    found = PypiCatalogue(index.url).versions("Demo")
    assert [release.version for release in found] == ["1.2", "1.9", "1.10", "2.0rc1"]
    assert [release.yanked for release in found] == [False, True, False, False]
    assert [release.has_wheel for release in found] == [False, True, True, True]
    assert found[0].uploaded == datetime(2020, 2, 1, tzinfo=UTC), "the date of its first file"
    assert found[2].uploaded == datetime(2021, 3, 4, 5, 6, 7, 500000, tzinfo=UTC)
    if style == "json":
        assert found[2].requires_python == ">=3.8"


def test_pages_of_two_packages_are_fetched_at_the_same_time_and_each_once(index):
    for name in ("one", "two"):
        index.add(name, "1.0")
    both = threading.Barrier(2, timeout=10)
    index.on_request = lambda _path: (both.wait(), None)[1]
    catalogue = PypiCatalogue(index.url)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(catalogue.versions, ["one", "two"] * 2))
    assert [[release.version for release in releases] for releases in found] == [["1.0"]] * 4
    assert sorted(index.requests) == ["/simple/one/", "/simple/two/"]


def test_a_bare_directory_served_over_http_is_an_index_too(index):
    filled(index).style = "bare"
    catalogue = PypiCatalogue(index.url)
    assert [release.version for release in catalogue.versions("demo")] == ["1.2", "1.9", "1.10", "2.0rc1"]
    assert {release.uploaded for release in catalogue.versions("demo")} == {None}


@pytest.mark.parametrize("place", ["/nowhere", "http"])
def test_a_place_of_archives_that_does_not_exist_is_told(index, place):
    """The index has the package: that it were unknown would be false."""
    links = [place.replace("http", index.url.replace("/simple", "/nowhere/"))]
    with pytest.raises(
        IndexUnavailableError, match=r"nowhere/? cannot be used: .*(not a folder|no such page)"
    ):
        PypiCatalogue(filled(index).url, find_links=links).versions("demo")


def test_a_directory_on_disk_is_an_index_too(tmp_path):
    page = tmp_path / "my index" / "demo" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(
        f'<a href="../../files/demo-1.0-py3-none-any.whl#sha256={"ab" * 32}">demo-1.0-py3-none-any.whl</a>'
    )
    catalogue = PypiCatalogue((tmp_path / "my index").as_uri())
    assert [release.version for release in catalogue.versions("demo")] == ["1.0"]
    assert catalogue.versions("other") == []
    with pytest.raises(IndexUnavailableError, match="is not a folder"):
        PypiCatalogue((tmp_path / "nowhere").as_uri()).versions("demo")


def test_files_that_are_no_releases_are_passed_over(index):
    names = [
        "demo-1.0-py3-none-any.whl",
        "demo-not.a.version.tar.gz",
        "README.html",
        "demo-1.0.exe",
        "demo-2.tar.gz",
    ]
    links = "".join(f'<a href="{name}">{name}</a>' for name in names)
    index.raw["/simple/demo/"] = ("text/html", links.encode())
    assert [release.version for release in PypiCatalogue(index.url).versions("demo")] == ["1.0", "2"]


def test_pages_are_fetched_once(index):
    catalogue = PypiCatalogue(filled(index).url)
    for name in ("demo", "Demo", "DEMO"):
        catalogue.versions(name)
    assert index.requests == ["/simple/demo/"]


def test_an_unknown_package(index):
    catalogue = PypiCatalogue(index.url)
    assert catalogue.versions("nowhere") == []
    with pytest.raises(PackageNotFoundError) as raised:
        catalogue.files("nowhere")
    assert f"the index {index.url} has no package 'nowhere'" in str(raised.value)
    assert "remedy: check how it is spelt" in str(raised.value)


@pytest.mark.parametrize("status", [500, 503, 403, 401])
def test_an_index_that_fails(index, status):
    index.on_request = lambda path: status
    with pytest.raises(IndexUnavailableError, match=f"it answers {status}") as raised:
        PypiCatalogue(index.url).versions("demo")
    assert "remedy: check the network, proxy and credentials" in str(raised.value)


def test_an_index_that_hangs(index, monkeypatch):
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "0.3")
    released = threading.Event()
    index.on_request = lambda path: released.wait(30) and None
    try:
        with pytest.raises(IndexUnavailableError, match="no answer in time"):
            PypiCatalogue(index.url).versions("demo")
    finally:
        released.set()


def test_nobody_listens():
    with pytest.raises(IndexUnavailableError, match="Connection refused"):
        PypiCatalogue("http://127.0.0.1:9/simple").versions("demo")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/vnd.pypi.simple.v1+json", b"<html>"),
        ("application/vnd.pypi.simple.v1+json", b'{"meta": {"api-version": "1.0"}}'),
        (
            "application/vnd.pypi.simple.v1+json",
            b'{"meta": {"api-version": "9.0"}, "name": "demo", "files": []}',
        ),
        ("text/html", b'<meta name="pypi:repository-version" content="9.0">'),
        ("text/html", b"\x00\x9f\xff<a href="),
        ("application/json", b"{}"),
        ("image/png", b"\x89PNG"),
    ],
)
def test_what_is_not_an_index(index, kind, body):
    index.raw["/simple/demo/"] = (kind, body)
    with pytest.raises(IndexUnavailableError, match="does not answer like a package index") as raised:
        PypiCatalogue(index.url).versions("demo")
    assert "remedy: give the URL of a simple index" in str(raised.value)


def test_credentials_stay_out_of_messages():
    with pytest.raises(IndexUnavailableError) as raised:
        PypiCatalogue("http://me:secret@127.0.0.1:9/simple").versions("demo")
    assert "secret" not in str(raised.value)


def test_pythons_here_come_before_pythons_to_fetch(monkeypatch):
    monkeypatch.setattr("bisect_env.environments.index.installed_pythons", lambda: ["3.11.2"])
    monkeypatch.setattr(
        "bisect_env.environments.index.uv_python_versions", lambda: ("3.10.2", "3.11.9", "3.9.25")
    )
    assert PypiCatalogue().python_versions() == ["3.9.25", "3.10.2", "3.11.2"]


@pytest.mark.network
def test_the_real_index():
    found = {release.version: release for release in PypiCatalogue().versions("orjson")}
    assert (
        found["3.9.10"].uploaded == datetime(2023, 10, 26, tzinfo=UTC) or found["3.9.10"].uploaded is not None
    )
    assert found["3.9.10"].requires_python == ">=3.8"
    assert found["3.9.11"].has_wheel


def test_file_names_that_no_file_system_has_are_passed_over(index):
    index.add("demo", "1.0")
    names = [
        f"demo-{'1' * 10_000}-py3-none-any.whl",
        f"demo-2.0-{'py3.' * 100_000}py3-none-any.whl",
        f"{'d-' * 100_000}3.0.tar.gz",
        "demo-4.0-py3--any.whl",
    ]
    kind, body = index.page("demo")
    page = json.loads(body)
    page["files"] += [{"filename": name, "url": "x", "hashes": {}} for name in names]
    index.raw["/simple/demo/"] = (kind, json.dumps(page).encode())
    found = PypiCatalogue(index.url).versions("demo")
    assert [release.version for release in found if release.has_wheel] == ["1.0"]


def test_a_page_without_end_is_given_up(index):
    """Packed it has half a megabyte."""
    body = gzip.compress(b" " * (80 << 20) + b"{}", 1)
    index.raw["/simple/demo/"] = ("application/vnd.pypi.simple.v1+json\r\nContent-Encoding: gzip", body)
    with pytest.raises(IndexUnavailableError, match="has more than 64 MiB"):
        PypiCatalogue(index.url).versions("demo")


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("2.9.0.dev20260131", "2026-01-31"),
        ("2.9.0.dev202611", None),
        ("2.9.0.dev123411", None),
        ("2.9.0.dev20261399", None),
        ("2.9.0", None),
    ],
)
def test_the_day_of_a_development_release_has_eight_digits(text: str, day: str | None) -> None:
    found = day_of(Version(text))
    assert (found and f"{found:%Y-%m-%d}") == day


def test_the_archives_of_others_on_a_page_are_passed_over(index):
    """Whatever the form of the page: a mirror's, or one made by hand, may list them."""
    index.add("app", "1.0")
    index.add("other", "9.0")
    index.packages["app"] += index.packages["other"]
    for style in ("json", "html"):
        index.style = style
        assert [one.version for one in PypiCatalogue(index.url).versions("app")] == ["1.0"]


def test_a_file_is_named_by_its_address_whatever_the_link_says(index):
    links = (
        '<a href="/w/demo-1.0-py3-none-any.whl">demo-1.0-py3-..&gt;</a>'
        '<a href="cpu/demo-2.0%2Bcpu-py3-none-any.whl?v=1#sha256=00">cpu/demo-2.0+cpu-py3-none-any.whl</a>'
    )
    index.raw["/links"] = ("text/html", links.encode())
    place = f"{index.url.removesuffix('/simple')}/links"
    found = PypiCatalogue(index.url, find_links=[place]).versions("demo")
    assert [str(release.version) for release in found] == ["1.0", "2.0+cpu"]
