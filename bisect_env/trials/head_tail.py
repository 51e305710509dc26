"""Keeps the beginning and the end of an output of any length, within a limit."""

from __future__ import annotations

import re

from bisect_env.secrets import left_out

_COLOUR = re.compile(r"\x1b\[[\d;:]*[mK]")
HEAD_SHARE = 4
"""The kept part of an output has 1/4 from its beginning; the rest is its end, where stacks and errors are."""


class HeadTail:
    """A buffer that keeps the beginning and the end of a stream, up to a total number of bytes."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit // HEAD_SHARE
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

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
            del self._tail[: len(self._tail) - self._tail_limit]

    def text(self) -> str:
        """Return the kept bytes as text without colours.

        If bytes are missing, a line in the middle states how many. Invalid UTF-8 becomes replacement
        characters, and so does NUL, which databases cannot store in text. The escape sequences of colours are
        left out because they stand inside exceptions and secrets: Python 3.13 and later, pytest and others
        write them to a pipe, too, if a variable such as FORCE_COLOR asks for them.
        """
        tail = bytes(self._tail[max(0, len(self._tail) - self._tail_limit) :])
        missing = self.total - len(self._head) - len(tail)
        gap = left_out(missing).encode() if missing else b""
        text = (bytes(self._head) + gap + tail).decode("utf-8", "replace")
        return _COLOUR.sub("", text).replace("\0", "\ufffd")
