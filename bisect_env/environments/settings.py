"""Finds our cache directory, and the package index that uv and pip are configured with."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import platformdirs

from bisect_env.errors import InfrastructureError, UsageError


def default_cache_dir() -> Path:
    """`BISECT_ENV_CACHE`, or the user's cache directory."""
    configured = os.environ.get("BISECT_ENV_CACHE")
    return (
        Path(configured).expanduser().absolute() if configured else platformdirs.user_cache_path("bisect-env")
    )


def default_offline() -> Path | None:
    """`BISECT_ENV_OFFLINE`: a directory that `bisect-env fetch` wrote, from which alone to build."""
    configured = os.environ.get("BISECT_ENV_OFFLINE")
    return Path(configured).expanduser().absolute() if configured else None


def default_cache_limit() -> int | None:
    """`BISECT_ENV_CACHE_SIZE` in bytes; None, for no limit, where it is not set.

    Raises:
        UsageError: It is no size.
    """
    configured = os.environ.get("BISECT_ENV_CACHE_SIZE")
    return parse_size(configured, "BISECT_ENV_CACHE_SIZE") if configured else None


_BUILD_LIMIT = 64 << 30


def default_build_limit() -> int:
    """`BISECT_ENV_BUILD_SIZE` in bytes: what may be written while an environment is unpacked.

    The largest in use (several frameworks with all of CUDA) take about 20 GB.

    Raises:
        UsageError: It is no size.
    """
    configured = os.environ.get("BISECT_ENV_BUILD_SIZE")
    return parse_size(configured, "BISECT_ENV_BUILD_SIZE") if configured else _BUILD_LIMIT


def parse_size(text: str, name: str) -> int:
    """Bytes from a text such as `20GB` or `512MiB`.

    Args:
        text: What was given.
        name: Of the option or variable, for the message.

    Raises:
        UsageError: It is no size.
    """
    # Here, as below: every worker imports this module, few call these functions, and a trial waits for both.
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        return int(TypeAdapter(ByteSize).validate_python(text.strip()))
    except ValidationError:
        raise UsageError(f"{name}: {text!r} is not a size", remedy="write it like 20GB or 512MiB") from None


def configured_index(environ: Mapping[str, str] | None = None) -> str:
    """The package index to use when a matrix names none.

    uv's configuration comes first (environment, then `uv.toml`), then pip's (environment, then
    `pip.conf`), then the public index as the library pypi-simple knows it.

    Raises:
        InfrastructureError: A configuration file cannot be read.
    """
    environ = os.environ if environ is None else environ
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        if environ.get(name):
            return _without_name(environ[name])
    for path in uv_config_files(environ):
        if url := _index_of_uv_toml(_read_toml(path)):
            return url
    if environ.get("PIP_INDEX_URL"):
        return environ["PIP_INDEX_URL"]
    for path in pip_config_files(environ):
        if url := _index_of_pip_conf(path):
            return url
    return _default_index()


@functools.cache
def _default_index() -> str:
    """The index of everybody who configured none, as pypi-simple names it.

    It is read from its sources, for importing that package brings an HTML parser, which takes longer than the
    first trial.
    """
    found = importlib.util.find_spec("pypi_simple")
    text = Path(found.origin).read_text("utf-8") if found is not None and found.origin else ""
    if stated := re.search(
        r"^PYPI_SIMPLE_ENDPOINT(?:: str)? = [\"'](https://[^\"']+)[\"']", text, re.MULTILINE
    ):
        return stated[1]
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    return PYPI_SIMPLE_ENDPOINT


def uv_config_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """The `uv.toml` files that uv reads outside of projects, strongest first, if they exist."""
    if environ.get("UV_CONFIG_FILE"):
        yield Path(environ["UV_CONFIG_FILE"])
        return
    home = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/")) / ".config")
    system = [Path(part) for part in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":") if part]
    for folder in (home, *system, Path("/etc")):
        path = folder / "uv" / "uv.toml"
        if path.is_file():
            yield path


def _without_name(text: str) -> str:
    # uv allows `name=url`; an equals sign in the URL itself comes after its scheme.
    name, equals, url = text.partition("=")
    return url if equals and "://" not in name and "/" not in name else text


def _read_toml(path: Path) -> dict[str, Any]:
    import tomllib  # as below: a report asks only where the cache is

    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InfrastructureError(
            f"uv's configuration {path} cannot be read: {error}", remedy="correct or remove that file"
        ) from error


def _index_of_uv_toml(config: dict[str, Any]) -> str | None:
    for section in (config.get("pip", {}), config):
        for index in section.get("index", []):
            if index.get("default"):
                return str(index["url"])
        if url := section.get("default-index") or section.get("index-url"):
            return str(url)
    return None


def pip_config_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """The paths of pip's configuration files."""
    # pip's own order, strongest first: PIP_CONFIG_FILE, the virtual environment, the user, the host.
    configured = environ.get("PIP_CONFIG_FILE")
    if configured == os.devnull:
        return
    if configured:
        yield Path(configured)
    yield Path(sys.prefix) / "pip.conf"
    home = Path(environ.get("HOME", "/"))
    yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    yield home / ".pip" / "pip.conf"
    yield Path("/etc/pip.conf")
    for part in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":"):
        if part:
            yield Path(part) / "pip" / "pip.conf"


def _index_of_pip_conf(path: Path) -> str | None:
    import configparser

    parser = configparser.RawConfigParser(strict=False)
    try:
        if not path.is_file():
            return None
        parser.read(path, encoding="utf-8")
    except (OSError, ValueError, configparser.Error) as error:
        raise InfrastructureError(
            f"pip's configuration {path} cannot be read: {error}", remedy="correct or remove that file"
        ) from error
    for section in ("install", "global"):
        if url := parser.get(section, "index-url", fallback=None):
            return url
    return None
