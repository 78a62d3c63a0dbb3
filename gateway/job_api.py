"""JobApi: the parts of the job API, built and joined. Must not know what a job or a result looks like."""

from __future__ import annotations

from starlette.routing import Route

from gateway.backlog import Backlog
from gateway.broker import Broker
from gateway.cancelling import Cancelling
from gateway.catalogue import Catalogue
from gateway.dispatcher import Dispatcher
from gateway.idempotency import Idempotency
from gateway.job_events import JobEvents
from gateway.job_id import signing_key
from gateway.job_watch import JobWatch
from gateway.jobs import Jobs
from gateway.key_claims import KeyClaims
from gateway.outcomes import Outcomes
from gateway.outlook import Outlook
from gateway.record_search import RecordSearch
from gateway.results import Results
from gateway.settings import GatewaySettings
from gateway.standings import Standings
from gateway.sweeper import Sweeper
from gateway.webhook_schedule import Schedule
from schemas.topics import Topics
from store.object_store import ObjectStore


class JobApi:
    """Routes of jobs, and what the hot route needs of them."""

    def __init__(
        self,
        *,
        settings: GatewaySettings,
        store: ObjectStore,
        broker: Broker,
        catalogue: Catalogue,
        backlog: Backlog,
        outcomes: Outcomes,
        dispatcher: Dispatcher,
        outlook: Outlook,
    ) -> None:
        topics, job_key = Topics(settings.prefix), signing_key(settings.job_key.get_secret_value())
        self.standings = Standings(
            outcomes=outcomes,
            catalogue=catalogue,
            backlog=backlog,
            topics=topics,
            outlook=outlook,
            job_key=job_key,
            retention_s=settings.result_retention_s,
        )
        self.watch = JobWatch(
            standings=self.standings,
            backlog=backlog,
            interval_s=settings.watch_interval_ms / 1000,
            max_waiting=settings.max_waiting,
        )
        self.cancelling = Cancelling(standings=self.standings, outcomes=outcomes, dispatcher=dispatcher)
        self.idempotency = Idempotency(
            claims=KeyClaims(store=store, window_s=settings.idempotency_window_s),
            search=RecordSearch(broker=broker, topics=topics, job_key=job_key),
            dispatcher=dispatcher,
            standings=self.standings,
            watch=self.watch,
            outcomes=outcomes,
        )
        self.sweeper = Sweeper(
            store=store,
            every_s=settings.sweep_every_s,
            results_s=settings.result_retention_s,
            payloads_s=settings.payload_retention_s,
            keys_s=settings.idempotency_window_s,
            # Written anew by each attempt: as long as its result, after the last wait.
            webhooks_s=settings.result_retention_s + Schedule.parse(settings.webhook_retry_s).total_ms / 1000,
        )
        self._routes = self._build_routes(settings, outcomes)

    def routes(self) -> list[Route]:
        """What to mount."""
        return self._routes

    def _build_routes(self, settings: GatewaySettings, outcomes: Outcomes) -> list[Route]:
        jobs = Jobs(
            standings=self.standings,
            watch=self.watch,
            cancelling=self.cancelling,
            events=JobEvents(standings=self.standings, watch=self.watch, ping_s=settings.event_ping_s),
            max_wait_s=settings.max_job_wait_s,
            max_jobs=settings.max_batch_requests,
        )
        results = Results(
            standings=self.standings,
            watch=self.watch,
            outcomes=outcomes,
            max_wait_s=settings.max_job_wait_s,
            link_above_bytes=settings.presign_above_bytes,
            link_for_s=settings.presign_for_s,
        )
        return [*jobs.routes(), *results.routes()]
