"""Parses YAML into dicts, lists and text, with the line number of every key and item; also writes YAML. Pure.

All scalars stay text as written in the file, because versions are text: YAML would convert `3.10` to the
number 3.1, and `2020-09-22` to a date. The data is built from the events of the parser, so tags are never
interpreted, and aliases never expanded (a few lines with aliases could expand to gigabytes).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml import events as ev
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from bisect_env.matrix.problems import Path, Problem

MAX_DEPTH = 20
_NULLS = {"", "~", "null", "Null", "NULL"}


@dataclass(frozen=True, slots=True)
class Source:
    """The content of a parsed YAML file, with line numbers and the problems that were found.

    Attributes:
        data: Content of the file as nested dicts, lists, text and None.
        lines: Path of each key or item to its line number, counted from 1. The empty path is the whole
            document.
        spans: Path of each value to the positions in the text at which the value begins and ends.
        problems: Problems of the YAML syntax. If there are any, `data` has only the parts that could be read.
    """

    data: Any
    lines: dict[Path, int] = field(default_factory=dict)
    spans: dict[Path, tuple[int, int]] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


def parse(text: str) -> Source:
    """Parse a text as one YAML document. Syntax problems are returned in the result, not raised."""
    reader = _TreeBuilder()
    data: Any = None
    try:
        data = reader.document(text)
    except _StopReadingError:
        pass
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reader.problem(_explain(error), mark.line + 1 if mark else None)
    except (YAMLError, RecursionError) as error:
        position = getattr(error, "position", None)
        line = None if position is None else text.count("\n", 0, position) + 1
        reader.problem(_explain(error), line)
    except (ValueError, OverflowError):
        # The parser fails if an escape has a number that is no character.
        reader.problem(
            "here or below an escape such as \\U00110000 stands for no character; correct it", reader.line
        )
    return Source(data, reader.lines, reader.spans, tuple(reader.problems))


def dump(data: Mapping[str, Any], comment: str = "") -> str:
    """Write the content of a matrix file as YAML, and return the text.

    Args:
        data: Content of the file.
        comment: Comment for the first line; "" for none.
    """
    import yaml  # imported only when needed, to start faster

    head = f"# {comment}\n" if comment else ""
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=1000, default_flow_style=None)
    return head + str(text)


class _StopReadingError(Exception):
    """Raised to stop parsing after a problem, because what follows would only repeat that problem."""


class _TreeBuilder:
    def __init__(self) -> None:
        self.lines: dict[Path, int] = {(): 1}
        self.spans: dict[Path, tuple[int, int]] = {}
        self.end = 0
        self.problems: list[Problem] = []
        self.line = 1

    def problem(self, text: str, line: int | None) -> None:
        self.problems.append(Problem(text, line))

    def document(self, text: str) -> Any:
        stream = YAML(typ="safe", pure=True).parse(text)
        data: Any = None
        seen = False
        for event in stream:
            if isinstance(event, ev.DocumentStartEvent):
                if seen:
                    line = event.start_mark.line + 1
                    self.problem("a second YAML document begins here; keep one matrix in a file", line)
                    raise _StopReadingError
                seen = True
                data = self.node(next(stream), stream, ())
        return data

    def node(self, event: Any, stream: Iterator[Any], path: Path) -> Any:
        self.line = line = event.start_mark.line + 1
        self.lines.setdefault(path, line)
        if len(path) > MAX_DEPTH:
            self.problem(
                f"more than {MAX_DEPTH} levels inside each other; a matrix file needs no more than 5", line
            )
            raise _StopReadingError
        if isinstance(event, ev.AliasEvent):
            self.problem(f"the alias *{event.anchor} is not supported; write the value out", line)
            return None
        tag = getattr(event, "tag", None)
        if tag is not None:
            self.problem(f"the tag {tag} is not supported; remove it and write the value alone", line)
        if isinstance(event, ev.MappingStartEvent | ev.SequenceStartEvent):
            inside = self.mapping if isinstance(event, ev.MappingStartEvent) else self.sequence
            found = inside(stream, path)
            self.spans[path] = event.start_mark.index, self.end
            return found
        self.spans[path] = event.start_mark.index, event.end_mark.index
        text = str(event.value)
        if any("\ud800" <= character <= "\udfff" for character in text):
            self.problem("an escape in this text is half a character; write the whole one", line)
            return None
        return None if event.style is None and text in _NULLS else text

    def sequence(self, stream: Iterator[Any], path: Path) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(stream), ev.SequenceEndEvent):
            items.append(self.node(event, stream, (*path, len(items))))
        self.end = event.end_mark.index
        return items

    def mapping(self, stream: Iterator[Any], path: Path) -> dict[str, Any]:
        items: dict[str, Any] = {}
        while not isinstance(event := next(stream), ev.MappingEndEvent):
            line = event.start_mark.line + 1
            if not isinstance(event, ev.ScalarEvent):
                self.problem("a key is not plain text; write `key: value`", line)
                self.node(event, stream, (*path, "?"))
                self.node(next(stream), stream, (*path, "?"))
                continue
            key = str(event.value)
            if key == "<<" and event.style is None:
                self.problem("merge keys (<<) are not supported; write the keys out", line)
                self.node(next(stream), stream, (*path, "?"))
                continue
            inside = (*path, key)
            if key in items:
                first = self.lines[inside]
                self.problem(f"the key {key!r} stands here and in line {first}; keep one of them", line)
                # Read past the second value without letting its lines replace those of the first.
                kept, self.lines = self.lines, {}
                self.node(next(stream), stream, inside)
                self.lines = kept
                continue
            self.lines[inside] = line
            items[key] = self.node(next(stream), stream, inside)
        self.end = event.end_mark.index
        return items


def _explain(error: Exception) -> str:
    words = " ".join(str(getattr(error, "problem", None) or error).split())
    if "\\t" in words or "'\t'" in str(getattr(error, "problem", "")):
        return "a tab stands where YAML wants spaces; indent with spaces"
    if "special characters are not allowed" in words or "unacceptable character" in words:
        return "the file holds control characters; save it as plain UTF-8 text"
    return f"this is not YAML ({words or 'nested too deeply'}); correct the line or the one before it"
