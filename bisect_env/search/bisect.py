r"""Bisects where a failure is certain, so that one trial tells good from bad. Pure.

A combination that has been looked at carries a *label*, good or bad. Four descriptions of the bad ones are
tried in turn, from the simplest to the one that always holds; the first that the labels allow is used:

* a *rule* of the hypothesis space: one set of values per axis. The next cells are those that split the prior
  weight of the rules that are left most evenly.
* *changes* along a single axis that turns more often: each is bisected.
* a *frontier*: with one orientation per ordered axis, whatever lies beyond a bad combination is bad, and
  whatever lies before a good one is good; or a *band* between two frontiers (`staircase.py`).
* a *pair*: whatever the rest looks like, on a path from a good to a bad combination some two neighbours
  differ, and halving the path finds them: the invariant on which `git bisect` rests.

Every cell is looked at once at most, and the pair exists as soon as a good and a bad combination are known,
so that a study never looks at more cells than there are.

*Batches.* With n cells at a time an interval is cut at n places at once: log N / log(n + 1) rounds. Of the
numbers of places that need equally many rounds the smallest is used: with N equally likely answers and r
rounds, N^(1/r) − 1. Environments are made a few at a time (`BUILT_AT_ONCE`), so that a round of n new ones
takes ⌈n / few⌉ builds one after the other, and a trial: of all numbers of rounds the one that takes least.

*Where nothing is checked afterwards* a pass may be luck that nobody notices. There a single look along an
axis that changes once is where a failure is expected (`_worth_of_a_look`), the bad end is left until one
passed, and labels that change more often than said are doubted by the prior of such histories.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction, Grid, Index
from bisect_env.search.classes import simplest
from bisect_env.search.families import FloatArray
from bisect_env.search.nonmonotone import times_rarer
from bisect_env.search.space import Hypothesis, HypothesisSpace
from bisect_env.search.staircase import Staircase, ordered_axes, staircases
from bisect_env.search.verdict import Answer, Boundary, answer

BUILT_AT_ONCE = 6
"""Environments that are made at the same time; hosts make about as many."""
_RULES = 384
"""Rules that are compared one by one; of more an even sample by weight."""
_FEWER_RULES = 128
"""The same where many places are chosen at once."""
_CELLS = 96
"""Cells that are compared: half of them those nearest to an even chance, the others of every chance."""
_MOST_CLASSES = 4096
"""Rules up to which those that agree are counted as one."""
_EXCHANGED = 8
"""Places up to which each is moved once more when all are chosen."""
_MOST_CHANGES = 3
"""Changes along an axis that are all looked for; of a history with more only one is."""
_SPREAD = 5
"""Cells from one end to the other that have to be bad before everything is."""
_NOTHING = 1e-9


@dataclass(frozen=True)
class Found:
    """The answer that the labels give so far.

    Attributes:
        how: Which description is in use: `rule`, `changes`, `frontier`, `pair` or `none`.
        list_answers: Returns the answers in order of probability, at least one.
        settled: Whether the first answer decides every cell.
        untried: Cells that still have to be looked at so that both sides of the answer have been tried.
        bits: Entropy of the remaining uncertainty, in bits.
    """

    how: str
    list_answers: Callable[[], tuple[Answer, ...]]
    settled: bool
    untried: tuple[Index, ...]
    bits: float

    @cached_property
    def answers(self) -> tuple[Answer, ...]:
        """Return the answers in order of probability, at least one; computed on first access."""
        return self.list_answers()


@dataclass(frozen=True)
class Rivals:
    """Alternative answers that call some combinations bad although they passed.

    Attributes:
        cells: The combinations that passed.
        weight: Prior weight of each kind of rival, relative to the answers that agree with all labels.
        calls: Which of the cells each kind calls bad, 0/1, shape (rivals, cells).
    """

    cells: tuple[Index, ...]
    weight: FloatArray
    calls: FloatArray


class Bisection:
    """A search among labelled combinations that chooses the cells to look at next.

    Args:
        grid: The lattice, with stated ends if there are any.
        space: The rules, with the stated ends in their prior.
        group: For each cell the flat position of the cell that stands for it, -1 where nothing more can be
            learnt; shape of the lattice. Read again after `forget`.
        required: Share of the remaining prior weight that the answer must hold.
        confidence: Share that the answer "everything is bad" must hold.
        control: Whether to look at the good end of a single axis even if nobody stated it. A pass elsewhere
            narrows the answer more, but a failure there shows a history that changes more often. False
            where the answer is not checked afterwards.
    """

    def __init__(
        self,
        grid: Grid,
        space: HypothesisSpace,
        group: NDArray[np.intp],
        required: float,
        *,
        confidence: float,
        control: bool = True,
    ) -> None:
        self._grid, self._space, self._group, self._required = grid, space, group, required
        self._confidence = confidence
        self._control = control
        self.labels: dict[Index, bool] = {}
        self._left = np.arange(space.size)
        self._applied: set[Index] = set()

    # -- labels ------------------------------------------------------------------------------------------

    def label(self, cell: Index, *, bad: bool) -> None:
        """Set the label of a cell, which must be the representative of its group."""
        if self.labels.get(cell) is bad:
            return
        if cell in self._applied:
            self._left, self._applied = np.arange(self._space.size), set()
        self.labels[cell] = bad
        self.forget()

    def relabel(self, labels: Mapping[Index, bool]) -> None:
        """Replace the labels of all cells."""
        if labels == self.labels:
            return
        if any(labels.get(cell) is not self.labels[cell] for cell in self._applied):
            self._left, self._applied = np.arange(self._space.size), set()
        self.labels = dict(labels)
        self.forget()

    def forget(self) -> None:
        """Drop cached results that depend on the labels or on which cells can be run."""
        for name in (
            "found",
            "_visible",
            "_rules",
            "_table",
            "ends",
            "_stairs",
            "_bands",
            "_chance",
            "rivals",
        ):
            self.__dict__.pop(name, None)

    def _fitting(self, labels: Mapping[Index, bool]) -> NDArray[np.intp]:
        """Return the remaining rules that agree with the labels."""
        return self._agreeing(self._left, labels)

    def _agreeing(self, rules: NDArray[np.intp], labels: Mapping[Index, bool]) -> NDArray[np.intp]:
        if not labels or not len(rules):
            return rules
        cells = np.ravel_multi_index(tuple(np.array(list(labels)).T), self._grid.shape)
        says = self._space.judged(rules, np.asarray(cells, dtype=np.intp))
        return np.asarray(rules[(says == np.array(list(labels.values()))).all(axis=1)], dtype=np.intp)

    @cached_property
    def _rules(self) -> NDArray[np.intp]:
        """Return the rules that agree with all labels so far."""
        new = {cell: bad for cell, bad in self.labels.items() if cell not in self._applied}
        self._left = self._agreeing(self._left, new)
        self._applied |= set(new)
        return self._left

    @cached_property
    def _visible(self) -> NDArray[np.bool_]:
        flat = np.arange(self._group.size).reshape(self._group.shape)
        return np.asarray(self._group == flat)

    @cached_property
    def _table(self) -> NDArray[np.int8]:
        """Return the label of each cell, taken from its group: 1 bad, 0 good, -1 unknown."""
        known = np.full(self._group.size, -1, dtype=np.int8)
        for cell, bad in self.labels.items():
            known[np.ravel_multi_index(cell, self._grid.shape)] = bad
        flat = self._group.ravel()
        shown = np.where(flat >= 0, known[np.maximum(flat, 0)], known)
        return np.asarray(shown.reshape(self._group.shape), dtype=np.int8)

    def _at(self, flat: np.intp | int) -> Index:
        return tuple(int(i) for i in np.unravel_index(int(flat), self._grid.shape))

    def _stands_for(self, cell: Index) -> Index | None:
        flat = int(self._group[cell])
        return self._at(flat) if flat >= 0 else None

    @cached_property
    def ends(self) -> tuple[Index | None, Index | None]:
        """Return the good and the bad end: those stated, else the cells that the prior is sure of.

        An end that cannot be run and has no substitute is None.
        """
        prior = self._space.bad_mass(self._space.prior[:, None])[..., 0]
        pairs = []
        for stated, extreme, sure in (
            (self._grid.good, np.where(self._visible, prior, np.inf).argmin(), 0.1),
            (self._grid.bad, np.where(self._visible, prior, -np.inf).argmax(), 0.9),
        ):
            place = self._stands_for(stated) if stated is not None else None
            if place is None and self._visible.any():
                likely = self._at(extreme)
                is_sure = prior[likely] <= sure if sure < 0.5 else prior[likely] >= sure
                place = likely if is_sure else None
            pairs.append(place)
        return pairs[0], pairs[1]

    # -- what is known -----------------------------------------------------------------------------------

    @cached_property
    def found(self) -> Found:
        """Return the best answer so far."""
        if len(self._rules):
            return self._found_rule()
        for attempt in (self._found_changes, self._found_frontier, self._found_pair):
            if (found := attempt()) is not None:
                return found
        # Labels that no rule has, and good or bad ones alone: whatever is tried says the same.
        kind = "always" if any(self.labels.values()) else "never"
        everywhere = tuple(np.full(n, kind == "always") for n in self._grid.shape)
        untried = () if kind == "never" else self._spread()
        constant = self._answer(Hypothesis(kind, everywhere, ()), 1.0)
        return Found("none", lambda: (constant,), True, untried, 0.0)

    def probability_bad(self) -> FloatArray:
        """Return the probability that each cell is bad, shape of the lattice; 0.5 where nothing is known."""
        return self._chance.copy()

    @cached_property
    def _chance(self) -> FloatArray:
        if len(self._rules):
            weights = np.zeros((self._space.size, 1))
            weights[self._rules, 0] = self._space.prior[self._rules]
            bad = self._space.bad_mass(weights)[..., 0] / max(float(weights.sum()), 1e-300)
            return np.asarray(np.clip(bad, 0.0, 1.0), dtype=np.float64)
        if self.found.how in ("changes", "frontier") and self.found.settled:
            return self.found.answers[0].hypothesis.bad_cells().astype(np.float64)
        if self._stairs is not None:
            return np.where(self._stairs.decided, self._stairs.lowest.astype(np.float64), 0.5)
        return np.where(self._table == 1, 1.0, np.where(self._table == 0, 0.0, 0.5))

    def _answer(self, hypothesis: Hypothesis, probability: float, *, every_change: bool = False) -> Answer:
        known = self._table
        return answer(
            hypothesis,
            probability,
            self._group >= 0,
            (known == 1).astype(np.float64),
            (known >= 0).astype(np.float64),
            every_change=every_change,
        )

    def _unlooked(self, answers: Collection[Index]) -> tuple[Index, ...]:
        """Return the unlabelled representatives of some cells, each once."""
        cells = (self._stands_for(cell) for cell in answers)
        return tuple(dict.fromkeys(c for c in cells if c is not None and c not in self.labels))

    def _sides(self, best: Answer) -> tuple[Index, ...]:
        """Return the cells on both sides of every boundary that were not looked at."""
        pairs = [cell for b in best.boundaries for cell in (b.bad, b.good)]
        if not pairs:
            pairs = [cell for cell in (best.first_bad, best.last_good) if cell is not None]
        return self._unlooked(pairs)

    def _spread(self) -> tuple[Index, ...]:
        cells = np.flatnonzero(self._visible)
        if not len(cells):
            return ()
        places = np.unique(np.linspace(0, len(cells) - 1, _SPREAD).round().astype(int))
        return self._unlooked([self._at(cells[place]) for place in places])

    @cached_property
    def rivals(self) -> Rivals:
        """Return the answers that remain possible if some combinations passed by luck."""
        found = self.found
        if found.how != "rule" and self._is_line and not self._control:
            return self._fewer_changes()
        if found.how != "rule":
            sides = (self._stands_for(b.good) for b in found.answers[0].boundaries)
            cells = dict.fromkeys(c for c in sides if c is not None and self.labels.get(c) is False)
            return Rivals(tuple(cells), np.ones(len(cells)), np.eye(len(cells)))
        good = [cell for cell, bad in self.labels.items() if not bad]
        if not good:
            return Rivals((), np.zeros(0), np.zeros((0, 0)))
        fails = self._agreeing(np.arange(self._space.size), {c: True for c, b in self.labels.items() if b})
        flat = np.asarray(np.ravel_multi_index(tuple(np.array(good).T), self._grid.shape), dtype=np.intp)
        says = self._space.judged(fails, flat)
        of, first, number = np.unique(_packed(says), axis=0, return_index=True, return_inverse=True)
        weight = np.bincount(number.reshape(-1), weights=self._space.prior[fails], minlength=len(of))
        calls = says[first].astype(np.float64)
        others = calls.any(axis=1)
        mass = float(self._space.prior[self._rules].sum())
        return Rivals(tuple(good), weight[others] / mass, calls[others])

    def _fewer_changes(self) -> Rivals:
        """Return rivals with fewer changes along the axis, under which some good cells passed by luck."""
        known = [cell for cell in self._line() or [] if cell in self.labels]
        good = tuple(cell for cell in known if not self.labels[cell])
        runs = [(bad, list(run)) for bad, run in itertools.groupby(known, key=self.labels.__getitem__)]
        # The good end is where the direction has it; of an axis that may change either way, at both ends.
        ends = {Direction.REGRESSION: {0}, Direction.FIXED: {len(runs) - 1}}
        said = ends.get(self._directions[0], {0, len(runs) - 1})
        lucky = [run for n, (bad, run) in enumerate(runs) if not bad and n not in said]
        sides = [
            [cell] for b in self.found.answers[0].boundaries if (cell := self._stands_for(b.good)) in good
        ]
        seldom = times_rarer(int(np.count_nonzero(self._group >= 0)), len(runs) - 1)
        weight = [seldom] * len(lucky) + [1.0] * len(sides)
        calls = [[cell in run for cell in good] for run in (*lucky, *sides)]
        return Rivals(good, np.array(weight), np.array(calls, dtype=np.float64).reshape(len(weight), -1))

    def scattered(self, count: int, pending: Collection[Index]) -> list[Index]:
        """Return up to `count` unlabelled cells, each as far as possible from all others in lattice order."""
        flat = np.flatnonzero(self._visible)
        taken = [int(np.ravel_multi_index(cell, self._grid.shape)) for cell in (*self.labels, *pending)]
        where = np.flatnonzero(np.isin(flat, taken))
        chosen: list[Index] = []
        apart = np.full(len(flat), len(flat), dtype=np.int64)
        for place in where:
            apart = np.minimum(apart, np.abs(np.arange(len(flat)) - place))
        while len(chosen) < count and apart.max(initial=0) > 0:
            farthest = int(apart.argmax())
            chosen.append(self._at(flat[farthest]))
            apart = np.minimum(apart, np.abs(np.arange(len(flat)) - farthest))
        return chosen

    # -- rules -------------------------------------------------------------------------------------------

    def _found_rule(self) -> Found:
        rules = self._rules
        weight = self._space.prior[rules]
        weight = weight / weight.sum()
        if len(rules) > _MOST_CLASSES:
            top, most = int(rules[int(weight.argmax())]), float(weight.max())
            return Found(
                "rule",
                lambda: (self._answer(self._space.hypothesis(top), most),),
                False,
                (),
                _entropy(weight),
            )
        open_cells = self._open_cells()
        says = self._space.judged(rules, open_cells)
        _, first, of = np.unique(_packed(says), axis=0, return_index=True, return_inverse=True)
        mass = np.bincount(of.reshape(-1), weights=weight).astype(np.float64)
        order = np.argsort(-mass, kind="stable")
        of = of.reshape(-1)

        def answers(most: int = 10) -> tuple[Answer, ...]:
            cut = int(np.searchsorted(np.cumsum(mass[order]), self._required)) + 1
            return tuple(
                self._answer(self._member(rules, of == n, int(first[n])), float(mass[n]))
                for n in order[: min(most, cut)].tolist()
            )

        everything = bool((rules[of == order[0]] == self._space.always).any())
        required = self._confidence if everything else self._required
        settled = bool(mass[order[0]] >= required)
        untried: tuple[Index, ...] = ()
        if settled:
            (best,) = answers(1)
            untried = self._spread() if best.hypothesis.kind == "always" else self._sides(best)
        return Found("rule", answers, settled, untried, _entropy(mass))

    def _member(self, rules: NDArray[np.intp], members: NDArray[np.bool_], first: int) -> Hypothesis:
        """Return the simplest of several rules that agree."""
        among = rules[members] if members.any() else rules[[first]]
        for extreme in (self._space.never, self._space.always):
            if extreme in among:
                return self._space.hypothesis(extreme)
        return simplest(self._space, among, self._group)

    def _open_cells(
        self, limit: int | None = None, allowed: NDArray[np.bool_] | None = None
    ) -> NDArray[np.intp]:
        """Return flat positions of visible cells on which the remaining rules disagree, at most `limit`."""
        bad = np.where(self._visible if allowed is None else allowed, self._chance, 0.0).ravel()
        for cell in self.labels:
            bad[np.ravel_multi_index(cell, self._grid.shape)] = 0.0
        open_ = np.flatnonzero((bad > _NOTHING) & (bad < 1 - _NOTHING))
        if limit is not None and len(open_) > limit:
            # One cut is best near an even chance; many cuts need cells of every chance.
            near = np.argsort(np.abs(bad[open_] - 0.5), kind="stable")[: limit // 2]
            every = np.argsort(bad[open_], kind="stable")
            every = every[np.linspace(0, len(open_) - 1, limit - limit // 2).round().astype(int)]
            open_ = open_[np.unique(np.concatenate([near, every]))]
        return np.asarray(open_, dtype=np.intp)

    # -- changes along one axis --------------------------------------------------------------------------

    @property
    def _directions(self) -> list[Direction]:
        """Return the directions of the axes that have more than one value."""
        return [axis.direction for axis, n in zip(self._grid.axes, self._grid.shape, strict=True) if n > 1]

    @property
    def _is_line(self) -> bool:
        """Return whether exactly one axis has several values, and these have an order."""
        return len(self._directions) == 1 and self._directions != [Direction.UNORDERED]

    @property
    def changes_once(self) -> bool:
        """Whether only one axis varies, and the trials fit a single change in its declared direction."""
        once = ([Direction.REGRESSION], [Direction.FIXED])
        return self._directions in once and len(self._rules) > 0

    def _line(self) -> list[Index] | None:
        """Return the runnable cells of the only axis with several values, in order.

        None if several axes vary.
        """
        if not self._is_line:
            return None
        return [tuple(map(int, cell)) for cell in np.argwhere(self._group >= 0)]

    def _found_changes(self) -> Found | None:
        line = self._line()
        known = [] if line is None else [p for p, c in enumerate(line) if self._table[c] >= 0]
        if line is None or len(known) < 2:
            return None
        gaps = [(a, b) for a, b in itertools.pairwise(known) if self._table[line[a]] != self._table[line[b]]]
        if not 1 <= len(gaps) <= _MOST_CHANGES:
            return None
        (axis,) = (i for i, n in enumerate(self._grid.shape) if n > 1)
        open_ = [gap for gap in gaps if self._middle(line, *gap) is not None]
        bad = np.zeros(self._grid.shape[axis], dtype=bool)
        places = [line[p][axis] for p in known]
        nearest = np.abs(np.arange(len(bad))[:, None] - np.array(places)).argmin(axis=1)
        bad[:] = [self._table[line[known[n]]] == 1 for n in nearest]
        for low, high in gaps:
            # What could not be tried between the two sides of a change is left on the good one.
            inside = slice(line[low][axis] + 1, line[high][axis])
            bad[inside] = False
        sets = tuple(bad if i == axis else np.ones(n, dtype=bool) for i, n in enumerate(self._grid.shape))
        best = self._answer(Hypothesis("all", sets, (axis,)), 1.0 / (1 + len(open_)), every_change=True)
        bits = sum(math.log2(high - low) for low, high in open_)
        return Found("changes", lambda: (best,), not open_, () if open_ else self._sides(best), bits)

    def _middle(self, path: Sequence[Index], low: int, high: int) -> Index | None:
        """Return the cell without a label nearest to the middle between two places of a path."""
        cells = [c for c in map(self._stands_for, path[low + 1 : high]) if c is not None]
        cells = [c for c in cells if c not in self.labels]
        return cells[len(cells) // 2] if cells else None

    # -- frontiers ---------------------------------------------------------------------------------------

    @cached_property
    def _stairs(self) -> Staircase | None:
        """Return the frontier that the labels allow, else the band, else None."""
        if len(ordered_axes(self._grid)) < 2:
            return None
        for changes in (1, 2):
            if found := staircases(self._table, self._grid, changes, self._visible):
                return found[0]
        return None

    def _found_frontier(self) -> Found | None:
        stairs = self._stairs
        if stairs is None or len(set(self.labels.values())) < 2:
            return None
        count = int(np.count_nonzero(self._visible & ~stairs.decided))
        if not count:
            # Another band may say otherwise: a few looks decide, else the pair is told, which both have.
            count = int(np.count_nonzero(self._contested))
            if count > sum(self._grid.shape):
                return None
        best = self._answer(described("frontier", stairs.lowest), 1.0 / (1 + count))
        untried = () if count else self._sides(best)
        return Found("frontier", lambda: (best,), not count, untried, math.log2(1 + count))

    @cached_property
    def _bands(self) -> list[Staircase]:
        """Return all bands that the labels allow; an empty list if a frontier fits."""
        if self._stairs is None or self._stairs.changes == 1:
            return []
        return staircases(self._table, self._grid, self._stairs.changes, self._visible)

    @property
    def _contested(self) -> NDArray[np.bool_]:
        """Return the unlabelled cells that the bands leave open or disagree about."""
        found = np.zeros(self._grid.shape, dtype=bool)
        for band in self._bands:
            found |= ~band.decided | (band.lowest != self._bands[0].lowest)
        return np.asarray(found & self._visible & (self._table < 0))

    def _frontier_cells(
        self, count: int, pending: Collection[Index], only: Collection[Index] | None
    ) -> list[Index]:
        assert self._stairs is not None
        allowed = self._allowed(only)
        chosen = self._stairs.next(count, pending, self._visible, allowed)
        contested = allowed & self._contested
        for band in self._bands[1:] if not (self._visible & ~self._stairs.decided).any() else ():
            if len(chosen) < count:
                chosen += band.next(count - len(chosen), [*pending, *chosen], self._visible, contested)
        if not chosen and not pending and contested.any():
            chosen = [tuple(map(int, np.argwhere(contested)[0]))]
        return list(dict.fromkeys(chosen))

    # -- pairs -------------------------------------------------------------------------------------------

    def _found_pair(self) -> Found | None:
        path = self._path()
        if path is None:
            return None
        bad, good = path[0], path[-1]
        if self._table[bad] == 0:
            bad, good = good, bad
        known = self._table == 1
        steps = len(path) - 2
        axes = tuple(i for i, (a, b) in enumerate(zip(bad, good, strict=True)) if a != b)
        hypothesis = Hypothesis("pair", described("pair", known).sets, axes, known)
        best = Answer(hypothesis, (), bad, good, 1.0 / (1 + steps))
        if not steps and len(axes) == 1:
            best = Answer(hypothesis, _boundary(axes[0], bad, good, self._group >= 0), bad, good, 1.0)
        return Found("pair", lambda: (best,), not steps, (), math.log2(1 + steps))

    def _path(self) -> list[Index] | None:
        """Return the shortest path of neighbours from a bad to a good cell, or None if no path joins them.

        Neighbours differ on one axis, with nothing between them that can be run; on an axis without order
        any two values are neighbours.
        """
        starts = [tuple(map(int, cell)) for cell in np.argwhere((self._table == 1) & (self._group >= 0))]
        if self._grid.bad is not None and self._grid.bad in starts:
            starts.sort(key=lambda cell: cell != self._grid.bad)
        before: dict[Index, Index | None] = dict.fromkeys(starts)
        waiting = deque(starts)
        while waiting:
            cell = waiting.popleft()
            if self._table[cell] == 0:
                path = [cell]
                while (back := before[path[-1]]) is not None:
                    path.append(back)
                return path[::-1]
            for near in self._neighbours(cell):
                if near not in before:
                    before[near] = cell
                    waiting.append(near)
        return self._leap()

    def _leap(self) -> list[Index] | None:
        """Return a bad and a good cell that no path joins, because what lies between them cannot be run."""
        bad = np.argwhere((self._table == 1) & (self._group >= 0))
        good = np.argwhere((self._table == 0) & (self._group >= 0))
        if not len(bad) or not len(good):
            return None
        apart = np.abs(bad[:, None, :] - good[None, :, :])
        rank = np.count_nonzero(apart, axis=2) * 10_000 + apart.sum(axis=2)
        one, other = np.unravel_index(int(rank.argmin()), rank.shape)
        return [tuple(map(int, bad[one])), tuple(map(int, good[other]))]

    def _neighbours(self, cell: Index) -> Iterator[Index]:
        for axis, size in enumerate(self._grid.shape):
            unordered = self._grid.axes[axis].direction is Direction.UNORDERED
            for places in (range(cell[axis] + 1, size), range(cell[axis] - 1, -1, -1)):
                for place in places:
                    near = (*cell[:axis], place, *cell[axis + 1 :])
                    if self._group[near] >= 0:
                        yield near
                        if not unordered:
                            break

    # -- where to look next ------------------------------------------------------------------------------

    def next(
        self,
        count: int,
        *,
        pending: Collection[Index] = (),
        cost: FloatArray | None = None,
        only: Collection[Index] | None = None,
    ) -> list[Index]:
        """Return the cells to look at now; an empty list if pending results are needed first.

        Args:
            count: Maximum number of cells.
            pending: Cells that are being looked at.
            cost: Price of each cell's environment in looks, shape of the lattice.
            only: Cells to choose from; None for all.
        """
        pending = {cell for cell in pending if cell not in self.labels}
        alone = count == 1 and not pending
        first = [cell for cell in self._ends_first if cell not in pending]
        if alone and self._is_careful and self._bad_end_can_wait:
            first = [cell for cell in first if cell != self.ends[1]]
        allowed = self._allowed(only)
        chosen = [cell for cell in dict.fromkeys(first) if allowed[cell]][:count]
        found = self.found
        if found.settled:
            wanted = [cell for cell in found.untried if cell not in pending and cell not in chosen]
            return [*chosen, *(cell for cell in wanted if allowed[cell])][:count]
        room = count - len(chosen)
        if room <= 0 or (only is not None and not allowed.any()):
            return chosen
        match found.how:
            case "rule":
                more = self._cuts(room, {*pending, *chosen}, cost, allowed)
            case "frontier":
                more = self._frontier_cells(room, {*pending, *chosen}, only)
            case _:
                more = self._gap_cells(room, {*pending, *chosen}, cost, allowed)
        return [*chosen, *more]

    @property
    def _ends_first(self) -> list[Index]:
        """Return the unlabelled ends, which are looked at before any other cell."""
        trusted = not self._control and self._grid.good is None and self._is_line
        ends = self.ends[1:] if trusted else self.ends
        return [cell for cell in ends if cell is not None and cell not in self.labels]

    @property
    def _is_careful(self) -> bool:
        """Return whether passes count as possibly lucky.

        They do where nothing checks them later and the failure is expected to change once along one axis.
        """
        return not self._control and self.changes_once

    @property
    def _bad_end_can_wait(self) -> bool:
        """Return whether the bad end need not be looked at yet, or not at all.

        A failure of another version replaces that look. If only passes were seen, the bad end is needed:
        there may be no failure at all.
        """
        return not self.looks or any(self.labels.values())

    def _allowed(self, only: Collection[Index] | None) -> NDArray[np.bool_]:
        if only is None:
            return self._visible.copy()
        allowed = np.zeros(self._grid.shape, dtype=bool)
        for cell in only:
            allowed[cell] = self._visible[cell]
        return allowed

    def foresee(
        self, pending: Collection[Index], cost: FloatArray | None = None, most: int = 3
    ) -> list[Index]:
        """Return the cells that would be looked at next if a pending cell turned out bad, or good."""
        chance = self.probability_bad()
        open_ = [cell for cell in pending if cell not in self.labels]
        open_.sort(key=lambda cell: (abs(chance[cell] - 0.5), cell))
        wanted: list[Index] = []
        for cell in open_[:most]:
            for bad in (True, False) if chance[cell] >= 0.5 else (False, True):
                ahead = self.supposing({cell: bad})
                wanted += ahead.next(1, pending=[c for c in open_ if c != cell], cost=cost)
        return list(dict.fromkeys(cell for cell in wanted if cell not in pending))

    def supposing(self, labels: Mapping[Index, bool]) -> Bisection:
        """Return a copy of this bisection with additional labels."""
        ahead = Bisection(
            *(self._grid, self._space, self._group, self._required),
            confidence=self._confidence,
            control=self._control,
        )
        ahead._left, ahead._applied = self._rules, set(self._applied)
        ahead.labels = {**self.labels, **labels}
        ahead.__dict__["ends"] = self.ends
        return ahead

    def _cuts(
        self,
        room: int,
        pending: Collection[Index],
        cost: FloatArray | None,
        allowed: NDArray[np.bool_],
    ) -> list[Index]:
        """Return the cells that together split the weight of the rules most evenly."""
        rules = self._rules
        # Ends that are being looked at are taken to be what is said of them.
        said = {end: bad for end, bad in zip(self.ends, (False, True), strict=True) if end in pending and end}
        if said and len(likely := self._agreeing(rules, said)):
            rules = likely
        pending = [cell for cell in pending if cell not in said]
        weight = self._space.prior[rules]
        if len(rules) > _RULES:
            # An even sample: every rule as often as its weight says.
            rules = rules[_even_sample(weight, _RULES)]
            weight = np.ones(_RULES)
        weight = weight / weight.sum()
        cells = self._open_cells(_CELLS, allowed)
        if not len(cells):
            return []
        flat = [int(np.ravel_multi_index(cell, self._grid.shape)) for cell in pending]
        says = self._space.judged(rules, np.concatenate([np.array(flat, dtype=np.intp), cells]))
        seen, open_ = says[:, : len(flat)], says[:, len(flat) :]
        builds = 0.0 if cost is None else float(np.median(cost.ravel()[cells]))
        wanted = min(room, _places(_entropy_of(open_, weight), room + len(flat), builds) - len(flat))
        if wanted <= 0:
            return []
        price = np.ones(len(cells)) if cost is None else 1.0 + cost.ravel()[cells]
        if not flat and room == 1 and self._is_careful:
            worth = _worth_of_a_look(weight @ open_) * self._leaves_looks(cells)
            return [self._at(cells[int((worth / price).argmax())])]
        if not flat and cost is None and (cuts := _even_cuts(open_, weight, wanted)) is not None:
            return [self._at(cells[place]) for place in cuts]
        if wanted > _EXCHANGED and len(weight) > _FEWER_RULES:
            # Many places need less care with each.
            few = _even_sample(weight, _FEWER_RULES)
            seen, open_, weight = seen[few], open_[few], np.full(len(few), 1.0 / len(few))
        chosen: list[int] = []
        if not flat and wanted == 1:
            share = np.clip(weight @ open_, 0.0, 1.0)
            return [self._at(cells[int((np.minimum(share, 1.0 - share) / price).argmax())])]
        while len(chosen) < wanted:
            gain = _gain(np.concatenate([seen, open_[:, chosen]], axis=1), open_, weight)
            gain[chosen] = 0.0
            place = int((gain / price).argmax())
            if gain[place] <= _NOTHING:
                break
            chosen.append(place)
        if 1 < len(chosen) <= _EXCHANGED:
            for turn in range(len(chosen)):
                others = chosen[:turn] + chosen[turn + 1 :]
                gain = _gain(np.concatenate([seen, open_[:, others]], axis=1), open_, weight) / price
                gain[others] = 0.0
                if gain.max() > gain[chosen[turn]] + _NOTHING:
                    chosen[turn] = int(gain.argmax())
        return [self._at(cells[place]) for place in chosen]

    @property
    def looks(self) -> int:
        """Return the number of labelled cells, without the stated good end."""
        good = None if self._grid.good is None else self._stands_for(self._grid.good)
        return sum(cell != good for cell in self.labels)

    def _leaves_looks(self, cells: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return for each cell whether the remaining looks can find the change after either result there.

        The budget is one look more than halving would take. If no cell leaves enough looks, the middle one
        counts.
        """
        open_ = self._open_cells()
        left = math.ceil(math.log2(max(int(np.count_nonzero(self._visible)), 2))) - self.looks
        place = np.searchsorted(open_, cells)
        answers: NDArray[np.intp] = np.maximum(place, len(open_) - 1 - place) + 1
        return np.asarray(answers <= max(2**left, int(answers.min())))

    def _gap_cells(
        self, room: int, pending: Collection[Index], cost: FloatArray | None, allowed: NDArray[np.bool_]
    ) -> list[Index]:
        """Return cells that divide the gaps between differing labels as evenly as the room allows."""
        line = self._line() if self.found.how == "changes" else None
        if line is not None:
            known = [p for p, cell in enumerate(line) if self._table[cell] >= 0]
            gaps = [
                line[a : b + 1]
                for a, b in itertools.pairwise(known)
                if self._table[line[a]] != self._table[line[b]]
            ]
        else:
            path = self._path()
            gaps = [] if path is None else [path]
        chosen: list[Index] = []
        for gap in gaps:
            inside = dict.fromkeys(c for c in map(self._stands_for, gap[1:-1]) if c is not None)
            cells = [cell for cell in inside if cell not in self.labels]
            waiting = sum(cell in pending for cell in cells)
            share = math.ceil((room - len(chosen)) / max(1, len(gaps)))
            builds = 0.0 if cost is None or not cells else float(np.median([cost[cell] for cell in cells]))
            places = min(share, _places(math.log2(len(cells) + 1), share + waiting, builds) - waiting)
            cuts = np.linspace(0, len(cells), waiting + max(places, 0) + 2)[1:-1]
            near = [min(len(cells) - 1, int(cut)) for cut in cuts if cells]
            free = [cells[place] for place in dict.fromkeys(near) if cells[place] not in pending]
            chosen += [cell for cell in free if allowed[cell]][: max(places, 0)]
        return list(dict.fromkeys(chosen))[:room]


def _boundary(axis: int, bad: Index, good: Index, feasible: NDArray[np.bool_]) -> tuple[Boundary, ...]:
    low, high = sorted((bad[axis], good[axis]))
    between = tuple((*bad[:axis], i, *bad[axis + 1 :]) for i in range(low + 1, high))
    return (Boundary(axis, bad, good, between),)


def described(kind: str, bad: NDArray[np.bool_]) -> Hypothesis:
    """Return a table of bad cells as a hypothesis: per axis the values at which anything is bad."""
    axes = range(bad.ndim)
    sets = tuple(np.asarray(bad.any(axis=tuple(a for a in axes if a != axis))) for axis in axes)
    matters = tuple(axis for axis in axes if (np.diff(bad, axis=axis)).any())
    return Hypothesis(kind, sets, matters, bad)


def _worth_of_a_look(fails: FloatArray) -> FloatArray:
    """Return the information of a look in bits per trial, where a pass costs two trials since it may be luck.

    The maximum lies at a failure probability of 0.618, the golden ratio (Karp 1961: codes whose letters
    differ in cost).

    Args:
        fails: Probability that each look shows a failure.
    """
    p = np.clip(fails, _NOTHING, 1.0 - _NOTHING)
    return np.asarray(-(p * np.log2(p) + (1.0 - p) * np.log2(1.0 - p)) / (2.0 - p), dtype=np.float64)


def _places(bits: float, most: int, price: float = 0.0) -> int:
    """Return at how many places to cut at once, so that the answer comes soonest.

    Args:
        bits: Entropy of the remaining uncertainty.
        most: How many cells can be looked at together, at least 1.
        price: Price of an environment, in looks; `BUILT_AT_ONCE` are made in the time of one.
    """
    if bits <= 0 or most <= 1:
        return min(most, 1)
    best, least = 1, math.inf
    for rounds in range(math.ceil(bits / math.log2(most + 1) - 1e-9), math.ceil(bits) + 1):
        places = min(most, max(1, math.ceil(2 ** (bits / rounds) - 1e-9) - 1))
        taken = rounds * (1.0 + math.ceil(places / BUILT_AT_ONCE) * price)
        if taken < least:
            best, least = places, taken
    return best


def _even_sample(weight: FloatArray, count: int) -> NDArray[np.intp]:
    """Return `count` positions, each drawn in proportion to its weight."""
    total = np.cumsum(weight)
    steps = (np.arange(count) + 0.5) / count * total[-1]
    return np.asarray(np.minimum(np.searchsorted(total, steps), len(weight) - 1), dtype=np.intp)


def _even_cuts(says: NDArray[np.bool_], weight: FloatArray, count: int) -> list[int] | None:
    """Return cells that cut a chain of rules into parts of equal weight; None if the rules form no chain.

    Args:
        says: Whether each rule calls each cell bad, shape (rules, cells).
        weight: Weight of each rule; they sum to 1.
        count: Number of cuts.
    """
    bad = weight @ says
    order = np.argsort(bad, kind="stable")
    if (np.diff(says[:, order].astype(np.int8), axis=1) < 0).any():
        return None
    wanted = (np.arange(count) + 1.0) / (count + 1.0)
    places = np.abs(bad[order][:, None] - wanted).argmin(axis=0)
    return [int(order[place]) for place in dict.fromkeys(places.tolist())]


def _packed(says: NDArray[np.bool_]) -> NDArray[np.uint8]:
    packed = np.packbits(says, axis=1)
    return packed if packed.shape[1] else np.zeros((len(says), 1), dtype=np.uint8)


def _entropy(weight: FloatArray) -> float:
    p = weight[weight > 0]
    p = p / p.sum()
    return float(-(p * np.log2(p)).sum())


def _entropy_of(says: NDArray[np.bool_], weight: FloatArray) -> float:
    """Return the joint entropy, in bits, of the labels that the rules give to some cells."""
    _, of = np.unique(_packed(says), axis=0, return_inverse=True)
    return _entropy(np.bincount(of.reshape(-1), weights=weight).astype(np.float64))


def _gain(seen: NDArray[np.bool_], says: NDArray[np.bool_], weight: FloatArray) -> FloatArray:
    """Return the information, in bits, that each cell adds to the cells already seen; shape (cells,)."""
    _, of = np.unique(_packed(seen), axis=0, return_inverse=True)
    of = of.reshape(-1)
    blocks = np.zeros((int(of.max()) + 1, len(weight)))
    blocks[of, np.arange(len(weight))] = weight
    total = blocks.sum(axis=1)[:, None]
    share = np.clip(blocks @ says.astype(np.float64) / total, 0.0, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = -np.nan_to_num(share * np.log2(share)) - np.nan_to_num((1 - share) * np.log2(1 - share))
    return np.asarray((total * bits).sum(axis=0), dtype=np.float64)
