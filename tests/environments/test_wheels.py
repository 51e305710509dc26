from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging import tags

from bisect_env.environments.interpreters import Interpreter
from bisect_env.environments.wheels import (
    choose_wheel,
    fits_platform,
    host_platforms,
    pythons_of,
    tag_ranks,
    version_in,
)

LINUX = (
    "linux_x86_64",
    "manylinux_2_28_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)


def interpreter(version: str, abi: str) -> Interpreter:
    found = Interpreter(Path("/python"), version)
    assert found.abi == abi
    return found


@pytest.mark.parametrize(
    ("version", "abi", "files", "best"),
    [
        ("3.11.7", "cp311", ["a-1-py3-none-any.whl", "a-1-cp311-cp311-manylinux_2_17_x86_64.whl"], 1),
        (
            "3.11.7",
            "cp311",
            ["a-1-cp311-cp311-manylinux1_x86_64.whl", "a-1-cp311-cp311-manylinux_2_28_x86_64.whl"],
            1,
        ),
        ("3.11.7", "cp311", ["a-1-cp310-cp310-manylinux1_x86_64.whl"], None),
        ("3.11.7", "cp311", ["a-1-cp37-abi3-manylinux1_x86_64.whl", "a-1-py3-none-any.whl"], 0),
        ("3.11.7", "cp311", ["a-1-cp311-cp311-win_amd64.whl", "a-1.tar.gz"], None),
        ("3.11.7", "cp311", ["a-1-cp311-cp311-musllinux_1_2_x86_64.whl"], None),
        (
            "3.6.15",
            "cp36m",
            ["a-1-cp36-cp36m-manylinux1_x86_64.whl", "a-1-cp36-cp36-manylinux1_x86_64.whl"],
            0,
        ),
        (
            "3.8.18",
            "cp38",
            ["a-1-1-py3-none-any.whl", "a-1-10-py3-none-any.whl", "a-1-2-py3-none-any.whl"],
            1,
        ),
        ("3.8.18", "cp38", ["a-1-py3-none-any.whl", "a-1-1x-py3-none-any.whl"], 1),
    ],
)
def test_takes_the_wheel_an_installer_would_take(version, abi, files, best):
    ranks = tag_ranks(interpreter(version, abi), LINUX)
    assert choose_wheel(files, ranks) == (None if best is None else files[best])


def test_tags_of_the_running_interpreter_are_what_packaging_says():
    here = next(tags.sys_tags())
    version = here.interpreter[2:]
    ranks = tag_ranks(interpreter(f"{version[0]}.{version[1:]}.0", here.abi))
    assert list(ranks) == list(tags.sys_tags())


@given(
    st.permutations(
        [
            "a-1-py3-none-any.whl",
            "a-1-cp38-cp38-manylinux1_x86_64.whl",
            "a-1-2-py3-none-any.whl",
            "x",
            "a-1.zip",
        ]
    )
)
def test_choice_does_not_depend_on_the_order_of_the_page(files):
    ranks = tag_ranks(interpreter("3.8.18", "cp38"), LINUX)
    assert choose_wheel(files, ranks) == "a-1-cp38-cp38-manylinux1_x86_64.whl"


@given(st.text(max_size=40))
def test_any_file_name_is_survived(name):
    ranks = tag_ranks(interpreter("3.8.18", "cp38"), LINUX)
    assert choose_wheel([name, name + ".whl"], ranks) in (None, name, name + ".whl")


@pytest.mark.parametrize(
    "tag",
    [
        *("cp39-cp39-manylinux1_x86_64", "cp39-abi3-manylinux1_x86_64", "cp39-none-any"),
        *(
            "py39-none-any",
            "py39-none-manylinux1_x86_64",
            "py2.py39-none-any",
            "py2-none-any",
            "py3-none-any",
        ),
    ],
)
def test_the_pythons_of_a_wheel_are_those_that_an_installer_would_take_it_for(tag):
    wheel = f"a-1-{tag}.whl"
    found = pythons_of(wheel)
    for minor in (8, 9, 12):
        ranks = tag_ranks(interpreter(f"3.{minor}.1", f"cp3{minor}"), LINUX)
        assert (found is None or f"3.{minor}" in found) == (choose_wheel([wheel], ranks) is not None)


def test_platform_fit():
    assert fits_platform("a-1-py3-none-any.whl", LINUX)
    assert fits_platform("a-1-cp27-cp27mu-manylinux1_x86_64.whl", LINUX)
    assert not fits_platform("a-1-cp311-cp311-win_amd64.whl", LINUX)
    assert not fits_platform("a-1.tar.gz", LINUX)
    assert host_platforms()


@pytest.mark.parametrize(
    ("name", "package", "version"),
    [
        ("Foo_Bar-1.0-py3-none-any.whl", "foo-bar", "1.0"),
        ("foo_bar-1.0-2-py3-none-any.whl", "foo-bar", "1.0"),
        ("foo-bar-1.0.tar.gz", "foo-bar", "1.0"),
        ("zope.interface-5.0.zip", "zope-interface", "5.0"),
        ("foo-1.0-beta.tar.bz2", "foo", "1.0-beta"),
        ("foo-1.0.tgz", "foo", "1.0"),
        # Files of another package, other kinds of files, and a name without a version.
        ("foo_bar_baz-1.0-py3-none-any.whl", "foo-bar", None),
        ("foo-bar.tar.gz", "foo-bar", None),
        ("foo-1.0-py2.7.egg", "foo", None),
        ("foo-1.0.exe", "foo", None),
        ("foo-1.0-py3.whl", "foo", None),
    ],
)
def test_the_version_in_a_file_name(name, package, version):
    assert version_in(name, package) == version
