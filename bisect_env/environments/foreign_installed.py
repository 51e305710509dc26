"""Reads the packages that are installed in a virtual environment or a conda environment."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from bisect_env.environments.foreign_reading import (
    ForeignEnvironment,
    Listed,
    Why,
    conda,
    unnamed,
    version_or_none,
    wheel,
)
from bisect_env.environments.foreign_requirements import of_url
from bisect_env.matrix.interpreter import other_build
from bisect_env.matrix.versions import host_platform

_INSTALLER = "the installer, which nothing in the environment needs"


def installed(environment: ForeignEnvironment) -> Iterator[Listed]:
    """Yield the packages that are installed in a virtual environment or a conda environment."""
    where, owned = environment.where, set()
    if (where / "conda-meta").is_dir():
        environment.format = "a conda environment"
        for path in sorted((where / "conda-meta").glob("*.json")):
            record = json.loads(path.read_text("utf-8"))
            facts = (str(record.get(key) or "") for key in ("version", "build", "sha256", "url"))
            yield conda(str(record["name"]), *facts)
            names = map(str, record.get("files", []))
            owned |= {Path(name).parent.name for name in names if ".dist-info/" in name}
    elif (where / "pyvenv.cfg").is_file():
        environment.format, environment.platform = "a virtual environment", host_platform()
        lines = (where / "pyvenv.cfg").read_text("utf-8", "replace").splitlines()
        pairs = (line.partition("=") for line in lines)
        settings = {key.strip(): value.strip() for key, _, value in pairs}
        version = settings.get("version") or settings.get("version_info") or ""
        environment.python = ".".join(version.split(".")[:3])
        if settings.get("include-system-site-packages", "").lower() == "true":
            environment.notes.append("it sees the system's packages as well, which are not read")
    else:
        inside = [p.name for p in where.iterdir() if (p / "pyvenv.cfg").is_file()]
        hint = f"; did you mean {where / inside[0]}?" if inside else ""
        raise environment.refused(
            f"the directory is neither a virtual nor a conda environment{hint}",
            "name a directory that holds `pyvenv.cfg` or `conda-meta`, or a lock file",
        )
    _refuse_other_builds(environment)
    for site in sorted({*where.glob("lib/python3*/site-packages"), *where.glob("Lib/site-packages")}):
        yield from _distributions(site, owned)


def _refuse_other_builds(environment: ForeignEnvironment) -> None:
    """Raise an error if the environment's Python is not CPython's default build.

    What is tried is always that build, so that an answer would be about another interpreter.
    """
    where = environment.where
    names = [place.name for place in where.glob("lib/*") if (place / "site-packages").is_dir()]
    # Only the name of the interpreter tells a debug build.
    names += [Path(os.path.realpath(where / "bin" / "python")).name]
    for name in names:
        if kind := other_build(name):
            raise environment.refused(
                f"its Python ({name}) is {kind}, which is not supported: another one would be tried",
                "compare environments of CPython's ordinary build",
            )


def _distributions(site: Path, owned: Collection[str]) -> Iterator[Listed]:
    """Yield the packages that pip or uv installed into a `site-packages` directory.

    Args:
        site: The directory.
        owned: Names of the directories with the metadata of conda packages, which are skipped.
    """
    found = [
        (distribution, Path(str(getattr(distribution, "_path", ""))).name)
        for distribution in importlib.metadata.distributions(path=[str(site)])
    ]
    found = [(distribution, folder) for distribution, folder in found if folder not in owned]
    needed = {
        canonicalize_name(re.split(r"[^\w.-]", text.strip(), maxsplit=1)[0])
        for distribution, _ in found
        for text in distribution.requires or ()
        if "extra ==" not in text
    }
    for distribution, folder in found:
        name, version = distribution.metadata["Name"], distribution.version
        if not name:
            yield unnamed(folder, "its metadata has no name")
            continue
        direct = distribution.read_text("direct_url.json")
        why = _of_direct_url(json.loads(direct)) if direct is not None else ""
        if not why and version_or_none(version) is None:
            why = f"its version is none: {version}"
        elif name == "pip" and "pip" not in needed:
            why = why or _INSTALLER
        yield wheel(name, version, why=why)


def _of_direct_url(data: Mapping[str, Any]) -> str:
    if "dir_info" in data:
        return Why.EDITABLE if data["dir_info"].get("editable") else Why.LOCAL
    return Why.VCS if "vcs_info" in data else of_url(str(data.get("url", "")))
