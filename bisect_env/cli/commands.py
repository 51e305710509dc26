"""Commands and groups of typer: short help, help for everything, and groups of options for commands."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from bisect_env.cli.options import opt

_WORDS = {
    "at": "COMBINATION",
    "bad": "VERSION",
    "cache": "DIR",
    "db": "DB",
    "env": "NAME=VALUE",
    "env_cache_size": "SIZE",
    "exclude_newer": "DAY",
    "extra_index": "[NAME=]URL",
    "files": "FILE",
    "find_links": "DIR|URL",
    "from": "COMMIT",
    "git": "REPOSITORY",
    "good": "VERSION",
    "index": "URL",
    "lockfiles": "DIR",
    "offline": "DIR",
    "package": "RANGE",
    "python": "VERSION",
    "scheduler": "ADDRESS",
    "since": "DAY",
    "subdirectory": "DIR",
    "timeout": "TIME",
    "to": "COMMIT",
    "where": "CONDITION",
    "with": "PACKAGE",
}
_WORD_OF_TYPE = {int: "N", float: "NUMBER", Path: "FILE"}
_BEHIND = "bisect-env: words behind --"


def words_behind_dashes(ctx: typer.Context) -> tuple[str, ...]:
    """Return what the command was given behind `--`."""
    return tuple(ctx.meta.get(_BEHIND, ()))


def _in_words(parameters: list[Any]) -> None:
    """Call the values of options by words (`--workers N`), not by types; flags and arguments by none."""
    for one in parameters:
        if one.param_type_name == "argument":
            one.metavar = one.metavar or str(one.name).upper()
            one.display_type_rich = lambda ctx: None
            continue
        kind = one.type_descriptor.annotation
        if one.metavar is not None or (isinstance(kind, type) and issubclass(kind, Enum)):
            continue
        if getattr(one, "is_flag", False):
            one.metavar = ""
        else:
            name = max(one.opts, key=len).lstrip("-").replace("-", "_")
            one.metavar = _WORDS.get(name) or _WORD_OF_TYPE.get(kind) or name.rpartition("_")[2].upper()


class Command(TyperCommand):
    """A command whose `--help` shows the options without a panel, and `--help-all` all of them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # A docstring's lines are not those of the terminal.
        self.help = re.sub(r"(?<!\n)\n(?!\n)", " ", self.help or "")

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options and arguments, `--help` and `--help-all` among them."""
        parameters: list[Any] = super().get_params(ctx)
        _in_words(parameters)
        return parameters

    def _has_more(self) -> bool:
        return any("--help-all" in one.opts for one in self.params)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line, and remember what stands behind `--`."""
        if "--" in args:
            ctx.meta[_BEHIND] = args[args.index("--") + 1 :]
        return list(super().parse_args(ctx, args))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help, with the options in panels only for `--help-all`."""
        whole = ctx.meta.get(_WHOLE, False) or not self._has_more()
        hidden = [] if whole else [one for one in self.params if getattr(one, "rich_help_panel", None)]
        _hide(hidden, hidden=True)
        try:
            super().format_help(ctx, formatter)
        finally:
            _hide(hidden, hidden=False)


def _hide(parameters: list[Any], *, hidden: bool) -> None:
    for one in parameters:
        one.hidden = hidden


_WHOLE = "bisect-env: help for everything"


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.meta[_WHOLE] = True
        typer.echo(ctx.get_help(), color=ctx.color)
        raise typer.Exit


_HelpAll = Annotated[bool, opt("--help-all", "Show all options and exit.", is_eager=True, callback=_show_all)]


class Group(TyperGroup):
    """A group of subcommands whose help calls values by words."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options, `--help` among them; those that set up completion are not shown."""
        parameters: list[Any] = super().get_params(ctx)
        _hide([one for one in parameters if str(one.name).endswith("_completion")], hidden=True)
        _in_words(parameters)
        return parameters


def with_groups(*, without: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator for commands with many options, which take groups of them by one parameter each.

    A group is a dataclass. Its fields that are annotated as options become options of the command, where the
    parameter stands; the command fills in the others.

    Args:
        without: Fields for which the command has no option; they keep their defaults.
    """

    def grouped(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        options: dict[str, list[str]] = {}
        parameters = []
        for one in inspect.signature(command).parameters.values():
            kind = hints[one.name]
            if not is_dataclass(kind):
                parameters.append(one.replace(kind=one.KEYWORD_ONLY, annotation=kind))
                continue
            annotated = get_type_hints(kind, include_extras=True)
            defaults = {field.name: field.default for field in fields(kind)}
            # A group's own first, then those of the group that it extends.
            mro: Any = hints[one.name].__mro__
            names = [name for level in mro for name in vars(level).get("__annotations__", ())]
            found = [
                name for name in names if get_origin(annotated[name]) is Annotated and name not in without
            ]
            options[one.name] = found
            parameters += [
                inspect.Parameter(name, one.KEYWORD_ONLY, default=defaults[name], annotation=annotated[name])
                for name in found
            ]
        parameters.append(
            inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_HelpAll)
        )

        @functools.wraps(command)
        def called(**given: Any) -> None:
            del given["help_all"]
            groups = {
                name: hints[name](**{field: given.pop(field) for field in names})
                for name, names in options.items()
            }
            command(**given, **groups)

        # What typer looks at.
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in parameters}
        return called

    return grouped
