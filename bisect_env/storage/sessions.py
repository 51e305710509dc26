"""Open sessions: what every part of the store needs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, select

from bisect_env.matrix.combination import Combination
from bisect_env.storage.backend import Database
from bisect_env.storage.failures import speaking
from bisect_env.storage.tables import CombinationRow, StudyRow
from bisect_env.storage.values import clean


class Sessions:
    """An open database, with its two kinds of sessions."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._local = threading.local()

    def close(self) -> None:
        """Give the connections back; may be called twice."""
        self._database.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def shown(self) -> str:
        """The database as messages name it, without a password."""
        return self._database.shown

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """All that this thread reads inside is one state of the database, whatever others write."""
        if getattr(self._local, "session", None) is not None:
            yield
            return
        with self._reading() as session:
            self._local.session = session
            try:
                yield
            finally:
                self._local.session = None

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Session]:
        if (shared := getattr(self._local, "session", None)) is not None:
            yield shared
            return
        with speaking(self.shown), Session(self._database.reader) as session:
            yield session

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Session]:
        with speaking(self.shown), Session(self._database.engine) as session:
            yield session
            session.commit()


def study_row(session: Session, study_id: str) -> StudyRow:
    """The row of a study.

    Raises:
        ValueError: There is none.
    """
    row = session.get(StudyRow, study_id)
    if row is None:
        raise ValueError(f"there is no study {study_id}")
    return row


def combination_row(session: Session, study_id: str, combination: Combination) -> CombinationRow:
    """The row of a study's combination.

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
    """Turn a broken constraint into a defect of the caller.

    Raises:
        ValueError: Instead of what the driver raised.
    """
    try:
        yield
    except IntegrityError as error:
        raise ValueError(f"a row names {what}") from error
