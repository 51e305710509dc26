"""Sends trials and builds to an executor, and lets fewer trials share a GPU when they disturb each other."""

from __future__ import annotations

import time
from collections.abc import Callable

from bisect_env.cluster.protocol import (
    BuildFailed,
    Completion,
    Executor,
    PrefixProgress,
    PrefixReady,
    PrefixRequest,
    TrialCompleted,
    TrialLost,
    TrialRequest,
    trials_per_gpu,
)
from bisect_env.engine.specs import allowed_sources, trial_files, trial_spec, within_limits
from bisect_env.environments.lock import Lock
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.load import Matrix
from bisect_env.trials.records import NONE, Perturbation

LOOK = 0.5
"""Seconds between two looks at the budget and at Ctrl-C while trials run."""
CANCEL_GRACE = 30.0
"""Seconds for cancelled trials to be answered."""
GATHER = 0.05
"""Seconds for which answers wait for more of them, as long as enough trials are queued."""


class Sender:
    """A sender of one matrix's trials and builds to an executor, which counts what is running.

    Args:
        matrix: What is run.
        executor: Where; the caller closes it.
        warn: Called with a sentence when fewer trials share a GPU from now on.

    Attributes:
        executor: As given.
        running: Trials that were sent off and are not answered yet, by id, with what each was lent of GPUs.
        gpus: What a trial is lent: of a shared GPU it grows when trials disturb each other.
    """

    def __init__(
        self, matrix: Matrix, executor: Executor, warn: Callable[[str], None] = lambda _text: None
    ) -> None:
        self.executor = executor
        self.running: dict[str, float] = {}
        self.gpus = matrix.file.trial.gpus
        self._warn = warn
        self._matrix = matrix
        self._files = trial_files(matrix)
        self._allow_source = allowed_sources(matrix)

    @property
    def slots(self) -> int:
        """Return how many trials can run at the same time."""
        return max(1, self.executor.slots // (self._on_a_gpu // trials_per_gpu(self.gpus)))

    @property
    def places_alone(self) -> int:
        """Return how many trials can run at the same time without sharing a GPU."""
        return max(1, self.executor.slots // self._on_a_gpu)

    @property
    def _on_a_gpu(self) -> int:
        return trials_per_gpu(self._matrix.file.trial.gpus)

    def prepare(self, lock: Lock, *, look: bool = False) -> None:
        """Start to build an environment, or to check that it is unchanged."""
        self.executor.prepare(PrefixRequest(within_limits(self._matrix, lock), self._allow_source, look))

    def submit(
        self,
        trial_id: str,
        combination: Combination,
        lock: Lock,
        *,
        values: Combination | None = None,
        perturbation: Perturbation = NONE,
        alone: bool = False,
    ) -> None:
        """Send a trial off.

        Args:
            trial_id: Unique.
            combination: Under which it is recorded.
            lock: Its environment.
            values: What the command sees of the axes, if that is something else.
            perturbation: Circumstances under which it runs.
            alone: Whether it must not share a GPU, whatever the others do.
        """
        spec = trial_spec(
            *(self._matrix, combination, lock, trial_id, self._files),
            values=values,
            perturbation=perturbation,
            gpus=max(1, self.gpus) if alone else self.gpus,
        )
        self.running[trial_id] = spec.gpus
        self.executor.submit(TrialRequest(spec, within_limits(self._matrix, lock), self._allow_source))

    def wait(self, timeout: float = LOOK) -> list[Completion]:
        """Return answers since the last call, after waiting up to `timeout` seconds for the first."""
        answers = self.executor.wait(timeout)
        for answer in answers:
            match answer:
                case TrialCompleted(record):
                    self.running.pop(record.trial_id, None)
                case TrialLost(trial_id, reason, crowded=True):
                    self._make_room(self.running.pop(trial_id, 1), reason)
                case BuildFailed(trial_id) | TrialLost(trial_id):
                    self.running.pop(trial_id, None)
                case PrefixReady() | PrefixProgress():
                    pass
        return answers

    def gather(self) -> list[Completion]:
        """Wait for answers as `wait` does, then a little longer while enough trials are queued.

        Recording answers, learning from them and deciding costs about the same for one as for twenty.
        """
        answers = self.wait()
        until = time.monotonic() + GATHER
        while answers and (left := until - time.monotonic()) > 0:
            if len(self.running) <= 1.5 * self.slots:
                break
            answers += self.wait(left)
        return answers

    def _make_room(self, lent: float, reason: str) -> None:
        """Halve the number of trials that share a GPU, if that many have disturbed each other."""
        if lent < 1 and lent == self.gpus:
            fewer = trials_per_gpu(self.gpus) // 2
            self.gpus = 1 / fewer if fewer > 1 else 1
            shown = (
                f"{fewer} trials share a GPU from now on"
                if fewer > 1
                else "trials have a GPU each from now on"
            )
            self._warn(f"{reason}; it is run again, and {shown}")

    def end(self) -> list[Completion]:
        """End what runs. Return what came meanwhile: trials that had ended before, and builds."""
        ended: list[Completion] = []
        if not self.running:
            return ended
        self.executor.cancel()
        deadline = time.monotonic() + CANCEL_GRACE
        while self.running and time.monotonic() < deadline:
            # A lost trial was ended here. A build that nobody hears of would be waited for without end.
            ended += [one for one in self.wait() if not isinstance(one, TrialLost)]
        self.running.clear()
        return ended
