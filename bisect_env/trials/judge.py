"""Decides what the outcome of a trial means in one study."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bisect_env.trials.records import Evidence, Outcome, TrialRecord
from bisect_env.trials.signature import matches

DEFAULT_OUTCOMES = frozenset(
    {Outcome.CRASH, Outcome.HANG, Outcome.CUDA_FAULT, Outcome.IMPORT_ERROR, Outcome.EXIT_FAIL}
)
"""What a study looks for when its matrix does not say."""

VOID = frozenset(
    {
        *(Outcome.HARNESS_ERROR, Outcome.WORKER_LOST, Outcome.GPU_LOST),
        *(Outcome.KILLED_EXTERNAL, Outcome.DISK_FULL, Outcome.HOST_OOM),
    }
)
"""Infrastructure."""

SKIPPED = frozenset(
    {
        *(Outcome.ENV_UNSOLVABLE, Outcome.ENV_UNBUILDABLE, Outcome.ENV_MISMATCH),
        *(Outcome.UNSUPPORTED, Outcome.SKIP, Outcome.NOT_RUNNABLE),
    }
)
"""Properties of a combination at which nothing can be learnt. `not-runnable` in every combination stops the
study, which is for the engine to see; in some (a syntax that Python 3.6 does not know) it is this."""

NEVER_TARGET = (VOID - {Outcome.HOST_OOM}) | SKIPPED
"""No matrix can make these its symptom: they say nothing about the script."""


@dataclass(frozen=True, slots=True)
class Target:
    """The failure that a study is about; an empty set of details means any.

    Attributes:
        outcomes: Which outcomes are the target.
        signals: Of crashes, which signals.
        exit_codes: Of `exit-fail`, which exit codes.
        output: Regular expressions, one of which stdout or stderr must contain.
        signature: The signature that it must match, or "".
    """

    outcomes: frozenset[Outcome] = DEFAULT_OUTCOMES
    signals: frozenset[int] = frozenset()
    exit_codes: frozenset[int] = frozenset()
    output: tuple[str, ...] = ()
    signature: str = ""


def judge(record: TrialRecord, target: Target, *, repeated: bool = False) -> Evidence:
    """The evidence of a trial in a study with this target.

    Args:
        record: What the trial did.
        target: What the study is about.
        repeated: Whether this combination has failed to initialise CUDA before: the first time is void.
    """
    outcome = record.outcome
    if outcome is Outcome.CUDA_INIT and not repeated:
        return Evidence.VOID
    if outcome in target.outcomes - NEVER_TARGET and _is_target(record, target):
        return Evidence.BAD
    if outcome is Outcome.PASS:
        return Evidence.GOOD
    if outcome in VOID:
        return Evidence.VOID
    return Evidence.SKIP if outcome in SKIPPED else Evidence.OTHER


def _is_target(record: TrialRecord, target: Target) -> bool:
    code = record.returncode
    if record.outcome is Outcome.CRASH and target.signals and (code is None or -code not in target.signals):
        return False
    if record.outcome is Outcome.EXIT_FAIL and target.exit_codes and code not in target.exit_codes:
        return False
    if target.output and not any(
        re.search(pattern, text, re.MULTILINE)
        for pattern in target.output
        for text in (record.stdout, record.stderr)
    ):
        return False
    return not target.signature or matches(record.signature, target.signature)
