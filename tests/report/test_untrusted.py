from __future__ import annotations

import shlex
import subprocess
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_env.answers.untrusted import clean, clean_lines, command_line, shortened
from bisect_env.cli.output import own_command, to_repeat
from bisect_env.secrets import without_passwords


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


WORDS = st.lists(
    st.one_of(
        st.text(max_size=12),
        # What ends a quotation, what a terminal obeys, and what is masked, close together.
        st.text(alphabet="'\"\\\\`$;#)( \x1b[m\x9b\r\n\u202ea@:/=", max_size=12),
        st.sampled_from(["bisect-env run a", "'\x1b[31m'; touch x; '", "https://u:p'@host", "password=a'b"]),
    ),
    max_size=6,
)


@given(words=WORDS, db=st.text(min_size=1, max_size=8))
def test_a_printed_command_is_its_cleaned_words_and_nothing_more(words: list[str], db: str) -> None:
    wanted = [without_passwords(clean(word)) for word in words]
    line = command_line("bisect-env", "run", *words)
    assert shlex.split(line) == ["bisect-env", "run", *wanted]
    # Nothing that is taken out of a text before it is printed is left to be taken out.
    assert clean_lines(line) == line
    said = to_repeat(["run", "--db", db])
    if said.startswith("add "):
        options = said.removeprefix("add ").removesuffix(" to these commands")
        assert shlex.split(options) == ["--db", without_passwords(clean(db))]


@pytest.mark.parametrize(
    "path", ["m'\x1b[31m'; touch ran; '", "a'\u202e';touch ran;'", "a;b`touch ran`$(touch ran)"]
)
def test_a_pasted_command_runs_nothing_else(tmp_path: Path, path: str) -> None:
    line = command_line("bisect-env", "run", path)
    shown = clean_lines(without_passwords(line)).replace("bisect-env run", "printf '%s|'")
    done = subprocess.run(["sh", "-c", shown], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"{clean(path)}|"
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_is_kept_has_no_secret() -> None:
    given = ["run", "a>=1", "x.py", "--db", "postgresql://u:secret@h/d", "--env", "API_TOKEN=secret", "--env"]
    given += ["N=1", "--env=KEY=secret", "--index=https://u:secret@h/simple", "--db=secret"]
    assert own_command(given) == (
        "bisect-env run 'a>=1' x.py --env 'API_TOKEN=***' --env N=1 '--env=KEY=***' "
        "'--index=https://u:***@h/simple'"
    )


def test_options_of_the_own_command_of_a_user_are_kept() -> None:
    given = [
        "run",
        "-p",
        "a",
        "--db=mine",
        "--",
        "python",
        "x.py",
        "--db",
        "theirs",
        "--env",
        "API_TOKEN=secret",
    ]
    assert own_command(given) == "bisect-env run -p a -- python x.py --db theirs --env 'API_TOKEN=***'"
