"""Derives the evidence of each trial (good, bad, other, skip, void) and the target of a study. Pure.

The *target* is the failure that a study looks for. The *bad end* is the combination that the user says fails,
the *good end* the one that passes.

The facts of a trial are stored once and never change. Evidence is not stored: it is computed from the facts
and the target whenever it is read. The target itself, if the matrix does not fix it, is computed from the
trials. So nothing stored has to be corrected when a later trial changes the target.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, PlainSerializer, TypeAdapter

from bisect_env.matrix.grid import Combination
from bisect_env.matrix.signatures import FROM_BAD_END, read_signature, shown
from bisect_env.trials.classify import MISSING_COMMAND, signal_name
from bisect_env.trials.records import Evidence, Outcome, TrialFacts, TrialRecord
from bisect_env.trials.signature import matches

DEFAULT_OUTCOMES = frozenset(
    {Outcome.CRASH, Outcome.HANG, Outcome.CUDA_FAULT, Outcome.IMPORT_ERROR, Outcome.EXIT_FAIL}
)
"""Outcomes that count as the target if the matrix names none."""

VOID = frozenset(
    {
        *(Outcome.HARNESS_ERROR, Outcome.WORKER_LOST, Outcome.GPU_LOST),
        *(Outcome.KILLED_EXTERNAL, Outcome.DISK_FULL, Outcome.HOST_OOM),
    }
)
"""Outcomes caused by the infrastructure (host, worker, GPU, disk); such a trial is void and is run again."""

SKIPPED = frozenset({Outcome.ENV_MISMATCH, Outcome.UNSUPPORTED, Outcome.SKIP, Outcome.NOT_RUNNABLE})
"""Outcomes that show that a combination cannot be tested; it gets no more trials.

`not-runnable` belongs here because it can concern only some combinations (a syntax that Python 3.6 does not
know). If every combination is `not-runnable`, the engine stops the study."""

NEVER_TARGET = (VOID - {Outcome.HOST_OOM}) | SKIPPED
"""Outcomes that a matrix cannot name as its target, because they say nothing about the script."""

ENOUGH = 3
"""Number of failures needed at each of two combinations to conclude that they have different problems."""


# --------------------------------------------------------------------------------------------------
# One trial.


_SORTED = PlainSerializer(sorted)
"""Writes a set to JSON as a sorted list, so that equal sets have equal JSON texts."""


def _as_stored(signature: str) -> str:
    return signature if signature in ("", FROM_BAD_END) else read_signature(signature).stored()


@dataclass(frozen=True, slots=True)
class Target:
    """The conditions that a trial must meet to count as the failure that a study looks for.

    Attributes:
        outcomes: Outcomes that a trial may have.
        signals: Signals of which a crash may have died; empty allows all.
        exit_codes: Exit codes that an `exit-fail` or `import-error` may have; empty allows all.
        output: Regular expressions, at least one of which must match in stdout or stderr; empty sets no
            condition.
        signature: Stored signature that the failure must match. `from-bad-end` means the signature of the
            first failure at the bad end, which is not known yet. "" sets no condition.
        kinds: Kinds of failure (`exit-fail:ValueError`) or outcomes (`crash`) that a failure may have; empty
            allows all.
    """

    outcomes: Annotated[frozenset[Outcome], _SORTED] = DEFAULT_OUTCOMES
    signals: Annotated[frozenset[int], _SORTED] = frozenset()
    exit_codes: Annotated[frozenset[int], _SORTED] = frozenset()
    output: tuple[str, ...] = ()
    signature: Annotated[str, AfterValidator(_as_stored)] = ""
    kinds: Annotated[frozenset[str], _SORTED] = frozenset()

    @property
    def is_open(self) -> bool:
        """Return whether the target still lacks its signature.

        The signature is that of the first failure at the bad end, which has not failed yet.
        """
        return self.signature == FROM_BAD_END

    @property
    def any_signature(self) -> Target:
        """Return a copy of the target that accepts failures with any signature."""
        return replace(self, signature="")


_ANY = Target()
TARGET = TypeAdapter(Target)
"""Converter between targets and the JSON objects that are stored."""


def output_matches(record: TrialRecord, target: Target) -> bool:
    """Return whether stdout or stderr matches at least one pattern in `target.output`.

    Return True if there are no patterns.
    """
    return not target.output or any(
        pattern in record.matched_in_gap
        or any(re.search(pattern, text, re.MULTILINE) for text in (record.stdout, record.stderr))
        for pattern in target.output
    )


def judge(
    facts: TrialFacts,
    target: Target,
    *,
    matched: bool,
    repeated: bool = False,
    discounted: Collection[str] = (),
) -> Evidence:
    """Return what one trial means in a study: good, bad, other, skip or void.

    A failure that meets all conditions of the target is bad, a pass is good, and any other failure is other,
    void or skip, depending on its outcome. While the target is open (see `Target.is_open`), a failure that
    meets the remaining conditions is other.

    Args:
        facts: Facts of the trial.
        target: Failure that the study looks for.
        matched: Whether the output matches a pattern of the target (see `output_matches`).
        repeated: Whether an earlier trial of the combination failed to initialise CUDA, too. The first such
            failure is void.
        discounted: What decides no outcome, because trials that pass name it, too (see `Judge.discounted`).
    """
    outcome = facts.outcome
    if outcome is not Outcome.PASS and not set(facts.named).isdisjoint(discounted):
        outcome = Outcome.CRASH if (facts.returncode or 0) < 0 else Outcome.EXIT_FAIL
    if outcome is Outcome.CUDA_INIT and not repeated:
        return Evidence.VOID
    if matched and outcome in target.outcomes - NEVER_TARGET and _has_details(facts, outcome, target):
        if target.is_open:
            return Evidence.OTHER
        is_meant = not target.signature or matches(facts.signature, target.signature)
        return Evidence.BAD if is_meant else Evidence.OTHER
    if outcome is Outcome.PASS:
        return Evidence.GOOD
    if outcome in VOID:
        return Evidence.VOID
    return Evidence.SKIP if outcome in SKIPPED else Evidence.OTHER


def judge_alone(record: TrialRecord, target: Target) -> Evidence:
    """Judge one trial without a study: return whether it is good, bad, other, skip or void.

    If the target needs the signature of the bad end, any signature is accepted, because there is no bad end.
    """
    known = target.any_signature if target.is_open else target
    return judge(record, known, matched=output_matches(record, known), repeated=True)


def unmet(facts: TrialFacts, target: Target, *, matched: bool) -> dict[str, str]:
    """Return the conditions of a target that a failure does not meet, each with what was seen instead.

    Args:
        facts: Facts of the trial, which failed.
        target: Failure that the study looks for.
        matched: Whether its output matches a pattern of the target (see `output_matches`).
    """
    found: dict[str, str] = {}
    code = facts.returncode
    if facts.outcome not in target.outcomes:
        return {"outcomes": str(facts.outcome)}
    if not _has_details(facts, facts.outcome, replace(_ANY, signals=target.signals)):
        found["signals"] = signal_name(-(code or 0))
    if not _has_details(facts, facts.outcome, replace(_ANY, exit_codes=target.exit_codes)):
        found["exit_codes"] = str(code)
    if not matched:
        found["output"] = "none of the patterns"
    if target.kinds and not target.kinds & {kind_of(facts), str(facts.outcome)}:
        found["kinds"] = kind_of(facts)
    if target.signature and not target.is_open and not matches(facts.signature, target.signature):
        found["signature"] = shown(facts.signature) or "none"
    return found


_STANDS_FIRST = (Evidence.VOID, Evidence.BAD, Evidence.OTHER, Evidence.SKIP, Evidence.GOOD)
"""What the copies of a trial mean, the weightiest first: a loss of the machine may have made the others fail,
and a copy that was skipped takes nothing away from one that failed."""


def standing_for(copies: Sequence[TrialRecord], target: Target) -> TrialRecord:
    """Return the record that stands for a trial of several copies: the one that means most for the study.

    Args:
        copies: The record of each copy, at least one.
        target: Failure that the study looks for.
    """

    def weight(record: TrialRecord) -> tuple[int, int]:
        evidence = judge_alone(record, target)
        if record.outcome is Outcome.ENV_MISMATCH:
            # All copies ran in the same environment, which is not the one that was asked for.
            evidence = Evidence.VOID
        return _STANDS_FIRST.index(evidence), list(Outcome).index(record.outcome)

    return min(copies, key=weight)


def kind_of(facts: TrialFacts) -> str:
    """Return the kind of a failure: its outcome, and of an exit or an import also its exception or code.

    How a crash or a hang is named beyond that differs from run to run.
    """
    if facts.outcome in (Outcome.EXIT_FAIL, Outcome.IMPORT_ERROR) and facts.signature:
        return read_signature(facts.signature).kind
    return str(facts.outcome)


def _has_details(facts: TrialFacts, outcome: Outcome, target: Target) -> bool:
    if target.kinds and not target.kinds & {kind_of(facts), str(outcome)}:
        return False
    # A launcher's exit code is another one than that of the program behind it, which the signature names.
    behind = read_signature(facts.signature).kind.partition(":")[2] if facts.signature else ""
    if outcome is Outcome.CRASH and target.signals:
        return -(facts.returncode or 0) in target.signals or behind in map(signal_name, target.signals)
    if outcome in (Outcome.EXIT_FAIL, Outcome.IMPORT_ERROR) and target.exit_codes:
        return facts.returncode in target.exit_codes or behind in map(str, target.exit_codes)
    return True


# --------------------------------------------------------------------------------------------------
# All trials of a study.


@dataclass(frozen=True, slots=True)
class ChangedEnvironment:
    """A period in which the files of an environment on one host were changed.

    Trials that ran in this environment during the period are void.

    Attributes:
        lock_hash: Hash of the environment's lock.
        host: Name of the host.
        since: UTC time of the last check that found the files unchanged.
        until: UTC time of the check that found the change.
    """

    lock_hash: str
    host: str
    since: datetime
    until: datetime

    def covers(self, facts: TrialFacts) -> bool:
        """Return whether a trial ran in this environment on this host during the period.

        A trial that ran partly in the period counts, too.
        """
        same = (facts.lock_hash, facts.host) == (self.lock_hash, self.host)
        # A trial that began before `since` but was still running then may have used changed files.
        until_last_look = (self.since - facts.started_at).total_seconds()
        return same and facts.started_at <= self.until and facts.duration >= until_last_look


@dataclass(frozen=True, slots=True)
class Places:
    """The good end, the bad end and the line between them, from which a study's target is determined.

    Attributes:
        good: The good end (stated by the user or implied by the directions of the axes) and all combinations
            whose trials count as trials of it; empty if there is no good end.
        bad: The bad end and all combinations whose trials count as trials of it; empty without a bad end.
        line: Combination to its position along the only axis with several values, counted from the bad end
            towards the good end. Empty if several axes vary, or if the values have no order.
    """

    good: frozenset[Combination] = frozenset()
    bad: frozenset[Combination] = frozenset()
    line: Mapping[Combination, int] = field(default_factory=dict)


@dataclass(slots=True)
class Behaviour:
    """The counts of passes and failures of one combination, and the kinds of its failures.

    A failure counts if it meets all conditions of the target except the one on the signature.

    Attributes:
        failures: Number of failures.
        passes: Number of passes.
        kinds: Kind of each failure with a signature, such as `crash:SIGSEGV`, to the first signature of that
            kind.
        unsigned: Number of failures without a signature.
    """

    failures: int = 0
    passes: int = 0
    kinds: dict[str, str] = field(default_factory=dict)
    unsigned: int = 0


@dataclass(frozen=True, slots=True)
class TwoProblems:
    """Two combinations that failed in all of their trials, but in different ways.

    Attributes:
        bad: The bad end, whose failure becomes the target.
        signature: Stored signature of the failure at `bad`.
        other: The other combination.
        other_kind: Kind of the failure at `other`.
        lacking: Combination to the number of further failures that are needed there before the two failures
            are treated as different problems; empty if none are needed.
    """

    bad: Combination
    signature: str
    other: Combination
    other_kind: str
    lacking: Mapping[Combination, int]


class Judge:
    """The trials of one study, and the judgement of each: good, bad, other, skip or void.

    The *target* is the failure that the study is about; the *evidence* says whether a trial counts as good,
    bad, other, void or skip for it.

    The target can change with each added trial. After it has changed, request the evidence of all trials
    again.

    Args:
        rule: Target that the matrix states.
        places: Combinations whose trials can determine the target.
        changed: Periods in which the files of an environment were changed; trials in them are void.
    """

    def __init__(self, rule: Target, places: Places, changed: Collection[ChangedEnvironment] = ()) -> None:
        self.rule = rule
        self.places = places
        self._changed = changed
        self._seen: defaultdict[Combination, Behaviour] = defaultdict(Behaviour)
        self._first_init: dict[Combination, str] = {}
        self._named_by_passes: set[str] = set()
        self._named_by_failures: set[str] = set()
        self._from_bad_end = ""
        self._problems: TwoProblems | None = None
        self._is_stale = False

    def tell(self, facts: TrialFacts, *, matched: bool) -> None:
        """Add a trial of the study, so that target and evidence take it into account.

        Add trials in the order in which the study received them.

        Args:
            facts: Facts of the trial.
            matched: Whether its output matches a pattern of the target (see `output_matches`).
        """
        combination = facts.combination
        if self._is_void(facts):
            return
        if facts.outcome is Outcome.CUDA_INIT:
            self._first_init.setdefault(combination, facts.trial_id)
        if facts.outcome is Outcome.PASS:
            # Where some version passes, a missing command went away with a version.
            self._named_by_passes.update(facts.named, [MISSING_COMMAND])
        else:
            self._named_by_failures.update(facts.named)
        evidence = self._evidence(facts, self.rule.any_signature, matched=matched)
        if evidence not in (Evidence.GOOD, Evidence.BAD):
            return
        seen = self._seen[combination]
        seen.passes += evidence is Evidence.GOOD
        seen.failures += evidence is Evidence.BAD
        self._is_stale = True
        if evidence is Evidence.GOOD:
            return
        if not facts.signature:
            seen.unsigned += 1
            return
        seen.kinds.setdefault(read_signature(facts.signature).kind, facts.signature)
        if combination in self.places.bad and not self._from_bad_end:
            self._from_bad_end = facts.signature

    def evidence(self, facts: TrialFacts, *, matched: bool) -> Evidence:
        """Return whether a trial is good, bad, other, skipped or void under the current target.

        The trial must have been added before.

        Args:
            facts: Facts of the trial.
            matched: Whether its output matches a pattern of the target (see `output_matches`).
        """
        if self._is_void(facts):
            return Evidence.VOID
        return self._evidence(facts, self.target, matched=matched)

    def _is_void(self, facts: TrialFacts) -> bool:
        return any(changed.covers(facts) for changed in self._changed)

    def _evidence(self, facts: TrialFacts, target: Target, *, matched: bool) -> Evidence:
        repeated = self._first_init.get(facts.combination, facts.trial_id) != facts.trial_id
        return judge(facts, target, matched=matched, repeated=repeated, discounted=self.discounted)

    @property
    def discounted(self) -> frozenset[str]:
        """Return what both failures and passes name, such as a CUDA error, and so explains no failure.

        It changes with the trials, and with it the evidence of earlier ones.
        """
        return frozenset(self._named_by_passes & self._named_by_failures)

    @property
    def target(self) -> Target:
        """Return the failure that the study looks for, as determined by the trials so far.

        This is the target of the matrix, except in two cases. With `signature: from-bad-end`, its signature
        is that of the first failure at the bad end. If the matrix names no signature but the trials show two
        different problems, its signature is that of the problem at the bad end.
        """
        if self.rule.is_open and self._from_bad_end:
            return replace(self.rule, signature=self._from_bad_end)
        problems = self.two_problems
        if problems is None or problems.lacking:
            return self.rule
        return replace(self.rule, signature=problems.signature)

    @property
    def two_problems(self) -> TwoProblems | None:
        """Return two combinations that always fail, but in different ways, or None.

        Return None if the trials show no such pair. The two are different problems only once
        `TwoProblems.lacking` is empty. The result is always None if the matrix names a signature.
        """
        if self.rule.signature:
            return None
        if self._is_stale:
            self._problems, self._is_stale = self._find_problems(), False
        return self._problems

    def between_kinds(
        self, line: Sequence[Combination], otherwise: Collection[Combination] = ()
    ) -> Combination | None:
        """Return an untried combination to tell whether two neighbouring ones have different problems.

        The two fail in different ways, both have trials, and no combination between them has any. The one in
        the middle between them is returned; if it passes, they have different problems. Return None if there
        are no such neighbours, or if a failure on the line has no signature.

        Args:
            line: Combinations that can be run, in order.
            otherwise: Combinations whose trials failed in a way that is not the study's; nothing is tried
                between such a combination and another, because it says nothing about the two.
        """
        tried = self._seen.keys() | otherwise
        seen = [(n, self._seen.get(one, Behaviour())) for n, one in enumerate(line) if one in tried]
        if any(one.unsigned for _, one in seen):
            return None
        for (low, one), (high, other) in itertools.pairwise(seen):
            if high - low > 1 and one.kinds and other.kinds and not one.kinds.keys() & other.kinds.keys():
                return line[(low + high) // 2]
        return None

    def _find_problems(self) -> TwoProblems | None:
        bad = self._tried(self.places.bad)
        if bad is None or not self._always_fails(bad):
            return None
        other = self._other_end(bad) or self._beyond_a_pass(bad)
        if other is None:
            return None
        lacking = {place: ENOUGH - self._seen[place].failures for place in (bad, other)}
        return TwoProblems(
            bad,
            next(iter(self._seen[bad].kinds.values())),
            other,
            next(iter(self._seen[other].kinds)),
            {place: number for place, number in lacking.items() if number > 0},
        )

    def _tried(self, places: Collection[Combination]) -> Combination | None:
        return next((place for place in self._seen if place in places), None)

    def _always_fails(self, place: Combination) -> bool:
        seen = self._seen[place]
        return bool(seen.kinds) and not seen.passes and not seen.unsigned

    def _other_end(self, bad: Combination) -> Combination | None:
        """Return the good end if, unexpectedly, it always fails, but in other ways than `bad`. Else None."""
        good = self._tried(self.places.good)
        if good is None or not self._always_fails(good):
            return None
        return good if not self._seen[good].kinds.keys() & self._seen[bad].kinds.keys() else None

    def _beyond_a_pass(self, bad: Combination) -> Combination | None:
        """Return the first combination, beyond one that passes, with another problem than `bad`; else None.

        "Beyond" means in the direction from the bad end to the good end. The failures beyond the passing
        combination are a different problem if they happen in every trial, and if none is of a kind that was
        seen before the passing combination.
        """
        line = sorted(
            (position, place) for place in self._seen if (position := self.places.line.get(place)) is not None
        )
        if not line or line[0][1] not in self.places.bad:
            return None
        places = [place for _, place in line]
        end = next((n for n, place in enumerate(places) if not self._seen[place].failures), len(places))
        kinds = {kind for place in places[:end] for kind in self._seen[place].kinds}
        beyond = [place for place in places[end:] if self._seen[place].failures]
        if not beyond or any(not self._always_fails(place) for place in beyond):
            return None
        if any(kinds & self._seen[place].kinds.keys() for place in beyond):
            return None
        # The signature of the bad end must match every combination on its own side of the pass. Otherwise the
        # new target would exclude failures of the same problem.
        meant = next(iter(self._seen[bad].kinds.values()))
        own = [self._seen[place] for place in places[:end]]
        stands = all(
            not seen.unsigned and any(matches(one, meant) for one in seen.kinds.values()) for seen in own
        )
        return beyond[0] if stands else None
