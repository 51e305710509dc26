"""Questions about one study's trials, each answered by one statement in a session that is given."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select as select_columns
from sqlmodel import Session, col, func, select

from bisect_env.matrix.combination import Combination
from bisect_env.storage import rows
from bisect_env.storage.records import Counts, FailureGroup, StoredTrial, WholeTrial
from bisect_env.storage.tables import CombinationRow, LogRow, TrialRow
from bisect_env.storage.values import member
from bisect_env.trials.records import Evidence, Outcome


def trials(session: Session, study_id: str) -> list[StoredTrial]:
    """As `Store.trials`."""
    query = (
        select(TrialRow, CombinationRow.key)
        .join(CombinationRow, col(TrialRow.combination_id) == col(CombinationRow.id))
        .where(TrialRow.study_id == study_id)
        .order_by(col(TrialRow.sequence))
    )
    return [rows.stored_trial(row, key) for row, key in session.exec(query)]


def trial(session: Session, trial_id: str) -> WholeTrial | None:
    """As `Store.trial`."""
    query = (
        select(TrialRow, CombinationRow.key, LogRow)
        .join(CombinationRow, col(TrialRow.combination_id) == col(CombinationRow.id))
        .join(LogRow, col(LogRow.trial_sequence) == col(TrialRow.sequence))
        .where(TrialRow.trial_id == trial_id)
    )
    found = session.exec(query).first()
    return rows.whole_trial(*found) if found else None


def has_trial(session: Session, trial_id: str) -> bool:
    """Whether a trial with this id is stored, in whatever study."""
    return session.exec(select(TrialRow.sequence).where(TrialRow.trial_id == trial_id)).first() is not None


def counts(session: Session, study_id: str) -> dict[Combination, Counts]:
    """As `Store.counts`."""
    query = (
        select(CombinationRow.key, TrialRow.evidence, TrialRow.outcome, func.count())
        .join(CombinationRow, col(TrialRow.combination_id) == col(CombinationRow.id))
        .where(TrialRow.study_id == study_id)
        .group_by(col(CombinationRow.key), col(TrialRow.evidence), col(TrialRow.outcome))
    )
    where = f"a trial of study {study_id}"
    gathered: dict[str, dict[tuple[Evidence, Outcome], int]] = {}
    for key, evidence, outcome, number in session.exec(query):
        said = (member(Evidence, evidence, where), member(Outcome, outcome, where))
        gathered.setdefault(key, {})[said] = number
    return {Combination.from_key(key): Counts(by_outcome) for key, by_outcome in gathered.items()}


def failures(session: Session, study_id: str) -> list[FailureGroup]:
    """As `Store.failures`."""
    kind = (col(TrialRow.signature), col(TrialRow.outcome), col(TrialRow.evidence))
    groups = (
        select_columns(*kind, func.count().label("number"), func.min(col(TrialRow.sequence)).label("first"))
        .where(col(TrialRow.study_id) == study_id)
        .where(col(TrialRow.evidence).in_([Evidence.BAD.value, Evidence.OTHER.value]))
        .group_by(*kind)
        .subquery()
    )
    query: Any = (
        select_columns(groups, col(TrialRow.trial_id))
        .join(TrialRow, col(TrialRow.sequence) == groups.c.first)
        .order_by(groups.c.number.desc(), groups.c.first)
    )
    return [
        FailureGroup(
            signature=row.signature,
            outcome=member(Outcome, row.outcome, f"trial {row.trial_id}"),
            evidence=member(Evidence, row.evidence, f"trial {row.trial_id}"),
            trials=row.number,
            trial_id=row.trial_id,
        )
        for row in session.execute(query)
    ]


def environments(session: Session, study_id: str) -> int:
    """As `Store.environments`."""
    query = (
        select(func.count(func.distinct(col(TrialRow.lock_hash))))
        .where(TrialRow.study_id == study_id)
        .where(TrialRow.evidence != Evidence.VOID.value)
    )
    return int(session.exec(query).one())
