"""What each package and module of ours is about, and which package imports which; from the sources."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path

import bisect_env
from tools.pages import table

ROOT = Path(bisect_env.__file__).parent
_BOX, _GAP, _ROW = (118, 30), 22, 74


@dataclass(frozen=True)
class Source:
    """What pages and tests ask of a module: each is parsed once."""

    subject: str
    """The first paragraph of its docstring, in one line."""
    imports: frozenset[str]
    """Modules, and `module.name` for what is taken from one."""
    classes: tuple[str, ...]
    prints: bool


@cache
def source(path: Path) -> Source:
    """Reads a module without running it."""
    module = ast.parse(path.read_text("utf-8"))
    names: set[str] = set()
    prints = False
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            prints = prints or node.func.id == "print"
    return Source(
        subject=" ".join((ast.get_docstring(module) or "").partition("\n\n")[0].split()),
        imports=frozenset(names),
        classes=tuple(node.name for node in module.body if isinstance(node, ast.ClassDef)),
        prints=prints,
    )


@cache
def imports() -> dict[str, frozenset[str]]:
    """Package to the packages that it imports, directly."""
    found: dict[str, set[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        package = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if package.startswith("__"):
            continue
        names = found.setdefault(package, set())
        names |= {name.split(".")[1] for name in source(path).imports if name.startswith("bisect_env.")}
    return {package: frozenset(names & found.keys() - {package}) for package, names in found.items()}


def layers() -> list[list[str]]:
    """Packages from those that import nothing of ours to those that nobody imports.

    Raises:
        ValueError: There is a circle.
    """
    left = dict(imports())
    found: list[list[str]] = []
    while left:
        row = sorted(package for package, names in left.items() if not names & left.keys())
        if not row:
            raise ValueError(f"a circle among {sorted(left)}")
        found.append(row)
        left = {package: names for package, names in left.items() if package not in row}
    return found


def needed() -> list[tuple[str, str]]:
    """Imports that no longer way implies: what a picture needs."""
    edges = imports()

    def reach(package: str) -> set[str]:
        return set(edges[package]).union(*(reach(one) for one in edges[package]))

    return sorted(
        (package, one)
        for package, names in edges.items()
        for one in names
        if not any(one in reach(other) for other in names - {one})
    )


def imports_table() -> str:
    """The table: package, what lives there, and what it imports."""
    rows = [
        (
            f"`{package}`",
            source(_source(package)).subject,
            ", ".join(f"`{one}`" for one in sorted(imports()[package])) or "nothing of ours",
        )
        for row in reversed(layers())
        for package in row
    ]
    return table(("package", "what lives there", "imports"), rows)


def _source(package: str) -> Path:
    folder = ROOT / package
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def imports_svg() -> str:
    """The picture: importers above what they import; arrows that a longer way implies are left out."""
    rows = list(reversed(layers()))
    width = max(len(row) for row in rows) * (_BOX[0] + _GAP) + _GAP
    height = len(rows) * _ROW
    place = {}
    for y, row in enumerate(rows):
        left = (width - len(row) * (_BOX[0] + _GAP) + _GAP) / 2
        for x, package in enumerate(row):
            place[package] = (left + x * (_BOX[0] + _GAP), 20 + y * _ROW)
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="sans-serif" font-size="14" role="img" '
            'aria-label="Which package imports which; the table has it in words">'
        ),
        (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0 0 8 4 0 8z" fill="#57606a"/></marker></defs>'
        ),
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for above, below in needed():
        (x1, y1), (x2, y2) = place[above], place[below]
        middle = _BOX[0] / 2
        lines.append(
            f'<path d="M{x1 + middle:g} {y1 + _BOX[1]:g} {x2 + middle:g} {y2 - 2:g}" stroke="#57606a" '
            'fill="none" marker-end="url(#tip)"/>'
        )
    for package, (x, y) in place.items():
        lines.append(
            f'<rect x="{x:g}" y="{y:g}" width="{_BOX[0]}" height="{_BOX[1]}" rx="5" fill="#ddf4ff" '
            'stroke="#0969da"/>'
        )
        lines.append(
            f'<text x="{x + _BOX[0] / 2:g}" y="{y + 20:g}" text-anchor="middle" fill="#1f2328">'
            f"{escape(package)}</text>"
        )
    return "\n".join([*lines, "</svg>"]) + "\n"
