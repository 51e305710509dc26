"""Removes secrets from the text of a matrix file, which is stored and shown. Pure."""

from __future__ import annotations

import functools
import operator
from typing import Any

from bisect_env.errors import UsageError
from bisect_env.matrix.problems import Path
from bisect_env.secrets import MASK, is_secret, may_be_stored, without_passwords


def shared_matrix_text(text: str) -> str:
    """Replace the secrets in the text of a matrix file by `***`, so that the text can be stored and shown.

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
    # Imported here because the commands that only read results do not need this parser.
    from bisect_env.matrix import yaml_source

    # Use the same parser as for loading: text that a different one rejects would be stored with secrets.
    source = yaml_source.parse(text)
    if source.problems:
        raise UsageError(
            "the matrix cannot be stored: it is no YAML, so that secrets in it cannot be found",
            remedy="correct the matrix file",
        )
    return {
        span
        for path, span in source.spans.items()
        if _is_hidden(path, functools.reduce(operator.getitem, path, source.data))
    }


def _is_hidden(path: Path, value: Any) -> bool:
    """Return whether the value at a path of a matrix file is a secret that must not be shown.

    A missing value (`env:`) is no secret.
    """
    match path:
        case ("trial", "env") | ("axes", _, "build", "env"):
            return not isinstance(value, dict | None)
        case ("trial", "env", str(name)):
            return not isinstance(value, str | None) or not may_be_stored(name, value or "")
        case ("axes", _, "build", "env", str(name)):
            return not isinstance(value, str | None) or is_secret(name, value or "")
    return False
