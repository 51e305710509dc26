"""Make text from scripts, solvers and matrix files harmless for terminals, shells and Markdown. Pure."""

from __future__ import annotations

import csv
import io
import re
import shlex
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TextIO

from bisect_env.secrets import without_passwords

# What a terminal obeys: CSI (ESC [ … letter), OSC and its like (ESC ] … BEL or ST), and two-letter escapes,
# each also in its one-character C1 form. One without its end would hide whatever follows: it loses its
# beginning and stays visible.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]?"
)
# Controls, and format characters, which can reorder what is read (U+202E) or hide in it.
_DANGEROUS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = frozenset("\u200c\u200d")
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def clean_lines(text: str) -> str:
    """Return the text without escape sequences and control characters, but with its line breaks.

    A carriage return becomes a line break, so that text which it would have hidden on a terminal is visible.
    """
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n").expandtabs(4)
    return "".join(c for c in text if c == "\n" or c in _JOINERS or unicodedata.category(c) not in _DANGEROUS)


LINE_WIDTH = 2000
"""Maximum number of characters of a line that is shown. Browsers and CI log viewers freeze at lines of a
megabyte."""


def shown_lines(text: str) -> str:
    """Clean a text as `clean_lines` does, cut each line to `LINE_WIDTH` characters, and return the result."""
    return "\n".join(shortened(line, LINE_WIDTH) for line in clean_lines(text).split("\n"))


def clean(text: str) -> str:
    """Clean a text as `clean_lines` does, and join its lines, so that it cannot pose as further output."""
    return " ".join(clean_lines(text).split())


def write(text: str, stream: TextIO) -> None:
    """Write a text at once. Characters that the stream's encoding lacks become `?`."""
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()


def command_line(*words: str) -> str:
    """Return a command that can be pasted into a POSIX shell.

    Every command that is printed is made by this function. Each word is stripped of escape sequences, control
    characters and passwords before it is quoted. This order matters: removing text from a quoted word could
    end the quotation, and the rest of the word would be run.
    """
    return shlex.join(without_passwords(clean(word)) for word in words)


def comma_separated(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as comma-separated values, with texts that are harmless to terminals and spreadsheets.

    Args:
        names: Names of the columns, for the first line.
        rows: The rows. Texts are made harmless (no escape sequences, no formulas); other values stay as they
            are.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in (names, *rows):
        writer.writerow([_no_formula(cell) if isinstance(cell, str) else cell for cell in row])
    return text.getvalue()


def _no_formula(text: str) -> str:
    text = clean(text)
    return f"'{text}" if text[:1] in tuple("=+-@") else text


def shortened(text: str, width: int) -> str:
    """Return the text, cut to at most `width` characters. A text that was cut ends in `…`."""
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"


def escaped(text: str) -> str:
    """Return one line of text, escaped so that Markdown shows it literally: no markup, links or mentions."""
    text = _SPECIAL.sub(r"\\\1", text.replace("&", "&amp;"))
    # An invisible word joiner prevents mentions from notifying people, and addresses from becoming links.
    return text.replace("@", "@\N{WORD JOINER}").replace("://", ":\N{WORD JOINER}//")
