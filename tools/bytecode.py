"""Loads what the commands load, so that Python keeps its bytecode: uv installs packages without.

Where `PYTHONDONTWRITEBYTECODE` is set, as in many containers, every command would compile all of it again.
"""

from __future__ import annotations

import importlib
import pkgutil

OURS = ("cli", "containers", "engine", "environments", "matrix", "report", "search", "storage", "trials")
"""Packages whose modules are all loaded."""
LEFT_OUT = ("conda_helper",)
"""But for this one: py-rattler takes longer to load than most commands that want it."""
USED = (
    "bisect_env.__main__",
    "bisect_env.cluster.choose",
    "bisect_env.cluster.pool",
    "filelock",
    "jinja2",
    "markupsafe",
    "numpy.ma",
    "numpy.random",
    "psutil",
    "pypi_simple",
    "rich._emoji_codes",
    "rich.live",
    "rich.markdown",
    "rich.traceback",
    "sqlalchemy.dialects.sqlite",
    "typer.main",
    "typer.rich_utils",
    "typer._adapters",
    "typer._click._textwrap",
    "typer._click.decorators",
    "yaml",
)
"""Modules that are loaded when they are used."""


def load() -> None:
    """Load all that."""
    for package in OURS:
        found = importlib.import_module(f"bisect_env.{package}")
        for module in pkgutil.iter_modules(found.__path__, f"bisect_env.{package}."):
            if module.name.rpartition(".")[2] not in LEFT_OUT:
                importlib.import_module(module.name)
    for name in USED:
        importlib.import_module(name)
    # What a lazy package loads when it is used for the first time.
    from rich.cells import cell_len
    from sqlalchemy import create_engine

    create_engine("sqlite://")
    cell_len("\N{CJK UNIFIED IDEOGRAPH-4E00}")


if __name__ == "__main__":
    load()
