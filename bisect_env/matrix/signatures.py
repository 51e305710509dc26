"""Converts signatures of failures between their displayed and their stored form. Pure.

A signature identifies a failure: equal failures have equal signatures. Reports and matrix files have its
displayed form:

    crash:SIGSEGV in teardown, at ctypes/__init__.py:string_at < main.py:crash (v2)

This contains the kind of failure, the phase of the script, the innermost frames of the stack, and the
version of the algorithm that computed the signature. The stored form in the database is a JSON list of the
same parts.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

SIGNATURE_VERSION = 2
"""Version of the algorithm. Increase it with every change that alters signatures, or which of them match."""
FROM_BAD_END = "from-bad-end"
"""Value of `signature` in a matrix that means the signature of the first failure of its `bad` combination."""
_BETWEEN = " < "
_TEXT = re.compile(
    r"(?P<kind>\S.*?)(?: in (?P<phase>start|import|body|teardown|unknown))?"
    r"(?:, at (?P<frames>\S.*?))? \(v(?P<version>\d+)\)"
)


@dataclass(frozen=True, slots=True)
class SignatureParts:
    """A failure signature split into its parts, such as the kind of failure and the stack frames.

    Attributes:
        version: Version of the algorithm that computed the signature.
        kind: Kind of failure, which begins with the outcome: `crash:SIGSEGV`, `exit-fail:ValueError`, `hang`.
        phase: Phase of the script in which it failed; "" for CUDA errors.
        frames: Innermost frames of the stack, innermost first, such as `main.py:crash`.
    """

    version: int
    kind: str
    phase: str
    frames: tuple[str, ...]

    @property
    def outcome(self) -> str:
        """Return the outcome of the failure, such as `crash` if the kind is `crash:SIGSEGV`."""
        return self.kind.partition(":")[0]

    def stored(self) -> str:
        """Return the signature in its stored form, a JSON list of its parts."""
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
    """Convert a kind of failure or a stack frame to text that may stand in a signature.

    The result is one line without ` < `, because this text separates frames in the displayed form.
    """
    return re.sub(r"\s+", " ", text).replace(_BETWEEN, "<").strip()


def shown(signature: str) -> str:
    """Return a stored failure signature as text for people to read.

    Text that is no signature is returned unchanged.
    """
    try:
        return str(read_signature(signature))
    except (ValueError, TypeError):
        return signature
