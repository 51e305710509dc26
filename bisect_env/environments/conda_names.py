"""Which of PyPI's packages a conda environment already has. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from bisect_env.environments.lock import LockedPackage

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
    """PyPI name to version of what conda packages provide to wheels.

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
