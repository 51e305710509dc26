"""Builds and implementations of Python that are not CPython's default one, by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from bisect_env.engine.between import read_ends
from bisect_env.errors import MatrixError, UsageError
from bisect_env.matrix.interpreter import other_build
from bisect_env.matrix.load import load_matrix

OTHERS = [
    ("3.14t", "without the GIL"),
    ("3.14.9t", "without the GIL"),
    ("3.14+freethreaded", "without the GIL"),
    ("python3.14t", "without the GIL"),
    ("cpython-3.14t", "without the GIL"),
    ("3.14d", "debug"),
    ("3.14td", "without the GIL"),
    ("3.14+debug", "debug"),
    ("pypy3.11", "another implementation"),
    ("pp311", "another implementation"),
    ("graalpy", "another implementation"),
]


@pytest.mark.parametrize(("name", "kind"), OTHERS)
def test_other_builds_are_known_by_their_names(name: str, kind: str) -> None:
    assert kind in other_build(name)


@pytest.mark.parametrize("name", ["3.14", "3.14.10", "3.15.0b1", "3.15.0rc2", "3.14+gil", "python3.14"])
def test_ordinary_builds_are_none_of_them(name: str) -> None:
    assert other_build(name) == ""


@pytest.mark.parametrize("version", ["3.14t", "3.14+freethreaded", "3.14d", "pypy3.11"])
def test_a_matrix_with_another_build_is_refused(tmp_path: Path, version: str) -> None:
    axes = [
        f"python: {{package: python, versions: ['3.14', '{version}']}}",
        f"environment: {{environments: {{a: {{python: '{version}'}}, b: {{python: '3.14'}}}}}}",
    ]
    for axis in axes:
        path = tmp_path / "m.yaml"
        path.write_text(f"version: 1\nname: x\naxes:\n  {axis}\ntrial: {{command: python -c 'pass'}}\n")
        with pytest.raises(MatrixError, match="which is not supported"):
            load_matrix(path)


def environment(folder: Path, library: str, binary: str = "python3.14") -> str:
    """A virtual environment as far as it is read: its settings, its library folder and its interpreter."""
    site = folder / "lib" / library / "site-packages"
    (site / "helper-1.0.dist-info").mkdir(parents=True)
    metadata = "Metadata-Version: 2.1\nName: helper\nVersion: 1.0\n"
    (site / "helper-1.0.dist-info" / "METADATA").write_text(metadata)
    (folder / "bin").mkdir()
    (folder / binary).touch()
    (folder / "bin" / "python").symlink_to(folder / binary)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.14.9\n")
    return str(folder)


@pytest.mark.parametrize(
    ("library", "binary", "kind"),
    [
        ("python3.14t", "python3.14t", "a build without the GIL"),
        ("pypy3.11", "pypy3.11", "another implementation than CPython"),
        ("python3.14", "python3.14d", "a debug build"),
    ],
)
def test_an_environment_of_another_build_is_not_compared(
    tmp_path: Path, library: str, binary: str, kind: str
) -> None:
    ordinary = environment(tmp_path / "v1", "python3.14")
    other = environment(tmp_path / "v2", library, binary)
    for pair in ((ordinary, other), (other, ordinary)):
        with pytest.raises(UsageError, match=kind):
            read_ends(*pair, stored=lambda _: None)


def test_no_other_build_is_asked_for_to_compare_with(tmp_path: Path) -> None:
    first, second = (environment(tmp_path / name, "python3.14") for name in ("v1", "v2"))
    with pytest.raises(UsageError, match=r"--python: Python 3\.14t is a build without the GIL"):
        read_ends(first, second, python="3.14t", stored=lambda _: None)
