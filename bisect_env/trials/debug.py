"""What is done around a trial that is run to be looked at, and never counted."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from bisect_env.trials.cores import Autopsy, find_core, read_core, read_gpu_core
from bisect_env.trials.exit_record import ExitRecord
from bisect_env.trials.stacks import live_stacks, with_gdb
from bisect_env.trials.tools import find_tool, go_on, is_stopped


@dataclass(slots=True)
class Debug:
    """Looks at one trial, and keeps what it finds in a directory.

    Attributes:
        keep: The directory.
        autopsy: What the core told, once there was one.
        on_gpu: What cores of the GPU told, in sentences.
        notes: What could not be done, and why.
    """

    keep: Path
    autopsy: Autopsy = field(default_factory=Autopsy)
    on_gpu: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def on_deadline(self, pid: int) -> str:
        """The stacks of a hanging process; gdb's are kept as a file beside py-spy's."""
        text = live_stacks(pid)
        gdb = find_tool("gdb")
        if gdb is None:
            self.notes.append("gdb is not on this machine: no native stacks by it")
        elif "by gdb:" not in text:
            stopped = is_stopped(pid)
            said = with_gdb(gdb, pid)
            if not stopped:
                go_on(pid)
            if said.ok:
                (self.keep / "gdb.txt").write_text(said.text, "utf-8")
            else:
                self.notes.append(f"gdb: {said.why}")
        return text

    def after(self, record: ExitRecord, work: Path, program: str) -> None:
        """Look for what a process that was ended by a signal has left in its directory."""
        for path in work.glob("*.nvcudmp"):
            kept = self.keep / path.name
            shutil.move(path, kept)
            text, sentence = read_gpu_core(kept)
            if text:
                (self.keep / "gpu.txt").write_text(text, "utf-8")
            if sentence:
                self.on_gpu.append(sentence)
        if not record.signal or record.killed_by_us:
            return
        core, why = find_core(work, record.pid)
        if core is None:
            self.notes.append(f"no core file: {why}")
            return
        self.autopsy = read_core(core, program)
        kept = self.keep / "core"
        shutil.move(core, kept)
        (self.keep / "core.txt").write_text(self.autopsy.text, "utf-8")
