from __future__ import annotations

from pathlib import Path

import pytest

from bisect_env.engine.requests import environment_request
from bisect_env.errors import MatrixError
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.load import Matrix, load_matrix
from bisect_env.matrix.scalars import cutoff

IMAGES = "axes: {rapids: {values: ['24.02', '24.04']}, cuda: {values: ['12.2']}}\n"
PACKAGES = "axes: {six: {package: six, versions: ['1.16.0']}, cuda: {values: ['12.2']}}\n"
TODAY = cutoff("2026-01-01")


def load(folder: Path, axes: str, executor: str) -> Matrix:
    path = folder / "m.yaml"
    path.write_text(f"version: 1\nname: m\n{axes}{executor}\ntrial: {{command: python -V}}\n")
    return load_matrix(path)


def test_axes_choose_images(tmp_path: Path) -> None:
    executor = "executor: {kind: container, image: 'rapidsai/base:{rapids}-cuda{cuda}-py3.11'}"
    matrix = load(tmp_path, IMAGES, executor)
    combination = Combination.of({"rapids": "24.04", "cuda": "12.2"})
    assert matrix.image(combination) == "rapidsai/base:24.04-cuda12.2-py3.11"
    assert matrix.file.image_is_environment
    request = environment_request(matrix, combination)
    assert (request.python, request.image) == ("", "rapidsai/base:24.04-cuda12.2-py3.11")
    settled = {request.image: "repo@sha256:1"}
    assert environment_request(matrix, combination, settled).image == "repo@sha256:1"


def test_packages_are_locked_beside_the_image(tmp_path: Path) -> None:
    matrix = load(tmp_path, PACKAGES, "executor: {kind: container, image: 'nvidia/cuda:{cuda}'}")
    request = environment_request(matrix, Combination.of({"six": "1.16.0", "cuda": "12.2"}))
    assert (request.image, dict(request.pins)) == ("nvidia/cuda:12.2", {"six": "1.16.0"})
    assert not matrix.file.image_is_environment


def test_the_executor_makes_another_study_and_its_absence_does_not(tmp_path: Path) -> None:
    plain = load(tmp_path, PACKAGES, "").digest
    image = "executor: {kind: container, image: a%s}"
    digests = {load(tmp_path, PACKAGES, image % more).digest for more in ("", ", network: true")}
    assert len(digests | {plain}) == 3
    assert load(tmp_path, PACKAGES, "executor:").digest == plain


@pytest.mark.parametrize(
    ("executor", "problem"),
    [
        ("executor: {kind: container, image: 'a:{cud}'}", "line 4: executor.image: {cud} is no axis"),
        ("executor: {kind: container, image: 'a:{'}", "a brace that is no placeholder"),
        ("executor: {kind: vm, image: a}", "line 4"),
        ("executor: {kind: container}", "line 4"),
        ("executor: {kind: container, image: a, net: true}", "network"),
        ("executor: container", "line 4"),
    ],
)
def test_mistakes(tmp_path: Path, executor: str, problem: str) -> None:
    with pytest.raises(MatrixError) as raised:
        load(tmp_path, IMAGES, executor)
    assert problem in str(raised.value)


def test_the_bare_name_of_an_axis_among_overrides_is_what_the_axis_says(tmp_path: Path) -> None:
    rest = "solver: {overrides: [Six, 'other<2']}"
    request = environment_request(
        load(tmp_path, PACKAGES, rest), Combination.of({"six": "1.16.0", "cuda": "12.2"})
    )
    assert request.overrides == ("Six==1.16.0", "other<2")
