"""Reads the inline metadata of a script: its requirements, in a comment at the top (PEP 723). Pure."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass

from packaging.requirements import Requirement

from bisect_env.errors import UsageError
from bisect_env.matrix.scalars import parse_requirement
from bisect_env.matrix.versions import parse_range

_BLOCK = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
_REMEDY = "write it as PEP 723 has it: `# /// script`, TOML behind `# `, and `# ///`"


@dataclass(frozen=True, slots=True)
class InlineMetadata:
    """The metadata that a script declares in its header (PEP 723), such as its requirements.

    Attributes:
        dependencies: Requirements, such as `numpy<2`.
        requires_python: Range of Python versions; "" for any.
        exclude_newer: Value of `exclude-newer` in `[tool.uv]`; "" if there is none.
    """

    dependencies: tuple[str, ...] = ()
    requires_python: str = ""
    exclude_newer: str = ""


def inline_metadata(text: str, name: str = "the script") -> InlineMetadata:
    """Parse the requirements in the header of a script (inline metadata, PEP 723).

    Args:
        text: Text of the script.
        name: Name of the script in messages.

    Returns:
        The metadata; empty if there is no header.

    Raises:
        UsageError: The header is invalid, or there are two.
    """
    blocks = [match for match in _BLOCK.finditer(text) if match["type"] == "script"]
    if not blocks:
        return InlineMetadata()
    if len(blocks) > 1:
        raise UsageError(f"{name} has two `# /// script` headers", remedy=_REMEDY)
    lines = blocks[0]["content"].splitlines()
    try:
        data = tomllib.loads("\n".join(line[2:] for line in lines))
    except (ValueError, RecursionError) as error:
        # Beside invalid TOML: a number of more than 4,300 digits, and too many nested lists.
        raise UsageError(f"the `# /// script` header of {name} is no TOML: {error}", remedy=_REMEDY) from None
    dependencies, requires = data.get("dependencies", []), str(data.get("requires-python", ""))
    if not isinstance(dependencies, list) or not all(isinstance(one, str) for one in dependencies):
        raise UsageError(f"`dependencies` in the header of {name} is no list of texts", remedy=_REMEDY)
    for dependency in dependencies:
        read_requirement(dependency, f"{name}'s header")
    try:
        if requires.strip():
            parse_range(requires)
    except ValueError:
        raise UsageError(
            f"`requires-python` in the header of {name} is no range: {requires[:200]!r}", remedy=_REMEDY
        ) from None
    tool = data.get("tool")
    uv = tool.get("uv") if isinstance(tool, dict) else None
    newest = uv.get("exclude-newer", "") if isinstance(uv, dict) else ""
    return InlineMetadata(tuple(dependencies), requires, str(newest))


def read_requirement(text: str, where: str) -> Requirement:
    """Parse a requirement such as `torch>=2.5,<2.9`.

    Args:
        text: Text of the requirement.
        where: Place where the user wrote it, for messages, such as `--with`.

    Raises:
        UsageError: The text is not a valid requirement.
    """
    try:
        return parse_requirement(text)
    except ValueError as error:
        problem, _, remedy = str(error).rpartition("; ")
        raise UsageError(f"{where}: {problem}", remedy=remedy) from None
