from __future__ import annotations

import pytest
from pypi_simple import PYPI_SIMPLE_ENDPOINT

from bisect_env.environments.settings import certificates, configured_places, default_cache_dir
from bisect_env.environments.uv_tool import configured_index, public_index
from bisect_env.errors import InfrastructureError
from bisect_env.matrix.versions import PackageIndex
from bisect_env.secrets import without_credentials


@pytest.fixture
def home(tmp_path, monkeypatch):
    # The host's own files, such as /etc/pip.conf, would answer first.
    monkeypatch.setattr("bisect_env.environments.settings.sys.prefix", str(tmp_path / "venv"))
    return tmp_path


def environ(home, **more):
    return {"HOME": str(home), "XDG_CONFIG_DIRS": str(home / "xdg"), **more}


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_any_setting_it_is_the_public_index(home, monkeypatch):
    monkeypatch.setattr("bisect_env.environments.settings.pip_config_files", lambda environ: iter(()))
    monkeypatch.setattr("os.environ", environ(home))
    public_index.cache_clear()
    assert configured_index() == PYPI_SIMPLE_ENDPOINT.rstrip("/")


@pytest.mark.parametrize("text", ['[[index]]\nurl = "http://me:hunter2@x/"', "no-index = true"])
def test_a_named_file_without_a_default_index_leaves_the_public_one(home, monkeypatch, text):
    write(home / "named.toml", text)
    monkeypatch.setattr("bisect_env.environments.settings.pip_config_files", lambda environ: iter(()))
    monkeypatch.setattr("os.environ", environ(home, UV_CONFIG_FILE=str(home / "named.toml")))
    public_index.cache_clear()
    assert configured_index() == PYPI_SIMPLE_ENDPOINT.rstrip("/")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ('index-url = "http://a/simple"', "http://a/simple"),
        ('[pip]\nindex-url = "http://b/simple"', "http://b/simple"),
        (
            '[[index]]\nurl = "http://x/"\n[[index]]\nname = "n"\nurl = "http://c/"\ndefault = true',
            "http://c/",
        ),
    ],
)
def test_uv_toml(home, text, url):
    write(home / ".config" / "uv" / "uv.toml", text)
    assert configured_places(environ(home)).default == url


def test_pip_conf_and_its_sections(home):
    write(home / ".config" / "pip" / "pip.conf", "[global]\nindex-url = http://g/simple\ntimeout = 3\n")
    assert configured_places(environ(home)).default == "http://g/simple"
    write(
        home / ".config" / "pip" / "pip.conf",
        "[global]\nindex-url = http://g/\n[install]\nindex-url = http://i/\n",
    )
    assert configured_places(environ(home)).default == "http://i/"


def test_uv_comes_before_pip_and_the_environment_before_files(home):
    write(home / ".config" / "pip" / "pip.conf", "[global]\nindex-url = http://pip-file/\n")
    assert configured_places(environ(home, PIP_INDEX_URL="http://pip-env/")).default == "http://pip-env/"
    write(home / ".config" / "uv" / "uv.toml", 'index-url = "http://uv-file/"')
    assert configured_places(environ(home, PIP_INDEX_URL="http://pip-env/")).default == "http://uv-file/"
    assert configured_places(environ(home, UV_INDEX_URL="http://uv-env/")).default == "http://uv-env/"
    named = environ(home, UV_DEFAULT_INDEX="mine=http://uv-default/?a=b", UV_INDEX_URL="http://uv-env/")
    assert configured_places(named).default == "http://uv-default/?a=b"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("uv/uv.toml", "index-url = "),
        ("uv/uv.toml", "index = 3"),
        ("uv/uv.toml", "[[index]]\nname = 'without an address'"),
        ("pip/pip.conf", "index-url without a section"),
    ],
)
def test_broken_configuration_is_named(home, name, text):
    write(home / ".config" / name, text)
    with pytest.raises(InfrastructureError, match=r"remedy: correct or remove that file") as raised:
        configured_places(environ(home))
    assert str(home / ".config" / name) in str(raised.value)


def test_what_a_variable_holds_is_no_yaml(home, tmp_path, monkeypatch):
    place = tmp_path / "cert: [*it's # here"
    place.touch()
    write(home / ".condarc", "ssl_verify: ${MY_PLACE}\n")
    monkeypatch.setenv("MY_PLACE", str(place))
    assert certificates(environ(home)) == {"SSL_CERT_FILE": str(place)}


def test_credentials_are_not_shown():
    assert (
        without_credentials("https://user:pa%40ss@host:8443/simple/?q=1") == "https://host:8443/simple/?q=1"
    )
    assert without_credentials("https://host/a@b") == "https://host/a@b"


def test_cache_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("BISECT_ENV_CACHE", str(tmp_path / "here"))
    assert default_cache_dir() == tmp_path / "here"
    monkeypatch.delenv("BISECT_ENV_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache_dir() == tmp_path / "xdg" / "bisect-env"


@pytest.mark.parametrize(
    ("configured", "is_sent"),
    [
        ("", True),
        ("corp=https://own.example/simple", True),
        ("corp=https://other.example/simple", False),
    ],
)
def test_a_matrix_gets_no_login_of_another_server(home, configured, is_sent):
    """A matrix may be somebody else's, and name its own server like one of ours."""
    environ = {"UV_INDEX": configured, "UV_INDEX_CORP_USERNAME": "ada", "UV_INDEX_CORP_PASSWORD": "lovelace"}
    named = [PackageIndex("corp", "https://own.example/nightly")]
    first, *_ = configured_places(environ, indexes=named).before
    assert ("lovelace" in first.url) is is_sent
