"""Interpreters in a directory that `bisect-env fetch` wrote: put there, and installed from there, by uv."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

import requests

from bisect_env.environments.interpreters import Interpreters, fetch_with_uv
from bisect_env.environments.settings import without_credentials


@functools.cache
def offline_interpreters(root: Path) -> Interpreters:
    """The interpreters of this machine, and those that a directory brings."""
    return Interpreters(fetch=lambda version: fetch_with_uv(version, environ=offline_environment(root)))


def offline_environment(root: Path) -> dict[str, str]:
    """Environment in which uv asks no network, and finds interpreters in a directory."""
    environ = {**os.environ, "UV_OFFLINE": "1", "UV_PYTHON_CACHE_DIR": str(root / "pythons")}
    own = root / "pythons" / "downloads.json"
    if own.exists():
        environ["UV_PYTHON_DOWNLOADS_JSON_URL"] = str(own)
    return environ


def fetch_python(version: str, root: Path) -> str:
    """Put the archive of an interpreter into a directory; returns "" or why it could not be had.

    uv compares it with the hash that it knows, here and again where it is installed.
    """
    with tempfile.TemporaryDirectory(prefix="bisect-env-python-") as aside:
        environ = {
            **os.environ,
            "UV_PYTHON_CACHE_DIR": str(root / "pythons"),
            "UV_PYTHON_INSTALL_DIR": aside,
        }
        reason = fetch_with_uv(version, environ=environ)
    own = os.environ.get("UV_PYTHON_DOWNLOADS_JSON_URL")
    if own and not reason:
        return _keep_list(own, root)
    return reason


def _keep_list(source: str, root: Path) -> str:
    """Keep the user's own list of interpreters: elsewhere uv would know only those that it came with."""
    try:
        if "://" in source and not source.startswith("file:"):
            answer = requests.get(source, timeout=30)
            answer.raise_for_status()
            content = answer.content
        else:
            content = Path(unquote(urlsplit(source).path)).read_bytes()
    except (OSError, requests.RequestException) as error:
        return f"the list of interpreters {without_credentials(source)} cannot be read: {error}"
    (root / "pythons" / "downloads.json").write_bytes(content)
    return ""
