"""Provides a thread-safe cache that computes each value only once."""

from __future__ import annotations

import threading
from collections import defaultdict
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
        self._lock = threading.Lock()
        self._locks: defaultdict[Key, threading.Lock] = defaultdict(threading.Lock)
        self._known: dict[Key, Value] = {}

    def get(self, key: Key, work: Callable[[], Value]) -> Value:
        """Return the cached value of a key, or call `work` to compute the value.

        Exceptions are not cached.
        """
        with self._lock:
            own = self._locks[key]
        with own:
            if key not in self._known:
                self._known[key] = work()
            return self._known[key]
