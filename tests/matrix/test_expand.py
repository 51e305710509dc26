"""Ranges, rules, ends: what a matrix stands for."""

import itertools
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from bisect_env.errors import MatrixError, UsageError
from bisect_env.matrix.expand import expand, refined, select_releases, to_refine
from bisect_env.matrix.grid import AxisKind, Combination, Direction
from bisect_env.matrix.load import skipping
from bisect_env.matrix.rules import RuleSet
from bisect_env.matrix.schema import PackageAxis, Rule
from bisect_env.matrix.versions import CondaVersion, Release, Step, newest_of_each
from tests.matrix.conftest import FakeCatalogue


def at(day: int) -> datetime:
    return datetime(2026, 1, day, 12, tzinfo=UTC)


NUMPY = [
    Release("1.9.0", at(1)),
    Release("2.0.0", at(2)),
    Release("1.26.4", at(3)),
    Release("2.0.1", at(4), yanked=True),
    Release("2.1.0rc1", at(5)),
    Release("2.1.0", at(6)),
    Release("2.1.3", at(7)),
    Release("2.2.0", at(8), has_wheel=False),
    Release("3.0.0", at(9)),
    Release("2004d", at(9)),
]


def numpy_range(keys: str = "") -> str:
    return f"axes:\n  numpy: {{package: numpy, versions: '>=1.20,<4'{keys}}}\n"


class TestRanges:
    def test_newest_of_each_minor_by_default(self, matrix_of):
        grid = expand(matrix_of(numpy_range()), FakeCatalogue({"numpy": NUMPY}))
        assert grid.axes[0].values == ("1.26.4", "2.0.0", "2.1.3", "3.0.0")
        assert grid.axes[0].dropped == {
            "2.0.1": "withdrawn (yanked)",
            "2.1.0rc1": "pre-release",
            "2.2.0": "no wheel, and solver.allow_source does not allow to build it",
            "2004d": "not a PEP 440 version; a list can name it",
        }
        assert grid.axes[0].kind is AxisKind.PACKAGE
        assert grid.axes[0].direction is Direction.REGRESSION

    @pytest.mark.parametrize(
        ("keys", "values"),
        [
            (", step: every", ("1.26.4", "2.0.0", "2.1.0", "2.1.3", "3.0.0")),
            (", step: major", ("1.26.4", "2.1.3", "3.0.0")),
            (", step: patch, yanked: true", ("1.26.4", "2.0.0", "2.0.1", "2.1.0", "2.1.3", "3.0.0")),
            (", yanked: true", ("1.26.4", "2.0.1", "2.1.3", "3.0.0")),
            (
                ", step: every, prereleases: true",
                ("1.26.4", "2.0.0", "2.1.0rc1", "2.1.0", "2.1.3", "3.0.0"),
            ),
        ],
    )
    def test_steps_and_flags(self, matrix_of, keys, values):
        grid = expand(matrix_of(numpy_range(keys)), FakeCatalogue({"numpy": NUMPY}))
        assert grid.axes[0].values == values

    def test_a_range_with_a_wildcard(self, matrix_of):
        text = "axes:\n  numpy: {package: numpy, versions: '==2.1.*', step: every}\n"
        assert expand(matrix_of(text), FakeCatalogue({"numpy": NUMPY})).axes[0].values == ("2.1.0", "2.1.3")

    def test_source_only_releases_where_the_solver_may_build(self, matrix_of):
        matrix = matrix_of(numpy_range() + "solver: {allow_source: [NumPy]}")
        assert "2.2.0" in expand(matrix, FakeCatalogue({"numpy": NUMPY})).axes[0].values

    def test_exclude_newer_counts_its_day_whole(self, matrix_of):
        matrix = matrix_of(numpy_range() + "exclude_newer: 2026-01-06")
        axis = expand(matrix, FakeCatalogue({"numpy": NUMPY})).axes[0]
        assert axis.values == ("1.26.4", "2.0.0", "2.1.0")
        assert axis.dropped["2.1.3"] == "uploaded on 2026-01-07, after exclude_newer"
        matrix = matrix_of(numpy_range() + "exclude_newer: 2026-01-06T11:59:59Z")
        assert expand(matrix, FakeCatalogue({"numpy": NUMPY})).axes[0].values == ("1.26.4", "2.0.0")

    def test_interpreters(self, matrix_of):
        matrix = matrix_of("axes:\n  python: {package: python, versions: '>=3.9'}\n")
        catalogue = FakeCatalogue(pythons=("3.13.0", "3.8.18", "3.9.18", "3.9.2", "3.10.13", "3.14.0rc1"))
        assert expand(matrix, catalogue).axes[0].values == ("3.9.18", "3.10.13", "3.13.0")

    def test_what_the_catalogue_is_asked(self, matrix_of):
        matrix = matrix_of(
            """
axes:
  a: {package: My_Package, index: own, versions: '>=1'}
  b: {package: My_Package.b, manager: conda, build: "cuda*", versions: '>=1'}
  python: {package: python, versions: '>=3.9'}
index: https://other.example/simple
indexes: {own: {url: https://index.example/simple}}
channels: [mine, ./beside]
"""
        )
        one = [Release("1.0")]
        catalogue = FakeCatalogue({"my-package": one, "my_package.b": one, "python": [Release("3.9")]})
        assert [axis.values for axis in expand(matrix, catalogue).axes] == [("1.0",), ("1.0",), ("3.9",)]
        channels = f"mine {(matrix.path.parent / 'beside').resolve()}"
        assert catalogue.asked == [
            ("python", channels, None),
            ("my-package", "pypi", "https://index.example/simple"),
            ("my_package.b", channels, "cuda*"),
        ]

    def test_what_fits_no_python_of_the_matrix(self, matrix_of):
        matrix = matrix_of(
            "axes:\n  python: {package: python, versions: ['3.9', '3.10']}\n"
            "  numpy: {package: numpy, versions: '>=1'}\n"
        )
        releases = [
            Release("1.0", requires_python=">=3.7,<3.9"),
            Release("1.1", pythons=frozenset({"3.8"})),
            Release("1.2", requires_python=">=3.10.4", pythons=frozenset({"3.10", "3.11"})),
            Release("1.3", requires_python=">=3.11"),
            Release("1.4", lacks="no build for linux-64"),
        ]
        axis = expand(matrix, FakeCatalogue({"numpy": releases})).axes[1]
        assert axis.values == ("1.2",)
        assert axis.dropped == {
            "1.0": "asks for Python >=3.7,<3.9, not for 3.9 or 3.10",
            "1.1": "no build for Python 3.9 or 3.10",
            "1.3": "asks for Python >=3.11, not for 3.9 or 3.10",
            "1.4": "no build for linux-64",
        }

    @pytest.mark.parametrize(
        ("releases", "message"),
        [
            ([], "for the index does not know the package; correct the name or the index"),
            (
                [Release("0.1"), Release("0.10"), Release("0.9")],
                r"the index has 0\.1 to 0\.10 \(3 versions\)",
            ),
            ([Release("9")], r"the index has 9; widen the range"),
            ([Release("2.0", yanked=True)], r"\(left out: 2\.0, withdrawn \(yanked\)\); widen the range"),
        ],
    )
    def test_nothing_in_the_range(self, matrix_of, releases, message):
        with pytest.raises(MatrixError, match=f"line 4: axes.numpy: no version.*{message}"):
            expand(matrix_of(numpy_range()), FakeCatalogue({"numpy": releases}))

    def test_all_empty_ranges_are_listed(self, matrix_of):
        matrix = matrix_of("axes:\n  a: {package: a, versions: '>1'}\n  b: {package: b, versions: '>1'}\n")
        with pytest.raises(MatrixError) as caught:
            expand(matrix, FakeCatalogue())
        assert len(caught.value.problems) == 2


class TestLists:
    def test_lists_are_sorted_by_version_and_need_no_index(self, matrix_of):
        matrix = matrix_of(
            """
axes:
  python: {package: python, versions: [3.10, 3.9, "3.8"]}
  regex: {package: regex, versions: [2021.8.27, 2020.7.14, 2021.8.3]}
  cuml: {package: cuml, manager: conda, versions: [25.12.00, 25.02.00a1, 25.02.00]}
channels: [rapidsai]
"""
        )
        catalogue = FakeCatalogue()
        grid = expand(matrix, catalogue)
        assert [axis.values for axis in grid.axes] == [
            ("3.8", "3.9", "3.10"),
            ("2020.7.14", "2021.8.3", "2021.8.27"),
            ("25.02.00a1", "25.02.00", "25.12.00"),
        ]
        assert catalogue.asked == []

    def test_values_keep_their_order_and_dates_are_sorted(self, matrix_of):
        grid = expand(
            matrix_of(
                """
axes:
  size: {values: [small, 10, 9], direction: unordered}
  day: {dates: [2020-09-22, 2020-09-21T12:00:00Z, 2020-09-20]}
"""
            ),
            FakeCatalogue(),
        )
        assert grid.axes[0].values == ("small", "10", "9")
        assert grid.axes[0].direction is Direction.UNORDERED
        assert grid.axes[1].values == ("2020-09-20", "2020-09-21T12:00:00Z", "2020-09-22")
        assert [axis.kind for axis in grid.axes] == [AxisKind.VALUE, AxisKind.DATE]

    @pytest.mark.parametrize(
        ("step", "values"),
        [
            ("1d", ("2020-02-27", "2020-02-28", "2020-02-29", "2020-03-01")),
            ("2", ("2020-02-27", "2020-02-29", "2020-03-01")),
            ("1w", ("2020-02-27", "2020-03-01")),
        ],
    )
    def test_date_ranges_end_on_their_last_day(self, matrix_of, step, values):
        text = f"axes:\n  day: {{dates: {{from: 2020-02-27, to: 2020-03-01, step: {step}}}}}\n"
        assert expand(matrix_of(text), FakeCatalogue()).axes[0].values == values


RULES = """
axes:
  python: {package: python, versions: ["3.9", "3.10", "3.11"]}
  numpy: {package: numpy, versions: ["1.26.4", "2.0.0", "2.1.0"]}
"""


def excluded(matrix) -> dict[str, str]:
    grid = expand(matrix, FakeCatalogue())
    return {str(grid.combination(index)): one.why for index, one in grid.excluded.items()}


class TestRules:
    def test_exclude_by_value_list_and_comparison(self, matrix_of):
        matrix = matrix_of(
            RULES
            + """
exclude:
  - {when: {python: 3.9, numpy: ">=2.1"}, why: too old}
  - {when: {python: 3.11, numpy: [1.26.4, "2.0"]}, why: no wheel}
"""
        )
        assert excluded(matrix) == {
            "python=3.9 numpy=2.1.0": "too old",
            "python=3.11 numpy=1.26.4": "no wheel",
            "python=3.11 numpy=2.0.0": "no wheel",
        }

    def test_include_wins_back(self, matrix_of):
        matrix = matrix_of(
            RULES
            + """
exclude: [{when: {numpy: "<2.1"}, why: known}]
include: [{when: {python: 3.10, numpy: 2.0.0}, why: the one that matters}]
"""
        )
        assert "python=3.10 numpy=2.0.0" not in excluded(matrix)
        assert len(excluded(matrix)) == 5

    def test_include_alone_keeps_what_it_names(self, matrix_of):
        matrix = matrix_of(RULES + "include: [{when: {python: ['3.9', '3.10']}, why: x}]")
        assert set(excluded(matrix)) == {f"python=3.11 numpy={v}" for v in ("1.26.4", "2.0.0", "2.1.0")}
        assert set(excluded(matrix).values()) == {"no `include` rule names it"}

    def test_dates_compare(self, matrix_of):
        matrix = matrix_of(
            """
axes:
  day: {dates: {from: 2026-01-30, to: 2026-02-02}}
exclude: [{when: {day: ">=2026-01-31,<2026-02-02"}, why: x}]
"""
        )
        assert set(excluded(matrix)) == {"day=2026-01-31", "day=2026-02-01"}

    def test_conda_versions_compare_as_conda_does(self, matrix_of):
        text = """
axes:
  openssl: {package: openssl, manager: conda, versions: [1.1.1k, 1.1.1w, 3.0.8]}
channels: [conda-forge]
exclude: [{when: {openssl: "%s"}, why: x}]
"""
        for condition, out in (
            ("<3", {"1.1.1k", "1.1.1w"}),
            (">=1.1.1l", {"1.1.1w", "3.0.8"}),
            (">1.1.1k,<3", {"1.1.1w"}),
            ("==3.*", {"3.0.8"}),
        ):
            assert set(excluded(matrix_of(text % condition))) == {f"openssl={version}" for version in out}
        with pytest.raises(MatrixError, match=r"'=3' is not a comparison of versions; write one like"):
            matrix_of(text % "=3")

    def test_rules_on_a_range(self, matrix_of):
        matrix = matrix_of(numpy_range() + "exclude: [{when: {numpy: ['3', '<2']}, why: x}]")
        grid = expand(matrix, FakeCatalogue({"numpy": NUMPY}))
        assert {grid.combination(i)["numpy"] for i in grid.excluded} == {"1.26.4", "3.0.0"}

    def test_everything_excluded(self, matrix_of):
        with pytest.raises(MatrixError, match="line 6: the rules exclude all 9 combinations"):
            expand(matrix_of(RULES.strip() + "\nexclude: [{when: {python: '>3'}, why: x}]"), FakeCatalogue())

    def test_everything_skipped(self, matrix_of):
        text = "axes:\n  size: {values: [1]}\n  level: {values: [1, 2], skip: [1, 2]}\n"
        with pytest.raises(MatrixError) as caught:
            expand(matrix_of(text), FakeCatalogue())
        assert caught.value.problems == (
            "line 5: the rules exclude all 2 combinations (axes.level.skip); correct one of them",
        )

    def test_an_empty_range_has_a_remedy(self, matrix_of):
        text = "axes:\n  numpy: {package: numpy, versions: '>=9'}\n"
        releases = [Release("1.0"), Release("2.0")]
        with pytest.raises(MatrixError, match=r"index has 1.0 to 2.0 \(2 versions\); widen the range"):
            expand(matrix_of(text), FakeCatalogue({"numpy": releases}))

    def test_too_many_combinations(self, matrix_of):
        axes = "".join(f"  a{i}: {{values: [{', '.join(map(str, range(100)))}]}}\n" for i in range(3))
        with pytest.raises(MatrixError, match="make 1000000 combinations, more than 250000"):
            expand(matrix_of("axes:\n" + axes), FakeCatalogue())


class TestEnds:
    def test_single_values_may_be_left_out(self, matrix_of):
        matrix = matrix_of(
            """
axes:
  python: {package: python, versions: ["3.11"]}
  numpy: {package: numpy, versions: ["2.1.0", "1.26.4", "2.0.0"]}
good: {numpy: 1.26.4}
bad: {numpy: "2.1"}
"""
        )
        grid = expand(matrix, FakeCatalogue())
        assert grid.good == (0, 0)
        assert grid.bad == (0, 2)
        assert grid.index(grid.combination((0, 1))) == (0, 1)

    def test_ends_on_a_range(self, matrix_of):
        text = numpy_range() + "good: {numpy: 1.26.4}\nbad: {numpy: 2.0.1}\n"
        with pytest.raises(MatrixError, match=r"line 6: bad has numpy: 2\.0\.1, which is not on the axis"):
            expand(matrix_of(text), FakeCatalogue({"numpy": NUMPY}))
        grid = expand(matrix_of(text.replace("2.0.1", "3.0")), FakeCatalogue({"numpy": NUMPY}))
        assert (grid.good, grid.bad) == ((0,), (3,))

    @pytest.mark.parametrize(
        ("good", "bad", "says"),
        [
            ("2.1.3", "2.1.3", "line 6: good and bad are the same"),
            ("3.0.0", "1.26.4", "line 5: .* swap good and bad"),
        ],
    )
    def test_ends_on_a_range_that_contradict_each_other(self, matrix_of, good, bad, says):
        matrix = matrix_of(numpy_range() + f"good: {{numpy: {good}}}\nbad: {{numpy: {bad}}}\n")
        with pytest.raises(MatrixError, match=says):
            expand(matrix, FakeCatalogue({"numpy": NUMPY}))

    def test_an_end_may_not_be_excluded(self, matrix_of):
        text = RULES + "good: {python: 3.9, numpy: 1.26.4}\nexclude: [{when: {python: 3.9}, why: too old}]"
        with pytest.raises(MatrixError, match=r"the good end is excluded \(too old\)"):
            expand(matrix_of(text), FakeCatalogue())

    def test_fixed_direction_turns_the_ends_round(self, matrix_of):
        text = "axes:\n  numpy: {package: numpy, versions: ['1', '2'], direction: fixed}\n"
        grid = expand(matrix_of(text + "good: {numpy: 2}\nbad: {numpy: 1}\n"), FakeCatalogue())
        assert (grid.good, grid.bad) == ((1,), (0,))


class TestRefining:
    def test_what_the_step_passed_over_is_known_and_added_around_a_boundary(self, matrix_of):
        matrix = matrix_of(
            "axes:\n  numpy: {package: numpy, versions: '>=1.20,<4', yanked: true}\n"
            "  size: {values: [1, 2]}\n"
            "exclude: [{when: {numpy: '<2', size: 2}, why: slow}]\n"
            "good: {numpy: 1.26.4, size: 1}\nbad: {numpy: 3.0.0, size: 2}\n"
        )
        grid = expand(matrix, FakeCatalogue({"numpy": NUMPY}))
        numpy = grid.axes[0]
        assert numpy.values == ("1.26.4", "2.0.1", "2.1.3", "3.0.0")
        assert numpy.passed_over == ("2.0.0", "2.1.0")
        assert to_refine(matrix, numpy, "1.26.4", "2.0.1") == ("2.0.0",)
        assert to_refine(matrix, numpy, "3.0.0", "2.1.3") == (), "in whichever direction"
        assert to_refine(matrix, numpy, "3.0.0", "1.26.4") == ("2.0.0", "2.1.0")
        wider = refined(matrix, grid, {"numpy": ["2.0.0"]})
        assert wider.axes[0].values == ("1.26.4", "2.0.0", "2.0.1", "2.1.3", "3.0.0")
        assert wider.axes[0].passed_over == ("2.1.0",)
        assert wider.axes[1] == grid.axes[1]
        assert (wider.good, wider.bad) == ((0, 0), (4, 1))
        assert {index: one.why for index, one in wider.excluded.items()} == {(0, 1): "slow"}

    def test_not_where_the_matrix_does_not_want_it(self, matrix_of):
        matrix = matrix_of(numpy_range(", refine: false"))
        grid = expand(matrix, FakeCatalogue({"numpy": NUMPY}))
        assert grid.axes[0].passed_over == ("2.1.0",)
        assert to_refine(matrix, grid.axes[0], "2.0.0", "2.1.3") == ()

    def test_it_is_the_same_study(self, matrix_of):
        digests = {matrix_of(numpy_range(keys)).digest for keys in ("", ", refine: false", ", skip: '<2'")}
        assert len(digests) == 1


class TestSkip:
    def test_values_and_comparisons(self, matrix_of):
        matrix = matrix_of(
            "axes:\n  lib: {package: lib, versions: ['1', '2', '3'], skip: ['2']}\n"
            "  size: {values: [1, 2], skip: 2}\n"
        )
        grid = expand(matrix, FakeCatalogue())
        assert {i for i in grid.indices() if i not in grid.excluded} == {(0, 0), (2, 0)}
        assert grid.excluded[1, 0].why == "skipped: `skip` of lib names 2"

    def test_from_the_command_line(self, matrix_of):
        matrix = matrix_of("axes:\n  lib: {package: lib, versions: ['1', '2', '3']}\n  size: {values: [1]}\n")
        for word in ("2", "lib=2"):
            assert set(expand(skipping(matrix, [word]), FakeCatalogue()).excluded) == {(1, 0)}
        assert set(expand(skipping(matrix, ["lib=<3"]), FakeCatalogue()).excluded) == {(0, 0), (1, 0)}
        with pytest.raises(UsageError, match=r"--skip lib=7 names '7'.*\n  remedy: choose from 1, 2, 3"):
            skipping(matrix, ["lib=7"])

    def test_a_value_that_is_not_there(self, matrix_of):
        with pytest.raises(MatrixError) as caught:
            matrix_of("axes:\n  lib: {package: lib, versions: ['1', '2'], skip: ['7']}\n")
        assert "`skip` names '7', which is not on the axis 'lib'" in str(caught.value)

    def test_a_value_that_is_not_in_a_range(self, matrix_of):
        catalogue = FakeCatalogue({"numpy": NUMPY})
        matrix = matrix_of(
            numpy_range(", skip: ['2.9', '2.0.1', '>9']") + "exclude: [{when: {numpy: '1.9.0'}, why: old}]\n"
        )
        with pytest.raises(MatrixError) as caught:
            expand(matrix, catalogue)
        there = "which is not on the axis 'numpy'; choose from 1.26.4, 2.0.0, 2.1.3, 3.0.0"
        assert caught.value.problems == (
            f"line 4: `skip` names '2.9', {there}",
            f"line 5: the rule names '1.9.0', {there}",
        )
        with pytest.raises(MatrixError, match=r"`skip` names '2\.7', which is not on the axis 'numpy'"):
            expand(skipping(matrix_of(numpy_range()), ["numpy=2.7"]), catalogue)
        # Releases that were left out, or passed over because of `step`, may be named.
        grid = expand(matrix_of(numpy_range(", step: minor, skip: ['2.0.1', '2.1.0', '1.26.4']")), catalogue)
        assert len(grid.excluded) == 1


versions = st.builds(
    "{}.{}.{}{}".format,
    st.integers(0, 4),
    st.integers(0, 11),
    st.integers(0, 11),
    st.sampled_from(["", "", "rc1", ".post1"]),
)
releases = st.builds(
    Release,
    version=versions,
    uploaded=st.none() | st.integers(1, 28).map(at),
    yanked=st.booleans(),
    has_wheel=st.booleans(),
)


@given(
    found=st.lists(releases, max_size=40, unique_by=lambda r: Version(r.version)),
    step=st.sampled_from(Step),
    low=versions,
    prereleases=st.booleans(),
    yanked=st.booleans(),
    needs_wheel=st.booleans(),
    day=st.none() | st.integers(1, 28),
)
def test_every_release_is_chosen_dropped_or_outside(found, step, low, prereleases, yanked, needs_wheel, day):
    axis = PackageAxis(package="p", versions=f">={low}", step=step, prereleases=prereleases, yanked=yanked)
    limit = None if day is None else at(day)
    chosen = select_releases("p", axis, found, limit, needs_wheel=needs_wheel)
    values, dropped = chosen.values, chosen.dropped
    by_version = {release.version: release for release in found}
    assert list(values) == sorted(values, key=Version)
    assert not set(values) & set(dropped)
    for value in values:
        release = by_version[value]
        assert Version(value) >= Version(low)
        assert yanked or not release.yanked
        assert prereleases or not Version(value).is_prerelease
        assert release.has_wheel or not needs_wheel
        assert limit is None or release.uploaded is None or release.uploaded < limit
    width = {"major": 1, "minor": 2, "patch": 3}.get(step)
    for release in found:
        version = Version(release.version)
        inside = Version(low) <= version and not (version.local or "")
        if inside and release.version not in dropped and release.version not in values:
            # Passed over: a newer one of its group must stand for it.
            assert width is not None
            group = [v for v in values if Version(v).release[:width] == version.release[:width]]
            assert len(group) == 1
            assert Version(group[0]) > version


@given(st.lists(versions, unique_by=Version), st.sampled_from(Step))
def test_steps_are_idempotent_and_keep_the_newest(texts, step):
    once = newest_of_each(texts, step)
    assert newest_of_each(reversed(once), step) == once
    assert set(once) <= set(texts)
    if texts:
        assert once[-1] == max(texts, key=Version)


def test_conda_order():
    ascending = [
        ["0.4", "0.4.0"],
        ["0.4.1.rc", "0.4.1.RC"],
        ["0.4.1"],
        ["0.5a1"],
        ["0.5b3"],
        ["0.5C1"],
        ["0.5"],
        ["0.9.6"],
        ["0.960923"],
        ["1.0"],
        ["1.1dev1"],
        ["1.1a1"],
        ["1.1.0dev1", "1.1.dev1"],
        ["1.1.a1"],
        ["1.1.0rc1"],
        ["1.1.0", "1.1"],
        ["1.1.0post1", "1.1.post1"],
        ["1.1post1"],
        ["1996.07.12"],
        ["1!0.4.1"],
        ["1!3.1.1.6"],
        ["2!0.4.1"],
    ]
    for (i, left), (j, right) in itertools.product(enumerate(ascending), repeat=2):
        for a, b in itertools.product(left, right):
            assert (CondaVersion(a) < CondaVersion(b)) == (i < j), (a, b)
            assert (CondaVersion(a) == CondaVersion(b)) == (i == j), (a, b)


rule_axes = st.lists(st.sampled_from(["3.9", "3.10", "3.11"]), min_size=1, max_size=3, unique=True)


@given(a=rule_axes, b=rule_axes, c=rule_axes)
def test_include_never_takes_out_what_exclude_left(a, b, c):
    axes = {"p": PackageAxis(package="python", versions=("3.9", "3.10", "3.11"))}
    values = {"p": ("3.9", "3.10", "3.11")}
    exclude = [Rule(when={"p": a}, why="a"), Rule(when={"p": b}, why="b")]
    include = [Rule(when={"p": c}, why="c")]
    for value in values["p"]:
        point = Combination.of({"p": value})
        without = RuleSet(axes, values, exclude, []).excluding(point)
        with_include = RuleSet(axes, values, exclude, include).excluding(point)
        assert (without is None) == (value not in {*a, *b})
        assert with_include == (None if value in c else without)
