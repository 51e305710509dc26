"""`bisect-env reproduce`: a failure as a directory that anybody can run."""

from __future__ import annotations

import contextlib
import io
import secrets
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from bisect_env.cli.options import DatabaseOption, StudyArgument, opt
from bisect_env.cli.output import tell
from bisect_env.cli.references import find_study
from bisect_env.engine.reproduction import BundleFile, Contrast, ObservedFailure, reproduction
from bisect_env.engine.stored import (
    LockedCombination,
    matrix_of,
    named_combinations,
    refuse_local,
    stored_combination,
)
from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.report.build import load_report
from bisect_env.secrets import without_passwords
from bisect_env.storage.entries import Study, counts_of
from bisect_env.storage.store import Store
from bisect_env.trials.records import Evidence

_TARS = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz", ".tar.xz": "w:xz"}


def reproduce(
    study: StudyArgument = None,
    *,
    at: Annotated[
        str, opt("--at", "Combination: torch=2.3.1,cuml=24.04, or first-bad, or last-good.")
    ] = "first-bad",
    output: Annotated[
        Path | None, opt("--output -o", "Directory, or a file that ends with .tar.gz; default: by name.")
    ] = None,
    db: DatabaseOption = None,
) -> None:
    """Write lock, script, command, Dockerfile and README of a combination, to be run without this tool."""
    with Store.open(db, read_only=True) as store:
        found = find_study(study, store)
        matrix = matrix_of(store, found, secrets=False)
        one = stored_combination(store, found, at, "--at")
        refuse_local(one)
        index = without_passwords(matrix.file.index or "")
        try:
            files = reproduction(matrix, one.combination, one.lock, _seen(store, found, one), index=index)
        except ValueError as error:
            raise UsageError(str(error)) from None
    target = output or Path(f"{found.name}-{_file_name(str(one.combination))}")
    _write(files, target)
    tell(f"{target}: {len(files)} files; its README.md says how to run it")


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
    """Return the last good combination if this is the first bad one; elsewhere nothing is known."""
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
    """Write a directory or an archive as a whole, or not at all.

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
