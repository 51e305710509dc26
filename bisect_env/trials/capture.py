"""Keeping the telling part of an output of any length: its beginning and, above all, its end."""

from __future__ import annotations

from collections import deque

HEAD_SHARE = 4
"""One part in so many is kept from the beginning; stacks and last words are at the end."""


class HeadTail:
    """Bytes kept from the beginning and the end of a stream, with a bound on the whole.

    Args:
        limit: Bytes kept in all.
    """

    def __init__(self, limit: int) -> None:
        self._head_limit = limit // HEAD_SHARE
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.total = 0

    def add(self, data: bytes) -> None:
        """Take the next piece of the stream."""
        self.total += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail_size - len(self._tail[0]) >= self._tail_limit:
            self._tail_size -= len(self._tail.popleft())

    def text(self) -> str:
        """What was kept, decoded; a line tells how many bytes are missing, if any are.

        Invalid UTF-8 and NUL, which no database stores as text, become replacement characters.
        """
        tail = b"".join(self._tail)
        tail = tail[max(0, len(tail) - self._tail_limit) :]
        missing = self.total - len(self._head) - len(tail)
        gap = f"\n[… {missing} bytes left out …]\n".encode() if missing else b""
        return (bytes(self._head) + gap + tail).decode("utf-8", "replace").replace("\0", "\ufffd")
