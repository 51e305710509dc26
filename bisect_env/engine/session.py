"""The objects that a command needs to run trials: database, provider, executor and event receiver."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bisect_env.cluster.protocol import Executor
from bisect_env.engine import events
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.storage.store import Store


@dataclass(frozen=True, slots=True)
class Session:
    """The objects that one command needs to run trials: database, environments, executor, and callbacks.

    Attributes:
        store: Database, open for writing.
        provider: Locks and builds environments.
        start: Starts the executor, or waits until it is ready, and returns it; the caller closes it.
        notify: Called with each event, to be shown to the user.
        stopped: Returns True if the user wants to stop.
        clock: Returns the seconds of a clock that never goes back.
        deadline: Time, by `clock`, at which the study's budget is spent; None for no limit.
    """

    store: Store
    provider: EnvironmentProvider
    start: Callable[[], Executor]
    notify: Callable[[events.Event], None] = lambda _event: None
    stopped: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = field(default=time.monotonic)
    deadline: float | None = None

    @property
    def is_in_time(self) -> bool:
        """Return whether the study still has time left in its budget."""
        return self.deadline is None or self.clock() < self.deadline

    def say(self, text: str) -> None:
        """Send a message to the user about what is being done."""
        self.notify(events.Said(text))

    def warn(self, text: str) -> None:
        """Send a warning to the user about something that may affect the result."""
        self.notify(events.Warned(text))
