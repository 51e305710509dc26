"""Find which changed packages cause the failure, by a search over sets of changes. Pure.

Between the good and the bad environment n packages changed. An *intermediate environment* is the good one
with a set S of the changes applied. A hypothesis names the smallest set C of changes that causes the failure:

    all of C:  S is bad iff C ⊆ S        (one package, or two or three packages together)
    any of C:  S is bad iff C ∩ S ≠ ∅    (either one of two packages)
    whole:     S is bad iff it contains every change

The hypotheses are rows of a belief (`belief.py`) over cells: the good and the bad environment with their
trials, the intermediate environments that were tried, and those that may come next. Not every intermediate
environment can be built; one that the package solver refuses is not asked for again. Hypotheses that no
buildable environment can tell apart are reported together.

The next environment is the one whose trials are expected to tell most for their cost (`choice.py`). Delta
debugging (A. Zeller and R. Hildebrandt, *Simplifying and isolating failure-inducing input*, IEEE TSE 28
(2002)) tests similar sets, but assumes that tests of one set always have the same result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bisect_env.search.belief import Belief, CellCounts, believe
from bisect_env.search.choice import BLOCKS, Choice
from bisect_env.search.families import FloatArray
from bisect_env.search.hypotheses import HypothesisRows
from bisect_env.search.rates import RateGrid

Changes = frozenset[int]
"""A set of changes, each given by its position in the list of changed packages."""

_SIZES = {1: 0.75, 2: 0.15, 3: 0.04}
_ANY = 0.04
_WHOLE = 0.02
_THREES_UP_TO = 45
"""Maximum number of changes for which sets of three are considered; beyond it there are too many sets."""
_LEADERS = 40
"""Number of the most probable hypotheses for which intermediate environments are proposed."""
_WORTH = 0.01
"""Minimum probability of a tied hypothesis that is reported, as a share of the best hypothesis's
probability."""
_ROUNDING = 1e-9
"""Relative difference up to which two probabilities count as equal."""
_NOTHING = 1e-3
"""Minimum expected information, in bits, of an intermediate environment that is worth trying."""


@dataclass(frozen=True, slots=True)
class Try:
    """A step of the search: run trials in an environment with only some of the changes applied.

    Attributes:
        intermediate: The changes that the environment contains.
        trials: Number of trials to run; the search may end before all of them have run.
    """

    intermediate: Changes
    trials: int


@dataclass(frozen=True, slots=True)
class Culprit:
    """A hypothesis about which changes cause the failure, with its probability.

    Attributes:
        kind: `all`, `any` or `whole` (see the module).
        changes: The changes; every change if `kind` is `whole`.
        probability: Posterior of this hypothesis and of the hypotheses in `tied` and `perhaps` together.
        tied: Changes of other hypotheses that no buildable environment can tell from this one, the most
            probable first.
        perhaps: Further changes that the failure may also need: no buildable environment contains `changes`
            without them.
    """

    kind: str
    changes: Changes
    probability: float
    tied: tuple[Changes, ...] = ()
    perhaps: Changes = frozenset()


_ALL, _EITHER, _TOGETHER = 0, 1, 2
_NAMES = {_ALL: "all", _EITHER: "any", _TOGETHER: "whole"}


@dataclass
class CulpritSearch:
    """A search for the changes between two environments that cause a failure (see the module).

    Args:
        size: Number of changes, at least 1.
        good: Number of failing trials and of all trials in the good environment.
        bad: Number of failing trials and of all trials in the bad environment.
        forced: For each change, the changes that the package solver must apply together with it, including
            itself.
        released: For each change, the changes that it must revert together with it, including itself.
        weights: Prior weight of each change being a culprit, up to a common factor.
        confidence: Posterior probability at which the search ends.
        min_rate: The smallest failure rate to search for.
        stated_rate: Failure rate of the bad environment, if the user states it.
        is_sound: Function that returns quickly whether an intermediate environment can be built, or True if
            that is unknown.

    Attributes:
        counts: Number of failing trials and of all trials of each intermediate environment tried.
    """

    size: int
    good: tuple[int, int]
    bad: tuple[int, int]
    forced: Sequence[Changes] = ()
    released: Sequence[Changes] = ()
    weights: Sequence[float] = ()
    confidence: float = 0.95
    min_rate: float = 0.02
    stated_rate: float | None = None
    is_sound: Callable[[Changes], bool] = lambda _intermediate: True
    counts: dict[Changes, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError("there is nothing to search among no changes")
        self._everything: Changes = frozenset(range(self.size))
        self._grid = RateGrid.default(self.min_rate, self.stated_rate, two_steps=False)
        self._feasible: dict[Changes, bool] = {}
        self._sound: dict[Changes, bool] = {}
        self._members, self._kinds, self._prior = _hypotheses(self.size, self.weights or [1.0] * self.size)

    # -- telling -------------------------------------------------------------------------------------------

    def set_aside(self, intermediate: Changes) -> None:
        """Exclude an intermediate environment that cannot be built or whose trials are useless."""
        self._feasible[intermediate] = False

    def tell(self, intermediate: Changes, *, hits: int, trials: int) -> None:
        """Record the results of trials in an environment with only some of the changes.

        Raises:
            ValueError: `hits` is not between 0 and `trials`.
        """
        if not 0 <= hits <= trials:
            raise ValueError(f"{hits} of {trials} are no counts")
        before = self.counts.get(intermediate, (0, 0))
        self.counts[intermediate] = (before[0] + hits, before[1] + trials)
        self._feasible.setdefault(intermediate, True)
        self.__dict__.pop("_posterior", None)

    # -- asking --------------------------------------------------------------------------------------------

    def next_step(self, *, build_cost: float = 5.0) -> Try | None:
        """Return the trials to run next, or None if there is nothing left to try.

        Args:
            build_cost: Cost of building a new environment, expressed as a number of trials.
        """
        if self.best.probability >= self.confidence:
            return None
        return self._most_telling([c for c in self._candidates() if self._may_be_had(c)], build_cost)

    @property
    def is_sure(self) -> bool:
        """Return whether the best explanation of the failure reaches the stated confidence.

        As long as `next_step` proposes trials, they may still contradict it.
        """
        return self.answer.probability >= self.confidence

    def _may_be_had(self, intermediate: Changes) -> bool:
        if intermediate in self._feasible:
            return self._feasible[intermediate]
        if intermediate not in self._sound:
            self._sound[intermediate] = self.is_sound(intermediate)
        return self._sound[intermediate]

    @property
    def _top(self) -> int:
        """Return the position of the most probable hypothesis; of equally probable ones the first.

        Which of these is larger by a rounding error depends on the order of the trials.
        """
        return int(np.argmax(self._posterior >= self._posterior.max() * (1.0 - _ROUNDING)))

    @property
    def best(self) -> Culprit:
        """Return the most probable set of culprits, with the probability that they cause the failure.

        The probability includes hypotheses that name further causes in addition.
        """
        top = self._top
        return self._culprit(top, float(self._posterior[self._agreeing(top)].sum()))

    @property
    def answer(self) -> Culprit:
        """Return the most probable hypothesis, together with those that no environment can tell from it.

        No environment can tell hypotheses apart if they agree on every one that is known to be buildable.
        """
        known = [intermediate for intermediate, feasible in self._feasible.items() if feasible]
        best = self.best
        if best.probability >= self.confidence:
            return best
        top = self._top
        labels = self._labels(known)
        agreeing = self._agreeing(top)
        same = (labels == labels[:, [top]]).all(axis=0) | agreeing
        size = self._members.sum(axis=1)
        others = same & ~agreeing & (self._posterior > _WORTH * self._posterior[top])
        alike = others & (size == size[top])
        wider = others & (size > size[top]) & (self._kinds != _EITHER)
        ordered = sorted(np.flatnonzero(alike).tolist(), key=lambda i: -self._posterior[i])
        mass = float(self._posterior[same].sum())
        found = self._culprit(top, mass, tuple(self._changes(i) for i in ordered))
        if found.tied or found.kind != _NAMES[_ALL]:
            return found
        perhaps = frozenset[int]().union(*(self._changes(int(i)) for i in np.flatnonzero(wider)))
        return replace(found, perhaps=perhaps - found.changes)

    def along(self, changes: Changes) -> Changes:
        """Return the changes that the package solver must apply together with any of the given ones."""
        return self._up(changes)

    def _agreeing(self, top: int) -> NDArray[np.bool_]:
        """Return a boolean array, shape (hypotheses,): True for those that agree with hypothesis `top`.

        They say that an environment with all changes of `top` fails, and one with all but one of these does
        not. They may name further causes in addition.
        """
        itself = np.zeros(len(self._posterior), dtype=np.bool_)
        itself[top] = True
        if self._kinds[top] != _ALL:
            return itself
        changes = self._changes(top)
        fewer = [changes - {one} for one in changes if len(changes) > 1]
        labels = self._labels([changes, *fewer])
        says_so = (labels[0] > 0) & (labels[1:] == 0).all(axis=0)
        return np.asarray(itself | says_so, dtype=np.bool_)

    def _culprit(self, position: int, probability: float, tied: tuple[Changes, ...] = ()) -> Culprit:
        kind = _NAMES[int(self._kinds[position])]
        return Culprit(kind, self._changes(position), min(1.0, probability), tied)

    def _changes(self, position: int) -> Changes:
        return frozenset(int(i) for i in np.flatnonzero(self._members[position]))

    @property
    def infeasible(self) -> int:
        """Return the number of intermediate environments found so far that cannot be built."""
        return sum(not feasible for feasible in (self._sound | self._feasible).values())

    # -- the posterior -------------------------------------------------------------------------------------

    def _believe(self, candidates: Sequence[Changes] = ()) -> tuple[Belief, list[Changes]]:
        """Return the posterior (`Belief`) for all environments with trials and the given candidates.

        Also returns these environments, in the order of the posterior's cells.
        """
        counts = self.counts_with_ends()
        cells = [*counts, *(one for one in candidates if one not in counts)]
        hits, trials = np.array([counts.get(one, (0, 0)) for one in cells], dtype=np.int64).T
        says = self._labels(cells).T > 0
        rows = HypothesisRows(says, self._prior, np.zeros(len(says), dtype=np.int8))
        return believe(rows, CellCounts(self._grid, hits, trials)), cells

    def counts_with_ends(self) -> dict[Changes, tuple[int, int]]:
        """Return (failures, trials) of each environment with trials, the good and the bad one first."""
        counts = {frozenset[int](): self.good, self._everything: self.bad}
        for changes, (hits, trials) in self.counts.items():
            before = counts.get(changes, (0, 0))
            counts[changes] = before[0] + hits, before[1] + trials
        return counts

    @cached_property
    def _posterior(self) -> FloatArray:
        """Return the posterior probability of each hypothesis, shape (hypotheses,)."""
        return self._believe()[0].weight

    def _labels(self, intermediates: Sequence[Changes]) -> FloatArray:
        """Return a 0/1 array that is 1 where a hypothesis calls an intermediate environment bad.

        The shape is (intermediates, hypotheses).
        """
        inside = np.zeros((len(intermediates), self.size))
        for row, intermediate in enumerate(intermediates):
            inside[row, list(intermediate)] = 1.0
        members = self._members.astype(np.float64)
        missing = (1.0 - inside) @ members.T
        common = inside @ members.T
        either = self._kinds == _EITHER
        return np.where(either[None, :], common > 0, missing == 0).astype(np.float64)

    def _most_telling(self, candidates: Sequence[Changes], build_cost: float) -> Try | None:
        """Return the trials that promise the most information for their cost, or None if none do.

        Args:
            candidates: Intermediate environments to choose from.
            build_cost: Cost of building a new environment, expressed as a number of trials.
        """
        if not candidates:
            return None
        belief, cells = self._believe(candidates)
        places = {one: place for place, one in enumerate(cells)}
        choice = Choice(belief, np.array([places[one] for one in candidates], dtype=np.intp))
        prices = np.array([0.0 if one in self.counts else build_cost for one in candidates])
        # Trials that tell only of rates would never end where no environment tells the answers apart.
        score = {
            block: np.where(
                choice.information(block, of_rates=False) > _NOTHING,
                choice.information(block) / (prices + block),
                0.0,
            )
            for block in BLOCKS
        }
        block = max(BLOCKS, key=lambda one: float(score[one].max()))
        if not score[block].any():
            return None
        return Try(candidates[int(score[block].argmax())], block)

    # -- intermediate environments ---------------------------------------------------------------------------

    def _candidates(self) -> list[Changes]:
        """Return the intermediate environments whose trials may separate the most probable hypotheses.

        The list has no duplicates, and contains all intermediate environments that were tried.
        """
        leaders = np.argsort(-self._posterior)[:_LEADERS].tolist()
        sets = [self._changes(i) for i in leaders]
        share = self._posterior @ self._members
        order = [int(i) for i in np.argsort(-share, kind="stable")]
        prefixes = [frozenset(order[: k + 1]) for k in range(len(order))]
        singles = [frozenset([i]) for i in order]
        wanted: list[Changes] = []
        for one in (*sets, *singles, *prefixes):
            wanted += [one, self._up(one), self._everything - one, self._everything - self._down(one)]
        for one in sets:
            for member in one:
                rest = self._everything - {member}
                wanted += [rest, self._up(one - {member}), self._everything - self._down(frozenset([member]))]
        found = dict.fromkeys([*wanted, *self.counts])
        return [one for one in found if one and one != self._everything]

    def _up(self, changes: Iterable[int]) -> Changes:
        return _closed(changes, self.forced)

    def _down(self, changes: Iterable[int]) -> Changes:
        return _closed(changes, self.released)


def _closed(changes: Iterable[int], along: Sequence[Changes]) -> Changes:
    found = set(changes)
    for change in tuple(found):
        found |= along[change] if along else {change}
    return frozenset(found)


def _hypotheses(
    size: int, weights: Sequence[float]
) -> tuple[NDArray[np.bool_], NDArray[np.int8], FloatArray]:
    """Return all hypotheses about `size` changes: their changes, their kinds and their prior.

    The shapes are (hypotheses, changes), (hypotheses,) and (hypotheses,).
    """
    each = np.array(weights, dtype=np.float64) / sum(weights)
    rows: list[tuple[tuple[int, ...], int, float]] = []
    sizes = [k for k in _SIZES if k <= min(size, 3 if size <= _THREES_UP_TO else 2)]
    for k in sizes:
        sets = list(itertools.combinations(range(size), k))
        mass = np.array([each[list(one)].prod() for one in sets])
        rows += [(one, _ALL, _SIZES[k] * m) for one, m in zip(sets, mass / mass.sum(), strict=True)]
    if size >= 2:
        pairs = list(itertools.combinations(range(size), 2))
        rows += [(pair, _EITHER, _ANY / len(pairs)) for pair in pairs]
    if size > max(sizes):
        rows.append((tuple(range(size)), _TOGETHER, _WHOLE))
    members = np.zeros((len(rows), size), dtype=np.bool_)
    for position, (one, _, _) in enumerate(rows):
        members[position, list(one)] = True
    prior = np.array([weight for _, _, weight in rows])
    return members, np.array([kind for _, kind, _ in rows], dtype=np.int8), prior / prior.sum()
