"""Shows everything that is known about one trial: what it was, how it ended and what it printed. Pure."""

from __future__ import annotations

from bisect_env.answers.untrusted import clean, clean_lines
from bisect_env.matrix.signatures import shown
from bisect_env.storage.entries import WholeTrial
from bisect_env.trials.records import Evidence

LOGS = ("stdout", "stderr", "stack")


def trial_facts(trial: WholeTrial, evidence: Evidence) -> dict[str, object]:
    """Return the facts of a trial by their names, without its logs.

    Args:
        trial: The trial.
        evidence: What it means for its study.
    """
    record = trial.record
    return {
        "trial": record.trial_id,
        "study": trial.study_id,
        "combination": str(record.combination),
        "outcome": str(record.outcome),
        "evidence": str(evidence),
        "detail": record.detail,
        "signature": shown(record.signature),
        "exit status": record.returncode,
        "phase": str(record.phase),
        "started": f"{record.started_at:%Y-%m-%d %H:%M:%S} UTC",
        "seconds": round(record.duration, 3),
        "host": record.host,
        "worker": record.worker,
        "machine": str(record.machine),
        "GPUs": record.gpu,
        "imported": ", ".join(f"{name} {version}" for name, version in record.imported.items()),
        "hash seed": record.hash_seed,
        "environment": record.lock_hash,
    }


def trial_logs(trial: WholeTrial) -> dict[str, str]:
    """Return what a trial printed, and its stack, by their names."""
    return {name: str(getattr(trial.record, name)) for name in LOGS}


def trial_text(trial: WholeTrial, evidence: Evidence) -> str:
    """Return facts and logs of a trial as lines that are safe to print."""
    facts = trial_facts(trial, evidence).items()
    lines = [f"{name:<12} {clean(str(value))}" for name, value in facts if value not in ("", None)]
    if trial.collected:
        lines.append("some of its logs were collected to make room")
    for name, text in trial_logs(trial).items():
        lines += ["", f"--- {name}" + ("" if text.strip() else " (empty)")]
        lines += clean_lines(text).rstrip("\n").splitlines() if text.strip() else []
    return "\n".join(lines) + "\n"
