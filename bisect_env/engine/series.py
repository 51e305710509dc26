"""What a runner runs: the study, its plan, the ids of its trials, and the conditions of each trial."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Collection, Container
from dataclasses import dataclass

from bisect_env.engine.session import Session
from bisect_env.matrix.grid import Combination, Index
from bisect_env.matrix.load import Matrix
from bisect_env.search.plan import Plan
from bisect_env.trials.records import NONE, Machine, Perturbation

_UNUSED_NUMBERS = 1000
"""Numbers of a series that cancelled and lost trials may have used up."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The key, the axis values and the perturbation (such as CPU load) with which trials run.

    Attributes:
        key: The key that equal trials share, in whatever study; "" for trials that are never reused.
        values: Values of the axes that the command sees; None for those of the combination.
        perturbation: Circumstances that are to make the failure more frequent.
    """

    key: str
    values: Combination | None = None
    perturbation: Perturbation = NONE


class Series(Container[str]):
    """A collection of trials that belong together, and the source of ids for further ones.

    Ids are computed from the id of the series and a number, so that a later command finds its trials.

    Args:
        series_id: 32 hex digits; "" for a new series.
        stored: Ids of the trials of the study, if the series may have some already.

    Attributes:
        resumed: Number of trials of the series that are stored already.
    """

    def __init__(self, series_id: str = "", stored: Collection[str] = ()) -> None:
        self._space = uuid.UUID(series_id) if series_id else uuid.uuid4()
        # Trials were started in the order of their numbers, and some may never have ended.
        names = (self._named(number) for number in range(len(stored) + _UNUSED_NUMBERS if stored else 0))
        self._ids = {*names} & {*stored}
        self.resumed = len(self._ids)
        self._numbers = itertools.count()

    def _named(self, number: int) -> str:
        return uuid.uuid5(self._space, str(number)).hex

    def new_id(self) -> str:
        """Return an id for a new trial, and add this trial to the series.

        The id is the next one that no stored trial has.
        """
        trial_id = next(name for n in self._numbers if (name := self._named(n)) not in self._ids)
        self._ids.add(trial_id)
        return trial_id

    def __contains__(self, trial_id: object) -> bool:
        return trial_id in self._ids


@dataclass(frozen=True, slots=True)
class RunSetup:
    """The settings of a runner: which matrix, plan and study it works on.

    Attributes:
        matrix: The matrix whose command is run.
        make_plan: Returns a plan without trials; called again if the stored trials get another evidence.
        session: Database, environments, executor and clock of the command.
        study_id: Id of the open study.
        conditions: Returns how the trials of a combination with a lock run; must always return the same key.
        series: The trials that the plan receives; None for all trials of the study.
        machines: Returns the classes of machines on which trials will run: trials that other studies
            recorded there under the same keys are reused. If there are none, nothing is reused. Called when
            the first combinations are locked, because it may wait for the executor.
        user: The user whose trials may be reused; None for all users.
    """

    matrix: Matrix
    make_plan: Callable[[], Plan]
    session: Session
    study_id: str
    conditions: Callable[[Index], Conditions]
    series: Series | None = None
    machines: Callable[[], Collection[Machine]] = frozenset
    user: str | None = None
