"""Registers every command by its name; a command's module is imported only when it is called."""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

from bisect_env import __version__
from bisect_env.cli.commands import Command, Group
from bisect_env.cli.options import opt

ASK, LOOK, RESULTS, AFTER = "Ask", "Look closer", "Results", "Look after"
COMMANDS = {
    "run": (ASK, "Find the first bad combination: of a matrix, of a study, or of a question in words."),
    "between": (
        ASK,
        "Find which package change between two environments broke a command, and its first bad release.",
    ),
    "map": (ASK, "Call every combination good or bad, with as few environments as that takes."),
    "plan": (
        ASK,
        "Show combinations, exclusions with reasons and expected trials; nothing is built, no trial runs.",
    ),
    "trial": (LOOK, "Run trials of one combination: a line for each, and the failure rate at the end."),
    "explain": (
        LOOK,
        "Find the smallest set of package changes that carries the failure; with `--git`, the commit.",
    ),
    "shell": (
        LOOK,
        "Open a shell in the environment of a combination, in a fresh directory with the trial's files.",
    ),
    "reproduce": (
        LOOK,
        "Write lock, script, command, Dockerfile and README of a combination, to be run without this tool.",
    ),
    "report": (RESULTS, "Show what a study found: verdict, rates, combinations and failures."),
    "query": (RESULTS, "Ask the results database in SQL; nothing can be changed this way."),
    "serve": (RESULTS, "Open the results database in a browser, for reading, for this machine alone."),
    "doctor": (
        AFTER,
        "Check machine, GPUs, engines, solvers, database and debuggers, and what each missing thing costs.",
    ),
    "env": (AFTER, "Look after the environments that were built on this host: ls, prune, fetch."),
    "db": (AFTER, "Look after the results database: info, export, merge, gc."),
}
"""The help panel and the one-line help of each command, so that the list of commands imports none of their
modules. The module `NAME_command` has it as a function `NAME`, or as `NAME_app`."""


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bisect-env {__version__}")
        raise typer.Exit


def _root(
    _version: Annotated[
        bool, opt("--version", "Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Which combination of versions first breaks a script, and is it a crash or a flake?"""


def application(word: str | None = None) -> typer.Typer:
    """Return the command line as typer knows it.

    Args:
        word: The only command that is wanted, because importing all of them takes longer than many a command
            takes to run; None for all.
    """
    app = _empty()
    for name in COMMANDS if word is None else (word,):
        module = importlib.import_module(f"bisect_env.cli.{name}_command")
        if hasattr(module, f"{name}_app"):
            app.add_typer(getattr(module, f"{name}_app"), name=name)
        else:
            app.command(cls=Command)(getattr(module, name))
    return app


def menu() -> typer.Typer:
    """Return a command line that lists all commands and can run none of them."""
    app = _empty()
    for name, (panel, said) in COMMANDS.items():
        app.command(name, help=said, cls=Command, rich_help_panel=panel)(_nothing)
    return app


def _nothing() -> None:
    pass


def _empty() -> typer.Typer:
    app = typer.Typer(
        name="bisect-env",
        cls=Group,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    return app
