"""Compiles the modules of a new prefix once, so that trials do not have to.

Trials may write no bytecode, since prefixes are shared: without this, each of them would compile all that it
imports again. Python itself compiles, in the way in which pip has it done; the names of files in it are
relative to the prefix, and Python puts the real ones in place when it loads them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bisect_env.environments import install_manifest
from bisect_env.environments.install_manifest import InstallManifest
from bisect_env.environments.integrity import BYTECODE
from bisect_env.environments.uv_tool import Finished, run_tool
from bisect_env.temporary import temporary

_OLDEST = (3, 7)
"""Before, there is no `--invalidation-mode`."""
_PROCESSES = 4
_STRIPS = (3, 9)
"""Since then there is `-s`."""
_TESTS = frozenset({"test", "tests"})
"""Names of directories in packages."""
_MANY = 300  # modules: below, starting processes takes longer than what they save
SMALL = 16_000_000
"""Bytes of source that are compiled only after a second trial (numpy and pandas have 11 million): that takes
two seconds at most, and where a failure is certain most environments see one trial. More is
compiled before the first, which could otherwise take longer than its time limit."""
_TIMEOUT = 900.0
_HEAD = 16  # bytes: magic number, flags, time and size of the source


def add(place: Path, cache: Path, keys: Mapping[str, str], version: str, timeout: float) -> str:
    """Put bytecode beside the modules of a prefix: what is kept of its packages, and the rest compiled now.

    The caller holds `lease.archives`.

    Args:
        place: The prefix.
        cache: Our cache directory.
        keys: See `install_manifest.keys`.
        version: Of the prefix's interpreter.
        timeout: Seconds.

    Returns:
        "" or why it could not be done to the end.

    Raises:
        OSError: A directory cannot be made.
    """
    for key in keys.values():
        manifest = install_manifest.load(cache, key)
        if manifest is None:
            continue
        if install_manifest.is_current(manifest, cache):
            _link(place, cache, manifest)
        else:
            # Its archive was fetched again since: the times of its modules are others.
            install_manifest.discard(cache, key)
    return compile_modules(place, tuple(int(piece) for piece in version.split(".")[:2]), timeout)


def _link(place: Path, cache: Path, manifest: InstallManifest) -> None:
    for links in manifest.links:
        if links.to.endswith(f"/{BYTECODE}") and links.of.startswith(f"{install_manifest.FOLDER}/"):
            folder = place / links.to
            folder.mkdir(exist_ok=True)
            for name, source in zip(links.names, links.sources, strict=True):
                # There from another package with the same module, or not to be linked: then it is compiled.
                with contextlib.suppress(OSError):
                    os.link(cache / links.of / source, folder / name)


def share(place: Path, cache: Path, keys: Mapping[str, str]) -> None:
    """Replace bytecode by equal files that another builder stored at the same time.

    Args:
        place: The prefix.
        cache: Our cache directory.
        keys: See `install_manifest.keys`.
    """
    for key in keys.values():
        manifest = install_manifest.load(cache, key)
        for links in manifest.links if manifest is not None else ():
            if not links.to.endswith(f"/{BYTECODE}") or not links.of.startswith(
                f"{install_manifest.FOLDER}/"
            ):
                continue
            for name, source in zip(links.names, links.sources, strict=True):
                with contextlib.suppress(OSError):
                    _take(cache / links.of / source, place / links.to / name)


def _take(known: Path, own: Path) -> None:
    if known.samefile(own) or _head(known) != _head(own):
        return
    beside = own.with_name(f".{own.name}.shared")
    os.link(known, beside)
    beside.replace(own)


def _head(path: Path) -> bytes:
    """What says of which source it was made, by which Python: the rest of two of them may differ in order."""
    with path.open("rb") as stream:
        return stream.read(_HEAD)


def compile_modules(place: Path, release: tuple[int, ...], timeout: float, nice: int = 0) -> str:
    """Compile what is in the `site-packages` of a prefix and has no bytecode yet, but for tests.

    Bytecode that a package brings stays, as its list states it, even where Python will not use it. Modules
    that are no valid Python stay as they are: some packages have templates, or code for others.

    Args:
        place: The prefix.
        release: Of its interpreter.
        timeout: Seconds.
        nice: Niceness of what compiles.

    Returns:
        "" or why it could not be done to the end.
    """
    modules = bare_modules(place)
    if release[:2] < _OLDEST or not modules:
        return ""
    # Isolated and without `site`: nothing that packages hook into the start of Python is run.
    args: list[str | Path] = [place / "bin" / "python", "-I", "-S", "-m", "compileall", "-qq"]
    args += ["--invalidation-mode", "timestamp"]
    args += ["-s", place] if release >= _STRIPS else ["-d", "site-packages"]
    env = {"PATH": os.defpath, "HOME": os.environ.get("HOME", "/")}
    processes = min(_PROCESSES, os.cpu_count() or 1) if len(modules) > _MANY else 1
    with temporary("modules") as aside:

        def compile_some(number: int) -> Finished:
            listing = aside / str(number)
            listing.write_text("".join(f"{path}\n" for path in modules[number::processes]), "utf-8")
            limit = min(timeout, _TIMEOUT)
            return run_tool([*args, "-i", listing], env=env, cwd=place, timeout=limit, nice=nice)

        with ThreadPoolExecutor(processes) as pool:
            try:
                ended = list(pool.map(compile_some, range(processes)))
            except OSError as error:
                return f"modules cannot be compiled: {error}"
            for finished in ended:
                if finished.timed_out:
                    return f"compiling modules took longer than {min(timeout, _TIMEOUT):.0f} s"
                # 1 is said of modules that are no valid Python.
                if finished.returncode not in (0, 1):
                    words = finished.stderr.strip()[-200:]
                    return f"compiling modules ended with {finished.returncode}: {words}"
    return ""


def bare_modules(place: Path) -> list[str]:
    """Paths of the modules in the `site-packages` of a prefix that have no bytecode and are worth it.

    The tests that packages bring are left out: more than half of the source of numpy and pandas, which hardly
    a trial imports; one that does compiles them for itself.
    """
    return [path for site in place.glob("lib/python*/site-packages") for path in _bare_modules(site)]


def is_small(place: Path) -> bool:
    """Return whether the modules of a prefix without bytecode are compiled after a second trial only."""
    return sum(Path(path).stat().st_size for path in bare_modules(place)) <= SMALL


def _bare_modules(site: Path) -> Iterator[str]:
    for folder, names, files in os.walk(site):
        if Path(folder) != site:
            names[:] = [name for name in names if name not in _TESTS]
        if BYTECODE in names:
            names.remove(BYTECODE)
            compiled = {path.name.rsplit(".", 2)[0] for path in Path(folder, BYTECODE).glob("*.pyc")}
        else:
            compiled = set()
        for name in files:
            # A name with a line feed cannot stand in a list of lines.
            if name.endswith(".py") and name[:-3] not in compiled and "\n" not in folder + name:
                yield f"{folder}/{name}"
