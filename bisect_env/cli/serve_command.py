"""`bisect-env serve`: the results database in a browser."""

from __future__ import annotations

from typing import Annotated

from bisect_env.cli.commands import with_groups
from bisect_env.cli.options import DatabaseOption, opt
from bisect_env.cli.output import deliver, tell
from bisect_env.web.serve import serve as serve_database


@with_groups()
def serve(
    port: Annotated[int, opt("--port N", "Port to listen on; 0 for any free one.", min=0, max=65535)] = 8001,
    db: DatabaseOption = None,
) -> None:
    """Show the results database in a browser: read-only, reachable only from this machine.

    Needs the extra `web`. Prints its address, which contains a secret token; Ctrl-C ends it.
    """

    def show(address: str, note: str | None) -> None:
        if note is not None:
            tell(note)
        tell("Ctrl-C ends it")
        deliver(f"{address}\n")

    serve_database(db, port, tell=show)
