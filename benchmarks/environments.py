"""What environments cost, each figure a ratio in one run: `python -m benchmarks.environments`.

Rivals: `cp -al` for making a prefix (the least that any installer with hardlinks could do), `uv venv`
and `uv pip install` for a small environment, one environment for the disk that eight take, and
`uv pip compile` alone for a lock.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bisect_env.environments.cache import usage
from bisect_env.environments.interpreters import machine_interpreters
from bisect_env.environments.lock import Lock
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.environments.provider import Environments
from bisect_env.environments.request import CondaRequest, EnvironmentRequest
from bisect_env.environments.uv_tool import Uv
from bisect_env.temporary import remove_tree

ROOT = Path(__file__).parent.parent
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
MANY = "jupyterlab==4.3.4"
"""Brings some ninety packages."""
WHEELS = {"numpy": "2.2.1", "pandas": "2.2.3", "scipy": "1.14.1", "sympy": "1.13.3"}
"""Some 300 MB."""
SMALL = ("1.10.0", "1.11.0", "1.12.0", "1.13.0", "1.14.0", "1.15.0", "1.16.0", "1.17.0")
"""Versions of six, in which eight environments differ."""


def seconds(action: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def creation(label: str, lock: Lock, cache: Path, repeats: int) -> None:
    """Creation of a prefix whose archives are in the cache against `cp -al` of the same prefix, in turns."""
    prefix = ensure_prefix(lock, cache_dir=cache)
    copy = cache / "copy"
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(repeats):
        prefix.release()
        remove_tree(prefix.path)
        ours.append(seconds(lambda: ensure_prefix(lock, cache_dir=cache)))
        theirs.append(seconds(lambda: subprocess.run(["cp", "-al", prefix.path, copy], check=True)))
        remove_tree(copy)
    files = sum(len(names) for _, _, names in os.walk(prefix.path))
    size = sum(p.lstat().st_size for p in prefix.path.rglob("*")) / 1e6
    alone = statistics.median(theirs)
    print(
        f"{f'{label}, warm / cp -al':<46}{statistics.median(ours) / alone:6.2f}   ({size:.0f} MB in {files} "
        f"files: {statistics.median(ours):.3f} s, cp -al {alone:.3f} s, medians of {repeats})"
    )


def small(lock: Lock, cache: Path, repeats: int) -> None:
    """A small environment that was never there, its wheels cached, against uv's own fresh one, in turns.

    The rival makes a virtual environment and installs the locked wheels into it by hard links, from the same
    cache and without asking an index. Ours takes a snapshot besides.
    """
    prefix = ensure_prefix(lock, cache_dir=cache)
    python = prefix.path / "bin" / "python"
    base = Path(
        subprocess.run(
            [python, "-c", "import sys; print(sys._base_executable)"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    )
    pins = [f"{package.name}=={package.version}" for package in lock.packages if package.name != "python"]
    tool = Uv(cache)
    ours: list[float] = []
    theirs: list[float] = []

    def rival(place: Path) -> None:
        tool.run(["venv", "--quiet", "--python", base, place], cwd=cache, timeout=60, builds=False)
        tool.run(
            [
                "pip",
                "install",
                "--quiet",
                "--offline",
                "--no-deps",
                "--link-mode",
                "hardlink",
                "--python",
                place,
                *pins,
            ],
            cwd=cache,
            timeout=60,
            builds=False,
        )

    for turn in range(repeats):
        prefix.release()
        remove_tree(prefix.path)
        ours.append(seconds(partial(ensure_prefix, lock, cache_dir=cache)))
        # As theirs would, each has a path of its own.
        place = cache / f"rival-{turn}"
        theirs.append(seconds(partial(rival, place)))
        remove_tree(place)
    prefix.release()
    alone = statistics.median(theirs)
    print(
        f"{'small environment / uv venv, pip install':<46}{statistics.median(ours) / alone:6.2f}   "
        f"({len(pins)} packages: {statistics.median(ours):.3f} s, uv {alone:.3f} s, medians of {repeats})"
    )


def importing(lock: Lock, cache: Path, repeats: int) -> None:
    """A trial's import in a prefix as it is, against one without bytecode."""
    prefix = ensure_prefix(lock, cache_dir=cache)
    # The first import leaves bytecode beside the modules.
    subprocess.run([prefix.path / "bin" / "python", "-c", "import pandas"], env={}, check=True)
    bare = cache / "bare"
    # Real copies: a directory of links would take the bytecode of the originals away, too.
    subprocess.run(["cp", "-a", prefix.path, bare], check=True)
    for folder in list(bare.rglob("__pycache__")):
        remove_tree(folder)
    times: dict[Path, list[float]] = {prefix.path: [], bare: []}
    for _ in range(repeats):
        for place, into in times.items():
            command = [place / "bin" / "python", "-c", "import pandas"]
            env = {"PYTHONDONTWRITEBYTECODE": "1"}
            into.append(seconds(partial(subprocess.run, command, env=env, check=True)))
    remove_tree(bare)
    prefix.release()
    compiled, plain = (statistics.median(values) for values in times.values())
    print(
        f"{'import pandas: with bytecode / without':<46}{compiled / plain:6.2f}   "
        f"({compiled:.2f} s, {plain:.2f} s, medians of {repeats})"
    )


def whole_python(folder: Path) -> Lock:
    """The lock of a whole Python as a conda package, from a channel made for it."""
    sys.path.insert(0, str(ROOT))
    from tests.environments.conda_channel import Channel

    interpreter = machine_interpreters().find(HERE)
    home = interpreter.path.parent.parent
    library = home / "lib" / f"python{HERE}"
    skipped = {"test", "site-packages", "__pycache__"}
    files: dict[str, str | bytes] = {f"bin/python{HERE}": interpreter.path.read_bytes()}
    for path in sorted(library.rglob("*")):
        if path.is_file() and not skipped & set(path.relative_to(library).parts):
            files[str(path.relative_to(home))] = path.read_bytes()
    for path in home.glob(f"lib/libpython{HERE}*.so*"):
        files[str(path.relative_to(home))] = path.read_bytes()
    links = {"bin/python": f"python{HERE}", "bin/python3": f"python{HERE}"}
    channel = Channel(folder / "channel")
    channel.add(
        "python",
        interpreter.version,
        f"h0_0_cp{HERE.replace('.', '')}",
        files=files,
        links=links,
        executable=[f"bin/python{HERE}"],
    )
    channel.write()
    return Environments(folder / "cache").solve(EnvironmentRequest(HERE, conda=CondaRequest((channel.url,))))


def disk(folder: Path) -> None:
    """Eight environments that share nearly everything against one of them."""
    cache = folder / "disk"
    locker = Environments(cache)
    locks = [locker.solve(EnvironmentRequest(HERE, {**WHEELS, "six": version})) for version in SMALL]
    ensure_prefix(locks[0], cache_dir=cache).release()
    one = usage(cache)
    for lock in locks[1:]:
        ensure_prefix(lock, cache_dir=cache).release()
    eight = usage(cache)
    print(
        f"{'disk: eight environments / one':<46}{eight / one:6.2f}   "
        f"({one / 1e6:.0f} MB, {eight / 1e6:.0f} MB)"
    )


def locking(folder: Path, repeats: int) -> None:
    """A lock of many packages, when uv has seen them before."""
    cache = folder / "cache"
    locker = Environments(cache)
    request = EnvironmentRequest(HERE, packages=(MANY,))
    count = len(locker.solve(request).packages)
    python = machine_interpreters().find(HERE).path
    place = folder / "compile"
    place.mkdir()
    (place / "requirements.in").write_text(MANY + "\n")
    args: list[str | Path] = ["pip", "compile", "requirements.in", "-p", python, "--format", "pylock.toml"]
    args += ["--only-binary", ":all:"]
    tool = Uv(cache)
    tool.run(args, cwd=place, timeout=600, builds=False)
    ours, theirs = [], []
    for _ in range(repeats):
        ours.append(seconds(lambda: locker.solve(request)))
        theirs.append(seconds(lambda: tool.run(args, cwd=place, timeout=600, builds=False)))
    ratio = statistics.median(ours) / statistics.median(theirs)
    print(
        f"{f'lock of {count} packages / uv pip compile':<46}{ratio:6.2f}   ({statistics.median(ours):.3f} s, "
        f"uv alone {statistics.median(theirs):.3f} s, medians of {repeats})"
    )


def main() -> None:
    """Print every figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bisect-env-bench-") as name:
        folder = Path(name)
        try:
            cache = folder / "cache"
            creation("conda prefix", whole_python(folder), cache, options.repeats)
            lock = Environments(cache).solve(EnvironmentRequest(HERE, WHEELS))
            creation("PyPI prefix", lock, cache, options.repeats)
            pins = {"marshmallow": "3.26.1"}
            small(Environments(cache).solve(EnvironmentRequest(HERE, pins)), cache, options.repeats)
            importing(lock, cache, options.repeats)
            disk(folder)
            locking(folder, options.repeats)
        finally:
            for path in (folder / "cache", folder / "disk"):
                remove_tree(path)


if __name__ == "__main__":
    main()
