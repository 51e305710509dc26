"""A kernel that writes to an address that is nobody's."""

import sys

import cupy
from common import broken, use_gpu

use_gpu()
if broken(sys.argv[1]):
    store = cupy.RawKernel('extern "C" __global__ void store(int *p) { p[threadIdx.x] = 1; }', "store")
    store((1,), (32,), (cupy.uint64(0x10),))
cupy.cuda.Device().synchronize()
