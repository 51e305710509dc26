"""The store: all reading and writing of studies in a results database, for many processes at once.

**Consistency.** A method that writes commits one transaction before it returns. Afterwards every other
process sees the change, even if this process is killed. If a method raises an error, nothing is changed.

**Idempotence.** Storing the same trial, lock or combination again changes nothing. A trial is identified by
its id, a lock by its content, a combination by its study and its values.

**Immutability.** A recorded trial never changes.

**Order.** `trials` and `decisions` come in the order in which they were recorded.

**Concurrency.** Any number of processes and threads may write at once; a writer waits up to a minute for
other writers before it raises an error. Readers see one state of the database; they and writers do not wait
for each other.

**Exceptions.** `StorageError`, with a message for the user, if the database fails or lacks a study.
`ValueError`, which means a defect of the caller, if a combination or lock is not stored. `UsageError` if a
user's reference matches no study.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import re
import threading
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from sqlalchemy import ColumnElement, literal_column, update
from sqlalchemy import select as select_columns
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, delete, func, select

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.origins import Origin
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.environments.lock import Lock
from bisect_env.errors import UsageError
from bisect_env.matrix.files import StudyFile
from bisect_env.matrix.grid import Combination
from bisect_env.storage import blobs, rows
from bisect_env.storage.backend import (
    LOG_LIMIT,
    Database,
    check_version,
    database_location,
    has_schema,
    make_schema,
    no_results,
    speaking,
)
from bisect_env.storage.entries import (
    AMPLIFIED,
    CombinationState,
    CombinationStatus,
    Decision,
    StoredTrial,
    Study,
    StudyDefinition,
    StudyStatus,
    WholeTrial,
    failures_of,
)
from bisect_env.storage.postgres import open_server
from bisect_env.storage.sqlite import open_file
from bisect_env.storage.study_trials import StudyTrials, end_keys, like_ends, sequences_of, study_row
from bisect_env.storage.tables import (
    ArtefactRow,
    BlobRow,
    ClaimRow,
    CombinationRow,
    DecisionRow,
    LockRow,
    MemberRow,
    MetaRow,
    PackageRow,
    StudyRow,
    TrialRow,
)
from bisect_env.storage.values import DamageError, clean, public
from bisect_env.trials.judge import Target
from bisect_env.trials.records import Evidence

# --------------------------------------------------------------------------------------------------
# The collector keeps logs within a size limit, and never drops logs that a verdict cites.
#
# Trials are never dropped, because that would change the counts behind verdicts. A verdict cites the first
# trial of each kind of failure, which reports show with its stack, and the first bad and the first good
# trial of the two combinations at its boundary.

LIMIT = 10 * 2**30
"""Default limit for the total size of all logs, in bytes."""


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of deleting old logs to save space: bytes before and after, and what was kept.

    Attributes:
        limit: Maximum total size of logs, in bytes.
        before: Bytes that logs took before.
        after: Bytes that logs take afterwards.
        logs: Number of contents deleted, or to be deleted in a dry run.
        cited: Bytes of logs that reports show, which are kept.
    """

    limit: int
    before: int
    after: int
    logs: int
    cited: int


def _limit_of(session: Session) -> int:
    """Return the maximum total size of logs in bytes that the database stores, or the default."""
    value = session.exec(select(MetaRow.value).where(MetaRow.name == LOG_LIMIT)).first()
    return int(value) if value is not None and re.fullmatch(r"[0-9]{1,18}", value) else LIMIT


def _stored(session: Session) -> int:
    """Return how many bytes all logs take in the database, after compression."""
    query = select(func.coalesce(func.sum(func.length(BlobRow.data)), 0))
    return int(session.exec(query).one())


def _cited_trials(store: Store) -> list[str]:
    """Return the ids of trials that reports show as examples, and whose logs are therefore kept.

    These are one trial of each kind of failure, and one at the first bad and last good combination.
    """
    cited: list[str] = []
    for study in store.studies():
        if (verdict := study.verdict) is None:
            continue
        trials = store.trials(study.id)
        cited += [group.trial_id for group in failures_of(trials)]
        for values, evidence in ((verdict.first_bad, Evidence.BAD), (verdict.last_good, Evidence.GOOD)):
            if values:
                there = Combination.of(values)
                found = (t.trial_id for t in trials if t.combination == there and t.evidence is evidence)
                cited += [*itertools.islice(found, 1)]
    return cited


def _logs(session: Session) -> list[tuple[str, str, int]]:
    """Return trial id, content hash and stored size in bytes of each stored log, the oldest trial first."""
    size: Any = func.length(BlobRow.data)
    query = (
        select(TrialRow.trial_id, BlobRow.content_hash, size)
        .join(ArtefactRow, col(ArtefactRow.trial_sequence) == col(TrialRow.sequence))
        .join(BlobRow, col(BlobRow.content_hash) == col(ArtefactRow.content_hash))
        .where(col(BlobRow.data).is_not(None))
        .order_by(col(TrialRow.sequence), col(BlobRow.content_hash))
    )
    return list(session.exec(query))


def _state(session: Session) -> tuple[dict[str, datetime], int]:
    """Return when each study was changed last, and the number of the last trial that any study received."""
    changed = session.exec(select(StudyRow.id, StudyRow.updated_at)).all()
    return dict(changed), session.exec(select(func.max(MemberRow.id))).one() or 0


def _used_since(session: Session, seen: tuple[dict[str, datetime], int]) -> set[str]:
    """Return the hashes of contents that must stay because something changed after they were chosen.

    These are the logs of all trials of studies that were changed, whose verdicts may cite them now, the logs
    of new trials, and the files of studies.

    Args:
        session: A writing session.
        seen: The result of `_state` when contents were chosen.
    """
    before, last = seen
    changed = [study_id for study_id, at in _state(session)[0].items() if before.get(study_id) != at]
    query = select(ArtefactRow.content_hash).join(
        MemberRow, col(MemberRow.trial_sequence) == col(ArtefactRow.trial_sequence)
    )
    query = query.where(col(MemberRow.study_id).in_(changed) | (col(MemberRow.id) > last))
    return {*session.exec(query)} | _of_studies(session)


# --------------------------------------------------------------------------------------------------
# Finding the study that a user refers to. Pure.

_SHOWN = 5
SHORT = 8
"""Number of digits of an id in messages."""


def find_study(studies: Sequence[Study], reference: str | None, shown: str) -> Study:
    """Choose the study that a user means by an id, a unique beginning of an id, or a name.

    Args:
        studies: All studies, the newest first.
        reference: Id, beginning, name, or path of a matrix; None for the newest study.
        shown: Name of the database, for messages.

    Raises:
        UsageError: There is no such study, or several ids begin with the reference.
    """
    if not studies:
        raise UsageError(
            f"there is no study in {shown}",
            remedy="start `bisect-env run MATRIX` first, or name the database with `--db` or BISECT_ENV_DB",
        )
    # Studies that explain another study are shown only on request.
    own = [study for study in studies if "explains" not in study.definition.settings]
    if reference is None:
        return (own or studies)[0]
    # A name takes precedence over the beginning of an id; `cafe` can be both.
    named = [study for study in studies if reference in (study.id, study.name)]
    # Users may also refer to a study by the path of its matrix file.
    named += [study for study in own if reference and study.definition.matrix_path == reference]
    if named:
        return named[0]
    matching = [study for study in studies if reference and study.id.startswith(reference.lower())]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UsageError(
            f"{len(matching)} studies have an id that begins with {reference!r}",
            tried=_listed(matching),
            remedy="give more digits",
        )
    names = list(dict.fromkeys(study.name for study in studies))
    near = difflib.get_close_matches(reference, names, n=3, cutoff=0.5)
    raise UsageError(
        f"there is no study {reference!r} in {shown}",
        tried=None if near else f"newest studies: {_listed(studies)}",
        remedy=f"did you mean {' or '.join(near)}?" if near else "name one by its id or by its matrix's name",
    )


def _listed(studies: Sequence[Study]) -> str:
    texts = [f"{study.id[:SHORT]} ({study.name})" for study in studies[:_SHOWN]]
    return ", ".join(texts) + (", …" if len(studies) > _SHOWN else "")


# --------------------------------------------------------------------------------------------------
# The newest study of a name.


def _newest(session: Session, name: str, digest: str, user: str | None) -> StudyRow | None:
    query = select(StudyRow).where(StudyRow.name == name, StudyRow.digest == digest)
    if user is not None:
        query = query.where(StudyRow.username == user)
    return session.exec(query.order_by(col(StudyRow.created_at).desc())).first()


# --------------------------------------------------------------------------------------------------
# Claims, by which several commands share trials.
#
# A command that wants to run a trial states how many trials of that combination it believes to be recorded
# or running. If the number is right, the command gets the claim (compare and swap). If not, another command
# was faster, and this one reads the new trials before it asks the search again. A claim is a lease by the
# database's clock, so it expires if its holder dies. A claim that ends later than any lease could is
# invalid too: it was made before the clock was set back. Trials are recorded even if their claim has
# expired, because dropping slow trials would bias the results towards fast ones.

_NAMED = 500
"""Maximum number of combinations or contents that a query names."""
LONGEST_LEASE = 600.0
"""Maximum duration of a claim in seconds. A claim that expires later shows that the clock was set back."""
_CLOCKS: dict[str, Any] = {
    "sqlite": select_columns(literal_column("(julianday('now') - 2440587.5) * 86400.0")),
    "postgresql": select_columns(literal_column("extract(epoch FROM clock_timestamp())")),
}


def time_of_database(session: Session) -> float:
    """Return the current time of the database's clock, in seconds since 1970.

    Use it instead of the clocks of hosts, which may differ.
    """
    connection = session.connection()
    return float(connection.execute(_CLOCKS[connection.dialect.name]).scalar_one())


def _is_valid(now: float) -> ColumnElement[bool]:
    """Return the SQL condition that selects the claims that have not expired at the time `now`.

    `now` is a result of `time_of_database`.
    """
    return col(ClaimRow.expires_at).between(now, now + LONGEST_LEASE)


def _taken(session: Session, study_id: str, after: int) -> Counter[int]:
    """Count, for each combination of a study, the trials that are claimed or that are newer than `after`.

    `after` is a `sequence`, the number of a trial in the order in which the study received them.
    """
    new = select(MemberRow.combination_id).where(MemberRow.study_id == study_id, col(MemberRow.id) > after)
    claimed = select(ClaimRow.combination_id).where(ClaimRow.study_id == study_id)
    return Counter([*session.exec(new), *session.exec(claimed)])


def _kept_files(session: Session, files: Sequence[StudyFile]) -> list[dict[str, Any]]:
    """Store the files of a study, and return a dict for each: its name, its hash, and if it is executable.

    Of a file that contains a password in an address, or is too large, only the name is stored.
    """
    rows_of = []
    for file in files:
        text = file.content.decode("utf-8", "replace")
        digest: str | None = None
        if public(text) == clean(text) and len(file.content) <= blobs.LARGEST:
            digest = blobs.put(session, [file.content])[0] if file.content else ""
        rows_of.append({"name": clean(file.name), "content_hash": digest, "executable": file.executable})
    return rows_of


def _of_studies(session: Session) -> set[str]:
    """Return the hashes of all contents that are files of studies, which are never deleted to save space."""
    found: set[str] = set()
    for files in session.exec(select(StudyRow.files)):
        entries = files if isinstance(files, list) else []
        found.update(str(file.get("content_hash")) for file in entries if isinstance(file, dict))
    return found


class Store:
    """An open results database, with methods to read and write studies, combinations and trials.

    The docstring of this module states what these methods guarantee.

    Attributes:
        database: The open database.
    """

    # -- open sessions ---------------------------------------------------------------------------------------

    def __init__(self, database: Database) -> None:
        self.database = database
        self._local = threading.local()

    def close(self) -> None:
        """Close the connections; calling this twice is allowed."""
        self.database.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def shown(self) -> str:
        """Return the database's name for messages, without a password."""
        return self.database.shown

    @contextlib.contextmanager
    def reading(self) -> Iterator[Session]:
        """Open a session in which this thread reads one unchanging state of the database.

        The session ends with the `with` block; a session that this thread has open is reused. Others may
        write meanwhile.
        """
        if (shared := getattr(self._local, "session", None)) is not None:
            yield shared
            return
        with speaking(self.shown), Session(self.database.reader) as session:
            self._local.session = session
            try:
                yield session
            finally:
                self._local.session = None

    @contextlib.contextmanager
    def writing(self) -> Iterator[Session]:
        """Open a session for writing. It is committed at the end of the `with` block."""
        with speaking(self.shown), Session(self.database.engine) as session:
            yield session
            session.commit()

    @classmethod
    def open(cls, url_or_path: str | None = None, *, read_only: bool = False) -> Store:
        """Open the results database; create it if it does not exist.

        Args:
            url_or_path: Path or URL; None for `BISECT_ENV_DB`, else a file in the user's data directory.
            read_only: Whether to open only an existing database, and refuse to write.

        Raises:
            UsageError: The path or URL is invalid.
            StorageError: The database is not one of bisect-env, is damaged, has another schema, cannot be
                reached or lies on a network file system. It was not changed.
        """
        location = database_location(url_or_path)
        if isinstance(location, Path):
            store = cls(open_file(location, read_only=read_only))
        else:
            store = cls(open_server(location, read_only=read_only))
        try:
            store._find_or_make(read_only=read_only)
        except BaseException:
            store.close()
            raise
        return store

    def _find_or_make(self, *, read_only: bool) -> None:
        with self.reading() if read_only else self.writing() as session:
            connection = session.connection()
            if not has_schema(connection, self.shown):
                if read_only:
                    raise no_results(self.shown)
                make_schema(connection)
            check_version(connection, self.shown)

    # -- studies, and what was decided in them ---------------------------------------------------------------

    def find_study(self, name: str, digest: str, user: str | None = None) -> Study | None:
        """Return the newest study with this name and digest, finished or not; None if there is none.

        If `user` is given, only studies of this user count.
        """
        with self.reading() as session:
            row = _newest(session, name, digest, user)
            return rows.study_of(row) if row else None

    def open_study(self, definition: StudyDefinition, *, study_id: str | None = None) -> Study:
        """Resume the newest study with the same name and digest, or create a study if there is none.

        A resumed study takes over the new definition except `exclude_newer`, which keeps its first value (so
        that resolved versions stay the same), and `fresh`. An interrupted or failed study is opened again; a
        finished one stays finished.

        Args:
            definition: Definition of the study. If it is `fresh`, a new study is created.
            study_id: Id of the study to resume; "" to create a new one; None to search by name and digest.
        """
        now = datetime.now(UTC)
        values = rows.definition_values(definition)
        with self.writing() as session:
            row = (
                None
                if definition.fresh or study_id == ""
                else _newest(session, definition.name, definition.digest, None)
            )
            row = session.get(StudyRow, study_id) if study_id else row
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
            if definition.files is not None:
                row.files = _kept_files(session, definition.files)
            session.flush()
            # Read the study back, so that a new and a resumed study have exactly equal values.
            session.refresh(row)
            return rows.study_of(row)

    def files(self, study_id: str) -> tuple[tuple[StudyFile, ...], tuple[str, ...]]:
        """Return the stored files of a study, and the names of the files that were not stored.

        Raises:
            StorageError: A file is damaged.
        """
        with self.reading() as session:
            found, missing = [], []
            for file in rows.checked(study_row(session, study_id)).files:
                blob = session.get(BlobRow, file.content_hash) if file.content_hash else None
                content = b"" if file.content_hash == "" else None if blob is None else blobs.get(blob)
                if content is None:
                    missing.append(file.name)
                else:
                    found.append(StudyFile(file.name, content, file.executable))
            return tuple(found), tuple(missing)

    def update_study(
        self,
        study_id: str,
        status: StudyStatus | None = None,
        verdict: VerdictDocument | None = None,
        *,
        grid: Sequence[AxisInfo] | None = None,
    ) -> None:
        """Store a new status, verdict or grid of a study. Arguments that are None change nothing.

        Args:
            study_id: Id of the study.
            status: New status. With any other than `open`, the study ends now.
            verdict: Current verdict. Reports can show it while the study runs.
            grid: Axes with all values, after releases were added to them.
        """
        now = datetime.now(UTC)
        with self.writing() as session:
            row = study_row(session, study_id)
            row.updated_at = now
            if status is not None:
                row.status = str(status)
                row.finished_at = None if status == StudyStatus.OPEN else now
            if verdict is not None:
                row.verdict = rows.model_value(verdict)
            if grid is not None:
                row.grid = rows.grid_value(grid)

    def study(self, reference: str | None = None) -> Study:
        """Return the study that a reference names, or the newest study.

        Args:
            reference: An id, a unique beginning of one, or a name (its newest study); None for the newest
                study of all.

        Raises:
            UsageError: There is no such study, or several ids begin with the reference.
        """
        return find_study(self.studies(), reference, self.shown)

    def studies(self) -> list[Study]:
        """Return every study, the newest first."""
        with self.reading() as session:
            query = select(StudyRow).order_by(col(StudyRow.created_at).desc(), col(StudyRow.id))
            return [rows.study_of(row) for row in session.exec(query)]

    def record_decision(self, study_id: str, kind: str, payload: dict[str, Any]) -> None:
        """Store a note about a decision of the study, so that reports and resumed studies can use it."""
        with self.writing() as session:
            study_row(session, study_id)
            session.add(rows.decision_row(study_id, kind, payload))
            if kind == AMPLIFIED:
                # This decision affects the target of the study.
                self.study_trials(study_id).write_evidence(session)

    def payloads(self, study_id: str, kind: str) -> list[dict[str, Any]]:
        """Return the data of all stored decisions of one kind, in the order in which they were made."""
        return [one.payload for one in self.decisions(study_id) if one.kind == kind]

    def record_if_new(self, study_id: str, kind: str, payload: dict[str, Any]) -> None:
        """Store a decision unless the last one of its kind has the same payload."""
        if self.payloads(study_id, kind)[-1:] != [payload]:
            self.record_decision(study_id, kind, payload)

    def decisions(self, study_id: str) -> list[Decision]:
        """Return all decisions of a study, in the order in which they were made."""
        with self.reading() as session:
            # A merge appends those of the other database, some of which may be older.
            query = select(DecisionRow).where(DecisionRow.study_id == study_id)
            query = query.order_by(col(DecisionRow.at), col(DecisionRow.id))
            return [rows.decision_of(row) for row in session.exec(query)]

    # -- combinations and locks ------------------------------------------------------------------------------

    def save_locks(self, locks: Iterable[Lock]) -> None:
        """Store locks and their packages. Locks that are already stored stay unchanged."""
        wanted = {lock.content_hash: lock for lock in locks}
        with self.writing() as session:
            query = select(LockRow.content_hash).where(col(LockRow.content_hash).in_(wanted))
            known = set(session.exec(query))
            new = [rows.lock_rows(lock) for lock in wanted.values() if lock.content_hash not in known]
            session.add_all(row for row, _ in new)
            session.flush()
            session.add_all(package for _, packages in new for package in packages)

    def lock(self, content_hash: str) -> Lock | None:
        """Return the stored lock with the given content hash, or None if there is none.

        The content is checked against the hash.

        Raises:
            StorageError: The stored text does not match the hash, or is no valid lock.
        """
        with self.reading() as session:
            row = session.get(LockRow, content_hash)
            if row is None:
                return None
            query = select(PackageRow).where(PackageRow.lock_hash == content_hash)
            return rows.lock_of(row, list(session.exec(query)))

    def save_combinations(self, study_id: str, states: Iterable[CombinationState]) -> None:
        """Store the combinations of a study, with their statuses, before anything runs.

        A combination that is saved as `unlocked`, or as `solvable` with the lock that it has, keeps its
        status and reason (findings of trials, and warnings of its environment) unless it was excluded.

        Raises:
            ValueError: A lock is not stored.
        """
        with self.writing() as session:
            study = study_row(session, study_id)
            named = [(clean(state.combination.key), state) for state in states]
            query = select(CombinationRow).where(CombinationRow.study_id == study_id)
            if len(named) <= _NAMED:
                # Do not read all combinations of a large matrix for one that was locked.
                query = query.where(col(CombinationRow.key).in_([key for key, _ in named]))
            known = {row.key: row for row in session.exec(query)}
            locked = set()
            for key, state in named:
                row = known.get(key)
                if row is None:
                    row = CombinationRow(study_id=study_id, key=key, status="", reason="")
                    session.add(row)
                    known[key] = row
                elif row.status != CombinationStatus.EXCLUDED and (
                    state.status == CombinationStatus.UNLOCKED
                    or (state.status == CombinationStatus.SOLVABLE and row.lock_hash == state.lock_hash)
                ):
                    continue
                if state.lock_hash != row.lock_hash:
                    locked.add(key)
                row.status, row.reason = str(state.status), public(state.reason)
                row.lock_hash = state.lock_hash
            try:
                session.flush()
            except IntegrityError as error:
                raise ValueError("a combination names a lock that is not stored") from error
            # Failures in the environment of a stated end determine the target of the study.
            if locked and locked & like_ends(session, study_id, end_keys(rows.study_of(study))):
                self.study_trials(study_id).write_evidence(session)

    def set_combination(
        self, study_id: str, combination: Combination, status: CombinationStatus, reason: str
    ) -> None:
        """Store a new status of a combination after a build or a trial. Its lock stays unchanged.

        Args:
            study_id: Id of the study.
            combination: The combination.
            status: New status.
            reason: Reason of the status, for users.

        Raises:
            ValueError: The study does not have the combination.
        """
        with self.writing() as session:
            (row_id,) = self.combination_ids(session, study_id, [combination])
            row = session.get_one(CombinationRow, row_id)
            row.status, row.reason = str(status), public(reason)

    def combinations(self, study_id: str) -> list[CombinationState]:
        """Return every combination of a study, in the order in which they were first saved."""
        with self.reading() as session:
            query = select(CombinationRow).where(CombinationRow.study_id == study_id)
            found = [rows.combination_of(row) for row in session.exec(query.order_by(col(CombinationRow.id)))]
            if found and (row := session.get(StudyRow, study_id)) is not None:
                names = {axis.name for axis in rows.study_of(row).definition.grid}
                if any(
                    not names <= set(one.combination) or not (names or one.combination.items == ())
                    for one in found
                ):
                    raise DamageError(
                        f"study {study_id}", "grid", "its axes are not those of its combinations"
                    )
            return found

    # -- trials ----------------------------------------------------------------------------------------------

    def combination_ids(
        self, session: Session, study_id: str, combinations: Sequence[Combination]
    ) -> list[int]:
        """Return the database ids of combinations of a study, in the given order.

        Raises:
            ValueError: The study does not have one of them.
        """
        keys = {combination: clean(combination.key) for combination in combinations}
        query = select(CombinationRow.key, CombinationRow.id).where(CombinationRow.study_id == study_id)
        if len(keys) <= _NAMED:
            query = query.where(col(CombinationRow.key).in_(keys.values()))
        ids = dict(session.exec(query).all())
        found = [ids.get(keys[combination]) for combination in combinations]
        if None in found:
            raise ValueError(f"study {study_id} has no combination {combinations[found.index(None)]}")
        return [row_id for row_id in found if row_id is not None]

    def study_trials(self, study_id: str) -> StudyTrials:
        """Return an object with which to read, judge and record the trials of a study.

        It has read no trials yet.

        Raises:
            ValueError: There is no such study.
        """
        return StudyTrials(self, study_id)

    def trials(self, study_id: str) -> list[StoredTrial]:
        """Return all trials of a study with their evidence, but without logs.

        Reused trials are included. The trials are in the order in which the study received them.
        """
        return self.study_trials(study_id).look()

    def target(self, study_id: str) -> Target:
        """Return the failure that a study looks for, as determined by its trials so far."""
        trials = self.study_trials(study_id)
        trials.look()
        return trials.target

    def evidence(self, trial: WholeTrial) -> Evidence:
        """Return whether a trial is good, bad, other, skipped or void in the study that recorded it."""
        trials = self.trials(trial.study_id)
        return next(one.evidence for one in trials if one.trial_id == trial.record.trial_id)

    def trial(self, trial_id: str) -> WholeTrial | None:
        """Return one trial with its logs, or None if the trial is not stored."""
        query = (
            select(TrialRow, CombinationRow.key)
            .join(MemberRow, col(MemberRow.trial_sequence) == col(TrialRow.sequence))
            .join(CombinationRow, col(CombinationRow.id) == col(MemberRow.combination_id))
            .where(TrialRow.trial_id == trial_id, MemberRow.study_id == TrialRow.study_id)
        )
        with self.reading() as session:
            found = session.exec(query).first()
            if found is None:
                return None
            row, key = found
            logs = {name: content for name, _, content in blobs.left_by(session, row)}
            return rows.whole_trial(row, key, logs)

    # -- claims, and trials of other studies -----------------------------------------------------------------

    def claim(
        self,
        study_id: str,
        holder: str,
        wanted: Mapping[str, Combination],
        believed: Mapping[Combination, int],
        *,
        lease: float,
        after: int = 0,
    ) -> list[bool]:
        """Reserve trials before they run, so that commands that share the database do not run them twice.

        Args:
            study_id: Id of the study.
            holder: Unique id of the command that claims the trials.
            wanted: Maps the id that each trial will have to its combination in the study.
            believed: Number of trials of each combination that the command knows to be recorded or running;
                combinations without any may be left out. Of the recorded trials, only those after `after`
                count.
            lease: Seconds for which the claims are valid unless they are renewed, at most `LONGEST_LEASE`.
            after: The `sequence` up to which the holder knows all trials: trials recorded until then are not
                counted, neither here nor in `believed`.

        Returns:
            One boolean per entry of `wanted`: True if `holder` now has the claim, False if other commands
            have run or claimed this trial, or trials of that combination that `believed` does not count.

        Raises:
            ValueError: The study does not have a combination.
        """
        answers = []
        with self.writing() as session:
            now = time_of_database(session)
            session.exec(delete(ClaimRow).where(~_is_valid(now)))
            places = self.combination_ids(session, study_id, [*wanted.values()])
            taken = _taken(session, study_id, after)
            known = select(ClaimRow.trial_id).where(col(ClaimRow.trial_id).in_(wanted))
            used = {*session.exec(known), *sequences_of(session, wanted)}
            same: dict[str, Any] = {"study_id": study_id, "holder": clean(holder), "expires_at": now + lease}
            for (trial_id, combination), place in zip(wanted.items(), places, strict=True):
                answers.append(trial_id not in used and taken[place] == believed.get(combination, 0))
                if answers[-1]:
                    session.add(ClaimRow(trial_id=trial_id, combination_id=place, **same))
        return answers

    def renew(self, study_id: str, holder: str, running: Mapping[str, Combination], *, lease: float) -> None:
        """Extend the claims of the trials that a command is running, and delete its other claims.

        Claims that expired meanwhile (the command or its host was suspended) become valid again.

        Args:
            study_id: Id of the study.
            holder: Id of the command that runs the trials.
            running: Maps the id of each running trial to its combination.
            lease: Seconds from now for which the claims are valid.
        """
        with self.writing() as session:
            until = time_of_database(session) + lease
            is_old = (col(ClaimRow.holder) == clean(holder)) | col(ClaimRow.trial_id).in_(running)
            session.exec(delete(ClaimRow).where(is_old))
            recorded = sequences_of(session, running)
            left = [trial_id for trial_id in running if trial_id not in recorded]
            places = self.combination_ids(session, study_id, [running[trial_id] for trial_id in left])
            same: dict[str, Any] = {"study_id": study_id, "holder": clean(holder), "expires_at": until}
            for trial_id, place in zip(left, places, strict=True):
                session.add(ClaimRow(trial_id=trial_id, combination_id=place, **same))

    def release(self, holder: str, trial_ids: Collection[str] | None = None) -> None:
        """Delete the claims of a command on the given trials, so that other commands may run them.

        If `trial_ids` is None, all claims of the holder are deleted.
        """
        with self.writing() as session:
            query = delete(ClaimRow).where(col(ClaimRow.holder) == clean(holder))
            if trial_ids is not None:
                query = query.where(col(ClaimRow.trial_id).in_(trial_ids))
            session.exec(query)

    def claimed(self, study_id: str, holder: str) -> dict[str, Counter[Combination]]:
        """Count the trials of a study that other commands are running, by holder and combination.

        Args:
            study_id: Id of the study.
            holder: Command whose claims are not counted.
        """
        found: dict[str, Counter[Combination]] = {}
        with self.reading() as session:
            query = (
                select(ClaimRow.holder, CombinationRow.key)
                .join(CombinationRow, col(CombinationRow.id) == col(ClaimRow.combination_id))
                .where(ClaimRow.study_id == study_id, ClaimRow.holder != clean(holder))
            )
            for other, key in session.exec(query.where(_is_valid(time_of_database(session)))):
                found.setdefault(other, Counter())[rows.combination_from(key, f"study {study_id}")] += 1
        return found

    # -- trials of other studies ---------------------------------------------------------------------------

    def origins(self, study_id: str) -> list[Origin]:
        """Return the studies, with users, whose trials a study reuses; those with the most trials first."""
        with self.reading() as session:
            number: Any = func.count()
            query = (
                select(StudyRow, number)
                .join(TrialRow, col(TrialRow.study_id) == col(StudyRow.id))
                .join(MemberRow, col(MemberRow.trial_sequence) == col(TrialRow.sequence))
                .where(MemberRow.study_id == study_id, col(MemberRow.reused))
                .group_by(col(StudyRow.id))
                .order_by(number.desc(), col(StudyRow.id))
            )
            return [
                Origin(
                    study_id=study.id,
                    study=study.name,
                    user=study.definition.user,
                    host=study.definition.host,
                    trials=trials,
                )
                for study, trials in ((rows.study_of(row), count) for row, count in session.exec(query))
            ]

    # -- logs and other files that trials left ---------------------------------------------------------------

    def collect(self, limit: int | None = None, *, dry: bool = False) -> Collected:
        """Delete the oldest logs until the rest fits into a size limit.

        Logs that verdicts cite are kept. Logs are chosen without a write lock and deleted in several
        transactions, so that other commands can write meanwhile.

        Args:
            limit: Maximum total size of all logs in bytes, which is stored; None for the stored limit.
            dry: Whether to change nothing, and only compute the result.
        """
        with self.reading() as session:
            before = after = _stored(session)
            limit = _limit_of(session) if limit is None else limit
            seen = _state(session)
            cited: dict[str, int] = {}
            dropped: dict[str, int] = {}
            if after > limit:
                logs = _logs(session)
                trial_ids = set(_cited_trials(self))
                cited = {digest: size for trial_id, digest, size in logs if trial_id in trial_ids}
                kept = cited.keys() | _of_studies(session)  # a script may have printed a file of its study
                # The newest trial that left a content counts, so that contents which still occur stay longer.
                newest_first = {digest: size for _, digest, size in reversed(logs)}
                for digest, size in reversed(newest_first.items()):
                    if after > limit and digest not in kept:
                        dropped[digest] = size
                        after -= size
        if not dry:
            with self.writing() as session:
                session.merge(MetaRow(name=LOG_LIMIT, value=str(limit)))
            # Other commands wait for each of these transactions, so they are small.
            digests = list(dropped)
            for start in range(0, len(digests), _NAMED):
                with self.writing() as session:
                    used = _used_since(session, seen)
                    some = [digest for digest in digests[start : start + _NAMED] if digest not in used]
                    session.execute(
                        update(BlobRow).where(col(BlobRow.content_hash).in_(some)).values(data=None)
                    )
                for digest in {*digests[start : start + _NAMED]} - {*some}:
                    after += dropped.pop(digest)
        return Collected(limit, before, after, len(dropped), sum(cited.values()))

    def logs_beyond_limit(self) -> bool:
        """Return whether the logs take more bytes than the limit that the database stores."""
        with self.reading() as session:
            return _stored(session) > _limit_of(session)
