"""Reads YAML that others may have written: locks of a shared database, and files of other tools."""

from __future__ import annotations

from typing import Any

import yaml

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEEPEST = 100
"""Levels of lists and mappings. Real locks have six."""


def read_yaml(text: str) -> Any:
    """Read YAML as plain lists, dictionaries and scalars.

    The depth is looked at first: libyaml builds nested values by recursion in C, and tens of thousands of
    levels end the process with a segmentation fault.

    Args:
        text: The content of a file.

    Raises:
        yaml.YAMLError: It is no YAML, or is nested too deeply.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEEPEST:
                raise yaml.YAMLError(f"it has more than {_DEEPEST} levels of lists and mappings")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return yaml.load(text, Loader=_Loader)
