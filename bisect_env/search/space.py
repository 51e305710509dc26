"""Hypotheses made of one set of bad values for each axis: which there are, and their prior.

Four kinds:

* *all of* (and): bad iff every axis's value lies in that axis's set. A minimal failing configuration and all
  beyond it.
* *any of* (or): bad iff at least one axis's value lies in its set; at least two axes matter. Two causes, or
  a fix that needs several axes at once.
* *never bad*, *always bad*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction, Grid, Index
from bisect_env.search.families import Family, FloatArray, family

NEVER_PRIOR = 0.025
ALWAYS_PRIOR = 0.025
_ANY_OF_PRIOR = 0.07
# Odds of one more axis being involved: most regressions have one culprit.
EXTRA_AXIS_ODDS = 0.4
# Gaps double the sets of an axis; on several such axes a step would take longer than a trial.
_MOST_WITH_GAPS = 20_000
MOST_EXACT = 60_000
"""Hypotheses up to which every one has a row of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Hypothesis:
    """One hypothesis about which combinations are bad, written out as sets of values.

    Attributes:
        kind: `all`, `any`, `never` or `always`; or `frontier` or `pair`, which sets cannot describe: a
            frontier has its bad combinations beyond a staircase, a pair is known by its table alone.
        sets: Per axis, 0/1 over its values: the bad values. All ones (for `all`) or all zeros (for `any`)
            on axes that do not matter.
        culprits: Positions of the axes that matter.
        table: Which combinations are bad, shape of the lattice, where sets do not describe it. The sets are
            then the values at which anything is bad.
    """

    kind: str
    sets: tuple[NDArray[np.bool_], ...]
    culprits: tuple[int, ...]
    table: NDArray[np.bool_] | None = None

    def __eq__(self, other: object) -> bool:
        # Generated comparison would ask arrays for one truth value.
        return (
            isinstance(other, Hypothesis)
            and (self.kind, self.culprits) == (other.kind, other.culprits)
            and all(np.array_equal(mine, its) for mine, its in zip(self.sets, other.sets, strict=True))
            and self._table_bytes() == other._table_bytes()
        )

    def _table_bytes(self) -> bytes:
        return b"" if self.table is None else self.table.tobytes()

    def __hash__(self) -> int:
        return hash((self.kind, self.culprits, *(bad.tobytes() for bad in self.sets)))

    def is_bad(self, index: Index) -> bool:
        """Return whether the combination at `index` is bad under this hypothesis."""
        if self.kind in ("never", "always"):
            return self.kind == "always"
        if self.table is not None:
            return bool(self.table[index])
        inside = (bool(bad[i]) for bad, i in zip(self.sets, index, strict=True))
        return all(inside) if self.kind == "all" else any(inside)

    def bad_cells(self) -> NDArray[np.bool_]:
        """Return which combinations are bad, shape of the lattice."""
        shape = tuple(len(bad) for bad in self.sets)
        if self.kind in ("never", "always"):
            return np.full(shape, self.kind == "always")
        if self.table is not None:
            return self.table.copy()
        combine = np.logical_and if self.kind == "all" else np.logical_or
        cells = np.full(shape, self.kind == "all")
        for axis, bad in enumerate(self.sets):
            cells = combine(cells, bad.reshape([-1 if a == axis else 1 for a in range(len(shape))]))
        return cells


def described(kind: str, bad: NDArray[np.bool_]) -> Hypothesis:
    """Return a table of bad cells as a hypothesis: per axis the values at which anything is bad."""
    axes = range(bad.ndim)
    sets = tuple(np.asarray(bad.any(axis=tuple(a for a in axes if a != axis))) for axis in axes)
    matters = tuple(axis for axis in axes if (np.diff(bad, axis=axis)).any())
    return Hypothesis(kind, sets, matters, bad)


class HypothesisSpace:
    """All hypotheses over a lattice, numbered in one flat order.

    Args:
        shape: Number of values on each axis.
        directions: Where the bad values may lie, one per axis.
        families: Of value sets, one per axis, instead of those that belong to the directions.

    Attributes:
        prior: Shape (hypotheses,), sums to 1.
    """

    def __init__(
        self,
        shape: Sequence[int],
        directions: Sequence[Direction],
        *,
        families: Sequence[Family] | None = None,
    ) -> None:
        self.shape = tuple(shape)
        self._families = list(families or (family(d, n) for d, n in zip(directions, shape, strict=True)))
        if families is None and np.prod([float(len(f.sets)) for f in self._families]) > _MOST_WITH_GAPS:
            self._families = [family(d, n, gaps=False) for d, n in zip(directions, shape, strict=True)]
        self._matrices = [f.sets for f in self._families]
        self._spared = [f.spared for f in self._families]
        self._set_shape = tuple(len(f.sets) for f in self._families)
        self._all_size = int(np.prod(self._set_shape))
        # "Any of" is a hypothesis of its own only where two axes have something to say.
        self._any = sum(n > 1 for n in self.shape) >= 2
        self._any_size = self._all_size if self._any else 0
        self.size = self._all_size + self._any_size + 1
        self.prior = self._prior()

    def _prior(self) -> FloatArray:
        """Return the prior: fewer culprit axes weigh more.

        For given culprits the families' own priors apply.
        """
        involved = _involved_axes(self._families)
        odds = np.array([EXTRA_AXIS_ODDS**k for k in range(len(self.shape) + 1)])
        within = _outer([np.where(f.prior > 0, f.prior, 1.0) for f in self._families])
        weight = within * odds[involved]
        all_of = np.where(involved >= 1, weight, 0.0)
        any_of = np.where(involved >= 2, weight, 0.0)
        change = 1.0 - NEVER_PRIOR - ALWAYS_PRIOR
        any_share = _ANY_OF_PRIOR * change if self._any else 0.0
        all_of = _normalised(all_of) * (change - any_share)
        all_of.flat[0] = ALWAYS_PRIOR
        parts = [all_of.ravel()]
        if self._any:
            parts.append(_normalised(any_of).ravel() * any_share)
        return _normalised(np.concatenate([*parts, np.array([NEVER_PRIOR])]))

    def made_of(self, rows: Sequence[NDArray[np.bool_]]) -> NDArray[np.bool_]:
        """Return which hypotheses use only certain sets.

        Args:
            rows: Per axis 0/1 over its sets, shape (sets,).

        Returns:
            Shape (hypotheses,); *never bad* chooses none, hence is one of them.
        """
        chosen = np.ones((), dtype=bool)
        for row in rows:
            chosen = np.logical_and.outer(chosen, row)
        kinds = [chosen.ravel()] * (2 if self._any else 1)
        return np.concatenate([*kinds, np.ones(1, dtype=bool)])

    def judged(self, hypotheses: NDArray[np.intp], cells: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return which cells each of some hypotheses calls bad.

        Args:
            hypotheses: Positions of the flat order, shape (H,).
            cells: Flat positions on the lattice, shape (X,).

        Returns:
            Shape (H, X).
        """
        any_of = (hypotheses >= self._all_size) & (hypotheses < self.size - 1)
        chosen = np.unravel_index(hypotheses % self._all_size, self._set_shape)
        places = np.unravel_index(cells, self.shape)
        inside = np.ones((len(hypotheses), len(cells)), dtype=bool)
        outside = inside.copy()
        for sets, spared, number, place in zip(self._matrices, self._spared, chosen, places, strict=True):
            inside &= sets[number][:, place] > 0
            outside &= spared[number][:, place] > 0
        bad = np.where(any_of[:, None], ~outside, inside)
        return np.asarray(bad & (hypotheses < self.size - 1)[:, None])

    def hypothesis(self, number: int) -> Hypothesis:
        """Return the hypothesis at a position of the flat order."""
        if number == self.size - 1:
            return self._constant("never")
        kind = "all" if number < self._all_size else "any"
        chosen = np.unravel_index(number % self._all_size, self._set_shape)
        culprits = tuple(i for i, s in enumerate(chosen) if s != 0)
        if kind == "all" and not culprits:
            return self._constant("always")
        sets = tuple(
            np.asarray(f.sets[s] > 0) if s != 0 or kind == "all" else np.zeros(f.sets.shape[1], dtype=bool)
            for f, s in zip(self._families, chosen, strict=True)
        )
        return Hypothesis(kind, sets, culprits)

    def _constant(self, kind: str) -> Hypothesis:
        return Hypothesis(kind, tuple(np.full(n, kind == "always") for n in self.shape), ())


def _involved_axes(families: Sequence[Family]) -> NDArray[np.int64]:
    """Return how many axes each choice of sets involves, shape of the set lattice."""
    counts = np.zeros((1,) * len(families), dtype=np.int64)
    for axis, f in enumerate(families):
        matters = (np.arange(len(f.sets)) > 0).astype(np.int64)
        counts = counts + matters.reshape([-1 if a == axis else 1 for a in range(len(families))])
    return counts


def _outer(vectors: Sequence[FloatArray]) -> FloatArray:
    out = np.ones(())
    for vector in vectors:
        out = np.multiply.outer(out, vector)
    return out


def _normalised(weights: FloatArray) -> FloatArray:
    total = weights.sum()
    return weights / total if total > 0 else weights


def is_large(shape: Sequence[int], directions: Sequence[Direction]) -> bool:
    """Return whether a lattice has more hypotheses than are kept one by one."""
    return 2 * math.prod(_sets(d, n) for d, n in zip(directions, shape, strict=True)) > MOST_EXACT


def _sets(direction: Direction, size: int) -> int:
    """Return the number of sets in a family without gaps."""
    match direction:
        case Direction.EITHER:
            return 1 + 2 * (size - 1) + (size - 1) * (size - 2) // 2
        case Direction.UNORDERED:
            return 1 + (2 * size if size > 2 else size if size == 2 else 0)
        case _:
            return size


def drawn(grid: Grid, rng: np.random.Generator) -> Hypothesis:
    """Draw a hypothesis from the prior of a large lattice, without "never", "always" and *any of*."""
    families = [family(axis.direction, len(axis.values), gaps=False) for axis in grid.axes]
    while True:
        chosen = []
        for one in families:
            weights = np.where(np.arange(len(one.sets)) == 0, 1.0, EXTRA_AXIS_ODDS * one.prior)
            chosen.append(int(rng.choice(len(weights), p=weights / weights.sum())))
        if any(chosen):
            sets = tuple(one.sets[row] > 0 for one, row in zip(families, chosen, strict=True))
            return Hypothesis("all", sets, tuple(i for i, row in enumerate(chosen) if row))
