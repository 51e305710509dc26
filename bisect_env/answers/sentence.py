"""Express a verdict in one sentence. Pure.

The sentence has three parts: where the failure begins, how often either side fails, and how sure the verdict
    is.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from bisect_env.answers.axes import AxesByName, AxisInfo
from bisect_env.answers.phrases import enumerated, how_many, interval, percent, probability
from bisect_env.answers.verdict_document import CompatibilityTable, NeighbourPair, VerdictDocument
from bisect_env.matrix.grid import AxisKind, Direction
from bisect_env.matrix.versions import between

_CHANGED = 3
"""Maximum number of changed packages that a sentence names."""
_NOUN = {"package": "version", "value": "value", "date": "day", "commit": "commit"}
_VERB = {
    "crash": "crashed",
    "hang": "hung",
    "cuda-fault": "hit a CUDA fault",
    "cuda-oom": "ran out of GPU memory",
    "host-oom": "ran out of memory",
    "import-error": "failed to import",
    "runner-error": "stopped the test runner",
}


def sentence(
    verdict: VerdictDocument,
    axes: Sequence[AxisInfo] = (),
    outcome: str | None = None,
    changed: Sequence[str] = (),
) -> str:
    """Return one English sentence that states a verdict.

    Args:
        verdict: The verdict, final or so far.
        axes: The axes of the study. Without them, statements that need all values of an axis are left out.
        outcome: The outcome of the bad trials (such as `crash`), if it was always the same.
        changed: Packages that differ between the last good and the first bad combination, such as
            `greenlet 0.4.16 → 0.4.17`; named if the verdict is about a date.

    Returns:
        One sentence without a line break. It quotes the matrix and is not yet safe to print on a terminal.
    """
    kinds = AxesByName.of(axes)
    if verdict.table is not None:
        return _whole_table(verdict, verdict.table)
    if not verdict.is_decided:
        return _no_verdict(verdict, kinds)
    parts = [
        _where(verdict, kinds, sure=verdict.status == "confirmed")
        + _what_changed(verdict, kinds, changed)
        + _how_often(verdict, outcome),
        *_in_between(verdict, kinds),
        *_not_listed(verdict, kinds),
    ]
    others = [one.bad_values for one in verdict.others or () if one.bad_values]
    if more := [bad_values_in_words("all", values, kinds) for values in others]:
        parts.append(f"{_listed(more)} {'is' if len(more) == 1 else 'are'} broken, too")
    if (unimportant := do_not_matter(verdict, axes)) and len(verdict.culprit_axes) > 1:
        parts.append(f"{_listed(unimportant)} {'does' if len(unimportant) == 1 else 'do'} not matter")
    return "; ".join([*parts, *_not_excluded(verdict), _how_sure(verdict)])


def _not_excluded(verdict: VerdictDocument) -> list[str]:
    """Return a list with a clause about the last good combination that was checked least.

    The clause says which failure rates its trials do not exclude. The list is empty unless the checks of a
    last good combination were cut short.
    """
    cut = [one for one in verdict.cleared if one.wanted]
    if not cut:
        return []
    least = max(cut, key=lambda one: one.below)
    bad = verdict.first_bad or {}
    moved = [value for axis, value in least.combination.items() if value != bad.get(axis)]
    passed = f"passed {how_many(least.trials, 'time')}"
    if least.hits:
        passed = f"failed in {least.hits} of {least.trials} trials"
    doubt = f"a failure in fewer than {percent(least.below)} of runs there is not excluded"
    return [f"{_listed(moved)} {passed}: {doubt}, `--sure` goes on"]


def _whole_table(verdict: VerdictDocument, table: CompatibilityTable) -> str:
    """Return a sentence with how many combinations work and fail, and the rule for them if there is one."""
    good, bad = table.good, table.bad
    number = good + bad
    if not table.complete:
        are, fail = ("is", "fails") if number == 1 else ("are", "fail")
        known = f"{how_many(number, 'combination')} {are} known so far, of which {bad} {fail}"
        after = how_many(verdict.trials, "trial")
        return f"No table yet after {after}: {verdict.reason}; {known}"
    if not number:
        return f"No table: {verdict.reason}"
    if not bad or not good:
        which = "work" if not bad else "fail"
        counted = f"all {number} combinations that can be run {which}"
        if number == 1:
            counted = f"the only combination that can be run {which}s"
    else:
        counted = f"{good} of {number} combinations work, {bad} fail"
    described = verdict.compatibility
    parts = [*([described.sentence] if described else []), counted, f"{table.tried} of them were tried"]
    if good and bad and not described:
        parts.append("no list of requirements describes them")
    return "; ".join([*parts, _how_sure(verdict)])


def bad_values_in_words(kind: str, bad_values: Mapping[str, Sequence[str]], axes: AxesByName) -> str:
    """Return the values that an answer calls bad, such as `orjson ≥ 3.9.11` or `numpy ≥ 2 with python < 3.8`.

    Args:
        kind: `all`, `any`, `never` or `always`.
        bad_values: For each culprit axis, its bad values.
        axes: All axes of the study.
    """
    if kind in ("never", "always"):
        return "nothing is bad" if kind == "never" else "everything is bad"
    directions = {name: one.direction for name, one in axes.items()}
    verdict = VerdictDocument(bad_values=bad_values, directions=directions)
    return (" or " if kind == "any" else " with ").join(_values(verdict, axis, axes) for axis in bad_values)


def side_names(verdict: VerdictDocument, axes: Sequence[AxisInfo]) -> tuple[str, str]:
    """Return the names of the bad and the good side of the boundary.

    Returns:
        `("last bad", "first good")` if the good side comes after the bad one, because the failure was fixed
        there; else `("first bad", "last good")`.
    """
    values = {axis.name: axis.values for axis in axes}
    bad, good = verdict.first_bad or {}, verdict.last_good or {}
    moved = [axis for axis, value in good.items() if value != bad.get(axis)]
    fixed = [
        verdict.direction(axis) is not Direction.UNORDERED
        and {bad.get(axis), good[axis]} <= set(values.get(axis, ()))
        and values[axis].index(good[axis]) > values[axis].index(bad[axis])
        for axis in moved
    ]
    return ("last bad", "first good") if fixed and all(fixed) else ("first bad", "last good")


def noun(kind: str) -> str:
    """Return the noun for a value of an axis, such as `version`, `day` or `commit`.

    Args:
        kind: Kind of the axis.
    """
    return _NOUN.get(kind, "version")


def do_not_matter(verdict: VerdictDocument, axes: Sequence[AxisInfo]) -> list[str]:
    """Return the names of axes with several values that do not matter, or [] without a verdict."""
    culprits = {*verdict.culprit_axes, *(axis for one in verdict.others or () for axis in one.culprit_axes)}
    if not verdict.is_decided or not culprits:
        return []
    return [axis.name for axis in axes if axis.name not in culprits and len(axis.values) > 1]


def _no_verdict(verdict: VerdictDocument, kinds: AxesByName) -> str:
    reason = verdict.reason or "not decided yet"
    if verdict.kind == "explanation":
        return reason
    after = f" after {how_many(verdict.trials, 'trial')}" if verdict.trials else ""
    text = f"No verdict{after}: {reason}"
    python = kinds["python"].values if verdict.kind == "never" and verdict.trials else ()
    if len(python) == 1:
        # Often nobody asked for it, and the failure may be one of another Python.
        text += f", on Python {python[0]}"
    chance = verdict.probability
    if verdict.kind in ("never", "always") and chance and verdict.trials:
        text += f" (probability {probability(chance)})"
    if verdict.first_bad and verdict.kind in ("all", "any", "frontier", "pair") and chance:
        text += f"; the best guess so far ({probability(chance)}): {_where(verdict, kinds, sure=True)}"
    return text


def _where(verdict: VerdictDocument, kinds: AxesByName, *, sure: bool) -> str:
    culprits, described = verdict.culprit_axes, verdict.compatibility
    bad, good = verdict.first_bad or {}, verdict.last_good or {}
    probably = "" if sure else "probably "
    if described is not None:
        ends = f"{probably}broken: {_combined(bad, kinds)}; last good: {_combined(good, kinds)}"
        return f"{described.sentence} ({ends})"
    if verdict.kind in ("frontier", "pair") and bad and good:
        rest = "no simple rule describes the rest"
        for name, broken in verdict.pattern.items():
            which = f"{name} is {enumerated(broken, 'or')}"
            rest = f"of what was tried, all fail where {which}, and all pass elsewhere"
        return f"{_combined(bad, kinds)} is {probably}broken ({_combined(good, kinds)} is not; {rest})"
    if bad and good and len(culprits) > 1 and not verdict.boundaries:
        tied = f"no trial tells which of {enumerated(culprits)} matters"
        return f"{_combined(bad, kinds)} is {probably}broken ({_combined(good, kinds)} is not; {tied})"
    if len(culprits) != 1:
        word = " or " if verdict.kind == "any" else " with "
        values = word.join(_values(verdict, axis, kinds) for axis in culprits)
        return f"{values} is {probably}broken" if values else "something is broken"
    (axis,) = culprits
    direction = verdict.direction(axis)
    first, last = bad.get(axis, "?"), good.get(axis, "?")
    if not verdict.monotone or len(_spans(verdict, axis, kinds)) > 1:
        return _history(verdict, axis, kinds, probably)
    if direction is Direction.FIXED:
        word = noun(kinds[axis].kind)
        beside = _among_those_tried(kinds[axis].left_out.get(last, 0))
        return f"{axis} {last} is {probably}the first good {word}{beside} (last bad {first})"
    if direction is Direction.UNORDERED:
        return f"{_values(verdict, axis, kinds)} is {probably}broken ({last} is not)"
    if direction is Direction.EITHER:
        return _window(verdict, axis, kinds, probably)
    if kinds[axis].kind is AxisKind.ENVIRONMENT:
        return f'"{first}" {probably}fails, "{last}" does not'
    kind = noun(kinds[axis].kind)
    beyond = kinds[axis].left_out.get(first)
    listed = " among those listed" if between(kinds[axis].passed_over, last, first) else ""
    untried = verdict.untried_before_first_bad(axis)
    if kind == "commit" and untried:
        among = len(untried) + 1
        named = _listed([*untried, first], "or")
        unbuilt = "the one before it" if among == 2 else "those before it"
        return (
            f"the first bad commit of {axis} is {probably}one of these {among}: {named} "
            f"(last good {last}; {unbuilt} could not be tried)"
        )
    if beyond:
        listed = _among_those_tried(beyond)
    return f"{axis} {first} is {probably}the first bad {kind}{listed} (last good {last})"


def _among_those_tried(left_out: int) -> str:
    """Return a clause that says that a commit is the first only among the commits that were tried.

    Args:
        left_out: Number of commits before it that are not values of the axis. If it is 0, return "".
    """
    return f" among those tried (one of it and the {left_out} before it, which were not)" if left_out else ""


def _is_plain_regression(verdict: VerdictDocument, axis: str, kinds: AxesByName) -> bool:
    """Return whether a verdict on one axis is stated as its first bad value, without a fix."""
    return (
        verdict.culprit_axes == (axis,)
        and verdict.direction(axis) is Direction.REGRESSION
        and verdict.monotone
        and len(_spans(verdict, axis, kinds)) <= 1
    )


def _combined(values: Mapping[str, Any], kinds: AxesByName) -> str:
    """Return a combination as text, without the axes that have a single value."""
    several = {axis: value for axis, value in values.items() if len(kinds[axis].values) != 1}
    return " with ".join(f"{axis} {value}" for axis, value in (several or values).items())


def _spans(verdict: VerdictDocument, axis: str, kinds: AxesByName) -> list[tuple[str, str]]:
    """Return the first and last value of each run of bad values of an ordered axis.

    The list is empty for an axis without order, and if not all values of the axis are known, because then it
    is unknown which values are neighbours.
    """
    values = kinds[axis].values
    bad = set(verdict.bad_values.get(axis, ()))
    direction = verdict.direction(axis)
    if direction is Direction.UNORDERED or not bad <= set(values):
        return []
    runs = [(is_bad, list(run)) for is_bad, run in itertools.groupby(values, key=lambda one: one in bad)]
    return [(run[0], run[-1]) for is_bad, run in runs if is_bad]


def _in_words(spans: Sequence[tuple[str, str]], values: Sequence[str]) -> str:
    """Return runs of bad values in words: `up to 1.3, in 1.5 and from 2.0 on`."""
    texts = []
    for first, last in spans:
        if last == values[-1] and first != values[0]:
            texts.append(f"from {first} on")
        elif first == values[0]:
            texts.append(f"up to {last}")
        else:
            texts.append(f"in {first}" if first == last else f"from {first} to {last}")
    return _listed(texts)


def _history(verdict: VerdictDocument, axis: str, kinds: AxesByName, probably: str) -> str:
    """Return a clause with every run of bad values of an axis, and the good values beside them."""
    values = kinds[axis].values
    if not (spans := _spans(verdict, axis, kinds)):
        return f"{axis} is {probably}broken, fixed and broken again"
    changes = []
    for boundary in verdict.boundaries:
        bad, good = ((side or {}).get(axis, "?") for side in (boundary.bad, boundary.good))
        if boundary.axis == axis and {bad, good} <= set(values):
            fixed = values.index(good) > values.index(bad)
            changes.append((values.index(good), f"fixed in {good}" if fixed else f"last good {good}"))
    notes = f" ({', '.join(text for _, text in sorted(changes))})" if changes else ""
    return f"{axis} is {probably}broken {_in_words(spans, values)}{notes}"


def _window(verdict: VerdictDocument, axis: str, kinds: AxesByName, probably: str) -> str:
    """Return a clause with the bad interval of an axis and the good values beside it."""
    bad = (verdict.first_bad or {}).get(axis, "?")
    good = (verdict.last_good or {}).get(axis, "?")
    span = verdict.bad_values.get(axis) or (bad,)
    values = kinds[axis].values
    if not {span[0], span[-1], good} <= set(values):
        return f"{axis} is {probably}broken {_in_words([(span[0], span[-1])], ('',))} (last good {good})"
    first, last, notes = span[0], span[-1], []
    for one in verdict.boundaries or (NeighbourPair(axis=axis, bad={axis: bad}, good={axis: good}),):
        bad, good = ((side or {}).get(axis, "?") for side in (one.bad, one.good))
        if one.axis != axis or not {bad, good} <= set(values):
            continue
        if values.index(good) < values.index(bad):
            first = bad
            notes.append((0, f"last good {good}"))
        else:
            last = bad
            # In a large matrix, versions between the two may be left that nobody tried.
            apart = values.index(good) - values.index(bad) - 1
            notes.append((1, f"fixed in {good}{'' if apart == len(one.between) else ' or before'}"))
    sides = ", ".join(text for _, text in sorted(notes))
    return f"{axis} is {probably}broken {_in_words([(first, last)], values)} ({sides})"


def _values(verdict: VerdictDocument, axis: str, kinds: AxesByName) -> str:
    """Return the bad values of one axis as text, such as `numpy ≥ 2.0.0` or `cuda = 12.1`.

    Use it if several axes matter.
    """
    bad = verdict.bad_values.get(axis, ())
    if not bad:
        return f"{axis} {(verdict.first_bad or {}).get(axis, '?')}"
    values = kinds[axis].values
    direction = verdict.direction(axis)
    spans = _spans(verdict, axis, kinds)
    if len(spans) > 1:
        return f"{axis} {_in_words(spans, values)}"
    if not verdict.monotone and spans:
        direction = Direction.EITHER
    if direction is Direction.UNORDERED:
        others = [value for value in values if value not in bad]
        if len(bad) > 1 and len(others) == 1:
            return f"{axis} other than {others[0]}"
        return f"{axis} = {_listed(bad, 'or')}"
    is_known = set(bad) <= set(values)
    is_first, is_last = is_known and bad[0] == values[0], is_known and bad[-1] == values[-1]
    # Bad values may lie at the other end than the direction of the axis says.
    if (is_last and not is_first) or (direction is Direction.REGRESSION and is_first is is_last):
        return f"{axis} ≥ {bad[0]}"
    if is_first or direction is Direction.FIXED:
        good = _good_neighbour(verdict, axis, values, bad[-1])
        return f"{axis} < {good}" if good else f"{axis} ≤ {bad[-1]}"
    return f"{axis} = {bad[0]}" if len(bad) == 1 else f"{axis} {bad[0]} to {bad[-1]}"


def _good_neighbour(verdict: VerdictDocument, axis: str, values: Sequence[str], last_bad: str) -> str | None:
    """Return the next good value above the bad ones, or None if none is known to follow directly."""
    if last_bad in values:
        above = values.index(last_bad) + 1
        return values[above] if above < len(values) else None
    for boundary in verdict.boundaries:
        if boundary.axis == axis and boundary.good and not boundary.between:
            return boundary.good[axis]
    return None


def _how_often(verdict: VerdictDocument, outcome: str | None) -> str:
    bad, good = verdict.bad_rate, verdict.good_rate
    if bad is None or not bad.trials:
        return ""
    verb = _VERB.get(outcome or "", "failed")
    text = (
        f": {verb} in {bad.hits} of {bad.trials} trials ({percent(bad.rate)}, "
        f"95 % interval {interval(bad.low, bad.high)})"
    )
    if bad.per_iteration is not None:
        text += f", or of {bad.iterations} iterations ({percent(bad.per_iteration.rate)})"
    if good is not None and good.trials:
        text += f" against {good.hits} of {good.trials} ({interval(good.low, good.high)})"
    return text


def _in_between(verdict: VerdictDocument, kinds: AxesByName) -> list[str]:
    texts = []
    for boundary in verdict.boundaries:
        axis = boundary.axis
        if kinds[axis].kind is AxisKind.COMMIT and _is_plain_regression(verdict, axis, kinds):
            continue  # the sentence already names all commits that may be the first bad one
        by_status: dict[str, list[str]] = {}
        for cell, value in zip(boundary.between, boundary.untried_values(), strict=True):
            by_status.setdefault(cell.status, []).append(value)
        texts += [
            f"{axis} {_listed(values)} in between could not be tried ({status})"
            for status, values in by_status.items()
        ]
    return texts


def _what_changed(verdict: VerdictDocument, kinds: AxesByName, changed: Sequence[str]) -> str:
    """Return a phrase with the packages that changed on the first bad date; "" without a date axis."""
    culprits = verdict.culprit_axes
    if len(culprits) != 1 or kinds[culprits[0]].kind is not AxisKind.DATE or not changed:
        return ""
    if len(changed) > _CHANGED:
        return f", with {len(changed)} packages changed"
    return f", with {_listed(changed)}"


def _not_listed(verdict: VerdictDocument, kinds: AxesByName) -> list[str]:
    """Return clauses about releases and commits at a boundary that are not values of the axis."""
    texts = []
    for boundary in verdict.boundaries:
        axis = boundary.axis
        ends = [(side or {}).get(axis, "") for side in (boundary.good, boundary.bad)]
        if missing := between(kinds[axis].passed_over, *ends):
            texts.append(f"{axis} {_listed(missing)} {'was' if len(missing) == 1 else 'were'} not listed")
        direction, values = verdict.direction(axis), kinds[axis].values
        # For other directions, the sentence itself says so.
        in_words = direction is Direction.EITHER or not verdict.monotone
        if in_words and kinds[axis].left_out and {*ends} <= set(values):
            low, high = sorted(map(values.index, ends))
            if count := sum(kinds[axis].left_out.get(value, 0) for value in values[low + 1 : high + 1]):
                verb = "was" if count == 1 else "were"
                commits = how_many(count, "commit")
                texts.append(
                    f"{commits} of {axis} between {values[low]} and {values[high]} {verb} not listed"
                )
    return texts


def _how_sure(verdict: VerdictDocument) -> str:
    chance = verdict.probability
    text = f"probability {probability(chance)}" if chance is not None else "probability unknown"
    if verdict.trials:
        text += f" after {how_many(verdict.trials, 'trial')}"
    if verdict.status != "confirmed" and verdict.reason and not _not_excluded(verdict):
        text += f" (not confirmed: {verdict.reason})"
    return text


def _listed(names: Sequence[str], word: str = "and") -> str:
    if len(names) > 4:
        return f"{names[0]} … {names[-1]} ({len(names)} values)"
    return enumerated(names, word)
