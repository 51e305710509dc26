"""`bisect-env shell`: a shell, or one command, in the environment of a combination."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from bisect_env.cli.options import AtOption, CacheOption, DatabaseOption, MatrixArgument, OfflineOption
from bisect_env.cli.output import say, tell
from bisect_env.trials.workdir import DEFAULT_PATH, child_path, own_bin


def shell(
    matrix: MatrixArgument,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="A command to run in place of a shell, after `--`: `-- python -c '…'`."),
    ] = None,
    at: AtOption = None,
    db: DatabaseOption = None,
    cache: CacheOption = None,
    offline: OfflineOption = None,
) -> None:
    """Open a shell in the environment of a combination, in a fresh directory with the trial's files.

    What is run there is no trial. Ends as the shell ends.
    """
    from bisect_env.cli.options import ExecutionOptions
    from bisect_env.engine.evidence import allowed_sources, trial_files
    from bisect_env.engine.single import look_up
    from bisect_env.environments.prefix import ensure_prefix
    from bisect_env.errors import UsageError
    from bisect_env.matrix.load import load_matrix
    from bisect_env.storage.store import Store
    from bisect_env.trials.workdir import work_dir

    loaded = load_matrix(matrix)

    place, provider = ExecutionOptions(cache=cache, offline=offline).open(loaded)
    place.close()  # nothing of it is started
    with Store.open(db) as store:
        single = look_up(loaded, at, store=store, provider=provider, notify=tell).single
    if image := single.lock.image:
        raise UsageError(
            f"{single.combination} runs in a container, and this command opens shells on the host alone",
            remedy=f"`podman run --rm -it {image} sh`, or docker in its place",
        )
    prefix = ensure_prefix(
        single.lock,
        cache_dir=cache,
        allow_source=allowed_sources(loaded),
        offline=None if offline is None else offline.absolute(),
    )
    try:
        program = list(command or ()) or [os.environ.get("SHELL") or "/bin/sh"]
        with work_dir(trial_files(loaded)) as directory:
            env = shell_env(os.environ, prefix.path, loaded.environment(single.combination))
            say(
                f"{single.combination}\n{prefix.path} is first on PATH (shared, and not to be written to)\n"
                f"a trial would run: {' '.join(loaded.command(single.combination))}",
                sys.stderr,
            )
            # Ctrl-C is for what runs in there.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            try:
                ended = subprocess.run(
                    program,
                    cwd=directory.work,
                    env=env,
                    check=False,
                    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
                )
            except OSError as error:
                raise UsageError(
                    f"{program[0]} cannot be run: {error.strerror}", remedy="name a command after `--`"
                ) from None
    finally:
        prefix.release()
    # A signal shows as shells show it.
    raise typer.Exit(ended.returncode if ended.returncode >= 0 else 128 - ended.returncode)


def shell_env(
    outer: os._Environ[str] | dict[str, str], prefix: Path, extra: dict[str, str]
) -> dict[str, str]:
    """The user's own environment, with the prefix in front and this program's own commands left out."""
    env = {name: value for name, value in outer.items() if name not in ("PYTHONHOME", "PYTHONPATH")}
    # `pip install` in there is not to change the Python that runs this program, nor the system's.
    env["PATH"] = child_path(env.get("PATH", DEFAULT_PATH), prefix / "bin", own_bin())
    env.setdefault("PIP_REQUIRE_VIRTUALENV", "1")
    is_conda = (prefix / "conda-meta").is_dir()
    env.pop("CONDA_PREFIX" if not is_conda else "VIRTUAL_ENV", None)
    env["CONDA_PREFIX" if is_conda else "VIRTUAL_ENV"] = str(prefix)
    return {**env, **extra, "BISECT_ENV_PREFIX": str(prefix)}
