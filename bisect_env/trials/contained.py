"""Launches one process of a trial in a container, and reads how it ended."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bisect_env.containers.engine import RUN_ARGS, ask
from bisect_env.containers.trial import (
    ALIVE,
    Inside,
    Parcel,
    ending,
    is_closed,
    open_up_argv,
    prepare,
    read_report,
    read_state,
    run_argv,
)
from bisect_env.trials.child_env import TRIAL_ID
from bisect_env.trials.exit_record import ExitRecord
from bisect_env.trials.launch import ContainerCommands, Launch, LaunchError
from bisect_env.trials.records import TrialSpec
from bisect_env.trials.workdir import REMOVAL, WorkDir

_OPEN_UP_LIMIT = 60.0
"""Seconds for a container that does next to nothing; a loaded host takes some to start one."""


@dataclass(frozen=True, slots=True)
class Contained:
    """A container that is about to be started.

    Attributes:
        inside: Image and engine.
        top: The trial's directory.
        name: Of the container.
        control: The directory in which its first process reports.
        launch: What the supervisor starts.
    """

    inside: Inside
    top: Path
    name: str
    control: Path
    launch: Launch

    def first_process(self) -> int | None:
        """Id, on this host, of the first process in the container; None when it does not run."""
        answer = self.inside.engine.ask("inspect", "--format", "{{.State.Pid}}", self.name, timeout=5.0)
        text = answer.stdout.strip()
        return int(text) if answer.ok and text.isdigit() and text != "0" else None

    def open_up(self) -> None:
        """Make everything that the trial wrote readable and removable, even files of other users.

        Raises:
            LaunchError: The engine could not.
        """
        if is_closed(self.top):
            answer = ask(open_up_argv(self.inside, self.top), _OPEN_UP_LIMIT)
            if not answer.ok:
                raise LaunchError(f"what the trial wrote in its container cannot be removed: {answer.words}")

    def read(self, record: ExitRecord) -> ExitRecord:
        """How the script ended, from how the engine's client ended.

        Raises:
            LaunchError: The engine could not run the container.
        """
        if record.stage:
            raise LaunchError(f"the container engine {self.inside.engine.kind} cannot be started")
        end = ending(read_report(self.control), read_state(record.state), record.returncode, record.stderr)
        if end.problem and not record.killed_by_us:
            if end.stage != "image":
                raise LaunchError(
                    "the container engine cannot run the trial (options that this host needs go into "
                    f"{RUN_ARGS}): {end.problem}"
                )
            return replace(record, returncode=None, stage="lookup", state="")
        # Killed while the engine was still making it: there was no process.
        code = -9 if end.problem else end.returncode
        return replace(
            record,
            returncode=code,
            stage=end.stage if not end.problem else "",
            errno=end.errno,
            oom_kills=end.oom_kills,
            left_over=end.left_over,
            duration=end.wall or record.duration,
            peak=end.peak,
        )


def contain(
    spec: TrialSpec,
    directory: WorkDir,
    control: Path,
    inside: Inside,
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    gpus: Sequence[str],
    cpus: Collection[int],
    core: bool = False,
) -> Contained:
    """Make ready to run a command of a trial in a container.

    Args:
        spec: The trial.
        directory: Its directories, filled.
        control: A directory beside them, for what passes between the container and us.
        inside: Image and engine.
        argv: The command, as the container sees it.
        env: Added to the image's environment.
        gpus: UUIDs of the GPUs that it may see.
        cpus: CPUs that it may use.
        core: Whether it may leave a core file.
    """
    name = f"bisect-env-{spec.trial_id[:32]}-{secrets.token_hex(3)}"
    parcel = Parcel(
        name=name,
        trial_id=spec.trial_id,
        argv=argv,
        env=env,
        work=directory.work,
        tmp=directory.tmp,
        control=control,
        gpus=gpus,
        cpus=sorted(cpus),
        network=spec.network,
        core=core,
    )
    prepare(inside, parcel)
    engine = inside.engine
    remove = engine.argv("rm", "--force", "--volumes", name)
    # Where the container cannot write: it is to be executed.
    (directory.top / REMOVAL).write_text(json.dumps([remove, open_up_argv(inside, directory.top)]), "utf-8")
    launch = Launch(
        run_argv(inside, parcel, [path.name for path in directory.work.iterdir()]),
        # The engine's client is no trial: it needs what the user set up for it.
        {**os.environ, TRIAL_ID: spec.trial_id},
        directory.top,
        scratch=directory.top,
        elsewhere=ContainerCommands(
            abort=engine.argv("kill", "--signal", "ABRT", name),
            kill=engine.argv("kill", name),
            state=engine.argv("inspect", name),
            remove=remove,
            hold=control / ALIVE,
        ),
    )
    return Contained(inside, directory.top, name, control, launch)
