"""Perturbations: circumstances under which a script runs, which change nothing of what it means.

They are data that travel with a trial and are stored with a study. Which of them makes a failure more
frequent is measured (`bisect-env amplify`), never assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Perturbation:
    """Circumstances of a trial.

    Attributes:
        name: For people; also what it is called in the database.
        copies: Copies started at once for each that the matrix asks for.
        repeats: How often the body is run within one process.
        env: Environment variables, under those of the matrix.
        load: Processes beside it that do nothing but use CPU.
        cpus: CPUs that it may use, counted from the first; 0 for all.
        nice: Added to its niceness.
        gc_threshold: First threshold of Python's garbage collector; 0 leaves it.
        seeds: Hash seeds of which every second trial gets one; the others have random ones. A seed decides a
            trial altogether: were it always the same, a version that fails under half of all seeds might
            never fail, and pass for good.
    """

    name: str = ""
    copies: int = 1
    repeats: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    load: int = 0
    cpus: int = 0
    nice: int = 0
    gc_threshold: int = 0
    seeds: tuple[int, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """As it is stored: without what says nothing."""
        return {key: value for key, value in asdict(self).items() if value != getattr(NONE, key)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Perturbation:
        """Read back what `as_json` gave; keys of later releases are refused by name.

        Raises:
            TypeError: A key is unknown.
        """
        return cls(**{**data, "seeds": tuple(data.get("seeds", ()))})


NONE = Perturbation()
"""The script as it is."""


def catalogue(cpus: int, seeds: Sequence[int] = (), *, can_repeat: bool = False) -> tuple[Perturbation, ...]:
    """What is worth trying on a machine. Pure.

    Args:
        cpus: CPUs that trials may use.
        seeds: Hash seeds of trials that failed: with one of them a failure may be certain.
        can_repeat: Whether the script's body can be run again within its process.
    """
    found = [
        Perturbation("2 copies at once", copies=2),
        Perturbation(f"{max(4, 2 * cpus)} copies at once", copies=max(4, 2 * cpus)),
        Perturbation("CPU load beside it", load=max(2, cpus)),
        Perturbation("CPU load beside it, at low priority", load=max(2, cpus), nice=19),
        Perturbation("freed memory overwritten", env={"MALLOC_PERTURB_": "165"}),
        Perturbation("one malloc arena", env={"MALLOC_ARENA_MAX": "1"}),
        Perturbation("Python's debug allocator", env={"PYTHONMALLOC": "debug"}),
        Perturbation("Python objects in malloc", env={"PYTHONMALLOC": "malloc"}),
        Perturbation("garbage collected at every chance", gc_threshold=1),
        Perturbation("one thread in numeric libraries", env=dict.fromkeys(THREADS, "1")),
        Perturbation(
            f"{4 * max(2, cpus)} threads in numeric libraries",
            env=dict.fromkeys(THREADS, str(4 * max(2, cpus))),
        ),
    ]
    found += [Perturbation(f"hash seed {seed} in every second trial", seeds=(seed,)) for seed in (0, *seeds)]
    if cpus > 1:
        found.append(Perturbation("one core", cpus=1))
    if can_repeat:
        found += [Perturbation(f"{n} times within a process", repeats=n) for n in (5, 25)]
    return tuple(found)
