"""Parts: what is behind a gateway's protocols, built and joined; nothing runs yet. Knows no route and no protocol."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import threading
from collections.abc import Callable

from gateway.admission import Admission
from gateway.audit import Audit
from gateway.backlog import Backlog
from gateway.broker import Broker
from gateway.catalogue import Catalogue
from gateway.dispatcher import Dispatcher
from gateway.fleet import Fleet
from gateway.job_api import JobApi
from gateway.job_id import signing_key
from gateway.kafka_client import Record
from gateway.load_times import LoadTimes
from gateway.metrics import Metrics
from gateway.outcomes import Outcomes
from gateway.outlook import Outlook
from gateway.queue_watch import QueueWatch
from gateway.replies import Replies
from gateway.repository import Repository
from gateway.restarts import Restarts
from gateway.scaling import Scaling
from gateway.service_rate import ServiceRates
from gateway.settings import GatewaySettings
from gateway.statistics import Statistics
from gateway.tenant_queues import TenantQueues
from gateway.webhooks import Webhooks
from schemas.topics import Topics
from store import StoreError, open_store
from store.directory import DirectoryStore


class Parts:
    """The parts of one gateway. Their tasks are the service's to start and to end."""

    def __init__(self, settings: GatewaySettings, metrics: Metrics) -> None:
        self._settings = settings
        self.topics = Topics(settings.prefix)
        gateway_id = secrets.token_hex(8)
        self.broker = Broker(kafka=settings.kafka_connection(), client_id=f"tidegate-gateway-{gateway_id}")
        self.access = settings.access()
        self.news: asyncio.Queue[str] = asyncio.Queue()  # request topics that nothing was sent to yet
        self.catalogue = Catalogue(on_announced=lambda model: self.news.put_nowait(model.topic))
        self.fleet = Fleet()
        self.store = open_store(settings.store)
        self.outcomes = Outcomes(store=self.store, catalogue=self.catalogue, metrics=metrics)
        self.backlog = Backlog(
            broker=self.broker, catalogue=self.catalogue, topics=self.topics, cache_ms=settings.status_cache_ms
        )
        self.rates = ServiceRates()
        self.fleet.observe(self.rates.note)
        self._limits = settings.admission_limits()
        self.queued = TenantQueues(lambda tenant: self._limits.of_tenant(tenant).backlog)
        self.queues = QueueWatch(backlog=self.backlog, catalogue=self.catalogue, rates=self.rates, queued=self.queued)
        self.dispatcher = self._new_dispatcher(gateway_id)
        metrics.watch_in_flight(lambda: self.dispatcher.in_flight)
        self.replies = Replies(
            broker=self.broker,
            topics=self.topics,
            gateway_id=gateway_id,
            outcomes=self.outcomes,
            metrics=metrics,
            answer=self.dispatcher.answer,
            longest_wait_s=settings.wait_s,
            rng=random.Random(),
        )
        self.webhooks = Webhooks(
            settings=settings,
            broker=self.broker,
            catalogue=self.catalogue,
            outcomes=self.outcomes,
            store=self.store,
            registry=metrics.registry,
        )
        self._join_routes(metrics)

    def apply(self, record: Record) -> None:
        """Take one control record in."""
        self.catalogue.apply(record.key, record.value)
        self.fleet.apply(record.key, record.value)
        self.jobs.watch.apply(record.key, record.value)

    def sweep_store(self) -> None:
        """Remove what killed writers left in a directory, in a thread: of all that share it gateways start least."""
        if isinstance(self.store, DirectoryStore):
            threading.Thread(target=_quietly, args=(self.store.sweep,), name="sweep store", daemon=True).start()

    def _new_dispatcher(self, gateway_id: str) -> Dispatcher:
        settings = self._settings
        return Dispatcher(
            broker=self.broker,
            outcomes=self.outcomes,
            topics=self.topics,
            gateway_id=gateway_id,
            job_key=signing_key(settings.job_key.get_secret_value()),
            admission=Admission(self._limits, queue_of=self.queues.queue_of, queued=self.queued),
            claim_above_bytes=settings.claim_above_bytes,
        )

    def _join_routes(self, metrics: Metrics) -> None:
        catalogue, fleet = self.catalogue, self.fleet
        self.scaling = Scaling(backlog=self.backlog, catalogue=catalogue, topics=self.topics, metrics=metrics)
        self.statistics = Statistics(catalogue=catalogue, fleet=fleet)
        self.repository = Repository(
            broker=self.broker,
            topics=self.topics,
            catalogue=catalogue,
            fleet=fleet,
            audit=Audit(append=lambda key, value: self.broker.append(self.topics.audit, key, value)),
        )
        self.jobs = JobApi(
            settings=self._settings,
            store=self.store,
            broker=self.broker,
            catalogue=catalogue,
            backlog=self.backlog,
            outcomes=self.outcomes,
            dispatcher=self.dispatcher,
            outlook=self._new_outlook(),
        )

    def _new_outlook(self) -> Outlook:
        restarts, loads = Restarts(), LoadTimes()
        self.fleet.observe(restarts.note)
        self.catalogue.observe_loading(loads.note)
        return Outlook(catalogue=self.catalogue, fleet=self.fleet, rates=self.rates, restarts=restarts, loads=loads)


def _quietly(sweep: Callable[[], object]) -> None:
    with contextlib.suppress(StoreError):
        sweep()
