from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_env.report.untrusted import clean, clean_lines, shortened


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain [bold]text[/bold]", "plain [bold]text[/bold]"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07rest", "rest"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b2Jgone", "gone"),
        ("\x1b]0;no end\nremedy: x", "0;no end remedy: x"),
        ("\x1bPq#0;2\x1b\\sixel", "sixel"),
        ("\x1b(B\x1b=\x1b>x", "x"),
        ("a\x1b", "a"),
        ("bell\x07 back\x08space nul\0", "bell backspace nul"),
        ("10%\r100%", "10% 100%"),
        ("one\n\n  two\t three", "one two three"),
        ("evil\u202etxt.exe \u2066x\u200b", "eviltxt.exe x"),
        ("line\u2028separator", "lineseparator"),
        ("naïve ☃ 日本 👩\u200d🔬", "naïve ☃ 日本 👩\u200d🔬"),
        ("lone \udc80 surrogate", "lone surrogate"),
    ],
)
def test_one_line(text: str, expected: str) -> None:
    assert clean(text) == expected


def test_lines_stay_lines() -> None:
    assert clean_lines("a\r\n  b\x1b[1A\rc\n") == "a\n  b\nc\n"


@given(st.text(st.characters(codec=None) | st.sampled_from("\x1b[]\x07\x9b;\\mPX^_0123"), max_size=60))
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    out = clean(text)
    bad = [c for c in out if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
    assert bad == []
    assert "\n" not in out
    assert clean(out) == out


def test_shortened() -> None:
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdefg", 6) == "abcde…"
