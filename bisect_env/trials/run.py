"""Runs one trial on this host, in another process: takes its `TrialSpec`, and returns its `TrialRecord`."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import platform
import random
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from bisect_env.containers.trial import Contained, ContainerError, Inside, Parcel, prepare
from bisect_env.secrets import without_passwords_in_code, without_proxy_logins, without_values
from bisect_env.trials.classify import Classification, ExitRecord, classify, may_be_disk, named_in
from bisect_env.trials.cores import Debug
from bisect_env.trials.forks import SERVER, Line, fork, results
from bisect_env.trials.harness_marks import (
    Expected,
    LockedDistribution,
    expected_imports,
    imported_versions,
    install,
    is_watched,
    iterations_begun,
    read_marks,
    repeated,
)
from bisect_env.trials.judge import Target, standing_for
from bisect_env.trials.programs import SHELLS, allowing, how_to_bring, resolve_program, why_outside
from bisect_env.trials.records import Machine, Outcome, Phase, TrialRecord, TrialSpec
from bisect_env.trials.signature import signature
from bisect_env.trials.stacks import live_stacks
from bisect_env.trials.supervisor import MAX_DELAY, Launch, TrialCancelledError, before_exec, run_process
from bisect_env.trials.workdir import (
    TRIAL_ID,
    WorkDir,
    full_disk,
    inherited_env,
    keep_removal,
    own_bin,
    sweep,
    sweep_once,
    trial_env,
    work_dir,
    write_problem,
)

# --------------------------------------------------------------------------------------------------
# What is observed of a trial's GPUs for its classification.


class GpuWatch(Protocol):
    """Interface of an object that observes the GPUs of one trial while the trial runs."""

    def reported(self) -> Sequence[int]:
        """Return the error codes (Xids) that the NVIDIA driver has reported since the trial began."""
        ...

    def busy(self) -> float | None:
        """Return the share of the last moments (0 to 1) in which a GPU was busy, or None if unknown."""
        ...


# --------------------------------------------------------------------------------------------------
# Perturbations of the host while a trial runs: load from other processes, and fewer CPUs.

_SPIN = [sys.executable, "-I", "-S", "-c", "while True: pass"]


@contextlib.contextmanager
def load_beside(processes: int, cpus: Collection[int]) -> Iterator[None]:
    """Keep CPUs busy with extra processes while the `with` block runs.

    Args:
        processes: Number of processes; 0 for none.
        cpus: CPUs that the processes may use; empty means those of the current process.
    """
    parent = os.getpid()

    def prepare_to_spin() -> None:
        before_exec(parent)
        os.sched_setaffinity(0, cpus or os.sched_getaffinity(0))

    with contextlib.ExitStack() as spinning:
        for _ in range(processes):
            process = subprocess.Popen(_SPIN, env={}, cwd="/", preexec_fn=prepare_to_spin)
            spinning.callback(process.wait)
            spinning.callback(process.kill)
        yield


def some_cpus(count: int, cpus: Collection[int], trial_id: str) -> list[int]:
    """Select `count` CPUs at random, always the same ones for the same `trial_id`.

    Args:
        count: Number of CPUs to select; with 0 or too large a number, `cpus` is returned.
        cpus: CPUs to select from; empty means those of the current process.
        trial_id: Id of the trial, the seed of the selection, so that trials spread over the CPUs.
    """
    allowed = sorted(cpus or os.sched_getaffinity(0))
    if not count or count >= len(allowed):
        return sorted(cpus)
    return sorted(random.Random(trial_id).sample(allowed, count))


# --------------------------------------------------------------------------------------------------
# Running one trial on this host.

STACK_LIMIT = 100_000
"""Maximum number of characters kept of a stack."""

__all__ = ["TrialCancelledError", "harness_error_record", "run_trial"]


@dataclass(frozen=True, slots=True)
class _Task:
    """A request to run a trial in another process, with the values that only the worker knows.

    Attributes:
        environ: Environment variables of this host that the command inherits, or, for a trial in a container,
            that the client of the container engine gets.
        temp: Directory for temporary files, in which the trial's directories are made.
        expected: Pickled result of `expected_imports`.
        has_gpu_watch: Whether the worker can answer questions about the trial's GPUs.

    The other attributes are arguments of `run_trial`.
    """

    spec: TrialSpec
    prefix: Path
    python: Path
    environ: Mapping[str, str]
    temp: str
    gpus: Sequence[str]
    cpus: Collection[int]
    worker: str
    debug: Debug | None
    inside: Inside | None
    expected: bytes
    has_gpu_watch: bool


def run_trial(
    spec: TrialSpec,
    prefix: Path,
    *,
    python: Path | None = None,
    gpus: Sequence[str] = (),
    cpus: Collection[int] = (),
    cancelled: Callable[[], bool] = lambda: False,
    worker: str = "",
    debug: Debug | None = None,
    inside: Inside | None = None,
    locked: tuple[LockedDistribution, ...] = (),
    gpu_watch: GpuWatch | None = None,
) -> TrialRecord:
    """Run a trial, classify its outcome and return its record.

    The function is safe to call from several threads at once. Another process, which runs one trial at a
    time, does all the work. Each copy of the script gets its own working directory and session; they are gone
    when this function returns or raises.

    Args:
        spec: What to run.
        prefix: Directory of the environment, which contains `bin/`.
        python: Interpreter of the environment; `bin/python` by default.
        gpus: UUIDs of the GPUs that the trial may see.
        cpus: CPUs that the trial may use; empty means those of the current process.
        cancelled: Function that returns whether to cancel; called ten times a second.
        worker: Name of the worker, for the record.
        debug: Collector of stacks and core files; with it, the trial may be slower. None for no diagnosis.
        inside: Container image in which the trial runs; None to run it on the host.
        locked: Distributions of the lock that a script can import; the script's imports are compared with
            them.
        gpu_watch: Observer of the trial's GPUs; None without GPUs.

    Returns:
        The record of the trial. After an internal error its outcome is `harness-error`.

    Raises:
        TrialCancelledError: `cancelled` returned True; all processes have been ended.
    """
    started_at = datetime.now(UTC)
    record: TrialRecord | None
    findings: Debug | None = None
    answers: dict[str, Callable[[], object]] = {}
    if gpu_watch is not None:
        answers = {BUSY: gpu_watch.busy, XIDS: gpu_watch.reported}
    try:
        sweep_once()
        if inside is None:
            environ: Mapping[str, str] = inherited_env(os.environ, prefix / "bin", own_bin())
        else:
            environ = without_proxy_logins(os.environ)
        task = _Task(
            spec,
            prefix,
            python or prefix / "bin" / "python",
            environ,
            tempfile.gettempdir(),
            gpus,
            cpus,
            worker,
            debug,
            inside,
            _pickled_imports(prefix, locked),
            gpu_watch is not None,
        )
        with SERVER.run(_perform, task) as line:
            attention = _Attention(line, cancelled, spec.timeout)
            ((record, findings),) = results([line], lambda question: answers[question](), attention.look)
    except Exception as error:  # noqa: BLE001 - an internal error must become a void record here. If it were
        # raised, it would look like a lost worker and be retried for ever.
        with contextlib.suppress(OSError):  # the record tells the first error
            sweep()
        record = harness_error_record(spec, error, started_at, worker=worker, gpus=gpus)
    if record is None:
        raise TrialCancelledError
    if debug is not None and findings is not None:
        debug.take(findings)
    return record


BUSY, XIDS = "busy", "xids"
"""Questions of a trial's process to the worker, which has opened NVML."""
_IMPORTS_KEPT = 64


@functools.lru_cache(_IMPORTS_KEPT)
def _pickled_imports(prefix: Path, locked: tuple[LockedDistribution, ...]) -> bytes:
    """Return the pickled result of `expected_imports`, so that each trial need not pickle it again."""
    return pickle.dumps(expected_imports(prefix, locked))


class _Attention:
    """A watch over a running trial, kept by a thread of the worker.

    It cancels the trial on request, and continues its process if that was stopped.

    Args:
        line: Line to the trial's process.
        cancelled: Function that returns whether to cancel the trial.
        timeout: Time limit of the trial in seconds.
    """

    def __init__(self, line: Line, cancelled: Callable[[], bool], timeout: float) -> None:
        self._line = line
        self._cancelled = cancelled
        self._is_cancelled = False
        self._wake_at = time.monotonic() + timeout + MAX_DELAY + 1.0

    def look(self) -> None:
        """Cancel the trial if that is wanted, and continue its process if it was stopped, as by SIGSTOP."""
        now = time.monotonic()
        if not self._is_cancelled and self._cancelled():
            self._is_cancelled = True
            self._line.cancel()
            self._wake_at = min(self._wake_at, now + 1.0)
        if now > self._wake_at:
            SERVER.wake()
            self._wake_at = now + 1.0


def _perform(line: Line, task: _Task) -> tuple[TrialRecord | None, Debug | None]:
    """Run a trial in this process, and return its record and what `debug` collected.

    The record is None if the trial was cancelled.
    """
    tempfile.tempdir = task.temp
    started_at = datetime.now(UTC)
    clock = time.monotonic()
    spec = task.spec
    try:
        around = spec.perturbation
        task = replace(task, cpus=some_cpus(around.cpus, task.cpus, spec.trial_id))
        if spec.concurrency == 1 and not around.load:
            exits = [_run_copy(line, task)]
        else:
            with load_beside(around.load, task.cpus):
                exits = _run_copies(line, task)
        record = _record(spec, exits, started_at, time.monotonic() - clock)
        machine = Machine(platform.machine())
        record = replace(record, worker=task.worker, gpu=",".join(task.gpus), machine=machine)
    except TrialCancelledError:
        return None, None
    except Exception as error:  # noqa: BLE001 - as in `run_trial`
        record = harness_error_record(spec, error, started_at, worker=task.worker, gpus=task.gpus)
    return record, task.debug


def harness_error_record(
    spec: TrialSpec,
    error: BaseException,
    started_at: datetime | None = None,
    *,
    worker: str = "",
    gpus: Sequence[str] = (),
) -> TrialRecord:
    """Return a record with outcome `harness-error` for a trial that an internal error stopped.

    Args:
        spec: Specification of the trial.
        error: The internal error; its traceback becomes the record's stack.
        started_at: UTC time of the trial's start; now by default.
        worker: Name of the worker.
        gpus: UUIDs of the GPUs that the trial was to see.
    """
    # The traceback quotes lines of code, in which an address may have a password, and the error may quote
    # what the script printed.
    detail, text = (
        without_values(without_passwords_in_code(one), spec.env)
        for one in (f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))
    )
    return TrialRecord(
        trial_id=spec.trial_id,
        combination=spec.combination,
        lock_hash=spec.lock_hash,
        outcome=Outcome.HARNESS_ERROR,
        detail=detail.splitlines()[0],
        returncode=None,
        phase=Phase.UNKNOWN,
        started_at=started_at or datetime.now(UTC),
        duration=0.0,
        stack=text[-STACK_LIMIT:],
        hash_seed=spec.hash_seed,
        copies={Outcome.HARNESS_ERROR: spec.concurrency},
        host=socket.gethostname(),
        worker=worker,
        gpu=",".join(gpus),
        machine=Machine(platform.machine()),
    )


def _run_copies(line: Line, task: _Task) -> list[ExitRecord]:
    """Run the copies of a trial's script at once, each under a process of its own."""
    copies: list[tuple[int, Line]] = []
    try:
        for _ in range(task.spec.concurrency):
            copies.append(fork(_run_one_of, task, close=[line, *(copy for _, copy in copies)]))
        lines = [copy for _, copy in copies]

        def look() -> None:
            if line.is_readable():
                for copy in lines:
                    copy.cancel()

        found = results(lines, line.ask, look)
    finally:
        for _, copy in copies:
            copy.close()
        for pid, _ in copies:
            os.waitpid(pid, 0)
    if None in found:
        raise TrialCancelledError
    if task.debug is not None:
        for _, debug in found:
            task.debug.take(debug)
    return [seen for seen, _ in found]


def _run_one_of(line: Line, task: _Task) -> tuple[ExitRecord, Debug | None] | None:
    """Run one of several copies, and return its exit record and what `debug` collected.

    Return None if the copy was cancelled.
    """
    try:
        return _run_copy(line, task), task.debug
    except TrialCancelledError:
        return None


def _run_copy(line: Line, task: _Task) -> ExitRecord:
    spec = task.spec
    rates: list[float | None] = []

    def at_deadline(pid: int) -> str:
        # Measured before the stacks are read, because reading them stops the process.
        rates.append(line.ask(BUSY) if task.has_gpu_watch else None)
        return live_stacks(pid) if task.debug is None else task.debug.on_deadline(pid)

    def run(launch: Launch) -> ExitRecord:
        return run_process(launch, line.fileno(), at_deadline)

    expected = pickle.loads(task.expected)
    with work_dir(spec.files) as directory:
        seen = _run_in(directory, task, expected, run)
        if may_be_disk(seen.stderr):
            full = seen.disk_full or full_disk()
            seen = replace(seen, disk_full=full, disk_error=write_problem(directory.top))
    xids = tuple(line.ask(XIDS) or ()) if task.has_gpu_watch else ()
    # Hidden before anything is derived from the output: details and signatures quote it.
    stdout, stderr, stacks = (
        without_values(text, spec.env) for text in (seen.stdout, seen.stderr, seen.stacks)
    )
    seen = replace(seen, stdout=stdout, stderr=stderr, stacks=stacks)
    seen = replace(seen, command=spec.command, files=tuple(file.name for file in spec.files))
    return replace(seen, expected=expected, gpu_rate=rates[0] if rates else None, xids=xids)


def _run_in(
    directory: WorkDir,
    task: _Task,
    expected: Mapping[str, Expected],
    run: Callable[[Launch], ExitRecord],
) -> ExitRecord:
    """Run one copy of the command, on this host or in a container, and return its exit record.

    The harness is installed if it can run in the command, and its notes are added to the result.

    Args:
        directory: Private directories of the copy.
        task: What to run, and where.
        expected: Result of `expected_imports`.
        run: Runs a process to its end.
    """
    spec = task.spec
    notes_in = directory.top
    env = trial_env(
        task.environ if task.inside is None else {},
        tmp=directory.tmp,
        hash_seed=spec.hash_seed,
        trial_id=spec.trial_id,
        gpus=task.gpus,
        extra=spec.env,
    )
    if task.inside is None:
        program = _program_here(task, env["PATH"], directory.work)
    else:
        program = _program_inside(task, task.inside)
        notes_in = directory.top / "control"
        notes_in.mkdir()
    if isinstance(program, ExitRecord):
        return program
    arguments: Sequence[str] = spec.command[1:]
    iterations = None
    if spec.repeats > 1:
        arguments, iterations = repeated(arguments, spec.repeats, notes_in)
    marks = None
    if is_watched(program, spec.command[1:], env, directory.work):
        env, marks = install(notes_in, env, expected, gc_threshold=spec.perturbation.gc_threshold)
    argv = [*spec.under, program, *arguments]
    if task.inside is None:
        launch = Launch(
            argv,
            env,
            directory.work,
            spec.timeout,
            spec.output_limit,
            patterns=_patterns(spec),
            core=task.debug is not None,
            cpus=sorted(task.cpus),
            nice=spec.perturbation.nice,
        )
        seen = run(launch)
    else:
        parcel = _parcel(task, directory, argv, env)
        seen = _run_contained(task, parcel, task.inside, directory.top, run)
    if task.debug is not None:
        task.debug.after(seen, directory.work, program)
    if marks is not None:
        seen = replace(seen, marks=read_marks(marks))
    return seen if iterations is None else replace(seen, iterations=iterations_begun(iterations))


def _patterns(spec: TrialSpec) -> tuple[str, ...]:
    return spec.target.output if spec.target is not None else ()


def _program_here(task: _Task, path: str, cwd: Path) -> str | ExitRecord:
    """Return the path of the program to start on this host, or an exit record if it must not be started.

    The exit record says why: the program was not found, or would not use the environment's packages.
    """
    named, allowed = task.spec.command[0], task.spec.allow_host
    program = resolve_program(named, prefix_bin=task.prefix / "bin", python=task.python, path=path)
    if program is None:
        why = f"command not found in the environment, nor on this host; {how_to_bring(named)}"
        return ExitRecord(returncode=None, stage="lookup", why=why)
    why = why_outside(program, named, prefix=task.prefix, python=task.python, cwd=cwd, allowed=allowed)
    return ExitRecord(returncode=None, stage="outside", why=why) if why else program


def _program_inside(task: _Task, inside: Inside) -> str | ExitRecord:
    """Return the program to start in a container, or an exit record if it must not be started.

    The exit record says why: the program is missing in the environment, and the image's own was not allowed.
    """
    named, allowed = task.spec.command[0], task.spec.allow_host
    if inside.prefix is None:
        return named
    # The program is looked up only in the environment; if it is not there, the image may have it.
    found = resolve_program(named, prefix_bin=task.prefix / "bin", python=task.python, path="")
    if found is not None or named in SHELLS or named in allowed:
        return found or named
    why = (
        f"{named} is not in the environment, and an image's own would run with the image's packages; "
        f"{how_to_bring(named)}, or, if the image's is meant, {allowing(named)}"
    )
    return ExitRecord(returncode=None, stage="outside", why=why)


def _parcel(task: _Task, directory: WorkDir, argv: list[str], env: Mapping[str, str]) -> Parcel:
    spec = task.spec
    return Parcel(
        name=f"bisect-env-{spec.trial_id[:32]}-{secrets.token_hex(3)}",
        trial_id=spec.trial_id,
        argv=argv,
        env=env,
        work=directory.work,
        tmp=directory.tmp,
        control=directory.top / "control",
        gpus=task.gpus,
        cpus=sorted(task.cpus),
        network=spec.network,
        core=task.debug is not None,
    )


def _run_contained(
    task: _Task, parcel: Parcel, inside: Inside, top: Path, run: Callable[[Launch], ExitRecord]
) -> ExitRecord:
    prepare(inside, parcel)
    contained = Contained(inside, parcel, top)
    keep_removal(top, contained.removal)
    # The client of the engine is no part of the trial; it gets the user's full environment variables, except
    # the logins of proxies: podman passes the proxies on to the container.
    client = Launch(
        contained.argv,
        {**task.environ, TRIAL_ID: parcel.trial_id},
        top,
        task.spec.timeout,
        task.spec.output_limit,
        patterns=_patterns(task.spec),
        elsewhere=contained.commands,
        contained=contained.first_process,
    )
    try:
        record = run(client)
    finally:
        contained.open_up()
    return _as_ended_inside(record, contained)


def _as_ended_inside(record: ExitRecord, contained: Contained) -> ExitRecord:
    """Convert the exit record of the engine's client process to that of the script in the container.

    Raises:
        ContainerError: The container engine could not be started.
    """
    if record.stage:
        kind = contained.inside.engine.kind
        raise ContainerError(f"the container engine {kind} cannot be started")
    end = contained.ending(record.state, record.returncode, record.stderr, late=record.timed_out)
    return replace(
        record,
        returncode=end.returncode,
        stage=end.stage,
        errno=end.errno,
        oom_kills=end.oom_kills,
        left_over=end.left_over,
        disk_full=end.disk_full,
        duration=end.wall or record.duration,
        peak=end.peak,
    )


def _record(spec: TrialSpec, exits: list[ExitRecord], started_at: datetime, elapsed: float) -> TrialRecord:
    found = [classify(one) for one in exits]
    counts = Counter(one.outcome for one in found)
    copies = [
        TrialRecord(
            trial_id=spec.trial_id,
            combination=spec.combination,
            lock_hash=spec.lock_hash,
            outcome=chosen.outcome,
            detail=_detail(chosen, one, counts, spec),
            returncode=one.returncode,
            phase=chosen.phase,
            started_at=started_at,
            # For one copy, the run time of the script without preparation; for several, the time for all.
            duration=one.duration if len(exits) == 1 and one.duration else elapsed,
            stdout=one.stdout,
            stderr=one.stderr,
            stack=_stack(one)[-STACK_LIMIT:],
            signature=signature(one, chosen),
            hash_seed=spec.hash_seed,
            copies={outcome: counts[outcome] for outcome in Outcome if counts[outcome]},
            iterations=sum(one.iterations for one in exits) if spec.repeats > 1 else 0,
            host=socket.gethostname(),
            imported=imported_versions(one.expected, one.marks.imported),
            named=named_in(one, chosen),
            matched_in_gap=one.matched_in_gap,
        )
        for chosen, one in zip(found, exits, strict=True)
    ]
    return standing_for(copies, spec.target or Target())


def _detail(chosen: Classification, one: ExitRecord, counts: Counter[Outcome], spec: TrialSpec) -> str:
    if chosen.outcome is Outcome.NOT_RUNNABLE and chosen.phase is Phase.START:
        detail = f"{spec.command[0]}: {chosen.detail}"
    else:
        detail = chosen.detail
    if spec.repeats > 1 and chosen.outcome is not Outcome.PASS:
        detail += f", in iteration {one.iterations} of {spec.repeats}"
    if spec.concurrency > 1:
        detail += f" ({counts[chosen.outcome]} of {spec.concurrency} copies)"
    return detail


def _stack(record: ExitRecord) -> str:
    """Return the stack traces that explain why a process hung or failed, as text.

    They are the stacks of a hanging process, and the dump or traceback in stderr. Return "" if the process
    passed, even if its stderr contains a traceback.
    """
    if record.returncode == 0 and not record.timed_out:
        return ""
    explains = record.dump or record.traceback
    text = explains.text if explains is not None else ""
    return "\n".join(part for part in (record.stacks, text) if part)
