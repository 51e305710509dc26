"""Shows all stored data of one trial: its combination, its outcome and its output. Pure."""

from __future__ import annotations

from bisect_env.answers.untrusted import clean, clean_lines
from bisect_env.matrix.signatures import shown
from bisect_env.storage.entries import WholeTrial
from bisect_env.trials.records import Evidence

LOGS = ("stdout", "stderr", "stack")


def trial_facts(trial: WholeTrial, evidence: Evidence) -> dict[str, object]:
    """Return everything known about a trial except its logs, as a dict from names to values.

    Args:
        trial: The trial.
        evidence: Evidence of the trial in its study.
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
    """Return the stdout, stderr and stack of a trial as a dict with these keys."""
    return {name: str(getattr(trial.record, name)) for name in LOGS}


def trial_text(trial: WholeTrial, evidence: Evidence) -> str:
    """Return everything known about a trial, with its logs, as text that is safe to print."""
    facts = trial_facts(trial, evidence).items()
    lines = [f"{name:<12} {clean(str(value))}" for name, value in facts if value not in ("", None)]
    if trial.collected:
        lines.append("some of its logs were collected to make room")
    for name, text in trial_logs(trial).items():
        lines += ["", f"--- {name}" + ("" if text.strip() else " (empty)")]
        lines += clean_lines(text).rstrip("\n").splitlines() if text.strip() else []
    return "\n".join(lines) + "\n"
