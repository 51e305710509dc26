"""`bisect-env env`: look after the environments of this host, and take them to hosts without a network."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from bisect_env.answers.phrases import how_many
from bisect_env.answers.untrusted import command_line
from bisect_env.cli.asking import Flags
from bisect_env.cli.commands import Command, Group, with_groups
from bisect_env.cli.options import (
    CacheOption,
    ExecutionOptions,
    JsonOption,
    TargetArgument,
    opt,
)
from bisect_env.cli.output import deliver, emit, say, tell
from bisect_env.cli.target import find_target
from bisect_env.cli.work import open_provider
from bisect_env.engine.fetch import fetch_study
from bisect_env.environments.bundle import Bundle
from bisect_env.environments.cache import entries, usage
from bisect_env.environments.cache import prune as take_away
from bisect_env.environments.cache import verify as compare
from bisect_env.environments.settings import default_cache_dir, parse_size
from bisect_env.errors import InfrastructureError, UsageError

env_app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    help="Look after the environments that were built on this host: ls, prune, fetch.",
)

_SHOWN = 12
"""Characters of a content hash, as everywhere."""


@env_app.command(cls=Command, name="ls")
def list_entries(
    environment: Annotated[
        list[str] | None, typer.Argument(help="Beginnings of content hashes; default: all.")
    ] = None,
    check: Annotated[
        bool, opt("--check", "Look for files that changed since installation; ends with 6 if any.")
    ] = False,
    repair: Annotated[bool, opt("--repair", "Remove changed ones; they are made again when needed.")] = False,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """List environments, the one used longest ago first."""
    place = (cache or default_cache_dir()).absolute()
    if check or repair:
        _compare(place, tuple(environment or ()), repair=repair)
        return
    wanted = tuple(environment or ("",))
    found = [entry for entry in entries(place) if entry.content_hash.startswith(wanted)]
    total = usage(place)
    if as_json:
        for entry in found:
            emit({**asdict(entry), "path": str(entry.path)})
        emit({"cache": str(place), "bytes": total})
        return
    lines = [
        f"{'environment':<14}{'python':<10}{'packages':>8}{'size':>11}{'shared':>11}{'own':>11}  last used\n"
    ]
    for entry in found:
        when = datetime.fromtimestamp(entry.last_used, UTC).strftime("%Y-%m-%d %H:%M")
        lines.append(
            f"{entry.content_hash[:_SHOWN]:<14}{entry.python:<10}{entry.packages:>8}"
            f"{decimal(entry.size):>11}{decimal(entry.shared):>11}{decimal(entry.own):>11}  {when}\n"
        )
    if any(entry.shared for entry in found):
        lines.append("shared: what another environment has, too, and what stays when this one goes\n")
    count = how_many(len(found), "environment")
    lines.append(f"{place} takes {decimal(total)}: {count} and what they were made from\n")
    deliver("".join(lines))


def _compare(place: Path, environments: tuple[str, ...], *, repair: bool) -> None:
    """Say which environments and archives have changed since they were installed.

    Raises:
        InfrastructureError: Some have, and are still there.
    """
    checked = changed = left = 0
    for found in compare(place, environments, repair=repair):
        checked += 1
        if found.changed:
            changed += 1
            left += not found.removed
            deliver(f"{found.name}: changed since it was installed{', removed' * found.removed}\n")
    if environments and not checked:
        raise UsageError(
            f"no environment begins with {', '.join(environments)}", remedy="`bisect-env env ls` lists them"
        )
    if left:
        raise InfrastructureError(
            f"{changed} of {checked} environments and archives have changed since they were installed",
            remedy="those that are in use stay: end what uses them, then give the same command again"
            if repair
            else "`bisect-env env ls --repair` removes them, and they are made again when needed",
        )
    tell(f"{checked} environments and archives looked at, {changed} changed")


@env_app.command(cls=Command)
def prune(
    cache: CacheOption = None,
    size: Annotated[
        str | None, opt("--size", "Come down to this, such as 20GB; least recently used goes first.")
    ] = None,
    older_than: Annotated[
        float | None, opt("--older-than", "Only what was not used for so many days.", min=0, metavar="DAYS")
    ] = None,
    everything: Annotated[bool, opt("--all", "Whatever is not in use.")] = False,
    dry_run: Annotated[bool, opt("--dry-run", "Say what would go.")] = False,
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
    deliver("".join(f"{content_hash}\n" for content_hash in done.prefixes))
    would = "would free" if dry_run else "freed"
    went = f"{how_many(len(done.prefixes), 'environment')}, {how_many(done.archives, 'archive')}"
    text = f"{would} {decimal(done.freed)}: {went}"
    if done.in_use:
        text += f"; {len(done.in_use)} in use stay"
    tell(f"{text}; {decimal(done.left)} are left")


@env_app.command(cls=Command)
@with_groups(without=("workers", "devices", "scheduler", "scheduler_file", "cache_size", "offline"))
def fetch(
    words: TargetArgument = None,
    *,
    output: Annotated[Path, opt("--output -o", "Directory to write; its files stay.", metavar="DIR")],
    no_pythons: Annotated[bool, opt("--no-pythons", "Fetch no interpreters: the hosts have them.")] = False,
    check: Annotated[
        bool, opt("--check", "Fetch nothing; say what is missing or damaged, and end with 6 if any.")
    ] = False,
    flags: Flags,
    where: ExecutionOptions,
) -> None:
    """Put locks, archives and interpreters into a directory; `run --offline DIR` needs nothing else."""
    target = find_target(words or (), flags, db=where.db)
    if check:
        _check(target.matrix.name, output)
        return
    said: tuple[str, int] = ("", 0)

    def show(what: str, done: int, total: int) -> None:
        nonlocal said
        tenth = 10 * done // max(1, total)
        if (what, tenth) != said:
            said = (what, tenth)
            tell(f"{what}: {done} of {total}")

    fetched = fetch_study(
        target.matrix,
        provider=open_provider(target.matrix, where),
        root=output,
        cache_dir=(where.cache or default_cache_dir()).absolute(),
        pythons=not no_pythons,
        on_progress=show,
    )
    for warning in fetched.warnings:
        tell(f"warning: {warning}")
    without = how_many(fetched.unsolvable, "combination")
    left_out = f" (without a solution: {without})" if fetched.unsolvable else ""
    tell(
        f"{output} holds {fetched.archives} archives ({decimal(fetched.size)}) for "
        f"{how_many(fetched.environments, 'environment')}{left_out}\n"
        f"next: copy it, and there: {command_line('bisect-env', 'run', target.reference, '--offline', 'DIR')}"
    )


def _check(name: str, root: Path) -> None:

    bundle = Bundle(root)
    answers = bundle.read(name)
    missing, damaged = bundle.missing(answers), bundle.damaged(answers)
    for word, names in (("missing", missing), ("damaged", damaged)):
        for file in names:
            say(f"{word}: {file}")
    if missing or damaged:
        raise InfrastructureError(
            f"{root}: {len(missing)} files are missing or cut short, {len(damaged)} are damaged",
            remedy="copy those again, or give the command without --check on a machine with a network",
        )
    read = f"{len(answers.archives)} archives and {len(answers.files)} other files"
    tell(f"{root} is complete: {read} read")
