"""Typer commands with a short help and one for all options, and decorators for groups of options."""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Callable, Collection
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from bisect_env.cli.options import opt
from bisect_env.errors import without_kind

_FEW = 4
"""Maximum number of options in panels that `--help` shows, too."""


def _without_types(parameters: list[Any]) -> None:
    """Keep the help from showing the types of arguments and flags."""
    for one in parameters:
        if one.param_type_name == "argument" or one.is_flag:
            one.display_type_rich = lambda ctx: None


class Command(TyperCommand):
    """A command with a short help page for `--help` and a complete one for `--help-all`.

    `--help` shows only options without a panel (titled group of options), which most people need.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Join the lines of each paragraph, so that typer wraps them at the terminal's width.
        self.help = re.sub(r"(?<!\n)\n(?!\n)", " ", self.help or "")

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options and arguments of the command, including `--help` and `--help-all`."""
        parameters: list[Any] = super().get_params(ctx)
        _without_types(parameters)
        return parameters

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line, and shorten typer's messages about invalid values."""
        try:
            return list(super().parse_args(ctx, args))
        except typer.BadParameter as error:
            # typer checks values with pydantic.
            error.message = without_kind(error.message)
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help of the command.

        `--help` shows the options that most people need; `--help-all` also shows those grouped in panels, if
        there are more than a few.
        """
        hidden = [one for one in self.params if getattr(one, "rich_help_panel", None)]
        if len(hidden) <= _FEW:
            hidden = [one for one in self.params if "--help-all" in one.opts]
        elif ctx.meta.get(_WHOLE, False):
            hidden = []
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
    """A group of subcommands whose help shows option values as words such as `FILE` instead of types."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of the group, including `--help`.

        Two kinds of options are hidden: options for shell completion, and `--help-all`, which shows no more
        than `--help` here.
        """
        parameters: list[Any] = super().get_params(ctx)
        shown_elsewhere = ("help_all", "install_completion", "show_completion")
        _hide([one for one in parameters if one.name in shown_elsewhere], hidden=True)
        _without_types(parameters)
        return parameters


def with_groups(
    *, without: Collection[str] = (), panel: str = ""
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that turns the dataclass parameters of a command into command-line options.

    For each parameter whose type is a dataclass, the command gets the options that annotate its fields, at
    the position of the parameter. Fields without an option keep their defaults. The command also gets
    `--help-all`.

    Args:
        without: Names of fields for which the command gets no option.
        panel: Panel of the options whose field names no panel, so that only `--help-all` shows them.
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
            # Fields of the dataclass itself come first, then those of its base class.
            mro: Any = hints[one.name].__mro__
            names = [name for level in mro for name in vars(level).get("__annotations__", ())]
            found = [
                name for name in names if get_origin(annotated[name]) is Annotated and name not in without
            ]
            options[one.name] = found
            for name in found:
                kind, option = get_args(annotated[name])
                option = copy.copy(option)
                option.rich_help_panel = option.rich_help_panel or panel or None
                annotation: Any = Annotated[kind, option]
                parameters.append(
                    inspect.Parameter(name, one.KEYWORD_ONLY, default=defaults[name], annotation=annotation)
                )
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

        # typer reads the options from these two attributes.
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in parameters}
        return called

    return grouped
