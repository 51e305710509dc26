"""The other studies whose trials a study reuses. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from bisect_env.answers.phrases import first_few, how_many
from bisect_env.answers.verdict_document import AnswerPart

_SHOWN = 3
_SHORT_ID = 8


class Origin(AnswerPart):
    """A study whose trials another study reuses."""

    study_id: str = Field(description="Id of the study.")
    study: str = Field(description="Name of the study.")
    user: str = Field(description="User who ran it.")
    host: str = Field(description="Host where its command ran.")
    trials: int = Field(description="Number of its trials that are reused.")


def origins_text(origins: Sequence[Origin]) -> str:
    """Return a phrase about reused trials, such as `30 by ann on box-1 in study 0a1b2c3d (quickstart)`."""
    parts = [
        f"{one.trials} by {one.user or 'somebody'} on {one.host or 'some host'} "
        f"in study {one.study_id[:_SHORT_ID]} ({one.study})"
        for one in origins
    ]
    rest = how_many(sum(one.trials for one in origins[_SHOWN:]), "trial")
    return ", ".join(
        first_few(parts, _SHOWN, one=f"more study with {rest}", many=f"more studies with {rest}")
    )
