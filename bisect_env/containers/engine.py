"""Finds podman or docker on this host, and gets the images that matrices name onto it."""

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
from typing import Any

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
        """Return whether the command succeeded."""
        return self.returncode == 0

    @property
    def words(self) -> str:
        """Return why the command failed."""
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
        """Return the argument vector of one of its commands."""
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
    """Return the engine of this host; looked for once in the life of the process.

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


# --------------------------------------------------------------------------------------------------
# Resolves the image that a matrix names to one content, and gets that image onto this host.
#
# A tag is no content: it may point elsewhere tomorrow. What a study locks is the digest, under which the
# engine finds or pulls the same image wherever a trial runs. An image that no registry knows (built or
# imported here) is locked by its ID, or by the digest that the engine made for it; only this host has it.

PULL_TIMEOUT = 3600.0
"""Seconds for one image; those with CUDA and RAPIDS take 10 GB."""
_MISSING = re.compile(
    r"manifest unknown|name unknown|not found|no such image|image not known|does not exist"
    r"|requested access to the resource is denied|pull access denied",
    re.IGNORECASE,
)
_NO_LOGIN = re.compile(r"unauthorized|authentication required|no basic auth credentials", re.IGNORECASE)
_DIGEST = re.compile(r"(?:^|@)sha256:[0-9a-f]{64}$")
_BROKEN = re.compile(r"invalid reference format|repository name must be", re.IGNORECASE)


class NoSuchImageError(Exception):
    """No image has that name; its text is the engine's."""


def full_image_name(name: str) -> str:
    """Return the name with its registry, completed as docker does; podman may complete none. Pure."""
    first, slash, _ = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def image_repository(name: str) -> str:
    """Return the name without tag and digest. Pure."""
    bare = name.partition("@")[0]
    head, colon, tag = bare.rpartition(":")
    return head if colon and "/" not in tag else bare


def resolve_image(engine: Engine, name: str) -> str:
    """Return the content that a name stands for now: `repository@sha256:…`, or the ID of a local image.

    An image that is here is taken as it is. Otherwise the registry is asked, through skopeo where that is
    installed, so that nothing large is fetched before it is needed, or else by pulling.

    Args:
        engine: Holds the images.
        name: As the matrix says, values filled in.

    Raises:
        NoSuchImageError: There is no such image.
        InfrastructureError: The registry, or the engine, fails.
    """
    if (reference := look_up_image(engine, name)) is not None:
        return reference
    full = full_image_name(name)
    answer = engine.ask("pull", "--quiet", full, timeout=PULL_TIMEOUT)
    if answer.ok and (found := _local(engine, full)) is not None:
        return _reference(found, full)
    raise _failure(engine, name, answer, " ".join(engine.argv("pull", full)))


def look_up_image(engine: Engine, name: str) -> str | None:
    """Resolve an image as `resolve_image` does, but without fetching; None if only fetching would tell.

    Raises:
        NoSuchImageError: There is no such image.
        InfrastructureError: The registry, or the engine, fails.
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
    answer = ask(argv, timeout=120.0)
    if answer.ok:
        return f"{image_repository(full)}@{answer.stdout.strip()}"
    raise _failure(engine, name, answer, " ".join(argv))


def _failure(
    engine: Engine, name: str, answer: CommandResult, command: str
) -> NoSuchImageError | InfrastructureError:
    if _NO_LOGIN.search(answer.words):
        # Says nothing about the image: a registry may answer so to everybody who is not logged in.
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
    """Make sure that the image of a reference is on this host.

    Args:
        engine: Holds the images.
        reference: As `resolve_image` gave it.

    Returns:
        Whether it had to be pulled.

    Raises:
        NoSuchImageError: It cannot be had.
        InfrastructureError: The registry, or the engine, fails; that says nothing about the image.
    """
    if _local(engine, reference) is not None:
        return False
    if "@" not in reference or reference.startswith("localhost/"):
        raise NoSuchImageError(
            f"the image {reference} is known to the host alone where the study was locked; "
            "push it to a registry and name it there, or load it on this host too"
        )
    answer = engine.ask("pull", "--quiet", reference, timeout=PULL_TIMEOUT)
    if answer.ok:
        return True
    raise _failure(engine, reference, answer, " ".join(engine.argv("pull", reference)))


def prune_containers(engine: Engine) -> None:
    """Remove stopped containers of trials whose command was killed, a day after they were made."""
    engine.ask("container", "prune", "--force", "--filter", f"label={LABEL}", "--filter", "until=24h")


LABEL = "bisect-env.trial"
"""Of every container that is ours; its value is the trial's ID."""


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
