"""Detect that a module is missing from every environment, because the matrix forgot its package. Pure.

If the script cannot be imported, all combinations fail alike, and the search would notice only after dozens
of trials. A module that is missing from every tried environment is not provided by any of the requested
packages.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from packaging.utils import canonicalize_name

from bisect_env.matrix.grid import Combination
from bisect_env.matrix.import_names import package_of_module
from bisect_env.trials.judge import NEVER_TARGET
from bisect_env.trials.records import Outcome, TrialRecord

_NO_MODULE = re.compile(r"No module named '?([\w.]+)'?")


@dataclass
class MissingModules:
    """A detector of a module that no environment contains, because the matrix forgot its package.

    It looks at the first trials of a study.

    Args:
        packages: The packages that the study is about; their own modules do not count.
        enough: Minimum number of environments that all lack a module before it counts as forgotten.
    """

    packages: Collection[str]
    enough: int = 3
    _lacking: dict[Combination, str] = field(default_factory=dict)
    _otherwise: bool = False

    def tell(self, record: TrialRecord) -> None:
        """Note whether a trial failed because a module is missing."""
        module = missing_module(record)
        own = {str(canonicalize_name(package)) for package in self.packages}
        if module is None or package_of_module(module) in own:
            self._otherwise = self._otherwise or record.outcome not in _NO_ANSWER
        else:
            self._lacking[record.combination] = module

    @property
    def module(self) -> str | None:
        """Return the module that is missing in every environment, or None.

        A module is returned only if it is missing in enough environments to be sure.
        """
        return self.suspect if len(self._lacking) >= self.enough else None

    @property
    def suspect(self) -> str | None:
        """Return the module that was missing in every trial so far, which may explain the failures, or None.

        A few trials are enough. For example, the module may explain why a combination fails that was stated
        to be good.
        """
        modules = set(self._lacking.values())
        return next(iter(modules)) if len(modules) == 1 and not self._otherwise else None


_NO_ANSWER = NEVER_TARGET - {Outcome.NOT_RUNNABLE}


def missing_module(record: TrialRecord) -> str | None:
    """Return the name of the missing module because of which a trial failed.

    Returns None if the trial passed or failed for another reason.
    """
    if record.outcome not in (Outcome.IMPORT_ERROR, Outcome.EXIT_FAIL):
        return None
    found = _NO_MODULE.search(record.detail)
    return found[1] if found else None
