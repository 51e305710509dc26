"""Opens studies that serve another one: the search for its culprit, and the comparison of circumstances."""

from __future__ import annotations

import getpass
import platform
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from bisect_env import __version__
from bisect_env.environments.lock import Lock
from bisect_env.matrix.grid import Index
from bisect_env.matrix.load import Matrix
from bisect_env.storage.entries import CombinationState, CombinationStatus, Study, StudyDefinition
from bisect_env.storage.store import Store
from bisect_env.trials.judge import Target


def open_derived(
    store: Store,
    matrix: Matrix,
    serves: str,
    *,
    what: str,
    digest: str,
    description: str,
    grid: Sequence[Mapping[str, Any]],
    target: Target,
    as_of: datetime | None,
    locks: Mapping[Index, Lock],
    fresh: bool = False,
) -> Study:
    """Open a study that serves another one, or go on with it.

    Args:
        store: Open for writing.
        matrix: Matrix of the other study.
        serves: Id of the other study; "" if the matrix has none.
        what: It does, as its name says.
        digest: What makes it the same study when it is opened again.
        description: For reports.
        grid: Its axes, as stored.
        target: What counts as bad.
        as_of: Nothing newer counts.
        locks: Locks that are known.
        fresh: Begin a new study.
    """
    own = store.open_study(
        StudyDefinition(
            name=f"{matrix.name}: {what}",
            digest=digest,
            matrix_path=str(matrix.path),
            matrix_text=matrix.text,
            description=description,
            grid=[dict(axis) for axis in grid],
            settings={**matrix.file.search.model_dump(mode="json"), "explains": serves},
            target=target,
            exclude_newer=as_of,
            version=__version__,
            host=platform.node(),
            user=user_name(),
            fresh=fresh,
        )
    )
    store.save_locks(own.id, {lock.content_hash: lock for lock in locks.values()}.values())
    solvable = CombinationStatus.SOLVABLE
    states = [
        CombinationState(own.grid.combination(index), solvable, "", lock.content_hash)
        for index, lock in locks.items()
    ]
    store.save_combinations(own.id, states)
    return own


def user_name() -> str:
    """Return the name of the user, "" where there is none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container's user often has no name.
        return ""
