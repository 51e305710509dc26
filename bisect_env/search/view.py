"""The cells of a lattice that can be told apart: one position for every group of combinations. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Grid, Index
from bisect_env.search.families import FloatArray


@dataclass(frozen=True, eq=False)
class View:
    """A lattice with a position for every group of combinations that share a measurement.

    Attributes:
        grid: The lattice.
        group: Position of each cell's group, -1 where nothing can be run; shape of the lattice.
        cells: The cell that stands for each group, X of them, in row-major order.
    """

    grid: Grid
    group: NDArray[np.intp]
    cells: tuple[Index, ...]

    @classmethod
    def of(cls, grid: Grid, groups: Mapping[Index, Index]) -> View:
        """Return the view of a lattice.

        Args:
            grid: The lattice.
            groups: For each combination that can be run the one that stands for its group.
        """
        cells = sorted(set(groups.values()))
        place = {cell: position for position, cell in enumerate(cells)}
        group = np.full(grid.shape, -1, dtype=np.intp)
        for index, stands_for in groups.items():
            group[index] = place[stands_for]
        return cls(grid, group, tuple(cells))

    @cached_property
    def position(self) -> dict[Index, int]:
        """Return the position of each group by the cell that stands for it."""
        return {index: place for place, index in enumerate(self.cells)}

    @cached_property
    def flat(self) -> NDArray[np.intp]:
        """Return the flat place on the lattice of the cell that stands for each group, shape (X,)."""
        if not self.cells:
            return np.zeros(0, dtype=np.intp)
        return np.asarray(np.ravel_multi_index(tuple(np.array(self.cells).T), self.grid.shape))

    def spread(self, values: FloatArray, other: float = 0.0) -> FloatArray:
        """Return numbers of groups, shape (X,), as numbers of cells; `other` where nothing can be run."""
        return np.asarray(np.append(values, other)[self.group])

    def without(self, aside: Collection[Index]) -> NDArray[np.bool_]:
        """Return which groups can still be tried, shape (X,)."""
        return np.array([index not in aside for index in self.cells], dtype=np.bool_)
