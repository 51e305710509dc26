"""Write the tables of CUDA errors and Xids that classification reads, from NVIDIA's own sources.

    python -m tools.gpu_tables cuda nvidia_cuda_runtime-*.whl    # from PyPI: headers and the library's texts
    python -m tools.gpu_tables xids xid-catalog.txt              # the catalogue's page, saved as text

Numbers and words are the sources'; what each means for a trial is decided here and nowhere else. The first
lines of a table say where it is from and when that was read.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import io
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

TABLES = Path(__file__).parent.parent / "bisect_env" / "trials" / "tables"
CATALOGUE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"

OUTCOMES = {
    "cuda-oom": {2},
    "cuda-init": {3, 999},
    "gpu-lost": {46, 214, 220, 226, 802, 803},
    "unsupported": {35, 100, 209, 222, 804},
    "cuda-fault": {700, 702, 710, *range(714, 720)},
}
"""What a process that ends with a CUDA error did. The other errors are a program's mistakes like any other
exception (an invalid argument, say), or are followed by one of these."""

MEANINGS = {
    "sick": {46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, *range(143, 151), 155, 156, 158},
    "program": {8, 13, 31, 43, 45, 69},
}
"""Of Xids. `sick`: hardware, driver or firmware, after which nothing on that GPU is evidence. `program`: what
a program's own fault leaves; it corroborates a CUDA fault."""


def meaning_of(number: int, meanings: dict[str, set[int]]) -> str:
    """The meaning of a number, or ""."""
    return next((name for name, numbers in meanings.items() if number in numbers), "")


def cuda_rows(runtime_header: str, driver_header: str, texts: dict[int, str]) -> list[list[str]]:
    """Number, outcome, name in the runtime, name in the driver API, text."""
    runtime = {
        int(number): name
        for name, number in re.findall(r"^\s+(cudaError\w+)\s*=\s*(\d+)", runtime_header, re.MULTILINE)
    }
    driver = {
        int(number): name
        for name, number in re.findall(r"^\s+(CUDA_ERROR_\w+)\s*=\s*(\d+)", driver_header, re.MULTILINE)
    }
    missing = set().union(*OUTCOMES.values()) - runtime.keys()
    if missing:
        raise SystemExit(f"the headers do not know {sorted(missing)}; was the right wheel given?")
    return [
        [str(number), meaning_of(number, OUTCOMES), runtime[number], driver.get(number, ""), texts[number]]
        for number in sorted(runtime)
    ]


def from_wheel(wheel: Path) -> tuple[str, list[list[str]]]:
    """Source and rows of the table of CUDA errors."""
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as directory:
        names = archive.namelist()

        def member(ending: str) -> str:
            return next(name for name in names if re.search(ending, name))

        library = ctypes.CDLL(archive.extract(member(r"libcudart\.so\.\d+$"), directory))
        library.cudaGetErrorString.restype = ctypes.c_char_p
        header = archive.read(member(r"include/driver_types\.h$")).decode()
        driver = archive.read(member(r"include/cuda\.h$")).decode()
        numbers = [int(n) for n in re.findall(r"cudaError\w+\s*=\s*(\d+)", header)]
        texts = {number: library.cudaGetErrorString(number).decode() for number in numbers}
        rows = cuda_rows(header, driver, texts)
    name, version = wheel.name.split("-")[:2]
    return f"{name} {version}: driver_types.h, cuda.h, cudaGetErrorString", rows


def xid_rows(page: str) -> list[list[str]]:
    """Number, meaning, mnemonic, description, what NVIDIA says to do at once."""
    rows = []
    for block in re.split(r"^XID \|\s*$", page, flags=re.MULTILINE)[1:]:
        cells = [cell.strip() for cell in block.split("|\n")]
        number = int(cells[0])
        if meaning := meaning_of(number, MEANINGS):
            mnemonic = cells[1].partition(" / ")[0]
            description = cells[2].partition(" – ")[0]
            rows.append([str(number), meaning, mnemonic, description, cells[7]])
    missing = set().union(*MEANINGS.values()) - {int(row[0]) for row in rows}
    if missing:
        raise SystemExit(f"the page does not have {sorted(missing)}; was all of it saved?")
    return rows


def written(source: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The table as text."""
    stream = io.StringIO()
    stream.write(
        f"# {source}\n# read {datetime.now(UTC):%Y-%m-%d} by tools/gpu_tables.py; not to be edited\n"
    )
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return stream.getvalue()


def main(arguments: Sequence[str]) -> None:
    """Write one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=["cuda", "xids"])
    parser.add_argument("source", type=Path)
    parser.add_argument("--updated", default="", help="the day that the page says it was changed last")
    asked = parser.parse_args(arguments)
    if asked.table == "cuda":
        source, rows = from_wheel(asked.source)
        text = written(source, ["number", "outcome", "runtime", "driver", "text"], rows)
        (TABLES / "cuda_errors.csv").write_text(text, "utf-8")
    else:
        source = CATALOGUE + (f", last changed {asked.updated}" if asked.updated else "")
        rows = xid_rows(asked.source.read_text("utf-8"))
        text = written(source, ["number", "meaning", "mnemonic", "description", "action"], rows)
        (TABLES / "xids.csv").write_text(text, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
