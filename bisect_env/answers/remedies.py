"""Advice on how to change a question: by options or in its file, depending on how it was asked. Pure."""

from __future__ import annotations

from collections.abc import Container
from enum import Enum, auto

from bisect_env.matrix.ask import ENVIRONMENT
from bisect_env.matrix.import_names import is_known_module, package_of_module


class Asked(Enum):
    """How a question was asked: in a file, in words, or by two environments. Advice depends on this."""

    IN_FILE = auto()
    """The question is in a matrix file."""
    IN_WORDS = auto()
    """The command line named packages or a repository."""
    BETWEEN = auto()
    """The command line named two environments."""

    @classmethod
    def of(cls, matrix_path: object, axes: Container[str]) -> Asked:
        """Determine how the question of a study was asked, from its matrix file and its axes.

        Args:
            matrix_path: Path of the matrix file; "" or None if there is none.
            axes: Names of the axes of the study.
        """
        if matrix_path:
            return cls.IN_FILE
        return cls.BETWEEN if ENVIRONMENT in axes else cls.IN_WORDS

    @property
    def ends(self) -> str:
        """Return how to name the good and bad ends in advice, such as "`--good` and `--bad`"."""
        if self is Asked.BETWEEN:
            return "the two environments"
        return "`good` and `bad` in the matrix" if self is Asked.IN_FILE else "`--good` and `--bad`"

    def add_package(self, module: str, named_in: str = "") -> str:
        """Return advice on installing the package that brings a module in every environment.

        An index may have a package of any name, which can be somebody else's. So the package is named only
        if a file of the project names it, or if it is well known to bring the module; then as a question.

        Args:
            module: Import name of the missing module.
            named_in: Name of a requirements or lock file of the project that names the package, or "".
        """
        package = package_of_module(module)
        if named_in:
            return f"add {self._with(package)}, which {named_in} names"
        if is_known_module(module):
            return f"{package} usually brings it: add {self._with(package)}"
        if self is Asked.BETWEEN:
            return "add the package that brings it to both environments"
        return f"name the package that brings it: {self._with('NAME')}"

    def _with(self, package: str) -> str:
        if self is Asked.BETWEEN:
            return f"{package} to both environments"
        return f"`packages: [{package}]`" if self is Asked.IN_FILE else f"`--with {package}`"

    def add_option(self, option: str, lines: str) -> str:
        """Return advice to change a setting: add `option` to the command, or write `lines` in the file."""
        return f"write `{lines}` in `trial`" if self is Asked.IN_FILE else f"add `{option}`"

    def setting(self, lines: str, key: str = "") -> str:
        """Return the lines of a setting that has no option, with the place where to write them.

        Args:
            lines: The lines to write.
            key: The key below which they stand; "" if `lines` begin at the top.
        """
        inside = f" in `{key}`" if key else ""
        file = (
            "" if self is Asked.IN_FILE else f" {'of' if key else 'in'} a matrix file (`--save` writes one)"
        )
        return f"`{lines}`{inside}{file}"
