"""Let several commands work on one study: each claims its trials in the database before running them."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import psutil

from bisect_env.errors import StorageError
from bisect_env.matrix.grid import Combination
from bisect_env.storage.entries import StoredTrial
from bisect_env.storage.store import Store
from bisect_env.storage.study_trials import StudyTrials

_log = logging.getLogger(__name__)

LEASE = 60.0
"""Seconds after which the claims of a command that died on another host expire.

For commands on this host, the process itself is checked instead.
"""
RENEW_EVERY = LEASE / 4
"""Seconds between two extensions of the leases of running trials."""
_MAX_PID = 2**22
"""Largest process id that Linux gives (proc_sys_kernel(5)); a damaged name may contain a larger number."""
READ_EVERY = 1.0
"""Seconds between two reads of what other commands have recorded and claimed."""


def name_of_holder() -> str:
    """Return a new unique name under which this process reserves trials.

    The name contains the machine's boot, the namespace of process ids, the process id and the start time of
    the process, so that `has_ended` can check whether the process still runs. Where these cannot be read (not
    on Linux), the name is merely unique.
    """
    process = (_machine(), str(os.getpid()), _started(os.getpid()))
    return " ".join([uuid.uuid4().hex, *(process if all(process) else ())])


def has_ended(holder: str) -> bool:
    """Return whether the process with this name has certainly ended.

    The result is always False for processes on other machines.
    """
    words = holder.split(" ")
    # A damaged name may contain a number that is too long for `int`.
    if len(words) != 4 or words[1] != _machine() or not re.fullmatch("[0-9]{1,18}", words[2]):
        return False
    pid, started = int(words[2]), words[3]
    if pid > _MAX_PID or not psutil.pid_exists(pid):
        return True
    # Process ids are reused, so the start time must differ. If the process belongs to another user, its start
    # time may be hidden from this one, and it may still run.
    return _started(pid) not in ("", started)


def _machine() -> str:
    """Return an id of this boot of the machine and of its process namespace.

    Returns "" if the system does not provide them.
    """
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    return ""


def _started(pid: int) -> str:
    """Return when a process was started, in clock ticks since the boot.

    Returns "ended" for a zombie, and "" if the process does not exist or cannot be read.
    """
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        # Behind the name in parentheses, which may contain anything, come the fields from the third on;
        # the state is the third, the start the 22nd (proc_pid_stat(5)).
        fields = stat[stat.rindex(b")") + 2 :].split()
        return "ended" if fields[0] in (b"Z", b"X") else fields[19].decode("ascii")
    return ""


class Sharing:
    """One command's access to a study on which other commands may be working at the same time.

    Args:
        store: Database with the study.
        study_id: Id of the study.
        trials: The trials that this command knows.
        clock: Returns the seconds of a clock that never goes back.

    Attributes:
        claimed: Number of trials of each combination that other commands were running at the last read.
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
        """Return the trials that any command has recorded since the last call, in order.

        Also reads which trials other commands have reserved (`claimed`). Claims of commands that have died on
        this host are released.
        """
        with self._store.reading():
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
        """Return whether enough time has passed to call `news` again."""
        return self._clock() >= self._read_at + READ_EVERY

    def claim(
        self,
        wanted: Sequence[tuple[str, Combination]],
        running: Mapping[Combination, int],
    ) -> list[bool]:
        """Reserve (claim) trials so that no other command runs them; return whether each claim succeeded.

        A claim fails if another command has claimed or recorded a trial in its place since the last read.

        Args:
            wanted: Id and combination of each trial, in order.
            running: Number of trials of each combination that this command is running.
        """
        return self._store.claim(
            self._study_id,
            self._holder,
            dict(wanted),
            Counter(running) + self.claimed,
            lease=LEASE,
            after=self._trials.last,
        )

    def renew(self, running: Callable[[], Mapping[str, Combination]], *, now: bool = False) -> None:
        """Extend the reservations (claims) of running trials, which otherwise expire.

        This is done only if `RENEW_EVERY` seconds have passed, or if `now` is set. Claims of trials that are
        not in `running` expire.
        """
        if now or self._clock() >= self._renewed_at + RENEW_EVERY:
            self._store.renew(self._study_id, self._holder, running(), lease=LEASE)
            self._renewed_at = self._clock()

    def release(self, trial_ids: Collection[str]) -> None:
        """Give up the reservations (claims) of trials that will not be recorded."""
        self._store.release(self._holder, trial_ids)

    def close(self) -> None:
        """Give up all reservations (claims); if the database cannot be reached, they expire later."""
        try:
            self._store.release(self._holder)
        except StorageError as error:
            _log.warning("claims of trials could not be released, and expire in %.0f s: %s", LEASE, error)
