"""A server on a GPU whose clients share scratch memory between streams: through the driver's library alone.

The server of pytorch/pytorch#16828 gave the threads of its clients streams of their own and one scratch buffer;
one client alone never noticed. Each client here sends a request (`kernel`: write its number into scratch, wait a
while, copy what is there to its answer) on a stream of its own, and exits 1 when an answer is another client's.

usage: cuda_clients.py CLIENTS own|shared
"""

import ctypes
import sys
import threading

KERNEL = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry serve(.param .u64 scratch, .param .u64 answer, .param .u32 client, .param .u32 rounds)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [scratch];
    ld.param.u64 %rd2, [answer];
    ld.param.u32 %r1, [client];
    ld.param.u32 %r2, [rounds];
    mov.u32 %r3, %tid.x;
    mul.wide.u32 %rd3, %r3, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    st.volatile.global.u32 [%rd4], %r1;
    mov.u32 %r4, 0;
again:
    ld.volatile.global.u32 %r5, [%rd4];
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p1, %r4, %r2;
    @%p1 bra again;
    st.volatile.global.u32 [%rd5], %r5;
    ret;
}
"""
THREADS = 256
REQUESTS = 40
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


def memory():
    """Some of the GPU's."""
    place = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(4 * THREADS))
    return place


class Client(threading.Thread):
    """Sends requests one after the other, and compares the answers."""

    def __init__(self, number, context, function, scratch, start):
        super().__init__()
        self.number, self.context, self.function, self.start_together = number, context, function, start
        self.scratch, self.answer, self.stream = scratch, memory(), ctypes.c_void_p()
        self.wrong = 0
        call("cuStreamCreate", ctypes.byref(self.stream), 1)

    def run(self):
        call("cuCtxSetCurrent", self.context)
        values = (self.scratch, self.answer, ctypes.c_uint32(self.number), ctypes.c_uint32(2000))
        places = [ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values]
        arguments = (ctypes.c_void_p * len(places))(*places)
        got = (ctypes.c_uint32 * THREADS)()
        self.start_together.wait()
        for _ in range(REQUESTS):
            call("cuLaunchKernel", self.function, 1, 1, 1, THREADS, 1, 1, 0, self.stream, arguments, None)
            call("cuStreamSynchronize", self.stream)
            call("cuMemcpyDtoH_v2", got, self.answer, ctypes.c_size_t(ctypes.sizeof(got)))
            self.wrong += any(value != self.number for value in got)


def main():
    """All clients at once."""
    count, scratch_is = int(sys.argv[1]), sys.argv[2]
    device, context = ctypes.c_int(), ctypes.c_void_p()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), KERNEL)
    call("cuModuleGetFunction", ctypes.byref(function), module, b"serve")
    shared, start = memory(), threading.Barrier(count)
    clients = [
        Client(number + 1, context, function, shared if scratch_is == "shared" else memory(), start)
        for number in range(count)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    wrong = sum(client.wrong for client in clients)
    print("%d of %d answers were another client's" % (wrong, count * REQUESTS), flush=True)
    sys.exit(wrong > 0)


main()
