"""`bisect-env doctor`: what this host has and lacks."""

from __future__ import annotations

import dataclasses
import json

import typer

from bisect_env.cli.options import CacheOption, DatabaseOption, JsonOption
from bisect_env.cli.output import say


def doctor(db: DatabaseOption = None, cache: CacheOption = None, as_json: JsonOption = False) -> None:
    """Check machine, GPUs, engines, solvers, database and debuggers, and say what each missing thing costs.

    Ends with 6 if something is broken without which no study can run; what is merely missing is fine.
    """
    from bisect_env.engine.doctor import Health, findings
    from bisect_env.errors import ExitCode

    signs = {Health.OK: "✓", Health.MISSING: "-", Health.BROKEN: "✗"}
    seen = []
    for finding in findings(cache, db):
        seen.append(finding)
        if as_json:
            continue
        say(f"{signs[finding.health]} {finding.name:<18} {finding.detail}")
        if finding.cost:
            say(f"{'':21}{finding.cost}")
        if finding.remedy:
            say(f"{'':21}remedy: {finding.remedy}")
    if as_json:
        say(json.dumps([dataclasses.asdict(finding) for finding in seen], indent=2))
    broken = any(finding.health is Health.BROKEN for finding in seen)
    raise typer.Exit(int(ExitCode.INFRASTRUCTURE if broken else ExitCode.VERDICT))
