"""Every format by its name. Pure."""

from __future__ import annotations

from collections.abc import Callable

from bisect_env.report.model import Report


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
    from bisect_env.report.json_format import json_text

    return json_text


def _junit() -> Callable[[Report], str]:
    from bisect_env.report.junit import junit_text

    return junit_text


FORMATS = {"text": _text, "html": _html, "md": _markdown, "json": _json, "junit": _junit}
"""Name of `--format` to what loads its writer."""


def formatted(report: Report, name: str) -> str:
    """A report in one of the formats, with a final newline."""
    return FORMATS[name]()(report)
