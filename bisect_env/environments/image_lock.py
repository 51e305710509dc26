"""Represents a container image as a package of a lock, whose hash is the image's digest.

Code that compares, stores and shows locks thus works for images, too. If a lock contains only an image,
trials use the Python and packages of that image. If it contains further packages, these are installed in a
prefix on the host, which is mounted into the image.
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
"""Directories that cannot be mounted into an image, because they would hide the image's own files."""


def locked_image(name: str) -> LockedPackage:
    """Look up a container image by its name, and return the image as a package of a lock.

    Raises:
        UnsolvableError: There is no such image.
        InfrastructureError: The container engine or the registry fails.
    """
    try:
        reference = resolve_image(find_engine(), name)
    except NoSuchImageError as error:
        raise UnsolvableError(str(error)) from error
    digest = reference.rpartition("sha256:")[2]
    # An image that only this host has is known by its ID.
    shown = image_repository(reference) if "@" in reference else "image"
    return LockedPackage(shown, digest[:_SHORT], IMAGE, reference, digest)


def without_image(lock: Lock) -> Lock:
    """Return a copy of a lock without the container image.

    This function is pure.
    """
    packages = [package for package in lock.packages if not package.is_image]
    made = make_lock(lock.python, lock.platform, packages, lock.exclude_newer)
    return replace(made, limits=lock.limits)


def moved_tag(name: str, recorded: str) -> str | None:
    """Return a warning if an image name now refers to a different image than `recorded`.

    Args:
        name: Image name from the matrix.
        recorded: Reference of the image that the study uses.

    Returns:
        The text of the warning; None if the image is the same or cannot be looked up.
    """
    try:
        now = look_up_image(find_engine(), name)
    except (NoSuchImageError, InfrastructureError):
        return None  # trials use the recorded image, so the name need not exist any more
    if now is None or now == recorded:
        return None
    return f"the image {name} is {_digest(now)} now; this study goes on with {_digest(recorded)}"


def _digest(reference: str) -> str:
    return f"sha256:{reference.rpartition('sha256:')[2][:_SHORT]}"


def ensure_environment(lock: Lock, **options: Any) -> Prefix:
    """Install the packages of a lock on this host, and pull the lock's container image if it has one.

    Packages and images that this host already has are reused.

    Args:
        lock: The lock.
        options: Keyword arguments for `ensure_prefix`.

    Returns:
        The installed environment. If the lock has an image, the attribute `inside` names it.

    Raises:
        NoPrefixError: See `ensure_prefix`.
        UnbuildableError: The environment cannot be built or the image does not exist.
        InterpreterNotFoundError: See `ensure_prefix`.
        InfrastructureError: See `ensure_prefix`; or no container engine works on this host.
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
    """Return the directory outside a prefix in which its Python is installed, to be mounted into an image.

    Return None if Python is inside the prefix itself.

    Raises:
        InfrastructureError: That directory cannot be mounted into an image.
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
