"""Commands that show the failure again. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from bisect_env.matrix import yaml_source
from bisect_env.matrix.dates import cutoff
from bisect_env.report.model import AxisInfo, StepReport
from bisect_env.storage.records import Study


def steps(study: Study, axes: Sequence[AxisInfo], verdict: Mapping[str, Any]) -> tuple[StepReport, ...]:
    """From one combination to the whole study; for readers who have the matrix, and not the database.

    Args:
        study: As stored.
        axes: Its axes.
        verdict: Its verdict document.
    """
    if not study.definition.matrix_path:
        return ()
    path = shlex.quote(study.definition.matrix_path)
    found = []
    cells = (("first_bad", "first bad"), ("last_good", "last good"))
    alone = [
        f"bisect-env trial {path} --at {shlex.quote(at(cell, axes))} # {words}"
        for key, words in cells
        if (cell := verdict.get(key)) and at(cell, axes)
    ]
    if alone:
        found.append(StepReport(title="Run one combination by itself", commands=tuple(alone)))
    title = "Answer the same matrix again"
    if study.exclude_newer is not None and own_date(study) is None:
        moment = f"{study.exclude_newer:%Y-%m-%dT%H:%M:%SZ}"
        title += f" (in the same environments, with `exclude_newer: {moment}` in it)"
    found.append(StepReport(title=title, commands=(f"bisect-env run {path} --fresh",)))
    return tuple(found)


def own_date(study: Study) -> datetime | None:
    """The moment that the matrix itself names in `exclude_newer`, which counts for its locks."""
    data = yaml_source.parse(study.definition.matrix_text).data
    named = data.get("exclude_newer") if isinstance(data, dict) else None
    try:
        return cutoff(str(named)) if named else None
    except ValueError:
        # What a newer release may write there.
        return None


def at(cell: Mapping[str, str], axes: Sequence[AxisInfo]) -> str:
    """A combination as `--at` takes it; axes with one value are left out."""
    several = {axis.name for axis in axes if len(axis.values) > 1}
    return ",".join(f"{axis}={value}" for axis, value in cell.items() if axis in several)
