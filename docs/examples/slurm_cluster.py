"""Keeps a cluster of one to sixteen workers on SLURM until it is interrupted, and prints its address.

INTERFACE is the network that the nodes share with the machine where this runs.
"""

import os
import signal

from dask_jobqueue import SLURMCluster

cluster = SLURMCluster(
    cores=1,
    processes=1,
    memory="32GB",
    walltime="02:00:00",
    interface=os.environ.get("INTERFACE", "ib0"),
    job_extra_directives=["--gpus=1"],
    # It promises one GPU, and leaves before SLURM would kill it.
    worker_extra_args=["--resources", "GPU=1", "--lifetime", "110m"],
)
# At least one: trials are only sent off when there is somewhere to run them.
cluster.adapt(minimum=1, maximum=16)
print(cluster.scheduler_address, flush=True)
signal.pause()
