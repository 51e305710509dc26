"""What the search costs and how often it is wrong, beside its rivals, on planted truths.

`python -m benchmarks.search [--full] [--seed N] [--processes P] [ROW ...]` plays whole studies and counts all
of their trials and environments: controls, ends and certificate too. Without names it plays every row, writes
`benchmarks/results/search.json`, and puts the table into the README beside it and the pictures into
`docs/pictures`. `--list` names the rows.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from multiprocessing import Pool
from pathlib import Path
from typing import Any

# One study is small: threads inside a matrix product only get in each other's way.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import numpy as np

from benchmarks.search_methods import CONFIDENCE, METHODS, Played, methods_for
from benchmarks.search_rows import Row, rows

RESULTS = Path(__file__).parent / "results" / "search.json"
SHORT = 0.03
_HEADINGS = (
    f"{'row':22} {'method':20} {'n':>4} {'trials':>16} {'environments':>14} {'rounds':>14} "
    f"{'trials + B x env':>16} {'wrong %':>13} {'not confirmed %':>15}"
)


def study(work: tuple[Row, str, int]) -> tuple[float, ...]:
    """One study of one method, with the seconds it took."""
    row, method, seed = work
    started = time.perf_counter()
    return (*map(float, astuple(METHODS[method](row, seed))), time.perf_counter() - started)


def summary(row: Row, method: str, results: Sequence[tuple[float, ...]]) -> dict[str, Any]:
    """A row of the JSON file: means with standard errors."""
    table = np.array(results)
    columns = {name: table[:, i] for i, name in enumerate(Played.__dataclass_fields__)}
    columns["total"] = columns["trials"] + row.build_cost * columns["environments"]
    out: dict[str, Any] = {"row": row.name, "method": method, "repetitions": len(table)}
    for name in ("trials", "environments", "rounds", "total", "wrong", "not_confirmed"):
        values = columns[name]
        out[name] = float(values.mean())
        out[f"{name}_error"] = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
    out["milliseconds_a_trial"] = float(1e3 * table[:, -1].sum() / max(1.0, columns["trials"].sum()))
    out["marks"] = dict(row.marks) if method == "bisect-env" else {}
    return out


def line(found: dict[str, Any]) -> str:
    """A row for people."""

    def shown(name: str, width: int, factor: float = 1.0) -> str:
        return f"{factor * found[name]:.1f} ± {factor * found[f'{name}_error']:.1f}".rjust(width)

    marks = "".join(
        f"  {name} {'meets' if found[name] <= most else 'MISSES'} {most:g}"
        for name, most in found["marks"].items()
    )
    wrong = found["wrong"] - 2 * found["wrong_error"] > 1 - CONFIDENCE
    return (
        f"{found['row']:22} {found['method']:20} {found['repetitions']:4} {shown('trials', 16)} "
        f"{shown('environments', 14)} {shown('rounds', 14)} {shown('total', 16)} "
        f"{shown('wrong', 13, 100)} {shown('not_confirmed', 15, 100)}{marks}"
        + ("  WRONG TOO OFTEN" if wrong and found["method"] == "bisect-env" else "")
    )


def play(
    wanted: Sequence[Row], methods: Sequence[str], scale: float, seed: int, processes: int
) -> Iterator[dict[str, Any]]:
    """Play all studies on all processes; each row is printed and given out once it is done."""
    work = [
        (row, method, seed * 1_000_000 + i)
        for row in wanted
        for method in methods_for(row)
        if method in methods
        for i in range(max(2, round(row.repetitions * scale)))
    ]
    left: defaultdict[tuple[Row, str], int] = defaultdict(int)
    for row, method, _ in work:
        left[row, method] += 1
    done: defaultdict[tuple[Row, str], list[tuple[float, ...]]] = defaultdict(list)
    print(_HEADINGS)
    with Pool(processes, initializer=os.nice, initargs=(5,)) as pool:
        for (row, method, _), result in zip(work, pool.imap(study, work, chunksize=2), strict=True):
            done[row, method].append(result)
            left[row, method] -= 1
            if not left[row, method]:
                found = summary(row, method, done.pop((row, method)))
                print(line(found), flush=True)
                yield found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the rows that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help="a row's name, or with a * how it begins")
    parser.add_argument("--full", action="store_true", help=f"all repetitions instead of {SHORT:g} of them")
    parser.add_argument("--scale", type=float, help="share of all repetitions")
    parser.add_argument("--method", action="append", choices=list(METHODS), help="these methods alone")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, help=f"where the JSON goes; all rows: {RESULTS.name}")
    parser.add_argument("--list", action="store_true", help="name the rows")
    options = parser.parse_args(arguments)
    wanted = [
        row
        for row in rows()
        if not options.rows
        or any(row.name == r or (r.endswith("*") and row.name.startswith(r[:-1])) for r in options.rows)
    ]
    if options.list:
        print(*(row.name for row in wanted), sep="\n")
        return
    scale = options.scale or (1.0 if options.full else SHORT)
    print(f"seed {options.seed}, confidence {CONFIDENCE:g}, {scale:g} of all repetitions", flush=True)
    started = time.monotonic()
    whole = not options.rows and not options.method
    output = options.output or (RESULTS if whole else None)
    document: dict[str, Any] = {
        "seed": options.seed,
        "confidence": CONFIDENCE,
        "scale": scale,
        "seconds": 0,
        "processes": options.processes,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "rows": [],
    }
    for found in play(wanted, options.method or list(METHODS), scale, options.seed, options.processes):
        document["rows"].append(found)
        document["seconds"] = round(time.monotonic() - started)
        if output is not None:
            # Row by row, so that a run that is stopped leaves what it has found.
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{document['seconds']} s on {options.processes} processes")
    if whole and output == RESULTS:
        # Drawing needs what playing does not.
        from benchmarks.search_pictures import publish

        publish(document)


if __name__ == "__main__":
    main()
