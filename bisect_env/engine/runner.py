"""Runs trials: asks a plan what to try, locks, builds, claims and sends, and waits for answers."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from bisect_env.cluster.protocol import (
    BuildFailed,
    PrefixReady,
    PrefixRequest,
    TrialLost,
    TrialRequest,
    trials_per_gpu,
)
from bisect_env.engine import events
from bisect_env.engine.learning import Learner
from bisect_env.engine.locking import Locking
from bisect_env.engine.next_work import NextWork, Wanted
from bisect_env.engine.series import RunSetup
from bisect_env.engine.specs import allowed_sources, trial_spec, within_limits
from bisect_env.environments.lock import Lock
from bisect_env.errors import StudyInterruptedError
from bisect_env.matrix.grid import Combination, Index
from bisect_env.trials.records import TrialRecord

WAIT_SECONDS = 0.5
"""Maximum seconds of one wait for results, so that the budget and Ctrl-C are checked regularly."""
CANCEL_GRACE = 30.0
"""Maximum seconds to wait for the answers about cancelled trials."""
LOOK_GRACE = 8.0
"""Maximum seconds to wait for the answers about the files of environments once the user has stopped the
command. Together with `CANCEL_GRACE`, this is less than the command may take to end."""
CLAIM_PAUSE = 0.02
"""Seconds to wait before a runner chooses trials anew because another command claimed its choice first."""
IDLE_ROUNDS = 4
"""Number of rounds in a row without work, here or in other commands, after which the runner fails."""
GRACE_TRIALS, GRACE_SECONDS = 3.0, 0.4
"""Time that running trials get to end once the plan is finished: a number of mean trial durations, and its
maximum in seconds."""


def grace(trial_seconds: float | None, *, waits: bool) -> float:
    """Return for how many seconds to wait for running trials once the plan is finished.

    Ending them all at once would favour quick outcomes: a hang takes longer than a pass.

    Args:
        trial_seconds: Mean duration of a trial, None before the first.
        waits: Whether the trials may take as long as they need.
    """
    return float("inf") if waits else min(GRACE_TRIALS * (trial_seconds or 0.0), GRACE_SECONDS)


class TrialRunner(Learner):
    """A runner of the trials that a plan asks for, which records the results in a study.

    Args:
        setup: What is run, and where it is recorded.
        locking: Locks the combinations that the plan wants.
        max_trials: Maximum number of counted trials; None for no limit.

    Attributes:
        waits: Whether trials that still run when the plan is finished come to their end. Otherwise, or when
            the budget is spent, they are ended after a moment.
    """

    waits = False

    def __init__(self, setup: RunSetup, locking: Locking, *, max_trials: int | None = None) -> None:
        super().__init__(setup, locking.prepared)
        self._locking = locking
        self._next = NextWork(setup.matrix, self._prepared, self.state, max_trials=max_trials)
        self._locks_answered = 0
        # Number (or share) of GPUs of each new trial. A share grows if trials disturb each other.
        self._gpus = setup.matrix.file.trial.gpus
        self._sent_before_growth: set[str] = set()
        self._sent_at: dict[str, float] = {}

    # -- before and after ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the trials that the plan asks for until it is finished, and record their results.

        Raises:
            NoEnvironmentError: Nothing can be run.
            InfrastructureError: Too many trials in a row were void, or the cluster is lost.
            UsageError: The command cannot be run in any combination tried.
        """
        # Start the solvers first, because starting the executor may take a minute.
        self._locking.want(self._next.decide(2).lock)
        try:
            self._executor = self._session.start()
        except StudyInterruptedError:
            self._sharing.close()
            return  # nothing ran; the caller sees that the user stopped
        self._locking.on_done = self._executor.wake
        try:
            self._pursue()
            while self._go_further():
                self._pursue()
        finally:
            self._save_locked()
            self._sharing.close()
        if not self._stopped():
            self.state.check_anything_ran()

    def _go_further(self) -> bool:
        """Do the final checks after the plan has finished; return whether they may require more trials."""
        return self._look_at_environments()

    def _pursue(self) -> None:
        """Run trials until the plan is finished, including waiting for trials of other commands.

        Also ends if the plan asks for nothing more, time is up, or the user stops the command.
        """
        idle = 0
        while self._wants_more():
            known = self.plan.trials, len(self.state.aside)
            was_busy = self._work()
            # Trials that ended meanwhile may have changed the answer, so ask the plan again.
            self._wind_down()
            self.read_others()
            self._learn(self._measured_elsewhere(self._keys))
            # A command that stops has cancelled trials, without which the plan must not come to a result.
            asked = list(self._asked_next()) if self._may_go_on else []
            if not asked:
                return
            if was_busy or known != (self.plan.trials, len(self.state.aside)):
                idle = 0
                continue
            # Wait for trials of other commands. If there are none, waiting would not change anything.
            idle += not self.state.elsewhere
            if idle > IDLE_ROUNDS:
                raise RuntimeError(f"{self.grid.combination(asked[0])} is asked for, and cannot be begun")
            time.sleep(WAIT_SECONDS)

    @property
    def has_answered(self) -> bool:
        """Return whether the plan has a result, even if more trials are needed to check it."""
        return self.plan.finished

    @property
    def _may_go_on(self) -> bool:
        """Return whether there is time left and the user has not stopped the command."""
        return self._session.is_in_time and not self._stopped()

    def _wants_more(self) -> bool:
        return self._may_go_on and not self.plan.finished

    def _asked_next(self) -> Collection[Index]:
        """Return the combinations that the plan wants to try next; empty if it needs no more trials."""
        return self.plan.ask(1)

    def _look_at_environments(self) -> bool:
        """Return whether the files of any environment in which trials passed have been changed.

        Trials that are void because of a change are excluded. If the user stops the command before there is
        an answer, the check is skipped: only verdicts need it. If the command is stopped later and the check
        takes longer than `LOOK_GRACE`, it is left to the next command.
        """
        known = self._basis
        if self._stopped() and not self.has_answered:
            return False
        locks = {lock.content_hash: lock for lock in self._prepared.locks.values()}
        waiting, self.unchecked = self.unchecked & locks.keys(), set()
        for lock_hash in waiting:
            self._prepare(locks[lock_hash], look=True)
        deadline = float("inf")
        while waiting:
            answers = self._executor.wait(WAIT_SECONDS)
            self._handle(answers)
            waiting -= {one.lock_hash for one in answers if isinstance(one, PrefixReady | BuildFailed)}
            if self._stopped():
                # A changed environment is made again, which may take long. Without this look, there is no
                # verdict.
                deadline = min(deadline, self._clock() + LOOK_GRACE)
                if waiting and self._clock() >= deadline:
                    self.unchecked |= waiting
                    return False
        # Another command may have stored the same change first; then only the database tells of it.
        self.read_others()
        return self._basis != known

    # -- one step ------------------------------------------------------------------------------------------

    def _work(self) -> bool:
        """Start and await trials, builds and solvers until nothing is in progress any more.

        Returns whether anything was in progress.
        """
        was_busy = False
        while self._wants_more():
            if not self._start_wanted():
                pass  # ask the plan again
            elif self.state.running or self.state.building:
                self._handle(self._executor.wait(WAIT_SECONDS))
            elif self._locking.under_way:
                self._locking.wait(WAIT_SECONDS)
            else:
                return was_busy
            was_busy = True
            self._take_locks()
            if self._sharing.is_due:
                self.read_others()
            self._sharing.renew(self._claims)
            self._after_step()
        return True

    def _after_step(self) -> None:
        """Do nothing; subclasses override this method, which is called whenever results were processed."""

    def _start_wanted(self) -> bool:
        """Start the trials, builds and solvers that the plan asks for now.

        Returns False if other commands were faster to claim some of the trials.
        """
        wanted = self._next.decide(self._slots, only=self._only())
        self._locking.want(wanted.lock)
        self._build(wanted)
        if not self._start(wanted.start):
            return False
        ahead = self._next.ahead(self._slots)
        self._locking.want_ahead(ahead.lock)
        self._build(ahead)
        return True

    def _only(self) -> Mapping[Index, int] | None:
        """Return the combinations to try instead of the plan's choice, or None to let the plan decide.

        The values are maximum numbers of simultaneous trials.
        """
        return None

    def _take_locks(self) -> None:
        answered = self._locking.take()
        if not answered:
            return
        prepared = self._prepared
        self._unsaved += answered
        for index in answered:
            self._apply_findings(self.state.locked(index))
        self._locks_answered += len(answered)
        total = self._locks_answered + self._locking.under_way
        self._notify(events.LockProgress(self._locks_answered, total))
        if new := [index for index in answered if index in prepared.locks and index in self.state.members]:
            self._reuse(new)

    def _build(self, wanted: Wanted) -> None:
        for index in wanted.build:
            lock = self._prepared.locks[index]
            self.state.building.add(lock.content_hash)
            self._prepare(lock)

    def _prepare(self, lock: Lock, *, look: bool = False) -> None:
        """Ask the executor to build an environment before trials need it.

        If `look` is set, the executor only checks an existing environment, and rebuilds it if its files have
        changed.
        """
        self._executor.prepare(
            PrefixRequest(within_limits(self._matrix, lock), allowed_sources(self._matrix), look)
        )

    def _start(self, chosen: Sequence[Index], *, alone: bool = False) -> bool:
        """Claim trials in the database, and start those that no other command has claimed before.

        If other commands were faster with some, also read their results, on which the next choice depends.

        Args:
            chosen: Their combinations.
            alone: Whether they must not share a GPU.

        Returns:
            Whether all of them could be claimed.
        """
        if not chosen:
            return True
        wants = [(uuid.uuid4().hex, self.grid.combination(index)) for index in chosen]
        if self._series is not None:
            self._series.update(trial_id for trial_id, _ in wants)
        self._save_locked()
        won = self._sharing.claim(wants, self._run_now())
        for index, (trial_id, combination), ours in zip(chosen, wants, won, strict=True):
            if ours:
                self.state.running[trial_id] = index
                self._submit(trial_id, index, alone=alone)
                self._notify(events.TrialStarted(trial_id, combination))
        if not all(won):
            self._sharing.renew(self._claims, now=True)
            self.read_others()
            time.sleep(CLAIM_PAUSE)
        return all(won)

    def _submit(self, trial_id: str, index: Index, *, alone: bool) -> None:
        self._sent_at[trial_id] = self._clock()
        how, lock = self._setup.conditions(index), self._prepared.locks[index]
        spec = trial_spec(
            *(self._matrix, self.grid.combination(index), lock, trial_id),
            values=how.values,
            perturbation=how.perturbation,
            gpus=max(1, self._gpus) if alone else self._gpus,
            target=self._trials.target,
        )
        self._executor.submit(
            TrialRequest(spec, within_limits(self._matrix, lock), allowed_sources(self._matrix))
        )

    def _run_now(self) -> Counter[Combination]:
        """Return the number of trials that this command is running, by combination."""
        running = Counter(self.state.running.values())
        return Counter({self.grid.combination(index): number for index, number in running.items()})

    def _claims(self) -> dict[str, Combination]:
        """Return the combination of each trial that this command is running and has claimed, by trial id."""
        return {trial: self.grid.combination(index) for trial, index in self.state.running.items()}

    def _wind_down(self, *, waits: bool = False) -> None:
        """Give running trials a short time to end, wait for those that may hang, and cancel the rest.

        If `waits` is set, all of them come to their end, as with a runner that always waits.
        """
        waits = waits or (self.waits and self._session.is_in_time)
        deadline = self._clock() + grace(self.state.trial_seconds.value, waits=waits)
        is_said = False
        while self.state.running and not self._stopped():
            left = deadline - self._clock()
            if left <= 0:
                number = sum(map(self._may_hang, self.state.running))
                if not number:
                    break
                if not is_said:
                    are = "1 trial takes" if number == 1 else f"{number} trials take"
                    self._session.say(f"{are} longer than passes do and may hang; waiting for the end")
                    is_said = True
            self._handle(self._executor.wait(min(WAIT_SECONDS, left) if left > 0 else WAIT_SECONDS))
            self._sharing.renew(self._claims)
            self._after_step()
        if self.state.running:
            self._executor.cancel()
        deadline = self._clock() + CANCEL_GRACE
        while self.state.running and self._clock() < deadline:
            answers = self._executor.wait(WAIT_SECONDS)
            # Drop the answers about cancelled trials, which are no losses.
            for lost in (one for one in answers if isinstance(one, TrialLost)):
                self.state.running.pop(lost.trial_id, None)
            self._handle([one for one in answers if not isinstance(one, TrialLost)])
        self.state.running.clear()
        self._sent_at.clear()
        self._sharing.renew(dict, now=True)

    def _may_hang(self, trial_id: str) -> bool:
        """Return whether a running trial may be a failure that the plan does not expect: a hang.

        This is so if it has taken longer than passes do, and the plan calls its combination good. If such
        trials were cancelled, a combination that hangs sometimes would seem to pass in every trial. A trial
        that a busy cluster has not begun by then counts as well, until its time limit has passed.
        """
        age = self._clock() - self._sent_at[trial_id]
        usual, limit = self.state.pass_seconds.value or 0.0, self._matrix.file.trial.timeout
        is_late = usual < age < usual + limit and self._session.is_in_time
        return is_late and not self._calls_bad(self.state.running[trial_id])

    def _calls_bad(self, _index: Index) -> bool:
        """Return whether the plan expects failures of a combination, here always; subclasses override it."""
        return True

    # -- shares of GPUs -------------------------------------------------------------------------------------

    @property
    def _slots(self) -> int:
        """Return how many trials can run at the same time."""
        return max(1, self._executor.slots // (self._trials_per_gpu // trials_per_gpu(self._gpus)))

    @property
    def _slots_alone(self) -> int:
        """Return how many trials can run at the same time if each has its GPU to itself."""
        return max(1, self._executor.slots // self._trials_per_gpu)

    @property
    def _trials_per_gpu(self) -> int:
        return trials_per_gpu(self._matrix.file.trial.gpus)

    def _lost(self, lost: TrialLost) -> tuple[Index, TrialRecord]:
        if lost.crowded and self._gpus < 1 and lost.trial_id not in self._sent_before_growth:
            # Trials that share a GPU disturb each other: from now on, half as many share one.
            self._sent_before_growth |= self.state.running.keys()
            fewer = trials_per_gpu(self._gpus) // 2
            self._gpus = 1 / fewer if fewer > 1 else 1
            shown = f"{fewer} trials share a GPU" if fewer > 1 else "trials have a GPU each"
            self._session.warn(f"{lost.reason}; it is run again, and {shown} from now on")
        return super()._lost(lost)
