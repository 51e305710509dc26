"""The views that people and other programs may rely on; `docs/reference/database.md` documents them.

A column may be added; none is renamed, removed or given another meaning while the tables change beneath.
"""

from __future__ import annotations

from sqlalchemy import Connection

_EVIDENCE = ("good", "bad", "other", "void", "skip")


def _count(evidence: str) -> str:
    # A count for each combination that is asked for, from an index: a join would count all of them.
    return (
        f"  (SELECT count(*) FROM trials t WHERE t.combination_id = c.id AND t.evidence = '{evidence}')\n"
        f"  + (SELECT count(*) FROM reused r WHERE r.combination_id = c.id AND r.evidence = '{evidence}')"
        f" AS {evidence}"
    )


_COMBINATIONS = f"""
SELECT c.study_id, s.name AS study, c.key AS combination, c.status, c.reason, c.lock_hash,
{",".join(_count(evidence) for evidence in _EVIDENCE)},
  (SELECT count(*) FROM reused r WHERE r.combination_id = c.id) AS reused
FROM combinations c
JOIN studies s ON s.id = c.study_id
"""

# A subquery for a column costs nothing where the column is not asked for, while a join would be made for
# every row of a count. The study is joined, because people choose by its name; LEFT, so that PostgreSQL may
# leave the join out. Every row has its partners.
_TRIALS = """
SELECT t.trial_id, t.study_id, s.name AS study,
  (SELECT c.key FROM combinations c WHERE c.id = t.combination_id) AS combination, t.lock_hash,
  (SELECT l.python FROM locks l WHERE l.content_hash = t.lock_hash) AS python,
  (SELECT l.platform FROM locks l WHERE l.content_hash = t.lock_hash) AS platform,
  t.outcome, t.evidence, t.returncode, t.phase, t.signature, t.detail, t.started_at, t.recorded_at,
  t.duration, t.host, t.worker, t.gpu, s.username, t.cpu, t.gpu_model, t.driver, t.trial_key
FROM trials t
LEFT JOIN studies s ON s.id = t.study_id
"""

_PACKAGES = """
SELECT p.lock_hash, p.manager, p.name, p.version, p.build, p.url, p.sha256,
  (SELECT l.python FROM locks l WHERE l.content_hash = p.lock_hash) AS python,
  (SELECT l.platform FROM locks l WHERE l.content_hash = p.lock_hash) AS platform
FROM packages p
"""

_VERDICT_KEYS = ("status", "sentence", "reason", "kind", "first_bad", "last_good", "culprit_axes")


def _verdicts(dialect: str) -> str:
    if dialect == "sqlite":
        keys = [f"json_extract(s.verdict, '$.{key}') AS {key}" for key in _VERDICT_KEYS]
        probability = "json_extract(s.verdict, '$.probability')"
    else:
        keys = [f"s.verdict ->> '{key}' AS {key}" for key in _VERDICT_KEYS]
        probability = "CAST(s.verdict ->> 'probability' AS double precision)"
    return f"""
SELECT s.id AS study_id, s.name AS study, s.status AS study_status, {", ".join(keys)},
  {probability} AS probability, s.created_at, s.finished_at, s.host, s.username
FROM studies s
WHERE s.verdict IS NOT NULL
"""


NAMES = ("v_combinations", "v_trials", "v_verdicts", "v_packages")
ONE_ROW = {
    "v_trials": "a trial",
    "v_combinations": "a combination of a study, with its trials, `reused` ones included",
    "v_verdicts": "a study with a verdict",
    "v_packages": "a package of a lock",
}
"""What a row of each view stands for."""


def make(connection: Connection) -> None:
    """Make every view."""
    bodies = (_COMBINATIONS, _TRIALS, _verdicts(connection.dialect.name), _PACKAGES)
    for name, body in zip(NAMES, bodies, strict=True):
        connection.exec_driver_sql(f"CREATE VIEW {name} AS {body}")


def drop(connection: Connection) -> None:
    """Take them away: a table cannot be made anew beneath a view."""
    for name in NAMES:
        connection.exec_driver_sql(f"DROP VIEW IF EXISTS {name}")
