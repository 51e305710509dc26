"""Describes the trials of a study, and decides what each outcome is evidence of."""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from bisect_env.engine import events
from bisect_env.environments.lock import Lock
from bisect_env.errors import UsageError
from bisect_env.matrix.grid import Combination, Index
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.signatures import FROM_BAD_END, SIGNATURE_VERSION, read_signature
from bisect_env.trials.records import (
    NONE,
    Evidence,
    Outcome,
    Perturbation,
    Phase,
    TrialFile,
    TrialRecord,
    TrialSpec,
)
from bisect_env.trials.signature import matches, signed_again

if TYPE_CHECKING:
    # The first trials are described before the database is open: see `engine/ahead.py`.
    from bisect_env.storage.store import Store

# --------------------------------------------------------------------------------------------------
# The trials of a study, and what is recorded for a lost one. Pure.


def trial_files(matrix: Matrix) -> tuple[TrialFile, ...]:
    """The files that every trial of a matrix finds in its working directory."""
    return tuple(TrialFile(file.name, file.content, file.executable) for file in matrix.files)


def trial_spec(
    matrix: Matrix,
    combination: Combination,
    lock: Lock,
    trial_id: str,
    files: Sequence[TrialFile],
    *,
    values: Combination | None = None,
    perturbation: Perturbation = NONE,
    gpus: float | None = None,
) -> TrialSpec:
    """A trial of a combination.

    Args:
        matrix: What is run.
        combination: Under which it is recorded.
        lock: Its environment.
        trial_id: Unique.
        files: See `trial_files`; made once, for thousands of trials.
        values: Values of the axes of the matrix that the command sees, where they are others than those of
            `combination`: an environment between two combinations is recorded as what it is.
        perturbation: Circumstances that are to make the failure more frequent.
        gpus: That it is lent, where that is not what the matrix says.
    """
    trial = matrix.file.trial
    seen = combination if values is None else values
    return TrialSpec(
        trial_id=trial_id,
        combination=combination,
        lock_hash=lock.content_hash,
        command=matrix.command(seen),
        files=tuple(files),
        # What the matrix sets belongs to the question; circumstances do not overrule it.
        env={**perturbation.env, **matrix.environment(seen)},
        timeout=trial.timeout,
        concurrency=trial.concurrency * perturbation.copies,
        repeats=trial.repeat_within * perturbation.repeats,
        gpus=trial.gpus if gpus is None else gpus,
        hash_seed=_hash_seed(perturbation),
        perturbation=perturbation,
        network=matrix.file.executor is not None and matrix.file.executor.network,
        allow_host=trial.allow_host,
    )


def _hash_seed(perturbation: Perturbation) -> int:
    if perturbation.seeds and secrets.randbelow(2):
        return secrets.choice(perturbation.seeds)
    return secrets.randbelow(2**32)


def target_of(matrix: Matrix) -> Target:
    """The matrix's `trial.bad` as the trials judge it.

    With `signature: from-bad-end` any failure that fits otherwise; which one is meant is for `StudyTarget`.
    """
    rule = matrix.file.trial.bad
    named = rule.signature if rule.signature != FROM_BAD_END else ""
    return Target(
        outcomes=frozenset(Outcome(name) for name in rule.outcomes),
        signals=frozenset(rule.signals),
        exit_codes=frozenset(rule.exit_codes),
        output=tuple(rule.output),
        signature=read_signature(named).stored() if named else "",
    )


def allowed_sources(matrix: Matrix) -> bool | frozenset[str]:
    """Which packages may be built from their sources: all, none, or these."""
    allow = matrix.file.solver.allow_source
    return allow if isinstance(allow, bool) else frozenset(allow)


def lost_record(
    trial_id: str, combination: Combination, lock_hash: str, reason: str, host: str
) -> TrialRecord:
    """The record of a trial whose worker or host went away.

    Args:
        trial_id: Of the trial.
        combination: That it tried.
        lock_hash: Of its environment.
        reason: What is known of the loss, for people.
        host: On which it ran, "" if that is not known.
    """
    return TrialRecord(
        trial_id=trial_id,
        combination=combination,
        lock_hash=lock_hash,
        outcome=Outcome.WORKER_LOST,
        detail=reason,
        returncode=None,
        phase=Phase.UNKNOWN,
        started_at=datetime.now(UTC),
        duration=0.0,
        host=host,
    )


# --------------------------------------------------------------------------------------------------
# What the outcome of a trial means in one study. Pure.

DEFAULT_OUTCOMES = frozenset(
    {Outcome.CRASH, Outcome.HANG, Outcome.CUDA_FAULT, Outcome.IMPORT_ERROR, Outcome.EXIT_FAIL}
)
"""What a study looks for when its matrix does not say."""

VOID = frozenset(
    {
        *(Outcome.HARNESS_ERROR, Outcome.WORKER_LOST, Outcome.GPU_LOST),
        *(Outcome.KILLED_EXTERNAL, Outcome.DISK_FULL, Outcome.HOST_OOM),
    }
)
"""Infrastructure."""

SKIPPED = frozenset(
    {
        *(Outcome.ENV_UNSOLVABLE, Outcome.ENV_UNBUILDABLE, Outcome.ENV_MISMATCH),
        *(Outcome.UNSUPPORTED, Outcome.SKIP, Outcome.NOT_RUNNABLE),
    }
)
"""Properties of a combination at which nothing can be learnt. `not-runnable` in every combination stops the
study, which is for the engine to see; in some (a syntax that Python 3.6 does not know) it is this."""

NEVER_TARGET = (VOID - {Outcome.HOST_OOM}) | SKIPPED
"""No matrix can make these its symptom: they say nothing about the script."""


@dataclass(frozen=True, slots=True)
class Target:
    """The failure that a study is about; an empty set of details means any.

    Attributes:
        outcomes: Which outcomes are the target.
        signals: Of crashes, which signals.
        exit_codes: Of `exit-fail`, which exit codes.
        output: Regular expressions, one of which stdout or stderr must contain.
        signature: The signature that it must match, or "".
    """

    outcomes: frozenset[Outcome] = DEFAULT_OUTCOMES
    signals: frozenset[int] = frozenset()
    exit_codes: frozenset[int] = frozenset()
    output: tuple[str, ...] = ()
    signature: str = ""


def judge(record: TrialRecord, target: Target, *, repeated: bool = False) -> Evidence:
    """The evidence of a trial in a study with this target.

    Args:
        record: What the trial did.
        target: What the study is about.
        repeated: Whether this combination has failed to initialise CUDA before: the first time is void.
    """
    outcome = record.outcome
    if outcome is Outcome.CUDA_INIT and not repeated:
        return Evidence.VOID
    if outcome in target.outcomes - NEVER_TARGET and _is_target(record, target):
        return Evidence.BAD
    if outcome is Outcome.PASS:
        return Evidence.GOOD
    if outcome in VOID:
        return Evidence.VOID
    return Evidence.SKIP if outcome in SKIPPED else Evidence.OTHER


def _is_target(record: TrialRecord, target: Target) -> bool:
    code = record.returncode
    if record.outcome is Outcome.CRASH and target.signals and (code is None or -code not in target.signals):
        return False
    if record.outcome is Outcome.EXIT_FAIL and target.exit_codes and code not in target.exit_codes:
        return False
    if target.output and not any(
        re.search(pattern, text, re.MULTILINE)
        for pattern in target.output
        for text in (record.stdout, record.stderr)
    ):
        return False
    return not target.signature or matches(record.signature, target.signature)


# --------------------------------------------------------------------------------------------------
# What a study counts as bad, if that is known only after its bad end has failed.

CombinationKey = Index | Combination
"""A combination, as whoever asks for its trials names it."""


class StudyTarget:
    """The failure that a study is about.

    With `signature: from-bad-end` it is open at first. The first trial at the bad end that fails as the
    matrix's other conditions say settles it: its signature is written into the database before the trial is,
    once for all commands that work on the study, and is found there when the study goes on. Where the matrix
    names none, it may be settled later (`settle`), when the two ends turn out to fail in ways of their own.

    Args:
        rule: What the matrix says.
        wanted: The signature that it names, `from-bad-end`, or "".
        store: Where the study is.
        study_id: Which one.
        bad_end: What `judge` will call the stated bad end; None if it has no environment.
    """

    def __init__(
        self, rule: Target, wanted: str, store: Store, study_id: str, bad_end: CombinationKey | None
    ) -> None:
        self._rule = replace(rule, signature="")
        self._store = store
        self._study_id = study_id
        self.bad_end = bad_end
        self._from_bad_end = wanted == FROM_BAD_END
        self._signature = ""
        if self._from_bad_end:
            self.look()
        elif wanted:
            self._signature = read_signature(wanted).stored()
            store.settle_target(study_id, self._signature, "")
        elif (settled := store.target(study_id)) is not None:
            self._signature = _of_this_release(store, *settled)

    @property
    def is_open(self) -> bool:
        """Whether it is not known yet which signature is meant."""
        return self._from_bad_end and not self._signature

    @property
    def compares(self) -> bool:
        """Whether signatures play a part."""
        return self._from_bad_end or bool(self._signature)

    @property
    def rule(self) -> Target:
        """What counts as bad so far; any signature while the target is open."""
        return replace(self._rule, signature=self._signature)

    @property
    def reads_output(self) -> bool:
        """Whether the output of a trial decides what it says."""
        return bool(self._rule.output)

    def settle(self, signature: str, trial_id: str) -> None:
        """Say which failure is meant, where the matrix says none; another command may have said so before.

        Args:
            signature: Of the failure, as stored.
            trial_id: The trial that it was seen in.
        """
        self._signature = _of_this_release(
            self._store, *self._store.settle_target(self._study_id, signature, trial_id)
        )

    def look(self) -> None:
        """Look whether another command has settled the target."""
        if self.is_open and (settled := self._store.target(self._study_id)) is not None:
            self._signature = _of_this_release(self._store, *settled)

    def judge(self, place: CombinationKey | None, record: TrialRecord, *, repeated: bool) -> Evidence:
        """Judge a trial; the first failure at the bad end settles the target.

        Args:
            place: Its combination.
            record: What it did.
            repeated: As for `trials.judge.judge`.
        """
        said = judge(record, self._rule, repeated=repeated)
        if self.is_open and said is Evidence.BAD:
            self.look()
        if self.is_open and said is Evidence.BAD and place == self.bad_end and record.signature:
            settled = self._store.settle_target(self._study_id, record.signature, record.trial_id)
            self._signature = _of_this_release(self._store, *settled)
        if self.is_open:
            return Evidence.OTHER if said is Evidence.BAD else said
        return judge(record, self.rule, repeated=repeated)

    def up_to_date(self, record: TrialRecord, *, has_logs: bool) -> TrialRecord | None:
        """A recorded trial with a signature that can be compared; None if it cannot be had any more."""
        if not self.compares or not record.signature:
            return record
        if read_signature(record.signature).version == SIGNATURE_VERSION:
            return record
        return replace(record, signature=signed_again(record)) if has_logs else None


def where_kinds_change(line: Sequence[Mapping[str, str]]) -> list[tuple[int, int]]:
    """Where failures of one kind give way to others, and nothing that was tried between passed.

    Args:
        line: Of the combinations that were tried along the only axis, the bad end first, the signatures of
            failures by kind; none where all trials passed.

    Returns:
        Places of each two neighbours that fail and have no kind in common, from the bad end on.
    """
    pairs = itertools.pairwise(enumerate(line))
    return [(n, m) for (n, one), (m, other) in pairs if one and other and not one.keys() & other.keys()]


def another_problem(line: Sequence[Mapping[str, str]]) -> int | None:
    """What fails for a reason of its own: beyond a pass, and in ways in which the bad end's part never does.

    Args:
        line: As for `where_kinds_change`.

    Returns:
        Place of the nearest such combination. None where there is none, or where the failure of the bad end
        would not tell all of its own part from that.
    """
    part = list(itertools.takewhile(bool, line))
    beyond = [place for place in range(len(part), len(line)) if line[place]]
    if not part or not beyond:
        return None
    kinds = {kind for ways in part for kind in ways}
    if any(kinds & line[place].keys() for place in beyond):
        return None
    meant = next(iter(part[0].values()))
    known = all(any(matches(signature, meant) for signature in ways.values()) for ways in part)
    return beyond[0] if known else None


def known_target(matrix: Matrix, store: Store, study_id: str | None) -> tuple[Target, bool]:
    """The target of a study, for commands whose trials settle none.

    Args:
        matrix: As loaded.
        store: Where its study may be.
        study_id: Its study; None if there is none.

    Returns:
        The rule, and whether it is still open which signature is meant.
    """
    rule = target_of(matrix)
    wanted = matrix.file.trial.bad.signature
    if wanted and wanted != FROM_BAD_END:
        return rule, False
    settled = None if study_id is None else store.target(study_id)
    if settled is None:
        return rule, bool(wanted)
    return replace(rule, signature=_of_this_release(store, *settled)), False


def _of_this_release(store: Store, signature: str, trial_id: str) -> str:
    if read_signature(signature).version == SIGNATURE_VERSION:
        return signature
    whole = store.trial(trial_id)
    if whole is None or whole.collected:
        raise UsageError(
            "the study was begun by a release that compares failures in another way, and the logs of the "
            "failure that it is about are gone",
            remedy="begin it anew with `--fresh`",
        )
    return signed_again(whole.record)


# --------------------------------------------------------------------------------------------------
# A module that was forgotten in the matrix, rather than broken by a version. Pure.
#
# A script that cannot be imported anywhere fails everywhere alike, and a search would say so after dozens of
# trials. What every environment tried lacks, none of the packages asked about has ever brought.

_NO_MODULE = re.compile(r"No module named '?([\w.]+)'?")
_ENOUGH = 3
"""Environments that all lack a module before it is taken for forgotten, where not both ends were tried."""


@dataclass
class MissingModules:
    """Listens to a study's first trials.

    Args:
        packages: That the study is about: what they import is the question itself.
        ends: Values at both ends of each axis that has several.
    """

    packages: Collection[str]
    ends: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    _lacking: dict[Combination, str] = field(default_factory=dict)
    _otherwise: bool = False

    def heard(self, event: events.Event) -> None:
        """Take note of a trial."""
        if isinstance(event, events.TrialFinished):
            self.tell(event.record)

    def tell(self, record: TrialRecord) -> None:
        """Take note of what one trial did."""
        module = missing_module(record)
        if module is None or is_of(module, self.packages):
            self._otherwise = self._otherwise or record.outcome not in _NO_ANSWER
        else:
            self._lacking[record.combination] = module

    @property
    def module(self) -> str | None:
        """The module that is forgotten, as far as is known by now."""
        module = self.suspect
        both = bool(self.ends) and all(
            {combination[axis] for combination in self._lacking} >= set(ends)
            for axis, ends in self.ends.items()
        )
        return module if both or len(self._lacking) >= _ENOUGH else None

    @property
    def suspect(self) -> str | None:
        """The module that every trial so far failed for want of, in however few environments.

        It is to blame where a study ends because the combination that is stated to work does not.
        """
        modules = set(self._lacking.values())
        return next(iter(modules)) if len(modules) == 1 and not self._otherwise else None


_NO_ANSWER = {
    Outcome.HARNESS_ERROR,
    Outcome.WORKER_LOST,
    Outcome.GPU_LOST,
    Outcome.KILLED_EXTERNAL,
    Outcome.DISK_FULL,
    Outcome.ENV_UNSOLVABLE,
    Outcome.ENV_UNBUILDABLE,
    Outcome.ENV_MISMATCH,
    Outcome.UNSUPPORTED,
    Outcome.SKIP,
}


def missing_module(record: TrialRecord) -> str | None:
    """The module for want of which a trial failed, None if it did not."""
    if record.outcome not in (Outcome.IMPORT_ERROR, Outcome.EXIT_FAIL):
        return None
    found = _NO_MODULE.search(record.detail)
    return found[1] if found else None


def is_of(module: str, packages: Collection[str]) -> bool:
    """Whether one of the packages brings a module, by its name."""
    return package_of_module(module) in {str(canonicalize_name(package)) for package in packages}


def package_of_module(module: str) -> str:
    """The package that a module mostly comes from: `yaml` from `pyyaml`."""
    # Whoever asks this has looked at an index; the other users of this module need not load what asks one.
    from bisect_env.environments.index import IMPORTED_AS

    top = module.partition(".")[0]
    return str(canonicalize_name(IMPORTED_AS.get(top.lower(), top)))
