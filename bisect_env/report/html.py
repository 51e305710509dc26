"""`--format html`: a single self-contained page. Pure.

Whatever others wrote goes through Jinja's escaping, and the page forbids every script but its own: a trial
that prints one shows it as text, and could not run it if it did not.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from bisect_env.matrix.history import readable
from bisect_env.report import compatibility_table, words
from bisect_env.report.charts import cell_note, heat_map, lanes_of, posterior_picture, timeline_picture
from bisect_env.report.model import CombinationReport, Report, labels
from bisect_env.report.sentence import duration, interval, percent, probability
from bisect_env.report.untrusted import LINE_WIDTH, clean, shortened, shown_lines

LISTED = 3000
"""Combinations in the table; of more, those that were tried or could not be."""


def html_text(report: Report, *, served: bool = False) -> str:
    """The report as a page, with a final newline.

    Args:
        report: What to show.
        served: Whether it is shown by `bisect-env serve`, whose other pages it then links to.
    """
    fixed = heat_map(report)
    text: str = _template().render(
        report=report,
        served=served,
        policy=policy(),
        css=Markup(_own("style.css")),
        script=Markup(_own("script.js")),
        summary=words.summary(report),
        reused=words.reused(report),
        timing=words.timing(report),
        ends=words.ends(report),
        alternatives=words.alternatives(report),
        tables=compatibility_table.slices(report)[: compatibility_table.MOST_SLICES],
        tables_left_out=max(0, len(compatibility_table.slices(report)) - compatibility_table.MOST_SLICES),
        table_axes=[clean(axis.name) for axis in compatibility_table.layout(report)[:2] if axis]
        if report.axes
        else [],
        requirements=compatibility_table.constraints(report),
        rules=compatibility_table.exclude_rules(report),
        map=fixed,
        chosen=_chosen(report),
        listed=_listed(report),
        labels=labels(report.axes),
        posterior=posterior_picture(report),
        trace=words.trace(report),
        timeline=timeline_picture(report),
        lanes=_lanes(report),
        machines=words.machines(report),
        facts=_facts(report.verdict),
    )
    # Characters that UTF-8 cannot hold come from scripts that print bytes.
    return text.encode("utf-8", "replace").decode("utf-8") + "\n"


@cache
def policy() -> str:
    """Content security policy of the page: its own script, styles in it, and nothing from anywhere."""
    digest = base64.b64encode(hashlib.sha256(_own("script.js").encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _own(name: str) -> str:
    return files("bisect_env.report").joinpath("page", name).read_text("utf-8").strip()


@cache
def _template() -> Any:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        one_line=lambda text: shortened(clean(str(text or "")), LINE_WIDTH),
        lines=lambda text: shown_lines(str(text)),
        named=words.named,
        percent=percent,
        interval=lambda pair: interval(*pair),
        probability=probability,
        duration=duration,
        moment=_moment,
        described=words.described,
        change=words.change,
        between=words.between,
        readable=readable,
        told_commit=words.commit,
        diffstat=lambda found: words.diffstat(found, 200),
        cell_note=cell_note,
        mark=lambda cell: cell.text(compatibility_table.MARKS),
        is_address=_is_address,
    )
    return environment.from_string(_own("report.html.j2"))


def _moment(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _is_address(text: str) -> bool:
    """Whether a page may be linked to: an address says what else it is than one of the web."""
    try:
        return urlsplit(text).scheme in ("http", "https")
    except ValueError:
        return False


def _chosen(report: Report) -> Mapping[str, str]:
    """Which slice is seen first: that of the first bad combination, if there are many."""
    return report.verdict.get("first_bad") or {}


def _listed(report: Report) -> list[CombinationReport]:
    if len(report.combinations) <= LISTED:
        return list(report.combinations)
    return [one for one in report.combinations if one.outcomes or not one.is_runnable][:LISTED]


def _lanes(report: Report) -> list[dict[str, Any]]:
    found = []
    for name, positions in lanes_of(report.timeline).items():
        trials = [report.timeline.trials[i] for i in positions]
        said = Counter(trial.evidence for trial in trials)
        found.append(
            {
                "name": name,
                "gpus": ", ".join(sorted({trial.gpu for trial in trials if trial.gpu})),
                "trials": len(trials),
                "busy": duration(sum(trial.seconds for trial in trials)),
                "said": ", ".join(f"{number} {evidence}" for evidence, number in said.most_common()),
            }
        )
    return found


def _facts(verdict: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the verdict says of itself, beyond its sentence."""

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.3g}"

    models, factors = verdict.get("models") or {}, verdict.get("bayes_factors") or {}
    return [
        ("why this status", clean(f"{verdict.get('status')}: {verdict.get('reason', '')}")),
        ("probability if bad combinations share one rate", _chance(models.get("sharing"))),
        ("probability if their rates differ", _chance(models.get("differing"))),
        ("typical rate of bad combinations", _rate(verdict.get("typical_bad_rate"))),
        ("background rate of good ones", _rate(verdict.get("background_rate"))),
        ("chance that last good was merely lucky", _rate(verdict.get("miss"))),
        ("evidence against no difference at all", _odds(factors.get("log10_against_no_difference"))),
        ("evidence against the second answer", _odds(factors.get("log10_against_runner_up"))),
        ("stated ends that are not as stated", clean(", ".join(verdict.get("ends_wrong") or ()))),
        (
            "trials still needed, about",
            number(verdict.get("expected_left")) if verdict.get("expected_left") else "",
        ),
        ("environments still to be built, about", number(verdict.get("expected_environments_left") or None)),
    ]


def _odds(log10: float | None) -> str:
    """A Bayes factor as people read it: how many times better the trials are explained."""
    if log10 is None:
        return ""
    if log10 < 0:
        return "none: the trials are explained better by it"
    factor = f"10^{log10:.0f}" if log10 >= 6 else f"{10.0**log10:,.{0 if log10 >= 1 else 1}f}"
    return f"{factor} to 1 (Bayes factor)"


def _chance(value: float | None) -> str:
    return "" if value is None else probability(value)


def _rate(value: float | None) -> str:
    return "" if value is None else percent(value)
