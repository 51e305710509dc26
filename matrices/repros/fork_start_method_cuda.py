"""A task that is started with `fork` by a parent that has used CUDA cannot use it; started otherwise it can.

Through the driver's own library, so that it needs no package: what torch and CuPy say of the same is this
error in other words. `fork_start_method.py` beside this shows the like without a GPU.
"""

import ctypes
import multiprocessing
import subprocess
import sys


def use_cuda():
    """Make a context and get some memory.

    Raises:
        RuntimeError: The driver says no; its own name for why is in the message.
    """
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        code = getattr(cuda, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            cuda.cuGetErrorName(code, ctypes.byref(text))
            known = text.value.decode() if text.value else "CUDA error %d" % code
            raise RuntimeError("%s: %s" % (name, known))

    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(1 << 20))


def main():
    """Use CUDA, then use it in a child that is started in the way that was asked for."""
    method = sys.argv[1]
    use_cuda()
    if method == "subprocess":
        sys.exit(subprocess.run([sys.executable, __file__, "task"]).returncode)
    child = multiprocessing.get_context(method).Process(target=use_cuda)
    child.start()
    child.join()
    sys.exit(child.exitcode)


if __name__ == "__main__":
    use_cuda() if sys.argv[1] == "task" else main()
