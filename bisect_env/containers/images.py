"""Resolves the image that a matrix names to one content, and gets that image onto this host.

A tag is no content: it may point elsewhere tomorrow. What a study locks is the digest, under which the
engine finds or pulls the same image wherever a trial runs. An image that no registry knows (built or
imported here) is locked by its ID, or by the digest that the engine made for it; only this host has it.
"""

from __future__ import annotations

import json
import re
import shutil
from typing import Any

from bisect_env.containers.engine import CommandResult, Engine, ask
from bisect_env.errors import InfrastructureError

PULL_TIMEOUT = 3600.0
"""Seconds for one image; those with CUDA and RAPIDS take 10 GB."""
_MISSING = re.compile(
    r"manifest unknown|name unknown|not found|no such image|image not known|does not exist"
    r"|requested access to the resource is denied|pull access denied|unauthorized",
    re.IGNORECASE,
)
_DIGEST = re.compile(r"(?:^|@)sha256:[0-9a-f]{64}$")
_BROKEN = re.compile(r"invalid reference format|repository name must be", re.IGNORECASE)


class NoSuchImageError(Exception):
    """No image has that name; its text is the engine's."""


def full_name(name: str) -> str:
    """The name with its registry, as docker completes it: podman may be set up to complete none. Pure."""
    first, slash, _ = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def repository(name: str) -> str:
    """The name without tag and digest. Pure."""
    bare = name.partition("@")[0]
    head, colon, tag = bare.rpartition(":")
    return head if colon and "/" not in tag else bare


def resolve(engine: Engine, name: str) -> str:
    """The content that a name stands for now: `repository@sha256:…`, or the ID of a local image.

    An image that is here is taken as it is. Otherwise the registry is asked, through skopeo where that is
    installed, so that nothing large is fetched before it is needed, or else by pulling.

    Args:
        engine: Holds the images.
        name: As the matrix says, values filled in.

    Raises:
        NoSuchImageError: There is no such image.
        InfrastructureError: The registry, or the engine, fails.
    """
    if (reference := look_up(engine, name)) is not None:
        return reference
    full = full_name(name)
    answer = engine.ask("pull", "--quiet", full, timeout=PULL_TIMEOUT)
    if answer.ok and (found := _local(engine, full)) is not None:
        return _reference(found, full)
    raise _failure(name, answer, " ".join(engine.argv("pull", full)))


def look_up(engine: Engine, name: str) -> str | None:
    """As `resolve`, but nothing is fetched: None where only that would tell.

    Raises:
        NoSuchImageError: There is no such image.
        InfrastructureError: The registry, or the engine, fails.
    """
    if _DIGEST.search(name):
        return name if name.startswith("sha256:") else full_name(name)
    if (found := _local(engine, name)) is not None:
        return _reference(found, name)
    full = full_name(name)
    if full.startswith("localhost/"):
        raise NoSuchImageError(f"image {name}: {engine.kind} has none of that name")
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        return None
    argv = [skopeo, "inspect", "--format", "{{.Digest}}", f"docker://{full}"]
    answer = ask(argv, timeout=120.0)
    if answer.ok:
        return f"{repository(full)}@{answer.stdout.strip()}"
    raise _failure(name, answer, " ".join(argv))


def _failure(name: str, answer: CommandResult, command: str) -> NoSuchImageError | InfrastructureError:
    if _MISSING.search(answer.words) or _BROKEN.search(answer.words):
        return NoSuchImageError(f"image {name}: {answer.words}")
    return InfrastructureError(
        f"the image {name} cannot be looked up: {answer.words.splitlines()[-1]}",
        tried=command,
        remedy="see that the registry can be reached, or pull the image yourself, then go on",
    )


def ensure(engine: Engine, reference: str) -> bool:
    """Have the image of a reference on this host.

    Args:
        engine: Holds the images.
        reference: As `resolve` gave it.

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
    if _MISSING.search(answer.words):
        raise NoSuchImageError(f"image {reference}: {answer.words}")
    raise InfrastructureError(f"the image {reference} cannot be pulled: {answer.words}")


def drop_leftovers(engine: Engine) -> None:
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
    wanted = {repository(name), repository(full_name(name)), f"localhost/{repository(name)}"}
    for text in digests:
        if repository(text) in wanted:
            return text
    identity = str(found["Id"])
    return identity if ":" in identity else f"sha256:{identity}"
