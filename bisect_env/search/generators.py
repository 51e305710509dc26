"""Generators: functions that return hypotheses with their priors. Pure.

`products` combines one set of bad values per axis, with or without the histories of `nonmonotone.py`;
`staircase_rows` draws borders between good and bad through several axes (`staircase.py`). Array shapes: H
hypotheses, X groups of combinations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bisect_env.search.families import Family
from bisect_env.search.hypotheses import HypothesisRows, packed
from bisect_env.search.space import HypothesisSpace, described
from bisect_env.search.staircase import Staircase, ordered_axes, staircases, upward
from bisect_env.search.view import LatticeView

_STATED_DOUBT = 0.1
"""Odds that a stated end is not as stated: users state what they saw, perhaps on another machine."""
_STAIRCASES, _TURNS_BACK = 0.1, 0.25
"""Prior of all frontiers together, relative to products; and prior of each further change, relative to one
change less."""
_STEEPNESS, _STEEP = 0.5, 4.0
"""Shape of the steps between the values of an axis, and mean of how fast a drawn staircase rises."""
_DRAWN = 96
"""Staircases that are drawn for each orientation and number of changes."""
_BOUNDS = 0.5
"""Weight of the two bounds among the drawn staircases: cells between them are open until both agree."""
_MOST_CHANGES = 3
_ORIENTATIONS = 4


def products(view: LatticeView, wide: tuple[Family, ...] | None, seen: NDArray[np.bool_]) -> HypothesisRows:
    """Return all hypotheses that consist of one set of bad values for each axis.

    Hypotheses that agree on all of `seen` are merged into one row, with their priors added.

    Args:
        view: The lattice and its groups of combinations.
        wide: One family per axis, from `histories`, to include sets that change more often than the
            directions say; None to use only sets that the directions allow.
        seen: True for the groups that were tried or can be tried, shape (X,).
    """
    directions = [axis.direction for axis in view.grid.axes]
    space = HypothesisSpace(view.grid.shape, directions, families=wide)
    tier = space.tier
    says = space.says(view.flat)
    prior = space.prior.copy()
    for end, is_bad in ((view.grid.good, False), (view.grid.bad, True)):
        if end is not None and view.group[end] >= 0:
            prior[says[:, view.group[end]] != is_bad] *= _STATED_DOUBT
    prior /= prior.sum()
    _, of = np.unique(packed(says[:, seen]), return_inverse=True)
    of = of.reshape(-1)
    # The simplest member stands for all: of the lowest tier, splitting the fewest groups, the likeliest. But
    # "always" and "never" stand for all that differ from them at nothing that was tried or can be.
    split = _splits(space, view)
    varies = ~np.isin(np.arange(space.size), (space.always, space.never))
    order = np.lexsort((-prior, varies, split, tier))
    stands = order[np.unique(of[order], return_index=True)[1]]
    merged = np.bincount(of, weights=prior).astype(np.float64)
    return HypothesisRows(
        says[stands],
        merged,
        tier[stands],
        lambda row: space.hypothesis(int(stands[row])),
    )


def _splits(space: HypothesisSpace, view: LatticeView) -> NDArray[np.intp]:
    """Count, for each hypothesis, the combinations that it labels unlike an equivalent combination.

    Each combination is compared with the representative of its group. All of a group should have one label,
    since their trials are the same. The shape is (H,).
    """
    group = view.group.ravel()
    others = np.setdiff1d(np.flatnonzero(group >= 0), view.flat)
    differ = space.says(others) != space.says(view.flat[group[others]])
    return np.asarray(np.count_nonzero(differ, axis=1), dtype=np.intp)


def staircase_rows(
    view: LatticeView, labels: NDArray[np.int8], can_run: NDArray[np.bool_]
) -> HypothesisRows | None:
    """Draw random hypotheses in which a border between good and bad runs through several axes.

    They are staircases (see `staircase.py`) that agree with the labels, and have the fewest changes with
    which any agrees. Returns None if none agrees, if fewer than two axes are ordered, or if the labels are
    all good or all bad.

    Args:
        view: The lattice and its groups of combinations.
        labels: Label of each group: 1 bad, 0 good, -1 not known; shape (X,).
        can_run: True for the groups that can still be tried, shape (X,).
    """
    if len(ordered_axes(view.grid)) < 2 or len({int(one) for one in labels if one >= 0}) < 2:
        return None
    table = view.spread(labels, -1)
    visible = view.standing(can_run)
    for changes in range(1, _MOST_CHANGES + 1):
        if found := staircases(table, view.grid, changes, visible):
            return _sample(found[:_ORIENTATIONS], changes, view, can_run | (labels >= 0))
    return None


def _sample(
    found: Sequence[Staircase], changes: int, view: LatticeView, seen: NDArray[np.bool_]
) -> HypothesisRows:
    """Draw random tables of bad combinations within the bounds of staircases, as hypotheses.

    Tables that agree on all cells of `seen` are merged.

    Args:
        found: The bounds of each orientation.
        changes: Maximum number of changes.
        view: The lattice and its groups of combinations.
        seen: True for the groups that were tried or can be tried, shape (X,).
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
    return HypothesisRows(says[first], prior, tier, lambda row: described("frontier", bad[first[row]]))


def _drawn(stairs: Staircase, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Draw random tables of bad combinations that agree with all labels.

    Each is a staircase within the given bounds. Returns boolean tables that are True at bad combinations,
    shape (drawn, *lattice).

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
    level = (least + np.rint(rise * (most - least))).astype(np.int8).reshape(_DRAWN, *shape)
    return np.asarray((_in_order(level, stairs) % 2 == 1) == bad_if_odd)


def _in_order(level: NDArray[np.int8], stairs: Staircase) -> NDArray[np.int8]:
    """Raise the levels of cells until they never decrease on the way upward and match all labels.

    Bad and good cells alternate from level to level, so a label requires an odd or an even level. No level
    exceeds `stairs.most`, which meets both conditions.

    Args:
        level: Levels between both bounds, shape (drawn, *lattice).
        stairs: The bounds.
    """
    while True:
        wrong = stairs.known & ((level - stairs.most) % 2 == 1)
        raised: NDArray[np.int8] = level + wrong.astype(np.int8)
        axes, back = ([axis + 1 for axis in some] for some in (stairs.axes, stairs.back))
        raised = upward(np.maximum, raised, axes, back)
        if (raised == level).all():
            return raised
        level = raised
