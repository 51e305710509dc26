"""robust_laplacian.mesh_laplacian() dies of SIGSEGV (nmwsharp/robust-laplacians-py#18).

The extension module was compiled against the layout of another numpy than the one that it meets.
"""

import numpy as np
import robust_laplacian

VERTICES = 50


def main():
    vertices = np.random.RandomState(0).rand(VERTICES, 3)
    strip = np.array([[i, i + 1, i + 2] for i in range(VERTICES - 2)])
    laplacian, _ = robust_laplacian.mesh_laplacian(vertices, strip)
    assert laplacian.shape == (VERTICES, VERTICES)


if __name__ == "__main__":
    main()
