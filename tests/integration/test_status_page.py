"""The status page in a real browser: a real gateway, a real broker, and workers' reports that the test writes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from schemas.control import announcement_key, encode_announcement
from schemas.worker_report import (
    LATENCY_BOUNDS_MS,
    BatchStatistics,
    Duration,
    ModelStatistics,
    WorkerReport,
    encode_report,
    report_key,
)
from tests.integration.chromium import open_browser, watch_errors
from tests.integration.echo_worker import EchoWorker
from tests.integration.gateway_calls import BODY, path
from tests.integration.gateway_process import GatewayProcess

pytest_plugins = ["tests.integration.gateway_fixtures"]
pytestmark = pytest.mark.kafka

HOSTILE = "<img src=x onerror=alert(1)>&\"'"
SHOTS = os.environ.get("TIDEGATE_TEST_SHOTS")  # a directory: leave screenshots there, to look at


@pytest_asyncio.fixture
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        yield browser


def statistics(name: str, version: str, state: str = "ready", *, scale: int = 1, reason: str = "") -> ModelStatistics:
    sizes = tuple(
        BatchStatistics(rows, 3 * scale * rows % 37 + 1, 100, 2000 * rows, 50) for rows in (1, 2, 4, 8, 16, 24, 32)
    )
    counts = [0, 40, 160, 900, 700, 210, 80, 33, 9, 4, 0, 0, 0, 0, 0]
    return ModelStatistics(
        name,
        version,
        state,
        reason,
        180_000_000 * scale,
        success=Duration(2136 * scale, 10**8),
        fail=Duration(3, 10**5),
        rows=9000 * scale,
        batches=sum(size.count for size in sizes),
        last_inference_ms=time.time_ns() // 1_000_000,
        batch_sizes=sizes,
        latency_counts=tuple(count * scale for count in counts),
    )


async def tell(worker: EchoWorker, id_: str, report: WorkerReport | None) -> None:
    value = None if report is None else encode_report(report)
    await worker.producer.send_and_wait(worker.topics.control, value, key=report_key(id_))


def report(pool: str, *models: ModelStatistics, state: str = "serving", host: str = "node-7") -> WorkerReport:
    now_ms = time.time_ns() // 1_000_000
    return WorkerReport(pool, state, now_ms - 4_000_000, now_ms, host, "0.1.0", ("NVIDIA H200",), models)


async def shoot(page: Page, name: str, *, is_whole: bool = True) -> None:
    if SHOTS:
        await page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=is_whole)


async def announce(worker: EchoWorker, name: str) -> None:
    """A further model of the worker's pool."""
    announcement: Any = worker.announcement.__class__(
        worker.announcement.metadata.__class__(name, ("1",), "echo", 8, (), ()),
        worker.pool,
        worker.topic,
        worker.announcement.epoch,
        worker.announcement.partitions,
    )
    await worker.producer.send_and_wait(
        worker.topics.control, encode_announcement(announcement), key=announcement_key(name)
    )


async def test_the_page_shows_the_installation_and_keeps_up(
    browser: Browser, gateway: GatewayProcess, worker: EchoWorker
) -> None:
    await announce(worker, HOSTILE)
    one = statistics(worker.model, "1")
    await tell(worker, "worker-one", report(worker.pool, one, statistics(worker.model, "2", scale=3)))
    async with gateway.client() as http:
        for _ in range(5):
            await http.post(path(worker), json=BODY, headers={"prefer": "respond-async"})
    page = await browser.new_page(viewport={"width": 1280, "height": 900})
    errors = watch_errors(page)
    await page.goto(f"{gateway.url}/status")
    models, workers = page.locator("#models tbody tr"), page.locator("#workers tbody tr")
    mine = models.filter(has=page.locator("th", has_text=re.compile(f"^{worker.model}$")))
    await expect(mine).to_contain_text("ready")
    await expect(mine.locator("td").nth(3)).to_have_text("5")  # requests that wait
    await expect(models.filter(has_text=HOSTILE)).to_have_count(1)
    await expect(page.locator("#pools tbody tr").filter(has_text=worker.pool)).to_contain_text("1")
    await expect(workers.filter(has_text="worker-one")).to_contain_text("NVIDIA H200")
    plot = page.locator(".plot").filter(has=page.locator("h3", has_text=re.compile(f"^{worker.model}$")))
    bars = plot.locator("figure").first.locator("svg rect")
    await expect(bars).to_have_count(7)
    heights = [float(await bar.get_attribute("height") or 0) for bar in await bars.all()]
    assert min(heights) > 0
    assert await plot.locator("figure").last.locator("svg rect").count() >= 9
    assert "32:" in (await plot.locator("svg").first.get_attribute("aria-label") or "")
    await shoot(page, "status")
    # Without a reload: another worker comes, the first one is draining and then gone.
    failed = statistics(HOSTILE, "1", "failed", reason="<b>the file is broken</b>")
    await tell(worker, "worker-two", report(worker.pool, one, failed, state="draining", host=HOSTILE))
    await expect(workers.filter(has_text="worker-two")).to_contain_text("draining")
    await expect(models.filter(has_text=HOSTILE)).to_contain_text("<b>the file is broken</b>")
    await tell(worker, "worker-one", None)
    await expect(workers.filter(has_text="worker-one")).to_have_count(0)
    assert await page.locator("img").count() == 0
    assert errors == []


async def test_the_page_is_good_in_the_dark_and_on_a_phone(
    browser: Browser, gateway: GatewayProcess, worker: EchoWorker
) -> None:
    await tell(worker, "worker-dark", report(worker.pool, statistics(worker.model, "1")))
    page = await browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    await page.goto(f"{gateway.url}/status")
    await expect(page.locator("#workers tbody tr").filter(has_text="worker-dark")).to_have_count(1)
    ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(17, 21, 26)"
    assert await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    await shoot(page, "status-dark")
    await page.goto(f"{gateway.url}/docs")
    assert await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    await shoot(page, "docs-dark", is_whole=False)


async def test_the_page_says_when_the_gateway_is_gone(
    browser: Browser, gateway: GatewayProcess, worker: EchoWorker
) -> None:
    page = await browser.new_page()
    await page.goto(f"{gateway.url}/status")
    await expect(page.locator("#live")).to_contain_text("every 2 s")
    await page.route("**/status.json", lambda route: route.abort())
    await expect(page.locator("#live")).to_contain_text("no answer")
    await expect(page.locator("#live")).to_have_attribute("role", "alert")
    await page.unroute("**/status.json")
    await page.route(
        "**/status.json", lambda route: route.fulfill(status=401, json={"detail": "nothing says who you are"})
    )
    await expect(page.locator("#live")).to_contain_text("401: nothing says who you are")
    await page.unroute("**/status.json")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.headers.get("authorization", "")))
    await page.locator("#token").fill("tgk_secret")
    await page.locator("#token").press("Enter")
    await expect(page.locator("#live")).to_contain_text("every 2 s")
    assert "Bearer tgk_secret" in asked


def test_the_bounds_are_those_of_the_plots() -> None:
    assert len(LATENCY_BOUNDS_MS) + 1 == len(statistics("m", "1").latency_counts)


async def test_the_documentation_has_no_errors(browser: Browser, gateway: GatewayProcess) -> None:
    page = await browser.new_page(viewport={"width": 1280, "height": 900})
    errors = watch_errors(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.goto(f"{gateway.url}/docs")
    operation = page.locator("details", has=page.locator("#getJob"))
    await shoot(page, "docs", is_whole=False)
    await page.locator("nav a", has_text="Where a job stands").click()
    await expect(operation).to_have_attribute("open", "")
    await expect(operation.locator("summary").first).to_be_in_viewport()
    await shoot(page, "docs-job", is_whole=False)
    await page.goto(f"{gateway.url}/errors/overloaded")
    await expect(page.locator("h1")).to_have_text("overloaded")
    await shoot(page, "error")
    assert errors == []
    assert all(url.startswith((gateway.url, "data:")) for url in asked)
