"""Reading a report out of the store: the one place of this package that has effects."""

from __future__ import annotations

from typing import Any

from bisect_env.report.build import build_report
from bisect_env.report.model import Report
from bisect_env.storage.store import Store
from bisect_env.trials.records import Evidence

FAILURES = 5
"""Ways of failing that a report gives examples of."""


def load_report(store: Store, study_id: str) -> Report:
    """The report of a study as it stands now; one state of the database, whatever others write.

    Raises:
        UsageError: There is no such study.
        StorageError: The database cannot be read.
    """
    with store.snapshot():
        study = store.study(study_id)
        # Other failures are shown too, but never crowd out the ones that the study is about.
        groups = sorted(store.failures(study.id), key=lambda group: group.evidence is not Evidence.BAD)
        examples = [(group, store.trial(group.trial_id)) for group in groups[:FAILURES]]
        return build_report(
            study,
            store.combinations(study.id),
            store.counts(study.id),
            [(group, example) for group, example in examples if example is not None],
            store.environments(study.id),
            store.origins(study.id),
            store.machines(study.id),
            store.trials(study.id),
            store.reused(study.id),
            store.decisions(study.id),
        )


def report_document(store: Store, study_id: str) -> dict[str, Any]:
    """The report of a study as a JSON object: what `--format json` prints and `run --json` ends with."""
    return load_report(store, study_id).document()
