"""What a runner runs: the study, its plan, and the conditions of each trial."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from bisect_env.engine.session import Session
from bisect_env.matrix.grid import Combination, Index
from bisect_env.matrix.load import Matrix
from bisect_env.search.plan import Plan
from bisect_env.trials.records import NONE, Machine, Perturbation


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions under which trials run: a key for equal trials, axis values, and a perturbation.

    Attributes:
        key: The key that equal trials share, in whatever study; "" for trials that are never reused.
        values: Values of the axes that the command sees; None for those of the combination.
        perturbation: Circumstances (such as CPU load) that are to make the failure more frequent.
    """

    key: str
    values: Combination | None = None
    perturbation: Perturbation = NONE


@dataclass(frozen=True, slots=True)
class RunSetup:
    """The settings of a runner: which matrix, which plan and which study it works on.

    Attributes:
        matrix: The matrix whose command is run.
        make_plan: Returns a plan without trials; called again if the stored trials get another evidence.
        session: Database, environments, executor and clock of the command.
        study_id: Id of the open study.
        conditions: Returns how the trials of a combination with a lock run; must always return the same key.
        series: Ids of the trials that the plan receives, to which the runner adds those that it starts; None
            for all trials of the study.
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
    series: set[str] | None = None
    machines: Callable[[], Collection[Machine]] = frozenset
    user: str | None = None
