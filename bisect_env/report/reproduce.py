"""Commands that show the failure again. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from bisect_env.report.model import StepReport
from bisect_env.storage.records import Study

_SHORT_ID = 12


def steps(study: Study, verdict: Mapping[str, Any]) -> tuple[StepReport, ...]:
    """From the whole study to one environment by hand.

    Args:
        study: As stored.
        verdict: Its verdict document.
    """
    found = []
    if study.definition.matrix_path:
        path = shlex.quote(study.definition.matrix_path)
        found.append(
            StepReport(title="Answer the same matrix again", commands=(f"bisect-env run {path} --fresh",))
        )
    return tuple(found)
