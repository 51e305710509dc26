"""Turns the words and flags of a question into a checked `Matrix`, and writes one to a file if asked."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from bisect_env.answers.untrusted import command_line
from bisect_env.cli.options import FAILURE, PYTHON, opt, share_of
from bisect_env.cli.output import own_command
from bisect_env.cli.spelling import SCRIPTS, is_file, refuse_misspelt, swapped
from bisect_env.environments.commits import package_of_project
from bisect_env.environments.interpreters import installed_pythons
from bisect_env.environments.repository import Repository
from bisect_env.environments.settings import default_cache_dir
from bisect_env.errors import InfrastructureError, MatrixError, UsageError, expanded, without_kind
from bisect_env.matrix import yaml_source
from bisect_env.matrix.ask import (
    AskedQuestion,
    Moving,
    question_data,
    releases_of_package,
    search_data,
    stated_ends,
)
from bisect_env.matrix.files import StudyFile, file_at, full_command, travelling
from bisect_env.matrix.inline import InlineMetadata, inline_metadata
from bisect_env.matrix.load import Matrix, asked_matrix, load_matrix, repository_at
from bisect_env.matrix.project import how_to_take, left_behind
from bisect_env.matrix.schema import LEAST_RATE, CommitAxis, SearchLimits
from bisect_env.storage.shared_text import shared_matrix_text
from bisect_env.temporary import replacing

_MOST_FOLDERS = 5
"""Maximum number of project folders that a message names if the root of a repository has no project."""
TRIAL, SOURCES, COMMITS = "The trial", "Where packages come from", "Commits instead of releases"
_SEARCH = ("rate", "always", "confidence")
"""Flags that change when the search stops; they may be given beside a matrix file or a study."""
_COMMIT_FLAGS = ("from_", "to", "into_merges", "subdirectory")
_OF_RELEASES = ("good", "bad", "step", "pre", "yanked")
_RELEASE_FLAGS = (*_OF_RELEASES, "since", "channel")

GoodOption = Annotated[
    list[str] | None, opt("--good VERSION", "What works: 2.6.0, or torch=2.6.0,cuml=24.04.")
]
BadOption = Annotated[list[str] | None, opt("--bad VERSION", "What fails: 2.8.0, or torch=2.8.0,cuml=24.04.")]
A_QUESTION = "a question or a study"
_Texts = list[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFlags:
    """The values of the command-line options that describe a trial and its study.

    `with_groups` adds these options to a command.
    """

    always: Annotated[bool, opt("--always", "The failure occurs in every run; the same as --rate 1.")] = False
    rate: Annotated[
        float | None,
        opt(
            "--rate SHARE",
            "Approximate failure rate: 1, 0.5, 10%.",
            FAILURE,
            parser=share_of("--rate"),
        ),
    ] = None
    confidence: Annotated[
        float | None,
        opt(
            "--confidence NUMBER",
            "Probability that the answer must reach; default: 0.95.",
            FAILURE,
            min=0.5,
            max=0.999999,
        ),
    ] = None
    name: Annotated[str, opt("--name NAME", "Name of the study; default: the packages.", FAILURE)] = ""
    files: Annotated[
        _Texts,
        opt("--files FILE", "File or directory to copy into trials, as files of the command are.", TRIAL),
    ] = None
    timeout: Annotated[
        str, opt("--timeout TIME", "Time limit per trial; longer counts as a hang; default: 60s.", TRIAL)
    ] = ""
    env: Annotated[_Texts, opt("--env NAME=VALUE", "Environment variable of every trial.", TRIAL)] = None
    allow_host: Annotated[
        _Texts,
        opt("--allow-host PROGRAM", "Program of this host that the command may start: make, timeout.", TRIAL),
    ] = None
    gpus: Annotated[
        float | None,
        opt(
            "--gpus NUMBER", "Number of GPUs for each trial: 1, 2, or a share such as 0.25.", TRIAL, min=0.01
        ),
    ] = None
    index: Annotated[
        str, opt("--index URL", "Address of the package index; default: the one uv and pip use.", SOURCES)
    ] = ""
    extra_index: Annotated[
        _Texts, opt("--extra-index [NAME=]URL", "Further index, asked before --index.", SOURCES)
    ] = None
    find_links: Annotated[
        _Texts, opt("--find-links DIR|URL", "Folder, or address of a page, with wheels.", SOURCES)
    ] = None
    exclude_newer: Annotated[
        str, opt("--exclude-newer DAY", "Ignore later uploads: a day, or an instant.", SOURCES)
    ] = ""
    channel: Annotated[
        _Texts, opt("--channel -c CHANNEL", "Take packages from this conda channel.", SOURCES)
    ] = None

    def given(self) -> list[str]:
        """Return the names of the fields whose options were given on the command line."""
        return [one.name for one in fields(self) if getattr(self, one.name) not in (one.default, None, [])]

    def search(self) -> dict[str, Any]:
        """Return the keys of `search` in a matrix file that `--rate`, `--always` and `--confidence` set.

        Raises:
            UsageError: The options contradict each other, or the rate is not between 0 and 1.
        """
        rate = self.rate
        if rate is not None and not 0 < rate <= 1:
            raise UsageError(f"--rate {rate:g} is no share of the runs", remedy="say 1, 0.5 or 10%")
        if rate is not None and rate < LEAST_RATE:
            raise UsageError(
                f"--rate {rate:g} is below {LEAST_RATE:g}, the lowest rate that can be looked for",
                remedy=f"say {LEAST_RATE:g} or more, or make the failure more frequent (`trial --amplify`)",
            )
        if self.always and rate not in (None, 1.0):
            raise UsageError(
                f"--always is --rate 1, and --rate {rate:g} was given", remedy="give one of them"
            )
        return search_data(1.0 if self.always else rate, self.confidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags(TrialFlags):
    """The values of all options for asking a question on the command line, without a matrix file.

    `with_groups` adds these options to a command.
    """

    package: Annotated[
        _Texts, opt("--package -p RANGE", "Package that is asked about, with its range: 'orjson>=3.8'.")
    ] = None
    with_: Annotated[
        _Texts, opt("--with PACKAGE", "Additional package to install in every environment: numpy==2.2.6.")
    ] = None
    good: GoodOption = None
    bad: BadOption = None
    python: Annotated[_Texts, PYTHON] = None
    since: Annotated[
        str,
        opt("--since DAY", "Find the day of the index instead of a release; it worked on this day.", SOURCES),
    ] = ""
    pre: Annotated[bool, opt("--pre", "Try pre-releases, too.", SOURCES)] = False
    yanked: Annotated[bool, opt("--yanked", "Try withdrawn releases, too.", SOURCES)] = False
    step: Annotated[
        str,
        opt(
            "--step STEP", "Releases of a range: every, or the newest of each patch, minor or major.", SOURCES
        ),
    ] = ""
    git: Annotated[
        str, opt("--git REPOSITORY", "Find a commit: address of the repository, or path of a clone.", COMMITS)
    ] = ""
    from_: Annotated[str, opt("--from COMMIT", "Commit that works: tag, branch, hash or day.", COMMITS)] = ""
    to: Annotated[
        str,
        opt(
            "--to COMMIT",
            "Commit that fails; default: HEAD, or the release that `explain` is about.",
            COMMITS,
        ),
    ] = ""
    into_merges: Annotated[
        bool,
        opt("--into-merges", "If the first bad commit is a merge, search the commits it merged.", COMMITS),
    ] = False
    subdirectory: Annotated[
        str, opt("--subdirectory DIR", "Directory of the package in the repository.", COMMITS)
    ] = ""

    @property
    def asks(self) -> bool:
        """Return whether `--package`, `--since` or `--git` was given.

        Then all words of the command line are the command to run. Otherwise the first word is a package,
        a file or a study.
        """
        return bool(self.package or self.since or self.git)


def given_options(context: typer.Context) -> list[str]:
    """Return the names of the options that were given on the command line.

    The words and the options of a question count as one option, `A_QUESTION`.
    """
    question = {"words", *(one.name for one in fields(Flags))}
    given = []
    for one in context.command.params:
        source = context.get_parameter_source(str(one.name))
        if source is not None and source.name == "COMMANDLINE":
            given.append(A_QUESTION if one.name in question else max(one.opts, key=len))
    return list(dict.fromkeys(given))


def option_name(field: str) -> str:
    """Return the command-line option that sets a field: `--from` for `from_`."""
    return f"--{field.rstrip('_').replace('_', '-')}"


def refuse_beside(flags: TrialFlags, shown: str, *, without: Sequence[str] = ()) -> None:
    """Raise an error if options that describe a question are given together with a matrix file or a study.

    Args:
        flags: Options of the command line.
        shown: The matrix file or study, as messages name it.
        without: Fields that the command uses for something else.

    Raises:
        UsageError: A question option was given.
    """
    if given := [name for name in flags.given() if name not in (*_SEARCH, *without)]:
        raise UsageError(
            f"{option_name(given[0])} belongs to a question on the command line, and {shown} asks already",
            remedy="write it into the matrix file, or ask in words with `-p PACKAGE`",
        )


def with_search(matrix: Matrix, flags: TrialFlags) -> Matrix:
    """Return the matrix with the search settings changed by `--rate`, `--always` and `--confidence`.

    Raises:
        UsageError: The settings contradict each other.
    """
    if not (given := flags.search()):
        return matrix
    try:
        search = SearchLimits.model_validate({**matrix.file.search.model_dump(exclude_unset=True), **given})
    except ValidationError as error:
        why = "; ".join(without_kind(one["msg"]) for one in error.errors(include_url=False))
        raise UsageError(
            f"--rate, --always and --confidence do not fit {matrix.shown}: {why}",
            remedy="leave them out, or correct `search` in the matrix",
        ) from None
    return replace(matrix, file=matrix.file.model_copy(update={"search": search}))


# --------------------------------------------------------------------------------------------------
# From the command line to a matrix.


def ask(flags: Flags, words: Sequence[str]) -> Matrix:
    """Return the matrix for a question that was asked on the command line instead of in a matrix file.

    Args:
        flags: Options of the command line.
        words: A package range and a script; with `-p`, `--since` or `--git` only the command.

    Raises:
        UsageError: The question is incomplete or contradictory.
    """
    question, files = _commits(flags, words) if flags.git else _releases(flags, words)
    names = (one.name for one in question.moving)
    refuse_left_behind(files, [*names, *question.with_packages, *question.inline.dependencies])
    # With conda, Python comes from a channel, not from this host.
    installed: Callable[[], Iterable[str]] = tuple if question.channels else installed_pythons
    return checked(question_data(question, installed=installed), files)


def checked(data: Mapping[str, Any], files: Iterable[StudyFile]) -> Matrix:
    """Validate the contents of a matrix, given as plain dicts and lists, and return the `Matrix`.

    Raises:
        UsageError: The data is not a valid matrix.
    """
    try:
        return asked_matrix(data, files)
    except MatrixError as error:
        raise UsageError(
            "this cannot be asked:\n  "
            # Remove line numbers, because a question in words has no file.
            + "\n  ".join(re.sub(r"^(line \d+|the file): ", "", problem) for problem in error.problems),
            remedy="correct the options, and give the command again",
        ) from None


def _releases(flags: Flags, words: Sequence[str]) -> tuple[AskedQuestion, tuple[StudyFile, ...]]:
    if misplaced := [name for name in flags.given() if name in _COMMIT_FLAGS]:
        raise UsageError(
            f"{option_name(misplaced[0])} belongs to `--git`, which was not given", remedy="add `--git PATH`"
        )
    if flags.since and (misplaced := [name for name in flags.given() if name in _OF_RELEASES]):
        raise UsageError(
            f"{option_name(misplaced[0])} is about releases, and --since asks about the days of the index",
            remedy="leave one of them out",
        )
    packages, words = list(flags.package or ()), list(words)
    if not packages and not flags.since:
        packages.append(words.pop(0))
        if Path(packages[0]).suffix in (".py", ".sh"):
            raise UsageError(
                f"{packages[0]} is a script: the package that is asked about is missing",
                remedy=f"name it first: {swapped(packages[0], words)}",
            )
    refuse_misspelt(packages, words)
    if flags.since and not packages and len(words) > 1:
        _refuse_package_as_command(words)
    is_conda = bool(flags.channel)
    moving = [
        Moving(releases_of_package(text, is_conda, flags.step, flags.pre, flags.yanked)) for text in packages
    ]
    names = [one.name for one in moving]
    question, files = asked_command(flags, words)
    good = stated_ends(flags.good or (), names, "--good")
    bad = stated_ends(flags.bad or (), names, "--bad")
    question = replace(
        question,
        moving=tuple(replace(one, good=good.get(one.name, ""), bad=bad.get(one.name, "")) for one in moving),
        since=flags.since,
        until=datetime.now(UTC).date().isoformat() if flags.since else "",
    )
    return question, files


def _refuse_package_as_command(words: Sequence[str]) -> None:
    """Raise an error if a question about days begins like one about releases: with a package and a script."""
    package, script = words[:2]
    is_program = package.startswith("python") or is_file(package) or shutil.which(package) is not None
    if not is_program and script.endswith(SCRIPTS) and is_file(script):
        raise UsageError(
            f"{package} is no command here, and with --since all words are the command",
            remedy=f"ask with `--with {package} -- {command_line('python', *words[1:])}`",
        )


def _commits(flags: Flags, words: Sequence[str]) -> tuple[AskedQuestion, tuple[StudyFile, ...]]:
    if misplaced := [name for name in flags.given() if name in _RELEASE_FLAGS]:
        raise UsageError(
            f"{option_name(misplaced[0])} is about releases, and --git asks about commits",
            remedy="name its ends with `--from` and `--to`",
        )
    if not flags.from_:
        raise UsageError(
            "--git needs `--from`: a tag, branch, hash or day that works", remedy="add `--from v1.0`"
        )
    if len(flags.package or ()) > 1:
        raise UsageError("--git builds one package, and several are named", remedy="give one `-p NAME`")
    repository = repository_at(flags.git, Path.cwd())
    flags = replace(flags, to=flags.to or "HEAD")
    named = releases_of_package(flags.package[0]) if flags.package else None
    if named is not None and named.versions:
        raise UsageError(
            f"-p {named.package}{named.versions} is a range of releases, and --git asks about commits",
            remedy=f"write `-p {named.package}`",
        )
    package = _built_package(repository, flags) if named is None else named.package
    question, files = asked_command(flags, words)
    commits = commit_range(flags, repository, package)
    return replace(question, moving=(Moving(commits, commits.from_, commits.to),)), files


def commit_range(flags: Flags, git: str, package: str) -> CommitAxis:
    """Return a commit axis with the range of commits that the options name.

    The values are not validated here.

    Args:
        flags: Options of the command line.
        git: Address of the repository, or path of a clone.
        package: The package that the repository builds.
    """
    return CommitAxis.model_construct(
        git=git,
        package=package,
        from_=flags.from_,
        to=flags.to,
        history="all" if flags.into_merges else "first-parent",
        subdirectory=flags.subdirectory,
    )


def _built_package(repository: str, flags: Flags) -> str:
    """Return the name of the package that a repository builds, read from its files at the last commit.

    Raises:
        UsageError: The files do not state a name.
    """
    found = Repository(repository, default_cache_dir())
    (commit,) = found.resolve(flags.to)
    names = ("pyproject.toml", "setup.cfg")
    folder = f"{flags.subdirectory.strip('/')}/" if flags.subdirectory else ""
    package = package_of_project({name: found.file(commit, folder + name) for name in names})
    if package is not None:
        return package
    remedy = "name it: `-p NAME`"
    if folder == "" and (below := found.folders_with(commit, names)):
        remedy = f"it has {below[0]}/: add `{command_line('--subdirectory', below[0])}`"
        remedy += f", or another of {', '.join(below[:_MOST_FOLDERS])}" if len(below) > 1 else ""
    raise UsageError(f"{found.shown} does not say in its files which package it builds", remedy=remedy)


def asked_command(flags: TrialFlags, words: Sequence[str]) -> tuple[AskedQuestion, tuple[StudyFile, ...]]:
    """Build the part of a question that states the command, its options and its script files.

    The caller adds the packages or commits that the question is about.

    Args:
        flags: Options of the command line.
        words: The command.

    Raises:
        UsageError: A script does not exist or is not Python, or an option is invalid.
    """
    folder = Path.cwd()
    command, places = travelling(full_command(words, folder), flags.files or (), folder)
    scripts = [place for name, place in places.items() if name in command and name.endswith(".py")]
    inline = (
        inline_metadata(scripts[0].read_text("utf-8-sig", "replace"), scripts[0].name) if scripts else None
    )
    more = flags if isinstance(flags, Flags) else Flags()
    question = AskedQuestion(
        moving=(),
        command=command,
        settings={
            "index": flags.index,
            "indexes": _named_indexes(flags.extra_index or ()),
            "find_links": [one if "://" in one else _absolute(one) for one in flags.find_links or ()],
            "exclude_newer": flags.exclude_newer,
            "search": flags.search(),
        },
        trial={
            "files": list(places),
            "timeout": flags.timeout,
            "env": _environment_variables(flags.env or ()),
            "allow_host": list(flags.allow_host or ()),
            "gpus": flags.gpus,
        },
        name=flags.name,
        inline=inline or InlineMetadata(),
        channels=tuple(
            _absolute(one) if one.startswith(("./", "../")) else one for one in flags.channel or ()
        ),
        with_packages=tuple(more.with_ or ()),
        pythons=tuple(one.strip() for text in more.python or () for one in text.split(",")),
    )
    return question, tuple(file_at(name, place) for name, place in places.items())


def refuse_left_behind(files: Sequence[StudyFile], named: Iterable[str]) -> None:
    """Raise an error if a script imports a local module that does not come along with it.

    Args:
        files: Files that come along.
        named: Packages, or requirements, that the environments have.

    Raises:
        UsageError: A module of the current directory does not come along.
    """
    packages = [match[0] for text in named if (match := _NAME.match(text))]
    found = left_behind(files, Path.cwd(), packages)
    if found is not None:
        script, place = found
        raise UsageError(
            f"{script} imports {place}, which lies here and is not copied into the trials",
            remedy=f"add `{how_to_take(place)}`",
        )


_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
"""The name at the beginning of a requirement."""


def _absolute(path: str) -> str:
    return str(expanded(path).resolve())


def _environment_variables(texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.isidentifier():
            raise UsageError(f"--env {text} is no variable", remedy="write it as --env NAME=VALUE")
        found[name] = value
    return found


def _named_indexes(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """Parse texts of the form `[NAME=]URL`, and return a dict from names to package indexes.

    An index without a name is called `extra-` and its position in `texts`, for example `extra-2`.
    """
    found = {}
    for number, text in enumerate(texts, start=1):
        name, equals, url = text.partition("=")
        if not equals or ":" in name or "/" in name:
            name, url = f"extra-{number}", text
        found[name] = {"url": url}
    return found


# --------------------------------------------------------------------------------------------------
# From a matrix to a file.


def matrix_text(matrix: Matrix) -> str:
    """Return a matrix as the text of a matrix file.

    If the question was asked on the command line, the first line is a comment with the command.
    """
    if matrix.path is not None:
        return matrix.text
    words = "" if any("\n" in word for word in sys.argv[1:]) else own_command(sys.argv[1:])
    return yaml_source.dump(json.loads(matrix.text), words)


def shown_question(matrix: Matrix) -> str:
    """Return a question from the command line as indented YAML lines without secrets."""
    lines = shared_matrix_text(matrix_text(matrix)).rstrip().splitlines()
    return "\n".join(f"  {line}" for line in lines if not line.startswith("#"))


def save(matrix: Matrix, path: Path) -> Matrix:
    """Write a matrix and its files to disk, and return the matrix as loaded from the new file.

    A file with the same question is not changed.

    Raises:
        UsageError: A file with other content has this path, or the path of a script beside it.
        InfrastructureError: Something cannot be written.
    """
    if path.exists():
        with contextlib.suppress(MatrixError):
            if path.is_file() and (known := load_matrix(path)).digest == matrix.digest:
                return known
        raise UsageError(
            f"{path} exists, and contains another question", remedy="name another file, or remove it first"
        )
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"there is no directory {folder}", remedy="make it, or name another file")
    text = matrix_text(matrix)
    has_secrets = shared_matrix_text(text) != text
    wanted = [
        (folder / file.name, file.content, 0o755 if file.executable else 0o644) for file in matrix.files
    ]
    for place, content, _ in wanted:
        if place.exists() and not (place.is_file() and place.read_bytes() == content):
            raise UsageError(f"{place} exists, and is another file", remedy="save into another directory")
    # The matrix is written last: if it exists, all its files exist.
    wanted.append((path.absolute(), text.encode(), 0o600 if has_secrets else 0o644))
    try:
        for place, content, mode in wanted:
            if not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                with replacing(place) as beside:
                    beside.write_bytes(content)
                    beside.chmod(mode)
    except OSError as error:
        raise InfrastructureError(
            f"{error.filename or path} cannot be written: {error.strerror or error}",
            remedy="make room, or name another file",
        ) from error
    return load_matrix(path)
