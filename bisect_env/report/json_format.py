"""`--format json`: the report's document, version 1."""

from __future__ import annotations

import json
from typing import Any

from bisect_env.report.model import SCHEMA, Report


def report_json_schema() -> dict[str, Any]:
    """The schema of the document (JSON Schema, draft 2020-12): what any release of this version may write."""
    schema = Report.model_json_schema(by_alias=True, mode="serialization")
    schema["properties"]["schema"]["const"] = SCHEMA
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def report_schema_text() -> str:
    """The schema as it is written to a file."""
    return json.dumps(report_json_schema(), indent=2, ensure_ascii=False) + "\n"


def json_text(report: Report) -> str:
    """The document as text, with a final newline; pure ASCII, so that no log can confuse its reader."""
    return json.dumps(report.document(), indent=2, ensure_ascii=True, allow_nan=False) + "\n"
