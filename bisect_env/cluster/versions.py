"""Whether this command, a scheduler and its workers can work together. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

OURS = "bisect-env"

_EVERYWHERE = ("python", "dask", "distributed")
"""What Dask's own messages need to be equal on all sides; of Python, the first two numbers."""

Versions = Mapping[str, Any]


def version_problems(answer: Mapping[str, Any]) -> list[str]:
    """What stands against working together, one line a difference; empty when nothing does.

    Args:
        answer: Of `Client.get_versions(packages=["bisect-env"])`.
    """
    here = _packages(answer["client"])
    scheduler = _packages(answer["scheduler"])
    problems = [
        _line(package, here, f"the scheduler has {_shown(package, scheduler)}")
        # It only passes trials on: it need not have bisect-env.
        for package in _EVERYWHERE
        if _shown(package, scheduler) != _shown(package, here)
    ]
    for package in (*_EVERYWHERE, OURS):
        others: defaultdict[str, list[str]] = defaultdict(list)
        for address, versions in sorted(answer["workers"].items()):
            if (shown := _shown(package, _packages(versions))) != _shown(package, here):
                others[shown].append(address)
        problems += [_line(package, here, f"{_some(who)} {shown}") for shown, who in sorted(others.items())]
    return problems


def _packages(versions: Versions | None) -> Mapping[str, str | None]:
    return dict(versions["packages"]) if versions else {}


def _shown(package: str, packages: Mapping[str, str | None]) -> str:
    found = packages.get(package)
    if found is None:
        return "none"
    return ".".join(found.split(".")[:2]) if package == "python" else found


def _line(package: str, here: Mapping[str, str | None], there: str) -> str:
    return f"{package}: this command has {_shown(package, here)}, {there}"


def _some(addresses: list[str]) -> str:
    if len(addresses) == 1:
        return f"the worker {addresses[0]} has"
    return f"{len(addresses)} workers ({addresses[0]}, …) have"
