"""Finds every failing configuration: the whole table, and the corners at which its bad part begins. Pure.

A configuration is a box of bad combinations: a set of bad values on each axis that matters. Going through the
combinations from the good end on, the first bad one that no box holds is a corner. Its box is grown along one
axis after the other, as far as no good combination stands in the way. Where everything beyond a bad
combination is bad, these corners are the minimal bad combinations, and each box is all that lies beyond one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction, Index
from bisect_env.search.space import Hypothesis
from bisect_env.search.table import TableSearch
from bisect_env.search.verdict import Answer, Boundary, Status, Verdict, between


class CornerSearch(TableSearch):
    """A search for every failing configuration: it completes the table and reports its bad corners.

    The verdict is about the first configuration, the one nearest to the good end.
    """

    @cached_property
    def verdict(self) -> Verdict:
        """Return the answer about the first configuration; its status is that of the whole table."""
        table = self.table_verdict
        if not self._corners:
            reason = "no failure was seen" if not self._called_bad.any() else "every combination fails"
            return replace(table, status=Status.NONE, reason=reason if self.is_complete else table.reason)
        return replace(
            table, best=self._corners[0], candidates=self._corners[:1], ends_wrong=self._wrong_ends()
        )

    @property
    def others(self) -> tuple[Verdict, ...]:
        """Return verdicts about the further configurations; empty until the table is complete."""
        if not self.is_complete:
            return ()
        return tuple(replace(self.verdict, best=one, candidates=(one,)) for one in self._corners[1:])

    @property
    def no_other(self) -> float | None:
        """Return the probability that nothing else fails.

        None if no configuration is known or the table is open.
        """
        return self.verdict.best.probability if self._corners and self.is_complete else None

    def forget(self) -> None:
        """Drop cached results, including those of this subclass."""
        super().forget()
        for name in ("_called_bad", "_corners"):
            self.__dict__.pop(name, None)

    def _wrong_ends(self) -> tuple[str, ...]:
        ends = (("good", self._grid.good, True), ("bad", self._grid.bad, False))
        called = self.called if self.is_complete else {}
        return tuple(name for name, end, wrong in ends if end in called and called[end].bad is wrong)

    @cached_property
    def _called_bad(self) -> NDArray[np.bool_]:
        bad = np.zeros(self._grid.shape, dtype=bool)
        for index, one in self.called.items():
            bad[index] = one.bad
        return bad

    @cached_property
    def _corners(self) -> tuple[Answer, ...]:
        """Return every configuration, nearest to the good end first; empty if all combinations are alike."""
        bad = self._called_bad
        good = np.zeros(self._grid.shape, dtype=bool)
        for index, one in self.called.items():
            good[index] = not one.bad
        if not bad.any() or not good.any():
            return ()
        left = np.argwhere(bad)
        steps = np.zeros(len(left), dtype=np.intp)
        for axis in self._ordered:
            size = self._grid.shape[axis]
            steps += size - 1 - left[:, axis] if self._falls(axis) else left[:, axis]
        found: list[Answer] = []
        held = np.zeros(self._grid.shape, dtype=bool)
        for place in np.argsort(steps, kind="stable"):
            corner: Index = tuple(int(i) for i in left[place])
            if not held[corner]:
                sets = self._grown(corner, good)
                held[np.ix_(*(np.flatnonzero(one) for one in sets))] = True
                found.append(self._configuration(corner, sets, good))
        return tuple(found)

    def _falls(self, axis: int) -> bool:
        """Return whether the good end of an ordered axis is its high end."""
        description = self._description
        if description is not None and description.stairs[0].changes == 1:
            return axis in description.stairs[0].back
        return self._grid.axes[axis].direction is Direction.FIXED

    def _grown(self, corner: Index, good: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
        """Return the bad values of each axis: the largest box at a corner that holds no good combination."""
        sets = [np.arange(n) == place for n, place in zip(self._grid.shape, corner, strict=True)]

        def is_free(axis: int, values: NDArray[np.bool_]) -> bool:
            box = [values if i == axis else one for i, one in enumerate(sets)]
            return not good[np.ix_(*(np.flatnonzero(one) for one in box))].any()

        for axis in sorted(range(len(sets)), key=lambda axis: axis not in self._ordered):
            size = self._grid.shape[axis]
            if is_free(axis, np.ones(size, dtype=bool)):
                sets[axis] = np.ones(size, dtype=bool)
                continue
            step = -1 if axis in self._ordered and self._falls(axis) else 1
            further = range(corner[axis] + step, size if step > 0 else -1, step)
            for value in further if axis in self._ordered else range(size):
                wider = sets[axis] | (np.arange(size) == value)
                if is_free(axis, wider):
                    sets[axis] = wider
                elif axis in self._ordered:
                    break
        return sets

    def _configuration(self, corner: Index, sets: list[NDArray[np.bool_]], good: NDArray[np.bool_]) -> Answer:
        culprits = tuple(axis for axis, one in enumerate(sets) if not one.all())
        boundaries = []
        for axis in culprits:
            line = np.moveaxis(good, axis, -1)[(*corner[:axis], *corner[axis + 1 :])]
            places = np.flatnonzero(line)
            if len(places):
                towards = -1 if axis in self._ordered and self._falls(axis) else 1
                # The side of the good end first, then the nearest.
                rank = np.abs(places - corner[axis]) + len(line) * (towards * (places - corner[axis]) > 0)
                near = (*corner[:axis], int(places[int(rank.argmin())]), *corner[axis + 1 :])
                boundaries.append(Boundary(axis, corner, near, between(axis, corner, near)))
        last_good = boundaries[0].good if boundaries else None
        sides = [corner, *(one.good for one in boundaries)]
        sure = min(self.called[cell].probability for cell in sides) if self.is_complete else 0.0
        sure = min(sure, self.table_verdict.best.probability)
        return Answer(Hypothesis("all", tuple(sets), culprits), tuple(boundaries), corner, last_good, sure)
