"""Tells words that name matrix files, studies and packages apart, and finds a stored study by its name."""

from __future__ import annotations

from pathlib import Path

from bisect_env.answers.untrusted import command_line
from bisect_env.errors import UsageError
from bisect_env.matrix.load import load_matrix
from bisect_env.storage.backend import database_location
from bisect_env.storage.entries import Study
from bisect_env.storage.store import Store

RANGE = frozenset("<>=!~[ ;")
"""Characters of a package with a range."""
SCRIPTS = (".py", ".sh")
"""Endings of scripts."""


def has_database(db: str | None) -> bool:
    """Return whether there is a results database, as far as that can be told without opening it."""
    place = database_location(db)
    return not isinstance(place, Path) or place.exists()


def names_matrix(word: str) -> bool:
    """Return whether a word is meant as the path of a matrix file, and no package, study or script."""
    if word.endswith((".yaml", ".yml")):
        return True
    path = Path(word)
    return not word.endswith(SCRIPTS) and (path.is_file() or ("/" in word and not RANGE & set(word)))


def find_study(words: str | None, store: Store) -> Study:
    """Return the study that a user means: by id, by name, or by its matrix file.

    Args:
        words: As given; None for the latest.
        store: Where studies are.

    Raises:
        UsageError: There is no such study.
    """
    if words is not None and names_matrix(words) and Path(words).is_file():
        matrix = load_matrix(words)
        found = store.find_study(matrix.name, matrix.digest)
        if found is not None:
            return found
        known = next((one for one in store.studies() if one.definition.matrix_path == words), None)
        if known is None:
            raise UsageError(
                f"there is no study of {words} in {store.shown}",
                remedy=f"begin it: {command_line('bisect-env', 'run', words)}",
            )
        return known
    return store.study(words)
