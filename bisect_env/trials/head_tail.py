"""Keeps the beginning and the end of an output of any length, within a limit."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bisect_env.secrets import left_out

_COLOUR = re.compile(r"\x1b\[[\d;:]*[mK]")
HEAD_SHARE = 4
"""The kept part of an output has 1/4 from its beginning; the rest is its end, where stacks and errors are."""


OVERLAP = 64_000
"""Number of bytes that two windows of an output have in common, in which patterns are searched."""


class HeadTail:
    """A buffer that keeps the beginning and the end of a stream, up to a total number of bytes.

    Patterns are searched in what is not kept, before it is dropped.

    Args:
        limit: Maximum number of bytes that are kept.
        patterns: Regular expressions to search for, with `re.MULTILINE`.

    Attributes:
        total: Number of bytes of the stream so far.
        found: Patterns that match in the middle of the stream, which is not kept.
    """

    def __init__(self, limit: int, patterns: Iterable[str] = ()) -> None:
        self._head_limit = limit // HEAD_SHARE
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self._sought = {pattern: re.compile(pattern, re.MULTILINE) for pattern in patterns}
        self._before = b""
        self.total = 0
        self.found: set[str] = set()

    def add(self, data: bytes) -> None:
        """Append the next piece of the stream."""
        self.total += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Trim seldom, because each time the kept bytes are moved.
        if len(self._tail) > 2 * self._tail_limit:
            self._drop(len(self._tail) - self._tail_limit)

    def _drop(self, count: int) -> None:
        """Remove bytes from the beginning of the tail, and search for the patterns in them.

        A match may span several windows of the stream by at most `OVERLAP` bytes.
        """
        if self._sought.keys() - self.found:
            window = (self._before or bytes(self._head[-OVERLAP:])) + self._tail[:count]
            # Only whole lines are searched, for the sake of `^` and `$`; the rest belongs to the next window.
            end = window.rfind(b"\n") + 1 or len(window)
            self._search(window[:end])
            begin = window.rfind(b"\n", 0, max(0, end - OVERLAP)) + 1 or max(0, end - OVERLAP)
            self._before = window[begin:]
        del self._tail[:count]

    def _search(self, window: bytes) -> None:
        text = _COLOUR.sub("", window.decode("utf-8", "replace"))
        left = {pattern: self._sought[pattern] for pattern in self._sought.keys() - self.found}
        self.found |= {pattern for pattern, compiled in left.items() if compiled.search(text)}

    def end(self) -> None:
        """Drop what is not kept at the end of the stream, and search up to where the kept end begins."""
        if (count := len(self._tail) - self._tail_limit) > 0:
            self._drop(count)
        if self._before:
            self._search(self._before + self._tail[:OVERLAP])

    def text(self) -> str:
        """Return the kept bytes as text without colours.

        If bytes are missing, a line in the middle states how many. Invalid UTF-8 becomes replacement
        characters, and so does NUL, which databases cannot store in text. The escape sequences of colours are
        left out because they stand inside exceptions and secrets: Python 3.13 and later, pytest and others
        write them to a pipe, too, if a variable such as FORCE_COLOR asks for them.
        """
        self.end()
        tail = bytes(self._tail)
        missing = self.total - len(self._head) - len(tail)
        gap = left_out(missing).encode() if missing else b""
        text = (bytes(self._head) + gap + tail).decode("utf-8", "replace")
        return _COLOUR.sub("", text).replace("\0", "\ufffd")
