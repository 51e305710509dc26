"""Which packages of an index were perhaps meant by a name that it does not have.

A small index lists all its names on its first page. The large ones have half a million of them: there, names
that differ by one slip of the finger are asked for one by one, a few at a time.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from urllib.parse import unquote, urlsplit

import requests
from packaging.utils import canonicalize_name
from pypi_simple import ACCEPT_JSON_PREFERRED, IndexPage

from bisect_env.environments.settings import configured_index

_SMALL = 1_000_000
"""Bytes of a first page that are read; what has more is a large index."""
_ASKED = 48
"""Names that are asked for at most."""
_SHOWN = 3
_TIMEOUT = (3.0, 5.0)

_IMPORTED = {
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "pil": "pillow",
    "pytorch": "torch",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""What people import, or call it elsewhere, and what it is called on an index."""


@functools.lru_cache(64)
def near_names(package: str, base: str | None = None) -> tuple[str, ...]:
    """Names that the index has and that are near to one that it does not have, the nearest first.

    Args:
        package: The name that is not there.
        base: URL of the index; None for the configured one.

    Returns:
        At most three; none if the index does not answer: this is advice, and its lack is no failure.
    """
    base = (base or configured_index()).rstrip("/")
    name = str(canonicalize_name(package.partition("[")[0]))
    try:
        listed = _listed(base)
        if listed is not None:
            known = [_IMPORTED[name]] if _IMPORTED.get(name) in listed else []
            near = difflib.get_close_matches(name, sorted(listed), n=_SHOWN, cutoff=0.7)
            return tuple(dict.fromkeys([*known, *near]))[:_SHOWN]
        wanted = list(dict.fromkeys(one for one in islice(slips(name), _ASKED)))
        with ThreadPoolExecutor(8) as pool:
            there = list(pool.map(lambda one: _exists(base, one), wanted))
    except (requests.RequestException, OSError, ValueError):
        return ()
    return tuple(one for one, known in zip(wanted, there, strict=True) if known)[:_SHOWN]


def advice(package: str, base: str | None = None) -> str:
    """`; did you mean torch?`, or "" if no name is near."""
    near = near_names(package, base)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def slips(name: str) -> Iterator[str]:
    """Names from which one slip makes this one, the likeliest first. Pure."""
    if name in _IMPORTED:
        yield _IMPORTED[name]
    yield from (f"python-{name}", f"py{name}") if not name.startswith("py") else (name.removeprefix("py"),)
    yield from (name.replace("-", ""), name.removesuffix("-python"), name.removeprefix("python-"))
    for i in range(len(name) - 1):  # two letters exchanged
        if name[i] != name[i + 1]:
            yield name[:i] + name[i + 1] + name[i] + name[i + 2 :]
    for i in range(len(name)):  # one too many
        yield name[:i] + name[i + 1 :]
    for i in range(len(name)):  # one of a double letter left out
        yield name[: i + 1] + name[i] + name[i + 1 :]
    yield f"{name}s"


def _listed(base: str) -> frozenset[str] | None:
    """All names of a small index; None of a large one."""
    if urlsplit(base).scheme == "file":
        folder = Path(unquote(urlsplit(base).path))
        return frozenset(path.name for path in folder.iterdir() if path.is_dir())
    with requests.get(
        f"{base}/", headers={"Accept": ACCEPT_JSON_PREFERRED}, timeout=_TIMEOUT, stream=True
    ) as answer:
        if not answer.ok:
            return None
        content = b""
        for piece in answer.iter_content(1 << 16):
            content += piece
            if len(content) > _SMALL:
                return None
        is_json = "json" in answer.headers.get("content-type", "")
    page = IndexPage.from_json_data(json.loads(content)) if is_json else IndexPage.from_html(content)
    return frozenset(str(canonicalize_name(name)) for name in page.projects)


def _exists(base: str, name: str) -> bool:
    if not name or name.strip("-") != name:
        return False
    return bool(requests.head(f"{base}/{name}/", timeout=_TIMEOUT, allow_redirects=True).ok)
