"""From what the search wants to trials that run: environments first, and nothing idle meanwhile."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from bisect_env.cluster.protocol import Executor, TrialRequest
from bisect_env.engine import events
from bisect_env.engine.builds import Builds, sort_out
from bisect_env.engine.prepare import Prepared
from bisect_env.engine.sharing import Sharing
from bisect_env.engine.specs import trial_files, trial_spec
from bisect_env.matrix.grid import Combination, Index
from bisect_env.matrix.load import Matrix
from bisect_env.search.every import AnySearch
from bisect_env.trials.records import NONE, Perturbation

FILLER = 0.03
"""While wanted environments are being made, others are tried that tell at least this share of what the
wanted ones would: a trial on an idle GPU costs nothing, but a trial that tells nothing is one too many."""
FILLERS, MUCH = 10, 0.2
"""After so many of them at each place for trials since the last environment came, a further one must tell
this share: where a trial takes a second and a build a minute they would pile up, and take the cores that
build."""

BUILDERS = 4
"""Places for trials for each build that is made ahead; hosts make about as many at the same time."""
THOUGHT_THROUGH = 20_000
"""Combinations up to which looking ahead takes less time than it saves."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What became of one round.

    Attributes:
        started: Trials that run now.
        lost: Whether other commands had claimed some of what was wanted.
    """

    started: int
    lost: bool


class Asker:
    """Starts trials.

    Args:
        matrix: What is asked.
        prepared: Its combinations, locked.
        search: Chooses.
        sharing: Where trials are claimed.
        builds: The environments.
        members: Combinations that can be run, each standing for those with the same measurement.
        notify: Hears of every start.
        perturbation: Circumstances under which trials run.

    Attributes:
        executor: Where trials run; set before the first round.
        running: Trials that run, with their combinations.
    """

    executor: Executor

    def __init__(
        self,
        matrix: Matrix,
        prepared: Prepared,
        search: AnySearch,
        sharing: Sharing,
        builds: Builds,
        members: Collection[Index],
        notify: Callable[[events.Event], None],
        perturbation: Perturbation = NONE,
    ) -> None:
        self._matrix = matrix
        self._prepared = prepared
        self._search = search
        self._sharing = sharing
        self._builds = builds
        self._members = members
        self._notify = notify
        self._perturbation = perturbation
        self._files = trial_files(matrix)
        self._foreseen_at = (-1, 0, 0)
        self._filled, self._filled_at = 0, 0
        self.running: dict[str, Index] = {}

    def claims(self) -> dict[str, Combination]:
        """What runs, as others are to know it."""
        return {trial: self._prepared.grid.combination(index) for trial, index in self.running.items()}

    def fill(self, free: int, price: float, *, only: Index | None = None) -> Asked:
        """Start trials and builds.

        Args:
            free: How many trials there is room for.
            price: Of a new environment, in trials.
            only: Try this combination and no other, whatever the search thinks of it.
        """
        if only is not None:
            now, later = sort_out([only] * free, self._builds.is_ready)
            self._builds.begin(later, self.executor)
            started = self._start(now)
            return Asked(started, started < len(now))
        pending = self._pending()
        costs = {index: price for index in self._members if not self._builds.is_paid(index)}
        chosen = self._search.ask(free, pending=pending, build_cost=costs)
        now, later = sort_out(chosen, self._builds.is_ready)
        self._builds.begin(later, self.executor)
        if later:
            now += self._fillers(len(later), pending + Counter(chosen))
        started = self._start(now)
        self._build_ahead(costs)
        return Asked(started, started < len(now))

    def _fillers(self, count: int, pending: Counter[Index]) -> list[Index]:
        """What is worth trying in environments that exist, until those that were wanted do."""
        ready = {index for index in self._members if self._builds.is_ready(index)}
        if not ready or not self._search.trials:
            return []
        if (known := len(self._builds.ready)) != self._filled_at:
            self._filled, self._filled_at = 0, known
        worth = FILLER if self._filled < FILLERS * self.executor.slots else MUCH
        chosen = self._search.ask(count, pending=pending, only=ready, worth=worth)
        self._filled += len(chosen)
        return chosen

    def _build_ahead(self, costs: dict[Index, float]) -> None:
        """With room for a build, and something new known, make what is likely to be wanted next."""
        known = (self._search.trials, len(self.running), len(self._builds.ready))
        busy = len(self._builds.under_way) >= max(1, self.executor.slots // BUILDERS)
        if busy or not self.running or known == self._foreseen_at:
            return
        if len(self._members) > THOUGHT_THROUGH:
            return
        self._foreseen_at = known
        pending = self._pending()
        wanted = self._search.ask(len(self.running), pending=pending, build_cost=costs)
        wanted += self._search.foresee(pending, costs)
        self._builds.begin(wanted, self.executor)

    def _pending(self) -> Counter[Index]:
        pending = Counter(self.running.values())
        for combination, number in self._sharing.claimed.items():
            if (index := self._prepared.groups.get(self._prepared.grid.index(combination))) is not None:
                pending[index] += number
        return pending

    def _start(self, chosen: Sequence[Index]) -> int:
        if not chosen:
            return 0
        grid = self._prepared.grid
        requests = [self._request(index) for index in chosen]
        decision = {
            "combinations": [grid.combination(index).as_dict() for index in chosen],
            "after_trials": self._search.trials,
            "best": self._search.verdict.best.probability,
        }
        won = self._sharing.claim(
            [(request.spec.trial_id, request.spec.combination) for request in requests],
            self.claims().values(),
            ("ask", decision),
        )
        for index, request, ours in zip(chosen, requests, won, strict=True):
            if ours:
                self.running[request.spec.trial_id] = index
                self.executor.submit(request)
                self._notify(events.TrialStarted(request.spec.trial_id, request.spec.combination))
        return sum(won)

    def _request(self, index: Index) -> TrialRequest:
        combination = self._prepared.grid.combination(index)
        lock = self._prepared.locks[index]
        spec = trial_spec(
            self._matrix, combination, lock, uuid.uuid4().hex, self._files, perturbation=self._perturbation
        )
        return TrialRequest(spec, lock, self._builds.allow_source)
