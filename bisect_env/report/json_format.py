"""`--format json`: the report's document, version 1."""

from __future__ import annotations

import json

from bisect_env.report.model import Report


def json_text(report: Report) -> str:
    """The document as text, with a final newline; pure ASCII, so that no log can confuse its reader."""
    return json.dumps(report.document(), indent=2, ensure_ascii=True, allow_nan=False) + "\n"
