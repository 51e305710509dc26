"""Write the tables of `docs/outcomes.md` from the code that decides outcomes.

python -m tools.outcomes_page
"""

from __future__ import annotations

import re
from pathlib import Path

from bisect_env.trials.outcome_table import cuda_table, outcomes_table, xid_table

PAGE = Path(__file__).parent.parent / "docs" / "outcomes.md"
TABLES = {"outcomes": outcomes_table, "cuda": cuda_table, "xids": xid_table}


def written(page: str) -> str:
    """The page with each table between its marks made anew.

    Raises:
        ValueError: A mark is missing.
    """
    for name, table in TABLES.items():
        begin, end = f"<!-- table {name}: written by tools/outcomes_page.py -->", "<!-- end of table -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if len(pattern.findall(page)) != 1:
            raise ValueError(f"{PAGE.name} must have `{begin}` and `{end}` once")
        text = f"{begin}\n\n{table()}\n\n{end}"
        page = pattern.sub(lambda _match, text=text: text, page)  # type: ignore[misc]
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
