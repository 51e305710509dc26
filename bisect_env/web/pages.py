"""Pages of our own beside the report: a trial with its logs, and what went wrong. Pure.

Everything that others wrote is escaped, and no page may run a script, whatever it holds.
"""

from __future__ import annotations

from html import escape

from bisect_env.matrix import signatures
from bisect_env.report.untrusted import clean_lines
from bisect_env.storage.records import WholeTrial

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Content-Security-Policy of these pages."""
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;color:#222}"
    "pre{background:#f6f6f6;border:1px solid #ddd;padding:.8rem;overflow-x:auto;white-space:pre-wrap}"
    "th{text-align:left;padding-right:1.5rem;vertical-align:top;font-weight:600}a{color:#0645ad}"
)


def page(title: str, body: str) -> str:
    """A whole page; the title is escaped here, the body is HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f'<body><p><a href="/">bisect-env</a></p><h1>{escape(title)}</h1>{body}</body></html>'
    )


def trial_page(trial: WholeTrial) -> str:
    """A trial with its logs."""
    record = trial.record
    facts = {
        "combination": str(record.combination),
        "outcome": f"{record.outcome}: {record.detail}",
        "evidence": str(trial.evidence),
        "return code": "" if record.returncode is None else str(record.returncode),
        "started": f"{record.started_at:%Y-%m-%d %H:%M:%S} UTC, {record.duration:.3f} s",
        "host": f"{record.host} ({record.worker})",
        "machine": f"{record.machine} {record.gpu}".strip(),
        "phase": str(record.phase),
        "signature": signatures.shown(record.signature),
        "imported": ", ".join(f"{name} {version}" for name, version in record.imported.items()),
        "lock": record.lock_hash,
    }
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(clean_lines(value))}</td></tr>"
        for name, value in facts.items()
    )
    body = f'<p><a href="/-/report/{escape(trial.study_id)}">its study</a></p><table>{rows}</table>'
    if trial.collected:
        body += "<p>Some of its logs were dropped to make room.</p>"
    for name in ("stack", "stderr", "stdout"):
        text = getattr(record, name)
        if text:
            # Characters that UTF-8 cannot hold come from scripts that print bytes.
            shown = clean_lines(text).encode("utf-8", "replace").decode("utf-8")
            body += f"<h2>{name}</h2><pre>{escape(shown)}</pre>"
    return page(f"trial {record.trial_id}", body)
