"""The store of everything that a study knows, for many processes that write and read at once.

**Consistency.** A method that writes has committed when it returns; what it wrote is then there for every
other process, and survives the death of this one at any instant. It either happens as a whole or not at all.

**Idempotence.** Saying the same thing twice is saying it once: a trial is known by its id, a lock by its
content, a combination by its study and its values.

**Immutability.** A recorded trial never changes.

**Order.** `trials` and `decisions` come in the order in which they were recorded.

**Concurrency.** Any number of processes and threads may write at once; they wait for each other, nobody is
turned away before a minute. Readers see one state of the database, and neither wait nor make others wait.

**Exceptions.** `StorageError` when the database cannot do it, with words for the user. `ValueError` when the
caller names a study, combination or lock that is not there: a defect, except where `UsageError` is named.
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
from typing import Any, Self

from sqlalchemy import Connection, bindparam, insert, literal_column, union_all
from sqlalchemy import delete as delete_rows
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
from bisect_env.storage.backend import LOG_LIMIT, Database, open_database, speaking
from bisect_env.storage.entries import (
    AMPLIFIED,
    CombinationState,
    CombinationStatus,
    Decision,
    StoredTrial,
    Study,
    StudyDefinition,
    StudyStatus,
    Want,
    WholeTrial,
    failures_of,
)
from bisect_env.storage.study_trials import StudyTrials, end_keys, like_ends, study_row
from bisect_env.storage.tables import (
    METADATA,
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
from bisect_env.storage.values import DamageError, clean, jsonable, public, shortened
from bisect_env.trials.judge import Target
from bisect_env.trials.records import Evidence

# --------------------------------------------------------------------------------------------------
# Rows that must be there, and constraints in words.


def combination_row(session: Session, study_id: str, combination: Combination) -> CombinationRow:
    """Return the row of a study's combination.

    Raises:
        ValueError: There is none.
    """
    query = select(CombinationRow).where(CombinationRow.study_id == study_id)
    row = session.exec(query.where(CombinationRow.key == clean(combination.key))).first()
    if row is None:
        raise ValueError(f"study {study_id} has no combination {combination}")
    return row


@contextlib.contextmanager
def constraints(what: str) -> Iterator[None]:
    """Turn a broken constraint into a `ValueError`: a defect of the caller.

    Raises:
        ValueError: In place of the driver's error.
    """
    try:
        yield
    except IntegrityError as error:
        raise ValueError(f"a row names {what}") from error


# --------------------------------------------------------------------------------------------------
# The collector: it keeps logs within a limit, and never drops what a verdict cites.
#
# Trials themselves stay: to drop some would change the counts that every verdict rests on. A verdict cites
# the first trial of every way of failing in its study, which reports show with its stack, and of the two
# combinations between which it draws the line the first bad and the first good trial.

LIMIT = 10 * 2**30
"""Bytes that all logs may take together unless the database says otherwise."""


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of collecting garbage, or of a dry run.

    Attributes:
        limit: Bytes that logs may take.
        before: Bytes that logs took before.
        after: Bytes that they take now.
        logs: Number of contents dropped to keep the limit.
        cited: Bytes that verdicts cite and that are kept.
    """

    limit: int
    before: int
    after: int
    logs: int
    cited: int


def limit_of(session: Session) -> int:
    """Return the limit on logs that the database stores."""
    value = session.exec(select(MetaRow.value).where(MetaRow.name == LOG_LIMIT)).first()
    return int(value) if value is not None and re.fullmatch(r"[0-9]{1,18}", value) else LIMIT


def stored(session: Session) -> int:
    """Return how many bytes logs take, compressed."""
    query = select(func.coalesce(func.sum(BlobRow.stored), 0)).where(col(BlobRow.collected).is_(False))
    return int(session.exec(query).one())


def _cited_trials(store: Store, session: Session) -> set[int]:
    """Return `trials.sequence` of every trial that a verdict cites."""
    cited: list[str] = []
    for study_id, document in session.exec(
        select(StudyRow.id, StudyRow.verdict).where(col(StudyRow.verdict).is_not(None))
    ).all():
        trials = store.trials(study_id)
        cited += [group.trial_id for group in failures_of(trials)]
        verdict = rows.verdict_of(document, f"study {shortened(study_id)}")
        for values, evidence in ((verdict.first_bad, Evidence.BAD), (verdict.last_good, Evidence.GOOD)):
            if values:
                there = Combination.of(values)
                found = (t.trial_id for t in trials if t.combination == there and t.evidence is evidence)
                cited += [*itertools.islice(found, 1)]
    sequences: set[int] = set()
    for i in range(0, len(cited), _NAMED):
        named = session.connection().execute(_NAMED_TRIALS, {"ids": cited[i : i + _NAMED]})
        sequences.update(row.sequence for row in named)
    return sequences


def collect_logs(sessions: Store, limit: int | None, *, dry: bool) -> Collected:
    """Collect logs; see `Store.collect`."""
    with sessions.reading() if dry else sessions.writing() as session:
        before = stored(session)
        limit = limit_of(session) if limit is None else limit
        after = before
        of_studies = _of_studies(session)
        cited = _blobs_of(session, _cited_trials(sessions, session)) if after > limit else {}
        dropped: dict[str, int] = {}
        for digest, size in _oldest_first(session) if after > limit else ():
            if after <= limit:
                break
            if digest not in cited and digest not in of_studies:
                dropped[digest] = size
                after -= size
        if not dry:
            session.merge(MetaRow(name=LOG_LIMIT, value=str(limit)))
            for digest in dropped:
                row = session.get_one(BlobRow, digest)
                row.collected, row.data = True, None
            session.flush()
    return Collected(limit, before, after, len(dropped), sum(cited.values()))


def _blobs_of(session: Session, sequences: set[int]) -> dict[str, int]:
    found: dict[str, int] = {}
    ordered = sorted(sequences)
    for i in range(0, len(ordered), 500):
        query = (
            select(BlobRow.content_hash, BlobRow.stored)
            .join(ArtefactRow, col(ArtefactRow.content_hash) == col(BlobRow.content_hash))
            .where(col(ArtefactRow.trial_sequence).in_(ordered[i : i + 500]))
            .where(col(BlobRow.collected).is_(False))
        )
        found.update(dict(session.exec(query).all()))
    return found


def _oldest_first(session: Session) -> list[tuple[str, int]]:
    # By the youngest trial that left a content: what still happens is worth more than what happened once.
    youngest: Any = func.max(ArtefactRow.trial_sequence)
    query = (
        select(BlobRow.content_hash, BlobRow.stored)
        .join(ArtefactRow, col(ArtefactRow.content_hash) == col(BlobRow.content_hash))
        .where(col(BlobRow.collected).is_(False))
        .group_by(col(BlobRow.content_hash), col(BlobRow.stored))
        .order_by(youngest, col(BlobRow.content_hash))
    )
    return [(digest, size) for digest, size in session.exec(query)]


# --------------------------------------------------------------------------------------------------
# Which study a user means. Pure.

_SHOWN = 5
SHORT = 8
"""How many digits of an id are shown to people."""


def find_study(studies: Sequence[Study], reference: str | None, shown: str) -> Study:
    """Find a study by id, unique beginning of an id, or name.

    Args:
        studies: Every study, the newest first.
        reference: The user's reference; None for the newest. The path of a matrix works as well.
        shown: The database, for messages.

    Raises:
        UsageError: There is no such study, or several ids begin with the reference.
    """
    if not studies:
        raise UsageError(
            f"there is no study in {shown}",
            remedy="start `bisect-env run MATRIX` first, or name the database with `--db` or BISECT_ENV_DB",
        )
    if reference is None:
        # A study about another's culprit is shown when it is asked for.
        own = (study for study in studies if "explains" not in study.definition.settings)
        return next(own, studies[0])
    for study in studies:
        # A name comes before a beginning of an id: `cafe` may be both, and the name was chosen by a person.
        if reference in (study.id, study.name):
            return study
    for study in studies:
        # What other commands are given: the matrix file, as it was named then.
        if study.definition.matrix_path == reference and "explains" not in study.definition.settings:
            return study
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
# What runs for each batch of trials: statements that are made once, and run past the unit of work. Making
# an object for each row, and finding out what changed, would cost several times what the database does.

_TRIALS, _MEMBERS, _CLAIMS = (METADATA.tables[name] for name in ("trials", "study_trials", "claims"))
_COMBINATIONS, _DECISIONS = METADATA.tables["combinations"], METADATA.tables["decisions"]
_NAMED_TRIALS = select_columns(_TRIALS.c.trial_id, _TRIALS.c.sequence).where(
    _TRIALS.c.trial_id.in_(bindparam("ids", expanding=True))
)
_OF_TRIALS = delete_rows(_CLAIMS).where(_CLAIMS.c.trial_id.in_(bindparam("ids", expanding=True)))


def _add_decision(session: Session, study_id: str, kind: str, payload: Mapping[str, Any]) -> None:
    values = {
        "study_id": study_id,
        "at": datetime.now(UTC),
        "kind": clean(kind),
        "payload": jsonable(payload),
    }
    _statements(session).execute(insert(_DECISIONS), values)


def _statements(session: Session) -> Connection:
    """Return the session's connection for direct statements, after flushing its objects."""
    session.flush()
    return session.connection()


# --------------------------------------------------------------------------------------------------
# Trials: single statements that several methods share.


def _whole_trial(session: Session, trial_id: str) -> WholeTrial | None:
    """Return one trial with its logs, None if it is not stored."""
    query = (
        select(TrialRow, CombinationRow.key)
        .join(MemberRow, col(MemberRow.trial_sequence) == col(TrialRow.sequence))
        .join(CombinationRow, col(CombinationRow.id) == col(MemberRow.combination_id))
        .where(TrialRow.trial_id == trial_id, MemberRow.study_id == TrialRow.study_id)
    )
    found = session.exec(query).first()
    if found is None:
        return None
    row, key = found
    assert row.sequence is not None
    return rows.whole_trial(row, key, _artefacts(session, row.sequence))


def _artefacts(session: Session, sequence: int) -> dict[str, bytes | None]:
    """Return all files that a trial left, by name; None for collected ones."""
    query = (
        select(ArtefactRow.name, BlobRow)
        .join(BlobRow, col(BlobRow.content_hash) == col(ArtefactRow.content_hash))
        .where(ArtefactRow.trial_sequence == sequence)
        .order_by(col(ArtefactRow.name))
    )
    return {name: blobs.get(blob) for name, blob in session.exec(query)}


# --------------------------------------------------------------------------------------------------
# Claims, by which several commands share trials.
#
# **Claims.** Who wants to run a trial says how many trials of that combination it believes to be recorded
# or running. If that is still so, the trial is its own (compare and swap); if not, somebody was faster, and
# it looks again before it asks the search again. A claim is a lease by the database's clock: when its
# holder dies, and nobody who knows it releases it, it lapses, and counts no longer; so does one that ends
# later than any could, which a clock made that was set back since. A trial is recorded whether its claim
# still stands or not: to drop results of slow trials would favour quick ones.

_NAMED = 500
"""Combinations that are asked for by name; of more, all are read."""
LONGEST_LEASE = 600.0
"""Seconds. A claim that would stand longer was made by a clock that has been set back since."""
_CLOCKS: dict[str, Any] = {
    "sqlite": select_columns(literal_column("(julianday('now') - 2440587.5) * 86400.0")),
    "postgresql": select_columns(literal_column("extract(epoch FROM clock_timestamp())")),
}


_STANDS = _CLAIMS.c.expires_at.between(bindparam("now"), bindparam("latest"))
"""Whether a claim counts, as a condition."""
_CLAIMED = (
    select_columns(_CLAIMS.c.holder, _COMBINATIONS.c.key, func.count())
    .join(_CLAIMS, _CLAIMS.c.combination_id == _COMBINATIONS.c.id)
    .where(_CLAIMS.c.study_id == bindparam("study"), _CLAIMS.c.holder != bindparam("holder"), _STANDS)
    .group_by(_CLAIMS.c.holder, _COMBINATIONS.c.key)
)
_LAPSED = delete_rows(_CLAIMS).where(~_STANDS)


def _stand_at(now: float) -> dict[str, float]:
    return {"now": now, "latest": now + LONGEST_LEASE}


def time_of_database(session: Session) -> float:
    """Return the time by the database's clock, in seconds since 1970; clocks of hosts may differ."""
    connection = _statements(session)
    return float(connection.execute(_CLOCKS[connection.dialect.name]).scalar_one())


# `+ 0` keeps SQLite from using the index for GROUP BY; with it, it scans the whole study instead of
# `id > :after`.
_PLACE = _MEMBERS.c.combination_id + literal_column("0")
_TAKEN = union_all(
    select_columns(_PLACE, func.count())
    .where(_MEMBERS.c.study_id == bindparam("study"), _MEMBERS.c.id > bindparam("after"))
    .group_by(_PLACE),
    select_columns(_CLAIMS.c.combination_id, func.count())
    .where(_CLAIMS.c.study_id == bindparam("study"))
    .group_by(_CLAIMS.c.combination_id),
)


def _add_claims(
    session: Session, study_id: str, holder: str, ours: Sequence[tuple[str, int]], until: float
) -> None:
    """Store claims of trials, given by id and combination row, that nobody else has claimed."""
    same = {"study_id": study_id, "holder": clean(holder), "expires_at": until}
    values = [{"trial_id": trial_id, "combination_id": place, **same} for trial_id, place in ours]
    _statements(session).execute(insert(_CLAIMS), values)


def _taken(session: Session, study_id: str, after: int) -> Counter[int]:
    """Count a study's trials per combination that are claimed or were added after a `sequence`."""
    found: Counter[int] = Counter()
    for place, number in _statements(session).execute(_TAKEN, {"study": study_id, "after": after}):
        found[place] += number
    return found


def _kept_files(session: Session, files: Sequence[StudyFile]) -> list[dict[str, Any]]:
    """Store files of a study; of one that holds an address with a password only the name."""
    rows_of = []
    for file in files:
        text = file.content.decode("utf-8", "replace")
        digest: str | None = None
        if public(text) == clean(text) and len(file.content) <= blobs.LARGEST:
            digest = blobs.put(session, [file.content])[0] if file.content else ""
        rows_of.append({"name": clean(file.name), "content_hash": digest, "executable": file.executable})
    return rows_of


def _of_studies(session: Session) -> set[str]:
    """Return the hashes of the contents that are files of studies, which the collector never drops."""
    found: set[str] = set()
    for files in session.exec(select(StudyRow.files)):
        entries = files if isinstance(files, list) else []
        found.update(str(file.get("content_hash")) for file in entries if isinstance(file, dict))
    return found


class Store:
    """An open results database; see the module for what it promises.

    Attributes:
        database: Its connections.
    """

    # -- open sessions ---------------------------------------------------------------------------------------

    def __init__(self, database: Database) -> None:
        self.database = database
        self._local = threading.local()
        self._places: dict[tuple[str, Combination], int] = {}
        self._studies: set[str] = set()

    def close(self) -> None:
        """Close the connections; may be called twice."""
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
    def snapshot(self) -> Iterator[None]:
        """Let this thread read one state of the database inside the block, even while others write."""
        if getattr(self._local, "session", None) is not None:
            yield
            return
        with self.reading() as session:
            self._local.session = session
            try:
                yield
            finally:
                self._local.session = None

    @contextlib.contextmanager
    def reading(self) -> Iterator[Session]:
        """Open a session for reading, or reuse the one of this thread."""
        if (shared := getattr(self._local, "session", None)) is not None:
            yield shared
            return
        with speaking(self.shown), Session(self.database.reader) as session:
            yield session

    @contextlib.contextmanager
    def writing(self) -> Iterator[Session]:
        """Open a session for writing that is committed at its end."""
        with speaking(self.shown), Session(self.database.engine) as session:
            yield session
            session.commit()

    @classmethod
    def open(cls, url_or_path: str | None = None, *, read_only: bool = False) -> Store:
        """Open the database; create it if it does not exist.

        Args:
            url_or_path: The user's reference; None for `BISECT_ENV_DB`, then the user's data directory.
            read_only: Open an existing database and refuse to write.

        Raises:
            UsageError: The reference cannot be understood.
            StorageError: It is no database of ours, is damaged, has another schema, cannot be reached or
                lies on a network file system. It was not changed.
        """
        return cls(open_database(url_or_path, read_only=read_only))

    # -- studies, and what was decided in them ---------------------------------------------------------------

    def find_study(self, name: str, digest: str, user: str | None = None) -> Study | None:
        """Return the newest study with this name and digest, of one user if named, finished or not."""
        with self.reading() as session:
            row = _newest(session, name, digest, user)
            return rows.study_of(row) if row else None

    def open_study(self, definition: StudyDefinition, *, study_id: str | None = None) -> Study:
        """Resume the study with this name and digest, or create one; a fresh definition always creates one.

        A resumed study takes over the new definition except `exclude_newer`, which keeps its first value
        (so that resolved versions stay the same), and `fresh`. An interrupted or failed study is opened
        again; a finished one stays finished until `reopen`. A `study_id` names the study to resume, and ""
        creates another one.
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
            # Read back, so that a new study and one that goes on look alike to the last digit.
            session.refresh(row)
            return rows.study_of(row)

    def files(self, study_id: str) -> tuple[tuple[StudyFile, ...], tuple[str, ...]]:
        """Return the files of a study's trials, and the names of those that were not stored.

        Raises:
            StorageError: A file is damaged.
        """
        with self.reading() as session:
            row = study_row(session, study_id)
            rows.study_of(row)
            found, missing = [], []
            for file in row.files:
                digest = file["content_hash"]
                blob = session.get(BlobRow, digest) if digest else None
                content = b"" if digest == "" else None if blob is None else blobs.get(blob)
                if content is None:
                    missing.append(str(file["name"]))
                else:
                    found.append(StudyFile(str(file["name"]), content, bool(file["executable"])))
            return tuple(found), tuple(missing)

    def save_verdict(self, study_id: str, verdict: VerdictDocument) -> None:
        """Store the verdict so far, for readers of a running study."""
        with self.writing() as session:
            row = study_row(session, study_id)
            row.verdict, row.updated_at = rows.verdict_value(verdict), datetime.now(UTC)

    def set_grid(self, study_id: str, grid: Sequence[AxisInfo]) -> None:
        """Store new values of a study's axes, after releases were added around its answer."""
        with self.writing() as session:
            row = study_row(session, study_id)
            row.grid, row.updated_at = rows.grid_value(grid), datetime.now(UTC)

    def finish_study(self, study_id: str, status: str, verdict: VerdictDocument | None) -> None:
        """End a study.

        Args:
            study_id: Id of the study.
            status: `finished`, `interrupted` or `failed`.
            verdict: Final verdict; None keeps the one stored last.

        Raises:
            ValueError: Another status.
        """
        ended = StudyStatus(status)
        if ended is StudyStatus.OPEN:
            raise ValueError("an open study has not ended")
        now = datetime.now(UTC)
        with self.writing() as session:
            row = study_row(session, study_id)
            row.status, row.finished_at, row.updated_at = ended.value, now, now
            if verdict is not None:
                row.verdict = rows.verdict_value(verdict)

    def reopen(self, study_id: str) -> None:
        """Set an ended study to open; its verdict stays until the next one."""
        with self.writing() as session:
            row = study_row(session, study_id)
            row.status, row.finished_at, row.updated_at = StudyStatus.OPEN.value, None, datetime.now(UTC)

    def study(self, reference: str | None = None) -> Study:
        """Return the study that a user means.

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
        """Store a decision, so that the study can be followed later."""
        with self.writing() as session:
            self._check_study(session, study_id)
            _add_decision(session, study_id, kind, payload)
            if kind == AMPLIFIED:
                # It says which failure is meant.
                self.study_trials(study_id).judge_again(session)

    def decisions(self, study_id: str) -> list[Decision]:
        """Return all decisions of a study, in order."""
        with self.reading() as session:
            query = select(DecisionRow).where(DecisionRow.study_id == study_id).order_by(col(DecisionRow.id))
            return [rows.decision_of(row) for row in session.exec(query)]

    # -- combinations and locks ------------------------------------------------------------------------------

    def save_locks(self, study_id: str, locks: Iterable[Lock]) -> None:
        """Store locks that are not there yet, with their packages."""
        wanted = {lock.content_hash: lock for lock in locks}
        with self.writing() as session:
            study_row(session, study_id)
            query = select(LockRow.content_hash).where(col(LockRow.content_hash).in_(wanted))
            known = set(session.exec(query))
            now = datetime.now(UTC)
            new = [lock for content_hash, lock in wanted.items() if content_hash not in known]
            session.add_all(rows.lock_row(lock, now) for lock in new)
            session.flush()
            session.add_all(package for lock in new for package in rows.package_rows(lock))

    def lock(self, content_hash: str) -> Lock | None:
        """Return a complete stored lock, None if there is none; its hash is verified.

        Raises:
            StorageError: It does not match its hash, or is no valid lock.
        """
        with self.reading() as session:
            row = session.get(LockRow, content_hash)
            if row is None:
                return None
            query = select(PackageRow).where(PackageRow.lock_hash == content_hash)
            return rows.lock_of(row, list(session.exec(query)))

    def save_combinations(self, study_id: str, states: Iterable[CombinationState]) -> None:
        """Store the states of combinations before anything runs.

        A combination that is saved as `unlocked`, or as `solvable` with the lock that it has, keeps its
        status and reason: findings of trials, and warnings of its environment.

        Raises:
            ValueError: An invalid status, or a lock that is not stored.
        """
        with self.writing() as session, constraints("a lock that is not stored"):
            study = study_row(session, study_id)
            named = [(clean(state.combination.key), state) for state in states]
            query = select(CombinationRow).where(CombinationRow.study_id == study_id)
            if len(named) <= _NAMED:
                # The others of a large matrix would all be read for one that was locked.
                query = query.where(col(CombinationRow.key).in_([key for key, _ in named]))
            known = {row.key: row for row in session.exec(query)}
            locked = set()
            for key, state in named:
                status = CombinationStatus(state.status)
                row = known.get(key)
                if row is None:
                    row = CombinationRow(study_id=study_id, key=key, status="", reason="")
                    session.add(row)
                    known[key] = row
                elif status is CombinationStatus.UNLOCKED or (
                    status is CombinationStatus.SOLVABLE and row.lock_hash == state.lock_hash
                ):
                    continue
                if state.lock_hash != row.lock_hash:
                    locked.add(key)
                row.status, row.reason, row.lock_hash = status.value, public(state.reason), state.lock_hash
            session.flush()
            has_trials = select(MemberRow.id).where(MemberRow.study_id == study_id).limit(1)
            if not locked or session.exec(has_trials).first() is None:
                return
            # What fails in the environment of an end decides which failure is meant.
            if locked & like_ends(session, study_id, end_keys(rows.study_of(study))):
                self.study_trials(study_id).judge_again(session)

    def set_combination(self, study_id: str, combination: Combination, status: str, reason: str) -> None:
        """Store a combination's status after something was run; its lock stays.

        Args:
            study_id: Id of its study.
            combination: The combination.
            status: A `CombinationStatus`.
            reason: Readable reason.

        Raises:
            ValueError: An invalid status, or a combination that the study does not have.
        """
        checked = CombinationStatus(status)
        with self.writing() as session:
            row = combination_row(session, study_id, combination)
            row.status, row.reason = checked.value, public(reason)

    def combinations(self, study_id: str) -> list[CombinationState]:
        """Return every combination of a study, in the order in which they were saved first."""
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

    def _check_study(self, session: Session, study_id: str) -> None:
        """Raise an error if there is no such study; cached, because studies are never removed.

        Raises:
            ValueError: There is none.
        """
        if study_id not in self._studies:
            study_row(session, study_id)
            self._studies.add(study_id)

    def combination_ids(
        self, session: Session, study_id: str, combinations: Sequence[Combination]
    ) -> list[int]:
        """Return the row ids of combinations; cached, because ids never change.

        Raises:
            ValueError: The study does not have one of them.
        """
        found = []
        for combination in combinations:
            key = (study_id, combination)
            if key not in self._places:
                row = combination_row(session, study_id, combination)
                assert row.id is not None
                self._places[key] = row.id
            found.append(self._places[key])
        return found

    def study_trials(self, study_id: str) -> StudyTrials:
        """Return an object to read, judge and record the trials of a study; it has read none yet.

        Raises:
            ValueError: There is no such study.
        """
        return StudyTrials(self, study_id)

    def trials(self, study_id: str) -> list[StoredTrial]:
        """Return the trials of a study with their evidence, including reused ones, without logs.

        They are in the order in which the study received them.
        """
        return self.study_trials(study_id).look()

    def target(self, study_id: str) -> Target:
        """Return the failure that a study is about, as far as its trials show it."""
        trials = self.study_trials(study_id)
        trials.look()
        return trials.target

    def evidence(self, trial: WholeTrial) -> Evidence:
        """Return the evidence of a trial in the study that recorded it."""
        trials = self.trials(trial.study_id)
        return next(one.evidence for one in trials if one.trial_id == trial.record.trial_id)

    def trial(self, trial_id: str) -> WholeTrial | None:
        """Return one trial with its logs, None if it is not stored."""
        with self.reading() as session:
            return _whole_trial(session, trial_id)

    # -- claims, and trials of other studies -----------------------------------------------------------------

    def claim(
        self,
        study_id: str,
        holder: str,
        wants: Sequence[Want],
        *,
        lease: float,
        decision: tuple[str, dict[str, Any]] | None = None,
        after: int = 0,
    ) -> list[bool]:
        """Claim trials before they run.

        Args:
            study_id: Id of their study.
            holder: Id of the claiming command, unique.
            wants: The trials, in order; each takes the earlier ones into account.
            lease: Seconds for which the claims are valid unless they are renewed, at most `LONGEST_LEASE`.
            decision: Kind and payload of a decision, stored if any trial was claimed.
            after: The `sequence` up to which the holder knows all trials: trials recorded until then are not
                counted, neither here nor in `believed`.

        Returns:
            For each trial, whether it is claimed for the holder.

        Raises:
            ValueError: The study does not have a combination.
        """
        answers = []
        with self.writing() as session:
            self._check_study(session, study_id)
            now = time_of_database(session)
            session.connection().execute(_LAPSED, _stand_at(now))
            places = self.combination_ids(session, study_id, [want.combination for want in wants])
            taken = _taken(session, study_id, after)
            ours: list[tuple[str, int]] = []
            for place, want in zip(places, wants, strict=True):
                mine = taken[place] == want.believed
                answers.append(mine)
                if mine:
                    taken[place] += 1
                    ours.append((want.trial_id, place))
            if ours:
                _add_claims(session, study_id, holder, ours, now + lease)
            if decision is not None and ours:
                _add_decision(session, study_id, *decision)
        return answers

    def renew(self, study_id: str, holder: str, running: Mapping[str, Combination], *, lease: float) -> None:
        """Renew this holder's claims of the running trials, and drop its other claims.

        Claims that expired meanwhile (the holder or its host was suspended) become valid again.

        Args:
            study_id: Id of the study.
            holder: Id of the command that runs the trials.
            running: Trial id to its combination.
            lease: Seconds from now for which the claims are valid.
        """
        with self.writing() as session:
            now = time_of_database(session)
            session.exec(delete(ClaimRow).where(col(ClaimRow.holder) == clean(holder)))
            connection = _statements(session)
            named = {"ids": [*running]}
            connection.execute(_OF_TRIALS, named)
            recorded = set(connection.execute(_NAMED_TRIALS, named).scalars())
            left = {trial: place for trial, place in running.items() if trial not in recorded}
            places = self.combination_ids(session, study_id, [*left.values()])
            if left:
                _add_claims(session, study_id, holder, [*zip(left, places, strict=True)], now + lease)

    def release(self, holder: str, trial_ids: Collection[str] | None = None) -> None:
        """Release claims of this holder: those of some trials, or all."""
        with self.writing() as session:
            query = delete(ClaimRow).where(col(ClaimRow.holder) == clean(holder))
            if trial_ids is not None:
                query = query.where(col(ClaimRow.trial_id).in_(trial_ids))
            session.exec(query)

    def end_claims(self, session: Session, trial_ids: Sequence[str]) -> None:
        """Remove the claims of recorded trials, in the given writing session."""
        session.connection().execute(_OF_TRIALS, {"ids": [*trial_ids]})

    def claimed(self, study_id: str, holder: str) -> dict[str, Counter[Combination]]:
        """Count the trials of a study that other commands are running, by holder and combination.

        Args:
            study_id: Id of the study.
            holder: Holder whose claims are left out.
        """
        found: dict[str, Counter[Combination]] = {}
        with self.reading() as session:
            now = time_of_database(session)
            named = {"study": study_id, "holder": clean(holder), **_stand_at(now)}
            for other, key, number in session.connection().execute(_CLAIMED, named):
                combination = rows.combination_from(key, f"study {study_id}")
                found.setdefault(other, Counter())[combination] = number
        return found

    # -- trials of other studies ---------------------------------------------------------------------------

    def origins(self, study_id: str) -> list[Origin]:
        """Return the users and studies whose trials a study reuses, the largest share first."""
        with self.reading() as session:
            number: Any = func.count()
            query = (
                select(TrialRow.study_id, number)
                .join(MemberRow, col(MemberRow.trial_sequence) == col(TrialRow.sequence))
                .where(MemberRow.study_id == study_id, col(MemberRow.reused))
                .group_by(col(TrialRow.study_id))
                .order_by(number.desc(), col(TrialRow.study_id))
            )
            found = []
            for origin, trials in session.exec(query):
                row = session.get(StudyRow, origin)
                if row is None:
                    raise DamageError(f"study {study_id}", "trials", f"one is of a study {origin!r:.40}")
                study = rows.study_of(row)
                definition = study.definition
                found.append(
                    Origin(
                        study_id=study.id,
                        study=study.name,
                        user=definition.user,
                        host=definition.host,
                        trials=trials,
                    )
                )
            return found

    # -- logs and other files that trials left ---------------------------------------------------------------

    def collect(self, limit: int | None = None, *, dry: bool = False) -> Collected:
        """Drop the oldest logs beyond a limit; cited logs are kept.

        Args:
            limit: Bytes that all logs together may take, stored for later; None uses the stored limit.
            dry: Change nothing, only compute the result.
        """
        return collect_logs(self, limit, dry=dry)

    def logs_beyond_limit(self) -> bool:
        """Return whether the logs take more than the limit that the database keeps."""
        with self.reading() as session:
            return stored(session) > limit_of(session)
