"""What speaks against a verdict: trials that it does not explain, drifts, sick hosts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bisect_env.matrix.signatures import shown
from bisect_env.report.sentence import interval, percent
from bisect_env.search.intervals import clopper_pearson
from bisect_env.search.stability import Effect, Told, drift, host_effect
from bisect_env.storage.records import StoredTrial
from bisect_env.trials.records import Evidence, Outcome

_SHOWN = 3


def stability(trials: Sequence[StoredTrial]) -> dict[str, dict[str, Any]]:
    """Whether rates changed over time, between hosts, or between GPUs.

    Args:
        trials: All of a study, in the order of recording.

    Returns:
        `drift`, `host` and `gpu`, as far as there was anything to compare: the part that deviates most, the
        Bayes factor for it, the ratio of its rate to that of the rest, its trials, and whether that is
        noteworthy.
    """
    counted = [t for t in trials if t.evidence in (Evidence.GOOD, Evidence.BAD)]

    def told(place: str) -> list[Told]:
        return [
            Told(t.combination.key, t.evidence is Evidence.BAD, t.gpu if place == "gpu" else t.host)
            for t in counted
        ]

    effects: dict[str, Effect | None] = {"drift": drift(told("host")), "host": host_effect(told("host"))}
    if all(t.gpu for t in counted):
        effects["gpu"] = host_effect(told("gpu"))
    return {
        name: {
            "part": effect.part,
            "bayes_factor": effect.bayes_factor,
            "ratio": effect.ratio,
            "hits": effect.hits,
            "trials": effect.trials,
            "noteworthy": effect.noteworthy,
        }
        for name, effect in effects.items()
        if effect is not None
    }


def stability_warnings(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A sentence for each effect that is noteworthy."""
    warnings = []
    for name, effect in found.items():
        if not effect["noteworthy"]:
            continue
        seen = (
            f"{effect['hits']} of {effect['trials']} trials were bad, about {effect['ratio']:g} times the "
            f"rate of the same combinations elsewhere (Bayes factor {effect['bayes_factor']:.0f})"
        )
        if name == "drift":
            warnings.append(
                f"the failure's rate changed during the study: after {float(effect['part']):.0%} of the "
                f"trials {seen.replace('elsewhere', 'before')}; something beside the versions changed"
            )
        else:
            place = "host" if name == "host" else "GPU"
            warnings.append(f"{place} {effect['part']} differs from the others: {seen}")
    return warnings


def machine_warnings(trials: Sequence[StoredTrial]) -> list[str]:
    """GPUs and hosts that were lost under trials: whom to look at, and that nothing was counted.

    Args:
        trials: All of a study.
    """
    sick: dict[tuple[str, str], list[str]] = {}
    lost: Counter[str] = Counter()
    for trial in trials:
        if trial.outcome is Outcome.GPU_LOST:
            sick.setdefault((trial.gpu or "unknown", trial.host), []).append(trial.detail)
        elif trial.outcome is Outcome.WORKER_LOST and trial.host:
            lost[trial.host] += 1
    warnings = [
        f"GPU {gpu} on {host or 'an unknown host'} was lost or sick in {_trials(len(details))} "
        f"({details[-1].partition(' (the script')[0]}); they are void and were run again elsewhere"
        for (gpu, host), details in sorted(sick.items())
    ]
    warnings += [
        f"host {host} lost its worker or a GPU under {_trials(count)}, void and run again"
        for host, count in sorted(lost.items())
    ]
    more = len(warnings) - _SHOWN
    return [*warnings[:_SHOWN], *([f"{more} more GPUs or hosts were lost under trials"] if more > 0 else [])]


def _trials(count: int) -> str:
    return "1 trial" if count == 1 else f"{count} trials"


def other_failures(trials: Sequence[StoredTrial]) -> list[str]:
    """Where trials failed as the study looks for, and others failed in another way: two problems, perhaps.

    Args:
        trials: All of a study, with what they say in it.
    """
    bad = {trial.combination for trial in trials if trial.evidence is Evidence.BAD}
    others: dict[str, Counter[str]] = {}
    for trial in trials:
        if trial.evidence is Evidence.OTHER and trial.combination in bad:
            what = shown(trial.signature) if trial.signature else str(trial.outcome)
            others.setdefault(str(trial.combination), Counter())[what] += 1
    warnings = [
        f"{combination}: besides the failure that the study is about, "
        + ", ".join(f"{_trials(number)} failed as {what}" for what, number in counts.most_common(_SHOWN))
        + "; not counted"
        for combination, counts in sorted(others.items(), key=lambda item: -item[1].total())
    ]
    more = len(warnings) - _SHOWN
    return [
        *warnings[:_SHOWN],
        *([f"{more} more combinations failed in another way as well"] if more > 0 else []),
    ]


def rate_warnings(stated: float | None, bad: int, trials: int) -> list[str]:
    """Where the bad ones fail clearly more or less often than the user said.

    Args:
        stated: `search.crash_rate`, None where nobody said.
        bad: Bad trials of the combinations that the verdict calls bad.
        trials: All of theirs that count.
    """
    if stated is None or not trials:
        return []
    low, high = clopper_pearson(bad, trials)
    # Nobody means "one in ten" to the digit: half and double are the same in words.
    if low <= 2 * stated and high >= stated / 2 and not (stated == 1 and bad < trials):
        return []
    seen = f"failed in {bad} of {trials} ({interval(low, high)})"
    return [f"it was said to fail in {percent(stated)} of runs, and {seen}: the answer goes by what was seen"]


def verdict_warnings(verdict: Mapping[str, Any]) -> list[str]:
    """What the verdict itself says against it."""
    warnings = []
    if verdict.get("kind") == "never" and verdict.get("trials"):
        warnings.append(
            "nothing failed often enough; if something should have: see whether it does where it is known to "
            "(`bisect-env trial MATRIX --at … -n 100`), look for what makes it more frequent "
            "(`bisect-env amplify MATRIX`), let dependencies move as in an upgrade "
            "(`solver: {dependencies: newest}`), or state a lower `min_crash_rate` or a higher `max_trials` "
            "in `search`"
        )
    if verdict.get("monotone") is False:
        # `either` speaks of one window, or of one gap.
        changes = Counter(str(boundary["axis"]) for boundary in verdict.get("boundaries") or ())
        directions = (verdict.get("directions") or {}).values()
        hint = max(changes.values(), default=0) <= 2 and "either" not in directions
        warnings.append(
            "the history is not monotone: what was broken was fixed and broken again, or the other way round"
            + ("; `direction: either` says so beforehand, which saves trials" if hint else "")
        )
    strange: Sequence[Mapping[str, Any]] = verdict.get("unexplained") or ()
    for one in strange[:_SHOWN]:
        named = ", ".join(f"{axis}={value}" for axis, value in one["combination"].items())
        warnings.append(
            f"the verdict does not explain {named}: {one['hits']} of {one['trials']} trials were bad, "
            f"and it is called {'bad' if one['called_bad'] else 'good'}"
        )
    if len(strange) > _SHOWN:
        warnings.append(f"the verdict does not explain {len(strange) - _SHOWN} more combinations")
    return warnings
