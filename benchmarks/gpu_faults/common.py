"""What every fault script does first: use its GPU for real, and say which ones it sees."""

import os

import cupy


def use_gpu() -> None:
    """A right answer from the GPU; prints what the process sees."""
    ones = cupy.ones(1 << 16, dtype=cupy.float32)
    if float(ones.sum()) != float(1 << 16):
        raise SystemExit(125)
    seen = []
    for index in range(cupy.cuda.runtime.getDeviceCount()):
        raw = cupy.cuda.runtime.getDeviceProperties(index)["uuid"].hex()
        seen.append("GPU-" + "-".join((raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:])))
    print("variable:", os.environ["CUDA_VISIBLE_DEVICES"])
    print("driver:", ",".join(seen))


def broken(level: str) -> bool:
    """From level 4 the planted regression is there."""
    return int(level) >= 4
