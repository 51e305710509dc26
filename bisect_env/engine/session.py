"""The objects that a command needs to run trials: store, provider, executor, and where messages go."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from bisect_env.cluster.protocol import Executor
from bisect_env.engine import events
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.storage.store import Store


def _ignore(_event: events.Event) -> None:
    pass


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Session:
    """The database, environments and executor of one command, and its connection to the user.

    Attributes:
        store: Database, open for writing.
        provider: Locks and builds environments.
        start: Starts the executor, or waits until it is ready; the caller closes it.
        notify: Called with everything that happens.
        stopped: Returns whether the user wants to stop.
        clock: Returns the seconds of a clock that never goes back.
        deadline: When the study's budget is spent, by `clock`; None for never.
    """

    store: Store
    provider: EnvironmentProvider
    start: Callable[[], Executor]
    notify: Callable[[events.Event], None] = _ignore
    stopped: Callable[[], bool] = _never
    clock: Callable[[], float] = field(default=time.monotonic)
    deadline: float | None = None

    @property
    def is_in_time(self) -> bool:
        """Return whether the budget is not spent yet."""
        return self.deadline is None or self.clock() < self.deadline

    def say(self, text: str) -> None:
        """Report what is being done."""
        self.notify(events.Said(text))

    def warn(self, text: str) -> None:
        """Report something that may affect the result."""
        self.notify(events.Warned(text))

    def notifying(self, notify: Callable[[events.Event], None]) -> Session:
        """Return the same session with another receiver of events."""
        return replace(self, notify=notify)
