"""`bisect-env schema`: the JSON schema of matrix files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def schema(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file; default: stdout.")
    ] = None,
) -> None:
    """Print the JSON schema of matrix files, for editors that check and complete them."""
    from bisect_env.cli.output import deliver
    from bisect_env.matrix.json_schema import schema_text

    deliver(schema_text(), output)
