"""Makes text from scripts, solvers and matrix files harmless for terminals, shells and Markdown. Pure."""

from __future__ import annotations

import csv
import io
import re
import shlex
import unicodedata
from collections.abc import Iterable, Sequence

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
    """Return the text without escape sequences and control characters; its lines stay lines.

    A carriage return ends a line: what it would have hidden on a terminal is shown.
    """
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n").expandtabs(4)
    return "".join(c for c in text if c == "\n" or c in _JOINERS or unicodedata.category(c) not in _DANGEROUS)


LINE_WIDTH = 2000
"""Characters of a line that are shown: browsers, and readers of CI, stand still over one of a megabyte."""


def shown_lines(text: str) -> str:
    """Return harmless text with lines cut to a length that can be shown."""
    return "\n".join(shortened(line, LINE_WIDTH) for line in clean_lines(text).split("\n"))


def clean(text: str) -> str:
    """Return harmless text on a single line, so that it cannot forge further lines."""
    return " ".join(clean_lines(text).split())


def command_line(*words: str) -> str:
    """Return a command to paste into a POSIX shell; every command that is printed is made here.

    Each word loses escapes, control characters and passwords before it is quoted: text that is taken out of a
    quoted word later can end the quotation, and the rest of the word would be run.
    """
    return shlex.join(without_passwords(clean(word)) for word in words)


def comma_separated(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return comma-separated values whose texts no terminal obeys and no spreadsheet takes for formulas.

    Args:
        names: Of the columns, for the first line.
        rows: Texts are made harmless; other values are written as they are.
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
    """Return at most `width` characters of a text; the rest shows as `…`."""
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"


def escaped(text: str) -> str:
    """Return one line of Markdown that no renderer takes for markup, a link or a mention."""
    text = _SPECIAL.sub(r"\\\1", text.replace("&", "&amp;"))
    # A word joiner, which cannot be seen, keeps others from being notified, and addresses from being links.
    return text.replace("@", "@\N{WORD JOINER}").replace("://", ":\N{WORD JOINER}//")
