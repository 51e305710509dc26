"""Xids by number: what the driver reports of a GPU, and what that says of the trial that ran on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bisect_env.trials.tables import load


@dataclass(frozen=True, slots=True)
class Xid:
    """One kind of report.

    Attributes:
        number: As the driver prints it.
        sick: Hardware, driver or firmware: nothing on that GPU is evidence. Otherwise it is what a program's
            own fault leaves.
        description: NVIDIA's words.
    """

    number: int
    sick: bool
    description: str


TABLE = load("xids")
XIDS = {
    int(row["number"]): Xid(int(row["number"]), row["meaning"] == "sick", row["description"])
    for row in TABLE.rows
}
SICK_XIDS = frozenset(number for number, xid in XIDS.items() if xid.sick)
PROGRAM_XIDS = frozenset(XIDS.keys() - SICK_XIDS)


def described(numbers: Iterable[int]) -> str:
    """`Xid 31 (GPU memory page fault), 45 (...)`, each once."""
    words = [
        f"{number} ({XIDS[number].description})" if number in XIDS else str(number)
        for number in dict.fromkeys(numbers)
    ]
    return f"Xid {', '.join(words)}" if words else ""
