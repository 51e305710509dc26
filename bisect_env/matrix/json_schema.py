"""The JSON schema of matrix files, for editors; `matrices/schema.json` is its committed form."""

from __future__ import annotations

import json
from typing import Any

from bisect_env.matrix.schema import MatrixFile


def matrix_json_schema() -> dict[str, Any]:
    """The schema of matrix file version 1 (JSON Schema, draft 2020-12)."""
    schema = MatrixFile.model_json_schema(by_alias=True, mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def schema_text() -> str:
    """The schema as it is written to a file: the same bytes for the same schema."""
    return json.dumps(matrix_json_schema(), indent=2, ensure_ascii=False) + "\n"
