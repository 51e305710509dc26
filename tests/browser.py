"""A real browser for tests: Debian's chromium, headless."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, sync_playwright

REQUIRED = "BISECT_ENV_TEST_CHROMIUM"
"""Set to `required`, the tests fail instead of skipping where there is no browser."""


@pytest.fixture
def browser_page() -> Iterator[Page]:
    program = shutil.which("chromium")
    if program is None:
        reason = "no chromium here (Debian: apt-get install chromium)"
        if os.environ.get(REQUIRED) == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        # Its sandbox needs rights that containers, and root, do not have.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser.new_page()
        finally:
            browser.close()
