"""Studies by hand: the database that a report is made from, and the verdicts of the search."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.environments.lock import LockedPackage
from bisect_env.environments.lockfiles import make_lock
from bisect_env.matrix.files import StudyFile
from bisect_env.matrix.grid import Combination
from bisect_env.search.numeric import clopper_pearson
from bisect_env.storage.entries import CombinationState, Study, StudyDefinition
from bisect_env.storage.store import Store
from bisect_env.trials.judge import Target
from bisect_env.trials.records import Machine, Outcome, Phase, TrialRecord
from tests.storage.samples import record_trial

Values = Mapping[str, str]
Axis = dict[str, Any]

MATRIX = "# bisect-env run /home/ann/x.yaml\nversion: 1\n"

ORJSON = ("3.9.7", "3.9.8", "3.9.9", "3.9.10", "3.9.11", "3.9.12", "3.9.13", "3.9.14")


def axis(name: str, *values: str, direction: str = "regression", kind: str = "package") -> Axis:
    return {"name": name, "kind": kind, "direction": direction, "values": list(values)}


def infos(axes: Sequence[Axis]) -> tuple[AxisInfo, ...]:
    """Return axes as a study stores them."""
    return tuple(AxisInfo.model_validate(one) for one in axes)


def rate(hits: int, trials: int) -> dict[str, float]:
    low, high = clopper_pearson(hits, trials)
    return {
        "hits": hits,
        "trials": trials,
        "rate": hits / trials if trials else 0.0,
        "low": low,
        "high": high,
    }


def verdict(axes: Sequence[Axis], bad: Values | None, good: Values | None, **changes: Any) -> VerdictDocument:
    """A verdict as the engine makes it; the first axis with different values is the culprit."""
    moved = [a["name"] for a in axes if bad and good and bad[a["name"]] != good[a["name"]]]
    document: dict[str, Any] = {
        "status": "confirmed",
        "reason": "probability 0.970, and both sides of the boundary were tried",
        "kind": "all",
        "first_bad": bad,
        "last_good": good,
        "culprit_axes": moved,
        "bad_values": {a["name"]: _bad_values(a, bad, good) for a in axes if a["name"] in moved},
        "directions": {a["name"]: a["direction"] for a in axes},
        "probability": 0.9712,
        "models": {"sharing": 0.97, "differing": 0.97},
        "boundaries": [{"axis": name, "bad": bad, "good": good, "between": []} for name in moved],
        "bad_rate": rate(23, 140),
        "good_rate": rate(0, 122),
        "candidates": [],
        "typical_bad_rate": 0.16,
        "background_rate": 0.001,
        "ends_wrong": [],
        "trials": 262,
        "expected_left": 0.0,
    }
    return VerdictDocument.model_validate({**document, **changes})


def _bad_values(one: Axis, bad: Values | None, good: Values | None) -> list[str]:
    values = one["values"]
    if bad is None or good is None:
        return []
    here = values.index(bad[one["name"]])
    return values[: here + 1] if one["direction"] == "fixed" else values[here:]


def record(values: Values, lock_hash: str, outcome: Outcome, **changes: Any) -> TrialRecord:
    plain: dict[str, Any] = {
        "combination": Combination.of(values),
        "lock_hash": lock_hash,
        "outcome": outcome,
        "detail": "",
        "returncode": 0 if outcome is Outcome.PASS else -11,
        "phase": Phase.BODY,
        "started_at": datetime(2026, 11, 2, 8, 0, tzinfo=UTC),
        "duration": 0.25,
        "copies": {outcome: 1},
    }
    return TrialRecord(**{**plain, **changes})


CRASHES = Target(outcomes=frozenset({Outcome.CRASH}))
"""Any other failure is of another kind."""


class StudyBuilder:
    """Fills a store with one study."""

    def __init__(
        self,
        store: Store,
        axes: Sequence[Axis],
        name: str = "orjson_crash",
        target: Target = Target(),  # noqa: B008 - never changed
    ) -> None:
        self.store = store
        self.axes = list(axes)
        self._number = itertools.count()
        self.packages: dict[str, tuple[LockedPackage, ...]] = {}
        self.locks: dict[str, str] = {}
        self.study = store.open_study(
            StudyDefinition(
                name=name,
                digest=name,
                matrix_path=f"matrices/{name}.yaml",
                matrix_text=MATRIX,
                files=(StudyFile("script.py", b"print('planted')\n", executable=False),),
                description="it crashes",
                grid=infos(self.axes),
                target=target,
                exclude_newer=datetime(2026, 11, 1, tzinfo=UTC),
                version="0.1.0",
            )
        )
        self.fill()

    def cells(self) -> list[dict[str, str]]:
        names = [one["name"] for one in self.axes]
        return [
            dict(zip(names, values, strict=True))
            for values in itertools.product(*(one["values"] for one in self.axes))
        ]

    def fill(
        self,
        status: Callable[[Values], tuple[str, str]] = lambda cell: ("solvable", ""),
        lock_of: Callable[[Values], str] = lambda cell: "|".join(cell.values()) or "empty",
    ) -> None:
        """Store locks and combinations; `lock_of` names the lock of a solvable cell."""
        states = []
        for cell in self.cells():
            said, why = status(cell)
            solvable = said in ("solvable", "env-unbuildable", "set-aside")
            states.append(
                CombinationState(Combination.of(cell), said, why, lock_of(cell) if solvable else None)
            )
        names = {state.lock_hash for state in states if state.lock_hash}

        def packages(name: str) -> tuple[LockedPackage, ...]:
            # A value may hold the separator itself.
            return next((p for value, p in self.packages.items() if f"{name}|".startswith(f"{value}|")), ())

        # A platform of its own makes each name a lock of its own.
        locks = {
            name: make_lock("3.11", f"linux-{hashlib.sha256(name.encode()).hexdigest()}", packages(name))
            for name in sorted(names)
        }
        self.locks |= {name: lock.content_hash for name, lock in locks.items()}
        self.store.save_locks(locks.values())
        self.store.save_combinations(
            self.study.id,
            [replace(s, lock_hash=self.locks[s.lock_hash]) if s.lock_hash else s for s in states],
        )

    def trials(self, cell: Values, outcome: Outcome, number: int, lock: str = "", **changes: Any) -> None:
        for _ in range(number):
            changes["trial_id"] = f"{next(self._number):08x}{self.study.id[:8]}"
            one = record(cell, self.locks[lock or "|".join(cell.values())], outcome, **changes)
            assert record_trial(self.store, self.study.id, one)

    def passes(self, cell: Values, number: int) -> None:
        self.trials(cell, Outcome.PASS, number)

    def crashes(self, cell: Values, number: int, **changes: Any) -> None:
        plain = {
            "detail": "SIGSEGV",
            "signature": '[1,"crash:SIGSEGV","body","orjson/__init__.py:dumps","script.py:main"]',
            "stack": 'Fatal Python error: Segmentation fault\n\n  File "script.py", line 3 in main\n',
        }
        self.trials(cell, Outcome.CRASH, number, **{**plain, **changes})

    def finished(self, document: VerdictDocument | None, status: str = "finished") -> Study:
        self.store.update_study(self.study.id, status, document)
        return self.store.study(self.study.id)


def orjson_study(store: Store) -> StudyBuilder:
    """The usual study: flaky since 3.9.11, one version without a wheel, some never tried."""
    study = StudyBuilder(store, [axis("python", "3.11"), axis("orjson", *ORJSON)])

    def cell(version: str) -> dict[str, str]:
        return {"python": "3.11", "orjson": version}

    study.fill(
        lambda values: (
            ("env-unsolvable", "× No solution found:\n  ╰─▶ orjson 3.9.13 has no wheel")
            if values["orjson"] == "3.9.13"
            else ("solvable", "")
        )
    )
    study.passes(cell("3.9.7"), 4)
    study.passes(cell("3.9.10"), 12)
    study.crashes(cell("3.9.11"), 3)
    study.passes(cell("3.9.11"), 15)
    study.crashes(cell("3.9.14"), 1)
    study.passes(cell("3.9.14"), 7)
    study.trials(cell("3.9.10"), Outcome.WORKER_LOST, 1)
    return study


def orjson_verdict(**changes: Any) -> VerdictDocument:
    bad, good = {"python": "3.11", "orjson": "3.9.11"}, {"python": "3.11", "orjson": "3.9.10"}
    axes = [axis("python", "3.11"), axis("orjson", *ORJSON)]
    plain = {"bad_rate": rate(3, 18), "good_rate": rate(0, 12), "trials": 42}
    return verdict(axes, bad, good, **{**plain, **changes})


def hostile_study(store: Store, text: str) -> StudyBuilder:
    """Everything that others can write holds `text`, in a study that has something of everything.

    Three axes, combinations that cannot be run, equal environments, several failures, reused trials, other
    corners, doubts, builds, machines and a package that differs.
    """
    torch = axis("torch", "2.1", "2.2", f"2.3{text}")
    axes = [torch, axis("cuml", "24.04", "24.06"), axis("mode", "plain", f"x{text}", kind="value")]
    study = StudyBuilder(store, axes, name=f"hostile-{len(text)}", target=CRASHES)
    first_bad = {"torch": torch["values"][2], "cuml": "24.06", "mode": "plain"}
    last_good = {**first_bad, "torch": "2.2"}
    unsolvable = {"torch": "2.1", "cuml": "24.04", "mode": "plain"}

    def status(cell: Values) -> tuple[str, str]:
        if cell == unsolvable:
            return "env-unsolvable", f"no solution {text}"
        return (
            ("env-unbuildable", f"compiler {text}")
            if cell["cuml"] == "24.04"
            else ("solvable", f"two CUDAs {text}")
        )

    # No lock holds more than this of a hostile text.
    plain = re.sub(r"[^A-Za-z0-9]", "", text)[:20]
    study.packages = {
        cell["torch"]: (
            LockedPackage(
                "torch",
                "2.2" if cell is last_good else "2.3",
                "pip",
                "https://files.example/t.whl",
                "ab" * 32,
            ),
            LockedPackage(
                "numpy",
                "1.26" if cell is last_good else f"2.0{plain}",
                "pip",
                "https://x.example/n.whl",
                "cd" * 32,
            ),
        )
        for cell in (last_good, first_bad)
    }
    study.fill(status, lock_of=lock)
    changes = {
        "host": f"h{text}",
        "worker": f"w{text}",
        "gpu": f"GPU-{text}",
        "machine": Machine("x86_64", f"H100{text}", "570"),
    }
    study.crashes(
        first_bad,
        3,
        lock=lock(first_bad),
        stack=f"File {text}\n{text}",
        detail=f"SIGSEGV {text}",
        signature=json.dumps([1, f"crash:{text}", "body", f"{text}:f"]),
        **changes,
    )
    study.trials(first_bad, Outcome.PASS, 5, lock(first_bad), **{**changes, "host": "h2"})
    study.trials(last_good, Outcome.PASS, 9, lock(last_good), **changes)
    study.trials(last_good, Outcome.EXIT_FAIL, 4, lock(last_good), stderr=text, **changes)
    study.trials(last_good, Outcome.WORKER_LOST, 3, lock(last_good), detail=text, **changes)
    store.record_decision(study.study.id, "built", {"lock": study.locks[lock(last_good)], "seconds": 2.5})
    store.record_decision(study.study.id, "build-failed", {"lock": lock(unsolvable), "reason": f"gcc {text}"})
    changes_between = [
        {"name": name, "old": "1", "new": f"2{text}", "of_axis": name == "torch"}
        for name in ("torch", "numpy")
    ]
    explained = {
        "sentence": f"not torch itself: {text}",
        "good": last_good,
        "bad": first_bad,
        "changes": changes_between,
        "kind": "all",
        "culprits": [1],
        "tied": [],
        "probability": 0.97,
        "is_sure": True,
        "intermediates": [
            {"moved": moved, "bad": 2, "trials": 7, "interval": [0.1, 0.6]} for moved in ([], [1], [0, 1])
        ],
        "unsolvable": 1,
    }
    store.record_decision(study.study.id, "explained", explained)
    study.finished(
        verdict(
            axes,
            first_bad,
            last_good,
            status="likely",
            reason=f"probability {text}",
            chance_of_luck=0.04,
            bad_rate=rate(3, 8),
            good_rate=rate(0, 9),
            trials=17,
            monotone=False,
            untested=[
                {
                    "axis": "torch",
                    "first": last_good,
                    "last": last_good,
                    "called_bad": False,
                    "length": 1,
                    "trials": 3,
                    "chance": 0.61,
                }
            ],
            expected_left=12.0,
            expected_environments_left=2,
            ends_wrong=["good"],
            bayes_factors={"log10_against_no_difference": 1.5, "log10_against_runner_up": 0.5},
            candidates=[
                {"kind": "all", "first_bad": cell, "culprit_axes": ["torch", text], "probability": p}
                for cell, p in ((first_bad, 0.7), (last_good, 0.2))
            ],
            unexplained=[
                {"combination": last_good, "called_bad": False, "hits": 2, "trials": 9, "chance": 1e-4}
            ],
            others=[
                {
                    "status": "confirmed",
                    "first_bad": last_good,
                    "culprit_axes": [text],
                    "bad_values": {text: [text]},
                    "probability": 0.9,
                    "bad_rate": None,
                    "last_good": None,
                }
            ],
            no_other=0.9,
        )
    )
    return study


def lock(cell: Values) -> str:
    """The lock of a combination of `hostile_study`: torch 2.1 and 2.2 are one environment."""
    return f"{cell['torch'].replace('2.1', '2.2')}|{cell['cuml']}"
