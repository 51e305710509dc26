"""Checks that an environment is consistent, for example that all its packages use the same CUDA version."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from bisect_env.environments.lock import Lock, LockedPackage

# --------------------------------------------------------------------------------------------------
# PyPI packages that a conda environment already provides. Pure.

_OTHER_NAMES = {
    "brotli-python": "brotli",
    "dask-core": "dask",
    "matplotlib-base": "matplotlib",
    "msgpack-python": "msgpack",
    "opencv": "opencv-python",
    "py-opencv": "opencv-python",
    "py-xgboost": "xgboost",
    "pytables": "tables",
    "python-duckdb": "duckdb",
    "python-flatbuffers": "flatbuffers",
    "python-graphviz": "graphviz",
    "python-tzdata": "tzdata",
    "python-xxhash": "xxhash",
    "pytorch": "torch",
    "pytorch-cpu": "torch",
    "pytorch-gpu": "torch",
    "seaborn-base": "seaborn",
    "tensorflow-base": "tensorflow",
}
"""Maps names of conda-forge packages to PyPI names, if they differ. Other Python packages have one name."""


def provided_to_pypi(packages: Iterable[LockedPackage]) -> dict[str, str]:
    """Return the PyPI packages that conda packages provide, as a map from PyPI name to version.

    Conda packages that do not depend on Python are left out: the C library `zlib` is not a Python package.
    Versions that are invalid under PEP 440 are left out too.
    """
    provided: dict[str, str] = {}
    for package in packages:
        wants = {name for name, _ in package.dependencies}
        if not wants & {"python", "python_abi"}:
            continue
        name = canonicalize_name(package.name)
        try:
            version = Version(package.version)
        except InvalidVersion:
            continue
        # conda's version `2025b` is a normal release, but PEP 440 reads it as a beta (`2025b0`).
        if not version.is_prerelease or str(version) == package.version:
            provided[_OTHER_NAMES.get(name, name)] = str(version)
    return provided


# --------------------------------------------------------------------------------------------------
# Virtual packages, which describe the host to conda's solver. They do not depend on this host, so that locks
# do not either. Pure.

CUDA_PACKAGES = ("cuda-version", "cudatoolkit", "cuda-toolkit", "cuda")
"""Names of conda packages whose version is the CUDA version."""

NONE = "none"
"""Value in a matrix that removes a virtual package, in place of its version."""

_ARCHITECTURES = {"64": "x86_64", "aarch64": "aarch64", "arm64": "arm64", "ppc64le": "ppc64le"}
_CUDA_SPEC = re.compile(
    rf"\s*({'|'.join(CUDA_PACKAGES)})\s*[=\s]\s*={{0,2}}\s*(\d+(?:\.\d+)?)", re.IGNORECASE
)


def virtual_packages(
    platform: str, cuda: str | None, overrides: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return conda's virtual packages for a platform, as a map from name to version.

    For Linux, the defaults are those of conda-lock: glibc 2.28 (of the oldest systems that current CUDA
    versions support) and the baseline microarchitecture.

    Args:
        platform: conda's name of the platform, such as `linux-64`.
        cuda: CUDA version; None for hosts without CUDA.
        overrides: Versions from the matrix that replace the defaults; `none` removes a package.
    """
    system, _, architecture = platform.partition("-")
    packages = {"__archspec": _ARCHITECTURES.get(architecture, architecture)}
    if system == "linux":
        packages |= {"__unix": "0", "__linux": "5.10", "__glibc": "2.28"}
    elif system == "osx":
        packages |= {"__unix": "0", "__osx": "13.0"}
    else:
        packages |= {"__win": "0"}
    if cuda is not None:
        packages["__cuda"] = cuda
    packages |= overrides or {}
    return {name: value for name, value in sorted(packages.items()) if value != NONE}


def cuda_version(pins: Mapping[str, str], specs: Iterable[str]) -> str | None:
    """Return the pinned CUDA version, such as `12.8`, or None if no conda package pins one.

    Args:
        pins: Maps conda package names to exact versions.
        specs: Additional match specs, such as `cuda-version 12.8`.
    """
    for name in CUDA_PACKAGES:
        if name in pins:
            return ".".join(pins[name].split(".")[:2])
    for spec in specs:
        if match := _CUDA_SPEC.match(spec):
            return match[2]
    return None


# --------------------------------------------------------------------------------------------------
# Warnings about CUDA in a lock or a prefix.
#
# A solver may choose CPU-only builds, or libraries of two CUDA versions, without an error.

_CONDA_BUILD = re.compile(r"(?:^|_)cuda_?(\d{2})\d?(?:_|$|py|h)")
_CPU_BUILD = re.compile(r"(?:^|_)cpu(?:_|$|py)")
_WHEEL_NAME = re.compile(r"-cu(\d{2})\d?$")
_WHEEL_LOCAL = re.compile(r"\+.*?cu(\d{2})\d?")
_RUNTIMES = ("nvidia-cuda-runtime", "cuda-toolkit")
_TORCH_CUDA = re.compile(r"^cuda(?::[^=]+)?\s*=\s*['\"](\d+)\.(\d+)", re.MULTILINE)
_INFO = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(?:-py[\d.]+)?\.(?:dist-info|egg-info)")
_FRAMEWORKS = frozenset(
    {"torch", "pytorch", "libtorch", "jaxlib", "tensorflow", "tensorflow-base", "xgboost", "py-xgboost"}
)
_SHOWN = 3


def cuda_majors(packages: Iterable[LockedPackage]) -> dict[int, list[str]]:
    """Return a map from each CUDA major version to the names of the packages built for that version.

    This function is pure.
    """
    found: dict[int, list[str]] = {}
    for package in packages:
        if (major := _major(package)) is not None:
            found.setdefault(major, []).append(package.name)
    return dict(sorted(found.items()))


def _major(package: LockedPackage) -> int | None:
    if package.is_conda:
        if package.name in CUDA_PACKAGES:
            return int(package.version.split(".")[0])
        match = _CONDA_BUILD.search(package.build)
    else:
        if package.name in _RUNTIMES:
            return int(package.version.split(".")[0])
        match = _WHEEL_NAME.search(package.name) or _WHEEL_LOCAL.search(package.version)
    return int(match[1]) if match else None


def lock_warnings(lock: Lock, *, asked: Iterable[str] = (), cuda: bool = False) -> tuple[str, ...]:
    """Return warnings if a lock mixes two CUDA versions or contains CPU-only builds.

    This function is pure.

    Args:
        lock: The solved lock.
        asked: Packages that the matrix names. Only these and known GPU frameworks are checked for CPU-only
            builds, because many of their dependencies rightly have no CUDA.
        cuda: Whether the matrix has an axis or a package that determines the CUDA version. If not, CPU-only
            builds are not reported.

    Returns:
        One text per warning.
    """
    warnings = []
    majors = cuda_majors(lock.packages)
    if len(majors) > 1:
        # Show only the first name, so that equal warnings of different environments are merged.
        sides = "; ".join(f"{major} ({names[0]}, ...)" for major, names in majors.items())
        warnings.append(f"two major versions of CUDA in one environment: {sides}")
    if cuda:
        named = {canonicalize_name(name) for name in asked} | _FRAMEWORKS
        bare = [p for p in lock.packages if canonicalize_name(p.name) in named and _is_bare(p)]
        if bare:
            shown = ", ".join(f"{p.name} {p.version} {p.build}".rstrip() for p in bare[:_SHOWN])
            shown += f" and {len(bare) - _SHOWN} more" if len(bare) > _SHOWN else ""
            warnings.append(f"CPU-only builds beside a CUDA axis: {shown}; `build: cuda*` forbids them")
    return tuple(warnings)


def _is_bare(package: LockedPackage) -> bool:
    if package.is_conda:
        return _CPU_BUILD.search(package.build) is not None
    return package.version.endswith("+cpu")


def prefix_warnings(lock: Lock, prefix: Path) -> tuple[str, ...]:
    """Return warnings about contradictions in the metadata of an installed environment.

    Examples are a torch without CUDA in a CUDA environment, or a package whose metadata states another
    version. Only metadata files are read; no code of the prefix is run.

    Args:
        lock: The lock that was installed.
        prefix: Directory of the prefix.
    """
    wheels, torch_cuda = _distributions(prefix)
    conda = [package for package in lock.packages if package.is_conda]
    warnings = [
        f"the conda package of {name} is {version}, and calls itself {wheels[name]}"
        for name, version in provided_to_pypi(conda).items()
        if name in wheels and not _same(wheels[name], version)
    ]
    majors = cuda_majors(p for p in lock.packages if p.name in ("torch", "pytorch")) or cuda_majors(
        lock.packages
    )
    either = " and ".join(map(str, majors))
    if torch_cuda == "" and majors and not any(_CPU_BUILD.search(p.build) for p in conda):
        warnings.append(f"torch was built without CUDA, and the environment is one for CUDA {either}")
    elif torch_cuda and majors and int(torch_cuda.split(".")[0]) not in majors:
        warnings.append(f"torch was built with CUDA {torch_cuda}, and the environment is one for {either}")
    return tuple(warnings)


def _distributions(prefix: Path) -> tuple[dict[str, str], str | None]:
    """Return the version of each installed distribution, and the CUDA version of torch.

    The CUDA version is "" if torch was built without CUDA, and None if torch is not installed.
    """
    wheels: dict[str, str] = {}
    torch_cuda = None
    for site in prefix.glob("lib/python*/site-packages"):
        for path in site.iterdir():
            if match := _INFO.fullmatch(path.name):
                wheels[canonicalize_name(match["name"])] = match["version"]
        version_file = site / "torch" / "version.py"
        if version_file.is_file():
            stated = _TORCH_CUDA.search(version_file.read_text("utf-8", "replace"))
            torch_cuda = f"{stated[1]}.{stated[2]}" if stated else ""
    return wheels, torch_cuda


def _same(found: str, locked: str) -> bool:
    try:
        # In old wheels, directory names have `1.0_cu128` for `1.0+cu128`, and trailing zeros may be missing.
        return Version(found.replace("_", "+")) == Version(locked)
    except InvalidVersion:  # old packages; compare the texts
        return canonicalize_name(found) == canonicalize_name(locked)
