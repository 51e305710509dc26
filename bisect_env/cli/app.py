"""Registers every command by its name; a command's module is imported only when it is called."""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

from bisect_env import __version__
from bisect_env.cli.grouping import Command, Group

COMMANDS = {
    "init": (
        "init_command",
        "Write a commented matrix; what no flag says is asked for, if there is a terminal.",
    ),
    "doctor": (
        "env_command",
        (
            "Check machine, GPUs, engines, solvers, database and debuggers, and say what each missing thing "
            "costs."
        ),
    ),
    "run": ("run_command", "Find the first bad combination of a matrix, or of what the command line asks."),
    "map": (
        "run_command",
        "Call every combination of a matrix good or bad, with as few environments as that takes.",
    ),
    "between": (
        "between_command",
        "Find which package change between two environments broke a command, and its first bad release.",
    ),
    "narrow": (
        "explain_command",
        "Find the commit that broke what a study has found the first bad release of.",
    ),
    "plan": (
        "plan_command",
        (
            "Show combinations, exclusions with reasons and expected trials; no environment is made, "
            "no trial runs."
        ),
    ),
    "diagnose": (
        "trial_command",
        (
            "Run one combination on this host until it fails, and say which frame is guilty and who "
            "waits for whom."
        ),
    ),
    "amplify": (
        "explain_command",
        "Find circumstances under which the failure is more frequent, and the good end still clean.",
    ),
    "fetch": (
        "env_command",
        "Put locks, archives and interpreters into a directory; `run --offline DIR` needs nothing else.",
    ),
    "report": ("report_command", "Show what a study found: verdict, rates, combinations and failures."),
    "trial": (
        "trial_command",
        "Run trials of one combination: a line for each, and the rate of the failure at the end.",
    ),
    "verify": (
        "trial_command",
        "Run one combination until its crash rate is shown to be below a limit, or above it.",
    ),
    "diff": ("between_command", "List packages added, removed and changed between two combinations."),
    "explain": ("explain_command", "Find the smallest set of package changes that carries the failure."),
    "reproduce": (
        "reproduce_command",
        "Write lock, script, command, Dockerfile and README of a combination, to be run without this tool.",
    ),
    "shell": (
        "reproduce_command",
        "Open a shell in the environment of a combination, in a fresh directory with the trial's files.",
    ),
    "studies": ("trials_command", "List the studies in the database, the newest first."),
    "trials": (
        "trials_command",
        "List trials, the newest first; JSON and CSV have every column of v_trials.",
    ),
    "query": ("db_command", "Ask the results database in SQL; nothing can be changed this way."),
    "serve": ("db_command", "Open the results database in a browser, for reading, for this machine alone."),
    "schema": (
        "init_command",
        "Print the JSON schema of matrix files, for editors that check and complete them, or of reports.",
    ),
    "db": ("db_command", "Look after the results database."),
    "env": ("env_command", "Look after the environments that were built on this host."),
}
"""Of each command the file that has it, as a function of that name or as `NAME_app` where it has commands of
its own, and what `--help` says of it, so that the list of commands needs none of these files."""


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
        word: The only command that is wanted, because reading the options of all of them takes longer than
            many a command takes to run; None for all.
    """
    app = _empty()
    for name in COMMANDS if word is None else (word,):
        module = importlib.import_module(f"bisect_env.cli.{COMMANDS[name][0]}")
        if hasattr(module, f"{name}_app"):
            app.add_typer(getattr(module, f"{name}_app"), name=name)
        else:
            app.command(cls=Command)(getattr(module, name))
    return app


def menu() -> typer.Typer:
    """Return a command line that lists all commands and can run none of them."""
    app = _empty()
    for name, (_, said) in COMMANDS.items():
        app.command(name, help=said, cls=Command)(_nothing)
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
