"""`python -m tests.storage.writer DATABASE STUDY NUMBER SHARED`: record trials, and name each that is stored.

Every trial is acknowledged on stdout after `record_trial` has returned. The first SHARED trials have ids that
every writer uses; of those only the ones that were new are named. NUMBER 0 goes on until killed.
"""

from __future__ import annotations

import itertools
import os
import sys
import uuid
from typing import Final

from bisect_env.storage.store import Store
from bisect_env.trials.records import Outcome
from tests.storage.samples import record, record_trial

LOG_SIZE: Final = 48_000
"""Characters of each log."""


def main(path: str, study_id: str, number: int, shared: int) -> None:
    with Store.open(path) as store:
        os.write(1, b"ready\n")
        for i in range(number) if number else itertools.count():
            trial_id = f"shared-{i}" if i < shared else uuid.uuid4().hex
            log = os.urandom(LOG_SIZE // 2).hex()
            one = record("2.0", Outcome.CRASH, trial_id=trial_id, stderr=log, hash_seed=os.getpid())
            if record_trial(store, study_id, one):
                os.write(1, f"{trial_id}\n".encode())
            store.record_decision(study_id, "ask", {"after": i})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
