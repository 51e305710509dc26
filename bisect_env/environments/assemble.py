"""Filling a prefix from parts: one pass of hardlinks, in which every file is looked at once."""

from __future__ import annotations

import base64
import errno
import filecmp
import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bisect_env.environments.honesty import Held
from bisect_env.environments.integrity import BYTECODE, WRITABLE
from bisect_env.environments.parts import FOLDER, KEPT, Links, Moved, Part


class _UnlikeError(Exception):
    """A file is not the one that was looked at when its part was made."""


class UnfitError(Exception):
    """A part is not what it was when it was made, does not go with another one, or cannot be linked to.

    Args:
        key: Of the part, None where none of them is to blame.
    """

    def __init__(self, key: str | None) -> None:
        super().__init__(key)
        self.key = key


@dataclass(frozen=True, slots=True)
class Assembled:
    """A prefix that was filled from parts.

    Attributes:
        held: What it says of itself.
        lines: See `integrity.digest`; of everything in it.
    """

    held: Held
    lines: list[str]


def assemble(place: Path, final: Path, cache: Path, parts: Mapping[str, Part]) -> Assembled:
    """Fill a directory; its files, and the directories below it, are read-only then.

    Args:
        place: Must not exist.
        final: Where it will be renamed to.
        cache: Our cache directory.
        parts: By key.

    Raises:
        UnfitError: A file is gone, or has another size or time than when its hash was looked at; or two
            parts have different files in one place.
        OSError: No room, and the like.
    """
    folders = sorted({folder for part in parts.values() for folder in part.folders})
    place.mkdir()
    for folder in folders:
        os.mkdir(f"{place}/{folder}")  # noqa: PTH102 -- see _link
    lines = [f"/{folder}\0directory\n" for folder in folders if not folder.endswith(BYTECODE)]
    for key, part in parts.items():
        try:
            for links in part.links:
                _link(place, cache, links, lines)
            _write_moved(place, final, cache / FOLDER / key / KEPT, part, lines)
            for to, target in part.symlinks:
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
    return Assembled(_together(parts), lines)


def is_current(part: Part, cache: Path) -> bool:
    """Whether all files that a part links to are there, with the sizes and times that it states."""
    for links in part.links:
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


def _write_moved(place: Path, final: Path, kept: Path, part: Part, lines: list[str]) -> None:
    changes = [(os.fsencode(part.home), os.fsencode(str(final)))]
    for moved in part.moved:
        old = (kept / moved.kept).read_bytes()
        if hashlib.sha256(old).hexdigest() != moved.digest:
            raise _UnlikeError
        new = old
        for before, after in changes:
            new = new.replace(before, after)
        if not moved.states:
            changes += list(zip(_digests(old), _digests(new), strict=True))
        _write(place / moved.to, new, moved, lines)


def _write(path: Path, content: bytes, moved: Moved, lines: list[str]) -> None:
    with path.open("xb") as stream:
        stream.write(content)
    path.chmod(moved.mode & ~WRITABLE)
    known = path.lstat()
    lines.append(f"/{moved.to}\0{known.st_size} {known.st_mtime_ns}\n")


def _digests(content: bytes) -> tuple[bytes, bytes]:
    """How conda's and pip's lists write the hash of a file."""
    digest = hashlib.sha256(content)
    return digest.hexdigest().encode(), base64.urlsafe_b64encode(digest.digest()).rstrip(b"=")


def _together(parts: Mapping[str, Part]) -> Held:
    conda: dict[str, tuple[str, str]] = {}
    wheels: dict[str, str] = {}
    torch_cuda = None
    for part in parts.values():
        conda |= part.held.conda
        wheels |= part.held.wheels
        torch_cuda = part.held.torch_cuda if torch_cuda is None else torch_cuda
    return Held(conda, wheels, torch_cuda)


def _is_bytecode(folder: str) -> bool:
    return BYTECODE in folder.split("/")
