"""What a matrix from somebody else may not say: text for shells and options, and files of its reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from bisect_env.errors import MatrixError
from bisect_env.matrix.load import load_matrix

MATRIX = """\
version: 1
name: hostile
{key}
axes:
  orjson: {{package: orjson, versions: {versions}}}
trial:
  command: python script.py
  files: {files}
"""


def load(folder: Path, key: str = "", versions: str = "['1.0', '2.0']", files: str = "[script.py]") -> object:
    (folder / "script.py").write_text("pass\n")
    path = folder / "matrix.yaml"
    path.write_text(MATRIX.format(key=key, versions=versions, files=files), encoding="utf-8")
    return load_matrix(path)


@pytest.mark.parametrize(
    "key",
    [
        'index: "https://index.example/simple\\nRUN id"',
        'index: "https://index.example/simple;id"',
        'index: "https://index.example/$(id)"',
        'index: "https://index.example/simple --extra-index-url https://evil.example"',
        "index: \"https://index.example/';id;'\"",
        'index: "file:///x\\n"',
        'channels: ["--override"]',
        'channels: ["https://channel.example/a;id"]',
        'channels: ["a\\u0007"]',
        'packages: {pypi: ["numpy\\n--index-url https://evil.example"]}',
        'packages: {pypi: ["numpy <2\\n"]}',
        'packages: {conda: ["numpy\\n =1"]}',
        'executor: {kind: container, image: "--privileged"}',
        'executor: {kind: container, image: "python:3.12\\nRUN id"}',
        'executor: {kind: container, image: "python:3.12; id"}',
    ],
)
def test_text_for_a_shell_is_refused_with_its_line(tmp_path: Path, key: str) -> None:
    with pytest.raises(MatrixError) as caught:
        load(tmp_path, key)
    assert any("line 3" in problem for problem in caught.value.problems), caught.value.problems


def test_a_version_that_python_does_not_read_is_refused_briefly(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="is not a version") as caught:
        load(tmp_path, versions=f"['1.{'9' * 5000}', '2.0']")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ('channels: ["https://[x/y"]', "is not an address (Invalid IPv6 URL); correct it"),
        ("axes: {a: {git: 'https://[x/y', package: a, from: v1}}", "is not an address (Invalid IPv6 URL)"),
        (
            f"axes: {{a: {{package: a, manager: conda, versions: ['1', '1.{'9' * 5000}']}}}}",
            "a conda version",
        ),
        (
            f"axes: {{a: {{dates: {{from: 2026-01-01, to: 2026-02-01, step: {'1' * 5000}}}}}}}",
            "a step of days",
        ),
    ],
    ids=["channel", "git", "conda", "step"],
)
def test_a_value_that_a_library_does_not_read_is_refused_with_a_remedy(
    tmp_path: Path, key: str, says: str
) -> None:
    path = tmp_path / "matrix.yaml"
    axes = "" if key.startswith("axes") else "axes: {a: {values: [1, 2]}}\n"
    path.write_text(f"version: 1\nname: a\n{axes}trial: {{command: python -V}}\n{key}\n", encoding="utf-8")
    with pytest.raises(MatrixError) as caught:
        load_matrix(path)
    assert says in str(caught.value)
    assert "set_int_max_str_digits" not in str(caught.value)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("versions", ['["1.0\\n", "2.0"]', '["1.0\\nRUN id", "2.0"]'])
def test_versions_are_one_line(tmp_path: Path, versions: str) -> None:
    with pytest.raises(MatrixError, match=r"line break|not a version"):
        load(tmp_path, versions=versions)


def test_a_link_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "matrix"
    folder.mkdir()
    (folder / "passwords.txt").symlink_to("/etc/passwd")
    (folder / "around").symlink_to("/etc")
    (folder / "data").mkdir()
    (folder / "data" / "real.txt").write_text("real\n")
    (folder / "near.txt").symlink_to("data/real.txt")
    assert load(folder, files="[script.py, near.txt, data/real.txt]")
    for name in ("passwords.txt", "around/passwd"):
        with pytest.raises(MatrixError, match="a link that leaves the folder of the matrix"):
            load(folder, files=f"[script.py, {name}]")
    with pytest.raises(MatrixError, match="control character"):
        load(folder, files='["script.py", "a\\nb"]')


def test_a_matrix_behind_a_link_brings_the_files_beside_the_link(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    load(there)
    (here / "matrix.yaml").symlink_to(there / "matrix.yaml")
    (here / "script.py").write_text("pass\n")
    assert load_matrix(here / "matrix.yaml").files[0].content == b"pass\n"
