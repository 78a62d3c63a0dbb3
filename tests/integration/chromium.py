"""A headless Chromium of this machine, driven by playwright; nothing is downloaded."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium_path() -> str:
    """Where it is. Skips the test, saying how to get one, when it is nowhere."""
    found = next((path for path in map(shutil.which, _NAMES) if path), None)
    if found is None:
        pytest.skip("there is no Chromium on this machine: as root, apt-get install chromium")
    return str(Path(found))


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """A browser, closed at the end."""
    path = chromium_path()
    async with async_playwright() as playwright:
        # As root Chromium's sandbox does not start, and there is no GPU to talk to.
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            await browser.close()


def watch_errors(page: Page) -> list[str]:
    """What goes wrong on a page, filled from now on: errors on its console and exceptions of its scripts."""
    errors: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            errors.append(message.text)

    page.on("console", note)
    page.on("pageerror", lambda error: errors.append(str(error)))
    return errors
