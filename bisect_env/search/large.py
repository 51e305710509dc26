"""Belief and scores over lattices of a million combinations, on any array library.

`update` and `information` keep a row for every hypothesis, dozens of columns wide. Here hypotheses that say
the same of all *tried* combinations share one row, and with `S_i(s)` the sets of axis `i`, the prior of an
*all of* hypothesis is the product `Π π_i(s_i)` of one factor an axis. So the weight of all hypotheses that
call a cell bad is

    M[x, j] = Σ_c E[c, j] · Π_i G_i[c_i, x_i]        G_i[c_i, x_i] = Σ_{s in class c_i} π_i(s) · S_i(s)[x_i]

where `c` runs over combinations of classes (an axis has at most one class more than it has tried values), and
E is the likelihood at each (m, σ). It costs `O(cells · largest number of classes · columns)`.

*Any of* hypotheses are left out: their prior does not factor. Everything else equals `update` and
`information` on a `HypothesisSpace(..., any_of=False)`; `tests/search/test_large.py` compares them.

The arrays may be numpy's, or those of any library that follows the array API standard (torch, CuPy), on any
device: https://data-apis.org/array-api/latest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np

from bisect_env.matrix.grid import Direction, Index
from bisect_env.search.acquisition import RATES_WEIGHT
from bisect_env.search.families import Family, FloatArray, family
from bisect_env.search.rates import IMPOSSIBLE, RateGrid
from bisect_env.search.space import ALWAYS_PRIOR, EXTRA_AXIS_ODDS, NEVER_PRIOR

Array = Any
"""An array of whichever library is in use."""


@dataclass(frozen=True)
class LargeBelief:
    """The posterior over a large lattice, in rows of classes; spread over all cells on demand.

    Attributes:
        weights_bad: Weight of each row by (m, σ), before the prior, shape (J, *classes).
        weights_good: The same by p0, shape (K, *classes).
        spreads: Per axis, G: prior weight of a class that calls a value bad, shape (classes, values).
        always_bad: Weight of *always bad* by (m, σ) beyond its share of the product prior, shape (J,).
        always_good: The same by p0, shape (K,).
        everything_good: Weight of all hypotheses by p0, shape (K,).
        scale: What the product prior is to be multiplied by.
        never: Posterior of *never bad*.
        always: Posterior of *always bad*.
        log_evidence: Log marginal likelihood of all counts.
    """

    weights_bad: Array
    weights_good: Array
    spreads: tuple[Array, ...]
    always_bad: Array
    always_good: Array
    everything_good: Array
    scale: float
    never: float
    always: float
    log_evidence: float

    def bad(self, columns: Array, spreads: Sequence[Array] | None = None) -> Array:
        """Sums over (m, σ) of the weight that calls each cell bad.

        Args:
            columns: What each sum multiplies the weights by, shape (sums, J); as many rows as are needed, for
                the cost is theirs.
            spreads: Other values than all, as columns of `spreads`.

        Returns:
            Shape (sums, *lattice).
        """
        return self._summed(columns, self.weights_bad, self.always_bad, spreads or self.spreads)

    def good(self, columns: Array) -> Array:
        """The same over p0 for the weight that calls each cell good; `columns` has shape (sums, K)."""
        called_bad = self._summed(columns, self.weights_good, self.always_good, self.spreads)
        left = _column(columns @ self.everything_good, called_bad) - called_bad
        xp = array_api_compat.array_namespace(left)
        return xp.where(left > 0, left, xp.zeros_like(left))

    @property
    def probability_bad(self) -> Array:
        """Posterior that each cell is bad, shape of the lattice."""
        xp = array_api_compat.array_namespace(self.weights_bad)
        return self.bad(xp.ones_like(xp.expand_dims(self.always_bad, axis=0)))[0, ...]

    def _summed(self, columns: Array, weights: Array, always: Array, spreads: Sequence[Array]) -> Array:
        xp = array_api_compat.array_namespace(weights)
        rows = xp.tensordot(columns, weights, axes=((1,), (0,)))
        over = _spread(xp, rows, spreads)
        return over * self.scale + _column(columns @ always, over)


class LargeLattice:
    """Hypotheses over a large lattice.

    Args:
        shape: Number of values on each axis.
        directions: Where the bad values may lie, one an axis.
        rates: Prior of the rates.
        like: An array of the library, on the device, that is to be used; None = numpy.
    """

    def __init__(
        self,
        shape: Sequence[int],
        directions: Sequence[Direction],
        rates: RateGrid,
        *,
        like: Array | None = None,
    ) -> None:
        self.shape = tuple(shape)
        self.rates = rates
        self._families = [family(d, n, gaps=False) for d, n in zip(directions, shape, strict=True)]
        self._xp: Any = array_api_compat.array_namespace(np.zeros(1) if like is None else like)
        self._device = None if like is None else array_api_compat.device(like)
        weights = [_axis_weights(f) for f in self._families]
        total = float(np.prod([w.sum() for w in weights])) - 1.0
        self._scale = (1.0 - NEVER_PRIOR - ALWAYS_PRIOR) / total if total > 0 else 0.0
        self._whole = NEVER_PRIOR + ALWAYS_PRIOR + self._scale * total
        self._weights = weights

    def belief(self, tried: Sequence[Index], log_bad: FloatArray, log_good: FloatArray) -> LargeBelief:
        """The posterior after the counts of some cells.

        Args:
            tried: Distinct cells with trials, T of them, at least one.
            log_bad: Log likelihood of each one's counts if it is bad, shape (T, J).
            log_good: The same if it is good, shape (T, K).
        """
        xp = self._xp
        places = np.array(tried, dtype=np.int64).reshape(len(tried), len(self.shape))
        classes, spreads, sums, whole = [], [], [], []
        slots = np.empty_like(places)
        for axis, (f, weight) in enumerate(zip(self._families, self._weights, strict=True)):
            values, slots[:, axis] = np.unique(places[:, axis], return_inverse=True)
            rows, of = np.unique(f.sets[:, values], axis=0, return_inverse=True)
            member = np.zeros((len(rows), len(f.sets)))
            member[of.reshape(-1), np.arange(len(f.sets))] = weight
            classes.append(self._array(rows))
            spreads.append(self._array(member @ f.sets))
            sums.append(self._array(member.sum(axis=1)))
            whole.append(int(of.reshape(-1)[0]))
        a = self._totals(slots, log_bad, classes)
        all_good = log_good.sum(axis=0)
        column = (-1, *(1 for _ in self.shape))
        b = xp.reshape(self._array(all_good), column) - self._totals(slots, log_good, classes)
        joint = self._array(self.rates.joint)
        bad, good, log_scale = _weigh(xp, a, b, joint)
        # Priors: a product for "all of", and the two constants by themselves.
        _, never_good, never_scale = _weigh(
            xp,
            self._array(np.zeros((len(self.rates.m), 1))),
            self._array(np.where(self.rates.too_often, IMPOSSIBLE, all_good)[:, None]),
            joint,
        )
        peak = max(float(xp.max(log_scale)), float(never_scale[0]))
        factor = xp.exp(log_scale - peak)
        bad, good = bad * xp.expand_dims(factor, axis=0), good * xp.expand_dims(factor, axis=0)
        never_factor = float(xp.exp(never_scale - peak)[0]) * NEVER_PRIOR
        corner = (slice(None), *whole)
        # The product prior has 1 for "always bad", where it should have its own.
        correction = ALWAYS_PRIOR - self._scale
        everything = _spread(xp, good, [xp.expand_dims(s, axis=1) for s in sums]) * self._scale
        everything = (
            xp.reshape(everything, (-1,)) + good[corner] * correction + never_good[:, 0] * never_factor
        )
        total = float(xp.sum(everything))
        return LargeBelief(
            weights_bad=bad,
            weights_good=good,
            spreads=tuple(spreads),
            always_bad=bad[corner] * (correction / total),
            always_good=good[corner] * (correction / total),
            everything_good=everything / total,
            scale=self._scale / total,
            never=float(xp.sum(never_good)) * never_factor / total,
            always=float(xp.sum(good[corner])) * ALWAYS_PRIOR / total,
            log_evidence=peak + float(np.log(total / self._whole)),
        )

    def information(
        self, belief: LargeBelief, tried: Sequence[Index] = (), own_rate: Sequence[FloatArray] = ()
    ) -> Array:
        """Bits that one trial of each cell tells, rates at their weight (see `acquisition`).

        Args:
            belief: The posterior.
            tried: Cells with trials.
            own_rate: Posterior of each one's own rate if it is bad, shape (J, R) each.

        Returns:
            Shape of the lattice.
        """
        xp, rates = self._xp, self.rates
        if_bad = rates.kernel @ rates.rates
        by_bad = self._array(np.stack([np.ones_like(if_bad), if_bad, _entropy(np, if_bad)]))
        by_good = self._array(np.stack([np.ones_like(rates.p0), rates.p0, _entropy(np, rates.p0)]))
        bad = xp.reshape(belief.bad(by_bad), (3, -1))
        good = xp.reshape(belief.good(by_good), (3, -1))
        chance_bad, hit, known_bad = bad[0, :], bad[1, :], bad[2, :]
        if len(tried):
            theirs = self._at(belief, tried)
            own = np.stack([cell @ rates.rates for cell in own_rate], axis=1)
            its_hit = xp.sum(theirs * self._array(own), axis=0)
            its_known = xp.sum(theirs * self._array(_entropy(np, own)), axis=0)
            # One by one: the standard has no assignment to a list of places.
            for at, place in enumerate(np.ravel_multi_index(tuple(np.array(tried).T), self.shape)):
                hit[int(place)] = its_hit[at]
                known_bad[int(place)] = its_known[at]
        known = known_bad + good[2, :]
        side = _given(xp, hit, chance_bad) + _given(xp, good[1, :], good[0, :])
        bits = _entropy(xp, hit + good[1, :]) - (RATES_WEIGHT * known + (1 - RATES_WEIGHT) * side)
        return xp.reshape(xp.where(bits > 0, bits, xp.zeros_like(bits)), self.shape)

    def _at(self, belief: LargeBelief, cells: Sequence[Index]) -> Array:
        """Weight that calls some cells bad by (m, σ), shape (J, cells)."""
        xp = self._xp
        few, slots = [], []
        for axis, values in enumerate(np.array(cells).T):
            distinct, slot = np.unique(values, return_inverse=True)
            few.append(xp.take(belief.spreads[axis], self._array(distinct, integer=True), axis=1))
            slots.append(slot.reshape(-1))
        over = belief.bad(self._array(np.eye(len(self.rates.m))), few)
        flat = np.ravel_multi_index(tuple(slots), tuple(int(s.shape[1]) for s in few))
        return xp.take(xp.reshape(over, (len(self.rates.m), -1)), self._array(flat, integer=True), axis=1)

    def _array(self, values: FloatArray | Any, *, integer: bool = False) -> Array:
        xp = self._xp
        kind = xp.int64 if integer else xp.float64
        return xp.asarray(np.ascontiguousarray(values), dtype=kind, device=self._device)

    def _totals(self, slots: np.ndarray, log: FloatArray, classes: Sequence[Array]) -> Array:
        """Sums over the bad cells of each combination of classes, shape (columns, *classes)."""
        shape = tuple(int(c.shape[1]) for c in classes)
        cells = np.zeros((log.shape[1], *shape))
        cells[(slice(None), *slots.T)] = log.T
        return _spread(self._xp, self._array(cells), [c.T for c in classes])


def _spread(xp: Any, tensor: Array, matrices: Sequence[Array]) -> Array:
    """Multiply axis i + 1 of a tensor (columns, …) by `matrices[i]` (in × out), for every i."""
    for matrix in matrices:
        # The contracted axis goes, and the new one comes last: after all of them they are in order again.
        tensor = xp.tensordot(tensor, matrix, axes=((1,), (0,)))
    return tensor


def _column(values: Array, over: Array) -> Array:
    """Values of shape (columns,) so that they broadcast over a tensor (columns, …)."""
    xp = array_api_compat.array_namespace(values)
    return xp.reshape(values, (-1, *(1 for _ in over.shape[1:])))


def _axis_weights(f: Family) -> FloatArray:
    """Prior factor of each set of an axis; 1 for "does not matter"."""
    return np.where(np.arange(len(f.sets)) == 0, 1.0, EXTRA_AXIS_ODDS * f.prior)


def _weigh(xp: Any, a: Array, b: Array, joint: Array) -> tuple[Array, Array, Array]:
    """Likelihood of each row at each (m, σ) and at each p0, and the logarithm of their common scale."""
    top_a, top_b = xp.max(a, axis=0), xp.max(b, axis=0)
    exp_a, exp_b = xp.exp(a - xp.expand_dims(top_a, axis=0)), xp.exp(b - xp.expand_dims(top_b, axis=0))
    with_bad = exp_a * xp.tensordot(joint, exp_b, axes=((1,), (0,)))
    with_good = exp_b * xp.tensordot(joint, exp_a, axes=((0,), (0,)))
    return with_bad, with_good, top_a + top_b


def _entropy(xp: Any, p: Array) -> Array:
    tiny = 1e-300
    q = 1.0 - p
    safe_p = xp.where(p > tiny, p, xp.ones_like(p))
    safe_q = xp.where(q > tiny, q, xp.ones_like(q))
    return -(safe_p * xp.log(safe_p) + safe_q * xp.log(safe_q)) / float(np.log(2.0))


def _given(xp: Any, hit: Array, chance: Array) -> Array:
    safe = xp.where(chance > 1e-300, chance, xp.full_like(chance, 1e-300))
    return safe * _entropy(xp, hit / safe)
