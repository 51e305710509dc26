"""Computes signatures: equal for equal failures, and comparable between releases. Pure.

A signature is a version, a kind, a phase and up to three normalised frames, innermost first. Stacks of CUDA
faults are late and wrong, so those have a kind alone.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Sequence

from bisect_env.matrix.signatures import SIGNATURE_VERSION, SignatureParts, as_part, read_signature
from bisect_env.trials.classify import Classification, ExitRecord, abort_cause
from bisect_env.trials.records import Outcome
from bisect_env.trials.tracebacks import PythonFrame

FRAMES = 3
SIMILAR = 0.8
"""ClusterFuzz's threshold (`crash_comparer.py`, COMPARE_THRESHOLD). Here each pair of frames has to be as
similar, not their mean: the outermost frames of all failures of one script are the same."""
COMMON_RUN = 2
"""ClusterFuzz's rule that so many equal neighbouring frames make two crashes the same; here they have to
include the innermost of one of the two, for the same reason."""

_CUDA = frozenset(
    {Outcome.CUDA_FAULT, Outcome.CUDA_OOM, Outcome.CUDA_INIT, Outcome.GPU_LOST, Outcome.UNSUPPORTED}
)
_FAILURES = _CUDA | {Outcome.HANG, Outcome.CRASH, Outcome.IMPORT_ERROR, Outcome.EXIT_FAIL}


def signature(record: ExitRecord, found: Classification) -> str:
    """Return the signature of a failure; "" for outcomes that are no failure."""
    if found.outcome not in _FAILURES:
        return ""
    kind = f"{found.outcome}:{found.code}" if found.code else str(found.outcome)
    if found.outcome in _CUDA:
        return _write(kind, "", ())
    return _write(kind, str(found.phase), _frames(record, found))


def _write(kind: str, phase: str, frames: Sequence[str]) -> str:
    return SignatureParts(SIGNATURE_VERSION, as_part(kind), phase, tuple(map(as_part, frames))).stored()


def _frames(record: ExitRecord, found: Classification) -> tuple[str, ...]:
    frames: tuple[PythonFrame, ...] = ()
    if found.outcome in (Outcome.CRASH, Outcome.HANG):
        if record.dump is not None and record.dump.current is not None:
            frames = record.dump.current.frames
    elif record.returncode == 1 and record.traceback is not None:
        frames = record.traceback.frames
    named = tuple(normalise_python(frame) for frame in frames if not frame.is_importlib)[:FRAMES]
    if named or found.outcome is not Outcome.CRASH:
        return named
    cause = abort_cause(record.stderr)
    return (normalise_cause(cause),) if cause else ()


def normalise_python(frame: PythonFrame) -> str:
    """Return `package/module.py:function`, without line and prefix, so that all hosts give the same text."""
    file = frame.file
    for mark in ("/site-packages/", "/dist-packages/"):
        if mark in file:
            return f"{file.rpartition(mark)[2]}:{frame.function}"
    library = re.search(r"/lib(?:64)?/python\d\.\d+/(.*)$", file)
    if library:
        return f"{library[1]}:{frame.function}"
    return f"{file if file.startswith('<') else file.rpartition('/')[2]}:{frame.function}"


def normalise_cause(cause: str) -> str:
    """Return the words of an abort without program, arguments, template parameters and addresses."""
    cause = re.sub(r"^.*?: (?=\w+\(\))", "", cause)
    before = None
    while before != cause:  # what is left when a pair is taken out may be one more, or an address
        before = cause
        for pattern in (r"0x[0-9a-fA-F]+", r"<[^<>]*>", r"\([^()]*\)"):
            while (shorter := re.sub(pattern, "", cause)) != cause:
                cause = shorter
    return re.sub(r"\s+", " ", cause).strip()


def matches(a: str, b: str) -> bool:
    """Return whether two stored signatures are of the same failure.

    They must have the same version and kind, and one of: equal frames; a common run of two frames that
    includes the innermost of one of them (the other has one more inside); or equally many frames, each
    similar by more than 0.8 to its counterpart (a function was renamed). Without frames the phase must be
    equal. An empty signature matches nothing.
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
    """Return the similarity of two frames: the mean of that of their files and that of their names.

    Names are compared by words; letters alone would make `step_1` and `step_2` equal.
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
