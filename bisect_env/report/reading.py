"""Reads a report out of the store; the only module of this package with effects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bisect_env.environments.difference import counted, difference, project_urls
from bisect_env.environments.lock import Lock
from bisect_env.environments.settings import default_cache_dir
from bisect_env.report.build import build_report
from bisect_env.report.model import DifferenceReport, Report
from bisect_env.storage.entries import CombinationState, Study
from bisect_env.storage.store import Store
from bisect_env.trials.records import Evidence

FAILURES = 5
"""Ways of failing that a report gives examples of."""


def load_report(store: Store, study_id: str, *, posterior: bool = True) -> Report:
    """The report of a study as one state of the database, even while others write.

    Args:
        store: Where the study is.
        study_id: Its whole id.
        posterior: Whether to follow the answers through all trials, for formats that show it; that takes as
            long as the search did.

    Raises:
        UsageError: There is no such study.
        StorageError: The database cannot be read.
    """
    with store.snapshot():
        study = store.study(study_id)
        # Other failures are shown too, but never crowd out the ones that the study is about.
        groups = sorted(store.failures(study.id), key=lambda group: group.evidence is not Evidence.BAD)
        examples = [(group, store.trial(group.trial_id)) for group in groups[:FAILURES]]
        states = store.combinations(study.id)
        good, bad = (_lock(store, study, states, end) for end in ("last_good", "first_bad"))
        return build_report(
            study,
            states,
            store.counts(study.id),
            [(group, example) for group, example in examples if example is not None],
            store.environments(study.id),
            store.origins(study.id),
            store.machines(study.id),
            store.trials(study.id),
            store.reused(study.id),
            store.decisions(study.id),
            _difference(study, good, bad),
            bad,
            with_posterior=posterior,
        )


def report_document(store: Store, study_id: str, *, posterior: bool = True) -> dict[str, Any]:
    """The report of a study as a JSON object: what `--format json` prints and `run --json` ends with."""
    return load_report(store, study_id, posterior=posterior).document()


def _lock(store: Store, study: Study, states: Sequence[CombinationState], end: str) -> Lock | None:
    cell = (study.verdict or {}).get(end)
    hashes = [s.lock_hash for s in states if s.lock_hash and s.combination.as_dict() == cell]
    return store.lock(hashes[0]) if hashes else None


def _difference(study: Study, good: Lock | None, bad: Lock | None) -> DifferenceReport | None:
    """What differs between last good and first bad; pages of projects where their prefixes are here."""
    if good is None or bad is None or study.verdict is None:
        return None
    prefixes = default_cache_dir() / "prefixes"
    urls = project_urls(prefixes / lock.content_hash for lock in (good, bad))
    # Studies of older releases say nothing of packages; an axis is mostly called as what it moves.
    named = (axis.get("package", axis["name"]) for axis in study.definition.grid)
    changes = difference(good, bad, [name for name in named if name], urls)
    return DifferenceReport(
        before=study.verdict["last_good"],
        after=study.verdict["first_bad"],
        summary=counted(changes),
        changes=tuple(changes),
    )
