"""Treats a container image as an environment: one package whose hash is the image's digest.

So everything that compares, stores and shows locks knows images, too. A lock that holds an image and nothing
else is that image's own environment; one that holds more is a prefix that is mounted into the image.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bisect_env.containers.engine import (
    NoSuchImageError,
    ensure_image,
    find_engine,
    image_repository,
    look_up_image,
    prune_containers,
    resolve_image,
)
from bisect_env.containers.trial import Inside
from bisect_env.environments.lock import IMAGE, Lock, LockedPackage, UnbuildableError, UnsolvableError
from bisect_env.environments.lockfiles import make_lock
from bisect_env.environments.prefix import Prefix, ensure_prefix
from bisect_env.errors import InfrastructureError

_SHORT = 12
_SHARED = (Path("/"), Path("/usr"), Path("/usr/local"))
"""Where an interpreter cannot be mounted from: the image has its own things there."""


def image_package(reference: str) -> LockedPackage:
    """Return an image as a package of a lock. Pure.

    Args:
        reference: `repository@sha256:…`, or the ID of an image that only this host has.
    """
    digest = reference.rpartition("sha256:")[2]
    name = image_repository(reference) if "@" in reference else "image"
    return LockedPackage(name, digest[:_SHORT], IMAGE, reference, digest)


def locked_image(name: str) -> LockedPackage:
    """Return the image that a name refers to at present, as a package of a lock.

    Raises:
        UnsolvableError: There is no such image.
        InfrastructureError: The engine, or the registry, fails.
    """
    try:
        return image_package(resolve_image(find_engine(), name))
    except NoSuchImageError as error:
        raise UnsolvableError(str(error)) from error


def without_image(lock: Lock) -> Lock:
    """Return a lock without its image: the packages that it holds beside it. Pure."""
    packages = [package for package in lock.packages if not package.is_image]
    made = make_lock(lock.python, lock.platform, packages, lock.exclude_newer)
    return replace(made, limits=lock.limits)


def moved_tag(name: str, recorded: str) -> str | None:
    """Return a warning if a name refers to another image than when the study began.

    Args:
        name: As the matrix says.
        recorded: The reference with which the study goes on.
    """
    try:
        now = look_up_image(find_engine(), name)
    except (NoSuchImageError, InfrastructureError):
        return None  # what trials use is recorded; that the name is gone hurts nobody
    if now is None or now == recorded:
        return None
    return f"the image {name} is {_digest(now)} now; this study goes on with {_digest(recorded)}"


def _digest(reference: str) -> str:
    return f"sha256:{reference.rpartition('sha256:')[2][:_SHORT]}"


def ensure_environment(lock: Lock, **options: Any) -> Prefix:
    """Make the environment of a lock on this host: a prefix, an image, or a prefix in an image.

    Args:
        lock: As solved.
        options: Of `ensure_prefix`.

    Raises:
        NoPrefixError: As `ensure_prefix`.
        UnbuildableError: It cannot be had; `transient` tells whether that says anything about it.
        InterpreterNotFoundError: As `ensure_prefix`.
        InfrastructureError: As `ensure_prefix`; or no engine works on this host.
    """
    reference = lock.image
    if not reference:
        return ensure_prefix(lock, **options)
    if options.get("existing"):
        return ensure_prefix(without_image(lock), **options)
    engine = find_engine()
    try:
        if ensure_image(engine, reference):
            prune_containers(engine)
    except NoSuchImageError as error:
        raise UnbuildableError(str(error), transient=False) from error
    if not lock.python:
        return Prefix(Path("/"), Path("python"), inside=Inside(engine, reference))
    prefix = ensure_prefix(without_image(lock), **options)
    try:
        interpreter = _interpreter(prefix)
    except InfrastructureError:
        prefix.release()
        raise
    return replace(prefix, inside=Inside(engine, reference, prefix.path, interpreter))


def _interpreter(prefix: Prefix) -> Path | None:
    """Return where the prefix's Python lies, None for the prefix itself.

    Raises:
        InfrastructureError: In a place that cannot be mounted into an image.
    """
    base = prefix.python.resolve().parent.parent
    if base.is_relative_to(prefix.path.resolve()):
        return None
    if base in _SHARED:
        raise InfrastructureError(
            f"the Python of this environment lies in {base}, which an image has itself",
            remedy="have uv fetch a Python of that version (`uv python install`), or take Python from conda",
        )
    return base
