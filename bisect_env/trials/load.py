"""What a perturbation does to the host while a trial runs: load beside it, fewer CPUs."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bisect_env.trials.launch import TrialCancelledError, run_process
from bisect_env.trials.launcher import Launch

_SPIN = [sys.executable, "-I", "-S", "-c", "while True: pass"]


@contextlib.contextmanager
def load_beside(processes: int, cpus: Collection[int], limit: float) -> Iterator[None]:
    """Keep CPUs busy for a while; nothing of it is left afterwards, however this process ends.

    Args:
        processes: How many.
        cpus: CPUs that they may use; empty means those of this process.
        limit: Seconds after which they end in any case.
    """
    if not processes:
        yield
        return
    over = threading.Event()
    launch = Launch(_SPIN, {}, Path("/"), cpus=sorted(cpus))

    def spin() -> None:
        with contextlib.suppress(TrialCancelledError):
            run_process(launch, timeout=limit, output_limit=1000, cancelled=over.is_set)

    with ThreadPoolExecutor(processes, thread_name_prefix="load") as pool:
        try:
            spinning = [pool.submit(spin) for _ in range(processes)]
            yield
        finally:
            over.set()
    for one in spinning:
        one.result()


def some_cpus(count: int, cpus: Collection[int], trial_id: str) -> list[int]:
    """Some of the CPUs that a trial may use, chosen by its id so that not all trials crowd on the same.

    Args:
        count: How many; 0 for all.
        cpus: Those that it may use; empty means those of this process.
        trial_id: Of the trial.
    """
    allowed = sorted(cpus or os.sched_getaffinity(0))
    if not count or count >= len(allowed):
        return sorted(cpus)
    return sorted(random.Random(trial_id).sample(allowed, count))
