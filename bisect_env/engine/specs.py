"""Describes the trials of a study: what each is asked to do, and what is recorded for a lost one. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from bisect_env.environments.lock import BuildLimit, Lock
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import CommitAxis
from bisect_env.trials.judge import Target
from bisect_env.trials.records import NONE, Outcome, Perturbation, Phase, TrialFile, TrialRecord, TrialSpec


def trial_files(matrix: Matrix) -> tuple[TrialFile, ...]:
    """Return the files that every trial of a matrix finds in its working directory."""
    return tuple(TrialFile(file.name, file.content, file.executable) for file in matrix.files)


def trial_spec(
    matrix: Matrix,
    combination: Combination,
    lock: Lock,
    trial_id: str,
    files: Sequence[TrialFile],
    *,
    values: Combination | None = None,
    perturbation: Perturbation = NONE,
    gpus: float | None = None,
) -> TrialSpec:
    """Return a trial of a combination.

    Args:
        matrix: What is run.
        combination: Under which it is recorded.
        lock: Its environment.
        trial_id: Unique.
        files: See `trial_files`; made once, for thousands of trials.
        values: Values of the axes of the matrix that the command sees, where they are others than those of
            `combination`: an environment between two combinations is recorded as what it is.
        perturbation: Circumstances that are to make the failure more frequent.
        gpus: That it is lent, where that is not what the matrix says.
    """
    trial = matrix.file.trial
    seen = combination if values is None else values
    return TrialSpec(
        trial_id=trial_id,
        combination=combination,
        lock_hash=lock.content_hash,
        command=matrix.command(seen),
        files=tuple(files),
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
    )


def _hash_seed(perturbation: Perturbation) -> int:
    if perturbation.seeds and secrets.randbelow(2):
        return secrets.choice(perturbation.seeds)
    return secrets.randbelow(2**32)


def target_of(matrix: Matrix) -> Target:
    """Return the failure that a matrix asks for, as its `trial.bad` states it."""
    return Target.from_json(matrix.file.trial.bad.model_dump())


def allowed_sources(matrix: Matrix) -> bool | frozenset[str]:
    """Return which packages may be built from their sources: all, none, or these."""
    allow = matrix.file.solver.allow_source
    return allow if isinstance(allow, bool) else frozenset(allow)


def within_limits(matrix: Matrix, lock: Lock) -> Lock:
    """Return a lock with the time and memory limits that the matrix sets for building its commits."""
    axes = [axis for axis in matrix.file.axes.values() if isinstance(axis, CommitAxis)]
    limits = [BuildLimit(one.canonical_package, one.build.time_limit, one.build.memory or 0) for one in axes]
    return replace(lock, limits=tuple(limits))


def lost_record(
    trial_id: str, combination: Combination, lock_hash: str, reason: str, host: str
) -> TrialRecord:
    """Return the record of a trial whose worker or host went away.

    Args:
        trial_id: Id of the trial.
        combination: That it tried.
        lock_hash: Of its environment.
        reason: What is known of the loss, for people.
        host: On which it ran, "" if that is not known.
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
