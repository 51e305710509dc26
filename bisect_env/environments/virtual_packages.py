"""What conda is to take the hosts to have: the same for every host that locks, so that locks are. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

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
    """Name to version of every virtual package.

    A Linux as conda-lock assumes it: glibc 2.28 (that of the oldest systems that today's CUDA supports) and
    the baseline of the architecture. There is CUDA only where the matrix says so.

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
    """The version of CUDA (major and minor) that packages pin, None if none does.

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
