"""Tables that `tools/gpu_tables.py` writes from NVIDIA's sources, stored beside this module."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Table:
    """One table.

    Attributes:
        source: Where it is from, one line.
        read: When that was read, one line.
        rows: Column to text.
    """

    source: str
    read: str
    rows: tuple[dict[str, str], ...]


def load(name: str) -> Table:
    """Read a table."""
    with Path(__file__).with_name(f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        source, read = (stream.readline().removeprefix("# ").rstrip("\n") for _ in range(2))
        return Table(source, read, tuple(csv.DictReader(stream)))
