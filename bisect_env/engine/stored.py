"""Reads a stored study again: its grid, the combinations that its answer names, and their locks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bisect_env.environments.lock import Lock
from bisect_env.errors import UsageError
from bisect_env.matrix.grid import AxisKind, Combination, Direction, Grid, GridAxis, find_combination
from bisect_env.matrix.load import Matrix, load_matrix
from bisect_env.report.untrusted import command_line
from bisect_env.storage.entries import Study
from bisect_env.storage.store import Store


@dataclass(frozen=True, slots=True)
class StoredCombination:
    """A combination of a stored study, with its lock.

    Attributes:
        combination: The point of the matrix.
        lock: Its environment.
    """

    combination: Combination
    lock: Lock


def matrix_of(study: Study, path: Path | None = None) -> Matrix:
    """The matrix of a study, with its files, as the study ran it.

    Args:
        study: As stored.
        path: Its file, if it lies elsewhere by now.

    Raises:
        MatrixError: It cannot be read.
        UsageError: It, or one of its files, is another by now; or the database names somebody else's file.
    """
    if path is None:
        recorded = Path(study.definition.matrix_path)
        _refuse_strangers(recorded)
        if not recorded.exists():
            place = "" if recorded.is_absolute() else f" below {Path.cwd()}"
            raise UsageError(
                f"the matrix of the study {study.id[:8]} ({study.name}), {recorded}, does not exist{place}",
                remedy="give the command where the study was begun, or name the file with `--matrix`",
            )
    loaded = load_matrix(path or study.definition.matrix_path)
    if loaded.digest != study.definition.digest:
        raise UsageError(
            f"{loaded.path} or its files are not what the study {study.id[:8]} ({study.name}) ran",
            remedy="name the matrix as it was then with `--matrix`, or run the matrix as it is now first",
        )
    return loaded


def _refuse_strangers(path: Path) -> None:
    """A matrix says what is run, and its path comes from a database in which others may write.

    Raises:
        UsageError: The file is neither this user's nor the system's, nor below the current directory.
    """
    try:
        owner = path.stat().st_uid
    except OSError:
        return  # reading it says what is wrong
    if owner in (os.geteuid(), 0) or path.resolve().is_relative_to(Path.cwd()):
        return
    raise UsageError(
        f"the database names {path} as the matrix of this study, a file of another user of this machine",
        remedy=f"look at what it runs, then name it: `{command_line('--matrix', str(path))}`",
    )


def stored_grid(study: Study) -> Grid:
    """The grid that a study was about when it was opened last. Pure."""
    return Grid(
        tuple(
            GridAxis(
                axis["name"],
                AxisKind(axis.get("kind", AxisKind.PACKAGE)),
                tuple(axis["values"]),
                Direction(axis.get("direction", Direction.REGRESSION)),
            )
            for axis in study.definition.grid
        )
    )


def named_combinations(study: Study) -> dict[str, Mapping[str, str]]:
    """`first-bad` and `last-good` of the verdict, as far as there is one. Pure."""
    verdict = study.verdict or {}
    found = {"first-bad": verdict.get("first_bad"), "last-good": verdict.get("last_good")}
    return {name: values for name, values in found.items() if values}


def stored_combination(store: Store, study: Study, text: str | None, flag: str = "") -> StoredCombination:
    """The combination of a study that a user means, with its lock.

    Args:
        store: Where the study is.
        study: Which one.
        text: See `bisect_env.matrix.grid.find_combination`.
        flag: Of the command line, if it was given by one.

    Raises:
        UsageError: There is no such combination, or it has no environment.
    """
    combination = find_combination(stored_grid(study), text, named_combinations(study), flag=flag)
    state = next((s for s in store.combinations(study.id) if s.combination == combination), None)
    lock = store.lock(state.lock_hash) if state is not None and state.lock_hash else None
    if lock is None:
        reason = state.reason.partition("\n")[0] if state is not None else ""
        raise UsageError(
            f"{combination} has no environment" + (f": {reason}" if reason else ""),
            remedy="`bisect-env report` lists the combinations that have one",
        )
    return StoredCombination(combination, lock)
