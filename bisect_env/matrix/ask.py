"""Writes the text of matrix files: of the words of a command line, or a commented one to begin with."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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
    def lines(self) -> list[str]:
        """Return the lines of a matrix file that define the axis."""
        facts = [f"git: {_q(self.git)}", f"package: {self.package}"]
        facts += [f"from: {_q(self.first)}", f"to: {_q(self.last)}"]
        facts += ["history: all"] if self.every else []
        facts += [f"subdirectory: {_q(self.subdirectory)}"] if self.subdirectory else []
        return [f"  {_key(self.package)}: {{{', '.join(facts)}}}"]

    @property
    def ends(self) -> list[str]:
        """Return the lines of a matrix file that state both ends."""
        named = ((GOOD, self.first), (BAD, self.last))
        return [f"{end}: {{{_key(self.package)}: {_q(commit)}}}" for end, commit in named]


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


def matrix_text(
    question: AskedQuestion,
    *,
    command_line: str = "",
    here: str = "",
    installed: Callable[[], Iterable[str]] = tuple,
) -> str:
    """Return the text of a matrix file that asks a question. Pure.

    Without a good or a bad version, the failure may have come and gone along an axis (`either`). With
    both, the axis goes from one to the other.

    Args:
        question: As given.
        command_line: Shown in the first line.
        here: The running Python, as `3.12`; that of this process if "".
        installed: Returns the Python versions on this machine; called if the script's header excludes the
            running one.

    Raises:
        UsageError: Some part of the question is not possible; the message names the option.
    """
    axes = [_axis(spec) for spec in question.packages]
    if not axes and not question.since and question.commits is None:
        raise UsageError(
            "no package is asked about",
            remedy='name one with its range: `-p "orjson>=3.8"`, or a day: `--since 2026-01-31`',
        )
    names = [str(canonicalize_name(axis.name)) for axis in axes]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"{twice} is asked about twice", remedy="give one `-p` for each package")
    built = question.commits
    if built is not None:
        names.append(str(canonicalize_name(built.package)))
    dated = bool(question.since)
    plain = [spec.text for spec in axes] if dated else []
    moved = [] if dated else axes
    given = (*plain, *question.with_packages, *question.inline.dependencies)
    if built is not None and runs_pytest(question.command):
        # The tests of a project ask for it, and nobody thinks of it as a package of the environment.
        given = (*given, "pytest")
    wanted = _requirements(given, names if built else [str(canonicalize_name(axis.name)) for axis in moved])
    lines = [f"# {command_line}"] if command_line else []
    lines += ["version: 1", f"name: {_name(question, names)}", "axes:"]
    pythons = question.pythons or (_python(question.inline.requires_python, here, installed),)
    manager = ", manager: conda" if question.channels else ""
    if "python" not in names:
        direction = ", direction: either" if len(pythons) > 1 else ""
        listed = ", ".join(_q(p) for p in pythons)
        lines.append(f"  python: {{package: python{manager}, versions: [{listed}]{direction}}}")
    for axis in moved:
        lines += _package_axis(axis, question)
    if built is not None:
        lines += built.lines
    if dated:
        lines.append(f"  day: {{dates: {{from: {_q(question.since)}, to: {_q(question.until)}, step: 1d}}}}")
    if question.channels:
        lines.append(f"channels: [{', '.join(_q(channel) for channel in question.channels)}]")
    if wanted:
        listed = ", ".join(_q(text) for text in wanted)
        lines.append(f"packages: {{conda: [{listed}]}}" if question.channels else f"packages: [{listed}]")
    lines += _ends(moved, question) if built is None else built.ends if len(pythons) < 2 else []
    known = {_key(name) for name in (*names, "python", *(["day"] if dated else []))}
    return "\n".join([*lines, *_trial(question, known)]) + "\n"


def runs_pytest(command: Sequence[str]) -> bool:
    """Return whether a command is pytest."""
    return command[:1] == ("pytest",) or tuple(command[:3]) == ("python", "-m", "pytest")


def _trial(question: AskedQuestion, axes: Iterable[str]) -> list[str]:
    """Return the lines of a matrix file for package sources, `trial` and `search`."""
    words = ", ".join(_q(_literal(word, axes)) for word in question.command)
    lines = ["trial:", f"  command: [{words}]"]
    if question.files:
        lines.append(f"  files: [{', '.join(_q(name) for name in question.files)}]")
    if question.timeout:
        lines.append(f"  timeout: {_q(question.timeout)}")
    if question.env:
        listed = ", ".join(f"{name}: {_q(value)}" for name, value in question.env.items())
        lines.append(f"  env: {{{listed}}}")
    if question.gpus:
        lines.append(f"  gpus: {question.gpus:g}")
    places = [f"index: {_q(question.index)}"] if question.index else []
    if question.extra_indexes:
        places += [
            "indexes:",
            *(f"  {_q(n)}: {{url: {_q(url)}}}" for n, url in question.extra_indexes.items()),
        ]
    places += _listed("find_links", question.find_links, "")
    newest = question.exclude_newer or ("" if question.since else question.inline.exclude_newer)
    places += [f"exclude_newer: {_q(newest)}"] if newest else []
    return [*places, *lines, *search_lines(question.rate, question.confidence)]


def search_lines(rate: float | None, confidence: float | None) -> list[str]:
    """Return the lines of the key `search`, empty if both arguments are None. Pure.

    Args:
        rate: Approximate failure rate where it fails.
        confidence: Confidence of the answer.
    """
    found = []
    if confidence is not None:
        found.append(f"  confidence: {confidence:g}")
    if rate is not None:
        found += [f"  crash_rate: {rate:g}", f"  min_crash_rate: {max(rate / _RARELY, 0.001):.3g}"]
        # What fails half as often as was said is another failure: so much is excluded at the last good one.
        found.append(f"  clean_rate: {max(rate / 2, 0.001):.3g}")
    return ["search:", *found] if found else []


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


def _package_axis(axis: _AskedAxis, question: AskedQuestion) -> list[str]:
    name = str(canonicalize_name(axis.name))
    good, bad = question.good.get(name), question.bad.get(name)
    bounds = [axis.range] if axis.range else []
    direction = "either"
    if good and bad:
        try:
            first, last = sorted((good, bad), key=Version)
            same = Version(good) == Version(bad)
        except InvalidVersion as error:
            raise UsageError(f"--good, --bad: {error}", remedy="write a version such as 2.6.0") from None
        if same:
            raise UsageError(
                f"{axis.name} {good} is said to be good and bad", remedy="name two versions, or neither"
            )
        bounds += [f">={first}", f"<={last}"]
        direction = "regression" if first == good else "fixed"
    for end in (good, bad):
        if end and axis.range and not SpecifierSet(axis.range).contains(end, prereleases=True):
            raise UsageError(
                f"{axis.name} {end} is not in the range {axis.range}",
                remedy="widen the range, or correct the end",
            )
    pre = question.prereleases or any(end and _is_pre(end) for end in (good, bad))
    facts = [f"package: {axis.name}"]
    facts += ["manager: conda"] if question.channels and name != "python" else []
    facts += [f"versions: {_q(','.join(bounds) or '>=0')}", f"step: {question.step or 'every'}"]
    facts += ["prereleases: true"] if pre else []
    facts += ["yanked: true"] if question.yanked else []
    return [f"  {_key(axis.name)}: {{{', '.join([*facts, f'direction: {direction}'])}}}"]


def _ends(axes: Sequence[_AskedAxis], question: AskedQuestion) -> list[str]:
    """Return the lines for the stated ends that name every axis with several values."""
    lines = []
    for flag, stated in (("good", question.good), ("bad", question.bad)):
        names = {str(canonicalize_name(axis.name)): axis for axis in axes}
        if stated and set(stated) == set(names) and len(question.pythons) < 2:
            listed = ", ".join(f"{_key(names[name].name)}: {_q(value)}" for name, value in stated.items())
            lines.append(f"{flag}: {{{listed}}}")
    return lines


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


def _q(text: str) -> str:
    # A JSON text is a YAML text.
    return json.dumps(text, ensure_ascii=False)


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


GOOD, BAD = "good", "bad"
"""Values of the axis of two environments."""
ENVIRONMENT = "environment"


def pair_text(pair: Pair, *, command_line: str = "") -> str:
    """Return the text of a matrix file that asks which of two environments fails. Pure.

    Requirements common to both are listed under `packages`, the others on the axis.

    Args:
        pair: The environments.
        command_line: Shown in the first line.
    """
    question = pair.question
    common = [text for text in pair.good.pypi if text in set(pair.bad.pypi)]
    common_conda = [text for text in pair.good.conda if text in set(pair.bad.conda)]
    lines = [f"# {command_line}"] if command_line else []
    lines += ["version: 1", f"name: {_name(question, ['between'])}", "axes:", f"  {ENVIRONMENT}:"]
    lines.append("    environments:")
    for name, whole in ((GOOD, pair.good), (BAD, pair.bad)):
        lines.append(f"      {name}:")
        if whole.python:
            lines.append(f"        python: {_q(whole.python)}")
        lines += _listed("pypi", [text for text in whole.pypi if text not in common], "        ")
        lines += _listed("conda", [text for text in whole.conda if text not in common_conda], "        ")
        if lines[-1] == f"      {name}:":
            lines[-1] += " {}"
    if common or common_conda:
        lines += ["packages:", *_listed("pypi", common, "  "), *_listed("conda", common_conda, "  ")]
    lines += _solver(pair.dependencies, allow_source=pair.allow_source)
    if pair.channels:
        lines.append(f"channels: [{', '.join(_q(channel) for channel in pair.channels)}]")
    lines += [f"{GOOD}: {{{ENVIRONMENT}: {GOOD}}}", f"{BAD}: {{{ENVIRONMENT}: {BAD}}}"]
    return "\n".join([*lines, *_trial(question, {ENVIRONMENT})]) + "\n"


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


def releases_text(moving: Sequence[Moving], rest: Whole, pair: Pair) -> str:
    """Return the text of a matrix file over the releases of some packages. Pure.

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
    lines = ["version: 1", f"name: {name}", "axes:"]
    if rest.python:
        lines.append(f"  python: {{package: python, versions: [{_q(rest.python)}]}}")
    for one in moving:
        try:
            first, last = sorted((one.good, one.bad), key=Version)
        except InvalidVersion as error:
            raise UsageError(f"{one.name}: {error}", remedy="give `--no-versions`") from None
        facts = [f"package: {one.name}"]
        facts += ["manager: conda"] if one.is_conda and one.name != "python" else []
        facts += [f"versions: {_q(f'>={first},<={last}')}", "step: every"]
        facts += ["prereleases: true"] if _is_pre(first) or _is_pre(last) else []
        facts += ["yanked: true"] if one.yanked else []
        facts += [f"direction: {'regression' if first == one.good else 'fixed'}"]
        lines.append(f"  {_key(one.name)}: {{{', '.join(facts)}}}")
    if rest.pypi or rest.conda:
        lines += ["packages:", *_listed("pypi", rest.pypi, "  "), *_listed("conda", rest.conda, "  ")]
    lines += _solver(pair.dependencies, allow_source=pair.allow_source)
    if pair.channels and (rest.conda or any(one.is_conda for one in moving)):
        lines.append(f"channels: [{', '.join(_q(channel) for channel in pair.channels)}]")
    for end, versions in (("good", [one.good for one in moving]), ("bad", [one.bad for one in moving])):
        listed = ", ".join(f"{_key(n)}: {_q(v)}" for n, v in zip(names, versions, strict=True))
        lines.append(f"{end}: {{{listed}}}")
    return "\n".join([*lines, *_trial(question, {_key(name) for name in names})]) + "\n"


def _listed(key: str, texts: Sequence[str], indent: str) -> list[str]:
    return [f"{indent}{key}:", *(f"{indent}  - {_q(text)}" for text in texts)] if texts else []


def _solver(dependencies: str, *, allow_source: bool) -> list[str]:
    facts = [f"dependencies: {dependencies}"] if dependencies != "resolve" else []
    facts += ["allow_source: true"] if allow_source else []
    return [f"solver: {{{', '.join(facts)}}}"] if facts else []


# --------------------------------------------------------------------------------------------------
# Writes a commented matrix file to begin with. Pure.
#
# What it says was checked by nobody yet: who writes it to a file loads it afterwards.

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class PackageAnswer:
    """A package that becomes an axis.

    Attributes:
        name: Name of the package.
        versions: A range such as `>=2.0,<2.6`, or versions separated by commas.
    """

    name: str
    versions: str

    @property
    def is_range(self) -> bool:
        """Return whether the versions are a range instead of a list."""
        return any(sign in self.versions for sign in "<>=!~*")


@dataclass(frozen=True, slots=True)
class TemplateAnswers:
    """The answers from which a matrix file is made.

    Attributes:
        packages: The axes.
        script: Relative path of the script in the matrix.
        python: Version of Python.
        manager: `pypi` or `conda`.
        channels: conda channels.
        timeout: Time limit of one trial, such as `60s`.
        gpus: Number of GPUs that one trial needs.
        name: Name of the study; "" for one made from the packages.
    """

    packages: Sequence[PackageAnswer]
    script: str
    python: str
    manager: str = "pypi"
    channels: Sequence[str] = ()
    timeout: str = "60s"
    gpus: int = 0
    name: str = ""

    @property
    def study(self) -> str:
        """Return the name of the study."""
        named = self.name or "_".join(package.name for package in self.packages)
        return _UNSAFE.sub("_", named.lower()).strip("_-") or "study"


def template(answers: TemplateAnswers) -> str:
    """Return the text of a matrix file."""
    names = " × ".join(package.name for package in answers.packages)
    first = answers.packages[0]
    lines = [
        f"# From which version of {names} on does the script fail?",
        "# `bisect-env plan FILE` shows what this asks for, `bisect-env run FILE` answers it.",
        "version: 1",
        f"name: {answers.study}",
        f"description: {_quoted(f'{answers.script} fails since some version of {names}')}",
        "",
        "# Every combination of these values is an environment. The first axis may be the longest.",
        "axes:",
        *_python_axis(answers),
    ]
    for package in answers.packages:
        lines += _template_axis(package, answers.manager)
    if answers.manager == "conda":
        channels = ", ".join(_quoted(channel) for channel in answers.channels or ("conda-forge",))
        lines += ["", f"channels: [{channels}]    # most important first; a package comes from the first"]
    other = "[cuda-version 12.8]" if answers.manager == "conda" else '["numpy<2"]'
    key = f"packages: {{conda: {other}}}" if answers.manager == "conda" else f"packages: {other}"
    lines += [
        "",
        f"# What every environment holds besides: {key}",
        "# Leave out what cannot work:",
        "# exclude:",
        f"#   - {{when: {{{_key(first.name)}: '<2'}}, why: 'needs an older Python'}}",
        "",
        "trial:",
        f"  command: {_quoted(f'python {answers.script}')}",
        f"  files: [{_quoted(answers.script)}]    # copied into a fresh directory for each trial",
        f"  timeout: {answers.timeout}    # a trial that takes longer hangs, and fails",
    ]
    if answers.gpus:
        lines.append(f"  gpus: {answers.gpus}    # each trial sees exactly so many")
    lines += [
        "  # Which failures count; default: crash, hang, cuda-fault, import-error and exit-fail.",
        "  # bad: {outcomes: [crash]}",
        "",
        "# Ends that you know already, tested first:",
        f"# good: {{{_key(first.name)}: '…'}}",
        f"# bad: {{{_key(first.name)}: '…'}}",
        "",
        "search:",
        "  confidence: 0.95        # probability with which the verdict should be right",
        "  min_crash_rate: 0.02    # failures rarer than this need not be found",
        "  # budget: 2h            # stop after so long, with the best answer by then",
    ]
    return "\n".join(lines) + "\n"


def _python_axis(answers: TemplateAnswers) -> list[str]:
    if any(package.name == "python" for package in answers.packages):
        return []
    manager = ", manager: conda" if answers.manager == "conda" else ""
    return [f"  python: {{package: python{manager}, versions: [{_quoted(answers.python)}]}}"]


def _template_axis(package: PackageAnswer, manager: str) -> list[str]:
    lines = [f"  {_key(package.name)}:", f"    package: {package.name}"]
    if manager == "conda":
        lines.append("    manager: conda")
    if package.is_range:
        lines += [
            f"    versions: {_quoted(package.versions)}",
            "    step: minor    # the newest of each minor version, then all around the answer; or every",
        ]
    else:
        versions = [part.strip() for part in package.versions.split(",") if part.strip()]
        lines.append(f"    versions: [{', '.join(_quoted(version) for version in versions)}]")
    lines.append("    direction: regression    # bad from some version on; or fixed, either, unordered")
    return lines


def _quoted(text: str) -> str:
    # A JSON text is a YAML text.
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def script_template(packages: Sequence[str]) -> str:
    """Return a script to start from, for a user who has none yet."""
    imports = "\n".join(f"import {name.replace('-', '_')}" for name in packages if name != "python")
    return f'''"""Shows the failure: the exit status counts, and nothing else (0 passes, 125 skips)."""

{imports}

# Put here what fails, as short as you can make it; an assert is enough.
'''
