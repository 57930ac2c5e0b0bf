"""The relay that a group with a database runs beside its checker, on connections of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from txcore.clock import Clock, Randomness
from txcore.port import Backend
from txcore.sidecar.fences import open_engine
from txcore.sidecar.plan import GroupPlan

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from txcore.outbox.relay import Relay

CONNECTIONS: Final = 3
"""Number of connections: one holds the slots, one commits meanwhile, one listens (PostgreSQL)."""


class GroupRelay:
    """The relay and its engine. The relay itself waits for a database, or a message table, that does not exist yet."""

    def __init__(self, relay: Relay, engine: Engine) -> None:
        self.relay = relay
        self._engine = engine

    def close(self, timeout_s: float) -> None:
        """End within *timeout_s*; a batch that takes longer is sent again by another relay."""
        self.relay.stop(timeout_s)
        self._engine.dispose()


def start_relay(plan: GroupPlan, backend: Backend, clock: Clock, randomness: Randomness) -> GroupRelay | None:
    """Start the group's relay; None for a group without a database, or with `relay = false`.

    Raises:
        ConfigError, BackendNotInstalledError: see `fences.open_engine`.
    """
    if not plan.database or not plan.section.relay:
        return None
    from txcore.outbox.relay import Relay, RelayLimits  # noqa: PLC0415 - needs SQLAlchemy, which only groups with a fence do

    section = msgspec.structs.replace(plan.database_section, connections_max=CONNECTIONS)
    engine = open_engine(plan.database_url, section)
    limits = RelayLimits(tries_max=plan.section.relay_tries_max)
    relay = Relay(
        backend,
        plan.name,
        engine,
        table=plan.section.fence_table,
        limits=limits,
        clock=clock,
        randomness=randomness,
    )
    relay.start()
    return GroupRelay(relay, engine)
