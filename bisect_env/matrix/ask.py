"""Makes the plain data of matrix files from the words of a command line, or from two environments. Pure."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from bisect_env.errors import UsageError
from bisect_env.matrix.schema import placeholders
from bisect_env.matrix.versions import fitting_python

_UNSAFE = re.compile(r"[^a-z0-9_-]+")
_INLINE = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
_SHELLS = {".sh": "bash", ".bash": "bash"}
GOOD, BAD = "good", "bad"
"""Keys of stated ends, and values of the axis of two environments."""
ENVIRONMENT = "environment"
_RARELY = 4
"""Failures this many times rarer than the user says need not be found."""


@dataclass(frozen=True, slots=True)
class InlineMetadata:
    """The metadata in the header of a script (PEP 723).

    Attributes:
        dependencies: Requirements.
        requires_python: Range of Python versions, "" for any.
        exclude_newer: Value of uv's `exclude-newer`, "" for none.
    """

    dependencies: tuple[str, ...] = ()
    requires_python: str = ""
    exclude_newer: str = ""


@dataclass(frozen=True, slots=True)
class CommitRange:
    """A range of commits to bisect.

    Attributes:
        git: Address, or absolute path of a clone.
        package: Package that is built from the commits.
        first: Commit that works.
        last: Commit that fails.
        every: Whether the commits that merges brought in are looked at, too.
        subdirectory: Directory of the package in the repository; "" for its root.
    """

    git: str
    package: str
    first: str
    last: str
    every: bool = False
    subdirectory: str = ""

    @property
    def axis(self) -> dict[str, str]:
        """Return the axis of a matrix file."""
        facts = {"git": self.git, "package": self.package, "from": self.first, "to": self.last}
        history = {"history": "all"} if self.every else {}
        return {**facts, **history, **({"subdirectory": self.subdirectory} if self.subdirectory else {})}

    @property
    def ends(self) -> dict[str, dict[str, str]]:
        """Return both ends as a matrix file states them."""
        key = _key(self.package)
        return {GOOD: {key: self.first}, BAD: {key: self.last}}


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question given on the command line.

    Attributes:
        packages: Axes: `torch>=2.5`, or a name for every release.
        command: Program and arguments, as given.
        files: Files to copy into trials, relative to their source folder.
        with_packages: Additional requirements of every environment.
        pythons: Versions of Python; empty for the running one.
        good: Axis to a version that works.
        bad: Axis to a version that fails.
        since: First day of a date axis, "" for none.
        until: Last day of the date axis.
        rate: Approximate failure rate where it fails; None if unknown.
        inline: The metadata in the script's header.
        channels: conda channels; with any, packages come from there.
        prereleases: Whether pre-releases are tried.
        step: Which releases of a range are tried; "" for every one.
        timeout: Time limit of one trial, such as `60s`; "" for the default.
        gpus: Number of GPUs that one trial needs.
        env: Environment variables to add.
        confidence: Confidence of the answer; None for the default.
        name: Name of the study; "" for one made from the packages.
        index: Address of the package index, "" for the configured one.
        extra_indexes: Name to address of further indexes.
        find_links: Folders and pages with wheels.
        exclude_newer: Day or instant after which uploads are ignored, "" for none.
        yanked: Whether withdrawn releases are tried.
        commits: Commits to bisect instead of releases; None to bisect releases.
    """

    packages: tuple[str, ...]
    command: tuple[str, ...]
    files: tuple[str, ...] = ()
    with_packages: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    good: Mapping[str, str] = field(default_factory=dict)
    bad: Mapping[str, str] = field(default_factory=dict)
    since: str = ""
    until: str = ""
    rate: float | None = None
    inline: InlineMetadata = InlineMetadata()
    channels: tuple[str, ...] = ()
    prereleases: bool = False
    step: str = ""
    timeout: str = ""
    gpus: float = 0
    env: Mapping[str, str] = field(default_factory=dict)
    confidence: float | None = None
    name: str = ""
    index: str = ""
    extra_indexes: Mapping[str, str] = field(default_factory=dict)
    find_links: tuple[str, ...] = ()
    exclude_newer: str = ""
    yanked: bool = False
    commits: CommitRange | None = None


def inline_metadata(text: str, name: str = "the script") -> InlineMetadata:
    """Read a script's header (PEP 723).

    Args:
        text: Text of the script.
        name: Name of the script in messages.

    Returns:
        The metadata; empty if there is no header.

    Raises:
        UsageError: The header is invalid, or there are two.
    """
    blocks = [match for match in _INLINE.finditer(text) if match["type"] == "script"]
    if not blocks:
        return InlineMetadata()
    remedy = "write it as PEP 723 has it: `# /// script`, TOML behind `# `, and `# ///`"
    if len(blocks) > 1:
        raise UsageError(f"{name} has two `# /// script` headers", remedy=remedy)
    lines = blocks[0]["content"].splitlines()
    try:
        data = tomllib.loads("\n".join(line[2:] if line.startswith("# ") else line[1:] for line in lines))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"the `# /// script` header of {name} is no TOML: {error}", remedy=remedy) from None
    dependencies, requires = data.get("dependencies", []), data.get("requires-python", "")
    uv = data.get("tool", {}).get("uv", {}) if isinstance(data.get("tool", {}), dict) else {}
    if not isinstance(dependencies, list) or not all(isinstance(one, str) for one in dependencies):
        raise UsageError(f"`dependencies` in the header of {name} is no list of texts", remedy=remedy)
    for text_ in dependencies:
        _requirement(text_, f"{name}'s header")
    try:
        SpecifierSet(str(requires))
    except InvalidSpecifier:
        raise UsageError(
            f"`requires-python` in the header of {name} is no range: {requires!r}", remedy=remedy
        ) from None
    newest = uv.get("exclude-newer", "") if isinstance(uv, dict) else ""
    return InlineMetadata(tuple(dependencies), str(requires), str(newest))


def stated_ends(texts: Iterable[str], axes: Sequence[str], flag: str) -> dict[str, str]:
    """Read `--good` or `--bad`: `torch=2.6.0,cuml=24.04`, or only a version if there is one axis.

    Args:
        texts: As given.
        axes: Packages of the question.
        flag: The option's name, for messages.

    Returns:
        Normalised package to version.

    Raises:
        UsageError: A text names none of the packages, or no version.
    """
    known = [str(canonicalize_name(name)) for name in axes]
    found: dict[str, str] = {}
    for text in (part.strip() for one in texts for part in one.split(",")):
        name, sign, value = text.partition("=")
        name, value = str(canonicalize_name(name.strip())), value.lstrip("=").strip()
        if not sign and len(known) == 1:
            name, value = known[0], text
        if name not in known or not value:
            example = f"{known[0]}=1.2.3" if known else "PACKAGE=1.2.3"
            raise UsageError(
                f"{flag} {text}: this names no package that is asked about ({', '.join(known) or 'none'})",
                remedy=f"write {flag} {example}, and the package with `-p`",
            )
        found[name] = value
    return found


def package_name(spec: str) -> str:
    """Return the package name of a `-p` option.

    Raises:
        UsageError: The option is no package with a range.
    """
    return _axis(spec).name


def full_command(words: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Return the command to run; a script without a program gets its interpreter.

    Args:
        words: As given.
        folder: Base of relative paths.

    Raises:
        UsageError: There is no command, or the script does not exist.
    """
    if not words:
        raise UsageError(
            "nothing to run was given",
            remedy="end the line with a script (`repro.py`), or with `--` and a command",
        )
    if _is_range(words[0]):
        raise UsageError(
            f"{words[0]!r} is a package with a range, and stands where a script or a command is expected",
            remedy='with several packages `-p` names each: -p "A>=1" -p "B>=2" -- COMMAND; what every '
            "environment holds besides is given with `--with`",
        )
    first = Path(words[0])
    if first.suffix in (".py", ".pyw") or first.suffix in _SHELLS:
        if not (folder / first).is_file():
            raise _no_script(folder, words[0])
        return (_SHELLS.get(first.suffix, "python"), *words)
    if first.name.startswith("python"):
        script = next((word for word in words[1:] if not word.startswith("-")), "")
        before = words[1 : words.index(script)] if script else ()
        if script.endswith(".py") and not {"-m", "-c"} & set(before) and not (folder / script).is_file():
            raise _no_script(folder, script)
    return tuple(words)


def _is_range(word: str) -> bool:
    try:
        return bool(Requirement(word).specifier)
    except InvalidRequirement:
        return False


def question_data(
    question: AskedQuestion, *, here: str = "", installed: Callable[[], Iterable[str]] = tuple
) -> dict[str, Any]:
    """Return a question as the plain data of a matrix file. Pure.

    Without a good or a bad version, the failure may have come and gone along an axis (`either`). With
    both, the axis goes from one to the other.

    Args:
        question: As given.
        here: The running Python, as `3.12`; that of this process if "".
        installed: Returns the Python versions on this machine; called if the script's header excludes the
            running one.

    Raises:
        UsageError: Some part of the question is not possible; the message names the option.
    """
    moved = [_axis(spec) for spec in question.packages]
    built = question.commits
    if not moved and not question.since and built is None:
        raise UsageError(
            "no package is asked about",
            remedy='name one with its range: `-p "orjson>=3.8"`, or a day: `--since 2026-01-31`',
        )
    names = [str(canonicalize_name(axis.name)) for axis in moved]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"{twice} is asked about twice", remedy="give one `-p` for each package")
    if built is not None:
        names.append(str(canonicalize_name(built.package)))
    plain = [spec.text for spec in moved] if question.since else []
    moved = [] if question.since else moved
    given = (*plain, *question.with_packages, *question.inline.dependencies)
    if built is not None and runs_pytest(question.command):
        # The tests of a project ask for it, and nobody thinks of it as a package of the environment.
        given = (*given, "pytest")
    wanted = _requirements(given, names if built else [str(canonicalize_name(axis.name)) for axis in moved])
    conda = bool(question.channels)
    axes: dict[str, Any] = {}
    pythons = question.pythons or (_python(question.inline.requires_python, here, installed),)
    if "python" not in names:
        axes["python"] = {"package": "python", **_manager(conda=conda), "versions": list(pythons)}
        if len(pythons) > 1:
            axes["python"]["direction"] = "either"
    for axis in moved:
        axes[_key(axis.name)] = _package_axis(axis, question)
    if built is not None:
        axes[_key(built.package)] = built.axis
    if question.since:
        axes["day"] = {"dates": {"from": question.since, "to": question.until, "step": "1d"}}
    ends = _ends(moved, question) if built is None else built.ends if len(pythons) < 2 else {}
    return _filled(
        {
            "version": 1,
            "name": _name(question, names),
            "axes": axes,
            "channels": list(question.channels),
            "packages": {"conda": list(wanted)} if conda and wanted else list(wanted),
            **ends,
            **_trial(question, {*axes, "python"}),
        }
    )


def runs_pytest(command: Sequence[str]) -> bool:
    """Return whether a command is pytest."""
    return command[:1] == ("pytest",) or tuple(command[:3]) == ("python", "-m", "pytest")


def _manager(*, conda: bool) -> dict[str, str]:
    return {"manager": "conda"} if conda else {}


def _filled(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data without keys that say nothing."""
    return {key: value for key, value in data.items() if value not in ("", [], {}, None)}


def _trial(question: AskedQuestion, axes: Iterable[str]) -> dict[str, Any]:
    """Return the keys of a matrix file for package sources, `trial` and `search`."""
    return {
        "index": question.index,
        "indexes": {name: {"url": url} for name, url in question.extra_indexes.items()},
        "find_links": list(question.find_links),
        "exclude_newer": question.exclude_newer or ("" if question.since else question.inline.exclude_newer),
        "trial": _filled(
            {
                "command": [_literal(word, axes) for word in question.command],
                "files": list(question.files),
                "timeout": question.timeout,
                "env": dict(question.env),
                "gpus": question.gpus or None,
            }
        ),
        "search": search_data(question.rate, question.confidence),
    }


def search_data(rate: float | None, confidence: float | None) -> dict[str, float]:
    """Return the value of the key `search`, empty if both arguments are None. Pure.

    Args:
        rate: Approximate failure rate where it fails.
        confidence: Confidence of the answer.
    """
    found = {} if confidence is None else {"confidence": confidence}
    if rate is not None:
        found |= {"crash_rate": rate, "min_crash_rate": float(f"{max(rate / _RARELY, 0.001):.3g}")}
        # What fails half as often as was said is another failure: so much is excluded at the last good one.
        found["clean_rate"] = float(f"{max(rate / 2, 0.001):.3g}")
    return found


def travelling(
    command: Sequence[str], extra: Iterable[str], folder: Path
) -> tuple[tuple[str, ...], dict[str, Path]]:
    """Return the command with the files that have to be copied into trials.

    Args:
        command: Words of the command; existing files among them are copied, also those named as `FILE::TEST`.
        extra: Additional files and directories to copy.
        folder: Base of relative paths.

    Returns:
        The command, in which files from outside the folder have their bare names, and name to file.

    Raises:
        UsageError: Two files would have the same name, or a named file does not exist.
    """
    files: dict[str, Path] = {}
    words: list[str] = []
    for word in command:
        name, colons, rest = word.partition("::")
        place = folder / name
        is_file = bool(name) and not word.startswith("-") and _is_file(place)
        if is_file and words:
            words.append(_take(files, place, folder) + colons + rest)
        else:
            words.append(word)
            if word and words[1:] and not word.startswith("-") and _is_directory(place):
                for one in sorted(_below(place)):
                    _take(files, one, folder)
    for name in extra:
        place = folder / name
        if _is_file(place):
            _take(files, place, folder)
        elif _is_directory(place):
            for one in sorted(_below(place)):
                _take(files, one, folder)
        else:
            raise UsageError(f"--files {name}: there is no such file or directory", remedy="correct the path")
    return tuple(words), files


# -- pieces ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _AskedAxis:
    name: str
    range: str
    text: str


def _axis(spec: str) -> _AskedAxis:
    found = _requirement(spec, "-p")
    if found.extras:
        raise UsageError(
            f"-p {spec}: an axis is a package without extras",
            remedy=f"write -p {spec.partition('[')[0]}…, and what the extra brings with `--with`",
        )
    if found.marker is not None or found.url:
        raise UsageError(f"-p {spec}: an axis is a name with a range", remedy="write it like 'torch>=2.5'")
    return _AskedAxis(found.name, str(found.specifier), spec.strip())


def _requirement(text: str, where: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement:
        raise UsageError(
            f"{where}: {text!r} is no package with versions",
            remedy="write it like 'orjson', 'orjson>=3.8' or 'torch>=2.5,<2.9', in quotes",
        ) from None


def _requirements(texts: Iterable[str], axes: Sequence[str]) -> tuple[str, ...]:
    """Return one requirement per package, the first that names it, without the packages of axes."""
    found: dict[str, str] = {}
    for text in texts:
        requirement = _requirement(text, "--with")
        name = str(canonicalize_name(requirement.name))
        if name not in axes:
            found.setdefault(f"{name};{requirement.marker}" if requirement.marker else name, text)
    return tuple(found.values())


def _package_axis(axis: _AskedAxis, question: AskedQuestion) -> dict[str, Any]:
    name = str(canonicalize_name(axis.name))
    good, bad = question.good.get(name), question.bad.get(name)
    bounds = [axis.range] if axis.range else []
    direction = "either"
    if good and bad:
        first, last, direction = _in_order(good, bad, axis.name)
        bounds += [f">={first}", f"<={last}"]
    for end in (good, bad):
        if end and axis.range and not SpecifierSet(axis.range).contains(end, prereleases=True):
            raise UsageError(
                f"{axis.name} {end} is not in the range {axis.range}",
                remedy="widen the range, or correct the end",
            )
    pre = question.prereleases or any(end and _is_pre(end) for end in (good, bad))
    return {
        "package": axis.name,
        **_manager(conda=bool(question.channels) and name != "python"),
        "versions": ",".join(bounds) or ">=0",
        "step": question.step or "every",
        **({"prereleases": True} if pre else {}),
        **({"yanked": True} if question.yanked else {}),
        "direction": direction,
    }


def _in_order(good: str, bad: str, package: str) -> tuple[str, str, str]:
    """Return the older and the newer version, and the direction of the axis between them."""
    try:
        first, last = sorted((good, bad), key=Version)
        same = Version(good) == Version(bad)
    except InvalidVersion as error:
        raise UsageError(f"--good, --bad: {error}", remedy="write a version such as 2.6.0") from None
    if same:
        raise UsageError(
            f"{package} {good} is said to be good and bad", remedy="name two versions, or neither"
        )
    return first, last, "regression" if first == good else "fixed"


def _ends(axes: Sequence[_AskedAxis], question: AskedQuestion) -> dict[str, dict[str, str]]:
    """Return the stated ends that name every axis with several values."""
    names = {str(canonicalize_name(axis.name)): axis for axis in axes}
    return {
        end: {_key(names[name].name): value for name, value in stated.items()}
        for end, stated in ((GOOD, question.good), (BAD, question.bad))
        if stated and set(stated) == set(names) and len(question.pythons) < 2
    }


def _python(requires: str, here: str, installed: Callable[[], Iterable[str]]) -> str:
    found = fitting_python(SpecifierSet(requires), here=here, installed=installed)
    if not found:
        raise UsageError(
            f"no Python is {requires}, which the script's header asks for", remedy="name one with `--python`"
        )
    return found


def _name(question: AskedQuestion, names: Sequence[str]) -> str:
    own = f"{question.commits.package}-commits" if question.commits else ""
    text = question.name or own or "-".join(names) or "since"
    return (_UNSAFE.sub("-", text.lower()).strip("_-") or "study")[:60]


def _key(name: str) -> str:
    """Return the axis name of a package; a name that does not begin with a letter gets the prefix `p`."""
    key = name.lower().replace(".", "-")
    return key if key[:1].isalpha() else f"p{key}"


def _literal(word: str, axes: Iterable[str]) -> str:
    """Return a word with its braces doubled, unless the braces hold only names of axes."""
    try:
        named = placeholders(word)
    except ValueError:
        named = ()
    if named and set(named) <= set(axes):
        return word
    return word.replace("{", "{{").replace("}", "}}")


def _is_pre(text: str) -> bool:
    try:
        return Version(text).is_prerelease
    except InvalidVersion:
        return False


def _is_file(place: Path) -> bool:
    try:
        return place.is_file()
    except OSError:
        return False


def _is_directory(place: Path) -> bool:
    try:
        return place.is_dir()
    except OSError:
        return False


_PASSED_OVER = {"__pycache__", "node_modules", "build", "dist", "lockfiles"}


def _below(folder: Path) -> Iterable[Path]:
    """Yield the files of a directory that a trial may need, without hidden files, environments and caches."""
    for one in folder.iterdir():
        if one.name.startswith(".") or one.name in _PASSED_OVER or one.name.endswith((".pyc", ".egg-info")):
            continue
        if one.is_dir() and not one.is_symlink():
            if not (one / "pyvenv.cfg").exists() and not (one / "conda-meta").exists():
                yield from _below(one)
        elif one.is_file():
            yield one


def _take(files: dict[str, Path], place: Path, folder: Path) -> str:
    """Add a file to `files` and return its name: the relative path, or the bare name outside the folder."""
    whole, base = place.resolve(), folder.resolve()
    name = whole.relative_to(base).as_posix() if whole.is_relative_to(base) else whole.name
    if files.setdefault(name, whole) != whole:
        raise UsageError(
            f"{place} and {files[name]} would both travel as {name}", remedy="rename one, or copy it here"
        )
    return name


def _no_script(folder: Path, name: str) -> UsageError:
    place = folder / name
    others = sorted(p.name for p in place.parent.glob("*.py")) if place.parent.is_dir() else []
    near = difflib.get_close_matches(place.name, others, 1)
    hint = f"; beside it lies {near[0]}" if near else ""
    return UsageError(f"the script {name} does not exist{hint}", remedy="correct its path")


# --------------------------------------------------------------------------------------------------
# Two environments, and the releases of what lies between them.


@dataclass(frozen=True, slots=True)
class Whole:
    """The contents of one environment.

    Attributes:
        python: Version of Python, "" where conda brings it.
        pypi: Requirements, each pinned.
        conda: Specs, each with version and, where it is known, build.
    """

    python: str
    pypi: tuple[str, ...] = ()
    conda: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pair:
    """Two environments and the command to run in them.

    Attributes:
        good: The environment in which the command works.
        bad: The environment in which it fails.
        question: The command and its options; the question's packages, Pythons and ends are ignored.
        channels: conda channels.
        dependencies: `none` if the installed packages contradict their metadata.
        allow_source: Whether source distributions may be built.
    """

    good: Whole
    bad: Whole
    question: AskedQuestion
    channels: tuple[str, ...] = ()
    dependencies: str = "resolve"
    allow_source: bool = False


def pair_data(pair: Pair) -> dict[str, Any]:
    """Return the plain data of a matrix file that asks which of two environments fails. Pure.

    Requirements common to both are listed under `packages`, the others on the axis.

    Args:
        pair: The environments.
    """
    common = [text for text in pair.good.pypi if text in set(pair.bad.pypi)]
    common_conda = [text for text in pair.good.conda if text in set(pair.bad.conda)]
    environments = {
        name: _filled(
            {
                "python": whole.python,
                "pypi": [text for text in whole.pypi if text not in common],
                "conda": [text for text in whole.conda if text not in common_conda],
            }
        )
        for name, whole in ((GOOD, pair.good), (BAD, pair.bad))
    }
    return _filled(
        {
            "version": 1,
            "name": _name(pair.question, ["between"]),
            "axes": {ENVIRONMENT: {"environments": environments}},
            "packages": _filled({"pypi": common, "conda": common_conda}),
            "solver": _solver(pair),
            "channels": list(pair.channels),
            GOOD: {ENVIRONMENT: GOOD},
            BAD: {ENVIRONMENT: BAD},
            **_trial(pair.question, {ENVIRONMENT}),
        }
    )


@dataclass(frozen=True, slots=True)
class Moving:
    """A package whose releases are bisected.

    Attributes:
        name: Name of the package.
        good: The version that works.
        bad: The version that fails.
        is_conda: Whether it comes from a conda channel.
        yanked: Whether to include withdrawn releases, because an end is one.
    """

    name: str
    good: str
    bad: str
    is_conda: bool = False
    yanked: bool = False


def releases_data(moving: Sequence[Moving], rest: Whole, pair: Pair) -> dict[str, Any]:
    """Return the plain data of a matrix file over the releases of some packages. Pure.

    All other packages stay as they are.

    Args:
        moving: The packages, with their versions at both ends.
        rest: The other packages of every environment.
        pair: The two environments that contain the versions.

    Raises:
        UsageError: A version is invalid.
    """
    question = pair.question
    names = [package.name for package in moving]
    # A name of its own: by the one that was given, the whole answer is found.
    name = f"{question.name}-releases" if question.name else _name(question, [*names, "releases"])
    axes: dict[str, Any] = {}
    if rest.python:
        axes["python"] = {"package": "python", "versions": [rest.python]}
    for one in moving:
        first, last, direction = _in_order(one.good, one.bad, one.name)
        axes[_key(one.name)] = {
            "package": one.name,
            **_manager(conda=one.is_conda and one.name != "python"),
            "versions": f">={first},<={last}",
            "step": "every",
            **({"prereleases": True} if _is_pre(first) or _is_pre(last) else {}),
            **({"yanked": True} if one.yanked else {}),
            "direction": direction,
        }
    uses_conda = bool(rest.conda) or any(one.is_conda for one in moving)
    return _filled(
        {
            "version": 1,
            "name": name,
            "axes": axes,
            "packages": _filled({"pypi": list(rest.pypi), "conda": list(rest.conda)}),
            "solver": _solver(pair),
            "channels": list(pair.channels) if uses_conda else [],
            GOOD: {_key(one.name): one.good for one in moving},
            BAD: {_key(one.name): one.bad for one in moving},
            **_trial(question, {_key(name) for name in names}),
        }
    )


def _solver(pair: Pair) -> dict[str, Any]:
    facts: dict[str, Any] = {} if pair.dependencies == "resolve" else {"dependencies": pair.dependencies}
    return {**facts, **({"allow_source": True} if pair.allow_source else {})}
