"""Under what circumstances a study's trials ran: perturbations, bodies repeated in a process. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bisect_env.search.intervals import clopper_pearson
from bisect_env.storage.records import Decision, StoredTrial
from bisect_env.trials.records import Evidence


def with_bodies(verdict: dict[str, Any], trials: Sequence[StoredTrial]) -> dict[str, Any]:
    """Add to the rates at both sides of the boundary those of single bodies, where bodies are repeated.

    Args:
        verdict: The verdict document.
        trials: All trials of the study.
    """
    found = dict(verdict)
    for key, end in (("bad_rate", "first_bad"), ("good_rate", "last_good")):
        rate, combination = verdict.get(key), verdict.get(end)
        if rate and combination and (bodies := _bodies(combination, trials)):
            low, high = clopper_pearson(min(rate["hits"], bodies), bodies)
            per_body = {"rate": rate["hits"] / bodies, "low": low, "high": high}
            found[key] = {**rate, "bodies": bodies, "per_body": per_body}
    return found


def _bodies(combination: Mapping[str, str], trials: Sequence[StoredTrial]) -> int:
    counted = (Evidence.GOOD, Evidence.BAD)
    return sum(
        trial.bodies
        for trial in trials
        if trial.evidence in counted and trial.combination.as_dict() == dict(combination)
    )


def amplified(decisions: Sequence[Decision]) -> list[str]:
    """What should be known of a study whose trials ran under a perturbation."""
    for decision in decisions:
        if decision.kind == "amplify" and (name := decision.payload.get("perturbation", {}).get("name")):
            why = decision.payload.get("reason", "")
            ran = f"every trial ran under what makes the failure more frequent, {name} ({why})"
            return [f"{ran}: the rates are those under it"]
    return []
