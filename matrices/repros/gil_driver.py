"""Two threads and two locks: Python's (the GIL), and the one that CUDA's driver holds while it works.

numba asked the driver for an occupancy and gave it a Python function to call back. The driver calls it under its own
lock, and the call waits for the GIL; another thread holds the GIL, in a call of the driver that waits for the driver's
lock (numba/numba#4581). Here one thread asks for occupancies, with a number or with such a function; the other one
asks the driver for small things, with the GIL released during the calls, as `ctypes.CDLL` does, or held, as an
extension module without `Py_BEGIN_ALLOW_THREADS` does. It ends by itself after three seconds, if it can.

usage: gil_driver.py number|callback released|held
"""

import ctypes
import sys
import threading
import time

import cupy

SECONDS = 3


def main() -> None:
    question, gil = sys.argv[1:3]
    ones = cupy.ones(1 << 16, dtype=cupy.float32)
    assert float(ones.sum()) == float(1 << 16)
    kernel = cupy.RawKernel('extern "C" __global__ void nothing(int *p) { p[0] = 1; }', "nothing")
    kernel.compile()
    function = ctypes.c_void_p(kernel.kernel.ptr)
    asked = ctypes.CDLL("libcuda.so.1")
    other = ctypes.CDLL("libcuda.so.1") if gil == "released" else ctypes.PyDLL("libcuda.so.1")
    dynamic = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int)(lambda _block: 0)
    if question == "number":
        dynamic = ctypes.cast(None, type(dynamic))
    context = ctypes.c_void_p()
    asked.cuCtxGetCurrent(ctypes.byref(context))
    end = time.monotonic() + SECONDS

    def ask_for_occupancies() -> None:
        asked.cuCtxSetCurrent(context)  # a new thread has no current context
        grid, block = ctypes.c_int(), ctypes.c_int()
        while time.monotonic() < end:
            asked.cuOccupancyMaxPotentialBlockSize(
                ctypes.byref(grid), ctypes.byref(block), function, dynamic, ctypes.c_size_t(0), 0
            )

    thread = threading.Thread(target=ask_for_occupancies)
    thread.start()
    value, free, total = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_size_t()
    rounds = 0
    while time.monotonic() < end:
        other.cuFuncGetAttribute(ctypes.byref(value), 0, function)
        other.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        rounds += 1
    thread.join()
    print(f"{rounds} rounds beside occupancies asked with a {question}, the GIL {gil}")


if __name__ == "__main__":
    main()
