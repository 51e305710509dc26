from __future__ import annotations

from typing import Any

from bisect_env.cluster.remote import version_problems

SAME = {"python": "3.12.3.final.0", "dask": "2026.8.0", "distributed": "2026.8.0", "bisect-env": "0.1.0"}


def answer(scheduler: dict[str, Any] | None = None, **workers: dict[str, Any]) -> dict[str, Any]:
    return {
        "client": {"packages": SAME},
        "scheduler": {"packages": {**SAME, **(scheduler or {})}},
        "workers": {f"tcp://{name}:1": {"packages": {**SAME, **w}} for name, w in workers.items()},
    }


def test_equal_versions_are_no_problem() -> None:
    assert version_problems(answer(a={}, b={})) == []


def test_what_does_not_matter_is_left_alone() -> None:
    other = {"python": "3.12.9.final.0", "numpy": "1.0", "tornado": "6.1"}
    assert version_problems(answer(scheduler={"bisect-env": None, **other}, a=other)) == []


def test_each_difference_is_named_once_with_who_has_it() -> None:
    old = {"python": "3.11.7.final.0", "distributed": "2025.1.0"}
    assert version_problems(answer(scheduler={"dask": "2025.1.0"}, a={}, b=old, c=old)) == [
        "dask: this command has 2026.8.0, the scheduler has 2025.1.0",
        "python: this command has 3.12, the worker tcp://b:1 and 1 more have 3.11",
        "distributed: this command has 2026.8.0, the worker tcp://b:1 and 1 more have 2025.1.0",
    ]


def test_a_worker_without_bisect_env_is_named() -> None:
    assert version_problems(answer(a={"bisect-env": None}, b={"bisect-env": "0.2.0"})) == [
        "bisect-env: this command has 0.1.0, the worker tcp://a:1 has none",
        "bisect-env: this command has 0.1.0, the worker tcp://b:1 has 0.2.0",
    ]
