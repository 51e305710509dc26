"""`bisect-env serve`: the results database in a browser."""

from __future__ import annotations

from typing import Annotated

from bisect_env.cli.options import DatabaseOption, opt
from bisect_env.cli.output import deliver, tell
from bisect_env.web.serve import serve as serve_database


def serve(
    port: Annotated[int, opt("--port", "0 takes any that is free.", min=0, max=65535)] = 8001,
    no_token: Annotated[
        bool, opt("--no-token", "Let in every user of this machine, without a token.")
    ] = False,
    db: DatabaseOption = None,
) -> None:
    """Open the results database in a browser, for reading, for this machine alone.

    Needs the extra `web`. Prints the address, with a token that others do not know; Ctrl-C ends it.
    """

    def show(address: str, note: str | None) -> None:
        if note is not None:
            tell(note)
        tell("Ctrl-C ends it")
        deliver(f"{address}\n")

    serve_database(db, port, tell=show, with_token=not no_token)
