"""Turns the words and flags of a question into a checked `Matrix`, and writes one to a file if asked."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from pydantic import ValidationError

from bisect_env.answers.untrusted import command_line
from bisect_env.cli.options import opt, share
from bisect_env.cli.output import own_command
from bisect_env.cli.spelling import refuse_misspelt, swapped
from bisect_env.environments.commits import package_of_project
from bisect_env.environments.interpreters import installed_pythons
from bisect_env.environments.repository import Repository
from bisect_env.environments.settings import default_cache_dir
from bisect_env.errors import InfrastructureError, MatrixError, UsageError
from bisect_env.matrix import yaml_source
from bisect_env.matrix.ask import AskedQuestion, package_name, question_data, search_data, stated_ends
from bisect_env.matrix.files import StudyFile, file_at, full_command, travelling
from bisect_env.matrix.inline import InlineMetadata, inline_metadata
from bisect_env.matrix.load import Matrix, asked_matrix, load_matrix, repository_at
from bisect_env.matrix.schema import CommitAxis, SearchLimits
from bisect_env.matrix.shared_text import shared_matrix_text
from bisect_env.temporary import replacing

_MOST_FOLDERS = 5
"""Folders of projects that are named where a repository has none in its root."""
TRIAL, SOURCES, COMMITS = "The trial", "Where packages come from", "Commits instead of releases"
FAILURE = "The failure and the answer"
_SEARCH = ("rate", "always", "confidence")
"""Flags that say when the search may stop, whatever is asked about."""
_COMMIT_FLAGS = ("first", "last", "merges", "subdirectory")
_RELEASE_FLAGS = ("good", "bad", "since", "channel", "step", "pre", "yanked")

GoodOption = Annotated[list[str] | None, opt("--good", "What works: 2.6.0, or torch=2.6.0,cuml=24.04.")]
BadOption = Annotated[list[str] | None, opt("--bad", "What fails: 2.8.0, or torch=2.8.0,cuml=24.04.")]
_Texts = list[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFlags:
    """The options that describe a trial and its study; see `with_groups`."""

    always: Annotated[bool, opt("--always", "It fails every time: the same as --rate 1.")] = False
    rate: Annotated[
        float | None,
        opt("--rate", "How often it fails, about: 1, 0.5, 10%.", FAILURE, parser=share, metavar="SHARE"),
    ] = None
    confidence: Annotated[
        float | None,
        opt("--confidence", "Confidence of the answer; default: 0.95.", FAILURE, min=0.5, max=0.999999),
    ] = None
    name: Annotated[str, opt("--name", "Name of the study; default: the packages.", FAILURE)] = ""
    files: Annotated[
        _Texts, opt("--files", "File or directory to copy into trials, as files of the command are.", TRIAL)
    ] = None
    timeout: Annotated[
        str, opt("--timeout", "Time limit per trial; longer counts as a hang; default: 60s.", TRIAL)
    ] = ""
    env: Annotated[_Texts, opt("--env", "Environment variable of every trial: NAME=VALUE.", TRIAL)] = None
    gpus: Annotated[
        float | None,
        opt("--gpus", "GPUs that one trial needs: 1, 2, or a share such as 0.25.", TRIAL, min=0.01),
    ] = None
    index: Annotated[
        str, opt("--index", "Address of the package index; default: the one uv and pip use.", SOURCES)
    ] = ""
    extra_index: Annotated[
        _Texts, opt("--extra-index", "Further index, asked before --index: [NAME=]URL.", SOURCES)
    ] = None
    find_links: Annotated[
        _Texts, opt("--find-links", "Folder, or address of a page, with wheels.", SOURCES)
    ] = None
    exclude_newer: Annotated[
        str, opt("--exclude-newer", "Ignore later uploads: a day, or an instant.", SOURCES)
    ] = ""
    channel: Annotated[_Texts, opt("--channel -c", "Take packages from this conda channel.", SOURCES)] = None

    def given(self, *, without: Sequence[str] = ()) -> list[str]:
        """Return the names of the options that were given, except those of some fields."""
        hints = get_type_hints(type(self), include_extras=True)
        return [
            _option_name(hints[field.name])
            for field in fields(self)
            if field.name not in without
            and get_origin(hints[field.name]) is Annotated
            and getattr(self, field.name) not in (field.default, None, [])
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags(TrialFlags):
    """The options of a question in words; see `with_groups`."""

    packages: Annotated[
        _Texts, opt("--package -p", "Package that is asked about, with its range: 'orjson>=3.8'.")
    ] = None
    with_packages: Annotated[
        _Texts, opt("--with", "Additional package to install in every environment: numpy==2.2.6.")
    ] = None
    good: GoodOption = None
    bad: BadOption = None
    python: Annotated[_Texts, opt("--python", "Version of Python, such as 3.12; several make an axis.")] = (
        None
    )
    since: Annotated[str, opt("--since", "Ask for the day instead: it worked on this one.", SOURCES)] = ""
    pre: Annotated[bool, opt("--pre", "Try pre-releases, too.", SOURCES)] = False
    yanked: Annotated[bool, opt("--yanked", "Try withdrawn releases, too.", SOURCES)] = False
    step: Annotated[
        str,
        opt("--step", "Releases of a range: every, or the newest of each patch, minor or major.", SOURCES),
    ] = ""
    git: Annotated[str, opt("--git", "Address of the repository, or path of a clone.", COMMITS)] = ""
    first: Annotated[str, opt("--from", "Tag, branch, hash or day that works.", COMMITS)] = ""
    last: Annotated[str, opt("--to", "Tag, branch, hash or day that fails; default: HEAD.", COMMITS)] = ""
    merges: Annotated[
        bool, opt("--into-merges", "If a merge brought the failure in, search what it merged.", COMMITS)
    ] = False
    subdirectory: Annotated[
        str, opt("--subdirectory", "Directory of the package in the repository.", COMMITS)
    ] = ""

    @property
    def asks(self) -> bool:
        """Return whether options ask a question, so that all words are its command."""
        return bool(self.packages or self.since or self.git)


def _option_name(hint: Any) -> str:
    (option,) = (one for one in get_args(hint)[1:] if isinstance(one, typer.models.OptionInfo))
    # Of an annotation, typer has the first name where it has defaults elsewhere.
    names = (option.default, *(option.param_decls or ()))
    return next(name for name in names if isinstance(name, str) and name.startswith("--"))


def refuse_beside(flags: TrialFlags, shown: str, *, without: Sequence[str] = ()) -> None:
    """Refuse options of a question beside a matrix file or a study, which has said all of it.

    Args:
        flags: As given.
        shown: The matrix file or study.
        without: Fields that the command has another use for.

    Raises:
        UsageError: One was given.
    """
    if given := flags.given(without=(*_SEARCH, *without)):
        raise UsageError(
            f"{given[0]} belongs to a question on the command line, and {shown} asks already",
            remedy="write it into the matrix file, or ask in words with `-p PACKAGE`",
        )


def with_search(matrix: Matrix, flags: TrialFlags) -> Matrix:
    """Return a matrix whose search has the settings that were given by options.

    Raises:
        UsageError: They contradict each other.
    """
    rate = asked_rate(flags.rate, always=flags.always)
    if not (given := search_data(rate, flags.confidence)):
        return matrix
    try:
        search = SearchLimits.model_validate({**matrix.file.search.model_dump(exclude_unset=True), **given})
    except ValidationError as error:
        why = "; ".join(str(one["msg"]) for one in error.errors(include_url=False))
        raise UsageError(
            f"--rate, --always and --confidence do not fit {matrix.shown}: {why}",
            remedy="leave them out, or correct `search` in the matrix",
        ) from None
    return replace(matrix, file=matrix.file.model_copy(update={"search": search}))


def asked_rate(rate: float | None, *, always: bool) -> float | None:
    """Return what `--rate` and `--always` say together.

    Raises:
        UsageError: They contradict each other, or the rate is 0.
    """
    if rate is not None and not 0 < rate <= 1:
        raise UsageError(f"--rate {rate:g} is no share of the runs", remedy="say 1, 0.5 or 10%")
    if always and rate not in (None, 1.0):
        raise UsageError(f"--always is --rate 1, and --rate {rate:g} was given", remedy="give one of them")
    return 1.0 if always else rate


# --------------------------------------------------------------------------------------------------
# From words to data.


def ask(flags: Flags, words: Sequence[str]) -> Matrix:
    """Return the matrix of a question in words.

    Args:
        flags: As given.
        words: A range and a script, or with `-p`, `--since` or `--git` the command.

    Raises:
        UsageError: What was asked cannot be.
    """
    question, files = _commits(flags, words) if flags.git else _releases(flags, words)
    # Pythons of conda packages come from a channel.
    installed: Callable[[], Iterable[str]] = tuple if question.channels else installed_pythons
    return checked(question_data(question, installed=installed), files)


def checked(data: Mapping[str, Any], files: Iterable[StudyFile]) -> Matrix:
    """Return the matrix of plain data.

    Raises:
        UsageError: The data is no matrix.
    """
    try:
        return asked_matrix(data, files)
    except MatrixError as error:
        raise UsageError(
            "this cannot be asked:\n  "
            # A question in words has no file with lines.
            + "\n  ".join(re.sub(r"^(line \d+|the file): ", "", problem) for problem in error.problems),
            remedy="correct the options, and give the command again",
        ) from None


def _releases(flags: Flags, words: Sequence[str]) -> tuple[AskedQuestion, tuple[StudyFile, ...]]:
    if misplaced := [name for name in flags.given() if name in _names(_COMMIT_FLAGS)]:
        raise UsageError(f"{misplaced[0]} belongs to `--git`, which was not given", remedy="add `--git PATH`")
    packages, words = list(flags.packages or ()), list(words)
    if not packages and not flags.since:
        packages.append(words.pop(0))
        if Path(packages[0]).suffix in (".py", ".sh"):
            raise UsageError(
                f"{packages[0]} is a script: the package that is asked about is missing",
                remedy=f"name it first: {swapped(packages[0], words)}",
            )
    refuse_misspelt(packages, words)
    names = [package_name(text) for text in packages]
    question, files = asked_command(flags, words)
    question = replace(
        question,
        packages=tuple(packages),
        good=stated_ends(flags.good or (), names, "--good"),
        bad=stated_ends(flags.bad or (), names, "--bad"),
        since=flags.since,
        until=datetime.now(UTC).date().isoformat() if flags.since else "",
    )
    return question, files


def _names(field_names: Sequence[str]) -> set[str]:
    hints = get_type_hints(Flags, include_extras=True)
    return {_option_name(hints[name]) for name in field_names}


def _commits(flags: Flags, words: Sequence[str]) -> tuple[AskedQuestion, tuple[StudyFile, ...]]:
    if misplaced := [name for name in flags.given() if name in _names(_RELEASE_FLAGS)]:
        raise UsageError(
            f"{misplaced[0]} is about releases, and --git asks about commits",
            remedy="name its ends with `--from` and `--to`",
        )
    if not flags.first:
        raise UsageError(
            "--git needs `--from`: a tag, branch, hash or day that works", remedy="add `--from v1.0`"
        )
    if len(flags.packages or ()) > 1:
        raise UsageError("--git builds one package, and several are named", remedy="give one `-p NAME`")
    repository = repository_at(flags.git, Path.cwd())
    last, folder = flags.last or "HEAD", flags.subdirectory
    package = package_name(flags.packages[0]) if flags.packages else _built_package(repository, last, folder)
    question, files = asked_command(flags, words)
    commits = commit_range(repository, package, flags.first, last, merges=flags.merges, subdirectory=folder)
    return replace(question, commits=commits), files


def commit_range(
    git: str, package: str, first: str, last: str, *, merges: bool, subdirectory: str
) -> CommitAxis:
    """Return the axis of commits that options ask for; it is not validated."""
    return CommitAxis.model_construct(
        git=git,
        package=package,
        from_=first,
        to=last,
        history="all" if merges else "first-parent",
        subdirectory=subdirectory,
    )


def _built_package(repository: str, commit: str, subdirectory: str) -> str:
    """Return the package that a repository builds, as its files at a commit say.

    Raises:
        UsageError: They do not say it.
    """
    found = Repository(repository, default_cache_dir())
    (commit,) = found.resolve(commit)
    names = ("pyproject.toml", "setup.cfg")
    folder = f"{subdirectory.strip('/')}/" if subdirectory else ""
    package = package_of_project({name: found.file(commit, folder + name) for name in names})
    if package is not None:
        return package
    remedy = "name it: `-p NAME`"
    if folder == "" and (below := found.folders_with(commit, names)):
        remedy = f"it has {below[0]}/: add `{command_line('--subdirectory', below[0])}`"
        remedy += f", or another of {', '.join(below[:_MOST_FOLDERS])}" if len(below) > 1 else ""
    raise UsageError(f"{found.shown} does not say in its files which package it builds", remedy=remedy)


def asked_command(flags: TrialFlags, words: Sequence[str]) -> tuple[AskedQuestion, tuple[StudyFile, ...]]:
    """Return the command to run as a question without packages, and the files that it needs.

    Args:
        flags: As given.
        words: The command.

    Raises:
        UsageError: A script does not exist or is no Python, or a flag is wrong.
    """
    folder = Path.cwd()
    command, places = travelling(full_command(words, folder), flags.files or (), folder)
    scripts = [place for name, place in places.items() if name in command and name.endswith(".py")]
    inline = inline_metadata(scripts[0].read_text("utf-8", "replace"), scripts[0].name) if scripts else None
    more = flags if isinstance(flags, Flags) else Flags()
    question = AskedQuestion(
        packages=(),
        command=command,
        settings={
            "index": flags.index,
            "indexes": _named_indexes(flags.extra_index or ()),
            "find_links": [one if "://" in one else _absolute(one) for one in flags.find_links or ()],
            "exclude_newer": flags.exclude_newer,
            "search": search_data(asked_rate(flags.rate, always=flags.always), flags.confidence),
        },
        trial={
            "files": list(places),
            "timeout": flags.timeout,
            "env": _environment_variables(flags.env or ()),
            "gpus": flags.gpus,
        },
        name=flags.name,
        inline=inline or InlineMetadata(),
        channels=tuple(
            _absolute(one) if one.startswith(("./", "../")) else one for one in flags.channel or ()
        ),
        with_packages=tuple(more.with_packages or ()),
        pythons=tuple(one.strip() for text in more.python or () for one in text.split(",")),
        prereleases=more.pre,
        yanked=more.yanked,
        step=more.step,
    )
    return question, tuple(file_at(name, place) for name, place in places.items())


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())


def _environment_variables(texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.isidentifier():
            raise UsageError(f"--env {text} is no variable", remedy="write it as --env NAME=VALUE")
        found[name] = value
    return found


def _named_indexes(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the indexes of `[NAME=]URL`, those without a name as `extra-1`, `extra-2`."""
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
    """Return a matrix as the text of a file: its own, or YAML with the command line in the first line."""
    if matrix.path is not None:
        return matrix.text
    words = "" if any("\n" in word for word in sys.argv[1:]) else own_command(sys.argv[1:])
    return yaml_source.dump(json.loads(matrix.text), words)


def shown_question(matrix: Matrix) -> str:
    """Return a question that was asked in words as indented lines without secrets."""
    lines = shared_matrix_text(matrix_text(matrix)).rstrip().splitlines()
    return "\n".join(f"  {line}" for line in lines if not line.startswith("#"))


def save(matrix: Matrix, path: Path) -> Matrix:
    """Write a matrix and its files, and return the matrix of the new file.

    A file that asks the same is left as it is; after an error everything is as it was before.

    Raises:
        UsageError: The path, or that of a script beside it, is another file.
        InfrastructureError: Something cannot be written.
    """
    if path.exists():
        with contextlib.suppress(MatrixError):
            if path.is_file() and (known := load_matrix(path)).digest == matrix.digest:
                return known
        raise UsageError(
            f"{path} exists, and asks something else", remedy="name another file, or remove it first"
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
    # The matrix comes last: with it, everything is there.
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
