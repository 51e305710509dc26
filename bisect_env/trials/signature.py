"""Computes the signature of a failure, a text that is equal for equal failures. Pure.

A signature consists of the version of its format, the kind of failure (such as `crash:SIGSEGV`), the phase
of the script, and up to three frames of the stack, innermost first. Frames are normalised, so that signatures
can be compared between hosts and between releases of the packages. The signature of a CUDA error has only a
kind, because CUDA reports errors late, with the stack of a later call.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Sequence

from bisect_env.matrix.signatures import SIGNATURE_VERSION, SignatureParts, as_part, read_signature
from bisect_env.trials.classify import Classification, ExitRecord
from bisect_env.trials.records import Outcome
from bisect_env.trials.tracebacks import Frame

FRAMES = 3
"""Maximum number of frames in a signature."""
SIMILAR = 0.8
"""Similarity above which two frames count as equal; taken from ClusterFuzz (`crash_comparer.py`,
COMPARE_THRESHOLD). ClusterFuzz compares the mean over all frames. Here every pair of frames must be similar,
because different failures of one script often share their outermost frames."""
COMMON_RUN = 2
"""Number of equal neighbouring frames that make two failures equal, as in ClusterFuzz. Here they must include
the innermost frame of one of the two failures, because the outermost frames are often shared."""

_CUDA = frozenset(
    {Outcome.CUDA_FAULT, Outcome.CUDA_OOM, Outcome.CUDA_INIT, Outcome.GPU_LOST, Outcome.UNSUPPORTED}
)
_FAILURES = _CUDA | {
    *(Outcome.HANG, Outcome.CRASH, Outcome.RUNNER_ERROR, Outcome.IMPORT_ERROR, Outcome.EXIT_FAIL)
}


def signature(record: ExitRecord, found: Classification) -> str:
    """Return the signature of a failure: a text that is equal for equal failures.

    Return "" if the outcome is no failure of the script.

    Args:
        record: Exit record of the process.
        found: Classification of that record.
    """
    if found.outcome not in _FAILURES:
        return ""
    kind = f"{found.outcome}:{found.code}" if found.code else str(found.outcome)
    if found.outcome in _CUDA:
        return _write(kind, "", ())
    return _write(kind, str(found.phase), _frames(record, found))


def _write(kind: str, phase: str, frames: Sequence[str]) -> str:
    return SignatureParts(SIGNATURE_VERSION, as_part(kind), phase, tuple(map(as_part, frames))).stored()


def _frames(record: ExitRecord, found: Classification) -> tuple[str, ...]:
    frames: tuple[Frame, ...] = ()
    if found.outcome in (Outcome.CRASH, Outcome.HANG):
        if record.dump is not None and record.dump.current is not None:
            frames = record.dump.current.frames
    elif record.raised is not None:
        frames = record.raised.frames
    named = tuple(normalise_python(frame) for frame in frames if not frame.is_importlib)[:FRAMES]
    if named or found.outcome is not Outcome.CRASH:
        return named
    return (normalise_cause(record.abort_cause),) if record.abort_cause else ()


def normalise_python(frame: Frame) -> str:
    """Return a stack frame as text that is equal on all hosts, such as `package/module.py:function`.

    Line numbers and directories are left out.
    """
    file = frame.file
    for mark in ("/site-packages/", "/dist-packages/"):
        if mark in file:
            return f"{file.rpartition(mark)[2]}:{frame.function}"
    library = re.search(r"/lib(?:64)?/python\d\.\d+/(.*)$", file)
    if library:
        return f"{library[1]}:{frame.function}"
    return f"{file if file.startswith('<') else file.rpartition('/')[2]}:{frame.function}"


def normalise_cause(cause: str) -> str:
    """Return the message of an abort without the parts that vary, such as addresses.

    The program name, arguments and template parameters are left out, too.

    Args:
        cause: Line that a library printed before it called `abort()` (see `ExitRecord.abort_cause`).
    """
    cause = re.sub(r"^.*?: (?=\w+\(\))", "", cause)
    before = None
    while before != cause:  # removing a pair of parentheses may create another pair or an address
        before = cause
        for pattern in (r"0x[0-9a-fA-F]+", r"<[^<>]*>", r"\([^()]*\)"):
            while (shorter := re.sub(pattern, "", cause)) != cause:
                cause = shorter
    return re.sub(r"\s+", " ", cause).strip()


def matches(a: str, b: str) -> bool:
    """Return whether two stored signatures describe the same failure.

    Version and kind must be equal. In addition, one of these conditions must hold:

    * all frames are equal; if neither signature has frames, the phases are equal;
    * both contain the same two neighbouring frames, which are the two innermost of at least one of them;
    * both have the same number of frames, and each frame has a similarity above 0.8 to its counterpart, as
      after a function was renamed.

    An empty signature matches nothing.
    """
    if not a or not b:
        return False
    one, other = read_signature(a), read_signature(b)
    if (one.version, one.kind) != (other.version, other.kind):
        return False
    if one.frames == other.frames:
        return bool(one.frames) or one.phase == other.phase
    runs = set(itertools.pairwise(one.frames)) & set(itertools.pairwise(other.frames))
    innermost = {one.frames[:COMMON_RUN], other.frames[:COMMON_RUN]}
    if runs & innermost:
        return True
    return len(one.frames) == len(other.frames) and all(
        _similarity(x, y) > SIMILAR for x, y in zip(one.frames, other.frames, strict=True)
    )


def _similarity(a: str, b: str) -> float:
    """Return the similarity of two stack frames, from 0 to 1.

    It is the mean of the similarities of the file names and of the function names. Function names are
    compared word by word, because by letters `step_1` and `step_2` would be too similar.
    """
    file_a, _, name_a = a.rpartition(":")
    file_b, _, name_b = b.rpartition(":")
    files = difflib.SequenceMatcher(None, file_a, file_b, autojunk=False).ratio() if file_a != file_b else 1.0
    return (files + _shared_words(name_a, name_b)) / 2


def _shared_words(a: str, b: str) -> float:
    if a == b:
        return 1.0
    words_a, words_b = (re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+|[^\w\s]+", name) for name in (a, b))
    shared = sum(min(words_a.count(word), words_b.count(word)) for word in set(words_a))
    return 2 * shared / max(1, len(words_a) + len(words_b))
