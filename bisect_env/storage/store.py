"""The store: everything that a study knows, where many processes can write and read it.

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

from bisect_env.storage.connect import open_database
from bisect_env.storage.environment_part import EnvironmentPart
from bisect_env.storage.log_part import LogPart
from bisect_env.storage.shared_part import SharedPart
from bisect_env.storage.study_part import StudyPart
from bisect_env.storage.trial_part import TrialPart


class Store(StudyPart, EnvironmentPart, TrialPart, SharedPart, LogPart):
    """An open results database; see the module for what it promises."""

    @classmethod
    def open(cls, url_or_path: str | None = None, *, read_only: bool = False) -> Store:
        """Open the database, making it first if it is not there.

        Args:
            url_or_path: What the user said; None for `BISECT_ENV_DB`, then the user's data directory.
            read_only: Open an existing database and refuse to write.

        Raises:
            UsageError: The reference cannot be understood.
            StorageError: It is no database of ours, is damaged, has another schema, cannot be reached or
                lies on a network file system. It was not changed.
        """
        return cls(open_database(url_or_path, read_only=read_only))
