"""From requests to locks: several at once, each like its neighbour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from bisect_env.environments.conda_lock import CondaSolver
from bisect_env.environments.conda_names import provided_to_pypi
from bisect_env.environments.failures import UnsolvableError
from bisect_env.environments.interpreters import Interpreters
from bisect_env.environments.lock import Lock
from bisect_env.environments.lock_text import make_lock
from bisect_env.environments.pypi_lock import LockResult, PypiSolver
from bisect_env.environments.request import EnvironmentRequest, host_platform
from bisect_env.errors import InfrastructureError


class Locker:
    """Turns requests into locks.

    Args:
        cache_dir: Our cache directory.
        interpreters: Where Pythons are looked for.
        timeout: Seconds for one solution, builds for metadata included.
        conda: Solves what comes from conda channels.
    """

    def __init__(
        self,
        cache_dir: Path,
        *,
        interpreters: Interpreters | None = None,
        timeout: float = 900.0,
        conda: CondaSolver | None = None,
    ) -> None:
        self._pypi = PypiSolver(cache_dir, interpreters=interpreters, timeout=timeout)
        self._conda = conda or CondaSolver(cache_dir, timeout=timeout)

    def lock(self, request: EnvironmentRequest, prefer: Lock | None = None) -> Lock:
        """Lock one environment; the same request on the same index gives the same text, byte for byte.

        Args:
            request: What is asked for.
            prefer: A neighbour's lock, whose packages are taken again where nothing speaks against it.

        Raises:
            UnsolvableError: Nothing satisfies the request.
            InterpreterNotFoundError: Its Python is not to be had.
            PackageNotFoundError: No conda channel has a package of that name.
            IndexUnavailableError: The index, or a channel, fails.
            InfrastructureError: The solver cannot work here, or the platform is not this machine's.
        """
        if request.platform != host_platform():
            raise InfrastructureError(
                f"an environment for {request.platform} cannot be locked on {host_platform()}",
                remedy="leave `platform` out, or lock on a machine of that platform",
            )
        known = prefer.packages if prefer else ()
        if request.conda is None:
            packages = self._pypi.solve(request, known)
            return make_lock(request.python, request.platform, packages, request.exclude_newer_text)
        solved = self._conda.solve(request, known)
        packages = list(solved.packages)
        if request.requirements:
            provided = provided_to_pypi(solved.packages)
            packages += self._pypi.solve_upon(request, solved.packages, provided, known)
        return make_lock(
            solved.python, request.platform, packages, request.exclude_newer_text, records=solved.records
        )

    def lock_many(
        self,
        requests: Sequence[EnvironmentRequest],
        workers: int = 2,
        on_done: Callable[[int, LockResult], None] | None = None,
        *,
        prefer: Sequence[int | None] | None = None,
    ) -> list[LockResult]:
        """Lock several environments at the same time; equal requests are solved once.

        What comes out depends on the requests and on `prefer` alone, never on how many are solved at once or
        on which is ready first.

        Args:
            requests: Any number.
            workers: How many solvers run at once.
            on_done: Called in the calling thread with the position of each request that is answered.
            prefer: For each request the position of an earlier one, whose lock it is to be like. Where that
                has none, the one that it was to be like stands in.

        Returns:
            For each request its lock, or why there is none, in order.

        Raises:
            InfrastructureError: The first failure that is not a property of a combination; solutions that
                were not begun are given up.
        """
        positions: dict[str, list[int]] = {}
        for position, request in enumerate(requests):
            positions.setdefault(request.key, []).append(position)
        parents = _parents(requests, positions, prefer)
        results: dict[str, LockResult] = {}
        pool = ThreadPoolExecutor(max_workers=max(1, workers), thread_name_prefix="lock")
        running: dict[Future[LockResult], str] = {}

        def begin(key: str) -> None:
            leader = requests[positions[key][0]]
            running[pool.submit(self._attempt, leader, _nearest(key, parents, results))] = key

        children: dict[str, list[str]] = {}
        try:
            for key, parent in parents.items():
                if parent is None:
                    begin(key)
                else:
                    children.setdefault(parent, []).append(key)
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    key = running.pop(future)
                    results[key] = future.result()
                    for child in children.get(key, ()):
                        begin(child)
                    if on_done is not None:
                        for position in positions[key]:
                            on_done(position, results[key])
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        return [results[request.key] for request in requests]

    def _attempt(self, request: EnvironmentRequest, prefer: Lock | None) -> LockResult:
        try:
            return self.lock(request, prefer)
        except UnsolvableError as error:
            return error


def _parents(
    requests: Sequence[EnvironmentRequest],
    positions: dict[str, list[int]],
    prefer: Sequence[int | None] | None,
) -> dict[str, str | None]:
    """For each distinct request the one that it is to be like; who asks for it first decides."""
    parents: dict[str, str | None] = {}
    for key, (leader, *_) in positions.items():
        near = prefer[leader] if prefer is not None else None
        if near is not None and near >= leader:
            raise ValueError(f"request {leader} prefers {near}, which does not come before it")
        while near is not None and requests[near].key == key:
            near = prefer[near] if prefer is not None else None
        parents[key] = None if near is None else requests[near].key
    return parents


def _nearest(key: str, parents: dict[str, str | None], results: dict[str, LockResult]) -> Lock | None:
    """The lock of the nearest ancestor that has one; all of them are answered."""
    parent = parents[key]
    while parent is not None:
        result = results[parent]
        if not isinstance(result, UnsolvableError):
            return result
        parent = parents[parent]
    return None
