"""Advice on how to change a question: by options or in its file, depending on how it was asked. Pure."""

from __future__ import annotations

from collections.abc import Container
from enum import Enum, auto

from bisect_env.matrix.ask import ENVIRONMENT


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

    def add_package(self, package: str) -> str:
        """Return advice on installing one more package in every environment, such as "add `--with numpy`"."""
        if self is Asked.BETWEEN:
            return f"add {package} to both environments"
        return f"add `packages: [{package}]`" if self is Asked.IN_FILE else f"add `--with {package}`"

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
