"""A kernel that writes where nothing is, from level 4 on: through the driver's library, so that it needs no package."""

import ctypes
import sys

KERNEL = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry store(.param .u64 place)
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [place];
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""
cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    """Call the driver.

    Raises:
        RuntimeError: It says no; its own name for why is in the message.
    """
    code = getattr(cuda, name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        cuda.cuGetErrorName(code, ctypes.byref(text))
        raise RuntimeError("%s: %s" % (name, text.value.decode() if text.value else "CUDA error %d" % code))


def store(place):
    """Launch the kernel and wait for it."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), KERNEL)
    call("cuModuleGetFunction", ctypes.byref(function), module, b"store")
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(place), ctypes.c_void_p))
    call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
    call("cuCtxSynchronize")


def main():
    """Store one number: in memory of ours, or where nothing is."""
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(1 << 20))
    store(memory if int(sys.argv[1]) < 4 else ctypes.c_uint64(8))


main()
