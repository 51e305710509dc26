"""Writes a commented matrix file to begin with. Pure.

What it says was checked by nobody yet: who writes it to a file loads it afterwards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

_UNSAFE = re.compile(r"[^a-z0-9_-]+")
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class PackageAnswer:
    """A package that is to be an axis.

    Attributes:
        name: Of the package.
        versions: A range such as `>=2.0,<2.6`, or versions between commas.
    """

    name: str
    versions: str

    @property
    def is_range(self) -> bool:
        """Whether the versions are a range and no list."""
        return any(sign in self.versions for sign in "<>=!~*")


@dataclass(frozen=True, slots=True)
class TemplateAnswers:
    """The answers from which a matrix is made.

    Attributes:
        packages: The axes.
        script: Relative path of the script, as the matrix names it.
        python: Version of Python.
        manager: `pypi` or `conda`.
        channels: Of conda.
        timeout: Of one trial, such as `60s`.
        gpus: That one trial needs.
        name: Of the study; "" for one made from the packages.
    """

    packages: Sequence[PackageAnswer]
    script: str
    python: str
    manager: str = "pypi"
    channels: Sequence[str] = ()
    timeout: str = "60s"
    gpus: int = 0
    name: str = ""

    @property
    def study(self) -> str:
        """The name of the study."""
        named = self.name or "_".join(package.name for package in self.packages)
        return _UNSAFE.sub("_", named.lower()).strip("_-") or "study"


def template(answers: TemplateAnswers) -> str:
    """The text of a matrix file."""
    names = " × ".join(package.name for package in answers.packages)
    first = answers.packages[0]
    lines = [
        f"# From which version of {names} on does the script fail?",
        "# `bisect-env plan FILE` shows what this asks for, `bisect-env run FILE` answers it.",
        "version: 1",
        f"name: {answers.study}",
        f"description: {_quoted(f'{answers.script} fails since some version of {names}')}",
        "",
        "# Every combination of these values is an environment. The first axis may be the longest.",
        "axes:",
        *_python_axis(answers),
    ]
    for package in answers.packages:
        lines += _axis(package, answers.manager)
    if answers.manager == "conda":
        channels = ", ".join(_quoted(channel) for channel in answers.channels or ("conda-forge",))
        lines += ["", f"channels: [{channels}]    # most important first; a package comes from the first"]
    other = "[cuda-version 12.8]" if answers.manager == "conda" else '["numpy<2"]'
    key = f"packages: {{conda: {other}}}" if answers.manager == "conda" else f"packages: {other}"
    lines += [
        "",
        f"# What every environment holds besides: {key}",
        "# Leave out what cannot work:",
        "# exclude:",
        f"#   - {{when: {{{_key(first.name)}: '<2'}}, why: 'needs an older Python'}}",
        "",
        "trial:",
        f"  command: {_quoted(f'python {answers.script}')}",
        f"  files: [{_quoted(answers.script)}]    # copied into a fresh directory for each trial",
        f"  timeout: {answers.timeout}    # a trial that takes longer hangs, and fails",
    ]
    if answers.gpus:
        lines.append(f"  gpus: {answers.gpus}    # each trial sees exactly so many")
    lines += [
        "  # Which failures count; default: crash, hang, cuda-fault, import-error and exit-fail.",
        "  # bad: {outcomes: [crash]}",
        "",
        "# Ends that you know already, tested first:",
        f"# good: {{{_key(first.name)}: '…'}}",
        f"# bad: {{{_key(first.name)}: '…'}}",
        "",
        "search:",
        "  confidence: 0.95        # probability with which the verdict should be right",
        "  min_crash_rate: 0.02    # failures rarer than this need not be found",
        "  # budget: 2h            # stop after so long, with the best answer by then",
    ]
    return "\n".join(lines) + "\n"


def _python_axis(answers: TemplateAnswers) -> list[str]:
    if any(package.name == "python" for package in answers.packages):
        return []
    manager = ", manager: conda" if answers.manager == "conda" else ""
    return [f"  python: {{package: python{manager}, versions: [{_quoted(answers.python)}]}}"]


def _axis(package: PackageAnswer, manager: str) -> list[str]:
    lines = [f"  {_key(package.name)}:", f"    package: {package.name}"]
    if manager == "conda":
        lines.append("    manager: conda")
    if package.is_range:
        lines += [
            f"    versions: {_quoted(package.versions)}",
            "    step: minor    # the newest of each minor version, then all around the answer; or every",
        ]
    else:
        versions = [part.strip() for part in package.versions.split(",") if part.strip()]
        lines.append(f"    versions: [{', '.join(_quoted(version) for version in versions)}]")
    lines.append("    direction: regression    # bad from some version on; or fixed, either, unordered")
    return lines


def _key(name: str) -> str:
    return name.lower().replace(".", "-")


def _quoted(text: str) -> str:
    # A JSON text is a YAML text.
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def script_template(packages: Sequence[str]) -> str:
    """A script to begin with, where there is none yet."""
    imports = "\n".join(f"import {name.replace('-', '_')}" for name in packages if name != "python")
    return f'''"""Shows the failure: the exit status counts, and nothing else (0 passes, 125 skips)."""

{imports}

# Put here what fails, as short as you can make it; an assert is enough.
'''
