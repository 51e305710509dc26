"""Read a stored study: its matrix, the combinations that its verdict names, and their locks."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from bisect_env.answers.sentence import side_names
from bisect_env.answers.untrusted import clean, command_line
from bisect_env.environments.lock import Lock
from bisect_env.environments.lockfiles import may_be_installed
from bisect_env.errors import UsageError
from bisect_env.matrix import yaml_source
from bisect_env.matrix.grid import Combination, find_combination
from bisect_env.matrix.load import Matrix, stored_matrix
from bisect_env.secrets import MASK
from bisect_env.storage.entries import CombinationStatus, Study
from bisect_env.storage.store import Store
from bisect_env.storage.weighing import weighed_study


@dataclass(frozen=True, slots=True)
class LockedCombination:
    """A combination of versions, with the lock of its environment.

    Attributes:
        combination: The values of the axes.
        lock: The lock of its environment.
    """

    combination: Combination
    lock: Lock


def matrix_of(store: Store, study: Study, *, secrets: bool = True) -> Matrix:
    """Return the matrix of a study, with the files of its trial, from the database.

    The database contains no secrets. The value of an environment variable that may be secret is taken from
    the environment of this process.

    Args:
        store: Database with the study.
        study: The study.
        secrets: Whether the secret values are needed; if False, `***` is used instead.

    Raises:
        UsageError: A secret is missing, or the matrix or a file is not in the database in its original form.
        StorageError: A file of the study is damaged.
    """
    definition = study.definition
    again = f"ask again in the same words, or name the matrix file; then {study.name} goes on"
    files, withheld = store.files(study.id)
    if withheld:
        raise UsageError(
            clean(f"{', '.join(withheld)} holds a password, or is too large, and is not in the database"),
            remedy=again,
        )
    data = yaml_source.parse(definition.matrix_text).data
    text, missing = definition.matrix_text, []
    env = data.get("trial", {}).get("env", {}) if isinstance(data, dict) else {}
    hidden = [name for name, value in env.items() if value == MASK] if isinstance(env, dict) else []
    for name in hidden if secrets else ():
        env[name] = os.environ.get(name, MASK)
        missing += [name] if env[name] == MASK else []
    if missing:
        raise UsageError(
            f"the value of {', '.join(missing)} may be a secret, and is not in the database",
            remedy=f"set {missing[0]} in the environment of this command, or {again}",
        )
    if hidden and secrets:
        text = json.dumps(data, indent=1, ensure_ascii=False)
    loaded = stored_matrix(text, files, definition.matrix_path)
    if loaded.digest != definition.digest and (secrets or not hidden):
        raise UsageError(
            clean(f"the study {study.id[:8]} ({study.name}) asked something else than the database holds"),
            tried="reading its matrix and files; secrets in them are not stored",
            remedy=again,
        )
    return loaded


def note_asked(digest: str) -> None:
    """Remember on this host that this user has run a matrix, so that its stored studies are trusted.

    A user can then run such a study by its id.

    Args:
        digest: Digest of the matrix.
    """
    # If it cannot be written, the user has to give the matrix again instead of the id.
    with contextlib.suppress(OSError):
        path = _asked(digest)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(0o600)


def was_asked_here(digest: str) -> bool:
    """Return whether this user has run the matrix with this digest on this host."""
    return _asked(digest).exists()


def _asked(digest: str) -> Path:
    return platformdirs.user_state_path("bisect-env") / "asked" / digest


def refuse_strangers(study: Study) -> None:
    """Raise an error if this user has never run the matrix of a study, because its commands may be harmful.

    Another user may have written its commands into the database.

    Raises:
        UsageError: This user never ran its matrix on this host.
    """
    if not was_asked_here(study.definition.digest):
        whose = f" by {study.definition.user} on {study.definition.host}" if study.definition.user else ""
        name = study.id[:8]
        raise UsageError(
            clean(f"the study {name} ({study.name}) was asked{whose}, and never by you on this host"),
            remedy=f"write it to a file with `{command_line('bisect-env', 'plan', name, '--save', 'FILE')}`, "
            "look at what it runs, and name the file",
        )


def named_combinations(store: Store, study: Study) -> dict[str, Mapping[str, str]]:
    """Return the combinations to which the names `first-bad` and `last-good` refer, by name.

    For a fix, the names `last-bad` and `first-good`, which its report uses, are included as well. A
    combination that the study has not found is left out. All trials so far are taken into account.
    """
    verdict = weighed_study(store, study).verdict
    if verdict is None:
        return {}
    ends = (verdict.first_bad, verdict.last_good)
    shown = (name.replace(" ", "-") for name in side_names(verdict, study.definition.grid))
    found = {
        **dict(zip(("first-bad", "last-good"), ends, strict=True)),
        **dict(zip(shown, ends, strict=True)),
    }
    return {name: values for name, values in found.items() if values}


def stored_combination(store: Store, study: Study, text: str | None, flag: str = "") -> LockedCombination:
    """Return the combination of a study that the user named, with its lock from the database.

    Args:
        store: Database with the study.
        study: The study.
        text: The user's text; see `bisect_env.matrix.grid.find_combination`.
        flag: Name of the option that contained the text, if any; for messages.

    Raises:
        UsageError: There is no such combination, or it has no environment.
    """
    combination = find_combination(study.grid, text, named_combinations(store, study), flag=flag)
    state = next((s for s in store.combinations(study.id) if s.combination == combination), None)
    lock = store.lock(state.lock_hash) if state is not None and state.lock_hash else None
    if lock is None and state is not None and state.status is CombinationStatus.EXCLUDED:
        raise UsageError(
            f"{combination} is excluded in the matrix: {state.reason}",
            remedy="name a combination that no rule of the matrix excludes",
        )
    if lock is None and (state is None or state.status is CombinationStatus.UNLOCKED):
        pairs = ",".join(map("=".join, combination.items))
        raise UsageError(
            f"{combination} was not locked yet",
            remedy=f"`{command_line('bisect-env', 'trial', study.id[:8], '--at', pairs)}` locks it",
        )
    if lock is None:
        reason = state.reason.partition("\n")[0] if state is not None else ""
        raise UsageError(
            f"{combination} has no environment" + (f": {reason}" if reason else ""),
            remedy="`bisect-env report` lists the combinations that have one",
        )
    return LockedCombination(combination, lock)


def refuse_local(one: LockedCombination) -> None:
    """Raise an error if a stored environment would install local files of unknown origin.

    Another user may have written the database, and could make this user install any file. Packages that a
    command of this user has found in an index or channel are no such files.

    Args:
        one: The combination whose environment is to be installed or exported.

    Raises:
        UsageError: No command of this user has found these files in an index or channel.
    """
    if not may_be_installed(one.lock):
        raise UsageError(
            f"the database takes a package of {one.combination} from {one.lock.local_addresses[0]}, "
            "a file that no command of yours has found in an index or channel",
            remedy="`bisect-env run MATRIX` solves it here again, with the indexes that the matrix and your "
            "configuration name; then give this command again",
        )
