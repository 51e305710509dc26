"""What a worker expects a script to import, from the lock; and that a trial is held against it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy
import pytest

from bisect_env.cluster.perform import importable, perform
from bisect_env.cluster.protocol import TrialCompleted, TrialRequest
from bisect_env.environments.lock import Lock, LockedPackage
from bisect_env.environments.prefix import Prefix
from bisect_env.trials.harness_marks import LockedDistribution
from bisect_env.trials.records import Outcome
from tests.trials.trial_support import PREFIX, make_spec

PYTHON = ".".join(map(str, sys.version_info[:2]))


def lock(*packages: LockedPackage, python: str = PYTHON) -> Lock:
    return Lock("a" * 64, python, "linux-64", packages, "")


def wheel(name: str, version: str) -> LockedPackage:
    return LockedPackage(name, version, "pip", "https://x/y.whl", "0")


def conda(name: str, version: str, build: str, *needs: str) -> LockedPackage:
    wants = tuple((need, "") for need in needs)
    return LockedPackage(name, version, "conda", "https://x/y.conda", "0", build, "", wants)


def test_names_are_those_of_the_metadata() -> None:
    found = importable(
        lock(
            wheel("Zope.Interface", "7.0"),
            wheel("torch", "2.4.0+cu121"),
            conda("pytorch", "2.3.0", "cuda120_py311", "python"),
            conda("zlib", "1.3", "h1"),
            conda("python", "3.11.4", "h1"),
        )
    )
    assert found == (
        LockedDistribution("python", PYTHON),
        LockedDistribution("torch", "2.4.0+cu121", cuda=True),
        LockedDistribution("zope-interface", "7.0"),
    )
    (torch,) = importable(lock(conda("pytorch", "2.3.0", "cuda120_py311", "python"), python=""))[1:] or (
        None,
    )
    assert torch is None


def test_a_cuda_build_of_conda_is_one() -> None:
    found = importable(lock(conda("pytorch", "2.3.0", "cuda120_py311", "python")))
    assert LockedDistribution("torch", "2.3.0", cuda=True) in found


@pytest.mark.integration
@pytest.mark.parametrize("locked", [numpy.__version__, "1.0"])
def test_a_worker_holds_a_trial_against_its_lock(locked: str) -> None:
    request = TrialRequest(make_spec("import numpy"), lock(wheel("numpy", locked)))

    def build(_lock: Lock, *, allow_source: bool | frozenset[str], existing: bool = False) -> Prefix:
        return Prefix(PREFIX, Path(sys.executable))

    done = perform(request, build=build, cancelled=lambda: False, worker="w")
    assert isinstance(done, TrialCompleted)
    expected = Outcome.PASS if locked == numpy.__version__ else Outcome.ENV_MISMATCH
    assert done.record.outcome is expected, done.record.detail
    assert done.record.imported["numpy"] == numpy.__version__
