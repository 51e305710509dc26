"""Lets a study start from trials of other studies that measured the same thing.

**Key.** Lock, script and command (with files, environment variables, time limit and the other conditions of a
trial), values of the value axes. Equal keys on machines of the same class are the same measurement, whatever
the matrix is called and however its other axes are cut.

**Statistics.** Of a key all trials are taken or none. Trials are independent throws whose number was chosen
by a search that looked at earlier throws; a likelihood does not mind that, but it would mind a choice among
the throws themselves. So the outcome plays no part in what is taken, and where the logs that would decide
what some trial means here were collected, no trial of that key is taken. What is recorded later under the key
by a study that still runs is taken at the next look.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping

from bisect_env.engine.evidence import CombinationKey, StudyTarget
from bisect_env.engine.locking import Prepared
from bisect_env.matrix.grid import Index
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import ValueAxis
from bisect_env.storage.entries import StoredTrial, WholeTrial
from bisect_env.storage.store import Store
from bisect_env.trials.records import NONE, Evidence, Machine, Outcome, Perturbation, TrialRecord

_VERSION = 1
"""Of what a key covers; raised when outcomes get another meaning, so that older trials are left alone."""


def trial_key(matrix: Matrix, prepared: Prepared, index: Index, perturbation: Perturbation = NONE) -> str:
    """The key of a trial; trials of any study with equal keys are the same measurement: hex sha256. Pure.

    Args:
        matrix: What is run.
        prepared: With the combination's lock.
        index: A combination that has a lock.
        perturbation: Under what circumstances trials run.
    """
    trial = matrix.file.trial
    values = prepared.grid.combination(index).as_dict()
    measured = {name for name, axis in matrix.file.axes.items() if isinstance(axis, ValueAxis)}
    facts = {
        "version": _VERSION,
        "lock": prepared.locks[index].content_hash,
        "values": {name: value for name, value in values.items() if name in measured},
        "command": list(trial.effective_command),
        "files": [(f.name, hashlib.sha256(f.content).hexdigest(), f.executable) for f in matrix.files],
        "env": dict(trial.env),
        "timeout": trial.timeout,
        "concurrency": trial.concurrency,
        "gpus": trial.gpus,
    }
    if trial.repeat_within > 1:
        facts["repeat_within"] = trial.repeat_within
    if matrix.file.executor is not None:
        facts["network"] = matrix.file.executor.network
    if perturbation != NONE:
        # Apart from its name: what it is called changes nothing.
        facts["perturbation"] = {key: value for key, value in perturbation.as_json().items() if key != "name"}
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def reusable(machines: Collection[Machine], gpus: float) -> frozenset[Machine]:
    """Classes of machines whose trials can be reused. Pure."""
    return frozenset(m for m in machines if m.cpu and (not gpus or (m.gpu_model and m.driver)))


class Reuse:
    """Looks for trials of other studies under the keys of this one.

    Args:
        store: Where they are.
        study_id: This study.
        keys: Key of each combination that stands for its group, once it has a lock: the mapping may grow.
        prepared: The combinations.
        target: What this study is about: what a trial says is judged anew. While it is open, only trials of
            the bad end are taken.
        machines: Classes of machines on which this study's trials run.
        user: Take trials from this user's studies alone; None for anybody's.
    """

    def __init__(
        self,
        store: Store,
        study_id: str,
        keys: Mapping[Index, str],
        prepared: Prepared,
        target: StudyTarget,
        machines: Collection[Machine],
        user: str | None = None,
    ) -> None:
        self._store = store
        self._study_id = study_id
        self._keys = keys
        self._prepared = prepared
        self._target = target
        self._machines = machines
        self._user = user
        self._seen: set[str] = set()
        self._incomplete: set[str] = set()
        self._cuda_failed: set[str] = set()

    def look(self, among: Collection[Index] | None = None) -> list[StoredTrial]:
        """Take what was recorded since the last look; gives it with what it says in this study.

        Args:
            among: Look for trials of these combinations alone.
        """
        indices = self._keys.keys() if among is None else set(among)
        was_open = self._target.is_open
        taken = self._take({self._target.bad_end} & indices if was_open else indices)
        if was_open and not self._target.is_open:
            taken += self._take(self._keys.keys() - {self._target.bad_end})
        return taken

    def _take(self, indices: Collection[CombinationKey | None]) -> list[StoredTrial]:
        keys = {i: key for i, key in self._keys.items() if i in indices and key not in self._incomplete}
        if not keys or not self._machines:
            return []
        logs = self._target.reads_output or self._target.compares
        found = self._store.measured(
            self._study_id, set(keys.values()), self._machines, logs=logs, user=self._user
        )
        taken = []
        for index, key in keys.items():
            records = [(light, self._record(light, whole)) for light, whole in found.get(key, [])]
            if any(record is None for _, record in records):
                self._incomplete.add(key)
                continue
            combination = self._prepared.grid.combination(index)
            for light, record in records:
                assert record is not None
                evidence = self._judge(index, key, record)
                if evidence is not Evidence.VOID and light.outcome is not Outcome.NOT_RUNNABLE:
                    taken.append((light.trial_id, combination, evidence))
        if not taken:
            return []
        self._store.reuse(self._study_id, taken)
        ids = {trial_id for trial_id, _, _ in taken}
        return [trial for trial in self._store.reused(self._study_id) if trial.trial_id in ids]

    def _record(self, light: StoredTrial, whole: WholeTrial | None) -> TrialRecord | None:
        """The record to judge; None where what decides was collected."""
        if whole is None:
            return light.record()
        if whole.collected and self._target.reads_output:
            return None
        return self._target.up_to_date(whole.record, has_logs=not whole.collected)

    def _judge(self, index: Index, key: str, record: TrialRecord) -> Evidence:
        if record.trial_id in self._seen:
            return Evidence.VOID
        self._seen.add(record.trial_id)
        evidence = self._target.judge(index, record, repeated=key in self._cuda_failed)
        if record.outcome is Outcome.CUDA_INIT:
            self._cuda_failed.add(key)
        return evidence
