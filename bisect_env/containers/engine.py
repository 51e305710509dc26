"""Finds the container engine (podman or docker) of this host, and pulls the images that a matrix names."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.running import run_tool

ENGINE = "BISECT_ENV_CONTAINER_ENGINE"
"""Environment variable with the engine and its global options, for example `podman --runtime runc`."""
RUN_ARGS = "BISECT_ENV_CONTAINER_ARGS"
"""Environment variable with options for the engine's `run`, for example `--ulimit nofile=1024:1024`."""

_KNOWN = ("podman", "docker")
_QUICK = 30.0
"""Default time limit of an engine command, in seconds: if the daemon hangs, the study must not hang."""
_REMEDY = f"install podman or docker, start its daemon, or name the engine with {ENGINE}"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command of the container engine: its exit code and its output.

    Attributes:
        returncode: Exit code; None if the command exceeded its time limit and was killed.
        stdout: Standard output as text.
        stderr: Standard error as text.
    """

    returncode: int | None
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        """Return whether the command succeeded."""
        return self.returncode == 0

    @property
    def words(self) -> str:
        """Return the error message of the command, for messages to the user."""
        if self.returncode is None:
            return "no answer in time"
        return (self.stderr.strip() or self.stdout.strip() or f"exit code {self.returncode}")[-2000:]


@dataclass(frozen=True, slots=True)
class Engine:
    """A container engine (podman or docker) that is installed and responds.

    Attributes:
        kind: `podman` or `docker`; the two differ in a few options.
        command: Absolute path of the program, followed by its global options.
        run_args: Additional options for the subcommand `run`.
    """

    kind: str
    command: tuple[str, ...]
    run_args: tuple[str, ...] = ()

    def argv(self, *args: str) -> list[str]:
        """Return the words of an engine command line, including the program and its global options."""
        return [*self.command, *args]

    def ask(self, *args: str, timeout: float = _QUICK) -> CommandResult:
        """Run an engine command and return its result.

        Args:
            args: Subcommand and its arguments.
            timeout: Time limit in seconds.
        """
        return ask(self.argv(*args), timeout)


def ask(argv: Sequence[str], timeout: float = _QUICK) -> CommandResult:
    """Run a command with a time limit, and return its exit code and output.

    Args:
        argv: Program and arguments.
        timeout: Time limit in seconds.

    Returns:
        The result; its `returncode` is None after a timeout, and 127 if the program cannot be started.
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


def _ask_registry(argv: Sequence[str], timeout: float) -> CommandResult:
    """Run a command that waits for an image registry, and return its result as `ask` does.

    The command is killed when the command of bisect-env ends, because a registry may never answer.
    """
    try:
        done = run_tool(argv, env=os.environ, cwd=Path("/"), timeout=timeout)
    except OSError as error:
        return CommandResult(127, "", str(error))
    return CommandResult(None if done.timed_out else done.returncode, done.stdout, done.stderr)


def find_engine(environ: Mapping[str, str] | None = None) -> Engine:
    """Return the container engine of this host.

    The result is cached for the lifetime of the process.

    Args:
        environ: Environment variables; None to use the variables of this process.

    Raises:
        UsageError: The value of a variable has unbalanced quotes.
        InfrastructureError: No engine works here, or the engine that `environ` names does not work.
    """
    environ = os.environ if environ is None else environ
    return find_named(environ.get(ENGINE, ""), environ.get(RUN_ARGS, ""), environ.get("PATH", os.defpath))


@functools.cache
def find_named(named: str, run_args: str, path: str) -> Engine:
    """Return the engine called `named` or, if `named` is "", the first of podman and docker that works.

    The arguments are the values of the environment variables that `find_engine` reads. The result is cached.

    Raises:
        UsageError: `named` or `run_args` has unbalanced quotes.
        InfrastructureError: No engine works.
    """
    options = _words(RUN_ARGS, run_args)
    candidates = [_words(ENGINE, named)] if named.strip() else [(name,) for name in _KNOWN]
    tried = []
    for program, *rest in candidates:
        found = shutil.which(program, path=path)
        if found is None:
            tried.append(f"{program}: not on this machine")
            continue
        # `version` asks the client and its daemon, so it fails if the daemon does not run.
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


# --------------------------------------------------------------------------------------------------
# Resolves an image name to a digest, and pulls that image onto this host.
#
# A tag such as `latest` may refer to another image tomorrow. A study therefore locks the digest, with which
# the engine finds or pulls exactly the same image on every host. An image that is in no registry (built or
# imported here) is locked by its ID or by the digest that the local engine assigned; only this host has it.

PULL_TIMEOUT = 3600.0
"""Time limit for pulling one image, in seconds. Images with CUDA and RAPIDS have 10 GB."""
_MISSING = re.compile(
    r"manifest unknown|name unknown|not found|no such image|image not known|does not exist"
    r"|requested access to the resource is denied|pull access denied",
    re.IGNORECASE,
)
_NO_LOGIN = re.compile(r"unauthorized|authentication required|no basic auth credentials", re.IGNORECASE)
_DIGEST = re.compile(r"(?:^|@)sha256:[0-9a-f]{64}$")
_BROKEN = re.compile(r"invalid reference format|repository name must be", re.IGNORECASE)


class NoSuchImageError(Exception):
    """An error that is raised when no image has the given name.

    Its text is the engine's message.
    """


def full_image_name(name: str) -> str:
    """Return an image's name with its registry, such as `docker.io/library/python` for `python`.

    The function only computes; it does no input or output.
    """
    first, slash, _ = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def image_repository(name: str) -> str:
    """Return the name of an image without tag and digest, such as `python` for `python:3.12`.

    The function only computes; it does no input or output.
    """
    bare = name.partition("@")[0]
    head, colon, tag = bare.rpartition(":")
    return head if colon and "/" not in tag else bare


def resolve_image(engine: Engine, name: str) -> str:
    """Return an exact reference (digest or ID) to the image that a name stands for at present.

    The reference is `repository@sha256:…`, or the ID of a local image. An image that is already on this host
    is used without asking the registry. Otherwise skopeo asks the registry without downloading the image. If
    skopeo is not installed, the image is pulled.

    Args:
        engine: The container engine.
        name: Image name from the matrix, after its placeholders were replaced by values.

    Raises:
        NoSuchImageError: No image has this name.
        InfrastructureError: The registry or the engine fails.
    """
    if (reference := look_up_image(engine, name)) is not None:
        return reference
    full = full_image_name(name)
    answer = _ask_registry(engine.argv("pull", "--quiet", full), PULL_TIMEOUT)
    if answer.ok and (found := _local(engine, full)) is not None:
        return _reference(found, full)
    raise _failure(engine, name, answer, " ".join(engine.argv("pull", full)))


def look_up_image(engine: Engine, name: str) -> str | None:
    """Return an exact reference to an image without downloading it. Return None if a download is needed.

    The reference is as for `resolve_image`. Asking the registry without a download needs skopeo.

    Raises:
        NoSuchImageError: No image has this name.
        InfrastructureError: The registry or the engine fails.
    """
    if _DIGEST.search(name):
        return name if name.startswith("sha256:") else full_image_name(name)
    if (found := _local(engine, name)) is not None:
        return _reference(found, name)
    full = full_image_name(name)
    if full.startswith("localhost/"):
        raise NoSuchImageError(f"image {name}: {engine.kind} has none of that name")
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        return None
    argv = [skopeo, "inspect", "--format", "{{.Digest}}", f"docker://{full}"]
    answer = _ask_registry(argv, 120.0)
    if answer.ok:
        return f"{image_repository(full)}@{answer.stdout.strip()}"
    raise _failure(engine, name, answer, " ".join(argv))


def _failure(
    engine: Engine, name: str, answer: CommandResult, command: str
) -> NoSuchImageError | InfrastructureError:
    if _NO_LOGIN.search(answer.words):
        # The image may or may not exist: a registry may refuse every user who is not logged in.
        registry = full_image_name(name).partition("/")[0]
        return InfrastructureError(
            f"the registry of the image {name} wants a login: {answer.words.splitlines()[-1]}",
            tried=command,
            remedy=f"`{engine.kind} login {registry}`, then give the same command again",
        )
    if _MISSING.search(answer.words) or _BROKEN.search(answer.words):
        return NoSuchImageError(f"image {name}: {answer.words}")
    return InfrastructureError(
        f"the image {name} cannot be looked up: {answer.words.splitlines()[-1]}",
        tried=command,
        remedy="see that the registry can be reached, or pull the image yourself, then go on",
    )


def ensure_image(engine: Engine, reference: str) -> bool:
    """Pull an image unless the image is already on this host.

    Args:
        engine: The container engine.
        reference: The exact image, as returned by `resolve_image`.

    Returns:
        True if the image was pulled, False if it was already here.

    Raises:
        NoSuchImageError: The image does not exist, or only another host has it.
        InfrastructureError: The registry or the engine fails; the image may still exist.
    """
    if _local(engine, reference) is not None:
        return False
    if "@" not in reference or reference.startswith("localhost/"):
        raise NoSuchImageError(
            f"the image {reference} is known to the host alone where the study was locked; "
            "push it to a registry and name it there, or load it on this host too"
        )
    answer = _ask_registry(engine.argv("pull", "--quiet", reference), PULL_TIMEOUT)
    if answer.ok:
        return True
    raise _failure(engine, reference, answer, " ".join(engine.argv("pull", reference)))


def prune_containers(engine: Engine, *, label: str | None = None, age: str = "24h") -> CommandResult:
    """Remove old trial containers that have stopped.

    Only commands that were killed leave containers behind.

    Args:
        engine: The container engine.
        label: Remove only containers with this label; None to remove the containers of all trials.
        age: Minimum time since a container was made, as the engine writes it, such as `24h`.

    Returns:
        The engine's answer. Leftover containers do no harm, so callers may ignore a failure.
    """
    filters = (f"label={label or LABEL}", f"until={age}")
    return engine.ask("container", "prune", "--force", *(f"--filter={text}" for text in filters))


LABEL = "bisect-env.trial"
"""Name of the label that every container of bisect-env has. The label's value is the ID of the trial."""


def _local(engine: Engine, name: str) -> dict[str, Any] | None:
    answer = engine.ask("image", "inspect", name)
    if not answer.ok:
        return None
    try:
        (found,) = json.loads(answer.stdout)
    except ValueError as error:
        raise InfrastructureError(
            f"{engine.kind} describes the image {name} in a way that cannot be read"
        ) from error
    return dict(found)


def _reference(found: dict[str, Any], name: str) -> str:
    digests = [str(text) for text in found.get("RepoDigests") or ()]
    wanted = {
        image_repository(name),
        image_repository(full_image_name(name)),
        f"localhost/{image_repository(name)}",
    }
    for text in digests:
        if image_repository(text) in wanted:
            return text
    identity = str(found["Id"])
    return identity if ":" in identity else f"sha256:{identity}"
