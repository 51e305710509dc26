"""Decides what each trial is evidence of, and which failure a study is about. Pure.

A trial's facts are stored once and never change. Its evidence follows from the facts and the target of the
study, and so does the target itself, where the matrix does not state one. Both are computed whenever they are
read: when another trial shows which failure is meant, nothing that is stored has to be corrected.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from bisect_env.matrix.grid import Combination
from bisect_env.matrix.signatures import FROM_BAD_END, read_signature
from bisect_env.trials.records import Evidence, Outcome, TrialFacts, TrialRecord
from bisect_env.trials.signature import matches

DEFAULT_OUTCOMES = frozenset(
    {Outcome.CRASH, Outcome.HANG, Outcome.CUDA_FAULT, Outcome.IMPORT_ERROR, Outcome.EXIT_FAIL}
)
"""Outcomes that a study looks for when its matrix does not name any."""

VOID = frozenset(
    {
        *(Outcome.HARNESS_ERROR, Outcome.WORKER_LOST, Outcome.GPU_LOST),
        *(Outcome.KILLED_EXTERNAL, Outcome.DISK_FULL, Outcome.HOST_OOM),
    }
)
"""Failures of the infrastructure."""

SKIPPED = frozenset(
    {
        *(Outcome.ENV_UNSOLVABLE, Outcome.ENV_UNBUILDABLE, Outcome.ENV_MISMATCH),
        *(Outcome.UNSUPPORTED, Outcome.SKIP, Outcome.NOT_RUNNABLE),
    }
)
"""Properties of a combination at which nothing can be learnt. `not-runnable` in every combination stops the
study, which the engine checks; in some (a syntax that Python 3.6 does not know) it is this."""

NEVER_TARGET = (VOID - {Outcome.HOST_OOM}) | SKIPPED
"""Outcomes that no matrix can look for: they say nothing about the script."""

ENOUGH = 3
"""Failures at each of two combinations before their kinds are taken for two problems."""


# --------------------------------------------------------------------------------------------------
# One trial.


@dataclass(frozen=True, slots=True)
class Target:
    """The failure that a study is about; an empty set of details matches any.

    Attributes:
        outcomes: Outcomes that can be the target.
        signals: Signals that count, for crashes.
        exit_codes: Exit codes that count, for `exit-fail`.
        output: Regular expressions, one of which stdout or stderr must contain.
        signature: The signature that a failure must match, as stored; `from-bad-end` while the bad end has
            not failed yet; "" where any will do.
    """

    outcomes: frozenset[Outcome] = DEFAULT_OUTCOMES
    signals: frozenset[int] = frozenset()
    exit_codes: frozenset[int] = frozenset()
    output: tuple[str, ...] = ()
    signature: str = ""

    @property
    def is_open(self) -> bool:
        """Return whether the signature is not known yet."""
        return self.signature == FROM_BAD_END

    @property
    def any_signature(self) -> Target:
        """Return the same target without the condition on the signature."""
        return replace(self, signature="")

    def as_json(self) -> dict[str, Any]:
        """Return the target as a JSON object."""
        return {
            "outcomes": sorted(map(str, self.outcomes)),
            "signals": sorted(self.signals),
            "exit_codes": sorted(self.exit_codes),
            "output": list(self.output),
            "signature": self.signature,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Target:
        """Read what `as_json` returned; missing keys have their defaults.

        Raises:
            ValueError: A name or number is none that `as_json` returns.
            TypeError: A value has another type.
        """
        signature = data.get("signature", "")
        return cls(
            outcomes=frozenset(Outcome(name) for name in data.get("outcomes", DEFAULT_OUTCOMES)),
            signals=frozenset(int(number) for number in data.get("signals", ())),
            exit_codes=frozenset(int(number) for number in data.get("exit_codes", ())),
            output=tuple(str(pattern) for pattern in data.get("output", ())),
            signature=signature if signature in ("", FROM_BAD_END) else read_signature(signature).stored(),
        )


def output_matches(record: TrialRecord, target: Target) -> bool:
    """Return whether a trial's output contains what the target asks for."""
    return not target.output or any(
        re.search(pattern, text, re.MULTILINE)
        for pattern in target.output
        for text in (record.stdout, record.stderr)
    )


def judge(facts: TrialFacts, target: Target, *, matched: bool, repeated: bool = False) -> Evidence:
    """Return the evidence of a trial in a study with this target.

    Args:
        facts: The facts of the trial.
        target: The failure that the study is about.
        matched: Whether the output contains the target's pattern (`output_matches`).
        repeated: Whether its combination had failed to initialise CUDA before; the first time is void.
    """
    outcome = facts.outcome
    if outcome is Outcome.CUDA_INIT and not repeated:
        return Evidence.VOID
    if matched and outcome in target.outcomes - NEVER_TARGET and _has_details(facts, target):
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
    """Return the evidence of a trial outside of a study; an open target accepts any signature."""
    known = target.any_signature if target.is_open else target
    return judge(record, known, matched=output_matches(record, known), repeated=True)


def _has_details(facts: TrialFacts, target: Target) -> bool:
    code = facts.returncode
    if facts.outcome is Outcome.CRASH and target.signals:
        return code is not None and -code in target.signals
    return facts.outcome is not Outcome.EXIT_FAIL or not target.exit_codes or code in target.exit_codes


# --------------------------------------------------------------------------------------------------
# All trials of a study.


@dataclass(frozen=True, slots=True)
class ChangedEnvironment:
    """A period in which trials of an environment on a host are void because its files were changed.

    Attributes:
        lock_hash: Lock of the environment.
        host: The host.
        since: When its files were last seen unchanged, UTC.
        until: When the change was seen, UTC.
    """

    lock_hash: str
    host: str
    since: datetime
    until: datetime

    def covers(self, facts: TrialFacts) -> bool:
        """Return whether a trial ran in that period, in that environment and on that host."""
        same = (facts.lock_hash, facts.host) == (self.lock_hash, self.host)
        # What began earlier ran on after the last good look, and may have met the changed files.
        until_last_look = (self.since - facts.started_at).total_seconds()
        return same and facts.started_at <= self.until and facts.duration >= until_last_look


@dataclass(frozen=True, slots=True)
class Places:
    """The combinations of a study on which its target can depend.

    Attributes:
        good: The good end, stated or given by the directions, with all combinations that are the same
            measurement; empty if there is none.
        bad: The bad end, with all combinations that are the same measurement; empty if there is none.
        line: Position of each combination along the only axis with several values, counted from the bad end
            towards the good one; empty if several axes vary, or the values have no order.
    """

    good: frozenset[Combination] = frozenset()
    bad: frozenset[Combination] = frozenset()
    line: Mapping[Combination, int] = field(default_factory=dict)


@dataclass(slots=True)
class Behaviour:
    """Counts and signatures of one combination's trials, regardless of the target's signature.

    Attributes:
        failures: Number of failures.
        passes: Number of passes.
        kinds: Kind of failure to the first signature of that kind; failures without a signature have none.
        unsigned: Number of failures without a signature.
    """

    failures: int = 0
    passes: int = 0
    kinds: dict[str, str] = field(default_factory=dict)
    unsigned: int = 0


@dataclass(frozen=True, slots=True)
class TwoProblems:
    """Two combinations that always fail, in ways that have nothing in common.

    Attributes:
        bad: The bad end, whose failure is the target.
        signature: Its signature, as stored.
        other: The other combination.
        other_kind: Kind of its failure.
        lacking: How many more failures of each of the two are needed to count them as two problems; empty
            once they count.
    """

    bad: Combination
    signature: str
    other: Combination
    other_kind: str
    lacking: Mapping[Combination, int]


class Judge:
    """A judge of a study's trials, which derives their evidence and the target of the study.

    Evidence depends on all trials added so far: request it again after `target` has changed.

    Args:
        rule: The target that the matrix states.
        places: The combinations on which the target can depend.
        changed: Environments whose files changed while trials used them.
    """

    def __init__(self, rule: Target, places: Places, changed: Collection[ChangedEnvironment] = ()) -> None:
        self.rule = rule
        self.places = places
        self._changed = changed
        self._seen: defaultdict[Combination, Behaviour] = defaultdict(Behaviour)
        self._first_init: dict[Combination, str] = {}
        self._from_bad_end = ""
        self._problems: TwoProblems | None = None
        self._is_stale = False

    def tell(self, facts: TrialFacts, *, matched: bool) -> None:
        """Add a trial; trials must be added in the order in which the study received them.

        Args:
            facts: Facts of the trial.
            matched: As for `judge`.
        """
        combination = facts.combination
        if self._is_void(facts):
            return
        if facts.outcome is Outcome.CUDA_INIT:
            self._first_init.setdefault(combination, facts.trial_id)
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
        """Return the evidence of a trial that was added."""
        if self._is_void(facts):
            return Evidence.VOID
        return self._evidence(facts, self.target, matched=matched)

    def _is_void(self, facts: TrialFacts) -> bool:
        return any(changed.covers(facts) for changed in self._changed)

    def _evidence(self, facts: TrialFacts, target: Target, *, matched: bool) -> Evidence:
        repeated = self._first_init.get(facts.combination, facts.trial_id) != facts.trial_id
        return judge(facts, target, matched=matched, repeated=repeated)

    @property
    def target(self) -> Target:
        """Return the failure that the study is about, as far as the trials so far show it.

        It is the target that the matrix states; with `signature: from-bad-end`, the first failure at the
        bad end. If the matrix names no signature and two problems are seen, it is that of the bad end.
        """
        if self.rule.is_open and self._from_bad_end:
            return replace(self.rule, signature=self._from_bad_end)
        problems = self.two_problems
        if problems is None or problems.lacking:
            return self.rule
        return replace(self.rule, signature=problems.signature)

    @property
    def two_problems(self) -> TwoProblems | None:
        """Return two problems that the trials show, or may show after more failures; else None."""
        if self.rule.signature:
            return None
        if self._is_stale:
            self._problems, self._is_stale = self._find_problems(), False
        return self._problems

    def between_kinds(self, line: Sequence[Combination]) -> Combination | None:
        """Return an untried combination between two that fail in ways that have nothing in common, or None.

        If that combination passes, the two are different problems.

        Args:
            line: Combinations that can be run, in order.
        """
        seen = [(n, self._seen[one]) for n, one in enumerate(line) if one in self._seen]
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
        """Return the good end if it always fails as well, but never as the bad end does."""
        good = self._tried(self.places.good)
        if good is None or not self._always_fails(good):
            return None
        return good if not self._seen[good].kinds.keys() & self._seen[bad].kinds.keys() else None

    def _beyond_a_pass(self, bad: Combination) -> Combination | None:
        """Return the nearest combination beyond a pass that always fails, but in another way; None if none.

        "Another way" means that no kind of failure is shared with those before the pass.
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
        # The failure of the bad end has to stand for all of its own side, else it would tell it from itself.
        meant = next(iter(self._seen[bad].kinds.values()))
        own = [self._seen[place] for place in places[:end]]
        stands = all(
            not seen.unsigned and any(matches(one, meant) for one in seen.kinds.values()) for seen in own
        )
        return beyond[0] if stands else None
