"""From the words of a command line to a matrix that loads."""

from __future__ import annotations

import json

import pytest
import yaml

from bisect_env.errors import UsageError
from bisect_env.matrix import yaml_source
from bisect_env.matrix.ask import (
    AskedQuestion,
    Moving,
    question_data,
    releases_of_package,
    search_data,
    stated_ends,
)
from bisect_env.matrix.files import StudyFile, full_command, travelling
from bisect_env.matrix.inline import InlineMetadata, inline_metadata
from bisect_env.matrix.load import asked_matrix, load_matrix, stored_matrix

SCRIPT = """\
# /// script
# requires-python = ">=3.10,<3.13"
# dependencies = [
#   "orjson",
#   "numpy<2",
# ]
#
# [tool.uv]
# exclude-newer = "2026-10-01T00:00:00Z"
# ///
import orjson
"""


def asked(packages=("orjson>=3.8",), command=("python", "x.py"), good=None, bad=None, **facts):
    of_axis = {key: facts.pop(key) for key in ("step", "prereleases", "yanked") if key in facts}
    moving = []
    for spec in packages:
        axis = releases_of_package(spec, is_conda=bool(facts.get("channels")), **of_axis)
        ends = (stated.get(axis.canonical_package, "") for stated in (good or {}, bad or {}))
        moving.append(Moving(axis, *ends))
    return AskedQuestion(tuple(moving), command, **facts)


def loaded(tmp_path, **facts):
    facts = {"command": ("python", "repro.py"), "trial": {}, **facts}
    facts["trial"] = {"files": ["repro.py"], **facts["trial"]}
    files = (StudyFile("repro.py", b"import orjson\n", executable=False),)
    data = question_data(asked(**facts), here="3.11")
    matrix = asked_matrix(data, files)
    # A saved question is the same one.
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "repro.py").write_text("import orjson\n")
    (tmp_path / "matrix.yaml").write_text(yaml_source.dump(data, "as it was asked"))
    assert load_matrix(tmp_path / "matrix.yaml").digest == matrix.digest
    # So is a stored one.
    assert stored_matrix(matrix.text, matrix.files, "").digest == matrix.digest
    return matrix.file


def test_a_range_is_an_axis_of_every_release_without_a_direction(tmp_path):
    file = loaded(tmp_path)
    axis = file.axes["orjson"]
    assert (axis.versions, axis.step, axis.direction) == (">=3.8", "every", "either")
    assert file.axes["python"].versions == ("3.11",)
    assert file.trial.command == ("python", "repro.py")
    assert (file.good, file.bad, file.packages.pypi) == (None, None, ())


def test_both_ends_say_where_the_axis_goes_and_which_way(tmp_path):
    file = loaded(tmp_path, good={"orjson": "3.9"}, bad={"orjson": "3.10.2"})
    assert file.axes["orjson"].direction == "regression"
    assert set(file.axes["orjson"].versions.split(",")) == {">=3.8", ">=3.9", "<=3.10.2"}
    assert (file.good, file.bad) == ({"orjson": "3.9"}, {"orjson": "3.10.2"})
    file = loaded(tmp_path, good={"orjson": "3.10.2"}, bad={"orjson": "3.9.0rc1"})
    assert (file.axes["orjson"].direction, file.axes["orjson"].prereleases) == ("fixed", True)


def test_one_end_alone_leaves_the_direction_open(tmp_path):
    file = loaded(tmp_path, bad={"orjson": "3.10.2"})
    assert (file.axes["orjson"].direction, file.good, file.bad) == ("either", None, {"orjson": "3.10.2"})


def test_several_axes_pins_pythons_rates_and_environment(tmp_path):
    file = loaded(
        tmp_path,
        packages=("torch>=2.5", "cuml-cu13"),
        with_packages=("numpy==2.2.6",),
        pythons=("3.11", "3.12"),
        trial={"timeout": "2m", "gpus": 1, "env": {"OMP_NUM_THREADS": "1"}},
        settings={"search": search_data(0.1, 0.99)},
        prereleases=True,
    )
    assert list(file.axes) == ["python", "torch", "cuml-cu13"]
    assert file.axes["cuml-cu13"].versions == ">=0"
    assert file.axes["python"].versions == ("3.11", "3.12")
    assert file.packages.pypi == ("numpy==2.2.6",)
    assert (file.search.crash_rate, file.search.min_crash_rate, file.search.confidence) == (0.1, 0.025, 0.99)
    assert (file.trial.timeout, file.trial.gpus, file.trial.env) == (120.0, 1, {"OMP_NUM_THREADS": "1"})


def test_rates_are_looked_for_as_low_as_they_are_asked_about(tmp_path):
    search = loaded(tmp_path, settings={"search": search_data(0.0005, None)}).search
    assert (search.crash_rate, search.min_crash_rate, search.clean_rate) == (0.0005, 0.000125, 0.00025)
    assert loaded(tmp_path, settings={"search": search_data(0.0001, None)}).search.min_crash_rate == 0.0001


def test_since_makes_the_day_the_axis(tmp_path):
    file = loaded(tmp_path, packages=("kombu<5",), since="2026-10-01", until="2026-10-20")
    assert list(file.axes) == ["python", "day"]
    assert file.axes["day"].listed[-1] == "2026-10-20"
    assert file.packages.pypi == ("kombu<5",)


def test_conda_channels_make_everything_condas(tmp_path):
    file = loaded(tmp_path, packages=("numpy>=2",), channels=("conda-forge",), with_packages=("scipy",))
    assert file.uses_conda
    assert file.axes["numpy"].manager == "conda"
    assert file.packages.conda == ("scipy",)
    # So does Python, where it is the package that is asked about.
    file = loaded(tmp_path / "python", packages=("python>=3.9",), channels=("conda-forge",))
    assert file.uses_conda
    assert file.axes["python"].versions == ">=3.9"


def test_what_a_script_says_of_itself_is_taken_over(tmp_path):
    found = inline_metadata(SCRIPT)
    assert found == InlineMetadata(("orjson", "numpy<2"), ">=3.10,<3.13", "2026-10-01T00:00:00Z")
    file = loaded(tmp_path, inline=found, with_packages=("numpy==1.26.4",))
    # The axis moves orjson, and what the command line says of numpy goes before the script's own words.
    assert file.packages.pypi == ("numpy==1.26.4",)
    assert file.exclude_newer == "2026-10-01T00:00:00Z"
    assert loaded(tmp_path, inline=InlineMetadata((), ">=3.12")).axes["python"].versions == ("3.12",)
    assert inline_metadata("import orjson\n") == InlineMetadata()


HERE = ["3.6.15", "3.8.18", "3.9.18", "3.10.13", "3.11.7", "3.11.9", "3.12.1"]


@pytest.mark.parametrize(
    ("requires", "python"),
    [
        ("<3.11", "3.10"),
        (">=3.8,<3.11", "3.10"),
        (">=3.8", "3.13"),
        ("==3.8.*", "3.8"),
        ("==3.11.7", "3.11.7"),
        ("<3.11.8,>=3.11", "3.11.7"),
        ("~=3.9.2", "3.9"),
        # None is here that fits: what is nearest can be fetched.
        ("<3.8,>3.6.99", "3.7"),
        (">=3.14", "3.14"),
        ("==3.7.5", "3.7.5"),
        ("==3.11.4", "3.11.4"),
        ("==3.11.*", "3.11"),
        ("<3.12", "3.11"),
    ],
)
def test_the_newest_python_here_that_fits_is_taken(requires, python):
    question = asked(command=("python", "-V"), inline=InlineMetadata((), requires))
    data = question_data(question, here="3.13", installed=lambda: HERE)
    assert asked_matrix(data, ()).file.axes["python"].versions == (python,)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("# /// script\n# dependencies = [\n# ///\n", "is no TOML"),
        ('# /// script\n# dependencies = "x"\n# ///\n', "no list of texts"),
        ('# /// script\n# dependencies = ["!"]\n# ///\n', "is no package with versions"),
        ('# /// script\n# requires-python = "new"\n# ///\n', "is no range"),
        (f"# /// script\n# x = {'[' * 5000}\n# ///\n", "is no TOML"),
        (f"# /// script\n# x = {'1' * 5000}\n# ///\n", "is no TOML"),
        (f"# /// script\n# dependencies = ['a; {'(' * 3000}']\n# ///\n", "is no package with versions"),
        (f'# /// script\n# requires-python = ">=3.{"1" * 5000}"\n# ///\n', "is no range"),
        ("# /// script\n# ///\n\n# /// script\n# ///\n", "two `# /// script` headers"),
    ],
)
def test_a_header_that_cannot_be_read(text, says):
    if "two" in says:
        text = "# /// script\n# a = 1\n# ///\n\n# /// script\n# a = 1\n# ///\n"
    with pytest.raises(UsageError, match=says):
        inline_metadata(text)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"packages": ()}, "no package is asked about"),
        ({"packages": ("orjson >> 3",)}, "is no package with versions"),
        ({"packages": ("dask[array]",)}, "without extras"),
        ({"packages": ("a @ https://files.example/a.whl",)}, "a name with a range"),
        ({"packages": ("orjson", "Orjson>=3")}, "asked about twice"),
        ({"good": {"orjson": "3.9"}, "bad": {"orjson": "3.9.0"}}, "said to be good and bad"),
        ({"good": {"orjson": "3.7"}}, "is not in the range"),
        ({"good": {"orjson": "new"}, "bad": {"orjson": "3.9"}}, "Invalid version"),
        ({"good": {"orjson": "1" * 5000}, "bad": {"orjson": "3.9"}}, "Invalid version"),
        (
            {"packages": (f"orjson>={'1' * 5000}",), "good": {"orjson": "1"}},
            "may have 1000\n  remedy: shorten it",
        ),
        ({"packages": (f"orjson; {'(' * 3000}",)}, "-p: .* is no package with versions"),
        ({"with_packages": (f"six; {'(' * 3000}",)}, "--with: .* is no package with versions"),
        ({"inline": InlineMetadata((), "<3")}, "which the script's header asks for"),
    ],
)
def test_what_cannot_be_asked(facts, says):
    with pytest.raises(UsageError, match=says):
        question_data(asked(**facts), here="3.11")


def test_words_are_taken_as_they_are():
    command = ("python", "-c", "print({'a': 1}, '#: \"')", "{orjson}", "ä b")
    data = yaml.safe_load(yaml_source.dump(question_data(asked(("orjson",), command), here="3.11")))
    assert data["trial"]["command"] == ["python", "-c", "print({{'a': 1}}, '#: \"')", "{orjson}", "ä b"]


def test_ends_on_the_command_line():
    assert stated_ends(["3.9"], ["orjson"], "--good") == {"orjson": "3.9"}
    assert stated_ends(["torch==2.6.0,cuml=24.4"], ["Torch", "cuml"], "--good") == {
        "torch": "2.6.0",
        "cuml": "24.4",
    }
    with pytest.raises(UsageError, match=r"--bad numpy=2: this names no package .* \(torch\)"):
        stated_ends(["numpy=2"], ["torch"], "--bad")
    with pytest.raises(UsageError, match="--good: '2' is not axis=value"):
        stated_ends(["2"], ["torch", "cuml"], "--good")


def test_which_files_travel(tmp_path):
    (tmp_path / "tests" / "__pycache__").mkdir(parents=True)
    (tmp_path / "tests" / "__pycache__" / "x.pyc").write_text("")
    for name in ("repro.py", "data.csv", "tests/test_a.py", "tests/data.txt"):
        (tmp_path / name).write_text("")
    elsewhere = tmp_path.parent / f"{tmp_path.name}-other.py"
    elsewhere.write_text("")
    assert full_command(["repro.py", "-x"], tmp_path) == ("python", "repro.py", "-x")
    words, files = travelling(["python", "repro.py", "data.csv", "missing.csv"], [], tmp_path)
    assert words == ("python", "repro.py", "data.csv", "missing.csv")
    assert sorted(files) == ["data.csv", "repro.py"]
    words, files = travelling(["pytest", "-x", "tests/test_a.py::test_b"], ["tests"], tmp_path)
    assert words == ("pytest", "-x", "tests/test_a.py::test_b")
    assert sorted(files) == ["tests/data.txt", "tests/test_a.py"]
    words, files = travelling(["python", f"../{elsewhere.name}"], [], tmp_path)
    assert words == ("python", elsewhere.name)
    assert files[elsewhere.name].samefile(elsewhere)


@pytest.mark.parametrize("words", [["repo.py"], ["python", "repo.py"], ["python", "-X", "dev", "repo.py"]])
def test_a_script_that_is_not_there(tmp_path, words):
    (tmp_path / "repro.py").write_text("")
    with pytest.raises(UsageError, match=r"repo\.py does not exist") as caught:
        full_command(words, tmp_path)
    assert caught.value.remedy == "did you mean 'repro.py'?"
    with pytest.raises(UsageError, match="nothing to run"):
        full_command([], tmp_path)
    with pytest.raises(UsageError, match="--files nothing"):
        travelling(["python"], ["nothing"], tmp_path)


def test_two_files_of_one_name(tmp_path):
    (tmp_path / "here").mkdir()
    for where in (tmp_path, tmp_path / "here"):
        (where / "x.py").write_text(json.dumps(str(where)))
    with pytest.raises(UsageError, match=r"would both travel as x\.py"):
        travelling(["python", "x.py", "../x.py"], [], tmp_path / "here")
