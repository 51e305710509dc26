"""Reads lists and locks of conda packages: of conda, conda-lock and pixi."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from packaging.utils import canonicalize_name

from bisect_env.environments.conda_process import HelperDiedError, shared_pool
from bisect_env.environments.foreign_reading import (
    LOCAL,
    VCS,
    ForeignEnvironment,
    ForeignPackage,
    ForeignReading,
    refused,
)
from bisect_env.environments.foreign_requirements import Requirements
from bisect_env.environments.lock import LockedPackage
from bisect_env.environments.lockfiles import conda_archive, packages_of

_HELPER_TIMEOUT = 60.0
_EXPORTED = re.compile(r"([A-Za-z0-9_][\w.-]*)={1,2}([^=<>!~\s]+)(?:=([^=<>!~\s]*))?")


def conda_explicit(reading: ForeignReading, text: str) -> ForeignEnvironment:
    """Convert the output of `conda list --explicit` to a `ForeignEnvironment`."""
    platform, channels = _stated_platform(text), []
    for line in text.splitlines():
        url = line.strip().partition("#")[0]
        if not url or url.startswith("@"):
            continue
        parsed = conda_archive(url)
        if parsed is None:
            reading.left_out[url.rpartition("/")[2]] = "no address of a conda package"
            continue
        name, version, build = parsed
        hashed = line.partition("#")[2].removeprefix("sha256:")
        hashes = (hashed,) if re.fullmatch("[0-9a-f]{64}", hashed) else ()
        reading.packages.append(ForeignPackage(name, version, "conda", build, hashes))
        channel, subdir, _ = url.rsplit("/", 2)
        channels.append(channel)
        platform = platform or (subdir if subdir != "noarch" else "")
    return reading.conda_result("conda list --explicit", platform, channels)


def conda_export(reading: ForeignReading, text: str) -> ForeignEnvironment:
    """Convert the output of `conda list --export` to a `ForeignEnvironment`."""
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, version, build = (*line.strip().split("="), "", "")[:3]
        if build in ("pypi_0", "<pip>", "pypi"):
            reading.take(name, version)
        else:
            reading.packages.append(ForeignPackage(name, version, "conda", build))
    reading.notes.append(
        "`conda list --export` names no channels: those of the command, or conda-forge, are asked"
    )
    return reading.conda_result("conda list --export", _stated_platform(text), ())


def env_export(reading: ForeignReading, data: dict[str, Any]) -> ForeignEnvironment:
    """Convert the parsed output of `conda env export` to a `ForeignEnvironment`."""
    listed = Requirements(reading)
    for entry in data["dependencies"]:
        if isinstance(entry, dict):
            for line in entry.get("pip", []):
                listed.take("pip", str(line))
            continue
        found = _EXPORTED.fullmatch(str(entry).rpartition("::")[2].strip())
        if found is None:
            listed.loose.append(str(entry))
        else:
            reading.packages.append(ForeignPackage(found[1], found[2], "conda", found[3] or ""))
    if listed.loose:
        raise refused(
            reading.source,
            f"not every package has one version: {', '.join(listed.loose[:5])}",
            "export it without `--from-history`, or give the environment's directory",
        )
    channels = [str(c) for c in data.get("channels", []) if str(c) != "nodefaults"]
    return reading.conda_result("conda env export", "", channels)


def conda_lock(reading: ForeignReading, data: dict[str, Any]) -> ForeignEnvironment:
    """Convert the packages for one platform in a `conda-lock.yml` to a `ForeignEnvironment`."""
    metadata = data["metadata"]
    platforms = [str(one) for one in metadata.get("platforms", [])]
    if reading.platform not in platforms:
        raise reading.other_platform(", ".join(platforms), None)
    reading.packages += [of_locked(package) for package in packages_of(data, reading.platform)]
    channels = [str(c["url"] if isinstance(c, dict) else c) for c in metadata.get("channels", [])]
    custom = metadata.get("custom_metadata") or {}
    found = reading.conda_result(f"conda-lock.yml {data['version']}", reading.platform, channels)
    return replace(found, python=found.python or str(custom.get("bisect-env.python", "")))


def pixi(reading: ForeignReading, data: dict[str, Any]) -> ForeignEnvironment:
    """Convert one environment of a `pixi.lock`, read with py-rattler, to a `ForeignEnvironment`."""
    try:
        request = {"op": "read_lock", "path": str(reading.where), "platform": reading.platform}
        answer = shared_pool().ask(request, _HELPER_TIMEOUT)
    except HelperDiedError as error:
        raise refused(reading.source, f"py-rattler cannot read it: {error.text}", "write it again") from None
    if "failed" in answer:
        raise refused(reading.source, f"py-rattler cannot read it: {answer['text']}", "write it again")
    environments = answer["environments"]
    name = reading.name or ("default" if "default" in environments else next(iter(environments), ""))
    if name not in environments:
        known = ", ".join(environments)
        raise refused(reading.source, f"it has no environment {name!r}", f"name one of {known}")
    if len(environments) > 1 and not reading.name:
        others = ", ".join(n for n in environments if n != name)
        reading.notes.append(f"its environment {name!r} is read; FILE#NAME reads another ({others})")
    found = environments[name]
    if reading.platform not in found["platforms"]:
        raise reading.other_platform(", ".join(found["platforms"]), None)
    for kind, package, version, build, sha256, location in found["packages"]:
        hashes = (sha256,) if sha256 else ()
        if kind == "conda":
            reading.packages.append(ForeignPackage(package, version, "conda", build, hashes))
        else:
            is_local = "://" not in location or location.startswith("file:")
            why = LOCAL if is_local else VCS if location.startswith("git+") else ""
            reading.take(package, version, hashes, why=why)
    channels = [str(c["url"] if isinstance(c, dict) else c) for c in data["environments"][name]["channels"]]
    return reading.conda_result(f"pixi.lock {data.get('version', '')}".rstrip(), reading.platform, channels)


def of_locked(package: LockedPackage) -> ForeignPackage:
    """Convert a package of a bisect-env lock to a `ForeignPackage`."""
    name = str(canonicalize_name(package.name)) if package.manager == "pip" else package.name
    hashes = (package.sha256,) if package.sha256 else ()
    return ForeignPackage(name, package.version, package.manager, package.build, hashes)


def _stated_platform(text: str) -> str:
    found = re.search(r"^# platform: (\S+)", text, re.MULTILINE)
    return found[1] if found else ""
