"""Turns a question on the command line into a folder with a matrix, which later commands find again."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import platformdirs
import typer

from bisect_env.answers.untrusted import command_line
from bisect_env.cli.output import deliver, own_command, say
from bisect_env.environments.commits import package_of_project
from bisect_env.environments.interpreters import installed_pythons
from bisect_env.environments.repository import Repository
from bisect_env.environments.settings import default_cache_dir
from bisect_env.errors import MatrixError, UsageError
from bisect_env.matrix.ask import (
    AskedQuestion,
    CommitRange,
    InlineMetadata,
    full_command,
    inline_metadata,
    matrix_text,
    package_name,
    stated_ends,
    travelling,
)
from bisect_env.matrix.load import load_matrix, repository_at
from bisect_env.matrix.secrets import shared_matrix_text

_MOST_FOLDERS = 5
"""Folders of projects that are named where a repository has none in its root."""
RANGE_HELP = "Package that is asked about, with its range: 'orjson>=3.8', or a name for every release."
PackagesOption = Annotated[list[str] | None, typer.Option("--package", "-p", help=RANGE_HELP)]
WithOption = Annotated[
    list[str] | None,
    typer.Option("--with", help="Package that every environment holds besides: numpy==2.2.6."),
]
PythonOption = Annotated[
    list[str] | None, typer.Option("--python", help="Python, such as 3.12; several make an axis.")
]
GoodOption = Annotated[
    list[str] | None, typer.Option("--good", "--start", help="A version that works: 2.6.0, or torch=2.6.0.")
]
BadOption = Annotated[
    list[str] | None, typer.Option("--bad", "--end", help="A version that fails: 2.8.0, or torch=2.8.0.")
]
SinceOption = Annotated[
    str | None, typer.Option("--since", help="Ask for the day instead: it worked on this one, 2026-01-31.")
]
RateOption = Annotated[
    float | None,
    typer.Option("--rate", min=0.0, max=1.0, help="About how often it fails where it does: 1, 0.5, 0.1."),
]
AlwaysOption = Annotated[bool, typer.Option("--always", help="It fails every time: the same as --rate 1.")]
FilesOption = Annotated[
    list[str] | None,
    typer.Option("--files", "--copy", help="File or directory that travels along (files in the command do)."),
]
PreOption = Annotated[bool, typer.Option("--pre", help="Try pre-releases too.")]
StepOption = Annotated[
    str, typer.Option("--step", help="Of a range: the newest of each major, minor or patch, or every one.")
]
ChannelOption = Annotated[
    list[str] | None, typer.Option("--channel", "-c", help="Packages come from this conda channel.")
]
TimeoutOption = Annotated[str, typer.Option("--timeout", help="Of one trial: then it hangs. Default: 60s.")]
EnvOption = Annotated[
    list[str] | None, typer.Option("--env", help="Environment variable of every trial: NAME=VALUE.")
]
ConfidenceOption = Annotated[
    float | None, typer.Option("--confidence", help="Of the answer; default: 0.95.", min=0.51, max=0.9999)
]
NameOption = Annotated[str, typer.Option("--name", help="Of the study; default: the packages.")]
IndexOption = Annotated[
    str, typer.Option("--index", help="Address of the package index; default: the one uv and pip use.")
]
ExtraIndexOption = Annotated[
    list[str] | None,
    typer.Option("--extra-index", help="Further index, asked before --index: [NAME=]URL; may be repeated."),
]
FindLinksOption = Annotated[
    list[str] | None,
    typer.Option("--find-links", help="Folder, or address of a page, with wheels; may be repeated."),
]
ExcludeNewerOption = Annotated[
    str, typer.Option("--exclude-newer", help="Ignore what was uploaded later: a day, or an instant.")
]
YankedOption = Annotated[bool, typer.Option("--yanked", help="Try withdrawn releases too.")]
GitOption = Annotated[
    str, typer.Option("--git", help="Ask for the commit: address of the repository, or path of a clone.")
]
FromOption = Annotated[str, typer.Option("--from", help="Of --git: a tag, branch, hash or day that works.")]
ToOption = Annotated[str, typer.Option("--to", help="Of --git: one that fails; default: HEAD.")]
MergesOption = Annotated[
    bool,
    typer.Option("--into-merges", help="Of --git: where a merge brought it in, go on into what it merged."),
]
SubdirectoryOption = Annotated[
    str, typer.Option("--subdirectory", help="Of --git: where in the repository the package is built.")
]
SaveOption = Annotated[
    Path | None, typer.Option("--save", help="Write the question to this matrix file, and go by that.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFlags:
    """Options that describe a trial and its study on the command line; a group, see `with_groups`."""

    rate: RateOption = None
    always: AlwaysOption = False
    files: FilesOption = None
    timeout: TimeoutOption = ""
    env: EnvOption = None
    confidence: ConfidenceOption = None
    name: NameOption = ""
    index: IndexOption = ""
    extra_index: ExtraIndexOption = None
    find_links: FindLinksOption = None
    exclude_newer: ExcludeNewerOption = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags(TrialFlags):
    """Options of a question that is asked on the command line; a group, see `with_groups`.

    Attributes:
        words: What stands for itself: a range and a script, or the command.
        gpus: `--gpus`, which may say what a trial needs.
        first: `--from`.
        last: `--to`.
        merges: `--into-merges`.
        packages, with_packages, python, good, bad, since, git, subdirectory, pre, yanked, step, channel: The
            options of these names.
    """

    words: Sequence[str] = ()
    gpus: str | None = None
    packages: PackagesOption = None
    with_packages: WithOption = None
    python: PythonOption = None
    good: GoodOption = None
    bad: BadOption = None
    since: SinceOption = None
    git: GitOption = ""
    first: FromOption = ""
    last: ToOption = ""
    merges: MergesOption = False
    subdirectory: SubdirectoryOption = ""
    pre: PreOption = False
    yanked: YankedOption = False
    step: StepOption = ""
    channel: ChannelOption = None

    @property
    def asks(self) -> bool:
        """Whether this asks for itself, and names no matrix file."""
        return bool(self.packages or self.since or self.git) or not (
            self.words and names_matrix(self.words[0], alone=len(self.words) == 1)
        )

    def refuse_beside_matrix(self) -> None:
        """A matrix file says all of it itself.

        Raises:
            UsageError: A flag contradicts it.
        """
        given = [
            flag
            for flag, value in (
                ("--with", self.with_packages),
                ("--python", self.python),
                ("--good", self.good),
                ("--bad", self.bad),
                ("--rate", self.rate is not None),
                ("--always", self.always),
                ("--files", self.files),
                ("--pre", self.pre),
                ("--yanked", self.yanked),
                ("--step", self.step),
                ("--channel", self.channel),
                ("--timeout", self.timeout),
                ("--env", self.env),
                ("--confidence", self.confidence is not None),
                ("--name", self.name),
                ("--index", self.index),
                ("--extra-index", self.extra_index),
                ("--find-links", self.find_links),
                ("--exclude-newer", self.exclude_newer),
                ("--from", self.first),
                ("--to", self.last),
                ("--into-merges", self.merges),
                ("--subdirectory", self.subdirectory),
            )
            if value
        ]
        if given:
            raise UsageError(
                f"{given[0]} belongs to a question on the command line, and {self.words[0]} is a matrix file",
                remedy="write it into the file, or ask with `-p PACKAGE`",
            )
        if len(self.words) > 1:
            raise UsageError(
                f"{self.words[0]} is a matrix file, which has its command in it: {' '.join(self.words[1:])} "
                "is one too many",
                remedy="leave it out, or ask with `-p PACKAGE -- COMMAND`",
            )


def names_matrix(word: str, *, alone: bool) -> bool:
    """Return whether a word is meant as the path of a matrix file, and no range of a package.

    Args:
        word: The first of a command.
        alone: Whether no other follows. A folder beside a command is a package's sources, of the same name.
    """
    if word.endswith((".yaml", ".yml")):
        return True
    path = Path(word)
    is_there = path.exists() and (alone or not path.is_dir())
    return ("/" in word or is_there) and path.suffix not in (".py", ".sh")


def asked_rate(rate: float | None, *, always: bool) -> float | None:
    """`--rate` and `--always` in one.

    Raises:
        UsageError: They contradict each other, or the rate is none.
    """
    if rate is not None and rate <= 0:
        raise UsageError("--rate 0: what never fails cannot be looked for", remedy="say 1, 0.5 or 0.1")
    if always and rate not in (None, 1.0):
        raise UsageError(f"--always is --rate 1, and --rate {rate:g} was given", remedy="give one of them")
    return 1.0 if always else rate


def environment_variables(texts: Sequence[str]) -> dict[str, str]:
    """`--env NAME=VALUE`.

    Raises:
        UsageError: One is not like that.
    """
    found = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.isidentifier():
            raise UsageError(f"--env {text} is no variable", remedy="write it as --env NAME=VALUE")
        found[name] = value
    return found


def ask(flags: Flags, save: Path | None, *, quiet: bool = False) -> Path:
    """Make the matrix of a question, with its files beside it.

    Args:
        flags: As given.
        save: Where the user wants it; None for a folder of ours, named by its content, so that the same
            question is the same study.
        quiet: Do not show it.

    Returns:
        The matrix file.

    Raises:
        UsageError: What was asked cannot be.
        MatrixError: The same, found when the matrix was read.
    """
    packages, words = list(flags.packages or ()), list(flags.words)
    if flags.git:
        return _ask_commits(flags, save, quiet=quiet)
    for flag, given in (("--from", flags.first), ("--to", flags.last), ("--into-merges", flags.merges)):
        if given:
            raise UsageError(f"{flag} belongs to `--git`, which was not given", remedy="add `--git PATH`")
    if not packages and not flags.since:
        if not words:
            raise UsageError(
                "nothing was asked",
                remedy='name a matrix file, or a range and a script: bisect-env run "orjson>=3.8" repro.py',
            )
        packages.append(words.pop(0))
        if Path(packages[0]).suffix in (".py", ".sh"):
            raise UsageError(
                f"{packages[0]} is a script: the package that is asked about is missing",
                remedy=f"name it first: {command_line('bisect-env', 'run', 'PACKAGE>=1.0', packages[0])}",
            )
    names = [package_name(text) for text in packages]
    question, files = asked_command(flags, words)
    question = replace(
        question,
        packages=tuple(packages),
        pythons=tuple(one.strip() for text in flags.python or () for one in text.split(",")),
        good=stated_ends(flags.good or (), names, "--good"),
        bad=stated_ends(flags.bad or (), names, "--bad"),
        since=flags.since or "",
        until=datetime.now(UTC).date().isoformat() if flags.since else "",
    )
    return kept(
        matrix_text(question, command_line=own_words(), installed=_pythons(question)),
        files,
        save,
        quiet=quiet,
    )


def _ask_commits(flags: Flags, save: Path | None, *, quiet: bool) -> Path:
    """Return the matrix of a question about commits.

    Raises:
        UsageError: What was asked cannot be.
    """
    for flag, given in (
        ("--good", flags.good),
        ("--bad", flags.bad),
        ("--since", flags.since),
        ("--channel", flags.channel),
        ("--step", flags.step),
        ("--pre", flags.pre),
        ("--yanked", flags.yanked),
    ):
        if given:
            raise UsageError(
                f"{flag} is about releases, and --git asks about commits",
                remedy="name its ends with `--from` and `--to`",
            )
    if not flags.first:
        raise UsageError(
            "--git needs `--from`: a tag, branch, hash or day that works", remedy="add `--from v1.0`"
        )
    if len(flags.packages or ()) > 1:
        raise UsageError("--git builds one package, and several are named", remedy="give one `-p NAME`")
    repository = repository_at(flags.git, Path.cwd())
    package = package_name(flags.packages[0]) if flags.packages else built_package(repository, flags)
    question, files = asked_command(flags, flags.words)
    question = replace(
        question,
        pythons=tuple(one.strip() for text in flags.python or () for one in text.split(",")),
        commits=CommitRange(
            repository, package, flags.first, flags.last or "HEAD", flags.merges, flags.subdirectory
        ),
    )
    return kept(
        matrix_text(question, command_line=own_words(), installed=_pythons(question)),
        files,
        save,
        quiet=quiet,
    )


def built_package(repository: str, flags: Flags) -> str:
    """Return the package that a repository builds, as it says itself at the newer end.

    Raises:
        UsageError: It does not.
    """
    found = Repository(repository, default_cache_dir())
    (commit,) = found.resolve(flags.last or "HEAD")
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


def asked_command(flags: Flags, words: Sequence[str]) -> tuple[AskedQuestion, dict[str, Path]]:
    """Return the command to run without the words of the question, and the files that it takes along.

    Args:
        flags: As given.
        words: The command.

    Raises:
        UsageError: A script does not exist, or a flag is wrong.
    """
    try:
        folder = Path.cwd()
    except FileNotFoundError:
        raise UsageError("the working directory is gone", remedy="change to one that exists") from None
    command, files = travelling(full_command(words, folder), flags.files or (), folder)
    scripts = [place for name, place in files.items() if name in command and name.endswith(".py")]
    inline = inline_metadata(scripts[0].read_text("utf-8", "replace"), scripts[0].name) if scripts else None
    question = AskedQuestion(
        packages=(),
        command=command,
        files=tuple(files),
        with_packages=tuple(flags.with_packages or ()),
        rate=asked_rate(flags.rate, always=flags.always),
        inline=inline or InlineMetadata(),
        channels=tuple(flags.channel or ()),
        prereleases=flags.pre,
        yanked=flags.yanked,
        step=flags.step,
        timeout=flags.timeout,
        gpus=_gpus_of_a_trial(flags.gpus),
        env=environment_variables(flags.env or ()),
        confidence=flags.confidence,
        name=flags.name,
        index=flags.index,
        extra_indexes=_named_indexes(flags.extra_index or ()),
        find_links=tuple(
            one if "://" in one else str((folder / Path(one).expanduser()).resolve())
            for one in flags.find_links or ()
        ),
        exclude_newer=flags.exclude_newer,
    )
    return question, files


def _named_indexes(texts: Sequence[str]) -> dict[str, str]:
    """Return the indexes of `[NAME=]URL`, those without a name as `extra-1`, `extra-2`."""
    found = {}
    for number, text in enumerate(texts, start=1):
        name, equals, url = text.partition("=")
        if not equals or ":" in name or "/" in name:
            name, url = f"extra-{number}", text
        found[name] = url
    return found


def _pythons(question: AskedQuestion) -> Callable[[], Iterable[str]]:
    """Return what lists the Pythons on this machine; those of conda packages come from a channel."""
    return tuple if question.channels else installed_pythons


def own_words() -> str:
    """Return the command as it was given, without secrets; "" if it is no single line."""
    return "" if any("\n" in word for word in sys.argv[1:]) else own_command(sys.argv[1:])


def _gpus_of_a_trial(text: str | None) -> float:
    """`--gpus 1` or `0.25` of a question is what a trial needs; `0,2` names devices, one for each trial."""
    return 1 if text is not None and not _is_number(text) else float(text or 0)


def devices(flags: Flags) -> str | None:
    """Return the devices that `--gpus` names, if it names any."""
    return None if flags.asks and flags.gpus is not None and _is_number(flags.gpus) else flags.gpus


def _is_number(gpus: str) -> bool:
    return re.fullmatch(r"[1-9]\d*|0?\.\d*[1-9]\d*", gpus) is not None


def kept(text: str, files: Mapping[str, Path], save: Path | None, *, quiet: bool) -> Path:
    """Write a matrix and its files where a study finds them again, and show it.

    Args:
        text: Of the matrix.
        files: Name beside the matrix to where it lies now.
        save: Where the user wants the matrix; None for a folder of ours.
        quiet: Do not show it.

    Raises:
        UsageError: The question makes no matrix, or the file is there already with another content.
    """
    contents = {name: place.read_bytes() for name, place in files.items()}
    saved_before = save is not None and save.exists()
    if save is None:
        path = _own_folder(text, contents, files) / "matrix.yaml"
    else:
        path = save
        if save.is_file() and _meaning(save.read_text("utf-8", "replace")) != _meaning(text):
            raise UsageError(
                f"{save} exists, and asks something else", remedy="name another file, or remove it first"
            )
        for name, content in contents.items():
            beside = save.absolute().parent / name
            if beside.is_file() and beside.read_bytes() == content:
                continue
            if beside.exists():
                raise UsageError(f"{beside} exists, and is another file", remedy="name a matrix elsewhere")
            beside.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(files[name], beside)
        deliver(text, save)
        if shared_matrix_text(text) != text and save.is_file():
            save.chmod(0o600)
    try:
        load_matrix(path)
    except MatrixError as error:
        # A question that is refused must not stand in the way of the corrected one.
        if save is None:
            shutil.rmtree(path.parent, ignore_errors=True)
        elif not saved_before:
            save.unlink(missing_ok=True)
        raise UsageError(
            "what was asked makes no matrix:\n  " + "\n  ".join(error.problems),
            remedy="correct the flags, and give the command again",
        ) from None
    if not quiet:
        shown = "\n".join(
            f"  {line}" for line in shared_matrix_text(text).rstrip().splitlines() if not line.startswith("#")
        )
        say(f"asked as the matrix {path}:\n{shown}", sys.stderr)
    return path


def _own_folder(text: str, contents: Mapping[str, bytes], files: Mapping[str, Path]) -> Path:

    digest = hashlib.sha256(_meaning(text).encode())
    for name in sorted(contents):
        digest.update(name.encode() + b"\0" + hashlib.sha256(contents[name]).digest())
    root = Path(os.environ.get("BISECT_ENV_ASKED") or platformdirs.user_data_path("bisect-env") / "asked")
    target = root.absolute() / digest.hexdigest()[:16]
    if target.is_dir():
        return target
    # Whole or not at all: another command may ask the same at the same moment.
    beside = root / f".{target.name}.{secrets.token_hex(4)}"
    try:
        beside.mkdir(parents=True)
        for name, content in contents.items():
            place = beside / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
            shutil.copymode(files[name], place)
        (beside / "matrix.yaml").write_text(text, "utf-8")
        # It may hold the values of variables.
        (beside / "matrix.yaml").chmod(0o600)
        beside.rename(target)
    except OSError:
        shutil.rmtree(beside, ignore_errors=True)
        if not target.is_dir():
            raise
    return target


def _meaning(text: str) -> str:
    """Return a matrix without its comments: the same question given in other words is the same."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))
