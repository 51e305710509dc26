"""`--format html`."""

from bisect_env.report.model import Report


def html_text(report: Report) -> str:
    """Soon."""
    return report.sentence
