"""`bisect-env shell`: a shell, or one command, in the environment of a combination."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import typer

from bisect_env.answers.untrusted import command_line
from bisect_env.cli.asking import Flags
from bisect_env.cli.commands import with_groups
from bisect_env.cli.options import QUESTION, AtOption, ExecutionOptions, TargetArgument
from bisect_env.cli.output import say
from bisect_env.cli.providing import open_provider
from bisect_env.cli.target import find_target
from bisect_env.cli.views import PlainView
from bisect_env.cli.work import environment_of
from bisect_env.engine.opening import expand_as_known
from bisect_env.engine.single import look_up
from bisect_env.errors import UsageError
from bisect_env.storage.store import Store
from bisect_env.trials.workdir import DEFAULT_PATH, child_path, own_bin, work_dir

_WITHOUT = ("workers", "devices", "scheduler", "scheduler_file", "cache_size")


@with_groups(without=_WITHOUT, panel=QUESTION)
def shell(
    words: TargetArgument = None,
    *,
    at: AtOption = None,
    flags: Flags,
    where: ExecutionOptions,
) -> None:
    """Open a shell in the environment of a combination, in a fresh directory with the trial's files.

    A command after `--` is run instead of a shell: `-- python -c '…'`. It does not count as a trial. The exit
    code is that of the shell or of the command.
    """
    words = list(words or ())
    behind = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    asked = words[: len(words) - len(behind)]
    # With `-p`, the words after `--` are the command of the question.
    target = find_target(words if flags.asks else asked, flags, db=where.db)
    matrix = target.matrix
    with Store.open(where.db) as store:
        provider = open_provider(matrix, where)
        expansion = expand_as_known(matrix, store, provider)
        single = look_up(expansion, at, store=store, provider=provider, notify=PlainView(sys.stderr))
    if image := single.lock.image:
        raise UsageError(
            f"{single.combination} runs in a container, and this command opens shells on the host alone",
            remedy=f"`{command_line('podman', 'run', '--rm', '-it', image, 'sh')}`, or docker in its place",
        )
    prefix = environment_of(matrix, single.lock, provider)
    try:
        program = ([] if flags.asks else behind) or [os.environ.get("SHELL") or "/bin/sh"]
        with work_dir(matrix.files) as directory:
            env = shell_env(os.environ, prefix.path, matrix.environment(single.combination))
            say(
                f"{single.combination}\n{prefix.path} is first on PATH (shared, and not to be written to)\n"
                f"a trial would run: {' '.join(matrix.command(single.combination))}",
                sys.stderr,
            )
            code = _run(program, directory.work, env)
    finally:
        prefix.release()
    # Shells report the end by a signal as 128 plus its number.
    raise typer.Exit(code if code >= 0 else 128 - code)


def _run(program: list[str], folder: Path, env: Mapping[str, str]) -> int:
    # Ctrl-C is meant for the program in the shell.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return subprocess.run(
            program,
            cwd=folder,
            env=env,
            check=False,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ).returncode
    except OSError as error:
        raise UsageError(
            f"{program[0]} cannot be run: {error.strerror}", remedy="name a command after `--`"
        ) from None


def shell_env(outer: Mapping[str, str], prefix: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a shell in which the programs of `prefix` come first.

    The directory of this program's own commands is removed from `PATH`, so that `pip` cannot change them.
    """
    # `cli.main` set PYTHONSAFEPATH; the user's programs may import from their own directory, as trials may.
    left_out = ("PYTHONHOME", "PYTHONPATH", "PYTHONSAFEPATH")
    env = {name: value for name, value in outer.items() if name not in left_out}
    # Keep `pip install` from changing the Python of this program or of the system.
    env["PATH"] = child_path(env.get("PATH", DEFAULT_PATH), prefix / "bin", own_bin())
    env.setdefault("PIP_REQUIRE_VIRTUALENV", "1")
    is_conda = (prefix / "conda-meta").is_dir()
    env.pop("CONDA_PREFIX" if not is_conda else "VIRTUAL_ENV", None)
    env["CONDA_PREFIX" if is_conda else "VIRTUAL_ENV"] = str(prefix)
    return {**env, **extra, "BISECT_ENV_PREFIX": str(prefix)}
