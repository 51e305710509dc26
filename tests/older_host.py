"""Runs a command as under an older Python or kernel: `python -m tests.older_host names|calls COMMAND…`.

With `names`, every Python that the command starts with its site packages lacks the functions that CPython
has only where it was built on a new glibc and new kernel headers; conda's lacks them on any host. With
`calls`, the kernel answers ENOSYS to the system calls that Linux 4.18 does not know (RHEL and Rocky 8), and
to `memfd_create`, which some sandboxes refuse.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
import tempfile
from pathlib import Path

NAMES = ("memfd_create", "pidfd_open")
"""Functions of `os` that a Python may lack that was built on glibc 2.17 or kernel headers before 5.3."""

_FIRST_UNKNOWN = 424  # `pidfd_send_signal` of Linux 5.1; 387 to 423 are unused on 64-bit architectures
_MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD, _IF_AT_LEAST, _IF_EQUAL, _RETURN = 0x20, 0x35, 0x15, 0x06  # opcodes of classic BPF
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


class _Filter(ctypes.Structure):
    """`struct sock_fprog`: a program of classic BPF."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def remove_names(folder: Path) -> None:
    """Let the Pythons that this process starts delete `NAMES` when they begin."""
    gone = "".join(f"if hasattr(os, '{name}'): del os.{name}\n" for name in NAMES)
    (folder / "sitecustomize.py").write_text(f"import os\n{gone}")
    os.environ["PYTHONPATH"] = str(folder)


def refuse_calls() -> None:
    """Let new system calls of this process, and of all that it starts, fail with ENOSYS."""
    steps = (
        (_LOAD, 0, 0, 0),  # the number of the call
        (_IF_AT_LEAST, 2, 0, _FIRST_UNKNOWN),
        (_IF_EQUAL, 1, 0, _MEMFD_CREATE[platform.machine()]),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    )
    program = b"".join(struct.pack("HBBI", *step) for step in steps)
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
    filter_ = _Filter(len(steps), program)
    for option, value, pointer in (
        (_PR_SET_NO_NEW_PRIVS, 1, None),
        (_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(filter_)),
    ):
        if prctl(option, value, pointer, 0, 0):
            raise OSError(ctypes.get_errno(), "the kernel takes no filter of system calls")


def main() -> None:
    """Run the command in the imitated surrounding."""
    kind, *command = sys.argv[1:]
    if kind == "names":
        remove_names(Path(tempfile.mkdtemp(prefix="older-host-")))
    elif kind == "calls":
        refuse_calls()
    else:
        sys.exit(__doc__)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
