"""Python's lock and the driver's lock, taken in opposite orders: through the driver's library, with no package.

One thread asks for an occupancy, for which the driver calls back into Python while it has its own lock. The other
one calls the driver without giving up Python's lock (`holding`), as numba's and cudf's callers did in
NVIDIA/cudf#2822 and numba/numba#4581, or with giving it up (`releasing`), as `ctypes.CDLL` does.

usage: gil_driver_cuda.py releasing|holding [seconds]
"""

import ctypes
import sys
import threading
import time

KERNEL = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry nothing()
{
    ret;
}
"""
releasing, holding = ctypes.CDLL("libcuda.so.1"), ctypes.PyDLL("libcuda.so.1")
shared_memory = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int)(lambda _block: 0)


def call(name, *arguments):
    """Call the driver.

    Raises:
        RuntimeError: It says no.
    """
    code = getattr(releasing, name)(*arguments)
    if code:
        raise RuntimeError("%s: CUDA error %d" % (name, code))


def ask_occupancy(context, function, until):
    """Questions that the driver answers with calls of a Python function."""
    grid, block = ctypes.c_int(), ctypes.c_int()
    call("cuCtxSetCurrent", context)
    while time.monotonic() < until:
        call(
            "cuOccupancyMaxPotentialBlockSize",
            *(ctypes.byref(grid), ctypes.byref(block), function, shared_memory, ctypes.c_size_t(0), 0),
        )


def main():
    """Both threads at work for some seconds, or for ever."""
    other = {"releasing": releasing, "holding": holding}[sys.argv[1]]
    until = time.monotonic() + float(sys.argv[2] if len(sys.argv) > 2 else 3)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), KERNEL)
    call("cuModuleGetFunction", ctypes.byref(function), module, b"nothing")
    thread = threading.Thread(target=ask_occupancy, args=(context, function, until), daemon=True)
    thread.start()
    value, free, total = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_size_t()
    while thread.is_alive():
        other.cuFuncGetAttribute(ctypes.byref(value), 0, function)
        other.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    print("done", flush=True)


main()
