"""The signatures of failures as text that reports show and matrices name. Pure.

    crash:SIGSEGV in teardown, at ctypes/__init__.py:string_at < main.py:crash (v2)

The text is the whole signature: kind, phase, the innermost frames, and the version of the algorithm that made
it. In the database a signature is a JSON list of the same parts.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

SIGNATURE_VERSION = 2
"""To be raised with every change by which the same failure gets another signature, or matches others."""
FROM_BAD_END = "from-bad-end"
"""What a matrix says to take the signature of the first failure at its known bad end."""
_BETWEEN = " < "
_TEXT = re.compile(
    r"(?P<kind>\S.*?)(?: in (?P<phase>start|import|body|teardown|unknown))?"
    r"(?:, at (?P<frames>\S.*?))? \(v(?P<version>\d+)\)"
)


@dataclass(frozen=True, slots=True)
class SignatureParts:
    """The parts of a failure signature.

    Attributes:
        version: Version of the algorithm.
        kind: `crash:SIGSEGV`, `exit-fail:ValueError`, `hang`; it begins with the outcome.
        phase: Phase of the process, or "" if stacks do not show it (CUDA).
        frames: Normalised frames, innermost first.
    """

    version: int
    kind: str
    phase: str
    frames: tuple[str, ...]

    @property
    def outcome(self) -> str:
        """Return the outcome that the kind begins with."""
        return self.kind.partition(":")[0]

    def stored(self) -> str:
        """Return the signature in the form that the database stores."""
        parts = [self.version, self.kind, self.phase, *self.frames]
        return json.dumps(parts, separators=(",", ":"), ensure_ascii=False)

    def __str__(self) -> str:
        phase = f" in {self.phase}" if self.phase else ""
        frames = f", at {_BETWEEN.join(self.frames)}" if self.frames else ""
        return f"{self.kind}{phase}{frames} (v{self.version})"


def read_signature(text: str) -> SignatureParts:
    """Parse a signature in its stored or its displayed form.

    Raises:
        ValueError: The text has neither form.
    """
    if text.startswith("["):
        try:
            version, kind, phase, *frames = json.loads(text)
        except RecursionError:
            raise ValueError("nested too deeply for a signature") from None
        if not isinstance(version, int) or not all(isinstance(one, str) for one in (kind, phase, *frames)):
            raise ValueError("not the parts of a signature")
        return SignatureParts(version, kind, phase, tuple(frames))
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a signature as reports show it")
    frames = match["frames"].split(_BETWEEN) if match["frames"] else []
    return SignatureParts(int(match["version"]), match["kind"], match["phase"] or "", tuple(frames))


def as_part(text: str) -> str:
    """Return a kind or frame on one line and without the separator of parts."""
    return re.sub(r"\s+", " ", text).replace(_BETWEEN, "<").strip()


def shown(signature: str) -> str:
    """Return a stored signature in its displayed form; the text itself if it is no signature."""
    try:
        return str(read_signature(signature))
    except (ValueError, TypeError):
        return signature
