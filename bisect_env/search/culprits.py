"""Finds which changed packages carry the failure, by a search over sets of changes. Pure.

Between a good environment and a bad one n packages changed. An *intermediate environment* is the good one
with a set S of the changes made. A hypothesis is a smallest set C that carries the failure:

    all of C:  S is bad iff C ⊆ S        (one package, or two or three that have to meet)
    any of C:  S is bad iff C ∩ S ≠ ∅    (either of two packages does it)
    whole:     S is bad iff it has every change

The counts of all intermediate environments give the posterior as they do for combinations: with the rates of
bad intermediate environments drawn around a common one (see `rates.py`), and the trials at both ends known
beforehand,

    P(C | counts) ∝ P(C) · Σ_{j,k} P(m_j, σ_j, p0_k | ends) · Π_{S bad under C} B_j(S) · Π_{others} G_k(S)

which is a product of three small matrices for all hypotheses at once. Not every intermediate environment
can be made; what a solver refuses is never asked again, and hypotheses that no intermediate environment
tells apart end as one answer.

Next is tried what tells most per cost: the mutual information between "S is bad" and the number of failures
in a block of trials, over the block's length plus the price of building S. Delta debugging (A. Zeller and
R. Hildebrandt, *Simplifying and isolating failure-inducing input*, IEEE TSE 28 (2002)) tests the same halves
and complements, but takes each answer for certain.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from bisect_env.search.families import FloatArray
from bisect_env.search.numeric import beta_binomial
from bisect_env.search.rates import RateGrid

Changes = frozenset[int]
"""A set of changes, by their positions."""

_SIZES = {1: 0.75, 2: 0.15, 3: 0.04}
_ANY = 0.04
_WHOLE = 0.02
_THREES_UP_TO = 45
"""Changes up to which three that have to meet are considered: beyond it there are too many threes."""
_LEADERS = 40
"""Hypotheses for which intermediate environments are thought up."""
_BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128)
_WORTH = 0.01
"""Tied hypotheses are named if they are at least so probable, as a share of the first."""
_NOTHING = 1e-3
"""Bits below which an intermediate environment is not worth making."""


@dataclass(frozen=True, slots=True)
class Try:
    """A step that asks for trials of an intermediate environment, if it can be built.

    Attributes:
        intermediate: The environment.
        trials: Number of trials; the answer may be found before all of them have run.
    """

    intermediate: Changes
    trials: int


@dataclass(frozen=True, slots=True)
class Done:
    """The end of the search: no step is left.

    Attributes:
        is_sure: Whether the confidence is reached.
    """

    is_sure: bool


@dataclass(frozen=True, slots=True)
class Culprit:
    """A hypothesis about which changes cause the failure, with its probability.

    Attributes:
        kind: `all`, `any` or `whole`.
        changes: The changes; every change for `whole`.
        probability: Posterior.
        tied: Further hypotheses that no intermediate environment can tell from this one, the most probable
            first; the probability covers all of them.
        perhaps: Further changes that the failure may need as well: no intermediate environment has `changes`
            without them. The probability covers that.
    """

    kind: str
    changes: Changes
    probability: float
    tied: tuple[Changes, ...] = ()
    perhaps: Changes = frozenset()


@dataclass(slots=True)
class _Hypotheses:
    members: NDArray[np.bool_]
    kinds: NDArray[np.int8]
    prior: FloatArray


_ALL, _EITHER, _TOGETHER = 0, 1, 2
_NAMES = {_ALL: "all", _EITHER: "any", _TOGETHER: "whole"}


@dataclass
class CulpritSearch:
    """A search for the changes between two environments that cause a failure; see the module.

    Args:
        size: Number of changes, at least 1.
        good: Bad trials and trials of the good end.
        bad: Bad trials and trials of the bad end.
        forced: For each change those that a solver has to make along with it, itself included.
        released: For each change those that it has to take back along with it, itself included.
        weights: How likely each change is a culprit before any trial, up to a factor.
        confidence: Posterior at which the search ends.
        min_rate: The smallest crash rate that is looked for.
        stated_rate: How often the bad end fails, if the user says so.
        is_sound: Returns at once whether an intermediate environment can be built; True if unknown.

    Attributes:
        counts: Bad trials and trials of each intermediate environment tried.
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
        self._built: set[Changes] = set()
        self._hypotheses = _hypotheses(self.size, self.weights or [1.0] * self.size)
        self._refresh()

    # -- telling -------------------------------------------------------------------------------------------

    def set_aside(self, intermediate: Changes) -> None:
        """Record that an intermediate environment cannot be built, or that nothing can be learnt in it."""
        self._feasible[intermediate] = False

    def tell(self, intermediate: Changes, *, hits: int, trials: int) -> None:
        """Add trials of an intermediate environment.

        Raises:
            ValueError: No such counts.
        """
        if not 0 <= hits <= trials:
            raise ValueError(f"{hits} of {trials} are no counts")
        before = self.counts.get(intermediate, (0, 0))
        self.counts[intermediate] = (before[0] + hits, before[1] + trials)
        self._feasible[intermediate] = True
        self._built.add(intermediate)
        self._refresh()

    # -- asking --------------------------------------------------------------------------------------------

    def next_step(self, *, build_cost: float = 5.0) -> Try | Done:
        """Return the next step of the search.

        Args:
            build_cost: Price of a new environment, in trials.
        """
        if self.best.probability >= self.confidence:
            return Done(is_sure=True)
        candidates = [c for c in self._candidates() if self._may_be_had(c)]
        best = self._most_telling(candidates, build_cost)
        if best is None:
            return Done(is_sure=self.answer.probability >= self.confidence)
        _, intermediate, block = best
        return Try(intermediate, block)

    def _may_be_had(self, intermediate: Changes) -> bool:
        if intermediate in self._feasible:
            return self._feasible[intermediate]
        if intermediate not in self._sound:
            self._sound[intermediate] = self.is_sound(intermediate)
        return self._sound[intermediate]

    @property
    def best(self) -> Culprit:
        """Return the most probable hypothesis with the probability that its changes cause the failure."""
        top = int(self._posterior.argmax())
        return self._culprit(top, float(self._posterior[self._agreeing(top)].sum()))

    @property
    def answer(self) -> Culprit:
        """Return the best hypothesis with those that no environment can tell from it."""
        known = [intermediate for intermediate, feasible in self._feasible.items() if feasible]
        best = self.best
        if not known or best.probability >= self.confidence:
            return best
        top = int(self._posterior.argmax())
        labels = self._labels(known)
        agreeing = self._agreeing(top)
        same = (labels == labels[:, [top]]).all(axis=0) | agreeing
        size = self._hypotheses.members.sum(axis=1)
        others = same & ~agreeing & (self._posterior > _WORTH * self._posterior[top])
        alike = others & (size == size[top])
        wider = others & (size > size[top]) & (self._hypotheses.kinds != _EITHER)
        ordered = sorted(np.flatnonzero(alike).tolist(), key=lambda i: -self._posterior[i])
        mass = float(self._posterior[same].sum())
        found = self._culprit(top, mass, tuple(self._members(i) for i in ordered))
        if found.tied or found.kind != _NAMES[_ALL]:
            return found
        perhaps = frozenset[int]().union(*(self._members(int(i)) for i in np.flatnonzero(wider)))
        return replace(found, perhaps=perhaps - found.changes)

    def _agreeing(self, top: int) -> NDArray[np.bool_]:
        """Return which hypotheses agree that the top one's changes cause the failure and no fewer do.

        They may name further causes besides.
        """
        itself = np.zeros(len(self._posterior), dtype=np.bool_)
        itself[top] = True
        if self._hypotheses.kinds[top] != _ALL:
            return itself
        changes = self._members(top)
        fewer = [changes - {one} for one in changes if len(changes) > 1]
        labels = self._labels([changes, *fewer])
        says_so = (labels[0] > 0) & (labels[1:] == 0).all(axis=0)
        return np.asarray(itself | says_so, dtype=np.bool_)

    def _culprit(self, position: int, probability: float, tied: tuple[Changes, ...] = ()) -> Culprit:
        kind = _NAMES[int(self._hypotheses.kinds[position])]
        return Culprit(kind, self._members(position), min(1.0, probability), tied)

    def _members(self, position: int) -> Changes:
        return frozenset(int(i) for i in np.flatnonzero(self._hypotheses.members[position]))

    @property
    def infeasible(self) -> int:
        """Return the number of intermediate environments that cannot be built."""
        return sum(not feasible for feasible in (self._sound | self._feasible).values())

    # -- the posterior -------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        grid = self._grid
        with np.errstate(divide="ignore"):
            log_joint = np.log(grid.joint)
        log_joint += grid.if_bad(*self.bad)[0][:, None] + grid.if_good(*self.good)[None, :]
        # One intermediate environment is the bad end itself; its trials are known twice over then, never
        # counted twice.
        tried = [h for h in self.counts if h not in (self._everything, frozenset())]
        ends = {self._everything: 0, frozenset(): 1}
        for end, which in ends.items():
            if end in self.counts:
                more = self.counts[end]
                log_joint += grid.if_good(*more)[None, :] if which else grid.if_bad(*more)[0][:, None]
        weight = np.exp(log_joint - log_joint.max())
        hypotheses = self._hypotheses
        bad = np.zeros((len(hypotheses.prior), len(grid.m)))
        good = np.zeros((len(hypotheses.prior), len(grid.p0)))
        if tried:
            labels = self._labels(tried)
            bad += labels.T @ np.stack([grid.if_bad(*self.counts[h])[0] for h in tried])
            good += (1.0 - labels).T @ np.stack([grid.if_good(*self.counts[h]) for h in tried])
        bad_top, good_top = bad.max(axis=1), good.max(axis=1)
        by_column = np.exp(bad - bad_top[:, None])
        by_background = np.exp(good - good_top[:, None])
        evidence = ((by_column @ weight) * by_background).sum(axis=1)
        with np.errstate(divide="ignore"):
            score = np.log(hypotheses.prior) + np.log(evidence) + bad_top + good_top
        posterior = np.exp(score - score.max())
        self._posterior: FloatArray = posterior / posterior.sum()
        top = int(self._posterior.argmax())
        columns = (weight * by_background[top][None, :]).sum(axis=1) * by_column[top]
        background = (weight * by_column[top][:, None]).sum(axis=0) * by_background[top]
        self._columns: FloatArray = columns / columns.sum()
        self._background: FloatArray = background / background.sum()

    def _labels(self, intermediates: Sequence[Changes]) -> FloatArray:
        """Return whether each hypothesis calls each environment bad: shape (intermediates, hypotheses)."""
        inside = np.zeros((len(intermediates), self.size))
        for row, intermediate in enumerate(intermediates):
            inside[row, list(intermediate)] = 1.0
        members = self._hypotheses.members.astype(np.float64)
        missing = (1.0 - inside) @ members.T
        common = inside @ members.T
        either = self._hypotheses.kinds == _EITHER
        return np.where(either[None, :], common > 0, missing == 0).astype(np.float64)

    def _most_telling(
        self, candidates: Sequence[Changes], build_cost: float
    ) -> tuple[float, Changes, int] | None:
        """Return score, environment and block size of the best candidate; None if no candidate is useful.

        The best candidate has the highest expected information per cost.

        A block tells the mutual information between whether the intermediate environment is bad and its
        number of failures. The rate of a bad intermediate environment is taken beta-distributed with the
        mean and the variance of the posterior.
        """
        if not candidates:
            return None
        chance = self._labels(candidates) @ self._posterior
        price = np.array([0.0 if intermediate in self._built else build_cost for intermediate in candidates])
        # Intermediate environments with equal counts have equal rates, and mostly these are none.
        alike: dict[tuple[int, int], list[int]] = {}
        for position, intermediate in enumerate(candidates):
            alike.setdefault(self.counts.get(intermediate, (0, 0)), []).append(position)
        background = _mean_and_variance(self._grid.p0, self._background)
        best: tuple[float, Changes, int] | None = None
        for counts, positions in alike.items():
            _, rates = self._grid.if_bad(*counts)
            moments = _mean_and_variance(self._grid.rates, self._columns @ rates)
            for block in _BLOCKS:
                if_bad = _of_hits(block, *moments)
                if_good = _of_hits(block, *background)
                told = _information(chance[positions], if_bad, if_good)
                scores = np.where(told > _NOTHING, told / (price[positions] + block), 0.0)
                top = int(scores.argmax())
                if scores[top] > (0.0 if best is None else best[0]):
                    best = (float(scores[top]), candidates[positions[top]], block)
        return best

    # -- intermediate environments ---------------------------------------------------------------------------

    def _candidates(self) -> list[Changes]:
        """Return the environments that may separate the leading hypotheses, each once, without the ends."""
        leaders = np.argsort(-self._posterior)[:_LEADERS].tolist()
        sets = [self._members(i) for i in leaders]
        share = self._posterior @ self._hypotheses.members
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
        found = dict.fromkeys([*wanted, *self._built])
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


def _hypotheses(size: int, weights: Sequence[float]) -> _Hypotheses:
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
    return _Hypotheses(members, np.array([kind for _, kind, _ in rows], dtype=np.int8), prior / prior.sum())


def _mean_and_variance(values: FloatArray, weights: FloatArray) -> tuple[float, float]:
    mean = float(values @ weights / weights.sum())
    return mean, float(((values - mean) ** 2) @ weights / weights.sum())


def _of_hits(trials: int, mean: float, variance: float) -> FloatArray:
    """Return the probability of each number of hits for a beta-distributed rate.

    Mean and variance of the rate are given.
    """
    mean = min(max(mean, 1e-9), 1 - 1e-9)
    # Almost no variance is a plain binomial; a beta with huge parameters is one, to many digits.
    total = mean * (1 - mean) / max(variance, 1e-12 * mean) - 1.0
    return beta_binomial(trials, max(total, 1e-3) * mean, max(total, 1e-3) * (1 - mean))


def _information(chance: FloatArray, if_bad: FloatArray, if_good: FloatArray) -> FloatArray:
    """Return the mutual information, in bits, of a label and a count, for each chance of the label.

    The result has shape (C,).
    """
    bad, good = chance[:, None] * if_bad[None, :], (1.0 - chance)[:, None] * if_good[None, :]
    mixed = bad + good
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(bad > 0, bad * np.log2(if_bad[None, :] / mixed), 0.0)
        terms += np.where(good > 0, good * np.log2(if_good[None, :] / mixed), 0.0)
    return np.asarray(terms.sum(axis=1), dtype=np.float64)
