"""Open studies: expand a matrix as its study did, and read what earlier commands stored."""

from __future__ import annotations

import getpass
import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from bisect_env import __version__
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
from bisect_env.storage.entries import BUILD_FAILED, CombinationStatus, Study, StudyDefinition
from bisect_env.storage.store import Store

# --------------------------------------------------------------------------------------------------
# Expand a matrix.


@dataclass(frozen=True, slots=True)
class Expansion:
    """A matrix with all its combinations, and the study of this matrix if there is one.

    Attributes:
        matrix: The matrix.
        grid: Its combinations, including releases and commits that the study added.
        as_of: Packages uploaded after this date are ignored.
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
) -> Expansion:
    """Expand a matrix to its combinations, with the same versions as in its study if there is one.

    The study determines the date, the first and last commits, and the known releases.

    Args:
        matrix: The matrix.
        store: Database that may contain its study.
        provider: Knows the releases and commits of packages.
        user: Use only a study to which this user alone has contributed; None for any study.
        fresh: Whether to ignore existing studies.

    Raises:
        UsageError: The study and the provider have different dates.
    """
    known = None if fresh else store.find_study(matrix.name, matrix.digest, user)
    if user is not None and known is not None and {one.user for one in store.origins(known.id)} - {user}:
        known = None
    date = study_date(known, provider.as_of)
    grid = expand(matrix, provider.catalogue, date, _settled_ends(known), _found_releases(known))
    return Expansion(matrix, grid if known is None else _as_refined(matrix, grid, known), date, known)


def study_date(known: Study | None, fixed: datetime | None) -> datetime:
    """Return the date of a study: packages that were uploaded later are ignored.

    A resumed study keeps its date, so that the same matrix gives the same locks tomorrow.

    Args:
        known: The study, None if it is new.
        fixed: The only date for which the provider has packages; None if it has them for every date.

    Raises:
        UsageError: The study has another date than `fixed`.
    """
    if known is None or known.exclude_newer is None:
        return fixed or datetime.now(UTC).replace(microsecond=0)
    if fixed is not None and known.exclude_newer != fixed:
        raise UsageError(
            f"this study sees the indexes as of {known.exclude_newer:%Y-%m-%d %H:%M:%S} UTC, "
            f"and the directory was fetched as of {fixed:%Y-%m-%d %H:%M:%S} UTC",
            remedy="begin another study with `--db FILE`, or go on with this one where there is a network",
        )
    return known.exclude_newer


def _settled_ends(study: Study | None) -> dict[str, tuple[str, str]]:
    """Return the first and last commit of each commit axis, as a study fixed them when it began.

    A study keeps them even if branches move.
    """
    axes = () if study is None else study.definition.grid
    return {axis.name: (axis.values[0], axis.values[-1]) for axis in axes if axis.kind is AxisKind.COMMIT}


def _found_releases(study: Study | None) -> dict[str, set[str]]:
    """Return all releases that a study knows for each package axis, including those that it skips."""
    axes = () if study is None else study.definition.grid
    return {
        axis.name: {*axis.values, *axis.passed_over, *axis.withdrawn}
        for axis in axes
        if axis.kind is AxisKind.PACKAGE
    }


def _as_refined(matrix: Matrix, grid: Grid, study: Study) -> Grid:
    """Return a grid with the versions that earlier commands added near the first bad one.

    These are releases and commits. Returns the changed copy.
    """
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
# Store the definition of a study.


def open_study(
    store: Store, expansion: Expansion, *, fresh: bool = False, study_id: str | None = None
) -> Study:
    """Resume the stored study of a matrix, or begin a new one if there is none.

    Also records that this user has run the matrix on this host.

    Args:
        store: Database, open for writing.
        expansion: The expanded matrix.
        fresh: Whether to begin a new study even if there is one.
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
        grid=axis_infos(matrix, grid),
        target=target_of(matrix),
        exclude_newer=expansion.as_of,
        fresh=fresh,
        files=matrix.files,
    )
    return store.open_study(definition, study_id=study_id)


def open_derived(
    store: Store, matrix: Matrix, serves: str, definition: Mapping[str, Any], locks: Mapping[Index, Lock]
) -> Study:
    """Begin or resume an auxiliary study, such as one for `explain`, which serves another study.

    Args:
        store: Database, open for writing.
        matrix: The matrix of the other study.
        serves: Id of the other study; "" if there is none.
        definition: Fields of `StudyDefinition` that differ from those of the matrix. An existing study with
            this name and digest is resumed.
        locks: Known locks of the auxiliary study's combinations.
    """
    study = store.open_study(replace(_definition(matrix, {"explains": serves}), **definition))
    save_prepared(store, study.id, Prepared(study.grid, locks, {}, {}), locks)
    return study


def _definition(matrix: Matrix, settings: Mapping[str, Any]) -> StudyDefinition:
    """Return a study's definition with the fields that depend only on the matrix and this host.

    Args:
        matrix: The matrix.
        settings: Settings to store in addition to those of the matrix.
    """
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
    """Return the name of the user who runs this process.

    Returns "" if it is unknown (for example in a container).
    """
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


# --------------------------------------------------------------------------------------------------
# Read and store the combinations, locks and trials of an existing study.


def own_trials(store: Store, study: Study) -> int:
    """Return the number of trials that a study has run itself, without those reused from other studies."""
    return sum(not trial.reused for trial in store.trials(study.id))


def stored_locks(store: Store, study: Study) -> dict[Combination, Lock]:
    """Return the stored locks of a study's combinations, except those that this user must not install.

    These contain local files that another user may have written into the database; they must be solved again
    on this host.
    """
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


def forgive_builds(store: Store, study_id: str) -> None:
    """Let a command try environments again whose builds failed for a reason that may have passed.

    Examples are a full disk and a damaged archive. A command does so once, when it begins.
    """
    builds = store.payloads(study_id, BUILD_FAILED)
    may_pass = {one.get("lock"): one.get("transient") is True for one in builds}
    for row in store.combinations(study_id):
        if row.status is CombinationStatus.UNBUILDABLE and may_pass.get(row.lock_hash):
            store.set_combination(study_id, row.combination, CombinationStatus.SOLVABLE, "")


def save_prepared(store: Store, study_id: str, prepared: Prepared, indices: Collection[Index]) -> None:
    """Store the states and locks of some combinations of a study; what is stored already is not changed."""
    locks = [prepared.locks[index] for index in indices if index in prepared.locks]
    store.save_locks(locks)
    store.save_combinations(study_id, [prepared.state(index) for index in indices])
