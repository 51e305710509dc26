"""Commands and groups of typer whose help calls values by words, and groups of options for commands."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

from typer.core import TyperCommand, TyperGroup

_WORDS = {
    "at": "COMBINATION",
    "cache": "DIR",
    "db": "DB",
    "end": "VERSION",
    "env": "NAME=VALUE",
    "env_cache_size": "SIZE",
    "files": "FILE",
    "from": "COMMIT",
    "git": "REPOSITORY",
    "gpus": "GPUS",
    "exclude_newer": "DAY",
    "extra_index": "[NAME=]URL",
    "find_links": "DIR|URL",
    "index": "URL",
    "lockfiles": "DIR",
    "offline": "DIR",
    "scheduler": "ADDRESS",
    "since": "DAY",
    "start": "VERSION",
    "subdirectory": "DIR",
    "timeout": "TIME",
    "to": "COMMIT",
    "where": "CONDITION",
    "with": "PACKAGE",
}
_WORD_OF_TYPE = {int: "N", float: "NUMBER", Path: "FILE"}


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
    """A command whose help calls values by words."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options and arguments, `--help` among them."""
        parameters: list[Any] = super().get_params(ctx)
        _in_words(parameters)
        return parameters


class Group(TyperGroup):
    """A group of subcommands whose help calls values by words."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options, `--help` among them."""
        parameters: list[Any] = super().get_params(ctx)
        _in_words(parameters)
        return parameters


def with_groups(*, without: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take groups of options, each by one parameter.

    A group is a dataclass. Those of its fields that are annotated as options become options of the command,
    where the parameter stands; the others are for the command to fill in.

    Args:
        without: Fields that this command has no option for, and that keep their defaults.
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
            names = [
                name for level in hints[one.name].__mro__ for name in vars(level).get("__annotations__", ())
            ]
            found = [
                name for name in names if get_origin(annotated[name]) is Annotated and name not in without
            ]
            options[one.name] = found
            parameters += [
                inspect.Parameter(name, one.KEYWORD_ONLY, default=defaults[name], annotation=annotated[name])
                for name in found
            ]

        @functools.wraps(command)
        def called(**given: Any) -> None:
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
