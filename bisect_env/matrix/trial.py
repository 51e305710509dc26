"""What the matrix file says about one trial, and how its command is filled in. Pure."""

from __future__ import annotations

import shlex
import string
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from bisect_env.matrix.axes import StrictModel
from bisect_env.matrix.scalars import EnvName, ExitStatus, Regex, Seconds, SignalNumber, Text, Value
from bisect_env.matrix.signatures import FROM_BAD_END, SIGNATURE_VERSION, read_signature

TargetOutcome = Literal[
    "crash", "hang", "cuda-fault", "cuda-oom", "cuda-init", "import-error", "exit-fail", "host-oom"
]
"""The outcomes that may be what a study looks for. A pass, a skip and trouble of the machine may not."""

DEFAULT_TARGET: tuple[TargetOutcome, ...] = ("crash", "hang", "cuda-fault", "import-error", "exit-fail")

SKIP_EXIT_CODE = 125
"""git's convention: the script says that it can learn nothing here."""


class TargetRule(StrictModel):
    """Which failures are the one that the study is about; every condition given must hold.

    `signals` narrows crashes, `exit_codes` narrows exit-fail and import-error, `output` and `signature`
    narrow all.
    """

    outcomes: Annotated[tuple[TargetOutcome, ...], Field(min_length=1)] = Field(
        default=DEFAULT_TARGET, description="The outcome is one of these."
    )
    signals: tuple[SignalNumber, ...] = Field(
        default=(), description="A crash counts only when it died by one of these signals (all, when empty)."
    )
    exit_codes: tuple[ExitStatus, ...] = Field(
        default=(), description="A failed exit counts only with one of these codes (all, when empty)."
    )
    output: tuple[Regex, ...] = Field(
        default=(),
        description="The failure counts only when stdout or stderr matches one of these regular expressions.",
    )

    signature: Text = Field(
        default="",
        description="The failure counts only when its signature matches this one, copied from a report; "
        "`from-bad-end`: that of the first failure at the known bad end (any, when empty).",
    )

    @model_validator(mode="after")
    def _signature_can_match(self) -> Self:
        if not self.signature or self.signature == FROM_BAD_END:
            return self
        try:
            parts = read_signature(self.signature)
        except ValueError:
            raise ValueError(
                f"{self.signature!r} is no signature; copy one from a report "
                f"(`crash:SIGSEGV in body, at a.py:f (v{SIGNATURE_VERSION})`), or say `{FROM_BAD_END}`"
            ) from None
        if parts.version != SIGNATURE_VERSION:
            raise ValueError(
                f"the signature is of version {parts.version}, and this release compares those of version "
                f"{SIGNATURE_VERSION}; copy it from a report of this release"
            )
        if parts.outcome not in self.outcomes:
            raise ValueError(
                f"the signature is of a {parts.outcome}, which `outcomes` lacks; add it, or correct it"
            )
        return self

    @model_validator(mode="after")
    def _codes_can_happen(self) -> Self:
        if SKIP_EXIT_CODE in self.exit_codes:
            raise ValueError(
                f"exit code {SKIP_EXIT_CODE} means 'skip this combination' and never counts; remove it"
            )
        if self.signals and "crash" not in self.outcomes:
            raise ValueError(
                "`signals` narrows crashes, and `outcomes` has no crash; add it or remove `signals`"
            )
        if self.exit_codes and not {"exit-fail", "import-error"} & set(self.outcomes):
            raise ValueError(
                "`exit_codes` narrows exit-fail, and `outcomes` lacks it; add it or remove `exit_codes`"
            )
        return self


def _split_command(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise ValueError(f"the command cannot be split into words ({error}); close the quotes") from None


def _text_is_one(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


class Trial(StrictModel):
    """How the script is run once."""

    command: Annotated[
        tuple[str, ...],
        BeforeValidator(_split_command),
        WithJsonSchema({"type": ["string", "array"], "items": {"type": ["string", "number"]}}),
    ] = Field(
        default=(),
        description="Program and arguments, as one text (split as a shell would) or a list. "
        "`{axis}` stands for the axis's value, `{{` and `}}` for braces. Default: python and the first file.",
    )
    files: Annotated[
        tuple[Text, ...],
        BeforeValidator(_text_is_one),
        WithJsonSchema({"type": ["string", "array"], "items": {"type": "string"}}),
    ] = Field(
        default=(),
        description="Files the script needs, relative to the matrix file; they keep their relative paths.",
    )
    timeout: Seconds = Field(
        default=60.0, description="Limit of wall-clock time: seconds, or a text like 90s or 2m."
    )
    concurrency: int = Field(
        default=1, ge=1, le=1024, description="Copies started at once on one worker; together one trial."
    )
    repeat_within: int = Field(
        default=1,
        ge=1,
        le=100_000,
        description="How often the script's body is run within one process, until it fails: for scripts that "
        "take longer to start than to run.",
    )
    env: dict[EnvName, Value] = Field(default_factory=dict, description="Environment variables to add.")
    gpus: int = Field(default=0, ge=0, le=64, description="GPUs that one trial needs.")
    bad: TargetRule = Field(default_factory=TargetRule, description="Which failures count as bad.")

    @model_validator(mode="after")
    def _something_to_run(self) -> Self:
        if not self.command and not self.files:
            raise ValueError("the trial has nothing to run; add `command`, or `files` with the script first")
        if self.repeat_within > 1 and not runs_python_body(self.effective_command):
            raise ValueError(
                "`repeat_within` runs a Python script's body again, and the command is none; "
                "write `python SCRIPT ...`, `python -m MODULE ...` or remove it"
            )
        return self

    @property
    def effective_command(self) -> tuple[str, ...]:
        """The command with its default filled in, placeholders as they are."""
        return self.command or ("python", _braces_kept(self.files[0]))

    @property
    def scripts(self) -> tuple[str, ...]:
        """Arguments that name a script beside the matrix file: carried even where `files` lacks them."""
        return tuple(
            word
            for word in self.effective_command
            if word.endswith((".py", ".sh"))
            and not word.startswith(("-", "/"))
            and not placeholders(word)
            and not any(character.isspace() for character in word)
        )

    @property
    def file_names(self) -> tuple[str, ...]:
        """Every file to carry, `files` first, in normal form and without duplicates."""
        names = (*self.files, *(unbraced(script) for script in self.scripts))
        return tuple(dict.fromkeys(str(PurePosixPath(name)) for name in names))


def runs_python_body(command: Sequence[str]) -> bool:
    """Whether a command is Python with a script, a module or code: what can be run again within a process."""
    name = command[0].rpartition("/")[2]
    return name.startswith("python") and any(
        word in ("-m", "-c") or not word.startswith("-") for word in command[1:]
    )


def _braces_kept(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def unbraced(word: str) -> str:
    """A word without placeholders as the script's command line will have it."""
    return word.replace("{{", "{").replace("}}", "}")


def placeholders(word: str) -> tuple[str, ...]:
    """The axis names between braces.

    Raises:
        ValueError: A brace stands alone, or more than a name stands between two; the message names a remedy.
    """
    refusal = f"{word!r} has a brace that is no placeholder; write {{axis}}, or {{{{ and }}}} for braces"
    try:
        fields = [field[1:] for field in string.Formatter().parse(word) if field[1] is not None]
    except ValueError:
        raise ValueError(refusal) from None
    names = []
    for name, spec, conversion in fields:
        if not name or spec or conversion:
            raise ValueError(refusal)
        names.append(name)
    return tuple(names)


def fill(command: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Put the values of a combination into a command; each word stays one word.

    Raises:
        KeyError: A placeholder names no axis (the loader has refused that).
    """
    filled = []
    for word in command:
        parts = []
        for literal, name, _, _ in string.Formatter().parse(word):
            parts.append(literal)
            if name is not None:
                parts.append(values[name])
        filled.append("".join(parts))
    return tuple(filled)


def variable(axis: str) -> str:
    """The environment variable that carries an axis's value: `cuda-arch` is `BISECT_ENV_CUDA_ARCH`."""
    return "BISECT_ENV_" + axis.upper().replace("-", "_")
