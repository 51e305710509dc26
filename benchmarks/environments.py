"""What environments cost, each figure a ratio in one run: `python -m benchmarks.environments`.

Rivals: `cp -al` for making a prefix (the least that any installer with hardlinks could do), one environment
for the disk that eight take, and `uv pip compile` alone for a lock.
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
from pathlib import Path

from bisect_env.environments.cache import usage
from bisect_env.environments.integrity import remove_tree
from bisect_env.environments.interpreters import machine_interpreters
from bisect_env.environments.lock import Lock
from bisect_env.environments.locker import Locker
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.environments.request import CondaRequest, EnvironmentRequest
from bisect_env.environments.uv_tool import Uv

ROOT = Path(__file__).parent.parent
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
MANY = "jupyterlab==4.3.4"
"""Brings some ninety packages."""
WHEELS = {"numpy": "2.2.1", "pandas": "2.2.3"}
"""Some 120 MB."""
SMALL = ("1.10.0", "1.11.0", "1.12.0", "1.13.0", "1.14.0", "1.15.0", "1.16.0", "1.17.0")
"""Versions of six, in which eight environments differ."""


def seconds(action: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def creation(label: str, lock: Lock, cache: Path, repeats: int) -> None:
    """Warm creation of a prefix against `cp -al` of the same prefix, in turns."""
    prefix = ensure_prefix(lock, cache_dir=cache)
    copy = cache / "copy"
    ours, theirs = [], []
    for _ in range(repeats):
        prefix.release()
        remove_tree(prefix.path)
        ours.append(seconds(lambda: ensure_prefix(lock, cache_dir=cache)))
        theirs.append(seconds(lambda: subprocess.run(["cp", "-al", prefix.path, copy], check=True)))
        remove_tree(copy)
    files = sum(len(names) for _, _, names in os.walk(prefix.path))
    size = sum(p.lstat().st_size for p in prefix.path.rglob("*")) / 1e6
    ratio = statistics.median(ours) / statistics.median(theirs)
    print(
        f"{label:<46}{ratio:6.2f}   ({size:.0f} MB in {files} files: {statistics.median(ours):.3f} s, "
        f"cp -al {statistics.median(theirs):.3f} s, medians of {repeats})"
    )


def whole_python(folder: Path) -> Lock:
    """A lock of one conda package that holds a whole Python, from a channel made for it."""
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
    request = EnvironmentRequest(HERE, conda=CondaRequest(channels=(channel.url,)))
    return Locker(folder / "cache").lock(request)


def disk(folder: Path) -> None:
    """Eight environments that share nearly everything against one of them."""
    cache = folder / "disk"
    locker = Locker(cache)
    locks = [locker.lock(EnvironmentRequest(HERE, {**WHEELS, "six": version})) for version in SMALL]
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
    locker = Locker(cache)
    request = EnvironmentRequest(HERE, packages=(MANY,))
    count = len(locker.lock(request).packages)
    python = machine_interpreters().find(HERE).path
    place = folder / "compile"
    place.mkdir()
    (place / "requirements.in").write_text(MANY + "\n")
    args: list[str | Path] = ["pip", "compile", "requirements.in", "-p", python, "--format", "pylock.toml"]
    args += ["--only-binary", ":all:"]
    tool = Uv(cache)
    tool.run(args, cwd=place, timeout=600)
    ours, theirs = [], []
    for _ in range(repeats):
        ours.append(seconds(lambda: locker.lock(request)))
        theirs.append(seconds(lambda: tool.run(args, cwd=place, timeout=600)))
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
            creation("conda prefix, warm / cp -al", whole_python(folder), folder / "cache", options.repeats)
            lock = Locker(folder / "cache").lock(EnvironmentRequest(HERE, WHEELS))
            creation("PyPI prefix, warm / cp -al", lock, folder / "cache", options.repeats)
            disk(folder)
            locking(folder, options.repeats)
        finally:
            for path in (folder / "cache", folder / "disk"):
                remove_tree(path)


if __name__ == "__main__":
    main()
