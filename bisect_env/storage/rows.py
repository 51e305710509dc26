"""Between table rows and the plain data of `records`. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from bisect_env.environments.lock import Lock, LockedPackage
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.secrets import shared_matrix_text, without_credentials, without_passwords
from bisect_env.storage.records import (
    CombinationState,
    CombinationStatus,
    StoredTrial,
    Study,
    StudyDefinition,
    StudyStatus,
    WholeTrial,
)
from bisect_env.storage.tables import CombinationRow, LockRow, PackageRow, StudyRow, TrialRow
from bisect_env.storage.values import clean, jsonable, member, public
from bisect_env.trials.records import Evidence, Machine, Outcome, Phase, TrialRecord

LOGS = ("stdout", "stderr", "stack")
"""Artefacts that every trial may have."""
BODIES = "bodies"
"""In the column `copies`: how often the body was begun, where it is repeated."""
IMPORTED = "imported"
"""The artefact that holds, as JSON, the versions that the script imported; mostly the same for all trials
of a combination, and then stored once."""


def study_of(row: StudyRow) -> Study:
    """A stored study as plain data."""
    definition = StudyDefinition(
        name=row.name,
        digest=row.digest,
        matrix_path=row.matrix_path,
        matrix_text=row.matrix_text,
        description=row.description,
        grid=row.grid,
        settings=row.settings,
        exclude_newer=row.exclude_newer,
        version=row.version,
        host=row.host,
        user=row.username,
        fresh=row.fresh,
    )
    return Study(
        id=row.id,
        definition=definition,
        status=member(StudyStatus, row.status, f"study {row.id}"),
        verdict=row.verdict,
        created_at=row.created_at,
        updated_at=row.updated_at,
        finished_at=row.finished_at,
    )


def definition_values(definition: StudyDefinition) -> dict[str, Any]:
    """What may change when a study goes on: everything but its identity and its `exclude_newer`."""
    return {
        "version": clean(definition.version),
        "host": clean(definition.host),
        "username": clean(definition.user),
        "matrix_path": clean(definition.matrix_path),
        "description": public(definition.description),
        "grid": jsonable(definition.grid),
        "settings": jsonable(definition.settings),
        "matrix_text": clean(shared_matrix_text(definition.matrix_text)),
    }


def lock_row(lock: Lock, now: datetime) -> LockRow:
    """A lock as a row, without its packages."""
    return LockRow(
        content_hash=lock.content_hash,
        python=lock.python,
        platform=lock.platform,
        created_at=now,
        text=clean(lock.text),
    )


def package_rows(lock: Lock) -> list[PackageRow]:
    """A lock's packages as rows."""
    return [
        PackageRow(
            lock_hash=lock.content_hash,
            manager=package.manager,
            name=package.name,
            version=package.version,
            build=package.build,
            url=without_credentials(package.url),
            sha256=package.sha256,
        )
        for package in lock.packages
    ]


def lock_of(row: LockRow, packages: list[PackageRow]) -> Lock:
    """A stored lock as plain data; `packages` in the order that `Lock` promises."""
    return Lock(
        content_hash=row.content_hash,
        python=row.python,
        platform=row.platform,
        packages=tuple(
            LockedPackage(p.name, p.version, p.manager, p.url, p.sha256, p.build) for p in packages
        ),
        text=row.text,
    )


def combination_of(row: CombinationRow) -> CombinationState:
    """A stored combination as plain data."""
    status = member(CombinationStatus, row.status, f"combination {row.key}")
    return CombinationState(Combination.from_key(row.key), status, row.reason, row.lock_hash)


def trial_row(
    study_id: str, combination_id: int, record: TrialRecord, evidence: Evidence, trial_key: str, now: datetime
) -> TrialRow:
    """A trial as a row, without its logs."""
    return TrialRow(
        trial_id=record.trial_id,
        study_id=study_id,
        combination_id=combination_id,
        lock_hash=record.lock_hash,
        outcome=str(Outcome(record.outcome)),
        evidence=str(Evidence(evidence)),
        returncode=record.returncode,
        phase=str(Phase(record.phase)),
        started_at=record.started_at,
        recorded_at=now,
        duration=float(record.duration),
        killed_by_us=bool(record.killed_by_us),
        hash_seed=record.hash_seed,
        copies=_copies(record),
        host=clean(record.host),
        worker=clean(record.worker),
        gpu=clean(record.gpu),
        signature=public(record.signature),
        detail=public(record.detail),
        trial_key=trial_key,
        cpu=clean(record.machine.cpu),
        gpu_model=clean(record.machine.gpu_model),
        driver=clean(record.machine.driver),
    )


def _copies(record: TrialRecord) -> dict[str, int]:
    """Copies by outcome; beside them the bodies, where they are more than the processes."""
    copies = {str(Outcome(outcome)): int(number) for outcome, number in record.copies.items()}
    return copies if not record.bodies else {**copies, BODIES: record.bodies}


def artefacts_of(record: TrialRecord) -> dict[str, bytes]:
    """What a trial wrote, by name: without passwords, and as bytes, which keep NUL and lone surrogates."""
    texts = {name: getattr(record, name) for name in LOGS}
    if record.imported:
        texts[IMPORTED] = json.dumps(dict(record.imported), sort_keys=True, ensure_ascii=False)
    return {
        name: without_passwords(text).encode("utf-8", "surrogatepass") for name, text in texts.items() if text
    }


def stored_trial(row: TrialRow, key: str, evidence: str | None = None) -> StoredTrial:
    """A stored trial without its logs; `evidence` is what it says in another study than its own."""
    where = f"trial {row.trial_id}"
    return StoredTrial(
        sequence=row.sequence or 0,
        study_id=row.study_id,
        trial_id=row.trial_id,
        combination=Combination.from_key(key),
        lock_hash=row.lock_hash,
        outcome=member(Outcome, row.outcome, where),
        evidence=member(Evidence, evidence or row.evidence, where),
        detail=row.detail,
        returncode=row.returncode,
        phase=member(Phase, row.phase, where),
        started_at=row.started_at,
        duration=row.duration,
        signature=row.signature,
        killed_by_us=row.killed_by_us,
        hash_seed=row.hash_seed,
        copies={
            member(Outcome, outcome, where): number
            for outcome, number in row.copies.items()
            if outcome != BODIES
        },
        bodies=row.copies.get(BODIES, 0),
        host=row.host,
        worker=row.worker,
        gpu=row.gpu,
        recorded_at=row.recorded_at,
        machine=Machine(row.cpu, row.gpu_model, row.driver),
    )


def whole_trial(row: TrialRow, key: str, logs: Mapping[str, bytes | None]) -> WholeTrial:
    """A stored trial with its logs; those that were collected are None."""
    light = stored_trial(row, key)
    texts = {name: (logs.get(name) or b"").decode("utf-8", "surrogatepass") for name in LOGS}
    record = TrialRecord(
        trial_id=light.trial_id,
        combination=light.combination,
        lock_hash=light.lock_hash,
        outcome=light.outcome,
        detail=light.detail,
        returncode=light.returncode,
        phase=light.phase,
        started_at=light.started_at,
        duration=light.duration,
        **texts,
        signature=light.signature,
        killed_by_us=light.killed_by_us,
        hash_seed=light.hash_seed,
        copies=light.copies,
        bodies=light.bodies,
        host=light.host,
        worker=light.worker,
        gpu=light.gpu,
        machine=light.machine,
        imported=json.loads(logs.get(IMPORTED) or b"{}"),
    )
    collected = any(content is None for content in logs.values())
    return WholeTrial(light.study_id, record, light.evidence, light.recorded_at, collected)
