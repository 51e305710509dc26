"""Plain data of a trial: what it is asked to do, under which circumstances, and what it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from bisect_env.matrix.grid import Combination

# --------------------------------------------------------------------------------------------------
# Perturbations: circumstances under which a script runs, which change nothing of what it means.
#
# They are data that travel with a trial and are stored with a study. Which of them makes a failure more
# frequent is measured (`bisect-env trial --amplify`), never assumed.


@dataclass(frozen=True, slots=True)
class Perturbation:
    """Circumstances under which a trial runs, chosen to make a failure more frequent.

    Attributes:
        name: Readable name, also used in the database.
        copies: Copies started at once for each that the matrix asks for.
        repeats: How often the script is run within one process.
        env: Environment variables; those of the matrix take precedence.
        load: Number of processes that keep CPUs busy meanwhile.
        cpus: CPUs that it may use, counted from the first; 0 for all.
        nice: Amount added to its niceness.
        gc_threshold: First threshold of Python's garbage collector; 0 keeps the default.
        seeds: Hash seeds, one of which every second trial gets; the others have random ones. A seed can
            decide the result alone: with a fixed seed, a version that fails under half of all seeds might
            never fail, and pass for good.
    """

    name: str = ""
    copies: int = 1
    repeats: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    load: int = 0
    cpus: int = 0
    nice: int = 0
    gc_threshold: int = 0
    seeds: tuple[int, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the perturbation as it is stored, without its defaults."""
        return {key: value for key, value in asdict(self).items() if value != getattr(NONE, key)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Perturbation:
        """Build a perturbation from the result of `as_json`.

        Raises:
            TypeError: A key is unknown.
        """
        return cls(**{**data, "seeds": tuple(data.get("seeds", ()))})


NONE = Perturbation()
"""The script as it is."""


# --------------------------------------------------------------------------------------------------
# What a trial is asked to do, and what it did: plain data that travels between processes.


class Outcome(StrEnum):
    """A way in which one process ended, independent of any study."""

    HARNESS_ERROR = "harness-error"
    WORKER_LOST = "worker-lost"
    GPU_LOST = "gpu-lost"
    KILLED_EXTERNAL = "killed-external"
    DISK_FULL = "disk-full"
    ENV_UNSOLVABLE = "env-unsolvable"
    ENV_UNBUILDABLE = "env-unbuildable"
    ENV_MISMATCH = "env-mismatch"
    UNSUPPORTED = "unsupported"
    SKIP = "skip"
    NOT_RUNNABLE = "not-runnable"
    HOST_OOM = "host-oom"
    HANG = "hang"
    CRASH = "crash"
    CUDA_FAULT = "cuda-fault"
    CUDA_OOM = "cuda-oom"
    CUDA_INIT = "cuda-init"
    IMPORT_ERROR = "import-error"
    EXIT_FAIL = "exit-fail"
    PASS = "pass"


class Evidence(StrEnum):
    """The meaning of an outcome in one study."""

    GOOD = "good"
    BAD = "bad"
    OTHER = "other"
    """Neither a pass nor the target: shown, never counted."""
    SKIP = "skip"
    """A property of the combination: nothing can be learnt there."""
    VOID = "void"
    """Infrastructure: run it again elsewhere, never count it."""


class Phase(StrEnum):
    """The phase of its life in which a process ended."""

    START = "start"
    IMPORT = "import"
    BODY = "body"
    TEARDOWN = "teardown"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Machine:
    """A class of machines on which equal trials are comparable."""

    cpu: Annotated[str, Field(description="Architecture, such as `x86_64`.")]
    gpu_model: Annotated[
        str,
        Field(
            description="Product names of the GPUs that the trial saw, sorted, separated by commas; empty "
            "without GPUs."
        ),
    ] = ""
    driver: Annotated[str, Field(description="Version of the GPU driver; empty without GPUs.")] = ""

    def __str__(self) -> str:
        if not self.gpu_model:
            return self.cpu
        return f"{self.cpu} with {self.gpu_model}" + (f", driver {self.driver}" if self.driver else "")


UNKNOWN_MACHINE = Machine("")
"""The machine of a trial that was lost."""


@dataclass(frozen=True, slots=True)
class TrialFile:
    """A file that the script needs, sent along with the trial because workers share no file system.

    Attributes:
        name: Relative path inside the trial's working directory.
        content: The bytes.
        executable: Whether the execute permission is set.
    """

    name: str
    content: bytes
    executable: bool = False


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """Everything that one trial needs, apart from its prefix.

    Attributes:
        trial_id: Unique; a record is stored once however often it arrives.
        combination: The combination of the matrix.
        lock_hash: Content hash of the environment's lock.
        command: Argument vector; `command[0]` is looked up in the prefix first, then on PATH.
        files: Files to write into a fresh working directory.
        env: Added to the child's allow-listed environment (the matrix's `trial.env`, `BISECT_ENV_<AXIS>`).
        timeout: Wall-clock limit in seconds.
        concurrency: Copies started at once; together they are one trial.
        repeats: How often the script is run within one process, until it fails.
        gpus: Number of GPUs that the trial sees; below 1, the share of one GPU.
        hash_seed: `PYTHONHASHSEED` of the child, recorded so that a trial can be repeated.
        output_limit: Bytes kept of each of stdout and stderr.
        perturbation: Circumstances that are to make a failure more frequent; `concurrency` and `env`
            include their part of it already.
        network: Whether a trial in a container has a network; outside of containers every trial has one.
        allow_host: Programs outside the environment that the command may start.
        under: A tool of the host that starts the command, with its arguments; empty if there is none.
    """

    trial_id: str
    combination: Combination
    lock_hash: str
    command: tuple[str, ...]
    files: tuple[TrialFile, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 60.0
    concurrency: int = 1
    repeats: int = 1
    gpus: float = 0
    hash_seed: int = 0
    output_limit: int = 1_000_000
    network: bool = False
    perturbation: Perturbation = NONE
    allow_host: tuple[str, ...] = ()
    under: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialFacts:
    """The result of one trial without its logs.

    Attributes:
        trial_id: As in the spec.
        combination: As in the spec.
        lock_hash: As in the spec.
        outcome: The outcome; with several copies, the first by `Outcome`'s precedence.
        detail: Why this outcome, in one readable line.
        returncode: As `subprocess` gives it; negative for a signal, None when the process never started.
        phase: The phase in which it ended.
        started_at: UTC.
        duration: Seconds of wall time.
        signature: Signature of the failure, equal for equal failures, or "".
        killed_by_us: Whether the watcher ended it (deadline or cancel).
        hash_seed: `PYTHONHASHSEED` of the child.
        copies: Outcome to number of copies; sums to the spec's concurrency.
        iterations: Number of iterations of the script that were begun, in all copies together; 0 if it is
            not repeated.
        host: Host name.
        worker: Name of the worker on it.
        gpu: UUIDs of the GPUs seen, comma-separated, or "".
        machine: Class of the machine on which it ran.
    """

    trial_id: str
    combination: Combination
    lock_hash: str
    outcome: Outcome
    detail: str
    returncode: int | None
    phase: Phase
    started_at: datetime
    duration: float
    signature: str = ""
    killed_by_us: bool = False
    hash_seed: int = 0
    copies: Mapping[Outcome, int] = field(default_factory=dict)
    iterations: int = 0
    host: str = ""
    worker: str = ""
    gpu: str = ""
    machine: Machine = UNKNOWN_MACHINE


@dataclass(frozen=True, slots=True)
class TrialRecord(TrialFacts):
    """The result of one trial, which never changes.

    Attributes:
        stdout: Kept part of the output, decoded with replacement characters.
        stderr: Kept part of the error output, decoded the same way.
        stack: The stack that explains the outcome, or "".
        imported: Distribution to the version that the script's interpreter really imported, and `python`;
            empty if no harness ran.
    """

    stdout: str = ""
    stderr: str = ""
    stack: str = ""
    imported: Mapping[str, str] = field(default_factory=dict)
