"""Private channels: a real https server with a certificate of its own, passwords, tokens, and `fetch`."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trustme

from bisect_env.environments.conda_process import HelperPool
from bisect_env.environments.download import download_conda
from bisect_env.environments.lock import UnbuildableError
from bisect_env.environments.lockfiles import read_lock
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.environments.settings import certificates

from .conda_channel import Channel
from .index_server import IndexServer, serve
from .test_conda import run

BASIC = "Basic " + base64.b64encode(b"me:word").decode()
pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "bisect_env"]
SECRETS = ("word", "to-ken", BASIC.split()[1])
MATRIX = """\
version: 1
name: private
axes:
  python: {{package: python, manager: conda, versions: ["{python}"]}}
  demo: {{package: demo, manager: conda, versions: ["1.0", "2.0"]}}
channels: ["{channel}"]
trial:
  command: python -c "import demo"
"""


class Private:
    """A channel that only those who prove themselves may read.

    Args:
        folder: For everything.
        python: Version.
    """

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        self.python = python
        authority = trustme.CA()
        self.authority = folder / "authority.pem"
        authority.cert_pem.write_to_path(str(self.authority))
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(tls)
        self.index = IndexServer()
        self.server = serve(self.index, tls)
        self.channel = Channel(folder / "channel")
        self.channel.add_python()
        for version in ("1.0", "2.0"):
            self.channel.add_library("demo", version)
        self.channel.write()
        self.url = self.channel.serve(self.index)
        self.host = self.url.split("/")[2]
        self.index.on_request = self._admit
        self.home = folder / "home"
        self.home.mkdir()
        self.refused = 0

    def _admit(self, path: str) -> int | None:
        if path.startswith("/t/to-ken/"):
            self.index.folders["/t/to-ken/conda"] = self.channel.folder
            return None
        if self.index.headers[-1].get("authorization") in (BASIC, "Bearer to-ken"):
            return None
        self.refused += 1
        return 401

    def configure(self, text: str, *, trusting: bool = True) -> None:
        if trusting:
            text += f"ssl_verify: {self.authority}\n"
        (self.home / ".condarc").write_text(text)

    def matrix(self, channel: str) -> Path:
        path = self.folder / "private.yaml"
        path.write_text(MATRIX.format(python=self.python, channel=channel))
        return path

    def command(self, *words: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
        env = {
            k: v for k, v in os.environ.items() if not k.startswith(("SSL_", "REQUESTS_", "CURL_", "CONDA"))
        }
        env |= {"HOME": str(self.home), "BISECT_ENV_CACHE": str(self.folder / "cache"), **environ}
        command = [*COMMAND, *words]
        done = subprocess.run(command, env=env, cwd=self.folder, capture_output=True, text=True, timeout=250)
        assert not [secret for secret in SECRETS if secret in done.stdout + done.stderr]
        assert "Traceback" not in done.stderr
        return done


@pytest.fixture
def private(tmp_path, python):
    private = Private(tmp_path, python)
    yield private
    private.server.shutdown()
    private.server.server_close()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("condarc", "stored", "netrc", "name"),
    [
        ("custom_channels: {{conda: 'https://me:word@{host}'}}\n", None, None, "conda"),
        ("channel_alias: https://{host}/t/to-ken\n", None, None, "conda"),
        (
            "",
            {"127.0.0.1": {"BasicHTTP": {"username": "me", "password": "word"}}},
            None,
            "https://{host}/conda",
        ),
        ("", {"127.0.0.1": {"CondaToken": "to-ken"}}, None, "https://{host}/conda"),
        ("", {"127.0.0.1": {"BearerToken": "to-ken"}}, None, "https://{host}/conda"),
        ("", None, "machine 127.0.0.1 login me password word\n", "https://{host}/conda"),
    ],
    ids=[
        "password in .condarc",
        "token in .condarc",
        "stored password",
        "stored token",
        "stored bearer",
        "netrc",
    ],
)
def test_plan_and_fetch_with_the_users_own_credentials(private, condarc, stored, netrc, name, tmp_path):
    private.configure(condarc.format(host=private.host))
    environ = {}
    if stored is not None:
        (tmp_path / "credentials.json").write_text(json.dumps(stored))
        environ["RATTLER_AUTH_FILE"] = str(tmp_path / "credentials.json")
    if netrc is not None:
        (private.home / ".netrc").write_text(netrc)
        (private.home / ".netrc").chmod(0o600)
    matrix, bundle = private.matrix(name.format(host=private.host)), tmp_path / "bundle"
    done = private.command("env", "fetch", matrix, "-o", bundle, "--no-pythons", **environ)
    assert done.returncode == 0, done.stderr
    archives = [path for path in private.index.requests if path.endswith(".conda")]
    assert len({path.rsplit("/", 1)[1] for path in archives}) == 3
    written = [path for path in bundle.rglob("*") if path.suffix in (".yml", ".yaml", ".json")]
    assert written
    assert not [p for p in written for secret in SECRETS if secret in p.read_text()]
    locks = [read_lock(path) for path in sorted(bundle.rglob("*.conda-lock.yml"))]
    assert {p.url.rsplit("/", 2)[0] for lock in locks for p in lock.packages} == {private.url}
    asked = len(private.index.requests)
    prefix = ensure_prefix(locks[0], cache_dir=tmp_path / "cache-there", offline=bundle)
    assert run(prefix, "import demo; print(demo.__version__)") in ("1.0", "2.0")
    assert len(private.index.requests) == asked


@pytest.mark.integration
def test_a_certificate_that_nobody_vouches_for(private):
    private.configure("ssl_verify: false\n", trusting=False)
    done = private.command("plan", private.matrix(private.url))
    assert done.returncode != 0
    assert f"the conda channel {private.url} cannot be trusted: invalid peer certificate" in done.stderr
    assert "`ssl_verify: FILE` in ~/.condarc, or SSL_CERT_FILE" in done.stderr
    trusting = {"REQUESTS_CA_BUNDLE": str(private.authority)}
    assert "answers 401" in private.command("plan", private.matrix(private.url), **trusting).stderr


@pytest.mark.integration
def test_a_password_that_is_wrong(private):
    private.configure(f"custom_channels: {{conda: 'https://me:wordy@{private.host}'}}\n")
    done = private.command("plan", private.matrix("conda"))
    assert done.returncode != 0
    assert f"the conda channel {private.url} answers 401 Unauthorized" in done.stderr
    assert "credentials (~/.condarc, rattler's authentication file)" in done.stderr


@pytest.mark.integration
class TestOneArchive:
    def test_failures(self, private, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(private.home))
        private.configure(f"custom_channels: {{conda: 'https://me:word@{private.host}'}}\n")
        (archive,) = (private.channel.folder / "noarch").glob("demo-1.0*.conda")
        pool = HelperPool()
        released = threading.Event()
        try:
            for name, status, transient, shown in (
                ("gone-1-0.conda", None, False, "404"),
                (archive.name, 500, True, "500"),
                (archive.name, 403, True, "403"),
            ):
                if status:
                    private.index.on_request = lambda path, status=status: status
                url = f"{private.url}/noarch/{name}"
                with pytest.raises(UnbuildableError, match=shown) as raised:
                    download_conda(url, tmp_path / "archive", pool=pool)
                assert raised.value.transient is transient
                assert "word" not in str(raised.value)
            assert private.index.requests.count(f"/conda/noarch/{archive.name}") == 3 + 1, "500: tried again"
            private.index.on_request = lambda path: released.wait(60) and None
            with pytest.raises(UnbuildableError, match="no data for") as raised:
                download_conda(url, tmp_path / "archive", pool=pool, stall=1.0)
            assert raised.value.transient
            assert not pool.idle, "the process that still waits is gone"
            released.set()
            private.index.on_request = lambda path: None
            download_conda(url, tmp_path / "archive", pool=pool)
        finally:
            released.set()
            pool.close()
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        assert hashlib.sha256((tmp_path / "archive").read_bytes()).hexdigest() == digest


def test_whom_to_trust(tmp_path):
    home, bundle = tmp_path / "home", tmp_path / "bundle.pem"
    home.mkdir()
    bundle.write_text("")
    own = {"HOME": str(home)}
    assert certificates(own) == {}
    assert certificates({**own, "CURL_CA_BUNDLE": str(bundle)}) == {"SSL_CERT_FILE": str(bundle)}
    assert certificates({**own, "SSL_CERT_FILE": "x", "REQUESTS_CA_BUNDLE": str(bundle)}) == {}
    assert certificates({**own, "REQUESTS_CA_BUNDLE": str(tmp_path)}) == {"SSL_CERT_DIR": str(tmp_path)}
    (home / ".condarc").write_text(f"ssl_verify: {bundle}\n")
    assert certificates({**own, "SSL_CERT_FILE": "x"}) == {"SSL_CERT_FILE": str(bundle)}
    (home / ".condarc").write_text("ssl_verify: true\n")
    assert certificates({**own, "SSL_CERT_FILE": "x"}) == {}
