"""`bisect-env diff`: which packages differ between two environments."""

from __future__ import annotations

import dataclasses
import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bisect_env.cli.options import CacheOption, DatabaseOption, JsonOption, StudyOption

if TYPE_CHECKING:
    from bisect_env.environments.difference import PackageChange, PackageState
    from bisect_env.environments.lock import Lock
    from bisect_env.storage.entries import Study
    from bisect_env.storage.store import Store

_HASH_DIGITS = 8
_WORDS = {"rebuilt": "same version, another archive", "moved": "same archive, another place"}


def diff(
    before: Annotated[
        str, typer.Argument(help="A combination (torch=2.2,cuml=24.04), a lock file, or a lock's hash.")
    ] = "last-good",
    after: Annotated[str, typer.Argument(help="The other one.")] = "first-bad",
    study: StudyOption = None,
    db: DatabaseOption = None,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """List packages added, removed and changed between two combinations.

    By default from the last good to the first bad one. Packages that axes move come first; pages of
    projects are shown for environments that exist here.
    """
    from bisect_env.cli.output import deliver
    from bisect_env.environments.difference import difference, project_urls
    from bisect_env.environments.settings import default_cache_dir

    (old_name, old), (new_name, new), axes = _sides(before, after, study, db)
    places = (cache or default_cache_dir()) / "prefixes"
    urls = project_urls(places / lock.content_hash for lock in (new, old))
    changes = difference(old, new, axes, urls)
    if as_json:
        document = {
            "schema": 1,
            "before": {"name": old_name, "lock": old.content_hash},
            "after": {"name": new_name, "lock": new.content_hash},
            "changes": [dataclasses.asdict(change) for change in changes],
        }
        deliver(json.dumps(document, indent=2) + "\n", None)
    else:
        deliver(_text(old_name, new_name, changes), None)


def _sides(
    before: str, after: str, reference: str | None, db: str | None
) -> tuple[tuple[str, Lock], tuple[str, Lock], Sequence[str]]:
    from bisect_env.engine.stored import axis_packages
    from bisect_env.environments.lockfiles import read_lock
    from bisect_env.storage.store import Store

    files = [Path(side) if side.endswith((".yml", ".yaml")) else None for side in (before, after)]
    if files[0] is not None and files[1] is not None:
        return (before, read_lock(files[0])), (after, read_lock(files[1])), ()
    with Store.open(db, read_only=True) as store:
        found = store.study(reference)
        sides = [
            (side, read_lock(file)) if file is not None else _stored(store, found, side)
            for side, file in zip((before, after), files, strict=True)
        ]
        return sides[0], sides[1], axis_packages(found)


def _stored(store: Store, study: Study, side: str) -> tuple[str, Lock]:
    from bisect_env.engine.stored import stored_combination
    from bisect_env.errors import UsageError

    if len(side) >= _HASH_DIGITS and set(side) <= set(string.hexdigits):
        hashes = {s.lock_hash for s in store.combinations(study.id) if s.lock_hash}
        matching = [known for known in hashes if known.startswith(side.lower())]
        lock = store.lock(matching[0]) if len(matching) == 1 else None
        if lock is None:
            raise UsageError(
                f"no lock of the study {study.name} has a hash that begins with {side}",
                remedy="`bisect-env report --format json` lists each combination with its lock",
            )
        return lock.content_hash[:12], lock
    one = stored_combination(store, study, side)
    return str(one.combination), one.lock


def _text(before: str, after: str, changes: Sequence[PackageChange]) -> str:
    from bisect_env.environments.difference import counted
    from bisect_env.report.untrusted import clean

    rows = [
        [clean(cell) for cell in (_SIGNS[c.kind], c.name, _cell(c.before), _cell(c.after), _note(c))]
        for c in changes
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
    lines = [f"from {clean(before)}", f"to   {clean(after)}", counted(changes), ""]
    split = sum(change.of_axis for change in changes)
    for position, row in enumerate(rows):
        if 0 < split == position:
            lines.append("")
        padded = [f"{cell:<{width}}" for cell, width in zip(row, [*widths, 0], strict=True)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines).rstrip("\n") + "\n"


_SIGNS = {"added": "+", "removed": "-", "changed": "~", "rebuilt": "≈", "moved": "→"}


def _cell(state: PackageState | None) -> str:
    return "—" if state is None else state.label


def _note(change: PackageChange) -> str:
    """What versions do not show: another source, other archives, and the project's page."""
    parts = []
    old, new = change.before, change.after
    if old is not None and new is not None:
        if old.manager != new.manager:
            parts.append(f"{old.manager or 'interpreter'} → {new.manager or 'interpreter'}")
        if old.source != new.source:
            parts.append(f"{old.source} → {new.source}")
        elif change.kind in _WORDS:
            parts.append(f"{_WORDS[change.kind]} ({old.sha256[:12]} → {new.sha256[:12]})")
    elif (one := new or old) is not None and one.source:
        parts.append(one.source)
    return "  ".join([*parts, change.home] if change.home else parts)
