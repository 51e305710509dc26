"""Provides a thread-safe cache that computes each value only once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class OncePerKey(Generic[Key, Value]):
    """A thread-safe cache of computed values.

    If several threads ask for the same key at once, one computes the value and the others wait for it.
    Values of different keys are computed in parallel.
    """

    def __init__(self) -> None:
        self._locks: dict[Key, threading.Lock] = {}
        self._known: dict[Key, Value] = {}

    def get(self, key: Key, work: Callable[[], Value]) -> Value:
        """Return the cached value of a key, or call `work` to compute the value.

        Exceptions are not cached.
        """
        # `setdefault` of a dict is atomic: all threads get the same lock.
        with self._locks.setdefault(key, threading.Lock()):
            if key not in self._known:
                self._known[key] = work()
            return self._known[key]
