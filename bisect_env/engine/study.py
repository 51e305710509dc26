"""Run a whole study: prepare it, run the search, and store the verdict."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bisect_env.answers.phrases import how_many
from bisect_env.answers.remedies import Asked
from bisect_env.answers.untrusted import command_line
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.engine import events
from bisect_env.engine.amplify import choose_perturbation
from bisect_env.engine.document import MOST_UNTRIED, axis_infos, bisect_log, chapter, named_commits
from bisect_env.engine.early import EarlyLocks
from bisect_env.engine.locking import Locking, Prepared, is_lazy
from bisect_env.engine.opening import (
    expand_as_known,
    forgive_builds,
    open_study,
    own_trials,
    save_prepared,
    stored_locks,
    user_name,
)
from bisect_env.engine.reuse import reusable, trial_key
from bisect_env.engine.searching import StudyRunner
from bisect_env.engine.series import Conditions, RunSetup
from bisect_env.engine.session import Session
from bisect_env.environments.image_lock import moved_tag
from bisect_env.environments.index import has_first_page
from bisect_env.environments.lock import LockResult
from bisect_env.environments.lockfiles import write_locks
from bisect_env.errors import (
    BisectEnvError,
    EndsNotAsStatedError,
    StorageError,
    StudyInterruptedError,
    UsageError,
)
from bisect_env.matrix.expand import refined, to_refine
from bisect_env.matrix.grid import Direction, Grid, Index
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import CommitAxis
from bisect_env.search.goals import Goal, search_towards
from bisect_env.search.study_search import StudySearch
from bisect_env.search.table import MOST_CALLED
from bisect_env.search.verdict import Status
from bisect_env.storage.entries import (
    COMMIT,
    StoredTrial,
    Study,
    StudyStatus,
)
from bisect_env.storage.store import SHORT, Store
from bisect_env.trials.records import Evidence, Machine

ENDED = "run-ended"
"""Kind of the stored decision that says how many seconds a command worked on a study, and whether a limit
(budget, number of trials, `--quick`) cut its checks short."""


@dataclass(slots=True)
class StudyRun:
    """The work of one command on the study of a matrix, which the command begins or resumes.

    Args:
        matrix: The matrix.
        session: Database, environments and executor, without a deadline.
        report: Returns the report of a study as a JSON object; called when the study has ended.
        lockfiles: Folder under which to write the locks; None to write none.
        workers: Number of solvers that may run at the same time.
        fresh: Whether to begin a new study that reuses no trials of earlier studies.
        only_mine: Whether to resume and reuse only studies of this user.
        goal: What to find: the first bad version, every failing configuration, or the whole table.
        quick: Whether to end as soon as the answer stands, without checks.
        sure: Whether the checks of the answer have no time limit.
        early: Solvers that have begun with the ends of the matrix, with the session's provider; None if there
            are none.
    """

    matrix: Matrix
    session: Session
    report: Callable[[Store, str], dict[str, Any]]
    lockfiles: Path | None = None
    workers: int = 2
    fresh: bool = False
    only_mine: bool = False
    goal: Goal = Goal.FIRST_BAD
    quick: bool = False
    sure: bool = False
    early: EarlyLocks | None = None
    _study: Study = field(init=False)
    _grid: Grid = field(init=False)
    _locking: Locking | None = field(init=False, default=None)
    _refining: bool = field(init=False)
    _began: float = field(init=False)

    def run(self) -> dict[str, Any]:
        """Run the study until it is finished, and return its report as a JSON object.

        Raises:
            BisectEnvError: An error that the user can correct; all finished work is stored.
        """
        self._expand()
        self._open()
        self._began = self.session.clock()
        self.session = replace(self.session, deadline=self._deadline())
        # Until this command has searched, the checks are as complete as the earlier command left them.
        cut = self._was_cut()
        try:
            images = self._settled_images()
            while True:
                runner = self._search(images)
                cut = self._limit_reached(runner)
                if not self._refine(runner):
                    return self._conclude(runner)
        except BisectEnvError as error:
            self._end_with(error)
            raise
        finally:
            with contextlib.suppress(StorageError):  # the error that ended the study
                self._note_end(cut)
            if self._locking is not None:
                self._locking.close()
                if self.lockfiles is not None:
                    _write_locks(self.lockfiles, self.matrix, self._locking.prepared)

    # -- the steps -------------------------------------------------------------------------------------------

    @property
    def _user(self) -> str | None:
        return user_name() if self.only_mine else None

    def _expand(self) -> None:
        """Expand the matrix to its combinations, and open the study of the matrix.

        A resumed study keeps its versions.
        """
        matrix, store, user = self.matrix, self.session.store, self._user
        found = expand_as_known(matrix, store, self.session.provider, user=user, fresh=self.fresh)
        self._grid = found.grid
        if self.goal is not Goal.FIRST_BAD and math.prod(found.grid.shape) > MOST_CALLED:
            raise UsageError(
                f"{matrix.shown}: {math.prod(found.grid.shape)} combinations are too many for a table, "
                f"which has at most {MOST_CALLED:,}",
                tried="every combination is called good or bad",
                remedy="list fewer values: `step: minor` keeps the newest release of each minor version",
            )
        own = None if user is None else "" if found.study is None else found.study.id
        self._study = open_study(store, found, fresh=self.fresh, study_id=own)

    def _open(self) -> None:
        study = self._study
        self.session.notify(events.StudyOpened(study.id, study.name, own_trials(self.session.store, study)))
        _keep_logs_within_limit(self.session)
        forgive_builds(self.session.store, study.id)
        for index in self.session.provider.catalogue.indexes_without_pages():
            if not has_first_page(index):
                self.session.warn(f"the index {index} has no page of any package here: is its address right?")
        # Check the answer only after all releases around it were tried.
        passed_over = any(axis.passed_over for axis in self._grid.axes)
        self._refining = passed_over and self.goal is Goal.FIRST_BAD

    def _deadline(self) -> float | None:
        """Return the time at which the study's budget is spent, by the clock of the session, or None.

        None means that there is no budget. The time that earlier commands spent on the study is counted.
        """
        budget = self.matrix.file.search.budget
        if budget is None:
            return None
        stored = [one.get("seconds") for one in self._earlier_runs()]
        spent = sum(seconds for seconds in stored if isinstance(seconds, int | float))
        # A killed command stored only its trials.
        covered = _seconds_covered(self.session.store.trials(self._study.id))
        return self._began + budget - max(spent, covered)

    def _earlier_runs(self) -> Sequence[Mapping[str, Any]]:
        """Return the records that earlier commands on this study stored when they ended; see `ENDED`."""
        return self.session.store.payloads(self._study.id, ENDED)

    def _was_cut(self) -> bool:
        """Return whether a limit ended the checks of the last command on this study too early."""
        return any(one.get("cut") is True for one in self._earlier_runs()[-1:])

    def _note_end(self, cut: bool) -> None:
        """Store how long this command worked on the study, and whether a limit cut its checks short."""
        if cut or self.session.deadline is not None or self._earlier_runs():
            spent = {"seconds": round(self.session.clock() - self._began, 3), "cut": cut}
            self.session.store.record_decision(self._study.id, ENDED, spent)

    def _limit_reached(self, runner: StudyRunner) -> bool:
        """Return whether a limit of this command (such as its budget) now ends the checks of the answer."""
        is_spent = runner.plan.trials >= self.matrix.file.search.max_trials
        return self.quick or is_spent or not self.session.is_in_time

    def _settled_images(self) -> dict[str, str]:
        """Return the digest that each container image had when the study began, by image name."""
        if self.matrix.file.executor is None:
            return {}
        locks = stored_locks(self.session.store, self._study)
        images = {self.matrix.image(one): lock.image for one, lock in locks.items() if lock.image}
        for name, reference in images.items():
            if (text := moved_tag(name, reference)) is not None:
                self.session.warn(text)
        return images

    def _search(self, images: Mapping[str, str]) -> StudyRunner:
        """Run the search on the present grid, and return the runner with the results."""
        matrix, store, study = self.matrix, self.session.store, self._study
        if self._locking is not None:
            self._locking.close()
        kept = self._excluded_since()
        left = {index: why for index, why in self._grid.excluded.items() if index not in kept}
        grid = replace(self._grid, excluded=left)
        known = {
            index: lock
            for combination, lock in stored_locks(store, study).items()
            if (index := grid.find(combination)) is not None and index not in grid.excluded
        }
        locking = None
        if self.early is not None:
            locking = None if known or images else self.early.take(grid)
            self.early.drop()
        if locking is None:
            provider = self.session.provider
            locking = Locking(matrix, grid, provider, workers=self.workers, images=images, known=known)
        self._locking = locking
        is_whole = not is_lazy(grid)
        if is_whole:
            locking.lock_all(lambda done, total: self._watched(events.LockProgress(done, total)))
        prepared = locking.prepared
        self.session.notify(
            events.Locked(
                combinations=math.prod(grid.shape),
                excluded=len(self._grid.excluded),
                unsolvable=len(prepared.unsolvable) if is_whole else 0,
                environments=prepared.environments if is_whole else None,
            )
        )
        perturbation = choose_perturbation(matrix, grid, locking, self.session, study.id)
        save_prepared(store, study.id, prepared, [*grid.indices()])
        is_done = study.status is StudyStatus.FINISHED
        # If the budget is spent, the perturbation may not be chosen yet, and reused trials may lack it.
        reuses = not (study.definition.fresh or is_done) and self.session.is_in_time

        @functools.cache
        def machines() -> frozenset[Machine]:
            found = self.session.start().machines() if reuses else ()
            return reusable(found, matrix.file.trial.gpus)

        def conditions(index: Index) -> Conditions:
            key = trial_key(matrix, grid.combination(index), prepared.locks[index], perturbation)
            return Conditions(key, None, perturbation)

        def make_plan() -> StudySearch:
            quick = self.quick or self._refining
            return search_towards(self.goal, grid, prepared.groups, matrix.file.search, quick=quick)

        setup = RunSetup(
            matrix, make_plan, self.session, study.id, conditions, machines=machines, user=self._user
        )
        is_sure = self.sure or "clean_rate" in matrix.file.search.model_fields_set
        runner = StudyRunner(setup, locking, is_sure=is_sure)
        runner.replay()
        runner.take_unbuildable()
        runner.exclude(kept)
        goes_on = self.sure or (self._was_cut() and not self._limit_reached(runner))
        if is_done and runner.plan.answered and not goes_on:
            # The checks have used up their time, or are not wanted.
            runner.plan.end_checks()
        if is_done:
            # The command that stored the verdict checked every environment before.
            runner.unchecked.clear()
        if not runner.finished or runner.unchecked:
            if store.study(study.id).status is StudyStatus.FINISHED:
                store.update_study(study.id, StudyStatus.OPEN)
            runner.run()
        return runner

    def _excluded_since(self) -> dict[Index, str]:
        """Return the excluded combinations that have good or bad trials, with the reason of the exclusion.

        They were excluded (by `--skip`, for example) after those trials, which remain evidence.
        """
        if not self._grid.excluded:
            return {}
        trials = self.session.store.study_trials(self._study.id).look()
        counted = {one.combination for one in trials if one.evidence in (Evidence.GOOD, Evidence.BAD)}
        tried = {index for one in counted if (index := self._grid.find(one)) is not None}
        return {index: self._grid.excluded[index].why for index in tried & self._grid.excluded.keys()}

    def _watched(self, event: events.LockProgress) -> None:
        self.session.notify(event)
        if self.session.stopped():
            raise StudyInterruptedError(
                f"stopped while locking environments ({event.done} of {event.total})",
                remedy=self._resume_remedy,
            )

    @property
    def _resume_remedy(self) -> str:
        command = "map" if self.goal is Goal.TABLE else "run"
        target = self._study.id[:SHORT] if self.matrix.path is None else str(self.matrix.path)
        return f"{command_line('bisect-env', command, target)}   goes on from here"

    def _refine(self, runner: StudyRunner) -> bool:
        """Add versions near the first bad one to the grid, and return whether the search must go on."""
        matrix = self.matrix
        if self.session.stopped():
            return False
        around = self.goal is Goal.FIRST_BAD
        if around and (added := _around(matrix, self._grid, runner.plan)):
            self.session.say(f"around the answer, {_added_values(matrix, self._grid, added)}")
            self._grid = refined(matrix, self._grid, added)
        elif self._refining and not self.quick:
            self._refining = False
            return True
        else:
            return False
        self.session.store.update_study(self._study.id, grid=axis_infos(matrix, self._grid))
        return True

    def _conclude(self, runner: StudyRunner) -> dict[str, Any]:
        """Store the verdict of the search, and return the report of the study.

        Raises:
            StudyInterruptedError: The user stopped it before there was an answer.
            EndsNotAsStatedError: A stated end is not as stated.
        """
        store, study, matrix = self.session.store, self._study, self.matrix
        if self.session.stopped() and runner.plan.answered:
            # Skip the remaining checks, as with `--quick`.
            runner.plan.end_checks()
        if self.session.stopped() and (runner.unchecked or not (runner.finished or runner.has_answered)):
            store.update_study(study.id, StudyStatus.INTERRUPTED, runner.stored_document())
            raise StudyInterruptedError(
                # Count only trials of this study, not those that it reuses.
                f"stopped after {how_many(own_trials(store, study), 'trial')}; every one of them is stored",
                remedy=self._resume_remedy,
            )
        while True:
            document, verdict = runner.stored_document(), runner.plan.verdict
            store.update_study(study.id, StudyStatus.FINISHED, document)
            self._keep_commit(runner, document)
            report = self.report(store, study.id)
            # Store the sentence for SQL queries; only the report can formulate it.
            sentence = report["verdict"]["sentence"]
            store.update_study(study.id, verdict=document.model_copy(update={"sentence": sentence}))
            # Read after writing: if two commands end together, the later verdict then includes all trials.
            if not runner.read_others():
                break
        if verdict.ends_wrong:
            likely = "".join(f"{reason}; else " for reason in report["advice"][:1])
            raise EndsNotAsStatedError(
                f"{matrix.shown}: {document.reason}",
                tried=_end_counts(runner),
                remedy=_ends_remedy(matrix, runner, likely),
            )
        self.session.notify(events.Concluded(report))
        return report

    def _keep_commit(self, runner: StudyRunner, verdict: VerdictDocument) -> None:
        """Store the details of the first bad commit, if the search found a commit."""
        for name, axis in self.matrix.file.axes.items():
            if not isinstance(axis, CommitAxis) or axis.direction is Direction.FIXED:
                continue
            if (named := named_commits(verdict, axis_infos(self.matrix, runner.grid), name)) is None:
                continue
            first, last, between = named
            details, forge = self.session.provider.catalogue.commit_details(
                self.matrix.repository(axis), [first, last, *between[:MOST_UNTRIED]]
            )
            found = chapter(name, axis.canonical_package, details[0], details[1], details[2:], forge)
            history = next(one.history for one in runner.grid.axes if one.name == name)
            labels = {} if history is None else {one: history.subject(one) for one in history.place}
            log = bisect_log(runner.tried(name, verdict), first, labels, is_sure=not between)
            payload = found.model_copy(update={"log": tuple(log)}).model_dump(mode="json")
            self.session.store.record_if_new(self._study.id, COMMIT, payload)

    def _end_with(self, error: BisectEnvError) -> None:
        # Keep an existing answer if the command fails while checking it again.
        if self.session.store.study(self._study.id).status is not StudyStatus.FINISHED:
            interrupted = isinstance(error, StudyInterruptedError)
            status = StudyStatus.INTERRUPTED if interrupted else StudyStatus.FAILED
            self.session.store.update_study(self._study.id, status)
        self.session.notify(events.Failed.of(error))
        self.session.notify(events.Concluded(self.report(self.session.store, self._study.id)))


def _added_values(matrix: Matrix, grid: Grid, added: Mapping[str, Sequence[str]]) -> str:
    """Return a phrase that lists the releases, or the number of commits, that were added to the grid."""
    texts = []
    for name, values in added.items():
        if isinstance(matrix.file.axes[name], CommitAxis):
            known = next(axis.values for axis in grid.axes if axis.name == name)
            texts.append(f"{len({*values} - {*known})} commits of {name}")
        else:
            texts.append(f"{name} {', '.join(values)}")
    return f"what was not listed: {'; '.join(texts)}"


def _around(matrix: Matrix, grid: Grid, search: StudySearch) -> dict[str, tuple[str, ...]]:
    """Choose releases or commits near the first bad version that should be added to the grid, by axis.

    For an axis of commits, these are all its values in their new order.
    """
    found: dict[str, tuple[str, ...]] = {}
    verdict = search.verdict
    if verdict.status is Status.NONE:
        return found
    for boundary in verdict.best.boundaries:
        axis = grid.axes[boundary.axis]
        if axis.history is not None:
            low, high = sorted((boundary.good[boundary.axis], boundary.bad[boundary.axis]))
            places = [
                (*boundary.bad[: boundary.axis], place, *boundary.bad[boundary.axis + 1 :])
                for place in range(low + 1)
            ]
            older = [
                value for value, cell in zip(axis.values, places, strict=False) if _was_tried(search, cell)
            ]
            values = axis.history.around(axis.values, older, axis.values[high])
            if values != axis.values:
                found[axis.name] = values
            continue
        good, bad = (axis.values[side[boundary.axis]] for side in (boundary.good, boundary.bad))
        if between := to_refine(matrix, axis, good, bad):
            found[axis.name] = tuple(dict.fromkeys((*found.get(axis.name, ()), *between)))
    return found


def _was_tried(search: StudySearch, index: Index) -> bool:
    try:
        return search.counts(index)[1] > 0
    except ValueError:
        # It has no environment.
        return False


def _keep_logs_within_limit(session: Session) -> None:
    if session.store.logs_beyond_limit():
        done = session.store.collect()
        session.warn(
            f"logs took {done.before} bytes of {done.limit}; the oldest that nothing cites were dropped "
            f"({done.logs} of them; `bisect-env db gc --size SIZE` allows more)"
        )


def _seconds_covered(trials: Sequence[StoredTrial]) -> float:
    """Return for how many seconds at least one of the study's own trials was running."""
    spans = sorted((one.started_at.timestamp(), one.duration) for one in trials if not one.reused)
    covered, end = 0.0, float("-inf")
    for began, seconds in spans:
        covered += max(0.0, began + seconds - max(began, end))
        end = max(end, began + seconds)
    return covered


def _write_locks(folder: Path, matrix: Matrix, prepared: Prepared) -> None:
    results: dict[Index, LockResult] = {**prepared.locks, **prepared.unsolvable}
    write_locks(folder, matrix.name, {prepared.grid.combination(i).key: r for i, r in results.items()})


def _ends_remedy(matrix: Matrix, runner: StudyRunner, likely: str) -> str:
    """Return advice on how to correct a combination that the user wrongly stated to be good or bad."""
    asked = Asked.of(matrix.path, matrix.file.axes)
    ends = asked.ends
    (good_hits, good_trials), (bad_hits, bad_trials) = (_counts(runner, end) for end in ("good", "bad"))
    if good_hits and bad_trials and not bad_hits:
        return f"they are swapped: what is stated to work fails, and the other works; exchange {ends}"
    if None not in (runner.grid.good, runner.grid.bad) and not (good_trials and bad_trials):
        return f"{likely}if you mixed them up, exchange {ends}; else correct them"
    return f"{likely}correct {ends}, or what counts as bad: {asked.setting('bad', 'trial')}"


def _counts(runner: StudyRunner, end: str) -> tuple[int, int]:
    index = runner.grid.good if end == "good" else runner.grid.bad
    return (0, 0) if index is None else runner.plan.counts(index)


def _end_counts(runner: StudyRunner) -> str:
    texts = []
    for end in ("good", "bad"):
        hits, trials = _counts(runner, end)
        index = runner.grid.good if end == "good" else runner.grid.bad
        if index is not None and trials:
            texts.append(f"{runner.grid.combination(index)}: {hits} of {trials} trials were bad")
    return "; ".join(texts)
