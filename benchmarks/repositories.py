"""Git repositories of Python packages with planted regressions, written by `git fast-import` in one go."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

BEGIN = 1_704_067_200
"""Unix time of the first commit: 2024-01-01."""
HOUR = 3600

SETUPTOOLS = """\
[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "{version}"

[tool.setuptools]
{modules}
"""


IN_TREE = """\
[build-system]
requires = []
build-backend = "{backend}"
backend-path = ["."]

[project]
name = "{name}"
{version}
"""

BACKEND = '''\
"""Builds the modules beside it into a wheel, and asks for nothing."""
import os, sys, time, tomllib, zipfile
from pathlib import Path

PROJECT = tomllib.loads(Path("pyproject.toml").read_text())["project"]
NAME = PROJECT["name"]


def build_wheel(folder, config_settings=None, metadata_directory=None):
    if "BUILDS" in os.environ:
        with open(os.environ["BUILDS"], "a") as log:
            print(time.monotonic(), file=log)
    if Path("broken").exists():
        print("cannot compile", Path("broken").read_text())
        sys.exit(1)
    if Path("slow").exists():
        time.sleep(float(Path("slow").read_text()))
    if Path("hungry").exists():
        bytearray(int(Path("hungry").read_text()))
    version = PROJECT.get("version") or Path("version").read_text().strip()
    name = f"{NAME}-{version}-py3-none-any.whl"
    info = f"{NAME}-{version}.dist-info"
    with zipfile.ZipFile(Path(folder) / name, "w") as archive:
        for module in sorted(Path().glob(f"{NAME}*.py")):
            archive.writestr(module.name, module.read_text() + f"FLAG = {os.environ.get('FLAG')!r}\\n")
        lines = [f"Metadata-Version: 2.1", f"Name: {NAME}", f"Version: {version}"]
        lines += [f"Requires-Dist: {one}" for one in PROJECT.get("dependencies", ())]
        archive.writestr(f"{info}/METADATA", "\\n".join([*lines, ""]))
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(f"{info}/RECORD", "")
    return name
'''


def in_tree(name: str, *, version: str = "1.0") -> dict[str, bytes | str | None]:
    """Files of a package that builds itself: what is asked of it does not need an index.

    Args:
        name: Of the package and of its module, which is not among them.
        version: "" has it worked out by the build, from the file `version`.
    """
    stated = f'version = "{version}"' if version else 'dynamic = ["version"]'
    project = IN_TREE.format(name=name, backend="backend", version=stated)
    return {"backend.py": BACKEND, "pyproject.toml": project, **({} if version else {"version": "1.0"})}


@dataclass
class Change:
    """A commit to be written.

    Attributes:
        files: Path to content; None takes the file away.
        subject: First line of the message.
        parents: Marks of its parents; the commit before it if empty.
        tags: That point to it.
        links: Path to target of symbolic links.
        modules: Path to commit of submodules.
        time: Unix time; an hour after the one before if None.
    """

    files: Mapping[str, bytes | str | None] = field(default_factory=dict)
    subject: str = ""
    parents: Sequence[int] = ()
    tags: Sequence[str] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    time: int | None = None


def write(place: Path, changes: Iterable[Change], branch: str = "main") -> list[str]:
    """Make a repository, with a work tree that nothing is checked out in.

    Args:
        place: Directory; made.
        changes: The commits, parents first; the n-th has the mark n, from 1 on.
        branch: Whose tip is the last one.

    Returns:
        Hashes, in order.
    """
    place = place.absolute()
    place.mkdir(parents=True, exist_ok=True)
    git(place, "init", "--quiet", f"--initial-branch={branch}")
    marks = place / ".git" / "marks"
    process = subprocess.Popen(
        ["git", "fast-import", "--quiet", f"--export-marks={marks}"],
        cwd=place,
        stdin=subprocess.PIPE,
        env=_environment(),
    )
    assert process.stdin is not None
    now = BEGIN
    tags: list[tuple[str, int]] = []
    mark = 0
    for mark, change in enumerate(changes, 1):
        now = now + HOUR if change.time is None else change.time
        process.stdin.write(_commit(change, mark, now))
        tags += [(tag, mark) for tag in change.tags]
    for tag, at in tags:
        process.stdin.write(f"reset refs/tags/{tag}\nfrom :{at}\n\n".encode())
    process.stdin.write(f"reset refs/heads/{branch}\nfrom :{mark}\n\n".encode())
    process.stdin.close()
    if process.wait():
        raise RuntimeError(f"git fast-import ended with {process.returncode}")
    lines = (line.split() for line in marks.read_text().splitlines())
    known = {int(name[1:]): commit for name, commit in lines}
    git(place, "update-ref", "-d", "refs/heads/import")
    return [known[i] for i in range(1, mark + 1)]


def _commit(change: Change, mark: int, now: int) -> bytes:
    who = f"Ann Author <ann@example.org> {now} +0000"
    message = (change.subject or f"Change {mark}").encode()
    parts = [f"commit refs/heads/import\nmark :{mark}\nauthor {who}\ncommitter {who}\n".encode()]
    parts.append(b"data %d\n%s\n" % (len(message), message))
    parents = change.parents or ((mark - 1,) if mark > 1 else ())
    if parents:
        parts.append(f"from :{parents[0]}\n".encode())
        parts += [f"merge :{parent}\n".encode() for parent in parents[1:]]
    for path, content in change.files.items():
        quoted = _quoted(path)
        if content is None:
            parts.append(b"D %s\n" % quoted)
            continue
        data = content.encode() if isinstance(content, str) else content
        parts.append(b"M 100644 inline %s\ndata %d\n%s\n" % (quoted, len(data), data))
    for path, target in change.links.items():
        data = target.encode()
        parts.append(b"M 120000 inline %s\ndata %d\n%s\n" % (_quoted(path), len(data), data))
    for path, commit in change.modules.items():
        parts.append(b"M 160000 %s %s\n" % (commit.encode(), _quoted(path)))
    return b"".join(parts) + b"\n"


def _quoted(path: str) -> bytes:
    return b'"%s"' % path.encode().replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def git(place: Path, *args: str) -> str:
    """Run git in a directory, without anybody's configuration."""
    done = subprocess.run(
        ["git", *args], cwd=place, env=_environment(), check=True, capture_output=True, text=True
    )
    return done.stdout


def _environment() -> dict[str, str]:
    return {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}


def pure(
    name: str,
    count: int,
    bad: int,
    *,
    rate: float = 1.0,
    files: Mapping[str, bytes | str | None] | None = None,
) -> list[Change]:
    """A package of one module in which `works()` fails from some commit on.

    Args:
        name: Of package and module.
        count: Commits.
        bad: First bad commit, counted from 1.
        rate: How often it fails then.
        files: What else the first commit has, `pyproject.toml` among it; built by setuptools if None.
    """
    modules = f'py-modules = ["{name}"]'
    project = SETUPTOOLS.format(name=name, version="1.0", modules=modules)
    own = {"pyproject.toml": project} if files is None else files
    changes = []
    for number in range(1, count + 1):
        content: dict[str, bytes | str | None] = {
            f"{name}.py": module(number, rate if number >= bad else 0.0)
        }
        if number == 1:
            content |= own
        tags = ("v1.0",) if number == 1 else ("v1.1",) if number == count else ()
        changes.append(Change(content, f"Change number {number} (#{1000 + number})", tags=tags))
    return changes


def module(number: int, rate: float) -> str:
    """A module whose `works()` fails at a rate."""
    return f"import random\n\nNUMBER = {number}\n\n\ndef works():\n    return random.random() >= {rate}\n"
