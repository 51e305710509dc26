"""Runs uv and other tools to their end, within their time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

import uv

from bisect_env.environments.settings import (
    configured_index,
    configured_places,
    uv_config_files,
)
from bisect_env.errors import InfrastructureError
from bisect_env.matrix.versions import PackageIndex
from bisect_env.secrets import passed_on, without_credentials
from bisect_env.temporary import FULL, full_file_system, read_limited, replacing, temporary

# --------------------------------------------------------------------------------------------------
# Running a tool to its end, or to its time limit, with everything that it started.

_LISTEN = 0.2  # seconds between two looks at what a tool says
_KEEP = 400_000  # bytes of output: a failing C++ build can write gigabytes
_NICE = 10  # niceness of what nobody waits for


@dataclass(frozen=True, slots=True)
class Finished:
    """The result of running a tool.

    Attributes:
        returncode: As `subprocess` gives it.
        stdout: The end of its output.
        stderr: The end of its errors.
        timed_out: Whether we ended it for its time.
    """

    returncode: int
    stdout: str
    stderr: str
    timed_out: bool = False


def run_tool(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    cwd: Path,
    timeout: float,
    on_line: Callable[[str], None] | None = None,
    keep: int | None = _KEEP,
    holding: int | None = None,
) -> Finished:
    """Run a command without a shell in its own process group.

    Output goes to files, not pipes: a build back end may leave a server behind that keeps a pipe open
    for ever.

    Args:
        argv: The program and its arguments.
        env: All of its environment variables.
        cwd: Its working directory.
        timeout: Seconds after which its process group is killed.
        on_line: Called with each line of its errors, a moment after it was written.
        keep: Bytes of output that are kept, from its end; None for all.
        holding: A descriptor that it inherits: what is locked by it stays so until the command has ended,
            even if this process is killed before.

    Raises:
        OSError: The command cannot be started.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            [str(word) for word in argv],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            pass_fds=() if holding is None else (holding,),
        )
        with _lock:
            _running.add(process.pid)
        if nice := getattr(_here, "nice", 0):
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, nice)
        ended = False
        try:
            lines = None if on_line is None else _Lines(err.fileno(), on_line)
            ended = _ended_in(process, timeout, lines)
        finally:
            with _lock:
                # Until it is reaped, which is below, its group id cannot belong to anyone else.
                _running.discard(process.pid)
            # Also on Ctrl-C: in its own session the tool does not hear of it.
            if not ended:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return Finished(process.returncode, _tail(out, keep), _tail(err, keep), not ended)


_lock = threading.Lock()
_running: set[int] = set()
_here = threading.local()


@contextlib.contextmanager
def giving_way() -> Iterator[None]:
    """Run the tools of this thread at a low priority, so that tools that somebody waits for get the cores."""
    _here.nice = _NICE
    try:
        yield
    finally:
        _here.nice = 0


def end_running() -> None:
    """Kill all tools that other threads are waiting for, because the command ends."""
    with _lock:
        for pid in _running:
            os.killpg(pid, signal.SIGKILL)


def _ended(process: subprocess.Popen[bytes], timeout: float, lines: _Lines | None) -> bool:
    """Wait for a process without reaping it; `Popen.wait` would notice its end up to 50 ms late."""
    pidfd = os.pidfd_open(process.pid)
    deadline = time.monotonic() + timeout
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        if lines is None:
            return bool(poll.poll(timeout * 1000))
        while not (ended := poll.poll(1000 * min(_LISTEN, max(0.0, deadline - time.monotonic())))):
            lines.pass_on()
            if time.monotonic() >= deadline:
                break
        lines.pass_on()
        return bool(ended)
    finally:
        os.close(pidfd)


def _ended_in(process: subprocess.Popen[bytes], timeout: float, lines: _Lines | None) -> bool:
    """Wait as `_ended` does, and wake a process that somebody has stopped."""
    deadline = time.monotonic() + timeout
    while not _ended(process, max(0.0, min(_LISTEN, deadline - time.monotonic())), lines):
        if time.monotonic() >= deadline:
            return False
        if _is_stopped(process.pid):
            # In its own session no terminal does that; stopped, it would hold its locks until the time limit.
            os.killpg(process.pid, signal.SIGCONT)
    return True


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return stat[stat.rindex(b")") + 2 :].startswith(b"T")
    return False


class _Lines:
    """A reader that forwards the lines that a process writes into a file, while it writes."""

    def __init__(self, fd: int, on_line: Callable[[str], None]) -> None:
        self._fd = fd
        self._on_line = on_line
        self._at = 0

    def pass_on(self) -> None:
        """Forward new complete lines, without moving the position at which the process writes."""
        text, end, _ = os.pread(self._fd, _KEEP, self._at).rpartition(b"\n")
        self._at += len(text) + len(end)
        for line in text.decode("utf-8", "replace").splitlines():
            self._on_line(line)


def _tail(stream: IO[bytes], keep: int | None) -> str:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0 if keep is None else max(0, size - keep))
    return stream.read().decode("utf-8", "replace")


# --------------------------------------------------------------------------------------------------
# The uv executable with an environment of our own: same inputs, same answer, wherever we are started.

# What of the user's UV_* settings says where packages and interpreters come from. All others
# (UV_CONSTRAINT, UV_EXCLUDE_NEWER, UV_PYTHON, ...) would change a lock without being seen in it.
_KEPT = re.compile(
    r"UV_(INDEX|EXTRA_INDEX_URL|INDEX_STRATEGY|FIND_LINKS|KEYRING_PROVIDER|OFFLINE|INSECURE_HOST"
    r"|SYSTEM_CERTS|NATIVE_TLS|HTTP_TIMEOUT|HTTP_RETRIES|CONFIG_FILE|PYTHON_INSTALL_MIRROR"
    r"|PYTHON_INSTALL_DIR|PYTHON_CACHE_DIR|PYTHON_DOWNLOADS_JSON_URL|INDEX_[A-Z0-9_]+_(USERNAME|PASSWORD))"
)
# Variables that would make uv or a build back end see another Python environment.
_DROPPED = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "__PYVENV_LAUNCHER__")

_LOGIN = re.compile(r"UV_INDEX_[A-Z0-9_]+_(USERNAME|PASSWORD)")
_ADDRESSES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")

CACHE_CONTROL = 'cache-control = { api = "max-age=600", files = "max-age=365000000, immutable" }'
"""Of an index in uv's settings: ten minutes is what the public index itself allows; files never change."""
_NETRC = 1 << 20  # bytes of a netrc file
# Longest silence that is taken for an answer on its way; uv tries four times in all.
_HTTP_TIMEOUT = "30"

# Runs the command within a limit, and ends it with all that it started when the process that asked for it is
# gone: a build that nobody waits for would go on for hours. It leads the process group, and is told of the
# death of its parent by the kernel (PR_SET_PDEATHSIG is 1).
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


@contextlib.contextmanager
def _told_once(pipe: Path, text: str) -> Iterator[None]:
    """Give a text to uv through a pipe, once, while the block runs; then the pipe is gone.

    uv reads its netrc file once, before it asks an index for the first time. What it builds inherits the path
    of the pipe: it finds nothing there, and is told nothing if it comes first.
    """
    os.mkfifo(pipe, 0o600)

    def tell() -> None:
        with contextlib.suppress(OSError), pipe.open("w", encoding="utf-8") as stream:
            is_uv = _is_open_in_uv_alone(stream.fileno())
            pipe.unlink(missing_ok=True)
            if is_uv:
                stream.write(text)

    teller = threading.Thread(target=tell, name="netrc", daemon=True)
    teller.start()
    try:
        yield
    finally:
        # Where uv needed no index nobody has opened it, and the thread still waits for somebody.
        while teller.is_alive():
            with contextlib.suppress(FileNotFoundError):
                end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
                teller.join(_LISTEN)
                os.close(end)
            teller.join(_LISTEN)


def _is_open_in_uv_alone(pipe: int) -> bool:
    """Return whether no other process than one of uv has the pipe open that this one writes to."""
    ours, program = os.fstat(pipe), os.path.realpath(uv.find_uv_bin())
    found = False
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 -- names
        if int(pid) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # another user's, or ended
            for fd in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 -- names
                with contextlib.suppress(OSError):
                    if os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), ours):  # noqa: PTH116 -- many
                        found = True
                        if os.path.realpath(f"/proc/{pid}/exe") != program:
                            return False
    return found


def no_room_error(place: Path) -> InfrastructureError:
    """Return the error to raise when the file system of a place is full."""
    return InfrastructureError(
        f"no space left on the file system of {place}",
        remedy="make room there, or name another place: TMPDIR for temporary files, "
        "BISECT_ENV_CACHE for the cache",
    )


class Uv:
    """uv with one cache and one index.

    Args:
        cache_dir: Our cache directory; uv's own lies in it, so that prefixes beside it can be hardlinked.
        index: URL of the package index, None for the configured one.
        environ: The environment to start from, ours by default.
        indexes: Further indexes, which are asked before it and before those that are configured.
        find_links: Folders and pages with further archives.
        holding: A descriptor that every run inherits that is not watched; see `run_tool`.
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
        self._indexes = indexes
        self._find_links = find_links
        self._holding = holding
        self._environ = dict(os.environ if environ is None else environ)
        self._explicit = index
        self.index = index or configured_index(self._environ)

    def run(
        self,
        args: Sequence[str | Path],
        *,
        cwd: Path,
        timeout: float,
        builds: bool,
        on_line: Callable[[str], None] | None = None,
        extra: Mapping[str, str] | None = None,
        watched: bool = False,
        memory: int = 0,
    ) -> Finished:
        """Run `uv ARGS` in a directory.

        Args:
            args: For uv.
            cwd: The directory.
            timeout: Seconds.
            builds: Whether uv may run code of source distributions, which inherits its environment. Then that
                is what a trial gets, and what uv itself has to know; passwords come through a pipe.
            on_line: Called with each line of uv's errors.
            extra: Environment variables besides.
            watched: Whether all of it ends when this process does, however that ends.
            memory: Of what is watched, bytes of address space that each process may take; 0 for no limit.

        Raises:
            InfrastructureError: uv cannot be started, or its cache cannot be made.
        """
        try:
            with contextlib.ExitStack() as held:
                env = self.variables()
                if builds:
                    env, logins = self._for_builds(env)
                    if logins:
                        pipe = held.enter_context(temporary("uv")) / "netrc"
                        held.enter_context(_told_once(pipe, logins))
                        env["NETRC"] = str(pipe)
                # uv's locks are open to everybody, and who holds one makes it wait.
                Path(env["UV_CACHE_DIR"]).mkdir(mode=0o700, parents=True, exist_ok=True)
                # Without a project uv would read a `uv.toml` of any directory above `cwd`: others may write
                # to the one for temporary files.
                argv: list[str | Path] = [uv.find_uv_bin(), "--project", "/", *args]
                if watched:
                    argv = [sys.executable, "-I", "-S", "-c", _WATCHED, str(os.getpid()), str(memory), *argv]
                whole = {**env, **(extra or {})}
                holding = None if watched else self._holding
                return run_tool(argv, env=whole, cwd=cwd, timeout=timeout, on_line=on_line, holding=holding)
        except OSError as error:
            if error.errno in FULL and (place := full_file_system(self.cache_dir)):
                raise no_room_error(place) from error
            raise InfrastructureError(
                f"uv cannot be used: {error}",
                remedy="install bisect-env again (it brings uv), and see that the cache "
                f"{self.cache_dir} can be written (BISECT_ENV_CACHE names another)",
            ) from error

    def variables(self) -> dict[str, str]:
        """Return the environment variables that uv is run with."""
        env = {
            name: value
            for name, value in self._environ.items()
            if name not in _DROPPED and (not name.startswith("UV_") or _KEPT.fullmatch(name))
        }
        env |= {
            "UV_CACHE_DIR": str(self.cache_dir / "uv"),
            "UV_NO_PROGRESS": "1",
            "UV_PYTHON_DOWNLOADS": "manual",
            "NO_COLOR": "1",
        }
        env.setdefault("UV_HTTP_TIMEOUT", _HTTP_TIMEOUT)
        env.pop("UV_INDEX_URL", None)
        env["UV_DEFAULT_INDEX"] = self.index
        further = self._further(env)
        if configured_places(self._environ).no_index and not any(uv_config_files(self._environ)):
            # Set for pip, which uv would not know.
            env.pop("UV_DEFAULT_INDEX")
            env["UV_CONFIG_FILE"] = str(self._own_config("no-index = true\n"))
            further = []
        elif self._own_config_fits(further):
            env.pop("UV_DEFAULT_INDEX")
            env["UV_CONFIG_FILE"] = str(self._own_config(_indexes_text(self.index, further)))
            further = []
        elif self._explicit is None and any(uv_config_files(self._environ)):
            # The user's uv.toml knows more about the index than its URL, so that it has to speak itself.
            env.pop("UV_DEFAULT_INDEX")
            for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
                if self._environ.get(name):
                    env[name] = self._environ[name]
        if further:
            words = [f"{one.name}={one.url}" if one.name else one.url for one in further]
            env["UV_INDEX"] = " ".join([*words, *env.get("UV_INDEX", "").split()])
        return env

    def _further(self, env: dict[str, str]) -> list[PackageIndex]:
        """Return the indexes that uv does not know of by itself: of the matrix, and of pip's settings.

        Args:
            env: For uv; folders of archives are added to it, and pip's way of choosing among indexes.
        """
        configured = configured_places(self._environ)
        indexes = [one for one in self._indexes if not one.explicit]
        links = [*self._find_links, *filter(None, [env.get("UV_FIND_LINKS", "")])]
        if configured.are_pips:
            links += configured.find_links
            if configured.indexes:
                indexes += [PackageIndex("", self.index), *configured.indexes]
                env.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
        if links:
            env["UV_FIND_LINKS"] = ",".join(links)
        return indexes

    def _for_builds(self, env: Mapping[str, str]) -> tuple[dict[str, str], str]:
        """Return what of uv's environment the code of a source distribution may see.

        Returns:
            The variables; and what uv alone is to know, in the form of a netrc file, "" if nothing.
        """
        kept = passed_on(env)
        own_bin = str(Path(sys.executable).parent)
        path = env.get("PATH", os.defpath).split(os.pathsep)
        kept["PATH"] = os.pathsep.join(part for part in path if part != own_bin) or os.defpath
        kept |= {name: env[name] for name in ("TMPDIR", "NO_COLOR") if name in env}
        logins: list[tuple[str, str, str]] = []
        for name, value in env.items():
            if name.startswith("UV_") and not _LOGIN.fullmatch(name):
                words = (self._public(word, env, logins) for word in value.split())
                kept[name] = " ".join(words) if name in _ADDRESSES else value
        if "UV_DEFAULT_INDEX" in kept and self._may_configure():
            # Without its settings for this index uv would fetch, and build, each archive again and again.
            text = _indexes_text(kept.pop("UV_DEFAULT_INDEX"), ())
            kept["UV_CONFIG_FILE"] = str(self._own_config(text))
        if not logins and "NETRC" not in env:
            return kept, ""  # uv looks into the file of the home directory itself
        own = Path(env.get("NETRC") or Path(env.get("HOME", "/")) / ".netrc")
        lines = [f"machine {host} login {user} password {password}\n" for host, user, password in logins]
        with contextlib.suppress(OSError, ValueError):
            lines.append(read_limited(own, _NETRC))
        return kept, "".join(lines)

    def _public(self, word: str, env: Mapping[str, str], logins: list[tuple[str, str, str]]) -> str:
        """Return an address, `name=address` or path of uv's settings without its login, which is noted."""
        name, equals, address = word.partition("=")
        if not equals or "://" in name:
            name, equals, address = "", "", word
        if "://" not in address:
            return word
        parts = urlsplit(address)
        prefix = f"UV_INDEX_{re.sub(r'[^A-Z0-9]', '_', name.upper())}_"
        user = unquote(parts.username or "") or env.get(f"{prefix}USERNAME", "")
        password = unquote(parts.password or "") or env.get(f"{prefix}PASSWORD", "")
        # A netrc file has no quotes: what cannot stand in one is left to uv's own store of credentials.
        if parts.hostname and (user or password) and not re.search(r"\s", user + password):
            logins.append((parts.hostname, user or "__token__", password or user))
        return name + equals + without_credentials(address)

    def _own_config_fits(self, further: Sequence[PackageIndex]) -> bool:
        urls = [self.index, *(one.url for one in further)]
        return self._may_configure() and all(without_credentials(url) == url for url in urls)

    def _may_configure(self) -> bool:
        has_user_config = any(uv_config_files(self._environ))
        return urlsplit(self.index).scheme in ("http", "https") and not has_user_config

    def _own_config(self, text: str) -> Path:
        folder = self.cache_dir / "uv-config"
        path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.toml"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            # Threads of one process get here at the same time, too.
            with replacing(path) as beside:
                beside.write_text(text, "utf-8")
        return path


def _indexes_text(default: str, further: Sequence[PackageIndex]) -> str:
    """Return settings of uv that name indexes. Pure.

    Indexes without cache headers are asked again for every package of every combination: 0.8 s a lock instead
    of 0.02 s.
    """
    lines = []
    for one in further:
        lines += ["[[index]]", f"url = {json.dumps(one.url)}", CACHE_CONTROL]
        lines += [f"name = {json.dumps(one.name)}"] if one.name else []
    lines += ["[[index]]", f"url = {json.dumps(default)}", "default = true", CACHE_CONTROL]
    return "\n".join((*lines, ""))


_TRANSIENT = re.compile(
    r"""error\ sending\ request | Request\ failed\ after | request\ or\ response\ body\ error
      | error\ decoding\ response\ body | (operation|download|request|[Cc]onnection)\ timed\ out
      | dns\ error | tcp\ connect\ error | [Cc]onnection\ (refused|reset|closed)
      | HTTP\ status\ server\ error | HTTP\ status\ client\ error\ \((401|403|407|408|429)
      | [Hh]ash\ mismatch | mismatch.*(sha256|hash) | Bad\ CRC | unexpected\ end\ of\ file
      | unexpected\ EOF(?!\ while\ parsing) | [Nn]o\ space\ left | Disk\ quota
      | [Nn]etwork\ is\ (down|unreachable) | network\ connectivity\ is\ disabled
      | Too\ many\ open\ files | Cannot\ allocate\ memory | died\ of\ SIG""",
    re.VERBOSE,
)


def is_transient(words: str) -> bool:
    """Return whether an error of uv or rattler comes from the network, the disk or a corrupted download.

    A file that is gone for good (404, 410) is not transient: no other attempt would find it.
    """
    return _TRANSIENT.search(words) is not None


def plain_words(stderr: str, limit: int = 4000) -> str:
    """Return uv's error without progress and prefixes, and with both ends of a long build log."""
    lines: list[str] = []
    for line in stderr.splitlines():
        if line.startswith(("warning:", "Using ", "Resolved ", "Prepared ", "   Building", "      Built")):
            continue
        lines.append(re.sub(r"^(error: |  cause: )", "", line).rstrip())
    text = "\n".join(lines).strip()
    return text if len(text) <= limit else f"{text[: limit // 4]}\n[...]\n{text[-limit * 3 // 4 :]}"
