from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from bisect_env.trials import stacks
from bisect_env.trials.cores import (
    Autopsy,
    called_from,
    core_names,
    find_core,
    guilty_frame,
    of_cuda_gdb,
    of_gdb,
    under_gdb,
)
from bisect_env.trials.tracebacks import Frame

HANDLED = """\
#0  __pthread_kill_implementation (threadid=<optimized out>, signo=11, no_tid=0) at ./nptl/pthread_kill.c:44
#1  0x00007f1ad1c59fb2 in __GI_raise (sig=11) at ../sysdeps/posix/raise.c:26
#2  0x00007f1ad1c59fb2 in faulthandler_fatal_error (signum=11) at ./Modules/faulthandler.c:366
#3  <signal handler called>
#4  0x00007f1acc000ba0 in cuml::fit<float, int>(raft::handle_t const&, float*) () from /p/lib/libcuml++.so
#5  0x00007f1acc000ba1 in __pyx_pw_4cuml_fit () from /p/cuml/fit.so
"""
ABORTED = """\
#0  __pthread_kill_implementation (threadid=1, signo=6, no_tid=0) at ./nptl/pthread_kill.c:44
#1  0x00007f2bb4a5afb2 in __GI_raise (sig=6) at ../sysdeps/posix/raise.c:26
#2  0x00007f2bb4a45472 in __GI_abort () at ./stdlib/abort.c:79
#3  0x00007f2bb4a9a430 in __libc_message (action=do_abort, fmt=0x7f) at ../sysdeps/posix/libc_fatal.c:155
#4  0x00007f2bb4aaf83a in malloc_printerr (str=0x7f) at ./malloc/malloc.c:5660
#5  0x00007f2bb4ab18e4 in _int_free (av=0x7f, p=0x5, have_lock=0) at ./malloc/malloc.c:4584
#6  0x00007f2bb4ab4e8f in __GI___libc_free (mem=0x5) at ./malloc/malloc.c:3398
#7  0x00005634d2e0115e in spoil (buffer=0x1) at spoil.c:7
"""


@pytest.mark.parametrize(
    ("backtrace", "frame"),
    [
        (HANDLED, "cuml::fit<float, int>(raft::handle_t const&, float*) (/p/lib/libcuml++.so)"),
        (ABORTED, "spoil (spoil.c:7)"),
        ("#0  0x00007f in ?? () from /lib/libffi.so.8\n", "?? (/lib/libffi.so.8)"),
        ("#0  0x00007f in ?? ()\n#1  0x00007e in ?? ()\n", ""),
        ("No stack.\n", ""),
        ("", ""),
    ],
)
def test_the_guilty_frame_is_below_how_processes_die(backtrace: str, frame: str) -> None:
    assert guilty_frame(backtrace) == frame


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
def test_the_guilty_frame_of_an_abort_is_below_the_libraries_that_abort() -> None:
    debugger = under_gdb()
    assert debugger is not None
    code = "import ctypes; ctypes.CDLL('libstdc++.so.6')._ZSt17__throw_bad_allocv()"
    said = stacks.run_tool([*debugger, sys.executable, "-c", code], 60.0)
    guilty = of_gdb(said.text).guilty
    assert "libstdc++" in said.text
    assert "libffi" in guilty or guilty.startswith("ffi_call "), guilty


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("core", ["core.7", "core"]),
        ("/var/cores/%e.%p.%t", ["/var/cores/*.7.*.7", "/var/cores/*.7.*"]),
        ("core-%%-%P", ["core-%-7.7", "core-%-7"]),
    ],
)
def test_names_of_cores(pattern: str, names: list[str]) -> None:
    assert core_names(pattern, 7) == names


def test_a_core_is_found_where_the_kernel_says(tmp_path: Path) -> None:
    assert find_core(tmp_path, 7, 0, "core")[0] is None
    (tmp_path / "core").touch()
    assert find_core(tmp_path, 7, 0, "core") == (tmp_path / "core", "")
    (tmp_path / "core.7").touch()
    assert find_core(tmp_path, 7, 0, "core") == (tmp_path / "core.7", "")
    elsewhere = tmp_path / "cores"
    elsewhere.mkdir()
    (elsewhere / "python.7").touch()
    assert find_core(tmp_path, 7, 0, f"{elsewhere}/%e.%p") == (elsewhere / "python.7", "")


def test_a_core_of_another_process_is_left_alone(tmp_path: Path) -> None:
    foreign = tmp_path / "cores-7"
    work = tmp_path / "work"
    foreign.mkdir()
    work.mkdir()
    (foreign / "core-firefox-4711").touch()
    core, why = find_core(work, 7, 0, f"{foreign}/core-%e-%t")
    assert core is None
    assert "%p" in why
    (foreign / "core-python-7").touch()
    os.utime(foreign / "core-python-7", (1000, 1000))  # the id was used before
    assert find_core(work, 7, 2000, f"{foreign}/core-%e-%p")[0] is None
    assert find_core(work, 7, 900, f"{foreign}/core-%e-%p")[0] == foreign / "core-python-7"


def test_why_there_is_none(tmp_path: Path) -> None:
    assert "ulimit" in find_core(tmp_path, 7, 0, "core")[1]
    assert "'/usr/share/apport/apport'" in find_core(tmp_path, 7, 0, "|/usr/share/apport/apport %p %s")[1]


def test_the_users_own_frame_is_named_beside_a_librarys() -> None:
    def frame(function: str, file: str, *, native: bool = False) -> Frame:
        return Frame(function, file, 1, native=native)

    inner, library = (
        frame("strlen", "libc.so", native=True),
        frame("string_at", "/p/lib/python3.11/c/a.py"),
    )
    packaged, own = frame("fit", "/p/lib/python3.11/site-packages/cuml/f.py"), frame("guilty", "/w/main.py")
    outer = frame("<module>", "/w/main.py")
    called = called_from(stacks.Thread(1, "", (inner, library, packaged, own, outer)))
    assert called == f"{library}, from {own}"
    assert called_from(stacks.Thread(1, "", (inner, own, outer))) == str(own)
    assert called_from(stacks.Thread(1, "", (library,))) == str(library)
    assert called_from(stacks.Thread(1, "", (inner,))) == ""


def test_the_sentence() -> None:
    assert Autopsy().sentence == ""
    assert Autopsy(python="f (a.py:1)").sentence == "guilty frame: f (a.py:1)"
    assert Autopsy("x (l.so)", "f (a.py:1)").sentence == "guilty frame: x (l.so), called from f (a.py:1)"


def test_what_cuda_gdb_says_of_a_core_of_the_gpu() -> None:
    light = (
        "Opening GPU coredump: gpu-560.nvcudmp\n\nCUDA Exception: Warp Illegal Address\n"
        "The exception was triggered at PC 0x7fd3a37ac240  store\n"
    )
    assert of_cuda_gdb(light) == "on the GPU: Warp Illegal Address in store"
    whole = "CUDA Exception: Warp Illegal Address\n#0  0x00007f in store<<<(1,1,1),(32,1,1)>>> ()\n"
    assert of_cuda_gdb(whole) == "on the GPU: Warp Illegal Address in store<<<(1,1,1),(32,1,1)>>> ()"
    assert of_cuda_gdb("CUDA Exception: Warp Assert\n") == "on the GPU: Warp Assert"
    assert of_cuda_gdb("no such file") == ""
