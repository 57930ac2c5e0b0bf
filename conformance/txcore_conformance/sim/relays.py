"""Relays in a seed: processes that work on the message table, die with rows in hand, and come back."""

from __future__ import annotations

from typing import Any

from txcore.commands import Flow
from txcore.errors import TxcoreError
from txcore.relaying import BatchReport, RelayContext, RelayLimits, relay_batch
from txcore_conformance.sim.actors import GROUP, Cast
from txcore_conformance.sim.table import SimRelayTable
from txcore_conformance.sim.world import Process, SimReporter

LIMITS = RelayLimits(row_max=6, batch_s=0.5, tries_max=40, retry_s=0.2, retry_max_s=2.0)
RELAYS_MAX = 3


def start_relay(cast: Cast, *, is_immortal: bool = False) -> Process:
    """Start a relay; when it dies another one comes after a while."""
    world = cast.world
    cast.numbers += 1
    process = Process(world, f"r{cast.numbers}")
    process.is_immortal = is_immortal
    table: Any = SimRelayTable(cast.database.table, process)
    context = RelayContext(
        GROUP,
        cast.partition_count,
        table,
        process.clock,
        LIMITS,
        SimReporter(world),
        f"r:{process.name}",
        process.loop.backend.capabilities.batch_count_max,
    )
    cast.relays.append(process)
    process.loop.spawn(_relay(context))
    process.on_death.append(lambda: world.at(cast.table_rng.random() * 3, lambda: _restart(cast)))
    return process


def _relay(context: RelayContext) -> Flow[None]:
    """Relay for ever, as `Relay` does."""
    while True:
        report = BatchReport()
        try:
            report = yield from relay_batch(context)
        except TxcoreError:
            yield 0.3
        yield 0.05 if report.sent else 0.4


def _restart(cast: Cast) -> None:
    if sum(process.is_alive for process in cast.relays) < RELAYS_MAX:
        start_relay(cast)
