from __future__ import annotations

import os
import signal
import sys
import time
import tomllib
from pathlib import Path

import pytest
from pypi_simple import PYPI_SIMPLE_ENDPOINT

from bisect_env.environments.prefix import ensure_prefix
from bisect_env.environments.provider import Environments
from bisect_env.environments.request import EnvironmentRequest
from bisect_env.environments.uv_tool import Uv, is_transient, plain_words
from bisect_env.matrix.versions import PackageIndex
from bisect_env.running import run_tool

PUBLIC = PYPI_SIMPLE_ENDPOINT.rstrip("/")


def uv_with(tmp_path, environ):
    return Uv(
        tmp_path / "cache", environ={"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path), **environ}
    )


def test_settings_that_would_change_a_lock_unseen_are_dropped(tmp_path):
    env = uv_with(
        tmp_path,
        {
            "UV_CONSTRAINT": "c.txt",
            "UV_EXCLUDE_NEWER": "2020-01-01",
            "UV_PYTHON": "3.9",
            "UV_PRERELEASE": "allow",
            "VIRTUAL_ENV": "/v",
            "PYTHONPATH": "/p",
            "UV_HTTP_TIMEOUT": "7",
            "UV_CREDENTIALS_DIR": "/logins",
            "HTTPS_PROXY": "http://proxy",
            "CFLAGS": "-O1",
        },
    ).variables()
    assert not {
        "UV_CONSTRAINT",
        "UV_EXCLUDE_NEWER",
        "UV_PYTHON",
        "UV_PRERELEASE",
        "VIRTUAL_ENV",
        "PYTHONPATH",
    } & set(env)
    assert env["UV_HTTP_TIMEOUT"] == "7"
    assert env["UV_CREDENTIALS_DIR"] == "/logins", "what `uv auth login` wrote there"
    assert env["HTTPS_PROXY"] == "http://proxy"
    assert env["CFLAGS"] == "-O1"


def config_of(uv):
    return tomllib.loads(uv.configuration())


@pytest.mark.parametrize("builds", [False, True])
def test_a_login_is_in_no_file_and_no_variable(tmp_path, builds):
    address = "https://user:sec%40ret@host/simple"
    uv = uv_with(
        tmp_path,
        {
            "UV_INDEX_URL": address,
            "UV_INDEX": f"mine={address}/mine by-name=https://host/named",
            "UV_INDEX_BY_NAME_USERNAME": "me",
            "UV_INDEX_BY_NAME_PASSWORD": "sec@ret",
        },
    )
    mine, named, default = config_of(uv)["index"]
    assert (mine["name"], mine["url"]) == ("mine", f"{address}/mine")
    assert (named["name"], named["url"]) == ("by-name", "https://me:sec%40ret@host/named")
    assert (default["url"], default["default"]) == (address, True)
    assert "ret" not in str(uv.variables(builds=builds))
    assert not any(b"ret" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_an_explicit_index_gives_its_login_and_hides_no_index_of_the_same_name(tmp_path):
    environ = {"UV_INDEX": "corp=https://host/corp", "UV_INDEX_CORP_USERNAME": "me"}
    environ |= {"UV_INDEX_CORP_PASSWORD": "secret", "HOME": str(tmp_path)}
    uv = Uv(tmp_path / "cache", environ=environ, indexes=(PackageIndex("corp", "https://host/mine", True),))
    mine, configured, _default = config_of(uv)["index"]
    assert (mine["url"], mine["explicit"]) == ("https://me:secret@host/mine", True)
    assert (configured["name"], configured["url"]) == ("corp", "https://me:secret@host/corp")
    assert mine["name"] != "corp"


def test_open_index_is_cached_by_a_configuration_of_ours(tmp_path):
    uv = uv_with(tmp_path, {"UV_INDEX_URL": "https://host/simple"})
    assert "UV_DEFAULT_INDEX" not in uv.variables()
    (index,) = config_of(uv)["index"]
    assert (index["url"], index["default"]) == ("https://host/simple", True)
    assert "max-age=600" in index["cache-control"]["api"]


@pytest.mark.parametrize(
    ("environ", "urls"),
    [
        ({}, [PUBLIC]),
        ({"UV_INDEX": "https://more/simple"}, ["https://more/simple", PUBLIC]),
        (
            {"PIP_EXTRA_INDEX_URL": "https://more/simple"},
            [PUBLIC, "https://more/simple", PUBLIC],
        ),
    ],
)
def test_the_public_index_is_asked_where_no_other_is_the_default(tmp_path, monkeypatch, environ, urls):
    monkeypatch.setattr("bisect_env.environments.settings.pip_config_files", lambda environ: iter(()))
    uv = uv_with(tmp_path, environ)
    assert uv.index == PUBLIC
    tables = config_of(uv)["index"]
    assert [table["url"] for table in tables] == urls
    assert [table.get("default", False) for table in tables] == [False] * (len(urls) - 1) + [True]


def test_the_users_own_uv_toml_speaks_for_itself(tmp_path):
    config = tmp_path / ".config" / "uv" / "uv.toml"
    config.parent.mkdir(parents=True)
    config.write_text(
        'keyring-provider = "subprocess"\nindex-strategy = "unsafe-best-match"\n'
        'https-proxy = "http://me:hunter2@proxy"\npython-install-mirror = "https://me:hunter2@mirror"\n'
        '[pip]\nfind-links = ["wheels"]\n'
        '[[index]]\nname = "corp"\nurl = "https://corp/simple"\ndefault = true\nauthenticate = "always"\n'
        '[[index]]\nname = "more"\nurl = "https://corp/more"\n'
    )
    uv = uv_with(tmp_path, {})
    ours = config_of(uv)
    assert [one["url"] for one in ours["index"]] == ["https://corp/more", "https://corp/simple"]
    assert ours["index"][0]["name"] == "more"
    assert (ours["index"][1]["default"], ours["index"][1]["authenticate"]) == (True, "always")
    assert ours["keyring-provider"] == "subprocess"
    assert ours["index-strategy"] == "unsafe-best-match"
    assert ours["find-links"] == [str(config.parent / "wheels")]
    assert ours["https-proxy"] == "http://me:hunter2@proxy"
    assert ours["python-install-mirror"] == "https://me:hunter2@mirror"
    assert "hunter2" not in str(uv.variables())


@pytest.mark.parametrize("builds", [False, True])
def test_a_token_in_the_address_of_an_index_reaches_uv_and_no_variable(tmp_path, builds):
    address = "https://corp/simple?token=hunter2"
    uv = uv_with(tmp_path, {"UV_DEFAULT_INDEX": address})
    assert [one["url"] for one in config_of(uv)["index"]] == [address]
    assert "hunter2" not in str(uv.variables(builds=builds))


@pytest.mark.integration
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        'prerelease = "allow"',
        'resolution = "lowest"',
        'exclude-newer = "2019-01-01"',
        'constraint-dependencies = ["beta<2"]',
        'override-dependencies = ["beta<2"]',
        'no-binary-package = ["beta"]',
        '[pip]\nresolution = "lowest"',
        "[pip]\nno-deps = true",
        '[[dependency-metadata]]\nname = "alpha"\nversion = "1.0"\nrequires-dist = []',
    ],
)
def test_a_uv_toml_says_where_packages_come_from_and_not_which(
    index, cache, python, tmp_path, monkeypatch, text, named
):
    index.add("alpha", "1.0", requires=("beta",))
    for version in ("1.0", "2.0", "3.0b1"):
        index.add("beta", version)
    place = tmp_path / "config" / "uv" / "uv.toml"
    place.parent.mkdir(parents=True)
    place.write_text(f'index-url = "{index.url}"\n{text}\n')
    monkeypatch.setenv(
        *("UV_CONFIG_FILE", str(place)) if named else ("XDG_CONFIG_HOME", str(tmp_path / "config"))
    )
    lock = Environments(cache).solve(EnvironmentRequest(python, {"alpha": "1.0"}))
    assert [f"{package.name} {package.version}" for package in lock.packages] == ["alpha 1.0", "beta 2.0"]
    ensure_prefix(lock, cache_dir=cache).release()


@pytest.mark.parametrize(
    ("words", "transient"),
    [
        ("Failed to fetch: x\nerror sending request for url (x)\ntcp connect error", True),
        ("Request failed after 3 retries in 8.2s", True),
        ("HTTP status server error (503 Service Unavailable) for url", True),
        ("HTTP status client error (403 Forbidden) for url", True),
        ("HTTP status client error (404 Not Found) for url", False),
        ("Hash mismatch for `six==1.17.0`", True),
        ("failed to write: No space left on device (os error 28)", True),
        ("Failed to build `a==1`\nerror: command 'gcc' failed", False),
        ("", False),
    ],
)
def test_what_is_worth_another_attempt(words, transient):
    assert is_transient(words) is transient


def test_plain_words_keep_the_reason_and_both_ends():
    text = "warning: x\nUsing Python 3.8\nerror: Failed to build `a==1`\n"
    text += "  cause: The build backend\n         [stderr]\n"
    assert plain_words(text) == "Failed to build `a==1`\nThe build backend\n         [stderr]"
    long = plain_words("error: start\n" + "x\n" * 9000 + "the end", limit=1000)
    assert long.startswith("start")
    assert long.endswith("the end")
    assert len(long) < 1100


@pytest.mark.integration
def test_a_tool_that_does_not_end_is_ended_with_its_children(tmp_path):
    # A shell has said who its child is long before its time is over, however busy the machine.
    code = "trap '' TERM; sleep 600 & echo $!; wait"
    finished = run_tool(["/bin/sh", "-c", code], env={}, cwd=tmp_path, timeout=2)
    assert finished.timed_out
    assert finished.returncode == -signal.SIGKILL
    child = int(finished.stdout)
    deadline = time.monotonic() + 20
    while _alive(child):
        assert time.monotonic() < deadline, "the grandchild outlived its group"
        time.sleep(0.02)


@pytest.mark.integration
def test_a_tool_that_leaves_a_server_behind_does_not_keep_us(tmp_path):
    code = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)"
    finished = run_tool([sys.executable, "-c", code], env=dict(os.environ), cwd=tmp_path, timeout=60)
    server = int(finished.stdout)
    try:
        assert (finished.returncode, finished.timed_out) == (0, False)
        assert _alive(server), "waited for the server that holds the output open"
    finally:
        os.kill(server, signal.SIGKILL)


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.integration
def test_a_uv_toml_in_the_place_of_temporary_files_is_not_read(index, cache, python, tmp_path, monkeypatch):
    # The user's own configuration counts, and so there is none of ours that would keep uv from looking.
    own = tmp_path / "config" / "uv" / "uv.toml"
    own.parent.mkdir(parents=True)
    own.write_text(f'index-url = "{index.url}"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "uv.toml").write_text('index-url = "http://127.0.0.1:9/of-somebody-else"\n')
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    index.add("alpha", "1.0")
    lock = Environments(cache).solve(EnvironmentRequest(python, {"alpha": "1.0"}))
    assert [package.name for package in lock.packages] == ["alpha"]


@pytest.mark.integration
def test_a_build_cannot_read_what_uv_was_told(tmp_path, monkeypatch, python):
    """Not even a build before which uv has asked no index."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password hunter2\n")
    monkeypatch.setenv("NETRC", str(netrc))
    project, seen = tmp_path / "project", tmp_path / "seen"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "back"\nbackend-path = ["."]\n'
    )
    (project / "back.py").write_text(
        "import os, pathlib, sys\n"
        "def build_wheel(*arguments):\n"
        "    inputs = [sys.stdin.read()]\n"
        "    for pid in (os.getppid(), os.getpid()):\n"
        "        inputs.append(os.read(os.open(f'/proc/{pid}/fd/0', os.O_RDONLY), 9999).decode())\n"
        f"    pathlib.Path({str(seen)!r}).write_text(repr((inputs, dict(os.environ))))\n"
        "    raise SystemExit(1)\n"
    )
    args = ["build", "--wheel", "-p", python, "-o", tmp_path / "out", project]
    uv = Uv(tmp_path / "cache", "http://127.0.0.1:9/simple")
    done = uv.run(args, cwd=tmp_path, timeout=60, builds=True)
    assert done.returncode != 0
    assert seen.read_text().startswith("(['', '', '']"), done.stderr
    assert "hunter2" not in seen.read_text()
    assert str(netrc) not in seen.read_text()
