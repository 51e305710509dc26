"""Neighbours on a GPU, after an import of torch that nothing uses: the interpreter crashes as it exits.

With `torch_first` about a tenth of all runs died of SIGSEGV after the last line of the script (42 of 400 in one
long series); with `cuml_only` none did. See NVIDIA/cuml#5343 and pytorch/pytorch#99200.

usage: torch_cuml.py cuml_only|torch_first
"""

import sys

if sys.argv[1] == "torch_first":
    import torch  # noqa: F401 -- that it is unused is the point

import numpy
from cuml.neighbors import NearestNeighbors


def main():
    points = numpy.random.RandomState(0).rand(1000, 16).astype("float32")
    model = NearestNeighbors(n_neighbors=5)
    model.fit(points)
    distances, indices = model.kneighbors(points)
    # What is wrong before the exit is another failure than the one that is looked for.
    if indices.shape != (1000, 5) or not (distances >= 0).all():
        sys.exit("kneighbors gave no neighbours")
    print("done", flush=True)


if __name__ == "__main__":
    main()
