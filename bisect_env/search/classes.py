"""Groups hypotheses that no feasible combination tells apart into one answer.

Two hypotheses are equal to us when they call the same *visible* cells bad: cells that can be run, one for
each group of combinations that share a measurement. Listing bad cells would cost `hypotheses × cells`;
instead every visible cell gets a random integer, and the sum over a hypothesis's bad cells, one more mode
product, is its fingerprint. Integers below 2^32 keep every sum exact in float64 up to 2^21 cells; with two
of them a chance collision has probability below hypotheses² / 2^65.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Index
from bisect_env.search.families import FloatArray
from bisect_env.search.space import Hypothesis, HypothesisSpace

# Members of a class that are looked at when one has to speak for it, and judgements (members times cells).
_MEMBERS, _JUDGED = 4096, 1 << 22


class Classes:
    """A partition of the hypotheses into classes that label all visible cells alike.

    Args:
        space: The hypotheses.
        visible: Shape of the lattice; cells where something can be learnt.

    Attributes:
        of: Class number of each hypothesis, shape (H,).
        prints: Fingerprint of each class, shape (classes, 2); the same for what says the same of the same
            visible cells, whatever space it is of.
        count: Number of classes.
        never: Class of the hypotheses that call no visible cell bad.
        always: Class of those that call every visible cell bad.
    """

    def __init__(self, space: HypothesisSpace, visible: NDArray[np.bool_]) -> None:
        self._space = space
        marks = np.random.default_rng(0).integers(1, 2**32, size=(*space.shape, 2)).astype(np.float64)
        prints = space.bad_totals(marks * visible[..., None])
        self.prints, self.of = np.unique(prints, axis=0, return_inverse=True)
        self.of = self.of.reshape(-1)
        self.count = int(self.of.max()) + 1
        self.never = int(self.of[space.never])
        self.always = int(self.of[space.always])

    def masses(self, hypotheses: FloatArray) -> FloatArray:
        """Return the posterior of each class, shape (classes,)."""
        return np.asarray(np.bincount(self.of, weights=hypotheses, minlength=self.count), dtype=np.float64)

    def representative(self, number: int, group: NDArray[np.intp]) -> Hypothesis:
        """Return the simplest member of a class: it splits the fewest groups, then has the largest prior.

        Args:
            number: Class number.
            group: For each cell the flat position of the cell that stands for its group, -1 if infeasible;
                shape of the lattice.
        """
        if number == self.never:
            return self._space.hypothesis(self._space.never)
        if number == self.always:
            return self._space.hypothesis(self._space.always)
        return simplest(self._space, np.flatnonzero(self.of == number), group)


def simplest(space: HypothesisSpace, members: NDArray[np.intp], group: NDArray[np.intp]) -> Hypothesis:
    """Return, of hypotheses that agree about every measurement, the one that splits the fewest groups.

    A boundary between versions that share one environment would fit as well but mean nothing to a reader:
    both sides would be the same trials.

    Args:
        space: The hypotheses.
        members: Numbers of those that agree; ties go to the largest prior.
        group: For each cell the flat position of the cell that stands for its group, -1 if infeasible; shape
            of the lattice.
    """
    members = members[np.argsort(-space.prior[members], kind="stable")][:_MEMBERS]
    flat = group.ravel()
    others = np.flatnonzero((flat >= 0) & (flat != np.arange(len(flat))))
    most = _JUDGED // len(members)
    if len(others) > most:
        others = others[np.linspace(0, len(others) - 1, most).round().astype(np.intp)]
    split = space.judged(members, others) != space.judged(members, flat[others])
    return space.hypothesis(int(members[int(np.count_nonzero(split, axis=1).argmin())]))


def boundary_pairs(
    bad: NDArray[np.bool_], feasible: NDArray[np.bool_], axis: int
) -> list[tuple[Index, Index]]:
    """Return pairs (bad, good) of feasible cells that are neighbours along one axis.

    Args:
        bad: Which cells a hypothesis calls bad, shape of the lattice.
        feasible: Which cells can be run, shape of the lattice.
        axis: The axis along which the two differ.

    Returns:
        Pairs with nothing but infeasible cells in between, in row-major order of the line they lie on.
    """
    values, can_run = np.moveaxis(bad, axis, -1), np.moveaxis(feasible, axis, -1)
    reached = np.maximum.accumulate(np.where(can_run, np.arange(can_run.shape[-1]), -1), axis=-1)
    # Where each cell's nearest feasible neighbour below lies; -1 if there is none.
    below = np.concatenate([np.full_like(reached[..., :1], -1), reached[..., :-1]], axis=-1)
    differs = values != np.take_along_axis(values, np.maximum(below, 0), axis=-1)
    pairs: list[tuple[Index, Index]] = []
    for place in np.argwhere(can_run & (below >= 0) & differs):
        *rest, high = (int(i) for i in place)
        low = int(below[tuple(place)])
        here, there = ((*rest[:axis], position, *rest[axis:]) for position in (low, high))
        pairs.append((there, here) if bad[there] else (here, there))
    return pairs
