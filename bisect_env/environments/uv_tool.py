"""Runs uv with a controlled environment, so that results do not depend on where it is started."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uv

from bisect_env.environments.settings import (
    configured_places,
    default_cache_dir,
    http_timeout,
    shared_certificates,
)
from bisect_env.errors import InfrastructureError
from bisect_env.matrix.versions import PackageIndex
from bisect_env.running import Finished, run_tool
from bisect_env.secrets import passed_on, without_credentials, without_passwords
from bisect_env.temporary import FULL, full_file_system, temporary

# The user's UV_* variables that are kept: they say where packages and interpreters come from. All others
# (UV_CONSTRAINT, UV_EXCLUDE_NEWER, UV_PYTHON, ...) would change a lock without being recorded in it. Those
# that name indexes, their logins and a configuration file are read by `configured_places`.
_KEPT = re.compile(
    r"UV_(INDEX_STRATEGY|KEYRING_PROVIDER|CREDENTIALS_DIR|OFFLINE|INSECURE_HOST"
    r"|SYSTEM_CERTS|NATIVE_TLS|HTTP_TIMEOUT|HTTP_RETRIES|PYTHON_INSTALL_MIRROR"
    r"|PYTHON_INSTALL_DIR|PYTHON_CACHE_DIR|PYTHON_DOWNLOADS_JSON_URL)"
)
# Variables that would make uv or a build back end use another Python environment.
_DROPPED = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "__PYVENV_LAUNCHER__")

# Variables with addresses that may contain a password. A build downloads no Python and does not need them.
_PYTHON_PLACES = ("UV_PYTHON_INSTALL_MIRROR", "UV_PYTHON_DOWNLOADS_JSON_URL")
# Without these settings, uv would query indexes without cache headers again for each package of each
# combination, which takes 0.8 s per lock instead of 0.02 s.
CACHE_CONTROL = {"api": "max-age=600", "files": "max-age=365000000, immutable"}
"""Cache settings of an index in `uv.toml`: pages for ten minutes, as on PyPI; files forever."""
_PUBLIC_INDEX_TIMEOUT = 60.0

# Runs a command with a memory limit, and kills its process group when the parent process ends; otherwise an
# abandoned build could go on for hours. The kernel sends SIGTERM to this program when its parent ends
# (PR_SET_PDEATHSIG is 1).
_WATCHED = """
import ctypes, os, resource, signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
limit = int(sys.argv[2])
def within():
    if limit:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
status = subprocess.Popen(sys.argv[3:], preexec_fn=within).wait()
if status < 0:
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


def no_room_error(place: Path) -> InfrastructureError:
    """Return the error that the file system of `place` is full."""
    return InfrastructureError(
        f"no space left on the file system of {place}",
        remedy="make room there, or name another place: TMPDIR for temporary files, "
        "BISECT_ENV_CACHE for the cache",
    )


class Uv:
    """The uv executable, configured with a cache and package indexes.

    Args:
        cache_dir: The cache directory of bisect-env. uv's cache is a subdirectory, on the same file system as
            the prefixes, so that files can be hardlinked.
        index: URL of the package index; None for the configured one.
        environ: Environment variables to start from; None to use the variables of this process.
        indexes: Additional indexes with higher priority than `index` and the configured ones.
        find_links: Directories and web pages with additional archives.
        holding: File descriptor that runs inherit unless they build; see `run_tool`.
    """

    def __init__(
        self,
        cache_dir: Path,
        index: str | None = None,
        environ: Mapping[str, str] | None = None,
        *,
        indexes: Sequence[PackageIndex] = (),
        find_links: Sequence[str] = (),
        holding: int | None = None,
    ) -> None:
        self.cache_dir = cache_dir
        self._holding = holding
        self._environ = dict(os.environ if environ is None else environ)
        self._places = configured_places(self._environ, index=index, indexes=indexes, find_links=find_links)

    @functools.cached_property
    def index(self) -> str:
        """Return the URL of the default index. If none is set, uv is asked for its public index.

        Raises:
            InfrastructureError: uv does not state its public index.
        """
        return self._places.default or public_index()

    @property
    def asked(self) -> list[str]:
        """Return the URLs of the indexes that uv asks for packages without an index of their own."""
        return list(dict.fromkeys(one.url for one in self._all_indexes if not one.explicit))

    def index_of(self, url: str) -> str:
        """Return the URL, without credentials, of the index that a page or file belongs to.

        Return the default index if the URL does not begin with that of any index.
        """
        known = [without_credentials(one).rstrip("/") for one in self.asked]
        own = (one for one in known if f"{url}/".startswith(f"{one}/"))
        return next(own, without_credentials(self.index))

    def run(
        self,
        args: Sequence[str | Path],
        *,
        cwd: Path,
        timeout: float,
        builds: bool,
        on_line: Callable[[str], None] | None = None,
        extra: Mapping[str, str] | None = None,
        memory: int = 0,
        find_links: Sequence[str] | None = None,
        with_indexes: bool = True,
    ) -> Finished:
        """Run uv, wait for it, and return its result.

        Args:
            args: Arguments for uv.
            cwd: Working directory.
            timeout: Time limit in seconds.
            builds: Whether uv may run code of source distributions, which inherits uv's environment. If so,
                the environment is reduced to what trials get and what uv needs, and uv and its child
                processes are killed when this process ends.
            on_line: Called with each line of uv's standard error.
            extra: Additional environment variables.
            memory: Limit of the address space of each process in bytes, if `builds`; 0 for no limit.
            find_links: Directories and web pages with archives that replace all others.
            with_indexes: Whether uv gets the package indexes; to find out its own one may take 0.1 s.

        Raises:
            InfrastructureError: uv cannot be started, its cache cannot be created, or it does not state its
                public index.
        """
        env = {**self.variables(builds=builds), **(extra or {})}
        # `--project /` keeps uv from looking for a project in a parent directory of `cwd`, to which other
        # users may be able to write.
        argv: list[str | Path] = [uv.find_uv_bin(), "--project", "/", "--config-file", "/dev/stdin", *args]
        # A build may start a server process that would keep an inherited lock forever.
        holding = None if builds else self._holding
        if builds:
            argv = [sys.executable, "-I", "-S", "-c", _WATCHED, str(os.getpid()), str(memory), *argv]
        try:
            # Only this user may enter the directory: a user who can open uv's lock files could block uv.
            Path(env["UV_CACHE_DIR"]).mkdir(mode=0o700, parents=True, exist_ok=True)
            return run_tool(
                argv,
                env=env,
                cwd=cwd,
                timeout=timeout,
                on_line=on_line,
                holding=holding,
                stdin=self.configuration(find_links=find_links, with_indexes=with_indexes),
            )
        except OSError as error:
            if error.errno in FULL and (place := full_file_system(self.cache_dir)):
                raise no_room_error(place) from error
            remedy = f"see that the cache {self.cache_dir} can be written (BISECT_ENV_CACHE names another)"
            if str(self.cache_dir) not in str(error.filename):
                remedy = f"install bisect-env again (it brings uv), and {remedy}"
            raise InfrastructureError(f"uv cannot be used: {error}", remedy=remedy) from error

    def variables(self, *, builds: bool = False) -> dict[str, str]:
        """Return the environment variables with which uv is run.

        Args:
            builds: Whether uv may run code of source distributions, which gets no password.
        """
        env = {
            name: value
            for name, value in self._environ.items()
            if name not in _DROPPED and (not name.startswith("UV_") or _KEPT.fullmatch(name))
        }
        if builds:
            own_bin = str(Path(sys.executable).parent)
            path = env.get("PATH", os.defpath).split(os.pathsep)
            kept = {
                name: value
                for name, value in env.items()
                if name == "TMPDIR" or (name.startswith("UV_") and name not in _PYTHON_PLACES)
            }
            kept["PATH"] = os.pathsep.join(part for part in path if part != own_bin) or os.defpath
            env = passed_on(env) | kept
        env |= {
            "UV_CACHE_DIR": str(self.cache_dir / "uv"),
            "UV_NO_PROGRESS": "1",
            "UV_PYTHON_DOWNLOADS": "manual",
            "NO_COLOR": "1",
            **shared_certificates(self._environ),
        }
        env["UV_HTTP_TIMEOUT"] = f"{http_timeout(self._environ):g}"
        return env

    def configuration(self, *, find_links: Sequence[str] | None = None, with_indexes: bool = True) -> str:
        """Return the text of the `uv.toml` that uv reads from its standard input, and no other.

        A configuration file of the user might change a lock without being recorded in it. This text repeats
        what `configured_places` takes from the user's files. Logins and tokens in it are in no file and no
        variable, and code that uv runs cannot read them, because a pipe can be read once.

        Args:
            find_links: Directories and web pages with archives that replace all others.
            with_indexes: Whether to include package indexes, and places of archives.
        """
        settings = dict(self._places.settings)
        if with_indexes:
            if self._places.no_index:
                settings["no-index"] = True
            else:
                settings["index-strategy"] = self._places.strategy
                settings["index"] = self._tables()
            settings["find-links"] = self._places.find_links if find_links is None else find_links
        return "".join(f"{key} = {toml(value)}\n" for key, value in settings.items())

    @functools.cached_property
    def _all_indexes(self) -> list[PackageIndex]:
        """Return the indexes of the matrix and of the configuration by priority."""
        # uv uses the first one of two with one name. Of an explicit index, it needs only the login here.
        found = [
            replace(one, name=f"bisect-env.{one.name}") if one.explicit else one
            for one in self._places.indexes(self.index)
        ]
        names = [one.name for one in found]
        return [one for number, one in enumerate(found) if not one.name or names.index(one.name) == number]

    def _tables(self) -> list[dict[str, Any]]:
        """Return the settings of all indexes for `uv.toml`; see `configuration`."""
        tables = []
        for one in self._all_indexes:
            more = self._places.of_indexes.get(without_credentials(one.url), {})
            table: dict[str, Any] = {"url": one.url, **more}
            if one.name:
                table |= {"name": one.name, "explicit": one.explicit}
            if urlsplit(one.url).scheme in ("http", "https"):
                table.setdefault("cache-control", CACHE_CONTROL)
            tables.append(table)
        tables[-1]["default"] = True
        return tables


def toml(value: Any) -> str:
    """Return a value as TOML text."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value, ensure_ascii=False, default=str)


def build_cache(cache_dir: Path, exclude_newer: str | None, python: str) -> dict[str, str]:
    """Return the variable that gives uv a separate cache for a cutoff time and a Python version.

    In one cache, uv reuses a wheel that was built with build requirements of another time, or by another
    Python. The solver and the installation use the same cache, so that each source is built once.
    """
    tools = hashlib.sha256(f"{exclude_newer} {python}".encode()).hexdigest()[:16]
    return {"UV_CACHE_DIR": str(cache_dir / f"uv-{tools}")}


def usable_cache(aside: Path) -> Path:
    """Return the default cache directory, or the directory `aside` if the default is not writable."""
    cache = default_cache_dir()
    return cache if any(os.access(place, os.W_OK) for place in (cache, cache.parent)) else aside


def configured_index() -> str:
    """Return the URL of the package index to use if a matrix names none.

    This is the default index in uv's configuration, in pip's, or the public index that uv knows.

    Raises:
        InfrastructureError: A configuration file cannot be read, or uv does not state its public index.
    """
    return configured_places().default or public_index()


@functools.cache
def public_index() -> str:
    """Ask uv for the URL of the package index that it uses if nothing is configured.

    Importing pypi-simple, which states the URL too, takes longer: 0.12 s instead of 0.02 s.

    Raises:
        InfrastructureError: uv failed, or its answer holds no URL.
    """
    with temporary("index") as aside:
        args = ["pip", "compile", "--emit-index-url", "--no-header", "--offline", "--quiet"]
        finished = Uv(usable_cache(aside)).run(
            [*args, "--python", sys.executable, os.devnull],
            cwd=aside,
            timeout=_PUBLIC_INDEX_TIMEOUT,
            builds=False,
            with_indexes=False,
        )
    match finished.stdout.split():
        case ["--index-url", address]:
            return address
    why = plain_words(finished.stderr) or finished.stdout[:200] or "no answer in time"
    raise InfrastructureError(
        f"uv does not state its public index: {without_passwords(why)}",
        remedy="install bisect-env again (it brings uv), or name an index in uv's or pip's configuration",
    )


_TRANSIENT = re.compile(
    r"""error\ sending\ request | Request\ failed\ after | request\ or\ response\ body\ error
      | error\ decoding\ response\ body | (operation|download|request|[Cc]onnection)\ timed\ out
      | dns\ error | tcp\ connect\ error | [Cc]onnection\ (refused|reset|closed)
      | HTTP\ status\ server\ error | HTTP\ status\ client\ error\ \((401|403|407|408|429)
      | [Hh]ash\ mismatch | mismatch.*(sha256|hash) | Bad\ CRC | unexpected\ end\ of\ file
      | Failed\ to\ extract\ archive
      | unexpected\ EOF(?!\ while\ parsing) | [Nn]o\ space\ left | Disk\ quota
      | [Nn]etwork\ is\ (down|unreachable) | network\ connectivity\ is\ disabled
      | Too\ many\ open\ files | Cannot\ allocate\ memory | died\ of\ SIG""",
    re.VERBOSE,
)


def is_transient(words: str) -> bool:
    """Return whether an error of uv or rattler may be temporary, such as a network or disk failure.

    A retry may succeed after such errors. A file that does not exist (status 404 or 410) is not included.
    """
    return _TRANSIENT.search(words) is not None


def plain_words(stderr: str, limit: int = 4000) -> str:
    """Return uv's error output without progress lines, shortened to about `limit` characters.

    A shortened text keeps its beginning and its end.
    """
    lines: list[str] = []
    for line in stderr.splitlines():
        if line.startswith(("warning:", "Using ", "Resolved ", "Prepared ", "   Building", "      Built")):
            continue
        lines.append(re.sub(r"^(error: |  cause: )", "", line).rstrip())
    text = "\n".join(lines).strip()
    return text if len(text) <= limit else f"{text[: limit // 4]}\n[...]\n{text[-limit * 3 // 4 :]}"
