"""Runs a whole study: prepares it, runs the search, and writes down the verdict."""

from __future__ import annotations

import contextlib
import getpass
import math
import platform
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bisect_env import __version__
from bisect_env.answers.phrases import how_many
from bisect_env.answers.untrusted import command_line
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.cluster.choose import Starting
from bisect_env.cluster.protocol import Executor
from bisect_env.engine import events
from bisect_env.engine.amplify import settle
from bisect_env.engine.document import MOST_UNTRIED, axes_document, bisect_log, chapter, named_commits
from bisect_env.engine.locking import Locking, Prepared, is_lazy, lock_all
from bisect_env.engine.reuse import reusable
from bisect_env.engine.runner import StudyRunner
from bisect_env.engine.specs import target_of
from bisect_env.environments.image_lock import moved_tag
from bisect_env.environments.lock import Lock, LockResult
from bisect_env.environments.lockfiles import may_be_installed, write_locks
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.errors import (
    BisectEnvError,
    EndsNotAsStatedError,
    ExitCode,
    StorageError,
    StudyInterruptedError,
    UsageError,
)
from bisect_env.matrix.expand import WITHDRAWN, expand, laid_out, refined, to_refine
from bisect_env.matrix.grid import AxisKind, Direction, Grid, Index
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import CommitAxis, PackageAxis
from bisect_env.matrix.versions import VersionCatalogue, between
from bisect_env.search.goals import Goal
from bisect_env.search.searcher import Search, StudySearch
from bisect_env.search.space import is_large
from bisect_env.search.verdict import Status, Verdict
from bisect_env.storage.entries import (
    COMMIT,
    CombinationStatus,
    Study,
    StudyDefinition,
    StudyStatus,
)
from bisect_env.storage.store import Store
from bisect_env.temporary import remove_left_behind
from bisect_env.trials.records import Machine
from bisect_env.trials.workdir import sweep

Notify = Callable[[events.Event], None]


@dataclass(frozen=True, slots=True)
class Conclusion:
    """How a study ended.

    Attributes:
        report: The report document.
        exit_code: `VERDICT` or `NO_VERDICT`.
    """

    report: dict[str, Any]
    exit_code: ExitCode


SPENT = "time-spent"
"""Kind of the decisions that say how many seconds of its budget a command has taken."""


def run_study(
    matrix: Matrix,
    *,
    store: Store,
    provider: EnvironmentProvider,
    make_executor: Callable[[], Executor],
    lockfiles: Path | None,
    notify: Notify,
    stopped: Callable[[], bool] = lambda: False,
    workers: int = 2,
    machines: Callable[[], Collection[Machine]] = lambda: (Machine(platform.machine()),),
    fresh: bool = False,
    only_mine: bool = False,
    goal: Goal = Goal.FIRST_BAD,
    every_lock: bool = False,
    quick: bool = False,
    careful: bool = False,
    posterior: bool = True,
) -> Conclusion:
    """Answer a matrix: begin its study, or go on with it where it stopped.

    Args:
        matrix: As loaded.
        store: Open for writing.
        provider: Makes environments.
        make_executor: Starts the place where trials run, in another thread, unless the study is answered.
        lockfiles: Folder under which the locks are written; None writes none.
        notify: Hears of everything.
        stopped: True when the user wants to stop.
        workers: Solvers at the same time.
        machines: Classes of machines on which trials will run; called when trials might be reused.
        fresh: Begin a new study that reuses nothing, whatever has been measured already.
        only_mine: Go on with a study of this user, and reuse only trials of this user's studies.
        goal: What is asked: where it begins to fail, where else it does, or the whole table.
        quick: End as soon as the answer stands, without checking it further.
        careful: Try both stated ends before anything between them, whatever that costs.
        every_lock: Lock every combination before the first trial.
        posterior: Whether the report follows the answers through all trials; see `load_report`.

    Raises:
        BisectEnvError: Whatever a user can mend; everything finished by then is stored.
    """
    user = _user() if only_mine else None
    known = None if fresh else store.find_study(matrix.name, matrix.digest, user)
    if user is not None and known is not None and {one.user for one in store.origins(known.id)} - {user}:
        known = None
    begins = fresh or (only_mine and known is None)
    as_of = provider.as_of or _now() if begins else study_date(matrix, store, provider.as_of, user)
    grid = expand(matrix, provider.catalogue, as_of, settled_ends(known))
    if known is not None:
        grid = as_refined_before(matrix, grid, known)
    large = is_large(grid.shape, [axis.direction for axis in grid.axes])
    if large and goal is Goal.TABLE:
        raise UsageError(
            f"{matrix.path}: {math.prod(grid.shape)} combinations are too many for a table",
            remedy="list fewer values: `step: minor` keeps the newest release of each minor version",
        )
    own = None if user is None else "" if known is None else known.id
    study = store.open_study(study_definition(matrix, grid, as_of, fresh=fresh), study_id=own)
    notify(events.StudyOpened(study.id, study.name, own_trials(store, study)))
    _keep_logs_within_limit(store, notify)

    def watched(event: events.Event) -> None:
        notify(event)
        if isinstance(event, events.LockProgress) and stopped():
            raise StudyInterruptedError(
                f"stopped while locking environments ({event.done} of {event.total})",
                remedy=_goes_on(matrix, goal),
            )

    # Looking up a hundred thousand keys takes longer than the few trials that might be spared.
    reuses = not (study.definition.fresh or large) and study.status is not StudyStatus.FINISHED
    # An answer is checked once every release around it was looked at.
    refining = any(axis.passed_over for axis in grid.axes) and goal is Goal.FIRST_BAD
    # Once a failure turned out to be flaky its commits are searched line by line.
    leaves = refining
    budget, began = matrix.file.search.budget, time.monotonic()
    if budget is not None:
        spent = [one.payload.get("seconds") for one in store.decisions(study.id) if one.kind == SPENT]
        budget -= sum(seconds for seconds in spent if isinstance(seconds, int | float))
    # A study that is answered answers again at once, without starting a cluster.
    cluster = _Cluster(make_executor, stopped)
    if study.status is not StudyStatus.FINISHED:
        cluster.begin()
    with closing(cluster):
        locking: Locking | None = None
        try:
            images = recorded_images(matrix, store, study)
            for name, reference in images.items():
                if (text := moved_tag(name, reference)) is not None:
                    notify(events.Warned(text))
            while True:
                locking = open_locking(
                    matrix,
                    grid,
                    provider,
                    watched,
                    workers=workers,
                    images=images,
                    every=every_lock,
                    known=stored_locks(store, study, grid),
                )
                perturbation = settle(
                    matrix,
                    grid,
                    locking,
                    store,
                    study.id,
                    cluster.get,
                    notify=lambda text: notify(events.Said(text)),
                    stopped=stopped,
                )
                save_prepared(store, study, locking.prepared)
                runner = StudyRunner(
                    matrix,
                    locking,
                    store,
                    study.id,
                    notify=notify,
                    stopped=stopped,
                    machines=reusable(machines(), matrix.file.trial.gpus) if reuses else (),
                    user=user,
                    deadline=None if budget is None else began + budget,
                    goal=goal,
                    quick=quick or refining,
                    perturbation=perturbation,
                    careful=careful,
                    leaves=leaves,
                )
                runner.replay()
                if not runner.finished:
                    if store.study(study.id).status is StudyStatus.FINISHED:
                        store.reopen(study.id)
                    runner.run(cluster.get)
                around = goal is Goal.FIRST_BAD and not stopped()
                values = _to_lay_out(grid, runner.search) if around else {}
                added = _around(matrix, grid, runner.search.verdict) if around and not values else {}
                if values:
                    leaves = runner.search.verdict.certain
                    grid = laid_out(matrix, grid, values)
                    store.set_grid(study.id, grid_definition(matrix, grid))
                elif added:
                    notify(events.Said(f"around the answer, {_told(matrix, added)}"))
                    grid = refined(matrix, grid, added)
                    store.set_grid(study.id, grid_definition(matrix, grid))
                elif refining and not quick and not stopped():
                    refining = False
                else:
                    for text in _withdrawn(grid, runner.search.verdict) if around else ():
                        notify(events.Warned(text))
                    return conclude(
                        matrix,
                        store,
                        study,
                        runner,
                        notify,
                        provider.catalogue,
                        interrupted=stopped(),
                        posterior=posterior,
                        goal=goal,
                    )
                locking.close()
        except BisectEnvError as error:
            _end_with(error, store, study.id)
            notify(events.Failed.of(error))
            notify(events.Concluded(_report(store, study.id, posterior=posterior)))
            raise
        finally:
            if budget is not None:
                with contextlib.suppress(StorageError):  # the error that ended the study
                    store.record_decision(study.id, SPENT, {"seconds": round(time.monotonic() - began, 3)})
            if locking is not None:
                locking.close()
                if lockfiles is not None:
                    _write_locks(lockfiles, matrix, locking.prepared)


def own_trials(store: Store, study: Study) -> int:
    """Count the trials that a study recorded itself."""
    return sum(not trial.reused for trial in store.trials(study.id))


def _goes_on(matrix: Matrix, goal: Goal) -> str:
    command = "map" if goal is Goal.TABLE else "run"
    return f"{command_line('bisect-env', command, str(matrix.path))}   goes on from here"


def _told(matrix: Matrix, added: Mapping[str, Sequence[str]]) -> str:
    """Return what is looked at around an answer: releases by name, commits by number."""
    texts = []
    for name, values in added.items():
        if isinstance(matrix.file.axes[name], CommitAxis):
            texts.append(f"{len(values)} commits of {name}")
        else:
            texts.append(f"{name} {', '.join(values)}")
    return f"what was not listed: {'; '.join(texts)}"


def _around(matrix: Matrix, grid: Grid, verdict: Verdict) -> dict[str, tuple[str, ...]]:
    """Releases that a range passed over and that lie within a boundary of the answer, by axis."""
    found: dict[str, tuple[str, ...]] = {}
    if verdict.status is Status.NONE:
        return found
    for boundary in verdict.best.boundaries:
        axis = grid.axes[boundary.axis]
        good, bad = (axis.values[side[boundary.axis]] for side in (boundary.good, boundary.bad))
        if between := to_refine(matrix, axis, good, bad):
            found[axis.name] = tuple(dict.fromkeys((*found.get(axis.name, ()), *between)))
    return found


def _withdrawn(grid: Grid, verdict: Verdict) -> Iterator[str]:
    """Name the withdrawn releases between the good and the bad side of an answer, which nobody tried."""
    if verdict.status is Status.NONE:
        return
    for boundary in verdict.best.boundaries:
        axis = grid.axes[boundary.axis]
        good, bad = (axis.values[side[boundary.axis]] for side in (boundary.good, boundary.bad))
        left_out = [version for version, why in axis.dropped.items() if why == WITHDRAWN]
        if inside := between(left_out, good, bad):
            were = "was" if len(inside) == 1 else "were"
            yield (
                f"{axis.name} {', '.join(inside)} between {good} and {bad} {were} withdrawn and not tried; "
                "`yanked: true` of the axis, or `--yanked`, tries them"
            )


def _to_lay_out(grid: Grid, search: StudySearch) -> dict[str, tuple[str, ...]]:
    """Return which commits a search wants as the values of its axis, if it wants others."""
    values = search.laid_out if isinstance(search, Search) else None
    return {} if values is None else {axis.name: values for axis in grid.axes if len(axis.values) > 1}


def settled_ends(study: Study | None) -> dict[str, tuple[str, str]]:
    """Of the axes of commits of a study both ends, which it goes on with, wherever branches point by now."""
    axes = () if study is None else study.definition.grid
    return {
        str(axis["name"]): (str(axis["values"][0]), str(axis["values"][-1]))
        for axis in axes
        if axis.get("kind") == AxisKind.COMMIT
    }


def as_refined_before(matrix: Matrix, grid: Grid, study: Study) -> Grid:
    """Return the grid with the releases that an earlier command added around its answer."""
    known = {str(axis["name"]): list(axis["values"]) for axis in study.definition.grid}
    # Commits may stand in an order of their own.
    grid = laid_out(
        matrix,
        grid,
        {
            axis.name: known[axis.name]
            for axis in grid.axes
            if axis.history is not None and {*known.get(axis.name, ())} <= axis.history.place.keys()
        },
    )
    left = {axis.name: frozenset(axis.passed_over) for axis in grid.axes}
    added = {
        axis.name: tuple(v for v in known.get(axis.name, ()) if v in left[axis.name]) for axis in grid.axes
    }
    added = {name: values for name, values in added.items() if values}
    return refined(matrix, grid, added) if added else grid


def _report(store: Store, study_id: str, *, posterior: bool) -> dict[str, Any]:
    # Imported here, so that the first trial need not wait for what shows the last one.
    from bisect_env.report.build import report_document

    return report_document(store, study_id, posterior=posterior)


def _keep_logs_within_limit(store: Store, notify: Notify) -> None:
    if store.logs_beyond_limit():
        done = store.collect()
        notify(
            events.Warned(
                f"logs took {done.before} bytes of {done.limit}; the oldest that nothing cites were dropped "
                f"({done.logs} of them; `bisect-env db gc --limit SIZE` allows more)"
            )
        )


def _end_with(error: BisectEnvError, store: Store, study_id: str) -> None:
    # An answer that stands is not lost because the command could not look at it again.
    if store.study(study_id).status is not StudyStatus.FINISHED:
        interrupted = isinstance(error, StudyInterruptedError)
        store.finish_study(study_id, StudyStatus.INTERRUPTED if interrupted else StudyStatus.FAILED, None)


def study_date(
    matrix: Matrix, store: Store, fixed: datetime | None = None, user: str | None = None
) -> datetime:
    """Return the date of a study: what was uploaded later does not exist for it.

    A new study takes the present moment, one that goes on keeps its own, so that the same matrix gives the
    same locks tomorrow.

    Args:
        matrix: As loaded.
        store: Where the study may be known.
        fixed: The only moment that environments can be had for, if there is but one.
        user: Whose study may be known; None for anybody's.

    Raises:
        UsageError: The study is known, and sees the indexes as of another moment.
    """
    known = store.find_study(matrix.name, matrix.digest, user)
    if known is None or known.exclude_newer is None:
        return fixed or _now()
    if fixed is not None and known.exclude_newer != fixed:
        raise UsageError(
            f"this study sees the indexes as of {known.exclude_newer:%Y-%m-%d %H:%M:%S} UTC, "
            f"and the directory was fetched as of {fixed:%Y-%m-%d %H:%M:%S} UTC",
            remedy="begin another study with `--db FILE`, or go on with this one where there is a network",
        )
    return known.exclude_newer


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def grid_definition(matrix: Matrix, grid: Grid) -> list[dict[str, Any]]:
    """Return the axes of a study as they are stored with it."""
    return [{**axis, "package": _package(matrix, axis["name"])} for axis in axes_document(grid)]


def study_definition(matrix: Matrix, grid: Grid, as_of: datetime, *, fresh: bool = False) -> StudyDefinition:
    """Return the definition that is stored when a study is opened.

    Args:
        matrix: Its matrix.
        grid: What that expands to.
        as_of: Nothing newer counts.
        fresh: Whether it begins anew beside an older one.
    """
    return StudyDefinition(
        name=matrix.name,
        digest=matrix.digest,
        matrix_path=str(matrix.path),
        matrix_text=matrix.text,
        description=matrix.file.description,
        grid=grid_definition(matrix, grid),
        settings={**matrix.file.search.model_dump(mode="json"), "ends": _ends(grid)},
        target=target_of(matrix),
        exclude_newer=as_of,
        version=__version__,
        host=platform.node(),
        user=_user(),
        fresh=fresh,
    )


def _package(matrix: Matrix, axis: str) -> str:
    """Return the package that an axis moves, "" if it moves none."""
    found = matrix.file.axes[axis]
    return found.canonical_package if isinstance(found, PackageAxis | CommitAxis) else ""


def _ends(grid: Grid) -> dict[str, dict[str, str] | None]:
    ends = {"good": grid.good, "bad": grid.bad}
    return {name: None if i is None else grid.combination(i).as_dict() for name, i in ends.items()}


def open_locking(
    matrix: Matrix,
    grid: Grid,
    provider: EnvironmentProvider,
    notify: Notify,
    *,
    workers: int = 2,
    images: Mapping[str, str] | None = None,
    every: bool = False,
    known: Mapping[Index, Lock] | None = None,
) -> Locking:
    """Return the locking of a study's combinations: all now, or each when the search asks for it.

    Args:
        matrix: As loaded.
        grid: As expanded.
        provider: Solves.
        notify: Hears of the progress.
        workers: Solvers at the same time.
        images: Of names of container images those that the study has settled on, with what they stand for.
        every: Lock every combination now.
        known: Locks that the study has already.
    """
    whole = None
    began = time.monotonic()
    if every or not is_lazy(grid):
        whole = lock_all(
            matrix,
            grid,
            provider,
            workers=workers,
            on_progress=lambda done, total: notify(events.LockProgress(done, total)),
            images=images,
        )
    notify(
        events.Locked(
            combinations=math.prod(grid.shape),
            excluded=len(grid.excluded),
            unsolvable=0 if whole is None else len(whole.unsolvable),
            environments=None if whole is None else whole.environments,
            withdrawn=tuple((a.name, v, why) for a in grid.axes for v, why in a.dropped.items()),
            seconds=0.0 if whole is None else time.monotonic() - began,
        )
    )
    return Locking(matrix, grid, provider, workers=workers, images=images, known=known, whole=whole)


def stored_locks(store: Store, study: Study, grid: Grid) -> dict[Index, Lock]:
    """Locks that a study has from earlier commands."""
    found: dict[Index, Lock] = {}
    locks: dict[str, Lock | None] = {}
    for state in store.combinations(study.id):
        if state.lock_hash is not None and state.status != CombinationStatus.EXCLUDED:
            if state.lock_hash not in locks:
                lock = store.lock(state.lock_hash)
                # Else it is solved again.
                locks[state.lock_hash] = lock if lock is not None and may_be_installed(lock) else None
            index = grid.find(state.combination)
            if index is not None and (lock := locks[state.lock_hash]) is not None:
                found[index] = lock
    return found


def _write_locks(folder: Path, matrix: Matrix, prepared: Prepared) -> None:
    results: dict[Index, LockResult] = {**prepared.locks, **prepared.unsolvable}
    write_locks(folder, matrix.name, {prepared.grid.combination(i).key: r for i, r in results.items()})


def recorded_images(matrix: Matrix, store: Store, study: Study) -> dict[str, str]:
    """Return the images that names stood for when a study began, and that it keeps."""
    if matrix.file.executor is None:
        return {}
    found = {}
    for state in store.combinations(study.id):
        lock = store.lock(state.lock_hash) if state.lock_hash else None
        if lock is not None and (reference := lock.image):
            found[matrix.image(state.combination)] = reference
    return found


def save_prepared(store: Store, study: Study, prepared: Prepared) -> None:
    """Write combinations and locks; what is there already stays."""
    store.save_locks(study.id, {lock.content_hash: lock for lock in prepared.locks.values()}.values())
    store.save_combinations(study.id, [prepared.state(index) for index in prepared.grid.indices()])


def conclude(
    matrix: Matrix,
    store: Store,
    study: Study,
    runner: StudyRunner,
    notify: Notify,
    catalogue: VersionCatalogue,
    *,
    interrupted: bool,
    posterior: bool,
    goal: Goal = Goal.FIRST_BAD,
) -> Conclusion:
    """Store the verdict and say how the study ended.

    Args:
        matrix: As loaded.
        store: Open for writing.
        study: As stored.
        runner: What is known.
        notify: Hears of the end.
        catalogue: Knows what commits say of themselves.
        interrupted: Whether the user stopped it.
        goal: What was asked.
        posterior: Whether the report follows the answers through all trials.

    Raises:
        StudyInterruptedError: The user stopped it.
        EndsNotAsStatedError: A stated end is not as stated.
    """
    if interrupted and not runner.finished:
        store.finish_study(study.id, StudyStatus.INTERRUPTED, runner.document())
        raise StudyInterruptedError(
            # Of this study: what it was spared by trials of others was no work of its own.
            f"stopped after {how_many(own_trials(store, study), 'trial')}; every one of them is stored",
            remedy=_goes_on(matrix, goal),
        )
    while True:
        document, verdict = runner.document(), runner.search.verdict
        if verdict.ends_wrong:
            reason = _ends_reason(verdict.ends_wrong)
            document = document.model_copy(update={"status": "none", "reason": reason})
        store.finish_study(study.id, StudyStatus.FINISHED, document)
        _keep_commit(matrix, store, study.id, runner, catalogue, document)
        report = _report(store, study.id, posterior=posterior)
        # For those who ask in SQL: only the report can put it into words.
        sentence = report["verdict"]["sentence"]
        store.save_verdict(study.id, document.model_copy(update={"sentence": sentence}))
        # Looked at after writing: of two commands that end together, the later verdict knows all trials.
        if not runner.hear_others():
            break
    if verdict.ends_wrong:
        likely = "".join(f"{reason}; else " for reason in report["advice"][:1])
        raise EndsNotAsStatedError(
            f"{matrix.path}: {document.reason}",
            tried=_end_counts(runner, verdict.ends_wrong),
            remedy=f"{likely}correct `good` or `bad` in the matrix, or what counts as bad in `trial.bad`",
        )
    notify(events.Concluded(report, runner.searching))
    return Conclusion(report, ExitCode.VERDICT if document.is_decided else ExitCode.NO_VERDICT)


def _keep_commit(
    matrix: Matrix,
    store: Store,
    study_id: str,
    runner: StudyRunner,
    catalogue: VersionCatalogue,
    verdict: VerdictDocument,
) -> None:
    """Write down what is known of the first bad commit, if the answer is one."""
    for name, axis in matrix.file.axes.items():
        if not isinstance(axis, CommitAxis) or axis.direction is Direction.FIXED:
            continue
        if (named := named_commits(verdict, name)) is None:
            continue
        first, last, between = named
        details, forge = catalogue.commit_details(
            matrix.repository(axis), [first, last, *between[:MOST_UNTRIED]]
        )
        found = chapter(name, axis.canonical_package, details[0], details[1], details[2:], forge)
        history = next(one.history for one in runner.grid.axes if one.name == name)
        labels = {} if history is None else {one: history.subject(one) for one in history.place}
        log = bisect_log(runner.tried(name, verdict), first, labels, is_sure=not between)
        payload = {**found, "log": log}
        known = [one.payload for one in store.decisions(study_id) if one.kind == COMMIT]
        if not known or known[-1] != payload:
            store.record_decision(study_id, COMMIT, payload)


def _ends_reason(wrong: tuple[str, ...]) -> str:
    says = {"good": "the stated good combination is bad", "bad": "the stated bad combination is not bad"}
    return "; ".join(says[end] for end in wrong)


def _end_counts(runner: StudyRunner, wrong: tuple[str, ...]) -> str:
    grid = runner.grid
    texts = []
    for name in wrong:
        index = grid.good if name == "good" else grid.bad
        if index is not None:
            hits, trials = runner.search.counts(index)
            texts.append(f"{grid.combination(index)}: {hits} of {trials} trials were bad")
    return "; ".join(texts)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container's user often has no name.
        return ""


class _Cluster(Starting):
    """The place where trials run, which leaves nothing behind."""

    def close(self) -> None:
        try:
            super().close()
        finally:
            # What killed commands left is gone after the next one, also where that had nothing to run.
            sweep()
            remove_left_behind()
