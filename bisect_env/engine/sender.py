"""Send trials and builds to an executor, and let fewer trials share a GPU if they disturb each other."""

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
from bisect_env.engine.series import Conditions
from bisect_env.engine.specs import allowed_sources, trial_spec, within_limits
from bisect_env.environments.lock import Lock
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.load import Matrix

WAIT_SECONDS = 0.5
"""Maximum seconds of one wait for results, so that the budget and Ctrl-C are checked regularly."""
CANCEL_GRACE = 30.0
"""Maximum seconds to wait for the answers about cancelled trials."""


class Sender:
    """Sends trials and builds of one matrix to an executor, and receives their answers.

    Args:
        matrix: The matrix.
        executor: Runs the trials; the caller closes it.
        warn: Called with a sentence if fewer trials share a GPU from now on.

    Attributes:
        executor: The executor.
        running: For each submitted trial without an answer, by id: the number (or share) of GPUs that it got.
        gpus: Number (or share) of GPUs of each new trial. A share grows if trials disturb each other.
    """

    def __init__(
        self, matrix: Matrix, executor: Executor, warn: Callable[[str], None] = lambda _text: None
    ) -> None:
        self.executor = executor
        self.running: dict[str, float] = {}
        self.gpus = matrix.file.trial.gpus
        self._warn = warn
        self._matrix = matrix
        self._allow_source = allowed_sources(matrix)

    @property
    def slots(self) -> int:
        """Return how many trials can run at the same time."""
        return max(1, self.executor.slots // (self._on_a_gpu // trials_per_gpu(self.gpus)))

    @property
    def places_alone(self) -> int:
        """Return how many trials can run at the same time if each has its GPU to itself."""
        return max(1, self.executor.slots // self._on_a_gpu)

    @property
    def _on_a_gpu(self) -> int:
        return trials_per_gpu(self._matrix.file.trial.gpus)

    def prepare(self, lock: Lock, *, look: bool = False) -> None:
        """Ask the executor to build an environment before trials need it.

        If `look` is set, the executor only checks an existing environment, and rebuilds it if its files have
        changed.
        """
        self.executor.prepare(PrefixRequest(within_limits(self._matrix, lock), self._allow_source, look))

    def submit(
        self,
        trial_id: str,
        combination: Combination,
        lock: Lock,
        conditions: Conditions,
        *,
        alone: bool = False,
    ) -> None:
        """Submit one trial to the executor.

        Args:
            trial_id: Unique id of the trial.
            combination: The combination under which it is recorded.
            lock: Lock of its environment.
            conditions: The axis values that the command sees, and the circumstances under which it runs.
            alone: Whether it must have its GPU to itself.
        """
        spec = trial_spec(
            *(self._matrix, combination, lock, trial_id),
            values=conditions.values,
            perturbation=conditions.perturbation,
            gpus=max(1, self.gpus) if alone else self.gpus,
        )
        self.running[trial_id] = spec.gpus
        self.executor.submit(TrialRequest(spec, within_limits(self._matrix, lock), self._allow_source))

    def wait(self, timeout: float = WAIT_SECONDS) -> list[Completion]:
        """Wait up to `timeout` seconds for answers of the executor, and return all that have arrived."""
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

    def _make_room(self, lent: float, reason: str) -> None:
        """Halve the number of trials that share a GPU, because a trial was disturbed by others.

        Does nothing if the number was changed since this trial was submitted.
        """
        if lent < 1 and lent == self.gpus:
            fewer = trials_per_gpu(self.gpus) // 2
            self.gpus = 1 / fewer if fewer > 1 else 1
            shown = f"{fewer} trials share a GPU" if fewer > 1 else "trials have a GPU each"
            self._warn(f"{reason}; it is run again, and {shown} from now on")

    def end(self) -> list[Completion]:
        """Cancel all running trials, wait until they have ended, and return the other answers that arrive.

        Answers about cancelled trials are dropped.
        """
        ended: list[Completion] = []
        if not self.running:
            return ended
        self.executor.cancel()
        deadline = time.monotonic() + CANCEL_GRACE
        while self.running and time.monotonic() < deadline:
            # Drop answers of cancelled trials, but keep those of builds: the caller waits for each of them.
            ended += [one for one in self.wait() if not isinstance(one, TrialLost)]
        self.running.clear()
        return ended
