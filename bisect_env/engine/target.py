"""Decides what a study counts as bad, if that is known only after its bad end has failed."""

from __future__ import annotations

from dataclasses import replace

from bisect_env.engine.specs import target_of
from bisect_env.errors import UsageError
from bisect_env.matrix.grid import Combination, Index
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.signatures import FROM_BAD_END, SIGNATURE_VERSION, read_signature
from bisect_env.storage.store import Store
from bisect_env.trials.judge import Target, judge
from bisect_env.trials.records import Evidence, TrialRecord
from bisect_env.trials.signature import signed_again

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
