"""Channels behind a web server, and all their ways of failing; mirrors and credentials from .condarc."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime

import pytest

from bisect_env.environments.conda_lock import CondaSolver
from bisect_env.environments.conda_process import HelperPool, fill
from bisect_env.environments.download import obtain, sha256_of
from bisect_env.environments.lock import LockedPackage, UnbuildableError, UnsolvableError
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.environments.provider import Environments
from bisect_env.environments.request import CondaRequest, EnvironmentRequest
from bisect_env.environments.settings import (
    CondaConfig,
    channel_places,
    mirrors_of_urls,
    read_conda_config,
)
from bisect_env.environments.validation import cuda_version, virtual_packages
from bisect_env.errors import IndexUnavailableError, InfrastructureError, UsageError
from bisect_env.secrets import public_channel

from .conda_channel import Channel
from .test_conda import request, run


@pytest.fixture
def channel(tmp_path):
    channel = Channel(tmp_path / "channel")
    channel.add_python()
    channel.add_library("demo", "1.0")
    channel.add_library("demo", "2.0", depends=["__cuda >=12"])
    channel.write()
    return channel


@pytest.fixture(autouse=True)
def _no_conda_settings(monkeypatch, tmp_path):
    """The developer's own channels and credentials change nothing here."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("CONDARC", "MAMBARC", "CONDA_PREFIX", "CONDA_ROOT", "MAMBA_ROOT_PREFIX", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)


def locker(cache, config=None, timeout=60):
    return Environments(cache, conda=CondaSolver(cache, config=config, timeout=timeout))


@pytest.mark.integration
def test_a_channel_behind_a_web_server(channel, index, cache, python):
    url = channel.serve(index)
    lock = locker(cache).solve(request((url,), python, demo="1.0"))
    assert {p.url.rsplit("/", 2)[0] for p in lock.packages} == {url}
    prefix = ensure_prefix(lock, cache_dir=cache)
    assert run(prefix, "import demo; print(demo.__version__)") == "1.0"


@pytest.mark.integration
def test_an_archive_of_a_server_that_is_not_the_one_that_was_locked(channel, index, cache, python):
    lock = locker(cache).solve(request((channel.serve(index),), python, demo="1.0"))
    channel.add_library("demo", "1.0", code="evil = 1\n")
    with pytest.raises(UnbuildableError, match=r"(?i)hash|mismatch") as raised:
        ensure_prefix(lock, cache_dir=cache)
    assert raised.value.transient
    assert not list((cache / "prefixes").glob("*/conda-meta"))


@pytest.mark.integration
@pytest.mark.parametrize(("status", "transient"), [(404, False), (500, True), (403, True)])
def test_archives_that_cannot_be_had(channel, index, cache, python, status, transient):
    lock = locker(cache).solve(request((channel.serve(index),), python, demo="1.0"))
    index.on_request = lambda path: status if "demo" in path else None
    with pytest.raises(UnbuildableError, match=str(status)) as raised:
        ensure_prefix(lock, cache_dir=cache)
    assert raised.value.transient is transient
    index.on_request = lambda path: None
    assert ensure_prefix(lock, cache_dir=cache).build_seconds > 0


@pytest.mark.integration
def test_a_download_that_falls_silent(channel, index, cache, python, tmp_path):
    lock = locker(cache).solve(request((channel.serve(index),), python, demo="1.0"))
    released = threading.Event()
    index.on_request = lambda path: released.wait(60) and None if "demo" in path else None
    try:
        with pytest.raises(UnbuildableError, match="timed out: no data for") as raised:
            fill(tmp_path / "place", lock, cache, 60, stall=1.0)
    finally:
        released.set()
    assert raised.value.transient
    index.on_request = lambda path: None
    fill(tmp_path / "again", lock, cache, 60, stall=1.0)


@pytest.mark.integration
class TestFailures:
    def test_a_channel_that_does_not_exist(self, index, cache, python, tmp_path):
        nowhere = index.url.removesuffix("/simple") + "/nowhere"
        for name, shown in ((nowhere, nowhere), (str(tmp_path / "no"), (tmp_path / "no").as_uri())):
            with pytest.raises(IndexUnavailableError) as raised:
                locker(cache).solve(request((name,), python, demo="1.0"))
            assert f"there is no conda channel at {shown}\n" in str(raised.value)
            assert "remedy: correct its name in `channels`" in str(raised.value)

    def test_repodata_that_is_not_json(self, channel, index, cache, python):
        url = channel.serve(index)
        for path in channel.folder.glob("*/repodata.json"):
            path.write_text("<html>welcome</html>")
        for name in (url, channel.url):
            with pytest.raises(IndexUnavailableError, match="does not answer with repodata") as raised:
                locker(cache).solve(request((name,), python, demo="1.0"))
            assert name in str(raised.value)

    def test_a_page_for_everything(self, channel, index, cache, python):
        """Such as a login page with status 200."""
        url = index.url.removesuffix("/simple") + "/portal"
        page = ("text/html", b"<html>log in</html>")
        index.on_request = lambda path: index.raw.update({path: page})
        with pytest.raises(IndexUnavailableError, match="does not answer with repodata"):
            locker(cache).solve(request((url,), python, demo="1.0"))

    @pytest.mark.parametrize("status", [500, 401, 403])
    def test_a_server_that_refuses(self, channel, index, cache, python, status):
        url = channel.serve(index)
        index.on_request = lambda path: status
        with pytest.raises(
            IndexUnavailableError, match=f"the conda channel {url} answers {status} "
        ) as raised:
            locker(cache).solve(request((url,), python, demo="1.0"))
        assert "remedy: check the network, proxy and credentials" in str(raised.value)

    def test_a_server_that_hangs(self, channel, index, cache, python):
        url = channel.serve(index)
        released = threading.Event()
        index.on_request = lambda path: released.wait(60) and None
        try:
            with pytest.raises(IndexUnavailableError, match=r"no answer in (time|2 s)"):
                locker(cache, timeout=2).solve(request((url,), python, demo="1.0"))
        finally:
            released.set()

    def test_a_server_that_is_not_there(self, cache, python):
        with pytest.raises(IndexUnavailableError, match=r"http://127\.0\.0\.1:1/x cannot be used: .*refused"):
            locker(cache).solve(request(("http://127.0.0.1:1/x",), python, demo="1.0"))

    def test_a_cache_that_cannot_be_written(self, channel, index, python, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(InfrastructureError, match="cache"):
            locker(tmp_path / "file").solve(request((channel.serve(index),), python, demo="1.0"))


@pytest.mark.integration
class TestVirtualPackages:
    def test_they_decide_what_can_be_solved(self, channel, cache, python):
        def version(virtual):
            lock = locker(cache).solve(request(channel, python, packages=("demo",), virtual=virtual))
            return next(p.version for p in lock.packages if p.name == "demo")

        assert version({}) == "1.0"
        assert version({"__cuda": "11.8"}) == "1.0"
        assert version({"__cuda": "12.8"}) == "2.0"

    def test_what_is_too_new_does_not_exist(self, channel, cache, python):
        channel.add_library("demo", "3.0", timestamp=1_700_000_000_000)
        channel.add_library("demo", "2.5", timestamp=None)
        channel.write()

        def version(limit):
            wanted = request(channel, python, packages=("demo",), exclude_newer=limit)
            return next(p.version for p in locker(cache).solve(wanted).packages if p.name == "demo")

        moment = datetime.fromtimestamp(1_700_000_000, UTC)
        assert version(None) == "3.0"
        assert version(moment) == "2.5", "that very moment is too new; what has no date was always there"
        assert version(moment.replace(year=2024)) == "3.0"


def test_virtual_packages_by_default_and_overridden():
    assert virtual_packages("linux-64", "12.8") == {
        "__archspec": "x86_64",
        "__cuda": "12.8",
        "__glibc": "2.28",
        "__linux": "5.10",
        "__unix": "0",
    }
    changed = virtual_packages("linux-aarch64", "12.8", {"__cuda": "none", "__glibc": "2.17", "__mine": "1"})
    assert changed == {
        "__archspec": "aarch64",
        "__glibc": "2.17",
        "__linux": "5.10",
        "__mine": "1",
        "__unix": "0",
    }


@pytest.mark.parametrize(
    ("pins", "specs", "cuda"),
    [
        ({"cuda-version": "12.8"}, (), "12.8"),
        ({"cudatoolkit": "11.2.2"}, (), "11.2"),
        ({"pytorch": "2.8"}, ("numpy", "cuda-version 12.8"), "12.8"),
        ({}, ("cuda-version=12.8",), "12.8"),
        ({}, ("cudatoolkit ==11.8.0",), "11.8"),
        ({}, ("cuda-version >=12,<13",), None),
        ({}, ("cuda-nvcc 12.8",), None),
        ({}, (), None),
    ],
)
def test_the_version_of_cuda(pins, specs, cuda):
    assert cuda_version(pins, specs) == cuda


@pytest.mark.integration
def test_strict_priority(channel, tmp_path, cache, python):
    other = Channel(tmp_path / "other")
    other.add_library("demo", "9.0")
    other.write()
    for channels, version in (((channel.url, other.url), "1.0"), ((other.url, channel.url), "9.0")):
        lock = locker(cache).solve(request(channels, python, packages=("demo",)))
        assert next(p.version for p in lock.packages if p.name == "demo") == version


@pytest.mark.integration
def test_a_build_string_is_held_to(tmp_path, cache, python):
    channel = Channel(tmp_path / "channel")
    channel.add_python()
    channel.add("torchy", "2.8.0", "cpu_0", build_number=9)
    channel.add("torchy", "2.8.0", "cuda128_0")
    channel.write()

    def build(**builds):
        conda = CondaRequest((channel.url,), pins={"torchy": "2.8.0"}, builds=builds)
        lock = locker(cache).solve(EnvironmentRequest(python, conda=conda))
        return next(p.build for p in lock.packages if p.name == "torchy")

    assert build() == "cpu_0"
    assert build(torchy="cuda*") == "cuda128_0"
    with pytest.raises(UnsolvableError, match="rocm"):
        build(torchy="rocm*")


class TestConfiguration:
    def test_an_entry_without_a_list_has_no_channels(self):
        config = CondaConfig.model_validate({"custom_multichannels": {"local": None, "one": "a"}})
        assert config.custom_multichannels == {"local": (), "one": ("a",)}

    def test_names(self):
        config = CondaConfig(
            channel_alias="https://mirror.example/conda/",
            custom_channels={"mine": "https://me:word@own.example", "mine/deep": "https://deep.example/x"},
            custom_multichannels={"both": ("one", "mine")},
        )
        names = [
            "conda-forge",
            "mine/label/dev",
            "mine/deep",
            "both",
            "https://a.example/t/to-k/z/",
            "/srv/c h",
        ]
        places = channel_places(names, config)
        assert places.urls == (
            "https://mirror.example/conda/conda-forge",
            "https://own.example/mine/label/dev",
            "https://deep.example/x/mine/deep",
            "https://mirror.example/conda/one",
            "https://own.example/mine",
            "https://a.example/z",
            "file:///srv/c%20h",
        )
        assert places.mirrors == {
            "https://own.example/mine/label/dev": ("https://me:word@own.example/mine/label/dev",),
            "https://own.example/mine": ("https://me:word@own.example/mine",),
            "https://a.example/z": ("https://a.example/t/to-k/z",),
        }
        with pytest.raises(UsageError, match="'defaults' is whatever conda's configuration says"):
            channel_places(["defaults"], config)

    def test_mirrors(self):
        places = ("https://near.example/cf", "https://far.example")
        config = CondaConfig(channel_alias="https://usual.example", mirrored_channels={"conda-forge": places})
        url = "https://usual.example/conda-forge"
        assert channel_places(["conda-forge"], config).mirrors == {
            url: ("https://near.example/cf", "https://far.example")
        }
        assert mirrors_of_urls([url], config) == {url: ["https://near.example/cf", "https://far.example"]}
        config = CondaConfig(channel_alias="https://u:p@host.example/t/tok/")
        assert mirrors_of_urls(["https://host.example/cf"], config) == {
            "https://host.example/cf": ["https://u:p@host.example/t/tok/cf"]
        }

    def test_a_circle_and_a_strange_address(self):
        config = CondaConfig(custom_multichannels={"a": ("b",), "b": ("a",)})
        with pytest.raises(UsageError, match="is defined by itself"):
            channel_places(["a"], config)
        with pytest.raises(UsageError, match="is not the address of a channel"):
            channel_places(["ftp://x.example/y"], config)

    def test_files_in_condas_order(self, tmp_path, monkeypatch):
        home = tmp_path / "home"
        (home / ".condarc").write_text(
            "channel_alias: https://one.example\ncustom_channels: {a: 'https://$SECRET@x.example'}\n"
        )
        (tmp_path / "more.yml").write_text(
            "channel_alias: https://two.example\ncustom_channels: {b: https://y.example}\n"
            "mirrored_channels: {c: https://z.example}\ndefault_channels: [d]\n"
        )
        monkeypatch.setenv("CONDARC", str(tmp_path / "more.yml"))
        monkeypatch.setenv("SECRET", "me:word")
        config = read_conda_config()
        assert config.channel_alias == "https://two.example"
        assert config.custom_channels == {"a": "https://me:word@x.example", "b": "https://y.example"}
        assert config.mirrored_channels == {"c": ("https://z.example",)}
        assert channel_places(["defaults"], config).urls == ("https://two.example/d",)
        monkeypatch.setenv("CONDA_CHANNEL_ALIAS", "https://three.example")
        assert read_conda_config().channel_alias == "https://three.example"

    @pytest.mark.parametrize("text", ["[1, 2]", "a: [", "custom_channels: 5", "mirrored_channels: [x]"])
    def test_a_file_that_cannot_be_read(self, tmp_path, text):
        (tmp_path / "home" / ".condarc").write_text(text)
        with pytest.raises(InfrastructureError, match="conda's configuration"):
            read_conda_config()

    def test_what_a_lock_may_name(self):
        assert public_channel("https://me:word@h.example/t/abc-1/chan/") == "https://h.example/chan"


@pytest.mark.integration
def test_credentials_and_mirrors_are_used_and_never_locked(channel, index, cache, python, tmp_path):
    """The alias is a host that does not exist; a mirror that wants a password has everything."""
    url = channel.serve(index).replace("://", "://me:word@")
    (tmp_path / "home" / ".condarc").write_text(
        f"channel_alias: https://nowhere.invalid\nmirrored_channels: {{mine: ['{url}']}}\n"
    )
    lock = Environments(cache).solve(request(("mine",), python, demo="1.0"))
    assert {p.url.rsplit("/", 2)[0] for p in lock.packages} == {"https://nowhere.invalid/mine"}
    assert "word" not in lock.text
    prefix = ensure_prefix(lock, cache_dir=cache)
    assert run(prefix, "import demo; print(demo.__version__)") == "1.0"
    asked = dict(zip(index.requests, index.headers, strict=True))
    archives = [path for path in asked if path.endswith(".conda")]
    assert len(archives) == 2
    assert all("authorization" in asked[path] for path in archives)
    assert not [p for p in prefix.path.rglob("*.json") if b"me:word" in p.read_bytes()]


@pytest.mark.integration
def test_an_archive_is_fetched_from_the_mirror_of_a_bare_name(channel, index, cache, tmp_path):
    """No alias is configured: rattler knows the usual one, also when only an archive is fetched."""
    (public,) = CondaSolver(cache).places(["demo"]).urls
    (tmp_path / "home" / ".condarc").write_text(f"mirrored_channels: {{demo: ['{channel.serve(index)}']}}\n")
    (archive,) = (channel.folder / "noarch").glob("demo-1.0*.conda")
    digest = sha256_of(archive)
    package = LockedPackage("demo", "1.0", "conda", f"{public}/noarch/{archive.name}", digest)
    assert sha256_of(obtain(package, tmp_path / "here")) == digest


@pytest.mark.integration
def test_credentials_of_rattlers_own_file(channel, index, cache, python, tmp_path, monkeypatch):
    url = channel.serve(index)
    host = url.split("/")[2].split(":")[0]
    path = tmp_path / "credentials.json"
    path.write_text(json.dumps({host: {"BearerToken": "to-ken"}}))
    monkeypatch.setenv("RATTLER_AUTH_FILE", str(path))
    pool = HelperPool()  # the variable is read when a helper starts
    solver = CondaSolver(cache, pool=pool)
    Environments(cache, conda=solver).solve(request((url,), python, demo="1.0"))
    pool.close()
    assert {headers.get("authorization") for headers in index.headers} == {"Bearer to-ken"}


@pytest.mark.integration
def test_a_bare_name_without_any_configuration(cache):
    (url,) = CondaSolver(cache).places(["conda-forge"]).urls
    assert url.startswith("https://")
    assert url.endswith("/conda-forge")
