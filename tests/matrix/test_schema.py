"""The committed JSON schema, the reference page, and the matrices of the project."""

import json
import re
from pathlib import Path

import pytest

from bisect_env.matrix.expand import expand
from bisect_env.matrix.load import load_matrix
from bisect_env.matrix.schema import MatrixFile, PackageAxis, matrix_json_schema, schema_text
from bisect_env.matrix.versions import Release
from tests.matrix.conftest import FakeCatalogue

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference" / "matrix.md"
MATRICES = sorted((ROOT / "matrices").glob("*.yaml"))


def test_committed_schema_is_current():
    committed = (ROOT / "matrices" / "schema.json").read_text(encoding="utf-8")
    assert committed == schema_text(), "run `make schema` and commit matrices/schema.json"


def test_schema_is_complete_and_closed():
    schema = matrix_json_schema()
    assert set(schema["properties"]) == set(MatrixFile.model_fields)
    assert schema["additionalProperties"] is False
    text = json.dumps(schema)
    for reference in re.findall(r'"#/\$defs/(\w+)"', text):
        assert reference in schema["$defs"]


def test_every_key_has_a_description():
    schema = matrix_json_schema()
    for name, model in {"": schema, **schema["$defs"]}.items():
        for key, value in model.get("properties", {}).items():
            assert value.get("description") or "$ref" in value, f"{name}.{key}"


@pytest.mark.parametrize("path", MATRICES, ids=lambda path: path.stem)
def test_our_matrices_load_and_need_no_index_but_for_ranges(path: Path):
    matrix = load_matrix(path)
    assert matrix.name == path.stem
    assert matrix.files
    ranges = {a.canonical_package for a in matrix.file.axes.values() if is_range(a)}
    releases = {name: [Release(version) for version in RANGES[name]] for name in ranges}
    catalogue = FakeCatalogue(releases)
    grid = expand(matrix, catalogue)
    assert len(list(grid.indices())) > 1
    assert {name for name, *_ in catalogue.asked} == ranges


RANGES = {
    "cudatoolkit": ["11.1.1", "11.2.2", "11.5.1", "11.8.0", "12.0.0"],
    "cuml": ["22.06.01", "22.12.00", "23.04.01"],
    "cuml-cu13": ["25.10.0", "26.8.0"],
    "pytorch": ["1.12.0", "1.12.1", "2.0.0", "2.1.0"],
    "torch": ["2.6.0", "2.9.1", "2.12.1", "2.15.0"],
}


def is_range(axis: object) -> bool:
    return isinstance(axis, PackageAxis) and isinstance(axis.versions, str)


def blocks() -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_reference_has_examples():
    assert len(blocks()) >= 3


@pytest.mark.parametrize("block", blocks())
def test_examples_of_the_reference_load(block: str, tmp_path: Path):
    for name in ("train.py", "data/sample.npz", "repro.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "matrix.yaml").write_text(block, encoding="utf-8")
    load_matrix(tmp_path / "matrix.yaml")


def keys() -> set[str]:
    schema = matrix_json_schema()
    return {key for model in (schema, *schema["$defs"].values()) for key in model.get("properties", ())}


@pytest.mark.parametrize("key", sorted(keys()))
def test_the_reference_names_every_key(key: str):
    assert re.search(rf"[`.]{key}`", REFERENCE.read_text(encoding="utf-8"))
