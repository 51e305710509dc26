"""The part of the store that knows studies and what was decided in them."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from sqlmodel import Session, col, select

from bisect_env.storage import rows
from bisect_env.storage.records import TARGET, Decision, Study, StudyDefinition, StudyStatus
from bisect_env.storage.references import find_study
from bisect_env.storage.sessions import Sessions, study_row
from bisect_env.storage.tables import DecisionRow, StudyRow
from bisect_env.storage.values import clean, jsonable, public


class StudyPart(Sessions):
    """Studies and decisions."""

    def find_study(self, name: str, digest: str) -> Study | None:
        """The newest study with this name and digest, finished or not."""
        with self._reading() as session:
            row = _newest(session, name, digest)
            return rows.study_of(row) if row else None

    def open_study(self, definition: StudyDefinition) -> Study:
        """Go on with the study of this name and digest, or begin one; a fresh one begins in any case.

        An existing study takes over everything from the definition but `exclude_newer`, which keeps its
        first value (what was resolved must stay resolved), and `fresh`. One that was interrupted or failed
        is open again; one that is finished stays so until `reopen`.
        """
        now = datetime.now(UTC)
        values = rows.definition_values(definition)
        with self._writing() as session:
            row = None if definition.fresh else _newest(session, definition.name, definition.digest)
            if row is None:
                row = StudyRow(
                    id=uuid.uuid4().hex,
                    name=definition.name,
                    digest=definition.digest,
                    status=StudyStatus.OPEN.value,
                    created_at=now,
                    updated_at=now,
                    exclude_newer=definition.exclude_newer,
                    fresh=definition.fresh,
                    **values,
                )
                session.add(row)
            else:
                for name, value in values.items():
                    setattr(row, name, value)
                row.updated_at = now
                if row.status != StudyStatus.FINISHED:
                    row.status, row.finished_at = StudyStatus.OPEN.value, None
            session.flush()
            # Read back, so that a new study and one that goes on look alike to the last digit.
            session.refresh(row)
            return rows.study_of(row)

    def save_verdict(self, study_id: str, verdict: dict[str, Any]) -> None:
        """Store the verdict so far, for those who look at a study that is still going."""
        with self._writing() as session:
            row = study_row(session, study_id)
            row.verdict, row.updated_at = jsonable(verdict), datetime.now(UTC)

    def finish_study(self, study_id: str, status: str, verdict: dict[str, Any] | None) -> None:
        """End a study.

        Args:
            study_id: Which one.
            status: `finished`, `interrupted` or `failed`.
            verdict: The verdict document; None keeps the one stored last.

        Raises:
            ValueError: Another status.
        """
        ended = StudyStatus(status)
        if ended is StudyStatus.OPEN:
            raise ValueError("an open study has not ended")
        now = datetime.now(UTC)
        with self._writing() as session:
            row = study_row(session, study_id)
            row.status, row.finished_at, row.updated_at = ended.value, now, now
            if verdict is not None:
                row.verdict = jsonable(verdict)

    def reopen(self, study_id: str) -> None:
        """Go on with a study that had ended; its verdict stays until the next one."""
        with self._writing() as session:
            row = study_row(session, study_id)
            row.status, row.finished_at, row.updated_at = StudyStatus.OPEN.value, None, datetime.now(UTC)

    def study(self, reference: str | None = None) -> Study:
        """The study that a user means.

        Args:
            reference: An id, a unique beginning of one, or a name (its newest study); None for the newest
                study of all.

        Raises:
            UsageError: There is none, or several ids begin so.
        """
        return find_study(self.studies(), reference, self.shown)

    def studies(self) -> list[Study]:
        """Every study, the newest first."""
        with self._reading() as session:
            query = select(StudyRow).order_by(col(StudyRow.created_at).desc(), col(StudyRow.id))
            return [rows.study_of(row) for row in session.exec(query)]

    def record_decision(self, study_id: str, kind: str, payload: dict[str, Any]) -> None:
        """Store something that was decided, for those who want to follow the study later."""
        with self._writing() as session:
            study_row(session, study_id)
            session.add(
                DecisionRow(
                    study_id=study_id, at=datetime.now(UTC), kind=clean(kind), payload=jsonable(payload)
                )
            )

    def settle_target(self, study_id: str, signature: str, trial_id: str) -> tuple[str, str]:
        """Say which failure a study is about; who says so first is believed.

        Args:
            study_id: Which study.
            signature: Of the failure, as stored.
            trial_id: The trial that it was seen in, "" where the matrix states it.

        Returns:
            What is settled: signature and trial.
        """
        with self._writing() as session:
            study_row(session, study_id)
            if (settled := _target(session, study_id)) is not None:
                return settled
            payload = jsonable({"signature": public(signature), "trial": trial_id})
            session.add(DecisionRow(study_id=study_id, at=datetime.now(UTC), kind=TARGET, payload=payload))
            return public(signature), trial_id

    def target(self, study_id: str) -> tuple[str, str] | None:
        """Signature of the failure that a study is about, and its trial; None if any failure is meant."""
        with self._reading() as session:
            return _target(session, study_id)

    def decisions(self, study_id: str) -> list[Decision]:
        """Everything that was decided in a study, in order."""
        with self._reading() as session:
            query = select(DecisionRow).where(DecisionRow.study_id == study_id).order_by(col(DecisionRow.id))
            return [Decision(row.at, row.kind, row.payload) for row in session.exec(query)]


def _target(session: Session, study_id: str) -> tuple[str, str] | None:
    query = select(DecisionRow).where(DecisionRow.study_id == study_id, DecisionRow.kind == TARGET)
    row = session.exec(query.order_by(col(DecisionRow.id))).first()
    return (str(row.payload["signature"]), str(row.payload["trial"])) if row else None


def _newest(session: Session, name: str, digest: str) -> StudyRow | None:
    query = select(StudyRow).where(StudyRow.name == name, StudyRow.digest == digest)
    return session.exec(query.order_by(col(StudyRow.created_at).desc())).first()
