"""Joins of two tables on two GPUs that exchange their pieces over UCX; a broken environment never ends.

Each round shuffles: every worker needs pieces of the other one, in both directions at once, while numba looks at
the memory of the pieces that arrive.

usage: rapids_deadlock.py ROUNDS
"""

import sys

import cudf
import dask_cudf
import numpy
from dask.distributed import Client, wait
from dask_cuda import LocalCUDACluster

ROWS = 1000000


def table(seed, column):
    random = numpy.random.RandomState(seed)
    frame = cudf.DataFrame()
    frame["key"] = random.randint(0, ROWS, ROWS)
    frame[column] = random.rand(ROWS)
    return dask_cudf.from_cudf(frame, npartitions=8)


def main():
    rounds = int(sys.argv[1])
    cluster = LocalCUDACluster(n_workers=2, protocol="ucx")
    client = Client(cluster)
    for number in range(rounds):
        joined = table(number, "left").merge(table(number + 1000, "right"), on="key").persist()
        wait(joined)
        print("round", number, len(joined), flush=True)
    client.close()
    cluster.close()


if __name__ == "__main__":
    main()
