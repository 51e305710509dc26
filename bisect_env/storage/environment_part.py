"""The part of the store that knows combinations and locks."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from sqlmodel import col, select

from bisect_env.environments.lock import Lock
from bisect_env.matrix.combination import Combination
from bisect_env.storage import rows
from bisect_env.storage.records import CombinationState, CombinationStatus
from bisect_env.storage.sessions import Sessions, combination_row, constraints, study_row
from bisect_env.storage.tables import CombinationRow, LockRow, PackageRow
from bisect_env.storage.values import clean, public


class EnvironmentPart(Sessions):
    """Combinations and locks."""

    def save_locks(self, study_id: str, locks: Iterable[Lock]) -> None:
        """Store locks that are not there yet, with their packages."""
        wanted = {lock.content_hash: lock for lock in locks}
        with self._writing() as session:
            study_row(session, study_id)
            query = select(LockRow.content_hash).where(col(LockRow.content_hash).in_(wanted))
            known = set(session.exec(query))
            now = datetime.now(UTC)
            new = [lock for content_hash, lock in wanted.items() if content_hash not in known]
            session.add_all(rows.lock_row(lock, now) for lock in new)
            session.flush()
            session.add_all(package for lock in new for package in rows.package_rows(lock))

    def lock(self, content_hash: str) -> Lock | None:
        """A stored lock, whole."""
        with self._reading() as session:
            row = session.get(LockRow, content_hash)
            if row is None:
                return None
            query = select(PackageRow).where(PackageRow.lock_hash == content_hash)
            # Sorted here: a server sorts texts as its locale does.
            packages = sorted(session.exec(query), key=lambda package: (package.name, package.manager))
            return rows.lock_of(row, packages)

    def save_combinations(self, study_id: str, states: Iterable[CombinationState]) -> None:
        """Store what is known about combinations before anything runs.

        What running has taught is not forgotten: an `unbuildable` or `set-aside` combination that comes as
        `solvable` with the same lock stays what it is.

        Raises:
            ValueError: A status that is none, or a lock that is not stored.
        """
        with self._writing() as session, constraints("a lock that is not stored"):
            study_row(session, study_id)
            query = select(CombinationRow).where(CombinationRow.study_id == study_id)
            known = {row.key: row for row in session.exec(query)}
            for state in states:
                key, status = clean(state.combination.key), CombinationStatus(state.status)
                row = known.get(key)
                if row is None:
                    row = CombinationRow(study_id=study_id, key=key, status="", reason="")
                    session.add(row)
                    known[key] = row
                elif (
                    status is CombinationStatus.SOLVABLE
                    and CombinationStatus(row.status).is_learnt
                    and row.lock_hash == state.lock_hash
                ):
                    continue
                row.status, row.reason, row.lock_hash = status.value, public(state.reason), state.lock_hash
            session.flush()

    def set_combination(self, study_id: str, combination: Combination, status: str, reason: str) -> None:
        """Store what running has taught about a combination; its lock stays.

        Raises:
            ValueError: A status that is none, or a combination that the study does not have.
        """
        checked = CombinationStatus(status)
        with self._writing() as session:
            row = combination_row(session, study_id, combination)
            row.status, row.reason = checked.value, public(reason)

    def combinations(self, study_id: str) -> list[CombinationState]:
        """Every combination of a study, in the order in which they were saved first."""
        with self._reading() as session:
            query = select(CombinationRow).where(CombinationRow.study_id == study_id)
            return [rows.combination_of(row) for row in session.exec(query.order_by(col(CombinationRow.id)))]
