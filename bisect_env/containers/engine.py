"""Finds podman or docker on this host, with the options that they need here."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bisect_env.errors import InfrastructureError, UsageError

ENGINE = "BISECT_ENV_CONTAINER_ENGINE"
"""Variable that names the engine, with options that go before its subcommand: `podman --runtime runc`."""
RUN_ARGS = "BISECT_ENV_CONTAINER_ARGS"
"""Variable with options for its `run`, such as `--ulimit nofile=1024:1024`."""

_KNOWN = ("podman", "docker")
_QUICK = 30.0
"""Seconds for a question; an engine whose daemon hangs must not hang the study."""
_REMEDY = f"install podman or docker, start its daemon, or name the engine with {ENGINE}"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command of the engine ended.

    Attributes:
        returncode: Its exit code; None when it took too long and was ended.
        stdout: Decoded.
        stderr: Decoded.
    """

    returncode: int | None
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        """Whether it did what it was asked to."""
        return self.returncode == 0

    @property
    def words(self) -> str:
        """Why it failed."""
        if self.returncode is None:
            return "no answer in time"
        return (self.stderr.strip() or self.stdout.strip() or f"exit code {self.returncode}")[-2000:]


@dataclass(frozen=True, slots=True)
class Engine:
    """A container engine that answers.

    Attributes:
        kind: `podman` or `docker`; the two differ in a few options.
        command: Absolute path and options that go before the subcommand.
        run_args: Further options of `run`.
    """

    kind: str
    command: tuple[str, ...]
    run_args: tuple[str, ...] = ()

    def argv(self, *args: str) -> list[str]:
        """The argument vector of one of its commands."""
        return [*self.command, *args]

    def ask(self, *args: str, timeout: float = _QUICK) -> CommandResult:
        """Run one of its commands to the end.

        Args:
            args: Subcommand and arguments.
            timeout: Seconds.
        """
        return ask(self.argv(*args), timeout)


def ask(argv: Sequence[str], timeout: float = _QUICK) -> CommandResult:
    """Run a command to its end: an engine's, or that of a tool which answers and leaves nothing behind.

    Args:
        argv: What to run.
        timeout: Seconds.
    """
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return CommandResult(None, "", "")
    except OSError as error:
        return CommandResult(127, "", str(error))
    return CommandResult(done.returncode, done.stdout, done.stderr)


def find_engine(environ: Mapping[str, str] | None = None) -> Engine:
    """The engine of this host; looked for once in the life of the process.

    Args:
        environ: Environment variables; this process's own if None.

    Raises:
        UsageError: A variable cannot be read.
        InfrastructureError: There is none, or the one that is named does not work.
    """
    environ = os.environ if environ is None else environ
    return find_named(environ.get(ENGINE, ""), environ.get(RUN_ARGS, ""), environ.get("PATH", os.defpath))


@functools.cache
def find_named(named: str, run_args: str, path: str) -> Engine:
    """Find the engine by the variables that `find_engine` reads; the answer is kept.

    Raises:
        UsageError: As there.
    """
    options = _words(RUN_ARGS, run_args)
    candidates = [_words(ENGINE, named)] if named.strip() else [(name,) for name in _KNOWN]
    tried = []
    for program, *rest in candidates:
        found = shutil.which(program, path=path)
        if found is None:
            tried.append(f"{program}: not on this machine")
            continue
        # A client without its daemon is there and yet of no use: `version` asks both.
        answer = ask([found, *rest, "version"])
        if answer.ok:
            said = ask([found, "--version"]).stdout.lower()
            kind = "podman" if "podman" in said else "docker"
            return Engine(kind, (found, *rest), options)
        tried.append(f"{program}: {answer.words.splitlines()[-1]}")
    raise InfrastructureError(
        "the matrix asks for containers, and no container engine works here",
        tried="\n".join(tried),
        remedy=_REMEDY,
    )


def _words(name: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(
            f"{name} cannot be split into words: {error}", remedy="close the quotes in it"
        ) from None
