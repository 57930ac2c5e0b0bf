"""Whether a group can do its work, component by component: each has a reason while it cannot, and "" while it can.

Everything here is read from figures in memory, so that an answer never waits for a broker or a database. The figures
are kept where the work is done: the checker asks its broker (`txcore.checker.contact`), a watch asks the database
(`database_watch`), the relay counts its turns. Where the relay runs elsewhere, a watch asks for it (`relay_watch`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from txcore.checker.checker import CheckerStats
from txcore.checker.partition_owner import PartitionStats
from txcore.operator import formatting
from txcore.sidecar.source_circuit import CALLBACK, SourceCircuit

if TYPE_CHECKING:
    from txcore.outbox.relay import RelayStats

TURN_MAX_S: Final = 8.0
"""Age, in seconds, of the last turn of a checker's loop, or of a relay, at which it counts as down."""
UNRELEASED_MAX_S: Final = 60.0
"""Time, in seconds, that a committed half may wait here for its owner's release."""
OPTIONAL: Final = frozenset({CALLBACK})
"""Components without which a group is degraded, and still ready: it finishes all halves that others answer for."""


def components_of(checker: CheckerStats, circuits: Iterable[SourceCircuit], relay: str | None) -> dict[str, str]:
    """Return the components of a running group, by name, each with the reason why it is down.

    Args:
        relay: The reason why no relay sends; "" while one can, None for a group without a message table.
    """
    found = {"checker": _of_checker(checker), "broker": checker.broker}
    found |= {circuit.name: circuit.reason for circuit in circuits}
    if relay is not None:
        found["relay"] = relay
    found |= {f"partition {each.partition}": text for each in checker.partitions if (text := _of_releases(each))}
    found |= {f"partition {partition}": f"fails: {reason}" for partition, reason in checker.failing.items()}
    return found | {
        f"partition {each.partition}": f"is blocked: {each.blocked}" for each in checker.partitions if each.blocked
    }


def _of_checker(checker: CheckerStats) -> str:
    if not checker.is_running:
        return "its thread has ended"
    return f"its loop has not turned for {checker.turned_s:.0f} s" if checker.turned_s > TURN_MAX_S else ""


def _of_releases(partition: PartitionStats) -> str:
    """Return that releases are late; not while a new owner works off what waited for an owner."""
    age_s = partition.unreleased_age_s
    if min(age_s, partition.owned_s) <= UNRELEASED_MAX_S:
        return ""
    return f"a committed half waits for its release for {formatting.age(age_s)}"


def trouble_of(relay: RelayStats) -> str:
    """Return why a relay is down; "" while it works."""
    if not relay.is_running:
        return "its thread has ended"
    if relay.turned_s > TURN_MAX_S:
        return f"it waits for the database or the broker for {relay.turned_s:.0f} s"
    return relay.trouble
