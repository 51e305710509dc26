"""Runs a whole study: prepares it, runs the search, and writes down the verdict."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bisect_env.answers.phrases import how_many
from bisect_env.answers.untrusted import command_line
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.cluster.choose import Place
from bisect_env.engine import events
from bisect_env.engine.amplify import circumstances_of, settle
from bisect_env.engine.document import MOST_UNTRIED, bisect_log, chapter, named_commits
from bisect_env.engine.locking import Locking, Prepared, is_lazy
from bisect_env.engine.opening import (
    expand_as_known,
    grid_definition,
    open_study,
    own_trials,
    recorded_images,
    save_prepared,
    stored_locks,
    user_name,
)
from bisect_env.engine.reuse import reusable
from bisect_env.engine.searching import StudyRunner
from bisect_env.engine.session import Session
from bisect_env.environments.image_lock import moved_tag
from bisect_env.environments.lock import LockResult
from bisect_env.environments.lockfiles import write_locks
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.errors import (
    BisectEnvError,
    EndsNotAsStatedError,
    ExitCode,
    StorageError,
    StudyInterruptedError,
    UsageError,
)
from bisect_env.matrix.expand import refined, to_refine
from bisect_env.matrix.grid import Direction, Grid, Index
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import CommitAxis
from bisect_env.matrix.versions import VersionCatalogue
from bisect_env.search.goals import Goal
from bisect_env.search.searcher import StudySearch
from bisect_env.search.table import MOST_CALLED
from bisect_env.search.verdict import Status
from bisect_env.storage.entries import (
    COMMIT,
    StoredTrial,
    Study,
    StudyStatus,
)
from bisect_env.storage.store import SHORT, Store

Notify = Callable[[events.Event], None]


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The end of a study: its report and the command's exit code.

    Attributes:
        report: The report document.
        exit_code: `VERDICT` or `NO_VERDICT`.
    """

    report: dict[str, Any]
    exit_code: ExitCode


ENDED = "run-ended"
"""Kind of the decisions that say how many seconds a command worked on a study, and what cut its checks short:
`budget`, `max_trials` or `quick`; "" if nothing did."""


@dataclass(slots=True)
class StudyRun:
    """One command's work on the study of a matrix: it creates or resumes the study.

    Args:
        matrix: As loaded.
        store: Open for writing.
        provider: Makes environments.
        place: Where trials run, started unless the study is answered; closed at the end.
        lockfiles: Folder under which the locks are written; None writes none.
        notify: Called with everything that happens.
        stopped: True when the user wants to stop.
        workers: Solvers at the same time.
        fresh: Begin a new study that reuses nothing, whatever has been measured already.
        only_mine: Go on with a study of this user, and reuse only trials of this user's studies.
        goal: What is asked: where it begins to fail, where else it does, or the whole table.
        quick: End as soon as the answer stands, without checking it further.
        sure: Check the answer for as long as its checks take.
        report: Returns the report of a study as a JSON object; called when the study has ended.
    """

    matrix: Matrix
    store: Store
    provider: EnvironmentProvider
    place: Place
    lockfiles: Path | None
    notify: Notify
    report: Callable[[Store, str], dict[str, Any]]
    stopped: Callable[[], bool] = lambda: False
    workers: int = 2
    fresh: bool = False
    only_mine: bool = False
    goal: Goal = Goal.FIRST_BAD
    quick: bool = False
    sure: bool = False
    _study: Study = field(init=False)
    _grid: Grid = field(init=False)
    _locking: Locking | None = field(init=False, default=None)
    _refining: bool = field(init=False)
    _began: float = field(init=False)
    _session: Session = field(init=False)

    def run(self) -> Conclusion:
        """Run the study until the matrix has its answer.

        Raises:
            BisectEnvError: Whatever a user can correct; everything finished by then is stored.
        """
        self._expand()
        self._open()
        began = self._began = time.monotonic()
        self._session = Session(
            *(self.store, self.provider, self.place.executor, self.notify, self.stopped),
            deadline=self._deadline_from(began),
        )
        # A study that is answered answers again at once, without starting a cluster.
        if self._study.status is not StudyStatus.FINISHED:
            self.place.begin()
        with closing(self.place):
            cut = ""
            try:
                images = self._settled_images()
                while True:
                    runner = self._search(images)
                    cut = self._cut(runner)
                    if not self._refine(runner):
                        return self._conclude(runner)
            except BisectEnvError as error:
                self._end_with(error)
                raise
            finally:
                with contextlib.suppress(StorageError):  # the error that ended the study
                    self._note_end(began, cut)
                if self._locking is not None:
                    self._locking.close()
                    if self.lockfiles is not None:
                        _write_locks(self.lockfiles, self.matrix, self._locking.prepared)

    # -- the steps -------------------------------------------------------------------------------------------

    @property
    def _user(self) -> str | None:
        return user_name() if self.only_mine else None

    def _expand(self) -> None:
        """Expand the matrix as its study did, if there is one."""
        matrix, store, user = self.matrix, self.store, self._user
        found = expand_as_known(matrix, store, self.provider, user=user, fresh=self.fresh)
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
        self.notify(events.StudyOpened(study.id, study.name, own_trials(self.store, study)))
        _keep_logs_within_limit(self.store, self.notify)
        # An answer is checked once every release around it was looked at.
        passed_over = any(axis.passed_over for axis in self._grid.axes)
        self._refining = passed_over and self.goal is Goal.FIRST_BAD

    def _deadline_from(self, began: float) -> float | None:
        """Return when the budget of the study is spent, with what earlier commands spent of it."""
        budget = self.matrix.file.search.budget
        if budget is None:
            return None
        stored = [one.get("seconds") for one in self._earlier_runs()]
        spent = sum(seconds for seconds in stored if isinstance(seconds, int | float))
        # A killed command stored nothing but its trials, and those that it tried circumstances with.
        trials = [
            trial
            for study_id in (self._study.id, *circumstances_of(self.store, self._study.id))
            for trial in self.store.trials(study_id)
        ]
        return began + budget - max(spent, _seconds_covered(trials))

    def _earlier_runs(self) -> list[Mapping[str, Any]]:
        """Return what each earlier command stored when it ended; see `ENDED`."""
        return [one.payload for one in self.store.decisions(self._study.id) if one.kind == ENDED]

    def _note_end(self, began: float, cut: str) -> None:
        """Store how long this command worked on the study, and what cut its checks short."""
        if cut or self._session.deadline is not None or self._earlier_runs():
            spent = {"seconds": round(time.monotonic() - began, 3), "cut": cut}
            self.store.record_decision(self._study.id, ENDED, spent)

    def _cut(self, runner: StudyRunner) -> str:
        """Return what ended the trials before the checks were complete: see `ENDED`."""
        if not self._session.is_in_time:
            return "budget"
        if runner.plan.trials >= self.matrix.file.search.max_trials:
            return "max_trials"
        return "quick" if self.quick else ""

    def _may_do_more(self, runner: StudyRunner) -> bool:
        """Return whether a limit that cut the checks of this study short is gone."""
        cut = next((one.get("cut") for one in reversed(self._earlier_runs())), "")
        more_trials = runner.plan.trials < self.matrix.file.search.max_trials
        gone = {"budget": self._session.is_in_time, "max_trials": more_trials, "quick": not self.quick}
        return self.sure or gone.get(str(cut), False)

    def _settled_images(self) -> dict[str, str]:
        images = recorded_images(self.matrix, self.store, self._study)
        for name, reference in images.items():
            if (text := moved_tag(name, reference)) is not None:
                self.notify(events.Warned(text))
        return images

    def _search(self, images: Mapping[str, str]) -> StudyRunner:
        """Search the present grid and return the runner."""
        matrix, store, study = self.matrix, self.store, self._study
        if self._locking is not None:
            self._locking.close()
        grid = self._grid
        known = {
            index: lock
            for combination, lock in stored_locks(store, study).items()
            if (index := grid.find(combination)) is not None and index not in grid.excluded
        }
        locking = self._locking = Locking(
            matrix, grid, self.provider, workers=self.workers, images=images, known=known
        )
        is_whole = not is_lazy(grid)
        if is_whole:
            locking.lock_all(lambda done, total: self._watched(events.LockProgress(done, total)))
        prepared = locking.prepared
        self.notify(
            events.Locked(
                combinations=math.prod(grid.shape),
                excluded=len(grid.excluded),
                unsolvable=len(prepared.unsolvable) if is_whole else 0,
                environments=prepared.environments if is_whole else None,
                withdrawn=tuple((a.name, v, why) for a in grid.axes for v, why in a.dropped.items()),
            )
        )
        perturbation = settle(matrix, grid, locking, self._session, study.id)
        save_prepared(store, study, prepared)
        # Looking up a hundred thousand keys takes longer than the few trials that might be spared.
        is_done = study.status is StudyStatus.FINISHED
        many = math.prod(grid.shape) > MOST_CALLED
        # With the budget spent, circumstances may be unsettled: what is reused may be no evidence later.
        reuses = not (study.definition.fresh or many or is_done) and self._session.is_in_time
        machines = reusable(self.place.machines(), matrix.file.trial.gpus) if reuses else ()
        runner = StudyRunner(
            matrix,
            locking,
            self._session,
            study.id,
            machines=machines,
            user=self._user,
            began=self._began,
            goal=self.goal,
            quick=self.quick or self._refining,
            sure=self.sure or "clean_rate" in matrix.file.search.model_fields_set,
            perturbation=perturbation,
        )
        runner.replay()
        runner.take_unbuildable()
        if is_done and runner.plan.answered and not self._may_do_more(runner):
            # Checked for its time already, or not at all because nobody wanted that.
            runner.plan.end_checks()
        if is_done:
            # Every environment was looked at before the verdict.
            runner.unseen.clear()
        if not runner.finished or runner.unseen:
            if store.study(study.id).status is StudyStatus.FINISHED:
                store.reopen(study.id)
            runner.run()
        return runner

    def _watched(self, event: events.LockProgress) -> None:
        self.notify(event)
        if self.stopped():
            raise StudyInterruptedError(
                f"stopped while locking environments ({event.done} of {event.total})",
                remedy=_goes_on(self.matrix, self.goal, self._study),
            )

    def _refine(self, runner: StudyRunner) -> bool:
        """Add values around the answer to the grid; return whether there is more to search."""
        matrix = self.matrix
        if self.stopped():
            return False
        around = self.goal is Goal.FIRST_BAD
        if around and (added := _around(matrix, self._grid, runner.plan)):
            self.notify(events.Said(f"around the answer, {_in_words(matrix, self._grid, added)}"))
            self._grid = refined(matrix, self._grid, added)
        elif self._refining and not self.quick:
            self._refining = False
            return True
        else:
            return False
        self.store.set_grid(self._study.id, grid_definition(matrix, self._grid))
        return True

    def _conclude(self, runner: StudyRunner) -> Conclusion:
        """Store the verdict and report how the study ended.

        Raises:
            StudyInterruptedError: The user stopped it before there was an answer.
            EndsNotAsStatedError: A stated end is not as stated.
        """
        store, study, matrix = self.store, self._study, self.matrix
        if self.stopped() and runner.plan.answered:
            # What was to be checked further is left out, as with `--quick`.
            runner.plan.end_checks()
        if self.stopped() and (runner.unseen or not (runner.finished or runner.has_answered)):
            store.finish_study(study.id, StudyStatus.INTERRUPTED, runner.document())
            raise StudyInterruptedError(
                # Of this study: what it was spared by trials of others was no work of its own.
                f"stopped after {how_many(own_trials(store, study), 'trial')}; every one of them is stored",
                remedy=_goes_on(matrix, self.goal, study),
            )
        while True:
            document, verdict = runner.document(), runner.plan.verdict
            if verdict.ends_wrong:
                reason = _ends_reason(verdict.ends_wrong)
                document = document.model_copy(update={"status": "none", "reason": reason})
            store.finish_study(study.id, StudyStatus.FINISHED, document)
            _keep_commit(matrix, store, study.id, runner, self.provider.catalogue, document)
            report = self.report(store, study.id)
            # For those who ask in SQL: only the report can put it into words.
            sentence = report["verdict"]["sentence"]
            store.save_verdict(study.id, document.model_copy(update={"sentence": sentence}))
            # Looked at after writing: of two commands that end together, the later verdict knows all trials.
            if not runner.read_others():
                break
        if verdict.ends_wrong:
            likely = "".join(f"{reason}; else " for reason in report["advice"][:1])
            raise EndsNotAsStatedError(
                f"{matrix.shown}: {document.reason}",
                tried=_end_counts(runner),
                remedy=_ends_remedy(matrix, runner, likely),
            )
        self.notify(events.Concluded(report))
        return Conclusion(report, ExitCode.VERDICT if document.is_decided else ExitCode.NO_VERDICT)

    def _end_with(self, error: BisectEnvError) -> None:
        # An answer that stands is not lost because the command could not look at it again.
        if self.store.study(self._study.id).status is not StudyStatus.FINISHED:
            interrupted = isinstance(error, StudyInterruptedError)
            status = StudyStatus.INTERRUPTED if interrupted else StudyStatus.FAILED
            self.store.finish_study(self._study.id, status, None)
        self.notify(events.Failed.of(error))
        self.notify(events.Concluded(self.report(self.store, self._study.id)))


def _goes_on(matrix: Matrix, goal: Goal, study: Study) -> str:
    command = "map" if goal is Goal.TABLE else "run"
    target = study.id[:SHORT] if matrix.path is None else str(matrix.path)
    return f"{command_line('bisect-env', command, target)}   goes on from here"


def _in_words(matrix: Matrix, grid: Grid, added: Mapping[str, Sequence[str]]) -> str:
    """Return a phrase for the values added around an answer: releases by name, commits by number."""
    texts = []
    for name, values in added.items():
        if isinstance(matrix.file.axes[name], CommitAxis):
            known = next(axis.values for axis in grid.axes if axis.name == name)
            texts.append(f"{len({*values} - {*known})} commits of {name}")
        else:
            texts.append(f"{name} {', '.join(values)}")
    return f"what was not listed: {'; '.join(texts)}"


def _around(matrix: Matrix, grid: Grid, search: StudySearch) -> dict[str, tuple[str, ...]]:
    """Return what `refined` is to add: releases, or commits, within a boundary of the answer, by axis."""
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


def _keep_logs_within_limit(store: Store, notify: Notify) -> None:
    if store.logs_beyond_limit():
        done = store.collect()
        notify(
            events.Warned(
                f"logs took {done.before} bytes of {done.limit}; the oldest that nothing cites were dropped "
                f"({done.logs} of them; `bisect-env db gc --limit SIZE` allows more)"
            )
        )


def _seconds_covered(trials: Sequence[StoredTrial]) -> float:
    """Return for how long at least one of a study's own trials ran."""
    spans = sorted((one.started_at.timestamp(), one.duration) for one in trials if not one.reused)
    covered, end = 0.0, float("-inf")
    for began, seconds in spans:
        covered += max(0.0, began + seconds - max(began, end))
        end = max(end, began + seconds)
    return covered


def _write_locks(folder: Path, matrix: Matrix, prepared: Prepared) -> None:
    results: dict[Index, LockResult] = {**prepared.locks, **prepared.unsolvable}
    write_locks(folder, matrix.name, {prepared.grid.combination(i).key: r for i, r in results.items()})


def _keep_commit(
    matrix: Matrix,
    store: Store,
    study_id: str,
    runner: StudyRunner,
    catalogue: VersionCatalogue,
    verdict: VerdictDocument,
) -> None:
    """Store the details of the first bad commit, if the answer is a commit."""
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
        payload = found.model_copy(update={"log": tuple(log)}).model_dump(mode="json")
        known = [one.payload for one in store.decisions(study_id) if one.kind == COMMIT]
        if not known or known[-1] != payload:
            store.record_decision(study_id, COMMIT, payload)


def _ends_reason(wrong: tuple[str, ...]) -> str:
    says = {"good": "the stated good combination is bad", "bad": "the stated bad combination is not bad"}
    return "; ".join(says[end] for end in wrong)


def _ends_remedy(matrix: Matrix, runner: StudyRunner, likely: str) -> str:
    """Return what to do about ends that are not as stated, in the words in which they were stated."""
    ends = "`--good` and `--bad`" if matrix.path is None else "`good` and `bad` in the matrix"
    (good_hits, good_trials), (bad_hits, bad_trials) = (_counts(runner, end) for end in ("good", "bad"))
    if good_hits and bad_trials and not bad_hits:
        return f"they are swapped: what is stated to work fails, and the other works; exchange {ends}"
    if not good_trials or not bad_trials:
        return f"{likely}if you mixed them up, exchange {ends}; else correct them"
    return f"{likely}correct {ends}, or what counts as bad in `trial.bad`"


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
