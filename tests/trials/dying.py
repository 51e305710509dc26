"""A script that ends in the way that it is told, or in one that its seed chooses: run as a trial."""

import atexit
import ctypes
import mmap
import os
import random
import resource
import signal
import sys
import tempfile
import threading


def crash_in_body():
    ctypes.string_at(0)


def crash_elsewhere():
    ctypes.string_at(8)


def crash_below_another_function():
    def inner():
        ctypes.memset(0, 1, 1)

    inner()


def crash_at_exit():
    def handler():
        ctypes.string_at(0)

    atexit.register(handler)


def crash_in_a_thread():
    thread = threading.Thread(target=crash_of_the_thread)
    thread.start()
    thread.join()


def crash_of_the_thread():
    ctypes.string_at(0)


def crash_while_importing():
    import dying_module  # noqa: F401


def abort_of_cpp():
    # What `throw std::bad_alloc()` ends in when nobody catches it.
    ctypes.CDLL("libstdc++.so.6")._ZSt17__throw_bad_allocv()


def heap_corruption():
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    block = libc.malloc(24)
    libc.free(block)
    libc.free(block)


def illegal_instruction():
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\x0f\x0b" if os.uname().machine == "x86_64" else b"\0\0\0\0")
    ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()


def bus_error():
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        memory[0]


def division_by_zero():
    ctypes.CDLL(None).div(1, 0)


def deeper(_=None):
    # Through C: Python's own frames are not on the stack since 3.11.
    return sorted([2, 1], key=deeper)


def stack_overflow():
    sys.setrecursionlimit(10**6)
    deeper()


def stack_overflow_of_a_thread():
    # faulthandler has a stack of its own for the main thread alone: it dies without a word.
    sys.setrecursionlimit(10**6)
    threading.stack_size(256 * 1024)
    thread = threading.Thread(target=deeper)
    thread.start()
    thread.join()


def own_handler():
    signal.signal(signal.SIGSEGV, lambda *_: None)
    ctypes.string_at(0)


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def terminated():
    os.kill(os.getpid(), signal.SIGTERM)


def out_of_memory_under_a_limit():
    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
    bytearray(2**31)


def native_deadlock_with_the_gil():
    # PyDLL keeps the GIL during the call; a second lock of a plain mutex waits for ever.
    libc = ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


def lock_deadlock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def busy_loop():
    while True:
        pass


def exit_code():
    sys.exit(3)


def skipped():
    sys.exit(125)


def exception():
    raise ValueError("planted")


def another_exception():
    raise KeyError("planted")


def import_error():
    import no_such_module  # noqa: F401


def passing():
    print("fine")


CHOICES = [
    *(passing, exit_code, exception, import_error, crash_in_body, crash_at_exit, crash_in_a_thread),
    *(abort_of_cpp, heap_corruption, illegal_instruction, division_by_zero, killed),
]
"""Twelve ways to end, all of them quick."""


def chosen(seed):
    return random.Random(seed).choice(CHOICES)


def main():
    what = sys.argv[1]
    (chosen(int(what)) if what.isdigit() else globals()[what])()


if __name__ == "__main__":
    main()
