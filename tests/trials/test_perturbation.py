"""Perturbations change the circumstances that they name, and nothing is left of them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable

import psutil
import pytest

from bisect_env.engine.amplify import catalogue
from bisect_env.trials.records import NONE, PERTURBATION, Outcome, Perturbation, TrialRecord

Run = Callable[..., TrialRecord]


def test_they_are_stored_and_read_back() -> None:
    for one in catalogue(4, seeds=(7,), repeats=True):
        stored = json.dumps(PERTURBATION.dump_python(one, mode="json", exclude_defaults=True))
        assert PERTURBATION.validate_python(json.loads(stored)) == one
        assert one != NONE
    assert PERTURBATION.dump_python(NONE, mode="json", exclude_defaults=True) == {}
    assert len({one.name for one in catalogue(4, (7, 8), repeats=True)}) == len(
        catalogue(4, (7, 8), repeats=True)
    )


@pytest.mark.integration
def test_what_a_script_sees(run: Run) -> None:
    code = """
        import gc, json, os
        print(json.dumps([gc.get_threshold()[0], os.nice(0), len(os.sched_getaffinity(0)),
                          sorted(name for name in os.environ if "HARNESS" in name)]))
    """
    plain = json.loads(run(code).stdout)
    changed = run(code, perturbation=Perturbation("x", gc_threshold=1, nice=5, cpus=1)).stdout
    assert json.loads(changed) == [1, plain[1] + 5, 1, []]


@pytest.mark.integration
def test_load_beside_a_trial_ends_with_it(run: Run) -> None:
    code = """
        import os, time
        deadline = time.time() + 20
        def spinning():
            count = 0
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    count += b"while True: pass" in open(f"/proc/{pid}/cmdline", "rb").read()
                except OSError:
                    pass
            return count
        while spinning() < 3 and time.time() < deadline:
            time.sleep(0.05)
        print(spinning())
    """
    before = spinning()
    record = run(code, perturbation=Perturbation("x", load=3))
    assert record.outcome is Outcome.PASS
    assert int(record.stdout) >= 3
    assert spinning() <= before


def spinning() -> int:
    """Processes that do nothing but use CPU, and are ours."""
    found = 0
    for process in psutil.Process(os.getpid()).children(recursive=True):
        # What ends meanwhile, or waits to be reaped, uses no CPU.
        with contextlib.suppress(psutil.NoSuchProcess):
            found += "while True: pass" in process.cmdline()
    return found
