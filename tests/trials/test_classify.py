"""Rules against exit records, with text as CPython, glibc and the CUDA libraries print it."""

# ruff: noqa: E501 - other programs' output

from __future__ import annotations

import errno
import signal
import sys
import time
import traceback as stdlib_traceback
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_env.trials import classify as classify_module
from bisect_env.trials.classify import RULES, ExitRecord, classify
from bisect_env.trials.gpu_errors import CUDA_ERRORS, find_cuda_error
from bisect_env.trials.harness_marks import Marks
from bisect_env.trials.records import Outcome, Phase
from bisect_env.trials.signature import signature
from bisect_env.trials.tracebacks import final_traceback, parse_tracebacks, without_groups

ABORT_IN_CUDA = """\
terminate called after throwing an instance of 'c10::Error'
  what():  CUDA error: an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
Exception raised from c10_cuda_check_implementation at ../c10/cuda/CUDAException.cpp:44 (most recent call first):
Fatal Python error: Aborted

Thread 0x00007f3d4effd640 (most recent call first):
  File "/opt/lib/python3.11/threading.py", line 320 in wait
""" + "\n".join(
    f"Thread 0x00007f3d4eff{i:04x} (most recent call first):\n  <no Python frame>" for i in range(60)
)

FORKED = """\
Traceback (most recent call last):
  File "/w/main.py", line 9, in <module>
    work()
  File "/p/lib/python3.11/site-packages/torch/cuda/__init__.py", line 305, in _lazy_init
    raise RuntimeError(
RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use \
the 'spawn' start method
"""

CUPY = """\
Traceback (most recent call last):
  File "/w/main.py", line 4, in <module>
    cupy.cuda.Device().synchronize()
  File "cupy/cuda/device.pyx", line 210, in cupy.cuda.device.Device.synchronize
cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorIllegalAddress: an illegal memory access was encountered
"""

OUT_OF_MEMORY = """\
Traceback (most recent call last):
  File "/w/main.py", line 2, in <module>
    torch.empty(10**13, device="cuda")
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9313.23 GiB. GPU 0 has a total capacity of 79.11 GiB
"""

RMM = """\
Traceback (most recent call last):
  File "/w/main.py", line 2, in <module>
    rmm.DeviceBuffer(size=10**13)
MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /p/include/rmm/mr/cuda_memory_resource.hpp:62: \
cudaErrorMemoryAllocation out of memory
"""

HANDLED = """\
Traceback (most recent call last):
  File "/w/main.py", line 2, in probe
    torch.empty(10**13, device="cuda")
torch.OutOfMemoryError: CUDA out of memory.
falling back to the CPU
Traceback (most recent call last):
  File "/w/main.py", line 9, in <module>
    check()
ValueError: wrong sum
"""

IMPORT = """\
Traceback (most recent call last):
  File "/w/main.py", line 1, in <module>
    import numba
  File "/p/lib/python3.11/site-packages/numba/__init__.py", line 55, in <module>
    _ensure_critical_deps()
  File "/p/lib/python3.11/site-packages/numba/__init__.py", line 42, in _ensure_critical_deps
    raise SystemError(msg)
SystemError: Numba needs NumPy 1.26 or less
"""

UNDEFINED = """\
Traceback (most recent call last):
  File "/w/main.py", line 3, in <module>
    load()
  File "/w/main.py", line 2, in load
    ctypes.CDLL("./libx.so")
OSError: ./libx.so: undefined symbol: gone_in_2_0
"""

COVERAGE = """\
Traceback (most recent call last):
  File "/p/bin/coverage", line 8, in <module>
    sys.exit(main())
  File "/p/lib/python3.11/site-packages/coverage/execfile.py", line 211, in run
    exec(code, main_mod.__dict__)
  File "/w/main.py", line 1, in <module>
    raise ValueError("body")
ValueError: body
"""

RUN_AS_MODULE = """\
Traceback (most recent call last):
  File "/usr/lib/python3.8/runpy.py", line 194, in _run_module_as_main
    return _run_code(code, main_globals, None,
  File "/usr/lib/python3.8/runpy.py", line 87, in _run_code
    exec(code, run_globals)
  File "/w/tool.py", line 1, in <module>
    1 / 0
ZeroDivisionError: division by zero
"""

CHAINED = """\
Traceback (most recent call last):
  File "/w/main.py", line 2, in <module>
    open("x")
FileNotFoundError: [Errno 2] No such file or directory: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/w/main.py", line 4, in <module>
    raise KeyError("y")
KeyError: 'y'
"""

CP_FULL = "OSError: x\n" * 3 + "cp: write error: No space left on device\n"

INOTIFY = """\
Traceback (most recent call last):
  File "/w/main.py", line 7, in <module>
    observer.start()
OSError: [Errno 28] inotify watch limit reached
"""

LOGGED = """\
Traceback (most recent call last):
  File "/w/main.py", line 7, in <module>
    main()
ValueError: real
--- Logging error ---
Traceback (most recent call last):
  File "/usr/lib/python3.11/logging/__init__.py", line 377, in getMessage
    msg = msg % self.args
TypeError: %d format: a real number is required, not str
Call stack:
  File "/w/main.py", line 3, in close
    log.info("%d closed", name)
Message: '%d closed'
Arguments: ('db',)
"""

FORGOTTEN = """\
Traceback (most recent call last):
  File "/w/main.py", line 7, in <module>
    asyncio.run(main())
ValueError: real
Task exception was never retrieved
future: <Task finished name='Task-2' coro=<bad() done, defined at /w/main.py:3> exception=KeyError('task')>
Traceback (most recent call last):
  File "/w/main.py", line 3, in bad
    raise KeyError("task")
KeyError: 'task'
"""

ASIDE = """\
Traceback (most recent call last):
  File "/w/main.py", line 7, in <module>
    main()
ValueError: real
Exception ignored in: <function X.__del__ at 0x7f3>
Traceback (most recent call last):
  File "/w/main.py", line 3, in __del__
    import late
ImportError: sys.meta_path is None, Python is likely shutting down
"""

PROGRESS = """\
 50%|█████     | 1/2 [00:00<00:00, 10.0it/s]Traceback (most recent call last):
  File "/w/main.py", line 2, in <module>
    import gone
ModuleNotFoundError: No module named 'gone'
"""

IMPORTED_SYNTAX = """\
Traceback (most recent call last):
  File "/w/main.py", line 1, in <module>
    import modern
  File "/p/lib/python3.6/site-packages/modern.py", line 1
    def f(x, /): pass
             ^
SyntaxError: invalid syntax
"""


def failed(stderr: str = "", code: int = 1, **changes: object) -> ExitRecord:
    return ExitRecord(returncode=code, stderr=stderr, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("record", "outcome", "detail"),
    [
        (failed(code=0), Outcome.PASS, "exit code 0"),
        (failed(OUT_OF_MEMORY, code=0), Outcome.PASS, "exit code 0"),
        (failed(code=125), Outcome.SKIP, "125"),
        (failed(code=3), Outcome.EXIT_FAIL, "exit code 3"),
        (failed(code=124), Outcome.EXIT_FAIL, "exit code 124"),
        (failed(code=255), Outcome.EXIT_FAIL, "exit code 255"),
        (failed(code=139), Outcome.EXIT_FAIL, "SIGSEGV"),
        (failed(code=-11), Outcome.CRASH, "SIGSEGV"),
        (failed(code=-35), Outcome.CRASH, "signal 35"),
        (failed(code=-9), Outcome.KILLED_EXTERNAL, "SIGKILL"),
        (failed(code=-15), Outcome.KILLED_EXTERNAL, "SIGTERM"),
        (failed(code=-9, oom_kills=1), Outcome.HOST_OOM, "memory"),
        (failed(code=-9, oom_kills=1, peak=3_100_000_000), Outcome.HOST_OOM, "of which it had 3100 MB"),
        (failed(code=137, oom_kills=1), Outcome.HOST_OOM, "memory"),
        (failed(code=137), Outcome.EXIT_FAIL, "a shell reports SIGKILL so"),
        (failed(code=3, oom_kills=2), Outcome.EXIT_FAIL, "killed 2 processes for lack of memory meanwhile"),
        (failed(code=-11, oom_kills=1), Outcome.CRASH, "SIGSEGV"),
        (failed(code=-6, timed_out=True, killed_by_us=True, cpu_rate=0.0), Outcome.HANG, "idle"),
        (failed(code=-9, timed_out=True, killed_by_us=True, cpu_rate=1.9), Outcome.HANG, "busy-cpu"),
        (failed(code=-9, timed_out=True, killed_by_us=True, cpu_rate=1.0, gpu_rate=1.0), Outcome.HANG, "busy-gpu"),
        (failed(code=-9, timed_out=True, killed_by_us=True, cpu_rate=0.0, gpu_rate=0.0), Outcome.HANG, "idle"),
        (failed(code=0, timed_out=True, killed_by_us=True, cpu_rate=0.0), Outcome.HANG, "idle"),
        (failed(OUT_OF_MEMORY, code=1, timed_out=True, killed_by_us=True), Outcome.HANG, "not measured"),
        (
            ExitRecord(returncode=None, timed_out=True, killed_by_us=True, unended=1, cpu_rate=0.0),
            Outcome.HANG,
            "1 process cannot be killed",
        ),
        (failed("free(): invalid pointer\n", -6), Outcome.CRASH, "free(): invalid pointer"),
        (failed("python: a.c:3: f: Assertion `x > 0' failed.\n", -6), Outcome.CRASH, "Assertion `x > 0'"),
        (failed(ABORT_IN_CUDA, -6), Outcome.CUDA_FAULT, "700"),
        (failed(ABORT_IN_CUDA, -11), Outcome.CRASH, "SIGSEGV"),
        (failed(CUPY), Outcome.CUDA_FAULT, "700"),
        (failed(FORKED), Outcome.CUDA_INIT, "CUDA error 3"),
        (failed(OUT_OF_MEMORY), Outcome.CUDA_OOM, "CUDA error 2"),
        (failed(RMM), Outcome.CUDA_OOM, "CUDA error 2"),
        (failed(HANDLED), Outcome.EXIT_FAIL, "ValueError: wrong sum"),
        (failed("CUDA error: no kernel image is available for execution on the device"), Outcome.UNSUPPORTED, "209"),
        (failed("RuntimeError: Found no NVIDIA driver on your system."), Outcome.UNSUPPORTED, "100"),
        (failed("CUDA error: uncorrectable ECC error encountered"), Outcome.GPU_LOST, "214"),
        (failed("ggml: CUDA error 46\n", code=-6), Outcome.GPU_LOST, "46"),
        (failed(IMPORT), Outcome.IMPORT_ERROR, "SystemError: Numba needs"),
        (failed(UNDEFINED), Outcome.IMPORT_ERROR, "undefined symbol: gone_in_2_0"),
        (failed(PROGRESS), Outcome.IMPORT_ERROR, "ModuleNotFoundError: No module named 'gone'"),
        (failed(IMPORTED_SYNTAX), Outcome.IMPORT_ERROR, "SyntaxError"),
        (failed("/p/bin/python: No module named tool.sub\n"), Outcome.IMPORT_ERROR, "No module named tool.sub"),
        (failed("python: symbol lookup error: ./x.so: undefined symbol: f\n", 127), Outcome.IMPORT_ERROR, "symbol"),
        (failed(PROGRESS, code=3), Outcome.EXIT_FAIL, "exit code 3"),
        (failed(COVERAGE), Outcome.EXIT_FAIL, "ValueError: body"),
        (failed(RUN_AS_MODULE), Outcome.EXIT_FAIL, "ZeroDivisionError"),
        (failed(CHAINED), Outcome.EXIT_FAIL, "KeyError: 'y'"),
        (failed(ASIDE), Outcome.EXIT_FAIL, "ValueError: real"),
        (failed(LOGGED), Outcome.EXIT_FAIL, "ValueError: real"),
        (failed(FORGOTTEN), Outcome.EXIT_FAIL, "ValueError: real"),
        (failed(CP_FULL, disk_full="/data is full"), Outcome.DISK_FULL, "No space left on device: /data is full"),
        (failed(CP_FULL), Outcome.EXIT_FAIL, "exit code 1"),
        (failed(INOTIFY), Outcome.EXIT_FAIL, "OSError: [Errno 28] inotify"),
        (failed("cp: write error: Disk quota exceeded\n"), Outcome.DISK_FULL, "quota"),
        (failed("No space left on device\n" + CHAINED, disk_full="/data is full"), Outcome.EXIT_FAIL, "KeyError"),
        (failed(code=-15, oom_kills=1), Outcome.KILLED_EXTERNAL, "SIGTERM, not sent by us"),
        (failed(code=126), Outcome.NOT_RUNNABLE, "126"),
        (failed(code=127), Outcome.NOT_RUNNABLE, "127"),
        (failed("/p/bin/python: can't open file 'm.py': [Errno 2]\n", 2), Outcome.NOT_RUNNABLE, "m.py"),
        (failed('  File "m.py", line 1\n    def f(:\n          ^\nSyntaxError: x\n'), Outcome.NOT_RUNNABLE, "Syntax"),
        (ExitRecord(returncode=None, stage="exec", errno=errno.ENOENT), Outcome.NOT_RUNNABLE, "No such file"),
        (ExitRecord(returncode=None, stage="lookup"), Outcome.NOT_RUNNABLE, "command not found"),
        (ExitRecord(returncode=None, stage="exec", errno=errno.ENOMEM), Outcome.HARNESS_ERROR, "memory"),
        (ExitRecord(returncode=None, stage="chdir", errno=errno.ENOENT), Outcome.HARNESS_ERROR, "No such"),
        (failed(code=0, left_over=2), Outcome.PASS, "left 2 processes running"),
    ],
)  # fmt: skip
def test_rules(record: ExitRecord, outcome: Outcome, detail: str) -> None:
    found = classify(record)
    assert found.outcome is outcome, found
    assert detail in found.detail


@pytest.mark.parametrize("error", CUDA_ERRORS, ids=lambda error: error.runtime)
def test_every_cuda_error_is_known_by_name_number_and_text(error: object) -> None:
    for text in (
        f"x.cu:3: {error.runtime}: {error.text}",
        f"CUDA error: {error.text}",
        f"CUDA error {error.number}",
        f"CUDA runtime error code={error.number}(x)",
        f"CudaAPIError: [{error.number}] Call to cuMemcpyDtoH results in something",
        *([f"CuError: {error.driver}"] if error.driver else []),
    ):
        assert find_cuda_error(text) == error, text


def test_of_two_cuda_errors_the_first_counts() -> None:
    text = "cudaErrorInvalidValue\ncudaErrorIllegalAddress: x\ncudaErrorMemoryAllocation: y"
    assert find_cuda_error(text).number == 700  # type: ignore[union-attr]
    assert find_cuda_error("cudaErrorCudartUnloading: driver shutting down") is None
    assert find_cuda_error("an illegal memory access was encountered") is None


OUTPUT = st.one_of(
    st.text(),
    st.sampled_from(
        [ABORT_IN_CUDA, FORKED, HANDLED, IMPORT, CHAINED, ASIDE, PROGRESS, IMPORTED_SYNTAX]
    ).flatmap(lambda text: st.integers(0, len(text)).map(lambda cut: text[cut:] + text[:cut])),
)


RECORDS = st.builds(
    ExitRecord,
    returncode=st.none() | st.integers(-64, 255),
    stage=st.sampled_from(["", "", "", "setup", "chdir", "exec", "lookup"]),
    errno=st.integers(0, 130),
    timed_out=st.booleans(),
    killed_by_us=st.booleans(),
    cpu_rate=st.none() | st.floats(0, 64),
    gpu_rate=st.none() | st.floats(0, 1),
    xids=st.lists(st.sampled_from([13, 31, 79, 5]), max_size=2).map(tuple),
    marks=st.builds(Marks, phase=st.sampled_from(Phase), finished=st.booleans()),
    oom_kills=st.integers(0, 2),
    left_over=st.integers(0, 3),
    unended=st.integers(0, 2),
    stdout=OUTPUT,
    stderr=OUTPUT,
)


@given(RECORDS)
def test_every_record_has_an_answer_and_the_first_rule_wins(record: ExitRecord) -> None:
    found = classify(record)
    first = next((answer for rule in RULES if (answer := rule(record)) is not None), None)
    if first is not None:
        assert (found.outcome, found.phase, found.code) == (first.outcome, first.phase, first.code)
    if found.outcome is Outcome.PASS:
        assert record.returncode == 0
        assert not record.timed_out
    if found.outcome is Outcome.CRASH:
        assert record.signal not in (0, signal.SIGKILL, signal.SIGTERM)
        assert not record.killed_by_us
    assert "\n" not in found.detail


@pytest.mark.parametrize(
    "unit", ["CUDA ", "Traceback (most recent call last):\n", '  File "x", line 1, in f\n', "["]
)
def test_hostile_output_costs_no_time_to_speak_of(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    before = time.process_time()
    classify(failed(text))
    classify(failed(text, -6))
    assert time.process_time() - before < 10


def test_phases() -> None:
    assert classify(failed(IMPORT)).phase is Phase.IMPORT
    assert classify(failed(CHAINED)).phase is Phase.BODY
    assert classify(failed(code=127)).phase is Phase.START
    assert classify(failed(code=-11)).phase is Phase.UNKNOWN


GROUP = """\
working: 50%
  + Exception Group Traceback (most recent call last):
  |   File "/w/main.py", line 8, in <module>
  |     asyncio.run(main())
  |            ^^^^^^^^^^^^
  |   File "/p/lib/python3.12/asyncio/taskgroups.py", line 145, in __aexit__
  |     raise me from None
  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Exception Group Traceback (most recent call last):
    |   File "/w/main.py", line 5, in nested
    |     raise group
    | ExceptionGroup: one more (1 sub-exception)
    +-+---------------- 1 ----------------
      | Traceback (most recent call last):
      |   File "/w/main.py", line 2, in inner
      |     raise ValueError("deep")
      | ValueError: deep
second line, which Python 3.11 prints like this
      +------------------------------------
    +---------------- 2 ----------------
    | KeyError: 2
    +------------------------------------
"""


def test_a_group_of_exceptions_is_its_first_failure() -> None:
    """`asyncio.TaskGroup` always fails in the same words at the same place."""
    traceback = final_traceback(GROUP)
    assert traceback is not None
    assert (traceback.exception, traceback.message) == ("ValueError", "deep")
    assert [frame.function for frame in traceback.frames] == ["inner", "nested", "__aexit__", "<module>"]
    assert traceback.text.endswith("deep\nsecond line, which Python 3.11 prints like this")
    assert classify(failed(stderr=GROUP)).detail == "ValueError: deep"
    # What is printed afterwards is no part of it.
    after = GROUP + HANDLED
    assert classify(failed(stderr=after)).detail == "ValueError: wrong sum"
    assert len(parse_tracebacks(after)) == 3
    without = GROUP.replace("      | Traceback (most recent call last):\n", "")
    assert final_traceback(without).message == "deep"  # type: ignore[union-attr]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups came with 3.11")
@given(st.lists(st.text(alphabet="ab |+-\n1", max_size=12), min_size=1, max_size=4), st.integers(0, 2))
def test_groups_as_python_prints_them(messages: list[str], depth: int) -> None:
    failures: list[Exception] = [ValueError(f"m{message}") for message in messages]
    group = ExceptionGroup("g", failures)
    for _ in range(depth):
        group = ExceptionGroup("h", [group])
    try:
        raise group
    except ExceptionGroup:
        text = stdlib_traceback.format_exc()
    found = final_traceback(text)
    assert found is not None
    assert (found.exception, found.message.rstrip()) == (
        "ValueError",
        f"m{messages[0]}".split("\n")[0].rstrip(),
    )
    assert found.frames[0].function == "test_groups_as_python_prints_them"


@given(st.lists(st.sampled_from([*GROUP.splitlines(), "x", ""]), max_size=30))
def test_pieces_of_groups_break_nothing(lines: list[str]) -> None:
    parse_tracebacks("\n".join(lines))
    assert without_groups([line for line in lines if "Group" not in line]) == [
        line for line in lines if "Group" not in line
    ]


@pytest.mark.parametrize(
    "message",
    [
        "Non-UTF-8 code starting with '\\xe9' in file /w/main.py on line 1, but no encoding declared; see",
        "Non-ASCII character '\\xe9' in file /w/main.py on line 1, but no encoding declared; see",
        "encoding problem: foo",
    ],
)
def test_a_script_that_cannot_be_read_is_not_runnable(message: str) -> None:
    """Python gives no place in it, and would say the same of it in every combination."""
    found = classify(failed(stderr=f"SyntaxError: {message}\n"))
    assert (found.outcome, found.detail) == (Outcome.NOT_RUNNABLE, f"the script: SyntaxError: {message}")
    # Another language's interpreter may fail in such words over what it runs.
    assert classify(failed(stderr="SyntaxError: Unexpected token\n")).outcome is Outcome.EXIT_FAIL


def test_words_in_a_line_of_code_are_no_failure() -> None:
    stderr = """\
Traceback (most recent call last):
  File "/w/main.py", line 2, in <module>
    assert "CUDA error: an illegal memory access was encountered" in text
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
AssertionError
"""
    assert classify(failed(stderr=stderr)).outcome is Outcome.EXIT_FAIL
    message = stderr + "    CUDA error: an illegal memory access was encountered\n"
    assert classify(failed(stderr=message)).outcome is Outcome.CUDA_FAULT


def test_a_full_disk_that_was_logged_and_handled_long_before_the_end_is_no_cause() -> None:
    stderr = """\
Traceback (most recent call last):
  File "/w/main.py", line 2, in <module>
    save()
OSError: [Errno 28] No space left on device: '/data/x'
"""
    assert classify(failed(stderr=stderr, disk_full="/data is full")).outcome is Outcome.DISK_FULL
    went_on = stderr + "".join(f"line {number}\n" for number in range(100))
    assert classify(failed(stderr=went_on, disk_full="/data is full")).outcome is Outcome.EXIT_FAIL


@pytest.mark.parametrize("name", ["main.<locals>.BrokenError", "demo.Größe"])
def test_exceptions_with_any_name_are_named(name: str) -> None:
    stderr = f"""\
Traceback (most recent call last):
  File "/w/main.py", line 2, in main
    raise error
{name}: it broke
"""
    traceback = failed(stderr=stderr).traceback
    assert traceback is not None
    assert (traceback.exception, traceback.message) == (name, "it broke")


def test_a_full_disk_does_not_explain_an_error_of_a_terminal() -> None:
    """Many machines have a file system that is nearly full, and a pty whose other end closed gives EIO."""
    stderr = "OSError: [Errno 5] Input/output error\n"
    assert classify(failed(stderr=stderr, disk_full="/data is full")).outcome is Outcome.EXIT_FAIL
    assert classify(failed(stderr=stderr, disk_error="Input/output error")).outcome is Outcome.DISK_FULL


def test_a_full_disk_behind_the_final_exception() -> None:
    stderr = """\
Traceback (most recent call last):
  File "/w/main.py", line 2, in <module>
    save()
OSError: [Errno 28] No space left on device

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/w/main.py", line 4, in <module>
    raise RuntimeError("cannot save") from error
RuntimeError: cannot save
"""
    assert classify(failed(stderr=stderr, disk_full="/data is full")).outcome is Outcome.DISK_FULL
    handled = stderr.replace(
        "The above exception was the direct cause of the following exception:", "went on"
    )
    assert classify(failed(stderr=handled, disk_full="/data is full")).outcome is Outcome.EXIT_FAIL


@pytest.mark.parametrize(
    "record",
    [
        failed(FORKED),
        failed("no traceback"),
        failed(ABORT_IN_CUDA, -signal.SIGABRT),
        failed("free(): invalid pointer\nFatal Python error: Aborted\n", -signal.SIGABRT),
        ExitRecord(None, timed_out=True, killed_by_us=True, stderr=ABORT_IN_CUDA),
    ],
)
def test_output_is_parsed_at_most_once_for_all_rules_and_the_signature(
    record: ExitRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: Counter[str] = Counter()

    def counted(name: str) -> None:
        parse = getattr(classify_module, name)

        def count(text: str) -> object:
            parsed[name] += 1
            return parse(text)

        monkeypatch.setattr(classify_module, name, count)

    for name in ("final_traceback", "parse_fatal_dump"):
        counted(name)
    for rule in RULES:
        rule(record)
    found = classify(record)
    assert signature(record, found)
    assert record.phase is found.phase
    assert parsed
    assert set(parsed.values()) == {1}
