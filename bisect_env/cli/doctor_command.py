"""`bisect-env doctor`: check what this host has and what it lacks."""

from __future__ import annotations

from dataclasses import asdict

import typer

from bisect_env.cli.commands import with_groups
from bisect_env.cli.options import CacheOption, DatabaseOption, JsonOption
from bisect_env.cli.output import emit, in_own_form, say
from bisect_env.engine.doctor import Health, findings
from bisect_env.errors import ExitCode

_SIGNS = {Health.OK: "✓", Health.MISSING: "-", Health.BROKEN: "✗"}


@with_groups()
def doctor(cache: CacheOption = None, as_json: JsonOption = False, db: DatabaseOption = None) -> None:
    """Check machine, GPUs, engines, solvers, database and debuggers, and what each missing thing costs.

    The exit code is 6 if something that every study needs is broken, else 0.
    """
    broken = False
    for finding in findings(cache, db):
        broken = broken or finding.health is Health.BROKEN
        if as_json:
            emit(asdict(finding))
            continue
        say(f"{_SIGNS[finding.health]} {finding.name:<18} {finding.detail}")
        if finding.cost:
            say(f"{'':21}{finding.cost}")
        if finding.remedy:
            say(f"{'':21}remedy: {in_own_form(finding.remedy)}")
    raise typer.Exit(int(ExitCode.INFRASTRUCTURE if broken else ExitCode.VERDICT))
