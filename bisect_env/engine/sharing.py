"""Lets several commands work on one study: each claims its trials in the database before it runs them."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from bisect_env.errors import StorageError
from bisect_env.matrix.grid import Combination
from bisect_env.storage.entries import StoredTrial, Want
from bisect_env.storage.store import Store
from bisect_env.storage.study_trials import StudyTrials

LEASE = 60.0
"""Seconds after which the claims of a command that died on another host count no longer.

On this host its process is seen to be gone.
"""
RENEW_EVERY = LEASE / 4
READ_EVERY = 1.0
"""Seconds between two looks at what others have recorded and claimed."""


def name_of_holder() -> str:
    """Return a new, unique name for this process's claims that `has_ended` can check.

    It says the boot of the machine, the namespace of process ids, the id, and when the process was
    started; where these cannot be read (not Linux), it is merely unique.
    """
    process = (_machine(), str(os.getpid()), _started(os.getpid()))
    return " ".join([uuid.uuid4().hex, *(process if all(process) else ())])


def has_ended(holder: str) -> bool:
    """Return whether the process with this name has certainly ended; false for other machines."""
    words = holder.split(" ")
    if len(words) != 4 or words[1] != _machine() or not words[2].isdecimal():
        return False
    pid, started = int(words[2]), words[3]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # another user's, who may have put it out of sight
    # An id is given away again. What cannot be read may live.
    return _started(pid) not in ("", started)


def _machine() -> str:
    """Return the id of this machine's boot and process namespace; "" if the system does not give it."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    return ""


def _started(pid: int) -> str:
    """Return when a process was started, in ticks since the boot; "ended" for a zombie."""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        # Behind the name in parentheses, which may contain anything, come the fields from the third on;
        # the state is the third, the start the 22nd (proc_pid_stat(5)).
        fields = stat[stat.rindex(b")") + 2 :].split()
        return "ended" if fields[0] in (b"Z", b"X") else fields[19].decode("ascii")
    return ""


class Sharing:
    """This command's view of a study that other commands may be running, too.

    Args:
        store: Where the study is.
        study_id: Id of the study.
        trials: Those that this command knows.
        clock: Seconds that only grow.

    Attributes:
        claimed: Trials of each combination that others ran at the last look.
    """

    def __init__(
        self,
        store: Store,
        study_id: str,
        trials: StudyTrials,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._study_id = study_id
        self._trials = trials
        self._clock = clock
        self._holder = name_of_holder()
        self._read_at = self._renewed_at = clock()
        self.claimed: Counter[Combination] = Counter()

    def news(self) -> list[StoredTrial]:
        """Return trials of the study that this command did not know, in order, and look at all claims.

        What commands had claimed that have died on this host since is free again.
        """
        with self._store.snapshot():
            found = self._trials.look()
            claims_of = self._store.claimed(self._study_id, self._holder)
        self._read_at = self._clock()
        self.claimed = Counter()
        for holder, claims in claims_of.items():
            if has_ended(holder):
                self._store.release(holder)
            else:
                self.claimed += claims
        return found

    @property
    def is_due(self) -> bool:
        """Return whether it is time to look again."""
        return self._clock() >= self._read_at + READ_EVERY

    def claim(
        self,
        wanted: Sequence[tuple[str, Combination]],
        running: Mapping[Combination, int],
        decision: tuple[str, dict[str, Any]],
    ) -> list[bool]:
        """Claim trials, given by id and combination; return for each whether the claim succeeded.

        What is not ours was claimed or recorded by another command since the last look.

        Args:
            wanted: In order.
            running: Trials of each combination that this command runs.
            decision: Kind and payload of what was decided, stored beside what is claimed.
        """
        taken: Counter[Combination] = Counter()
        wants = []
        for trial_id, combination in wanted:
            if combination not in taken:
                taken[combination] = running.get(combination, 0) + self.claimed.get(combination, 0)
            wants.append(Want(trial_id, combination, taken[combination]))
            taken[combination] += 1
        return self._store.claim(
            self._study_id, self._holder, wants, lease=LEASE, decision=decision, after=self._trials.last
        )

    def renew(self, running: Callable[[], Mapping[str, Combination]], *, now: bool = False) -> None:
        """Renew the claims of the running trials only, if it is time or `now` is set."""
        if now or self._clock() >= self._renewed_at + RENEW_EVERY:
            self._store.renew(self._study_id, self._holder, running(), lease=LEASE)
            self._renewed_at = self._clock()

    def release(self, trial_ids: Collection[str]) -> None:
        """Release the claims of trials that will not be recorded."""
        self._store.release(self._holder, trial_ids)

    def close(self) -> None:
        """Give every claim back; what cannot be given back lapses."""
        with contextlib.suppress(StorageError):
            self._store.release(self._holder)
