"""`bisect-env init` and `schema`: what a matrix file looks like, as a commented one and as a JSON schema."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bisect_env.answers.untrusted import command_line
from bisect_env.cli.asking import (
    AlwaysOption,
    BadOption,
    Flags,
    GoodOption,
    PreOption,
    RateOption,
    SinceOption,
    WithOption,
    ask,
)
from bisect_env.cli.output import deliver
from bisect_env.errors import InfrastructureError, MatrixError, UsageError
from bisect_env.matrix.ask import PackageAnswer, TemplateAnswers, script_template, template
from bisect_env.matrix.load import load_matrix
from bisect_env.matrix.schema import schema_text
from bisect_env.report.formats import report_schema_text
from bisect_env.temporary import replacing

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def init(
    output: Annotated[Path, typer.Argument(help="Matrix file to write.")] = Path("matrix.yaml"),
    package: Annotated[
        list[str] | None,
        typer.Option(
            "--package", "-p", help="Package that is bisected, as 'orjson>=3.8' or a name; several make axes."
        ),
    ] = None,
    versions: Annotated[
        list[str] | None,
        typer.Option(help="Its versions: '>=2.0,<2.6', or 2.0.1,2.1.0; one for each --package."),
    ] = None,
    script: Annotated[
        Path | None, typer.Option(help="Script that fails; made as a template if it is not there.")
    ] = None,
    python: Annotated[str | None, typer.Option(help="Python version, such as 3.11.")] = None,
    conda: Annotated[bool, typer.Option("--conda", help="Packages come from conda channels.")] = False,
    channel: Annotated[
        list[str] | None, typer.Option("--channel", "-c", help="conda channel; default: conda-forge.")
    ] = None,
    timeout: Annotated[str, typer.Option(help="Of one trial: then it counts as a hang.")] = "60s",
    gpus: Annotated[int, typer.Option(min=0, help="GPUs that one trial needs.")] = 0,
    name: Annotated[str, typer.Option(help="Name of the study; default: the packages.")] = "",
    with_packages: WithOption = None,
    good: GoodOption = None,
    bad: BadOption = None,
    since: SinceOption = None,
    rate: RateOption = None,
    always: AlwaysOption = False,
    pre: PreOption = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the matrix file.")] = False,
) -> None:
    """Write a commented matrix; what no flag says is asked for, if there is a terminal.

    With a range in `--package`, or with one of the flags of `run` that ask without a file, it writes the
    matrix that `run` would answer.
    """
    if output.exists() and not force:
        raise UsageError(f"{output} exists", remedy="name another file, or overwrite it with `--force`")
    if output.exists() and not output.is_file():
        raise UsageError(f"{output} is not a regular file", remedy="name another file with `--output`")
    asks = with_packages or good or bad or since or rate is not None or always or pre
    if asks or (package and not versions and any(sign in name for name in package for sign in "<>=!~")):
        flags = Flags(
            words=(str(script or _asked("--script", "Script that fails", "repro.py")),),
            packages=package,
            with_packages=with_packages,
            python=[python] if python else None,
            good=good,
            bad=bad,
            since=since,
            rate=rate,
            always=always,
            pre=pre,
            channel=channel or (["conda-forge"] if conda else None),
            timeout=timeout,
            gpus=str(gpus) if gpus else None,
            name=name,
        )
        with _in_place_of(output) as beside:
            ask(flags, beside, quiet=True)
        shown = command_line("bisect-env", "plan", str(output))
        typer.echo(f"{output} is written; `{shown}` shows what it asks for", err=True)
        return
    packages = _packages(package or [], versions or [])
    script = script or Path(_asked("--script", "Script that fails", "repro.py"))
    place = script if script.is_absolute() else Path.cwd() / script
    folder = output.absolute().parent
    if not place.resolve().is_relative_to(folder.resolve()):
        raise UsageError(
            f"{script} lies outside {folder}", remedy="put the script beside the matrix, or below it"
        )
    answers = TemplateAnswers(
        packages,
        place.resolve().relative_to(folder.resolve()).as_posix(),
        python or _asked("--python", "Python", HERE, default=HERE),
        "conda" if conda or channel else "pypi",
        channel or (),
        timeout,
        gpus,
        name,
    )
    made = not place.exists()
    try:
        if made:
            place.parent.mkdir(parents=True, exist_ok=True)
            deliver(script_template([one.name for one in packages]), place)
        with _in_place_of(output) as beside:
            beside.write_text(template(answers), "utf-8")
            load_matrix(beside)
    except BaseException as error:
        # Nothing half-made stays: the flags are what is to be corrected.
        if made:
            place.unlink(missing_ok=True)
        if not isinstance(error, MatrixError):
            raise
        raise UsageError(
            "these answers make no matrix:\n" + "\n".join(error.problems),
            remedy="correct them, and give the command again",
        ) from None
    if made:
        typer.echo(f"{script} is a template: put what fails into it", err=True)
    typer.echo(f"{output} is written; next: {command_line('bisect-env', 'plan', str(output))}", err=True)


@contextlib.contextmanager
def _in_place_of(output: Path) -> Iterator[Path]:
    """Give a path to write a matrix to; it takes the place of the output at the end of the block.

    After an error the old file is as it was, on a full disk and whatever its encoding is.
    """
    target = output.resolve()
    try:
        with replacing(target) as beside:
            yield beside
            if target.exists():
                shutil.copymode(target, beside)
    except OSError as error:
        if not target.parent.is_dir():
            raise UsageError(
                f"there is no directory {target.parent}", remedy="make it, or name another file"
            ) from error
        raise InfrastructureError(
            f"{output} cannot be written: {error.strerror or error}",
            remedy="make room, or name another file with `--output`; what was there is as it was",
        ) from error


def _packages(names: Sequence[str], versions: Sequence[str]) -> list[PackageAnswer]:

    if len(versions) > len(names):
        raise UsageError("there are more `--versions` than `--package`", remedy="give one for each package")
    answers: list[PackageAnswer] = []
    for name in names or [_asked("--package", "Package that is bisected", "torch")]:
        known = versions[len(answers)] if len(answers) < len(versions) else None
        answers.append(
            PackageAnswer(name, known or _asked("--versions", f"Versions of {name}", ">=2.0,<2.6"))
        )
    return answers


def _asked(flag: str, question: str, example: str, *, default: str | None = None) -> str:

    if not sys.stdin.isatty():
        if default is not None:
            return default
        raise UsageError(f"{flag} is not given", remedy=f"add it, such as {flag} '{example}'")
    shown = question if default is not None else f"{question} (such as {example})"
    return str(typer.prompt(shown, default=default, err=True))


# --------------------------------------------------------------------------------------------------
# `bisect-env schema`: the JSON schemas of what goes in and what comes out.


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
    if of is Document.REPORT:
        deliver(report_schema_text(), output)
    else:
        deliver(schema_text(), output)
