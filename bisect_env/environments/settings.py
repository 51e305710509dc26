"""Reads environment variables and the configuration of uv, pip and conda: cache, indexes and channels."""

from __future__ import annotations

import configparser
import contextlib
import functools
import netrc
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import platformdirs
import yaml
from pydantic import BaseModel, BeforeValidator, ByteSize, TypeAdapter, ValidationError

from bisect_env.errors import InfrastructureError, UsageError, expanded
from bisect_env.matrix.versions import PackageIndex
from bisect_env.secrets import public_channel, without_credentials


def default_cache_dir() -> Path:
    """Return the cache directory: the variable `BISECT_ENV_CACHE`, or `bisect-env` in the user's cache."""
    configured = os.environ.get("BISECT_ENV_CACHE")
    return expanded(configured).absolute() if configured else platformdirs.user_cache_path("bisect-env")


def default_offline() -> Path | None:
    """Return the directory of `env fetch` that `BISECT_ENV_OFFLINE` names, or None if it is not set.

    The directory is used instead of a network.
    """
    configured = os.environ.get("BISECT_ENV_OFFLINE")
    return expanded(configured).absolute() if configured else None


def default_cache_limit() -> int:
    """Return the maximum size of the cache in bytes (`BISECT_ENV_CACHE_SIZE`).

    Beyond it, the least recently used environments are removed.

    Raises:
        UsageError: The variable is not a size.
    """
    return parse_size(os.environ.get("BISECT_ENV_CACHE_SIZE") or "50GB", "BISECT_ENV_CACHE_SIZE")


def parse_size(text: str, name: str) -> int:
    """Convert a size such as `20GB` or `512MiB` to bytes.

    Args:
        text: The size.
        name: Name of the option or variable, for the error message.

    Raises:
        UsageError: The text is not a size.
    """
    try:
        return int(TypeAdapter(ByteSize).validate_python(text.strip()))
    except ValidationError:
        raise UsageError(f"{name}: {text!r} is not a size", remedy="write it like 20GB or 512MiB") from None


@dataclass(frozen=True, slots=True)
class PackagePlaces:
    """The indexes and other package sources that uv or pip is configured with on this host.

    Attributes:
        default: URL of the default index, including credentials; "" for the public index that uv knows.
        before: Indexes with higher priority than the default one, highest priority first, with credentials.
            Those of a matrix come before those of uv's configuration.
        after: Indexes of pip's configuration, which come after the default one.
        find_links: Directories and web pages with additional archives.
        no_index: Whether only `find_links` may be used and no index.
        strategy: How uv chooses among indexes that have the same package (uv's `index-strategy`).
        settings: Further settings of `uv.toml` that say how servers are reached.
        of_indexes: Maps the URL of an index to further settings of it in `uv.toml`.
    """

    default: str
    before: tuple[PackageIndex, ...]
    after: tuple[PackageIndex, ...]
    find_links: tuple[str, ...]
    no_index: bool = False
    strategy: str = "first-index"
    settings: Mapping[str, Any] = field(default_factory=dict)
    of_indexes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def indexes(self, default: str) -> list[PackageIndex]:
        """Return all indexes by priority; `default` is the URL of the default one, which uv expects last."""
        last = PackageIndex("", default)
        return [*self.before, *((last, *self.after) if self.after else ()), last]

    def with_login(self, url: str) -> str:
        """Return the URL of an index or archive with the login of the index that it belongs to, if any.

        As in uv, this is the index whose address begins the URL, else the first one on the same host.
        """
        known = [one.url for one in self.indexes(self.default) if "@" in urlsplit(one.url).netloc]
        same = [one for one in known if _host(one) == _host(url)]
        begin = [one for one in same if f"{url}/".startswith(f"{without_credentials(one).rstrip('/')}/")]
        parts = urlsplit(url)
        if not same or "@" in parts.netloc:
            return url
        return urlunsplit(parts._replace(netloc=urlsplit([*begin, *same][0]).netloc))


def _host(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.rpartition("@")[2]


def http_timeout(environ: Mapping[str, str]) -> float:
    """Return the number of seconds without data after which a download is given up (`UV_HTTP_TIMEOUT`).

    Raises:
        UsageError: The variable is not a positive number.
    """
    text = environ.get("UV_HTTP_TIMEOUT") or "30"
    try:
        if (seconds := float(text)) > 0:
            return seconds
    except ValueError:
        pass
    raise UsageError(f"UV_HTTP_TIMEOUT: {text!r} is not a number of seconds", remedy="write it like 30")


# Settings of `uv.toml` that hold here besides the addresses of indexes. All others (prerelease,
# exclude-newer, constraint-dependencies, no-binary, ...) would change a lock without being recorded in it.
_REACHING = (
    *("keyring-provider", "allow-insecure-host", "native-tls", "system-certs", "offline"),
    *("http-proxy", "https-proxy", "no-proxy", "concurrent-downloads"),
    *("python-install-mirror", "python-downloads-json-url"),
)
_KEYRING_TIMEOUT = 60.0
_OF_INDEX = ("format", "authenticate", "ignore-error-codes", "cache-control")


def configured_places(
    environ: Mapping[str, str] | None = None,
    *,
    index: str | None = None,
    indexes: Sequence[PackageIndex] = (),
    find_links: Sequence[str] = (),
) -> PackagePlaces:
    """Return the package sources of a matrix and of uv's configuration, or of pip's if uv's names none.

    For each program, environment variables take precedence over configuration files. Each address contains
    the login that variables, a keyring or the file in the variable `NETRC` have for it.

    Args:
        environ: Environment variables; None to use the variables of this process.
        index: URL of the default index; None for the configured one.
        indexes: Additional indexes with higher priority than `index` and the configured ones.
        find_links: Directories and web pages with additional archives.

    Raises:
        InfrastructureError: A configuration file cannot be read.
        UsageError: An address cannot be read.
    """
    environ = os.environ if environ is None else environ
    default = _named_index(environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL") or "")
    further = f"{environ.get('UV_INDEX', '')} {environ.get('UV_EXTRA_INDEX_URL', '')}"
    found = [_named_index(word) for word in further.split()]
    links = [_placed(word, Path()) for word in environ.get("UV_FIND_LINKS", "").split(",") if word]
    no_index, strategy = False, environ.get("UV_INDEX_STRATEGY", "")
    settings: dict[str, Any] = {}
    of_indexes: dict[str, dict[str, Any]] = {}
    uv_files = list(uv_config_files(environ))
    for path in uv_files:
        config = _read_toml(path)
        try:
            for section in (config.get("pip", {}), config):
                for one in section.get("index", []):
                    url = _placed(one["url"], path)
                    named = PackageIndex(str(one.get("name", "")), url, bool(one.get("explicit")))
                    _refuse_unreadable(url)
                    stated = {key: one[key] for key in _OF_INDEX if key in one}
                    of_indexes.setdefault(without_credentials(url), stated)
                    if one.get("default"):
                        default = default if default.url else named
                    else:
                        found.append(named)
                if section.get("index-url") and not default.url:
                    default = PackageIndex("", _placed(section["index-url"], path))
                found += [PackageIndex("", _placed(url, path)) for url in section.get("extra-index-url", [])]
                links += [_placed(place, path) for place in section.get("find-links", [])]
                no_index = no_index or section.get("no-index") is True
                strategy = strategy or str(section.get("index-strategy", ""))
                settings = {key: section[key] for key in _REACHING if key in section} | settings
        except (AttributeError, KeyError, TypeError) as error:
            raise _unreadable("uv", path, f"a key has the wrong shape: {error}") from error
    are_pips = not found and not links
    pip = _pip_settings(environ) if are_pips or not default.url else {}
    pips = []
    if are_pips:
        pips = [PackageIndex("", url) for url in pip.get("extra-index-url", "").split()]
        links = [_placed(word, Path()) for word in pip.get("find-links", "").split()]
        # pip takes the best version of all indexes.
        strategy = strategy or ("unsafe-best-match" if pips else "")
        if not uv_files:
            no_index = pip.get("no-index", "").lower() in _TRUE
    if not default.url:
        default = PackageIndex("", pip.get("index-url", "").strip())
    for url in (*(one.url for one in (default, *found, *pips)), *links):
        _refuse_unreadable(url)
    keyring = environ.get("UV_KEYRING_PROVIDER") or settings.get("keyring-provider")

    servers = {_login_variable(one.name): urlsplit(one.url).hostname for one in found if one.name}

    def of_matrix(one: PackageIndex) -> PackageIndex:
        # A matrix may be somebody else's. It gets no login of a name that is ours for another server.
        server = urlsplit(one.url).hostname
        is_ours = servers.get(_login_variable(one.name), server) == server
        return reached(one) if is_ours else one

    def reached(one: PackageIndex) -> PackageIndex:
        always = of_indexes.get(without_credentials(one.url), {}).get("authenticate") == "always"
        return _with_own_login(one, environ, has_keyring=keyring == "subprocess", always=always)

    places = PackagePlaces(
        reached(default).url,
        (*map(of_matrix, indexes), *map(reached, found)),
        tuple(reached(one) for one in pips),
        tuple(reached(PackageIndex("", link)).url for link in (*find_links, *links)),
        no_index,
        strategy or "first-index",
        settings,
        of_indexes,
    )
    if index is None:
        return places
    # The configuration may state a login for the index that the matrix makes the default one.
    return replace(places, default=reached(PackageIndex("", places.with_login(index))).url)


def _placed(place: object, config: Path) -> str:
    """Return a URL or path of a configuration file; a relative path starts where the file is."""
    text = str(place)
    return text if "://" in text else str(config.parent.absolute() / text)


def _refuse_unreadable(url: str) -> None:
    try:
        urlsplit(url)
    except ValueError as error:
        # Its credentials cannot be told from the rest, so it is not quoted.
        raise UsageError(
            f"uv or pip is configured with the address of an index that cannot be read: {error}",
            remedy="correct it in the environment variable or configuration file that sets it",
        ) from None


_TRUE = ("1", "true", "yes", "on", "t", "y")
"""Values that pip accepts as "true"."""


def _named_index(text: str) -> PackageIndex:
    """Return the package index that a text such as `https://…` or `name=https://…` describes."""
    # uv allows `name=url`. An equals sign after `://` is part of the URL.
    name, equals, url = text.partition("=")
    if equals and "://" not in name and "/" not in name:
        return PackageIndex(name, url)
    return PackageIndex("", text)


def _login_variable(name: str) -> str:
    """Return the beginning of the names of the two variables in which uv finds the login of an index."""
    return f"UV_INDEX_{re.sub(r'[^A-Z0-9]', '_', name.upper())}"


def _with_own_login(
    index: PackageIndex, environ: Mapping[str, str], *, has_keyring: bool, always: bool
) -> PackageIndex:
    """Return an index whose URL contains the login that variables, keyring or `NETRC` have for it, if any.

    As uv, this asks the keyring only for the password of a user, or if the index wants a login `always`. uv
    itself reads the file that `NETRC` names only where it gets this variable, which builds do not.
    """
    variable = _login_variable(index.name)
    user, password = (environ.get(f"{variable}_{kind}", "") for kind in ("USERNAME", "PASSWORD"))
    if not index.name:
        user = password = ""
    parts = urlsplit(index.url)
    user = unquote(parts.username or "") or user
    if has_keyring and not (parts.password or password) and (user or always):
        user, password = _keyring_login(without_credentials(index.url), user)
    if not (user or parts.password or password) and parts.hostname and environ.get("NETRC"):
        # uv itself says if a login is missing.
        with contextlib.suppress(OSError, ValueError, netrc.NetrcParseError):
            user, _, password = netrc.netrc(environ["NETRC"]).authenticators(parts.hostname) or ("", "", "")
    return replace(index, url=_with_login(index.url, user, password))


@functools.cache
def _keyring_login(url: str, user: str) -> tuple[str, str]:
    """Ask the program `keyring` for a login, as uv does, and return the user name and password.

    Args:
        url: URL of the index. If the keyring does not know it, its host is looked up.
        user: User name; "" to ask for it, too.

    Returns:
        The user name and password; the password is "" if the keyring has none.
    """
    for service in (url, urlsplit(url).netloc):
        args = ["keyring", "get", service, *([user] if user else ["--mode", "creds"])]
        try:
            # Not `run_tool`, which keeps the output in a file: it is a password.
            found = subprocess.run(
                args,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_KEYRING_TIMEOUT,
                check=True,
            )
        except (OSError, ValueError, subprocess.SubprocessError):
            continue  # uv itself says what is wrong with a keyring
        match found.stdout.splitlines():
            case [password] if user:
                return user, password
            case [name, password] if not user:
                return name, password
    return user, ""


def _with_login(url: str, user: str, password: str) -> str:
    """Return a URL that contains a user name and password, unless it contains a password already."""
    parts = urlsplit(url)
    if not (user or password) or parts.password:
        return url
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    return urlunsplit(parts._replace(netloc=f"{login}@{parts.netloc.rpartition('@')[2]}"))


def _pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return pip's settings, such as `index-url`, from its configuration files and the environment."""
    found: dict[str, str] = {}
    for path in reversed([*pip_config_files(environ)]):
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read(path, encoding="utf-8")  # passes over a file that does not exist
        except (ValueError, configparser.Error) as error:
            raise _unreadable("pip", path, error) from error
        for section in ("global", "install"):
            if parser.has_section(section):
                found |= {key: value for key, value in parser.items(section) if value}
    stated = {name: value for name, value in environ.items() if name.startswith("PIP_") and value}
    return found | {name[4:].lower().replace("_", "-"): value for name, value in stated.items()}


def uv_config_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the existing `uv.toml` files that uv reads outside of projects, highest priority first."""
    if environ.get("UV_CONFIG_FILE"):
        yield Path(environ["UV_CONFIG_FILE"])
        return
    home = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/")) / ".config")
    system = [Path(part) for part in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":") if part]
    for folder in (home, *system, Path("/etc")):
        path = folder / "uv" / "uv.toml"
        if path.is_file():
            yield path


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable("uv", path, error) from error


def _unreadable(tool: str, path: Path, why: object) -> InfrastructureError:
    text = str(why).partition("\n")[0]
    return InfrastructureError(
        f"{tool}'s configuration {path} cannot be read: {text}", remedy="correct or remove that file"
    )


def pip_config_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the possible paths of pip's configuration files, highest priority first."""
    # pip's own order: PIP_CONFIG_FILE, the virtual environment, the user, the host.
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


# --------------------------------------------------------------------------------------------------
# Certificate authorities. requests, uv and rattler read different variables; users need to set only one.

_OF_REQUESTS = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_OF_UV = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def shared_certificates(environ: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that make uv and rattler trust the same authorities as requests.

    Args:
        environ: The current environment variables.

    Returns:
        `SSL_CERT_FILE` or `SSL_CERT_DIR`, with the value of `REQUESTS_CA_BUNDLE` or `CURL_CA_BUNDLE`; empty
        if these are not set, or if a variable of uv's own is set.
    """
    if any(environ.get(name) for name in _OF_UV):
        return {}
    trusted = next((environ[name] for name in _OF_REQUESTS if environ.get(name)), "")
    return _certificate_variable(trusted) if trusted else {}


def _certificate_variable(trusted: str) -> dict[str, str]:
    place = expanded(trusted)
    return {"SSL_CERT_DIR" if place.is_dir() else "SSL_CERT_FILE": str(place)}


def trusted_by_requests() -> str | bool:
    """Return the argument `verify` with which requests trusts the same authorities as uv and rattler.

    Returns:
        The path in `SSL_CERT_FILE` or `SSL_CERT_DIR`. True if none of them exists, so that requests reads
        its own variables.
    """
    places = (os.environ.get(name, "") for name in _OF_UV)
    return next((place for place in places if place and Path(place).exists()), True)


def login_of(url: str) -> tuple[bytes, bytes] | None:
    """Return the user name and password in a URL, or None if it contains none.

    They are in UTF-8, as uv sends them; requests itself would send Latin 1.
    """
    parts = urlsplit(url)
    if parts.username is None and parts.password is None:
        return None
    return unquote(parts.username or "").encode(), unquote(parts.password or "").encode()


# --------------------------------------------------------------------------------------------------
# The user's conda configuration, which maps channel names to URLs and mirrors.
#
# A lock contains channel URLs without credentials. Mirrors and tokens come from this host's configuration.

_MAPPINGS = ("custom_channels", "custom_multichannels", "mirrored_channels")


_Names = Annotated[
    tuple[str, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value or ())
]


class CondaConfig(BaseModel, frozen=True, coerce_numbers_to_str=True, defer_build=True):
    """The settings in conda's configuration that determine the URLs of channels.

    Attributes:
        channel_alias: URL that precedes the bare name of a channel; "" if not configured.
        default_channels: Channels that the name `defaults` stands for; empty if not configured.
        custom_channels: Maps channel names to the URL that precedes the name.
        custom_multichannels: Maps names to the list of channels that they stand for.
        mirrored_channels: Maps channel names to URLs of mirrors (a setting of micromamba).
    """

    channel_alias: str = ""
    default_channels: _Names = ()
    custom_channels: Mapping[str, str] = {}
    custom_multichannels: Mapping[str, _Names] = {}
    mirrored_channels: Mapping[str, _Names] = {}


@dataclass(frozen=True, slots=True)
class ChannelPlaces:
    """The URLs of a request's conda channels, and of the mirrors from which to download.

    Attributes:
        urls: Channel URLs without credentials, highest priority first. Locks contain these.
        mirrors: Maps such a URL to the URLs that are used instead, including credentials.
    """

    urls: tuple[str, ...]
    mirrors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def channel_places(names: Sequence[str], config: CondaConfig) -> ChannelPlaces:
    """Return the URLs of the channels that a matrix names. Pure.

    Args:
        names: Names, URLs or absolute paths of channels.
        config: conda's configuration on this host.

    Raises:
        UsageError: A name cannot be resolved or is not a valid channel.
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
    """Return the mirrors that this host uses for the channel URLs of a lock. Pure.

    A lock contains no channel names, so every name in the configuration is resolved and compared.

    Args:
        urls: Channel URLs.
        config: conda's configuration on this host.

    Returns:
        A map from channel URLs to the URLs that are used instead; URLs without mirrors are left out.
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
        # `custom_channels: {mine: https://host}` also applies to the name `mine/label/dev`.
        known = [own for own in config.custom_channels if name == own or name.startswith(f"{own}/")]
        base = config.custom_channels[max(known, key=len)] if known else config.channel_alias
        yield f"{base.rstrip('/')}/{name}"


def read_conda_config() -> CondaConfig:
    """Return the merged configuration from all files that conda and micromamba read on this host.

    Raises:
        InfrastructureError: A file cannot be read or has an invalid value.
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
        return CondaConfig.model_validate({key: value for key, value in merged.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise InfrastructureError(
            f"conda's configuration has a key of the wrong shape: {key}: {first['msg']}",
            remedy="see `conda config --show-sources`, and correct it",
        ) from error


def certificates(environ: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that make rattler use the certificate authorities configured for conda.

    The setting `ssl_verify` is used if it names a file or directory. Otherwise `SSL_CERT_FILE` and
    `SSL_CERT_DIR` are left as they are; if neither is set, `REQUESTS_CA_BUNDLE` or `CURL_CA_BUNDLE` is used.

    Args:
        environ: The current environment variables.

    Returns:
        The variables to set; empty if nothing needs to be changed.

    Raises:
        InfrastructureError: conda's configuration cannot be read.
    """
    stated: Any = None
    for path in conda_config_files(environ):
        stated = _read(path).get("ssl_verify", stated)
    trusted = environ.get("CONDA_SSL_VERIFY", stated)
    if isinstance(trusted, str) and expanded(trusted).exists():
        return _certificate_variable(trusted)
    return shared_certificates(environ)


def conda_config_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield conda's existing configuration files. Later files override the settings of earlier ones."""
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
    candidates += [expanded(environ[name]) for name in ("CONDARC", "MAMBARC") if environ.get(name)]
    yield from (path for path in candidates if path.is_file())


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise _unreadable("conda", path, error) from error
    if data is not None and not isinstance(data, dict):
        raise _unreadable("conda", path, "it holds no `key: value` lines")
    # conda expands environment variables in its files; users keep tokens in them.
    return {str(key): _expanded(value) for key, value in (data or {}).items()}


def _expanded(value: Any) -> Any:
    if isinstance(value, str):
        return os.path.expandvars(value)
    if isinstance(value, list):
        return [_expanded(item) for item in value]
    if isinstance(value, dict):
        return {key: _expanded(item) for key, item in value.items()}
    return value
