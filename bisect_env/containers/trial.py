"""Builds the engine's commands that run a trial in a container, and determines how its script ended."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bisect_env.containers.engine import LABEL, RUN_ARGS, Engine, ask

INIT = Path(__file__).with_name("init.py")
REPORT = "report.json"
ALIVE = "alive"
_NO_PROGRAM = re.compile(r"executable file|exec: |stat \S*python\S*: no such file", re.IGNORECASE)
"""Matches messages of container runtimes that the image lacks the program.

Exit codes do not suffice: runtimes use the same ones for other failures.
"""
_OPEN_UP_LIMIT = 60.0
"""Time limit, in seconds, for the container that makes files removable; a busy host starts it slowly."""


@dataclass(frozen=True, slots=True)
class Inside:
    """The container image in which trials of an environment run, and the settings for running the image.

    Attributes:
        engine: The container engine.
        image: The exact image: a reference with a digest, or an ID.
        prefix: The installed environment that is mounted into the image; None if the image itself is the
            environment.
        interpreter: Directory of the prefix's Python, to be mounted too; None if it is inside the prefix.
    """

    engine: Engine
    image: str
    prefix: Path | None = None
    interpreter: Path | None = None

    @property
    def python(self) -> str:
        """Return the Python executable that runs the container's first process."""
        return "python3" if self.prefix is None else str(self.prefix / "bin" / "python")


@dataclass(frozen=True, slots=True)
class Parcel:
    """The description of one process of a trial that is to run in a container: command, directories, limits.

    Attributes:
        name: Name of the container.
        trial_id: ID of the trial.
        argv: Command line of the script.
        env: Environment variables to set for the script.
        work: Writable working directory of the script. Files that exist in it already are mounted read-only.
        tmp: Writable directory for temporary files.
        control: Directory for the messages between the container's first process and the supervisor.
        gpus: UUIDs of the GPUs that the container may use.
        cpus: Numbers of the CPUs that the script may use; empty means all.
        network: Whether the container has network access.
        core: Whether the script may write a core dump.
    """

    name: str
    trial_id: str
    argv: Sequence[str]
    env: Mapping[str, str]
    work: Path
    tmp: Path
    control: Path
    gpus: Sequence[str] = ()
    cpus: Sequence[int] = ()
    network: bool = False
    core: bool = False


def run_argv(inside: Inside, parcel: Parcel, contents: Sequence[str]) -> list[str]:
    """Return the engine's command line that runs a process of a trial in a container.

    The command runs in the foreground. The function only computes; it does no input or output.

    Args:
        inside: The image.
        parcel: The process to run.
        contents: Names of the files and directories in `parcel.work` that are mounted read-only.
    """
    engine = inside.engine
    options = ["--name", parcel.name, "--label", f"{LABEL}={parcel.trial_id}", "--pull", "never"]
    # Output goes only to the caller. SELinux labels are disabled, or the container could not read the mounts.
    options += ["--log-driver", "none", "--security-opt", "label=disable"]
    if not parcel.network:
        options += ["--network", "none"]
    for place in (parcel.work, parcel.tmp, parcel.control):
        options += _mount(place, read_only=False)
    for name in sorted(contents):
        options += _mount(parcel.work / name)
    options += _mount(INIT, parcel.control / INIT.name)
    for shown in (inside.prefix, inside.interpreter):
        if shown is not None:
            options += _mount(shown)
    if parcel.gpus:
        options += gpu_options(engine.kind, parcel.gpus)
    options += [*engine.run_args, "--entrypoint", inside.python]
    return engine.argv("run", *options, inside.image, str(parcel.control / INIT.name), str(parcel.control))


# `os.walk` is not used: in Python 3.11 and older it calls itself for each level, and a tree may be too deep.
_OPEN_UP = """
import os, sys
pending = [sys.argv[1]]
while pending:
    folder = pending.pop()
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if not os.path.islink(path):
            is_folder = os.path.isdir(path)
            os.chmod(path, 0o777 if is_folder else 0o666)
            if is_folder:
                pending.append(path)
"""


def open_up_argv(inside: Inside, top: Path) -> list[str]:
    """Return the engine command that makes files of a container removable for this process.

    A trial may write files as another user of its container. An unprivileged process on the host cannot
    remove these files, so the command changes their permissions as root of a container. The function only
    computes; it does no input or output.
    """
    options = ["--rm", "--pull", "never", "--log-driver", "none", "--security-opt", "label=disable"]
    options += ["--network", "none", *_mount(top, read_only=False)]
    for shown in (inside.prefix, inside.interpreter):
        if shown is not None:
            options += _mount(shown)
    options += [*inside.engine.run_args, "--user", "0:0", "--entrypoint", inside.python]
    return inside.engine.argv("run", *options, inside.image, "-c", _OPEN_UP, str(top))


def is_closed(top: Path) -> bool:
    """Return whether `top` contains a file or directory that this process cannot read or remove."""
    pending = [top]
    while pending:
        folder = pending.pop()
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.is_symlink():
                continue
            is_folder = path.is_dir()
            if not os.access(path, os.R_OK | os.W_OK | os.X_OK if is_folder else os.R_OK, effective_ids=True):
                return True
            if is_folder:
                pending.append(path)
    return False


def _mount(source: Path, target: Path | None = None, *, read_only: bool = True) -> list[str]:
    # The engines read it as a line of comma-separated values.
    fields = ("type=bind", f"src={source}", f"dst={target or source}")
    text = ",".join(_csv_field(field) for field in fields)
    return ["--mount", f"{text},readonly" if read_only else text]


def _csv_field(text: str) -> str:
    doubled = text.replace('"', '""')
    return f'"{doubled}"' if '"' in text or "," in text else text


def gpu_options(kind: str, uuids: Sequence[str]) -> list[str]:
    """Return the engine's command-line options that give a container access to GPUs.

    The function only computes; it does no input or output.

    Args:
        kind: `podman` or `docker`.
        uuids: UUIDs of the GPUs.
    """
    if kind == "docker":
        # The quotes are part of the value: docker reads it as a line of comma-separated values.
        return ["--gpus", f'"device={",".join(uuids)}"']
    return [word for uuid in uuids for word in ("--device", f"nvidia.com/gpu={uuid}")]


def prepare(inside: Inside, parcel: Parcel) -> None:
    """Write the instructions for a container's first process, and set the file permissions for it.

    The trial's directories become writable for every user, since the image may run as any user.
    """
    request = {
        "argv": list(parcel.argv),
        "env": dict(parcel.env),
        "path": [] if inside.prefix is None else [str(inside.prefix / "bin")],
        "cwd": str(parcel.work),
        "cpus": list(parcel.cpus),
        "core": parcel.core,
    }
    (parcel.control / "request.json").write_text(json.dumps(request), "utf-8")
    (parcel.control / ALIVE).touch()
    for place in (parcel.work, parcel.tmp, parcel.control):
        place.chmod(0o777)
    # Each is mounted by itself, so the permissions of its parent directories do not matter.
    for path in parcel.work.rglob("*"):
        path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o444))
    for path in parcel.control.rglob("*"):
        path.chmod(path.stat().st_mode | (0o777 if path.is_dir() else 0o666))


@dataclass(frozen=True, slots=True)
class Ending:
    """The result of a script in a container: its exit code or error, and its resource use.

    Attributes:
        returncode: Exit code as in `subprocess`, negative for a signal; None if the script never started.
        stage: The step at which starting the script failed (`setup`, `chdir`, `lookup`, `exec` or `image`),
            or "".
        errno: Error number of that step; 0 if unknown.
        oom_kills: Number of processes that the kernel killed for lack of memory.
        wall: Seconds that the script ran; 0.0 if unknown.
        peak: Peak memory of the script in bytes; 0 if unknown.
        left_over: Number of processes that were still running when the script ended, and were killed.
        disk_full: Which file system of the container was full when the script ended; "" if none was.
        problem: The engine's error message if it could not run the container, or "".
    """

    returncode: int | None
    stage: str = ""
    errno: int = 0
    oom_kills: int = 0
    wall: float = 0.0
    peak: int = 0
    left_over: int = 0
    disk_full: str = ""
    problem: str = ""


def ending(
    report: Mapping[str, Any] | None, state: Mapping[str, Any] | None, client: int | None, stderr: str
) -> Ending:
    """Return the result of a script, given the first process's report and the container's state.

    The function only computes; it does no input or output.

    Args:
        report: Content of `report.json`; None if the first process did not write it.
        state: The object `State` in the output of the engine's `inspect`; None if there is no such container.
        client: Exit code of the engine's `run` command, negative for a signal; None if it was not started.
        stderr: Standard error of that command, which includes the script's.
    """
    killed = bool(state and state.get("OOMKilled"))
    if report is not None:
        status = int(report["status"])
        kills = max(int(report["oom_kills"]), int(killed))
        if report["problem"]:
            stage, why = str(report["problem"]).split(":")
            return Ending(None, stage, int(why))
        return Ending(
            os.waitstatus_to_exitcode(status),
            oom_kills=kills,
            wall=float(report["wall"]),
            peak=int(report.get("peak", 0)),
            left_over=int(report["left_over"]),
            disk_full=f"{report['full']} in the container is full" if report.get("full") else "",
        )
    code = None if state is None else state.get("ExitCode")
    if state is None or state.get("Status") in ("created", "configured") or not code:
        # The container never ran. Either the image lacks the program, or the engine failed.
        words = stderr.strip()[-1000:] or f"exit code {client}"
        lacks = client in (126, 127) and _NO_PROGRAM.search(words)
        return Ending(None, problem=words, stage="image" if lacks else "")
    if int(code) <= 128:
        # The first process failed: the image's Python is too old for it, or it could not write its report.
        return Ending(None, problem=stderr.strip()[-1000:] or f"exit code {code}")
    return Ending(128 - int(code), oom_kills=int(killed))


def read_report(control: Path) -> dict[str, Any] | None:
    """Return the report of the container's first process, or None if it is missing or cannot be read."""
    try:
        return dict(json.loads((control / REPORT).read_text("utf-8")))
    except (OSError, ValueError):
        return None


def read_state(text: str) -> dict[str, Any] | None:
    """Return the state of a container from the output of the engine's `inspect`.

    Return None if the output contains no state.
    """
    try:
        (found,) = json.loads(text)
        return dict(found["State"])
    except (ValueError, KeyError, TypeError):
        return None


# --------------------------------------------------------------------------------------------------
# One process of a trial in a container, from its preparation to how it ended.


class ContainerError(Exception):
    """An error that is raised when the container engine of this host failed.

    It says nothing about the trial's script.
    """


@dataclass(frozen=True, slots=True)
class ContainerCommands:
    """The commands with which a supervisor controls a container.

    They are needed because a container is not a child process of the engine's command line client, so
    signals to the client do not reach it.

    Attributes:
        abort: Command that sends SIGABRT, so that the script prints its stack traces and ends.
        kill: Command that kills the container.
        state: Command that prints the state of the container after it has ended.
        remove: Command that removes the container and its volumes.
        hold: File that the supervisor keeps locked as long as it runs. If the lock becomes free, the
            container's first process kills everything in the container.
    """

    abort: Sequence[str]
    kill: Sequence[str]
    state: Sequence[str]
    remove: Sequence[str]
    hold: Path


@dataclass(frozen=True, slots=True)
class Contained:
    """The command and the files with which one process of a trial is started in a container.

    Attributes:
        inside: The image.
        parcel: The process to run.
        top: The trial's directory. It contains every directory that the container can write to.
    """

    inside: Inside
    parcel: Parcel
    top: Path

    @property
    def argv(self) -> list[str]:
        """Return the engine's command line that runs the container in the foreground."""
        return run_argv(self.inside, self.parcel, [path.name for path in self.parcel.work.iterdir()])

    @property
    def commands(self) -> ContainerCommands:
        """Return the engine's commands that abort, kill, inspect and remove the container."""
        engine, name = self.inside.engine, self.parcel.name
        return ContainerCommands(
            abort=engine.argv("kill", "--signal", "ABRT", name),
            kill=engine.argv("kill", name),
            state=engine.argv("inspect", name),
            remove=engine.argv("rm", "--force", "--volumes", name),
            hold=self.parcel.control / ALIVE,
        )

    @property
    def removal(self) -> list[Sequence[str]]:
        """Return two commands: one removes the container, the other makes the trial's files removable."""
        return [self.commands.remove, open_up_argv(self.inside, self.top)]

    def first_process(self) -> int | None:
        """Return the process ID of the container's first process on this host, or None if it does not run."""
        engine = self.inside.engine
        answer = engine.ask("inspect", "--format", "{{.State.Pid}}", self.parcel.name, timeout=5.0)
        text = answer.stdout.strip()
        return int(text) if answer.ok and text.isdigit() and text != "0" else None

    def open_up(self) -> None:
        """Make every file of the trial readable and removable, including files of other users.

        Raises:
            ContainerError: The engine could not change the permissions.
        """
        if is_closed(self.top):
            answer = ask(open_up_argv(self.inside, self.top), _OPEN_UP_LIMIT)
            if not answer.ok:
                raise ContainerError(
                    f"what the trial wrote in its container cannot be removed: {answer.words}"
                )

    def ending(self, state: str, client: int | None, stderr: str, *, late: bool) -> Ending:
        """Return the result of the script in the container.

        Args:
            state: Output of the command `commands.state`.
            client: Exit code of the engine's `run` command, negative for a signal; None if it was not
                started.
            stderr: Standard error of that command, which includes the script's.
            late: Whether the time limit passed before the engine's command ended.

        Raises:
            ContainerError: The engine could not run the container.
        """
        end = ending(read_report(self.parcel.control), read_state(state), client, stderr)
        if not end.problem:
            return end
        if late:
            raise ContainerError(f"the engine had not started the container at the time limit: {end.problem}")
        if end.stage == "image":
            return Ending(None, stage="lookup")
        raise ContainerError(
            "the container engine cannot run the trial (options that this host needs go into "
            f"{RUN_ARGS}): {end.problem}"
        )
