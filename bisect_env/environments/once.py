"""Works something out once for each key, while others may work out something else."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class OncePerKey(Generic[Key, Value]):
    """A cache of values by key; threads that need the same one at the same time wait for one computation."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: defaultdict[Key, threading.Lock] = defaultdict(threading.Lock)
        self._known: dict[Key, Value] = {}

    def get(self, key: Key, work: Callable[[], Value]) -> Value:
        """Return the value of a key, from `work` if it is not known; what `work` raises is not kept."""
        with self._lock:
            own = self._locks[key]
        with own:
            if key not in self._known:
                self._known[key] = work()
            return self._known[key]
