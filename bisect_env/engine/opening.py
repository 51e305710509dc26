"""Opens studies: expands a matrix as its study did, and reads what earlier commands stored of it."""

from __future__ import annotations

import getpass
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from bisect_env import __version__
from bisect_env.answers.axes import AxisInfo
from bisect_env.engine.document import axis_infos
from bisect_env.engine.locking import Prepared
from bisect_env.engine.specs import target_of
from bisect_env.engine.stored import note_asked
from bisect_env.environments.lock import Lock
from bisect_env.environments.lockfiles import may_be_installed
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.errors import UsageError
from bisect_env.matrix.expand import expand, refined
from bisect_env.matrix.grid import AxisKind, Combination, Grid, Index
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import CommitAxis, PackageAxis
from bisect_env.storage.entries import CombinationState, CombinationStatus, Study, StudyDefinition
from bisect_env.storage.store import Store

# --------------------------------------------------------------------------------------------------
# Expanding a matrix.


@dataclass(frozen=True, slots=True)
class Expansion:
    """A matrix, expanded as its study did if there is one.

    Attributes:
        matrix: The matrix.
        grid: Its combinations, with releases and commits that the study added.
        as_of: Uploads after this date are ignored.
        study: The study of the matrix, None if there is none.
    """

    matrix: Matrix
    grid: Grid
    as_of: datetime
    study: Study | None


def expand_as_known(
    matrix: Matrix,
    store: Store,
    provider: EnvironmentProvider,
    *,
    user: str | None = None,
    fresh: bool = False,
    as_of: datetime | None = None,
) -> Expansion:
    """Expand a matrix as its study did, if there is one.

    Args:
        matrix: The matrix.
        store: Database that may have its study.
        provider: Knows the releases and commits of packages.
        user: Only a study that this user alone has contributed to is used; None for all users.
        fresh: Ignore the studies that exist.
        as_of: Date of a new study; the present moment if None.

    Raises:
        UsageError: The study and the provider have different dates.
    """
    known = None if fresh else store.find_study(matrix.name, matrix.digest, user)
    if user is not None and known is not None and {one.user for one in store.origins(known.id)} - {user}:
        known = None
    date = study_date(known, provider.as_of, as_of)
    grid = expand(matrix, provider.catalogue, date, _settled_ends(known))
    return Expansion(matrix, grid if known is None else _as_refined(matrix, grid, known), date, known)


def study_date(known: Study | None, fixed: datetime | None, new: datetime | None = None) -> datetime:
    """Return the date of a study: later uploads are ignored.

    A resumed study keeps its date, so that the same matrix gives the same locks tomorrow.

    Args:
        known: The study, None if it is new.
        fixed: The only date for which environments are available, if there is only one.
        new: Date of a new study; the present moment if None.

    Raises:
        UsageError: The study has another date than the one available.
    """
    if known is None or known.exclude_newer is None:
        return fixed or new or datetime.now(UTC).replace(microsecond=0)
    if fixed is not None and known.exclude_newer != fixed:
        raise UsageError(
            f"this study sees the indexes as of {known.exclude_newer:%Y-%m-%d %H:%M:%S} UTC, "
            f"and the directory was fetched as of {fixed:%Y-%m-%d %H:%M:%S} UTC",
            remedy="begin another study with `--db FILE`, or go on with this one where there is a network",
        )
    return known.exclude_newer


def _settled_ends(study: Study | None) -> dict[str, tuple[str, str]]:
    """Return both ends of a study's commit axes, which stay fixed even if branches move."""
    axes = () if study is None else study.definition.grid
    return {axis.name: (axis.values[0], axis.values[-1]) for axis in axes if axis.kind is AxisKind.COMMIT}


def _as_refined(matrix: Matrix, grid: Grid, study: Study) -> Grid:
    """Return the grid with the releases and commits that earlier commands added around their answer."""
    known = {axis.name: axis.values for axis in study.definition.grid}
    added: dict[str, tuple[str, ...]] = {}
    for axis in grid.axes:
        values = known.get(axis.name, ())
        if axis.history is None:
            values = tuple(value for value in values if value in axis.passed_over)
        elif not {*values} <= axis.history.place.keys():
            continue
        if values:
            added[axis.name] = values
    return refined(matrix, grid, added) if added else grid


# --------------------------------------------------------------------------------------------------
# What is stored of a study.


def open_study(
    store: Store, expansion: Expansion, *, fresh: bool = False, study_id: str | None = None
) -> Study:
    """Resume the study of a matrix, or begin one; its question is from now on one that this user asked.

    Args:
        store: Database, open for writing.
        expansion: The expanded matrix.
        fresh: Whether to begin a new study although there is one.
        study_id: Id of the study to resume, "" for a new one; None for the newest of the matrix.
    """
    matrix, grid = expansion.matrix, expansion.grid
    ends = {
        name: None if index is None else grid.combination(index).as_dict()
        for name, index in (("good", grid.good), ("bad", grid.bad))
    }
    note_asked(matrix.digest)
    definition = replace(
        _definition(matrix, {"ends": ends}),
        description=matrix.file.description,
        grid=grid_definition(matrix, grid),
        target=target_of(matrix),
        exclude_newer=expansion.as_of,
        fresh=fresh,
        files=matrix.files,
    )
    return store.open_study(definition, study_id=study_id)


def grid_definition(matrix: Matrix, grid: Grid) -> tuple[AxisInfo, ...]:
    """Return the axes of a study as they are stored, with the package that each moves, "" if none."""
    packages = {
        name: axis.canonical_package if isinstance(axis, PackageAxis | CommitAxis) else ""
        for name, axis in matrix.file.axes.items()
    }
    return axis_infos(grid, packages)


def open_derived(
    store: Store, matrix: Matrix, serves: str, definition: Mapping[str, Any], locks: Mapping[Index, Lock]
) -> Study:
    """Open a study that serves another study, or resume it.

    Args:
        store: Database, open for writing.
        matrix: Matrix of the other study.
        serves: Id of the other study; "" if there is none.
        definition: Fields of `StudyDefinition` that are not those of the matrix. An existing study with this
            name and digest is resumed.
        locks: Known locks.
    """
    study = store.open_study(replace(_definition(matrix, {"explains": serves}), **definition))
    store.save_locks(study.id, {lock.content_hash: lock for lock in locks.values()}.values())
    states = [
        CombinationState(study.grid.combination(i), CombinationStatus.SOLVABLE, "", lock.content_hash)
        for i, lock in locks.items()
    ]
    store.save_combinations(study.id, states)
    return study


def _definition(matrix: Matrix, settings: Mapping[str, Any]) -> StudyDefinition:
    """Return what a matrix and this host say of each of its studies."""
    return StudyDefinition(
        name=matrix.name,
        digest=matrix.digest,
        matrix_path="" if matrix.path is None else str(matrix.path),
        matrix_text=matrix.text,
        settings={**matrix.file.search.model_dump(mode="json"), **settings},
        version=__version__,
        host=platform.node(),
        user=user_name(),
    )


def user_name() -> str:
    """Return the name of the user, "" if there is none, as for many users of containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


# --------------------------------------------------------------------------------------------------
# Combinations, locks and trials of a study that exists.


def own_trials(store: Store, study: Study) -> int:
    """Return the number of trials that a study recorded itself."""
    return sum(not trial.reused for trial in store.trials(study.id))


def stored_locks(store: Store, study: Study) -> dict[Combination, Lock]:
    """Return the locks of a study's combinations, except those that have to be solved again here."""
    found: dict[Combination, Lock] = {}
    locks: dict[str, Lock | None] = {}
    for state in store.combinations(study.id):
        if state.lock_hash is None:
            continue
        if state.lock_hash not in locks:
            lock = store.lock(state.lock_hash)
            locks[state.lock_hash] = lock if lock is not None and may_be_installed(lock) else None
        if (lock := locks[state.lock_hash]) is not None:
            found[state.combination] = lock
    return found


def recorded_images(matrix: Matrix, store: Store, study: Study) -> dict[str, str]:
    """Return the digests that names of container images had when the study began, and that it keeps."""
    if matrix.file.executor is None:
        return {}
    found = {}
    for state in store.combinations(study.id):
        lock = store.lock(state.lock_hash) if state.lock_hash else None
        if lock is not None and (reference := lock.image):
            found[matrix.image(state.combination)] = reference
    return found


def save_prepared(store: Store, study: Study, prepared: Prepared) -> None:
    """Store combinations and their locks; those that are stored already stay as they are."""
    store.save_locks(study.id, {lock.content_hash: lock for lock in prepared.locks.values()}.values())
    store.save_combinations(study.id, [prepared.state(index) for index in prepared.grid.indices()])
