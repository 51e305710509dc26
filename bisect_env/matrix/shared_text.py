"""Removes secrets from the text of a matrix file, which is stored and shown. Pure."""

from __future__ import annotations

from typing import Any

from bisect_env.errors import UsageError
from bisect_env.secrets import MASK, is_secret, may_be_stored, without_passwords


def shared_matrix_text(text: str) -> str:
    """Return the text of a matrix file in which secrets are replaced by `***`.

    Line numbers stay the same.

    Secrets are passwords in addresses, values of `trial.env` whose names are not on the allow-list, values of
    `build.env` that look like secrets, and the whole value of an `env` that is not a mapping.

    Raises:
        UsageError: The text is not valid YAML, so that its secrets cannot be found.
    """
    for start, end in sorted(_secret_values(text), reverse=True):
        lines = "\n" * text.count("\n", start, end)
        text = f'{text[:start]}"{MASK}"{lines}{text[end:]}'
    return without_passwords(text)


def _secret_values(text: str) -> set[tuple[int, int]]:
    # Most files have no key `env`, and need not be parsed again. Only with escapes (a backslash) could the
    # key be spelt differently.
    if "env" not in text and "\\" not in text:
        return set()
    # Imported here and below because the commands that only read results do not need this parser.
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        # Use the same parser as for loading: text that a different one rejects would be stored with secrets.
        root = YAML(typ="safe", pure=True).compose(text)
    except (YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(
            "the matrix cannot be stored: it is no YAML, so that secrets in it cannot be found",
            remedy="correct the matrix file",
        ) from error
    found = set()
    envs = [(env, may_be_stored) for trial in _values(root, "trial") for env in _values(trial, "env")]
    for axis in (axis for axes in _values(root, "axes") for axis in _values(axes)):
        for build in _values(axis, "build"):
            envs += [(env, lambda *pair: not is_secret(*pair)) for env in _values(build, "env")]
    for env, may_be_shown in envs:
        found |= {
            (value.start_mark.index, value.end_mark.index)
            for key, value in _variables(env)
            if not isinstance(value.value, str) or not may_be_shown(str(key), value.value)
        }
    return found


def _variables(env: Any) -> list[tuple[Any, Any]]:
    """Return the variables in the YAML node of an `env`, each as a pair of name and value node.

    A node that is not a mapping is returned as one variable, whose name is the node's value.
    """
    from ruamel.yaml.nodes import MappingNode

    if isinstance(env, MappingNode):
        return [(key.value, value) for key, value in env.value]
    return [(env.value, env)] if env.value else []


def _values(node: Any, name: str | None = None) -> list[Any]:
    """Return the YAML nodes of the values in a mapping, or only those for the key `name`.

    Return an empty list if `node` is not a mapping.
    """
    from ruamel.yaml.nodes import MappingNode

    pairs = node.value if isinstance(node, MappingNode) else ()
    return [value for key, value in pairs if name is None or key.value == name]
