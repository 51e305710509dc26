"""What uv does for a prefix: an empty environment, and wheels in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bisect_env.environments import pylock
from bisect_env.environments.failures import UnbuildableError
from bisect_env.environments.interpreters import Interpreter
from bisect_env.environments.lock import LockedPackage
from bisect_env.environments.process import Finished
from bisect_env.environments.settings import without_credentials
from bisect_env.environments.uv_tool import Uv, is_transient, plain_words


def make_empty(uv: Uv, place: Path, interpreter: Interpreter, timeout: float) -> None:
    """Make an environment without packages.

    Raises:
        UnbuildableError: uv cannot.
    """
    # Relocatable, for scripts in bin/ are to work after the rename.
    args: list[str | Path] = ["venv", "--relocatable", "--no-project", "--quiet"]
    _run(uv, [*args, "-p", interpreter.path, place], place.parent, timeout, builds=False)


def install(
    uv: Uv, place: Path, packages: Sequence[LockedPackage], timeout: float, *, date: str | None = None
) -> None:
    """Install packages, and nothing that they depend on.

    Args:
        uv: With the cache that their archives are kept in.
        place: An environment.
        packages: With the addresses that archives are taken from.
        timeout: Seconds.
        date: Newest upload that what a source distribution is built with may have; None for any.

    Raises:
        UnbuildableError: It cannot be done; `transient` tells whether that says anything about the lock.
    """
    if not packages:
        return
    builds = any(package.is_source for package in packages)
    listing = place / "pylock.toml"
    listing.write_text(pylock.text(packages, without_credentials(uv.index)), "utf-8")
    args: list[str | Path] = ["pip", "install", "--preview-features", "pylock", "--no-deps"]
    args += ["--link-mode", "hardlink", "-p", place / "bin" / "python", "-r", listing]
    if not builds:
        args.append("--no-build")
    elif date is not None:
        args += ["--exclude-newer", date]
    _run(uv, args, place, timeout, builds=builds)
    listing.unlink()
    # uv's own, against others who install here at the same time: nobody ever does.
    (place / ".lock").unlink(missing_ok=True)


def _run(uv: Uv, args: list[str | Path], cwd: Path, timeout: float, *, builds: bool) -> None:
    finished = uv.run(args, cwd=cwd, timeout=timeout)
    if finished.returncode != 0 or finished.timed_out:
        raise _failure(finished, timeout, builds=builds)


def _failure(finished: Finished, timeout: float, *, builds: bool) -> UnbuildableError:
    words = plain_words(finished.stderr)
    if finished.timed_out:
        # A download that stalls says nothing about the environment; a build that never ends does.
        return UnbuildableError(f"not finished in {timeout:.0f} s: {words}", transient=not builds)
    if finished.returncode < 0:
        return UnbuildableError(f"uv was killed by signal {-finished.returncode}: {words}", transient=True)
    return UnbuildableError(words or f"uv ended with {finished.returncode}", transient=is_transient(words))
