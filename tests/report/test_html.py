"""The page in a real browser: what a person sees, points at and reaches, and what never happens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from bisect_env.report.build import load_report
from bisect_env.report.html import MOST_CELLS, heat_map, html_text, policy
from bisect_env.report.markdown import markdown_text
from bisect_env.report.model import Report
from bisect_env.report.words import matrix_grid
from bisect_env.storage.store import Store
from tests.browser import browser_page
from tests.engine.studies import PYTHON, Studies
from tests.report.samples import StudyBuilder, axis, hostile_study, orjson_study, orjson_verdict, verdict

__all__ = ["browser_page"]

EVIL = "</pre></script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        yield store


def opened(page: Page, report: Report, folder: Path) -> list[str]:
    """Open a report as a file, without a network; whatever the browser complains of, and asks for."""
    path = folder / "report.html"
    path.write_text(html_text(report), encoding="utf-8")
    noticed: list[str] = []
    page.on("console", lambda message: noticed.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: noticed.append(str(error)))
    page.on("request", lambda r: None if r.url == path.as_uri() else noticed.append(r.url))
    page.context.set_offline(True)
    page.goto(path.as_uri())
    return noticed


@pytest.mark.slow
@pytest.mark.integration
def test_a_real_study_that_prints_scripts(browser_page: Page, tmp_path: Path) -> None:
    studies = Studies(tmp_path)
    script = f"""
        import sys
        print({EVIL!r})
        if int(sys.argv[1]) >= 2:
            raise RuntimeError({EVIL!r})
    """
    axes = (
        "level: {values: [0, 1, 2, 3]}\n"
        "mode: {values: [fast, slow], direction: unordered}\n"
        "size: {values: [small, large], direction: unordered}"
    )
    rest = "exclude:\n  - {when: {level: 3, mode: slow}, why: 'the machine <b>burns</b>'}"
    studies.run(studies.matrix(script, axes=axes, rest=rest))
    with Store.open(str(studies.db)) as store:
        report = load_report(store, store.study().id)
    page = browser_page
    noticed = opened(page, report, tmp_path)
    # The verdict comes first, and the page is about it.
    assert page.inner_text("h1") == report.sentence
    assert page.inner_text("body").split("\n\n")[0].strip().endswith(report.sentence)
    assert page.inner_text("h1").startswith("level 2 is the first bad value (last good 1)")
    # What the trials printed is read as text, to the last character, and did nothing.
    assert EVIL in page.inner_text("pre >> nth=0")
    # The question is data, which a browser does not run.
    assert page.locator("script:not([type='application/json'])").count() == 1
    assert page.locator("img").count() == 0
    assert page.title() == "planted: report"
    # A slice for each mode and size; the controls choose, and begin with that of the first bad combination.
    sections = page.locator(".slices > section")
    assert sections.count() == 2
    assert sections.filter(visible=True).count() == 1
    page.get_by_label("size", exact=True).select_option(label="all")
    assert sections.filter(visible=True).count() == 2
    page.get_by_label("size", exact=True).select_option(label="large")
    assert sections.filter(visible=True).count() == 1
    page.get_by_label("size", exact=True).select_option(label=(report.verdict.first_bad or {})["size"])
    # Cells can be pointed at …
    mode = (report.verdict.first_bad or {})["mode"]
    first_bad = page.get_by_role("img", name=re.compile(f"level=2 mode={mode} .*; first bad;")).filter(
        visible=True
    )
    first_bad.hover()
    said = page.locator(".said")
    assert "first bad" in said.inner_text()
    assert re.search(r"\d+ of \d+ trials bad \(100 %, 95 % interval", said.inner_text())
    assert first_bad.get_attribute("title") == said.inner_text()
    # … reached with the keyboard …
    page.locator(".slices .scroll").filter(visible=True).first.focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == said.inner_text()
    page.keyboard.press("ArrowLeft")
    assert "level=1" in said.inner_text()
    assert "0 %" in said.inner_text()
    # … and what could not be tried is hatched, with its reason.
    hatched = page.get_by_role("img", name=re.compile("level=3 mode=slow")).filter(visible=True)
    assert "excluded: the machine <b>burns</b>" in (hatched.get_attribute("aria-label") or "")
    assert "gradient" in str(hatched.evaluate("e => getComputedStyle(e).backgroundImage"))
    assert "gradient" not in str(first_bad.evaluate("e => getComputedStyle(e).backgroundImage"))
    assert noticed == []


CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const luminance = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => {
      v /= 255;
      return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => {
    const [x, y] = [luminance(a), luminance(b)];
    return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
  };
  const found = {};
  const ground = getComputedStyle(document.body).backgroundColor;
  for (const e of document.querySelectorAll("body *")) {
    const text = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!text || e.closest("script, style, details:not([open])")) continue;
    const drawn = e.namespaceURI.endsWith("svg");
    const cell = e.closest(".part");
    const behind = cell ? getComputedStyle(cell).backgroundColor : ground;
    const style = getComputedStyle(e);
    const r = ratio(drawn ? style.fill : style.color, behind);
    found[`${e.tagName} ${e.textContent.trim().slice(0, 30)}`] = r;
  }
  return found;
}"""


def rates_study(store: Store) -> Report:
    """Every rate from none to all, in one row of cells."""
    values = [str(n) for n in range(11)]
    axes = [axis("level", *values)]
    study = StudyBuilder(store, axes, name="rates")
    for n in range(10):
        if n:
            study.crashes({"level": str(n)}, n)
        study.passes({"level": str(n)}, 10 - n)
    study.finished(verdict(axes, {"level": "1"}, {"level": "0"}))
    return load_report(store, study.study.id)


@pytest.mark.slow
@pytest.mark.integration
def test_it_can_be_read_by_day_and_night_on_small_screens_and_aloud(
    browser_page: Page, store: Store, tmp_path: Path
) -> None:
    page = browser_page
    noticed = opened(page, rates_study(store), tmp_path)
    grounds = set()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        contrasts: dict[str, float] = page.evaluate(CONTRASTS)
        assert len(contrasts) > 40
        assert {what: ratio for what, ratio in contrasts.items() if ratio < 4.5} == {}, scheme
    assert len(grounds) == 2
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    heard = page.locator("body").aria_snapshot()
    assert 'heading "level 1 is the first bad version' in heard
    assert 'img "level=1; first bad; 1 of 10 trials bad (10 %, 95 % interval' in heard
    for section in (
        "Rates",
        "Failures",
        "How to reproduce",
    ):
        assert f'heading "{section}"' in heard
    ids: list[str] = page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))
    # One stop of the tab key for a whole map.
    assert page.locator(".part[tabindex='0']").count() == 1
    assert noticed == []


BROKEN = r"""() => {
  const found = [];
  document.querySelectorAll("details").forEach((e) => { e.open = true; });
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text; (text = texts.nextNode()); ) {
    if (text.parentElement.closest("pre, script, style")) continue;
    for (const one of text.data.matchAll(/\d+(\.[\w+]+)+/g)) {
      const range = document.createRange();
      range.setStart(text, one.index);
      range.setEnd(text, one.index + one[0].length);
      const lines = new Set([...range.getClientRects()].filter((r) => r.width).map((r) => Math.round(r.top)));
      if (lines.size > 1) found.push(`${one[0]}: ${text.data}`);
    }
  }
  return found;
}"""


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("width", [400, 1200])
def test_versions_stay_whole_and_a_map_that_fits_is_not_moved(
    browser_page: Page, store: Store, tmp_path: Path, width: int
) -> None:
    down, across = [f"1.3.{n}" for n in (14, 16)], [f"5.{n}.0" for n in range(13)]
    axes = [axis("lxml", *across), axis("xmlsec", *down), axis("python", "3.11")]
    study = StudyBuilder(store, axes)
    good, bad = ({"lxml": across[-1], "xmlsec": one, "python": "3.11"} for one in down)
    study.passes(good, 60)
    study.crashes(bad, 2)
    for name in sorted(study.locks.values()):
        store.record_decision(study.study.id, "built", {"lock": name, "seconds": 1.5})
    study.finished(verdict(axes, bad, good))
    assert opened(browser_page, load_report(store, study.study.id), tmp_path) == []
    browser_page.set_viewport_size({"width": width, "height": 800})
    browser_page.reload()
    assert browser_page.evaluate("document.documentElement.scrollWidth") <= width
    assert browser_page.evaluate(BROKEN) == []
    frame = browser_page.locator(".map .scroll").first
    scrolled = frame.evaluate("(e) => [e.scrollLeft, e.scrollWidth - e.clientWidth]")
    if width == 1200:
        assert scrolled == [0, 0]
    # Wherever it is moved to, both axes have their names in sight.
    frame.evaluate("(e) => { e.scrollLeft = e.scrollWidth; }")
    for name in ("lxml", "xmlsec"):
        place = browser_page.locator(".heat th.axis").get_by_text(name, exact=True)
        assert place.evaluate(
            "(e) => { const r = e.getBoundingClientRect(); const there = document.elementFromPoint("
            "(r.left + r.right) / 2, (r.top + r.bottom) / 2); return there === null || e.contains(there); }"
        )


@pytest.mark.slow
@pytest.mark.integration
def test_a_row_of_seventeen_versions_is_seen_whole(browser_page: Page, store: Store, tmp_path: Path) -> None:
    """On a narrow screen it scrolls inside its frame, not the page."""
    page, versions = browser_page, [f"3.8.{n}" for n in range(10, 27)]
    axes = [axis("python", "3.11"), axis("orjson", *versions)]
    study = StudyBuilder(store, axes)
    good, bad = ({"python": "3.11", "orjson": one} for one in versions[-2:])
    study.passes(good, 121)
    study.crashes(bad, 5)
    study.passes(bad, 45)
    store.record_decision(study.study.id, "built", {"lock": next(iter(study.locks.values())), "seconds": 1.5})
    study.finished(verdict(axes, bad, good))
    page.set_viewport_size({"width": 1200, "height": 800})
    assert opened(page, load_report(store, study.study.id), tmp_path) == []
    map_frame = page.locator(".map .scroll").first
    assert map_frame.evaluate("(e) => e.scrollWidth - e.clientWidth") == 0
    page.set_viewport_size({"width": 400, "height": 800})
    assert map_frame.evaluate("(e) => e.scrollWidth - e.clientWidth") > 0
    # Captions are read without scrolling.
    page.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    for caption in page.locator("caption").all():
        assert caption.evaluate("(e) => e.getBoundingClientRect().right") <= 400


@pytest.mark.slow
@pytest.mark.integration
def test_whatever_others_wrote_is_text(browser_page: Page, store: Store, tmp_path: Path) -> None:
    calm, evil = (load_report(store, hostile_study(store, text).study.id) for text in ("calm", EVIL))
    page = browser_page
    tags = []
    for report in (calm, evil):
        assert opened(page, report, tmp_path) == []
        page.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
        tags.append(
            page.evaluate("[...document.querySelectorAll('*')].map((e) => e.tagName).sort().join(' ')")
        )
        assert page.title() == f"{report.study.name}: report"
    # Not one element more.
    assert tags[0] == tags[1]
    assert page.inner_text("body").count("document.title='taken'") > 20


def test_the_page_needs_nothing_else(store: Store) -> None:
    study = orjson_study(store)
    study.finished(orjson_verdict())
    text = html_text(load_report(store, study.study.id))
    assert "default-src &#39;none&#39;" in text
    assert re.findall(r"<(?:link|iframe|object|embed|base|form)\b", text) == []
    assert re.findall(r"(?:src|href)=\"(?!#)[^\"]*\"", text) == []
    assert re.findall(r"@import|url\((?!#)", text) == []
    # Small enough to be attached anywhere.
    assert len(text) < 200_000
    assert text == html_text(load_report(store, study.study.id))


def test_served_pages_link_to_the_trials(store: Store) -> None:
    study = orjson_study(store)
    report = load_report(store, study.study.id)
    assert f'href="../trial/{report.failures[0].trial}"' in html_text(report, served=True)
    assert policy().startswith("default-src 'none'; script-src 'sha256-")


@pytest.mark.parametrize(
    "address", ["javascript:alert(1)", "data:text/html,x", "//x.example", "https://[", "x"]
)
def test_only_addresses_of_the_web_are_links(store: Store, address: str) -> None:
    report = load_report(store, hostile_study(store, "x").study.id)
    assert report.difference is not None
    for home, links in ((address, 0), ("https://x.example/?a=1&b='\"", 2)):
        changes = [replace(one, home=home) for one in report.difference.changes]
        found = report.model_copy(
            update={"difference": report.difference.model_copy(update={"changes": tuple(changes)})}
        )
        assert html_text(found).count('rel="noreferrer noopener"') == links


# -- the heat map ------------------------------------------------------------------------------------------


def matrix(store: Store, axes: list[dict[str, Any]], name: str, **changes: Any) -> Report:
    study = StudyBuilder(store, axes, name=name)
    cell = {one["name"]: one["values"][0] for one in axes}
    study.crashes(cell, 1)
    if changes:
        study.finished(verdict(axes, cell, {**cell, axes[0]["name"]: axes[0]["values"][1]}, **changes))
    return load_report(store, study.study.id)


def test_which_axes_are_drawn(store: Store) -> None:
    axes = [axis("a", "1", "2"), axis("b", *"12345"), axis("c", *"123"), axis("python", PYTHON)]
    grid = matrix_grid(matrix(store, axes, "no verdict"))
    assert grid is not None
    assert (grid.across.name, grid.down.name if grid.down else None) == ("b", "c")
    assert [one.name for one in grid.further] == ["a", "python"]
    # Culprits come before longer axes.
    report = matrix(store, axes, "culprits", culprit_axes=["a"])
    grid = matrix_grid(report)
    assert grid is not None
    assert (grid.across.name, grid.down.name if grid.down else None) == ("b", "a")
    found = heat_map(report)
    assert found is not None
    assert [one.name for one in found.controls] == ["c"]
    assert [dict(one.fixed) for one in found.slices] == [{"c": c, "python": PYTHON} for c in "123"]
    assert found.left_out == 0


def test_of_a_large_matrix_what_was_tried_is_drawn(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bisect_env.report.html.MOST_CELLS", 20)
    axes = [axis("a", *"123"), axis("b", *"123"), axis("c", *"1234")]
    found = heat_map(matrix(store, axes, "large", culprit_axes=["a", "b"]))
    assert found is not None
    assert (len(found.slices), found.left_out) == (2, 2)
    assert found.slices[0].fixed == {"c": "1"}
    assert MOST_CELLS >= 1000


def test_what_was_tried_is_not_left_out_for_what_cannot_be_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bisect_env.report.html.LISTED", 4)
    study = StudyBuilder(store, [axis("a", *"123456789")], name="listed")
    study.fill(lambda cell: ("excluded", "x") if cell["a"] in "12345" else ("solvable", ""))
    for value in "678":
        study.crashes({"a": value}, 3)
    page = html_text(load_report(store, study.study.id))
    assert page.count("<td>crash 3</td>") == 3
    assert "<p>5 more that nobody tried are left out.</p>" in page
    monkeypatch.setattr("bisect_env.report.html.LISTED", 2)
    page = html_text(load_report(store, study.study.id))
    assert "<p>1 more that were tried and 6 more that nobody tried are left out.</p>" in page


def test_a_study_of_one_combination_and_one_of_none(store: Store) -> None:
    report = load_report(store, StudyBuilder(store, [axis("a", "1")], name="one").study.id)
    assert heat_map(report) is not None
    assert "a=1; not tried" in html_text(report)


def test_pages_without_combinations_and_axes(store: Store) -> None:
    report = load_report(store, StudyBuilder(store, [axis("a", "1")], name="one").study.id)
    assert heat_map(report.model_copy(update={"combinations": ()})) is None
    assert "<h1>" in html_text(report.model_copy(update={"combinations": (), "axes": ()}))


def test_what_stands_in_backticks_is_code_and_nothing_of_others_is_markup(store: Store) -> None:
    study = orjson_study(store)
    said = "say `search: {a: <b>}` & <script>x</script> with a `lone tick"
    found = load_report(store, study.study.id).model_copy(update={"warnings": (said,), "advice": (said,)})
    page, text = html_text(found), markdown_text(found)
    assert page.count("say <code>search: {a: &lt;b&gt;}</code> &amp; &lt;script&gt;x&lt;/script&gt;") == 2
    assert text.count("say `search: {a: <b>}`") == 2
    assert "<script>x" not in page + text
