"""The code of ours that runs inside a Dask worker; named as its preload, too."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distributed import get_worker

from bisect_env.cluster.perform import PrefixBuilder, perform
from bisect_env.cluster.protocol import Completion, TrialLost, TrialRequest

if TYPE_CHECKING:
    from distributed import Worker


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker on this host needs besides the request.

    Attributes:
        build: Makes prefixes.
        cancel_file: The trials are cancelled once it exists.
        started_dir: Where a worker leaves a mark for each attempt that it began.
        cpus: CPUs that trials may use.
    """

    build: PrefixBuilder
    cancel_file: Path
    started_dir: Path
    cpus: tuple[int, ...]


def dask_setup(_worker: Worker) -> None:
    """Called by Dask when the worker starts.

    A Ctrl-C in the terminal reaches every process of its foreground group. What it means is for the command
    to decide: workers that died of it would turn an orderly stop into lost trials.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Dask's event loop shares the interpreter with the thread that watches the trial; with the default of
    # 5 ms, each step of a trial's start and end may wait that long.
    sys.setswitchinterval(0.0005)


def perform_on_worker(request: TrialRequest, attempt: str, settings: WorkerSettings) -> Completion:
    """Answer a request, unless this attempt at it was begun before.

    When a worker is lost after a trial ended and before its answer was fetched, Dask runs the task again to
    get the answer back, and nothing in its settings prevents that. A second trial nobody asked for would be
    told as the first, so it is refused: the trial is lost.
    """
    try:
        os.close(os.open(settings.started_dir / attempt, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return TrialLost(request.spec.trial_id, "the worker was lost before its answer was fetched")
    return perform(
        request,
        build=settings.build,
        cancelled=settings.cancel_file.exists,
        worker=str(get_worker().name),
        cpus=settings.cpus,
    )
