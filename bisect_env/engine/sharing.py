"""Lets several commands work on one study: each claims its trials in the database before it runs them."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from bisect_env.errors import StorageError
from bisect_env.matrix.grid import Combination
from bisect_env.storage.entries import StoredTrial, Want
from bisect_env.storage.store import Store

LEASE = 60.0
"""Seconds after which the claims of a command that died count no longer; its work would be done by others."""
RENEW_EVERY = LEASE / 4
HEAR_EVERY = 1.0
"""Seconds between two looks at what others have recorded and claimed."""


class Sharing:
    """This command's view of a study that others may be running, too.

    Args:
        store: Where the study is.
        study_id: Which one.
        clock: Seconds that only grow.

    Attributes:
        claimed: Trials of each combination that others run now, when one looked last.
    """

    def __init__(self, store: Store, study_id: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._study_id = study_id
        self._clock = clock
        self._holder = uuid.uuid4().hex
        # Of what this command has recorded since it looked last; before that everything is known.
        self._known: set[str] = set()
        self._recorded: Counter[Combination] = Counter()
        self._last = 0
        self._heard_at = self._renewed_at = clock()
        self.claimed: Mapping[Combination, int] = {}

    def news(self) -> list[StoredTrial]:
        """Trials of the study that this command did not know, in order."""
        found = self._store.news(self._study_id, self._holder, after=self._last, known=self._known)
        self._heard_at = self._clock()
        self.claimed = found.claimed
        self._last = found.last
        self._known.clear()
        self._recorded.clear()
        return found.trials

    @property
    def is_due(self) -> bool:
        """Whether it is time to look again."""
        return self._clock() >= self._heard_at + HEAR_EVERY

    def recorded(self, trial_id: str, combination: Combination) -> None:
        """A trial of this command is in the database."""
        self._known.add(trial_id)
        self._recorded[combination] += 1

    def claim(
        self,
        wanted: Sequence[tuple[str, Combination]],
        running: Mapping[Combination, int],
        decision: tuple[str, dict[str, Any]],
    ) -> list[bool]:
        """Claim trials, as ids and combinations; for each whether it is ours.

        What is not ours was claimed or recorded by somebody of whom `news` tells.

        Args:
            wanted: In order.
            running: Trials of each combination that this command runs.
            decision: Kind and payload of what was decided, stored beside what is claimed.
        """
        known = (self._recorded, running, self.claimed)
        taken: Counter[Combination] = Counter()
        wants = []
        for trial_id, combination in wanted:
            if combination not in taken:
                taken[combination] = sum(some.get(combination, 0) for some in known)
            wants.append(Want(trial_id, combination, taken[combination]))
            taken[combination] += 1
        return self._store.claim(
            self._study_id, self._holder, wants, lease=LEASE, decision=decision, after=self._last
        )

    def renew(self, running: Callable[[], Mapping[str, Combination]], *, now: bool = False) -> None:
        """Renew the claims of the running trials, and no others, if it is time or `now` is set."""
        if now or self._clock() >= self._renewed_at + RENEW_EVERY:
            self._store.renew(self._study_id, self._holder, running(), lease=LEASE)
            self._renewed_at = self._clock()

    def release(self, trial_ids: Collection[str]) -> None:
        """These trials will not be recorded."""
        self._store.release(self._holder, trial_ids)

    def close(self) -> None:
        """Give every claim back; what cannot be given back lapses."""
        with contextlib.suppress(StorageError):
            self._store.release(self._holder)
