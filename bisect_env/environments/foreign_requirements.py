"""Reads requirements files of pip, including the files that they name with `-r`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from bisect_env.environments.download import file_name
from bisect_env.environments.foreign_reading import (
    MAX_BYTES,
    ForeignEnvironment,
    Listed,
    Markers,
    Why,
    unnamed,
    wheel,
)
from bisect_env.secrets import without_credentials
from bisect_env.temporary import read_limited

_MAX_LINE = 64 * 1024
"""Maximum number of characters in a requirement with its hashes. That of numpy, with 100 files, has 8,000."""
_MAX_LISTS = 100
"""Maximum number of included files; a file that is included twice counts twice."""
_OF_ARCHIVES = frozenset(
    {"-i", "-f", "--extra-index-url", "--find-links", "--index-url", "--no-binary", "--no-index"}
    | {"--only-binary", "--pre", "--prefer-binary", "--require-hashes", "--trusted-host", "--use-feature"}
)
"""Options that say where archives come from and which kinds of them are used; pins do without them."""
_PIN = re.compile(r"^[ \t]*[A-Za-z0-9][\w.-]*[ \t]*(\[[^\]\n]*\])?[ \t]*==", re.MULTILINE)


def requirements(environment: ForeignEnvironment, text: str) -> Iterator[Listed]:
    """Yield the packages of a requirements file of pip in which each package is pinned to one version."""
    hashed = "--hash" in text
    environment.format = "pip's requirements with hashes" if hashed else "pip's requirements (pip freeze)"
    markers, number = environment.markers(), count(1)

    def rows(text: str, above: tuple[Path, ...]) -> Iterator[Listed]:
        """Yield the packages of a file and of the files that it includes.

        Args:
            text: Content of the file.
            above: Paths of the files that include each other; the last is the path of the file.
        """
        # A file without pins is perhaps no list and holds passwords; then messages quote no line.
        is_list = len(above) == 1 and _PIN.search(text) is not None
        for line, words in _lines(text):
            place = f"line {line}" if len(above) == 1 else f"{above[-1].name} line {line}"
            if len(words) > _MAX_LINE:
                what = f"{place} has {len(words)} characters: no requirement is so long"
                raise environment.refused(what, "name a lock file, or the output of `pip freeze`")
            if (named := re.fullmatch(r"(?:-r|--requirement)[ =]?\s*(\S+)", words)) is None:
                yield from requirement(environment, words, place, markers, is_quoted=is_list)
            elif next(number) > _MAX_LISTS:
                raise environment.refused(f"{place}: more than {_MAX_LISTS} lists are included", "merge them")
            else:
                inner = above[-1].parent / named[1]
                yield from rows(_included(environment, f"{place}: {named[1]}", inner, above), (*above, inner))

    yield from rows(text, (environment.where,))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a requirements file that are not empty, with the numbers at which they begin.

    Comments are removed, and lines that end with a backslash are joined with the next one.
    """
    parts: list[str] = []
    start = 1
    for number, raw in enumerate([*text.splitlines(), ""], 1):
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        start = start if parts else number
        parts.append(line.removesuffix("\\").strip())
        if not line.endswith("\\"):
            if whole := " ".join(parts).strip():
                yield start, whole
            parts = []


def _included(environment: ForeignEnvironment, place: str, other: Path, above: tuple[Path, ...]) -> str:
    """Return the text of a file that a requirements file includes.

    Requirements files may come from strangers. An included file must therefore lie in the directory of the
    first one, and must be a regular file.

    Args:
        environment: See `requirements`.
        place: Position and name of the included file, for messages.
        other: Path of the included file.
        above: Paths of the files that include it.
    """
    if other in above:
        raise environment.refused(f"{place} includes itself", "remove the line")
    if not other.resolve().is_relative_to(environment.where.parent.resolve()):
        raise environment.refused(
            f"{place} lies outside of the folder of {environment.where.name}",
            "copy what it lists into the list, or give the output of `pip freeze`",
        )
    try:
        return read_limited(other, MAX_BYTES, "utf-8-sig")
    except (OSError, UnicodeDecodeError):
        what = f"{place} cannot be read"
        raise environment.refused(what, "put the file there, or remove the line") from None


def requirement(
    environment: ForeignEnvironment, line: str, place: str, markers: Markers, *, is_quoted: bool = True
) -> Iterator[Listed]:
    """Yield the package of one line of a requirements file; for an option, add a note if it matters.

    Args:
        environment: Receives notes and what is not pinned.
        line: Text of the line.
        place: Position of the line, for messages.
        markers: See `Markers`.
        is_quoted: Whether messages may quote the line.
    """
    if editable := re.match(r"(?:-e|--editable)[ =]\s*(\S+)", line):
        egg = re.search(r"#egg=([\w.-]+)", editable[1])
        name = egg[1] if egg else file_name(editable[1]).partition("@")[0]
        yield unnamed(name if name not in ("", ".") else "the project itself", Why.EDITABLE)
        return
    if line.startswith("-"):
        option = line.split(None, 1)[0].partition("=")[0]
        if option in ("-c", "--constraint"):
            environment.notes.append(f"{place}: constraints are not read; the pins stand for themselves")
        elif option not in _OF_ARCHIVES:
            environment.notes.append(f"{place}: the option {option} is not followed")
        return
    text = re.split(r"\s--", line, maxsplit=1)[0].strip()
    if re.match(r"(\.{0,2}/|[a-z+]+://)", text):
        yield unnamed(file_name(text) or without_credentials(text), of_url(text))
        return
    try:
        found = Requirement(text)
    except (InvalidRequirement, RecursionError) as error:
        reason = str(error).partition("\n")[0]
        what = f"{text[:80]!r} is no requirement: {reason}"
        raise environment.refused(
            f"{place}: {what}" if is_quoted else f"{place} is no requirement",
            "name a lock file, `pip freeze` output, or the directory of an environment",
        ) from None
    fits = markers.hold(str(found.marker or ""))
    pins = [one for one in found.specifier if one.operator in ("==", "===") and one.version[-2:] != ".*"]
    if found.url or not fits:
        yield wheel(found.name, fits=fits, why=of_url(found.url or ""))
    elif len(pins) == 1:
        hashes = tuple(re.findall(r"--hash[= ]sha256:([0-9a-fA-F]{64})", line))
        if found.extras:
            environment.extras[str(canonicalize_name(found.name))] = frozenset(found.extras)
        yield wheel(found.name, pins[0].version, hashes)
    else:
        environment.loose.append(f"{found.name}{found.specifier} ({place})" if is_quoted else place)


def of_url(url: str) -> str:
    """Return the reason why a package that is installed from a URL is left out."""
    scheme = urlsplit(url).scheme
    return Why.VCS if "+" in scheme else Why.LOCAL if scheme in ("file", "") else Why.ARCHIVE
