"""Generators of hypotheses: products of value sets, histories that change more often, staircases. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Index
from bisect_env.search.hypotheses import Rows, packed
from bisect_env.search.nonmonotone import Histories, histories
from bisect_env.search.space import HypothesisSpace, described
from bisect_env.search.staircase import Staircase, ordered_axes, staircases
from bisect_env.search.view import View

_STATED_DOUBT = 0.1
"""Odds that a stated end is not as stated: people state what they saw, on another machine perhaps."""
_STAIRCASES, _TURNS_BACK = 0.1, 0.25
"""Prior of all frontiers together, relative to products; and of each further change, relative to one less."""
_STEEPNESS, _STEEP = 0.5, 4.0
"""Shape of the steps between the values of an axis, and mean of how fast a drawn staircase rises."""
_DRAWN = 96
"""Staircases that are drawn for each orientation and number of changes."""
_BOUNDS = 0.5
"""Share of the two bounds among the drawn staircases: what is between them is open until they agree."""
_MOST_CHANGES = 3
_ORIENTATIONS = 4


def wider(view: View, tried: Sequence[Index]) -> Histories | None:
    """Return the histories that change more often than directions say; None where there are none.

    Args:
        view: The cells.
        tried: Cells of the view with trials; long axes change more often only next to them.

    Returns:
        The same object as before where nothing else was tried that matters.
    """
    shape = view.grid.shape
    ends = [end for end in (view.grid.good, view.grid.bad) if end is not None]
    values = tuple(tuple(sorted({cell[axis] for cell in [*tried, *ends]})) for axis in range(len(shape)))
    return histories(shape, [axis.direction for axis in view.grid.axes], values)


def products(view: View, wide: Histories | None, seen: NDArray[np.bool_]) -> Rows:
    """Return all products of value sets over a view, and histories that change more often.

    Rows that agree on all cells that were tried or can be tried are one row, with their priors added.

    Args:
        view: The cells.
        wide: From `wider`; None for none.
        seen: Which cells were tried or can be tried, shape (X,).
    """
    shape = view.grid.shape
    directions = [axis.direction for axis in view.grid.axes]
    space = HypothesisSpace(shape, directions, families=wide.families if wide else None)
    tier = np.zeros(space.size, dtype=np.int8)
    if wide is not None:
        tier = (~space.made_of(wide.plain)).astype(np.int8)
    says = space.judged(np.arange(space.size), view.flat)
    prior = space.prior.copy()
    for end, is_bad in ((view.grid.good, False), (view.grid.bad, True)):
        if end is not None:
            prior[says[:, view.group[end]] != is_bad] *= _STATED_DOUBT
    prior /= prior.sum()
    _, of = np.unique(packed(says[:, seen]), return_inverse=True)
    of = of.reshape(-1)
    # The simplest member stands for all: of the lowest tier, splitting the fewest groups, the likeliest.
    split = _splits(space, view)
    order = np.lexsort((-prior, split, tier))
    stands = order[np.unique(of[order], return_index=True)[1]]
    merged = np.bincount(of, weights=prior).astype(np.float64)
    return Rows(
        says[stands],
        merged,
        tier[stands],
        lambda row: space.hypothesis(int(stands[row])),
    )


def _splits(space: HypothesisSpace, view: View) -> NDArray[np.intp]:
    """Return how many cells each row calls other than the cell that stands for their group, shape (H,)."""
    if not len(view.flat):
        return np.zeros(space.size, dtype=np.intp)
    group = view.group.ravel()
    others = np.flatnonzero((group >= 0) & (view.flat[np.maximum(group, 0)] != np.arange(len(group))))
    if not len(others):
        return np.zeros(space.size, dtype=np.intp)
    every = np.arange(space.size)
    of = view.flat[group[others]]
    differ = space.judged(every, others) != space.judged(every, of)
    return np.asarray(np.count_nonzero(differ, axis=1), dtype=np.intp)


def staircase_rows(view: View, labels: NDArray[np.int8], can_run: NDArray[np.bool_]) -> Rows | None:
    """Return a sample of the staircases that agree with labels; None where there are none.

    Args:
        view: The cells.
        labels: 1 bad, 0 good, -1 not known, shape (X,).
        can_run: Which cells can still be tried, shape (X,).
    """
    if len(ordered_axes(view.grid)) < 2 or len({int(one) for one in labels if one >= 0}) < 2:
        return None
    table = np.append(labels, np.int8(-1))[view.group]
    flat = np.zeros(view.group.size, dtype=np.bool_)
    flat[view.flat] = can_run
    visible = flat.reshape(view.group.shape)
    for changes in range(1, _MOST_CHANGES + 1):
        if found := staircases(table, view.grid, changes, visible):
            return _sample(found[:_ORIENTATIONS], changes, view, can_run | (labels >= 0))
    return None


def _sample(found: Sequence[Staircase], changes: int, view: View, seen: NDArray[np.bool_]) -> Rows:
    """Return staircases drawn between the bounds of some orientations, those that agree merged.

    Args:
        found: The bounds of each orientation.
        changes: Maximum number of changes.
        view: The cells.
        seen: Which cells were tried or can be tried, shape (X,).
    """
    rng = np.random.default_rng(0)
    tables, weights = [], []
    for stairs in found:
        drawn = _drawn(stairs, rng)
        tables.append(drawn)
        share = np.full(len(drawn), (1.0 - _BOUNDS) / max(len(drawn) - 2, 1))
        share[:2] = _BOUNDS / min(len(drawn), 2)
        weights.append(2.0**-stairs.bits * share)
    bad = np.concatenate(tables)
    says = bad.reshape(len(bad), -1)[:, view.flat]
    _, first, of = np.unique(packed(says[:, seen]), return_index=True, return_inverse=True)
    whole = _STAIRCASES * _TURNS_BACK ** (changes - 1)
    prior = whole * np.bincount(of.reshape(-1), weights=np.concatenate(weights)).astype(np.float64)
    tier = np.full(len(first), 1 + changes, dtype=np.int8)
    return Rows(says[first], prior, tier, lambda row: described("frontier", bad[first[row]]))


def _drawn(stairs: Staircase, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return staircases between the bounds of the labels, drawn at random, shape (drawn, *lattice).

    With U a random field that never falls on the way upward, ⌊least + U·(most − least)⌋ is a level that
    never falls either: its change from cell to cell is a mean of the changes of both bounds, plus that of U.
    """
    bad_if_odd = not stairs.begins_bad
    if (stairs.least == stairs.most).all():
        return np.asarray((stairs.least % 2 == 1) == bad_if_odd)[None]
    shape = stairs.least.shape
    field = np.zeros((_DRAWN, *shape))
    for axis in stairs.axes:
        along = np.cumsum(rng.gamma(_STEEPNESS, size=(_DRAWN, shape[axis])), axis=1)
        along = along / np.maximum(along[:, -1:], 1e-12) * rng.gamma(_STEEPNESS, size=(_DRAWN, 1))
        if axis in stairs.back:
            along = along[:, ::-1]
        field = field + along.reshape([_DRAWN, *(n if a == axis else 1 for a, n in enumerate(shape))])
    flat = field.reshape(_DRAWN, -1)
    low, range_ = flat.min(axis=1), np.maximum(np.ptp(flat, axis=1), 1e-12)
    at = low + range_ * rng.random(_DRAWN)
    steep = rng.exponential(_STEEP, _DRAWN) / range_
    rise = np.clip((flat - at[:, None]) * steep[:, None] + rng.random((_DRAWN, 1)), 0.0, 1.0)
    rise[0], rise[1] = 0.0, 1.0
    least, most = stairs.least.ravel(), stairs.most.ravel()
    # A cell with a label has a level of its parity, in the same order as before.
    step = np.where(stairs.known.ravel(), 2, 1)
    level = (least + step * np.rint(rise * (most - least) / step)).astype(np.int8)
    return np.asarray((level % 2 == 1) == bad_if_odd).reshape(_DRAWN, *shape)
