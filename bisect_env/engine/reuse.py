"""Lets a study start from trials of other studies that measured the same thing.

**Key.** Lock, script and command (with files, environment variables, time limit and the other conditions of a
trial), values of the value axes. Equal keys on machines of the same class are the same measurement, whatever
the matrix is called and however its other axes are cut.

**Statistics.** Of a key all trials are taken or none. Trials are independent throws whose number was chosen
by a search that looked at earlier throws; a likelihood does not mind that, but it would mind a choice among
the throws themselves. So what the script did plays no part in what is taken, and where the logs that would
decide what some trial means here were collected, no trial of that key is taken. What is recorded later under
the key by a study that still runs is taken at the next look.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection

from bisect_env.engine.locking import Prepared
from bisect_env.matrix.grid import Index
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import ValueAxis
from bisect_env.trials.records import NONE, Machine, Perturbation

_VERSION = 1
"""Of what a key covers; raised when outcomes get another meaning, so that older trials are left alone."""


def trial_key(matrix: Matrix, prepared: Prepared, index: Index, perturbation: Perturbation = NONE) -> str:
    """Return the key of a trial (hex sha256), equal for equal measurements of all studies. Pure.

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
    """Return the classes of machines whose trials can be reused. Pure."""
    return frozenset(m for m in machines if m.cpu and (not gpus or (m.gpu_model and m.driver)))
