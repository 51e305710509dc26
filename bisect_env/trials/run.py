"""Runs one trial on this host: takes its `TrialSpec`, and returns its `TrialRecord`."""

from __future__ import annotations

import contextlib
import os
import platform
import random
import secrets
import shutil
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from bisect_env.containers.trial import Contained, ContainerError, Inside, Parcel, prepare
from bisect_env.matrix.interpreter import is_python
from bisect_env.secrets import without_passwords_in_code, without_proxy_logins, without_values
from bisect_env.trials.classify import Classification, ExitRecord, classify, may_be_disk
from bisect_env.trials.cores import Debug
from bisect_env.trials.harness_marks import (
    Expected,
    LockedDistribution,
    expected_imports,
    imported_versions,
    install,
    interpreter_line,
    is_watched,
    iterations_begun,
    read_marks,
    repeated,
)
from bisect_env.trials.launch import Launch, TrialCancelledError, run_process
from bisect_env.trials.records import Machine, Outcome, Phase, TrialRecord, TrialSpec
from bisect_env.trials.signature import signature
from bisect_env.trials.stacks import live_stacks
from bisect_env.trials.workdir import (
    TRIAL_ID,
    WorkDir,
    full_disk,
    inherited_env,
    keep_removal,
    own_bin,
    trial_env,
    work_dir,
    write_problem,
)

# --------------------------------------------------------------------------------------------------
# Finding the file to execute for the command of a matrix.

SHELLS = frozenset({"sh", "bash", "dash", "env"})
"""Programs that may always come from the host. They bring no Python packages, and look up the programs that
they start on the script's PATH, where the environment comes first."""


def resolve_program(program: str, *, prefix_bin: Path, python: Path, path: str) -> str | None:
    """Return the path of the program that a command names, or None if the program is not found.

    A name with a slash is returned unchanged. Other names are looked up in `prefix_bin`; if they are not
    there, `python` means the interpreter of the environment, and names other than an interpreter's are looked
    up on `path`.

    Args:
        program: Name of the program, as in the matrix.
        prefix_bin: Directory of the environment's commands.
        python: Interpreter of the environment.
        path: PATH of the script.
    """
    if "/" in program:
        return program
    named = shutil.which(program, path=str(prefix_bin))
    if is_python(program):
        # `python2` must not silently start Python 3.
        return named or (str(python) if program == "python" else None)
    return named or shutil.which(program, path=path)


def why_outside(
    program: str,
    named: str,
    *,
    prefix: Path,
    python: Path,
    cwd: Path,
    allowed: Collection[str] = (),
) -> str:
    """Explain why a program would not use the environment's packages, and how to correct this.

    Return "" if it would use them: if the program lies in the environment or is a file of the trial, and the
    interpreter in its `#!` line is the environment's or a shell. Programs in `allowed` and shells are
    accepted, too.

    Args:
        program: File that would be executed, absolute or relative to `cwd`.
        named: Name of the program in the command.
        prefix: Directory of the environment.
        python: Interpreter of the environment.
        cwd: Working directory of the trial.
        allowed: Names and paths of programs that the host may provide (`trial.allow_host`).
    """
    path = Path(os.path.normpath(cwd / program))
    if not {named, path.name, str(path)}.isdisjoint(allowed):
        return ""
    if path == python or _is_below(path, prefix) or (_is_below(path, cwd) and path.exists()):
        return _why_interpreter_outside(path, named, prefix, python, allowed)
    if path.name in SHELLS or not path.exists():
        return ""
    package = "pytest" if path.name == "py.test" else path.name
    if is_python(path.name):
        remedy = "call it `python`, which is the environment's"
    else:
        remedy = f"add the package that brings it: `--with {package}`, or `packages: [{package}]` in a matrix"
    return (
        f"{named} is not in the environment, and {path} would run with this host's packages; "
        f"{remedy}, or, if the host's is meant, `allow_host: [{path.name}]` to `trial`"
    )


def _why_interpreter_outside(
    path: Path, named: str, prefix: Path, python: Path, allowed: Collection[str]
) -> str:
    """Explain why a script's `#!` line names an interpreter outside the environment.

    Return "" if it is in the environment, is a shell or allowed, or if the file has no `#!` line.
    """
    words = interpreter_line(path)
    if not words:
        return ""
    interpreter = Path(words[0])
    # `env` looks in the environment first. Installers write a shell with a lookup of Python into the `#!`
    # line if the path of the interpreter is too long.
    if interpreter == python or _is_below(interpreter, prefix) or interpreter.name in SHELLS:
        return ""
    if not {interpreter.name, str(interpreter)}.isdisjoint(allowed):
        return ""
    return (
        f"{named} begins with `#!{interpreter}`, which is not the environment's and has the host's packages; "
        f"write `#!/usr/bin/env {interpreter.name}`, or, if the host's is meant, "
        f"`allow_host: [{interpreter.name}]` to `trial`"
    )


def _is_below(path: Path, folder: Path) -> bool:
    # Do not resolve `path` itself: Python in a prefix may be a link to a shared interpreter elsewhere.
    return Path(os.path.realpath(path.parent), path.name).is_relative_to(os.path.realpath(folder))


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
def load_beside(processes: int, cpus: Collection[int], limit: float) -> Iterator[None]:
    """Keep CPUs busy with extra processes while the `with` block runs.

    Args:
        processes: Number of processes; 0 for none.
        cpus: CPUs that the processes may use; empty means those of the current process.
        limit: Seconds after which the processes end in any case.
    """
    if not processes:
        yield
        return
    over = threading.Event()
    launch = Launch(_SPIN, {}, Path("/"), cpus=sorted(cpus))

    def spin() -> None:
        with contextlib.suppress(TrialCancelledError):
            run_process(launch, timeout=limit, output_limit=1000, cancelled=over.is_set)

    with ThreadPoolExecutor(processes, thread_name_prefix="load") as pool:
        try:
            spinning = [pool.submit(spin) for _ in range(processes)]
            yield
        finally:
            over.set()
    for one in spinning:
        one.result()


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
class _Execution:
    """The part of `run_trial`'s arguments that is the same for all copies of a trial's script."""

    prefix: Path
    python: Path
    gpus: Sequence[str]
    cpus: Collection[int]
    cancelled: Callable[[], bool]
    debug: Debug | None
    inside: Inside | None
    expected: Mapping[str, Expected]
    gpu_watch: GpuWatch | None


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

    The function is safe to call from several threads at once. Each copy of the script gets its own working
    directory, session and supervisor; they are gone when this function returns or raises.

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
    clock = time.monotonic()
    interpreter = python or prefix / "bin" / "python"
    try:
        expected = expected_imports(prefix, locked)
        around = spec.perturbation
        cpus = some_cpus(around.cpus, cpus, spec.trial_id)
        place = _Execution(prefix, interpreter, gpus, cpus, cancelled, debug, inside, expected, gpu_watch)
        with load_beside(around.load, cpus, spec.timeout + 60.0):
            exits = _run_copies(spec, place)
        record = _record(spec, exits, started_at, time.monotonic() - clock)
    except TrialCancelledError:
        raise
    except Exception as error:  # noqa: BLE001 - the outermost frame of a trial: an internal error must become
        # a void record here. If it were raised, it would look like a lost worker and be retried for ever.
        record = harness_error_record(spec, error, started_at)
    return replace(record, worker=worker, gpu=",".join(gpus), machine=Machine(platform.machine()))


def harness_error_record(
    spec: TrialSpec, error: BaseException, started_at: datetime | None = None
) -> TrialRecord:
    """Return a record with outcome `harness-error` for a trial that an internal error stopped.

    Args:
        spec: Specification of the trial.
        error: The internal error; its traceback becomes the record's stack.
        started_at: UTC time of the trial's start; now by default.
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
    )


def _run_copies(spec: TrialSpec, place: _Execution) -> list[ExitRecord]:
    if spec.concurrency == 1:
        return [_run_copy(spec, place)]
    with ThreadPoolExecutor(spec.concurrency, thread_name_prefix="trial-copy") as pool:
        copies = [pool.submit(_run_copy, spec, place) for _ in range(spec.concurrency)]
    return [copy.result() for copy in copies]


def _run_copy(spec: TrialSpec, place: _Execution) -> ExitRecord:
    rates: list[float | None] = []

    def at_deadline(pid: int) -> str:
        # Measured before the stacks are read, because reading them stops the process.
        rates.append(place.gpu_watch.busy() if place.gpu_watch else None)
        return live_stacks(pid) if place.debug is None else place.debug.on_deadline(pid)

    run = partial(
        run_process,
        timeout=spec.timeout,
        output_limit=spec.output_limit,
        cancelled=place.cancelled,
        on_deadline=at_deadline,
    )
    with work_dir(spec.files) as directory:
        seen = _run_in(directory, spec, place, run)
        if may_be_disk(seen.stderr):
            full = seen.disk_full or full_disk()
            seen = replace(seen, disk_full=full, disk_error=write_problem(directory.top))
    xids = tuple(place.gpu_watch.reported()) if place.gpu_watch else ()
    # Hidden before anything is derived from the output: details and signatures quote it.
    stdout, stderr, stacks = (
        without_values(text, spec.env) for text in (seen.stdout, seen.stderr, seen.stacks)
    )
    seen = replace(seen, stdout=stdout, stderr=stderr, stacks=stacks)
    return replace(seen, expected=place.expected, gpu_rate=rates[0] if rates else None, xids=xids)


def _run_in(
    directory: WorkDir, spec: TrialSpec, place: _Execution, run: Callable[..., ExitRecord]
) -> ExitRecord:
    """Run one copy of the command, on this host or in a container, and return its exit record.

    The harness is installed if it can run in the command, and its notes are added to the result.

    Args:
        directory: Private directories of the copy.
        spec: What to run.
        place: Where to run it.
        run: `run_process` with the limits of the trial.
    """
    notes_in = directory.top
    env = trial_env(
        inherited_env(os.environ, place.prefix / "bin", own_bin()) if place.inside is None else {},
        tmp=directory.tmp,
        hash_seed=spec.hash_seed,
        trial_id=spec.trial_id,
        gpus=place.gpus,
        extra=spec.env,
    )
    if place.inside is None:
        program = _program_here(spec, place, env["PATH"], directory.work)
    else:
        program = _program_inside(spec, place, place.inside)
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
        env, marks = install(notes_in, env, place.expected, gc_threshold=spec.perturbation.gc_threshold)
    argv = [*spec.under, program, *arguments]
    if place.inside is None:
        launch = Launch(
            argv,
            env,
            directory.work,
            core=place.debug is not None,
            cpus=sorted(place.cpus),
            nice=spec.perturbation.nice,
            scratch=directory.top,
        )
        seen = run(launch)
    else:
        seen = _run_contained(_parcel(spec, place, directory, argv, env), place.inside, directory.top, run)
    if place.debug is not None:
        place.debug.after(seen, directory.work, program)
    if marks is not None:
        seen = replace(seen, marks=read_marks(marks))
    return seen if iterations is None else replace(seen, iterations=iterations_begun(iterations))


def _program_here(spec: TrialSpec, place: _Execution, path: str, cwd: Path) -> str | ExitRecord:
    """Return the path of the program to start on this host, or an exit record if it must not be started.

    The exit record says why: the program was not found, or would not use the environment's packages.
    """
    named = spec.command[0]
    program = resolve_program(named, prefix_bin=place.prefix / "bin", python=place.python, path=path)
    if program is None:
        why = "command not found: the environment's interpreter is called `python`"
        if not is_python(named):
            why = (
                "command not found in the environment, nor on this host; add the package that brings it: "
                f"`--with {named}`, or `packages: [{named}]` in a matrix"
            )
        return ExitRecord(returncode=None, stage="lookup", why=why)
    why = why_outside(
        program, named, prefix=place.prefix, python=place.python, cwd=cwd, allowed=spec.allow_host
    )
    return ExitRecord(returncode=None, stage="outside", why=why) if why else program


def _program_inside(spec: TrialSpec, place: _Execution, inside: Inside) -> str | ExitRecord:
    """Return the program to start in a container, or an exit record if it must not be started.

    The exit record says why: the program is missing in the environment, and the image's own was not allowed.
    """
    named = spec.command[0]
    if inside.prefix is None:
        return named
    # The program is looked up only in the environment; if it is not there, the image may have it.
    found = resolve_program(named, prefix_bin=place.prefix / "bin", python=place.python, path="")
    if found is not None or named in SHELLS or named in spec.allow_host:
        return found or named
    why = (
        f"{named} is not in the environment, and an image's own would run with the image's packages; add the "
        f"package that brings it, such as `packages: [{named}]`, or, if the image's is meant, "
        f"`allow_host: [{named}]` to `trial`"
    )
    return ExitRecord(returncode=None, stage="outside", why=why)


def _parcel(
    spec: TrialSpec, place: _Execution, directory: WorkDir, argv: list[str], env: Mapping[str, str]
) -> Parcel:
    return Parcel(
        name=f"bisect-env-{spec.trial_id[:32]}-{secrets.token_hex(3)}",
        trial_id=spec.trial_id,
        argv=argv,
        env=env,
        work=directory.work,
        tmp=directory.tmp,
        control=directory.top / "control",
        gpus=place.gpus,
        cpus=sorted(place.cpus),
        network=spec.network,
        core=place.debug is not None,
    )


def _run_contained(parcel: Parcel, inside: Inside, top: Path, run: Callable[..., ExitRecord]) -> ExitRecord:
    prepare(inside, parcel)
    contained = Contained(inside, parcel, top)
    keep_removal(top, contained.removal)
    # The client of the engine is no part of the trial; it gets the user's full environment variables, except
    # the logins of proxies: podman passes the proxies on to the container.
    client_env = {**without_proxy_logins(os.environ), TRIAL_ID: parcel.trial_id}
    client = Launch(contained.argv, client_env, top, scratch=top, elsewhere=contained.commands)
    try:
        record = run(client, contained=contained.first_process)
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
    found = [(classify(one), one) for one in exits]
    chosen, one = min(found, key=lambda pair: list(Outcome).index(pair[0].outcome))
    counts = Counter(classification.outcome for classification, _ in found)
    return TrialRecord(
        trial_id=spec.trial_id,
        combination=spec.combination,
        lock_hash=spec.lock_hash,
        outcome=chosen.outcome,
        detail=_detail(chosen, one, counts, spec),
        returncode=one.returncode,
        phase=chosen.phase,
        started_at=started_at,
        # For one copy, the run time of the script without preparation; for several, the time for all of them.
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
    )


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
