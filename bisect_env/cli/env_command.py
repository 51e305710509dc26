"""`bisect-env doctor`, `env` and `fetch`: what a host has, keeps, lacks, and takes to one without network."""

from __future__ import annotations

import dataclasses
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from bisect_env.answers.phrases import how_many
from bisect_env.answers.untrusted import command_line
from bisect_env.cli.grouping import Command, Group
from bisect_env.cli.options import CacheOption, DatabaseOption, JsonOption
from bisect_env.cli.output import deliver, say
from bisect_env.engine.doctor import Health, findings
from bisect_env.engine.fetch import fetch_study
from bisect_env.environments.bundle import Bundle
from bisect_env.environments.cache import entries, usage
from bisect_env.environments.cache import prune as take_away
from bisect_env.environments.cache import verify as compare
from bisect_env.environments.provider import Environments
from bisect_env.environments.settings import default_cache_dir, parse_size
from bisect_env.errors import ExitCode, InfrastructureError, UsageError
from bisect_env.matrix.load import load_matrix

# --------------------------------------------------------------------------------------------------
# `bisect-env doctor`: what this host has and lacks.


def doctor(db: DatabaseOption = None, cache: CacheOption = None, as_json: JsonOption = False) -> None:
    """Check machine, GPUs, engines, solvers, database and debuggers, and say what each missing thing costs.

    Ends with 6 if something is broken without which no study can run; what is merely missing is fine.
    """
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


# --------------------------------------------------------------------------------------------------
# `bisect-env env`: look after the environments that were built on this host.

env_app = typer.Typer(
    cls=Group, no_args_is_help=True, help="Look after the environments that were built on this host."
)

_SHOWN = 12
"""Characters of a content hash, as everywhere."""


@env_app.command(cls=Command, name="ls")
def list_entries(
    cache: CacheOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="As a JSON object.")] = False,
) -> None:
    """List environments, the one used longest ago first."""
    place = (cache or default_cache_dir()).absolute()
    found, total = entries(place), usage(place)
    if as_json:
        listed = [{**dataclasses.asdict(entry), "path": str(entry.path)} for entry in found]
        deliver(json.dumps({"cache": str(place), "bytes": total, "environments": listed}) + "\n", None)
        return
    lines = [
        f"{'environment':<14}{'python':<10}{'packages':>8}{'size':>11}{'shared':>11}{'own':>11}  last used\n"
    ]
    for entry in found:
        when = datetime.fromtimestamp(entry.last_used, UTC).strftime("%Y-%m-%d %H:%M")
        lines.append(
            f"{entry.content_hash[:_SHOWN]:<14}{entry.python:<10}{entry.packages:>8}"
            f"{_size(entry.size):>11}{_size(entry.shared):>11}{_size(entry.own):>11}  {when}\n"
        )
    if any(entry.shared for entry in found):
        lines.append("shared: what another environment has, too, and what stays when this one goes\n")
    lines.append(
        f"{place} takes {_size(total)}: {how_many(len(found), 'environment')} and what they were made from\n"
    )
    deliver("".join(lines), None)


@env_app.command(cls=Command)
def prune(
    cache: CacheOption = None,
    size: Annotated[
        str | None, typer.Option(help="Come down to this, such as 20GB; least recently used goes first.")
    ] = None,
    older_than: Annotated[
        float | None, typer.Option(min=0, metavar="DAYS", help="Only what was not used for so many days.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Whatever is not in use.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go.")] = False,
) -> None:
    """Take environments and archives away; never what a trial is using."""
    if size is None and older_than is None and not everything:
        raise UsageError("nothing says what may go", remedy="give --size 20GB, --older-than 30 or --all")
    if everything and (size is not None or older_than is not None):
        raise UsageError("--all asks for more than the other options", remedy="leave one of them out")
    done = take_away(
        (cache or default_cache_dir()).absolute(),
        limit=None if size is None else parse_size(size, "--size"),
        unused_since=None if older_than is None else time.time() - older_than * 86400,
        dry_run=dry_run,
    )
    deliver("".join(f"{content_hash}\n" for content_hash in done.prefixes), None)
    would = "would free" if dry_run else "freed"
    went = f"{how_many(len(done.prefixes), 'environment')}, {how_many(done.archives, 'archive')}"
    text = f"{would} {_size(done.freed)}: {went}"
    if done.in_use:
        text += f"; {len(done.in_use)} in use stay"
    typer.echo(f"{text}; {_size(done.left)} are left", err=True)


@env_app.command(cls=Command)
def verify(
    environment: Annotated[
        list[str] | None, typer.Argument(help="Beginnings of content hashes; default: all.")
    ] = None,
    cache: CacheOption = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Take changed ones away; they are made anew when needed.")
    ] = False,
) -> None:
    """Look whether files changed, came or went since they were installed; ends with 6 if any did."""
    place = (cache or default_cache_dir()).absolute()
    checked = changed = left = 0
    for found in compare(place, tuple(environment or ()), repair=repair):
        checked += 1
        if found.changed:
            changed += 1
            left += not found.removed
            deliver(f"{found.name}: changed since it was installed{', removed' * found.removed}\n", None)
    if environment and not checked:
        raise UsageError(
            f"no environment begins with {', '.join(environment)}", remedy="`bisect-env env ls` lists them"
        )
    if left:
        raise InfrastructureError(
            f"{changed} of {checked} environments and archives have changed since they were installed",
            remedy="`bisect-env env verify --repair` takes them away, and they are made anew when needed"
            if not repair
            else "those that are in use stay: end what uses them, then give the same command again",
        )
    typer.echo(f"{checked} environments and archives looked at, {changed} changed", err=True)


def _size(count: int) -> str:

    return decimal(count)


# --------------------------------------------------------------------------------------------------
# `bisect-env fetch`: everything that a study can need, for hosts without a network.


def fetch(
    matrix: Annotated[Path, typer.Argument(help="Matrix file, such as matrices/quickstart.yaml.")],
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="Directory to write; what it holds already stays.")
    ],
    no_pythons: Annotated[
        bool, typer.Option("--no-pythons", help="Fetch no interpreters: the hosts have them.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Fetch nothing; say what is missing or damaged, and end with 6 if any."),
    ] = False,
    cache: Annotated[
        Path | None, typer.Option(envvar="BISECT_ENV_CACHE", help="Where environments are built.")
    ] = None,
) -> None:
    """Put locks, archives and interpreters into a directory; `run --offline DIR` needs nothing else."""
    loaded = load_matrix(matrix)
    if check:
        _check(loaded.name, to)
        return
    cache_dir = (cache or default_cache_dir()).absolute()
    said: tuple[str, int] = ("", 0)

    def tell(what: str, done: int, total: int) -> None:
        nonlocal said
        tenth = 10 * done // max(1, total)
        if (what, tenth) != said:
            said = (what, tenth)
            typer.echo(f"{what}: {done} of {total}", err=True)

    fetched = fetch_study(
        loaded,
        provider=Environments.of(loaded, cache_dir),
        root=to,
        cache_dir=cache_dir,
        pythons=not no_pythons,
        on_progress=tell,
    )
    for warning in fetched.warnings:
        typer.echo(f"warning: {warning}", err=True)
    left_out = (
        f" (without a solution: {how_many(fetched.unsolvable, 'combination')})" if fetched.unsolvable else ""
    )
    typer.echo(
        f"{to} holds {fetched.archives} archives ({decimal(fetched.size)}) for "
        f"{how_many(fetched.environments, 'environment')}{left_out}\n"
        f"next: copy it, and there: {command_line('bisect-env', 'run', str(matrix), '--offline', 'DIR')}",
        err=True,
    )


def _check(name: str, root: Path) -> None:

    bundle = Bundle(root)
    answers = bundle.read(name)
    missing, damaged = bundle.missing(answers), bundle.damaged(answers)
    for word, names in (("missing", missing), ("damaged", damaged)):
        for file in names:
            typer.echo(f"{word}: {file}")
    if missing or damaged:
        raise InfrastructureError(
            f"{root}: {len(missing)} files are missing or cut short, {len(damaged)} are damaged",
            remedy="copy those again, or give the command without --check on a machine with a network",
        )
    read = f"{len(answers.archives)} archives and {len(answers.files)} other files"
    typer.echo(f"{root} is complete: {read} read", err=True)
