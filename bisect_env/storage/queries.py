"""Queries about one study's trials, each a single statement in a given session."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from sqlalchemy import select as select_columns
from sqlalchemy import union_all
from sqlmodel import Session, col, func, select

from bisect_env.matrix.grid import Combination
from bisect_env.storage import blobs, rows
from bisect_env.storage.entries import EvidenceCounts, FailureGroup, StoredTrial, WholeTrial
from bisect_env.storage.tables import ArtefactRow, BlobRow, CombinationRow, ReusedRow, TrialRow
from bisect_env.storage.values import member
from bisect_env.trials.records import Evidence, Machine, Outcome


def trials(session: Session, study_id: str, after: int = 0) -> list[StoredTrial]:
    """As `Store.trials`."""
    query = (
        select(TrialRow, CombinationRow.key)
        .join(CombinationRow, col(TrialRow.combination_id) == col(CombinationRow.id))
        .where(TrialRow.study_id == study_id)
        .where(col(TrialRow.sequence) > after)
        .order_by(col(TrialRow.sequence))
    )
    return [rows.stored_trial(row, key) for row, key in session.exec(query)]


def trial(session: Session, trial_id: str, folder: Path | None) -> WholeTrial | None:
    """As `Store.trial`."""
    query = (
        select(TrialRow, CombinationRow.key)
        .join(CombinationRow, col(TrialRow.combination_id) == col(CombinationRow.id))
        .where(TrialRow.trial_id == trial_id)
    )
    found = session.exec(query).first()
    if found is None:
        return None
    row, key = found
    assert row.sequence is not None
    return rows.whole_trial(row, key, artefacts(session, row.sequence, folder))


def artefacts(session: Session, sequence: int, folder: Path | None) -> dict[str, bytes | None]:
    """Everything that a trial left, by name; what was collected is None."""
    query = (
        select(ArtefactRow.name, BlobRow)
        .join(BlobRow, col(BlobRow.content_hash) == col(ArtefactRow.content_hash))
        .where(ArtefactRow.trial_sequence == sequence)
        .order_by(col(ArtefactRow.name))
    )
    return {name: blobs.get(blob, folder) for name, blob in session.exec(query)}


def has_trial(session: Session, trial_id: str) -> bool:
    """Whether any study has a trial with this id."""
    return session.exec(select(TrialRow.sequence).where(TrialRow.trial_id == trial_id)).first() is not None


def counts(session: Session, study_id: str) -> dict[Combination, EvidenceCounts]:
    """As `Store.counts`."""
    own = (
        select(CombinationRow.key, TrialRow.evidence, TrialRow.outcome, func.count())
        .join(CombinationRow, col(TrialRow.combination_id) == col(CombinationRow.id))
        .where(TrialRow.study_id == study_id)
        .group_by(col(CombinationRow.key), col(TrialRow.evidence), col(TrialRow.outcome))
    )
    reused = (
        select(CombinationRow.key, ReusedRow.evidence, TrialRow.outcome, func.count())
        .join(CombinationRow, col(ReusedRow.combination_id) == col(CombinationRow.id))
        .join(TrialRow, col(TrialRow.sequence) == col(ReusedRow.trial_sequence))
        .where(ReusedRow.study_id == study_id)
        .group_by(col(CombinationRow.key), col(ReusedRow.evidence), col(TrialRow.outcome))
    )
    where = f"a trial of study {study_id}"
    gathered: dict[str, Counter[tuple[Evidence, Outcome]]] = {}
    for query in (own, reused):
        for key, evidence, outcome, number in session.exec(query):
            said = (member(Evidence, evidence, where), member(Outcome, outcome, where))
            gathered.setdefault(key, Counter())[said] += number
    where = f"study {study_id}"
    return {
        rows.combination_from(key, where): EvidenceCounts(dict(by_outcome))
        for key, by_outcome in gathered.items()
    }


def failure_groups(study_id: str) -> Any:
    """A subquery: the ways in which a study's trials failed, each with its number and its first trial."""
    shown = [Evidence.BAD.value, Evidence.OTHER.value]
    own = (
        select_columns(
            col(TrialRow.signature), col(TrialRow.outcome), col(TrialRow.evidence), col(TrialRow.sequence)
        )
        .where(col(TrialRow.study_id) == study_id)
        .where(col(TrialRow.evidence).in_(shown))
    )
    reused = (
        select_columns(
            col(TrialRow.signature), col(TrialRow.outcome), col(ReusedRow.evidence), col(TrialRow.sequence)
        )
        .join(TrialRow, col(TrialRow.sequence) == col(ReusedRow.trial_sequence))
        .where(col(ReusedRow.study_id) == study_id)
        .where(col(ReusedRow.evidence).in_(shown))
    )
    both = union_all(own, reused).subquery()
    kind = (both.c.signature, both.c.outcome, both.c.evidence)
    number, first = func.count().label("number"), func.min(both.c.sequence).label("first")
    return select_columns(*kind, number, first).group_by(*kind).subquery()


def failures(session: Session, study_id: str) -> list[FailureGroup]:
    """As `Store.failures`."""
    groups = failure_groups(study_id)
    query: Any = (
        select_columns(groups, col(TrialRow.trial_id))
        .join(TrialRow, col(TrialRow.sequence) == groups.c.first)
        .order_by(groups.c.number.desc(), groups.c.first)
    )
    return [
        FailureGroup(
            signature=rows.text_of(row.signature, f"trial {row.trial_id}", "signature"),
            outcome=member(Outcome, row.outcome, f"trial {row.trial_id}"),
            evidence=member(Evidence, row.evidence, f"trial {row.trial_id}"),
            trials=row.number,
            trial_id=row.trial_id,
        )
        for row in session.execute(query)
    ]


def environments(session: Session, study_id: str) -> int:
    """As `Store.environments`."""
    own = (
        select(TrialRow.lock_hash)
        .where(TrialRow.study_id == study_id)
        .where(TrialRow.evidence != Evidence.VOID.value)
        .distinct()
    )
    reused = (
        select(TrialRow.lock_hash)
        .join(ReusedRow, col(TrialRow.sequence) == col(ReusedRow.trial_sequence))
        .where(ReusedRow.study_id == study_id)
        .distinct()
    )
    return len({*session.exec(own), *session.exec(reused)})


def machines(session: Session, study_id: str) -> list[Machine]:
    """As `Store.machines`."""
    query = (
        select(TrialRow.cpu, TrialRow.gpu_model, TrialRow.driver)
        .where(TrialRow.study_id == study_id)
        .where(TrialRow.evidence != Evidence.VOID.value)
        .distinct()
    )
    where = f"a trial of study {study_id}"
    columns = ("cpu", "gpu_model", "driver")
    found = [
        Machine(*(rows.text_of(value, where, column) for value, column in zip(values, columns, strict=True)))
        for values in session.exec(query)
    ]
    return sorted(found, key=str)
