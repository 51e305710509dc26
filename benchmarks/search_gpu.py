"""A lattice of a million combinations: seconds and memory of an update with scores, on every array library.

`python -m benchmarks.search_gpu [--shape 100x100x10x10] [--tried N]` runs numpy, and torch and CuPy where
installed, on the processor and on GPUs, and compares each with numpy. It exits with 1 if a result differs
by more than 1e-9, or numpy takes more than 2 s or 4 GiB.
"""

from __future__ import annotations

import argparse
import importlib
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bisect_env.matrix.grid import Direction, Index
from bisect_env.search.families import FloatArray
from bisect_env.search.large import LargeLattice
from bisect_env.search.rates import RateGrid

MOST_SECONDS, MOST_BYTES, MOST_APART = 2.0, 4 * 2**30, 1e-9


def told(
    shape: tuple[int, ...], tried: int, rates: RateGrid
) -> tuple[list[Index], FloatArray, FloatArray, list[FloatArray]]:
    """Counts of distinct cells under a planted corner: the cells, log likelihoods, and own rates."""
    rng = np.random.default_rng(1)
    first_bad = tuple(n // 2 for n in shape)
    cells: list[Index] = []
    while len(cells) < tried:
        cell = tuple(int(rng.integers(n)) for n in shape)
        if cell not in cells:
            cells.append(cell)
    counted = []
    for cell in cells:
        bad = all(here >= first for here, first in zip(cell, first_bad, strict=True))
        trials = int(rng.integers(1, 30))
        counted.append((int(rng.binomial(trials, 0.3 if bad else 0.0)), trials))
    scored = [rates.if_bad(hits, trials) for hits, trials in counted]
    good = [rates.if_good(hits, trials) for hits, trials in counted]
    return cells, np.array([s[0] for s in scored]), np.array(good), [s[1] for s in scored]


def libraries() -> Iterator[tuple[str, Any, Callable[[], None], Callable[[Any], np.ndarray]]]:
    """Name, an array on the device, how to wait for the device, and how to bring an array home."""
    yield "numpy", None, lambda: None, np.asarray
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        print("torch: not installed")
    else:
        yield "torch, processor", torch.zeros(1), lambda: None, lambda a: a.numpy()
        if torch.cuda.is_available():
            name = f"torch, {torch.cuda.get_device_name()}"
            yield name, torch.zeros(1, device="cuda"), torch.cuda.synchronize, lambda a: a.cpu().numpy()
    try:
        cupy = importlib.import_module("cupy")
    except ImportError:
        print("CuPy: not installed")
    else:
        yield "CuPy", cupy.zeros(1), cupy.cuda.Device().synchronize, cupy.asnumpy


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every library; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="100x100x10x10")
    parser.add_argument("--tried", type=int, default=60, help="combinations with trials")
    options = parser.parse_args(arguments)
    shape = tuple(int(n) for n in options.shape.split("x"))
    rates = RateGrid.default()
    cells, log_bad, log_good, own = told(shape, options.tried, rates)
    print(f"{np.prod(shape):,} combinations, {options.tried} of them tried")
    reference: tuple[np.ndarray, np.ndarray] | None = None
    failed = False
    for name, like, wait, home in libraries():
        lattice = LargeLattice(shape, [Direction.REGRESSION] * len(shape), rates, like=like)
        seconds, processor = [], []
        for _ in range(3):
            started, used = time.perf_counter(), time.process_time()
            belief = lattice.belief(cells, log_bad, log_good)
            bits = lattice.information(belief, cells, own)
            wait()
            seconds.append(time.perf_counter() - started)
            processor.append(time.process_time() - used)
        found = home(belief.probability_bad), home(bits)
        line = (
            f"{name}: update and score {min(seconds):.3f} s "
            f"(first {seconds[0]:.3f} s; {min(processor):.3f} s of processor time)"
        )
        if reference is None:
            reference = found
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            line += f", peak memory of the process {peak / 2**30:.2f} GiB"
            failed |= min(seconds) > MOST_SECONDS or peak > MOST_BYTES
        else:
            apart = max(float(np.abs(a - b).max()) for a, b in zip(found, reference, strict=True))
            line += f", at most {apart:.1e} from numpy"
            failed |= apart > MOST_APART
        print(line, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
