"""Registers every command by its name; a command's module is imported only when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Annotated

import typer

from bisect_env import __version__
from bisect_env.cli.options import Command, Group

COMMANDS = {
    "init": "init_command",
    "doctor": "env_command",
    "run": "run_command",
    "map": "run_command",
    "between": "between_command",
    "narrow": "explain_command",
    "plan": "plan_command",
    "diagnose": "trial_command",
    "amplify": "explain_command",
    "fetch": "env_command",
    "report": "trials_command",
    "trial": "trial_command",
    "verify": "trial_command",
    "diff": "between_command",
    "explain": "explain_command",
    "reproduce": "reproduce_command",
    "shell": "reproduce_command",
    "studies": "trials_command",
    "trials": "trials_command",
    "query": "db_command",
    "serve": "db_command",
    "schema": "init_command",
    "db": "db_command",
    "env": "env_command",
}
"""Which file has each command: a function of that name, or `NAME_app` where it has commands of its own."""


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bisect-env {__version__}")
        raise typer.Exit


def _root(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Which combination of versions first breaks a script, and is it a crash or a flake?"""


def application(word: str | None = None) -> typer.Typer:
    """Return the command line as typer knows it.

    Args:
        word: The first word that was given. Where it names a command, only that one is read, since the
            options of all of them take longer to read than many a command takes to run.
    """
    app = typer.Typer(
        name="bisect-env",
        cls=Group,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    if word == "--version":
        names: Iterable[str] = ()
    else:
        names = (word,) if word is not None and word in COMMANDS else COMMANDS
    for name in names:
        module = importlib.import_module(f"bisect_env.cli.{COMMANDS[name]}")
        if hasattr(module, f"{name}_app"):
            app.add_typer(getattr(module, f"{name}_app"), name=name)
        else:
            app.command(cls=Command)(getattr(module, name))
    return app
