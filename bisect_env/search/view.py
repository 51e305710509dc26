"""A lattice with its combinations divided into groups of equal trials, and a position for each group. Pure.

X in array shapes is the number of groups.
"""

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
    """The combinations of a lattice, divided into numbered groups whose trials would be equal.

    Attributes:
        grid: The lattice.
        group: Position of each cell's group, or -1 if the cell cannot be run; in the shape of the lattice.
        cells: The representative of each group (X in all), in row-major order.
    """

    grid: Grid
    group: NDArray[np.intp]
    cells: tuple[Index, ...]

    @classmethod
    def of(cls, grid: Grid, groups: Mapping[Index, Index]) -> LatticeView:
        """Number the groups of equivalent combinations of a lattice.

        Args:
            grid: The lattice.
            groups: The representative of the group of each combination that can be run.
        """
        cells = sorted(set(groups.values()))
        place = {cell: position for position, cell in enumerate(cells)}
        group = np.full(grid.shape, -1, dtype=np.intp)
        for index, stands_for in groups.items():
            group[index] = place[stands_for]
        return cls(grid, group, tuple(cells))

    @cached_property
    def position(self) -> dict[Index, int]:
        """Return the number of each group of equivalent combinations, by the group's representative."""
        return {index: place for place, index in enumerate(self.cells)}

    @cached_property
    def flat(self) -> NDArray[np.intp]:
        """Return the position of each group's representative in the flattened lattice, shape (X,)."""
        if not self.cells:
            return np.zeros(0, dtype=np.intp)
        return np.asarray(np.ravel_multi_index(tuple(np.array(self.cells).T), self.grid.shape))

    def standing(self, can_run: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return a boolean array over the lattice: True at the representative of each group that can be run.

        Args:
            can_run: True for the groups that can be run, shape (X,).
        """
        flat = np.zeros(self.group.size, dtype=np.bool_)
        flat[self.flat] = can_run
        return flat.reshape(self.group.shape)

    def spread(self, values: NDArray[_Number], other: float = 0) -> NDArray[_Number]:
        """Expand `values`, shape (X,), to the shape of the lattice: each cell gets the value of its group.

        Cells that cannot be run get `other`.
        """
        return np.asarray(np.append(values, np.asarray(other, dtype=values.dtype))[self.group])
