"""The reference is what the code says, and the documentation builds as a site without a warning."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bisect_env.errors import EXIT_CODES, ExitCode
from bisect_env.report.model import Report
from tests.test_architecture import MAY_IMPORT
from tools import reference_pages
from tools.import_graph import imports, layers, needed
from tools.pages import marked, table

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def test_pages_are_as_the_code_has_it() -> None:
    written = reference_pages.written()
    stale = [path.name for path, text in written.items() if path.read_text("utf-8") != text]
    assert stale == [], "run `make reference`"


def test_every_exit_code_is_explained() -> None:
    assert set(EXIT_CODES) == set(ExitCode)
    assert list(EXIT_CODES) == sorted(EXIT_CODES)


def test_a_part_needs_its_marks() -> None:
    page = "a\n<!-- x: written by s -->\nold\n<!-- end of x -->\nb\n"
    assert (
        marked(page, "x", "s", "new | \\1")
        == "a\n<!-- x: written by s -->\n\nnew | \\1\n\n<!-- end of x -->\nb\n"
    )
    for broken in ("a\n", page + page, page.replace("end of x", "end of y")):
        with pytest.raises(ValueError, match="must have"):
            marked(broken, "x", "s", "new")
    assert table(("a",), [("x|y",)]) == "| a |\n|---|\n| x\\|y |"


def test_the_picture_of_imports_has_no_circle_and_leaves_nothing_out() -> None:
    order = [package for row in layers() for package in row]
    assert set(order) == set(MAY_IMPORT) - {"__main__"}
    drawn = needed()
    # What is drawn implies every import there is.
    reach = {package: {package} for package in order}
    for package in order:
        for above, below in drawn:
            if above == package:
                reach[package] |= reach[below]
    for package, names in imports().items():
        assert names <= reach[package]
        assert names <= MAY_IMPORT[package]


def test_every_key_of_the_report_is_explained(tmp_path: Path) -> None:
    page = (DOCS / "reference" / "report.md").read_text("utf-8")
    explained = {key for path in re.findall(r"`([\w.]+)`", page) for key in path.split(".")}
    keys: set[str] = set()

    def collect(schema: dict[str, object]) -> None:
        for name, value in schema.items():
            if name == "properties" and isinstance(value, dict):
                keys.update(value)
            if isinstance(value, dict):
                collect(value)

    collect(Report.model_json_schema(by_alias=True))
    assert keys - explained == set()


@pytest.mark.slow
@pytest.mark.integration
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            "--fail-on-warning",
            "--keep-going",
            "-q",
            "-b",
            "html",
            "-d",
            str(tmp_path / "trees"),
            str(DOCS),
            str(tmp_path / "site"),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    built = {
        str(p.relative_to(tmp_path / "site").with_suffix("")) for p in (tmp_path / "site").rglob("*.html")
    }
    pages = {str(p.relative_to(DOCS).with_suffix("")) for p in DOCS.rglob("*.md") if "_site" not in p.parts}
    assert pages <= built
    # Read on a host without a network: nothing that a page needs comes from elsewhere.
    for page in (tmp_path / "site").rglob("*.html"):
        text = page.read_text("utf-8")
        assert not re.findall(r"<(?:script|img|iframe)[^>]+src=\"(?:https?:)?//", text), page.name
        assert not re.findall(r"<link[^>]+rel=\"stylesheet\"[^>]+href=\"(?:https?:)?//", text), page.name
