"""Runs the debugging tools of this host with a time limit, and keeps what they say."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bisect_env.containers.engine import ask

TOOL_LIMIT = 20.0
"""Seconds for one tool; the symbols of a CUDA process take gdb some of them."""
_KEPT = 200_000
"""Characters kept of what a tool prints."""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """The output of a tool.

    Attributes:
        ok: Whether it ended with success.
        text: Its standard output, the end cut off when there is too much.
        why: Why it failed, one line, or "".
    """

    ok: bool
    text: str
    why: str = ""


@functools.cache
def find_tool(name: str) -> str | None:
    """The path of a tool, beside our own interpreter or on PATH; None if there is none."""
    beside = Path(sys.executable).parent / name
    return str(beside) if os.access(beside, os.X_OK) else shutil.which(name)


def run_tool(argv: Sequence[str], limit: float = TOOL_LIMIT) -> ToolOutput:
    """Run a tool to its end, or to the limit.

    Args:
        argv: What to run.
        limit: Seconds.
    """
    answer = ask(argv, limit)
    if answer.returncode is None:
        return ToolOutput(False, "", f"no answer in {limit:.0f} s")
    lines = [line for line in answer.stderr.splitlines() if line.strip()]
    # A tool says what is wrong first; a traceback says it last.
    told = lines[-1] if lines and lines[0].startswith("Traceback (") else next(iter(lines), "")
    why = "" if answer.ok else (told or f"exit code {answer.returncode}")
    return ToolOutput(answer.ok, answer.stdout[:_KEPT].replace("\0", "\ufffd"), why)


def unwinds_natively() -> bool:
    """Whether py-spy sees native frames on this architecture."""
    return platform.machine() in ("x86_64", "AMD64")


def is_stopped(pid: int) -> bool:
    """Whether a process has been stopped by a signal."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def go_on(pid: int) -> None:
    """Wake a process that a tool, ended in the middle, has left stopped."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGCONT)
