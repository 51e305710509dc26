"""What trials that die on a real GPU are taken for. By hand: `python -m benchmarks.gpu_deaths`.

Needs a GPU, `nvidia-ml-py`, and torch and CuPy in this interpreter. Each trial runs through the real lender
of GPUs, with NVML watching; a line says what it was taken for, and the exit code is 1 when one was taken for
something else.
"""

# ruff: noqa: E501 - whole programs in a line

from __future__ import annotations

import sys
import time
from pathlib import Path

from bisect_env.cluster.gpus import open_nvml
from bisect_env.cluster.worker import HostGpus
from bisect_env.matrix.files import StudyFile
from bisect_env.matrix.grid import Combination
from bisect_env.trials.records import TrialRecord, TrialSpec
from bisect_env.trials.run import run_trial

FORK = Path(__file__).parent.parent / "matrices" / "repros" / "fork_start_method_cuda.py"
KERNEL = "import cupy\nk = cupy.RawKernel(r'''extern \"C\" __global__ void k(int* p) {%s}''', 'k')\n"
SPIN = KERNEL % "while (atomicAdd(p, 0) == 0) {}" + "k((1,), (1,), (cupy.zeros(1, dtype='i4'),))\n"
WILD = KERNEL % "p[1ll << 40] = 1;" + "k((1,), (1,), (cupy.zeros(1, dtype='i4'),))\n"
SYNC = "cupy.cuda.Device().synchronize()\n"

DEATHS = {
    # Name: script, arguments, time limit, beginning of `outcome phase detail`.
    "subprocess": (FORK.read_text(), ["subprocess"], 60, "pass"),
    "spawn": (FORK.read_text(), ["spawn"], 60, "pass"),
    "forkserver": (FORK.read_text(), ["forkserver"], 60, "pass"),
    "fork": (FORK.read_text(), ["fork"], 60, "cuda-init body CUDA error 3"),
    "spinning kernel": (SPIN + SYNC, [], 15, "hang body hang (busy-gpu)"),
    "idle with a context": (KERNEL % "" + "import time\ncupy.zeros(1)\ntime.sleep(600)", [], 15, "hang body hang (idle)"),
    "illegal address": (WILD + SYNC, [], 60, "cuda-fault body CUDA error 700"),
    "illegal address at exit": (
        WILD + "import atexit, os\n@atexit.register\ndef late():\n try: cupy.cuda.Device().synchronize()\n except Exception: os.abort()", [], 60,
        "crash teardown SIGABRT",
    ),
    "torch out of memory": ("import torch\ntorch.empty(1 << 44, dtype=torch.uint8, device='cuda')", [], 90, "cuda-oom body"),
    "crash in torch's wake": (
        "import torch, atexit, os\ntorch.zeros(1, device='cuda')\natexit.register(os.abort)", [], 90,
        "crash teardown SIGABRT in teardown",
    ),
    "crash while importing": ("import module", [], 90, "crash import SIGABRT in import"),
    "an exit of its own": ("import os; os._exit(3)", [], 60, "exit-fail body exit code 3"),
}  # fmt: skip


def die(gpus: HostGpus, script: str, arguments: list[str], timeout: float) -> TrialRecord:
    """Run one."""
    files = (
        StudyFile("main.py", script.encode()),
        StudyFile("module.py", b"import torch, os\ntorch.zeros(1, device='cuda')\nos.abort()\n"),
    )
    spec = TrialSpec(
        f"gpu-{time.monotonic_ns()}", Combination.of({"a": "1"}), "0" * 64,
        ("python", "main.py", *arguments), files, timeout=timeout, gpus=1,
    )  # fmt: skip
    return gpus.run(
        spec,
        lambda uuids, watch: run_trial(
            spec, Path(sys.prefix), python=Path(sys.executable), gpus=uuids, gpu_watch=watch
        ),
    )


def main() -> int:
    """Die in every way."""
    nvml = open_nvml()
    found = nvml.gpus()
    print(f"{found[0].name}, driver {nvml.describe([found[0].uuid])[1]}, Python {sys.version.split()[0]}")
    gpus = HostGpus(([found[0].uuid], nvml))
    wrong = 0
    for name, (script, arguments, timeout, expected) in DEATHS.items():
        record = die(gpus, script, arguments, timeout)
        said = f"{record.outcome} {record.phase} {record.detail}"
        right = said.startswith(expected)
        wrong += not right
        print(
            f"{'ok' if right else 'WRONG':5} {name}: {said}; {record.duration:.1f} s; {record.signature}",
            flush=True,
        )
        if not right:
            print(f"      expected {expected}\n{record.stderr[-3000:]}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
