"""Lists what speaks against a verdict, and what would lead to a better one. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from packaging.version import Version

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.phrases import and_more, duration, first_few, how_many, interval, percent
from bisect_env.answers.untrusted import clean, command_line, shortened
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.matrix.grid import Direction
from bisect_env.matrix.signatures import read_signature, shown
from bisect_env.matrix.versions import between
from bisect_env.report.model import FailureReport
from bisect_env.search.numeric import clopper_pearson
from bisect_env.search.stability import Effect, Told, drift, host_effect
from bisect_env.storage.entries import StoredTrial
from bisect_env.trials.records import Evidence, Outcome

_SHOWN = 3
_REASON = 200
"""Characters of a reason that advice quotes."""


def stability(trials: Sequence[StoredTrial]) -> dict[str, dict[str, Any]]:
    """Return whether rates changed over time, between hosts, or between GPUs.

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
    """Return a sentence for each noteworthy effect."""
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
    """Return warnings about GPUs and hosts that were lost during trials, none of which were counted.

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
        f"GPU {gpu} on {host or 'an unknown host'} was lost or sick in {how_many(len(details), 'trial')} "
        f"({details[-1].partition(' (the script')[0]}); they are void and were run again elsewhere"
        for (gpu, host), details in sorted(sick.items())
    ]
    warnings += [
        f"host {host} lost its worker or a GPU under {how_many(count, 'trial')}, void and run again"
        for host, count in sorted(lost.items())
    ]
    return first_few(warnings, _SHOWN, more="more GPUs or hosts were lost under trials")


def other_failures(trials: Sequence[StoredTrial], target: str = "") -> list[str]:
    """Return a warning if trials failed in other ways than the target, since these may be two problems.

    Args:
        trials: All trials of a study, with their evidence.
        target: Signature of the failure that it is about, "" if it is about any.
    """
    bad = {trial.combination for trial in trials if trial.evidence is Evidence.BAD}
    others: dict[str, Counter[str]] = {}
    for trial in trials:
        if trial.evidence is Evidence.OTHER and trial.combination in bad:
            what = shown(trial.signature) if trial.signature else str(trial.outcome)
            others.setdefault(str(trial.combination), Counter())[what] += 1
    warnings = [
        f"{combination}: besides the failure that the study is about, "
        + ", ".join(
            f"{how_many(number, 'trial')} failed as {what}" for what, number in counts.most_common(_SHOWN)
        )
        + "; not counted"
        for combination, counts in sorted(others.items(), key=lambda item: -item[1].total())
    ]
    return [
        *first_few(warnings, _SHOWN, more="more combinations failed in another way as well"),
        *(_other_problems(trials) if target else ()),
    ]


def _other_problems(trials: Sequence[StoredTrial]) -> Iterator[str]:
    """Yield, for each kind of failure other than the target, the combinations in which only it was seen."""
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
    """Return a warning if bad combinations fail clearly more or less often than the user stated.

    Args:
        stated: `search.crash_rate`, None if it was not stated.
        bad: Bad trials of the combinations that the verdict calls bad.
        trials: All of their counted trials.
    """
    if stated is None or not trials:
        return []
    low, high = clopper_pearson(bad, trials)
    # Nobody means "one in ten" to the digit: half and double are the same in words.
    if low <= 2 * stated and high >= stated / 2 and not (stated == 1 and bad < trials):
        return []
    seen = f"failed in {bad} of {trials} ({interval(low, high)})"
    return [f"it was said to fail in {percent(stated)} of runs, and {seen}: the answer goes by what was seen"]


def good_side_warnings(
    verdict: VerdictDocument, axes: Sequence[AxisInfo], bad: int, trials: int, least: float
) -> list[str]:
    """Return a warning if the last good combination fails, too, though less often.

    Args:
        verdict: Verdict of the study.
        axes: Axes of the study.
        bad: Bad trials of the last good combination.
        trials: All of its counted trials.
        least: `search.min_crash_rate`; lower rates are ignored.
    """
    culprits, good = verdict.culprit_axes, verdict.last_good
    low, high = clopper_pearson(bad, trials)
    if not culprits or not good or low < least:
        return []
    seen = f"the last good combination fails, too ({bad} of {trials}, {interval(low, high)})"
    if not any(axis.name not in culprits and len(axis.values) > 1 for axis in axes):
        return [f"{seen}: the answer is where that becomes more frequent, not where it begins"]
    held = ", ".join(f"{name} at {clean(good[name])} alone" for name in culprits if name in good)
    remedy = f"to find where it begins, ask again with {held}"
    return [f"{seen}: the answer is where that becomes more frequent; {remedy}"]


def verdict_warnings(verdict: VerdictDocument) -> list[str]:
    """Return the warnings that follow from the verdict itself."""
    warnings = []
    if verdict.kind == "never" and verdict.trials and verdict.table is None:
        warnings.append(
            "nothing failed often enough; if something should have: see whether it does where it is known to "
            "(`bisect-env trial --at … -n 100`), look for what makes it more frequent "
            "(`bisect-env trial --amplify`), let dependencies move as in an upgrade "
            "(`solver: {dependencies: newest}`), or state a lower `min_crash_rate` or a higher `max_trials` "
            "in `search`"
        )
    if not verdict.monotone:
        # `either` speaks of one window, or of one gap.
        changes = Counter(boundary.axis for boundary in verdict.boundaries)
        directions = verdict.directions.values()
        hint = max(changes.values(), default=0) <= 2 and Direction.EITHER not in directions
        warnings.append(
            "the history is not monotone: what was broken was fixed and broken again, or the other way round"
            + ("; `direction: either` says so beforehand, which saves trials" if hint else "")
        )
    strange = [
        "the verdict does not explain "
        f"{', '.join(f'{axis}={value}' for axis, value in one.combination.items())}: "
        f"{one.hits} of {one.trials} trials were bad, and it is called {'bad' if one.called_bad else 'good'}"
        for one in verdict.unexplained
    ]
    return warnings + first_few(strange, _SHOWN, more="more combinations are not explained by the verdict")


def withdrawn_warnings(verdict: VerdictDocument, axes: Sequence[AxisInfo]) -> list[str]:
    """Return a sentence for each boundary that has withdrawn releases in it, which were not tried.

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
# Whether the failure is one of speed: then load decides, not versions alone.

_LEAST_TIMED = 3
"""Trials from which a median is told."""
_SLOWER = 1.2
"""Ratio of medians from which durations differ."""
_BY_SPEED = (Outcome.PASS, Outcome.EXIT_FAIL, Outcome.HANG)
"""Outcomes that a run has because of a limit of time, met or missed."""


def speed_warnings(
    verdict: VerdictDocument, axes: Sequence[AxisInfo], trials: Sequence[StoredTrial]
) -> list[str]:
    """Return a warning if the failure looks like a limit on the duration that some runs meet.

    That is so where slower runs of one combination fail and faster ones pass; or where everything fails and
    durations differ by version.

    Args:
        verdict: Verdict of the study.
        axes: Axes of the study.
        trials: All trials of the study.
    """
    timed = [t for t in trials if t.outcome in _BY_SPEED and t.evidence in (Evidence.GOOD, Evidence.BAD)]
    seconds: dict[str, dict[Evidence, list[float]]] = {}
    for trial in timed:
        seconds.setdefault(str(trial.combination), {}).setdefault(trial.evidence, []).append(trial.duration)
    mixed = [one for one, by in seconds.items() if _slower_ones_fail(by)]
    by_value = _medians(axes, timed)
    if mixed:
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


def _slower_ones_fail(by: Mapping[Evidence, Sequence[float]]) -> bool:
    good, bad = by.get(Evidence.GOOD, ()), by.get(Evidence.BAD, ())
    if min(len(good), len(bad)) < 2 or len(good) + len(bad) < 2 * _LEAST_TIMED:
        return False
    # What hangs now and then takes far longer than what does not; a limit is missed narrowly.
    return median(good) < min(bad) and 1.02 * median(good) < median(bad) < 3 * max(good)


def _medians(axes: Sequence[AxisInfo], trials: Sequence[StoredTrial]) -> list[str]:
    """Return how long runs of the fastest and slowest value of an axis take, if no durations overlap."""
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
            told = (f"{axis.name} {value} takes {duration(median(known[value]))}" for value in (fast, slow))
            texts.append(", ".join(told))
    return texts


# --------------------------------------------------------------------------------------------------
# Why there is no answer, as far as the trials tell, each with a line to paste.

_NO_MODULE = re.compile(r"No module named '?([A-Za-z_]\w*)")
_NO_FILE = re.compile(r"No such file or directory: b?'([^'/][^']*)'")
_NO_NETWORK = re.compile(
    r"URLError|ConnectionError|ConnectTimeout|gaierror|Name or service not known|Network is unreachable"
    r"|Temporary failure in name resolution|Max retries exceeded"
)
_BROUGHT_BY = {
    "Crypto": "pycryptodome",
    "OpenSSL": "pyopenssl",
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "pkg_resources": "setuptools",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Modules whose packages are called otherwise."""


def advice(
    verdict: VerdictDocument,
    axes: Sequence[AxisInfo],
    failures: Sequence[FailureReport],
    trials: Sequence[StoredTrial],
    settings: Mapping[str, Any],
    scripts: Sequence[str] = (),
    unbuilt: Sequence[str] = (),
) -> list[str]:
    """Return the likely reasons why a study has no answer, and the lines of the matrix to change.

    Args:
        verdict: Verdict of the study.
        axes: Axes of the study.
        failures: Kinds of failure, the most frequent first.
        trials: All trials of the study.
        settings: Settings of its search.
        scripts: `trial.files` of the matrix.
        unbuilt: Why environments could not be built, one reason per combination.

    Returns:
        One sentence per reason, the likeliest first; empty if there is an answer.
    """
    if verdict.is_decided:
        return []
    bad = [failure for failure in failures if failure.evidence == "bad"]
    kind, reason = verdict.kind, verdict.reason
    if kind == "always" or "good combination is bad" in reason:
        return [*_two_failures(axes, trials), *(_passed_elsewhere(axes, trials) or _why_always(bad, scripts))]
    if kind == "never" or "bad combination is not bad" in reason:
        return [*_untried(unbuilt), *_why_never(verdict, failures, settings)]
    return list(_why_open(verdict, bad, settings))


def _passed_elsewhere(axes: Sequence[AxisInfo], trials: Sequence[StoredTrial]) -> list[str]:
    """Return advice if a stated good combination is bad while others passed: the statement is wrong."""
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
    named = " ".join(f"{name}={value}" for name, value in zip(several, cell, strict=True))
    said = f"{named} passed in {how_many(times, 'trial')}: it can be stated as the good one"
    swap = "if you mixed them up, swap `--good` and `--bad` (`good` and `bad` in a matrix), or leave both out"
    return [f"{said}; {swap}"]


def _why_always(bad: Sequence[FailureReport], scripts: Sequence[str]) -> Iterator[str]:
    if not bad:
        return
    total, first = sum(failure.trials for failure in bad), bad[0]
    said = f"{first.detail}\n{first.stack}"
    often = "every bad trial" if first.trials == total else f"{first.trials} of {total} bad trials"
    if match := _NO_MODULE.search(said):
        package = _BROUGHT_BY.get(match[1], match[1].lower().replace("_", "-"))
        yield (
            f"in {often} the module {match[1]} is missing: if no axis is to bring it, add "
            f"`--with {package}`, or `packages: [{package}]` in a matrix file"
        )
    elif match := _NO_FILE.search(said):
        files = json.dumps([*scripts, match[1]], ensure_ascii=False).replace('"', "")
        yield (
            f"in {often} the file {match[1]} is missing: add `--files {match[1]}`, or "
            f"`files: {files}` in `trial`"
        )
    elif first.outcome == "hang":
        yield (
            f"{often} reached the time limit: if the script takes so long, add `--timeout 5m` or more, or "
            "`timeout: 5m` in `trial`"
        )
    elif _NO_NETWORK.search(said):
        yield (
            f"in {often} something on the network could not be reached, which no version decides: give the "
            "script what it fetches in `files`"
        )
    elif len(bad) > 1:
        yield (
            f"there are {len(bad)} kinds of failures; to look for one of them, say "
            f"`bad: {{signature: {_quoted(shown(bad[-1].signature))}}}` in `trial`"
            if bad[-1].signature
            else f"there are {len(bad)} kinds of failures"
        )
    else:
        shown_by = command_line("bisect-env", "report", "--trial", first.trial[:8])
        yield (
            "everything fails in one way, so that the first bad one lies before what is listed: list older "
            f"versions, or look whether the script itself is at fault (`{shown_by}`)"
        )


def _two_failures(axes: Sequence[AxisInfo], trials: Sequence[StoredTrial]) -> Iterator[str]:
    """Yield advice if trials at the two ends of the only axis fail in different ways: two problems."""
    several = [axis for axis in axes if len(axis.values) > 1]
    if len(several) != 1:
        return
    (axis,) = several
    ways: dict[str, Counter[str]] = {}
    for trial in trials:
        if trial.evidence is Evidence.BAD and trial.signature:
            ways.setdefault(trial.combination[axis.name], Counter())[trial.signature] += 1
    seen = [value for value in axis.values if value in ways]
    if len(seen) < 2:
        return
    low, high = seen[0], seen[-1]
    if set(ways[low]) & set(ways[high]):
        return
    good, bad = (high, low) if axis.direction == "fixed" else (low, high)
    told = {value: shown(ways[value].most_common(1)[0][0]) for value in (good, bad)}
    yield (
        f"two failures that have nothing to do with each other: {axis.name} {good} fails as {told[good]}, "
        f"and {axis.name} {bad} as {told[bad]}; to look for the latter, say "
        f"`bad: {{signature: {_quoted(told[bad])}}}` in `trial`"
    )


def several_failures(
    verdict: VerdictDocument, axes: Sequence[AxisInfo], trials: Sequence[StoredTrial]
) -> list[str]:
    """Return a warning if the combinations that an answer calls bad fail in two unrelated ways.

    Args:
        verdict: Verdict of the study.
        axes: Axes of the study.
        trials: All trials of the study.

    Returns:
        One sentence, with the line of the matrix that restricts the study to one of them; empty if one
        outcome and exception was seen from one end of the bad values to the other.
    """
    culprits = verdict.culprit_axes
    if not verdict.is_decided or len(culprits) != 1:
        return []
    axis = next((one for one in axes if one.name == culprits[0]), None)
    if axis is None or axis.direction == "unordered":
        return []
    called = set(verdict.bad_values.get(axis.name, ()))
    ways: dict[str, dict[str, str]] = {}
    for trial in trials:
        value = trial.combination[axis.name]
        if trial.evidence is Evidence.BAD and trial.signature and value in called:
            ways.setdefault(value, {}).setdefault(_way(trial.signature), trial.signature)
    seen = [value for value in axis.values if value in ways]
    if len(seen) < 2 or set(ways[seen[0]]) & set(ways[seen[-1]]):
        return []
    # The stated bad end is the lower one where something was fixed.
    meant, other = (seen[0], seen[-1]) if axis.direction == "fixed" else (seen[-1], seen[0])
    kinds = {value: next(iter(ways[value])) for value in (meant, other)}
    text = (
        f"what is bad fails in two ways: {axis.name} {other} as {kinds[other]}, {axis.name} {meant} as "
        f"{kinds[meant]}; if these are two problems, look for the latter alone with "
        f"`bad: {{signature: {_quoted(shown(ways[meant][kinds[meant]]))}}}` in `trial`"
    )
    return [text]


def _way(signature: str) -> str:
    """Return outcome and exception of a signature; the text itself if it is no valid signature."""
    try:
        return read_signature(signature).kind
    except (ValueError, TypeError):
        return signature


def _untried(unbuilt: Sequence[str]) -> Iterator[str]:
    if unbuilt:
        yield (
            f"{how_many(len(unbuilt), 'combination')} could not be built, and may be what fails: "
            f"{shortened(clean(unbuilt[-1].strip().splitlines()[0]), _REASON)}"
        )


def _why_never(
    verdict: VerdictDocument, failures: Sequence[FailureReport], settings: Mapping[str, Any]
) -> Iterator[str]:
    others = [failure for failure in failures if failure.evidence == "other"]
    if others:
        first = others[0]
        yield (
            f"{how_many(sum(failure.trials for failure in others), 'trial')} failed in a way that is not "
            f"counted, most as {shown(first.signature) or first.outcome}: to count it, say "
            f"`bad: {{outcomes: [{first.outcome}]}}` in `trial`, without a `signature`"
        )
    elif verdict.trials:
        rate = float(settings.get("min_crash_rate") or 0.02)
        yield (
            f"failures in fewer than {percent(rate)} of the runs were not looked for: say "
            f"`search: {{min_crash_rate: {rate / 10:.2g}}}`, or make the failure more frequent with "
            "`search: {amplify: true}`; if it should fail for certain, see whether the script ends with "
            "another status than 0 then"
        )


def _why_open(
    verdict: VerdictDocument, bad: Sequence[FailureReport], settings: Mapping[str, Any]
) -> Iterator[str]:
    most, trials = int(settings.get("max_trials") or 0), verdict.trials
    if trials and most and trials >= most:
        yield (f"the trials are used up: say `search: {{max_trials: {2 * most}}}`, then run it again")
    elif settings.get("budget") and trials:
        yield "the time is used up: give `search.budget` more, and run the same command again"
    if trials and bad and sum(failure.trials for failure in bad) * 5 < trials:
        yield "the failure is rare: `search: {amplify: true}` looks first for what makes it more frequent"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
