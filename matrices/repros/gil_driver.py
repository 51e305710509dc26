"""Two threads and two locks: Python's (the GIL), and the one of CUDA's driver.

numba asked the driver for an occupancy and gave it a Python function to call back. The driver calls it while it holds its
lock, and the call waits for the GIL; another thread has the GIL and waits in a call of the driver for the driver's lock
(numba/numba#4581). Here one thread asks for occupancies, with a number or with such a function; the other one asks
for the attribute of a kernel, which takes no lock, or copies to the GPU, which does; it lets go of the GIL during the
calls, as `ctypes.CDLL` does, or keeps it, as an extension module without `Py_BEGIN_ALLOW_THREADS` does. All of it
through the driver's library alone. It ends by itself after two seconds, if it can.

usage: gil_driver.py number|callback query|copy released|held
"""

import ctypes
import sys
import threading
import time

SECONDS = 2
BYTES = 1 << 20
KERNEL = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n\0"


def call(library, name, *arguments):
    code = getattr(library, name)(*arguments)
    if code:
        raise RuntimeError("%s: CUDA error %d" % (name, code))


def main():
    question, meanwhile, gil = sys.argv[1:4]
    asking = ctypes.CDLL("libcuda.so.1")
    other = ctypes.CDLL("libcuda.so.1") if gil == "released" else ctypes.PyDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    module, kernel, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    call(asking, "cuInit", 0)
    call(asking, "cuDeviceGet", ctypes.byref(device), 0)
    call(asking, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call(asking, "cuCtxSetCurrent", context)
    call(asking, "cuModuleLoadData", ctypes.byref(module), KERNEL)
    call(asking, "cuModuleGetFunction", ctypes.byref(kernel), module, b"nothing")
    call(asking, "cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(BYTES))
    kind = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int)
    shared_memory = kind(lambda _block: 0) if question == "callback" else None
    end = time.time() + SECONDS
    asked = []

    def ask_for_occupancies():
        call(asking, "cuCtxSetCurrent", context)  # a new thread has none
        grid, block = ctypes.c_int(), ctypes.c_int()
        results = ctypes.byref(grid), ctypes.byref(block)
        while time.time() < end:
            call(asking, "cuOccupancyMaxPotentialBlockSize", *results, kernel, shared_memory, ctypes.c_size_t(0), 0)
            asked.append(block.value)

    thread = threading.Thread(target=ask_for_occupancies)
    thread.start()
    value, host, rounds = ctypes.c_int(), ctypes.create_string_buffer(BYTES), 0
    while time.time() < end:
        if meanwhile == "copy":
            call(other, "cuMemcpyHtoD_v2", memory, host, ctypes.c_size_t(BYTES))
        else:
            call(other, "cuFuncGetAttribute", ctypes.byref(value), 0, kernel)
        rounds += 1
    thread.join()
    print("%d occupancies asked for, %d calls meanwhile" % (len(asked), rounds))
    sys.exit(0 if asked and rounds else 1)


if __name__ == "__main__":
    main()
