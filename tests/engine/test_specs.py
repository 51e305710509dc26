from __future__ import annotations

from pathlib import Path

from bisect_env.engine.specs import trial_spec
from bisect_env.environments.lockfiles import make_lock
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.load import load_matrix
from bisect_env.trials.records import NONE, Perturbation

LOCK = make_lock("3.11", "linux-64", [])
AT = Combination.of({"level": "1"})


def test_circumstances_of_a_trial(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    trial = "{command: python -V, concurrency: 3, env: {MALLOC_ARENA_MAX: '7'}}"
    path.write_text(f"version: 1\nname: m\naxes: {{level: {{values: [1, 2]}}}}\ntrial: {trial}\n")
    matrix = load_matrix(path)
    plain = trial_spec(matrix, AT, LOCK, "t")
    assert (plain.concurrency, plain.perturbation) == (3, NONE)
    around = Perturbation(
        "x", copies=2, env={"MALLOC_ARENA_MAX": "1", "MALLOC_PERTURB_": "165"}, seeds=(5, 6)
    )
    specs = [trial_spec(matrix, AT, LOCK, "t", perturbation=around) for _ in range(200)]
    assert specs[0].concurrency == 6
    # What the matrix says wins.
    assert specs[0].env == {"MALLOC_ARENA_MAX": "7", "MALLOC_PERTURB_": "165", "BISECT_ENV_LEVEL": "1"}
    fixed = [spec.hash_seed for spec in specs if spec.hash_seed in (5, 6)]
    # Every second trial; 200 throws are beyond these bounds once in ten million times.
    assert 60 < len(fixed) < 140
    assert set(fixed) == {5, 6}
