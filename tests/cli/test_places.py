"""Where versions come from: further indexes, folders of wheels, and indexes that give no upload dates."""

from __future__ import annotations

import base64
import itertools
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.cli.asking import Asking, an_index
from tests.cli.calls import RunCommand
from tests.environments.index_server import IndexServer, serve

pytestmark = pytest.mark.integration

NIGHTLY = [f"2.0.dev202601{day:02}" for day in range(10, 20)]
FIRST_BAD = "2.0.dev20260116"
SCRIPT = f"""
    import app, helper
    assert int(app.version.rpartition("dev")[2]) < {FIRST_BAD.rpartition("dev")[2]}
"""


@pytest.fixture
def index() -> Iterator[IndexServer]:
    """The default index, which has releases of the package, and all others."""
    with an_index() as index:
        index.add("app", "1.0")
        index.add("helper", "1.0")
        yield index


@pytest.fixture
def nightly() -> Iterator[IndexServer]:
    """Has pages without dates, as PEP 503 describes them."""
    with an_index() as index:
        index.style = "html"
        for version in NIGHTLY:
            index.add("app", version, uploaded=None)
        index.add("helper", "0.5", uploaded=None)
        yield index


@pytest.fixture
def user(tmp_path: Path, index: IndexServer, run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> Asking:
    asking = Asking(tmp_path, run, monkeypatch)
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    asking.script(SCRIPT)
    return asking


def wheels(nightly: IndexServer, folder: Path) -> Path:
    folder.mkdir()
    for release in nightly.packages["app"]:
        (folder / release.filename).write_bytes(release.content)
    return folder


def first_bad(user: Asking, *words: str) -> str:
    done = user.run(
        "run", "app>=2.dev0", "repro.py", "--with", "helper", "--pre", "--always", "--json", *words
    )
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout.splitlines()[-1])["verdict"]["first_bad"]["app"])


@pytest.mark.parametrize("way", ["--index", "--extra-index", "named", "--find-links"])
def test_development_releases_of_an_index_without_dates(
    user: Asking, nightly: IndexServer, tmp_path: Path, way: str
) -> None:
    words = {
        "--index": ("--index", nightly.url),
        "--extra-index": ("--extra-index", nightly.url),
        "named": ("--extra-index", f"nightly={nightly.url}"),
        "--find-links": ("--find-links", str(wheels(nightly, tmp_path / "wheels"))),
    }[way]
    assert first_bad(user, *words) == FIRST_BAD


def test_a_list_of_versions_on_an_index_without_dates(user: Asking, nightly: IndexServer) -> None:
    """Nothing is cut off by a date that nobody asked for."""
    (user.folder / "m.yaml").write_text(
        f"version: 1\nname: listed\nindex: {nightly.url}\n"
        f"axes: {{app: {{package: app, versions: {NIGHTLY}}}}}\npackages: [helper]\n"
        "trial: {command: python repro.py, files: [repro.py]}\nsearch: {crash_rate: 1}\n"
    )
    done = user.run("run", "m.yaml", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["verdict"]["first_bad"]["app"] == FIRST_BAD


def test_an_address_without_an_index_is_named(user: Asking, nightly: IndexServer) -> None:
    wrong = f"{nightly.url}/nothing"
    done = user.run("run", "app>=2.dev0", "repro.py", "--pre", "--index", wrong)
    assert done.returncode == 2
    assert f"the index {wrong} does not know the package; correct the name or the index" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_further_address_without_an_index_is_named(user: Asking, nightly: IndexServer) -> None:
    """The default index has the package, but not in this range."""
    wrong = f"{nightly.url}/nothing"
    done = user.run("run", "app>=2.dev0", "repro.py", "--pre", "--extra-index", wrong)
    assert done.returncode == 2
    assert f"{wrong} has no page of it with archives: is the address right?" in done.stderr
    done = user.run("run", "app>=2.dev0", "repro.py", "--extra-index", nightly.url)
    assert done.returncode == 2
    assert "set `prereleases` (`--pre`), widen the range" in done.stderr
    assert "is the address right" not in done.stderr


@pytest.mark.parametrize("variable", ["UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL"])
def test_a_configured_address_without_an_index_is_named(
    user: Asking, nightly: IndexServer, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    wrong = f"{nightly.url}/nothing"
    monkeypatch.setenv(variable, wrong.replace("http://", "http://me:hunter2@"))
    done = user.run("run", "app>=2.dev0", "repro.py", "--pre")
    assert done.returncode == 2
    assert f"; {wrong} has no page of it with archives: is the address right?" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("way", ["--extra-index", "UV_INDEX", "PIP_EXTRA_INDEX_URL"])
def test_a_wrong_address_is_a_warning_where_another_index_has_the_package(
    user: Asking, index: IndexServer, nightly: IndexServer, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """An index that has other packages is none: further indexes need not have every package."""
    words = ["run", "helper>=1", "repro.py", "--with", "app"]
    user.script("import helper")

    def said(address: str) -> str:
        if way == "--extra-index":
            return user.run(*words, way, address).stderr
        monkeypatch.setenv(way, address)
        return user.run(*words).stderr

    wrong = f"{nightly.url}/nothing"
    assert f"the index {wrong} has no page of any package here: is its address right?" in said(wrong)
    index.add("helper", "1.1")
    del nightly.packages["helper"]
    assert "is its address right" not in said(nightly.url)


def test_an_index_that_fails_is_asked_once(user: Asking, nightly: IndexServer) -> None:
    """A user would wait twice for an index that does not answer in time."""
    nightly.on_request = lambda _path: 503
    done = user.run("run", "app>=2.dev0", "repro.py", "--pre", "--index", nightly.url)
    assert done.returncode == 6
    assert f"the package index {nightly.url} cannot be used: it answers 503" in done.stderr
    assert nightly.requests == ["/simple/app/"]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["--index", "--extra-index"])
def test_an_index_that_accepts_a_connection_and_never_answers(
    user: Asking, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The command waits once, for the time that uv's variable states."""
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        done = user.run("run", "app>=1", "repro.py", way, url)
        assert done.returncode == 6
        assert done.stderr.count(f"the package index {url} cannot be used: no answer in time") == 1
        silent.settimeout(0.2)
        silent.accept()[0].close()
        with pytest.raises(TimeoutError):
            silent.accept()


def test_a_study_goes_on_with_the_releases_that_it_began_with(user: Asking, nightly: IndexServer) -> None:
    """An index without dates does not tell which releases came later."""
    words = ("--extra-index", nightly.url)
    assert first_bad(user, *words) == FIRST_BAD
    nightly.add("app", "3.0", uploaded=None)
    done = user.run(
        "run", "app>=2.dev0", "repro.py", "--with", "helper", "--pre", "--always", "--json", *words
    )
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert "3.0" not in {event["combination"]["app"] for event in events if event["event"] == "trial"}
    assert events[-1]["verdict"]["first_bad"]["app"] == FIRST_BAD
    assert events[-1]["verdict"]["bad_values"]["app"][-1] == NIGHTLY[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "variable", ["UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"]
)
def test_what_uv_and_pip_have_configured_holds_for_ranges(
    user: Asking, nightly: IndexServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    folder = wheels(nightly, tmp_path / "wheels")
    monkeypatch.setenv(variable, str(folder) if "LINKS" in variable else nightly.url)
    assert first_bad(user) == FIRST_BAD


@pytest.mark.parametrize("variable", ["UV_FIND_LINKS", "PIP_FIND_LINKS"])
def test_a_configured_folder_may_be_relative_to_the_working_directory(
    user: Asking, nightly: IndexServer, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    folder = wheels(nightly, user.folder / "wheels")
    monkeypatch.setenv(variable, folder.name)
    assert first_bad(user) == FIRST_BAD


@pytest.mark.parametrize("where", ["pip's environment", "pip.conf", "uv.toml"])
def test_an_index_that_may_not_be_asked_is_not(
    user: Asking,
    index: IndexServer,
    nightly: IndexServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    folder = wheels(nightly, tmp_path / "wheels")
    helper = index.packages["helper"][0]
    (folder / helper.filename).write_bytes(helper.content)
    index.add("app", "2.0.dev20260131")
    config = tmp_path / "config"
    if where == "uv.toml":
        config.write_text(f'no-index = true\nfind-links = ["{folder}"]\n')
        monkeypatch.setenv("UV_CONFIG_FILE", str(config))
    elif where == "pip.conf":
        config.write_text(f"[global]\nno-index = yes\nfind-links = {folder}\n")
        monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    else:
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    assert first_bad(user) == FIRST_BAD
    assert index.requests == []
    (folder / helper.filename).unlink()
    done = user.run("run", "helper", "repro.py")
    assert done.returncode != 0
    assert "`no-index` in the configuration of uv or pip" in done.stderr
    assert index.requests == []


def matrix(user: Asking, nightly: IndexServer, *lines: str) -> str:
    path = user.folder / "matrix.yaml"
    text = f"""
        version: 1
        name: places
        indexes: {{nightly: {{url: "{nightly.url}", explicit: true}}}}
        axes:
          app: {{package: app, index: nightly, versions: ">=2.dev0", prereleases: true, step: every}}
        packages: [helper]
        trial: {{command: python repro.py, files: [repro.py]}}
    """
    user.script(text, path.name)
    path.write_text(path.read_text() + "\n".join((*lines, "")))
    return path.name


def planned(user: Asking, name: str) -> list[dict[str, str]]:
    done = user.run("plan", name, "--json")
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout)["combinations"])


def test_an_axis_names_its_index_and_the_rest_comes_from_the_other(
    user: Asking, index: IndexServer, nightly: IndexServer
) -> None:
    """Of the helper, too, the nightly index has a version: it is not asked for it."""
    nightly.add("app", "3.0", uploaded=None, requires=("absent",))
    states = planned(user, matrix(user, nightly))
    assert [one["combination"]["app"] for one in states] == [*NIGHTLY, "3.0"]
    assert {one["status"] for one in states[:-1]} == {"solvable"}
    assert not [path for path in nightly.requests if "helper" in path]
    assert not [path for path in index.requests if path == "/simple/app/"]


def test_a_date_is_read_from_the_version_and_else_it_is_said_which_index_lacks_it(
    user: Asking, nightly: IndexServer
) -> None:
    name = matrix(user, nightly, "exclude_newer: '2026-01-14'")
    states = planned(user, name)
    assert [one["combination"]["app"] for one in states] == NIGHTLY[:5]
    assert {one["status"] for one in states} == {"solvable"}
    nightly.add("app", "2.1", uploaded=None)
    (late,) = [one for one in planned(user, name) if one["combination"]["app"] == "2.1"]
    assert f"The index {nightly.url} gives no upload dates of app" in late["reason"], late


def test_a_date_axis_on_an_index_without_dates_says_so_first(user: Asking, nightly: IndexServer) -> None:
    (user.folder / "m.yaml").write_text(
        f"version: 1\nname: days\nindex: {nightly.url}\n"
        "axes: {day: {dates: {from: 2026-01-11, to: 2026-01-14}}}\npackages: ['app>=2.dev0', helper]\n"
        "trial: {command: python repro.py, files: [repro.py]}\n"
    )
    said = f"The index {nightly.url} gives no upload dates of app"
    done = user.run("plan", "m.yaml")
    assert f"unsolvable: {said}" in done.stdout, done.stdout
    done = user.run("run", "m.yaml")
    assert done.returncode == 5
    assert f"tried: {said}" in done.stderr


@pytest.mark.parametrize("way", ["matrix", "UV_INDEX"])
def test_of_several_indexes_the_one_without_dates_is_named(
    user: Asking, index: IndexServer, nightly: IndexServer, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    nightly.add("app", "2.1", uploaded=None)
    further = f"indexes: {{nightly: {{url: '{nightly.url}'}}}}\n" if way == "matrix" else ""
    if way == "UV_INDEX":
        monkeypatch.setenv("UV_INDEX", nightly.url)
    (user.folder / "m.yaml").write_text(
        f"version: 1\nname: dated\n{further}exclude_newer: 2026-01-14\n"
        "axes: {app: {package: app, versions: ['1.0', '2.1']}}\n"
        "trial: {command: python repro.py, files: [repro.py]}\n"
    )
    (late,) = [one for one in planned(user, "m.yaml") if one["combination"]["app"] == "2.1"]
    assert f"The index {nightly.url} gives no upload dates of app" in late["reason"], late
    assert index.url not in late["reason"]


def test_of_one_version_on_two_indexes_the_first_is_taken(user: Asking, nightly: IndexServer) -> None:
    nightly.add("helper", "1.0", uploaded=None, modules={"own.py": ""})
    user.script(SCRIPT + "    import own\n")
    assert first_bad(user, "--extra-index", nightly.url) == FIRST_BAD


@pytest.mark.slow
def test_an_index_that_wants_a_login_gets_that_of_the_netrc_file(
    user: Asking, nightly: IndexServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nightly.on_request = lambda _path: None if "authorization" in nightly.headers[-1] else 401
    done = user.run("run", "app>=2.dev0", "repro.py", "--pre", "--extra-index", nightly.url)
    assert done.returncode != 0
    assert "401" in done.stderr
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hunter2\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert first_bad(user, "--extra-index", nightly.url) == FIRST_BAD


@pytest.mark.slow
@pytest.mark.parametrize("where", ["UV_INDEX", "UV_DEFAULT_INDEX", "uv.toml", "--extra-index"])
def test_an_index_that_wants_a_login_gets_that_of_its_name(
    user: Asking, nightly: IndexServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """It holds for a range, for the solver and for the installation, and is in no file."""
    wants_login(nightly)
    words = []
    if where == "--extra-index":
        words = [where, f"corp={nightly.url}"]
    elif where == "uv.toml":
        config = tmp_path / "uv.toml"
        config.write_text(f'[[index]]\nname = "corp"\nurl = "{nightly.url}"\n')
        monkeypatch.setenv("UV_CONFIG_FILE", str(config))
    else:
        monkeypatch.setenv(where, f"corp={nightly.url}")
    done = user.run("run", "app>=2.dev0", "repro.py", "--pre", *words)
    assert done.returncode != 0
    assert "401" in done.stderr
    assert "UV_INDEX_CORP_USERNAME" in done.stderr
    monkeypatch.setenv("UV_INDEX_CORP_USERNAME", "me")
    monkeypatch.setenv("UV_INDEX_CORP_PASSWORD", "hün/ter2")
    assert first_bad(user, *words) == FIRST_BAD
    assert no_password_in(tmp_path)


def answers_with_an_index_of_its_axis(user: Asking, nightly: IndexServer, more: str = "") -> None:
    (user.folder / "m.yaml").write_text(
        f"version: 1\nname: owned\nindexes: {{corp: {{url: '{nightly.url}'{more}}}}}\n"
        "axes: {app: {package: app, versions: '>=2.dev0', step: every, prereleases: true, index: corp}}\n"
        "packages: [helper]\nsearch: {crash_rate: 1}\n"
        "trial: {command: python repro.py, files: [repro.py]}\n"
    )
    done = user.run("run", "m.yaml", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["verdict"]["first_bad"]["app"] == FIRST_BAD


def wants_login(nightly: IndexServer) -> None:
    wanted = f"Basic {base64.b64encode('me:hün/ter2'.encode()).decode()}"
    nightly.on_request = lambda _path: None if nightly.headers[-1].get("authorization") == wanted else 401


def no_password_in(folder: Path) -> bool:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return not [path for path in files if b"ter2" in path.read_bytes()]


@pytest.mark.slow
def test_an_index_of_one_axis_gets_the_login_of_its_name_also_in_a_copy_for_hosts_without_a_network(
    user: Asking, nightly: IndexServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wants_login(nightly)
    monkeypatch.setenv("UV_INDEX_CORP_USERNAME", "me")
    monkeypatch.setenv("UV_INDEX_CORP_PASSWORD", "hün/ter2")
    answers_with_an_index_of_its_axis(user, nightly, ", explicit: true")
    done = user.run("env", "fetch", "m.yaml", "-o", "copy", "--no-pythons")
    assert done.returncode == 0, done.stderr
    assert no_password_in(tmp_path)


@pytest.mark.slow
def test_an_index_of_one_axis_is_asked_for_other_packages_unless_it_is_explicit(
    user: Asking, index: IndexServer, nightly: IndexServer
) -> None:
    del index.packages["helper"]
    answers_with_an_index_of_its_axis(user, nightly)


@pytest.mark.slow
def test_an_index_without_hashes_gets_the_login_of_its_name_for_them(
    user: Asking, nightly: IndexServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nightly.style = "bare"
    wants_login(nightly)
    monkeypatch.setenv("UV_INDEX_CORP_USERNAME", "me")
    monkeypatch.setenv("UV_INDEX_CORP_PASSWORD", "hün/ter2")
    assert first_bad(user, "--extra-index", f"corp={nightly.url}") == FIRST_BAD
    assert no_password_in(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("has_user", [True, False])
def test_a_login_of_the_keyring_holds_for_ranges_and_for_the_solver(
    user: Asking, nightly: IndexServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_user: bool
) -> None:
    """uv asks it for the password of a user, or where an index always wants a login."""
    wants_login(nightly)
    keyring = tmp_path / "bin" / "keyring"
    keyring.parent.mkdir()
    known = r"printf 'h\303\274n/\164er2\n'"
    keyring.write_text(
        f'#!/bin/sh\ncase "$*" in\n"get {nightly.url} me") {known};;\n'
        f'"get {nightly.url} --mode creds") echo me; {known};;\n*) exit 1;;\nesac\n'
    )
    keyring.chmod(0o755)
    monkeypatch.setenv("PATH", str(keyring.parent), prepend=":")
    address = nightly.url.replace("://", "://me@") if has_user else nightly.url
    (tmp_path / "uv.toml").write_text(
        f'keyring-provider = "subprocess"\n[[index]]\nurl = "{address}"\nauthenticate = "always"\n'
    )
    monkeypatch.setenv("UV_CONFIG_FILE", str(tmp_path / "uv.toml"))
    assert first_bad(user) == FIRST_BAD
    assert no_password_in(tmp_path)


def test_a_solver_that_lacks_a_login_says_where_it_belongs(user: Asking, nightly: IndexServer) -> None:
    nightly.on_request = lambda _path: 401
    (user.folder / "m.yaml").write_text(
        f"version: 1\nname: listed\nindex: {nightly.url}\n"
        f"axes: {{app: {{package: app, versions: {NIGHTLY}}}}}\n"
        "trial: {command: python repro.py, files: [repro.py]}\n"
    )
    done = user.run("run", "m.yaml")
    assert done.returncode == 6
    assert f"the package index {nightly.url} cannot be used" in done.stderr
    assert "UV_INDEX_CORP_USERNAME" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("status", [None, 500])
def test_a_cache_that_has_grown_is_told_after_an_answer_and_after_an_error(
    user: Asking, nightly: IndexServer, monkeypatch: pytest.MonkeyPatch, status: int | None
) -> None:
    monkeypatch.setattr("bisect_env.environments.cache.MUCH", -(10**15))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    nightly.on_request = lambda path: status if path.startswith("/files/") else None
    done = user.run("run", "app>=2.dev0", "repro.py", "--with", "helper", "--pre", "--index", nightly.url)
    assert (done.returncode == 0) == (status is None), done.stderr
    assert f"the cache {user.folder / 'cache'} takes " in done.stderr
    assert "bisect-env env prune --size" in done.stderr


def test_a_folder_of_archives_that_is_not_there_is_named(user: Asking) -> None:
    done = user.run("run", "app>=1", "repro.py", "--find-links", "absent")
    assert done.returncode == 6
    place = user.folder / "absent"
    assert f"the place of archives {place} cannot be used: {place} is not a folder" in done.stderr
    assert "correct `--find-links`" in done.stderr


@pytest.fixture
def untrusted(tmp_path: Path) -> Iterator[str]:
    """Address of an index whose certificate is signed by `authority.pem` alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    index = IndexServer()
    for version in NIGHTLY:
        index.add("app", version, uploaded=None)
    server = serve(index, context)
    yield index.url
    server.shutdown()
    server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_one_variable_names_the_authorities_for_lists_and_for_solving(
    user: Asking, untrusted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "authority.pem"))
    if variable == "SSL_CERT_FILE":  # it comes first, as for uv
        (tmp_path / "others.pem").write_text("")
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "others.pem"))
    assert first_bad(user, "--extra-index", untrusted) == FIRST_BAD


def test_an_index_that_cannot_be_used_is_named_with_the_reason(
    user: Asking, nightly: IndexServer, untrusted: str
) -> None:
    for url, said in (
        ("http://127.0.0.1:9/simple", "refused"),
        (nightly.url.replace("http", "https"), "does not speak TLS"),
        (untrusted, "its certificate is not trusted (unable to get local issuer certificate)"),
        ("https://me:hunter2@127.0.0.1/simple", "put it into ~/.netrc"),
    ):
        done = user.run("run", "app>=2.dev0", "repro.py", "--pre", "--extra-index", url)
        assert done.returncode != 0
        assert said in done.stderr, done.stderr
        assert "hunter2" not in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_withdrawn_releases_at_the_boundary_are_named_and_tried_when_asked(
    user: Asking, index: IndexServer
) -> None:
    for version in range(2, 8):
        index.add("app", f"{version}.0", yanked=version == 4)
    user.script("import app\nassert float(app.version) < 4\n")
    words = ("run", "app>=1", "repro.py", "--always", "--json")
    done = user.run(*words)
    assert json.loads(done.stdout.splitlines()[-1])["verdict"]["first_bad"]["app"] == "5.0"
    assert "app 4.0 between 3.0 and 5.0 was withdrawn and not tried" in done.stdout
    done = user.run(*words, "--yanked")
    assert json.loads(done.stdout.splitlines()[-1])["verdict"]["first_bad"]["app"] == "4.0"
    assert "withdrawn and not tried" not in done.stdout


def test_archives_that_were_damaged_for_a_while_are_tried_again(user: Asking, index: IndexServer) -> None:
    """The first command answers without them, and says why; the next one answers better."""
    for version in ("2.0", "3.0", "4.0"):
        index.add("app", version)
    user.script("import app\nassert int(app.version[0]) < 3")
    damaged = index.packages["app"][1:3]
    whole = [release.content for release in damaged]
    for release in damaged:
        release.content += b"x"
    command = ("run", "app>=1.0", "repro.py", "--always", "--quick")
    done = user.run(*command)
    assert "last good 1.0" in done.stdout
    assert "env-unbuildable" in done.stdout
    (aside, _) = [line for line in done.stderr.splitlines() if line.startswith("set aside")]
    assert "trailing contents" in aside  # the cause
    assert "tried again by the next command" in done.stderr
    for release, content in zip(damaged, whole, strict=True):
        release.content = content
    again = user.run(*command)
    assert "broken from 3.0 on (last good 2.0)" in again.stdout
    assert "env-unbuildable" not in again.stdout


def test_one_command_does_not_try_damaged_archives_again_for_each_look_around_its_answer(
    user: Asking, index: IndexServer
) -> None:
    for major, patch in itertools.product(range(2, 7), range(3)):
        index.add("app", f"{major}.0.{patch}")
    user.script("import app\nassert int(app.version[0]) < 4")
    damaged = [release for release in index.packages["app"] if "-3.0.2-" in release.filename]
    for release in damaged:
        release.content += b"x"
    done = user.run("run", "app>=1.0", "repro.py", "--always", "--step", "minor")
    assert "app is broken from 4.0.0 on" in done.stdout, done.stdout + done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("set aside")]) == 1
