"""Reads lists and locks of conda packages: of conda, conda-lock and pixi."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bisect_env.environments.conda_process import shared_pool
from bisect_env.environments.foreign_reading import ForeignEnvironment, Listed, Why, conda, unnamed, wheel
from bisect_env.environments.foreign_requirements import requirement
from bisect_env.environments.lockfiles import conda_archive, packages_of
from bisect_env.matrix.versions import host_platform

_HELPER_TIMEOUT = 60.0
_EXPORTED = re.compile(r"([A-Za-z0-9_][\w.-]*)={1,2}([^=<>!~\s]+)(?:=([^=<>!~\s]*))?")
_Data = Mapping[str, Any]


def conda_explicit(environment: ForeignEnvironment, text: str) -> Iterator[Listed]:
    """Yield the packages in the output of `conda list --explicit`."""
    environment.format, environment.platform = "conda list --explicit", _platform_in(text)
    for line in text.splitlines():
        url, _, hashed = line.strip().partition("#")
        if not url or url.startswith("@"):
            continue
        sha256 = hashed.removeprefix("sha256:")
        parts = conda_archive(url)
        if parts is None or url.count("/") < 3:
            yield unnamed(url.rpartition("/")[2], "no address of a conda package")
        else:
            yield conda(*parts, sha256 if re.fullmatch("[0-9a-f]{64}", sha256) else "", url)


def conda_export(environment: ForeignEnvironment, text: str) -> Iterator[Listed]:
    """Yield the packages in the output of `conda list --export`."""
    environment.format, environment.platform = "conda list --export", _platform_in(text)
    environment.notes.append(
        "`conda list --export` names no channels: those of the command, or conda-forge, are asked"
    )
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            name, version, build = (*line.strip().split("="), "", "")[:3]
            is_wheel = build in ("pypi_0", "<pip>", "pypi")
            yield wheel(name, version) if is_wheel else conda(name, version, build)


def env_export(environment: ForeignEnvironment, data: _Data) -> Iterator[Listed]:
    """Yield the packages in the output of `conda env export`."""
    environment.format = "conda env export"
    environment.channels = [str(c) for c in data.get("channels", []) if str(c) != "nodefaults"]
    markers = environment.markers()
    for entry in data["dependencies"]:
        if isinstance(entry, dict):
            for line in entry.get("pip", []):
                yield from requirement(environment, str(line), "pip", markers)
        elif found := _EXPORTED.fullmatch(str(entry).rpartition("::")[2].strip()):
            yield conda(found[1], found[2], found[3] or "")
        else:
            environment.loose.append(str(entry))


def conda_lock(environment: ForeignEnvironment, data: _Data) -> Iterator[Listed]:
    """Yield the packages for one platform in a `conda-lock.yml`."""
    metadata = data["metadata"]
    environment.format = f"conda-lock.yml {data['version']}"
    environment.platform = _host_among(environment, map(str, metadata.get("platforms", [])))
    environment.python = str((metadata.get("custom_metadata") or {}).get("bisect-env.python", ""))
    environment.channels = _channels(metadata.get("channels", []))
    yield from map(Listed, packages_of(data, environment.platform))


def pixi(environment: ForeignEnvironment, data: _Data) -> Iterator[Listed]:
    """Yield the packages of one environment of a `pixi.lock`, which is read with py-rattler."""
    message = {"op": "read_lock", "path": str(environment.where), "platform": host_platform()}
    answer = shared_pool().ask(message, _HELPER_TIMEOUT)
    if "failed" in answer:
        raise environment.refused(f"py-rattler cannot read it: {answer['text']}", "write it again")
    environments = answer["environments"]
    name = environment.name or ("default" if "default" in environments else next(iter(environments), ""))
    if name not in environments:
        known = ", ".join(environments)
        raise environment.refused(f"it has no environment {name!r}", f"name one of {known}")
    if len(environments) > 1 and not environment.name:
        others = ", ".join(n for n in environments if n != name)
        environment.notes.append(f"its environment {name!r} is read; FILE#NAME reads another ({others})")
    environment.format = f"pixi.lock {data.get('version', '')}".rstrip()
    environment.platform = _host_among(environment, environments[name]["platforms"])
    environment.channels = _channels(data["environments"][name]["channels"])
    for kind, package, version, build, sha256, location in environments[name]["packages"]:
        is_conda = kind == "conda"
        # A conda package without a URL is built by pixi. One of a local channel is an archive as any other.
        is_local = "://" not in location or (location.startswith("file:") and not is_conda)
        why = Why.LOCAL if is_local else Why.VCS if location.startswith("git+") else ""
        hashes = (sha256,) if sha256 else ()
        row = (
            conda(package, version, build, sha256, location) if is_conda else wheel(package, version, hashes)
        )
        yield row._replace(why=why)


def _host_among(environment: ForeignEnvironment, platforms: Iterable[str]) -> str:
    """Return the platform of this host, or raise an error if a lock does not have it."""
    here, theirs = host_platform(), list(platforms)
    if here not in theirs:
        raise environment.refused_platform(theirs, here)
    return here


def _channels(stated: Iterable[Any]) -> list[str]:
    return [str(one["url"] if isinstance(one, dict) else one) for one in stated]


def _platform_in(text: str) -> str:
    found = re.search(r"^# platform: (\S+)", text, re.MULTILINE)
    return found[1] if found else ""
