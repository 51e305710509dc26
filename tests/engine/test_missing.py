"""A module that was forgotten, told from one that a release lost."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bisect_env.engine.missing import MissingModules, missing_module
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.import_names import package_of_module
from bisect_env.trials.records import Outcome, Phase, TrialRecord


def record(version, detail, outcome=Outcome.IMPORT_ERROR):
    combination = Combination.of({"app": version})
    now = datetime.now(UTC)
    return TrialRecord("x", combination, "0" * 64, outcome, detail, 1, Phase.IMPORT, now, 0.1)


NUMPY = "ModuleNotFoundError: No module named 'numpy'"


def told(*records, packages=("app",), enough=3):
    missing = MissingModules(packages, enough)
    for one in records:
        missing.tell(one)
    return missing.module


def test_what_every_environment_lacks_was_forgotten():
    assert told(record("1", NUMPY), record("2", NUMPY)) is None
    assert told(record("1", NUMPY), record("1", NUMPY), record("1", NUMPY)) is None
    assert told(*(record(v, NUMPY) for v in "123")) == "numpy"
    assert told(record("1", NUMPY), record("9", NUMPY), enough=2) == "numpy"


def test_what_every_trial_lacked_so_far_is_suspected():
    missing = MissingModules(("app",))
    missing.tell(record("1", NUMPY))
    assert missing.suspect == "numpy"
    missing.tell(record("2", "", Outcome.PASS))
    assert missing.suspect is None


@pytest.mark.parametrize(
    "other",
    [
        record("4", "", Outcome.PASS),
        record("4", "SIGSEGV", Outcome.CRASH),
        record("4", "ModuleNotFoundError: No module named 'scipy'"),
        record("4", "ModuleNotFoundError: No module named 'app.sub'"),
    ],
)
def test_one_environment_that_does_otherwise_is_enough_to_go_on(other):
    assert told(*(record(v, NUMPY) for v in "123"), other) is None


def test_a_lost_worker_says_nothing():
    lost = record("4", "the worker is gone", Outcome.WORKER_LOST)
    assert told(*(record(v, NUMPY) for v in "123"), lost) == "numpy"


def test_modules_and_the_packages_that_bring_them():
    assert missing_module(record("1", "No module named yaml.sub")) == "yaml.sub"
    assert missing_module(record("1", "AssertionError", Outcome.EXIT_FAIL)) is None
    assert package_of_module("yaml.sub") == "pyyaml"
    assert package_of_module("Some_Thing") == "some-thing"


def test_a_module_has_one_package_wherever_it_is_named() -> None:
    """The advice of a report and the remedy of a command once named two for `cv2`, and for `Crypto`."""
    for module, package in {
        "cv2": "opencv-python-headless",
        "Crypto.Cipher": "pycryptodome",
        "pkg_resources": "setuptools",
        "some_module": "some-module",
    }.items():
        assert package_of_module(module) == package
