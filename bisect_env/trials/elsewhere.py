"""Lets a supervisor end a container, which is no child of the client that started it.

Loaded by the supervisor from this file: nothing but the standard library.
"""

import fcntl
import os
import signal
import time
from typing import Any

PATIENCE = 10.0
"""Seconds for each command of the engine."""


class ContainerHold:
    """The container; see `ContainerCommands` in `launch.py`.

    Args:
        commands: Of the engine, by what they do, and the file to hold.
        env: Their environment.
    """

    def __init__(self, commands: dict[str, Any], env: dict[str, str]) -> None:
        self._commands = commands
        self._env = env
        # Never closed: the kernel gives the lock back when this process ends, however it ends.
        self._held = os.open(commands["hold"], os.O_RDONLY)
        fcntl.flock(self._held, fcntl.LOCK_EX)
        self._is_sure = True
        self.state = ""

    def close(self, *, kill: bool) -> None:
        """End it, look at how it ended, and remove it."""
        if kill:
            # It fails when the engine is still making the container, and when that has ended by itself.
            self._is_sure = self.call("kill")[0] == 0
        self.state = self.call("state")[1]
        self._is_sure &= self.call("remove")[0] == 0

    def close_again(self) -> None:
        """Once no client can make the container any more, see that there is none."""
        if not self._is_sure:
            self.call("remove")

    def call(self, name: str) -> tuple[int | None, str]:
        """Exit code (None when it took too long) and output of one of the commands."""
        argv = self._commands[name]
        output = os.memfd_create("answer")
        try:
            actions = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ]
            pid = os.posix_spawn(argv[0], argv, self._env, file_actions=actions, setsid=True)
            code = self._wait(pid)
            os.lseek(output, 0, os.SEEK_SET)
            return code, os.read(output, 1_000_000).decode("utf-8", "replace")
        except OSError:  # the engine was uninstalled meanwhile
            return 127, ""
        finally:
            os.close(output)

    def _wait(self, pid: int) -> int | None:
        deadline = time.monotonic() + PATIENCE
        pause = 0.002
        while time.monotonic() < deadline:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(pause)
            pause = min(pause * 2, 0.02)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return None
