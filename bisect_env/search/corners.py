"""Find every failing configuration: complete the table and split its bad part into boxes. Pure.

A *configuration* is a box of bad combinations: a set of bad values for each axis that matters. The
combinations are visited from the good end on. The first bad one that is in no box yet is a *corner*. A box is
grown from the corner along one axis after the other, as far as it contains no good combination. If everything
beyond a bad combination is bad, the corners are the minimal bad combinations, and each box is everything
beyond its corner.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction, Index
from bisect_env.search.space import Hypothesis
from bisect_env.search.stopping import NO_NEIGHBOURS
from bisect_env.search.table_search import TableSearch
from bisect_env.search.verdict import Answer, Boundary, Status, Verdict


class CornerSearch(TableSearch):
    """A search for every failing configuration (box of bad combinations), not only the first.

    It labels all combinations good or bad. The verdict is about the configuration nearest to the good end;
    `others` are about the further ones.
    """

    @cached_property
    def verdict(self) -> Verdict:
        """Return the verdict about the failing configuration nearest to the good end.

        Its status is `NONE` if no configuration was found, and otherwise that of `_about`.
        """
        of_table = self.table.verdict
        if not self.found:
            reason = "no failure was seen" if not (self.table.calls == 1).any() else "every combination fails"
            reason = reason if self.answered and self.table.called else of_table.reason
            return replace(of_table, status=Status.NONE, reason=reason)
        return replace(self._about(self.found[0]), ends_wrong=self._wrong_ends())

    def _about(self, one: Answer) -> Verdict:
        """Return a verdict about one failing configuration (a box of bad combinations).

        Its status is the one of the verdict about the whole table. But a configuration is not confirmed if no
        good combination differs from its corner on one axis alone.
        """
        verdict = replace(self.table.verdict, best=one, candidates=(one,))
        if verdict.status is Status.CONFIRMED and not one.boundaries:
            return replace(verdict, status=Status.LIKELY, reason=NO_NEIGHBOURS)
        return verdict

    def _wrong_ends(self) -> tuple[str, ...]:
        ends = (("good", self._grid.good, True), ("bad", self._grid.bad, False))
        called = self.table.called if self.answered else {}
        return tuple(name for name, end, wrong in ends if end in called and called[end].bad is wrong)

    @property
    def others(self) -> tuple[Verdict, ...]:
        """Return one verdict about each failing configuration beyond the first.

        The tuple is empty until the table of labels is complete.
        """
        if not self.answered:
            return ()
        return tuple(replace(self._about(one), ends_wrong=self._wrong_ends()) for one in self.found[1:])

    @property
    def no_other(self) -> float | None:
        """Return the probability that the failing configurations found are the only ones.

        Returns None if no configuration is known or the table is not complete.
        """
        return self.verdict.best.probability if self.found and self.answered else None

    @cached_property
    def found(self) -> tuple[Answer, ...]:
        """Return one answer for each failing configuration, the one nearest to the good end first.

        The tuple is empty unless combinations of both labels, good and bad, are known.
        """
        bad, good = self.table.calls == 1, self.table.calls == 0
        if not bad.any() or not good.any():
            return ()
        left = np.argwhere(bad)
        steps = np.zeros(len(left), dtype=np.intp)
        for axis in self.table.ordered:
            size = self._grid.shape[axis]
            steps += size - 1 - left[:, axis] if self._good_end_is_last(axis) else left[:, axis]
        found: list[Answer] = []
        held = np.zeros(self._grid.shape, dtype=bool)
        for place in np.argsort(steps, kind="stable"):
            corner: Index = tuple(int(i) for i in left[place])
            if not held[corner]:
                sets = self._grown(corner, good)
                held[np.ix_(*(np.flatnonzero(one) for one in sets))] = True
                found.append(self._configuration(corner, sets, good))
        return tuple(found)

    def _good_end_is_last(self, axis: int) -> bool:
        """Return whether low values of an axis fail, so that its good end is the highest value."""
        description = self.table.description
        if description is not None and description.stairs[0].changes == 1:
            return axis in description.stairs[0].back
        return self._grid.axes[axis].direction is Direction.FIXED

    def _grown(self, corner: Index, good: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
        """Grow a box of combinations around `corner` until any larger box would contain a good combination.

        Args:
            corner: The combination to begin with.
            good: True for good combinations, shape of the lattice.

        Returns:
            One boolean array per axis: True for the values of the box.
        """
        sets = [np.arange(n) == place for n, place in zip(self._grid.shape, corner, strict=True)]

        def is_free(axis: int, values: NDArray[np.bool_]) -> bool:
            box = [values if i == axis else one for i, one in enumerate(sets)]
            return not good[np.ix_(*(np.flatnonzero(one) for one in box))].any()

        for axis in sorted(range(len(sets)), key=lambda axis: axis not in self.table.ordered):
            size = self._grid.shape[axis]
            if is_free(axis, np.ones(size, dtype=bool)):
                sets[axis] = np.ones(size, dtype=bool)
                continue
            step = -1 if axis in self.table.ordered and self._good_end_is_last(axis) else 1
            further = range(corner[axis] + step, size if step > 0 else -1, step)
            for value in further if axis in self.table.ordered else range(size):
                wider = sets[axis] | (np.arange(size) == value)
                if is_free(axis, wider):
                    sets[axis] = wider
                elif axis in self.table.ordered:
                    break
        return sets

    def _configuration(self, corner: Index, sets: list[NDArray[np.bool_]], good: NDArray[np.bool_]) -> Answer:
        culprits = tuple(axis for axis, one in enumerate(sets) if not one.all())
        boundaries = []
        for axis in culprits:
            line = np.moveaxis(good, axis, -1)[(*corner[:axis], *corner[axis + 1 :])]
            places = np.flatnonzero(line)
            if len(places):
                towards = -1 if axis in self.table.ordered and self._good_end_is_last(axis) else 1
                # Prefer the side of the good end, then the nearest place.
                rank = np.abs(places - corner[axis]) + len(line) * (towards * (places - corner[axis]) > 0)
                near = (*corner[:axis], int(places[int(rank.argmin())]), *corner[axis + 1 :])
                boundaries.append(Boundary(axis, corner, near))
        last_good = boundaries[0].good if boundaries else None
        sides = [corner, *(one.good for one in boundaries)]
        sure = min(self.table.called[cell].probability for cell in sides) if self.answered else 0.0
        sure = min(sure, self.table.verdict.best.probability)
        return Answer(Hypothesis("all", tuple(sets), culprits), tuple(boundaries), corner, last_good, sure)
