"""Run one combination under debugging tools until it fails. These trials are never evidence.

A debugger, a sanitizer or `CUDA_LAUNCH_BLOCKING` changes the program's behaviour, so that its failure rate
says nothing about the rate without them. These trials are therefore not recorded; their results are kept in a
folder.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bisect_env.engine.specs import target_of, trial_spec
from bisect_env.engine.stored import LockedCombination
from bisect_env.environments.prefix import Prefix
from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.signatures import shown as shown_signature
from bisect_env.trials.cores import Debug, of_gdb, under_gdb
from bisect_env.trials.harness_marks import LINGER
from bisect_env.trials.judge import Target, judge_alone
from bisect_env.trials.records import NONE, Evidence, Outcome, Perturbation, TrialRecord, TrialSpec
from bisect_env.trials.run import run_trial
from bisect_env.trials.stacks import find_tool, sentences
from bisect_env.trials.tracebacks import Frame, final_traceback, parse_fatal_dump

IN_GDB = 20
"""Maximum number of trials in gdb, if a crash left no core file."""
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
_SANITIZER_MARK = "========= "
_SANITIZER_FINDING = re.compile(
    r"Invalid|Error|Race|Uninitialized|Barrier|Program hit|Out-of-range|Misaligned"
)
_SHOWN = 4
"""Maximum number of lines that are shown of a sanitizer's first finding."""

CUDA_ENV = {
    # Report each error at the call that caused it.
    "CUDA_LAUNCH_BLOCKING": "1",
}
GPU_CORE_ENV = {
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1",
    # Write frames, registers and the failing instruction, but not the GPU's memory.
    "CUDA_ENABLE_LIGHTWEIGHT_COREDUMP": "1",
    "CUDA_COREDUMP_FILE": "gpu-%p.nvcudmp",
    # The program gets no error about its fault any more. It may end before the core is written; the driver
    # then crashes in it (seen on an H100, driver 580).
    LINGER: "10",
}
FOR_GPU_CORE = 3
"""Maximum number of additional trials that are run to get a core dump of the GPU."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Debugging tools that a diagnosis uses in addition to the default ones.

    Attributes:
        cuda: Whether to set `CUDA_LAUNCH_BLOCKING`, and to produce a core dump of the GPU after the first
            failure.
        sanitizer: Tool of compute-sanitizer under which to run the script (such as `memcheck`), or "".
    """

    cuda: bool = False
    sanitizer: str = ""


_NOTHING = Tools()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of running trials under debugging tools until one shows the failure.

    Attributes:
        record: Record of the trial that showed the failure, else of the last trial.
        shown: Whether a trial showed the failure.
        trials: Number of trials that were run.
        findings: Sentences about the cause, such as the guilty frame or which thread waits for which lock.
        notes: Sentences about what could not be done, with the reason.
        folder: The folder with all results.
        files: Names of the files in it.
    """

    record: TrialRecord
    shown: bool
    trials: int
    findings: tuple[str, ...]
    notes: tuple[str, ...]
    folder: Path
    files: tuple[str, ...]


def diagnose(
    matrix: Matrix,
    at: LockedCombination,
    prefix: Prefix,
    folder: Path,
    *,
    limit: int,
    tools: Tools = _NOTHING,
    target: Target | None = None,
    perturbation: Perturbation = NONE,
    notes: Sequence[str] = (),
    gpus: Sequence[str] = (),
    on_trial: Callable[[int, TrialRecord, Evidence], None] = lambda _number, _record, _evidence: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Diagnosis:
    """Run trials under debugging tools until one fails as in the study, and return what they show.

    Args:
        matrix: The matrix of the study.
        at: The combination to run, with its lock.
        prefix: Its environment on this host.
        folder: New folder for the results; it is deleted again if the diagnosis is interrupted.
        limit: Maximum number of trials.
        tools: Requested tools.
        target: The failure to look for; None for the one that the matrix states.
        perturbation: Circumstances under which to run the trials.
        notes: Remarks to include in the diagnosis.
        gpus: UUIDs of the GPUs to use.
        on_trial: Called with the number, record and evidence of each trial.
        stopped: Called during trials; they are cancelled if it returns True.

    Raises:
        UsageError: A requested tool is missing.
        InfrastructureError: The folder cannot be made.
        TrialCancelledError: `stopped` returned True.
    """

    def run_once(
        debug: Debug | None, *, under: tuple[str, ...] = (), env: Mapping[str, str] | None = None
    ) -> TrialRecord:
        plain = trial_spec(matrix, at.combination, at.lock, uuid.uuid4().hex, perturbation=perturbation)
        spec = with_tools(plain, tools)
        spec = replace(spec, env={**spec.env, **(env or {})}, under=under or spec.under)
        return run_trial(
            spec,
            prefix.path,
            python=prefix.python,
            gpus=gpus,
            cancelled=stopped,
            debug=debug,
            inside=prefix.inside,
        )

    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InfrastructureError(
            f"the folder {folder} cannot be made: {error.strerror}",
            remedy="name another one with `--output`",
        ) from error
    with contextlib.ExitStack() as unless_complete:
        unless_complete.callback(shutil.rmtree, folder, ignore_errors=True)
        for number in range(1, limit + 1):
            # The trial's process has another working directory than this one.
            debug = Debug((folder / f"trial-{number}").absolute(), notes=list(notes))
            debug.keep.mkdir()
            record = run_once(debug)
            # Judge each trial by itself, because the failure to find may be one that is void in a study.
            evidence = judge_alone(record, target or target_of(matrix))
            on_trial(number, record, evidence)
            shown = evidence is Evidence.BAD or bool(tools.sanitizer and _of_sanitizer(record.stdout))
            if shown or number == limit or record.outcome is Outcome.NOT_RUNNABLE:
                break
            shutil.rmtree(debug.keep)
        needs_gdb = record.outcome is Outcome.CRASH and not debug.autopsy.text and prefix.inside is None
        if shown and needs_gdb and (gdb := under_gdb()) is not None:
            _again_in_gdb(debug, lambda: run_once(None, under=gdb), min(IN_GDB, limit))
        if shown and tools.cuda:
            _for_gpu_core(debug, lambda again: run_once(again, env=GPU_CORE_ENV))
        unless_complete.pop_all()
    return _kept(record, debug, folder, shown=shown, trials=number)


def _for_gpu_core(debug: Debug, run: Callable[[Debug], TrialRecord]) -> None:
    """Repeat a failing trial until the CUDA driver writes a core dump of the GPU.

    There are at most `FOR_GPU_CORE` repetitions. They run only after the failure was seen, because core dumps
    change how a CUDA fault ends.
    """
    for _ in range(FOR_GPU_CORE):
        # The driver's abort also leaves a core of the process, which is useless: delete it with this folder.
        with tempfile.TemporaryDirectory(dir=debug.keep) as name:
            again = Debug(Path(name))
            run(again)
            found = [*again.keep.glob("*.nvcudmp"), *again.keep.glob("gpu.txt")]
            for path in found:
                path.rename(debug.keep / path.name)
        if found:
            debug.on_gpu += again.on_gpu
            return
    debug.notes.append(f"no core of the GPU in {FOR_GPU_CORE} further trials")


def _again_in_gdb(debug: Debug, run: Callable[[], TrialRecord], limit: int) -> None:
    """Run the program in gdb repeatedly until it crashes, and keep the stack that gdb prints.

    This is for hosts on which a crash leaves no core file.
    """
    for number in range(1, limit + 1):
        found = of_gdb(run().stdout)
        if found.guilty:
            debug.autopsy = found
            (debug.keep / "gdb.txt").write_text(found.text, "utf-8")
            debug.notes.append(f"run in gdb instead, where it crashed in trial {number}")
            return
    debug.notes.append(f"run in gdb instead, where it did not crash in {limit} trials")


def with_tools(spec: TrialSpec, tools: Tools) -> TrialSpec:
    """Return a copy of a trial's specification that runs the script under the requested debugging tools.

    Raises:
        UsageError: compute-sanitizer is not installed.
    """
    if tools.cuda:
        spec = replace(spec, env={**spec.env, **CUDA_ENV})
    if tools.sanitizer:
        found = find_tool("compute-sanitizer")
        if found is None:
            raise UsageError(
                "compute-sanitizer is not on this machine",
                remedy="install NVIDIA's CUDA toolkit, or leave --sanitizer out",
            )
        spec = replace(spec, under=(found, "--tool", tools.sanitizer, "--target-processes", "all"))
    return spec


def findings_of(record: TrialRecord, debug: Debug) -> list[str]:
    """Return sentences about the cause of a trial's failure, the most informative first."""
    found = [debug.autopsy.sentence] if debug.autopsy.sentence else []
    if record.outcome is Outcome.HANG:
        found += sentences(record.stack)
    if not found and (dump := parse_fatal_dump(record.stderr)) is not None and dump.current is not None:
        found += [_guilty(frame) for frame in dump.current.frames[:1]]
    elif not found and (traceback := final_traceback(record.stderr)) is not None:
        found += [_guilty(frame) for frame in traceback.frames[:1]]
    return [*debug.on_gpu, *found, *_of_sanitizer(record.stdout)]


def _guilty(frame: Frame) -> str:
    return f"guilty frame: {replace(frame, file=frame.file.rpartition('/')[2])}"


def _of_sanitizer(stdout: str) -> list[str]:
    """Return the first error that compute-sanitizer reports in a trial's output.

    The result is a list with one sentence, or an empty list.
    """
    marked = [line for line in stdout.splitlines() if line.startswith(_SANITIZER_MARK.strip())]
    lines = [line.removeprefix(_SANITIZER_MARK).strip() for line in marked]
    for i, line in enumerate(lines):
        if _SANITIZER_FINDING.match(line):
            return [f"compute-sanitizer: {'; '.join(part for part in lines[i : i + _SHOWN] if part)}"]
    return []


def _kept(record: TrialRecord, debug: Debug, folder: Path, *, shown: bool, trials: int) -> Diagnosis:
    for path in debug.keep.iterdir():
        path.rename(folder / path.name)
    debug.keep.rmdir()
    texts = {"stdout.txt": record.stdout, "stderr.txt": record.stderr, "stack.txt": record.stack}
    for name, text in texts.items():
        if text:
            (folder / name).write_text(text, "utf-8", errors="backslashreplace")
    findings = findings_of(record, debug)
    document = {
        "combination": record.combination.as_dict(),
        "lock": record.lock_hash,
        "shown": shown,
        "trials": trials,
        "outcome": str(record.outcome),
        "detail": record.detail,
        "signature": shown_signature(record.signature),
        "hash_seed": record.hash_seed,
        "findings": findings,
        "notes": debug.notes,
    }
    (folder / "diagnosis.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
    files = tuple(sorted(path.name for path in folder.iterdir()))
    return Diagnosis(record, shown, trials, tuple(findings), tuple(debug.notes), folder, files)
