"""Runs py-rattler in helper processes, and converts its errors about channels to messages for users.

py-rattler runs in separate processes because it can crash; see `conda_helper` for the program they run.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from bisect_env.environments.lock import Lock, UnbuildableError
from bisect_env.environments.settings import CondaConfig, certificates, mirrors_of_urls, read_conda_config
from bisect_env.environments.uv_tool import is_transient
from bisect_env.errors import IndexUnavailableError, InfrastructureError
from bisect_env.secrets import without_channel_secrets

# --------------------------------------------------------------------------------------------------
# Error messages about conda channels. Pure.

_NO_CHANNEL = re.compile(r"could not find subdir '[^']*' in channel '([^']*)'")
_STATUS = re.compile(r"HTTP status (?:client|server) error \((\d+ [^)]*)\) for url \(([^)]*)\)")
_URL = re.compile(r"\((https?://[^)\s]*)\)")
_NOT_REPODATA = re.compile(
    r"parse repodata|decode|expected value|invalid type|missing field|EOF while parsing"
)
NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded")
_CERTIFICATE = re.compile(r"invalid peer certificate")
_SILENT = re.compile(r"operation timed out|deadline has elapsed")


def channel_failure(text: str, channels: Sequence[str], tried: str) -> IndexUnavailableError:
    """Translate rattler's error message about a conda channel into an error with a remedy for users.

    Args:
        text: rattler's error message; each cause is on a line of its own.
        channels: URLs of the channels that were used.
        tried: Description of the task.
    """
    url = _URL.search(text)
    named = (channel for channel in channels if url and url[1].startswith(f"{channel}/"))
    channel = next(named, " or ".join(channels))
    text = without_channel_secrets(text)
    remedy = (
        "check the network, proxy and credentials (~/.condarc, rattler's authentication file), "
        "then give the same command again"
    )
    if found := _NO_CHANNEL.search(text):
        what = f"there is no conda channel at {found[1].rstrip('/')}"
        remedy = "correct its name in `channels`; a bare name belongs to the `channel_alias` of .condarc"
    elif status := _STATUS.search(text):
        what = f"the conda channel {channel} answers {status[1]}"
    elif _CERTIFICATE.search(text):
        what = f"the conda channel {channel} cannot be trusted: {last_words(text)}"
        remedy = (
            "name the file with your authority's certificate: `ssl_verify: FILE` in ~/.condarc, or "
            "SSL_CERT_FILE; rattler checks certificates always, also with `ssl_verify: false`"
        )
    elif _SILENT.search(text) or text.startswith("no answer"):
        what = f"the conda channel {channel} cannot be used: no answer in time"
    elif _NOT_REPODATA.search(text):
        what = f"the conda channel {channel} does not answer with repodata: {last_words(text)}"
        remedy = "give the address of a channel: the folder that holds noarch/repodata.json"
    else:
        what = f"the conda channel {channel} cannot be used: {last_words(text)}"
    return IndexUnavailableError(what, tried=tried, remedy=remedy)


def last_words(text: str) -> str:
    """Return the innermost cause in an error message of rattler."""
    return text.splitlines()[-1].removeprefix("Caused by: ") if text else "no reason given"


# --------------------------------------------------------------------------------------------------
# Helper processes. Each starts when needed, handles one request at a time, and is killed with its children.

COMMAND = (sys.executable, "-m", "bisect_env.environments.conda_helper")

# Variables that would change the Python environment of the helper process.
_DROPPED = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONINSPECT")
_ALIAS_TIMEOUT = 60.0
_TAIL = 4000
_ATTEMPTS = 3
"""Number of helper processes to try for one request, because py-rattler crashes in rare cases."""


class HelperDiedError(InfrastructureError):
    """The error raised if a helper process ends or times out before it responds.

    Args:
        text: How the process ended, with the end of its standard error.
        timed_out: Whether it was killed because it did not respond in time.
        crashed: Whether it was killed by a signal, so that a retry with a new process may succeed.
    """

    def __init__(self, text: str, *, timed_out: bool = False, crashed: bool = False) -> None:
        remedy = "give the same command again; if it stays so, report it to py-rattler"
        super().__init__(text, remedy=remedy)
        self.text = text
        self.timed_out = timed_out
        self.crashed = crashed


class HelperProcess:
    """A running helper process. Only one thread may use it at a time.

    Args:
        command: Command line of the process.
        holding: File descriptor of a locked file that the process inherits. The lock thus stays held until
            the process has ended, even if this process is killed.
    """

    def __init__(self, command: Sequence[str] = COMMAND, holding: int | None = None) -> None:
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
                # Ctrl-C in the terminal must not reach the helper. This process ends it if necessary.
                start_new_session=True,
                pass_fds=() if holding is None else (holding,),
            )
        except OSError as error:
            self._errors.close()
            raise InfrastructureError(
                f"the conda solver cannot be started: {error}", remedy="install bisect-env again"
            ) from error

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Send a request to the process, and return its response.

        Args:
            request: The request; see `conda_helper`.
            timeout: Time limit in seconds.

        Raises:
            HelperDiedError: The process ended or was killed after the time limit; it cannot be used again.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout
        alarm = threading.Timer(timeout, self._kill)
        alarm.daemon = True
        alarm.start()
        try:
            # If the process ends, writing fails, and reading finds the end of the output.
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.write(json.dumps(request).encode() + b"\n")
                self.process.stdin.flush()
            line = self.process.stdout.readline()
            died = None if line.endswith(b"\n") else self._died(timed_out=time.monotonic() >= deadline)
        except BaseException:
            # Also on Ctrl-C: a late response would be mistaken for the response to the next request.
            self.close()
            raise
        finally:
            alarm.cancel()
        if died is not None:
            raise died
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError as error:
            self.close()
            raise HelperDiedError(f"the conda solver gave no answer that can be read: {error}") from error
        return answer

    def close(self) -> None:
        """End the helper and all processes that it started."""
        self._kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # closing flushes a request that nobody reads now
                    stream.close()

    def _kill(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.killpg(self.process.pid, signal.SIGKILL)

    def _died(self, *, timed_out: bool) -> HelperDiedError:
        code = self.process.wait()
        words = self._words()
        self.close()
        if timed_out:
            return HelperDiedError(f"the conda solver gave no answer in time{words}", timed_out=True)
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
    """A thread-safe pool that keeps helper processes for later requests.

    Args:
        start: Function that starts a helper process.
    """

    def __init__(self, start: Callable[[], HelperProcess] = HelperProcess) -> None:
        self._start = start
        self.idle: list[HelperProcess] = []
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Send a request to an idle helper process, or to a new one, and return the response.

        If the process crashes, the request is sent to another one, up to three in all.

        Args:
            request: The request; see `conda_helper`.
            timeout: Time limit in seconds.

        Raises:
            HelperDiedError: All attempts crashed, or a process failed or timed out without a crash.
        """
        deaths: list[str] = []
        while True:
            helper = self._taken()
            try:
                answer = helper.ask(request, timeout)
            except HelperDiedError as error:
                deaths.append(error.text)
                if not error.crashed or len(deaths) >= _ATTEMPTS:
                    text = "; then ".join(dict.fromkeys(deaths))
                    if len(deaths) > 1:
                        text += f" ({len(deaths)} times)"
                    raise HelperDiedError(text, timed_out=error.timed_out, crashed=error.crashed) from error
                continue
            if answer.get("failed") == "stalled":
                helper.close()
            else:
                with self._lock:
                    self.idle.append(helper)
            return answer

    def _taken(self) -> HelperProcess:
        """Take an idle helper process out of the pool, or start one, and return it."""
        with self._lock:
            if self._owner != os.getpid():
                # After a fork, the inherited helper processes belong to the parent.
                self.idle, self._owner = [], os.getpid()
            if self.idle:
                return self.idle.pop()
        return self._start()

    def close(self) -> None:
        """Kill all idle helper processes. The pool can still be used and then starts new ones."""
        with self._lock:
            idle, self.idle = self.idle, []
        if self._owner == os.getpid():
            for helper in idle:
                helper.close()


@functools.cache
def shared_pool() -> HelperPool:
    """Return the pool of helper processes that all code in this process shares.

    The first call creates the pool.
    """
    pool = HelperPool()
    atexit.register(pool.close)
    return pool


def with_usual_alias(config: CondaConfig, pool: HelperPool) -> CondaConfig:
    """Return conda's configuration, with rattler's default channel alias if the user has set no alias.

    The channel alias is the URL that precedes the bare name of a channel.

    Raises:
        InfrastructureError: The helper process failed.
    """
    if config.channel_alias:
        return config
    answer = pool.ask({"op": "alias"}, _ALIAS_TIMEOUT)
    return config.model_copy(update={"channel_alias": answer["alias"]})


def mirrors_here(channels: Sequence[str]) -> dict[str, list[str]]:
    """Return the mirrors that this host's configuration names for the channel URLs of a lock.

    Raises:
        InfrastructureError: The configuration cannot be read, or the helper process failed.
    """
    config = read_conda_config()
    if config.mirrored_channels or config.custom_multichannels or config.default_channels:
        # These settings may contain bare channel names, which need the alias.
        config = with_usual_alias(config, shared_pool())
    return mirrors_of_urls(channels, config)


# --------------------------------------------------------------------------------------------------
# Installation of the conda packages of a lock.


def fill(
    place: Path,
    lock: Lock,
    cache: Path,
    timeout: float,
    *,
    archives: Mapping[str, Path] | None = None,
    stall: float = 300.0,
    holding: int | None = None,
    command: Sequence[str] = COMMAND,
) -> None:
    """Install the conda packages of a lock into a directory.

    uv installs the wheels of the lock afterwards.

    Archives are downloaded to `conda/pkgs` in the cache, their hashes are checked, and files are hardlinked.

    Args:
        place: Directory to install into; created if it does not exist.
        lock: The lock.
        cache: The cache directory of bisect-env.
        timeout: Time limit in seconds.
        archives: Maps the URLs of packages to local files that are used instead.
        stall: Seconds without any data after which a download is given up.
        holding: File descriptor of the lock of `place`, which the helper process keeps until it has ended.
        command: Command line of the helper process that installs.

    Raises:
        UnbuildableError: The installation failed; `transient` is True if a retry may succeed.
    """
    place.mkdir(parents=True, exist_ok=True)
    (place / "conda-lock.yml").write_text(lock.text, "utf-8")
    channels = sorted({package.source for package in lock.packages if package.is_conda})
    message = {
        "op": "install",
        "lock": str(place / "conda-lock.yml"),
        "archives": {url: str(path) for url, path in (archives or {}).items()},
        "place": str(place),
        "package_cache": str(cache / "conda" / "pkgs"),
        "stall": stall,
        "verified": str(cache / "verified"),
        "mirrors": mirrors_here(channels),
    }
    (cache / "conda").mkdir(mode=0o700, parents=True, exist_ok=True)
    helper = HelperProcess(command, holding)
    try:
        answer = helper.ask(message, timeout)
    except HelperDiedError as error:
        text = f"not finished in {timeout:.0f} s" if error.timed_out else error.text
        # A crash or timeout of the helper process may not occur again.
        raise UnbuildableError(text, transient=True) from error
    finally:
        helper.close()
    if "failed" in answer:
        lines = without_channel_secrets(str(answer["text"])).splitlines()
        text = "\n".join(line.removeprefix("Caused by: ") for line in lines)
        raise UnbuildableError(text, transient=answer["failed"] == "hash" or is_transient(text))
