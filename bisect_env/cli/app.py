"""Registers every command by its name; a command's module is imported only when it is called."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Annotated

import typer

from bisect_env import __version__
from bisect_env.cli.commands import Command, Group, with_groups
from bisect_env.cli.options import opt

_COMMANDS_OF = {
    "Ask": ("run", "between", "map", "plan"),
    "Look closer": ("trial", "explain", "shell", "reproduce"),
    "Results": ("report", "query", "serve"),
    "Look after": ("doctor", "env", "db"),
}
COMMANDS = {name: panel for panel, names in _COMMANDS_OF.items() for name in names}
"""The help panel of each command. The module `NAME_command` has it as a function `NAME`, or as `NAME_app`."""


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
    """Return the typer application with all commands, or with only the command called `word`.

    Args:
        word: The only command to import; None for all. Importing all commands takes longer than running many
            of them.
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
    """Return a typer application for the main help page, which lists all commands but cannot run them."""
    app = _empty()
    for name, panel in COMMANDS.items():
        app.command(name, help=_summary(name), cls=Command, rich_help_panel=panel)(lambda: None)
    return app


def _summary(name: str) -> str:
    """Return the first line of a command's help text, for the main help page.

    The line is read from the source file, because importing all commands is slow.
    """
    source = Path(__file__).with_name(f"{name}_command.py").read_text("utf-8")
    found = re.search(rf'^def {name}\(.*?"""(.+?)("""|$)', source, re.DOTALL | re.MULTILINE)
    return found[1] if found else ""


def _empty() -> typer.Typer:
    app = typer.Typer(
        name="bisect-env",
        cls=Group,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(with_groups()(_root))
    return app
