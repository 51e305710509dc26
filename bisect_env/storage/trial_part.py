"""The part of the store that knows trials."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy.exc import IntegrityError
from sqlmodel import col, delete

from bisect_env.matrix.combination import Combination
from bisect_env.storage import blobs, queries, rows
from bisect_env.storage.records import Counts, FailureGroup, StoredTrial, WholeTrial
from bisect_env.storage.sessions import Sessions, combination_row
from bisect_env.storage.tables import ArtefactRow, ClaimRow
from bisect_env.trials.records import Evidence, Machine, TrialRecord


class TrialPart(Sessions):
    """Trials, and what they add up to."""

    def record_trial(
        self, study_id: str, record: TrialRecord, evidence: Evidence, *, trial_key: str = ""
    ) -> bool:
        """Store a trial, and end its claim; when this returns, it is there for good.

        Args:
            study_id: Its study.
            record: What it did.
            evidence: What that says.
            trial_key: What makes trials of other studies the same measurement; "" if nothing does.

        Returns:
            False when a trial with this id was there already, which then stays as it is.

        Raises:
            ValueError: The study does not have this combination, or its lock is not stored.
        """
        try:
            with self._writing() as session:
                if queries.has_trial(session, record.trial_id):
                    return False
                combination = combination_row(session, study_id, record.combination)
                assert combination.id is not None
                row = rows.trial_row(study_id, combination.id, record, evidence, trial_key, datetime.now(UTC))
                session.add(row)
                session.flush()
                assert row.sequence is not None
                for name, content in rows.artefacts_of(record).items():
                    digest = blobs.put(session, self._database.folder, content)
                    session.add(ArtefactRow(trial_sequence=row.sequence, name=name, content_hash=digest))
                session.exec(delete(ClaimRow).where(col(ClaimRow.trial_id) == record.trial_id))
            return True
        except IntegrityError as error:
            # A back end without our write lock lets two writers both see that the trial is not there yet.
            with self._reading() as session:
                if queries.has_trial(session, record.trial_id):
                    return False
            raise ValueError(f"trial {record.trial_id} names a lock that is not stored") from error

    def trials(self, study_id: str, *, after: int = 0) -> list[StoredTrial]:
        """Trials that a study recorded, in the order of recording, without logs.

        Args:
            study_id: Which one.
            after: Only those with a larger `sequence`.
        """
        with self._reading() as session:
            return queries.trials(session, study_id, after)

    def trial(self, trial_id: str) -> WholeTrial | None:
        """One trial with its logs."""
        with self._reading() as session:
            return queries.trial(session, trial_id, self._database.folder)

    def counts(self, study_id: str) -> dict[Combination, Counts]:
        """How many trials of each combination said what, reused ones included.

        Combinations without trials are left out.
        """
        with self._reading() as session:
            return queries.counts(session, study_id)

    def failures(self, study_id: str) -> list[FailureGroup]:
        """The ways in which trials failed (bad and other ones), the most frequent first."""
        with self._reading() as session:
            return queries.failures(session, study_id)

    def environments(self, study_id: str) -> int:
        """Number of distinct locks in which trials of a study ran; spoilt trials do not count."""
        with self._reading() as session:
            return queries.environments(session, study_id)

    def machines(self, study_id: str) -> list[Machine]:
        """Classes of machines on which a study's own trials ran; spoilt trials do not count."""
        with self._reading() as session:
            return queries.machines(session, study_id)
