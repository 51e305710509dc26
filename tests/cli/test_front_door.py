"""What a question names besides packages: local modules, files, assignments, programs of the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from bisect_env.answers.remedies import Asked
from bisect_env.matrix.files import StudyFile
from bisect_env.matrix.project import file_naming, how_to_take, left_behind, local_module
from bisect_env.trials.programs import how_to_bring
from tests.cli.conftest import RunCommand


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a local module, a package below `src`, tests and a requirements file."""
    for name, text in {
        "shop.py": "price = 3",
        "src/cart/__init__.py": "",
        "tests/test_shop.py": "import shop\ndef test_price(): assert shop.price == 3",
        "tests/test_cart.py": "from cart import add",
        "requirements.txt": "attrs==25.1\nruamel_yaml\n",
        "report.ipynb": "{}",
        "plain.py": "import json, six",
    }.items():
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said", "remedy"),
    [
        # Nothing is asked of an index before: the package does not exist.
        (["--", "FOO=3", "python", "plain.py"], "'FOO=3' is no program", "-- env FOO=3 python plain.py"),
        (["--", "report.ipynb"], "report.ipynb is a notebook", "-- jupyter execute report.ipynb"),
        (["--", "requirements.txt"], "requirements.txt is a file", "name the program that reads it"),
        (["--", "src/cart"], "src/cart is a directory", "name a program first"),
        (["--", "pytest", "tests/test_shop.py"], "imports shop.py", "add `--files shop.py`"),
        (["--", "pytest", "tests"], "imports src/cart", "--files src --env PYTHONPATH=src"),
    ],
)
def test_what_is_no_package_is_named_before_anything_is_built(
    run: RunCommand, words: list[str], said: str, remedy: str
) -> None:
    code, _, err = run("run", "-p", "no-such-package-of-ours", *words)
    assert code == 2
    assert said in err
    assert remedy in err
    assert "--with shop" not in err
    assert "locking" not in err


def files(folder: Path, *names: str) -> list[StudyFile]:
    return [StudyFile(name, (folder / name).read_bytes()) for name in names]


def test_what_comes_along_or_is_asked_about_is_not_left_behind(project: Path) -> None:
    test = "tests/test_shop.py"
    assert left_behind(files(project, test), project, ()) == (test, "shop.py")
    assert left_behind(files(project, test, "shop.py"), project, ()) is None
    assert left_behind(files(project, test), project, ["Shop"]) is None
    cart = "tests/test_cart.py"
    assert left_behind(files(project, cart, "src/cart/__init__.py"), project, ()) is None
    assert left_behind(files(project, "plain.py"), project, ()) is None


@pytest.mark.parametrize("code", ["try:\n  import shop\nexcept ImportError: pass", "def f():\n  import shop"])
def test_an_import_that_may_fail_refuses_nothing(project: Path, code: str) -> None:
    assert left_behind([StudyFile("t.py", code.encode())], project, ()) is None


def test_local_modules(project: Path) -> None:
    assert local_module("shop.price", project) == "shop.py"
    assert local_module("cart", project) == "src/cart"
    assert local_module("test_shop", project, ["tests/test_cart.py"]) == "tests/test_shop.py"
    assert local_module("tests", project) == "tests"
    assert local_module("six", project) == ""
    assert how_to_take("shop.py") == "--files shop.py"


def test_a_package_is_advised_only_if_the_project_names_it(project: Path) -> None:
    assert file_naming("attrs", project) == file_naming("ruamel.yaml", project) == "requirements.txt"
    assert file_naming("attr", project) == file_naming("yaml", project) == ""
    assert Asked.IN_WORDS.add_package("attr", "requirements.txt") == (
        "add `--with attrs`, which requirements.txt names"
    )
    # The public index has a package of nearly every name.
    assert "shop" not in Asked.IN_WORDS.add_package("shop")


@pytest.mark.parametrize("program", ["timeout", "xargs", "parallel", "find", "flock", "nice", "sudo", "gdb"])
def test_no_package_is_advised_for_a_program_of_the_system(program: str) -> None:
    assert program not in how_to_bring(program)


@pytest.mark.parametrize("program", ["python3.14t", "pypy3.11", "python3.14d", "graalpy"])
def test_no_package_is_advised_for_another_interpreter(program: str) -> None:
    assert program not in how_to_bring(program)
    assert "--with" not in how_to_bring(program)


def test_another_build_of_python_is_refused_before_anything_is_stored(run: RunCommand) -> None:
    for version in ("3.14t", "3.14+freethreaded", "pypy3.11"):
        question = ("-p", "no-such-package-of-ours", "--python", version)
        code, _, err = run("run", *question, "--", "python", "plain.py")
        assert code == 2
        assert f"Python {version} is " in err
    assert "python" not in run("report", "--list")[1]


def test_a_well_known_program_is_advised() -> None:
    assert "--with pytest" in how_to_bring("py.test")
