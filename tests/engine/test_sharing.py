"""What a command that died had claimed: nobody who can know of its death waits for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bisect_env.engine import events
from bisect_env.engine.sharing import has_ended, name_of_holder
from bisect_env.errors import StudyInterruptedError
from bisect_env.storage.store import LONGEST_LEASE, Store
from tests.engine.studies import Studies, crash_from_six

HOLDER = "from bisect_env.engine.sharing import name_of_holder; print(name_of_holder(), flush=True); input()"


def holder() -> tuple[subprocess.Popen[str], str]:
    """A process that holds claims, and its name."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@pytest.mark.integration
def test_a_holder_is_known_to_be_gone_when_its_process_is() -> None:
    process, name = holder()
    with process:
        assert not has_ended(name)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        # Its parent has not heard of it yet: the id is still its own.
        assert has_ended(name)
    assert has_ended(name)


def test_who_may_live_has_not_ended() -> None:
    name = name_of_holder()
    assert not has_ended(name)
    assert name_of_holder() != name
    unique, machine, pid, started = name.split(" ")
    # The same id, given away since.
    assert has_ended(f"{unique} {machine} {pid} {int(started) - 1}")
    assert has_ended(f"{unique} {machine} {2**22 + 1} {started}")
    # Another machine, another namespace of ids, another tool's name, the name of an earlier release.
    assert not has_ended(f"{unique} another/{machine} {2**22 + 1} {started}")
    assert not has_ended(f"{unique} {machine} {-1} {started}")
    # A damaged name: Python refuses to read numbers of more than 4300 digits.
    assert not has_ended(f"{unique} {machine} {'9' * 5000} {started}")
    assert not has_ended("somebody")
    assert not has_ended(unique)


@pytest.mark.timeout(50)  # far less than the lease
@pytest.mark.integration
def test_a_study_does_not_wait_for_what_the_dead_had_claimed(studies: Studies) -> None:
    path = studies.matrix(crash_from_six())

    def some() -> bool:
        return sum(isinstance(event, events.TrialFinished) for event in studies.events) >= 4

    with pytest.raises(StudyInterruptedError):
        studies.run(path, stopped=some)
    process, name = holder()
    with process:
        process.kill()
    with Store.open(str(studies.db)) as store:
        study = store.study(None).id
        # The one look that decides.
        found = [state.combination for state in store.combinations(study)]
        (five,) = [combination for combination in found if combination["level"] == "5"]
        recorded = sum(trial.combination == five for trial in store.trials(study))
        assert store.claim(study, name, {"a": five}, {five: recorded}, lease=LONGEST_LEASE) == [True]
        assert store.claimed(study, "me") == {name: {five: 1}}
    report = studies.run(path).report
    assert report["verdict"]["first_bad"]["level"] == "6"
    with Store.open(str(studies.db)) as store:
        assert store.claimed(study, "me") == {}
