from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bisect_env.trials.classify import ExitRecord, classify
from bisect_env.trials.signature import matches, normalise_cause, normalise_python, signature
from bisect_env.trials.tracebacks import Frame


def dump(*frames: str, reason: str = "Segmentation fault", python: str = "3.11") -> str:
    lines = [f"Fatal Python error: {reason}\n", "Current thread 0x00007f29c2733b80 (most recent call first):"]
    for number, frame in enumerate(frames):
        function, _, file = frame.partition(" ")
        path = file.replace("@", f"/opt/{python}/lib/python{python}/site-packages/")
        lines.append(f'  File "{path}", line {number + 7} in {function}')
    return "\n".join(lines) + "\n"


def sign(stderr: str, code: int = -11, **changes: object) -> str:
    record = ExitRecord(returncode=code, stderr=stderr, **changes)  # type: ignore[arg-type]
    return signature(record, classify(record))


def test_a_crash_has_kind_phase_and_three_frames() -> None:
    text = dump(
        "predict @xgboost/core.py", "call @xgboost/sklearn.py", "main /w/main.py", "<module> /w/main.py"
    )
    assert sign(text) == (
        '[2,"crash:SIGSEGV","body","xgboost/core.py:predict","xgboost/sklearn.py:call","main.py:main"]'
    )


def test_lines_prefixes_and_python_versions_do_not_matter() -> None:
    frames = ("f @a/b.py", "g @a/c.py", "<module> /w/main.py")
    assert sign(dump(*frames, python="3.9")) == sign(dump(*frames, python="3.13"))


def test_matching() -> None:
    one = sign(dump("f @a/b.py", "g @a/c.py", "h @a/d.py", "<module> /w/main.py"))
    deeper = sign(dump("inner @a/z.py", "f @a/b.py", "g @a/c.py", "<module> /w/main.py"))
    renamed = sign(dump("f2 @a/b.py", "g2 @a/c.py", "h2 @a/d.py", "<module> /w/main.py"))
    elsewhere = sign(dump("x @q/r.py", "y @q/s.py", "<module> /w/main.py"))
    aborted = sign(dump("f @a/b.py", "g @a/c.py", "h @a/d.py", "<module> /w/m.py", reason="Aborted"), -6)
    assert matches(one, one)
    assert matches(one, deeper)
    assert matches(one, renamed)
    assert not matches(one, elsewhere)
    assert not matches(one, aborted)
    assert not matches("", "")
    assert not matches(one, one.replace("[2,", "[1,"))


def test_hangs_match_whether_idle_or_busy() -> None:
    text = dump("wait @a/b.py", "<module> /w/main.py", reason="Aborted")
    idle, busy = (sign(text, -6, timed_out=True, killed_by_us=True, cpu_rate=rate) for rate in (0.0, 2.0))
    assert idle == busy
    assert idle.startswith('[2,"hang",')


def test_cuda_faults_are_grouped_by_kind_alone() -> None:
    frame = 'Traceback (most recent call last):\n  File "/w/main.py", line {}, in {}\n    x()\n'
    first, second = (
        sign(frame.format(line, name) + "RuntimeError: CUDA error: misaligned address\n", 1)
        for line, name in ((3, "f"), (9, "g"))
    )
    assert first == second == '[2,"cuda-fault:CUDA error 716 (cudaErrorMisalignedAddress)",""]'


def test_a_note_for_people_changes_no_signature() -> None:
    alone = sign("", 1, xids=(79,))
    assert alone.startswith('[2,"gpu-lost:Xid 79 (')
    assert sign("", 1, xids=(79,), left_over=2, oom_kills=1) == alone


def test_aborts_without_a_python_stack_are_told_apart_by_their_last_words() -> None:
    corrupt, thrown = (
        sign("free(): invalid pointer\n", -6),
        sign("terminate called without an exception\n", -6),
    )
    assert not matches(corrupt, thrown)
    assert matches(corrupt, sign("noise\nfree(): invalid pointer\n", -6))


def test_exceptions_are_told_apart_by_type_and_place() -> None:
    text = 'Traceback (most recent call last):\n  File "/w/main.py", line 3, in <module>\n    f()\n{}: m\n'
    assert sign(text.format("ValueError"), 1) != sign(text.format("KeyError"), 1)
    assert sign("", 3) != sign("", 4)
    assert sign("", 0) == sign("", 125) == sign("", -9) == ""


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        ("free(): invalid pointer", "free: invalid pointer"),
        ("python: malloc(): corrupted top size", "malloc: corrupted top size"),
        ("*** Error in `python': double free: 0x00007f2a10 ***", "*** Error in `python': double free: ***"),
        ("a.cc:3: T f(V<int>) [T = X]: Assertion `x' failed.", "a.cc:3: T f [T = X]: Assertion `x' failed."),
    ],
)
def test_words_of_aborts(cause: str, expected: str) -> None:
    assert normalise_cause(cause) == expected


@given(st.text(alphabet="ab<>(){}:* 0x#"))
@example("0<<>>x0")
@example("00x0x0")
def test_any_words_can_be_normalised_and_keep_no_brackets_that_match(words: str) -> None:
    found = normalise_cause(words)
    assert not re.search(r"<[^<>]*>|\([^()]*\)|0x[0-9a-f]", found)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/p/lib/python3.11/site-packages/torch/nn/module.py", "torch/nn/module.py:f"),
        ("/usr/lib/python3/dist-packages/numpy/core.py", "numpy/core.py:f"),
        ("/usr/lib64/python3.12/threading.py", "threading.py:f"),
        ("/tmp/bisect-env-x1/work/main.py", "main.py:f"),
        ("main.py", "main.py:f"),
        ("<string>", "<string>:f"),
    ],
)
def test_python_frames(file: str, expected: str) -> None:
    assert normalise_python(Frame("f", file, 3)) == expected
