"""Finds our cache directory, and the indexes and channels that uv, pip and conda are configured with."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import platformdirs

from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.matrix.versions import PackageIndex
from bisect_env.secrets import public_channel


def default_cache_dir() -> Path:
    """Return `BISECT_ENV_CACHE`, or the user's cache directory."""
    configured = os.environ.get("BISECT_ENV_CACHE")
    return (
        Path(configured).expanduser().absolute() if configured else platformdirs.user_cache_path("bisect-env")
    )


def default_offline() -> Path | None:
    """Return `BISECT_ENV_OFFLINE`: a directory of `bisect-env env fetch`, the only source of builds."""
    configured = os.environ.get("BISECT_ENV_OFFLINE")
    return Path(configured).expanduser().absolute() if configured else None


def default_cache_limit() -> int:
    """Return `BISECT_ENV_CACHE_SIZE` in bytes: above it, environments that were used longest ago go.

    Raises:
        UsageError: It is no size.
    """
    configured = os.environ.get("BISECT_ENV_CACHE_SIZE")
    return parse_size(configured, "BISECT_ENV_CACHE_SIZE") if configured else _CACHE_LIMIT


_CACHE_LIMIT = 50_000_000_000
_BUILD_LIMIT = 64 << 30


def default_build_limit() -> int:
    """Return `BISECT_ENV_BUILD_SIZE` in bytes: what one file of a fetched directory may have.

    The largest archives in use have about 3 GB.

    Raises:
        UsageError: It is no size.
    """
    configured = os.environ.get("BISECT_ENV_BUILD_SIZE")
    return parse_size(configured, "BISECT_ENV_BUILD_SIZE") if configured else _BUILD_LIMIT


def parse_size(text: str, name: str) -> int:
    """Return the bytes of a text such as `20GB` or `512MiB`.

    Args:
        text: What was given.
        name: Name of the option or variable, for the message.

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
    """Return the package index to use when a matrix names none.

    uv's configuration comes first (environment, then `uv.toml`), then pip's (environment, then
    `pip.conf`), then the public index as the library pypi-simple knows it.

    Raises:
        InfrastructureError: A configuration file cannot be read.
    """
    return configured_places(environ).default


@dataclass(frozen=True, slots=True)
class PackagePlaces:
    """The configured package sources of uv and pip.

    Attributes:
        default: Address of the default index, with the login that was configured in it.
        indexes: Further indexes, in the order in which they are asked.
        find_links: Folders and pages with further archives.
        are_pips: Whether further places are from pip's settings. pip asks all indexes, the default one first,
            and takes the best version; uv takes the first index that has a package, the default one last.
        no_index: Whether indexes are not to be asked at all, but only `find_links`.
    """

    default: str
    indexes: tuple[PackageIndex, ...]
    find_links: tuple[str, ...]
    are_pips: bool
    no_index: bool = False


def configured_places(environ: Mapping[str, str] | None = None) -> PackagePlaces:
    """Return the package sources that uv's configuration names, or else pip's.

    Raises:
        InfrastructureError: A configuration file cannot be read.
    """
    environ = os.environ if environ is None else environ
    default = _without_name(environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL") or "")
    indexes = [_named_index(word) for word in environ.get("UV_INDEX", "").split()]
    indexes += [_named_index(word) for word in environ.get("UV_EXTRA_INDEX_URL", "").split()]
    links = [word for word in environ.get("UV_FIND_LINKS", "").split(",") if word]
    no_index = False
    uv_files = list(uv_config_files(environ))
    for path in uv_files:
        config = _read_toml(path)
        for section in (config.get("pip", {}), config):
            for one in section.get("index", []):
                if one.get("default"):
                    default = default or str(one["url"])
                else:
                    index = PackageIndex(str(one.get("name", "")), str(one["url"]), bool(one.get("explicit")))
                    indexes.append(index)
            default = default or str(section.get("default-index") or section.get("index-url") or "")
            indexes += [PackageIndex("", str(url)) for url in section.get("extra-index-url", [])]
            links += [str(place) for place in section.get("find-links", [])]
            no_index = no_index or section.get("no-index") is True
    are_pips = not indexes and not links
    if are_pips:
        indexes = [PackageIndex("", url) for url in _of_pip(environ, "extra-index-url")]
        links = _of_pip(environ, "find-links")
        if not uv_files:
            no_index = any(word.lower() in _TRUE for word in _of_pip(environ, "no-index"))
    default = default or "".join(_of_pip(environ, "index-url")) or _public_index()
    return PackagePlaces(default, tuple(indexes), tuple(links), are_pips, no_index)


def _public_index() -> str:
    """Return the address of the public index as the library pypi-simple states it, without its import.

    The library brings an HTML parser, a tenth of a second that every study would wait for.
    """
    found = importlib.util.find_spec("pypi_simple")
    source = Path(found.origin).read_text("utf-8") if found is not None and found.origin else ""
    for line in ast.parse(source).body:
        match line:
            case (
                ast.AnnAssign(
                    target=ast.Name(id="PYPI_SIMPLE_ENDPOINT"), value=ast.Constant(value=str(address))
                )
                | ast.Assign(
                    targets=[ast.Name(id="PYPI_SIMPLE_ENDPOINT")], value=ast.Constant(value=str(address))
                )
            ):
                return address
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    return PYPI_SIMPLE_ENDPOINT


_TRUE = ("1", "true", "yes", "on", "t", "y")
"""How pip writes that an option is set."""


def _named_index(text: str) -> PackageIndex:
    url = _without_name(text)
    return PackageIndex(text.removesuffix(url).rstrip("="), url)


def _of_pip(environ: Mapping[str, str], key: str) -> list[str]:
    """Return the words of a setting of pip."""
    if found := environ.get(f"PIP_{key.upper().replace('-', '_')}"):
        return found.split()
    for path in pip_config_files(environ):
        if found := _of_pip_conf(path, key):
            return found.split()
    return []


def uv_config_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the existing `uv.toml` files that uv reads outside of projects, strongest first."""
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


def pip_config_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the paths of pip's configuration files."""
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


def _of_pip_conf(path: Path, key: str) -> str | None:
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
        if found := parser.get(section, key, fallback=None):
            return found
    return None


# --------------------------------------------------------------------------------------------------
# Reads the user's conda configuration: what channel names mean, and where channels are fetched from.
#
# A lock names channels by addresses without credentials; mirrors and tokens are this host's affair.

_MAPPINGS = ("custom_channels", "custom_multichannels", "mirrored_channels")


@dataclass(frozen=True, slots=True)
class CondaConfig:
    """The keys of conda's configuration that say where channels are.

    Attributes:
        channel_alias: What stands before a channel's bare name; "" until rattler says what is usual.
        default_channels: Channels that `defaults` means; empty if not configured.
        custom_channels: Name to the address that stands before it.
        custom_multichannels: Name to the channels that it stands for.
        mirrored_channels: Name to the addresses that have its content (micromamba's key).
    """

    channel_alias: str = ""
    default_channels: tuple[str, ...] = ()
    custom_channels: Mapping[str, str] = field(default_factory=dict)
    custom_multichannels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mirrored_channels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChannelPlaces:
    """The addresses of the channels of a request.

    Attributes:
        urls: Without credentials, most important first; what locks name.
        mirrors: Such an address to the addresses that are asked in its place, credentials included.
    """

    urls: tuple[str, ...]
    mirrors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def channel_places(names: Sequence[str], config: CondaConfig) -> ChannelPlaces:
    """Resolve the channels of a matrix. Pure.

    Args:
        names: Names, addresses or absolute paths.
        config: Of this host.

    Raises:
        UsageError: A name that can be none.
    """
    urls: list[str] = []
    mirrors: dict[str, tuple[str, ...]] = {}
    for name in names:
        for address in _addresses(name, config, frozenset()):
            clean = public_channel(address)
            if clean not in urls:
                urls.append(clean)
            places = config.mirrored_channels.get(name) or ((address,) if address != clean else ())
            if places:
                mirrors[clean] = tuple(place.rstrip("/") for place in places)
    return ChannelPlaces(tuple(urls), mirrors)


def mirrors_of_urls(urls: Sequence[str], config: CondaConfig) -> dict[str, list[str]]:
    """Return the mirrors of this host for the addresses in a lock. Pure.

    The lock knows no channel names; every name that the configuration knows is tried on it.

    Args:
        urls: Addresses of channels.
        config: Of this host.
    """
    names = [*config.mirrored_channels, *config.custom_channels, *config.custom_multichannels]
    names += ["defaults"] if config.default_channels else []
    found: dict[str, list[str]] = {}
    for name in names:
        places = channel_places([name], config)
        for url, addresses in places.mirrors.items():
            if url in urls:
                found.setdefault(url, list(addresses))
    alias = config.channel_alias.rstrip("/")
    clean = public_channel(alias)
    if alias != clean:
        for url in urls:
            if url.startswith(f"{clean}/"):
                found.setdefault(url, [alias + url.removeprefix(clean)])
    return found


def _addresses(name: str, config: CondaConfig, seen: frozenset[str]) -> Iterator[str]:
    if name in seen:
        raise UsageError(
            f"the channel {name!r} is defined by itself in conda's configuration",
            remedy="correct `custom_multichannels` in .condarc",
        )
    if name == "defaults" and name not in config.custom_multichannels:
        if not config.default_channels:
            raise UsageError(
                "the channel 'defaults' is whatever conda's configuration says, and .condarc says nothing",
                remedy="name the channels themselves, or set `default_channels` in .condarc",
            )
        for channel in config.default_channels:
            yield from _addresses(channel, config, seen | {name})
    elif name in config.custom_multichannels:
        for channel in config.custom_multichannels[name]:
            yield from _addresses(channel, config, seen | {name})
    elif "://" in name:
        if urlsplit(name).scheme not in ("http", "https", "file", "s3", "gcs", "oci"):
            raise UsageError(
                f"{name!r} is not the address of a channel", remedy="write a name, https://... or file:///..."
            )
        yield name.rstrip("/")
    elif name.startswith("/"):
        yield Path(name).as_uri().rstrip("/")
    else:
        # `custom_channels: {mine: https://host}` serves `mine` and `mine/label/dev` below https://host/.
        known = [own for own in config.custom_channels if name == own or name.startswith(f"{own}/")]
        base = config.custom_channels[max(known, key=len)] if known else config.channel_alias
        yield f"{base.rstrip('/')}/{name}"


def read_conda_config() -> CondaConfig:
    """Read the configuration files that conda and micromamba read, the most specific last.

    Raises:
        InfrastructureError: One of them cannot be read.
    """
    merged: dict[str, Any] = {}
    for path in conda_config_files(os.environ):
        for key, value in _read(path).items():
            if key in _MAPPINGS and isinstance(value, dict):
                merged[key] = {**merged.get(key, {}), **value}
            else:
                merged[key] = value
    if alias := os.environ.get("CONDA_CHANNEL_ALIAS"):
        merged["channel_alias"] = alias
    try:
        return CondaConfig(
            channel_alias=str(merged.get("channel_alias") or ""),
            default_channels=_texts(merged.get("default_channels")),
            custom_channels={str(k): str(v) for k, v in (merged.get("custom_channels") or {}).items()},
            custom_multichannels=_lists(merged.get("custom_multichannels")),
            mirrored_channels=_lists(merged.get("mirrored_channels")),
        )
    except (TypeError, AttributeError) as error:
        raise InfrastructureError(
            f"conda's configuration has a key of the wrong shape: {error}",
            remedy="see `conda config --show-sources`, and correct it",
        ) from error


def certificates(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables that make rattler trust the certificate authorities that conda trusts here.

    `ssl_verify` of the configuration decides, then rattler's own variables, then those that conda knows.

    Raises:
        InfrastructureError: The configuration cannot be read.
    """
    stated: Any = None
    for path in conda_config_files(environ):
        stated = _read(path).get("ssl_verify", stated)
    trusted = environ.get("CONDA_SSL_VERIFY", stated)
    if not isinstance(trusted, str) or not Path(trusted).expanduser().exists():
        if environ.get("SSL_CERT_FILE") or environ.get("SSL_CERT_DIR"):
            return {}
        trusted = environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE")
    if not trusted:
        return {}
    place = Path(trusted).expanduser()
    return {"SSL_CERT_DIR" if place.is_dir() else "SSL_CERT_FILE": str(place)}


def conda_config_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Return conda's existing configuration files, in the order in which conda reads them."""
    home = Path(environ.get("HOME", "/"))
    own = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    places = [Path("/etc/conda"), Path("/var/lib/conda")]
    places += [Path(environ[root]) for root in ("CONDA_ROOT", "MAMBA_ROOT_PREFIX") if environ.get(root)]
    places += [own / "conda", home / ".conda"]
    candidates: list[Path] = []
    for place in places:
        candidates += [place / ".condarc", place / "condarc", *sorted(place.glob("condarc.d/*.y*ml"))]
    candidates += [home / ".condarc", home / ".mambarc"]
    if environ.get("CONDA_PREFIX"):
        candidates.append(Path(environ["CONDA_PREFIX"]) / ".condarc")
    candidates += [Path(environ[name]).expanduser() for name in ("CONDARC", "MAMBARC") if environ.get(name)]
    yield from (path for path in candidates if path.is_file())


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InfrastructureError(
            f"conda's configuration {path} cannot be read: {str(error).splitlines()[0]}",
            remedy="correct or remove that file",
        ) from error
    if data is not None and not isinstance(data, dict):
        raise InfrastructureError(
            f"conda's configuration {path} holds no `key: value` lines", remedy="correct or remove that file"
        )
    # conda lets its files name variables, in which tokens are kept.
    return {str(key): _expanded(value) for key, value in (data or {}).items()}


def _expanded(value: Any) -> Any:
    if isinstance(value, str):
        return os.path.expandvars(value)
    if isinstance(value, list):
        return [_expanded(item) for item in value]
    if isinstance(value, dict):
        return {key: _expanded(item) for key, item in value.items()}
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(str(item) for item in value or ())


def _lists(value: Any) -> dict[str, tuple[str, ...]]:
    return {str(key): _texts(items) for key, items in (value or {}).items()}
