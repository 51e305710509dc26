"""What was observed of one process, without any interpretation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bisect_env.trials.harness_marks import NO_MARKS, Expected, Marks


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """The facts about one process that classification looks at.

    Attributes:
        returncode: As `subprocess` gives it, negative for a signal; None when the process never started or
            could not be ended.
        stage: Where starting failed (`setup`, `chdir`, `exec`, `lookup`, `outside`), or "".
        why: Why it was not started, where `errno` cannot say it.
        errno: Why starting failed, or 0.
        timed_out: The deadline passed before the process ended.
        killed_by_us: We sent a signal before it ended.
        cpu_rate: CPUs it kept busy just before the deadline; None when not measured.
        gpu_rate: Share of the time in which its GPUs were busy just before the deadline; None when not
            measured.
        oom_kills: Kills for lack of memory that the cgroup counted while it ran.
        left_over: Processes that outlived it and that we ended.
        unended: Processes that even SIGKILL did not end (held by a driver).
        duration: Seconds from exec to end.
        peak: Most memory that it, or a process that it waited for, had at once, in bytes; 0 when not known.
        stdout: Kept part, decoded.
        stderr: Kept part, decoded.
        stacks: What the deadline's stack hook returned, or "".
        pid: Of the process; of a container, its client's.
        iterations: How many iterations of the script were begun; 1 where it is not repeated.
        state: What a container's engine said of it after its end, or "".
        marks: What the harness inside the interpreter left.
        expected: What the modules that it looked for should have been.
        xids: What the driver reported of the trial's GPUs while it ran.
    """

    returncode: int | None
    stage: str = ""
    why: str = ""
    errno: int = 0
    timed_out: bool = False
    killed_by_us: bool = False
    cpu_rate: float | None = None
    gpu_rate: float | None = None
    oom_kills: int = 0
    left_over: int = 0
    unended: int = 0
    duration: float = 0.0
    peak: int = 0
    stdout: str = ""
    stderr: str = ""
    stacks: str = ""
    pid: int = 0
    iterations: int = 1
    state: str = ""
    marks: Marks = NO_MARKS
    expected: Mapping[str, Expected] = field(default_factory=dict)
    xids: tuple[int, ...] = ()

    @property
    def signal(self) -> int:
        """The signal that ended it, or 0."""
        return -self.returncode if self.returncode is not None and self.returncode < 0 else 0

    @property
    def failed_alone(self) -> bool:
        """It ended by itself, and not with success."""
        return self.returncode not in (None, 0) and not self.killed_by_us
