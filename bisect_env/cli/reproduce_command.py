"""`bisect-env shell` and `reproduce`: a combination by hand, in a shell or as a directory for anybody."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from bisect_env.answers.untrusted import command_line
from bisect_env.cli.options import (
    AtOption,
    CacheOption,
    DatabaseOption,
    ExecutionOptions,
    MatrixArgument,
    OfflineOption,
    StudyOption,
)
from bisect_env.cli.output import say, tell
from bisect_env.cli.places import open_place
from bisect_env.engine.reproduction import BundleFile, Contrast, ObservedFailure, reproduction
from bisect_env.engine.single import look_up
from bisect_env.engine.specs import allowed_sources, trial_files
from bisect_env.engine.stored import (
    LockedCombination,
    matrix_of,
    named_combinations,
    refuse_local,
    stored_combination,
)
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.matrix.load import load_matrix
from bisect_env.matrix.secrets import without_passwords
from bisect_env.report.build import load_report
from bisect_env.storage.entries import Study, counts_of
from bisect_env.storage.store import Store
from bisect_env.trials.records import Evidence
from bisect_env.trials.workdir import DEFAULT_PATH, child_path, own_bin, work_dir

# --------------------------------------------------------------------------------------------------
# `bisect-env shell`: a shell, or one command, in the environment of a combination.


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
    loaded = load_matrix(matrix)

    place, provider = open_place(ExecutionOptions(cache=cache, offline=offline), loaded)
    place.close()  # nothing of it is started
    with Store.open(db) as store:
        single = look_up(loaded, at, store=store, provider=provider, notify=tell)
    if image := single.lock.image:
        raise UsageError(
            f"{single.combination} runs in a container, and this command opens shells on the host alone",
            remedy=f"`{command_line('podman', 'run', '--rm', '-it', image, 'sh')}`, or docker in its place",
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
    # The last one is ours (`cli.main`): what is run there may import from its own directory, as trials may.
    left_out = ("PYTHONHOME", "PYTHONPATH", "PYTHONSAFEPATH")
    env = {name: value for name, value in outer.items() if name not in left_out}
    # `pip install` in there is not to change the Python that runs this program, nor the system's.
    env["PATH"] = child_path(env.get("PATH", DEFAULT_PATH), prefix / "bin", own_bin())
    env.setdefault("PIP_REQUIRE_VIRTUALENV", "1")
    is_conda = (prefix / "conda-meta").is_dir()
    env.pop("CONDA_PREFIX" if not is_conda else "VIRTUAL_ENV", None)
    env["CONDA_PREFIX" if is_conda else "VIRTUAL_ENV"] = str(prefix)
    return {**env, **extra, "BISECT_ENV_PREFIX": str(prefix)}


# --------------------------------------------------------------------------------------------------
# `bisect-env reproduce`: the failure as a directory that anybody can run.

_TARS = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz", ".tar.xz": "w:xz"}


def reproduce(
    combination: Annotated[
        str, typer.Argument(help="torch=2.3.1,cuml=24.04, or first-bad, or last-good.")
    ] = "first-bad",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Directory, or a file that ends with .tar.gz; default: by name."),
    ] = None,
    study: StudyOption = None,
    matrix: Annotated[
        Path | None, typer.Option("--matrix", help="Its matrix file, if it lies elsewhere by now.")
    ] = None,
    db: DatabaseOption = None,
) -> None:
    """Write lock, script, command, Dockerfile and README of a combination, to be run without this tool."""
    with Store.open(db, read_only=True) as store:
        found = store.study(study)
        loaded = matrix_of(found, matrix)
        one = stored_combination(store, found, combination)
        refuse_local(one)
        try:
            files = reproduction(
                loaded,
                one.combination,
                one.lock,
                _seen(store, found, one),
                index=without_passwords(loaded.file.index or ""),
            )
        except ValueError as error:
            raise UsageError(str(error)) from None
    target = output or Path(f"{found.name}-{_file_name(str(one.combination))}")
    _write(files, target)
    typer.echo(f"{target}: {len(files)} files; its README.md says how to run it", err=True)


def _seen(store: Store, study: Study, one: LockedCombination) -> ObservedFailure:

    trials = [trial for trial in store.trials(study.id) if trial.combination == one.combination]
    if not trials:
        return ObservedFailure()
    counts = counts_of(trials)[one.combination]
    bad = [trial for trial in trials if trial.evidence is Evidence.BAD]
    whole = store.trial(bad[0].trial_id) if bad else None
    contrast = _contrast(store, study, one) if bad else None
    if whole is None:
        return ObservedFailure(counts.bad, counts.counted)
    record = whole.record
    return ObservedFailure(
        counts.bad, counts.counted, record.detail, record.stack, str(record.machine), contrast
    )


def _contrast(store: Store, study: Study, one: LockedCombination) -> Contrast | None:
    """The last good combination, if this is the first bad one; elsewhere nobody knows the difference."""
    named = named_combinations(study)
    if not {"first-bad", "last-good"} <= named.keys() or named["first-bad"] != one.combination.as_dict():
        return None
    good = stored_combination(store, study, "last-good")
    # Its trials may have been recorded for another combination with the same environment and values.
    values = good.combination.as_dict()
    said = next(one for one in load_report(store, study.id).combinations if one.combination == values)
    counted = said.good + said.bad
    return Contrast(good.combination, good.lock, said.bad, counted) if counted else None


def _file_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in ".-_" else "-" for c in text)[:100]


def _write(files: Mapping[str, BundleFile], target: Path) -> None:
    """Write a directory or an archive that is there as a whole, or not at all.

    Raises:
        UsageError: It exists.
        InfrastructureError: It cannot be written.
    """
    if target.exists() or target.is_symlink():
        raise UsageError(f"{target} exists", remedy="remove it, or name another with `--output`")
    mode = next((mode for end, mode in _TARS.items() if target.name.endswith(end)), None)
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        if mode is None:
            # Not its parents: a mistyped path would come into being.
            beside.mkdir()
            for name, file in files.items():
                path = beside / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(file.content)
                path.chmod(0o755 if file.executable else 0o644)
        else:
            _pack(files, beside, mode, target.name.partition(".tar")[0].removesuffix(".tgz"))
        beside.rename(target)
    except OSError as error:
        raise InfrastructureError(
            f"{target} cannot be written: {error.strerror or error}",
            remedy="name another place with `--output`",
        ) from error
    finally:
        if beside.is_dir():
            shutil.rmtree(beside, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):  # a file system that is read-only says so once more
                beside.unlink(missing_ok=True)


def _pack(files: Mapping[str, BundleFile], path: Path, mode: str, folder: str) -> None:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, file in sorted(files.items()):
            # Neither dates nor users: the same bundle is the same archive.
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mode = len(file.content), 0o755 if file.executable else 0o644
            archive.addfile(member, io.BytesIO(file.content))
