"""Commands that show the failure again. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from bisect_env.environments.images import image_of
from bisect_env.environments.lock import Lock
from bisect_env.environments.plain_lists import plain_lists
from bisect_env.matrix import yaml_source
from bisect_env.matrix.dates import cutoff
from bisect_env.report.model import AxisInfo, StepReport
from bisect_env.storage.records import Study, StudyStatus

_SHORT_ID = 12


def steps(
    study: Study, axes: Sequence[AxisInfo], verdict: Mapping[str, Any], lock: Lock | None
) -> tuple[StepReport, ...]:
    """From the bare failure to the whole study; all but the first for those who have the matrix alone.

    Args:
        study: As stored.
        axes: Its axes.
        verdict: Its verdict document.
        lock: Of the first bad combination.
    """
    if not study.definition.matrix_path:
        return ()
    path = shlex.quote(study.definition.matrix_path)
    found = []
    if lock is not None:
        made = f"bisect-env reproduce first-bad --study {study.id[:_SHORT_ID]} --output repro"
        title = "As a directory with lock, script and Dockerfile, which needs no bisect-env to be run"
        found.append(
            StepReport(
                title=title, commands=(made, "cd repro", *_by_hand(lock)), files=plain_lists(lock.packages)
            )
        )
    cells = (("first_bad", "first bad"), ("last_good", "last good"))
    alone = [
        f"bisect-env trial {path} --at {shlex.quote(at(cell, axes))} # {words}"
        for key, words in cells
        if (cell := verdict.get(key)) and at(cell, axes)
    ]
    if alone:
        found.append(StepReport(title="Run one combination by itself", commands=tuple(alone)))
    if verdict.get("kind") == "explanation":
        # Its environments are none of the matrix's: another command made them.
        found.append(StepReport(title="Look for the culprit again", commands=("bisect-env explain",)))
        return tuple(found)
    if study.status is not StudyStatus.FINISHED:
        # `--fresh` would throw away what is there.
        found.append(StepReport(title="Go on with the search", commands=(f"bisect-env run {path}",)))
        return tuple(found)
    title = "Answer the same matrix again"
    if study.exclude_newer is not None and own_date(study) is None:
        moment = f"{study.exclude_newer:%Y-%m-%dT%H:%M:%SZ}"
        title += f" (in the same environments, with exclude_newer: {moment} in it)"
    found.append(StepReport(title=title, commands=(f"bisect-env run {path} --fresh",)))
    return tuple(found)


def _by_hand(lock: Lock) -> list[str]:
    """What the README of that directory says."""
    if image_of(lock):
        return ["docker build --tag repro .", "docker run --rm repro"]
    if lock.is_conda:
        return ["conda-lock install --prefix ./env conda-lock.yml", 'PATH="$PWD/env/bin:$PATH" ./run.sh 100']
    return [
        f"uv venv --python {lock.python} env",
        "uv pip sync --python env/bin/python --require-hashes requirements.txt",
        'PATH="$PWD/env/bin:$PATH" ./run.sh 100',
    ]


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
