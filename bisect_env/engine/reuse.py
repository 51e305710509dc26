"""Let a study reuse trials of other studies that measured the same thing.

**Key.** A trial's key is a hash of its lock, script and command (with files, environment variables, time
limit and other conditions of a trial) and of the values of value axes. Trials with equal keys, on machines of
the same class, are the same measurement, even if the matrices have different names and other axes.

**Statistics.** Either all trials of a key are reused or none. The number of trials was chosen by a search
that saw earlier results, which does not affect a likelihood; a selection among the trials would. Therefore
their results play no part in the decision. If the meaning of some trial can no longer be determined, because
its logs were deleted, no trial of its key is reused. Trials that a running study records later under the key
are reused, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection

from bisect_env.environments.lock import Lock
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import ValueAxis
from bisect_env.trials.records import NONE, PERTURBATION, Machine, Perturbation

_VERSION = 1
"""Version of what a key covers. Increased when outcomes change their meaning, so that older trials are not
reused."""


def trial_key(matrix: Matrix, combination: Combination, lock: Lock, perturbation: Perturbation = NONE) -> str:
    """Return the key of a combination's trials: a hash that is equal for equal trials of all studies.

    It is a sha256 in hexadecimal digits.

    Args:
        matrix: The matrix of the study.
        combination: One of its combinations.
        lock: The lock of its environment.
        perturbation: Circumstances under which its trials run.
    """
    trial = matrix.file.trial
    values = combination.as_dict()
    measured = {name for name, axis in matrix.file.axes.items() if isinstance(axis, ValueAxis)}
    facts = {
        "version": _VERSION,
        "lock": lock.content_hash,
        "values": {name: value for name, value in values.items() if name in measured},
        "command": list(trial.command),
        "files": [(f.name, hashlib.sha256(f.content).hexdigest(), f.executable) for f in matrix.files],
        "env": dict(trial.env),
        "timeout": trial.timeout,
        "concurrency": trial.concurrency,
        "gpus": trial.gpus,
    }
    if trial.concurrency * perturbation.copies > 1:
        # The target decides which of the copies stands for the trial.
        facts["bad"] = trial.bad.model_dump(mode="json")
    if trial.repeat_within > 1:
        facts["repeat_within"] = trial.repeat_within
    if matrix.file.executor is not None:
        facts["network"] = matrix.file.executor.network
    if perturbation != NONE:
        # Leave the name out, because it does not affect the trial.
        facts["perturbation"] = PERTURBATION.dump_python(
            perturbation, mode="json", exclude_defaults=True, exclude={"name"}
        )
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def reusable(machines: Collection[Machine], gpus: float) -> frozenset[Machine]:
    """Return the classes of machines that are known well enough to reuse trials from other studies there.

    Args:
        machines: Classes of the machines where trials run.
        gpus: The value of `trial.gpus`; if it is not 0, model and driver of the GPU must be known.
    """
    return frozenset(m for m in machines if m.cpu and (not gpus or (m.gpu_model and m.driver)))
