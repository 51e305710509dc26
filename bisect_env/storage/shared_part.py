"""The part of the store by which several commands share trials: claims, and trials of other studies.

**Claims.** Who wants to run a trial says how many trials of that combination it believes to be recorded or
running. If that is still so, the trial is its own (compare and swap); if not, somebody was faster, and it
looks again before it asks the search again. A claim is a lease by the database's clock: when its holder dies,
it lapses, and counts no longer; so does one that ends later than any could, which a clock made that was set
back since. A trial is recorded whether its claim still stands or not: to drop results of
slow trials would favour quick ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import literal_column
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, delete, func, select

from bisect_env.matrix.combination import Combination
from bisect_env.storage import queries, rows
from bisect_env.storage.records import News, Origin, StoredTrial, Want, WholeTrial
from bisect_env.storage.sessions import Sessions, combination_row, study_row
from bisect_env.storage.tables import (
    ClaimRow,
    CombinationRow,
    DecisionRow,
    ReusedRow,
    StudyRow,
    TrialRow,
)
from bisect_env.storage.values import clean, jsonable
from bisect_env.trials.records import Evidence, Machine

LONGEST_LEASE = 600.0
"""Seconds. A claim that would stand longer was made by a clock that has been set back since."""
_CLOCKS = {
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "extract(epoch FROM clock_timestamp())",
}


class SharedPart(Sessions):
    """Claims, and trials of other studies."""

    def claim(
        self,
        study_id: str,
        holder: str,
        wants: Sequence[Want],
        *,
        lease: float,
        decision: tuple[str, dict[str, Any]] | None = None,
    ) -> list[bool]:
        """Claim trials before they run.

        Args:
            study_id: Their study.
            holder: Who claims; unique to a command.
            wants: In order; each sees those before it.
            lease: Seconds for which the claims stand unless they are renewed, at most `LONGEST_LEASE`.
            decision: Kind and payload of what was decided, stored if anything could be claimed.

        Returns:
            For each whether it is the holder's now.

        Raises:
            ValueError: The study does not have a combination.
        """
        answers = []
        with self._writing() as session:
            study_row(session, study_id)
            now = _now(session)
            session.exec(delete(ClaimRow).where(~_stands(now)))
            for want in wants:
                combination = combination_row(session, study_id, want.combination)
                assert combination.id is not None
                mine = _taken(session, study_id, combination.id) == want.believed
                answers.append(mine)
                if mine:
                    session.add(
                        ClaimRow(
                            trial_id=want.trial_id,
                            study_id=study_id,
                            combination_id=combination.id,
                            holder=clean(holder),
                            expires_at=now + lease,
                        )
                    )
                    session.flush()
            if decision is not None and any(answers):
                kind, payload = decision
                row = DecisionRow(
                    study_id=study_id, at=datetime.now(UTC), kind=clean(kind), payload=jsonable(payload)
                )
                session.add(row)
        return answers

    def renew(self, study_id: str, holder: str, running: Mapping[str, Combination], *, lease: float) -> None:
        """Say that these trials, and no others, are still being run by this holder.

        Claims that lapsed meanwhile (the holder was suspended, or its host) stand again.
        """
        with self._writing() as session:
            now = _now(session)
            session.exec(delete(ClaimRow).where(col(ClaimRow.holder) == clean(holder)))
            for trial_id, combination in running.items():
                if queries.has_trial(session, trial_id):
                    continue
                row = combination_row(session, study_id, combination)
                assert row.id is not None
                session.merge(
                    ClaimRow(
                        trial_id=trial_id,
                        study_id=study_id,
                        combination_id=row.id,
                        holder=clean(holder),
                        expires_at=now + lease,
                    )
                )

    def release(self, holder: str, trial_ids: Collection[str] | None = None) -> None:
        """Give claims back: those of some trials, or all of this holder."""
        with self._writing() as session:
            query = delete(ClaimRow).where(col(ClaimRow.holder) == clean(holder))
            if trial_ids is not None:
                query = query.where(col(ClaimRow.trial_id).in_(trial_ids))
            session.exec(query)

    def news(self, study_id: str, holder: str, *, after: int) -> News:
        """What others did in a study.

        Args:
            study_id: Which one.
            holder: Whose claims are not news.
            after: The `sequence` up to which everything is known; it grows in the order of commits.
        """
        with self._reading() as session:
            now = _now(session)
            query = (
                select(CombinationRow.key, func.count())
                .join(ClaimRow, col(ClaimRow.combination_id) == col(CombinationRow.id))
                .where(ClaimRow.study_id == study_id)
                .where(ClaimRow.holder != clean(holder))
                .where(_stands(now))
                .group_by(col(CombinationRow.key))
            )
            claimed = {Combination.from_key(key): number for key, number in session.exec(query)}
            return News(queries.trials(session, study_id, after), claimed)

    # -- trials of other studies ---------------------------------------------------------------------------

    def measured(
        self, study_id: str, keys: Collection[str], machines: Collection[Machine], *, logs: bool
    ) -> dict[str, list[tuple[StoredTrial, WholeTrial | None]]]:
        """Trials that other studies recorded under the same keys on the same machines, in order.

        Those that the study reuses already are left out.

        Args:
            study_id: The study that wants to start from them.
            keys: As `record_trial` was given them.
            machines: On which they must have run.
            logs: Whether to read each with its logs.
        """
        found: dict[str, list[tuple[StoredTrial, WholeTrial | None]]] = {}
        with self._reading() as session:
            known = set(session.exec(select(ReusedRow.trial_sequence).where(ReusedRow.study_id == study_id)))
            for key in sorted(set(keys) - {""}):
                query = (
                    select(TrialRow, CombinationRow.key)
                    .join(CombinationRow, col(TrialRow.combination_id) == col(CombinationRow.id))
                    .where(TrialRow.trial_key == key)
                    .where(TrialRow.study_id != study_id)
                    .order_by(col(TrialRow.sequence))
                )
                for row, combination in session.exec(query):
                    light = rows.stored_trial(row, combination)
                    if row.sequence in known or light.machine not in machines:
                        continue
                    folder = self._database.folder
                    whole = queries.trial(session, row.trial_id, folder) if logs else None
                    found.setdefault(key, []).append((light, whole))
        return found

    def reuse(self, study_id: str, trials: Iterable[tuple[str, Combination, Evidence]]) -> int:
        """Let a study start from trials of others.

        Args:
            study_id: Which one.
            trials: Id, the combination that it stands for here, and what it says here.

        Returns:
            How many it did not have yet.
        """
        number = 0
        with self._writing() as session:
            for trial_id, combination, evidence in trials:
                sequence = session.exec(
                    select(TrialRow.sequence).where(TrialRow.trial_id == trial_id)
                ).first()
                if sequence is None or session.get(ReusedRow, (study_id, sequence)) is not None:
                    continue
                row = combination_row(session, study_id, combination)
                assert row.id is not None
                number += 1
                session.add(
                    ReusedRow(
                        study_id=study_id,
                        trial_sequence=sequence,
                        combination_id=row.id,
                        evidence=str(Evidence(evidence)),
                    )
                )
        return number

    def reused(self, study_id: str) -> list[StoredTrial]:
        """Trials of other studies that a study reuses, with what they say in this one."""
        with self._reading() as session:
            query = (
                select(TrialRow, CombinationRow.key, ReusedRow.evidence)
                .join(ReusedRow, col(ReusedRow.trial_sequence) == col(TrialRow.sequence))
                .join(CombinationRow, col(ReusedRow.combination_id) == col(CombinationRow.id))
                .where(ReusedRow.study_id == study_id)
                .order_by(col(TrialRow.sequence))
            )
            return [rows.stored_trial(row, key, evidence) for row, key, evidence in session.exec(query)]

    def origins(self, study_id: str) -> list[Origin]:
        """From whom a study has the trials that it reuses, the largest share first."""
        with self._reading() as session:
            number: Any = func.count()
            query: Any = (
                select_columns(
                    col(StudyRow.id), col(StudyRow.name), col(StudyRow.username), col(StudyRow.host), number
                )
                .join(TrialRow, col(TrialRow.study_id) == col(StudyRow.id))
                .join(ReusedRow, col(ReusedRow.trial_sequence) == col(TrialRow.sequence))
                .where(col(ReusedRow.study_id) == study_id)
                .group_by(col(StudyRow.id), col(StudyRow.name), col(StudyRow.username), col(StudyRow.host))
                .order_by(number.desc(), col(StudyRow.id))
            )
            return [Origin(*found) for found in session.execute(query)]


def _stands(now: float) -> Any:
    """Whether a claim counts, as a condition."""
    return col(ClaimRow.expires_at).between(now, now + LONGEST_LEASE)


def _now(session: Session) -> float:
    """Seconds since 1970 by the database's clock: hosts disagree about the time."""
    clock: Any = literal_column(_CLOCKS[session.get_bind().dialect.name])
    return float(session.exec(select(clock)).one())


def _taken(session: Session, study_id: str, combination_id: int) -> int:
    recorded = (
        select(func.count())
        .select_from(TrialRow)
        .where(col(TrialRow.study_id) == study_id)
        .where(col(TrialRow.combination_id) == combination_id)
    )
    claimed = select(func.count()).select_from(ClaimRow).where(col(ClaimRow.combination_id) == combination_id)
    return int(session.exec(recorded).one()) + int(session.exec(claimed).one())
