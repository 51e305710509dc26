"""Writes a report in each of its formats, and the JSON schema of its document. Pure."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from bisect_env.report.markdown import markdown_text
from bisect_env.report.model import SCHEMA, Report
from bisect_env.report.shared_question import shared
from bisect_env.report.text import report_text
from bisect_env.report.words import csv_text


class Format(StrEnum):
    """The format in which a report is written, such as text, HTML or JSON."""

    TEXT = "text"
    HTML = "html"
    MARKDOWN = "md"
    JSON = "json"
    JUNIT = "junit"
    CSV = "csv"


def formatted(report: Report, form: Format) -> str:
    """Return a report as text in the given format, without the paths of home directories.

    The text can be shown to other people. It ends with a newline.
    """
    public = shared(report)
    # The libraries behind HTML and JUnit are imported only for these formats.
    match form:
        case Format.TEXT:
            return report_text(public)
        case Format.HTML:
            from bisect_env.report.html import html_text

            return html_text(public)
        case Format.MARKDOWN:
            return markdown_text(public)
        case Format.JSON:
            return json_text(public)
        case Format.JUNIT:
            from bisect_env.report.junit import junit_text

            return junit_text(public)
        case Format.CSV:
            return csv_text(public)


def json_text(report: Report) -> str:
    """Return a report as JSON text with a final newline.

    The text is pure ASCII, so that any log can show it.
    """
    return json.dumps(report.document(), indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def report_json_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of reports.

    The schema is valid for all releases with the same `SCHEMA` number.
    """
    schema = Report.model_json_schema(by_alias=True, mode="serialization")
    schema["properties"]["schema"]["const"] = SCHEMA
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def report_schema_text() -> str:
    """Return the JSON schema of reports as indented JSON text."""
    return json.dumps(report_json_schema(), indent=2, ensure_ascii=False) + "\n"
