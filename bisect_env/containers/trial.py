"""How a trial is put into a container, and how its end is read. Pure, except for files in its directory."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bisect_env.containers.engine import LABEL, RUN_ARGS, Engine, ask

INIT = Path(__file__).with_name("init.py")
REPORT = "report.json"
ALIVE = "alive"
_NO_PROGRAM = re.compile(r"executable file|exec: |stat \S*python\S*: no such file", re.IGNORECASE)
"""How runtimes say that an image lacks the program; with the same exit codes they say all else that fails."""
_OPEN_UP_LIMIT = 60.0
"""Seconds for a container that does next to nothing; a loaded host takes some to start one."""


@dataclass(frozen=True, slots=True)
class Inside:
    """The image in which the trials of an environment run, and how.

    Attributes:
        image: Exactly which image: a digest or an ID.
        prefix: The locked prefix that is mounted into it; None when the image is the environment.
        interpreter: Where the prefix's Python lies, if not in the prefix itself; mounted as well.
    """

    engine: Engine
    image: str
    prefix: Path | None = None
    interpreter: Path | None = None

    @property
    def python(self) -> str:
        """Return the interpreter that runs the first process."""
        return "python3" if self.prefix is None else str(self.prefix / "bin" / "python")


@dataclass(frozen=True, slots=True)
class Parcel:
    """One process of a trial as its container needs it.

    Attributes:
        argv: What the script is.
        work: Its working directory, writable; what lies in it now is mounted read-only.
        control: Holds what passes between the first process and us.
        cpus: CPUs that it may use; empty means all.
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
    """Return the engine's command that runs a parcel in the foreground. Pure."""
    engine = inside.engine
    options = ["--name", parcel.name, "--label", f"{LABEL}={parcel.trial_id}", "--pull", "never"]
    # Output goes to us alone; with a label, SELinux would hide the mounts from the container.
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


_OPEN_UP = """
import os, sys
for folder, names, files in os.walk(sys.argv[1]):
    for name in names + files:
        path = os.path.join(folder, name)
        if not os.path.islink(path):
            os.chmod(path, 0o777 if name in names else 0o666)
"""


def open_up_argv(inside: Inside, top: Path) -> list[str]:
    """Return the engine's command that makes what the container's users wrote removable for us. Pure.

    Without root's rights here, what another user of the container owns is out of reach; for the container's
    own root it is not.
    """
    options = ["--rm", "--pull", "never", "--log-driver", "none", "--security-opt", "label=disable"]
    options += ["--network", "none", *_mount(top, read_only=False)]
    for shown in (inside.prefix, inside.interpreter):
        if shown is not None:
            options += _mount(shown)
    options += [*inside.engine.run_args, "--user", "0:0", "--entrypoint", inside.python]
    return inside.engine.argv("run", *options, inside.image, "-c", _OPEN_UP, str(top))


def is_closed(top: Path) -> bool:
    """Return whether something below a directory cannot be read or removed by this process."""
    for folder, names, files in os.walk(top):
        for name in (*names, *files):
            path = Path(folder, name)
            wanted = os.R_OK | os.W_OK | os.X_OK if name in names else os.R_OK
            if not path.is_symlink() and not os.access(path, wanted, effective_ids=True):
                return True
    return False


def _mount(source: Path, target: Path | None = None, *, read_only: bool = True) -> list[str]:
    text = f"type=bind,src={source},dst={target or source}"
    return ["--mount", f"{text},readonly" if read_only else text]


def gpu_options(kind: str, uuids: Sequence[str]) -> list[str]:
    """Return the engine's options for the GPUs that a container sees. Pure."""
    if kind == "docker":
        # The quotes are part of the value: docker reads it as a line of comma-separated values.
        return ["--gpus", f'"device={",".join(uuids)}"']
    return [word for uuid in uuids for word in ("--device", f"nvidia.com/gpu={uuid}")]


def prepare(inside: Inside, parcel: Parcel) -> None:
    """Write the first process's instructions, and open the directories to the image's user."""
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
    # Mounted apart, so that they do not depend on who may enter the directory above them.
    for path in parcel.work.rglob("*"):
        path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o444))
    for path in parcel.control.rglob("*"):
        path.chmod(path.stat().st_mode | (0o777 if path.is_dir() else 0o666))


@dataclass(frozen=True, slots=True)
class Ending:
    """How the script in a container ended.

    Attributes:
        returncode: As `subprocess` gives it; None when it never started.
        stage: Where starting failed, or "".
        oom_kills: Kills for lack of memory in the container.
        wall: Seconds that the script ran; 0.0 when not known.
        peak: Most memory that the script had at once, in bytes; 0 when not known.
        left_over: Processes that outlived it and were ended.
        problem: What the engine failed to do, in its words, or "".
    """

    returncode: int | None
    stage: str = ""
    errno: int = 0
    oom_kills: int = 0
    wall: float = 0.0
    peak: int = 0
    left_over: int = 0
    problem: str = ""


def ending(
    report: Mapping[str, Any] | None, state: Mapping[str, Any] | None, client: int | None, stderr: str
) -> Ending:
    """Return how the script ended, by the first process's report and the state of the container. Pure.

    Args:
        report: What the first process wrote; None when it did not come to that.
        state: `State` of the engine's `inspect`; None when it knows no such container.
        client: Exit code of the engine's `run`, negative for a signal.
        stderr: What the client, or the script, wrote there.
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
        )
    code = None if state is None else state.get("ExitCode")
    if state is None or state.get("Status") in ("created", "configured") or not code:
        # It never ran: what the image lacks is the image's fault, everything else is the engine's.
        words = stderr.strip()[-1000:] or f"exit code {client}"
        lacks = client in (126, 127) and _NO_PROGRAM.search(words)
        return Ending(None, problem=words, stage="image" if lacks else "")
    # The first process itself was ended: it fails in no way of its own.
    number = int(code) - 128 if int(code) > 128 else 9
    return Ending(-number, oom_kills=int(killed))


def read_report(control: Path) -> dict[str, Any] | None:
    """Read the report of the first process; None when there is none."""
    try:
        return dict(json.loads((control / REPORT).read_text("utf-8")))
    except (OSError, ValueError):
        return None


def read_state(text: str) -> dict[str, Any] | None:
    """Return `State` of what an engine's `inspect` printed, or None."""
    try:
        (found,) = json.loads(text)
        return dict(found["State"])
    except (ValueError, KeyError, TypeError):
        return None


# --------------------------------------------------------------------------------------------------
# One process of a trial in a container, from its preparation to how it ended.


class ContainerError(Exception):
    """An error that the engine could not run a container: a failure of this host, not of the script."""


@dataclass(frozen=True, slots=True)
class ContainerCommands:
    """The commands with which a supervisor controls a container, which is not a child of its client.

    Attributes:
        abort: Command that has the container's process print its stacks and end.
        kill: Command that ends it at once.
        state: Command whose output is reported once the container has ended.
        remove: Command that leaves nothing of the container.
        hold: File that the supervisor keeps locked while it lives. The container's first process ends
            everything when that lock is free, so that nothing goes on when everything here was killed.
    """

    abort: Sequence[str]
    kill: Sequence[str]
    state: Sequence[str]
    remove: Sequence[str]
    hold: Path

    def as_json(self) -> dict[str, object]:
        """Return the commands as JSON data."""
        return {**asdict(self), "hold": str(self.hold)}


@dataclass(frozen=True, slots=True)
class Contained:
    """One process of a trial that is ready to be started in a container.

    Attributes:
        top: The trial's directory, which holds all that the container can write to.
    """

    inside: Inside
    parcel: Parcel
    top: Path

    @property
    def argv(self) -> list[str]:
        """Return the engine's command that runs the container in the foreground."""
        return run_argv(self.inside, self.parcel, [path.name for path in self.parcel.work.iterdir()])

    @property
    def commands(self) -> ContainerCommands:
        """Return the engine's commands for the container."""
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
        """Return commands that remove the container and make its files removable for a later process."""
        return [self.commands.remove, open_up_argv(self.inside, self.top)]

    def first_process(self) -> int | None:
        """Return the id, on this host, of the container's first process; None when it does not run."""
        engine = self.inside.engine
        answer = engine.ask("inspect", "--format", "{{.State.Pid}}", self.parcel.name, timeout=5.0)
        text = answer.stdout.strip()
        return int(text) if answer.ok and text.isdigit() and text != "0" else None

    def open_up(self) -> None:
        """Make everything that the trial wrote readable and removable, also files of other users.

        Raises:
            ContainerError: The engine could not.
        """
        if is_closed(self.top):
            answer = ask(open_up_argv(self.inside, self.top), _OPEN_UP_LIMIT)
            if not answer.ok:
                raise ContainerError(
                    f"what the trial wrote in its container cannot be removed: {answer.words}"
                )

    def ending(self, state: str, client: int | None, stderr: str, *, killed: bool) -> Ending:
        """Return how the script ended.

        Args:
            state: Output of the command `state`.
            client: Exit code of the engine's `run`, negative for a signal; None when it was not started.
            stderr: What the client, or the script, wrote there.
            killed: Whether we killed the container.

        Raises:
            ContainerError: The engine could not run the container.
        """
        end = ending(read_report(self.parcel.control), read_state(state), client, stderr)
        if not end.problem:
            return end
        if killed:  # while the engine was still making the container: there was no process
            return Ending(-9)
        if end.stage == "image":
            return Ending(None, stage="lookup")
        raise ContainerError(
            "the container engine cannot run the trial (options that this host needs go into "
            f"{RUN_ARGS}): {end.problem}"
        )
