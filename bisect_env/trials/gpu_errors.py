"""CUDA errors and Xids of the driver, and what each says about a failure."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bisect_env.trials.records import Outcome

# --------------------------------------------------------------------------------------------------
# Tables that `tools/gpu_tables.py` writes from NVIDIA's sources, in the folder beside this module.


@dataclass(frozen=True, slots=True)
class ErrorTable:
    """One table of GPU errors, with its source."""

    source: str
    read: str
    rows: tuple[dict[str, str], ...]


def _load(name: str) -> ErrorTable:
    with (Path(__file__).parent / "tables" / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        source, read = (stream.readline().removeprefix("# ").rstrip("\n") for _ in range(2))
        return ErrorTable(source, read, tuple(csv.DictReader(stream)))


# --------------------------------------------------------------------------------------------------
# CUDA's errors by number, name and text, as far as they say what a failure was.
#
# They are read from a table that is generated from the CUDA runtime itself (`tables/cuda_errors.csv`);
# earlier releases differ in no entry used here. What each means for a trial is `docs/outcomes.md`.


@dataclass(frozen=True, slots=True)
class CudaError:
    """One CUDA error.

    Attributes:
        number: Its number, the same in the runtime and in the driver.
        driver: Name in the driver API, "" if it has none.
        outcome: Outcome of a process that ends with this error.
    """

    number: int
    runtime: str
    driver: str
    text: str
    outcome: Outcome


CUDA_TABLE = _load("cuda_errors")
CUDA_ERRORS = tuple(
    CudaError(int(row["number"]), row["runtime"], row["driver"], row["text"], Outcome(row["outcome"]))
    for row in CUDA_TABLE.rows
    if row["outcome"]
)
"""In numerical order."""

_BY_NUMBER = {error.number: error for error in CUDA_ERRORS}
_BY_NAME = {name: error for error in CUDA_ERRORS for name in (error.runtime, error.driver) if name}

_PHRASES: tuple[tuple[str, int], ...] = (
    # What libraries say in words of their own, and the error that it stands for.
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
"""Sources: torch/cuda/__init__.py, c10/cuda/CUDACachingAllocator.cpp, cupy/cuda/memory.pyx, rmm/error.hpp."""

_PATTERN = re.compile(
    "|".join(
        (
            r"\b(?P<name>cudaError[A-Z]\w*|CUDA_ERROR_[A-Z_]+)\b",
            r"(?P<phrase>" + "|".join(re.escape(phrase) for phrase, _ in _PHRASES) + ")",
            # torch, thrust, ggml: the text alone, after the word CUDA in the same line.
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
    """Return the first error of the table that a text names.

    Later ones do not count: a destructor that meets the broken context afterwards repeats the error.

    Args:
        text: The last words of a process that failed. Do not pass its whole output: an error that was handled
            long before the end does not explain the failure.
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
# Xids by number: what the driver reports of a GPU, and what that says of the trial that ran on it.


@dataclass(frozen=True, slots=True)
class Xid:
    """One kind of error report of the GPU driver.

    Attributes:
        sick: Whether hardware, driver or firmware is at fault, so that no trial on that GPU is evidence.
            Otherwise a program's own fault can cause it.
    """

    number: int
    sick: bool
    description: str


XID_TABLE = _load("xids")
XIDS = {
    int(row["number"]): Xid(int(row["number"]), row["meaning"] == "sick", row["description"])
    for row in XID_TABLE.rows
}
SICK_XIDS = frozenset(number for number, xid in XIDS.items() if xid.sick)


def described(numbers: Iterable[int]) -> str:
    """Return Xids with their descriptions, each once: `Xid 31 (GPU memory page fault), 45 (...)`."""
    words = [
        f"{number} ({XIDS[number].description})" if number in XIDS else str(number)
        for number in dict.fromkeys(numbers)
    ]
    return f"Xid {', '.join(words)}" if words else ""
