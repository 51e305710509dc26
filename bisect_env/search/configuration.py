"""Finds which of several failing configurations explains a combination that is known to fail.

While other configurations are not known yet, each combination outside the one that is looked for may be bad
for another reason (`Counts.contamination`). Then two configurations that overlap are both true, and neither
can ever hold the whole belief. So the question is narrowed to one combination x that is bad with near
certainty, for whatever reason:

    P(h | x lies in the configuration that is looked for) ∝ P(h) · [h calls x bad]

Of those combinations the one is taken whose configuration is known best: deep inside two configurations
nothing decides between them, near the edge of one of them everything does.

How many combinations are bad for another reason is not known either; a fixed share would either forbid
several large configurations or count noise as configurations.

An answer is confirmed where its configuration begins: at the combination next to the good end that it calls
bad, and that combination's neighbours. Failures elsewhere may have been those of another configuration, which
makes axes look as if they did not matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction, Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.families import Family, FloatArray
from bisect_env.search.knowledge import position
from bisect_env.search.numeric import logsumexp
from bisect_env.search.posterior import Belief, Counts
from bisect_env.search.question import Question
from bisect_env.search.verdict import Answer, answer

# Share of the combinations outside a configuration that belong to others: hardly any, some, or half.
_CONTAMINATION = {0.02: 1 / 3, 0.2: 1 / 3, 0.5: 1 / 3}
# How surely a combination is bad before a configuration is asked to explain it.
_SURELY = 0.99
# How much better "bad" must explain the counts of a configuration's first combination than the background
# does.
_LOG_FAILS_ITSELF = math.log(20.0)
# Hypotheses that are compared with one another.
_LIKELY, _UNLIKELY = 30, 1e-4


class ConfigurationQuestion(Question):
    """A `Question` about one of several failing configurations.

    Args:
        grid: As for `Question`, and so are `groups` and `settings`.
        groups: Cell to the cell that stands for it.
        limits: When to stop.
        nothing: Prior of *never bad*; None leaves what the space gives it.
        families: As for `Question`.
    """

    def __init__(
        self,
        grid: Grid,
        groups: Mapping[Index, Index],
        limits: SearchLimits | None = None,
        *,
        nothing: float | None = None,
        families: Sequence[Family] | None = None,
    ) -> None:
        # Two causes that suffice each are two configurations here, found one after the other.
        super().__init__(
            grid,
            groups,
            limits,
            nothing=nothing,
            any_of=False,
            contamination=_CONTAMINATION,
            families=families,
        )

    def _believe(self, counts: Counts) -> Belief:
        belief = super()._believe(counts)
        failed = np.flatnonzero(counts.hits)
        if not len(failed):
            return belief
        surely = failed[self._bad_anyway(counts, belief, failed) >= _SURELY]
        if not len(surely):
            return belief
        calls_bad = self._space.judged(np.arange(self._space.size), surely)
        of_best = calls_bad[int(belief.hypotheses.argmax())]
        if of_best.any():
            calls_bad = calls_bad[:, of_best]
        narrowed = [belief.hypotheses * column for column in calls_bad.T]
        shares = [float(self._classes.masses(w).max() / w.sum()) if w.any() else 0.0 for w in narrowed]
        place = int(np.argmax(shares))
        if not shares[place]:
            return belief
        weights = narrowed[place]
        weights[self._within_larger(weights, surely)] = 0.0
        keep, total = weights > 0, float(weights.sum())
        return Belief(
            np.where(keep, belief.weight, 0.0) / total,
            belief.of,
            belief.by_rate,
            belief.by_background,
            belief.log_evidence,
        )

    def _within_larger(self, weights: FloatArray, surely: NDArray[np.intp]) -> NDArray[np.intp]:
        """Likely hypotheses inside another one that calls bad nothing more but what surely is.

        Such a smaller configuration is no rival of the larger one: if it is bad, so is the larger one. No
        trial would ever tell them apart, for the rest may always be bad "for another reason".
        """
        likely = np.argsort(-weights, kind="stable")[:_LIKELY]
        likely = likely[weights[likely] > _UNLIKELY * weights.sum()]
        cells = np.flatnonzero(self._visible)
        calls = self._space.judged(likely, cells).astype(np.float64)
        doubtful = calls * ~np.isin(cells, surely)
        size = calls.sum(axis=1)
        inside = (size[:, None] == calls @ calls.T) & (size[:, None] < size)
        nothing_more = doubtful.sum(axis=1) == calls @ doubtful.T
        return np.asarray(likely[(inside & nothing_more).any(axis=1)], dtype=np.intp)

    def _bad_anyway(self, counts: Counts, belief: Belief, cells: NDArray[np.intp]) -> FloatArray:
        """Posterior that cells are bad, on account of the configuration that is looked for or of another."""
        mine = self._space.bad_mass(belief.hypotheses[:, None])[..., 0].ravel()[cells]
        good = np.maximum(belief.backgrounds - self._space.bad_mass(belief.with_background()), 0.0).reshape(
            counts.hits.size, -1
        )[cells]
        contaminated = np.stack(
            [counts.contaminated(position(int(cell), self._grid.shape)) for cell in cells]
        )
        return np.asarray(mine + (good * contaminated).sum(axis=1))

    def _wanted(self, best: Answer) -> list[tuple[Index, float]]:
        wanted = super()._wanted(best)
        if best.hypothesis.kind == "always":
            # Several configurations together may cover all but a few combinations next to the good end.
            cells = np.argwhere(self._visible)
            nearest = cells[np.abs(cells - self._good_end).sum(axis=1).argmin()]
            start = position(int(np.ravel_multi_index(tuple(nearest), self._grid.shape)), self._grid.shape)
            if not self._has_failed(start):
                wanted.append((start, math.inf))
        return wanted

    def _has_failed(self, cell: Index) -> bool:
        # Of combinations that are not this configuration's, many may be bad for another reason: what the
        # others say of this one is weak, and two failures among many passes may be background.
        if not super()._has_failed(cell):
            return False
        background = np.log(np.maximum(self._belief.backgrounds, 1e-300))
        hits, trials = float(self._counts.hits[cell]), float(self._counts.trials[cell])
        if_good = logsumexp(background + self.rates.if_good(hits, trials))
        return bool(self._counts.evidence_if_bad(cell) - if_good >= _LOG_FAILS_ITSELF)

    def _answer(self, number: int, probability: float) -> Answer:
        hypothesis = self._classes.representative(number, self._group)
        # A combination may share its measurement with one on the other side, and shows no boundary then.
        bad, stands_for = hypothesis.bad_cells(), np.maximum(self._group, 0)
        untried = np.zeros(self._grid.shape)
        return answer(
            hypothesis,
            probability,
            (self._group >= 0) & (bad == bad.ravel()[stands_for]),
            untried,
            untried,
            every_change=not self._is_plain(number),
            towards=self._good_end,
        )

    def _chance_bad(self, index: Index) -> float:
        cell = np.array([self._group[index]], dtype=np.intp)
        return float(self._bad_anyway(self._counts, self._belief, cell)[0])

    @property
    def _good_end(self) -> Index:
        return tuple(
            len(axis.values) - 1 if axis.direction is Direction.FIXED else 0 for axis in self._grid.axes
        )
