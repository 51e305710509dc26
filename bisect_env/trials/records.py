"""Data classes of a trial: its specification, the circumstances under which it runs, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, TypeAdapter

from bisect_env.matrix.files import StudyFile
from bisect_env.matrix.grid import Combination

if TYPE_CHECKING:  # that module imports this one
    from bisect_env.trials.judge import Target

# --------------------------------------------------------------------------------------------------
# Perturbations: circumstances (such as load on the CPUs) that do not change what the script is meant to do.
#
# They are sent along with a trial and stored with a study. Which of them makes a failure more frequent is
# measured (`bisect-env trial --amplify`), never assumed.


@dataclass(frozen=True, slots=True)
class Perturbation:
    """A change of a trial's circumstances, such as CPU load, to make a failure more frequent.

    Attributes:
        name: Readable name, also used in the database.
        copies: Factor by which the number of copies that the matrix asks for is multiplied.
        repeats: How often the script is run within one process.
        env: Environment variables; those of the matrix take precedence.
        load: Number of processes that keep CPUs busy while the script runs.
        cpus: Number of CPUs that the trial may use; 0 for all.
        nice: Amount added to the niceness of the script.
        gc_threshold: First threshold of Python's garbage collector; 0 keeps the default.
        seeds: Hash seeds to prefer. Every second trial gets one of them, the others get random seeds. With
            one fixed seed, a version that fails under half of all seeds might never fail and look good.
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


NONE = Perturbation()
"""No perturbation: the script runs under normal circumstances."""
PERTURBATION = TypeAdapter(Perturbation)
"""Converter between perturbations and the JSON objects that are stored."""


# --------------------------------------------------------------------------------------------------
# The specification and the result of a trial, which are sent between processes.


class Outcome(StrEnum):
    """What one process of a trial did (such as `crash` or `hang`), independent of any study.

    The members are listed in order of precedence: of several copies of a script that mean the same for the
    study, the one with the first outcome in this order stands for the trial.
    """

    HARNESS_ERROR = "harness-error"
    WORKER_LOST = "worker-lost"
    GPU_LOST = "gpu-lost"
    KILLED_EXTERNAL = "killed-external"
    DISK_FULL = "disk-full"
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
    RUNNER_ERROR = "runner-error"
    IMPORT_ERROR = "import-error"
    EXIT_FAIL = "exit-fail"
    PASS = "pass"


class Evidence(StrEnum):
    """What a trial means in one study: good, bad, other, skip or void."""

    GOOD = "good"
    BAD = "bad"
    OTHER = "other"
    """A failure that the study does not look for; it is shown in reports, but not counted."""
    SKIP = "skip"
    """The combination cannot be tested, for example because it cannot be built."""
    VOID = "void"
    """A failure of the infrastructure; the trial is not counted, and is run again."""


class Phase(StrEnum):
    """The phase of a script (start, import, body, teardown) in which its process ended."""

    START = "start"
    IMPORT = "import"
    BODY = "body"
    TEARDOWN = "teardown"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Machine:
    """The properties of a machine (CPU, GPUs, driver) that must be equal for trials to be comparable."""

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
"""The machine of a trial whose worker was lost before it reported a result."""


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """Everything that a worker needs to run one trial, except the prefix (the installed environment).

    Attributes:
        trial_id: Unique id. If the record of a trial arrives twice, it is stored once.
        combination: Combination that the trial tests.
        lock_hash: Hash of the environment's lock.
        command: Program and arguments; the program is looked up in the prefix first, then on PATH.
        files: Files to write into a new working directory.
        env: Environment variables to set (`trial.env` of the matrix and `BISECT_ENV_<AXIS>`), in addition to
            the few that every trial gets.
        timeout: Limit of the run time in seconds.
        concurrency: Number of copies of the script that are started at once; together they are one trial.
        repeats: Maximum number of times that the script is run within one process, until it fails.
        gpus: Number of GPUs that the trial sees; below 1, the share of one GPU.
        hash_seed: `PYTHONHASHSEED` of the script; it is recorded so that the trial can be repeated.
        output_limit: Maximum number of bytes kept of each of stdout and stderr.
        perturbation: Circumstances under which the script runs. Its `copies` and `env` are already included
            in `concurrency` and `env`.
        network: Whether a trial in a container has network access; outside containers every trial has it.
        allow_host: Programs outside the environment that the command may start.
        under: Program of the host (with arguments) that starts the command, such as a debugger; empty if
            there is none.
        target: Failure that the study looks for, which decides what copy stands for a trial of several; None
            if it is not known.
    """

    trial_id: str
    combination: Combination
    lock_hash: str
    command: tuple[str, ...]
    files: tuple[StudyFile, ...] = ()
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
    target: Target | None = None


@dataclass(frozen=True, slots=True)
class TrialFacts:
    """The result of one trial without its logs.

    Attributes:
        trial_id: Id of the trial, as in its `TrialSpec`.
        combination: Combination that was tested, as in the `TrialSpec`.
        lock_hash: Hash of the environment's lock, as in the `TrialSpec`.
        outcome: Outcome of the trial; of several copies, that of the one that stands for them.
        detail: Reason for the outcome, in one readable line.
        returncode: Return code as in `subprocess`: negative for a signal; None if the process never started
            or could not be ended.
        phase: Phase of the script in which the process ended.
        started_at: UTC time of the start.
        duration: Run time in seconds.
        signature: Signature of the failure; equal failures have equal signatures. "" if there is none.
        hash_seed: `PYTHONHASHSEED` of the script.
        copies: Outcome to the number of copies that ended with it.
        iterations: Number of iterations of the script that were begun, summed over all copies; 0 if the
            script is not repeated.
        host: Name of the host.
        worker: Name of the worker on the host.
        gpu: UUIDs of the GPUs that the trial saw, separated by commas; "" without GPUs.
        machine: Properties of the machine on which the trial ran.
        named: What its output names that rules of text look for, such as a CUDA error: of a failure what
            decided its outcome, of a pass all that would have.
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
    hash_seed: int = 0
    copies: Mapping[Outcome, int] = field(default_factory=dict)
    iterations: int = 0
    host: str = ""
    worker: str = ""
    gpu: str = ""
    machine: Machine = UNKNOWN_MACHINE
    named: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialRecord(TrialFacts):
    """The result of one trial with its logs. A stored record never changes.

    Attributes:
        stdout: Kept part of standard output, decoded with replacement characters.
        stderr: Kept part of standard error, decoded with replacement characters.
        stack: Stack that explains the outcome; "" if there is none.
        matched_in_gap: Patterns of the target that match in output that was not kept.
        imported: Name of each distribution that the script really imported (and `python`) to its version;
            empty if the harness did not run.
    """

    stdout: str = ""
    stderr: str = ""
    stack: str = ""
    matched_in_gap: tuple[str, ...] = ()
    imported: Mapping[str, str] = field(default_factory=dict)
