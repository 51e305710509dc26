"""Checks that an environment is what was asked for: CUDA and hosts of its lock, packages of its prefix."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from bisect_env.environments.lock import Lock, LockedPackage

# --------------------------------------------------------------------------------------------------
# Which of PyPI's packages a conda environment already has. Pure.

_OTHER_NAMES = {
    "brotli-python": "brotli",
    "dask-core": "dask",
    "importlib-resources": "importlib-resources",
    "matplotlib-base": "matplotlib",
    "msgpack-python": "msgpack",
    "opencv": "opencv-python",
    "py-opencv": "opencv-python",
    "py-xgboost": "xgboost",
    "pytables": "tables",
    "python-dateutil": "python-dateutil",
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
"""conda-forge's names that are not PyPI's; all other packages for Python go by the same name in both."""


def provided_to_pypi(packages: Iterable[LockedPackage]) -> dict[str, str]:
    """Map the PyPI names that conda packages provide to their versions.

    Only packages that depend on Python are Python packages: the C library `zlib` is not the module of that
    name. Versions that PEP 440 cannot read constrain nothing.
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
        # conda's `2025b` is the second release of a year, not PEP 440's second-to-last try.
        if not version.is_prerelease or str(version) == package.version:
            provided[_OTHER_NAMES.get(name, name)] = str(version)
    return provided


# --------------------------------------------------------------------------------------------------
# What conda is to take the hosts to have: the same for every host that locks, so that locks are. Pure.

CUDA_PACKAGES = ("cuda-version", "cudatoolkit", "cuda-toolkit", "cuda")
"""conda packages whose version is that of CUDA itself."""

NONE = "none"
"""Written in place of a version, takes a virtual package away."""

_ARCHITECTURES = {"64": "x86_64", "aarch64": "aarch64", "arm64": "arm64", "ppc64le": "ppc64le"}
_CUDA_SPEC = re.compile(
    rf"\s*({'|'.join(CUDA_PACKAGES)})\s*[=\s]\s*={{0,2}}\s*(\d+(?:\.\d+)?)", re.IGNORECASE
)


def virtual_packages(
    platform: str, cuda: str | None, overrides: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the version of every virtual package by name.

    A Linux as conda-lock assumes it: glibc 2.28 (that of the oldest systems that today's CUDA supports)
    and the baseline of the architecture. There is CUDA only where the matrix says so.

    Args:
        platform: conda's name of it.
        cuda: Version of CUDA, None for hosts without it.
        overrides: From the matrix; `none` takes one away.
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
    """Return the version of CUDA (major and minor) that packages pin, None if none does.

    Args:
        pins: conda package to exact version.
        specs: Further conda specs; one that names a version of CUDA counts.
    """
    for name in CUDA_PACKAGES:
        if name in pins:
            return ".".join(pins[name].split(".")[:2])
    for spec in specs:
        if match := _CUDA_SPEC.match(spec):
            return match[2]
    return None


# --------------------------------------------------------------------------------------------------
# Whether an environment is what was asked for: what a lock and a prefix say of CUDA.
#
# A solver that may choose takes a CPU-only build, or puts the libraries of two CUDA versions side by side,
# and calls it a solution.

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
    """Return the CUDA major versions that packages are built for, with these packages' names. Pure."""
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
    """Return warnings about an environment that should be read before its trials are trusted. Pure.

    Args:
        lock: As solved.
        asked: Packages that the matrix names. That libraries below them have no CUDA is mostly as it should
            be; that these, or a framework for GPUs, have none is not.
        cuda: Whether the matrix has an axis, or a package, that is CUDA's version.

    Returns:
        A sentence each.
    """
    warnings = []
    majors = cuda_majors(lock.packages)
    if len(majors) > 1:
        # The first names alone, so that environments that differ elsewhere are warned of together.
        sides = "; ".join(f"{major} ({names[0]}, ...)" for major, names in majors.items())
        warnings.append(f"two major versions of CUDA in one environment: {sides}")
    if cuda:
        named = {canonicalize_name(name) for name in asked} | _FRAMEWORKS
        bare = [p for p in lock.packages if canonicalize_name(p.name) in named and _is_bare(p)]
        if bare:
            shown = _some([f"{p.name} {p.version} {p.build}".rstrip() for p in bare])
            warnings.append(f"CPU-only builds beside a CUDA axis: {shown}; `build: cuda*` forbids them")
    return tuple(warnings)


def _is_bare(package: LockedPackage) -> bool:
    if package.is_conda:
        return _CPU_BUILD.search(package.build) is not None
    return package.version.endswith("+cpu")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def prefix_warnings(lock: Lock, prefix: Path) -> tuple[str, ...]:
    """Return what a prefix says about itself that does not go together, without running any of its code.

    That it holds the packages of its lock, the installers see to.

    Args:
        lock: What it was made from.
        prefix: Its directory.
    """
    return tuple(_odd(lock, *_distributions(prefix)))


def _distributions(prefix: Path) -> tuple[dict[str, str], str | None]:
    """Return the version of each distribution by name, and the CUDA version that torch was built with.

    That is "" for a torch without CUDA, and None without torch.
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


def _odd(lock: Lock, wheels: Mapping[str, str], torch_cuda: str | None) -> Iterable[str]:
    conda = [package for package in lock.packages if package.is_conda]
    for name, version in provided_to_pypi(conda).items():
        found = wheels.get(name)
        if found is not None and not _same(found, version):
            yield f"the conda package of {name} is {version}, and calls itself {found}"
    if torch_cuda is None:
        return
    majors = cuda_majors(p for p in lock.packages if p.name in ("torch", "pytorch")) or cuda_majors(
        lock.packages
    )
    if torch_cuda == "" and majors and not any(_CPU_BUILD.search(p.build) for p in conda):
        yield f"torch was built without CUDA, and the environment is one for CUDA {_either(majors)}"
    elif torch_cuda and majors and int(torch_cuda.split(".")[0]) not in majors:
        yield f"torch was built with CUDA {torch_cuda}, and the environment is one for {_either(majors)}"


def _either(majors: Iterable[int]) -> str:
    return " and ".join(str(major) for major in majors)


def _same(found: str, locked: str) -> bool:
    try:
        # Directory names write `1.0+cu128` as `1.0_cu128` in old wheels, and leave zeros out.
        return Version(found.replace("_", "+")) == Version(locked)
    except InvalidVersion:
        return canonicalize_name(found) == canonicalize_name(locked)
