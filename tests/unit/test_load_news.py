"""What of a load is told: nothing of a short one, and of a long one again and again while it goes on."""

from __future__ import annotations

import asyncio

import pytest

from schemas.control import LoadProgress, decode_load_progress, loading_key
from schemas.model import ModelRef
from workers.load_news import LoadNews
from workers.publisher import Publication, Publisher
from workers.resident import ModelKey

_KEY = ModelKey(ModelRef("m", "3"))


class Told(Publisher):
    """Takes every record at once, and keeps it."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.changed = asyncio.Event()

    def publish(self, publication: Publication) -> None:
        assert publication.key == loading_key("m")
        self.values.append(publication.value)
        self.changed.set()
        publication.on_durable()

    async def next(self) -> LoadProgress | None:
        async with asyncio.timeout(10):
            while not self.values:
                self.changed.clear()
                await self.changed.wait()
        told = decode_load_progress(loading_key("m"), self.values.pop(0))
        assert told is not None
        return told[1]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.load_news._EVERY_S", 0.01)
    monkeypatch.setattr("workers.load_news._AFTER_S", 0.01)


async def test_a_load_that_says_nothing_is_told_again_so_that_it_is_not_taken_for_dead() -> None:
    told = Told()
    news = LoadNews(told, control_topic="t.control")
    news.note(_KEY, "loading", 1.0)
    first, second = await told.next(), await told.next()
    assert first is not None
    assert second is not None
    assert (first.version, first.fetched_ratio) == (second.version, second.fetched_ratio) == ("3", 1.0)
    assert second.at_ms > first.at_ms
    news.note(_KEY, "ready", 1.0)
    while await told.next() is not None:
        pass


async def test_a_load_that_is_over_in_a_moment_is_not_told_of() -> None:
    told = Told()
    news = LoadNews(told, control_topic="t.control")
    news.note(_KEY, "fetching", 0.0)
    news.note(_KEY, "ready", 1.0)
    other = ModelKey(ModelRef("m", "4"))
    news.note(other, "fetching", 0.5)
    progress = await told.next()
    assert progress is not None
    assert progress.version == "4"
    news.close()
