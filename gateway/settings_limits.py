"""LimitSettings: how much the gateway takes on, and from whom, as an operator says it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import BaseSettings

from gateway.admission import AdmissionLimits, Limits


class ModelLimits(BaseModel):
    """Limits of one model; 0: none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    in_flight: Annotated[int, Field(ge=0)] = 0
    backlog: Annotated[int, Field(ge=0)] = 0


class TenantLimits(BaseModel):
    """Limits of one tenant; 0: none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    in_flight: Annotated[int, Field(ge=0)] = 0
    backlog: Annotated[int, Field(ge=0)] = 0
    rate_rps: Annotated[float, Field(ge=0)] = 0.0
    burst: Annotated[int, Field(ge=0)] = 0


class LimitSettings(BaseSettings):
    """How much the gateway takes on. What is beyond is answered 429 with Retry-After."""

    max_in_flight: Annotated[
        int, Field(ge=1, description="Requests that may wait at a time; one more is answered 429.")
    ] = 1024
    max_in_flight_bytes: Annotated[
        int, Field(ge=1, description="Bytes of bodies held at a time, and of answers that clients have yet to read.")
    ] = 512 * 1024 * 1024
    max_in_flight_per_model: Annotated[
        int, Field(ge=0, description="Requests of one model that may wait in this gateway at a time; 0: no limit.")
    ] = 0
    max_in_flight_per_tenant: Annotated[
        int, Field(ge=0, description="Requests of one tenant that may wait in this gateway at a time; 0: no limit.")
    ] = 0
    max_backlog: Annotated[
        int, Field(ge=0, description="Requests in one model's queue, whoever sent them; 0: no limit.")
    ] = 0
    max_backlog_per_tenant: Annotated[
        int,
        Field(
            ge=0,
            description="Jobs of one tenant that may wait or run in all models' queues, of those that came by this "
            "gateway since it started; 0: no limit. One that has ended counts on for about two seconds.",
        ),
    ] = 0
    tenant_rate_rps: Annotated[
        float, Field(ge=0, description="Requests per second that one tenant may send to this gateway; 0: no limit.")
    ] = 0.0
    tenant_burst: Annotated[
        int, Field(ge=0, description="Requests that a tenant may send at once above that; 0: a second's worth.")
    ] = 0
    model_limits: Annotated[
        dict[str, ModelLimits],
        Field(description='Models with limits of their own, as JSON: {"resnet": {"in_flight": 50, "backlog": 1000}}.'),
    ] = {}
    tenant_limits: Annotated[
        dict[str, TenantLimits],
        Field(description='Tenants likewise: {"acme": {"in_flight": 50, "backlog": 1000, "rate_rps": 20}}.'),
    ] = {}

    def admission_limits(self) -> AdmissionLimits:
        """The limits that these settings describe."""
        return AdmissionLimits(
            self.max_in_flight,
            Limits(in_flight=self.max_in_flight_per_model, backlog=self.max_backlog),
            Limits(
                in_flight=self.max_in_flight_per_tenant,
                backlog=self.max_backlog_per_tenant,
                rate_rps=self.tenant_rate_rps,
                burst=self.tenant_burst,
            ),
            {name: Limits(**limits.model_dump()) for name, limits in self.model_limits.items()},
            {name: Limits(**limits.model_dump()) for name, limits in self.tenant_limits.items()},
        )
