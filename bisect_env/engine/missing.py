"""Finds out that a module was forgotten in the matrix, rather than broken by a version. Pure.

A script that cannot be imported anywhere fails everywhere alike, and a search would say so after dozens of
trials. A module that every environment tried lacks is brought by none of the packages asked about.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from packaging.utils import canonicalize_name

from bisect_env.engine import events
from bisect_env.matrix.grid import Combination
from bisect_env.trials.judge import NEVER_TARGET
from bisect_env.trials.records import Outcome, TrialRecord

_NO_MODULE = re.compile(r"No module named '?([\w.]+)'?")
_ENOUGH = 3
"""Environments that all lack a module before it is taken for forgotten, where not both ends were tried."""


@dataclass
class MissingModules:
    """A listener to a study's first trials that detects modules missing in every environment.

    Args:
        packages: That the study is about: what they import is the question itself.
        ends: Values at both ends of each axis that has several.
    """

    packages: Collection[str]
    ends: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    _lacking: dict[Combination, str] = field(default_factory=dict)
    _otherwise: bool = False

    def on_event(self, event: events.Event) -> None:
        """Process an event; only finished trials matter."""
        if isinstance(event, events.TrialFinished):
            self.tell(event.record)

    def tell(self, record: TrialRecord) -> None:
        """Record whether a trial failed because of a missing module."""
        module = missing_module(record)
        if module is None or is_of(module, self.packages):
            self._otherwise = self._otherwise or record.outcome not in _NO_ANSWER
        else:
            self._lacking[record.combination] = module

    @property
    def module(self) -> str | None:
        """Return the module that the matrix forgot, if enough trials show it, else None."""
        module = self.suspect
        both = bool(self.ends) and all(
            {combination[axis] for combination in self._lacking} >= set(ends)
            for axis, ends in self.ends.items()
        )
        return module if both or len(self._lacking) >= _ENOUGH else None

    @property
    def suspect(self) -> str | None:
        """Return the one module that every trial so far lacked, even if few environments were tried.

        It is to blame where a study ends because the combination that is stated to work does not.
        """
        modules = set(self._lacking.values())
        return next(iter(modules)) if len(modules) == 1 and not self._otherwise else None


_NO_ANSWER = NEVER_TARGET - {Outcome.NOT_RUNNABLE}


def missing_module(record: TrialRecord) -> str | None:
    """Return the module whose absence made a trial fail, None if that is not why."""
    if record.outcome not in (Outcome.IMPORT_ERROR, Outcome.EXIT_FAIL):
        return None
    found = _NO_MODULE.search(record.detail)
    return found[1] if found else None


def is_of(module: str, packages: Collection[str]) -> bool:
    """Return whether one of the packages brings a module, by its name."""
    return package_of_module(module) in {str(canonicalize_name(package)) for package in packages}


def package_of_module(module: str) -> str:
    """Return the package that a module mostly comes from: `yaml` from `pyyaml`."""
    # Imported here: only a study in which a module is missing needs the index.
    from bisect_env.environments.index import IMPORTED_AS

    top = module.partition(".")[0]
    return str(canonicalize_name(IMPORTED_AS.get(top.lower(), top)))
