"""What a right file is read as, what its digest covers, and hostile files."""

import os
from pathlib import Path

import pytest
import yaml

from bisect_env.errors import MatrixError
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.load import MAX_BYTES, load_matrix
from bisect_env.matrix.schema import DEFAULT_TARGET, TargetOutcome, TargetRule
from bisect_env.matrix.versions import host_platform, may_build
from bisect_env.trials.records import Outcome

AXES = "axes:\n  python: {package: python, versions: [3.10, '3.9']}\n"


def test_versions_are_the_text_that_stands_in_the_file(matrix_of):
    matrix = matrix_of(
        """
axes:
  python: {package: python, versions: [3.10, "3.10.1", 3.9, '3.8']}
  numpy: {package: numpy, versions: [1.20, 2.0]}
"""
    )
    assert matrix.file.axes["python"].versions == ("3.10", "3.10.1", "3.9", "3.8")
    assert matrix.file.axes["numpy"].versions == ("1.20", "2.0")


def test_values_and_dates_are_text_too(matrix_of):
    matrix = matrix_of(
        """
axes:
  size: {values: [1, 1.10, yes, "two words", 1e3, 0o17]}
  day: {dates: [2020-09-22, 2020-09-21T12:00:00Z]}
good: {size: 1, day: 2020-09-22}
"""
    )
    assert matrix.file.axes["size"].values == ("1", "1.10", "yes", "two words", "1e3", "0o17")
    assert matrix.file.axes["day"].dates == ("2020-09-22", "2020-09-21T12:00:00Z")
    assert matrix.file.good == {"size": "1", "day": "2020-09-22"}


def test_null_in_quotes_is_text(matrix_of):
    matrix = matrix_of("axes:\n  size: {values: ['null', '~', none]}\nplatform:\nindex: null\n")
    assert matrix.file.axes["size"].values == ("null", "~", "none")
    assert (matrix.file.platform, matrix.file.index) == (None, None)
    with pytest.raises(MatrixError, match=r"values\[1\]: this is empty or null; .*'null' in quotes is text"):
        matrix_of("axes:\n  size: {values: [1, ~]}\n")


def test_one_line_of_a_command_may_be_a_block(matrix_of):
    for block in (
        "|\n    python -V\n",
        ">\n    python\n    -V\n",
        "|\n    python -c 'print(1)\n    print(2)'\n",
    ):
        command = matrix_of(AXES + f"trial:\n  command: {block}").file.trial.command
        assert command[:2] in (("python", "-V"), ("python", "-c"))


def test_defaults(matrix_of):
    matrix = matrix_of(AXES)
    assert matrix.file.trial.timeout == 60
    assert matrix.file.trial.bad == TargetRule()
    assert matrix.file.trial.bad.outcomes == ("crash", "hang", "cuda-fault", "import-error", "exit-fail")
    assert matrix.file.search.confidence == 0.95
    assert matrix.file.search.min_crash_rate == 0.02
    assert matrix.file.search.max_trials == 5000
    assert matrix.file.search.budget is None
    assert matrix.file.solver.dependencies == "resolve"
    assert not may_build(matrix.file.solver.allow_source, "numpy")
    assert matrix.platform == host_platform()
    assert matrix.name == "demo"


def test_every_target_outcome_is_an_outcome_of_trials():
    names = {outcome.value for outcome in Outcome}
    assert set(TargetOutcome.__args__) <= names
    assert set(DEFAULT_TARGET) <= set(TargetOutcome.__args__)
    assert "pass" not in TargetOutcome.__args__


def test_everything_at_once(matrix_of):
    matrix = matrix_of(
        """
description: all keys
axes:
  python: {package: python, versions: ["3.11", "3.12"], direction: unordered}
  torch: {package: Torch, versions: ">=2.1,<2.6", step: minor, prereleases: true, yanked: true}
  cuml: {package: cuml, manager: conda, versions: [25.02.00, 25.12.01], direction: either}
  size: {values: [small, large], direction: fixed}
packages: {pypi: [scipy==1.13.1], conda: ["cuda-version 12.8"]}
solver: {dependencies: none, overrides: ["numpy<2"], allow_source: [Lark_Parser]}
channels: [conda-forge, rapidsai]
index: https://index.example/simple
platform: linux-aarch64
exclude_newer: 2026-01-31
exclude:
  - {when: {python: 3.12, torch: "<2.3"}, why: no wheels}
include:
  - {when: {size: [small]}, why: quick}
good: {python: 3.11, torch: 2.1.2, cuml: 25.02.00, size: large}
trial:
  command: [python, run.py, "{size}", "{{literal}}"]
  files: [run.py, data/a.txt]
  timeout: 1m30s
  concurrency: 4
  env: {OMP_NUM_THREADS: 1, FLAG: true}
  gpus: 2
  bad: {outcomes: [crash], signals: [SIGSEGV, 6, abrt], output: ["heap .* corrupt"]}
search: {confidence: 0.99, min_crash_rate: 0.1, max_trials: 100, budget: 2h}
""",
        {"run.py": "pass", "data/a.txt": "a"},
    )
    file = matrix.file
    assert may_build(file.solver.allow_source, "lark-parser")
    assert not may_build(file.solver.allow_source, "lark")
    assert file.trial.timeout == 90
    assert file.trial.bad.signals == (11, 6, 6)
    assert file.trial.env == {"OMP_NUM_THREADS": "1", "FLAG": "true"}
    assert file.search.budget == 7200
    assert [f.name for f in matrix.files] == ["run.py", "data/a.txt"]
    combination = Combination.of({"python": "3.11", "torch": "2.1.2", "cuml": "25.02.00", "size": "a b"})
    assert matrix.command(combination) == ("python", "run.py", "a b", "{literal}")
    environment = matrix.environment(combination)
    assert environment["BISECT_ENV_SIZE"] == "a b"
    assert environment["BISECT_ENV_PYTHON"] == "3.11"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert matrix.platform == "linux-aarch64"


def test_packages_as_a_list_are_pypi(matrix_of):
    assert matrix_of(AXES + "packages: [scipy, 'numpy<2']").file.packages.pypi == ("scipy", "numpy<2")


def test_a_script_of_the_command_is_carried_along(matrix_of):
    matrix = matrix_of(AXES + "trial: {command: python ./sub/run.py --x}", {"sub/run.py": "print(1)"})
    assert [(f.name, f.content) for f in matrix.files] == [("sub/run.py", b"print(1)")]


def test_code_of_the_command_is_no_script(matrix_of):
    matrix = matrix_of(AXES + "trial: {command: 'python -c \"import runpy; runpy.x.py\"'}")
    assert matrix.files == ()


def test_executable_files_stay_executable(matrix_of, tmp_path: Path):
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    matrix = matrix_of(AXES + "trial: {command: ./run.sh}")
    assert [f.executable for f in matrix.files] == [True]


class TestDigest:
    def test_same_question_same_digest(self, matrix_of):
        plain = matrix_of(AXES).digest
        same = matrix_of(
            "# a comment\ndescription: in other words\n"
            "axes: {'python': {versions: ['3.10', 3.9], package: python, direction: regression}}\n"
            "search: {budget: 1h, confidence: 0.99}\n"
        )
        assert same.digest == plain

    @pytest.mark.parametrize(
        "text",
        [
            AXES.replace("3.10", "3.11"),
            AXES + "packages: [numpy]",
            AXES + "exclude_newer: 2026-01-01",
            AXES + "platform: osx-arm64",
            AXES + "exclude: [{when: {python: 3.9}, why: x}]",
            AXES + "trial: {command: python -c 0}",
            AXES + "trial: {command: python -c pass, timeout: 5}",
        ],
    )
    def test_another_question_another_digest(self, matrix_of, text):
        assert matrix_of(text).digest != matrix_of(AXES).digest

    def test_the_script_counts(self, matrix_of):
        text = AXES + "trial: {command: python run.py}"
        assert matrix_of(text, {"run.py": "1"}).digest != matrix_of(text, {"run.py": "2"}).digest

    def test_the_order_of_axes_counts(self, matrix_of):
        a, b = "  a: {values: [1]}\n", "  b: {values: [1]}\n"
        assert matrix_of("axes:\n" + a + b).digest != matrix_of("axes:\n" + b + a).digest


class TestHostileFiles:
    def test_no_such_file_names_the_near_one(self, tmp_path: Path):
        (tmp_path / "quickstart.yaml").touch()
        with pytest.raises(MatrixError, match=r"does not exist; did you mean 'quickstart\.yaml'\?"):
            load_matrix(tmp_path / "quikstart.yaml")

    def test_a_suffix_alone_makes_no_name_similar(self, tmp_path: Path) -> None:
        (tmp_path / "torch_cuml.yaml").touch()
        with pytest.raises(MatrixError, match=r"does not exist; choose from torch_cuml\.yaml"):
            load_matrix(tmp_path / "nosuch.yaml")

    def test_folder(self, tmp_path: Path):
        with pytest.raises(MatrixError, match="this is a folder"):
            load_matrix(tmp_path)

    def test_pipe_does_not_hang(self, tmp_path: Path):
        os.mkfifo(tmp_path / "pipe.yaml")
        with pytest.raises(MatrixError, match="not a regular file"):
            load_matrix(tmp_path / "pipe.yaml")

    def test_pipe_as_trial_file_does_not_hang(self, matrix_of, tmp_path: Path):
        os.mkfifo(tmp_path / "data")
        with pytest.raises(MatrixError, match="neither a file nor a folder"):
            matrix_of(AXES + "trial: {command: python, files: [data]}")

    def test_huge_file(self, tmp_path: Path):
        path = tmp_path / "huge.yaml"
        path.write_bytes(b"a" * (MAX_BYTES + 1))
        with pytest.raises(MatrixError, match="larger than 256 KiB"):
            load_matrix(path)

    def test_huge_trial_file_is_not_read(self, matrix_of, tmp_path: Path):
        with (tmp_path / "data").open("wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(MatrixError, match="exceed 16 MiB"):
            matrix_of(AXES + "trial: {command: python, files: [data]}")

    def test_nul_in_a_path(self):
        with pytest.raises(MatrixError, match="cannot be read"):
            load_matrix("a\0b.yaml")

    @pytest.mark.timeout(60)  # generous: guards against quadratic work
    @pytest.mark.parametrize(
        "text",
        [
            "axes: {python: {package: python, versions: [" + ", ".join(map(str, range(30_000))) + ", 0]}}",
            "axes: {a: {values: [" + ", ".join(map(str, range(30_000))) + ", 0]}}",
            "axes: {a: {package: a, manager: conda, versions: [" + "1." * 100_000 + "1]}}\nx: 1",
            "name: '" + "x" * 200_000 + "'",
            "trial: {bad: {output: ['" + "(" * 50_000 + "']}}",
            "trial: {timeout: '" + "9" * 50_000 + "'}",
            "trial: {concurrency: '" + "9" * 50_000 + "'}",
        ],
        ids=["versions", "values", "long-version", "long-name", "deep-regex", "long-duration", "long-int"],
    )
    def test_large_values_end_in_short_messages(self, tmp_path: Path, text: str):
        path = tmp_path / "m.yaml"
        path.write_text(text)
        with pytest.raises(MatrixError) as caught:
            load_matrix(path)
        assert all(len(problem) < 700 for problem in caught.value.problems)

    def test_byte_order_mark_and_crlf(self, tmp_path: Path):
        path = tmp_path / "m.yaml"
        text = "version: 1\r\nname: demo\r\n" + AXES.replace("\n", "\r\n") + "trial: {command: python}\r\n"
        path.write_bytes(b"\xef\xbb\xbf" + text.encode())
        assert load_matrix(path).name == "demo"


@pytest.mark.parametrize("value", ["=2026-01-31", "~=2026-01-31", "<=2026-01-31", "=2", "~=2"])
@pytest.mark.parametrize("end", ["good", "bad"])
def test_a_comparison_is_no_end(tmp_path: Path, end: str, value: str) -> None:
    axis = "day: {dates: {from: '2026-01-01', to: '2026-02-20', step: 10d}}" if "-" in value else ""
    text = (
        f"version: 1\nname: x\naxes:\n  {axis or 'day: {values: [1, 2, 3]}'}\n  python: {{package: python, "
    )
    text += f"versions: ['3.11']}}\n{end}: {{day: '{value}'}}\ntrial: {{command: python -V}}\n"
    path = tmp_path / "matrix.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(MatrixError) as caught:
        load_matrix(path)
    (problem,) = caught.value.problems
    assert problem.startswith(f"line 6: {end} has day: {value}, which is not on the axis; ")
    assert "did you mean" in problem or "choose from" in problem


@pytest.mark.parametrize(
    "command",
    [
        ["python", "-m", "unittest", "discover", "-p", "test*.py"],
        ["python", "-m", "black", "--check", "new.py"],
        ["python", "here.py", "--output", "made.py"],
        ["sh", "here.sh", "written.sh"],
        ["sh", "-c", "echo ok", "none.sh"],
        ["pytest", "-k", "not_a_file.py"],
    ],
)
def test_a_word_that_looks_like_a_file_must_exist_only_where_a_script_stands(
    tmp_path: Path, command: list[str]
) -> None:
    for name in ("here.py", "here.sh"):
        (tmp_path / name).write_text("")
    data = {
        "version": 1,
        "name": "words",
        "axes": {"n": {"values": ["1", "2"]}},
        "trial": {"command": command},
    }
    path = tmp_path / "m.yaml"
    path.write_text(yaml.safe_dump(data))
    assert {file.name for file in load_matrix(path).files} == {"here.py", "here.sh"} & {*command}


@pytest.mark.parametrize(
    "command",
    [["python", "-u", "gone.py"], ["sh", "-e", "gone.sh"], ["./gone.sh"], ["python", "gone.py", "x"]],
)
def test_the_script_of_a_command_must_exist(tmp_path: Path, command: list[str]) -> None:
    data = {
        "version": 1,
        "name": "words",
        "axes": {"n": {"values": ["1", "2"]}},
        "trial": {"command": command},
    }
    path = tmp_path / "m.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(MatrixError, match=r"gone\.\w+' does not exist beside the matrix"):
        load_matrix(path)
