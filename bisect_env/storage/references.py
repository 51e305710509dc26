"""Which study a user means. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from bisect_env.errors import UsageError
from bisect_env.storage.records import Study

_SHOWN = 5
SHORT = 8
"""How many digits of an id are shown to people."""


def find_study(studies: Sequence[Study], reference: str | None, shown: str) -> Study:
    """Find a study by id, unique beginning of an id, or name.

    Args:
        studies: Every study, the newest first.
        reference: What the user said; None for the newest. The path of a matrix will do as well.
        shown: The database, for messages.

    Raises:
        UsageError: There is none, or several ids begin so.
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
