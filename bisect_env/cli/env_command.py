"""`bisect-env env`: manage the environments of this host, and fetch them for hosts without a network."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
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
    QUESTION,
    CacheOption,
    CheckOption,
    DryRunOption,
    ExecutionOptions,
    JsonOption,
    SizeOption,
    TableOptions,
    TargetArgument,
    opt,
    output_option,
    refuse_others,
)
from bisect_env.cli.output import deliver, deliver_rows, emit, own_command, say, tell
from bisect_env.cli.providing import open_provider
from bisect_env.cli.question import FoundTarget
from bisect_env.cli.target import find_target
from bisect_env.engine.fetch import fetch_study
from bisect_env.environments.bundle import Bundle
from bisect_env.environments.cache import entries, usage
from bisect_env.environments.cache import prune as take_away
from bisect_env.environments.cache import verify as compare
from bisect_env.environments.settings import default_cache_dir, parse_size
from bisect_env.errors import InfrastructureError, UsageError

env_app = typer.Typer(cls=Group, no_args_is_help=True)

_SHOWN = 12
"""Number of characters of a content hash that are shown."""


@env_app.callback()
@with_groups()
def env() -> None:
    """Manage the environments of this host: ls, prune, fetch."""


@env_app.command(cls=Command, name="ls")
@with_groups()
def list_entries(
    environment: Annotated[
        list[str] | None,
        typer.Argument(metavar="ENVIRONMENT", help="Beginnings of content hashes; default: all."),
    ] = None,
    check: CheckOption = False,
    repair: Annotated[
        bool, opt("--repair", "Remove changed environments; they are built again when needed.")
    ] = False,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """List environments, the least recently used first; with `--check`, files changed since installation."""
    place = (cache or default_cache_dir()).absolute()
    if check or repair:
        _compare(place, tuple(environment or ()), repair=repair, as_json=as_json)
        return
    wanted = tuple(environment or ("",))
    found = [entry for entry in entries(place) if entry.content_hash.startswith(wanted)]
    total = usage(place)
    if as_json:
        for entry in found:
            emit({**asdict(entry), "path": str(entry.path)})
        emit({"cache": str(place), "bytes": total})
        return
    names = ("environment", "python", "packages", "size", "shared", "own", "last used")
    rows = [
        (
            entry.content_hash[:_SHOWN],
            entry.python,
            entry.packages,
            *map(decimal, (entry.size, entry.shared, entry.own)),
            datetime.fromtimestamp(entry.last_used, UTC).strftime("%Y-%m-%d %H:%M"),
        )
        for entry in found
    ]
    deliver_rows(names, rows, TableOptions())
    if any(entry.shared for entry in found):
        say("shared: what another environment has, too, and what stays when this one goes")
    count = how_many(len(found), "environment")
    say(f"{place} takes {decimal(total)}: {count} and what they were made from")


def _compare(place: Path, environments: tuple[str, ...], *, repair: bool, as_json: bool) -> None:
    """Print which environments and archives have changed since they were installed.

    Raises:
        InfrastructureError: Some have changed and were not removed.
    """
    checked = changed = left = 0
    for found in compare(place, environments, repair=repair):
        checked += 1
        if found.changed:
            changed += 1
            left += not found.removed
            if as_json:
                emit(asdict(found))
            else:
                deliver(f"{found.name}: changed since it was installed{', removed' * found.removed}\n")
    if environments and not checked:
        raise UsageError(
            f"no environment begins with {', '.join(environments)}", remedy="`bisect-env env ls` lists them"
        )
    if left:
        raise InfrastructureError(
            f"{changed} of {checked} environments and archives have changed since they were installed",
            remedy="environments in use are not removed: end what uses them, then run the same command again"
            if repair
            else "`bisect-env env ls --repair` removes them, and they are built again when needed",
        )
    tell(f"{checked} environments and archives checked, {changed} changed")


@env_app.command(cls=Command)
@with_groups()
def prune(
    cache: CacheOption = None,
    size: SizeOption = None,
    older_than: Annotated[
        float | None,
        opt("--older-than DAYS", "Remove only what was not used for this many days.", min=0),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Remove environments and archives that no trial is using, the least recently used first.

    `--size 0` removes everything that is not in use.
    """
    if size is None and older_than is None:
        raise UsageError("nothing says what to remove", remedy="give --size 20GB or --older-than 30")
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
@with_groups(
    without=("workers", "devices", "scheduler", "scheduler_file", "cache_size", "offline"), panel=QUESTION
)
def fetch(
    words: TargetArgument = None,
    *,
    output: Annotated[Path, output_option()],
    no_pythons: Annotated[
        bool, opt("--no-pythons", "Do not fetch Python interpreters; the hosts have them.")
    ] = False,
    check: CheckOption = False,
    flags: Flags,
    where: ExecutionOptions,
) -> None:
    """Download everything that `run --offline DIR` needs: locks, archives and interpreters.

    Existing files in the directory stay. With `--check`, nothing is fetched, and files that are missing count
    as damage, too.
    """
    target = find_target(words or (), flags, db=where.db)
    if check:
        refuse_others("--check", ["--no-pythons"] if no_pythons else ())
        _check(target.matrix.name, output)
        return
    said: set[tuple[str, int]] = set()

    def show(what: str, done: int, total: int) -> None:
        if (tenth := (what, 10 * done // max(1, total))) not in said:
            said.add(tenth)
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
        f"next: copy it, and there: {_offline_command(target, sys.argv[1:])}"
    )


def _offline_command(target: FoundTarget, arguments: Sequence[str]) -> str:
    """Return the command that asks the question of a target on a host without a network.

    The results database of that host does not have the studies of this one.

    Args:
        target: The target of the running command.
        arguments: The arguments of the running command.
    """
    if target.words:
        asked, command = [], [*arguments]
        end = command.index("--") if "--" in command else len(command)
        words = iter(command[:end])
        for word in words:
            if word in ("-o", "--output", "--cache"):
                next(words, None)
            elif word != "--no-pythons" and not re.match(r"-o.|--(output|cache)=", word):
                asked.append(word)
        whole = ["run", *asked[2:], "--offline", "DIR", *command[end:]]  # instead of `env fetch`
        return own_command(whole)
    if target.study is None:
        return command_line("bisect-env", "run", target.reference, "--offline", "DIR")
    save = command_line("bisect-env", "plan", target.study.id[:_SHOWN], "--save", "FILE")
    return f"bisect-env run FILE --offline DIR (`{save}` writes that file here, for the copy)"


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
    tell(f"{root} is complete: {how_many(len(answers.files), 'file')} read")
