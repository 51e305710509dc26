"""Reads a stored study again: its grid, the combinations that its answer names, and their locks."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bisect_env.answers.untrusted import clean, command_line
from bisect_env.environments.lock import Lock
from bisect_env.environments.lockfiles import may_be_installed
from bisect_env.errors import UsageError
from bisect_env.matrix.grid import Combination, find_combination
from bisect_env.matrix.load import Matrix, load_matrix
from bisect_env.storage.entries import Study
from bisect_env.storage.store import Store


@dataclass(frozen=True, slots=True)
class LockedCombination:
    """A combination with its lock.

    Attributes:
        combination: The values of the axes.
        lock: The environment.
    """

    combination: Combination
    lock: Lock


def matrix_of(study: Study, path: Path | None = None) -> Matrix:
    """Return the matrix of a study, with its files, as the study ran it.

    Args:
        study: As stored.
        path: Its file, if it lies elsewhere by now.

    Raises:
        MatrixError: It cannot be read.
        UsageError: It, or one of its files, is another by now; or the database names somebody else's file.
    """
    loaded = load_matrix(path) if path is not None else _recorded_matrix(study)
    if loaded.digest != study.definition.digest:
        raise UsageError(
            clean(f"{loaded.path} or its files are not what the study {study.id[:8]} ({study.name}) ran"),
            remedy="name the matrix as it was then with `--matrix`, or run the matrix as it is now first",
        )
    return loaded


def _recorded_matrix(study: Study) -> Matrix:
    """Load the matrix that the database names, after checking its owner: a matrix contains commands.

    Raises:
        MatrixError: It cannot be read.
        UsageError: It does not exist; or it, one of its files or a folder that holds them is somebody else's.
    """
    recorded = Path(study.definition.matrix_path)
    if not recorded.exists():
        below = "" if recorded.is_absolute() else f" below {Path.cwd()}"
        raise UsageError(
            clean(
                f"the matrix of the study {study.id[:8]} ({study.name}), {recorded}, does not exist{below}"
            ),
            remedy="give the command where the study was begun, or name the file with `--matrix`",
        )
    # Behind a link lies another folder, and the files of the trial are those beside the link's target.
    place = recorded.resolve()
    # The owner of a link can change where it leads.
    for path in (recorded.absolute(), place):
        _refuse_strangers(path, place)
    loaded = load_matrix(recorded if place == recorded.absolute() else place)
    for file in loaded.files:
        path = place.parent / file.name
        for one in (path, path.resolve()):
            _refuse_strangers(one, place)
    return loaded


def _refuse_strangers(path: Path, matrix: Path) -> None:
    """Refuse a file that another user may have put there.

    Args:
        path: The matrix, or one of its files, below the matrix's folder.
        matrix: The matrix file.

    Raises:
        UsageError: A file or folder on the way from the matrix's folder is neither this user's nor the
            system's, nor safe below the current directory.
    """
    folders = (place for place in path.parents if place.is_relative_to(matrix.parent))
    for place in (path, *folders):
        if _is_strangers(place):
            what = "file" if place == path else "folder"
            role = "its own" if what == "folder" else "the matrix" if path == matrix else "a file"
            raise UsageError(
                f"the database names {place} as {role} of this study, "
                f"a {what} that another user of this machine can change",
                remedy=f"look at what it runs, then name it: `{command_line('--matrix', str(matrix))}`",
            )


def _is_strangers(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False  # reading it says what is wrong
    is_ours = status.st_uid in (os.geteuid(), 0)
    if stat.S_ISDIR(status.st_mode):
        # In a sticky one, such as /tmp, everybody may put files, and each is its owner's alone.
        return not is_ours or bool(status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX)
    # Everybody's mode of a link says nothing.
    is_everybodys = bool(status.st_mode & stat.S_IWOTH) and not stat.S_ISLNK(status.st_mode)
    return is_everybodys or (not is_ours and not _is_kept_below_here(path))


def _is_kept_below_here(path: Path) -> bool:
    """Return whether a file lies below the current directory in folders that only we or root can change."""
    here = Path.cwd()
    if not path.is_relative_to(here):
        return False
    folders = [place.lstat() for place in path.parents if place.is_relative_to(here)]
    return all(one.st_uid in (os.geteuid(), 0) and not one.st_mode & 0o022 for one in folders)


def named_combinations(study: Study) -> dict[str, Mapping[str, str]]:
    """Return the verdict's combinations `first-bad` and `last-good`, if there are any. Pure."""
    if study.verdict is None:
        return {}
    found = {"first-bad": study.verdict.first_bad, "last-good": study.verdict.last_good}
    return {name: values for name, values in found.items() if values}


def stored_combination(store: Store, study: Study, text: str | None, flag: str = "") -> LockedCombination:
    """Return the combination of a study that a user means, with its lock.

    Args:
        store: Where the study is.
        study: The study.
        text: See `bisect_env.matrix.grid.find_combination`.
        flag: The option's name, if it was given by one.

    Raises:
        UsageError: There is no such combination, or it has no environment.
    """
    combination = find_combination(study.grid, text, named_combinations(study), flag=flag)
    state = next((s for s in store.combinations(study.id) if s.combination == combination), None)
    lock = store.lock(state.lock_hash) if state is not None and state.lock_hash else None
    if lock is None:
        reason = state.reason.partition("\n")[0] if state is not None else ""
        raise UsageError(
            f"{combination} has no environment" + (f": {reason}" if reason else ""),
            remedy="`bisect-env report` lists the combinations that have one",
        )
    return LockedCombination(combination, lock)


def refuse_local(one: LockedCombination) -> None:
    """Refuse an environment with packages from files of this host that only the database names.

    Args:
        one: What is about to be installed, or written down for others to install.

    Raises:
        UsageError: No command of this user has solved it.
    """
    if not may_be_installed(one.lock):
        raise UsageError(
            f"the database takes a package of {one.combination} from {one.lock.local_addresses[0]}, "
            "a file that no command of yours has found in an index or channel",
            remedy="`bisect-env run MATRIX` solves it here again, with the indexes that the matrix and your "
            "configuration name; then give this command again",
        )
