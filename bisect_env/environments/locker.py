"""From requests to locks: several at once, each like its neighbour."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from bisect_env.environments.conda_lock import CondaSolver
from bisect_env.environments.conda_names import provided_to_pypi
from bisect_env.environments.failures import UnsolvableError
from bisect_env.environments.images import locked_image, without_image
from bisect_env.environments.interpreters import Interpreters
from bisect_env.environments.lock import Lock, LockedPackage, LockResult
from bisect_env.environments.lock_text import make_lock
from bisect_env.environments.pypi_lock import PypiSolver
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
        self._images: dict[str, LockedPackage] = {}
        self._looking_up = threading.Lock()

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
        known = without_image(prefer).packages if prefer else ()
        image = self._image(request)
        if image and not request.python and request.conda is None:
            return make_lock("", request.platform, image)
        if request.conda is None:
            packages = self._pypi.solve(request, known)
            return make_lock(
                request.python, request.platform, [*packages, *image], request.exclude_newer_text
            )
        solved = self._conda.solve(request, known)
        packages = list(solved.packages)
        if request.requirements:
            provided = provided_to_pypi(solved.packages)
            packages += self._pypi.solve_upon(request, solved.packages, provided, known)
        return make_lock(
            solved.python,
            request.platform,
            [*packages, *image],
            request.exclude_newer_text,
            records=solved.records,
        )

    def _image(self, request: EnvironmentRequest) -> list[LockedPackage]:
        """The image of a request; a name stands for one image as long as this object lives."""
        if not request.image:
            return []
        with self._looking_up:
            if request.image not in self._images:
                self._images[request.image] = locked_image(request.image)
            return [self._images[request.image]]

    def lock_many(
        self,
        requests: Sequence[EnvironmentRequest],
        workers: int = 2,
        on_done: Callable[[int, LockResult], None] | None = None,
        *,
        prefer: Sequence[Sequence[int]] | None = None,
    ) -> list[LockResult]:
        """Lock several environments at the same time; equal requests are solved once.

        What comes out depends on the requests and on `prefer` alone, never on how many are solved at once or
        on which is ready first.

        Args:
            requests: Any number.
            workers: How many solvers run at once.
            on_done: Called in the calling thread with the position of each request that is answered.
            prefer: For each request the positions of earlier ones, most welcome first: it is to be like the
                first of them that has a lock.

        Returns:
            For each request its lock, or why there is none, in order.

        Raises:
            InfrastructureError: The first failure that is not a property of a combination; solutions that
                were not begun are given up.
        """
        positions: dict[str, list[int]] = {}
        for position, request in enumerate(requests):
            positions.setdefault(request.key, []).append(position)
        models = _models(requests, positions, prefer)
        results: dict[str, LockResult] = {}
        waiting: dict[str, list[str]] = {}
        pool = ThreadPoolExecutor(max_workers=max(1, workers), thread_name_prefix="lock")
        running: dict[Future[LockResult], str] = {}

        def consider(key: str) -> None:
            """Begin with a request, or let it wait for the first model that is not decided."""
            for model in models[key]:
                if model not in results:
                    waiting.setdefault(model, []).append(key)
                    return
                if isinstance(found := results[model], Lock):
                    break
            else:
                found = None
            running[pool.submit(self._attempt, requests[positions[key][0]], found)] = key

        try:
            for key in positions:
                consider(key)
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    key = running.pop(future)
                    results[key] = future.result()
                    for follower in waiting.pop(key, ()):
                        consider(follower)
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


def _models(
    requests: Sequence[EnvironmentRequest],
    positions: dict[str, list[int]],
    prefer: Sequence[Sequence[int]] | None,
) -> dict[str, list[str]]:
    """For each distinct request those that it may be like, in order; who asks for it first decides."""
    models: dict[str, list[str]] = {}
    for key, (leader, *_) in positions.items():
        wanted = prefer[leader] if prefer is not None else ()
        if any(position >= leader for position in wanted):
            raise ValueError(f"request {leader} prefers one that does not come before it")
        # An earlier position may ask for the same: its models are then these.
        models[key] = list(dict.fromkeys(k for k in (requests[p].key for p in wanted) if k != key))
    return models
