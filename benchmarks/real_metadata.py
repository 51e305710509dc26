"""Solve a real matrix: cuml x pytorch x Python x CUDA from repodata of conda-forge, rapidsai and nvidia.

usage: python -m benchmarks.real_metadata DIR [--conflicts] [--workers 2]

DIR holds the folders `rapidsai`, `conda-forge` and `nvidia`, each a channel (`linux-64/repodata.json` and
`noarch/repodata.json`); they are no part of this project. Prints, on one machine, how many of the 168
combinations can be solved with CUDA builds forced, the seconds and the memory that it took, how many packages
change between neighbours with and without the neighbour's lock as preference, and why the others cannot be.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from bisect_env.cli.plan_command import one_line
from bisect_env.engine.requests import MatrixRequests
from bisect_env.environments.conda_lock import CondaSolver
from bisect_env.environments.lock import Lock, LockResult, UnsolvableError
from bisect_env.environments.provider import Environments
from bisect_env.environments.request import CondaRequest, EnvironmentRequest
from bisect_env.environments.settings import CondaConfig
from bisect_env.environments.validation import lock_warnings, virtual_packages
from bisect_env.matrix.grid import AxisKind, Direction, Grid, GridAxis, Index
from bisect_env.matrix.load import Matrix, load_matrix

AXES = {
    "cuml": ("25.02.00", "25.08.00", "25.12.00", "26.02.00"),
    "pytorch": ("2.4.1", "2.5.1", "2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0"),
    "python": ("3.10", "3.12"),
    "cuda-version": ("12.8", "12.9", "13.0"),
}
CHANNELS = ("rapidsai", "conda-forge", "nvidia")


def grid() -> Grid:
    """The 168 combinations."""
    return Grid(
        tuple(GridAxis(name, AxisKind.PACKAGE, values, Direction.REGRESSION) for name, values in AXES.items())
    )


def matrix(channels: Sequence[str]) -> Matrix:
    """The matrix file that asks for these combinations."""
    axes = "".join(
        f"  {name}: {{package: {name}, manager: conda, versions: {json.dumps(values)}}}\n"
        for name, values in AXES.items()
    )
    with tempfile.TemporaryDirectory(prefix="bisect-env-benchmark-") as folder:
        path = Path(folder, "matrix.yaml")
        path.write_text(
            f"version: 1\nname: real-metadata\naxes:\n{axes}channels: {json.dumps(list(channels))}\n"
            "trial: {command: python -c pass}\n"
        )
        return load_matrix(path)


def request(values: dict[str, str], channels: Sequence[str]) -> EnvironmentRequest:
    """What one combination asks for; builds of cuml and pytorch are CUDA's."""
    python = values.pop("python")
    cuda = values["cuda-version"]
    conda = CondaRequest(
        channels=tuple(channels),
        pins=values,
        builds={"cuml": "cuda*", "pytorch": "cuda*"},
        virtual_packages=virtual_packages("linux-64", cuda),
    )
    return EnvironmentRequest(python, conda=conda)


class Memory(threading.Thread):
    """Watches the resident memory of this process and its helpers, added up."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.done = threading.Event()

    def run(self) -> None:
        """Look five times a second."""
        own = psutil.Process()
        while not self.done.wait(0.2):
            total = 0
            for process in (own, *own.children(recursive=True)):
                try:
                    total += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self.peak = max(self.peak, total)


def solve(channels: Sequence[str], workers: int, *, prefer: bool) -> tuple[list[LockResult], float, int]:
    """All results in the grid's order, with seconds and bytes."""
    lattice = grid()
    asked = matrix(channels)
    near = (
        {index: MatrixRequests(asked, lattice).anchors(index)[:1] for index in lattice.indices()}
        if prefer
        else {}
    )
    leaned_on = {one for models in near.values() for one in models}
    with tempfile.TemporaryDirectory() as cache:
        memory = Memory()
        memory.start()
        started = time.monotonic()
        locker = Environments(Path(cache), conda=CondaSolver(Path(cache), config=CondaConfig()))
        found: dict[Index, LockResult] = {}

        def lock(index: Index) -> None:
            models = [one for model in near.get(index, ()) if isinstance(one := found.get(model), Lock)]
            wanted = request(lattice.combination(index).as_dict(), channels)
            try:
                found[index] = locker.solve(wanted, models[0] if models else None)
            except UnsolvableError as error:
                found[index] = error

        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(lock, leaned_on))
            list(pool.map(lock, [index for index in lattice.indices() if index not in leaned_on]))
        results = [found[index] for index in sorted(found)]
        seconds = time.monotonic() - started
        memory.done.set()
        memory.join()
    return results, seconds, memory.peak


def changes(results: Sequence[LockResult]) -> list[int]:
    """Packages that differ between each two neighbours that both have a lock."""
    lattice = grid()
    locks = {i: r for i, r in zip(lattice.indices(), results, strict=True) if isinstance(r, Lock)}
    found = []
    for index, axis in itertools.product(locks, range(len(AXES))):
        near = (*index[:axis], index[axis] + 1, *index[axis + 1 :])
        if near in locks:
            a, b = ({p.name: p.url for p in locks[i].packages} for i in (index, near))
            found.append(sum(1 for name in a.keys() | b.keys() if a.get(name) != b.get(name)))
    return found


def main() -> None:
    """Solve twice, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--conflicts", action="store_true", help="print every conflict as the solver tells it"
    )
    options = parser.parse_args()
    channels = [(options.folder / name).resolve().as_uri() for name in CHANNELS]
    results, seconds, peak = solve(channels, options.workers, prefer=True)
    locks = [result for result in results if isinstance(result, Lock)]
    print(f"{len(locks)} of {len(results)} combinations can be solved with CUDA builds forced")
    print(f"{seconds:.1f} s with {options.workers} solvers, at most {peak / 2**20:.0f} MiB in all processes")
    print(f"{len({lock.content_hash for lock in locks})} distinct environments")
    warned = Counter(text for lock in locks for text in lock_warnings(lock, asked=AXES, cuda=True))
    for text, count in warned.items():
        print(f"warning ({count} environments): {text}")
    alone, _, _ = solve(channels, options.workers, prefer=False)
    near, far = changes(results), changes(alone)
    print(
        f"packages that differ between neighbours ({len(near)} pairs): {sum(near) / len(near):.1f} "
        f"with the neighbour's lock as preference, {sum(far) / len(far):.1f} without"
    )
    conflicts = Counter(one_line(r.message) for r in results if isinstance(r, UnsolvableError))
    print(f"{len(conflicts)} different conflicts; the most frequent ones:")
    for text, count in conflicts.most_common(None if options.conflicts else 5):
        print(f"{count:4d}  {text if options.conflicts else text[:160]}")


if __name__ == "__main__":
    main()
