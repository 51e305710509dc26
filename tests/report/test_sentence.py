"""The verdict in one sentence, for every shape that a verdict can have."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from bisect_env.answers import sentence as answers
from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.conclusion import verdict_document
from bisect_env.answers.explanation import ChangedPackage, Explanation, IntermediateEnvironment
from bisect_env.answers.verdict_document import ClearedCombination, VerdictDocument
from bisect_env.matrix.grid import AxisKind, Direction, Grid, GridAxis, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.goals import Goal, search_towards
from tests.report.samples import Axis, Values, axis, infos, orjson_verdict, rate, verdict

RATES = (
    "crashed in 23 of 140 trials (16 %, 95 % interval 11–24 %) against 0 of 122 (0–3 %); "
    "probability 97 % after 262 trials"
)


def sentence(document: VerdictDocument, axes: Sequence[Axis] = (), *others: Any) -> str:
    return answers.sentence(document, infos(axes), *others)


def one(
    bad: str, good: str, direction: str = "regression", kind: str = "package", **changes: Any
) -> tuple[VerdictDocument, list[Axis]]:
    axes = [axis("lib", "1.0", "1.1", "1.2", "2.0", "2.1", direction=direction, kind=kind)]
    return verdict(axes, {"lib": bad}, {"lib": good}, **changes), axes


def with_between(document: VerdictDocument, *between: dict[str, Any]) -> VerdictDocument:
    """The verdict with combinations that could not be tried at its first boundary."""
    data = document.model_dump()
    return VerdictDocument.model_validate(
        {**data, "boundaries": [{**data["boundaries"][0], "between": between}, *data["boundaries"][1:]]}
    )


def test_a_regression() -> None:
    document, axes = one("1.2", "1.1")
    assert sentence(document, axes, "crash") == f"lib 1.2 is the first bad version (last good 1.1): {RATES}"


@pytest.mark.parametrize(
    ("bad", "good", "direction"), [("1.2", "1.1", "regression"), ("1.2", "2.0", "fixed")]
)
def test_checks_that_were_cut_short_say_what_they_do_not_exclude(bad: str, good: str, direction: str) -> None:
    document, axes = one(bad, good, direction, status="likely", reason="passes still wanted: 58")
    cleared = ClearedCombination(combination={"lib": good}, hits=0, trials=4, below=0.632, wanted=58)
    text = sentence(document.model_copy(update={"cleared": (cleared,)}), axes, "crash")
    clause = f"{good} passed 4 times: a failure in fewer than 63 % of runs there is not excluded"
    assert f"; {clause}, `--sure` goes on; probability 97 %" in text
    assert "probably" in text
    # The reason would say the same again.
    assert "still wanted" not in text


def test_of_several_last_good_ones_the_least_checked_is_named() -> None:
    document, axes = one("1.2", "1.1", status="likely")
    cleared = [
        ClearedCombination(combination={"lib": "1.1"}, hits=0, trials=40, below=0.07, wanted=22),
        ClearedCombination(combination={"lib": "2.0"}, hits=1, trials=4, below=0.9, wanted=180),
    ]
    text = sentence(document.model_copy(update={"cleared": tuple(cleared)}), axes, "crash")
    assert "2.0 failed in 1 of 4 trials: a failure in fewer than 90 % of runs there is not excluded" in text


def test_complete_checks_are_not_mentioned() -> None:
    document, axes = one("1.2", "1.1")
    cleared = ClearedCombination(combination={"lib": "1.1"}, hits=0, trials=62, below=0.048, wanted=0)
    text = sentence(document.model_copy(update={"cleared": (cleared,)}), axes, "crash")
    assert text == sentence(document, axes, "crash")


def test_releases_that_were_not_listed_are_named() -> None:
    document, axes = one("1.2", "1.1")
    axes[0]["passed_over"] = ["1.0.5", "1.1.1", "1.1.2"]
    text = sentence(document, axes, "crash")
    assert text.startswith("lib 1.2 is the first bad version among those listed (last good 1.1): ")
    assert "; lib 1.1.1 and 1.1.2 were not listed; " in text


def test_without_axes_and_outcome() -> None:
    document, _ = one("1.2", "1.1")
    expected = f"lib 1.2 is the first bad version (last good 1.1): {RATES}".replace("crashed", "failed")
    assert sentence(document) == expected


@pytest.mark.parametrize(
    ("outcome", "verb"),
    [("hang", "hung in"), ("import-error", "failed to import in"), ("cuda-fault", "hit a CUDA fault in")],
)
def test_what_the_failure_is_called(outcome: str, verb: str) -> None:
    document, axes = one("1.2", "1.1")
    assert f": {verb} 23 of 140 trials" in sentence(document, axes, outcome)


@pytest.mark.parametrize(("kind", "noun"), [("value", "value"), ("date", "day"), ("package", "version")])
def test_what_the_values_are_called(kind: str, noun: str) -> None:
    document, axes = one("1.2", "1.1", kind=kind)
    assert sentence(document, axes).startswith(f"lib 1.2 is the first bad {noun} (last good 1.1): ")


def test_of_two_environments_one_fails_and_the_other_does_not() -> None:
    document, axes = one("1.2", "1.1", kind="environment")
    assert sentence(document, axes).startswith('"1.2" fails, "1.1" does not: ')


def test_a_fix() -> None:
    document, axes = one("1.2", "2.0", "fixed")
    assert sentence(document, axes).startswith(
        "lib 2.0 is the first good version (last bad 1.2): failed in 23 of 140"
    )


@pytest.mark.parametrize(
    ("bad", "good", "span", "expected"),
    [
        ("1.1", "1.0", ["1.1", "1.2"], "lib is broken from 1.1 to 1.2 (last good 1.0, fixed in 2.0): "),
        ("1.1", "1.0", ["1.1"], "lib is broken in 1.1 (last good 1.0, fixed in 1.2): "),
        ("1.1", "1.0", ["1.1", "1.2", "2.0", "2.1"], "lib is broken from 1.1 on (last good 1.0): "),
        ("1.1", "1.2", ["1.0", "1.1"], "lib is broken up to 1.1 (fixed in 1.2): "),
        ("1.2", "2.0", ["1.1", "1.2"], "lib is broken from 1.1 to 1.2 (fixed in 2.0): "),
    ],
)
def test_a_window(bad: str, good: str, span: list[str], expected: str) -> None:
    document, axes = one(bad, good, "either", bad_values={"lib": span})
    values = axes[0]["values"]
    if good < bad and span[-1] != values[-1]:
        after = values[values.index(span[-1]) + 1]
        document = with_other_end(document, {"lib": span[-1]}, {"lib": after})
    assert sentence(document, axes).startswith(expected)


def with_other_end(document: VerdictDocument, bad: Values, good: Values, **changes: Any) -> VerdictDocument:
    """The verdict with one more boundary on its axis."""
    data = document.model_dump()
    other = {"axis": "lib", "bad": bad, "good": good, **changes}
    return VerdictDocument.model_validate({**data, "boundaries": [*data["boundaries"], other]})


def answered(
    grid: Grid,
    is_bad: Callable[[Index], bool],
    goal: Goal = Goal.FIRST_BAD,
    missing: Mapping[Index, tuple[str, str]] | None = None,
) -> VerdictDocument:
    """The verdict of a search for a certain failure."""
    missing = missing or {}
    groups = {index: index for index in grid.indices() if index not in missing}
    search = search_towards(goal, grid, groups, SearchLimits())
    while wanted := search.ask(1):
        for index in wanted:
            search.tell(index, hit=is_bad(index))
    return verdict_document(grid, search, missing)


def test_a_fix_is_claimed_where_a_version_was_tried() -> None:
    values = tuple(f"1.{n}" for n in range(8))
    grid = Grid((GridAxis("lib", AxisKind.PACKAGE, values, Direction.EITHER),))
    missing = {(1,): ("env-unbuildable", "gcc"), (5,): ("env-unsolvable", "no wheel")}
    document = answered(grid, lambda index: 2 <= index[0] <= 4, missing=missing)
    said = sentence(document, [axis("lib", *values, direction="either")])
    # 1.1 and 1.5 were never tried: the failure is not said to begin or to end there.
    assert said.startswith("lib is broken from 1.2 to 1.4 (last good 1.0, fixed in 1.6): ")
    assert "; lib 1.1 in between could not be tried (env-unbuildable); " in said
    assert "; lib 1.5 in between could not be tried (env-unsolvable); " in said


def test_a_fix_may_be_earlier_where_versions_were_left_out() -> None:
    document, axes = one("1.1", "1.0", "either", bad_values={"lib": ["1.1"]})
    document = with_other_end(document, {"lib": "1.1"}, {"lib": "2.0"})
    axes[0]["passed_over"] = ["1.1.5"]
    said = sentence(document, axes)
    assert said.startswith("lib is broken in 1.1 (last good 1.0, fixed in 2.0 or before): ")
    assert "; lib 1.1.5 was not listed; " in said


def test_a_window_whose_end_is_not_known() -> None:
    document, _ = one("1.1", "1.0", "either", bad_values={"lib": ["1.1", "1.2"]})
    assert sentence(document).startswith("lib is broken from 1.1 to 1.2 (last good 1.0): ")


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (["1.2"], "lib = 1.2 is broken (1.1 is not): "),
        (["1.0", "1.2", "2.0", "2.1"], "lib other than 1.1 is broken (1.1 is not): "),
    ],
)
def test_values_without_order(span: list[str], expected: str) -> None:
    document, axes = one("1.2", "1.1", "unordered", bad_values={"lib": span})
    assert sentence(document, axes).startswith(expected)


KOMBU = [
    axis("python", "3.7", "3.8", direction="fixed"),
    axis("kombu", "5.0", "5.1", "5.2", direction="either"),
    axis("importlib-metadata", "4.0", "4.1", "5.0", "5.1"),
    axis("platform", "linux", direction="unordered"),
]
CORNER = {"python": "3.7", "kombu": "5.0", "importlib-metadata": "5.0", "platform": "linux"}


def corner(**changes: Any) -> VerdictDocument:
    boundaries = [
        {"axis": "python", "bad": CORNER, "good": {**CORNER, "python": "3.8"}, "between": []},
        {
            "axis": "importlib-metadata",
            "bad": CORNER,
            "good": {**CORNER, "importlib-metadata": "4.1"},
            "between": [],
        },
    ]
    plain = {
        "culprit_axes": ["importlib-metadata", "python"],
        "bad_values": {"python": ["3.7"], "importlib-metadata": ["5.0", "5.1"]},
        "boundaries": boundaries,
    }
    return verdict(KOMBU, CORNER, {**CORNER, "importlib-metadata": "4.1"}, **{**plain, **changes})


def test_several_culprits() -> None:
    said = sentence(corner(), KOMBU, "crash")
    beginning, _, rest = said.partition(": ")
    assert beginning == "importlib-metadata ≥ 5.0 with python < 3.8 is broken"
    assert "; kombu does not matter; probability 97 %" in rest
    assert answers.do_not_matter(corner(), infos(KOMBU)) == ["kombu"]
    # Without the axes' values the first good one is known from the boundary alone.
    assert sentence(corner()).startswith("importlib-metadata ≥ 5.0 with python < 3.8 is broken: ")


def test_bad_values_at_the_other_end_than_the_direction_says() -> None:
    """Of several failing configurations, one may lie at the low end of a regression."""
    low = corner(bad_values={"python": ["3.7"], "importlib-metadata": ["4.0", "4.1", "5.0"]})
    assert sentence(low, KOMBU).startswith("importlib-metadata < 5.1 with python < 3.8 is broken: ")


def test_a_bound_that_is_not_known_is_not_invented() -> None:
    untried = {"combination": {**CORNER, "python": "3.7.9"}, "status": "env-unsolvable", "reason": "no"}
    hidden = with_between(corner(), untried)
    assert sentence(hidden).startswith("importlib-metadata ≥ 5.0 with python ≤ 3.7 is broken: ")


def test_any_of_several() -> None:
    said = sentence(corner(kind="any"), KOMBU)
    assert said.startswith("importlib-metadata ≥ 5.0 or python < 3.8 is broken: ")


SQUARE = [axis(name, *map(str, range(1, 9)), kind="value") for name in ("a", "b", "c")]
"""Axes of eight values each."""


def square(names: str) -> Grid:
    values = tuple(map(str, range(1, 9)))
    return Grid(tuple(GridAxis(name, AxisKind.VALUE, values, Direction.REGRESSION) for name in names))


def test_each_of_several_causes_is_named() -> None:
    document = answered(square("abc"), lambda index: index[0] >= 3 or index[1] >= 5)
    assert document.kind == "any"
    assert sentence(document, SQUARE).startswith("a ≥ 4 or b ≥ 6 is broken: ")
    assert answers.do_not_matter(document, infos(SQUARE)) == ["c"]


def test_further_failing_configurations_are_in_the_sentence_and_their_axes_matter() -> None:
    document = answered(square("ab"), lambda index: index[0] >= 3 or index[1] >= 5, Goal.EVERY_CONFIGURATION)
    said = sentence(document, SQUARE[:2])
    assert said.startswith("a 4 is the first bad value (last good 3): ")
    assert "; b ≥ 6 is broken, too; " in said
    assert answers.do_not_matter(document, infos(SQUARE[:2])) == []


def test_a_table_of_nothing_is_none() -> None:
    grid = square("a")
    missing = dict.fromkeys(grid.indices(), ("set-aside", "exit code 125"))
    document = answered(grid, lambda _: False, Goal.TABLE, missing)
    assert sentence(document, SQUARE[:1]) == "No table: no combination can be tried"


def test_axes_that_no_trial_tells_apart_are_named() -> None:
    """What is neither old on both axes nor new on both cannot be run."""
    grid = square("ab")
    missing = {index: ("excluded", "") for index in grid.indices() if (index[0] >= 3) is not (index[1] >= 5)}
    document = answered(grid, lambda index: index[0] >= 3, missing=missing)
    assert document.status == "likely"
    assert sentence(document, SQUARE[:2]).startswith(
        "a 4 with b 6 is probably broken (a 3 with b 5 is not; no trial tells which of a and b matters): "
    )


def test_what_could_not_be_tried_in_between() -> None:
    document, axes = one("2.0", "1.0")
    document = with_between(
        document,
        {"combination": {"lib": "1.1"}, "status": "env-unbuildable", "reason": "gcc"},
        {"combination": {"lib": "1.2"}, "status": "env-unbuildable", "reason": "gcc"},
    )
    assert "; lib 1.1 and 1.2 in between could not be tried (env-unbuildable); " in sentence(document, axes)


def test_a_likely_answer_says_why_it_is_not_confirmed() -> None:
    document, axes = one("1.2", "1.1", status="likely", reason="below the stated 0.95", probability=0.8567)
    said = sentence(document, axes)
    assert said.startswith("lib 1.2 is probably the first bad version (last good 1.1): ")
    assert said.endswith("; probability 85 % after 262 trials (not confirmed: below the stated 0.95)")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("never", "never bad: no combination shows the failure"),
        ("always", "always bad: every combination shows the failure"),
    ],
)
def test_never_and_always(kind: str, reason: str) -> None:
    document = verdict([], None, None, status="none", kind=kind, reason=reason, probability=0.962, trials=80)
    assert sentence(document) == f"No verdict after 80 trials: {reason} (probability 96 %)"


def test_never_bad_names_the_python_that_was_taken() -> None:
    document = verdict([], None, None, status="none", kind="never", reason="never bad: none", trials=80)
    one, two = (AxisInfo(name="python", values=values) for values in (("3.11",), ("3.11", "3.12")))
    assert "never bad: none, on Python 3.11" in sentence(document, (one,))
    assert "Python" not in sentence(document, (two,))


def test_no_verdict_yet() -> None:
    document, axes = one(
        "1.2", "1.1", status="none", reason="no answer is likely enough yet", probability=0.415
    )
    assert sentence(document, axes) == (
        "No verdict after 262 trials: no answer is likely enough yet; the best guess so far (41 %): "
        "lib 1.2 is the first bad version (last good 1.1)"
    )


def test_nothing_known() -> None:
    assert sentence(VerdictDocument()) == "No verdict: the study has not come to a verdict yet"
    assert sentence(VerdictDocument(reason="")) == "No verdict: not decided yet"


def test_sides_without_trials_claim_no_rates() -> None:
    document = orjson_verdict(bad_rate=rate(0, 0), good_rate=rate(0, 0))
    assert sentence(document).startswith(
        "orjson 3.9.11 is the first bad version (last good 3.9.10); probability"
    )
    assert " against " not in sentence(orjson_verdict(good_rate=None))


@pytest.mark.parametrize(
    ("direction", "bad", "expected"),
    [
        (
            "regression",
            "1.2 1.4",
            "broken in 1.2 and from 1.4 on (last good 1.1, fixed in 1.3, last good 1.3)",
        ),
        ("regression", "1.0 1.3 1.4", "broken up to 1.0 and from 1.3 on (fixed in 1.1, last good 1.2)"),
        ("regression", "1.1 1.2", "broken from 1.1 to 1.2 (last good 1.0, fixed in 1.3)"),
        (
            "fixed",
            "1.0 1.2 1.3",
            "broken up to 1.0 and from 1.2 to 1.3 (fixed in 1.1, last good 1.1, fixed in 1.4)",
        ),
        (
            "either",
            "1.1 1.3",
            "broken in 1.1 and in 1.3 (last good 1.0, fixed in 1.2, last good 1.2, fixed in 1.4)",
        ),
    ],
)
def test_a_history_that_is_not_monotone(direction: str, bad: str, expected: str) -> None:
    values = ["1.0", "1.1", "1.2", "1.3", "1.4"]
    pairs = [
        (one, other) if one in bad.split() else (other, one)
        for one, other in itertools.pairwise(values)
        if (one in bad.split()) != (other in bad.split())
    ]
    axes = [axis("lib", *values, direction=direction)]
    document = verdict(
        axes,
        {"lib": pairs[0][0]},
        {"lib": pairs[0][1]},
        bad_values={"lib": bad.split()},
        monotone=False,
        boundaries=[{"axis": "lib", "bad": {"lib": b}, "good": {"lib": g}, "between": []} for b, g in pairs],
    )
    assert sentence(document, axes).startswith(f"lib is {expected}")


def test_one_of_several_culprits_may_have_two_runs() -> None:
    axes = [axis("lib", "1", "2", "3", "4"), axis("numpy", "1.26", "2.0")]
    document = verdict(
        axes,
        {"lib": "2", "numpy": "2.0"},
        {"lib": "1", "numpy": "2.0"},
        bad_values={"lib": ["2", "4"], "numpy": ["2.0"]},
        culprit_axes=["lib", "numpy"],
        monotone=False,
    )
    said = sentence(document, axes)
    assert said.startswith("lib in 2 and from 4 on with numpy ≥ 2.0 is broken")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (["greenlet 0.4.16 → 0.4.17"], "(last good 1.1), with greenlet 0.4.16 → 0.4.17: "),
        (["a 1 → 2", "b 1 → 2"], "(last good 1.1), with a 1 → 2 and b 1 → 2: "),
        (["x 1 → 2"] * 12, "(last good 1.1), with 12 packages changed: "),
        ([], "(last good 1.1): "),
    ],
)
def test_a_day_stands_for_the_packages_of_that_day(changed: list[str], told: str) -> None:
    document, axes = one("1.2", "1.1", kind="date")
    assert told in sentence(document, axes, "crash", changed)
    document, axes = one("1.2", "1.1")
    assert "(last good 1.1): " in sentence(document, axes, "crash", changed), "a version stands for itself"


@pytest.mark.parametrize(
    ("of_axis", "beginning"), [(False, "dep 1 → 2"), (True, "not lib itself: its dependency dep")]
)
def test_what_may_be_needed_as_well_is_told(of_axis: bool, beginning: str) -> None:
    changes = [
        ChangedPackage(name="lib", old="1", new="2", of_axis=of_axis),
        ChangedPackage(name="dep", old="1", new="2"),
        ChangedPackage(name="core", old="3", new="4"),
    ]
    tried = [
        IntermediateEnvironment(moved=moved, bad=bad, trials=9)
        for moved, bad in (((), 0), ((0, 2), 0), ((1, 2), 9), ((0, 1, 2), 9))
    ]
    found = Explanation(
        good={"lib": "1"},
        bad={"lib": "2"},
        changes=tuple(changes),
        kind="all",
        culprits=(1,),
        probability=0.97,
        is_sure=True,
        intermediates=tuple(tried),
    )
    assert "alone carries the failure (9 of 9 bad, against 0 of 9 without)" in found.in_words()
    said = found.model_copy(update={"perhaps": (2,)}).in_words()
    assert said.startswith(beginning)
    assert "alone" not in said
    assert "whether it does without core 3 → 4 is not known" in said


@pytest.mark.parametrize(
    ("direction", "bad", "good"), [("fixed", "b", "d"), ("either", "d", "b"), ("either", "b", "d")]
)
def test_untried_commits_are_told_whatever_the_direction(direction: str, bad: str, good: str) -> None:
    axes = [axis("lib", *"abcde", direction=direction, kind="commit")]
    span = list("de" if bad == "d" else "ab")
    document = verdict(axes, {"lib": bad}, {"lib": good}, bad_values={"lib": span})
    untried = {"combination": {"lib": "c"}, "status": "env-unbuildable", "reason": "gcc"}
    said = sentence(with_between(document, untried), axes)
    assert "; lib c in between could not be tried (env-unbuildable); " in said


@pytest.mark.parametrize(
    ("direction", "bad", "good", "told"),
    [
        ("fixed", "b", "c", "the first good commit among those tried (one of it and the 7 before it, which"),
        ("either", "c", "b", "; 7 commits of lib between b and c were not listed; "),
        ("either", "b", "c", "; 7 commits of lib between b and c were not listed; "),
    ],
)
def test_commits_that_were_left_out_are_told_whatever_the_direction(
    direction: str, bad: str, good: str, told: str
) -> None:
    axes = [axis("lib", *"abcde", direction=direction, kind="commit")]
    axes[0]["left_out"] = {"c": 7}
    span = list("cde" if bad == "c" else "ab")
    document = verdict(axes, {"lib": bad}, {"lib": good}, bad_values={"lib": span})
    assert told in sentence(document, axes)


def test_what_a_culprit_itself_requires_is_named_with_it() -> None:
    changes = (
        ChangedPackage(name="httpx", old="0.27", new="1.0"),
        ChangedPackage(name="httpcore2", old="absent", new="2.9.1"),
        ChangedPackage(name="idna", old="3", new="4"),
    )
    ends = (
        IntermediateEnvironment(moved=(), bad=0, trials=3),
        IntermediateEnvironment(moved=(0, 1, 2), bad=3, trials=3),
    )
    found = Explanation(
        good={},
        bad={},
        changes=changes,
        kind="all",
        culprits=(0,),
        perhaps=(1, 2),
        required=(1,),
        probability=0.99,
        is_sure=True,
        intermediates=ends,
    )
    said = found.in_words()
    assert "with httpcore2 absent → 2.9.1, which it requires" in said
    assert "whether it does without idna 3 → 4 is not known" in said
    alone = found.model_copy(update={"perhaps": (1,)}).in_words()
    assert "is not known" not in alone
