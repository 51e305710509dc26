"""What a lock says of the packages that a script can import. Pure."""

from __future__ import annotations

from packaging.utils import canonicalize_name

from bisect_env.environments.conda_names import provided_to_pypi
from bisect_env.environments.honesty import cuda_majors
from bisect_env.environments.lock import Lock
from bisect_env.trials.imports import Locked


def importable(lock: Lock) -> tuple[Locked, ...]:
    """Distributions by the names that their metadata have, and the interpreter, sorted.

    None where a container image is the whole environment: what it holds is not in the lock.
    """
    if not lock.python:
        return ()
    cuda = {package.name for package in lock.packages if cuda_majors((package,))}
    conda = [package for package in lock.packages if package.is_conda]
    found = {"python": Locked("python", lock.python)}
    for package in conda:
        # One at a time: several conda packages can bring the same distribution, a CUDA build among them.
        for name, version in provided_to_pypi((package,)).items():
            found[name] = Locked(name, version, package.name in cuda)
    for package in lock.packages:
        if package.manager == "pip":
            name = str(canonicalize_name(package.name))
            found[name] = Locked(name, package.version, package.name in cuda)
    return tuple(found[name] for name in sorted(found))
