"""Tables of CUDA errors and of Xids (error codes of the NVIDIA driver), with the outcomes that they imply."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bisect_env.trials.records import Outcome

# --------------------------------------------------------------------------------------------------
# Tables in `trials/tables/`, which `tools/gpu_tables.py` generates from NVIDIA's sources.


TABLES = Path(__file__).parent / "tables"
"""Directory of the tables. The first two lines of a table say where it was taken from, and when."""


def _rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a table; each maps column names to values."""
    with (TABLES / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(line for line in stream if not line.startswith("# ")))


# --------------------------------------------------------------------------------------------------
# CUDA errors by number, name and text; only those that imply an outcome.
#
# They are read from `tables/cuda_errors.csv`, which is generated from the CUDA runtime itself. The entries
# used here are equal in earlier releases. `docs/outcomes.md` explains the outcomes.


@dataclass(frozen=True, slots=True)
class CudaError:
    """A CUDA error, and the outcome of a process that ends with this error.

    Attributes:
        number: Error number, equal in the runtime API and the driver API.
        runtime: Name in the runtime API, such as `cudaErrorMemoryAllocation`.
        driver: Name in the driver API, such as `CUDA_ERROR_OUT_OF_MEMORY`; "" if it has none.
        text: Description by the CUDA runtime, such as `out of memory`.
        outcome: Outcome of a process that ends with this error.
    """

    number: int
    runtime: str
    driver: str
    text: str
    outcome: Outcome


CUDA_ERRORS = tuple(
    CudaError(int(row["number"]), row["runtime"], row["driver"], row["text"], Outcome(row["outcome"]))
    for row in _rows("cuda_errors")
    if row["outcome"]
)
"""All CUDA errors that imply an outcome, in numerical order."""

_BY_NUMBER = {error.number: error for error in CUDA_ERRORS}
_BY_NAME = {name: error for error in CUDA_ERRORS for name in (error.runtime, error.driver) if name}

_PHRASES: tuple[tuple[str, int], ...] = (
    # Messages with which libraries replace CUDA's own, and the number of the error that each means.
    ("Cannot re-initialize CUDA in forked subprocess", 3),
    ("torch.OutOfMemoryError", 2),
    ("torch.cuda.OutOfMemoryError", 2),
    ("cupy.cuda.memory.OutOfMemoryError", 2),
    ("CUDA out of memory", 2),
    ("std::bad_alloc: out_of_memory", 2),
    ("Found no NVIDIA driver on your system", 100),
    ("No CUDA GPUs are available", 100),
    ("The NVIDIA driver on your system is too old", 35),
)
"""Messages of libraries that stand for a CUDA error, each with the number of that error.

Sources: torch/cuda/__init__.py, c10/cuda/CUDACachingAllocator.cpp, cupy/cuda/memory.pyx, rmm/error.hpp."""

_PATTERN = re.compile(
    "|".join(
        (
            r"\b(?P<name>cudaError[A-Z]\w*|CUDA_ERROR_[A-Z_]+)\b",
            r"(?P<phrase>" + "|".join(re.escape(phrase) for phrase, _ in _PHRASES) + ")",
            # torch, thrust and ggml print only the text, after the word CUDA in the same line.
            r"\b(?i:cuda)\b[^\n]{0,200}?(?P<text>" + "|".join(re.escape(e.text) for e in CUDA_ERRORS) + ")",
            r"\b(?i:cuda) (?i:(?:runtime |driver )?(?:api )?error)(?: code)?[ :=(#]+(?P<number>\d+)\b",
            # numba: CudaAPIError: [700] Call to cuMemcpyDtoH results in …
            r"\[(?P<numba>\d+)\] Call to cu",
        )
    )
)
_BY_PHRASE = {phrase: _BY_NUMBER[number] for phrase, number in _PHRASES}
_BY_TEXT = {error.text: error for error in CUDA_ERRORS}


def find_cuda_error(text: str) -> CudaError | None:
    """Return the first CUDA error that a text mentions, or None if the text mentions none.

    An error can be mentioned by its name, its description or its number. Later errors are ignored, because
    they are often consequences: a destructor that uses the broken CUDA context fails again.

    Args:
        text: The last words of a process that failed (`ExitRecord.words`). Do not pass its whole output: an
            error that was handled long before the end does not explain the failure.
    """
    for match in _PATTERN.finditer(text):
        number = match["number"] or match["numba"]
        error = (
            _BY_NAME.get(match["name"] or "")
            or _BY_PHRASE.get(match["phrase"] or "")
            or _BY_TEXT.get(match["text"] or "")
            or (_BY_NUMBER.get(int(number)) if number else None)
        )
        if error is not None:
            return error
    return None


# --------------------------------------------------------------------------------------------------
# Xids by number: error codes that the driver reports for a GPU, and whether they make a trial void.


_XIDS = _rows("xids")
XIDS = {int(row["number"]): row["description"] for row in _XIDS}
"""Number of each Xid to NVIDIA's short description."""
SICK_XIDS = frozenset(int(row["number"]) for row in _XIDS if row["meaning"] == "sick")
"""Xids for which the hardware, the driver or the firmware is at fault, so that trials on that GPU are no
evidence. A fault of the program can cause the other Xids."""


def described(numbers: Iterable[int]) -> str:
    """Describe Xids, error codes of the NVIDIA driver, as in `Xid 31 (GPU memory page fault), 45 (...)`.

    Each Xid is listed once. Return "" if `numbers` is empty.
    """
    words = [
        f"{number} ({XIDS[number]})" if number in XIDS else str(number) for number in dict.fromkeys(numbers)
    ]
    return f"Xid {', '.join(words)}" if words else ""
