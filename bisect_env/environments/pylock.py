"""Wheels as uv reads them: to install exactly these, or to prefer them. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable

from bisect_env.environments.lock import LockedPackage


def text(packages: Iterable[LockedPackage], index: str) -> str:
    """The packages as a `pylock.toml` (PEP 751) with one file each.

    Args:
        packages: Wheels and source distributions.
        index: Address of the index that they are from, without credentials.
    """
    # JSON strings are TOML strings too. The index is not asked for anything: naming it makes uv
    # keep archives as long as its settings for that index say, where it would fetch them for every prefix
    # from hosts that send no cache headers.
    lines = ['lock-version = "1.0"', 'created-by = "bisect-env"']
    for package in packages:
        archive = (
            f"{{ url = {json.dumps(package.url)}, hashes = {{ sha256 = {json.dumps(package.sha256)} }} }}"
        )
        lines += ["", "[[packages]]", f"name = {json.dumps(package.name)}"]
        lines += [f"version = {json.dumps(package.version)}", f"index = {json.dumps(index)}"]
        lines += [f"sdist = {archive}" if package.is_source else f"wheels = [{archive}]"]
    return "\n".join(lines) + "\n"
