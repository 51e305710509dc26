"""Reads untrusted YAML, such as locks from a shared database and files of other tools."""

from __future__ import annotations

from typing import Any

import yaml

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEEPEST = 100
"""Maximum depth of nested lists and mappings. Real locks have six levels."""


def read_yaml(text: str) -> Any:
    """Parse YAML and return plain lists, dicts and scalars.

    The nesting depth is checked before parsing, because libyaml crashes with a segmentation fault on tens of
    thousands of levels.

    Args:
        text: The YAML text.

    Raises:
        yaml.YAMLError: The text is not valid YAML or has more than 100 levels.
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
