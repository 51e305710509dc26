"""Lists which files a package puts into a prefix, and builds later prefixes from hard links to them."""

from __future__ import annotations

import base64
import contextlib
import csv
import errno
import filecmp
import functools
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from bisect_env.environments import validation
from bisect_env.environments.integrity import BYTECODE, WRITABLE, StatedFile, remove_tree
from bisect_env.environments.interpreters import Interpreter
from bisect_env.environments.lock import Lock, LockedPackage
from bisect_env.environments.validation import Held

# --------------------------------------------------------------------------------------------------
# Manifests: what each package puts into a prefix, as the installer did that put it there first.
#
# A manifest belongs to one archive (its address and sha256) installed in one way (see `keys`), and lists what
# it puts where: hardlinks to files of the unpacked archive, which the cache holds anyway; hardlinks to the
# few files that the installer made, which are kept beside the list; links; and files that name their
# prefix. It is made from a prefix whose every file was found to be what its package lists. A manifest that
# cannot be trusted is no error: it is removed, and the installer does its work again.

FOLDER = "parts"
"""Where caches have them."""
KEPT = "files"
BASE = ""
"""The name of the manifest that belongs to no package: what every prefix of a kind begins with."""

_LIST = "part.json"
_FORMAT = 1  # raise it when manifests are written, or prefixes filled, differently


@dataclass(frozen=True, slots=True)
class Links:
    """Files of one directory of a prefix that are hardlinks into one directory of the cache.

    Attributes:
        to: The directory in the prefix, relative to it; "" is the prefix itself.
        of: The directory in the cache, relative to it.
        names: As they are called in the prefix.
        sources: As they are called in the cache, in the same order.
        sizes: In bytes.
        times: Of last modification, in nanoseconds.
    """

    to: str
    of: str
    names: list[str]
    sources: list[str]
    sizes: list[int]
    times: list[int]


@dataclass(frozen=True, slots=True)
class PrefixedFile:
    """A file that names its prefix, or states the hash of one that does.

    Attributes:
        to: Path in the prefix.
        kept: Its name among the kept files, where it has the text of the prefix it was made for.
        digest: Hex sha256 of that text.
        mode: Permissions.
        states: Whether it states hashes of other files of this manifest.
    """

    to: str
    kept: str
    digest: str
    mode: int
    states: bool


@dataclass(frozen=True, slots=True)
class InstallManifest:
    """The files that one package puts into a prefix.

    Attributes:
        package: Name, version and build, for people and for `dropping`.
        home: Path of the prefix that it was made from; `PrefixedFile` files name it.
        folders: Directories, parents before children.
        links: See there.
        moved: Those that state hashes come last.
        symlinks: Path in the prefix and target.
        kept: Hex sha256 of each kept file.
        held: What a prefix says of itself because of this manifest.
    """

    package: str
    home: str
    folders: list[str] = field(default_factory=list)
    links: list[Links] = field(default_factory=list)
    moved: list[PrefixedFile] = field(default_factory=list)
    symlinks: list[tuple[str, str]] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    held: Held = field(default_factory=Held)


def keys(lock: Lock, cache: Path, interpreter: Interpreter | None) -> dict[str, str]:
    """Names of the manifests of a lock's prefix: package name, or `BASE`, to a hex digest. Pure.

    In a key is everything that can make the same archive become other files: the installer's version, the
    interpreter or, in conda environments, the Python package (which is nothing to conda packages that are
    built for a platform); and where the cache is, since files name it.

    Args:
        lock: Its packages; the keys of source distributions are there and must not be used.
        cache: Our cache directory.
        interpreter: None for conda environments, which bring their own.
    """
    tools = f"{_FORMAT} {package_version('uv')} {package_version('py-rattler')} {cache}"
    if interpreter is None:
        python = " ".join(f"{p.url} {p.sha256}" for p in lock.packages if p.is_conda and p.name == "python")
        base = "conda"
    else:
        python = base = f"venv {interpreter.path} {interpreter.version}"
    found = {BASE: _digest(tools, base)}
    for package in lock.packages:
        context = python
        if package.is_conda:
            context = python if "/noarch/" in package.url else ""
        facts = (package.manager, package.name, package.version, package.build, package.url, package.sha256)
        found[package.name] = _digest(tools, context, *facts)
    return found


def load(cache: Path, key: str) -> InstallManifest | None:
    """Return a manifest, None if there is none that can be read as it was written."""
    place = cache / FOLDER / key
    try:
        digest, _, text = (place / _LIST).read_bytes().partition(b"\n")
    except OSError:
        return None
    if hashlib.sha256(text).hexdigest().encode() != digest:
        return None
    data = json.loads(text)
    data["links"] = [Links(*values) for values in data["links"]]
    data["moved"] = [PrefixedFile(**values) for values in data["moved"]]
    data["held"] = Held(
        {name: (version, build) for name, (version, build) in data["held"]["conda"].items()},
        data["held"]["wheels"],
        data["held"]["torch_cuda"],
    )
    return InstallManifest(**data)


def store(cache: Path, key: str, manifest: InstallManifest, kept: Mapping[str, Path]) -> None:
    """Write a manifest whole, or not at all.

    Args:
        cache: Our cache directory.
        key: See `keys`.
        manifest: What to write.
        kept: Name to the file that is kept under it, by a hardlink.

    Raises:
        OSError: It cannot be written, or the file system has no hardlinks.
    """
    folder = cache / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".new-{secrets.token_hex(8)}"
    try:
        (temporary / KEPT).mkdir(parents=True)
        for name, path in kept.items():
            os.link(path, temporary / KEPT / name)
        # `asdict` would copy lists of many thousand names.
        data = {each.name: getattr(manifest, each.name) for each in fields(manifest)}
        data["links"] = [[getattr(links, each.name) for each in fields(links)] for links in manifest.links]
        data["moved"] = [asdict(moved) for moved in manifest.moved]
        data["held"] = asdict(manifest.held)
        text = json.dumps(data, separators=(",", ":")).encode()
        (temporary / _LIST).write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
        # Another one, who installed the same package for another prefix, may be faster, and shares what it
        # stored: only what cannot be read is replaced.
        while not _renamed(temporary, folder / key) and load(cache, key) is None:
            discard(cache, key)
    finally:
        remove_tree(temporary)


def _renamed(place: Path, final: Path) -> bool:
    """Rename a directory, unless there is another one of that name."""
    try:
        place.rename(final)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        return False
    return True


def discard(cache: Path, key: str) -> None:
    """Forget a manifest; never half of it."""
    aside = cache / FOLDER / f".old-{secrets.token_hex(8)}"
    with contextlib.suppress(FileNotFoundError):
        (cache / FOLDER / key).rename(aside)
        remove_tree(aside)


def all_manifests(cache: Path) -> list[Path]:
    """Directories of all manifests."""
    return [path for path in sorted((cache / FOLDER).glob("*")) if not path.name.startswith(".")]


def remove_unfinished(cache: Path) -> None:
    """Remove what killed processes left half-written; no process may be writing a manifest meanwhile."""
    for path in (cache / FOLDER).glob(".*"):
        remove_tree(path)


def stated_files(place: Path) -> tuple[str, tuple[StatedFile, ...]] | None:
    """Name of the package, and the kept files, of the manifest in a directory; None if it cannot be read."""
    manifest = load(place.parent.parent, place.name)
    if manifest is None:
        return None
    files = (StatedFile(place / KEPT / n, "sha256", bytes.fromhex(d)) for n, d in manifest.kept.items())
    return manifest.package, tuple(files)


def _digest(*facts: str) -> str:
    return hashlib.sha256("\0".join(facts).encode("utf-8", "surrogateescape")).hexdigest()


package_version = functools.cache(metadata.version)


# --------------------------------------------------------------------------------------------------
# Filling a prefix from manifests: one pass of hardlinks, in which every file is looked at once.


class _UnlikeError(Exception):
    """A file is not the one that was looked at when its manifest was made."""


class UnfitError(Exception):
    """A manifest is not what it was when it was made, does not go with another one, or cannot be linked to.

    Args:
        key: Of the manifest, None where none of them is to blame.
    """

    def __init__(self, key: str | None) -> None:
        super().__init__(key)
        self.key = key


@dataclass(frozen=True, slots=True)
class Assembled:
    """A prefix that was filled from manifests.

    Attributes:
        held: What it says of itself.
        lines: See `integrity.digest`; of everything in it.
    """

    held: Held
    lines: list[str]


def assemble(place: Path, final: Path, cache: Path, manifests: Mapping[str, InstallManifest]) -> Assembled:
    """Fill a directory; its files, and the directories below it, are read-only then.

    Args:
        place: Must not exist.
        final: Where it will be renamed to.
        cache: Our cache directory.
        manifests: By key.

    Raises:
        UnfitError: A file is gone, or has another size or time than when its hash was looked at; or two
            manifests have different files in one place.
        OSError: No room, and the like.
    """
    folders = sorted({folder for manifest in manifests.values() for folder in manifest.folders})
    place.mkdir()
    for folder in folders:
        os.mkdir(f"{place}/{folder}")  # noqa: PTH102 -- see _link
    lines = [f"/{folder}\0directory\n" for folder in folders if not folder.endswith(BYTECODE)]
    for key, manifest in manifests.items():
        try:
            for links in manifest.links:
                _link(place, cache, links, lines)
            _write_prefixed(place, final, cache / FOLDER / key / KEPT, manifest, lines)
            for to, target in manifest.symlinks:
                (place / to).symlink_to(target)
                lines.append(f"/{to}\0-> {target}\n")
        except (FileNotFoundError, _UnlikeError) as error:
            raise UnfitError(key) from error
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.EPERM, errno.EACCES, errno.EMLINK):
                # Another user's files, or too many links to one: installers copy where they cannot link.
                # Or packages that do not go together, though each by itself is what it was.
                raise UnfitError(None) from error
            raise
    for folder in folders:
        path = f"{place}/{folder}"
        os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) & ~WRITABLE)  # noqa: PTH101, PTH116 -- see _link
    return Assembled(_together(manifests), lines)


def is_current(manifest: InstallManifest, cache: Path) -> bool:
    """Whether all files that a manifest links to are there, with the sizes and times that it states."""
    for links in manifest.links:
        for source, size, time in zip(links.sources, links.sizes, links.times, strict=True):
            try:
                known = os.lstat(f"{cache}/{links.of}/{source}")
            except FileNotFoundError:
                return False
            if known.st_size != size or known.st_mtime_ns != time:
                return False
    return True


def _link(place: Path, cache: Path, links: Links, lines: list[str]) -> None:
    # What is done here is done for each of many thousand files: a `Path` for each would take longer than
    # the links do.
    to = f"{place}/{links.to}/" if links.to else f"{place}/"
    shown = f"/{links.to}/" if links.to else "/"
    of = f"{cache}/{links.of}/"
    is_bytecode = _is_bytecode(links.to)
    link, look = os.link, os.lstat
    for name, source, size, time in zip(links.names, links.sources, links.sizes, links.times, strict=True):
        target = to + name
        try:
            link(of + source, target)
        except FileExistsError:
            # Wheels that share a directory may all bring the same file (`nvidia/__init__.py`); of what conda
            # packages share, rattler keeps a list.
            # Of such a file there is bytecode already, too, made from the one that is there.
            if is_bytecode:
                continue
            if links.of.startswith("uv/") and filecmp.cmp(of + source, target, shallow=False):
                continue
            raise UnfitError(None) from None
        known = look(target)
        if known.st_size != size or known.st_mtime_ns != time:
            raise _UnlikeError
        if known.st_mode & WRITABLE:
            os.chmod(target, stat.S_IMODE(known.st_mode) & ~WRITABLE)  # noqa: PTH101
        lines.append(f"{shown}{name}\0{size} {time}\n")


def _write_prefixed(
    place: Path, final: Path, kept: Path, manifest: InstallManifest, lines: list[str]
) -> None:
    changes = [(os.fsencode(manifest.home), os.fsencode(str(final)))]
    for moved in manifest.moved:
        old = (kept / moved.kept).read_bytes()
        if hashlib.sha256(old).hexdigest() != moved.digest:
            raise _UnlikeError
        new = old
        for before, after in changes:
            new = new.replace(before, after)
        if not moved.states:
            changes += list(zip(_digests(old), _digests(new), strict=True))
        _write(place / moved.to, new, moved, lines)


def _write(path: Path, content: bytes, moved: PrefixedFile, lines: list[str]) -> None:
    with path.open("xb") as stream:
        stream.write(content)
    path.chmod(moved.mode & ~WRITABLE)
    known = path.lstat()
    lines.append(f"/{moved.to}\0{known.st_size} {known.st_mtime_ns}\n")


def _digests(content: bytes) -> tuple[bytes, bytes]:
    """How conda's and pip's lists write the hash of a file."""
    digest = hashlib.sha256(content)
    return digest.hexdigest().encode(), base64.urlsafe_b64encode(digest.digest()).rstrip(b"=")


def _together(manifests: Mapping[str, InstallManifest]) -> Held:
    conda: dict[str, tuple[str, str]] = {}
    wheels: dict[str, str] = {}
    torch_cuda = None
    for manifest in manifests.values():
        conda |= manifest.held.conda
        wheels |= manifest.held.wheels
        torch_cuda = manifest.held.torch_cuda if torch_cuda is None else torch_cuda
    return Held(conda, wheels, torch_cuda)


def _is_bytecode(folder: str) -> bool:
    return BYTECODE in folder.split("/")


# --------------------------------------------------------------------------------------------------
# Making manifests from a prefix that installers have filled and whose files were compared with their lists.

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
    """Return the files and directories in a directory."""
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
        held: See `InstallManifest`.
    """

    label: str
    files: list[str]
    archive: Path | None = None
    site: str | None = None
    folders: frozenset[str] = frozenset()
    lists: frozenset[str] = frozenset()
    held: Held = field(default_factory=Held)


def write_manifests(
    place: Path,
    final: Path,
    cache: Path,
    keys: Mapping[str, str],
    packages: Iterable[LockedPackage],
    base: Contents,
) -> bool:
    """Make the manifests of a prefix that are not known yet.

    The caller holds `lease.archives`.

    Args:
        place: Where the prefix is; every file was compared with what its package lists.
        final: Where it will be renamed to.
        cache: Our cache directory.
        keys: See `keys`.
        packages: Of its lock.
        base: What was there before the first package.

    Returns:
        Whether all of its manifests are known now. False where they cannot be: no hardlinks, or files that no
        package lists.

    Raises:
        OSError: No room, and the like.
    """
    try:
        claims = {BASE: _Claim("base", sorted(base.files))}
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
        claims[BASE].folders = base.folders
        for name, claim in claims.items():
            if load(cache, keys[name]) is None:
                store(cache, keys[name], *_manifest(place, final, cache, keys[name], claim))
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
    held = validation.held_by(place)
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
            distributions = {found[0] for piece in pieces if (found := validation.distribution(piece))}
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


def _manifest(
    place: Path, final: Path, cache: Path, key: str, claim: _Claim
) -> tuple[InstallManifest, dict[str, Path]]:
    origins: dict[int, str] = {}
    if claim.archive is not None:
        archive = os.path.relpath(claim.archive, cache)
        if archive.startswith(".."):
            raise _UnknownError
        for path, known in _scan(claim.archive).items():
            if known is not None and stat.S_ISREG(known.st_mode):
                origins[known.st_ino] = f"{archive}/{path}"
    manifest = InstallManifest(claim.label, str(final), held=claim.held)
    groups: dict[tuple[str, str], Links] = {}
    kept: dict[str, Path] = {}
    # What states hashes comes last: whether those change is known then.
    for path in sorted(set(claim.files), key=lambda path: (path in claim.lists, path)):
        known = os.lstat(f"{place}/{path}")
        if stat.S_ISLNK(known.st_mode):
            target = str((place / path).readlink())
            if str(place) in target or str(final) in target:
                raise _UnknownError
            manifest.symlinks.append((path, target))
        elif (origin := origins.get(known.st_ino)) is not None:
            _add(groups, path, origin, known)
        elif (equal := _shared(place, claim, path)) is not None:
            _add(groups, path, os.path.relpath(equal, cache), equal.lstat())
        else:
            name = str(len(kept))
            kept[name] = place / path
            content = kept[name].read_bytes()
            manifest.kept[name] = digest = hashlib.sha256(content).hexdigest()
            states = path in claim.lists
            if os.fsencode(str(place)) in content:
                raise _UnknownError
            if os.fsencode(str(final)) in content or (states and manifest.moved):
                manifest.moved.append(PrefixedFile(path, name, digest, stat.S_IMODE(known.st_mode), states))
            else:
                _add(groups, path, f"{FOLDER}/{key}/{KEPT}/{name}", known)
    manifest.links.extend(groups.values())
    manifest.folders.extend(sorted(_above(claim.files) | claim.folders | _above(claim.folders)))
    return manifest, kept


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
