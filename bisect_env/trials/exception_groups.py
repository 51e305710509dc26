"""Tracebacks of exception groups (Python 3.11 and later), told as that of the first failure inside. Pure.

A group is how `asyncio.TaskGroup` and its like pass on what failed in them. It always says the same, at the
same place: what failed, and where, stands in its branches.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_GROUP = re.compile(r"^ +\+ Exception Group Traceback \(most recent call last\):$")
_BRANCH = re.compile(r"^ +\+(?:-\+)?-+ \d+ -+$")
_PREFIX = re.compile(r"^ +\| ?")
_DRAWN = re.compile(r"^ +[|+]")
_HEADER = "Traceback (most recent call last):"


def without_groups(lines: Sequence[str]) -> list[str]:
    """The same output with a plain traceback for each group: its frames, then those of its first leaf."""
    found: list[str] = []
    position = 0
    while position < len(lines):
        if not _GROUP.match(lines[position]):
            found.append(lines[position])
            position += 1
            continue
        end = _end(lines, position + 1)
        found += _first_leaf(lines[position + 1 : end])
        position = end
    return found


def _end(lines: Sequence[str], position: int) -> int:
    """Behind the last line that belongs to the drawing; further lines of a message may stand between."""
    end = position
    for index in range(position, len(lines)):
        if _DRAWN.match(lines[index]) and not _GROUP.match(lines[index]):
            end = index + 1
        elif lines[index].endswith(_HEADER):
            break
    return end


def _first_leaf(lines: Sequence[str]) -> list[str]:
    frames: list[str] = []
    message: list[str] = []
    for line in lines:
        if _BRANCH.match(line):
            if not message or not message[0].partition(":")[0].endswith("ExceptionGroup"):
                break
            message = []
            continue
        text = _PREFIX.sub("", line)
        if text.endswith(_HEADER) or text.lstrip().startswith("+--"):
            continue
        (frames if not message and (text.startswith(" ") or not text) else message).append(text)
    return [_HEADER, *frames, *message]
