"""CUDA's errors by number, name and text, as far as they say what a failure was.

Names, numbers and texts: `driver_types.h`, `cuda.h` and `cudaGetErrorString` of the CUDA 13.5 runtime
(`nvidia-cuda-runtime` 13.5.37, read 2026-11). Earlier releases differ in no entry
used here. What each means for a trial is `docs/reference/outcomes.md`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bisect_env.trials.records import Outcome


@dataclass(frozen=True, slots=True)
class CudaError:
    """One error.

    Attributes:
        number: The same in the runtime and in the driver.
        runtime: Name in the runtime API.
        driver: Name in the driver API, "" where it has none.
        text: What `cudaGetErrorString` says.
        outcome: What a process that ends with it did.
    """

    number: int
    runtime: str
    driver: str
    text: str
    outcome: Outcome


# Number, what it means, name in the runtime API after `cudaError`, name in the driver API after
# `CUDA_ERROR_`, text.
_TABLE = """
  2 cuda-oom    MemoryAllocation            OUT_OF_MEMORY           out of memory
  3 cuda-init   InitializationError         NOT_INITIALIZED         initialization error
 35 unsupported InsufficientDriver          - CUDA driver version is insufficient for CUDA runtime version
 46 gpu-lost    DevicesUnavailable          DEVICE_UNAVAILABLE CUDA-capable device(s) is/are busy or unavailable
100 unsupported NoDevice                    NO_DEVICE               no CUDA-capable device is detected
209 unsupported NoKernelImageForDevice      NO_BINARY_FOR_GPU no kernel image is available for execution on the device
214 gpu-lost    ECCUncorrectable            ECC_UNCORRECTABLE       uncorrectable ECC error encountered
220 gpu-lost    NvlinkUncorrectable         NVLINK_UNCORRECTABLE uncorrectable NVLink error detected during the execution
222 unsupported UnsupportedPtxVersion       UNSUPPORTED_PTX_VERSION the provided PTX was compiled with an unsupported toolchain.
226 gpu-lost    Contained                   CONTAINED Invalid access of peer GPU memory over nvlink or a hardware error
700 cuda-fault  IllegalAddress              ILLEGAL_ADDRESS         an illegal memory access was encountered
702 cuda-fault  LaunchTimeout               LAUNCH_TIMEOUT          the launch timed out and was terminated
710 cuda-fault  Assert                      ASSERT                  device-side assert triggered
714 cuda-fault  HardwareStackError          HARDWARE_STACK_ERROR    hardware stack error
715 cuda-fault  IllegalInstruction          ILLEGAL_INSTRUCTION     an illegal instruction was encountered
716 cuda-fault  MisalignedAddress           MISALIGNED_ADDRESS      misaligned address
717 cuda-fault  InvalidAddressSpace         INVALID_ADDRESS_SPACE operation not supported on global/shared address space
718 cuda-fault  InvalidPc                   INVALID_PC              invalid program counter
719 cuda-fault  LaunchFailure               LAUNCH_FAILED           unspecified launch failure
802 gpu-lost    SystemNotReady              SYSTEM_NOT_READY        system not yet initialized
803 gpu-lost    SystemDriverMismatch        SYSTEM_DRIVER_MISMATCH system has unsupported display driver / cuda driver combination
804 unsupported CompatNotSupportedOnDevice  COMPAT_NOT_SUPPORTED_ON_DEVICE forward compatibility was attempted on non supported HW
999 cuda-init   Unknown                     UNKNOWN                 unknown error
"""  # noqa: E501 - a table


def _row(line: str) -> CudaError:
    number, outcome, runtime, driver, text = line.split(None, 4)
    name = "" if driver == "-" else f"CUDA_ERROR_{driver}"
    return CudaError(int(number), f"cudaError{runtime}", name, text, Outcome(outcome))


CUDA_ERRORS = tuple(_row(line) for line in _TABLE.strip().splitlines())
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
    """The first error of the table that a text names.

    The first, because a destructor that meets the broken context afterwards echoes it.

    Args:
        text: The last words of a process that failed, not its whole output: an error that was handled long
            before the end explains nothing.
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
