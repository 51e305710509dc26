"""The same faults through torch: their texts differ from CuPy's. `python torch_faults.py FAULT`."""

import os
import sys

import torch


def illegal_address() -> None:
    """Through Triton, which takes addresses as they are."""
    import triton
    import triton.language as tl

    @triton.jit
    def store(address):
        tl.store(address.to(tl.pointer_type(tl.int32)), 1)

    store[(1,)](0x7FFF_0000_0010)
    torch.cuda.synchronize()


def fork_after_init() -> None:
    """As multiprocessing does with the start method `fork`."""
    torch.zeros(8, device="cuda")
    pid = os.fork()
    if pid == 0:
        torch.zeros(8, device="cuda")
        os._exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def out_of_memory() -> None:
    """More than any GPU has."""
    torch.empty(1 << 44, dtype=torch.uint8, device="cuda")


def device_assert() -> None:
    """An index beyond the end, checked by the kernel."""
    torch.zeros(4, device="cuda")[torch.tensor([7], device="cuda")].sum().item()


{f.__name__: f for f in (illegal_address, fork_after_init, out_of_memory, device_assert)}[sys.argv[1]]()
