"""The import table of the design: data flows one way, and nothing downstream is imported upstream."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import typer

import bisect_env
from bisect_env.cli.app import application
from tools.import_graph import source

ROOT = Path(bisect_env.__file__).parent

MAY_IMPORT = {
    "__main__": {"cli"},
    "errors": set(),
    "temporary": set(),
    "running": {"errors"},
    "secrets": {"errors"},
    "matrix": {"secrets", "errors"},
    "search": {"matrix"},
    "answers": {"matrix", "search", "secrets"},
    "containers": {"running", "errors"},
    "trials": {"matrix", "containers", "secrets", "temporary", "errors"},
    "environments": {"matrix", "containers", "running", "secrets", "temporary", "errors"},
    "storage": {"answers", "matrix", "search", "trials", "environments", "secrets", "temporary", "errors"},
    "cluster": {"trials", "environments", "matrix", "running", "secrets", "temporary", "errors"},
    "report": {"answers", "matrix", "search", "storage", "trials", "environments", "errors"},
    "web": {"answers", "matrix", "storage", "trials", "report", "temporary", "errors"},
    "engine": {
        "answers",
        "matrix",
        "search",
        "trials",
        "environments",
        "storage",
        "cluster",
        "containers",
        "running",
        "secrets",
        "temporary",
        "errors",
    },
    "cli": {
        "answers",
        "matrix",
        "search",
        "trials",
        "environments",
        "storage",
        "cluster",
        "report",
        "engine",
        "web",
        "running",
        "secrets",
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
    assert printing == []


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


BUILT_ON_NEW_SYSTEMS = {"memfd_create", "pidfd_open", "pidfd_send_signal", "copy_file_range", "getrandom"}
"""What CPython lacks where it was built on an old glibc or old kernel headers, as conda's is."""
OF_NEW_KERNELS = {"P_PIDFD", "preadv2", "pwritev2", "posix_spawn", "close_range", "openat2", "clone3"}
"""What is not there, or not whole, on a kernel before 5.3."""


def test_nothing_is_used_that_older_pythons_and_kernels_lack() -> None:
    """`tests/older_host.py` cannot show it of the server of trials, which starts without site packages."""
    assert sorted(uses(BUILT_ON_NEW_SYSTEMS | OF_NEW_KERNELS)) == []


POOLS = {"pool", "_pool", "client"}
"""What runs functions, and Dask's client: their `submit` is another one than that of an executor."""


def uses(names: set[str]) -> Iterator[tuple[str, str]]:
    """Yield each place outside imports that uses one of these names: the name, and the file."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            name, owner = "", ""
            if isinstance(node, ast.Name):
                name = node.id
            elif isinstance(node, ast.Attribute):
                name = node.attr
                owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
            if name in names and owner not in POOLS:
                yield name, str(path.relative_to(ROOT))


def test_one_loop_runs_trials() -> None:
    """`TrialRunner` runs the trials of every plan; a plan decides which, and needs no loop of its own."""
    assert sorted(uses({"submit", "perform", "run_trial"})) == [
        # An executor performs a trial that was submitted, on this host or on a worker.
        ("perform", "cluster/pool.py"),
        ("perform", "cluster/worker.py"),
        ("run_trial", "cluster/perform.py"),
        # `trial --debug` runs trials under tools; they are no evidence, and no plan asks for them.
        ("run_trial", "engine/diagnose.py"),
        ("submit", "engine/runner.py"),
    ]


def commands() -> set[tuple[str, str]]:
    """Module and function of every command: what its parameters are is said by its help."""
    found, left = set(), [typer.main.get_command(application())]
    while left:
        one = left.pop()
        left += getattr(one, "commands", {}).values()
        if one.callback is not None:
            found.add((one.callback.__module__, one.callback.__name__))
    return found


def functions(node: ast.AST) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Public functions of a module and of its public classes, with the name that a module can import."""
    for one in ast.iter_child_nodes(node):
        if isinstance(one, ast.FunctionDef | ast.ClassDef) and not one.name.startswith("_"):
            if isinstance(one, ast.FunctionDef):
                yield one.name, one
            else:
                yield from ((one.name, method) for _, method in functions(one))


def contracts() -> set[tuple[str, str]]:
    """Module and name of all that a package offers to others: what they import from it."""
    return {
        (node.module or "", alias.name)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and f"bisect_env.{package_of(path)}." not in f"{node.module}."
        for alias in node.names
    }


def test_what_others_call_with_four_arguments_or_more_says_what_they_are() -> None:
    """In `Args`, or by the name of what it fulfils or extends (see `Search.ask`)."""
    exempt, offered, silent = commands(), contracts(), []
    for path in SOURCES:
        module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        for top, one in functions(ast.parse(path.read_text("utf-8"))):
            names = [each.arg for each in (*one.args.posonlyargs, *one.args.args, *one.args.kwonlyargs)]
            said = ast.get_docstring(one) or ""
            is_said = "Args:" in said or re.search(r"([Ss]ee|as for) `\w+\.\w+`", said)
            has_many = len(set(names) - {"self", "cls"}) >= 4
            is_asked = (module, top) in offered and (module, one.name) not in exempt
            if has_many and is_asked and not is_said:
                silent.append(f"{module}: {one.name}")
    assert silent == []


def test_a_module_says_its_subject_in_its_first_sentence() -> None:
    subjects = [source(path).subject for path in SOURCES if path.stem != "__init__"]
    assert [subject for subject in subjects if not re.match(r".+[.?]$", subject)] == []
    assert len(set(subjects)) == len(subjects)


def test_three_tests_of_the_default_start_the_whole_command() -> None:
    texts = [path.read_text("utf-8") for path in Path(__file__).parent.rglob("test_*.py")]
    assert sum(len(re.findall(r"^@pytest\.mark\.whole_command$", text, re.MULTILINE)) for text in texts) == 3


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
