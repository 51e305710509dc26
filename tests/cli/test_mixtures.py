"""Mixtures of two environments: what extras forbid, what fails in another way, what nothing tells apart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.asking import Answer, Asking, an_index
from tests.cli.calls import RunCommand
from tests.environments.index_server import IndexServer

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(200)]

APPZ = """
import plugz
version = "{version}"
assert int(plugz.version) >= {version}, "plugz too old"
"""


@pytest.fixture
def index() -> Iterator[IndexServer]:
    """Three releases of appz, whose extra `fast` needs plugz of the same number, which the import checks."""
    with an_index() as index:
        for n in (1, 2, 3):
            requires = (f'plugz>={n}; extra == "fast"',)
            index.add(
                "appz",
                str(n),
                requires=requires,
                extras=("fast",),
                modules={"appz.py": APPZ.format(version=n)},
            )
            index.add("plugz", str(n))
        yield index


@pytest.fixture
def user(tmp_path: Path, index: IndexServer, run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> Asking:
    return Asking(tmp_path, run, monkeypatch, index.url)


def between(user: Asking, package: str, *, extra: str) -> Answer:
    user.script(f"import appz, plugz, sys\nsys.exit(int({package}.version) >= 3)\n")
    for name, n in (("good.txt", 1), ("bad.txt", 3)):
        (user.folder / name).write_text(f"appz{extra}=={n}\nplugz=={n}\n")
    return user.run("between", "good.txt", "bad.txt", "--always", "--", "python", "repro.py")


@pytest.mark.parametrize("extra", ["[fast]", ""])
@pytest.mark.parametrize("package", ["plugz", "appz"])
def test_an_innocent_package_is_never_blamed(user: Asking, package: str, extra: str) -> None:
    done = between(user, package, extra=extra)
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert f"{package} 1 → 3" in first
    assert f"{package} 3 is the first bad version (last good 2)" in first
    other = "appz" if package == "plugz" else "plugz"
    assert f"{other} 1 → 3 alone" not in first
    assert f"{other} 2 is the first bad" not in first


def test_a_mixture_that_fails_in_another_way_is_not_bad(user: Asking, index: IndexServer) -> None:
    # No metadata says that appz needs plugz of its own number: only the import does.
    index.packages.pop("appz")
    for n in (1, 2, 3):
        index.add("appz", str(n), modules={"appz.py": APPZ.format(version=n)})
    done = between(user, "plugz", extra="")
    first = done.stdout.splitlines()[0]
    assert "appz 1 → 3 alone" not in first
    assert "appz 2 is the first bad" not in first
    assert "plugz 3 is the first bad version (last good 2)" in first


@pytest.mark.parametrize("names", [("pydz", "pydcore"), ("pydz", "pydcore", "third")])
def test_packages_that_pin_each_other_cannot_be_told_apart(
    user: Asking, index: IndexServer, names: tuple[str, ...]
) -> None:
    for n in (1, 2, 3):
        for name in names:
            requires = tuple(f"{other}=={n}" for other in names if other != name)
            index.add(name, str(n), requires=requires)
    user.script("import pydcore, sys\nsys.exit(int(pydcore.version) >= 2)\n")
    for file, n in (("good.txt", 1), ("bad.txt", 3)):
        (user.folder / file).write_text("".join(f"{name}=={n}\n" for name in names))
    done = user.run("between", "good.txt", "bad.txt", "--no-versions", "--always", "--", "python", "repro.py")
    assert done.returncode == 0, done.stdout
    first = done.stdout.splitlines()[0]
    assert "cannot be told apart" in first
    assert "not known yet" not in first
    for name in names:
        assert f"{name} 1 → 3" in first


def test_the_ends_to_explain_may_be_named_beside_the_words_of_the_question(user: Asking) -> None:
    user.script("import plugz, sys\nsys.exit(int(plugz.version) >= 2)\n")
    question = ("plugz>=1", "repro.py")
    assert user.run("run", *question, "--always").returncode == 0
    done = user.run("explain", *question, "--always", "--good", "1", "--bad", "3")
    assert done.returncode == 0, done.stderr
    assert "plugz 1 → 3 is the only package that changed" in done.stdout
    # Asked with the ends from the start, they are part of the question.
    ends = ("--always", "--good", "1", "--bad", "3")
    assert user.run("run", *question, *ends).returncode == 0
    assert "plugz 1 → 2 is the only" in user.run("explain", *question, *ends).stdout
