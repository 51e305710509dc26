"""Plausible content for a store."""

from __future__ import annotations

import threading
import uuid
import weakref
from datetime import UTC, datetime, timedelta
from typing import Any

from bisect_env.answers.axes import AxisInfo
from bisect_env.environments.lock import Lock, LockedPackage
from bisect_env.environments.lockfiles import make_lock
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.signatures import SIGNATURE_VERSION, SignatureParts
from bisect_env.storage.entries import CombinationState, Study, StudyDefinition
from bisect_env.storage.store import Store
from bisect_env.storage.study_trials import StudyTrials
from bisect_env.trials.records import Outcome, Phase, TrialRecord

VERSIONS = ("1.0", "1.1", "2.0")


def definition(name: str = "orjson", digest: str = "d" * 64, **changes: Any) -> StudyDefinition:
    values: dict[str, Any] = {
        "name": name,
        "digest": digest,
        "matrix_path": "matrices/orjson.yaml",
        "matrix_text": "version: 1\n",
        "description": "crashes since 2.0 — perhaps",
        "grid": (AxisInfo(name="orjson", values=tuple(VERSIONS)),),
        "settings": {"confidence": 0.95, "max_trials": 400},
        "exclude_newer": datetime(2026, 11, 1, 12, 30, 0, 250_000, tzinfo=UTC),
        "version": "0.1.0",
        "host": "here",
        "user": "somebody",
    }
    return StudyDefinition(**{**values, **changes})


def combination(version: str) -> Combination:
    return Combination.of({"orjson": version})


def lock(version: str) -> Lock:
    packages = (
        LockedPackage("orjson", version, "pip", f"https://files.example/orjson-{version}.whl", "a" * 64),
        LockedPackage("zipp", "3.0", "pip", "https://files.example/zipp-3.0.whl", "b" * 64),
    )
    return make_lock("3.11", "linux-64", packages)


def record(version: str = "2.0", outcome: Outcome = Outcome.PASS, **changes: Any) -> TrialRecord:
    values: dict[str, Any] = {
        "trial_id": uuid.uuid4().hex,
        "combination": combination(version),
        "lock_hash": lock(version).content_hash,
        "outcome": outcome,
        "detail": "",
        "returncode": 0,
        "phase": Phase.BODY,
        "started_at": datetime(2026, 11, 2, 8, 0, tzinfo=UTC),
        "duration": 0.25,
        "copies": {outcome: 1},
        "host": "here",
        "worker": "worker-0",
    }
    return TrialRecord(**{**values, **changes})


def whole_record() -> TrialRecord:
    return record(
        "2.0",
        Outcome.CRASH,
        detail="SIGSEGV while `dumps` ran",
        returncode=-11,
        started_at=datetime(2026, 11, 2, 8, 0, 0, 123_456, tzinfo=UTC) + timedelta(days=1),
        stdout="NUL \0, a lone surrogate \udc80, an escape \x1b[31m, naïve ☃\n" * 50,
        stderr="Fatal Python error: Segmentation fault\n",
        stack='  File "x.py", line 1 in main\n',
        signature='[1,"crash:SIGSEGV","body","x.py:main"]',
        hash_seed=2**32 - 1,
        copies={Outcome.CRASH: 2, Outcome.PASS: 8},
        gpu="GPU-1,GPU-2",
    )


def states() -> list[CombinationState]:
    return [
        CombinationState(combination("1.0"), "solvable", "", lock("1.0").content_hash),
        CombinationState(combination("1.1"), "env-unsolvable", "no wheel for this Python", None),
        CombinationState(combination("2.0"), "solvable", "", lock("2.0").content_hash),
    ]


def opened_study(store: Store, name: str = "orjson", digest: str = "d" * 64, **changes: Any) -> Study:
    """A study with its locks and combinations stored."""
    study = store.open_study(definition(name, digest, **changes))
    store.save_locks([lock("1.0"), lock("2.0")])
    store.save_combinations(study.id, states())
    return study


def signature(kind: str, *frames: str) -> str:
    """A signature as it is stored."""
    return SignatureParts(SIGNATURE_VERSION, kind, "body", frames).stored()


_KNOWN: weakref.WeakKeyDictionary[Store, dict[tuple[str, int], StudyTrials]] = weakref.WeakKeyDictionary()


def record_trial(store: Store, study_id: str, one: TrialRecord, trial_key: str = "") -> bool:
    """Record a trial, as a command that goes on does it; whether it is there now as it was given."""
    trials = _KNOWN.setdefault(store, {})
    mine = (study_id, threading.get_ident())
    if mine not in trials:
        trials[mine] = store.study_trials(study_id)
        trials[mine].look()
    news = trials[mine].record([(one, trial_key)])
    return any((trial.trial_id, trial.hash_seed) == (one.trial_id, one.hash_seed) for trial in news)
