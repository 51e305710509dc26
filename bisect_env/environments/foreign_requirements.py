"""Reads requirements files of pip, including the files that they name with `-r`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from bisect_env.environments.download import file_name
from bisect_env.environments.foreign_reading import (
    ARCHIVE,
    EDITABLE,
    LOCAL,
    MAX_BYTES,
    VCS,
    ForeignEnvironment,
    ForeignReading,
    Markers,
    refused,
)
from bisect_env.secrets import without_credentials
from bisect_env.temporary import read_limited

_MAX_LINE = 64 * 1024
"""Maximum number of characters in a requirement with its hashes. That of numpy, with 100 files, has 8,000."""
_MAX_LISTS = 100
"""Maximum number of included files; a file that is included twice counts twice."""
_PIN = re.compile(r"^[ \t]*[A-Za-z0-9][\w.-]*[ \t]*(\[[^\]\n]*\])?[ \t]*==", re.MULTILINE)
_QUIET_OPTIONS = frozenset(
    {"-i", "-f", "--extra-index-url", "--find-links", "--index-url", "--no-binary", "--no-index"}
    | {"--only-binary", "--pre", "--prefer-binary", "--require-hashes", "--trusted-host", "--use-feature"}
)


class Requirements:
    """A parser for requirements files of pip in which each package is pinned to one version.

    Args:
        reading: Object to which packages and notes are added.
    """

    def __init__(self, reading: ForeignReading) -> None:
        self.reading = reading
        self.loose: list[str] = []
        """Requirements that are not pinned to one version, for the error message."""
        self._markers: Markers = reading.markers()
        self._includes = 0
        self._quotes = True
        """Whether messages may quote lines. False for a file without pins, which may contain passwords."""

    def read(self, text: str) -> ForeignEnvironment:
        """Return the environment that the text of a requirements file describes."""
        for number, line in self._lines(text, self.reading.where, ()):
            self.take(number, line)
        if self.loose:
            raise refused(
                self.reading.source,
                "not every package is pinned to one version: "
                + ", ".join(self.loose[:5])
                + (f" and {len(self.loose) - 5} more" if len(self.loose) > 5 else ""),
                "give the output of `pip freeze` of that environment, or a lock file",
            )
        hashed = any(package.hashes for package in self.reading.packages)
        kind = "pip's requirements with hashes" if hashed else "pip's requirements (pip freeze)"
        return self.reading.result(kind)

    def _lines(self, text: str, where: Path, above: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
        """Yield the position and text of each requirement in a file and in the files that it includes.

        Args:
            text: Content of the file.
            where: Path of the file.
            above: Paths of the files that include it.
        """
        parts: list[str] = []
        start, is_list = 1, bool(_PIN.search(text))
        for number, raw in enumerate([*text.splitlines(), ""], 1):
            line = re.sub(r"(^|\s)#.*$", "", raw).strip()
            start = start if parts else number
            if line.endswith("\\"):
                parts.append(line[:-1].strip())
                continue
            whole = " ".join([*parts, line]).strip()
            parts = []
            place = f"line {start}" if not above else f"{where.name} line {start}"
            if len(whole) > _MAX_LINE:
                what = f"{place} has {len(whole)} characters: no requirement is so long"
                raise refused(self.reading.source, what, "name a lock file, or the output of `pip freeze`")
            named = re.fullmatch(r"(?:-r|--requirement)[ =]?\s*(\S+)", whole)
            if named is None:
                if whole:
                    self._quotes = not above and is_list
                    yield place, whole
                continue
            inner = self._included(place, named[1], where, above)
            yield from self._lines(inner, where.parent / named[1], (*above, where))

    def _included(self, place: str, name: str, where: Path, above: tuple[Path, ...]) -> str:
        """Return the text of a file that another requirements file includes.

        Requirements files may come from strangers. An included file must therefore lie in the same directory
        as the first one, must be a regular file, and the number of included files is limited.
        """
        source, other = self.reading.source, where.parent / name
        self._includes += 1
        if other in (*above, where):
            raise refused(source, f"{place}: {name} includes itself", "remove the line")
        if self._includes > _MAX_LISTS:
            raise refused(source, f"{place}: more than {_MAX_LISTS} lists are included", "merge them")
        folder = self.reading.where.parent.resolve()
        if not other.resolve().is_relative_to(folder):
            raise refused(
                source,
                f"{place}: {name} lies outside of the folder of {self.reading.where.name}",
                "copy what it lists into the list, or give the output of `pip freeze`",
            )
        try:
            return read_limited(other, MAX_BYTES, "utf-8-sig")
        except (OSError, UnicodeDecodeError):
            raise refused(
                source,
                f"{place}: {name} cannot be read",
                "put the file there, or remove the line",
            ) from None

    def take(self, place: str, line: str) -> None:
        """Process one line of a requirements file, which contains a package or an option.

        The method adds the package, or records why it is left out, or adds a note about the option.

        Args:
            place: Position of the line, for messages.
            line: Text of the line.
        """
        if (editable := re.match(r"(?:-e|--editable)[ =]\s*(\S+)", line)) is not None:
            egg = re.search(r"#egg=([\w.-]+)", editable[1])
            name = egg[1] if egg else file_name(editable[1]).partition("@")[0]
            self.reading.left_out[name if name not in ("", ".") else "the project itself"] = EDITABLE
            return
        if line.startswith("-"):
            option = line.split(None, 1)[0].partition("=")[0]
            if option in ("-c", "--constraint"):
                self.reading.notes.append(f"{place}: constraints are not read; the pins stand for themselves")
            elif option not in _QUIET_OPTIONS:
                self.reading.notes.append(f"{place}: the option {option} is not followed")
            return
        text = re.split(r"\s--", line, maxsplit=1)[0].strip()
        if re.match(r"(\.{0,2}/|[a-z+]+://)", text):
            self.reading.left_out[file_name(text) or without_credentials(text)] = (
                VCS if "+" in text.partition("://")[0] else ARCHIVE if "://" in text else LOCAL
            )
            return
        try:
            found = Requirement(text)
        except (InvalidRequirement, RecursionError) as error:
            reason = str(error).partition("\n")[0]
            raise refused(
                self.reading.source,
                f"{place}: {text[:80]!r} is no requirement: {reason}"
                if self._quotes
                else f"{place} is no requirement",
                "name a lock file, `pip freeze` output, or the directory of an environment",
            ) from None
        fits = found.marker is None or self._markers.holds(str(found.marker))
        if found.url or not fits:
            self.reading.take(found.name, fits=fits, why=of_url(found.url or ""))
        elif (version := _pinned(found.specifier)) is None:
            self.loose.append(f"{found.name}{found.specifier} ({place})" if self._quotes else place)
        else:
            hashes = tuple(re.findall(r"--hash[= ]sha256:([0-9a-fA-F]{64})", line))
            self.reading.take(found.name, version, hashes)


def _pinned(specifier: SpecifierSet) -> str | None:
    """Return the version that a specifier such as `==1.2` pins, or None for any other specifier."""
    pins = [one for one in specifier if one.operator in ("==", "===") and not one.version.endswith(".*")]
    return pins[0].version if len(pins) == 1 else None


def of_url(url: str) -> str:
    """Return the reason why a package that is installed from a URL is left out."""
    scheme = urlsplit(url).scheme
    return VCS if "+" in scheme else LOCAL if scheme in ("file", "") else ARCHIVE
