from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bisect_env.matrix.grid import Combination
from bisect_env.matrix.signatures import FROM_BAD_END, SIGNATURE_VERSION, SignatureParts
from bisect_env.trials.judge import (
    DEFAULT_OUTCOMES,
    ENOUGH,
    NEVER_TARGET,
    SKIPPED,
    TARGET,
    VOID,
    ChangedEnvironment,
    Judge,
    Places,
    Target,
    judge,
    output_matches,
)
from bisect_env.trials.records import Evidence, Outcome, Phase, TrialRecord

REFERENCE = Path(__file__).parents[2] / "docs" / "outcomes.md"


def record(outcome: Outcome, returncode: int | None = 1, **changes: object) -> TrialRecord:
    values: dict[str, object] = {
        "trial_id": "t",
        "combination": Combination.of({"a": "1"}),
        "lock_hash": "0",
        "outcome": outcome,
        "detail": "",
        "returncode": returncode,
        "phase": Phase.BODY,
        "started_at": datetime.now(UTC),
        "duration": 1.0,
    }
    return TrialRecord(**{**values, **changes})  # type: ignore[arg-type]


def said(one: TrialRecord, target: Target, *, repeated: bool = False) -> Evidence:
    return judge(one, target, matched=output_matches(one, target), repeated=repeated)


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_under_the_default_target(outcome: Outcome) -> None:
    expected = (
        Evidence.GOOD if outcome is Outcome.PASS
        else Evidence.BAD if outcome in DEFAULT_OUTCOMES
        else Evidence.VOID if outcome in VOID | {Outcome.CUDA_INIT}
        else Evidence.SKIP if outcome in SKIPPED
        else Evidence.OTHER
    )  # fmt: skip
    assert said(record(outcome), Target()) is expected


@pytest.mark.parametrize("outcome", sorted(NEVER_TARGET))
def test_infrastructure_is_never_bad_whatever_a_study_says(outcome: Outcome) -> None:
    target = Target(outcomes=frozenset(Outcome))
    assert said(record(outcome), target) in (Evidence.VOID, Evidence.SKIP)


def test_memory_can_be_the_symptom() -> None:
    assert said(record(Outcome.HOST_OOM), Target()) is Evidence.VOID
    assert said(record(Outcome.HOST_OOM), Target(outcomes=frozenset({Outcome.HOST_OOM}))) is Evidence.BAD


def test_a_failure_that_is_not_the_target_is_other() -> None:
    target = Target(outcomes=frozenset({Outcome.HANG}))
    assert said(record(Outcome.CRASH), target) is Evidence.OTHER
    assert said(record(Outcome.HANG), target) is Evidence.BAD


def test_signals_and_exit_codes_narrow_their_own_outcome_only() -> None:
    target = Target(signals=frozenset({11}), exit_codes=frozenset({3}))
    assert said(record(Outcome.CRASH, -11), target) is Evidence.BAD
    assert said(record(Outcome.CRASH, -6), target) is Evidence.OTHER
    assert said(record(Outcome.EXIT_FAIL, 3), target) is Evidence.BAD
    assert said(record(Outcome.EXIT_FAIL, 4), target) is Evidence.OTHER
    assert said(record(Outcome.IMPORT_ERROR, 3), target) is Evidence.BAD
    assert said(record(Outcome.IMPORT_ERROR, 1), target) is Evidence.OTHER
    assert said(record(Outcome.HANG, -6), target) is Evidence.BAD


def test_output_patterns() -> None:
    target = Target(output=(r"^deadlock \d+$", "never"))
    assert said(record(Outcome.CRASH, stdout="x\ndeadlock 42\n"), target) is Evidence.BAD
    assert said(record(Outcome.CRASH, stderr="deadlock 42"), target) is Evidence.BAD
    assert said(record(Outcome.CRASH, stdout="deadlock"), target) is Evidence.OTHER
    assert said(record(Outcome.PASS, 0, stdout="deadlock 42"), target) is Evidence.GOOD


def test_a_pass_can_be_the_target() -> None:
    target = Target(outcomes=frozenset({Outcome.PASS}), output=("wrong",))
    assert said(record(Outcome.PASS, 0, stdout="wrong sum"), target) is Evidence.BAD
    assert said(record(Outcome.PASS, 0, stdout="right"), target) is Evidence.GOOD


def test_a_signature_narrows_too() -> None:
    target = Target(signature='[1,"crash:SIGSEGV","body","a.py:f"]')
    assert said(record(Outcome.CRASH, -11, signature=target.signature), target) is Evidence.BAD
    other = '[1,"crash:SIGSEGV","body","elsewhere.py:zzz"]'
    assert said(record(Outcome.CRASH, -11, signature=other), target) is Evidence.OTHER


def test_a_failed_cuda_initialisation_is_void_once() -> None:
    target = Target(outcomes=frozenset({Outcome.CUDA_INIT}))
    assert said(record(Outcome.CUDA_INIT), target) is Evidence.VOID
    assert said(record(Outcome.CUDA_INIT), target, repeated=True) is Evidence.BAD
    assert said(record(Outcome.CUDA_INIT), Target(), repeated=True) is Evidence.OTHER


@pytest.mark.parametrize(
    ("start", "seconds", "expected"),
    [
        (0, 9, Evidence.GOOD),  # over before the last good look
        (0, 30, Evidence.VOID),  # it ran when the files were changed
        (12, 3, Evidence.VOID),
        (30, 60, Evidence.VOID),
        (32, 5, Evidence.GOOD),  # begun after the environment was made again
    ],
)
def test_what_ran_between_two_looks_at_a_changed_environment_is_void(
    start: int, seconds: float, expected: Evidence
) -> None:
    noon = datetime(2026, 11, 25, 12, tzinfo=UTC)
    changed = ChangedEnvironment("0", "h", noon + timedelta(seconds=10), noon + timedelta(seconds=31))
    one = record(Outcome.PASS, 0, host="h", started_at=noon + timedelta(seconds=start), duration=seconds)
    for host, lock_hash in (("h", "0"), ("elsewhere", "0"), ("h", "1")):
        found = Judge(Target(), Places(), [changed])
        facts = replace(one, host=host, lock_hash=lock_hash)
        found.tell(facts, matched=True)
        is_there = (host, lock_hash) == ("h", "0")
        assert found.evidence(facts, matched=True) is (expected if is_there else Evidence.GOOD)


def test_the_reference_page_lists_every_outcome_in_order() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \|", REFERENCE.read_text(), re.MULTILINE)
    assert rows == [str(outcome) for outcome in Outcome]


# -- all trials of a study --------------------------------------------------------------------------------


def signed(kind: str, frame: str = "a.py:f") -> str:
    return SignatureParts(SIGNATURE_VERSION, kind, "body", (frame,)).stored()


A, B, MOVED = signed("exit-fail:A"), signed("exit-fail:B", "b.py:f"), signed("exit-fail:B", "inside.py:g")
HANG = signed("hang")
GOOD: list[str] = [""]
"""A pass, as a list of the signatures of a combination's trials."""


def level(number: int) -> Combination:
    return Combination.of({"level": str(number)})


def trial(place: int, signature: str = "", **changes: object) -> TrialRecord:
    outcome = Outcome.EXIT_FAIL if signature else Outcome.PASS
    changes = {"trial_id": f"{place}-{random.getrandbits(64):x}", "combination": level(place), **changes}
    return record(outcome, signature=signature, **changes)


def told(line: Sequence[Sequence[str]], rule: Target | None = None) -> Judge:
    """A judge that was told trials of levels in a row, the bad end first, by the signatures of failures."""
    places = Places(
        good=frozenset({level(len(line) - 1)}),
        bad=frozenset({level(0)}),
        line={level(number): number for number in range(len(line))},
    )
    judge_ = Judge(rule or Target(), places)
    for place, signatures in enumerate(line):
        for signature in signatures:
            judge_.tell(trial(place, signature), matched=True)
    return judge_


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ([[]], None),
        ([GOOD, [A]], None),
        ([[B], [B], GOOD, GOOD], None),
        ([[B], [B], GOOD, [A], GOOD], 3),
        ([[B], GOOD, [], [A], [A], GOOD, [A], GOOD], 3),
        # Of several the good end is taken.
        ([[B], GOOD, [], [A], [A], GOOD, [A]], 6),
        ([[B], GOOD, [B], GOOD], None),
        ([[B], GOOD, [A], GOOD, [B]], None),
        ([[B], GOOD, [A, B], GOOD], None),
        ([[B], GOOD, [A, ""], GOOD], None),
        ([[B, ""], GOOD, [A], GOOD], None),
        # Both ends, whatever stands between them.
        ([[B], [], [A]], 2),
        ([[B], GOOD, [A]], 2),
        # The failure of the end would not tell all of its own side from the other.
        ([[B], [A], GOOD, [HANG], GOOD], None),
        ([[B], [MOVED], GOOD, [A], GOOD], None),
    ],
)
def test_what_may_be_another_problem(line: list[list[str]], other: int | None) -> None:
    judge_ = told(line)
    found = judge_.two_problems
    assert (None if found is None else found.other) == (None if other is None else level(other))
    assert judge_.target.signature == "", "a single failure is not enough"
    if other is None:
        return
    assert found is not None
    assert found.lacking == {level(0): ENOUGH - 1, level(other): ENOUGH - 1}
    more = [[*one] for one in line]
    more[0] *= ENOUGH
    more[other] *= ENOUGH
    assert told(more).target.signature == B
    # Once one of the two passes, or fails as the other does, they are not two problems any more.
    for place in (0, other):
        for turn in ("", A if place == 0 else B):
            judge_ = told(more)
            judge_.tell(trial(place, turn), matched=True)
            assert judge_.target.signature == ""


@pytest.mark.parametrize(
    ("line", "between"),
    [
        ([[B], [], [], [], [A], GOOD], 2),
        ([[B], [A], GOOD], None),
        ([[B], [], [A, B], GOOD], None),
        ([[B], GOOD, [A]], None),
        ([[B], [B], [], [A], GOOD], 2),
    ],
)
def test_where_to_look_between_two_kinds(line: list[list[str]], between: int | None) -> None:
    found = told(line).between_kinds([level(number) for number in range(len(line))])
    assert found == (None if between is None else level(between))


def test_nothing_is_tried_between_two_kinds_where_a_third_way_to_fail_was_seen() -> None:
    line = [level(number) for number in range(7)]
    judge = told([[B], [], [], [], [], [], [A]])
    assert judge.between_kinds(line) == level(3)
    assert judge.between_kinds(line, [level(3)]) is None


@pytest.mark.parametrize("run", range(30))
def test_the_same_facts_under_another_target_are_the_other_study(run: int) -> None:
    """Whatever is known when a trial is told, in the end it means what it means under the final target."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    kinds = ["", A, B, HANG]
    history = [trial(chance.randrange(5), chance.choice(kinds)) for _ in range(chance.randrange(1, 40))]
    history += [record(Outcome.CUDA_INIT, combination=level(1), trial_id=f"init-{n}") for n in range(2)]
    chance.shuffle(history)
    places = Places(bad=frozenset({level(0)}), good=frozenset({level(4)}))
    failures = [one.signature for one in history if one.combination == level(0) and one.signature]
    from_end = next(iter(failures), FROM_BAD_END)
    outcomes = DEFAULT_OUTCOMES | {Outcome.CUDA_INIT}
    for stated, expected in ((A, A), (B, B), (FROM_BAD_END, from_end)):
        rule = Target(outcomes=outcomes, signature=stated)
        judge_ = Judge(rule, places)
        for one in history:
            judge_.tell(one, matched=True)
        assert judge_.target.signature == expected
        target = Target(outcomes=outcomes, signature=expected)
        first_init = next(one.trial_id for one in history if one.outcome is Outcome.CUDA_INIT)
        for one in history:
            repeated = one.outcome is Outcome.CUDA_INIT and one.trial_id != first_init
            assert judge_.evidence(one, matched=True) is judge(one, target, matched=True, repeated=repeated)


def test_a_target_is_read_as_it_was_written() -> None:
    target = Target(frozenset({Outcome.CRASH}), frozenset({11}), frozenset({3}), ("a", "b"), A)
    assert TARGET.validate_python(TARGET.dump_python(target, mode="json")) == target
    assert TARGET.validate_python({}) == Target()
    for wrong in ({"outcomes": ["boom"]}, {"signature": "nonsense"}, {"signals": ["x"]}):
        with pytest.raises((ValueError, TypeError)):
            TARGET.validate_python(wrong)
