"""The driver calls Python back under its own lock; another thread keeps the GIL and waits for that lock."""

import ctypes
import sys
import threading

import cupy
from common import broken, use_gpu

use_gpu()
if broken(sys.argv[1]):
    kernel = cupy.RawKernel('extern "C" __global__ void nothing(int *p) { p[0] = 1; }', "nothing")
    kernel.compile()
    function = ctypes.c_void_p(kernel.kernel.ptr)
    lets_go, holds_on = ctypes.CDLL("libcuda.so.1"), ctypes.PyDLL("libcuda.so.1")
    shared_memory = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int)(lambda _block: 0)

    def ask_occupancy() -> None:
        """A callback for each question."""
        grid, block = ctypes.c_int(), ctypes.c_int()
        for _ in range(100_000):
            lets_go.cuOccupancyMaxPotentialBlockSize(
                ctypes.byref(grid), ctypes.byref(block), function, shared_memory, ctypes.c_size_t(0), 0
            )

    cupy.cuda.Device().use()
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    holds_on.cuCtxGetCurrent(ctypes.byref(context))

    def ask_in_context() -> None:
        """A new thread has no current context."""
        lets_go.cuCtxSetCurrent(context)
        ask_occupancy()

    thread = threading.Thread(target=ask_in_context, daemon=True)
    thread.start()
    # Memory is had and given back under the driver's lock; the attribute of a kernel, for one, is not.
    while thread.is_alive():
        holds_on.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 20))
        holds_on.cuMemFree_v2(memory)
