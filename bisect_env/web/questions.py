"""Questions that people ask, as Datasette's canned queries on the stable views. Pure."""

from __future__ import annotations

from typing import Any

QUESTIONS: dict[str, tuple[str, str]] = {
    "studies": (
        "Every study, with its report",
        """\
SELECT id AS study_id, name AS study, status, created_at, username, host
FROM studies ORDER BY created_at DESC""",
    ),
    "verdicts": (
        "What was found, the newest first",
        """\
SELECT study_id, study, study_status, status AS verdict, sentence, created_at, username, host
FROM v_verdicts ORDER BY created_at DESC""",
    ),
    "crashing_versions": (
        "Which versions of a package has anyone seen crash beside a version of another?",
        """\
SELECT p.version, count(*) AS crashes, max(t.recorded_at) AS last_seen
FROM v_trials t
JOIN v_packages p ON p.lock_hash = t.lock_hash AND p.name = :package
JOIN v_packages o ON o.lock_hash = t.lock_hash AND o.name = :beside
WHERE o.version LIKE :version || '%' AND t.outcome = 'crash'
  AND t.gpu_model LIKE '%' || :gpu_model || '%'
GROUP BY p.version ORDER BY p.version""",
    ),
    "crashes": (
        "How often did each crash come, and where was it seen last?",
        """\
SELECT signature, count(*) AS trials, count(DISTINCT study_id) AS studies,
  max(recorded_at) AS last_seen, max(trial_id) AS trial_id
FROM v_trials WHERE outcome = 'crash' GROUP BY signature ORDER BY trials DESC LIMIT 100""",
    ),
    "failures_of_a_study": (
        "The failing trials of a study, the newest first",
        """\
SELECT trial_id, combination, outcome, evidence, detail, recorded_at, host, gpu_model
FROM v_trials WHERE study = :study AND evidence IN ('bad', 'other')
ORDER BY recorded_at DESC LIMIT 200""",
    ),
    "machines": (
        "Does a failure depend on the machine?",
        """\
SELECT cpu, gpu_model, driver, sum(CASE WHEN evidence = 'bad' THEN 1 ELSE 0 END) AS bad,
  count(*) AS trials
FROM v_trials WHERE evidence IN ('good', 'bad') GROUP BY cpu, gpu_model, driver""",
    ),
    "hosts": (
        "On which hosts does infrastructure spoil trials?",
        """\
SELECT host, count(*) AS trials, sum(CASE WHEN evidence = 'void' THEN 1 ELSE 0 END) AS spoilt
FROM v_trials GROUP BY host ORDER BY spoilt DESC""",
    ),
}
"""Name to title and SQL."""


def metadata(database: str, tables: list[str], shown: str) -> dict[str, Any]:
    """What Datasette is told: titles, queries, and that tables are not for people.

    Args:
        database: Its name there.
        tables: Names of the tables behind the views.
        shown: The database as messages name it.
    """
    return {
        "title": "bisect-env",
        "description": f"Results in {shown}. Tables change between releases; the views stay.",
        "databases": {
            database: {
                "queries": {name: {"title": title, "sql": sql} for name, (title, sql) in QUESTIONS.items()},
                "tables": {name: {"hidden": True} for name in tables},
            }
        },
    }
