"""`bisect-env reproduce`: write a directory that shows a failure without this tool."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from bisect_env.cli.asking import Flags
from bisect_env.cli.commands import with_groups
from bisect_env.cli.options import AT, QUESTION, DatabaseOption, TargetArgument, output_option
from bisect_env.cli.output import tell
from bisect_env.cli.target import find_study
from bisect_env.engine.amplify import known_perturbation
from bisect_env.engine.reproduction import Contrast, ObservedFailure, reproduction
from bisect_env.engine.stored import (
    LockedCombination,
    matrix_of,
    named_combinations,
    refuse_local,
    stored_combination,
)
from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.matrix.files import StudyFile
from bisect_env.matrix.grid import Combination
from bisect_env.report.build import load_report
from bisect_env.report.shared_question import without_homes
from bisect_env.secrets import without_passwords
from bisect_env.storage.entries import Study
from bisect_env.storage.store import Store
from bisect_env.trials.records import NONE, Evidence


@with_groups(panel=QUESTION)
def reproduce(
    words: TargetArgument = None,
    *,
    at: Annotated[str, AT] = "first-bad",
    output: Annotated[Path | None, output_option()] = None,
    flags: Flags,
    db: DatabaseOption = None,
) -> None:
    """Write lock, script, command, Dockerfile and README of a combination, to be run without this tool.

    The combination is one that a study has tried: name the study, or ask the same question again. The
    directory is new, and named after the combination unless `--output` names it.
    """
    if output is not None:
        _refuse_archive(output)
    with Store.open(db, read_only=True) as store:
        found = find_study(words, flags, store)
        matrix = matrix_of(store, found, secrets=False)
        one = stored_combination(store, found, at, "--at")
        refuse_local(one)
        index = without_passwords(matrix.file.index or "")
        try:
            files = reproduction(
                matrix,
                one.combination,
                one.lock,
                observed(store, found, one),
                index=index,
                perturbation=known_perturbation(store, found.id) or NONE,
            )
        except ValueError as error:
            raise UsageError(str(error)) from None
    target = output or Path(f"{found.name}-{_file_name(str(one.combination))}")
    _write(files, target)
    tell(f"{target}: {len(files)} files; its README.md says how to run it")


def _refuse_archive(output: Path) -> None:
    """Raise an error if the output is named like an archive, because the command writes a directory.

    Raises:
        UsageError: The name ends like the name of an archive.
    """
    endings = [ending for _, endings, _ in shutil.get_unpack_formats() for ending in endings]
    if ending := next(filter(output.name.lower().endswith, endings), ""):
        raise UsageError(
            f"--output: {output} is named like an archive, and this command writes a directory",
            remedy=f"name a directory, such as {str(output)[: -len(ending)]}; pack it afterwards",
        )


def observed(store: Store, study: Study, one: LockedCombination) -> ObservedFailure:
    """Return how often a combination failed in a study, with the details of one failure for others to read.

    Trials of an equal environment with equal values count, as in the report: the study may have recorded its
    trials for another combination.

    Args:
        store: Database with the study.
        study: The study.
        one: The combination.
    """
    counts = {Combination.of(c.combination): c for c in load_report(store, study.id).combinations}
    here = counts[one.combination]
    measured = Combination.of(here.same_as or here.combination)
    alike = {one for one, c in counts.items() if Combination.of(c.same_as or c.combination) == measured}
    bad = [t for t in store.trials(study.id) if t.combination in alike and t.evidence is Evidence.BAD]
    whole = store.trial(bad[0].trial_id) if bad else None
    if whole is None:
        return ObservedFailure(here.bad, here.counted)
    contrast = None
    named = named_combinations(store, study)
    if {"first-bad", "last-good"} <= named.keys() and named["first-bad"] == here.combination:
        good = stored_combination(store, study, "last-good")
        other = counts[good.combination]
        contrast = Contrast(good.combination, good.lock, other.bad, other.counted) if other.counted else None
    record = whole.record
    detail, stack = without_homes(record.detail), without_homes(record.stack)
    return ObservedFailure(here.bad, here.counted, detail, stack, str(record.machine), contrast)


def _file_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in ".-_" else "-" for c in text)[:100]


def _write(files: Iterable[StudyFile], target: Path) -> None:
    """Write all files into a new directory. After an error, no directory is left.

    Raises:
        UsageError: The directory exists.
        InfrastructureError: The directory cannot be written.
    """
    if target.exists() or target.is_symlink():
        raise UsageError(f"{target} exists", remedy="remove it, or name another with `--output`")
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        # Parent directories are not created, because a missing one may be a mistyped path.
        beside.mkdir()
        for file in files:
            path = beside / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.content)
            path.chmod(0o755 if file.executable else 0o644)
        beside.rename(target)
    except OSError as error:
        raise InfrastructureError(
            f"{target} cannot be written: {error.strerror or error}",
            remedy="name another place with `--output`",
        ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
