"""Create the specifications of trials, and the records of lost trials. Pure."""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import UTC, datetime

from bisect_env.environments.lock import BuildLimit, Lock
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import CommitAxis
from bisect_env.trials.judge import TARGET, Target
from bisect_env.trials.records import NONE, Outcome, Perturbation, Phase, TrialRecord, TrialSpec


def trial_spec(
    matrix: Matrix,
    combination: Combination,
    lock: Lock,
    trial_id: str,
    *,
    values: Combination | None = None,
    perturbation: Perturbation = NONE,
    gpus: float | None = None,
    target: Target | None = None,
) -> TrialSpec:
    """Return the specification of one trial: command, files, environment variables, time limit and so on.

    Args:
        matrix: The matrix of the study.
        combination: The combination under which the trial is recorded.
        lock: Lock of its environment.
        trial_id: Unique id of the trial.
        values: Axis values that the command sees, if they differ from `combination`. (An intermediate
            environment of `explain` is recorded under axes of its own.)
        perturbation: Circumstances that make the failure more frequent.
        gpus: Number of GPUs for the trial; None for the one in the matrix.
        target: Failure that the study looks for; None for the one in the matrix.
    """
    trial = matrix.file.trial
    seen = combination if values is None else values
    return TrialSpec(
        trial_id=trial_id,
        combination=combination,
        lock_hash=lock.content_hash,
        command=matrix.command(seen),
        files=matrix.files,
        # What the matrix sets belongs to the question; circumstances do not overrule it.
        env={**perturbation.env, **matrix.environment(seen)},
        timeout=trial.timeout,
        concurrency=trial.concurrency * perturbation.copies,
        repeats=trial.repeat_within * perturbation.repeats,
        gpus=trial.gpus if gpus is None else gpus,
        hash_seed=_hash_seed(perturbation),
        perturbation=perturbation,
        network=matrix.file.executor is not None and matrix.file.executor.network,
        allow_host=trial.allow_host,
        target=target or target_of(matrix),
    )


def _hash_seed(perturbation: Perturbation) -> int:
    if perturbation.seeds and secrets.randbelow(2):
        return secrets.choice(perturbation.seeds)
    return secrets.randbelow(2**32)


def target_of(matrix: Matrix) -> Target:
    """Return the target of a study: the failure to search for, from `trial.bad` of the matrix."""
    return TARGET.validate_python(matrix.file.trial.bad.model_dump())


def allowed_sources(matrix: Matrix) -> bool | frozenset[str]:
    """Return which packages the matrix allows to be built from source distributions.

    True means all packages, False none; otherwise, the result is a set of names.
    """
    allow = matrix.file.solver.allow_source
    return allow if isinstance(allow, bool) else frozenset(allow)


def within_limits(matrix: Matrix, lock: Lock) -> Lock:
    """Return a copy of a lock with the time and memory limits that the matrix sets for building commits."""
    axes = [axis for axis in matrix.file.axes.values() if isinstance(axis, CommitAxis)]
    limits = [BuildLimit(one.canonical_package, one.build.time_limit, one.build.memory or 0) for one in axes]
    return replace(lock, limits=tuple(limits))


def lost_record(
    trial_id: str, combination: Combination, lock_hash: str, reason: str, host: str
) -> TrialRecord:
    """Return a record for a trial that never ended because its worker or host was lost.

    Args:
        trial_id: Id of the trial.
        combination: Its combination.
        lock_hash: Content hash of its environment's lock.
        reason: What is known of the loss, in words.
        host: Host on which it ran, "" if unknown.
    """
    return TrialRecord(
        trial_id=trial_id,
        combination=combination,
        lock_hash=lock_hash,
        outcome=Outcome.WORKER_LOST,
        detail=reason,
        returncode=None,
        phase=Phase.UNKNOWN,
        started_at=datetime.now(UTC),
        duration=0.0,
        host=host,
    )
