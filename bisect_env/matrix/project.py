"""Looks in the folder of a question for what a name can mean there besides a package of an index."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from packaging.utils import canonicalize_name

from bisect_env.matrix.files import StudyFile

_NAMING = (
    *("requirements*.txt", "requirements*.in", "pyproject.toml", "setup.cfg", "Pipfile", "environment*.yml"),
    *("uv.lock", "pylock*.toml", "poetry.lock", "pdm.lock", "Pipfile.lock", "pixi.lock", "conda-lock.yml"),
)
"""Files of a project that name its packages."""
_MOST_FILES = 200
"""Maximum number of scripts whose imports are read."""


def local_module(name: str, folder: Path, beside: Iterable[str] = ()) -> str:
    """Return the path, relative to `folder`, of a module that lies there; "" if there is none.

    Directories with Python files count as modules. They are looked for in the folder, in its `src`, and
    beside the named files.

    Args:
        name: Import name, such as `shop.cart`; only its first part counts.
        folder: Folder of the question.
        beside: Names of files relative to `folder`, such as the scripts.
    """
    top = name.partition(".")[0]
    places = dict.fromkeys([Path(), Path("src"), *(Path(one).parent for one in beside)])
    for place in places:
        if (folder / place / f"{top}.py").is_file():
            return (place / f"{top}.py").as_posix()
        if any((folder / place / top).glob("*.py")):
            return (place / top).as_posix()
    return ""


def how_to_take(place: str) -> str:
    """Return the options with which a local module comes along and can be imported.

    Args:
        place: Its path, as `local_module` returns it.
    """
    return "--files src --env PYTHONPATH=src" if place.startswith("src/") else f"--files {place}"


def left_behind(
    files: Iterable[StudyFile], folder: Path, packages: Collection[str]
) -> tuple[str, str] | None:
    """Return a script that imports a local module which does not come along, and the module's path.

    Imports count that stand at the top of a script, outside `try` and `if`, because the others may be meant
    to fail. Return None if nothing is left behind.

    Args:
        files: Files that come along.
        folder: Folder of the question.
        packages: Packages that the question names; their modules are meant to come from the index.
    """
    files = list(files)
    names = [file.name for file in files]
    known = {str(canonicalize_name(name)) for name in packages}
    for file in [one for one in files if one.name.endswith(".py")][:_MOST_FILES]:
        for module in _imported(file):
            place = local_module(module, folder, [file.name])
            comes = any(name == place or name.startswith(f"{place}/") for name in names)
            if place and not comes and str(canonicalize_name(module)) not in known:
                return file.name, place
    return None


def _imported(file: StudyFile) -> Iterator[str]:
    try:
        body = ast.parse(file.content).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # maybe of another Python
    for statement in body:
        names: list[str] = []
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and not statement.level:
            names = [statement.module or ""]
        for name in names:
            if (top := name.partition(".")[0]) not in sys.stdlib_module_names:
                yield top


def file_naming(package: str, folder: Path) -> str:
    """Return the name of a requirements or lock file in a folder that names a package, or "".

    Args:
        package: Name of the package.
        folder: Folder of the question.
    """
    name = "[-_.]+".join(map(re.escape, str(canonicalize_name(package)).split("-")))
    named = re.compile(rf"(?<![\w.-]){name}(?![\w.-])", re.IGNORECASE)
    for pattern in _NAMING:
        for place in sorted(folder.glob(pattern)):
            try:
                text = place.read_text("utf-8", "replace")
            except OSError:
                continue
            if named.search(text):
                return place.name
    return ""
