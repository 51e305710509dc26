"""Reads the packages that are installed in a virtual environment or a conda environment."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from bisect_env.environments.foreign_reading import (
    EDITABLE,
    LOCAL,
    VCS,
    ForeignEnvironment,
    ForeignPackage,
    ForeignReading,
    is_version,
    refused,
)
from bisect_env.environments.foreign_requirements import of_url

_INSTALLER = "the installer, which nothing in the environment needs"


def directory(reading: ForeignReading) -> ForeignEnvironment:
    """List the packages that are installed in a virtual environment or a conda environment."""
    if (reading.where / "conda-meta").is_dir():
        return _conda_directory(reading, reading.where)
    if not (reading.where / "pyvenv.cfg").is_file():
        inside = [p.name for p in reading.where.iterdir() if (p / "pyvenv.cfg").is_file()]
        hint = f"; did you mean {reading.where / inside[0]}?" if inside else ""
        raise refused(
            reading.source,
            f"the directory is neither a virtual nor a conda environment{hint}",
            "name a directory that holds `pyvenv.cfg` or `conda-meta`, or a lock file",
        )
    return _virtual_environment(reading, reading.where)


def _virtual_environment(reading: ForeignReading, where: Path) -> ForeignEnvironment:
    stated = ""
    for line in (where / "pyvenv.cfg").read_text("utf-8", "replace").splitlines():
        key, _, value = line.partition("=")
        if key.strip() in ("version", "version_info") and not stated:
            stated = ".".join(value.strip().split(".")[:3])
        if key.strip() == "include-system-site-packages" and value.strip().lower() == "true":
            reading.notes.append("it sees the system's packages as well, which are not read")
    for site in _sites(where):
        _read_distributions(reading, site, ())
    return reading.result("a virtual environment", python=stated, platform=reading.platform)


def _conda_directory(reading: ForeignReading, where: Path) -> ForeignEnvironment:
    platform, channels, owned = "", [], set()
    for path in sorted((where / "conda-meta").glob("*.json")):
        record = json.loads(path.read_text("utf-8"))
        sha256 = record.get("sha256")
        hashes = (str(sha256),) if sha256 else ()
        facts = str(record["name"]), str(record["version"]), "conda", str(record.get("build", "")), hashes
        reading.packages.append(ForeignPackage(*facts))
        owned |= {str(name) for name in record.get("files", []) if ".dist-info/" in str(name)}
        url = str(record.get("url", ""))
        if url.count("/") > 2:
            channels.append(url.rsplit("/", 2)[0])
            subdir = url.rsplit("/", 2)[1]
            platform = platform or (subdir if subdir != "noarch" else "")
    for site in _sites(where):
        _read_distributions(reading, site, owned)
    return reading.conda_result("a conda environment", platform, channels)


def _sites(where: Path) -> list[Path]:
    found = [*where.glob("lib/python3*/site-packages"), *where.glob("Lib/site-packages")]
    return sorted(path for path in found if path.is_dir())


def _read_distributions(reading: ForeignReading, site: Path, owned: Iterable[str]) -> None:
    """Read the packages that pip or uv installed into a `site-packages` directory.

    Args:
        reading: Receives the packages.
        site: The directory.
        owned: Paths of files that belong to conda packages; packages with such metadata are skipped.
    """
    theirs = {name.partition(".dist-info/")[0].rpartition("/")[2] for name in owned}
    found: dict[str, str] = {}
    needed: set[str] = set()
    for distribution in importlib.metadata.distributions(path=[str(site)]):
        folder = getattr(distribution, "_path", None)
        if folder is not None and Path(folder).name.removesuffix(".dist-info") in theirs:
            continue
        raw = distribution.metadata["Name"]
        if not raw:
            reading.left_out[Path(str(folder)).name] = "its metadata has no name"
            continue
        name = str(canonicalize_name(raw))
        needed |= set(_required(distribution.requires or ()))
        direct = distribution.read_text("direct_url.json")
        if direct is not None and (why := _of_direct_url(json.loads(direct))):
            reading.left_out[name] = why
        elif is_version(distribution.version):
            found[name] = distribution.version
        else:
            reading.left_out[name] = f"its version is none: {distribution.version}"
    if "pip" in found and "pip" not in needed:
        del found["pip"]
        reading.left_out["pip"] = _INSTALLER
    for name, version in found.items():
        reading.take(name, version)


def _required(requirements: Iterable[str]) -> Iterator[str]:
    for text in requirements:
        if "extra ==" in text:
            continue
        try:
            yield str(canonicalize_name(Requirement(text).name))
        except InvalidRequirement:
            continue  # old metadata; it only decides whether pip is listed as the installer


def _of_direct_url(data: Mapping[str, Any]) -> str:
    if "dir_info" in data:
        return EDITABLE if data["dir_info"].get("editable") else LOCAL
    return VCS if "vcs_info" in data else of_url(str(data.get("url", "")))
