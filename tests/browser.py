"""How tests open the page: a real Chromium, driven by Playwright, in front of a real `penstock serve`.

A test waits for what it expects to see, as long as a busy machine may need, and never for a time to pass.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

AXE = Path(sys.prefix) / "clients/node_modules/axe-core/axe.min.js"
DEADLINE = 60_000
"""Milliseconds that one step may take on a busy machine."""
PHONE = {"width": 360, "height": 740}
DESK = {"width": 1280, "height": 800}
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
WATCH = """addEventListener("securitypolicyviolation", (event) =>
    console.error(`The policy refused ${event.blockedURI} (${event.violatedDirective})`));"""

expect.set_options(timeout=DEADLINE)


def require(path: str | None, text: str) -> str:
    """Without it a laptop skips the test, and CI fails."""
    if path and Path(path).exists():
        return path
    if os.environ.get("CI"):
        pytest.fail(text)
    pytest.skip(text)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser for the tests of one module. (Playwright runs an event loop in this thread until it ends, which tests of other
    modules would find running.)"""
    program = require(shutil.which("chromium"), "Chromium is not installed (tools/provision does that)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, timeout=DEADLINE)
        try:
            yield browser
        finally:
            browser.close()


class Windows:
    """The windows of one test. None of them may complain: no error on its console, nothing that its policy refused."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self.complaints: list[str] = []
        self.expected: list[str] = []
        """Regular expressions: what a test makes go wrong on purpose."""

    def open(self, url: str, *, size: dict[str, int] = DESK, scheme: str = "light", **more: Any) -> Page:
        """A new window that shares nothing with the others."""
        context = self._browser.new_context(
            viewport=size, color_scheme=scheme, reduced_motion="reduce", timezone_id="Asia/Kathmandu", **more
        )
        context.set_default_timeout(DEADLINE)
        context.add_init_script(WATCH)
        self._contexts.append(context)
        page = context.new_page()
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(f"an error in a script: {error}"))
        page.goto(url)
        return page

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.text} ({message.location.get('url')})")

    def close(self) -> None:
        for context in self._contexts:
            context.close()
        left = [text for text in self.complaints if not any(re.search(words, text) for words in self.expected)]
        assert not left, "\n".join(left)


@contextmanager
def windows(browser: Browser) -> Iterator[Windows]:
    opened = Windows(browser)
    yield opened
    opened.close()


def check_access(page: Page) -> None:
    """axe-core finds nothing that keeps out people who cannot see well, or use a keyboard."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(Path(require(str(AXE), "axe-core is not installed (make clients does that)")).read_text())
    found = page.evaluate(
        """(tags) => axe.run(document, {runOnly: tags, resultTypes: ["violations"]}).then((result) =>
            result.violations.map(({id, help, nodes}) =>
                ({id, help, where: nodes.slice(0, 5).map((node) => [node.html.slice(0, 200), node.failureSummary])})))""",
        RULES,
    )
    assert not found, f"{page.url}: {json.dumps(found, indent=1)}"


def check_width(page: Page) -> None:
    """The page is not wider than its window: only what is meant to scroll does."""
    wide = page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, f"{page.url} is {wide} pixels too wide"
