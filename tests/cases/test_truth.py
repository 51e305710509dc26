"""The judge of the cases, on hand-made right and wrong verdicts."""

import pytest

from bisect_env.matrix.grid import Direction
from tests.cases.truth import HEAVY, MATRICES, Cell, Truth, case_names, check, check_against


def verdict(bad: dict[str, str], good: dict[str, str], *culprits: str, status: str = "confirmed") -> dict:
    return {
        "verdict": {
            "status": status,
            "first_bad": bad,
            "last_good": good,
            "culprit_axes": list(culprits),
            "probability": 0.97,
            "reason": "",
        },
        "trials": 100,
        "environments": 10,
        "combinations": [],
    }


RIGHT = [
    ("quickstart", {"orjson": "3.9.11"}, {"orjson": "3.9.10"}, ["orjson"]),
    ("orjson_window", {"orjson": "3.9.11"}, {"orjson": "3.9.10"}, ["orjson"]),
    ("lark_hashseed", {"lark": "0.7.0"}, {"lark": "0.6.7"}, ["lark"]),
    ("multidict_setdefault", {"multidict": "6.4.3"}, {"multidict": "6.4.4"}, ["multidict"]),
    ("regex_template", {"regex": "2021.8.27"}, {"regex": "2021.8.21"}, ["regex"]),
    ("gevent_date", {"day": "2020-09-22"}, {"day": "2020-09-21"}, ["day"]),
    # Two corners are true here, one for each axis; a verdict names one of them.
    (
        "loguru_fork",
        {"python": "3.8", "loguru": "0.4.1"},
        {"python": "3.8", "loguru": "0.5.0"},
        ["loguru"],
    ),
    (
        "loguru_fork",
        {"python": "3.6", "loguru": "0.7.3"},
        {"python": "3.8", "loguru": "0.7.3"},
        ["python"],
    ),
    (
        "kombu_entry_points",
        {"python": "3.7", "kombu": "5.2.0", "importlib-metadata": "5.0.0"},
        {"python": "3.7", "kombu": "5.2.0", "importlib-metadata": "4.13.0"},
        ["python", "importlib-metadata"],
    ),
    (
        "kombu_entry_points",
        {"python": "3.7", "kombu": "5.0.2", "importlib-metadata": "5.0.0"},
        {"python": "3.8", "kombu": "5.0.2", "importlib-metadata": "5.0.0"},
        ["importlib-metadata", "python"],
    ),
    (
        "robust_laplacian_numpy",
        {"robust-laplacian": "0.2.7", "numpy": "2.0.0"},
        {"robust-laplacian": "1.0.0", "numpy": "2.0.0"},
        ["robust-laplacian", "numpy"],
    ),
    (
        "shapely_duckdb",
        {"duckdb": "0.5.1", "shapely": "1.8.1.post1"},
        {"duckdb": "0.5.1", "shapely": "1.8.0"},
        ["shapely"],
    ),
    (
        "ormsgpack_python",
        {"python": "3.11", "ormsgpack": "1.4.1"},
        {"python": "3.11", "ormsgpack": "1.4.2"},
        ["python", "ormsgpack"],
    ),
    (
        "ormsgpack_python",
        {"python": "3.11", "ormsgpack": "1.4.1"},
        {"python": "3.10", "ormsgpack": "1.4.1"},
        ["python", "ormsgpack"],
    ),
    (
        "torch_threads",
        {"torch": "1.0.1", "threads": "10"},
        {"torch": "1.1.0", "threads": "10"},
        ["torch"],
    ),
]


@pytest.mark.parametrize(("name", "bad", "good", "culprits"), RIGHT, ids=lambda value: str(value)[:40])
def test_right_verdicts(name, bad, good, culprits):
    assert check(name, verdict(bad, good, *culprits)) == []
    assert check(name, verdict(bad, good, *culprits, status="likely")) == []


WRONG = [
    # one step early, one step late
    ("quickstart", {"orjson": "3.9.10"}, {"orjson": "3.9.9"}, ["orjson"], "was never seen to fail"),
    ("lark_hashseed", {"lark": "0.7.1"}, {"lark": "0.7.0"}, ["lark"], "was seen to fail"),
    ("lark_hashseed", {"lark": "0.7.1"}, {"lark": "0.6.7"}, ["lark"], "not its boundary"),
    ("lark_hashseed", {"lark": "0.7.0"}, {"lark": "0.6.6"}, ["lark"], "0.6.7 is next to first bad"),
    # the far end of a window, and the wrong way round
    ("orjson_window", {"orjson": "3.9.13"}, {"orjson": "3.9.14"}, ["orjson"], "not its boundary"),
    ("multidict_setdefault", {"multidict": "6.4.4"}, {"multidict": "6.4.3"}, ["multidict"], "never seen"),
    # a culprit too few, one too many, the wrong one
    (
        "kombu_entry_points",
        {"python": "3.7", "kombu": "5.2.0", "importlib-metadata": "5.0.0"},
        {"python": "3.7", "kombu": "5.2.0", "importlib-metadata": "4.13.0"},
        ["importlib-metadata"],
        "the verdict calls python=3.8",
    ),
    (
        "kombu_entry_points",
        {"python": "3.7", "kombu": "5.2.0", "importlib-metadata": "5.0.0"},
        {"python": "3.7", "kombu": "5.2.0", "importlib-metadata": "4.13.0"},
        ["python", "kombu", "importlib-metadata"],
        "kombu is no culprit",
    ),
    (
        "ormsgpack_python",
        {"python": "3.11", "ormsgpack": "1.4.1"},
        {"python": "3.11", "ormsgpack": "1.4.2"},
        ["ormsgpack"],
        "the verdict calls python=3.9",
    ),
    (
        "torch_threads",
        {"torch": "1.0.1", "threads": "10"},
        {"torch": "1.0.1", "threads": "2"},
        ["threads"],
        "last good",
    ),
    (
        "robust_laplacian_numpy",
        {"robust-laplacian": "0.2.7", "numpy": "2.0.0"},
        {"robust-laplacian": "1.0.0", "numpy": "1.26.4"},
        ["numpy"],
        "differs on robust-laplacian",
    ),
    ("quickstart", {"orjson": "3.9.11"}, {"orjson": "3.9.11"}, ["orjson"], "same combination"),
    ("quickstart", {"orjson": "4.0.0"}, {"orjson": "3.9.10"}, ["orjson"], "is no combination"),
    ("quickstart", {"orjson": "3.9.12"}, {"orjson": "3.9.10"}, ["orjson"], "is no combination"),
    ("quickstart", {"lark": "3.9.11"}, {"orjson": "3.9.10"}, ["orjson"], "is no combination"),
    ("quickstart", {"orjson": "3.9.11"}, {"orjson": "3.9.10"}, [], "culprit axes are missing"),
    ("quickstart", {"orjson": "3.9.11"}, {"orjson": "3.9.10"}, ["lark"], "culprit axes are"),
    ("quickstart", {"orjson": "3.9.11"}, {"orjson": "3.9.10"}, ["orjson", "python"], "python is no culprit"),
]


@pytest.mark.parametrize(("name", "bad", "good", "culprits", "why"), WRONG, ids=lambda v: str(v)[:40])
def test_wrong_verdicts(name, bad, good, culprits, why):
    problems = check(name, verdict(bad, good, *culprits))
    assert any(why in problem for problem in problems), problems


@pytest.mark.parametrize(
    "report", [{}, {"verdict": None}, {"verdict": {"status": "none", "reason": "budget"}}]
)
def test_no_verdict_is_not_right(report):
    assert check("quickstart", report)[0].startswith("no verdict")


class TestUnbuildable:
    truth = Truth(
        {"p": ("1", "2", "3")},
        {"p": Direction.REGRESSION},
        [
            Cell({"p": "1"}, built=True, good=3),
            Cell({"p": "2"}, built=False),
            Cell({"p": "3"}, built=True, bad=3),
        ],
    )

    def test_must_be_named_on_the_boundary(self):
        report = verdict({"p": "3"}, {"p": "1"}, "p")
        assert "cannot be built" in check_against(self.truth, report)[0]
        report["combinations"] = [{"combination": {"p": "2"}, "status": "env-unsolvable"}]
        assert check_against(self.truth, report) == []

    def test_first_bad_may_not_be_unbuildable(self):
        report = verdict({"p": "2"}, {"p": "1"}, "p")
        assert "never seen to fail" in check_against(self.truth, report)[0]


def test_true_answers_are_readable():
    assert Truth.load("quickstart").answer() == "orjson 3.9.10 → 3.9.11"
    assert Truth.load("multidict_setdefault").answer() == "multidict 6.4.4 → 6.4.3"
    assert Truth.load("kombu_entry_points").answer() == (
        "python 3.8 → 3.7, importlib-metadata 4.13.0 → 5.0.0"
    )


@pytest.mark.parametrize("name", case_names())
def test_truth_and_matrix_speak_of_the_same_combinations(name):
    truth = Truth.load(name)
    size = 1
    for values in truth.axes.values():
        size *= len(values)
    assert len(truth.cells) == size
    assert truth.answer()


# They want GPUs or conda channels, and nobody has tried all of their combinations.
WITHOUT_TRUTH = {
    *("rapids_deadlock", "torch_cuml", "torch_cuml_pypi", "torch_cuml_pypi_cu13"),
    # Planted, and bisected in a test of their own.
    *("fork_start_method", "fork_start_method_cuda"),
    # Need a GPU: benchmarks and docs/gpu.md.
    *("cuda_illegal_address", "cuda_clients", "gil_driver"),
}


def test_every_matrix_is_a_case():
    assert set(case_names()) == {path.stem for path in MATRICES.glob("*.yaml")} - WITHOUT_TRUTH
    assert set(case_names()) >= HEAVY


def of_frontier(exclude: list[dict[str, dict[str, str]]]) -> dict:
    """A verdict on the staircase of two packages, with the rules that it gives."""
    report = verdict(
        {"vcrpy": "6.0.2", "urllib3": "2.3.0"}, {"vcrpy": "6.0.2", "urllib3": "2.2.3"}, "vcrpy", "urllib3"
    )
    report["verdict"] |= {"kind": "frontier", "compatibility": {"exclude": exclude}}
    return report


def test_the_rules_of_a_frontier_are_held_to_every_combination():
    rules = [
        {"when": {"vcrpy": "<4.3.1", "urllib3": ">=2.0.7"}},
        {"when": {"vcrpy": ">=4.3.1,<7.0.0", "urllib3": ">=2.3.0"}},
    ]
    assert check("vcrpy_urllib3", of_frontier(rules)) == []
    missing = check("vcrpy_urllib3", of_frontier(rules[:1]))
    assert any("is not excluded" in problem for problem in missing)
    too_many = check("vcrpy_urllib3", of_frontier([{"when": {"urllib3": ">=2.0.7"}}]))
    assert any("never seen to fail" in problem for problem in too_many)
