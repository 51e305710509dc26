"""`bisect-env serve` in a real browser: Debian's chromium, headless."""

from __future__ import annotations

import http.server
import threading
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser import browser_page
from tests.web.test_serve import fill, serving

__all__ = ["browser_page"]

pytestmark = [pytest.mark.slow, pytest.mark.integration]


def test_a_person_finds_the_way_from_a_question_to_the_logs(browser_page: Page, tmp_path: Path) -> None:
    path = str(tmp_path / "results.sqlite")
    study_id, trial_id = fill(path)
    page, errors, foreign = browser_page, [], []
    page.on("pageerror", lambda error: errors.append(str(error)))
    with serving(path) as (address, _):
        page.on("request", lambda r: None if r.url.startswith((address, "data:")) else foreign.append(r.url))
        page.goto(address)
        page.get_by_role("link", name="results", exact=True).first.click()
        page.get_by_role("link", name="v_trials", exact=True).click()
        assert "2 rows" in page.inner_text("body")
        page.goto(f"{address}results")
        page.get_by_role("link", name="Which versions of a package").click()
        for name, value in (
            ("package", "orjson"),
            ("beside", "zipp"),
            ("version", "3"),
            ("gpu_model", "H100"),
        ):
            page.fill(f"input[name={name}]", value)
        page.get_by_role("button", name="Run SQL").click()
        assert page.inner_text("table.rows-and-columns tbody").split()[:2] == ["2.0", "1"]
        page.goto(address)
        page.get_by_role("link", name=study_id).click()
        assert "2 trials (1 bad, 1 good)" in page.inner_text("header")
        # Its own script runs, which the policy of the server allows by hash.
        page.locator(".part").first.hover()
        assert "trials bad" in page.inner_text(".said")
        page.get_by_role("link", name=trial_id).click()
        shown = page.inner_text("body")
        # What the script wrote is read as text, to the last character, and did nothing.
        assert "<script>document.title='taken'</script>" in shown
        assert page.locator("script, img").count() == 0
        for place in (
            "results/failures_of_a_study?study=orjson",
            "results/v_trials",
            "results/crashes",
            "results/hosts",
        ):
            page.goto(address + place)
            assert "taken" not in page.title()
            assert "document.title='taken'" in page.inner_text("body")
    assert errors == []
    assert foreign == []


class Listening(http.server.BaseHTTPRequestHandler):
    """A page of another program on this machine, which keeps what browsers send to it."""

    received: list[str]

    def do_GET(self) -> None:
        self.received.append(f"{self.path}\n{self.headers}")
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<img src=/image><script>fetch('/again', {credentials: 'include'})</script>")

    def log_message(self, *_: object) -> None: ...


def test_a_page_on_another_port_learns_nothing_that_lets_it_in(browser_page: Page, tmp_path: Path) -> None:
    path = str(tmp_path / "results.sqlite")
    _, trial_id = fill(path)
    handler = type("Handler", (Listening,), {"received": []})
    with (
        serving(path) as (address, _),
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as other,
    ):
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            theirs = f"http://127.0.0.1:{other.server_port}/"
            browser_page.goto(address)
            browser_page.goto(f"{address.partition('?')[0]}-/trial/{trial_id}")
            assert trial_id in browser_page.inner_text("body")
            # By a link, as in a text that the page shows, and by itself.
            browser_page.evaluate("where => { location.href = where }", theirs)
            browser_page.wait_for_url(theirs, wait_until="networkidle")
            browser_page.goto(theirs, wait_until="networkidle")
        finally:
            other.shutdown()
            thread.join()
        assert len(handler.received) >= 4
        token = address.rstrip("/").rpartition("/")[2].rpartition("=")[2]
        assert len(token) >= 32
        assert [text for text in handler.received if token in text] == []
