"""Making parts from a prefix that installers have filled and whose files were compared with their lists."""

from __future__ import annotations

import contextlib
import csv
import errno
import filecmp
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.utils import canonicalize_name

from bisect_env.environments import honesty, parts
from bisect_env.environments.honesty import Held
from bisect_env.environments.integrity import BYTECODE
from bisect_env.environments.lock import LockedPackage
from bisect_env.environments.parts import FOLDER, KEPT, Links, Moved, Part

CONDA_BASE = frozenset({"CACHEDIR.TAG", "conda-meta/history"})
"""What rattler puts into every prefix."""

_NO_HARDLINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK)


class _UnknownError(Exception):
    """Something in the prefix is nobody's, or its origin cannot be told."""


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything in a directory.

    Attributes:
        files: Paths of files and links, relative to it.
        folders: Paths of directories.
    """

    files: frozenset[str]
    folders: frozenset[str]


def contents(place: Path) -> Contents:
    """What is in a directory."""
    found = _scan(place)
    folders = frozenset(path for path, known in found.items() if known is None)
    return Contents(frozenset(found) - folders, folders)


def _scan(place: Path) -> dict[str, os.stat_result | None]:
    """Everything in a directory: path, and what the system knows of it; None for directories."""
    found: dict[str, os.stat_result | None] = {}
    waiting = [(str(place), "")]
    while waiting:
        folder, shown = waiting.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                name = shown + entry.name
                if entry.is_dir(follow_symlinks=False):
                    found[name] = None
                    waiting.append((entry.path, f"{name}/"))
                else:
                    found[name] = entry.stat(follow_symlinks=False)
    return found


@dataclass(slots=True)
class _Claim:
    """What a package has in the prefix.

    Attributes:
        label: Name, version and build.
        files: Paths in the prefix.
        archive: Where it lies unpacked, None for the base.
        site: The directory of the prefix that mirrors the archive of a wheel.
        folders: Directories that are empty, or may be in another prefix.
        lists: Those of the files that state hashes of others.
        held: See `Part`.
    """

    label: str
    files: list[str]
    archive: Path | None = None
    site: str | None = None
    folders: frozenset[str] = frozenset()
    lists: frozenset[str] = frozenset()
    held: Held = field(default_factory=Held)


def remember(
    place: Path,
    final: Path,
    cache: Path,
    keys: Mapping[str, str],
    packages: Iterable[LockedPackage],
    base: Contents,
) -> bool:
    """Make the parts of a prefix that are not known yet.

    The caller holds `lease.archives`.

    Args:
        place: Where the prefix is; every file was compared with what its package lists.
        final: Where it will be renamed to.
        cache: Our cache directory.
        keys: See `parts.keys`.
        packages: Of its lock.
        base: What was there before the first package.

    Returns:
        Whether all of its parts are known now. False where they cannot be: no hardlinks, or files that no
        package lists.

    Raises:
        OSError: No room, and the like.
    """
    try:
        claims = {parts.BASE: _Claim("base", sorted(base.files))}
        here = contents(place)
        claims |= dict(_claims(place, cache, list(packages), here))
        _claim_bytecode(claims.values(), here)
        if _collide(claims.values()):
            return False
        if here.files != {path for claim in claims.values() for path in claim.files}:
            return False
        empty = here.folders - _above(here.files) - base.folders
        for claim in claims.values() if empty else ():
            claim.folders = empty & _folders(claim)
        if empty != {path for claim in claims.values() for path in claim.folders}:
            return False
        claims[parts.BASE].folders = base.folders
        for name, claim in claims.items():
            if parts.load(cache, keys[name]) is None:
                parts.store(cache, keys[name], *_part(place, final, cache, keys[name], claim))
    except _UnknownError:
        return False
    except OSError as error:
        if error.errno in _NO_HARDLINKS:
            return False
        raise
    return True


def _claims(
    place: Path, cache: Path, packages: list[LockedPackage], here: Contents
) -> Iterator[tuple[str, _Claim]]:
    held = honesty.held_by(place)
    wheels = {}
    for record in place.glob("lib/python*/site-packages/*.dist-info/RECORD"):
        name = record.parent.name.removesuffix(".dist-info").rpartition("-")[0]
        wheels[str(canonicalize_name(name))] = record
    unpacked = _unpacked_wheels(cache)
    for package in packages:
        label = "-".join(filter(None, (package.name.replace("-", "_"), package.version, package.build)))
        if package.is_conda:
            stem = f"{package.name}-{package.version}-{package.build}"
            claim = _claim_of_conda(place, f"conda-meta/{stem}.json", label)
            held_here = {name: facts for name, facts in held.conda.items() if name == package.name}
            pieces = {piece for path in claim.files for piece in path.split("/")[3:5]}
            distributions = {found[0] for piece in pieces if (found := honesty.distribution(piece))}
        else:
            record_of = wheels.get(canonicalize_name(package.name))
            if record_of is None:
                raise _UnknownError
            claim = _claim_of_wheel(place, record_of, unpacked, here, label)
            held_here, distributions = {}, {str(canonicalize_name(package.name))}
        has_torch = any(path.endswith("/site-packages/torch/version.py") for path in claim.files)
        claim.held = Held(
            held_here,
            {name: v for name, v in held.wheels.items() if name in distributions},
            held.torch_cuda if has_torch else None,
        )
        yield package.name, claim


def _unpacked_wheels(cache: Path) -> dict[tuple[str, int], Path]:
    """(name of the directory of notes, inode of one of them) to where a wheel lies unpacked."""
    found = {}
    for notes in cache.glob("uv/archive-v*/*/*.dist-info"):
        with contextlib.suppress(OSError):
            found[notes.name, (notes / "WHEEL").stat().st_ino] = notes.parent
    return found


def _claim_of_wheel(
    place: Path, record: Path, unpacked: Mapping[tuple[str, int], Path], here: Contents, label: str
) -> _Claim:
    notes = record.parent
    archive = unpacked.get((notes.name, (notes / "WHEEL").stat().st_ino))
    if archive is None:
        raise _UnknownError
    site = os.path.relpath(notes.parent, place)
    files = []
    with record.open(encoding="utf-8", newline="") as stream:
        for row in csv.reader(stream):
            path = os.path.normpath(f"{site}/{row[0]}") if row else ""
            # Some lists name bytecode that nobody has compiled yet.
            if path in here.files:
                files.append(path)
    own = os.path.relpath(record, place)
    return _Claim(label, files, archive, site, lists=frozenset({own}))


def _claim_of_conda(place: Path, own: str, label: str) -> _Claim:
    try:
        data = json.loads((place / own).read_text("utf-8"))
        files = [str(entry["_path"]) for entry in data["paths_data"]["paths"]]
        archive = Path(data["extracted_package_dir"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _UnknownError from error
    return _Claim(label, [*files, own], archive, lists=frozenset({own}))


def _part(place: Path, final: Path, cache: Path, key: str, claim: _Claim) -> tuple[Part, dict[str, Path]]:
    origins: dict[int, str] = {}
    if claim.archive is not None:
        archive = os.path.relpath(claim.archive, cache)
        if archive.startswith(".."):
            raise _UnknownError
        for path, known in _scan(claim.archive).items():
            if known is not None and stat.S_ISREG(known.st_mode):
                origins[known.st_ino] = f"{archive}/{path}"
    part = Part(claim.label, str(final), held=claim.held)
    groups: dict[tuple[str, str], Links] = {}
    kept: dict[str, Path] = {}
    # What states hashes comes last: whether those change is known then.
    for path in sorted(set(claim.files), key=lambda path: (path in claim.lists, path)):
        known = os.lstat(f"{place}/{path}")
        if stat.S_ISLNK(known.st_mode):
            target = str((place / path).readlink())
            if str(place) in target or str(final) in target:
                raise _UnknownError
            part.symlinks.append((path, target))
        elif (origin := origins.get(known.st_ino)) is not None:
            _add(groups, path, origin, known)
        elif (equal := _shared(place, claim, path)) is not None:
            _add(groups, path, os.path.relpath(equal, cache), equal.lstat())
        else:
            name = str(len(kept))
            kept[name] = place / path
            content = kept[name].read_bytes()
            part.kept[name] = digest = hashlib.sha256(content).hexdigest()
            states = path in claim.lists
            if os.fsencode(str(place)) in content:
                raise _UnknownError
            if os.fsencode(str(final)) in content or (states and part.moved):
                part.moved.append(Moved(path, name, digest, stat.S_IMODE(known.st_mode), states))
            else:
                _add(groups, path, f"{FOLDER}/{key}/{KEPT}/{name}", known)
    part.links.extend(groups.values())
    part.folders.extend(sorted(_above(claim.files) | claim.folders | _above(claim.folders)))
    return part, kept


def _above(paths: Iterable[str]) -> frozenset[str]:
    found: set[str] = set()
    for path in paths:
        above = path.rpartition("/")[0]
        while above and above not in found:
            found.add(above)
            above = above.rpartition("/")[0]
    return frozenset(found)


def _claim_bytecode(claims: Iterable[_Claim], here: Contents) -> None:
    """No list names bytecode that was compiled after the installation: it goes with its module."""
    compiled: dict[str, str] = {}
    for path in here.files:
        folder, _, name = path.rpartition("/")
        if folder.endswith(f"/{BYTECODE}") and name.endswith(".pyc"):
            compiled[f"{folder.removesuffix(BYTECODE)}{name.rsplit('.', 2)[0]}.py"] = path
    for claim in claims:
        known = set(claim.files)
        claim.files += [compiled[path] for path in known & compiled.keys() if compiled[path] not in known]


def _collide(claims: Iterable[_Claim]) -> bool:
    """Whether a conda package shares a path with another package: rattler moves one of the two aside."""
    taken: dict[str, bool] = {}
    for claim in claims:
        is_wheel = claim.site is not None
        for path in set(claim.files):
            both_wheels = is_wheel and taken.get(path, True)
            if path.startswith("__clobbers__/") or (path in taken and not both_wheels):
                return True
            taken[path] = is_wheel
    return False


def _folders(claim: _Claim) -> frozenset[str]:
    """Directories of the archive, as they would be called in the prefix."""
    if claim.archive is None:
        return frozenset()
    site = f"{claim.site}/" if claim.site else ""
    return frozenset(site + folder for folder in contents(claim.archive).folders)


def _shared(place: Path, claim: _Claim, path: str) -> Path | None:
    """Where the archive of a wheel has a file that another wheel's equal one stands for in the prefix."""
    if claim.archive is None or claim.site is None:
        return None
    inside = os.path.relpath(path, claim.site)
    candidate = claim.archive / inside
    if inside.startswith("..") or not candidate.is_file() or candidate.is_symlink():
        return None
    return candidate if filecmp.cmp(candidate, place / path, shallow=False) else None


def _add(groups: dict[tuple[str, str], Links], path: str, origin: str, known: os.stat_result) -> None:
    to, _, name = path.rpartition("/")
    of, _, source = origin.rpartition("/")
    links = groups.setdefault((to, of), Links(to, of, [], [], [], []))
    links.names.append(name)
    links.sources.append(source)
    links.sizes.append(known.st_size)
    links.times.append(known.st_mtime_ns)
