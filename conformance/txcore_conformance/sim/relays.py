"""Relays in a seed: processes that work on the message table, die while they hold rows, and are replaced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from txcore.errors import TxcoreError
from txcore.outbox.relay_steps import BatchReport, RelayContext, RelayLimits, relay_batch
from txcore.runtime.commands import Flow
from txcore_conformance.sim.cast import GROUP, Cast
from txcore_conformance.sim.process import Process
from txcore_conformance.sim.table import SimRelayTable
from txcore_conformance.sim.world import SimReporter

LIMITS = RelayLimits(row_max=6, batch_s=0.5, tries_max=40, retry_s=0.2, retry_max_s=2.0)
PATIENT = replace(LIMITS, batch_s=2.5)
"""Limits of a relay that continues with a lane after an answer that took a second, as uncertain ones do."""
RELAYS_MAX = 3


def start_relay(cast: Cast, *, is_immortal: bool = False) -> Process:
    """Start a relay; some time after its death another one may start."""
    world = cast.world
    cast.numbers += 1
    process = Process(world, f"r{cast.numbers}")
    cast.processes.append(process)
    process.is_immortal = is_immortal
    table: Any = SimRelayTable(cast.database.table, process)
    context = RelayContext(
        GROUP,
        cast.partition_count,
        table,
        process.clock,
        cast.table_rng.choice([LIMITS, PATIENT]),
        SimReporter(world),
        f"r:{process.name}",
        process.loop.backend.capabilities.batch_count_max,
    )
    cast.relays.append(process)
    process.loop.spawn(_relay(cast, context))
    process.on_death.append(lambda: world.at(cast.table_rng.random() * 3, lambda: _restart(cast)))
    return process


def _relay(cast: Cast, context: RelayContext) -> Flow[None]:
    """Relay for ever, as `Relay` does; while the table is empty, wait for the next commit, which saves time."""
    table = cast.database.table
    while True:
        report = BatchReport()
        try:
            report = yield from relay_batch(context)
        except TxcoreError:
            yield 0.3
        if table.is_drained():
            yield table.bell()
            context.look_at_s = 0.0
        yield 0.05 if report.sent else 0.4


def _restart(cast: Cast) -> None:
    if sum(process.is_alive for process in cast.relays) < RELAYS_MAX:
        start_relay(cast)
