"""Starts and asks the helper processes for py-rattler, and explains failures of channels."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from bisect_env.environments.cache import lock_or_fail
from bisect_env.environments.lock import Lock, PackageNotFoundError, UnbuildableError
from bisect_env.environments.settings import CondaConfig, certificates, mirrors_of_urls, read_conda_config
from bisect_env.environments.uv_tool import is_transient
from bisect_env.errors import BisectEnvError, IndexUnavailableError, InfrastructureError
from bisect_env.secrets import without_channel_secrets

# --------------------------------------------------------------------------------------------------
# What a user is told when a conda channel fails. Pure.

_NO_CHANNEL = re.compile(r"could not find subdir '[^']*' in channel '([^']*)'")
_STATUS = re.compile(r"HTTP status (?:client|server) error \((\d+ [^)]*)\) for url \(([^)]*)\)")
_URL = re.compile(r"\((https?://[^)\s]*)\)")
_NOT_REPODATA = re.compile(
    r"parse repodata|decode|expected value|invalid type|missing field|EOF while parsing"
)
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded")
_CERTIFICATE = re.compile(r"invalid peer certificate")
_SILENT = re.compile(r"operation timed out|deadline has elapsed")


def answered(answer: dict[str, Any], channels: Sequence[str], tried: str) -> dict[str, Any]:
    """Return the answer of a helper, unless it failed.

    Raises:
        IndexUnavailableError: A channel cannot be used.
        InfrastructureError: The cache cannot be written.
    """
    if "failed" not in answer:
        return answer
    text = str(answer["text"])
    if _NO_ROOM.search(text) or answer["failed"] == "install":
        raise InfrastructureError(
            f"repodata cannot be kept in the cache: {last_words(text)}",
            tried=tried,
            remedy="free some space, or name another cache with BISECT_ENV_CACHE",
        )
    raise channel_failure(text, channels, tried)


def channel_failure(text: str, channels: Sequence[str], tried: str) -> BisectEnvError:
    """Return an error of ours for rattler's message about a channel.

    Args:
        text: Its error with its causes, a line each.
        channels: Those that were asked.
        tried: What for.
    """
    channel = _channel_of(text, channels)
    text = without_channel_secrets(text)
    if found := _NO_CHANNEL.search(text):
        return IndexUnavailableError(
            f"there is no conda channel at {found[1].rstrip('/')}",
            tried=tried,
            remedy="correct its name in `channels`; a bare name belongs to the `channel_alias` of .condarc",
        )
    again = (
        "check the network, proxy and credentials (~/.condarc, rattler's authentication file), "
        "then give the same command again"
    )
    if status := _STATUS.search(text):
        return IndexUnavailableError(
            f"the conda channel {channel} answers {status[1]}", tried=tried, remedy=again
        )
    if _CERTIFICATE.search(text):
        return IndexUnavailableError(
            f"the conda channel {channel} cannot be trusted: {last_words(text)}",
            tried=tried,
            remedy="name the file with your authority's certificate: `ssl_verify: FILE` in ~/.condarc, or "
            "SSL_CERT_FILE; rattler checks certificates always, also with `ssl_verify: false`",
        )
    if _SILENT.search(text) or text.startswith("no answer"):
        return IndexUnavailableError(
            f"the conda channel {channel} cannot be used: no answer in time", tried=tried, remedy=again
        )
    if _NOT_REPODATA.search(text):
        return IndexUnavailableError(
            f"the conda channel {channel} does not answer with repodata: {last_words(text)}",
            tried=tried,
            remedy="give the address of a channel: the folder that holds noarch/repodata.json",
        )
    return IndexUnavailableError(
        f"the conda channel {channel} cannot be used: {last_words(text)}", tried=tried, remedy=again
    )


def unknown_package(name: str, near: Sequence[str], channels: Sequence[str]) -> PackageNotFoundError:
    """Return the error for a package name that no channel has in any version."""
    hint = f"did you mean {' or '.join(near)}?" if near else "nothing there has a similar name"
    return PackageNotFoundError(
        f"no conda channel has a package {name!r}; {hint}",
        tried=", ".join(channels),
        remedy="correct the name, or add the channel that has it to `channels`",
    )


def last_words(text: str) -> str:
    """Return the innermost cause of an error of rattler's."""
    return text.splitlines()[-1].removeprefix("Caused by: ") if text else "no reason given"


def _channel_of(text: str, channels: Sequence[str]) -> str:
    named = _URL.search(text)
    for channel in channels:
        if named and named[1].startswith(f"{channel}/"):
            return channel
    return channels[0] if len(channels) == 1 else " or ".join(channels)


# --------------------------------------------------------------------------------------------------
# Processes that py-rattler runs in: started when needed, asked one thing at a time, ended as a group.

COMMAND = (sys.executable, "-m", "bisect_env.environments.conda_helper")

# What would make the helper's interpreter another one, or make rattler see another machine than asked for.
_DROPPED = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONINSPECT")
_READ = 1 << 16
_ALIAS_TIMEOUT = 60.0
_TAIL = 4000
_ORPHAN = 600.0


class HelperDiedError(Exception):
    """A helper ended, or did not answer in time, before it had answered.

    Args:
        text: How it ended, with the end of what it wrote.
        timed_out: Whether it was ended for its silence.
        crashed: Whether a signal ended it: another process may fare better.
    """

    def __init__(self, text: str, *, timed_out: bool = False, crashed: bool = False) -> None:
        super().__init__(text)
        self.text = text
        self.timed_out = timed_out
        self.crashed = crashed


class HelperProcess:
    """A helper process, to be used by one thread at a time.

    Args:
        command: Its argument vector.
    """

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the process
        env = {name: value for name, value in os.environ.items() if name not in _DROPPED}
        env |= certificates(env)
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=env,
                # A Ctrl-C in the terminal is for us: an install goes to its end or is ended by us.
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
            raise InfrastructureError(
                f"the conda solver cannot be started: {error}", remedy="install bisect-env again"
            ) from error
        self._pending = b""

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self.process.pid

    @property
    def is_open(self) -> bool:
        """Return whether it can receive another request."""
        return not self._errors.closed

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Args:
            request: See `conda_helper`.
            timeout: Seconds.

        Raises:
            HelperDiedError: None came; the process is gone, and another one has to be started.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            return self._answer(self._line(time.monotonic() + timeout))
        except BrokenPipeError:
            raise self._died() from None
        except BaseException:
            # Also on Ctrl-C: what comes later would be taken for the answer to the next request.
            self.close()
            raise

    def close(self) -> None:
        """End it, with everything that it started."""
        process = self.process
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _line(self, deadline: float) -> bytes:
        assert self.process.stdout is not None
        stream = self.process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    words = self._words()
                    self.close()
                    raise HelperDiedError(f"no answer in time{words}", timed_out=True)
                piece = os.read(stream, _READ)
                if not piece:
                    raise self._died()
                self._pending += piece
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise HelperDiedError(f"the conda solver gave no answer that can be read: {error}") from error
        return answer

    def _died(self) -> HelperDiedError:
        code = self.process.wait()
        words = self._words()
        self.close()
        if code < 0:
            name = signal.Signals(-code).name
            return HelperDiedError(f"the conda solver died of {name}{words}", crashed=True)
        return HelperDiedError(f"the conda solver ended with status {code}{words}")

    def _words(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _TAIL))
        text = self._errors.read().decode("utf-8", "replace").strip()
        return f": {text}" if text else ""


class HelperPool:
    """A pool that keeps helper processes for later requests, as many as were used at the same time.

    Args:
        start: Starts one.
    """

    def __init__(self, start: Callable[[], HelperProcess] = HelperProcess) -> None:
        self._start = start
        self.idle: list[HelperProcess] = []
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def ask(self, request: dict[str, Any], timeout: float, *, attempts: int = 1) -> dict[str, Any]:
        """Ask an idle helper, or a new one.

        Args:
            request: See `conda_helper`.
            timeout: Seconds.
            attempts: How many processes may die of the request before it is given up.

        Raises:
            HelperDiedError: The last of them died, or none answered in time.
        """
        deaths: list[str] = []
        while True:
            try:
                with self._borrowed() as helper:
                    answer = helper.ask(request, timeout)
                    if answer.get("failed") == "stalled":
                        helper.close()
                    return answer
            except HelperDiedError as error:
                deaths.append(error.text)
                if not error.crashed or len(deaths) >= attempts:
                    text = "; then ".join(dict.fromkeys(deaths))
                    raise HelperDiedError(
                        text if len(deaths) == 1 else f"{text} ({len(deaths)} times)",
                        timed_out=error.timed_out,
                        crashed=error.crashed,
                    ) from error

    @contextlib.contextmanager
    def _borrowed(self) -> Iterator[HelperProcess]:
        with self._lock:
            if self._owner != os.getpid():
                # After a fork the pipes lead to the parent's helpers.
                self.idle, self._owner = [], os.getpid()
            helper = self.idle.pop() if self.idle else None
        if helper is None:
            helper = self._start()
        yield helper
        # Only after an answer: one that died was closed.
        with self._lock:
            if helper.is_open:
                self.idle.append(helper)

    def close(self) -> None:
        """End all helpers; the pool starts new ones when it is asked again."""
        with self._lock:
            idle, self.idle = self.idle, []
        if self._owner == os.getpid():
            for helper in idle:
                helper.close()


@functools.cache
def shared_pool() -> HelperPool:
    """Return the pool of this process."""
    pool = HelperPool()
    atexit.register(pool.close)
    return pool


def with_usual_alias(config: CondaConfig, pool: HelperPool) -> CondaConfig:
    """Return the configuration with the alias that rattler knows, where the user has none.

    Raises:
        InfrastructureError: The helper cannot say.
    """
    if config.channel_alias:
        return config
    try:
        answer = pool.ask({"op": "alias"}, _ALIAS_TIMEOUT, attempts=3)
    except HelperDiedError as error:
        raise InfrastructureError(
            error.text, remedy="give the same command again; if it stays so, report it to py-rattler"
        ) from error
    return replace(config, channel_alias=answer["alias"])


# --------------------------------------------------------------------------------------------------
# Filling a directory with the conda packages of a lock.


def _fill_lock(place: Path) -> Path:
    return place.with_name(f".{place.name}.fill.lock")


def wait_for_orphan(place: Path) -> None:
    """Wait until the helper of a builder that was killed has ended its installation into a prefix."""
    why = f"a process whose builder was killed still installs {place.name[:12]}"
    with lock_or_fail(_fill_lock(place), why, timeout=_ORPHAN):
        pass


def fill(
    place: Path,
    lock: Lock,
    cache: Path,
    timeout: float,
    *,
    archives: Mapping[str, Path] | None = None,
    stall: float = 300.0,
    pool: HelperPool | None = None,
) -> None:
    """Install the conda packages of a lock; wheels go on top of them by other hands.

    Archives are fetched into, and hardlinked from, `conda/pkgs` in the cache, hashes checked.

    Args:
        place: Where they are installed; made if need be.
        lock: Its conda packages.
        cache: Our cache directory.
        timeout: Seconds.
        archives: URL to a file on this host that is taken in its place.
        stall: Seconds without any data after which downloads are given up.
        pool: Where rattler runs.

    Raises:
        UnbuildableError: It cannot be done; `transient` tells whether that says anything about the lock.
    """
    pool = pool or shared_pool()
    config = read_conda_config()
    if config.mirrored_channels or config.custom_multichannels or config.default_channels:
        # Their names may stand for what is below the usual address.
        config = with_usual_alias(config, pool)
    packages = [package for package in lock.packages if package.is_conda]
    channels = sorted({package.url.rsplit("/", 2)[0] for package in packages})
    message = {
        "op": "install",
        "packages": [asdict(package) for package in packages],
        "archives": {url: str(path) for url, path in (archives or {}).items()},
        "place": str(place),
        "lock": str(_fill_lock(place)),
        "package_cache": str(cache / "conda" / "pkgs"),
        "stall": stall,
        "verified": str(cache / "verified"),
        "mirrors": mirrors_of_urls(channels, config),
    }
    (cache / "conda").mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        answer = pool.ask(message, timeout)
    except HelperDiedError as error:
        text = f"not finished in {timeout:.0f} s" if error.timed_out else error.text
        # A solver that dies says nothing about the environment.
        raise UnbuildableError(text, transient=True) from error
    if "failed" in answer:
        lines = without_channel_secrets(str(answer["text"])).splitlines()
        text = "\n".join(line.removeprefix("Caused by: ") for line in lines)
        raise UnbuildableError(text, transient=answer["failed"] == "hash" or is_transient(text))
