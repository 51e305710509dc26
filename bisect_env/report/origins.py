"""From whom a study has trials that it did not record itself. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_SHOWN = 3
_SHORT_ID = 8


class _Origin(Protocol):
    @property
    def study_id(self) -> str: ...
    @property
    def study(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def trials(self) -> int: ...


def told_origins(origins: Sequence[_Origin]) -> str:
    """The origins in words, such as `30 by ann on box-1 in study 0a1b2c3d (quickstart)`."""
    told = [
        f"{one.trials} by {one.user or 'somebody'} on {one.host or 'some host'} "
        f"in study {one.study_id[:_SHORT_ID]} ({one.study})"
        for one in origins[:_SHOWN]
    ]
    if len(origins) > _SHOWN:
        told.append(f"{sum(one.trials for one in origins[_SHOWN:])} from {len(origins) - _SHOWN} more")
    return ", ".join(told)
