"""A study that is killed at any instant between two commits, and begun again, ends as if it had not been."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bisect_env.storage.query import ask
from bisect_env.storage.store import Store
from bisect_env.trials.judge import judge
from bisect_env.trials.records import Evidence
from tests.engine.studies import QUICK, Studies

# One failure from 3 on, another one from 6 on, which is that of the bad end.
FROM_BAD_END = (
    "import os, sys\nif int(sys.argv[1]) >= 6: os.abort()\nif int(sys.argv[1]) >= 3: raise KeyError"
)
# Old releases fail in a way of their own.
TWO_PROBLEMS = """
import sys
if int(sys.argv[1]) <= 2: raise ConnectionError
if int(sys.argv[1]) >= 6: raise AttributeError
"""
STUDIES = {
    "from-bad-end": (
        FROM_BAD_END,
        {"trial": "bad: {signature: from-bad-end}", "rest": f"bad: {{level: 9}}\n{QUICK}"},
    ),
    "two problems": (TWO_PROBLEMS, {"rest": QUICK}),
}


def run(studies: Studies, path: Path, instant: int) -> str | None:
    """Run until the instant; what was printed at the end, None if it was killed."""
    environ = {**os.environ, "TMPDIR": str(studies.folder)}
    words = [sys.executable, "-m", "tests.engine.killed", str(studies.folder), str(path), str(instant)]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode == -signal.SIGKILL:
        return None
    assert done.returncode == 0, done.stderr
    return done.stdout


def check(studies: Studies) -> None:
    """See that the answer is right, and that what SQL users see is what the facts say."""
    with Store.open(str(studies.db), read_only=True) as store:
        study = store.study()
        assert study.verdict is not None
        assert (study.verdict.first_bad or {})["level"] == "6", studies.folder
        known = store.study_trials(study.id)
        trials = known.look()
        for trial in trials:
            assert trial.evidence is judge(trial, known.target, matched=True)
        bad = {int(trial.combination["level"]) for trial in trials if trial.evidence is Evidence.BAD}
        assert bad <= set(range(6, 10))
    with ask(str(studies.db), "SELECT trial_id, evidence FROM v_trials") as (_, rows):
        assert {row[0]: row[1] for row in rows} == {t.trial_id: str(t.evidence) for t in trials}


def killed_at(tmp_path: Path, which: str, instants: list[int] | slice) -> None:
    script, keys = STUDIES[which]
    whole = Studies(tmp_path)
    printed = run(whole, whole.matrix(script, **keys), -1)
    assert printed is not None
    check(whole)
    everywhere = range(int(printed))
    # Each once: two random instants may be the same, counted from the end of a short study.
    chosen = everywhere[instants] if isinstance(instants, slice) else {n % len(everywhere) for n in instants}

    def killed(instant: int) -> None:
        folder = tmp_path / str(instant)
        folder.mkdir()
        studies = Studies(folder)
        (folder / "cache").symlink_to(tmp_path / "cache")
        path = studies.matrix(script, **keys)
        # A study that takes another course may end before that instant.
        run(studies, path, instant)
        assert run(studies, path, -1) is not None, f"killed at {instant} of {int(printed)}"
        check(studies)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(killed, chosen))


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("which", STUDIES)
def test_a_study_killed_at_some_instants_ends_as_any_other(tmp_path: Path, which: str) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    # Killed at these, a study of two problems had its answer before it knew that they are two.
    killed_at(tmp_path, which, [28, 31, *random.Random(seed).sample(range(1000), 2)])


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("which", STUDIES)
def test_a_study_killed_at_any_instant_ends_as_any_other(tmp_path: Path, which: str) -> None:
    """Every instant takes a quarter of an hour; a run takes every fourth, from any of the first on."""
    first = random.SystemRandom().randrange(4)
    print(f"instants {first}, {first + 4}, …")
    killed_at(tmp_path, which, slice(first, None, 4))
