"""Finds each report format by its name, and makes the JSON document. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from bisect_env.report.model import SCHEMA, Report
from bisect_env.report.shared_question import shared

# --------------------------------------------------------------------------------------------------
# `--format json`: the report's document, version 1.


def report_json_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of the document, valid for all releases of this version."""
    schema = Report.model_json_schema(by_alias=True, mode="serialization")
    schema["properties"]["schema"]["const"] = SCHEMA
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def report_schema_text() -> str:
    """Return the schema as text for a file."""
    return json.dumps(report_json_schema(), indent=2, ensure_ascii=False) + "\n"


def json_text(report: Report) -> str:
    """Return the document as JSON text with a final newline; pure ASCII, so that any log can show it."""
    return json.dumps(report.document(), indent=2, ensure_ascii=True, allow_nan=False) + "\n"


# --------------------------------------------------------------------------------------------------
# Every format by its name. Pure.


def _text() -> Callable[[Report], str]:
    from bisect_env.report.text import report_text

    return report_text


def _html() -> Callable[[Report], str]:
    # Brings the plotting library, which takes a second to import.
    from bisect_env.report.html import html_text

    return html_text


def _markdown() -> Callable[[Report], str]:
    from bisect_env.report.markdown import markdown_text

    return markdown_text


def _json() -> Callable[[Report], str]:
    return json_text


def _junit() -> Callable[[Report], str]:
    from bisect_env.report.junit import junit_text

    return junit_text


def _csv() -> Callable[[Report], str]:
    from bisect_env.report.words import csv_text

    return csv_text


FORMATS = {"text": _text, "html": _html, "md": _markdown, "json": _json, "junit": _junit, "csv": _csv}
"""Name of `--format` to what loads its writer."""


def formatted(report: Report, name: str) -> str:
    """Return a report in one of the formats, for other people to read, with a final newline."""
    return FORMATS[name]()(shared(report))
