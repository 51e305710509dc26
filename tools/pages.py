"""Parts of pages between marks, which scripts of this directory write."""

from __future__ import annotations

import re


def marked(page: str, name: str, script: str, content: str) -> str:
    """The page with what stands between two marks made anew.

    Args:
        page: Its text.
        name: Of the part.
        script: That writes it, as the mark names it.
        content: What is to stand there.

    Raises:
        ValueError: A mark is missing, or there twice.
    """
    begin, end = f"<!-- {name}: written by {script} -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if len(pattern.findall(page)) != 1:
        raise ValueError(f"the page must have `{begin}` and `{end}` once")
    return pattern.sub(lambda _match: f"{begin}\n\n{content}\n\n{end}", page)


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table of Markdown; a `|` in a cell is escaped."""
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines)
