"""What is known of a study after some trials, and what follows from it: a frozen view, made anew. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.belief import Belief, CellCounts, believe
from bisect_env.search.choice import Choice
from bisect_env.search.families import FloatArray
from bisect_env.search.generators import staircase_rows
from bisect_env.search.hypotheses import Rows, joined
from bisect_env.search.independent import independent, path
from bisect_env.search.space import Hypothesis, described
from bisect_env.search.stopping import (
    CAUTION,
    FAILURES,
    clean_trials,
    quantile,
    required_confidence,
)
from bisect_env.search.verdict import Answer, Boundary, answer, between
from bisect_env.search.view import View

NO_RULE = 1e-4
"""Prior that no rule describes the bad cells."""
_DOUBT = math.log(20.0)
"""By what log factor some table must be able to explain the counts better before more rows are weighed."""
_BELIEVED = 0.5
"""Posterior of histories and staircases from which on they are weighed before a plain answer is sure."""
_LABEL_SHARE = 1.0 / 3.0
"""Share of the error that a single label may have where no rule holds."""
_PATIENCE = 6
"""A cell that stays in between for so many times the usual trials gets the likelier label."""
_CANDIDATES = 96
_SPREAD = 5
_MOST_SWEPT = 64
_REPEATED = 3
"""Failures of one cell, and none of its trials passed, before a failure is taken to be certain."""
_END_CERTAINTY, _END_FAILURES, _END_TRIALS = 0.9, 3, 180
"""How sure the prior must be of the bad end, and until when it is tried first where failures are flaky."""
_TWICE = 2
_UNSEEN = 7
"""How often a bad end that nobody stated is tried before others, if nothing failed."""
_SPARE = 6
"""Trials beyond one for each cell after which a failure that looks certain is taken to be certain."""


@dataclass(frozen=True, eq=False)
class Known:
    """The counts of a study with the belief, the answer and the trials that follow from them.

    Attributes:
        view: The cells.
        rows: Products of value sets that change as directions say.
        wider: Returns the same with histories that change more often; None where there are none.
        counts: Failures and trials of each cell.
        can_run: Which cells can still be tried, shape (X,).
        limits: When to stop.
        quick: Whether the answer is left unchecked.
    """

    view: View
    rows: Rows
    wider: Callable[[], Rows | None]
    counts: CellCounts
    can_run: NDArray[np.bool_]
    limits: SearchLimits
    quick: bool

    # -- belief ------------------------------------------------------------------------------------------

    @cached_property
    def unanimous(self) -> bool:
        """Return whether every tried cell always failed or always passed."""
        hits, trials = self.counts.hits, self.counts.trials
        return bool(((hits == 0) | (hits == trials)).all())

    @cached_property
    def _alone(self) -> tuple[float, FloatArray]:
        return independent(self.counts)

    @cached_property
    def belief(self) -> Belief:
        """Return the belief, given that the failure is certain once that is taken for granted."""
        whole = self.whole
        if not self._enough_if_certain:
            return whole
        failed = self.counts.hits[self.counts.tried] > 0
        agree = (whole.patterns.calls == failed).all(axis=1)
        return whole.among(agree) if agree.any() else whole

    @cached_property
    def whole(self) -> Belief:
        """Return the posterior over products, and over more rows where some table would fit much better."""
        plain = believe(self.rows, self.counts)
        # How well any table at all could explain the counts.
        most = self._alone[0] + len(self.counts.tried) * math.log(2.0)
        if most - plain.log_evidence < _DOUBT or not self.counts.hits.any():
            return plain
        parts = [self.wider() or self.rows]
        if stairs := staircase_rows(self.view, self._labels, self.can_run):
            parts.append(stairs)
        if parts == [self.rows]:
            return plain
        whole = believe(joined(parts), self.counts)
        if self.unanimous:
            return whole
        doubt = float(whole.answers[whole.rows.tier > 0].sum())
        is_sure = float(plain.answers[plain.best]) >= self.limits.confidence
        return whole if doubt > (1.0 - self.limits.confidence if is_sure else _BELIEVED) else plain

    @cached_property
    def lawless(self) -> bool:
        """Return whether no row explains the counts, so that each cell is labelled by itself."""
        if not self.counts.hits.any() or len(self.counts.tried) < 2:
            return False
        failed = self.counts.hits[self.counts.tried] > 0
        if self._enough_if_certain and not (self.whole.patterns.calls == failed).all(axis=1).any():
            return True
        return self._alone[0] + math.log(NO_RULE) > self.whole.log_evidence

    @cached_property
    def _usual(self) -> int:
        """Return about how many trials a cell needs before it has a label."""
        rate, background = self.belief.typical_rates
        return math.ceil(clean_trials(rate) * (1.0 + 4.0 * min(background / max(rate, 1e-9), 0.5)))

    @cached_property
    def _labels(self) -> NDArray[np.int8]:
        """Return the label of each cell by its own trials: 1 bad, 0 good, -1 not known, shape (X,)."""
        labels = np.full(len(self.counts.hits), -1, dtype=np.int8)
        tried, chance = self.counts.tried, self._alone[1]
        if self.unanimous:
            labels[tried] = self.counts.hits[tried] > 0
            return labels
        least = 1.0 - (1.0 - self.limits.confidence) * _LABEL_SHARE
        rate = max(float(self.counts.hits.sum()) / float(self.counts.trials.sum()), 1e-3)
        enough = _PATIENCE * clean_trials(rate)
        for cell, p in zip(tried, chance, strict=True):
            if max(p, 1.0 - p) >= least or self.counts.trials[cell] >= enough:
                labels[cell] = p >= 0.5
        return labels

    # -- the answer --------------------------------------------------------------------------------------

    @cached_property
    def order(self) -> NDArray[np.intp]:
        """Return the rows from the most probable answer on, shape (H,)."""
        return np.argsort(-self.belief.answers, kind="stable")

    @cached_property
    def best(self) -> Answer:
        """Return the most probable answer, in cells of the view."""
        if self.lawless:
            return self._pair
        row = self.belief.best
        return self.described(row, float(self.whole.answers[row]))

    def described(self, row: int, probability: float) -> Answer:
        """Return a row as an answer, in cells of the view."""
        hypothesis = self.belief.rows.write(row)
        return self._written(hypothesis, probability, every_change=self.belief.rows.tier[row] == 1)

    def _written(self, hypothesis: Hypothesis, probability: float, *, every_change: bool = False) -> Answer:
        hits, trials = (
            self.view.spread(of.astype(np.float64)) for of in (self.counts.hits, self.counts.trials)
        )
        return answer(hypothesis, probability, self.feasible, hits, trials, every_change=every_change)

    @cached_property
    def feasible(self) -> NDArray[np.bool_]:
        """Return which cells of the view can be run, shape of its lattice."""
        return np.asarray(np.append(self.can_run, False)[self.view.group])

    @cached_property
    def _path(self) -> list[Index] | None:
        labels = np.append(self._labels, np.int8(-1))[self.view.group]
        return path(labels, self.feasible, self.view.grid)

    @cached_property
    def _pair(self) -> Answer:
        """Return the answer where no rule holds: the two ends of a path between a bad and a good cell."""
        found = self._path
        labels = np.append(self._labels, np.int8(-1))[self.view.group]
        known = labels == 1
        if found is None:
            kind = "always" if known.any() else "never"
            sets = tuple(np.full(n, kind == "always") for n in self.view.grid.shape)
            return Answer(Hypothesis(kind, sets, ()), (), None, None, 0.0)
        bad, good = found[0], found[-1]
        if not known[bad]:
            bad, good = good, bad
        axes = tuple(i for i, (a, b) in enumerate(zip(bad, good, strict=True)) if a != b)
        hypothesis = Hypothesis("pair", described("pair", known).sets, axes, known)
        steps = len(found) - 2
        if steps or len(axes) > 1:
            return Answer(hypothesis, (), bad, good, self._pair_chance(bad, good) / (1 + steps))
        side = Boundary(axes[0], bad, good, between(axes[0], bad, good))
        return Answer(hypothesis, (side,), bad, good, self._pair_chance(bad, good))

    def _pair_chance(self, bad: Index, good: Index) -> float:
        place = {int(cell): p for cell, p in zip(self.counts.tried, self._alone[1], strict=True)}
        sure_bad, unsure_good = place[int(self.view.group[bad])], place[int(self.view.group[good])]
        return float(sure_bad * (1.0 - unsure_good))

    @cached_property
    def required(self) -> float:
        """Return the posterior at which an answer counts as sure."""
        rate, _ = self.belief.typical_rates
        background = quantile(self.counts.grid.p0, self.belief.backgrounds, 0.5)
        return required_confidence(self.limits.confidence, rate, background)

    @cached_property
    def sure(self) -> bool:
        """Return whether one answer reaches the posterior that is required."""
        if self.lawless:
            found = self._path
            return found is not None and len(found) == 2
        return float(self.belief.answers[self.belief.best]) >= self.required

    @property
    def _enough_if_certain(self) -> bool:
        """Return whether a failure that looks certain is taken to be: each cell could have had its trial."""
        if not self.unanimous or int(self.counts.hits.max(initial=0)) < _REPEATED:
            return False
        return int(self.counts.trials.sum()) >= self._enough

    @property
    def _enough(self) -> int:
        return int(np.count_nonzero(self.can_run | (self.counts.trials > 0))) + _SPARE

    @cached_property
    def ends_wrong(self) -> tuple[str, ...]:
        """Return which stated ends are surely not as stated: `good`, `bad`."""
        wrong = []
        bad_cells = self.belief.bad
        for name, end, is_bad in (("good", self.view.grid.good, False), ("bad", self.view.grid.bad, True)):
            if end is None or self.view.group[end] < 0 or self.lawless:
                continue
            cell = int(self.view.group[end])
            chance = float(bad_cells[cell])
            if (1 - chance if is_bad else chance) >= self.limits.confidence or (
                self.sure and not self.wanted and self.best.hypothesis.is_bad(end) != is_bad
            ):
                wrong.append(name)
        return tuple(wrong)

    @cached_property
    def clean(self) -> int:
        """Return how many passes show a cell to be good, at a cautious estimate of the failure rate."""
        chances = self.belief.bad_rates @ self.counts.grid.kernel
        return clean_trials(quantile(self.counts.grid.rates, chances, CAUTION))

    @cached_property
    def wanted(self) -> list[tuple[int, int]]:
        """Return cells that a sure answer still needs, each with the number of trials that it should have."""
        if not self.sure:
            return []
        best = self.best
        if best.hypothesis.kind == "never":
            cells = np.flatnonzero(self.can_run)
            wanted = [(int(c), 1) for c in _evenly(cells, _MOST_SWEPT)]
        elif best.hypothesis.kind == "always":
            enough = clean_trials(self.belief.typical_rates[0])
            cells = _evenly(np.flatnonzero(self.can_run), _SPREAD)
            wanted = [(int(c), 1 if self.counts.hits[c] else enough) for c in cells]
        else:
            wanted = self._passed_among_bad()
            sides = [(b.bad, b.good) for b in best.boundaries]
            if not sides and best.first_bad is not None and best.last_good is not None:
                sides = [(best.first_bad, best.last_good)]
            for bad, good in sides:
                cell = int(self.view.group[bad])
                if self.counts.hits[cell] < (1 if self._enough_if_certain else FAILURES):
                    # A failure more, however many trials that takes.
                    wanted.append((cell, int(self.counts.trials[cell]) + 1))
                wanted.append((int(self.view.group[good]), 1))
        return [(c, n) for c, n in wanted if self.counts.trials[c] < n and self.can_run[c]]

    def _passed_among_bad(self) -> list[tuple[int, int]]:
        """Return the cells that passed where the likeliest plain row calls them bad, each to be tried twice.

        A history that changes more often than said is rarer than a flaky failure that passed there.
        """
        rows, belief = self.belief.rows, self.belief
        if rows.tier[belief.best] != 1:
            return []
        plain = int(np.where(rows.tier == 0, self.whole.weight, -1.0).argmax())
        tried = self.counts.tried
        odd = tried[rows.says[plain, tried] & (self.counts.hits[tried] == 0)]
        return [(int(cell), _TWICE) for cell in odd]

    @cached_property
    def stands(self) -> bool:
        """Return whether the answer is sure and has what it needs."""
        if not self.can_run.any():
            return True
        if self.counts.trials.sum() == 0:
            return False
        if self.ends_wrong:
            return True
        return self.sure and not self.wanted

    # -- what to try -------------------------------------------------------------------------------------

    def next(
        self,
        count: int,
        running: Mapping[int, int],
        prices: FloatArray,
        allowed: NDArray[np.bool_],
        least: float,
    ) -> list[int]:
        """Return the cells of the next trials before the answer stands, at most `count`.

        Args:
            count: Maximum number of trials.
            running: Number of running trials of each cell.
            prices: Price of each cell's environment in trials, shape (X,).
            allowed: Cells to choose among, shape (X,).
            least: Smallest worth of a trial, as a share of the first one's.
        """
        chosen: list[int] = []
        for cell, wanted in self.wanted:
            if allowed[cell]:
                lacking = wanted - int(self.counts.trials[cell]) - running.get(cell, 0)
                chosen += [cell] * min(max(lacking, 0), count - len(chosen))
        if chosen or (self.sure and self.wanted):
            return chosen
        if self.lawless:
            return self._on_path(count, running, allowed)
        if (first := self._first(running, prices, allowed)) is not None:
            return [first] * max(1, -(-count // 2))
        if self.unanimous and self.counts.hits.any():
            # No certain failure takes longer than one trial of each cell and a few repetitions.
            room = self._enough - int(self.counts.trials.sum()) - sum(running.values())
            count = min(count, room) if room > 0 or running else count
        if count <= 0:
            return []
        for some in (self._sides & allowed, self._worth_trying(running, prices) & allowed, allowed):
            if found := self._most_telling(count, running, prices, some, least):
                return found
            if any(not self.counts.trials[cell] for cell in running):
                return []
        return []

    def _first(
        self, running: Mapping[int, int], prices: FloatArray, allowed: NDArray[np.bool_]
    ) -> int | None:
        """Return a cell to try before others: one that shows how often bad cells fail, or None.

        Once a failure is known to be flaky, that is the bad end, until it failed a few times: knowing the
        rate makes every later step cheaper. Where everything but the few first failures was tried, it is a
        cell that failed: what comes always comes again.
        """
        hits, trials = self.counts.hits, self.counts.trials
        if not hits.any():
            cell = self._bad_end
            return cell if cell >= 0 and allowed[cell] and self._bad_end_next(cell, running, prices) else None
        if self.unanimous:
            cell = int(hits.argmax())
            late = int(trials.sum()) + sum(running.values()) >= self._enough
            wants = late and hits[cell] < _REPEATED
        else:
            cell = self._bad_end
            wants = cell >= 0 and hits[cell] < _END_FAILURES and trials[cell] < _END_TRIALS
            wants = wants and hits[cell] < max(trials[cell], 1) and self.belief.bad[cell] >= 0.5
        return cell if wants and allowed[cell] and running.get(cell, 0) < _REPEATED else None

    def _bad_end_next(self, end: int, running: Mapping[int, int], prices: FloatArray) -> bool:
        """Return whether the bad end is tried next, as long as nothing failed.

        It is tried `_UNSEEN` times. If nobody stated it, it may be good: then others are tried once each, no
        faster than trials have paid for their environments.
        """
        trials = self._with_running(running)
        if not trials.any():
            return False
        if not self.counts.trials[end] and running.get(end):
            return False
        if self.view.grid.bad is not None or trials[end] < _UNSEEN + 2 * np.median(prices):
            return True
        is_swept = np.count_nonzero(trials) >= min(_MOST_SWEPT, np.count_nonzero(self.can_run))
        return bool(is_swept) or self._outruns_trials(trials, prices)

    @cached_property
    def _bad_end(self) -> int:
        """Return the stated bad end, else the cell that the prior is surest to be bad; -1 if it is unsure."""
        if self.view.grid.bad is not None:
            return int(self.view.group[self.view.grid.bad])
        prior = np.where(self.can_run, self.rows.prior @ self.rows.says, -1.0)
        cell = int(prior.argmax())
        return cell if prior[cell] >= _END_CERTAINTY else -1

    def are_worth(self, allowed: NDArray[np.bool_], share: float) -> bool:
        """Return whether the best trial of some cells tells at least a share of what the best of all tells."""
        cells = self._candidates(self.can_run)
        told = Choice(self.belief, cells).information()
        among = told[allowed[cells]]
        return bool(len(among)) and bool(among.max() >= share * told.max())

    def _most_telling(
        self,
        count: int,
        running: Mapping[int, int],
        prices: FloatArray,
        allowed: NDArray[np.bool_],
        least: float,
    ) -> list[int]:
        cells = self._candidates(allowed)
        if not len(cells):
            return []
        choice = Choice(self.belief, cells)
        place = {int(cell): i for i, cell in enumerate(cells)}
        waiting = [place[cell] for cell, n in running.items() if cell in place for _ in range(n)]
        return [int(cells[i]) for i in choice.batch(count, waiting, prices[cells], least)]

    def _worth_trying(self, running: Mapping[int, int], prices: FloatArray) -> NDArray[np.bool_]:
        """Return the cells to choose among at first: untried ones alone once enough trials were repetitions.

        As long as nothing failed, each trial tells most where none was. As long as each cell always failed or
        always passed, no more than `_SPARE` trials are repetitions.
        """
        if not self.unanimous:
            return self.can_run
        trials = self._with_running(running)
        tried = int(np.count_nonzero(trials))
        if self.counts.hits.any():
            is_new = int(trials.sum()) - tried >= _SPARE
        else:
            is_new = not self._outruns_trials(trials, prices)
        return np.asarray(self.can_run & (trials == 0)) if is_new and tried < _MOST_SWEPT else self.can_run

    def _with_running(self, running: Mapping[int, int]) -> NDArray[np.int64]:
        """Return the number of trials of each cell, with those that are running."""
        trials = self.counts.trials.copy()
        for cell, number in running.items():
            trials[cell] += number
        return trials

    def _outruns_trials(self, trials: NDArray[np.int64], prices: FloatArray) -> bool:
        """Return whether another environment would cost more than the trials so far have paid for."""
        return bool(np.median(prices) * np.count_nonzero(trials) > 2 * trials.sum())

    @cached_property
    def _sides(self) -> NDArray[np.bool_]:
        """Return the cells on both sides of the boundary of a leading answer, while a failure looks certain."""
        sides = np.zeros_like(self.can_run)
        if self.unanimous and self.counts.hits.any() and not self.lawless and self.best.probability > 0.5:
            cells = [
                int(self.view.group[cell]) for one in self.best.boundaries for cell in (one.bad, one.good)
            ]
            if cells and self.counts.trials[cells].all():
                sides[cells] = True
        return sides

    def _on_path(self, count: int, running: Mapping[int, int], allowed: NDArray[np.bool_]) -> list[int]:
        """Return trials of the cell in the middle of the path, or of cells that need a label first."""
        chunk = 1 if self.unanimous else max(1, self._usual // 2)
        found = self._path
        unlabelled = [c for c in self.counts.tried if self._labels[c] < 0 and self.can_run[c]]
        cells: list[int] = [int(c) for c in unlabelled]
        if found is not None and len(found) > 2:
            middle = [int(self.view.group[cell]) for cell in found[1:-1]]
            middle = [c for c in middle if self._labels[c] < 0]
            half = sorted(middle, key=lambda c: abs(middle.index(c) - len(middle) / 2))
            on = [c for c in cells if c in middle]
            cells = on or half[:1]
        elif found is None:
            rest = np.flatnonzero(self.can_run & (self.counts.trials == 0))
            cells += [int(c) for c in _evenly(rest, count)]
        chosen: list[int] = []
        for cell in cells:
            if allowed[cell]:
                room = min(count - len(chosen), chunk - running.get(cell, 0))
                chosen += [cell] * max(room, 0)
        return chosen

    def _candidates(self, allowed: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Return the cells among which a choice is made: the most doubtful, and some of all others."""
        cells = np.flatnonzero(allowed & self.can_run)
        if len(cells) <= _CANDIDATES:
            return cells
        bad = self.belief.bad[cells]
        doubtful = np.argsort(np.abs(bad - 0.5), kind="stable")[: _CANDIDATES // 2]
        others = _evenly(np.argsort(bad, kind="stable"), _CANDIDATES // 4)
        tried = np.flatnonzero(self.counts.trials[cells])
        often = tried[np.argsort(-self.counts.trials[cells][tried], kind="stable")][: _CANDIDATES // 4]
        return np.asarray(cells[np.unique(np.concatenate([doubtful, others, often]))])


def _evenly(cells: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """Return up to `count` of some cells, evenly spread."""
    if len(cells) <= count:
        return cells
    return cells[np.unique(np.linspace(0, len(cells) - 1, count).round().astype(np.intp))]
