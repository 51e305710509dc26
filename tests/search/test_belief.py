"""The belief against plain sums over every hypothesis and every rate, and the rows that it weighs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.belief import Belief, CellCounts, believe, most_evidence
from bisect_env.search.generators import products, staircase_rows
from bisect_env.search.hypotheses import HypothesisRows, joined
from bisect_env.search.independent import independent, own_labels, path
from bisect_env.search.nonmonotone import histories
from bisect_env.search.rates import RateGrid
from bisect_env.search.tallies import Tallies
from bisect_env.search.view import LatticeView
from tests.search.worlds import EITHER, FIXED, REGRESSION, UNORDERED, alone, grid, small_rates

RNG = np.random.default_rng
ORDERED = [REGRESSION, FIXED, EITHER]


def view_of(
    shape: tuple[int, ...],
    directions: Direction | list[Direction] = REGRESSION,
    *,
    good: Index | None = None,
    bad: Index | None = None,
) -> LatticeView:
    lattice = grid(shape, directions, good=good, bad=bad)
    return LatticeView.of(lattice, alone(lattice))


def everywhere(view: LatticeView) -> NDArray[np.bool_]:
    return np.ones(len(view.cells), dtype=bool)


def plain(view: LatticeView) -> HypothesisRows:
    return products(view, None, everywhere(view))


def with_histories(view: LatticeView) -> HypothesisRows:
    return products(view, histories(view.grid, view.cells), everywhere(view))


def toss(bad: NDArray[np.bool_], rng: np.random.Generator, rates: RateGrid) -> CellCounts:
    """Up to four trials of each cell."""
    trials = rng.integers(0, 5, len(bad))
    chance = np.where(bad, rng.choice([0.3, 1.0]), rng.choice([0.0, 0.1]))
    return CellCounts(rates, rng.binomial(trials, chance), trials)


def by_loops(rows: HypothesisRows, counts: CellCounts) -> NDArray[np.float64]:
    """Prior times likelihood of each row, column and background, summed without logarithms."""
    rates = counts.grid
    found = np.zeros((len(rows.prior), len(rates.m), len(rates.p0)))
    for row, j, k in np.ndindex(*found.shape):
        says, p0 = rows.says[row], rates.p0[k]
        if not says.any() and p0 >= rates.rates.min():
            # What fails alike everywhere, and not rarely, is bad.
            continue
        likelihood = 1.0
        for bad, y, n in zip(says, counts.hits.tolist(), counts.trials.tolist(), strict=True):
            if bad:
                likelihood *= float(rates.kernel[j] @ (rates.rates**y * (1 - rates.rates) ** (n - y)))
            else:
                likelihood *= p0**y * (1 - p0) ** (n - y)
        found[row, j, k] = rows.prior[row] * rates.joint[j, k] * likelihood
    return found


def answers_by_loops(
    rows: HypothesisRows, weight: NDArray[np.float64], tried: NDArray[np.intp]
) -> list[float]:
    """The weight of rows that agree on the tried cells, shared by those of the lowest tier among them."""
    groups: dict[tuple[bool, bytes], list[int]] = {}
    for row, says in enumerate(rows.says):
        groups.setdefault((bool(says.any()), says[tried].tobytes()), []).append(row)
    found = [0.0] * len(weight)
    for group in groups.values():
        simple = [row for row in group if rows.tier[row] == min(rows.tier[group])]
        for row in simple:
            found[row] = float(weight[group].sum() * rows.prior[row] / rows.prior[simple].sum())
    return found


def assert_equals_plain_sums(belief: Belief, expected: NDArray[np.float64]) -> None:
    evidence = math.fsum(expected.ravel().tolist())
    posterior = expected / evidence
    np.testing.assert_allclose(belief.weight, posterior.sum(axis=(1, 2)), atol=1e-9)
    np.testing.assert_allclose(belief.bad_rates, posterior.sum(axis=(0, 2)), atol=1e-9)
    np.testing.assert_allclose(belief.backgrounds, posterior.sum(axis=(0, 1)), atol=1e-9)
    assert belief.log_evidence == pytest.approx(math.log(evidence), abs=1e-8)
    answers = answers_by_loops(belief.rows, posterior.sum(axis=(1, 2)), belief.counts.tried)
    np.testing.assert_allclose(belief.answers, answers, atol=1e-9)
    np.testing.assert_allclose(belief.bad, np.array(answers) @ belief.rows.says, atol=1e-9)


# -- the posterior ---------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(list(Direction)), min_size=1, max_size=3), st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_posterior_equals_plain_sums(directions: list[Direction], seed: int) -> None:
    rng = RNG(seed)
    longest = {1: 6, 2: 4, 3: 3}[len(directions)]
    view = view_of(tuple(int(n) for n in rng.integers(1, longest, len(directions))), directions)
    rows = with_histories(view) if rng.random() < 0.5 else plain(view)
    counts = toss(rows.says[int(rng.integers(len(rows.prior)))], rng, small_rates())
    assert_equals_plain_sums(believe(rows, counts), by_loops(rows, counts))


@pytest.mark.parametrize("seed", range(2))
def test_posterior_equals_plain_sums_with_the_rates_in_use(seed: int) -> None:
    rng = RNG(seed)
    rows = plain(view_of((2, 3), [UNORDERED, REGRESSION]))
    counts = toss(rows.says[int(rng.integers(len(rows.prior)))], rng, RateGrid.default(0.2))
    assert_equals_plain_sums(believe(rows, counts), by_loops(rows, counts))


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_order_of_trials_does_not_matter(seed: int) -> None:
    rng = RNG(seed)
    rows = plain(view_of((3, 3), [REGRESSION, EITHER]))
    told = [(int(rng.integers(9)), int(rng.random() < 0.3)) for _ in range(30)]
    beliefs = []
    for order in (range(30), rng.permutation(30)):
        none = np.zeros(9, dtype=np.int64)
        counts = CellCounts(RateGrid.default(), none, none)
        for i in order:
            counts = counts.given(told[i][0], told[i][1], 1)
        beliefs.append(believe(rows, counts))
    np.testing.assert_array_equal(beliefs[0].weight, beliefs[1].weight)
    np.testing.assert_array_equal(beliefs[0].bad, beliefs[1].bad)


def test_more_counts_leave_earlier_ones_as_they_were() -> None:
    before = CellCounts(small_rates(), np.array([1, 0]), np.array([2, 3]))
    after = before.given(1, 1, 4)
    assert (before.hits.tolist(), before.trials.tolist()) == ([1, 0], [2, 3])
    assert (after.hits.tolist(), after.trials.tolist()) == ([1, 1], [2, 7])


def test_thousands_of_trials_that_fit_nothing_still_give_a_distribution() -> None:
    # Frequent at the good side, rare at the bad one: the best rates of each side exclude each other.
    counts = CellCounts(RateGrid.default(), np.array([2500, 2500, 250, 250]), np.full(4, 5000))
    belief = believe(plain(view_of((4,))), counts)
    assert np.isfinite(belief.weight).all()
    assert belief.weight.sum() == pytest.approx(1)
    assert np.isfinite(belief.log_evidence)


def test_good_cells_that_fail_at_times_do_not_stay_suspect_for_ever() -> None:
    """What was seen at background 0.05 and bad rate 0.15: no cell can be bad at the background rate."""
    seen = [(22, 465), (11, 158), (2, 51), (35, 557), (16, 310), (481, 3235), (17, 90), (23, 134)]
    hits, trials = np.array(seen).T
    belief = believe(plain(view_of((8,))), CellCounts(RateGrid.default(), hits, trials))
    (from_five_on,) = np.flatnonzero((belief.rows.says == (np.arange(8) >= 5)).all(axis=1))
    assert belief.weight[from_five_on] > 0.99


def test_what_fails_alike_everywhere_is_not_called_never_bad() -> None:
    counts = CellCounts(RateGrid.default(), np.full(8, 20), np.full(8, 200))
    belief = believe(plain(view_of((8,))), counts)
    assert belief.rows.always[belief.best]
    assert belief.answers[belief.best] > 0.95


@pytest.mark.parametrize("tried", [3, 9, 12])
@pytest.mark.parametrize("direction", ORDERED)
def test_the_evidence_of_all_histories_is_bounded_closely(direction: Direction, tried: int) -> None:
    rng = RNG(tried)
    rows = with_histories(view_of((12,), direction))
    for _ in range(10):
        trials = np.zeros(12, dtype=np.int64)
        trials[rng.permutation(12)[:tried]] = rng.integers(1, 9, tried)
        counts = CellCounts(small_rates(), rng.binomial(trials, rng.choice([0.1, 0.5])), trials)
        belief = believe(rows, counts)
        of_histories = belief.masses[belief.patterns.tier > 0].sum()
        exact = belief.log_evidence + math.log(of_histories) if of_histories else -math.inf
        bound = most_evidence(rows, counts)
        assert bound >= exact - 1e-9
        # Once all values were tried, histories that begin alike and change equally often are equally likely.
        if tried == 12:
            assert bound == pytest.approx(exact, abs=1e-8)


def test_a_combination_is_labelled_by_its_own_trials() -> None:
    def labelled(hits: list[int], trials: list[int]) -> list[int]:
        counts = CellCounts(RateGrid.default(), np.array(hits), np.array(trials))
        return own_labels(counts, independent(counts)[1], SearchLimits()).tolist()

    # One trial each is enough as long as no combination both failed and passed.
    assert labelled([0, 1, 0], [0, 1, 1]) == [-1, 1, 0]
    # Failures of half of all trials: two passes are not enough, thirty are.
    assert labelled([0, 15, 0, 0], [0, 30, 2, 30]) == [-1, 1, -1, 0]
    # A combination that is still doubtful after many trials gets the likelier label.
    assert labelled([15, 2, 2], [30, 25, 60]) == [1, -1, 0]


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_weights_of_patterns_scale_their_shares(seed: int) -> None:
    rng = RNG(seed)
    rows = plain(view_of((3, 4), [FIXED, REGRESSION]))
    belief = believe(rows, toss(rows.says[int(rng.integers(len(rows.prior)))], rng, small_rates()))
    weights = rng.choice([0.0, 0.3, 1.0], len(belief.masses))
    weights[belief.masses.argmax()] = 1.0
    scaled = belief.weighted(weights)
    np.testing.assert_allclose(scaled.masses, belief.masses * weights / (belief.masses @ weights))
    kept = weights[belief.patterns.of]
    np.testing.assert_allclose(scaled.weight, belief.weight * kept / (belief.weight @ kept))
    assert scaled.answers.sum() == pytest.approx(1)
    assert scaled.bad_rates.sum() == pytest.approx(1)
    assert scaled.backgrounds.sum() == pytest.approx(1)


def test_an_answer_given_columns_of_the_rates_is_the_sum_over_these_alone() -> None:
    rows = plain(view_of((4,)))
    counts = CellCounts(small_rates(), np.array([0, 0, 2, 1]), np.array([3, 2, 4, 3]))
    belief = believe(rows, counts)
    shared = counts.grid.spread == 0
    expected = by_loops(rows, counts)[:, shared].sum(axis=(1, 2))
    assert belief.given_columns(shared, belief.best) == pytest.approx(expected[belief.best] / expected.sum())


# -- patterns and tiers ----------------------------------------------------------------------------------


def test_the_mass_of_a_pattern_goes_to_its_rows_of_the_lowest_tier() -> None:
    says = np.array([[0, 0, 1], [0, 1, 1], [1, 0, 1], [0, 0, 0]], dtype=bool)
    rows = HypothesisRows(
        says, np.array([0.2, 0.1, 0.6, 0.1]), np.array([0, 0, 1, 0], dtype=np.int8), _no_table
    )
    counts = CellCounts(small_rates(), np.array([0, 0, 3]), np.array([0, 0, 3]))
    belief = believe(rows, counts)
    # All but "never" agree on the only tried cell; the third row is of a higher tier.
    mass = belief.weight[:3].sum()
    np.testing.assert_allclose(belief.answers[:3], [mass * 2 / 3, mass / 3, 0.0])
    assert belief.answers[3] == pytest.approx(belief.weight[3])


def _no_table(row: int) -> None:
    raise AssertionError(f"nobody asked what row {row} looks like")


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_rows_of_one_pattern_say_the_same_of_the_tried_cells(seed: int) -> None:
    rng = RNG(seed)
    rows = with_histories(view_of((4, 3), [REGRESSION, EITHER]))
    tried = np.flatnonzero(rng.random(12) < 0.4)
    patterns = rows.patterns(tried)
    np.testing.assert_array_equal(patterns.calls[patterns.of], rows.says[:, tried])
    others = patterns.of[~rows.never]
    assert len(set(others.tolist())) == len({row.tobytes() for row in rows.says[~rows.never][:, tried]})
    # "Never" has a pattern of its own.
    assert patterns.of[rows.never].tolist() == [patterns.never]
    assert patterns.never not in others
    np.testing.assert_allclose(patterns.prior, np.bincount(patterns.of, weights=rows.prior))
    shares = np.bincount(patterns.of, weights=patterns.share)
    np.testing.assert_allclose(shares[patterns.prior > 0], 1.0)


def test_joined_rows_are_written_by_the_part_they_come_from() -> None:
    view = view_of((3, 4))
    parts = [plain(view), with_histories(view)]
    both = joined(parts)
    first = len(parts[0].prior)
    assert both.write(0) == parts[0].write(0)
    assert both.write(first - 1) == parts[0].write(first - 1)
    assert both.write(first) == parts[1].write(0)
    np.testing.assert_array_equal(both.says[first:], parts[1].says)


# -- generators ------------------------------------------------------------------------------------------


@given(
    st.lists(st.sampled_from(list(Direction)), min_size=1, max_size=3),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=25)
def test_products_and_histories_are_different_rows_with_a_distribution_as_prior(
    directions: list[Direction], more: bool, seed: int
) -> None:
    rng = RNG(seed)
    longest = {1: 8, 2: 5, 3: 4}[len(directions)]
    view = view_of(tuple(int(n) for n in rng.integers(1, longest, len(directions))), directions)
    seen = rng.random(len(view.cells)) < 0.7
    rows = products(view, histories(view.grid, view.cells) if more else None, seen)
    assert len({row.tobytes() for row in rows.says[:, seen]}) == len(rows.prior)
    assert rows.prior.sum() == pytest.approx(1)
    assert (rows.prior >= 0).all()
    assert set(rows.tier.tolist()) <= ({0, 1} if more else {0})
    for row in rng.integers(0, len(rows.prior), 5):
        written = rows.write(int(row)).bad_cells()
        np.testing.assert_array_equal([written[cell] for cell in view.cells], rows.says[row])


def test_a_history_has_a_higher_tier_than_what_the_direction_says() -> None:
    rows = with_histories(view_of((7,)))
    changes = np.count_nonzero(np.diff(rows.says.astype(int)), axis=1)
    rises = (changes == 0) | ((changes == 1) & rows.says[:, -1])
    np.testing.assert_array_equal(rows.tier == 0, rises)
    assert rows.prior[rows.tier == 1].sum() < 0.1


def test_what_contradicts_a_stated_end_is_less_likely_and_not_impossible() -> None:
    stated, open_ = (plain(view_of((6,), good=good)) for good in ((0,), None))
    always = [float(rows.prior[rows.always][0]) for rows in (stated, open_)]
    assert 0 < always[0] < 0.2 * always[1]


@pytest.mark.parametrize("size", [4, 30, 700])
def test_what_stands_for_rows_that_nothing_tells_apart_splits_no_group(size: int) -> None:
    """The last three values share a measurement: what calls them bad calls all three bad."""
    last = size - 3
    groups = {(place,): (last if place >= last else 0,) for place in range(size)}
    view = LatticeView.of(grid((size,)), groups)
    rows = plain(view)
    (sought,) = np.flatnonzero((rows.says == [False, True]).all(axis=1))
    assert rows.write(int(sought)).bad_cells().tolist() == [False] * last + [True] * 3


def most_changes(bad: NDArray[np.bool_]) -> int:
    """How often a way that never goes down along any axis changes between good and bad at most."""
    most = np.zeros(bad.shape, dtype=int)
    for cell in np.ndindex(*bad.shape):
        for axis, place in enumerate(cell):
            if place:
                before = (*cell[:axis], place - 1, *cell[axis + 1 :])
                most[cell] = max(most[cell], most[before] + int(bad[before] != bad[cell]))
    return int(most.max())


def staircase_world(
    directions: list[Direction], changes: int, seed: int
) -> tuple[LatticeView, NDArray[np.int8], HypothesisRows | None]:
    """Labels of a table with so many changes on the way upward, and the staircases found for them."""
    rng = RNG(seed)
    shape = tuple(int(n) for n in rng.integers(2, 6 if len(directions) == 2 else 4, len(directions)))
    view = view_of(shape, directions)
    steps = np.indices(shape).sum(axis=0) + rng.random()
    turned = [axis for axis, direction in enumerate(directions) if direction is FIXED]
    levels = np.sort(rng.uniform(0, steps.max(), changes))
    truth = np.flip(np.searchsorted(levels, steps) % 2 == 1, axis=turned).ravel()
    labels = np.where(rng.random(truth.size) < 0.6, truth, -1).astype(np.int8)
    return view, labels, staircase_rows(view, labels, everywhere(view))


WORLDS = (
    st.lists(st.sampled_from(ORDERED), min_size=2, max_size=3),
    st.integers(1, 3),
    st.integers(0, 2**32 - 1),
)


@given(*WORLDS)
@settings(max_examples=25)
def test_staircases_agree_with_all_labels(directions: list[Direction], changes: int, seed: int) -> None:
    _, labels, rows = staircase_world(directions, changes, seed)
    known = labels >= 0
    if rows is None:
        assert len(set(labels[known].tolist())) < 2
    else:
        assert (rows.says[:, known] == (labels[known] == 1)).all()


@given(*WORLDS)
@settings(max_examples=25)
def test_staircases_change_no_oftener_than_their_tier_says(
    directions: list[Direction], changes: int, seed: int
) -> None:
    view, _, rows = staircase_world(directions, changes, seed)
    if rows is None:
        return
    assert len({row.tobytes() for row in rows.says}) == len(rows.prior)
    assert (rows.prior > 0).all()
    (tier,) = set(rows.tier.tolist())
    assert 2 <= tier <= 1 + changes
    axes = range(len(directions))
    ways = [way for n in range(len(directions) + 1) for way in itertools.combinations(axes, n)]
    for row in rows.says:
        table = row.reshape(view.grid.shape)
        assert min(most_changes(np.flip(table, axis=way)) for way in ways) <= tier - 1
    np.testing.assert_array_equal(rows.write(0).bad_cells().ravel(), rows.says[0])


def test_one_axis_or_labels_of_one_kind_have_no_staircases() -> None:
    line, plane = view_of((5,)), view_of((3, 3))
    assert staircase_rows(line, np.array([0, -1, -1, -1, 1], dtype=np.int8), everywhere(line)) is None
    for label in (0, 1):
        assert staircase_rows(plane, np.full(9, label, dtype=np.int8), everywhere(plane)) is None


# -- without a rule --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_labels_without_a_rule_equal_the_sum_over_all_labellings(seed: int) -> None:
    rng = RNG(seed)
    rates = small_rates()
    trials = rng.integers(1, 6, 4)
    counts = CellCounts(rates, rng.binomial(trials, rng.choice([0.0, 0.4, 1.0], 4)), trials)
    total, bad = 0.0, np.zeros(4)
    for labels in itertools.product([False, True], repeat=4):
        for j, k in np.ndindex(*rates.joint.shape):
            likelihood = float(rates.joint[j, k]) / 2**4
            for is_bad, y, n in zip(labels, counts.hits.tolist(), trials.tolist(), strict=True):
                if is_bad:
                    likelihood *= float(rates.kernel[j] @ (rates.rates**y * (1 - rates.rates) ** (n - y)))
                else:
                    likelihood *= float(rates.p0[k] ** y * (1 - rates.p0[k]) ** (n - y))
            total += likelihood
            bad += likelihood * np.array(labels)
    log_evidence, chances = independent(counts)
    assert log_evidence == pytest.approx(math.log(total), abs=1e-9)
    np.testing.assert_allclose(chances, bad / total, atol=1e-9)


@given(st.lists(st.sampled_from(list(Direction)), min_size=1, max_size=3), st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_a_path_leads_from_a_bad_to_a_good_cell_over_neighbours_without_labels(
    directions: list[Direction], seed: int
) -> None:
    rng = RNG(seed)
    shape = tuple(int(n) for n in rng.integers(2, 6, len(directions)))
    lattice = grid(shape, directions)
    labels = rng.choice(np.array([-1, -1, 0, 1], dtype=np.int8), shape)
    found = path(labels, np.ones(shape, dtype=bool), lattice)
    if not (labels == 1).any() or not (labels == 0).any():
        assert found is None
        return
    assert found is not None
    assert (labels[found[0]], labels[found[-1]]) == (1, 0)
    assert all(labels[cell] < 0 for cell in found[1:-1])
    for one, other in itertools.pairwise(found):
        (axis,) = [axis for axis in range(len(shape)) if one[axis] != other[axis]]
        assert directions[axis] is UNORDERED or abs(one[axis] - other[axis]) == 1


def test_a_path_steps_over_what_cannot_be_run() -> None:
    labels = np.array([0, -1, -1, -1, 1], dtype=np.int8)
    can_run = np.array([1, 0, 1, 0, 1], dtype=bool)
    assert path(labels, can_run, grid((5,))) == [(4,), (2,), (0,)]


# -- groups ----------------------------------------------------------------------------------------------


def test_a_view_has_one_position_for_each_group() -> None:
    lattice = grid((2, 3))
    groups = {(0, 0): (0, 0), (0, 1): (0, 0), (1, 1): (1, 1), (1, 2): (1, 1), (1, 0): (1, 0)}
    view = LatticeView.of(lattice, groups)
    assert view.cells == ((0, 0), (1, 0), (1, 1))
    assert view.group.tolist() == [[0, 0, -1], [1, 2, 2]]
    assert view.position == {(0, 0): 0, (1, 0): 1, (1, 1): 2}
    assert view.flat.tolist() == [0, 3, 4]
    assert view.spread(np.array([0.1, 0.2, 0.3]), 0.5).tolist() == [[0.1, 0.1, 0.5], [0.2, 0.3, 0.3]]
    tallies = Tallies(groups)
    tallies.set_aside((1, 0))
    assert tallies.runnable(view.cells).tolist() == [True, False, True]
    tallies.add((0, 1), 1, 3)
    tallies.add((1, 2), 0, 1)
    assert [of.tolist() for of in tallies.arrays(view.position)] == [[1, 0, 0], [3, 0, 1]]
    assert [of.tolist() for of in tallies.arrays({(1, 1): 0})] == [[0], [1]]
    assert tallies.by_group({(0, 0): 1, (0, 1): 2, (1, 0): 1, (0, 2): 5}) == {(0, 0): 3}


def test_a_view_of_nothing_that_can_be_run_has_no_position() -> None:
    view = LatticeView.of(grid((3,)), {})
    assert view.cells == ()
    assert view.flat.tolist() == []
    assert view.group.tolist() == [-1, -1, -1]


def test_versions_that_always_fail_say_nothing_against_a_first_one_that_does_not() -> None:
    """A control passed as often as the version before the boundary failed now and then."""
    view = view_of((32,))
    hits, trials = np.zeros((2, 32), dtype=np.int64)
    hits[8:] = trials[8:] = 2
    hits[7], trials[7], trials[0] = 5, 186, 186
    believed = believe(products(view, None, everywhere(view)), CellCounts(RateGrid.default(), hits, trials))
    assert believed.bad[7] > 0.3
    assert believed.bad[8] > 0.99
