"""Parts: what each package puts into a prefix, remembered from the installer that put it there first.

A part belongs to one archive (its address and sha256) installed in one way (see `keys`), and lists what it
puts where: hardlinks to files of the unpacked archive, which the cache holds anyway; hardlinks to the few
files that the installer made, which are kept beside the list; links; and files that name their prefix. It is
made from a prefix whose every file was found to be what its package lists. A part that cannot be trusted is
no error: it is removed, and the installer does its work again.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path

from bisect_env.environments.honesty import Held
from bisect_env.environments.integrity import StatedFile, remove_tree
from bisect_env.environments.interpreters import Interpreter
from bisect_env.environments.lock import Lock

FOLDER = "parts"
KEPT = "files"
BASE = ""
"""The name of the part that belongs to no package: what every prefix of a kind begins with."""

_LIST = "part.json"
_FORMAT = 1  # raise it when parts are written, or prefixes filled, differently


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
class Moved:
    """A file that names its prefix, or states the hash of one that does.

    Attributes:
        to: Path in the prefix.
        kept: Its name among the kept files, where it has the text of the prefix it was made for.
        digest: Hex sha256 of that text.
        mode: Permissions.
        states: Whether it states hashes of other files of this part.
    """

    to: str
    kept: str
    digest: str
    mode: int
    states: bool


@dataclass(frozen=True, slots=True)
class Part:
    """What one package puts into a prefix.

    Attributes:
        package: Name, version and build, for people and for `dropping`.
        home: Path of the prefix that it was made from; `Moved` files name it.
        folders: Directories, parents before children.
        links: See there.
        moved: Those that state hashes come last.
        symlinks: Path in the prefix and target.
        kept: Hex sha256 of each kept file.
        held: What a prefix says of itself because of this part.
    """

    package: str
    home: str
    folders: list[str] = field(default_factory=list)
    links: list[Links] = field(default_factory=list)
    moved: list[Moved] = field(default_factory=list)
    symlinks: list[tuple[str, str]] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    held: Held = field(default_factory=Held)


def keys(lock: Lock, cache: Path, interpreter: Interpreter | None) -> dict[str, str]:
    """Names of the parts of a lock's prefix: package name, or `BASE`, to a hex digest. Pure.

    In a key is everything that can make the same archive become other files: the installer's version, the
    interpreter or, in conda environments, the Python package (which is nothing to conda packages that are
    built for a platform); and where the cache is, since files name it.

    Args:
        lock: Its packages; the keys of source distributions are there and must not be used.
        cache: Our cache directory.
        interpreter: None for conda environments, which bring their own.
    """
    tools = f"{_FORMAT} {version('uv')} {version('py-rattler')} {cache}"
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


def load(cache: Path, key: str) -> Part | None:
    """A part, None if there is none that can be read as it was written."""
    place = cache / FOLDER / key
    try:
        digest, _, text = (place / _LIST).read_bytes().partition(b"\n")
    except OSError:
        return None
    if hashlib.sha256(text).hexdigest().encode() != digest:
        return None
    data = json.loads(text)
    data["links"] = [Links(*values) for values in data["links"]]
    data["moved"] = [Moved(**values) for values in data["moved"]]
    data["held"] = Held(
        {name: (version, build) for name, (version, build) in data["held"]["conda"].items()},
        data["held"]["wheels"],
        data["held"]["torch_cuda"],
    )
    return Part(**data)


def store(cache: Path, key: str, part: Part, kept: Mapping[str, Path]) -> None:
    """Write a part whole, or not at all.

    Args:
        cache: Our cache directory.
        key: See `keys`.
        part: What to write.
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
        data = {each.name: getattr(part, each.name) for each in fields(part)}
        data["links"] = [[getattr(links, each.name) for each in fields(links)] for links in part.links]
        data["moved"] = [asdict(moved) for moved in part.moved]
        data["held"] = asdict(part.held)
        text = json.dumps(data, separators=(",", ":")).encode()
        (temporary / _LIST).write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
        discard(cache, key)
        temporary.rename(folder / key)
    except OSError as error:
        # Another one, who installed the same package for another prefix, was faster.
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
    finally:
        remove_tree(temporary)


def discard(cache: Path, key: str) -> None:
    """Forget a part; never half of it."""
    aside = cache / FOLDER / f".old-{secrets.token_hex(8)}"
    with contextlib.suppress(FileNotFoundError):
        (cache / FOLDER / key).rename(aside)
        remove_tree(aside)


def all_parts(cache: Path) -> list[Path]:
    """Directories of all parts."""
    return [path for path in sorted((cache / FOLDER).glob("*")) if not path.name.startswith(".")]


def remove_unfinished(cache: Path) -> None:
    """Remove what those who were killed had begun to write or to forget; nobody may be writing any."""
    for path in (cache / FOLDER).glob(".*"):
        remove_tree(path)


def stated_files(place: Path) -> tuple[str, tuple[StatedFile, ...]] | None:
    """Name of the package, and the kept files, of the part in a directory; None if it cannot be read."""
    part = load(place.parent.parent, place.name)
    if part is None:
        return None
    files = (StatedFile(place / KEPT / n, "sha256", bytes.fromhex(d)) for n, d in part.kept.items())
    return part.package, tuple(files)


def _digest(*facts: str) -> str:
    return hashlib.sha256("\0".join(facts).encode("utf-8", "surrogateescape")).hexdigest()


version = functools.cache(version)
