"""A real container engine and a small image: this machine's Python and the libraries that it needs."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bisect_env.containers.engine import ENGINE, RUN_ARGS, Engine, find_engine, find_named
from bisect_env.errors import InfrastructureError

OLD_CGROUPS = (
    "podman --runtime runc --cgroup-manager cgroupfs",
    "--ulimit nofile=1024:1024 --ulimit nproc=1000:1000",
)
"""What podman needs on machines where cgroups are those of version 1, and limits may not be raised."""

OURS = f"bisect-env-test={os.getpid()}"
"""Label of the containers of this test process: others may run tests, or trials, beside it."""


def _libraries(*binaries: Path) -> set[Path]:
    said = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False).stdout
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", said)}


def image_archive() -> bytes:
    """A root file system as a tar archive: an interpreter, its library, and what the two link to."""
    base = Path(sys.base_prefix)
    stdlib = Path(os.__file__).parent
    python = Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}").resolve()
    extensions = [
        path
        for path in (stdlib / "lib-dynload").glob("*.so")
        if not path.name.startswith(("_tkinter", "_test", "_sqlite", "_curses", "readline"))
    ]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:

        def keep(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
            name = Path(member.name).name
            left_out = {"site-packages", "__pycache__", "test", "idlelib", "ensurepip", "lib2to3", "tkinter"}
            if name in left_out or name.startswith("config-") or name.endswith((".pyc", ".a")):
                return None
            return member

        tar.add(stdlib, str(stdlib).lstrip("/"), filter=keep)
        for path in {python, *_libraries(python, *extensions)}:
            tar.add(path.resolve(), str(path).lstrip("/"))
        for name in ("tmp", "proc", "sys", "dev", "etc"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        for name in ("usr/bin/python3", str(base / "bin" / "python3").lstrip("/")):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, str(python)
            tar.addfile(link)
    return buffer.getvalue()


def unavailable(reason: str) -> None:
    """Skip, or fail where an engine is required."""
    if os.environ.get("BISECT_ENV_TEST_PODMAN") == "required":
        pytest.fail(f"a container engine is required: {reason}")
    pytest.skip(f"no container engine: {reason}")


def _settings() -> list[dict[str, str]]:
    given = {name: os.environ[name] for name in (ENGINE, RUN_ARGS) if name in os.environ}
    found = [given, dict(zip((ENGINE, RUN_ARGS), OLD_CGROUPS, strict=True))]
    return [{**one, RUN_ARGS: f"{one.get(RUN_ARGS, '')} --label {OURS}"} for one in found]


@contextmanager
def working_image(tag: str) -> Iterator[tuple[dict[str, str], Engine, str]]:
    """Import the image under a tag; gives settings of the engine, the engine and the image's name.

    The settings are those of the environment if a container starts with them, else those for old cgroups.
    """
    archive, tried = image_archive(), []
    for settings in _settings():
        environ = {**{k: v for k, v in os.environ.items() if k not in (ENGINE, RUN_ARGS)}, **settings}
        try:
            engine = find_engine(environ)
        except InfrastructureError as error:
            tried.append(str(error.tried))
            continue
        loaded = subprocess.run(
            engine.argv("import", "-", tag), input=archive, capture_output=True, timeout=120, check=False
        )
        if loaded.returncode:
            tried.append(loaded.stderr.decode()[-300:])
            continue
        try:
            options = ["--rm", "--network", "none", *engine.run_args, "--entrypoint", "python3"]
            said = engine.ask("run", *options, tag, "-c", "import ctypes, json, fcntl; print('here')")
            if said.stdout.strip() == "here":
                yield settings, engine, tag
                return
            tried.append(f"{shlex.join(engine.argv('run', *options))}: {said.words}")
        finally:
            engine.ask("rmi", "--force", tag)
    unavailable("; ".join(tried))


def forget_engines() -> None:
    """Look for the engine again: settings have changed."""
    find_named.cache_clear()
