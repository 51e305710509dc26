"""`bisect-env fetch`: everything that a study can need, for hosts without a network."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

_LEAST_PIECE = 1000


def fetch(
    matrix: Annotated[Path, typer.Argument(help="Matrix file, such as matrices/quickstart.yaml.")],
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="Directory to write; what it holds already stays.")
    ],
    piece_size: Annotated[
        str | None,
        typer.Option(help="Cut archives that are larger into pieces, such as 60MB, to copy them one by one."),
    ] = None,
    no_pythons: Annotated[
        bool, typer.Option("--no-pythons", help="Fetch no interpreters: the hosts have them.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Fetch nothing; say what is missing or damaged, and end with 6 if any."),
    ] = False,
    cache: Annotated[
        Path | None, typer.Option(envvar="BISECT_ENV_CACHE", help="Where environments are built.")
    ] = None,
) -> None:
    """Put locks, archives and interpreters into a directory; `run --offline DIR` needs nothing else."""
    from rich.filesize import decimal

    from bisect_env.engine.fetch import fetch_study
    from bisect_env.environments.provider import Environments
    from bisect_env.environments.settings import default_cache_dir, parse_size
    from bisect_env.errors import UsageError
    from bisect_env.matrix.load import load_matrix
    from bisect_env.report.sentence import how_many

    loaded = load_matrix(matrix)
    pieces = None if piece_size is None else parse_size(piece_size, "--piece-size")
    if pieces is not None and pieces < _LEAST_PIECE:
        raise UsageError(
            f"--piece-size {piece_size}: pieces of so few bytes are more files than a disk holds",
            remedy="give at least 1kB, such as --piece-size 500MB",
        )
    if check:
        _check(loaded.name, to)
        return
    cache_dir = (cache or default_cache_dir()).absolute()
    said: tuple[str, int] = ("", 0)

    def tell(what: str, done: int, total: int) -> None:
        nonlocal said
        tenth = 10 * done // max(1, total)
        if (what, tenth) != said:
            said = (what, tenth)
            typer.echo(f"{what}: {done} of {total}", err=True)

    fetched = fetch_study(
        loaded,
        provider=Environments(cache_dir, index=loaded.file.index),
        root=to,
        cache_dir=cache_dir,
        piece_size=pieces,
        pythons=not no_pythons,
        on_progress=tell,
    )
    for warning in fetched.warnings:
        typer.echo(f"warning: {warning}", err=True)
    left_out = (
        f" (without a solution: {how_many(fetched.unsolvable, 'combination')})" if fetched.unsolvable else ""
    )
    typer.echo(
        f"{to} holds {fetched.archives} archives ({decimal(fetched.size)}) for "
        f"{how_many(fetched.environments, 'environment')}{left_out}\n"
        f"next: copy it, and there: bisect-env run {shlex.quote(str(matrix))} --offline DIR",
        err=True,
    )


def _check(name: str, root: Path) -> None:
    from bisect_env.environments.bundle import Bundle
    from bisect_env.errors import InfrastructureError

    bundle = Bundle(root)
    answers = bundle.read(name)
    missing, damaged = bundle.missing(answers), bundle.damaged(answers)
    for word, names in (("missing", missing), ("damaged", damaged)):
        for file in names:
            typer.echo(f"{word}: {file}")
    if missing or damaged:
        raise InfrastructureError(
            f"{root}: {len(missing)} files are missing or cut short, {len(damaged)} are damaged",
            remedy="copy those again, or give the command without --check on a machine with a network",
        )
    read = f"{len(answers.archives)} archives and {len(answers.files)} other files"
    typer.echo(f"{root} is complete: {read} read", err=True)
