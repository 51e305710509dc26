"""Two runs of one failure match, failures at different places do not: on real logs and on recorded ones."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_env.matrix.signatures import SIGNATURE_VERSION, SignatureParts, read_signature, shown
from bisect_env.trials.classify import ExitRecord, classify
from bisect_env.trials.records import TrialRecord
from bisect_env.trials.signature import matches, signature
from bisect_env.trials.stacks import failing_frames
from tests.trials import dying
from tests.trials.test_deaths import FILES, command

Run = Callable[..., TrialRecord]
RECORDED = Path(__file__).with_name("recorded")

PLACES = [
    *(dying.crash_in_body, dying.crash_elsewhere, dying.crash_below_another_function, dying.crash_at_exit),
    *(dying.crash_in_a_thread, dying.crash_while_importing, dying.abort_of_cpp, dying.heap_corruption),
    *(dying.illegal_instruction, dying.bus_error, dying.division_by_zero),
    *(dying.exception, dying.another_exception, dying.import_error, dying.exit_code),
    dying.out_of_memory_under_a_limit,
    # From 3.14 on Python notices the end of the stack itself.
    *([dying.stack_overflow, dying.stack_overflow_of_a_thread] if sys.version_info < (3, 14) else []),
]
"""Ways and places to fail, eighteen before Python 3.14; nine of them are SIGSEGV."""


@pytest.mark.integration
def test_real_failures_match_themselves_and_nothing_else(run: Run) -> None:
    def fail(what: Callable[[], None]) -> str:
        return run(files=FILES, command=command(what.__name__)).signature

    first, second = ([fail(what) for what in PLACES] for _ in range(2))
    for one, again in zip(first, second, strict=True):
        assert matches(one, again), (one, again)
    for one, other in itertools.combinations(first, 2):
        assert not matches(one, other), (one, other)


def recorded_signatures() -> dict[str, str]:
    found = {}
    for path in sorted(RECORDED.glob("*.json")):
        record = ExitRecord(**json.loads(path.read_text("utf-8")))
        found[path.stem] = signature(record, classify(record))
    return found


SAME = {
    # One CUDA error is one kind of failure, whichever library met it.
    frozenset({"cupy_fork_after_init", "torch_fork_after_init"}),
    frozenset({"cupy_illegal_address", "torch_illegal_address"}),
    frozenset({"cupy_out_of_memory", "torch_out_of_memory"}),
}


def test_recorded_failures_match_what_they_should_and_nothing_else() -> None:
    found = recorded_signatures()
    assert len(found) >= 7
    assert all(found.values())
    for (name, one), (other_name, other) in itertools.combinations(found.items(), 2):
        same = frozenset({name, other_name}) in SAME
        assert matches(one, other) is same, (one, other)


def names_of(text: str) -> list[str]:
    return [frame.function for frame in failing_frames(text) if frame.function != "??"]


@pytest.mark.parametrize(
    ("name", "frames"),
    [
        # Below the handler, and below what raises the signal.
        ("handler", ["__strlen_evex", "string_at", "string_at"]),
        ("crash_in_a_thread", ["__strlen_evex", "string_at", "string_at"]),
        ("heap_corruption", ["_int_free", "__GI___libc_free", "ffi_call"]),
        ("division_by_zero", ["div", "ffi_call", "_call_function_pointer"]),
        ("abort_of_cpp", ["ffi_call", "_call_function_pointer", "_ctypes_callproc"]),
    ],
)
def test_recorded_native_stacks(name: str, frames: list[str]) -> None:
    assert names_of((RECORDED / "native" / f"{name}.txt").read_text("utf-8"))[:3] == frames


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("#0  f (x=1, y=0x2 <main>) at a.c:3", "f"),
        ("#1  0x00007f1 in ns::g<int, (a)2> (this=0x0, s=...) from /lib/x.so", "ns::g<int, (a)2>"),
        ("#2  operator() (this=<optimized out>) at /a b/c.cpp:4", "operator()"),
        ("#3  (anonymous namespace)::h () at x.cc:1", "(anonymous namespace)::h"),
        ("#4  0x0000555 in main ()", "main"),
        ("#5  0x0000555 in main", "main"),
        ("#6  <signal handler called>", ""),
        ("#7  0x00007f in ?? () from /lib/y.so", ""),
    ],
)
def test_frames_as_gdb_prints_them(line: str, name: str) -> None:
    assert names_of(line) == ([name] if name else [])


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert all(isinstance(name, str) for name in names_of(text))


# -- as text -------------------------------------------------------------------------------------------------

PART = st.text("abcxyz_./:<>()0123456789-", min_size=1, max_size=30)
PARTS = st.builds(
    SignatureParts,
    st.integers(0, 99),
    PART,
    st.sampled_from(["", "start", "import", "body", "teardown", "unknown"]),
    st.lists(PART, max_size=3).map(tuple),
)


@given(PARTS)
def test_what_is_shown_can_be_read_again(parts: SignatureParts) -> None:
    assert read_signature(str(parts)) == parts
    assert read_signature(parts.stored()) == parts
    assert shown(parts.stored()) == str(parts)


@pytest.mark.integration
def test_signatures_of_real_failures_can_be_copied(run: Run) -> None:
    for what in PLACES[:8]:
        stored = run(files=FILES, command=command(what.__name__)).signature
        assert read_signature(shown(stored)).stored() == stored
        assert shown(stored).endswith(f"(v{SIGNATURE_VERSION})")


@given(st.text())
def test_what_is_no_signature_is_said_to_be_none(text: str) -> None:
    try:
        read_signature(text)
    except ValueError:
        assert shown(text) == text


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (["x.py:f", "y.py:g", "m.py:main"], ["x.py:f", "y.py:g", "m.py:other"], True),
        # One more function inside, as when a version wraps another call.
        (["z.py:new", "x.py:f", "y.py:g"], ["x.py:f", "y.py:g", "m.py:main"], True),
        # The script's own frames are those of all its failures.
        (["x.py:f", "m.py:main", "m.py:<module>"], ["y.py:g", "m.py:main", "m.py:<module>"], False),
        (["m.py:step_1", "m.py:<module>"], ["m.py:step_2", "m.py:<module>"], False),
        (["m.py:crash_a"], ["m.py:crash_b"], False),
        # Renamed.
        (["t/nn.py:_forward", "m.py:main"], ["t/nn.py:_forward_impl", "m.py:main"], True),
        (["t/nn.py:dumps", "m.py:main"], ["t/nn.py:loads", "m.py:main"], False),
        (["x.py:f"], ["x.py:f", "y.py:g"], False),
        ([], [], True),
        ([], ["x.py:f"], False),
    ],
)
def test_which_frames_make_failures_the_same(a: list[str], b: list[str], same: bool) -> None:
    one, other = (SignatureParts(2, "crash:SIGSEGV", "body", tuple(frames)).stored() for frames in (a, b))
    assert matches(one, other) is same
    assert matches(other, one) is same
    assert not matches(one, SignatureParts(2, "crash:SIGBUS", "body", tuple(a)).stored())
    assert not matches(one, SignatureParts(1, "crash:SIGSEGV", "body", tuple(a)).stored())


@given(PARTS, PARTS)
def test_matching_is_symmetric(one: SignatureParts, other: SignatureParts) -> None:
    assert matches(one.stored(), other.stored()) is matches(other.stored(), one.stored())
    assert matches(one.stored(), one.stored())
