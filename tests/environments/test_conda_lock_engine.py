"""conda-lock as the solver: what it is asked, what it answers, and the refusal where there is none."""

from __future__ import annotations

import stat

import pytest
import yaml

from bisect_env.environments import conda_lock
from bisect_env.environments.lock import UnsolvableError
from bisect_env.environments.provider import Environments
from bisect_env.environments.request import CondaRequest, EnvironmentRequest
from bisect_env.environments.settings import ChannelPlaces
from bisect_env.errors import InfrastructureError

CHANNEL = "https://conda.example/main"


def request(**more):
    conda = CondaRequest((CHANNEL,), engine="conda-lock", **more)
    return EnvironmentRequest("3.11", conda=conda, platform="linux-64")


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """No conda anywhere; gives back a folder that is on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("CONDA_EXE", "MAMBA_EXE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_without_a_solver_it_is_refused_and_nothing_is_downloaded(bare, tmp_path):
    with pytest.raises(InfrastructureError) as raised:
        Environments(tmp_path / "cache").solve(request(pins={"demo": "1.0"}))
    assert str(raised.value) == (
        "`engine: conda-lock` needs conda, mamba or micromamba, and none of them is on this machine\n"
        "  tried: MAMBA_EXE, CONDA_EXE and PATH\n"
        "  remedy: install micromamba, or remove `engine: conda-lock`: rattler needs nothing"
    )


def test_a_solver_is_found(bare):
    solver = bare / "mamba"
    solver.write_text("#!/bin/sh\n")
    solver.chmod(solver.stat().st_mode | stat.S_IXUSR)
    assert conda_lock.find_solver() == solver


def test_what_it_is_asked():
    wanted = request(
        pins={"demo": "1.0", "torch": "2.8.0"},
        builds={"torch": "cuda*"},
        packages=("numpy >=2",),
        virtual_packages={"__cuda": "12.8", "__archspec": "x86_64"},
    )
    places = ChannelPlaces((CHANNEL, "file:///srv"), {CHANNEL: ("https://me:word@near.example",)})
    asked = yaml.safe_load(conda_lock.environment_text(wanted, places))
    assert asked == {
        "channels": ["https://me:word@near.example", "file:///srv"],
        "dependencies": ["python 3.11.*", "demo 1.0", "torch 2.8.0 cuda*", "numpy >=2"],
        "platforms": ["linux-64"],
    }
    virtual = yaml.safe_load(conda_lock.virtual_packages_text(wanted))
    assert virtual["subdirs"]["linux-64"]["packages"] == {"__cuda": "12.8", "__archspec": "1 x86_64"}


def test_what_it_answers():
    entry = {
        "name": "demo",
        "version": "1.0",
        "manager": "conda",
        "platform": "linux-64",
        "dependencies": {"python": ">=3.11", "below": ""},
        "url": "https://me:word@conda.example/t/to-ken/main/noarch/demo-1.0-py_3.tar.bz2",
        "hash": {"md5": "ab" * 16, "sha256": "cd" * 32},
        "category": "main",
        "optional": False,
    }
    text = yaml.safe_dump({"version": 1, "package": [entry, {**entry, "platform": "osx-64"}]})
    (package,) = conda_lock.read_packages(text, "linux-64")
    assert package.url == f"{CHANNEL}/noarch/demo-1.0-py_3.tar.bz2"
    assert (package.build, package.md5, package.sha256) == ("py_3", "ab" * 16, "cd" * 32)
    assert package.dependencies == (("below", ""), ("python", ">=3.11"))
    del entry["hash"]["sha256"]
    with pytest.raises(InfrastructureError, match="states no sha256"):
        conda_lock.read_packages(yaml.safe_dump({"package": [entry]}), "linux-64")


@pytest.mark.integration
@pytest.mark.parametrize(
    ("words", "kind", "shown"),
    [
        ("nothing provides demo 1.0", UnsolvableError, "nothing provides demo 1.0"),
        ("Segmentation fault", InfrastructureError, "conda-lock ended with status"),
    ],
)
def test_a_solver_that_fails(bare, tmp_path, monkeypatch, words, kind, shown):
    monkeypatch.setenv("PATH", f"{bare}:/usr/bin:/bin")
    solver = bare / "micromamba"
    solver.write_text(f"#!/bin/sh\necho '{words}' >&2\nexit 1\n")
    solver.chmod(0o755)
    with pytest.raises(kind, match=shown):
        Environments(tmp_path / "cache").solve(request(pins={"demo": "1.0"}))
