"""What other tools say about an environment: files that the tools wrote themselves, and real directories."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.markers import default_environment

from bisect_env.environments import foreign_conda, foreign_installed, foreign_locks, foreign_reading
from bisect_env.environments.foreign import read_environment
from bisect_env.environments.foreign_reading import fitting_python
from bisect_env.errors import UsageError

HERE = Path(__file__).parent / "foreign"

# What resolvers that take one version for every Python settled on, and those that take one for each.
ONE_FOR_ALL = {"iniconfig": "2.1.0", "python-dateutil": "3.0.0", "six": "1.17.0", "urllib3": "2.6.3"}
ONE_FOR_EACH = {"iniconfig": "2.3.1", "python-dateutil": "4.0.0", "urllib3": "2.8.0"}
BOTH = {"click": "8.1.8", "tzdata": "2026.6"}

LINUX = {**default_environment(), "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
WINDOWS = {**LINUX, "sys_platform": "win32", "platform_system": "Windows", "os_name": "nt"}


@pytest.fixture(autouse=True)
def _on_linux(monkeypatch):
    """Let these tests have one result on every machine."""
    monkeypatch.setattr(foreign_reading, "default_environment", lambda: LINUX)
    for module in (foreign_conda, foreign_installed, foreign_locks):
        monkeypatch.setattr(module, "host_platform", lambda: "linux-64")


def versions(name, **options):
    found = read_environment(HERE / name, python=options.pop("python", "3.11"), **options)
    return {package.name: package.version for package in found.packages}


@pytest.mark.parametrize(
    ("name", "kind", "more"),
    [
        ("uv.lock", "uv.lock 1", {**ONE_FOR_EACH, "colorama": "0.4.6"}),
        ("pylock.uv.toml", "pylock.toml 1.0 by uv", ONE_FOR_EACH),
        ("requirements.uv.txt", "pip's requirements with hashes", ONE_FOR_EACH),
        ("poetry.lock", "poetry.lock 2.1", {**ONE_FOR_ALL, "colorama": "0.4.6"}),
        ("pdm.lock", "pdm.lock 4.5.0", {**ONE_FOR_ALL, "colorama": "0.4.6"}),
        ("Pipfile.lock", "Pipfile.lock 6", ONE_FOR_EACH),
    ],
)
def test_locks_of_projects(name, kind, more):
    found = read_environment(HERE / name, python="3.11")
    assert found.format == kind
    assert versions(name) == {**BOTH, **more}
    assert all(len(hash_) == 64 for hashes in found.hashes.values() for hash_ in hashes)
    assert all(found.hashes[package.manager, package.name] for package in found.packages)
    # The local package is named with its reason, and so is what is for older Pythons alone.
    reasons = found.left_out
    assert any(word in reasons["helper"] for word in ("editable", "local"))
    assert "not for this Python" in reasons["exceptiongroup"]


@pytest.mark.parametrize(
    ("stated", "is_left_out"),
    [(">= 3.12", True), (">= 3.9, < 3.11", True), ("^3.12", True), (">= 3.9", False), ("^3.9", False)],
)
def test_python_versions_of_poetry_are_read_as_poetry_does(tmp_path, stated, is_left_out):
    text = (HERE / "poetry.lock").read_text()
    before, name, after = text.partition('name = "click"')
    (tmp_path / "poetry.lock").write_text(
        before + name + re.sub('python-versions = ".*"', f'python-versions = "{stated}"', after, count=1)
    )
    found = read_environment(tmp_path / "poetry.lock", python="3.11")
    assert ("click" in found.left_out) is is_left_out


@pytest.mark.parametrize(
    "name", ["uv.lock", "pylock.uv.toml", "requirements.uv.txt", "poetry.lock", "pdm.lock"]
)
def test_the_same_lock_for_an_older_python(name):
    found = versions(name, python="3.9")
    assert found["exceptiongroup"] == "1.3.1"
    assert found["python-dateutil"] == "3.0.0"
    assert found["urllib3"] == "2.6.3"


def test_a_project_lock_for_windows_has_its_packages(monkeypatch):
    monkeypatch.setattr(foreign_reading, "default_environment", lambda: WINDOWS)
    found = read_environment(HERE / "pylock.uv.toml", python="3.11")
    assert "colorama" in {package.name for package in found.packages}


def test_pip_writes_a_pylock_and_a_freeze():
    assert versions("pylock.pip.toml") == {
        k: v for k, v in {**BOTH, **ONE_FOR_EACH}.items() if k != "iniconfig"
    }
    found = read_environment(HERE / "freeze.pip.txt")
    assert versions("freeze.pip.txt") == {**BOTH, **ONE_FOR_EACH}
    assert set(found.left_out) == {"demo", "helper"}
    assert "2 left out" in found.summary()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("conda-list-explicit.txt", "conda list --explicit"),
        ("conda-list-export.txt", "conda list --export"),
        ("conda-env-export.yml", "conda env export"),
        ("conda-lock.yml", "conda-lock.yml 1"),
        ("pixi.lock", "pixi.lock 7"),
    ],
)
def test_conda_formats(name, kind):
    found = read_environment(HERE / name)
    assert found.format == kind
    assert found.python == "3.11.7"
    assert [package.spec for package in found.packages if package.manager == "conda"] == [
        "alpha ==1.0 py_0",
        "beta ==2.1 py_3",
        "libgamma ==0.9 h1234567_2",
        "python ==3.11.7 h0_0_cp311",
    ]
    if name != "conda-list-export.txt":
        assert found.channels[0] == "https://conda.example/chan"
    if name in ("conda-lock.yml", "pixi.lock"):
        assert [package.name for package in found.packages if package.manager == "pip"] == ["six"]


def test_archives_of_no_channel_are_left_out_of_an_explicit_list(tmp_path):
    listing = tmp_path / "list.txt"
    listing.write_text("@EXPLICIT\nalpha-1.0-py_0.conda\nhttps://c.example/chan/linux-64/beta-2.1-0.conda\n")
    found = read_environment(listing)
    assert [package.spec for package in found.packages] == ["beta ==2.1 0"]
    assert set(found.left_out) == {"alpha-1.0-py_0.conda"}
    assert (found.channels, found.platform) == (("https://c.example/chan",), "linux-64")


def test_conda_packages_that_pixi_builds_are_left_out(tmp_path):
    archive = "https://c.example/chan/noarch/alpha-1.0-py_0.conda"
    sources = {"mine": "./mine", "theirs": "git+https://code.example/theirs?rev=main#1234567"}
    stated = "".join(
        f"- conda: {address}\n  name: {name}\n  version: 0.1.0\n  build: h_0\n  subdir: noarch\n"
        for name, address in sources.items()
    )
    named = "".join(f"      - conda: {address}\n" for address in (archive, *sources.values()))
    (tmp_path / "pixi.lock").write_text(
        "version: 6\nenvironments:\n  default:\n    channels:\n    - url: https://c.example/chan\n"
        f"    packages:\n      linux-64:\n{named}packages:\n- conda: {archive}\n{stated}"
    )
    found = read_environment(tmp_path / "pixi.lock")
    assert [package.spec for package in found.packages] == ["alpha ==1.0 py_0"]
    assert found.left_out == {
        "mine": "from a local directory or archive",
        "theirs": "from a version control system",
    }


def test_newer_condas_name_wheels_in_their_lists(tmp_path):
    listing = tmp_path / "list.txt"
    listing.write_text("# platform: linux-64\n_libgcc_mutex=0.1=conda_forge\nsix=1.17.0=pypi_0\n")
    found = read_environment(listing)
    assert [p.spec for p in found.packages] == ["_libgcc_mutex ==0.1 conda_forge", "six==1.17.0"]
    export = tmp_path / "environment.yml"
    export.write_text(
        "channels: [c]\ndependencies:\n  - python=3.11.7\n  - pip:\n      - six==1.17.0\nprefix: /x\n"
    )
    found = read_environment(export)
    assert [p.spec for p in found.packages] == ["python ==3.11.7", "six==1.17.0"]


def test_a_plain_freeze_is_no_list_of_condas(tmp_path):
    freeze = tmp_path / "green.txt"
    freeze.write_text("click==8.1.8\nsix==1.17.0\n")
    assert not read_environment(freeze).uses_conda


def test_a_lock_of_another_platform_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign_conda, "host_platform", lambda: "win-64")
    with pytest.raises(UsageError, match=r"it is for linux-64, osx-arm64, and this is win-64") as caught:
        read_environment(HERE / "conda-lock.yml")
    assert "on a machine of that platform" in str(caught.value)
    mac = tmp_path / "pylock.toml"
    mac.write_text(
        'lock-version = "1.0"\ncreated-by = "x"\npackages = []\n'
        "environments = [\"sys_platform == 'darwin'\"]\n"
    )
    with pytest.raises(UsageError, match="sys_platform"):
        read_environment(mac)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.txt", "click>=8\nsix==1.17\n", "not every package is pinned to one version: click>=8 (line 1)"),
        ("a.txt", "click 8 is nice\n", "is no requirement"),
        ("a.txt", "", "without any package"),
        ("a.txt", "-r a.txt\n", "includes itself"),
        ("a.txt", "-r missing.txt\n", "missing.txt cannot be read"),
        ("pyproject.toml", '[project]\nname = "x"\n', "what a project asks for"),
        ("Cargo.toml", "[dependencies]\n", "no list of an environment's packages"),
        ("uv.lock", "not toml", "it is no TOML"),
        (
            "uv.lock",
            'version = 1\nrequires-python = ">=3.9"\npackage = [{}]\n',
            "it does not have the form that its tool gives it",
        ),
        ("package-lock.json", '{"name": "x"}', "no list of an environment's packages"),
        ("x.json", "{", "it is no JSON"),
        ("x.yml", "a: [", "it is no YAML (line"),
        ("conda-lock.yml", "a: " + "[" * 50_000, "it is no YAML"),
        ("uv.lock", "a=" + "[" * 100_000, "it is no TOML"),
        ("x.json", '{"a":' * 100_000, "it is no JSON"),
        ("a.txt", f"six; {'(' * 3000}os_name=='a'{')' * 3000}\n", "is no requirement"),
        ("x.yml", "- a\n", "no list of an environment's packages"),
        ("environment.yml", "dependencies: [numpy]\n", "not every package is pinned to one version: numpy"),
        ("pixi.lock", "version: 6\nenvironments: 7\npackages: []\n", "py-rattler cannot read it"),
    ],
)
def test_what_is_no_lock_says_so(tmp_path, name, text, says):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_environment(path)
    assert says in str(caught.value)
    assert "remedy:" in str(caught.value)


def test_a_file_that_is_not_there_names_what_lies_beside(tmp_path):
    (tmp_path / "uv.lock").write_text("")
    with pytest.raises(UsageError, match=r"there is no such file; beside it lies uv.lock"):
        read_environment(tmp_path / "uv.lok")
    (tmp_path / "binary.lock").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="no text in UTF-8"):
        read_environment(tmp_path / "binary.lock")
    with pytest.raises(UsageError, match="neither a virtual nor a conda environment"):
        read_environment(tmp_path)


def test_requirements_may_include_others_and_name_addresses(tmp_path):
    (tmp_path / "base.txt").write_text("six==1.17.0\n")
    (tmp_path / "a.txt").write_text(
        "--index-url https://index.example/simple\n-r base.txt\n-c limits.txt\n"
        "idna==3.7  # a comment\n"
        "click @ git+https://code.example/click@8\n"
        "--pre\n--global-option=x\n"
        "./local\n"
        "https://files.example/x-1-py3-none-any.whl\n"
        "file:///wheels/y-1-py3-none-any.whl\n"
        "attrs===23.1 ; python_version < '3'\n"
    )
    found = read_environment(tmp_path / "a.txt")
    assert [package.spec for package in found.packages] == ["idna==3.7", "six==1.17.0"]
    reasons = found.left_out
    assert reasons["click"] == "from a version control system"
    assert reasons["local"] == "from a local directory or archive"
    assert reasons["x-1-py3-none-any.whl"].startswith("from an archive's address")
    assert reasons["y-1-py3-none-any.whl"] == "from a local directory or archive"
    assert "attrs" in reasons
    assert any("constraints are not read" in note for note in found.notes)
    (ignored,) = [note for note in found.notes if "is not followed" in note]
    assert "--global-option" in ignored


def test_a_list_includes_nothing_outside_of_its_folder_and_shows_no_line_of_what_is_no_list(tmp_path):
    secret = tmp_path / "netrc"
    secret.write_text("machine index.example\nlogin me\npassword hunter2\n")
    token = tmp_path / "token"
    token.write_text("hunter2\n")
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "link.txt").symlink_to(secret)
    (repository / ".env").write_text("password hunter2\n")
    os.mkfifo(repository / "pipe")
    for included in (secret, "../netrc", "link.txt", ".env", "pipe", "/dev/zero", "/etc/shadow"):
        (repository / "list.txt").write_text(f"idna==3.7\n-r {included}\n")
        with pytest.raises(UsageError) as caught:
            read_environment(repository / "list.txt")
        said = str(caught.value)
        assert "hunter2" not in said
        assert "root:" not in said
        assert "line " in said
    # The list itself may be a link, too.
    for hidden in (secret, token):
        (repository / "list.txt").unlink()
        (repository / "list.txt").symlink_to(hidden)
        with pytest.raises(UsageError) as caught:
            read_environment(repository / "list.txt")
        assert "hunter2" not in str(caught.value)
        assert "machine" not in str(caught.value)


def test_lists_that_grow_are_not_followed(tmp_path):
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text(f"-r {number + 1}.txt\n" * 2)
    (tmp_path / "40.txt").write_text("idna==3.7\n")
    with pytest.raises(UsageError, match="lists are included"):
        read_environment(tmp_path / "0.txt")


LONG = "a" * 1_000_000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", f"{LONG}==1.0\n"),
        ("a.txt", f"{LONG}\n"),
        ("a.txt", f"a[{'b,' * 500_000}b]==1.0\n"),
        ("a.txt", f"a=={'1.' * 500_000}1\n"),
        ("a.txt", f'a==1; python_version < "{"1" * 10_000}"\n'),
        ("a.txt", f"{LONG}=1.0=py_0\n"),
        ("a.txt", f"@EXPLICIT\nhttps://x.example/linux-64/{LONG}-1.0-0.conda\n"),
        ("Pipfile.lock", json.dumps({"_meta": {}, "default": {LONG: {"version": "==1.0"}}})),
        ("environment.yml", f"dependencies: [{LONG}=1.0=py_0]\n"),
    ],
    ids=["name", "unpinned", "extras", "version", "marker", "conda list", "explicit", "json", "yaml"],
)
def test_words_of_a_megabyte_are_refused_in_few_words(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_environment(path)
    assert len(str(caught.value)) < 1000


@pytest.mark.integration
def test_a_virtual_environment_is_read_from_its_directory(tmp_path):
    where = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", where], check=True)
    (site,) = where.glob("lib/python3*/site-packages")
    for name, version, more in [
        ("Six", "1.17.0", {}),
        ("pip", "26.3", {}),
        ("mine", "0.1", {"editable": True}),
    ]:
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        if more:
            (info / "direct_url.json").write_text(json.dumps({"url": "file:///x", "dir_info": more}))
    found = read_environment(where)
    assert found.format == "a virtual environment"
    assert found.python == "{}.{}.{}".format(*sys.version_info[:3])
    assert [package.spec for package in found.packages] == ["six==1.17.0"]
    assert set(found.left_out) == {"pip", "mine"}
    with pytest.raises(UsageError, match="did you mean"):
        read_environment(tmp_path)


def test_a_conda_environment_is_read_from_its_directory(tmp_path):
    meta = tmp_path / "conda-meta"
    meta.mkdir()
    site = tmp_path / "lib/python3.11/site-packages"
    for name, version in (("alpha", "1.0"), ("wheelie", "2.0")):
        (site / f"{name}-{version}.dist-info").mkdir(parents=True)
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (site / f"{name}-{version}.dist-info/METADATA").write_text(text)
    for name, version, files in [
        ("python", "3.11.7", []),
        ("alpha", "1.0", ["lib/python3.11/site-packages/alpha-1.0.dist-info/METADATA"]),
    ]:
        record = {"name": name, "version": version, "build": "0", "files": files}
        record["url"] = f"https://conda.example/chan/linux-64/{name}-{version}-0.conda"
        (meta / f"{name}.json").write_text(json.dumps(record))
    found = read_environment(tmp_path)
    assert (found.python, found.platform) == ("3.11.7", "linux-64")
    assert [p.spec for p in found.packages] == ["alpha ==1.0 0", "python ==3.11.7 0", "wheelie==2.0"]
    assert found.channels == ("https://conda.example/chan",)


def test_the_python_for_environments_that_state_none():
    assert fitting_python([">=3.9", ""], here="3.11") == "3.11"
    assert fitting_python([">=3.9,<3.11"], here="3.12") == "3.10"
    assert fitting_python([">=3.9", "<3.8"], here="3.11") == ""


def test_tokens_in_addresses_of_requirements_are_not_told(tmp_path):
    place = tmp_path / "requirements.txt"
    place.write_text(
        "https://host/a-1-py3-none-any.whl?token=HUNTER2\n-e git+https://host/b.git?token=HUNTER2\n"
        "https://host/?token=HUNTER2\nclick==8.1.8\n"
    )
    found = read_environment(place, python="3.11")
    assert set(found.left_out) == {"a-1-py3-none-any.whl", "b.git", "https://host/"}
