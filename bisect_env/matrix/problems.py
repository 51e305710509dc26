"""Messages about problems of a matrix file, with line numbers; pydantic's errors are translated. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError
from pydantic_core import ErrorDetails

from bisect_env.errors import MatrixError, without_kind

Path = tuple[str | int, ...]
"""The path of a key or list item in a matrix file, such as `("axes", "python", "versions", 0)`."""

MAX_TEXT = 600
"""Maximum number of characters of a message, because it may quote a value of any length."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A message about a mistake in a matrix file, with the number of the line.

    Attributes:
        text: What is wrong and, after a semicolon, the remedy.
        line: Line number, counted from 1; None if the problem belongs to no line.
    """

    text: str
    line: int | None = None

    def __str__(self) -> str:
        text = self.text
        if len(text) > MAX_TEXT:
            # Keep the end of the text, too: it has the remedy.
            text = f"{text[: MAX_TEXT // 2]} ... {text[-MAX_TEXT // 2 :]}"
        return text if self.line is None else f"line {self.line}: {text}"


def matrix_error(path: str, problems: Iterable[Problem]) -> MatrixError:
    """Build the error that lists all problems of the file at `path`, sorted by line.

    Each problem is listed only once.
    """
    ordered = sorted(dict.fromkeys(problems), key=lambda problem: problem.line or 0)
    return MatrixError(path, [str(problem) for problem in ordered])


def known_part(loc: Iterable[str | int], lines: Mapping[Path, int]) -> Path:
    """Find the key of the matrix file to which an error of pydantic refers, and return its path.

    pydantic inserts names of union members and validators between the keys; these are left out. If the key
    is not in the file, the path of its nearest parent is returned.

    Args:
        loc: Location of the error.
        lines: Path of each key in the file to its line number.
    """
    path: Path = ()
    for step in loc:
        if (*path, step) in lines:
            path = (*path, step)
    return path


def line_of(path: Path, lines: Mapping[Path, int]) -> int | None:
    """Return the line number of the key with a given path in the matrix file.

    If the file lacks the key, the line of its nearest parent is returned, or None if that is missing, too.
    """
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path)


def dotted(path: Path) -> str:
    """Write the path of a key as text, such as `axes.python.versions[0]`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def near(word: str, known: Iterable[str]) -> str:
    """Return advice about an unknown name, such as "did you mean 'torch'?".

    The advice names the most similar known name or, if none is similar, lists the known names.
    """
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return f"choose from {shown}" if names else "remove it"


def of_validation(error: ValidationError, model: type[BaseModel], lines: Mapping[Path, int]) -> list[Problem]:
    """Translate a validation error of pydantic into a list of problems with plain messages.

    Args:
        error: Error from the validation of the whole file.
        model: Model of the whole file.
        lines: Path of each key in the file to its line number.
    """
    found = error.errors(include_url=False)
    places = {details["loc"] for details in found}
    return [
        _of_one(details, model, lines)
        for details in found
        # pydantic does not count invalid items, so a list of them would also be reported as too short.
        if details["type"] != "too_short" or not any(_below(place, details["loc"]) for place in places)
    ]


def _below(place: tuple[str | int, ...], loc: tuple[str | int, ...]) -> bool:
    return len(place) > len(loc) and place[: len(loc)] == loc


def _of_one(details: ErrorDetails, model: type[BaseModel], lines: Mapping[Path, int]) -> Problem:
    loc, kind = details["loc"], details["type"]
    path = known_part(loc, lines)
    where = dotted(path) or "the file"
    line = lines.get(path)
    if kind == "missing":
        return Problem(f"{where} lacks the key {str(loc[-1])!r}; add it", line)
    if kind == "extra_forbidden":
        parent = dotted(path[:-1]) or "the file"
        known = near(str(loc[-1]), _keys(model, loc[:-1]))
        return Problem(f"{parent} has the unknown key {str(loc[-1])!r}; {known}", line)
    return Problem(f"{where}: {_sentence(kind, details)}", line)


def _keys(annotation: Any, loc: Sequence[str | int]) -> list[str]:
    """Return the keys that are allowed at the place of a pydantic error, to suggest a correction.

    Args:
        annotation: Type at which the location begins.
        loc: Location below that type.
    """
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = {info.alias or name: info for name, info in annotation.model_fields.items()}
        return _keys(fields[str(loc[0])].annotation, loc[1:]) if loc else list(fields)
    if get_origin(annotation) in (dict, tuple):
        # Continue with the type of a mapping's values, or of a list's items.
        inside = [one for one in get_args(annotation) if one is not ...]
        return _keys(inside[-1], loc[1:])
    for option in get_args(annotation):
        # In a union with tags, the location contains the tag of the chosen member.
        tags = [one.tag for one in getattr(option, "__metadata__", ()) if isinstance(one, Tag)]
        if not tags or tags[0] in loc[:1]:
            return _keys(option, loc[len(tags) :])
    return []


def _sentence(kind: str, details: ErrorDetails) -> str:
    value = details["input"]
    context: Mapping[str, Any] = details.get("ctx", {})
    if kind in {"value_error", "no_kind"}:
        return without_kind(details["msg"])
    if value is None:
        return "this is empty or null; write a value ('null' in quotes is text) or remove the key"
    shown = _shown(value)
    if kind in {"literal_error", "enum"}:
        names = [
            name.strip().strip("'") for name in str(context["expected"]).replace(" or ", ", ").split(",")
        ]
        return f"{shown} is not known; {near(str(value), [name for name in names if name])}"
    if kind in {"too_short", "string_too_short"}:
        return "this is empty; write at least one"
    wanted = _WANTED.get(kind)
    if wanted is not None:
        return f"this should be {wanted[0]}, not {shown}; {wanted[1]}"
    limits = {
        "greater_than": ("gt", "above"),
        "greater_than_equal": ("ge", "of at least"),
        "less_than": ("lt", "below"),
        "less_than_equal": ("le", "of at most"),
    }
    if kind in limits:
        key, word = limits[kind]
        return f"{shown} is out of range; choose a number {word} {context[key]:g}"
    return f"{shown} is not accepted ({without_kind(details['msg'])}); see docs/reference/matrix.md"


_WANTED = {
    "string_type": ("text", "write one value"),
    "int_parsing": ("a whole number", "write digits alone"),
    "int_type": ("a whole number", "write digits alone"),
    "int_from_float": ("a whole number", "write digits alone"),
    "float_parsing": ("a number", "write digits, with a point if needed"),
    "float_type": ("a number", "write digits, with a point if needed"),
    "byte_size": ("a size", "write one like 8GB or 512MiB"),
    "byte_size_unit": ("a size", "write one like 8GB or 512MiB"),
    "bool_parsing": ("true or false", "write one of them"),
    "bool_type": ("true or false", "write one of them"),
    "tuple_type": ("a list", "write [a, b], or one item a line after '- '"),
    "list_type": ("a list", "write [a, b], or one item a line after '- '"),
    "dict_type": ("a mapping", "write `key: value` lines"),
    "model_type": ("a mapping", "write `key: value` lines"),
    "model_attributes_type": ("a mapping", "write `key: value` lines"),
}


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
