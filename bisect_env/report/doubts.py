"""Lists warnings about a verdict, and advice on how to get a better one. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from packaging.version import Version

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.phrases import and_more, duration, first_few, how_many, interval, percent
from bisect_env.answers.remedies import Asked
from bisect_env.answers.sentence import side_names
from bisect_env.answers.untrusted import clean, command_line, shortened
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.matrix.grid import Combination, Direction
from bisect_env.matrix.schema import LEAST_RATE
from bisect_env.matrix.signatures import read_signature, shown
from bisect_env.matrix.versions import between
from bisect_env.report.model import EffectReport, FailureReport, StabilityReport
from bisect_env.report.words import quoted
from bisect_env.search.numeric import clopper_pearson
from bisect_env.search.stability import Effect, TrialResult, drift, host_effect
from bisect_env.storage.entries import StoredTrial, counts_of
from bisect_env.trials.judge import Target, unmet
from bisect_env.trials.records import Evidence, Outcome

_SHOWN = 3
_ALMOST = 0.95
"""Share of the time budget that counts as used up. It is below 1 because the stored times begin later."""
_REASON = 200
"""Maximum number of characters of a reason that advice quotes."""
_BY_LUCK = 0.05
"""Maximum probability that a combination passed all its trials by luck, for advice to call it good."""


def stability(trials: Sequence[StoredTrial]) -> StabilityReport:
    """Test whether the failure rate changed over time, between hosts, or between GPUs.

    Args:
        trials: All trials of a study, in the order of recording.
    """
    counted = [t for t in trials if t.evidence in (Evidence.GOOD, Evidence.BAD)]
    by_host = [TrialResult(t.combination.key, t.evidence is Evidence.BAD, t.host) for t in counted]
    by_gpu = [replace(one, host=t.gpu) for one, t in zip(by_host, counted, strict=True) if t.gpu]
    return StabilityReport(
        drift=_reported(drift(by_host)),
        host=_reported(host_effect(by_host)),
        gpu=_reported(host_effect(by_gpu)) if len(by_gpu) == len(by_host) else None,
    )


def _reported(effect: Effect | None) -> EffectReport | None:
    return None if effect is None else EffectReport.model_validate(effect, from_attributes=True)


def stability_warnings(found: StabilityReport) -> list[str]:
    """Return a warning for each clear change of the failure rate over time, between hosts or between GPUs."""
    warnings = []
    for name, effect in (("drift", found.drift), ("host", found.host), ("GPU", found.gpu)):
        if effect is None or not effect.noteworthy:
            continue
        seen = (
            f"{effect.hits} of {effect.trials} trials were bad, about {effect.ratio:g} times the "
            f"rate of the same combinations elsewhere (Bayes factor {effect.bayes_factor:.0f})"
        )
        if name == "drift":
            before = seen.replace("elsewhere", "before")
            warnings.append(
                f"the failure's rate probably changed during the study: after {float(effect.part):.0%} of "
                f"the trials {before}; if so, something beside the versions changed"
            )
        else:
            warnings.append(f"{name} {effect.part} differs from the others: {seen}")
    return warnings


def came_since(what: str) -> list[str]:
    """Return a warning, as a list, if trials came after the study had ended.

    Args:
        what: What came, such as "6 trials"; "" if nothing did.
    """
    if not what:
        return []
    return [
        f"{what} came after this study had ended: the answer weighs what is there; `bisect-env run` goes on"
    ]


def machine_warnings(trials: Sequence[StoredTrial]) -> list[str]:
    """Return a warning for each GPU and each host that was lost during trials, which are therefore void.

    Args:
        trials: All trials of a study.
    """
    sick: dict[tuple[str, str], list[str]] = {}
    lost: Counter[str] = Counter()
    for trial in trials:
        if trial.outcome is Outcome.GPU_LOST:
            sick.setdefault((trial.gpu or "unknown", trial.host), []).append(trial.detail)
        elif trial.outcome is Outcome.WORKER_LOST and trial.host:
            lost[trial.host] += 1
    warnings = [
        f"GPU {gpu} on {host or 'an unknown host'} was lost or sick in {how_many(len(details), 'trial')} "
        f"({details[-1].partition(' (the script')[0]}); {_void(len(details))}"
        for (gpu, host), details in sorted(sick.items())
    ]
    warnings += [
        f"host {host} lost its worker or a GPU during {how_many(count, 'trial')}; {_void(count)}"
        for host, count in sorted(lost.items())
    ]
    return first_few(
        warnings,
        _SHOWN,
        one="more GPU or host was lost during trials",
        many="more GPUs or hosts were lost during trials",
    )


def _void(trials: int) -> str:
    return f"{'it is' if trials == 1 else 'they are'} void"


def other_failures(trials: Sequence[StoredTrial], target: str = "") -> list[str]:
    """Return warnings about combinations that often failed in another way than the study is about.

    A combination that also shows the study's failure is included even if it seldom failed in another way,
    since these may be two problems.

    Args:
        trials: All trials of a study, with their evidence.
        target: Signature of the failure that the study is about; "" for any failure.
    """
    others: dict[Combination, Counter[str]] = {}
    for trial in trials:
        if trial.evidence is Evidence.OTHER:
            what = _way(trial.signature) if trial.signature else str(trial.outcome)
            others.setdefault(trial.combination, Counter())[what] += 1
    counts = counts_of(trials)
    often = {
        one: ways
        for one, ways in others.items()
        if counts[one].bad or ways.total() >= max(3, (ways.total() + counts[one].counted) / 10)
    }
    warnings = [
        f"{one}: {ways.total()} of {ways.total() + counts[one].counted} trials failed in another way "
        f"({', '.join(f'{number} as {what}' for what, number in ways.most_common(_SHOWN))}); they are not "
        "counted, and can hide the answer"
        for one, ways in sorted(often.items(), key=lambda item: -item[1].total())
    ]
    return [
        *first_few(
            warnings,
            _SHOWN,
            one="more combination also failed in another way",
            many="more combinations also failed in another way",
        ),
        *(_other_problems(trials) if target else ()),
    ]


def _other_problems(trials: Sequence[StoredTrial]) -> Iterator[str]:
    """Yield a sentence for each kind of failure seen at combinations without any good or bad trial."""
    counted = {trial.combination for trial in trials if trial.evidence in (Evidence.GOOD, Evidence.BAD)}
    ways: dict[str, dict[str, int]] = {}
    for trial in trials:
        if trial.evidence is Evidence.OTHER and trial.signature and trial.combination not in counted:
            where = ways.setdefault(_way(trial.signature), {})
            where[str(trial.combination)] = where.get(str(trial.combination), 0) + 1
    for way, where in list(ways.items())[:_SHOWN]:
        yield (
            f"{and_more([*where], _SHOWN, '; ')}: failed as {way} in "
            f"{how_many(sum(where.values()), 'trial')}, "
            "another failure than the one that the study is about; not counted"
        )


def rate_warnings(stated: float | None, bad: int, trials: int) -> list[str]:
    """Return a warning if the failure rate of bad combinations differs clearly from the stated one, else [].

    Args:
        stated: `search.crash_rate`, or None if the user did not state a rate.
        bad: Number of bad trials at the combinations that the verdict calls bad.
        trials: Number of counted trials at these combinations.
    """
    if stated is None or not trials:
        return []
    low, high = clopper_pearson(bad, trials)
    # A stated rate is an estimate, so half and double of it count as equal.
    if low <= 2 * stated and high >= stated / 2 and not (stated == 1 and bad < trials):
        return []
    seen = f"failed in {bad} of {trials} ({interval(low, high)})"
    return [
        f"the stated failure rate is {percent(stated)}, but what is bad {seen}; the answer uses the latter"
    ]


def good_side_warnings(
    verdict: VerdictDocument, axes: Sequence[AxisInfo], bad: int, trials: int, least: float
) -> list[str]:
    """Return a warning if the last good combination fails sometimes, too, only less often than the first bad.

    Args:
        verdict: Verdict of the study.
        axes: Axes of the study.
        bad: Number of bad trials of the last good combination.
        trials: Number of counted trials of the last good combination.
        least: `search.min_crash_rate`; lower rates are ignored.
    """
    culprits, good = verdict.culprit_axes, verdict.last_good
    low, high = clopper_pearson(bad, trials)
    if not culprits or not good or low < least:
        return []
    side = side_names(verdict, axes)[1]
    seen = f"the {side} combination fails, too ({bad} of {trials}, {interval(low, high)})"
    change, edge = ("rarer", "ends") if side == "first good" else ("more frequent", "begins")
    if not any(axis.name not in culprits and len(axis.values) > 1 for axis in axes):
        return [f"{seen}: the answer is where that becomes {change}, not where it {edge}"]
    held = ", ".join(f"{name} at {clean(good[name])} alone" for name in culprits if name in good)
    remedy = f"to find where it {edge}, ask again with {held}"
    return [f"{seen}: the answer is where that becomes {change}; {remedy}"]


def verdict_warnings(
    verdict: VerdictDocument, axes: Sequence[AxisInfo] = (), asked: Asked = Asked.IN_FILE
) -> list[str]:
    """Return the warnings that follow from the verdict alone, such as unexplained combinations.

    Args:
        verdict: Verdict of the study.
        axes: Axes of the study.
        asked: How the question was asked.
    """
    warnings = []
    if verdict.kind == "never" and verdict.trials and verdict.table is None:
        lower = "`min_crash_rate`" if asked is Asked.IN_FILE else "`--rate`"
        warnings.append(
            "nothing failed often enough; if something should have: see whether it does where it is known to "
            "(`bisect-env trial --at … -n 100`), look for what makes it more frequent "
            "(`bisect-env trial --amplify`), let dependencies move as in an upgrade "
            f"({asked.setting('solver: {dependencies: newest}')}), or state a lower {lower} or a "
            "higher `max_trials` in `search`"
        )
    # Seen from a wrongly stated end, every history seems to change direction.
    if not verdict.monotone and not verdict.ends_wrong:
        warnings.append(_other_history(verdict, axes, asked))
    strange = [
        "the verdict does not explain "
        f"{', '.join(f'{axis}={value}' for axis, value in one.combination.items())}: "
        f"{one.hits} of {one.trials} trials were bad, and it is called {'bad' if one.called_bad else 'good'}"
        for one in verdict.unexplained
    ]
    return warnings + first_few(
        strange,
        _SHOWN,
        one="more combination is not explained by the verdict",
        many="more combinations are not explained by the verdict",
    )


def _other_history(verdict: VerdictDocument, axes: Sequence[AxisInfo], asked: Asked) -> str:
    """Return the warning that good and bad values lie in another order than an axis's direction says.

    Either the order is the opposite one, or it changes more often.
    """
    values = {axis.name: axis.values for axis in axes}
    changes = Counter(boundary.axis for boundary in verdict.boundaries)
    most = max(changes.values(), default=0)
    for boundary in verdict.boundaries if most == 1 else ():
        axis, order = boundary.axis, values.get(boundary.axis, ())
        bad, good = ((side or {}).get(axis, "") for side in (boundary.bad, boundary.good))
        if not {bad, good} <= set(order):
            continue
        fixed = order.index(good) > order.index(bad)
        stated, found = Direction.REGRESSION, Direction.FIXED
        if not fixed:
            stated, found = found, stated
        if verdict.direction(axis) is stated:
            where = "up to some value" if fixed else "from some value on"
            return (
                f"{axis} fails {where}, against its direction (`{stated}`); "
                f"{asked.setting(f'direction: {found}')} says so beforehand, which saves trials"
            )
    # `direction: either` allows one range of bad values or one of good values, so two changes at most.
    hint = most <= 2 and Direction.EITHER not in verdict.directions.values()
    return (
        "the history is not monotone: what was broken was fixed and broken again, or the other way round"
        + (f"; {asked.setting('direction: either')} says so beforehand, which saves trials" if hint else "")
    )


def withdrawn_warnings(verdict: VerdictDocument, axes: Sequence[AxisInfo]) -> list[str]:
    """Return a warning for each boundary with withdrawn (yanked) releases between its good and bad end.

    Args:
        verdict: Verdict of the study.
        axes: Axes of the study.
    """
    if not verdict.is_decided:
        return []
    withdrawn = {axis.name: axis.withdrawn for axis in axes}
    texts = []
    for boundary in verdict.boundaries:
        ends = [(side or {}).get(boundary.axis, "") for side in (boundary.good, boundary.bad)]
        if inside := between(withdrawn.get(boundary.axis, ()), *ends):
            low, high = sorted(ends, key=Version)
            texts.append(
                f"{boundary.axis} {and_more(inside, _SHOWN)} between {low} and {high} "
                f"{'was' if len(inside) == 1 else 'were'} withdrawn and not tried; "
                "`yanked: true` of the axis, or `--yanked`, tries them"
            )
    return list(dict.fromkeys(texts))


# --------------------------------------------------------------------------------------------------
# Whether a failure depends on speed, and so on the load of the machine.

_LEAST_TIMED = 3
"""Minimum number of trials for a median."""
_SLOWER = 1.2
"""Minimum ratio of medians at which durations count as different."""
_SLOWER_PAIRS = 0.9
"""Minimum share of the pairs of a passing and a failing run in which the failing one is slower."""
_CLEAR = 1.96
"""Minimum number of standard deviations by which the number of these pairs exceeds its chance value."""
_LEAST_LONGER = 0.1
"""Minimum number of seconds by which failures are longer than passes if durations do not differ by version.
To print a traceback takes some time, too."""
_BY_SPEED = (Outcome.PASS, Outcome.EXIT_FAIL, Outcome.HANG)
"""Outcomes of runs that meet or miss a time limit."""


def speed_warnings(
    verdict: VerdictDocument, axes: Sequence[AxisInfo], trials: Sequence[StoredTrial]
) -> list[str]:
    """Return a warning if runs seem to fail because they are too slow.

    This is assumed if slower runs of a combination fail and faster ones pass, clearly or with durations that
    differ by version; or if all runs fail and durations differ by version.

    Args:
        verdict: Verdict of the study.
        axes: Axes of the study.
        trials: All trials of the study.
    """
    timed = [t for t in trials if t.outcome in _BY_SPEED and t.evidence in (Evidence.GOOD, Evidence.BAD)]
    seconds: dict[str, dict[Evidence, list[float]]] = {}
    for trial in timed:
        seconds.setdefault(str(trial.combination), {}).setdefault(trial.evidence, []).append(trial.duration)
    mixed = [one for one, by in seconds.items() if _slower_ones_fail(by)] if _by_speed(seconds) else []
    by_value = _medians(axes, timed)
    longer = [median(seconds[one][Evidence.BAD]) - median(seconds[one][Evidence.GOOD]) for one in mixed]
    if mixed and (by_value or min(longer) >= _LEAST_LONGER):
        said = f"slower runs of {and_more(mixed, 2, '; ')} fail, and faster ones pass"
    elif by_value and not verdict.is_decided and all(t.evidence is Evidence.BAD for t in timed):
        said = "every run fails"
    else:
        return []
    remedy = (
        "use one worker (`--workers 1`) and one BLAS thread (`--env OMP_NUM_THREADS=1`), and let the script "
        "compare the best of nine runs by `time.process_time()`"
    )
    seen = "; ".join([said, *by_value])
    return [f"this looks like a question of speed: {seen}; other load on the machine matters then: {remedy}"]


def _by_speed(seconds: Mapping[str, Mapping[Evidence, Sequence[float]]]) -> bool:
    """Return whether failing runs are slower than passing ones of the same combination, beyond chance.

    A time limit separates both in every combination, whereas a flaky failure does so in some by chance.
    Therefore all combinations are tested together: the Mann-Whitney statistic, summed over combinations
    (Wilcoxon's stratified rank test).
    """
    slower = pairs = expected = variance = 0.0
    for by in seconds.values():
        good, bad = by.get(Evidence.GOOD, ()), by.get(Evidence.BAD, ())
        count = len(good) * len(bad)
        slower += sum(one > other for one in bad for other in good)
        pairs += count
        expected += count / 2
        variance += count * (len(good) + len(bad) + 1) / 12
    return slower >= _SLOWER_PAIRS * pairs and slower - expected >= _CLEAR * variance**0.5


def _slower_ones_fail(by: Mapping[Evidence, Sequence[float]]) -> bool:
    good, bad = by.get(Evidence.GOOD, ()), by.get(Evidence.BAD, ())
    if min(len(good), len(bad)) < 2 or len(good) + len(bad) < 2 * _LEAST_TIMED:
        return False
    # Hangs last far longer than passes; runs that miss a time limit last only slightly longer.
    return median(good) < min(bad) and 1.02 * median(good) < median(bad) < 3 * max(good)


def _medians(axes: Sequence[AxisInfo], trials: Sequence[StoredTrial]) -> list[str]:
    """Return a sentence for each axis with the median durations of its fastest and its slowest value.

    An axis is included only if the two values differ clearly and none of their durations overlap.
    """
    texts = []
    for axis in axes:
        durations: dict[str, list[float]] = {}
        for trial in trials:
            if axis.name in trial.combination.as_dict():
                durations.setdefault(trial.combination[axis.name], []).append(trial.duration)
        known = {value: found for value, found in durations.items() if len(found) >= _LEAST_TIMED}
        if len(known) < 2:
            continue
        fast, slow = (pick(known, key=lambda value: median(known[value])) for pick in (min, max))
        if min(known[slow]) > max(known[fast]) and median(known[slow]) > _SLOWER * median(known[fast]):
            both = (f"{axis.name} {value} takes {duration(median(known[value]))}" for value in (fast, slow))
            texts.append(", ".join(both))
    return texts


# --------------------------------------------------------------------------------------------------
# Likely reasons for a missing answer, each with a line to paste.

_NO_MODULE = re.compile(r"No module named '?([A-Za-z_]\w*)")
_NO_FILE = re.compile(r"No such file or directory: b?'([^'/][^']*)'")
_NO_NETWORK = re.compile(
    r"URLError|ConnectionError|ConnectTimeout|gaierror|Name or service not known|Network is unreachable"
    r"|Temporary failure in name resolution|Max retries exceeded"
)


def advice(
    verdict: VerdictDocument,
    axes: Sequence[AxisInfo],
    failures: Sequence[FailureReport],
    trials: Sequence[StoredTrial],
    settings: Mapping[str, Any],
    scripts: Sequence[str] = (),
    unavailable: Sequence[str] = (),
    asked: Asked = Asked.IN_FILE,
    elapsed: float = 0.0,
    target: Target | None = None,
) -> list[str]:
    """Return the likely reasons why a study has no answer, each with what to change.

    Args:
        verdict: Verdict of the study.
        axes: Axes of the study.
        failures: Kinds of failure, the most frequent first.
        trials: All trials of the study.
        settings: Settings of its search.
        scripts: `trial.files` of the matrix.
        unavailable: Why combinations could not be tried, one reason per combination.
        asked: How the question was asked.
        elapsed: Seconds from the beginning of the study to its end; 0 if it was stopped before.
        target: Failure that the study looks for; None for the default.

    Returns:
        One sentence per reason, the likeliest first; empty if there is an answer.
    """
    if verdict.is_decided:
        return []
    bad = [failure for failure in failures if failure.evidence == "bad"]
    kind, reason = verdict.kind, verdict.reason
    untried = []
    if unavailable:
        why = shortened(clean(unavailable[-1].strip().splitlines()[0]), _REASON)
        combinations = how_many(len(unavailable), "combination")
        other = ", and may be what " + ("works" if kind == "always" else "fails") if verdict.trials else ""
        untried = [f"{combinations} could not be tried{other}: {why}"]
    others = [one for one in trials if one.evidence is Evidence.OTHER]
    target = target or Target()
    if kind and not verdict.trials and not bad:
        return [*untried, *_why_never(verdict, others, target, settings, asked)]
    if kind == "always" or "good combination is bad" in reason:
        several = [axis for axis in axes if len(axis.values) > 1]
        two = _unrelated(several[0], several[0].values, trials, asked) if len(several) == 1 else []
        return [
            *(untried if kind == "always" else ()),
            *(f"the failures at the two ends are unrelated: {text}" for text in two),
            *(
                _swapped(trials, settings.get("ends") or {}, asked)
                or _passed_elsewhere(axes, trials, asked)
                or _why_always(axes, bad, scripts, asked)
            ),
        ]
    if fixed := _fixed_before(axes, trials, settings.get("ends") or {}, asked):
        return fixed
    if kind == "never" or "bad combination is not bad" in reason:
        return [*untried, *_why_never(verdict, others, target, settings, asked)]
    return list(_why_open(verdict, bad, settings, asked, elapsed))


def _swapped(trials: Sequence[StoredTrial], ends: Mapping[str, Any], asked: Asked) -> list[str]:
    """Return advice if the stated bad combination passed in all its trials and the good one failed.

    Args:
        trials: All trials of a study.
        ends: `good` and `bad` to the combinations that the user stated.
        asked: How the question was asked.
    """
    seen = {
        end: {trial.evidence for trial in trials if trial.combination.as_dict() == ends.get(end)}
        for end in ("good", "bad")
    }
    if Evidence.BAD not in seen["good"] or Evidence.GOOD not in seen["bad"] or Evidence.BAD in seen["bad"]:
        return []
    return [f"they are swapped: what is stated to work fails, and the other works; exchange {asked.ends}"]


def _passed_elsewhere(axes: Sequence[AxisInfo], trials: Sequence[StoredTrial], asked: Asked) -> list[str]:
    """Return advice if the stated good combination fails but another combination passed.

    The stated ends may have been swapped. A few passes say nothing where failures are rare: they count if
    they are improbable at the failure rate of the combinations that failed.
    """
    counts: dict[tuple[str, ...], Counter[Evidence]] = {}
    several = [axis.name for axis in axes if len(axis.values) > 1]
    for trial in trials:
        cell = tuple(trial.combination[name] for name in several)
        counts.setdefault(cell, Counter())[trial.evidence] += 1
    passed = {
        cell: n[Evidence.GOOD] for cell, n in counts.items() if n[Evidence.GOOD] and not n[Evidence.BAD]
    }
    if not passed:
        return []
    cell, times = max(passed.items(), key=lambda one: one[1])
    failing = sum((n for n in counts.values() if n[Evidence.BAD]), Counter[Evidence]())
    passes = failing[Evidence.GOOD] / max(failing[Evidence.GOOD] + failing[Evidence.BAD], 1)
    if passes**times > _BY_LUCK:
        return []
    named = " ".join(f"{name}={value}" for name, value in zip(several, cell, strict=True))
    said = f"{named} passed in {how_many(times, 'trial')}: it can be stated as the good one"
    leave = "" if asked is Asked.BETWEEN else ", or leave both out"
    return [f"{said}; if you mixed them up, swap {asked.ends}{leave}"]


_BEYOND = {
    Direction.REGRESSION: ", so that the first bad one lies before what is listed: list older versions",
    Direction.FIXED: ", so that the first good one lies after what is listed: list newer versions",
    Direction.EITHER: ", so that what is good lies before or after what is listed: list more versions",
}
"""Where the boundary of an axis must be if all its values fail."""


def _why_always(
    axes: Sequence[AxisInfo], bad: Sequence[FailureReport], scripts: Sequence[str], asked: Asked
) -> Iterator[str]:
    if not bad:
        return
    total, first = sum(failure.trials for failure in bad), bad[0]
    said = f"{first.detail}\n{first.stack}"
    often = "every bad trial" if first.trials == total else f"{first.trials} of {total} bad trials"
    if match := _NO_MODULE.search(said):
        advice = asked.add_package(match[1])
        yield f"in {often} the module {match[1]} is missing: if no axis is to bring it, {advice}"
    elif match := _NO_FILE.search(said):
        files = json.dumps([*scripts, match[1]], ensure_ascii=False).replace('"', "")
        option = command_line("--files", match[1])
        yield f"in {often} the file {match[1]} is missing: {asked.add_option(option, f'files: {files}')}"
    elif first.outcome == "hang":
        yield (
            f"{often} reached the time limit: if the script takes so long, "
            f"{asked.add_option('--timeout 5m', 'timeout: 5m')}, or more"
        )
    elif _NO_NETWORK.search(said):
        yield (
            f"in {often} something on the network could not be reached, which no version decides: give the "
            f"script what it fetches {'in `files`' if asked is Asked.IN_FILE else 'with `--files`'}"
        )
    elif len(bad) > 1:
        yield (
            f"there are {len(bad)} kinds of failures; to look for one of them, write "
            + asked.setting(f"bad: {{signature: {quoted(shown(bad[-1].signature))}}}", "trial")
            if bad[-1].signature
            else f"there are {len(bad)} kinds of failures"
        )
    else:
        shown_by = command_line("bisect-env", "report", "--trial", first.trial[:8])
        directions = [axis.direction for axis in axes if len(axis.values) > 1]
        beyond = _BEYOND.get(directions[0], "") if len(directions) == 1 else ""
        remedy = f"{beyond}, or look" if beyond else ": look"
        yield (f"everything fails in one way{remedy} whether the script itself is at fault (`{shown_by}`)")


def _unrelated(
    axis: AxisInfo, values: Sequence[str], trials: Sequence[StoredTrial], asked: Asked
) -> list[str]:
    """Return a warning if the first and the last failing value of an axis fail in unrelated ways.

    The warning says how to search for only one of the two failures.

    Args:
        axis: The axis with these values.
        values: Values in ascending order.
        trials: All trials of the study.
        asked: How the question was asked.

    Returns:
        One sentence; [] if both values have an outcome and exception in common.
    """
    ways: dict[str, Counter[str]] = {}
    for trial in trials:
        value = trial.combination[axis.name]
        if trial.evidence is Evidence.BAD and trial.signature and value in values:
            ways.setdefault(value, Counter())[trial.signature] += 1
    seen = [value for value in values if value in ways]
    if len(seen) < 2 or set(map(_way, ways[seen[0]])) & set(map(_way, ways[seen[-1]])):
        return []
    # For the direction `fixed`, the stated bad end is the lower one.
    meant, other = (seen[0], seen[-1]) if axis.direction is Direction.FIXED else (seen[-1], seen[0])
    kinds = {value: ways[value].most_common(1)[0][0] for value in (meant, other)}
    return [
        f"{axis.name} {other} fails as {_way(kinds[other])}, and {axis.name} {meant} as "
        f"{_way(kinds[meant])}; if these are two problems, look for the latter alone with "
        + asked.setting(f"bad: {{signature: {quoted(shown(kinds[meant]))}}}", "trial")
    ]


def several_failures(
    verdict: VerdictDocument,
    axes: Sequence[AxisInfo],
    trials: Sequence[StoredTrial],
    asked: Asked = Asked.IN_FILE,
) -> list[str]:
    """Return a warning if the combinations that the verdict calls bad fail in two unrelated ways.

    Args:
        verdict: Verdict of the study.
        axes: Axes of the study.
        trials: All trials of the study.
        asked: How the question was asked.

    Returns:
        One sentence, with the line of the matrix that restricts the study to one of them; empty if one
        outcome and exception was seen from one end of the bad values to the other.
    """
    return [
        f"what is bad fails in two ways: {text}"
        for axis in axes
        if verdict.is_decided and verdict.culprit_axes == (axis.name,)
        if axis.direction is not Direction.UNORDERED
        for text in _unrelated(axis, verdict.bad_values.get(axis.name, ()), trials, asked)
    ]


def _way(signature: str) -> str:
    """Return the outcome and exception of a failure's signature, or the signature itself if it is invalid."""
    try:
        return read_signature(signature).kind
    except (ValueError, TypeError):
        return signature


def _unmet(condition: str, seen: str, target: Target, asked: Asked) -> str:
    """Return which condition of `trial.bad` a failure does not meet, what was seen, and how to count it."""
    match condition:
        case "outcomes":
            known = ", ".join(sorted([*map(str, target.outcomes), seen]))
            remedy = asked.setting(f"bad: {{outcomes: [{known}]}}", "trial")
            return f"`outcomes` lacks {seen}; to count it, write {remedy}"
        case "exit_codes":
            known = ", ".join(map(str, sorted(target.exit_codes)))
            remedy = asked.setting(f"bad: {{exit_codes: [{known}, {seen}]}}", "trial")
            return f"`exit_codes` has {known}, and the code was {seen}; to count it, write {remedy}"
        case "signals":
            return f"`signals` lacks {seen}; to count it, add it there"
        case "output":
            patterns = ", ".join(map(repr, target.output))
            return f"its output does not match `output`: {patterns}; to count it, correct the pattern"
        case "kinds":
            return f"`kinds` has {', '.join(sorted(target.kinds))}; to count it, add {quoted(seen)} there"
    return f"its signature is not {shown(target.signature)}; to count it, leave `signature` out"


def _fixed_before(
    axes: Sequence[AxisInfo], trials: Sequence[StoredTrial], ends: Mapping[str, Any], asked: Asked
) -> list[str]:
    """Return advice if the stated bad combination passed, but values between it and the good one failed.

    Then the failure was fixed on the way, so that an earlier value is the bad end.
    """
    stated = ends.get("bad")
    several = [axis for axis in axes if len(axis.values) > 1]
    if not stated or len(several) != 1 or several[0].direction is Direction.UNORDERED:
        return []
    (axis,) = several
    counts = {one.combination[axis.name]: Counter[Evidence]() for one in trials}
    for one in trials:
        counts[one.combination[axis.name]][one.evidence] += 1
    end = counts.get(stated.get(axis.name, ""), Counter[Evidence]())
    if not end[Evidence.GOOD] or end[Evidence.BAD]:
        return []
    tried = [value for value in axis.values if counts.get(value)]
    failing = [value for value in tried if counts[value][Evidence.BAD] and not counts[value][Evidence.GOOD]]
    if not failing or stated[axis.name] not in tried:
        return []
    place = tried.index(stated[axis.name])
    last = min(failing, key=lambda value: abs(tried.index(value) - place))
    step = 1 if place > tried.index(last) else -1
    fixed = tried[tried.index(last) + step]
    seen = f"{counts[last][Evidence.BAD]} of {counts[last].total()}"
    option = command_line("--bad", last)
    how = f"`bad: {{{axis.name}: {quoted(last)}}}`" if asked is Asked.IN_FILE else f"`{option}`"
    before = "" if abs(axis.values.index(fixed) - axis.values.index(last)) == 1 else " or before"
    return [f"{axis.name} {last} failed in {seen} trials, and it was fixed in {fixed}{before}: state {how}"]


def _why_never(
    verdict: VerdictDocument,
    others: Sequence[StoredTrial],
    target: Target,
    settings: Mapping[str, Any],
    asked: Asked,
) -> Iterator[str]:
    if others:
        ways = Counter(shown(one.signature) or str(one.outcome) for one in others)
        way, _ = ways.most_common(1)[0]
        first = next(one for one in others if (shown(one.signature) or str(one.outcome)) == way)
        why = "; ".join(
            _unmet(condition, seen, target, asked)
            for condition, seen in unmet(first, target, matched=first.matched).items()
        )
        yield (
            f"{how_many(len(others), 'trial')} failed in a way that is not counted, most as {way} "
            f"({first.detail}): {why or 'another failure than the one looked for'}"
        )
    elif verdict.trials:
        rate = float(settings.get("min_crash_rate") or 0.02)
        lower = f"`search: {{min_crash_rate: {max(rate / 10, LEAST_RATE):.2g}}}`"
        if asked is not Asked.IN_FILE:
            # The search looks for failures several times as rare as `--rate` says.
            lower = f"`--rate {max(rate / 3, LEAST_RATE):.1g}`"
        less = f"use {lower}, or " if rate > LEAST_RATE else ""
        yield (
            f"failures in fewer than {percent(rate)} of the runs were not looked for: {less}make "
            f"the failure more frequent with {asked.setting('search: {amplify: true}')}; if it should fail "
            "for certain, see whether the script ends with another status than 0 then"
        )


def _why_open(
    verdict: VerdictDocument,
    bad: Sequence[FailureReport],
    settings: Mapping[str, Any],
    asked: Asked,
    elapsed: float,
) -> Iterator[str]:
    most, trials = int(settings.get("max_trials") or 0), verdict.trials
    if trials and most and trials >= most:
        more = asked.setting(f"search: {{max_trials: {2 * most}}}")
        yield f"the trials are used up: write {more}, and run the same command again"
    elif trials and (budget := settings.get("budget")) and elapsed >= _ALMOST * float(budget):
        yield "the time is used up: give `search.budget` more, and run the same command again"
    if trials and bad and sum(failure.trials for failure in bad) * 5 < trials:
        lines = asked.setting("search: {amplify: true}")
        yield f"the failure is rare: {lines} looks first for what makes it more frequent"
