"""Reads, judges and records the trials of one study.

A study has trials of its own and, with `reuse`, trials that other studies measured. Their facts never change.
Their evidence is computed here, whenever they are read (`trials/judge.py`). The column `evidence` repeats it
for SQL that users write, and is written in the same transaction as the trials on which it depends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import update
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, delete, func, select

from bisect_env.errors import StorageError
from bisect_env.matrix.grid import AxisKind, Combination, Direction, Grid
from bisect_env.matrix.signatures import read_signature
from bisect_env.secrets import has_gap
from bisect_env.storage import blobs, rows
from bisect_env.storage.entries import AMPLIFIED, StoredTrial, Study
from bisect_env.storage.tables import (
    ArtefactRow,
    ChangedRow,
    ClaimRow,
    CombinationRow,
    DecisionRow,
    MemberRow,
    StudyRow,
    TrialRow,
)
from bisect_env.storage.values import ANOTHER, clean
from bisect_env.trials.judge import VOID, ChangedEnvironment, Judge, Places, Target, output_matches
from bisect_env.trials.records import Evidence, Machine, Outcome, TrialRecord

if TYPE_CHECKING:  # that module imports this one
    from bisect_env.storage.store import Store

_NEVER_REUSED = VOID | {Outcome.NOT_RUNNABLE}
"""Outcomes that depend on the host, so that other studies must not reuse trials with them."""
_KEYS = 500
"""Maximum number of keys in one query."""


class StudyTrials:
    """The trials that count for one study, with methods to read, judge and record them.

    They include trials that the study reuses from other studies, and are in the order in which the study
    received them. Must be used by one thread only.

    Args:
        store: The database.
        study_id: Id of the study.

    Attributes:
        judge: A judge that has all trials up to `last`.
        changes: Number of the newest change of an environment that the judge knows.
        last: `sequence` of the newest trial that has been read.

    Raises:
        ValueError: There is no such study.
    """

    def __init__(self, store: Store, study_id: str) -> None:
        self._store = store
        self._study_id = study_id
        self._incomplete: set[str] = set()
        self._begin()

    def _begin(self) -> None:
        with self._store.reading() as session:
            self._ask(session)

    def _ask(self, session: Session) -> None:
        """Read the definition of the study again, and create a new `Judge` that knows no trials."""
        found = session.exec(select(ChangedRow).order_by(col(ChangedRow.id))).all()
        self.changes = found[-1].id or 0 if found else 0
        changed = [rows.change_of(row) for row in found]
        study = rows.study_of(study_row(session, self._study_id))
        self.judge = Judge(*_question(session, study), changed)
        self._ends = end_keys(study)
        self._asked = self._state(session)
        self.last = 0
        self._known: list[StoredTrial] = []
        self._written: dict[int, str] = {}
        self._basis_written: tuple[Target, int, frozenset[str]] | None = None

    def _state(self, session: Session) -> tuple[Any, ...]:
        """Return a key for caching: it changes when trials may count differently than before."""
        amplified = select(func.min(DecisionRow.id)).where(
            DecisionRow.study_id == self._study_id, DecisionRow.kind == AMPLIFIED
        )
        query = select(
            StudyRow.grid,
            StudyRow.target,
            amplified.scalar_subquery(),
            select(func.max(ChangedRow.id)).scalar_subquery(),
        ).where(StudyRow.id == self._study_id)
        found = session.exec(query).first()
        if found is None:
            study_row(session, self._study_id)  # raises the error
        return (found, *sorted(like_ends(session, self._study_id, self._ends)))

    @property
    def basis(self) -> tuple[Target, int, frozenset[str]]:
        """Return that on which all evidence depends beside the trials themselves.

        It is the target, the number of changed environments (noted when files differ from what was
        installed), and what explains no failure because passes name it, too. Evidence computed before stays
        valid as long as all values are the same.
        """
        return self.target, self.changes, self.judge.discounted

    @property
    def target(self) -> Target:
        """Return the failure that the study looks for, as determined by the trials read so far."""
        return self.judge.target

    def look(self) -> list[StoredTrial]:
        """Read and return the trials that were added to the database since the last call.

        They are in order, with their present evidence.
        """
        with self._store.reading() as session:
            return self._with_evidence(self._catch_up(session))

    def everything(self) -> list[StoredTrial]:
        """Return all trials read so far, in order, and whether each now counts as good or bad."""
        return self._with_evidence(self._known)

    def record(self, trials: Sequence[tuple[TrialRecord, str]]) -> list[StoredTrial]:
        """Store finished trials, all or none, and delete their claims.

        When the method returns, the transaction is committed. A trial whose id is already stored is not
        changed.

        Args:
            trials: Each record with its key. Other studies may reuse the trial if they make a measurement
                with the same key; "" for no reuse.

        Returns:
            The trials that were not known before, including those of other commands, in order.

        Raises:
            ValueError: The study does not have a combination, or a lock is not stored.
        """
        if not trials:
            return []
        ids = [record.trial_id for record, _ in trials]
        try:
            with self._store.writing() as session:
                stored = sequences_of(session, ids)
                self._insert(session, [one for one in trials if one[0].trial_id not in stored])
                session.exec(delete(ClaimRow).where(col(ClaimRow.trial_id).in_(ids)))
                return self.write_evidence(session)
        except IntegrityError as error:
            self._begin()
            raise ValueError("a trial names a lock that is not stored") from error
        except BaseException:
            self._begin()
            raise

    def _insert(self, session: Session, new: Sequence[tuple[TrialRecord, str]]) -> None:
        now, rule = datetime.now(UTC), self.judge.rule
        records = [record for record, _ in new]
        rows_ = [rows.trial_row(self._study_id, record, key, now) for record, key in new]
        session.add_all(rows_)
        session.flush()
        places = self._store.combination_ids(session, self._study_id, [r.combination for r in records])
        for record, row, place in zip(records, rows_, places, strict=True):
            session.add(self._member(row, place, matched=output_matches(record, rule), reused=False))
        _keep_artefacts(session, records, rows_)

    def _member(self, trial: TrialRow, place: int, *, matched: bool, reused: bool) -> MemberRow:
        assert trial.sequence is not None
        return MemberRow(
            study_id=self._study_id,
            trial_sequence=trial.sequence,
            combination_id=place,
            reused=reused,
            matched=matched,
            # The evidence is known once the judge has all earlier trials. Until the commit, no other process
            # sees this row.
            evidence=str(Evidence.VOID),
        )

    # -- trials of other studies -----------------------------------------------------------------------------

    def reuse(
        self, keys: Mapping[str, Combination], machines: Collection[Machine], user: str | None = None
    ) -> list[StoredTrial]:
        """Add trials of other studies that made the same measurement on the same kind of machine.

        For each key, all of its trials are taken or none. None are taken if logs that decide the evidence of
        one of them were deleted to save space. Infrastructure failures are left out.

        Args:
            keys: Maps the key of a measurement to the combination of this study for which it counts.
            machines: Kinds of machines on which the trials must have run.
            user: Take only trials of this user's studies; None for all users.

        Returns:
            The added trials, and other trials that were not known before; empty if none was added.
        """
        with self._store.reading() as session:
            if not self._measured(session, keys, machines, user):
                return []
        with self._store.writing() as session:
            measured = self._measured(session, keys, machines, user)
            combinations = [keys[row.trial_key] for row, _ in measured]
            places = self._store.combination_ids(session, self._study_id, combinations)
            for (row, matched), place in zip(measured, places, strict=True):
                session.add(self._member(row, place, matched=matched, reused=True))
            return self.write_evidence(session)

    def _measured(
        self, session: Session, keys: Iterable[str], machines: Collection[Machine], user: str | None
    ) -> list[tuple[TrialRow, bool]]:
        """Return the trials of other studies that have one of these keys and can be reused.

        For each trial, return its row and whether its output matches the target.
        """
        wanted = sorted({*keys} - {"", *self._incomplete})
        known = select(MemberRow.trial_sequence).where(MemberRow.study_id == self._study_id)
        query = select(TrialRow).where(
            TrialRow.study_id != self._study_id, col(TrialRow.sequence).not_in(known)
        )
        if user is not None:
            query = query.join(StudyRow, col(StudyRow.id) == col(TrialRow.study_id))
            query = query.where(StudyRow.username == user)
        rows: list[TrialRow] = []
        # A study can have more combinations than a query can have parameters.
        for start in range(0, len(wanted), _KEYS):
            some = wanted[start : start + _KEYS]
            rows += session.exec(query.where(col(TrialRow.trial_key).in_(some))).all()
        found: list[tuple[TrialRow, bool]] = []
        for row in sorted(rows, key=lambda row: row.sequence or 0):
            if Machine(row.cpu, row.gpu_model, row.driver) not in machines or row.outcome in _NEVER_REUSED:
                continue
            matched = True
            if self.judge.rule.output:
                whole = self._store.trial(row.trial_id)
                if whole is None or whole.collected:
                    self._incomplete.add(row.trial_key)
                    continue
                matched = output_matches(whole.record, self.judge.rule)
                if not matched and (has_gap(whole.record.stdout) or has_gap(whole.record.stderr)):
                    self._incomplete.add(row.trial_key)
                    continue
            found.append((row, matched))
        return [(row, matched) for row, matched in found if row.trial_key not in self._incomplete]

    # -- what both have in common ----------------------------------------------------------------------------

    def write_evidence(self, session: Session) -> list[StoredTrial]:
        """Write the evidence of all trials of the study to the database column that users query.

        Args:
            session: A writing session, which has added trials to the study, or has changed a fact on which
                the evidence depends.

        Returns:
            The trials that were not known before, in order, with their evidence.
        """
        session.flush()
        new = self._with_evidence(self._catch_up(session))
        # Stored evidence was already compared with this basis, except at the first call.
        among = new if self.basis == self._basis_written else self.everything()
        said = {trial.sequence: str(trial.evidence) for trial in among}
        stale = {member: one for member, one in said.items() if self._written[member] != one}
        if stale:
            session.execute(update(MemberRow), [{"id": id_, "evidence": one} for id_, one in stale.items()])
        self._written |= stale
        self._basis_written = self.basis
        return new

    def note_change(self, changed: ChangedEnvironment) -> bool:
        """Store that the files of an environment were changed during a period.

        Trials that used the environment in that period become void in all studies.

        Args:
            changed: The environment, host and period.

        Returns:
            True if the change was stored now, False if it was already in the database.
        """
        with self._store.writing() as session:
            here = select(ChangedRow).where(ChangedRow.lock_hash == changed.lock_hash)
            if changed in map(rows.change_of, session.exec(here)):
                return False
            session.add(ChangedRow(**dataclasses.asdict(changed)))
            session.flush()
            there = select(MemberRow.study_id).join(
                TrialRow, col(TrialRow.sequence) == col(MemberRow.trial_sequence)
            )
            for study_id in set(session.exec(there.where(TrialRow.lock_hash == changed.lock_hash))):
                mine = self if study_id == self._study_id else StudyTrials(self._store, study_id)
                mine.write_evidence(session)
        return True

    def _catch_up(self, session: Session) -> list[StoredTrial]:
        """Read the new trials of the study from the database, and return them.

        If the study has changed so that evidence may be different, the known trials are read again, too, but
        they are not returned.
        """
        last = self.last
        if self._state(session) != self._asked:
            self._ask(session)
        query = (
            select(MemberRow, TrialRow, CombinationRow.key)
            .join(TrialRow, col(TrialRow.sequence) == col(MemberRow.trial_sequence))
            .join(CombinationRow, col(CombinationRow.id) == col(MemberRow.combination_id))
            .where(MemberRow.study_id == self._study_id, col(MemberRow.id) > self.last)
            .order_by(col(MemberRow.id))
            # Also read new rows of this session again, to get the values as the database returns them.
            .execution_options(populate_existing=True)
        )
        found = []
        for member, row, key in session.exec(query):
            trial = rows.stored_trial(member, row, key)
            found.append(trial)
            self._written[trial.sequence] = member.evidence
            self.judge.tell(trial, matched=trial.matched)
        if found:
            self.last = found[-1].sequence
        self._known += found
        return [trial for trial in found if trial.sequence > last]

    def _with_evidence(self, trials: Sequence[StoredTrial]) -> list[StoredTrial]:
        judge = self.judge
        return [
            dataclasses.replace(trial, evidence=judge.evidence(trial, matched=trial.matched))
            for trial in trials
        ]


def _keep_artefacts(session: Session, records: Sequence[TrialRecord], trials: Sequence[TrialRow]) -> None:
    left = [
        (row.sequence, name, content)
        for record, row in zip(records, trials, strict=True)
        for name, content in rows.artefacts_of(record).items()
    ]
    digests = blobs.put(session, [content for _, _, content in left])
    for (sequence, name, _), digest in zip(left, digests, strict=True):
        assert sequence is not None
        session.add(ArtefactRow(trial_sequence=sequence, name=name, content_hash=digest))


def sequences_of(session: Session, trial_ids: Iterable[str]) -> dict[str, int]:
    """Return the `sequence` of each trial that the database contains, by trial id."""
    query = select(TrialRow.trial_id, TrialRow.sequence).where(col(TrialRow.trial_id).in_([*trial_ids]))
    return {trial_id: sequence for trial_id, sequence in session.exec(query) if sequence is not None}


# --------------------------------------------------------------------------------------------------
# The facts on which the target of a study depends.


def study_row(session: Session, study_id: str) -> StudyRow:
    """Return the row of a study.

    Raises:
        StorageError: There is no such study: the file is damaged, or another command deleted the study.
    """
    row = session.get(StudyRow, study_id)
    if row is None:
        raise StorageError(
            f"the database has no study {study_id}", remedy="take it from a backup, or " + ANOTHER
        )
    return row


def end_keys(study: Study) -> list[str]:
    """Return the stored texts of the good and the bad end of a study, as a list.

    The ends are the combinations that are expected to pass and to fail. The list is empty if an end is
    unknown.
    """
    grid = study.grid
    return [clean(grid.combination(end).key) for end in grid.ends or ()]


def like_ends(session: Session, study_id: str, ends: Sequence[str]) -> set[str]:
    """Return the stored texts of all combinations that have the same lock as one of the given ends.

    These include the ends that have a lock.
    """
    own = CombinationRow.study_id == study_id
    of_ends = select(CombinationRow.lock_hash).where(own, col(CombinationRow.key).in_(ends))
    query = select(CombinationRow.key).where(own, col(CombinationRow.lock_hash).in_(of_ends))
    return set(session.exec(query))


def _question(session: Session, study: Study) -> tuple[Target, Places]:
    query = select(CombinationRow).where(CombinationRow.study_id == study.id)
    locks = {state.combination: state.lock_hash for state in map(rows.combination_of, session.exec(query))}
    rule = study.definition.target
    if rule.is_open:
        # What was made more frequent before the study's own trials is the failure that is meant.
        decided = select(DecisionRow).where(DecisionRow.study_id == study.id, DecisionRow.kind == AMPLIFIED)
        first = session.exec(decided.order_by(col(DecisionRow.at), col(DecisionRow.id))).first()
        signature = rows.decision_of(first).payload.get("signature") if first is not None else ""
        if signature:
            rule = dataclasses.replace(rule, signature=read_signature(str(signature)).stored())
    return rule, places_of(study, locks)


def places_of(study: Study, locks: Mapping[Combination, str | None]) -> Places:
    """Return the combinations whose trials determine which failure a study looks for.

    The function only computes; it does no input or output.

    Args:
        study: The stored study.
        locks: Lock hash of each combination that has one.
    """
    grid = study.grid
    ends = grid.ends
    if ends is None:
        return Places()
    values = [axis.name for axis in grid.axes if axis.kind is AxisKind.VALUE]

    def same(end: Combination) -> frozenset[Combination]:
        lock = locks.get(end)
        return frozenset({end}) | {
            one
            for one, its in locks.items()
            if lock is not None and its == lock and all(one[name] == end[name] for name in values)
        }

    good, bad = (grid.combination(index) for index in ends)
    return Places(same(good), same(bad), _line(grid, good, bad))


def _line(grid: Grid, good: Combination, bad: Combination) -> dict[Combination, int]:
    moving = [axis for axis in grid.axes if len(axis.values) > 1]
    if len(moving) != 1 or moving[0].direction is Direction.UNORDERED:
        return {}
    (axis,) = moving
    start = axis.values.index(bad[axis.name])
    towards = 1 if axis.values.index(good[axis.name]) > start else -1
    line: dict[Combination, int] = {}
    for position, value in enumerate(axis.values):
        if (distance := towards * (position - start)) >= 0:
            line[Combination.of({**bad.as_dict(), axis.name: value})] = distance
    return line
