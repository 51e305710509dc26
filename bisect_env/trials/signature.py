"""What makes two failures the same, in a text that can be stored and compared between releases.

A signature is a version, a kind, a phase and up to three normalised frames, most recent first. Stacks of
CUDA faults are late and wrong, so those have a kind alone.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Sequence

from bisect_env.trials.classify import Classification, signal_name
from bisect_env.trials.exit_record import ExitRecord
from bisect_env.trials.last_words import abort_cause
from bisect_env.trials.records import Outcome
from bisect_env.trials.tracebacks import Frame, final_traceback, parse_fatal_dump

VERSION = 1
"""To be raised with every change by which the same failure gets another signature."""
FRAMES = 3
SIMILAR = 0.8
"""ClusterFuzz's threshold for two stacks (`crash_comparer.py`, COMPARE_THRESHOLD)."""
COMMON_RUN = 2
"""ClusterFuzz's rule that two equal neighbouring frames make two crashes the same."""

_CUDA = frozenset(
    {Outcome.CUDA_FAULT, Outcome.CUDA_OOM, Outcome.CUDA_INIT, Outcome.GPU_LOST, Outcome.UNSUPPORTED}
)
_FAILURES = _CUDA | {Outcome.HANG, Outcome.CRASH, Outcome.IMPORT_ERROR, Outcome.EXIT_FAIL}


def signature(record: ExitRecord, found: Classification) -> str:
    """The signature of a failure; "" for outcomes that are none."""
    if found.outcome not in _FAILURES:
        return ""
    kind = _kind(record, found)
    if found.outcome in _CUDA:
        return _write(kind, "", ())
    return _write(kind, str(found.phase), _frames(record, found))


def _write(kind: str, phase: str, frames: Sequence[str]) -> str:
    return json.dumps([VERSION, kind, phase, *frames], separators=(",", ":"), ensure_ascii=False)


def _kind(record: ExitRecord, found: Classification) -> str:
    outcome = str(found.outcome)
    if found.outcome in _CUDA:
        return f"{outcome}:{found.detail.partition(':')[0]}"
    if found.outcome is Outcome.CRASH:
        return f"{outcome}:{signal_name(found.signal)}"
    if found.outcome is Outcome.HANG:
        return outcome
    traceback = final_traceback(record.stderr)
    if record.returncode == 1 and traceback is not None:
        return f"{outcome}:{traceback.exception}"
    return f"{outcome}:{record.returncode}"


def _frames(record: ExitRecord, found: Classification) -> tuple[str, ...]:
    if found.outcome in (Outcome.CRASH, Outcome.HANG):
        dump = parse_fatal_dump(record.stderr)
        frames = dump.current.frames if dump is not None and dump.current is not None else ()
    else:
        traceback = final_traceback(record.stderr) if record.returncode == 1 else None
        frames = traceback.frames if traceback is not None else ()
    named = tuple(normalise_python(frame) for frame in frames if not frame.is_importlib)[:FRAMES]
    if named or found.outcome is not Outcome.CRASH:
        return named
    cause = abort_cause(record.stderr)
    return (normalise_native(re.sub(r"^.*?: (?=\w+\(\))", "", cause)),) if cause else ()


def normalise_python(frame: Frame) -> str:
    """`package/module.py:function`: no line, no prefix, the same on every host and in every version."""
    file = frame.file
    for mark in ("/site-packages/", "/dist-packages/"):
        if mark in file:
            return f"{file.rpartition(mark)[2]}:{frame.function}"
    library = re.search(r"/lib(?:64)?/python\d\.\d+/(.*)$", file)
    if library:
        return f"{library[1]}:{frame.function}"
    return f"{file if file.startswith('<') else file.rpartition('/')[2]}:{frame.function}"


def normalise_native(name: str) -> str:
    """A C or C++ function without arguments, template parameters, addresses and lambda numbers."""
    name = re.sub(r"\[clone [^\]]*\]|\s*\(\.[^)]*\)|\.(?:isra|constprop|part|cold|llvm)\b[.\d]*", "", name)
    name = re.sub(r"0x[0-9a-fA-F]+", "", name)
    name = re.sub(r"\{lambda\(.*?\)#\d+\}|\{lambda#\d+\}|<lambda_?\w*>", "{lambda}", name)
    name = name.replace("(anonymous namespace)", "{anonymous}").replace("operator()", "operator{}")
    # `operator<`, `operator->` and their kin are names, not brackets.
    name = re.sub(r"operator(<=>|<<=?|>>=?|<=|>=|->\*?|<|>)", lambda m: f"operator{{{len(m[1])}}}", name)
    for pattern in (r"<[^<>]*>", r"\([^()]*\)"):
        while (shorter := re.sub(pattern, "", name)) != name:
            name = shorter
    name = re.sub(r"\+\s*$|\bconst\s*$", "", name.strip())
    return re.sub(r"\s+", " ", name).strip()


def matches(a: str, b: str) -> bool:
    """Whether two signatures are of the same failure.

    Equal, or of one kind with a common run of two frames or a mean similarity above 0.8. Signatures of
    different versions never match, nor does an empty one.
    """
    if not a or not b:
        return False
    if a == b:
        return True
    version_a, kind_a, _, *frames_a = json.loads(a)
    version_b, kind_b, _, *frames_b = json.loads(b)
    if (version_a, kind_a) != (version_b, kind_b) or not frames_a or not frames_b:
        return False
    runs = set(itertools.pairwise(frames_a)) & set(itertools.pairwise(frames_b))
    return bool(runs) or _similarity(frames_a, frames_b) > SIMILAR


def _similarity(a: Sequence[str], b: Sequence[str]) -> float:
    ratios = [difflib.SequenceMatcher(None, x, y, autojunk=False).ratio() for x, y in zip(a, b, strict=False)]
    return sum(ratios) / max(len(a), len(b))
