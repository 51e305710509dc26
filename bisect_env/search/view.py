"""The cells of a lattice that can be told apart: one position for every group of combinations. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Grid, Index

_Number = TypeVar("_Number", bound=np.generic)


@dataclass(frozen=True, eq=False)
class LatticeView:
    """The combinations of a lattice, divided into numbered groups that share one measurement each.

    Attributes:
        grid: The lattice.
        group: Position of each cell's group, -1 where nothing can be run; shape of the lattice.
        cells: The cell that stands for each group, X of them, in row-major order.
    """

    grid: Grid
    group: NDArray[np.intp]
    cells: tuple[Index, ...]

    @classmethod
    def of(cls, grid: Grid, groups: Mapping[Index, Index]) -> LatticeView:
        """Create the view of a lattice from the groups of its combinations.

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
        """Return a mapping from the representative of each group to the position of the group."""
        return {index: place for place, index in enumerate(self.cells)}

    @cached_property
    def flat(self) -> NDArray[np.intp]:
        """Return the flat lattice index of the representative of each group.

        The shape is (X,).
        """
        if not self.cells:
            return np.zeros(0, dtype=np.intp)
        return np.asarray(np.ravel_multi_index(tuple(np.array(self.cells).T), self.grid.shape))

    def standing(self, can_run: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which cells of the lattice can be run and are the representatives of their groups."""
        flat = np.zeros(self.group.size, dtype=np.bool_)
        flat[self.flat] = can_run
        return flat.reshape(self.group.shape)

    def spread(self, values: NDArray[_Number], other: float = 0) -> NDArray[_Number]:
        """Expand one value per group to one value per cell; cells that cannot be run get `other`."""
        return np.asarray(np.append(values, np.asarray(other, dtype=values.dtype))[self.group])
