"""The trials of one study as one process knows them: read, judged and recorded.

A study has trials of its own and, with `reuse`, trials that other studies measured. Their facts never change.
What they are evidence of is computed here, whenever they are read (`trials/judge.py`); the column `evidence`
repeats it for questions in SQL and is written in the same transaction as the trials on which it depends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, func, insert
from sqlalchemy import select as select_columns
from sqlalchemy import update as update_rows
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from bisect_env.errors import StorageError
from bisect_env.matrix.grid import AxisKind, Combination, Direction, Grid
from bisect_env.matrix.signatures import read_signature
from bisect_env.storage import blobs, rows
from bisect_env.storage.backend import ANOTHER
from bisect_env.storage.entries import AMPLIFIED, StoredTrial, Study
from bisect_env.storage.tables import (
    METADATA,
    ChangedRow,
    CombinationRow,
    DecisionRow,
    MemberRow,
    StudyRow,
    TrialRow,
)
from bisect_env.storage.values import clean
from bisect_env.trials.judge import VOID, ChangedEnvironment, Judge, Places, Target, output_matches
from bisect_env.trials.records import Evidence, Machine, Outcome, TrialRecord

if TYPE_CHECKING:
    from bisect_env.storage.store import Store

_TRIALS, _MEMBERS = METADATA.tables["trials"], METADATA.tables["study_trials"]
_NAMED = select_columns(_TRIALS.c.trial_id, _TRIALS.c.sequence).where(
    _TRIALS.c.trial_id.in_(bindparam("ids", expanding=True))
)
_JUDGED = update_rows(_MEMBERS).where(_MEMBERS.c.id == bindparam("member")).values(evidence=bindparam("said"))
_CHANGES, _STUDIES, _DECISIONS, _COMBINATIONS = (
    METADATA.tables[name] for name in ("changed_environments", "studies", "decisions", "combinations")
)
_ASKED = select_columns(
    select_columns(func.max(_CHANGES.c.id)).scalar_subquery(),
    _STUDIES.c.grid,
    _STUDIES.c.target,
    select_columns(func.min(_DECISIONS.c.id))
    .where(_DECISIONS.c.study_id == bindparam("study"), _DECISIONS.c.kind == AMPLIFIED)
    .scalar_subquery(),
).where(_STUDIES.c.id == bindparam("study"))
_OF_ENDS = select_columns(_COMBINATIONS.c.lock_hash).where(
    _COMBINATIONS.c.study_id == bindparam("study"),
    _COMBINATIONS.c.key.in_(bindparam("ends", expanding=True)),
)
_LIKE_ENDS = select_columns(_COMBINATIONS.c.key).where(
    _COMBINATIONS.c.study_id == bindparam("study"), _COMBINATIONS.c.lock_hash.in_(_OF_ENDS)
)
_NEVER_REUSED = VOID | {Outcome.NOT_RUNNABLE}
"""Outcomes that are a matter of the host on which they were seen."""


class StudyTrials:
    """The trials of one study, own and reused ones, in the order in which the study received them.

    Must be used by one thread only.

    Args:
        store: The database.
        study_id: Id of the study.

    Attributes:
        judge: A judge that has all trials up to `last`.
        changes: Number of the last change of an environment that the judge knows.
        last: Number of the last trial of the study that is known here.

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
        """Start again with a judge that has no trials."""
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
        self._basis_written: tuple[Target, int] | None = None

    def _state(self, session: Session) -> tuple[Any, ...]:
        """Return what tells whether anything but trials has changed on which their evidence depends."""
        connection = session.connection()
        asked = connection.execute(_ASKED, {"study": self._study_id}).one()
        return (*asked, *sorted(like_ends(session, self._study_id, self._ends)))

    @property
    def basis(self) -> tuple[Target, int]:
        """Return the target and the number of environment changes, on which all evidence depends."""
        return self.target, self.changes

    @property
    def target(self) -> Target:
        """Return the failure that the study is about, as far as the known trials show it."""
        return self.judge.target

    def look(self) -> list[StoredTrial]:
        """Read trials that were added since the last call.

        Return them in order, with their present evidence.
        """
        with self._store.reading() as session:
            return self._with_evidence(self._catch_up(session))

    def everything(self) -> list[StoredTrial]:
        """Return all known trials in order, with their present evidence."""
        return self._with_evidence(self._known)

    def record(self, trials: Sequence[tuple[TrialRecord, str]]) -> list[StoredTrial]:
        """Store trials, all or none, and end their claims; they are committed when this returns.

        A trial whose id is already stored is not changed.

        Args:
            trials: Each record with its key, which is equal for equal measurements of other studies; "" if
                there are none.

        Returns:
            The trials that were not known before, including those of other commands, in order.

        Raises:
            ValueError: The study does not have a combination, or a lock is not stored.
        """
        if not trials:
            return []
        named = {"ids": [record.trial_id for record, _ in trials]}
        try:
            with self._store.writing() as session:
                news = self._catch_up(session)
                connection = session.connection()
                stored = set(connection.execute(_NAMED, named).scalars())
                new = [one for one in trials if one[0].trial_id not in stored]
                self._insert(session, new)
                self._store.end_claims(session, named["ids"])
                return self._admitted(session, news)
        except IntegrityError as error:
            self._begin()
            raise ValueError("a trial names a lock that is not stored") from error
        except BaseException:
            self._begin()
            raise

    def _insert(self, session: Session, new: Sequence[tuple[TrialRecord, str]]) -> None:
        if not new:
            return
        connection = session.connection()
        now, rule = datetime.now(UTC), self.judge.rule
        values = [rows.trial_values(self._study_id, record, key, now) for record, key in new]
        connection.execute(insert(_TRIALS), values)
        found = connection.execute(_NAMED, {"ids": [record.trial_id for record, _ in new]})
        sequences = {row.trial_id: row.sequence for row in found}
        records = [record for record, _ in new]
        places = self._store.combination_ids(session, self._study_id, [r.combination for r in records])
        members = [
            self._member(
                sequences[record.trial_id], place, matched=output_matches(record, rule), reused=False
            )
            for record, place in zip(records, places, strict=True)
        ]
        connection.execute(insert(_MEMBERS), members)
        _keep_artefacts(session, records, sequences)

    def _member(self, sequence: int, place: int, *, matched: bool, reused: bool) -> dict[str, Any]:
        return {
            "study_id": self._study_id,
            "trial_sequence": sequence,
            "combination_id": place,
            "reused": reused,
            "matched": matched,
            # Known once the judge was told all that stands before it; until then nobody else sees the row.
            "evidence": str(Evidence.VOID),
        }

    # -- trials of other studies -----------------------------------------------------------------------------

    def reuse(
        self, keys: Mapping[str, Combination], machines: Collection[Machine], user: str | None = None
    ) -> list[StoredTrial]:
        """Add trials that other studies recorded under the same keys on the same machines.

        All trials of a key are taken or none: none if logs that decide the evidence of one of them were
        collected. Infrastructure failures are left out.

        Args:
            keys: Key to the combination of this study that it counts for.
            machines: Classes of machines on which they must have run.
            user: Take only trials of this user's studies; None for all users.

        Returns:
            As `record`; empty if no trial was taken.
        """
        with self._store.reading() as session:
            if not any(self._measured(session, key, machines, user) for key in keys):
                return []
        with self._store.writing() as session:
            news = self._catch_up(session)
            combinations = [*keys.values()]
            places = self._store.combination_ids(session, self._study_id, combinations)
            members = [
                self._member(sequence, place, matched=matched, reused=True)
                for key, place in zip(keys, places, strict=True)
                for sequence, matched in self._measured(session, key, machines, user)
            ]
            if members:
                session.connection().execute(insert(_MEMBERS), members)
            return self._admitted(session, news)

    def _measured(
        self, session: Session, key: str, machines: Collection[Machine], user: str | None
    ) -> list[tuple[int, bool]]:
        """Return number and output match of the other studies' trials with this key."""
        if not key or key in self._incomplete:
            return []
        known = select(MemberRow.trial_sequence).where(MemberRow.study_id == self._study_id)
        query = (
            select(TrialRow)
            .where(TrialRow.trial_key == key, TrialRow.study_id != self._study_id)
            .where(col(TrialRow.sequence).not_in(known))
            .order_by(col(TrialRow.sequence))
        )
        found: list[tuple[int, bool]] = []
        if user is not None:
            query = query.join(StudyRow, col(StudyRow.id) == col(TrialRow.study_id))
            query = query.where(StudyRow.username == user)
        for row in session.exec(query):
            if Machine(row.cpu, row.gpu_model, row.driver) not in machines or row.outcome in _NEVER_REUSED:
                continue
            assert row.sequence is not None
            matched = True
            if self.judge.rule.output:
                whole = self._store.trial(row.trial_id)
                if whole is None or whole.collected:
                    self._incomplete.add(key)
                    return []
                matched = output_matches(whole.record, self.judge.rule)
            found.append((row.sequence, matched))
        return found

    # -- what both have in common ----------------------------------------------------------------------------

    def admit(self, session: Session, members: Sequence[Mapping[str, Any]]) -> None:
        """Add trials that are already stored, in the caller's writing session.

        Args:
            session: A writing session.
            members: `trial_sequence`, `combination_id`, `reused` and `matched` of each.
        """
        news = self._catch_up(session)
        rows_ = [{**one, "study_id": self._study_id, "evidence": str(Evidence.VOID)} for one in members]
        if rows_:
            session.connection().execute(insert(_MEMBERS), rows_)
        self._admitted(session, news)

    def judge_again(self, session: Session) -> None:
        """Write the evidence of all trials, in a writing session that changes what it depends on."""
        self._admitted(session, self._catch_up(session))

    def note_change(self, changed: ChangedEnvironment) -> bool:
        """Store that an environment was changed, which makes its trials since then void in all studies.

        Args:
            changed: The environment, host and period.

        Returns:
            Whether that was not known.
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
                mine.judge_again(session)
        return True

    def _catch_up(self, session: Session) -> list[StoredTrial]:
        """Read new trials and return them; if the question has changed, also read the known ones again."""
        last = self.last
        if self._state(session) != self._asked:
            self._ask(session)
        query = (
            select(MemberRow, TrialRow, CombinationRow.key)
            .join(TrialRow, col(TrialRow.sequence) == col(MemberRow.trial_sequence))
            .join(CombinationRow, col(CombinationRow.id) == col(MemberRow.combination_id))
            .where(MemberRow.study_id == self._study_id, col(MemberRow.id) > self.last)
            .order_by(col(MemberRow.id))
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

    def _admitted(self, session: Session, news: list[StoredTrial]) -> list[StoredTrial]:
        """Write evidence where it is not what is stored; return all trials not returned before."""
        session.flush()
        new = self._with_evidence([*news, *self._catch_up(session)])
        # What is stored was compared with this basis before, unless this is the first time.
        among = new if self.basis == self._basis_written else self.everything()
        said = {trial.sequence: str(trial.evidence) for trial in among}
        stale = {member: one for member, one in said.items() if self._written[member] != one}
        if stale:
            values = [{"member": member, "said": one} for member, one in stale.items()]
            session.connection().execute(_JUDGED, values)
        self._written |= stale
        self._basis_written = self.basis
        return new

    def _with_evidence(self, trials: Sequence[StoredTrial]) -> list[StoredTrial]:
        return [trial.judged(self.judge.evidence(trial, matched=trial.matched)) for trial in trials]


def _keep_artefacts(session: Session, records: Sequence[TrialRecord], sequences: Mapping[str, int]) -> None:
    left = {record.trial_id: found for record in records if (found := rows.artefacts_of(record))}
    if not left:
        return
    contents = [content for found in left.values() for content in found.values()]
    digests = iter(blobs.put(session, contents))
    session.connection().execute(
        insert(METADATA.tables["artefacts"]),
        [
            {"trial_sequence": sequences[trial_id], "name": name, "content_hash": next(digests)}
            for trial_id, found in left.items()
            for name in found
        ],
    )


# --------------------------------------------------------------------------------------------------
# On what the target of a study depends.


def study_row(session: Session, study_id: str) -> StudyRow:
    """Return the row of a study.

    Raises:
        StorageError: There is none: the file is damaged, or another command has deleted the study.
    """
    row = session.get(StudyRow, study_id)
    if row is None:
        raise StorageError(
            f"the database has no study {study_id}", remedy="take it from a backup, or " + ANOTHER
        )
    return row


def end_keys(study: Study) -> list[str]:
    """Return the keys of a study's good and bad end as they are stored; empty if it has none."""
    grid = study.grid
    return [clean(grid.combination(end).key) for end in grid.ends or ()]


def like_ends(session: Session, study_id: str, ends: Sequence[str]) -> set[str]:
    """Return the keys of all combinations whose lock is that of an end, including the ends themselves."""
    named = {"study": study_id, "ends": [*ends]}
    return set(session.connection().execute(_LIKE_ENDS, named).scalars())


def _question(session: Session, study: Study) -> tuple[Target, Places]:
    query = select(CombinationRow).where(CombinationRow.study_id == study.id)
    locks = {state.combination: state.lock_hash for state in map(rows.combination_of, session.exec(query))}
    rule = study.definition.target
    if rule.is_open:
        # What was made more frequent before the study's own trials is the failure that is meant.
        decided = select(DecisionRow).where(DecisionRow.study_id == study.id, DecisionRow.kind == AMPLIFIED)
        first = session.exec(decided.order_by(col(DecisionRow.id))).first()
        signature = rows.decision_of(first).payload.get("signature") if first is not None else ""
        if signature:
            rule = Target.from_json({**rule.as_json(), "signature": read_signature(str(signature)).stored()})
    return rule, places_of(study, locks)


def places_of(study: Study, locks: Mapping[Combination, str | None]) -> Places:
    """Return the combinations on which the target of a study can depend. Pure.

    Args:
        study: As stored.
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
