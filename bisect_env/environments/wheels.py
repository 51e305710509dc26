"""Chooses the wheel of a release that a given interpreter on this host would install."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence

from packaging import tags
from packaging.utils import canonicalize_name

from bisect_env.environments.interpreters import Interpreter

Ranks = Mapping[tags.Tag, int]
"""Maps a wheel tag to its rank; 0 is the most preferred."""


MAX_FILENAME = 255
"""Longest file name in bytes that file systems support. Longer names on an index are ignored."""
_SOURCES = (".tar.gz", ".zip", ".tar.bz2", ".tgz", ".tar.xz", ".tar.z", ".tar")
"""Endings of the names of source distributions, in lower case."""
_INTERPRETER = re.compile(r"(?:cp|py)(\d)(\d+)?")
_LAST_MINOR = 30
"""Highest minor version of Python 3 assumed for wheels that support all later versions, too."""


@functools.cache
def host_platforms() -> tuple[str, ...]:
    """Return the platform tags of wheels that this host supports, most specific first.

    The manylinux tags depend on the host's glibc.
    """
    return tuple(tags.platform_tags())


@functools.cache
def tag_ranks(interpreter: Interpreter, platforms: Sequence[str] | None = None) -> Ranks:
    """Return the rank of every wheel tag that an interpreter accepts, where 0 is the most preferred.

    The interpreter is not run, since the interpreter of a conda environment may not be installed yet.

    Args:
        interpreter: The interpreter.
        platforms: Platform tags, most specific first; None for the tags of this host.
    """
    platforms = host_platforms() if platforms is None else platforms
    version = interpreter.release[:2]
    short = f"cp{version[0]}{version[1]}"
    own = tags.cpython_tags(version, abis=[interpreter.abi], platforms=platforms)
    common = tags.compatible_tags(version, interpreter=short, platforms=platforms)
    ranks: dict[tags.Tag, int] = {}
    for tag in (*own, *common):
        ranks.setdefault(tag, len(ranks))
    return ranks


def choose_wheel(filenames: Iterable[str], ranks: Ranks) -> str | None:
    """Return the file name of the wheel that an installer would choose, or None if no wheel fits.

    The best tag wins, then the highest build number, then the first name in alphabetical order.

    Args:
        filenames: File names of a release; names of other files than wheels are ignored.
        ranks: Accepted tags, from `tag_ranks`.
    """
    fitting = []
    for filename in filenames:
        (number, rest), tag_set = _split(filename) or ((0, ""), frozenset())
        if accepted := tag_set & ranks.keys():
            fitting.append((min(ranks[tag] for tag in accepted), -number, rest, filename))
    return min(fitting)[-1] if fitting else None


def fits_platform(filename: str, platforms: Sequence[str] | None = None) -> bool:
    """Return whether a wheel is for the platform of this host, with any Python version."""
    parts = _split(filename)
    accepted = {"any", *(host_platforms() if platforms is None else platforms)}
    return parts is not None and any(tag.platform in accepted for tag in parts[1])


def pythons_of(filename: str) -> frozenset[str] | None:
    """Return the minor versions of Python, such as `3.11`, that a wheel supports.

    Return None if the wheel supports every Python 3.
    """
    parts = _split(filename)
    found: set[str] = set()
    for tag in parts[1] if parts is not None else ():
        if tag.interpreter == "py3":
            return None
        match = _INTERPRETER.fullmatch(tag.interpreter)
        if match is None:
            continue
        major, minor = int(match[1]), int(match[2] or 0)
        # `cp38-abi3` and `py38-none` support later versions, too; `cp38-cp38` and `cp38-none` do not.
        last = _LAST_MINOR if tag.abi == "abi3" or tag.interpreter.startswith("py") else minor
        found |= {f"{major}.{n}" for n in range(minor, last + 1)}
    return frozenset(found)


def version_in(filename: str, package: str) -> str | None:
    """Return the version in the name of a wheel or source distribution of a package.

    The version may be invalid under PEP 440. Return None if the file is neither, or of another package.
    """
    name = canonicalize_name(package)
    if filename.endswith(".whl"):
        project, _, rest = filename.partition("-")
        is_own = canonicalize_name(project) == name and _split(filename) is not None
        return rest.partition("-")[0] if is_own else None
    ending = next((ending for ending in _SOURCES if filename.lower().endswith(ending)), None)
    if ending is None:
        return None
    # The name of the package may contain hyphens, and so may an invalid version.
    parts = filename[: -len(ending)].split("-")
    cuts = (cut for cut in range(1, len(parts)) if canonicalize_name("-".join(parts[:cut])) == name)
    return next(("-".join(parts[cut:]) for cut in cuts), None)


def _split(filename: str) -> tuple[tuple[int, str], frozenset[tags.Tag]] | None:
    # Not `parse_wheel_filename`: it rejects the names and versions of some old wheels, and only the tags
    # matter here.
    if not filename.endswith(".whl") or len(filename) > MAX_FILENAME:
        return None
    parts = filename.removesuffix(".whl").split("-")
    if len(parts) not in (5, 6) or not all(parts):
        return None
    build = (0, "")
    if len(parts) == 6:
        digits = len(parts[2]) - len(parts[2].lstrip("0123456789"))
        if not digits:
            return None
        build = (int(parts[2][:digits]), parts[2][digits:])
    try:
        return build, tags.parse_tag("-".join(parts[-3:]))
    except ValueError:
        return None  # no installer accepts such tags either
