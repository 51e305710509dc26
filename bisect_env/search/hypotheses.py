"""Hypotheses about which cells are bad, as rows of a table. Pure.

A *row* calls each cell of the lattice bad or good. Rows come from generators, which give each row a prior:

* products (tier 0): one set of bad values for each axis; a cell is bad if all its values are in their sets,
  or, for several causes, if any is. Sets change along an axis as its direction says.
* histories (tier 1): products whose sets change up to three times along an axis.
* staircases (tiers 2 to 4): tables that change one to three times on the way upward, sampled among the tables
  that agree with the labels of the tried cells (`staircase.py`).

Where no row explains the counts, each cell is bad or good by itself (`independent.py`). Rows of a lower tier
are simpler: if several rows agree on all tried cells, only rows of the lowest tier count as answers.

Array shapes: H rows, X groups of combinations (each represented by one cell), P patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bisect_env.search.families import FloatArray
from bisect_env.search.space import Hypothesis

AT_ONCE = 512
"""Number of hypotheses or patterns that are computed with at once."""


def _not_written(row: int) -> Hypothesis:
    raise ValueError(f"row {row} has no description as sets of values")


@dataclass(frozen=True, eq=False)
class HypothesisRows:
    """A table of hypotheses: each row has the combinations that the hypothesis calls bad, and its prior.

    Attributes:
        says: True where a row calls a cell bad, shape (H, X).
        prior: Prior of each row, shape (H,).
        tier: Tier of each row, shape (H,).
        write: Returns a row as a `Hypothesis` over the lattice.
    """

    says: NDArray[np.bool_]
    prior: FloatArray
    tier: NDArray[np.int8]
    write: Callable[[int], Hypothesis] = _not_written
    _patterns: dict[bytes, Patterns] = field(default_factory=dict, init=False)

    def patterns(self, tried: NDArray[np.intp]) -> Patterns:
        """Group the hypotheses into patterns: those that call the same tried combinations bad.

        The result is cached until the method is called with other combinations.

        Args:
            tried: Positions of the tried combinations, ascending.
        """
        key = tried.tobytes()
        if key not in self._patterns:
            self._patterns.clear()
            self._patterns[key] = Patterns.of_rows(self, tried)
        return self._patterns[key]

    @cached_property
    def prior_bad(self) -> FloatArray:
        """Return the prior probability that each group of combinations is bad, shape (X,)."""
        return share_bad(self.prior, self.says)

    @cached_property
    def never(self) -> NDArray[np.bool_]:
        """Return which hypotheses call no combination bad, as a boolean array of shape (H,)."""
        return np.asarray(~self.says.any(axis=1))

    @cached_property
    def always(self) -> NDArray[np.bool_]:
        """Return which hypotheses call all combinations bad, as a boolean array of shape (H,)."""
        return np.asarray(self.says.all(axis=1))


@dataclass(frozen=True, eq=False)
class Patterns:
    """A division of all hypotheses into patterns: groups that call the same tried combinations bad.

    All hypotheses of one pattern have the same likelihood.

    Attributes:
        of: Number of each row's pattern, shape (H,).
        calls: 1 where a pattern calls a tried cell bad, else 0; shape (P, tried cells).
        prior: Prior of each pattern, shape (P,).
        share: Share of each row in the probability of its pattern, shape (H,). The rows of the lowest tier
            share it in proportion to their priors, and all others have 0, since trials give no reason to
            believe in a more complicated row.
        tier: Lowest tier of a row of each pattern, shape (P,).
        never: Number of the pattern that has only the row that calls nothing bad; -1 if there is no such row.
    """

    of: NDArray[np.intp]
    calls: FloatArray
    prior: FloatArray
    share: FloatArray
    tier: NDArray[np.int8]
    never: int

    @classmethod
    def of_rows(cls, rows: HypothesisRows, tried: NDArray[np.intp]) -> Patterns:
        """Divide hypotheses into patterns: those that call the same combinations of `tried` bad."""
        says = rows.says[:, tried]
        _, first, of = np.unique(packed(says), return_index=True, return_inverse=True)
        of, calls, never = of.reshape(-1), says[first], -1
        if rows.never.any():
            # "Never" has its own pattern: equal failures of all combinations mean "always bad" instead.
            never = len(calls)
            of = np.where(rows.never, never, of)
            calls = np.concatenate([calls, np.zeros((1, len(tried)), dtype=bool)])
        lowest = np.full(len(calls), np.iinfo(np.int8).max, dtype=np.int8)
        np.minimum.at(lowest, of, rows.tier)
        simple = np.where(rows.tier == lowest[of], rows.prior, 0.0)
        total = np.bincount(of, weights=simple, minlength=len(calls))
        prior = np.bincount(of, weights=rows.prior, minlength=len(calls)).astype(np.float64)
        share = simple / np.where(total > 0, total, 1.0)[of]
        return cls(of, calls.astype(np.float64), prior, share, lowest, never)

    @cached_property
    def most_prior(self) -> FloatArray:
        """Return the greatest prior of patterns above tier 0 that begin alike and change equally often.

        The shape is (2, changes + 1): the first index is 1 for patterns that call the first tried cell bad,
        the second is the number of changes from one tried cell to the next.
        """
        above = self.tier > 0
        changes = np.count_nonzero(np.diff(self.calls, axis=1), axis=1)[above]
        most = np.zeros((2, int(changes.max(initial=0)) + 1))
        np.maximum.at(most, (self.calls[above, 0].astype(np.intp), changes), self.prior[above])
        return most


def joined(parts: Sequence[HypothesisRows]) -> HypothesisRows:
    """Join the hypotheses of several generators in one table, with unchanged priors."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(len(part.prior) for part in parts)])

    def write(row: int) -> Hypothesis:
        number = int(np.searchsorted(starts, row, side="right")) - 1
        return parts[number].write(row - int(starts[number]))

    return HypothesisRows(
        np.concatenate([part.says for part in parts]),
        np.concatenate([part.prior for part in parts]),
        np.concatenate([part.tier for part in parts]),
        write,
    )


def share_bad(weights: FloatArray, says: NDArray[np.bool_]) -> FloatArray:
    """Return the total weight of the hypotheses that call each combination bad, shape (X,).

    Args:
        weights: Weight of each hypothesis, shape (H,).
        says: True where a hypothesis calls a combination bad, shape (H, X).
    """
    # The product converts the table to floats: in parts that fit into a cache, it takes a fifth of the time.
    parts = [slice(start, start + AT_ONCE) for start in range(0, len(weights), AT_ONCE)]
    return np.asarray(sum((weights[part] @ says[part] for part in parts), np.zeros(says.shape[1])))


def packed(rows: NDArray[np.bool_]) -> NDArray[np.void]:
    """Pack each row of a boolean array into one value, so that rows can be sorted and compared.

    The result has the shape (rows,).
    """
    bits = np.packbits(rows, axis=1) if rows.shape[1] else np.zeros((len(rows), 1), np.uint8)
    return np.ascontiguousarray(bits).view(np.dtype((np.void, bits.shape[1]))).reshape(-1)
