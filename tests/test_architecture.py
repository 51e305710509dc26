"""The import table of the design: data flows one way, and nothing downstream is imported upstream."""

import ast
from pathlib import Path

import pytest

import bisect_env

ROOT = Path(bisect_env.__file__).parent

MAY_IMPORT = {
    "__main__": {"cli"},
    "errors": set(),
    "matrix": {"errors"},
    "search": {"matrix"},
    "containers": {"errors"},
    "trials": {"matrix", "containers", "errors"},
    "environments": {"matrix", "containers", "errors"},
    "storage": {"matrix", "trials", "environments", "errors"},
    "cluster": {"trials", "environments", "matrix", "errors"},
    "report": {"matrix", "search", "storage", "trials", "environments", "errors"},
    "web": {"matrix", "storage", "trials", "report", "errors"},
    "engine": {
        "matrix",
        "search",
        "trials",
        "environments",
        "storage",
        "cluster",
        "containers",
        "report",
        "errors",
    },
    "cli": {
        "matrix",
        "search",
        "trials",
        "environments",
        "storage",
        "cluster",
        "report",
        "engine",
        "web",
        "errors",
    },
}
PURE = {"search"}
EFFECTS = {"os", "time", "subprocess", "socket", "pathlib", "threading", "requests", "random", "datetime"}


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


SOURCES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    package = package_of(path)
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("bisect_env.")}
    # The version of all is nobody's.
    wrong = ours - MAY_IMPORT[package] - {package, "__version__"}
    assert not wrong, f"{package} may not import {sorted(wrong)}"


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if package_of(p) in PURE], ids=lambda p: str(p.relative_to(ROOT))
)
def test_the_search_has_no_effects(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports(path)} & EFFECTS


def test_only_the_command_line_prints() -> None:
    printing = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if package_of(path) not in {"cli", "report"}
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    # The supervisor is a program of its own, whose standard output is its answer.
    assert not [p for p in printing if p not in {"trials/supervisor.py", "trials/launch.py"}]
