"""More memory than any GPU has."""

import sys

import cupy
from common import broken, use_gpu

use_gpu()
if broken(sys.argv[1]):
    cupy.empty(1 << 44, dtype=cupy.uint8)
