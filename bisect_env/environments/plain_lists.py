"""A lock in the words of tools that everybody has: pip's requirements, conda's explicit list. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from bisect_env.environments.lock import LockedPackage


def requirements_text(packages: Sequence[LockedPackage]) -> str:
    """The wheels of a lock with their hashes, for `pip install --no-deps` or `uv pip sync`."""
    wheels = [package for package in packages if package.manager == "pip"]
    lines = [f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}" for wheel in wheels]
    return "\n".join(["# Exact files, for `pip install --no-deps` or `uv pip sync`.", *lines]) + "\n"


def explicit_text(packages: Sequence[LockedPackage]) -> str:
    """The conda packages of a lock, for `conda create --file`."""
    lines = [f"{p.url}#{p.md5}" if p.md5 else p.url for p in packages if p.is_conda]
    return "\n".join(["# For `conda create --file`.", "@EXPLICIT", *lines]) + "\n"


def plain_lists(packages: Sequence[LockedPackage]) -> dict[str, str]:
    """The lists that a lock needs, by the name that files with them mostly have."""
    lists = {}
    if any(package.is_conda for package in packages):
        lists["explicit.txt"] = explicit_text(packages)
    if any(package.manager == "pip" for package in packages):
        lists["requirements.txt"] = requirements_text(packages)
    return lists
