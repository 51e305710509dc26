"""The import table of the design: data flows one way, and nothing downstream is imported upstream."""

import ast
from collections import defaultdict
from pathlib import Path

import bisect_env
from tools.import_graph import source

ROOT = Path(bisect_env.__file__).parent

MAY_IMPORT = {
    "__main__": {"cli"},
    "errors": set(),
    "temporary": set(),
    "matrix": {"errors"},
    "search": {"matrix"},
    "containers": {"errors"},
    "trials": {"matrix", "containers", "temporary", "errors"},
    "environments": {"matrix", "containers", "temporary", "errors"},
    "storage": {"matrix", "trials", "environments", "temporary", "errors"},
    "cluster": {"trials", "environments", "matrix", "temporary", "errors"},
    "report": {"matrix", "search", "storage", "trials", "environments", "errors"},
    "web": {"matrix", "storage", "trials", "report", "temporary", "errors"},
    "engine": {
        "matrix",
        "search",
        "trials",
        "environments",
        "storage",
        "cluster",
        "containers",
        "report",
        "temporary",
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
        "temporary",
        "errors",
    },
}
PURE = {"search"}
EFFECTS = {"os", "time", "subprocess", "socket", "pathlib", "threading", "requests", "random", "datetime"}


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


SOURCES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


def test_imports_go_one_way() -> None:
    """Nor does the program read its tests, where the truth about the cases lies."""
    wrong = []
    for path in SOURCES:
        package = package_of(path)
        assert "tests" not in {name.partition(".")[0] for name in source(path).imports}, path
        ours = {name.split(".")[1] for name in source(path).imports if name.startswith("bisect_env.")}
        ours.discard("__version__")
        if ours - MAY_IMPORT[package] - {package}:
            wrong.append(f"{path.relative_to(ROOT)}: {sorted(ours - MAY_IMPORT[package] - {package})}")
    assert wrong == []


def test_the_search_has_no_effects() -> None:
    pure = [path for path in SOURCES if package_of(path) in PURE]
    assert pure
    assert [p for p in pure if {name.split(".")[0] for name in source(p).imports} & EFFECTS] == []


def test_only_the_command_line_prints() -> None:
    printing = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if package_of(path) not in {"cli", "report"} and source(path).prints
    ]
    # The supervisor is a program of its own, whose standard output is its answer.
    assert not [p for p in printing if p not in {"trials/supervisor.py", "trials/launch.py"}]


def test_a_name_means_one_thing() -> None:
    """No two modules share a name, whatever their packages, and no two public classes."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in SOURCES:
        where = str(path.relative_to(ROOT))
        if path.stem not in {"__init__", "env"}:
            places[path.stem].append(where)
        for name in source(path).classes:
            if not name.startswith("_"):
                places[name].append(where)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


OWN = {"self", "cls", "os", "sys"}


def private_names(module: ast.AST) -> set[str]:
    """Private names that a module takes from our modules, or from an object that is not its own."""
    found = set()
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bisect_env"):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", None) not in OWN:
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and str(node.value).startswith("bisect_env."):
            found.add(str(node.value).rpartition(".")[2])
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def test_tests_use_public_names() -> None:
    used = {
        path.name: names
        for path in Path(__file__).parent.rglob("*.py")
        if (names := private_names(ast.parse(path.read_text("utf-8"))))
    }
    # What the C++ library calls the throwing of an exception.
    assert used == {"dying.py": {"_ZSt17__throw_bad_allocv"}}
