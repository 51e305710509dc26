"""Copy everything that a study can need into a directory, for hosts without a network."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bisect_env.engine.locking import Locking, Prepared
from bisect_env.engine.requests import environment_request
from bisect_env.environments.bundle import Bundle, BundledAnswers, NoLock, request_digest
from bisect_env.environments.download import file_name, obtain
from bisect_env.environments.image_lock import without_image
from bisect_env.environments.interpreters import fetch_python, machine_interpreters
from bisect_env.environments.lock import Lock, LockedPackage, UnbuildableError
from bisect_env.environments.provider import EnvironmentProvider, RememberedCatalogue
from bisect_env.environments.uv_tool import Uv, is_transient, plain_words
from bisect_env.errors import InfrastructureError, NoEnvironmentError, UsageError
from bisect_env.matrix.expand import expand
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.versions import PackageIndex
from bisect_env.temporary import temporary

_DOWNLOADS = 4
"""Number of archives that are downloaded in parallel."""
_BUILD_TIMEOUT = 1800.0


@dataclass(frozen=True, slots=True)
class Fetched:
    """A summary of what was copied into a directory for hosts without a network.

    Attributes:
        environments: Number of distinct locks.
        unsolvable: Number of combinations without a lock.
        archives: Number of archives.
        size: Size of all archives in bytes.
        warnings: What could not be fetched, and what the hosts must provide themselves.
    """

    environments: int
    unsolvable: int
    archives: int
    size: int
    warnings: tuple[str, ...]


def fetch_study(
    matrix: Matrix,
    *,
    provider: EnvironmentProvider,
    root: Path,
    cache_dir: Path,
    pythons: bool = True,
    on_progress: Callable[[str, int, int], None] = lambda _what, _done, _total: None,
) -> Fetched:
    """Lock all combinations of a matrix, and copy their packages into a directory for offline hosts.

    If the directory exists, missing files are added. Packages uploaded after the directory was begun are
    ignored.

    Args:
        matrix: The matrix.
        provider: Locks environments.
        root: The directory; created if it does not exist.
        cache_dir: The cache directory, for building wheels from source distributions.
        pythons: Whether to fetch Python interpreters, too.
        on_progress: Called with the present step, the number of finished items and the number of all items.

    Raises:
        NoEnvironmentError: No combination has an environment.
        InfrastructureError: The index or network fails, or the directory cannot be written.
    """
    bundle = Bundle(root)
    try:
        answers = BundledAnswers(matrix=matrix.name, as_of=_begun(bundle, matrix.name))
        prepared = _locked(root, matrix, provider, answers, on_progress)
        locks = {lock.content_hash: lock for lock in prepared.locks.values()}
        bare = [without_image(lock) for lock in locks.values()]
        warnings = _archives(bundle, answers, bare, provider.indexes, cache_dir, on_progress)
        sizes = [size for size, _ in answers.files.values()]
        if found := sorted({image for lock in locks.values() if (image := lock.image)}):
            warnings.append(f"images are not fetched, load them on the hosts yourself: {', '.join(found)}")
        if pythons:
            warnings += _pythons(bundle, locks.values())
        bundle.write(answers, locks.values())
    except OSError as error:
        raise InfrastructureError(
            f"{root} cannot be written: {error.strerror or error}",
            tried=str(error.filename or root),
            remedy="make room, or name another directory with --output; the same command goes on",
        ) from error
    return Fetched(len(locks), len(prepared.unsolvable), len(sizes), sum(sizes), tuple(warnings))


def _begun(bundle: Bundle, matrix: str) -> datetime:
    try:
        return bundle.read(matrix).as_of
    except UsageError:
        return datetime.now(UTC).replace(microsecond=0)


def _locked(
    root: Path,
    matrix: Matrix,
    provider: EnvironmentProvider,
    answers: BundledAnswers,
    on_progress: Callable[[str, int, int], None],
) -> Prepared:
    catalogue = RememberedCatalogue(answers.catalogue, root, provider.catalogue)
    grid = expand(matrix, catalogue, answers.as_of)
    prepared = Locking(matrix, grid, provider).lock_all(
        lambda done, total: on_progress("locking", done, total)
    )
    if not prepared.locks:
        why = next(iter(prepared.unsolvable.values()), None)
        raise NoEnvironmentError(
            f"{matrix.shown}: none of the combinations has an environment",
            tried=why.message if why else None,
            remedy="`bisect-env plan` lists every combination with its reason",
        )
    for index in grid.indices():
        if index not in grid.excluded:
            request = environment_request(matrix, grid.combination(index))
            error = prepared.unsolvable.get(index)
            answers.locks[request_digest(request)] = (
                NoLock(message=error.message, building=error.building)
                if error
                else prepared.locks[index].content_hash
            )
    return prepared


def _archives(
    bundle: Bundle,
    answers: BundledAnswers,
    locks: Iterable[Lock],
    indexes: Sequence[PackageIndex],
    cache_dir: Path,
    on_progress: Callable[[str, int, int], None],
) -> list[str]:
    packages = {package.sha256: package for lock in locks for package in lock.packages}
    done = 0
    pool = ThreadPoolExecutor(_DOWNLOADS, thread_name_prefix="fetch")
    futures = {pool.submit(obtain, p, bundle.folder(p.sha256), indexes): p for p in packages.values()}
    try:
        for future in as_completed(futures):
            package = futures[future]
            path = future.result()
            name = path.relative_to(bundle.root).as_posix()
            answers.files[name] = (path.stat().st_size, package.sha256)
            done += 1
            on_progress("fetching", done, len(futures))
    except UnbuildableError as error:
        pool.shutdown(cancel_futures=True)
        raise InfrastructureError(
            error.message,
            tried=f"fetching {done} of {len(futures)} archives; they stay",
            remedy="check the network, then give the same command again: it goes on",
        ) from error
    finally:
        # After Ctrl-C, neither queued nor running downloads are waited for.
        pool.shutdown(wait=False, cancel_futures=True)
    warnings = []
    sources = [(lock, p) for lock in locks for p in lock.packages if p.is_source]
    for done, (lock, package) in enumerate(sources):
        on_progress("building", done, len(sources))
        if problem := _wheel(bundle, lock, package, cache_dir):
            warnings.append(problem)
    return warnings


def _wheel(bundle: Bundle, lock: Lock, package: LockedPackage, cache_dir: Path) -> str | None:
    """Build a wheel from a source distribution, and store both in the directory for offline hosts.

    Offline hosts cannot build the wheel themselves. Returns None, or a warning if it cannot be built here.
    """
    target = bundle.built(package.sha256, lock.python)
    if any(target.glob("*.whl")):
        return None
    source = bundle.folder(package.sha256) / file_name(package.url)
    python = machine_interpreters().find(lock.python).path
    args: list[str | Path] = ["build", "--wheel", "--no-config", "-p", python]
    if (date := lock.exclude_newer) is not None:
        args += ["--exclude-newer", date]
    with temporary("wheel") as folder:
        finished = Uv(cache_dir).run(
            [*args, "-o", folder / "out", source.absolute()], cwd=folder, timeout=_BUILD_TIMEOUT, builds=True
        )
        built = sorted(folder.glob("out/*.whl"))
        if finished.returncode == 0 and built:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(built[0], target / built[0].name)
            return None
    words = plain_words(finished.stderr)
    if finished.timed_out or is_transient(words):
        raise InfrastructureError(
            f"{source.name} cannot be built: {words}",
            remedy="check the network, then give the same command again: it goes on",
        )
    # As in a study with a network, only the combinations that need the build are affected.
    return f"{source.name} cannot be built for Python {lock.python}; its combinations will not be: {words}"


def _pythons(bundle: Bundle, locks: Iterable[Lock]) -> list[str]:
    wanted = {lock.python for lock in locks if any(p.manager == "pip" for p in lock.packages)}
    return [
        f"no archive of Python {version} ({reason}): the hosts have to have that Python themselves"
        for version in sorted(wanted)
        if (reason := fetch_python(version, bundle.root))
    ]
