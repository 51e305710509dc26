"""`bisect-env schema`: the JSON schemas of what goes in and what comes out."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Document(StrEnum):
    """Documents that have a schema."""

    MATRIX = "matrix"
    REPORT = "report"


def schema(
    of: Annotated[Document, typer.Option("--of", help="Of which document.")] = Document.MATRIX,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file; default: stdout.")
    ] = None,
) -> None:
    """Print the JSON schema of matrix files, for editors that check and complete them, or of reports."""
    from bisect_env.cli.output import deliver

    if of is Document.REPORT:
        from bisect_env.report.formats import report_schema_text

        deliver(report_schema_text(), output)
    else:
        from bisect_env.matrix.schema import schema_text

        deliver(schema_text(), output)
