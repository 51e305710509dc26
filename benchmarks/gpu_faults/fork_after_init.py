"""A child forked after the parent has used CUDA."""

import os
import sys

import cupy
from common import broken, use_gpu

use_gpu()
if broken(sys.argv[1]):
    pid = os.fork()
    if pid == 0:
        cupy.zeros(8).sum()
        os._exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
