"""Reads environments that other tools wrote: lock files, lists of packages, and directories.

All are read into one plain record. What cannot be made again elsewhere (local and editable packages, other
platforms' packages) is left out with its reason, never in silence.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml
from packaging.pylock import Pylock, PylockUnsupportedVersionError, PylockValidationError
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from bisect_env.environments.conda_process import HelperDiedError, shared_pool
from bisect_env.environments.foreign_locks import (
    ARCHIVE,
    EDITABLE,
    LOCAL,
    VCS,
    Markers,
    Stated,
    of_pdm,
    of_pipenv,
    of_poetry,
    of_pylock,
    of_uv,
    poetry_range,
)
from bisect_env.environments.interpreters import installed_pythons
from bisect_env.environments.lock import Lock, LockedPackage
from bisect_env.environments.lockfiles import conda_archive, packages_of
from bisect_env.environments.yaml_text import read_yaml
from bisect_env.errors import UsageError
from bisect_env.matrix import versions
from bisect_env.matrix.versions import host_platform
from bisect_env.temporary import read_limited

_MAX_BYTES = 64 * 1024 * 1024
_MAX_LINE = 64 * 1024
"""Characters of a requirement with all its hashes; numpy, with a hundred files, takes eight thousand."""
_MAX_WORD = 200
"""Characters of a name, version or build: no index and no file system takes longer ones."""
_MAX_LISTS = 100
"""Lists of requirements that one list may include, each time counted."""
_PIN = re.compile(r"^[ \t]*[A-Za-z0-9][\w.-]*[ \t]*(\[[^\]\n]*\])?[ \t]*==", re.MULTILINE)
_HELPER_TIMEOUT = 60.0
_NOT_HERE = "not for this Python or platform"
_INSTALLER = "the installer, which nothing in the environment needs"


@dataclass(frozen=True, slots=True)
class ForeignPackage:
    """One package of an environment.

    Attributes:
        name: Normalised name of a PyPI package; a conda package's as its channel has it.
        version: Exact version.
        manager: `pip` or `conda`.
        build: conda's build string, "" for wheels and where it is not known.
        hashes: Hex sha256 of the archives that are allowed; empty where none is stated.
    """

    name: str
    version: str
    manager: str = "pip"
    build: str = ""
    hashes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise an error for names and versions that are too long; foreign lists may hold anything.

        Raises:
            ValueError: One is too long.
        """
        for word in (self.name, self.version, self.build):
            if len(word) > _MAX_WORD:
                raise ValueError(
                    f"{word[:40]!r}… has {len(word)} characters, and none of a package has more "
                    f"than {_MAX_WORD}"
                )

    @property
    def spec(self) -> str:
        """Return the package in its manager's notation: `click==8.1.8`, `numpy ==2.0 py311_0`."""
        if self.manager == "pip":
            return f"{self.name}=={self.version}"
        return f"{self.name} =={self.version} {self.build}".rstrip()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A package that is not taken over.

    Attributes:
        name: As far as it is known.
        why: The reason.
    """

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class ForeignEnvironment:
    """An environment as another tool describes it.

    Attributes:
        source: The file or directory as the user named it.
        format: What it was found to be, in words.
        python: Version of Python that it states, "" where it states none.
        requires_python: Range of Pythons that it is for, "" where it states none.
        platform: conda's name of the platform that it is of, "" where it is of any.
        packages: By name; Python is one of them where it is a conda package.
        left_out: Packages that are not taken over.
        channels: conda channels, most important first.
        notes: What else should be known, in sentences.
    """

    source: str
    format: str
    python: str
    packages: tuple[ForeignPackage, ...]
    requires_python: str = ""
    platform: str = ""
    left_out: tuple[LeftOut, ...] = ()
    channels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def uses_conda(self) -> bool:
        """Return whether any package comes from a conda channel."""
        return any(package.manager == "conda" for package in self.packages)

    def of(self, manager: str) -> tuple[ForeignPackage, ...]:
        """Return the packages of one manager, `pip` or `conda`; Python itself is left to the interpreter."""
        return tuple(p for p in self.packages if p.manager == manager and p.name != "python")

    def summary(self) -> str:
        """Return one line on what was found and what was left out."""
        count = f"{len(self.packages)} package{'' if len(self.packages) == 1 else 's'}"
        python = f", Python {self.python}" if self.python else ""
        platform = f", {self.platform}" if self.platform else ""
        line = f"{self.source}: {self.format}: {count}{python}{platform}"
        return f"{line}; {len(self.left_out)} left out" if self.left_out else line


def read_environment(path: str | Path, *, python: str = "", platform: str = "") -> ForeignEnvironment:
    """Read what another tool wrote, whichever format it is.

    Locks for several Pythons and platforms are read for one: every package that fits it, of all groups and
    extras, so that nothing that a test may need is missing.

    Args:
        path: A file, `FILE#NAME` for one environment of a `pixi.lock`, or the directory of an environment.
        python: For which Python markers are evaluated, such as `3.12`; default: what the environment states,
            else the running one where that fits, else the oldest that fits.
        platform: conda's name of the platform that is meant; this host's if "".

    Raises:
        UsageError: It does not exist, is in no known format, or cannot be understood.
    """
    platform = platform or host_platform()
    text_path, name = str(path), ""
    where = Path(text_path).expanduser()
    if not where.exists() and "#" in text_path:
        text_path, _, name = text_path.rpartition("#")
        where = Path(text_path).expanduser()
    reader = _Reader(str(path), where, name, python, platform)
    if where.is_dir():
        return reader.directory()
    if not where.exists():
        beside = sorted(p.name for p in where.parent.iterdir()) if where.parent.is_dir() else []
        raise _refused(str(path), f"there is no such file{_near(where.name, beside)}", "correct the path")
    return reader.file()


def environment_of_lock(lock: Lock, source: str) -> ForeignEnvironment:
    """Return a lock of our own, in the words of this module.

    Args:
        lock: Of a study's combination.
        source: What to call it.
    """
    return ForeignEnvironment(
        source=source,
        format="a lock of bisect-env",
        python=lock.python,
        packages=_sorted(map(_of_locked, lock.packages)),
        platform=lock.platform,
        channels=tuple(dict.fromkeys(p.url.rsplit("/", 2)[0] for p in lock.packages if p.is_conda)),
    )


def fitting_python(requires: Sequence[str], here: str = "") -> str:
    """Return the Python for environments that state none; see `versions.fitting_python`.

    Args:
        requires: Ranges of Pythons, all of which have to hold; empty ones say nothing.
        here: The running Python, as `3.12`; that of this process if "".
    """
    try:
        wanted = SpecifierSet(",".join(text for text in requires if text))
    except InvalidSpecifier:
        wanted = SpecifierSet()
    return versions.fitting_python(wanted, here=here, installed=installed_pythons)


# -- one file or directory ---------------------------------------------------------------------------------


@dataclass
class _Reader:
    source: str
    where: Path
    name: str
    python: str
    platform: str
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    includes: int = 0
    quotes: bool = True
    """Whether lines may be shown: not those of a file that is no list, such as one of passwords."""

    def file(self) -> ForeignEnvironment:
        text = self._text()
        if self.where.suffix == ".toml" or self.where.name in ("uv.lock", "poetry.lock", "pdm.lock"):
            return self._toml(text)
        if text.lstrip().startswith("{"):
            return self._json(text)
        if "@EXPLICIT" in text.splitlines():
            return self._checked(lambda: self._conda_explicit(text))
        if self.where.suffix in (".yml", ".yaml") or self.where.name == "pixi.lock":
            return self._yaml(text)
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
        if lines and all(_LISTED.fullmatch(line) for line in lines):
            return self._checked(lambda: self._conda_export(text))
        # A lock under another name: what is in it tells.
        if text.lstrip().startswith("version:"):
            return self._yaml(text)
        if re.search(r"^\[\[packages?\]\]$", text, re.MULTILINE):
            return self._toml(text)
        return self._checked(lambda: self._requirements(text))

    def result(self, kind: str, packages: Iterable[ForeignPackage], **more: Any) -> ForeignEnvironment:
        found = _sorted(packages)
        if not found and not self.left_out:
            raise _refused(
                self.source, f"{kind} without any package", "name a file that lists an environment's packages"
            )
        left = tuple(LeftOut(name[:_MAX_WORD], why) for name, why in sorted(self.left_out.items()))
        return ForeignEnvironment(
            source=self.source,
            format=kind,
            python=more.pop("python", ""),
            packages=found,
            left_out=left,
            notes=tuple(self.notes),
            **more,
        )

    def markers(self, stated: str = "", requires: str = "") -> Markers:
        return Markers(self.python or stated or fitting_python([requires]), self.platform)

    def _text(self) -> str:
        try:
            return read_limited(self.where, _MAX_BYTES, "utf-8-sig")
        except OSError as error:
            raise _refused(
                self.source, f"the file cannot be read ({error.strerror})", "correct the path"
            ) from None
        except UnicodeDecodeError:
            raise _refused(
                self.source, "the file is no text in UTF-8", "name a lock file, not an archive"
            ) from None

    # -- TOML ----------------------------------------------------------------------------------------------

    def _toml(self, text: str) -> ForeignEnvironment:
        try:
            data = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise _refused(self.source, f"it is no TOML: {error}", "write the lock again") from None
        metadata = data.get("metadata") if isinstance(data.get("metadata"), dict) else {}
        reader: Callable[[dict[str, Any]], ForeignEnvironment] | None = None
        if "lock-version" in data and "packages" in data:
            reader = self._pylock
        elif metadata and "lock_version" in metadata:
            reader = self._pdm
        elif metadata and "lock-version" in metadata:
            reader = self._poetry
        elif isinstance(data.get("version"), int) and "requires-python" in data:
            reader = self._uv
        elif "project" in data or "tool" in data or "build-system" in data:
            raise _refused(
                self.source,
                "this says what a project asks for, not which versions it got",
                "name the lock beside it, or the output of `pip freeze`",
            )
        if reader is None:
            raise _unknown(self.source)
        return self._checked(lambda: reader(data))

    def _checked(self, read: Callable[[], ForeignEnvironment]) -> ForeignEnvironment:
        """Call a reader and turn all its errors into messages, since foreign files may have any form."""
        try:
            return read()
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
            raise _refused(
                self.source,
                "it does not have the form that its tool gives it",
                "write the file again with its tool; if that does not help, give the output of `pip freeze`",
            ) from error

    def _pylock(self, data: dict[str, Any]) -> ForeignEnvironment:
        try:
            lock = Pylock.from_dict(data)
        except (PylockValidationError, PylockUnsupportedVersionError) as error:
            raise _refused(self.source, f"it is no valid pylock: {error}", "write it again") from None
        requires = str(lock.requires_python or "")
        markers = self.markers(requires=requires)
        if lock.environments and not any(markers.holds(str(one)) for one in lock.environments):
            raise self._other_platform("; ".join(str(one) for one in lock.environments), markers)
        markers.extras = frozenset(lock.extras or ())
        markers.groups = frozenset([*(lock.dependency_groups or ()), *(lock.default_groups or ())])
        by = f" by {lock.created_by}" if lock.created_by else ""
        packages = self._chosen(of_pylock(lock, markers))
        return self.result(f"pylock.toml {lock.lock_version}{by}", packages, requires_python=requires)

    def _uv(self, data: dict[str, Any]) -> ForeignEnvironment:
        requires = str(data.get("requires-python", ""))
        markers = self.markers(requires=requires)
        packages = self._chosen(of_uv(data, markers))
        return self.result(f"uv.lock {data['version']}", packages, requires_python=requires)

    def _poetry(self, data: dict[str, Any]) -> ForeignEnvironment:
        metadata = data["metadata"]
        requires = poetry_range(str(metadata.get("python-versions", "")))
        markers = self.markers(requires=requires)
        markers.extras = frozenset(data.get("extras", {}))
        kind = f"poetry.lock {metadata.get('lock-version', '')}".rstrip()
        packages = self._chosen(of_poetry(data, markers))
        return self.result(kind, packages, requires_python=requires)

    def _pdm(self, data: dict[str, Any]) -> ForeignEnvironment:
        metadata = data["metadata"]
        targets = metadata.get("targets", [])
        requires = [str(target["requires_python"]) for target in targets if "requires_python" in target]
        required = requires[0] if len(requires) == 1 else ""
        packages = self._chosen(of_pdm(data, self.markers(requires=required)))
        return self.result(f"pdm.lock {metadata['lock_version']}", packages, requires_python=required)

    def _chosen(self, stated: Iterable[Stated]) -> list[ForeignPackage]:
        """Return what fits and comes from an index; the rest is noted as left out."""
        packages = []
        for one in stated:
            if not one.fits:
                self.left_out.setdefault(one.name, _NOT_HERE)
            elif one.why:
                self.left_out[one.name] = one.why
            else:
                packages.append(ForeignPackage(one.name, one.version, hashes=one.hashes))
        return self._once(packages)

    # -- JSON ----------------------------------------------------------------------------------------------

    def _json(self, text: str) -> ForeignEnvironment:
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _refused(self.source, f"it is no JSON: {error}", "write the lock again") from None
        if not isinstance(data, dict) or "_meta" not in data or "default" not in data:
            raise _unknown(self.source)
        return self._checked(lambda: self._pipenv(data))

    def _pipenv(self, data: dict[str, Any]) -> ForeignEnvironment:
        requires = data["_meta"].get("requires", {})
        stated = str(requires.get("python_full_version") or requires.get("python_version") or "")
        kind = f"Pipfile.lock {data['_meta'].get('pipfile-spec', '')}".rstrip()
        return self.result(kind, self._chosen(of_pipenv(data, self.markers(stated))), python=stated)

    # -- requirements --------------------------------------------------------------------------------------

    def _requirements(self, text: str) -> ForeignEnvironment:
        markers = self.markers()
        packages: list[ForeignPackage] = []
        loose: list[str] = []
        for number, line in self._requirement_lines(text, self.where, ()):
            self._requirement(number, line, markers, packages, loose)
        if loose:
            raise _refused(
                self.source,
                "not every package is pinned to one version: "
                + ", ".join(loose[:5])
                + (f" and {len(loose) - 5} more" if len(loose) > 5 else ""),
                "give the output of `pip freeze` of that environment, or a lock file",
            )
        hashed = any(package.hashes for package in packages)
        kind = "pip's requirements with hashes" if hashed else "pip's requirements (pip freeze)"
        return self.result(kind, self._once(packages))

    def _requirement_lines(
        self, text: str, where: Path, above: tuple[Path, ...]
    ) -> Iterator[tuple[str, str]]:
        """Yield each requirement with its place; continued lines are joined, and included files are read."""
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
                raise _refused(self.source, what, "name a lock file, or the output of `pip freeze`")
            named = re.fullmatch(r"(?:-r|--requirement)[ =]?\s*(\S+)", whole)
            if named is None:
                if whole:
                    self.quotes = not above and is_list
                    yield place, whole
                continue
            inner = self._included(place, named[1], where, above)
            yield from self._requirement_lines(inner, where.parent / named[1], (*above, where))

    def _included(self, place: str, name: str, where: Path, above: tuple[Path, ...]) -> str:
        """Read a list that another one names.

        A list may come from somebody else. It may not name a file of the user's that has nothing to do with
        it, a pipe that nobody writes to, or make a billion lines of a few lists.
        """
        other = where.parent / name
        self.includes += 1
        if other in (*above, where):
            raise _refused(self.source, f"{place}: {name} includes itself", "remove the line")
        if self.includes > _MAX_LISTS:
            raise _refused(self.source, f"{place}: more than {_MAX_LISTS} lists are included", "merge them")
        folder = self.where.parent.resolve()
        if not other.resolve().is_relative_to(folder):
            raise _refused(
                self.source,
                f"{place}: {name} lies outside of the folder of {self.where.name}",
                "copy what it lists into the list, or give the output of `pip freeze`",
            )
        try:
            return read_limited(other, _MAX_BYTES, "utf-8-sig")
        except (OSError, UnicodeDecodeError):
            raise _refused(
                self.source, f"{place}: {name} cannot be read", "put the file there, or remove the line"
            ) from None

    def _requirement(
        self, place: str, line: str, markers: Markers, packages: list[ForeignPackage], loose: list[str]
    ) -> None:
        if (editable := re.match(r"(?:-e|--editable)[ =]\s*(\S+)", line)) is not None:
            egg = re.search(r"#egg=([\w.-]+)", editable[1])
            name = egg[1] if egg else unquote(editable[1]).rstrip("/").rpartition("/")[2].partition("@")[0]
            self.left_out[name if name not in ("", ".") else "the project itself"] = EDITABLE
            return
        if line.startswith("-"):
            option = line.split(None, 1)[0].partition("=")[0]
            if option in ("-c", "--constraint"):
                self.notes.append(f"{place}: constraints are not read; the pins stand for themselves")
            elif option not in _QUIET_OPTIONS:
                self.notes.append(f"{place}: the option {option} is not followed")
            return
        text = re.split(r"\s--", line, maxsplit=1)[0].strip()
        if re.match(r"(\.{0,2}/|[a-z+]+://)", text):
            self.left_out[unquote(text).rstrip("/").rpartition("/")[2] or text] = (
                VCS if "+" in text.partition("://")[0] else ARCHIVE if "://" in text else LOCAL
            )
            return
        try:
            found = Requirement(text)
        except (InvalidRequirement, RecursionError) as error:
            reason = str(error).partition("\n")[0]
            raise _refused(
                self.source,
                f"{place}: {text[:80]!r} is no requirement: {reason}"
                if self.quotes
                else f"{place} is no requirement",
                "name a lock file, `pip freeze` output, or the directory of an environment",
            ) from None
        name = str(canonicalize_name(found.name))
        if found.marker is not None and not markers.holds(str(found.marker)):
            self.left_out.setdefault(name, _NOT_HERE)
        elif found.url:
            self.left_out[name] = _of_url(found.url)
        elif (version := _pinned(found.specifier)) is None:
            loose.append(f"{found.name}{found.specifier} ({place})" if self.quotes else place)
        else:
            hashes = tuple(re.findall(r"--hash[= ]sha256:([0-9a-fA-F]{64})", line))
            packages.append(ForeignPackage(name, version, hashes=hashes))

    # -- conda ---------------------------------------------------------------------------------------------

    def _conda_explicit(self, text: str) -> ForeignEnvironment:
        platform = _stated_platform(text)
        packages, channels = [], []
        for line in text.splitlines():
            url = line.strip().partition("#")[0]
            if not url or url.startswith("@"):
                continue
            parsed = conda_archive(url)
            if parsed is None:
                self.left_out[url.rpartition("/")[2]] = "no address of a conda package"
                continue
            name, version, build = parsed
            hashed = line.partition("#")[2].removeprefix("sha256:")
            hashes = (hashed,) if re.fullmatch("[0-9a-f]{64}", hashed) else ()
            packages.append(ForeignPackage(name, version, "conda", build, hashes))
            channel, subdir, _ = url.rsplit("/", 2)
            channels.append(channel)
            platform = platform or (subdir if subdir != "noarch" else "")
        return self._conda("conda list --explicit", packages, platform, channels)

    def _conda_export(self, text: str) -> ForeignEnvironment:
        packages = []
        for line in text.splitlines():
            if not line.strip() or line.startswith("#"):
                continue
            name, version, build = (*line.strip().split("="), "", "")[:3]
            if build in ("pypi_0", "<pip>", "pypi"):
                packages.append(ForeignPackage(str(canonicalize_name(name)), version))
            else:
                packages.append(ForeignPackage(name, version, "conda", build))
        self.notes.append(
            "`conda list --export` names no channels: those of the command, or conda-forge, are asked"
        )
        return self._conda("conda list --export", packages, _stated_platform(text), ())

    def _yaml(self, text: str) -> ForeignEnvironment:
        try:
            data = read_yaml(text)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            place = f" (line {mark.line + 1})" if mark is not None else ""
            raise _refused(
                self.source, f"it is no YAML{place}", "write the file again with its tool"
            ) from None
        if not isinstance(data, dict):
            raise _unknown(self.source)
        if "environments" in data and "packages" in data:
            return self._checked(lambda: self._pixi(data))
        if "package" in data and "metadata" in data:
            return self._checked(lambda: self._conda_lock(data))
        if "dependencies" in data:
            return self._checked(lambda: self._env_export(data))
        raise _unknown(self.source)

    def _env_export(self, data: dict[str, Any]) -> ForeignEnvironment:
        packages: list[ForeignPackage] = []
        loose: list[str] = []
        markers = self.markers()
        for entry in data["dependencies"]:
            if isinstance(entry, dict):
                for line in entry.get("pip", []):
                    self._requirement("pip", str(line), markers, packages, loose)
                continue
            found = _EXPORTED.fullmatch(str(entry).rpartition("::")[2].strip())
            if found is None:
                loose.append(str(entry))
            else:
                packages.append(ForeignPackage(found[1], found[2], "conda", found[3] or ""))
        if loose:
            raise _refused(
                self.source,
                f"not every package has one version: {', '.join(loose[:5])}",
                "export it without `--from-history`, or give the environment's directory",
            )
        channels = [str(c) for c in data.get("channels", []) if str(c) != "nodefaults"]
        return self._conda("conda env export", packages, "", channels)

    def _conda_lock(self, data: dict[str, Any]) -> ForeignEnvironment:
        metadata = data["metadata"]
        platforms = [str(one) for one in metadata.get("platforms", [])]
        if self.platform not in platforms:
            raise self._other_platform(", ".join(platforms), None)
        packages = [_of_locked(package) for package in packages_of(data, self.platform)]
        channels = [str(c["url"] if isinstance(c, dict) else c) for c in metadata.get("channels", [])]
        custom = metadata.get("custom_metadata") or {}
        found = self._conda(f"conda-lock.yml {data['version']}", packages, self.platform, channels)
        return replace(found, python=found.python or str(custom.get("bisect-env.python", "")))

    def _pixi(self, data: dict[str, Any]) -> ForeignEnvironment:
        try:
            request = {"op": "read_lock", "path": str(self.where), "platform": self.platform}
            answer = shared_pool().ask(request, _HELPER_TIMEOUT, attempts=3)
        except HelperDiedError as error:
            raise _refused(
                self.source, f"py-rattler cannot read it: {error.text}", "write it again"
            ) from None
        if "failed" in answer:
            raise _refused(self.source, f"py-rattler cannot read it: {answer['text']}", "write it again")
        environments = answer["environments"]
        name = self.name or ("default" if "default" in environments else next(iter(environments), ""))
        if name not in environments:
            known = ", ".join(environments)
            raise _refused(self.source, f"it has no environment {name!r}", f"name one of {known}")
        if len(environments) > 1 and not self.name:
            others = ", ".join(n for n in environments if n != name)
            self.notes.append(f"its environment {name!r} is read; FILE#NAME reads another ({others})")
        found = environments[name]
        if self.platform not in found["platforms"]:
            raise self._other_platform(", ".join(found["platforms"]), None)
        packages = []
        for kind, package, version, build, sha256, location in found["packages"]:
            hashes = (sha256,) if sha256 else ()
            if kind == "conda":
                packages.append(ForeignPackage(package, version, "conda", build, hashes))
            elif "://" not in location or location.startswith("file:"):
                self.left_out[package] = LOCAL
            elif location.startswith("git+"):
                self.left_out[package] = VCS
            else:
                packages.append(ForeignPackage(str(canonicalize_name(package)), version, hashes=hashes))
        channels = [
            str(c["url"] if isinstance(c, dict) else c) for c in data["environments"][name]["channels"]
        ]
        return self._conda(f"pixi.lock {data.get('version', '')}".rstrip(), packages, self.platform, channels)

    def _conda(
        self, kind: str, packages: Sequence[ForeignPackage], platform: str, channels: Iterable[str]
    ) -> ForeignEnvironment:
        python = next((p.version for p in packages if p.manager == "conda" and p.name == "python"), "")
        distinct = tuple(dict.fromkeys(channels))
        return self.result(kind, self._once(packages), python=python, platform=platform, channels=distinct)

    def _other_platform(self, theirs: str, markers: Markers | None) -> UsageError:
        mine = self.platform if markers is None else f"Python {markers.python} on {self.platform}"
        return _refused(
            self.source,
            f"it is for {theirs or 'no platform'}, and this is {mine}",
            "lock it for this platform too, or give the command on a machine of that platform",
        )

    # -- directories ---------------------------------------------------------------------------------------

    def directory(self) -> ForeignEnvironment:
        if (self.where / "conda-meta").is_dir():
            return self._checked(self._conda_directory)
        if not (self.where / "pyvenv.cfg").is_file():
            inside = [p.name for p in self.where.iterdir() if (p / "pyvenv.cfg").is_file()]
            hint = f"; did you mean {self.where / inside[0]}?" if inside else ""
            raise _refused(
                self.source,
                f"the directory is neither a virtual nor a conda environment{hint}",
                "name a directory that holds `pyvenv.cfg` or `conda-meta`, or a lock file",
            )
        return self._checked(self._virtual_environment)

    def _virtual_environment(self) -> ForeignEnvironment:
        stated = ""
        for line in (self.where / "pyvenv.cfg").read_text("utf-8", "replace").splitlines():
            key, _, value = line.partition("=")
            if key.strip() in ("version", "version_info") and not stated:
                stated = ".".join(value.strip().split(".")[:3])
            if key.strip() == "include-system-site-packages" and value.strip().lower() == "true":
                self.notes.append("it sees the system's packages as well, which are not read")
        packages = [p for site in self._sites() for p in self._distributions(site, ())]
        return self.result(
            "a virtual environment", self._once(packages), python=stated, platform=self.platform
        )

    def _conda_directory(self) -> ForeignEnvironment:
        packages, channels, owned = [], [], set()
        platform = ""
        for path in sorted((self.where / "conda-meta").glob("*.json")):
            record = json.loads(path.read_text("utf-8"))
            sha256 = record.get("sha256")
            hashes = (str(sha256),) if sha256 else ()
            packages.append(
                ForeignPackage(
                    str(record["name"]), str(record["version"]), "conda", str(record.get("build", "")), hashes
                )
            )
            owned |= {str(name) for name in record.get("files", []) if ".dist-info/" in str(name)}
            url = str(record.get("url", ""))
            if url.count("/") > 2:
                channels.append(url.rsplit("/", 2)[0])
                subdir = url.rsplit("/", 2)[1]
                platform = platform or (subdir if subdir != "noarch" else "")
        for site in self._sites():
            packages += self._distributions(site, owned)
        return self._conda("a conda environment", packages, platform, channels)

    def _sites(self) -> list[Path]:
        found = [*self.where.glob("lib/python3*/site-packages"), *self.where.glob("Lib/site-packages")]
        return sorted(path for path in found if path.is_dir())

    def _distributions(self, site: Path, owned: Iterable[str]) -> list[ForeignPackage]:
        """Return what pip or uv installed into a directory; what conda put there is conda's."""
        theirs = {name.partition(".dist-info/")[0].rpartition("/")[2] for name in owned}
        found: dict[str, ForeignPackage] = {}
        needed: set[str] = set()
        for distribution in importlib.metadata.distributions(path=[str(site)]):
            folder = getattr(distribution, "_path", None)
            if folder is not None and Path(folder).name.removesuffix(".dist-info") in theirs:
                continue
            raw = distribution.metadata["Name"]
            if not raw:
                self.left_out[Path(str(folder)).name] = "its metadata has no name"
                continue
            name = str(canonicalize_name(raw))
            needed |= set(_required(distribution.requires or ()))
            direct = distribution.read_text("direct_url.json")
            if direct is not None and (why := _of_direct_url(json.loads(direct))):
                self.left_out[name] = why
            elif _is_version(distribution.version):
                found[name] = ForeignPackage(name, distribution.version)
            else:
                self.left_out[name] = f"its version is none: {distribution.version}"
        if "pip" in found and "pip" not in needed:
            del found["pip"]
            self.left_out["pip"] = _INSTALLER
        return list(found.values())

    def _once(self, packages: Iterable[ForeignPackage]) -> list[ForeignPackage]:
        """Return each package once; of several versions the newest, with a note."""
        found: dict[tuple[str, str], ForeignPackage] = {}
        for package in packages:
            key = (package.manager, package.name)
            other = found.get(key)
            if other is not None and other.version != package.version:
                newest, older = sorted((package, other), key=_newness, reverse=True)
                self.notes.append(f"{package.name}: {newest.version} is taken, not {older.version} as well")
                package = newest
            found[key] = package
        for _, name in found:
            # A package that is left out on account of a marker may be there in another version.
            if self.left_out.get(name) == _NOT_HERE:
                del self.left_out[name]
        return list(found.values())


# -- small things ------------------------------------------------------------------------------------------

_LISTED = re.compile(r"[A-Za-z0-9_][\w.-]*=[^=<>!~\s]+=[^=\s]+")
_EXPORTED = re.compile(r"([A-Za-z0-9_][\w.-]*)={1,2}([^=<>!~\s]+)(?:=([^=<>!~\s]*))?")
_QUIET_OPTIONS = frozenset(
    {"-i", "-f", "--extra-index-url", "--find-links", "--index-url", "--no-binary", "--no-index"}
    | {"--only-binary", "--pre", "--prefer-binary", "--require-hashes", "--trusted-host", "--use-feature"}
)


def _of_locked(package: LockedPackage) -> ForeignPackage:
    name = str(canonicalize_name(package.name)) if package.manager == "pip" else package.name
    hashes = (package.sha256,) if package.sha256 else ()
    return ForeignPackage(name, package.version, package.manager, package.build, hashes)


def _sorted(packages: Iterable[ForeignPackage]) -> tuple[ForeignPackage, ...]:
    return tuple(sorted(packages, key=lambda package: (package.name, package.manager)))


def _pinned(specifier: SpecifierSet) -> str | None:
    """Return the one version that a specifier allows, None if it is not that kind."""
    pins = [one for one in specifier if one.operator in ("==", "===") and not one.version.endswith(".*")]
    return pins[0].version if len(pins) == 1 else None


def _required(requirements: Iterable[str]) -> Iterator[str]:
    for text in requirements:
        if "extra ==" in text:
            continue
        try:
            yield str(canonicalize_name(Requirement(text).name))
        except InvalidRequirement:
            continue


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _newness(package: ForeignPackage) -> tuple[bool, Version]:
    if _is_version(package.version):
        return True, Version(package.version)
    return False, Version("0")


def _of_direct_url(data: Mapping[str, Any]) -> str:
    if "dir_info" in data:
        return EDITABLE if data["dir_info"].get("editable") else LOCAL
    return VCS if "vcs_info" in data else _of_url(str(data.get("url", "")))


def _of_url(url: str) -> str:
    scheme = urlsplit(url).scheme
    return VCS if "+" in scheme else LOCAL if scheme in ("file", "") else ARCHIVE


def _stated_platform(text: str) -> str:
    found = re.search(r"^# platform: (\S+)", text, re.MULTILINE)
    return found[1] if found else ""


def _near(name: str, others: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, others, 1)
    return f"; beside it lies {close[0]}" if close else ""


def _refused(source: str, what: str, remedy: str) -> UsageError:
    return UsageError(f"{source}: {what}", remedy=remedy)


def _unknown(source: str) -> UsageError:
    return _refused(
        source,
        "this is no list of an environment's packages that is known here",
        "give `pip freeze` output, uv.lock, pylock.toml, poetry.lock, pdm.lock, Pipfile.lock, conda list "
        "--explicit or --export, conda env export, conda-lock.yml, pixi.lock, or an environment's directory",
    )
