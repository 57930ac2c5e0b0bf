"""Every event's name in one place, and the reporter that logs it and hands it to plugins."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pluggy

from txcore import hookspecs, message
from txcore.clock import Clock
from txcore.records import Half, Status

CHECKER_ASSIGNED: Final = "checker.assigned"
CHECKER_CLAIMED: Final = "checker.claimed"
CHECKER_STOOD_DOWN: Final = "checker.stood_down"
CHECKER_ERROR: Final = "checker.error"
TRANSACTION_PREPARED: Final = "transaction.prepared"
TRANSACTION_LOCAL: Final = "transaction.local"
TRANSACTION_ENDED: Final = "transaction.ended"
TRANSACTION_VIA_TABLE: Final = "transaction.via_table"
PRODUCER_TO_TABLE: Final = "producer.to_table"  #: an alert: the circuit opened, messages go into the message table
PRODUCER_TO_BROKER: Final = "producer.to_broker"  #: an alert's end: the circuit closed, halves are written again
RELAY_SENT: Final = "relay.sent"
RELAY_ERROR: Final = "relay.error"  #: an alert: database or broker failed; the messages in hand are sent again
RELAY_REFUSED: Final = "relay.refused"
RELAY_PARKED: Final = "relay.parked"  #: an alert: a message that its target refuses, or that cannot be read
RELAY_NEWER: Final = "relay.newer"  #: an alert: a message of a newer txcore waits, with its key, for an upgraded relay
CHECK_ASKED: Final = "check.asked"
CHECK_ANSWERED: Final = "check.answered"
CHECK_NO_ANSWER: Final = "check.no_answer"  #: an alert: nothing was counted, the check is repeated
CHECK_WRONG_LISTENER: Final = "check.wrong_listener"  #: an alert: group and topic without a listener here
CHECK_WRONG_DATABASE: Final = "check.wrong_database"  #: an alert: the fence here is not of the producer's database
FENCE_FORGOTTEN: Final = "fence.forgotten"  #: an alert: a listener has committed without `current_transaction().fence`
HALF_FINISHED: Final = "half.finished"
HALF_CARRIED: Final = "half.carried"
HALF_PARKED: Final = "half.parked"
RELEASE_REFUSED: Final = "release.refused"
RELEASE_UNKNOWN: Final = "release.unknown"
OP_CONFLICT: Final = "op.conflict"  #: an alert: a final op contradicts the first one
OP_STALE: Final = "op.stale"
OP_WITHOUT_HALF: Final = "op.without_half"
LOG_TRUNCATED: Final = "log.truncated"
LOG_POISON: Final = "log.poison"
PARTITION_BLOCKED: Final = "partition.blocked"  #: an alert: a newer txcore's record, which this one would misjudge

ALERTS: Final = frozenset(
    {
        CHECKER_ERROR,
        PRODUCER_TO_TABLE,
        PRODUCER_TO_BROKER,
        RELAY_ERROR,
        RELAY_PARKED,
        RELAY_NEWER,
        CHECK_NO_ANSWER,
        CHECK_WRONG_LISTENER,
        CHECK_WRONG_DATABASE,
        FENCE_FORGOTTEN,
        HALF_PARKED,
        OP_CONFLICT,
        OP_WITHOUT_HALF,
        LOG_TRUNCATED,
        LOG_POISON,
        PARTITION_BLOCKED,
    }
)


class Reporter:
    """Logs events and passes them to registered plugins. A failing plugin is logged and never disturbs the caller.

    Args:
        always: Facts that are logged with every event.
    """

    def __init__(self, logger: str, plugins: Sequence[object] = (), **always: Any) -> None:
        self._always = always
        self._log = logging.getLogger(logger)
        self._manager: pluggy.PluginManager | None = None
        if plugins:
            self._manager = pluggy.PluginManager(hookspecs.PROJECT)
            self._manager.add_hookspecs(hookspecs)
            for plugin in plugins:
                self._manager.register(plugin)

    def event(self, name: str, **fields: Any) -> None:
        """Report that *name* happened."""
        level = logging.WARNING if name in ALERTS else logging.DEBUG
        if self._log.isEnabledFor(level):
            self._log.log(level, name, extra={"txcore": self._always | fields})
        if self._manager is not None:
            self._call("txcore_on_event", event=hookspecs.Event(name, fields))

    def discard(self, half: Half | None, reason: str) -> None:
        """Report that a half was parked."""
        if self._manager is not None:
            self._call("txcore_on_discard", half=half, reason=reason)

    def headers(self, transaction_id: bytes) -> Mapping[str, str]:
        """Return the headers that observers want the messages of a new transaction to carry."""
        found = self._call("txcore_trace_headers", transaction_id=transaction_id) if self._manager is not None else None
        return {name: value for each in found or () for name, value in each.items()}

    def _call(self, hook: str, **arguments: Any) -> Any:
        try:
            return getattr(self._manager.hook, hook)(**arguments)  # type: ignore[union-attr]
        except Exception:  # noqa: BLE001 - an observer must not stop the protocol
            self._log.warning("plugin.failed", exc_info=True, extra={"txcore": self._always | {"hook": hook}})
            return None


class ProducerReporter:
    """Turns the reports of a producer's flows into events; None instead of one costs nothing."""

    def __init__(self, group: str, plugins: Sequence[object], clock: Clock) -> None:
        self._report = Reporter("txcore.producer", plugins, group=group)
        self._clock = clock

    def headers(self, transaction_id: bytes) -> Mapping[str, str]:
        """See `Reporter.headers`."""
        return self._report.headers(transaction_id)

    def prepared(self, transaction_id: bytes, began_s: float, status: Status) -> None:
        """Report the result of the half's append."""
        self._event(TRANSACTION_PREPARED, transaction_id, began_s, status=status.name)

    def ran_local(self, transaction_id: bytes, began_s: float, state: str) -> None:
        """Report the end of the local transaction."""
        self._event(TRANSACTION_LOCAL, transaction_id, began_s, state=state)

    def enqueued(self, transaction_id: bytes, reason: str) -> None:
        """Report that the messages travel by the message table, and why ("" where they always do)."""
        self._report.event(TRANSACTION_VIA_TABLE, transaction_id=transaction_id, reason=reason)

    def switched(self, *, is_open: bool, reason: str) -> None:
        """Report that the circuit to the broker opened, or closed again."""
        self._report.event(PRODUCER_TO_TABLE if is_open else PRODUCER_TO_BROKER, reason=reason)

    def ended(self, transaction_id: bytes, began_s: float, end: str, state: str) -> None:
        """Report the result of a commit or rollback."""
        self._event(TRANSACTION_ENDED, transaction_id, began_s, end=end, state=state)

    def forgot_fence(self, transaction_id: bytes) -> None:
        """Report that a listener has committed without the fence row."""
        self._report.event(FENCE_FORGOTTEN, transaction_id=transaction_id)

    def _event(self, name: str, transaction_id: bytes, began_s: float, **fields: str) -> None:
        took_s = self._clock.elapsed_s() - began_s
        self._report.event(name, transaction_id=transaction_id, took_s=took_s, **fields)


def trace_of(half: Half) -> str:
    """Return the W3C `traceparent` that the messages of *half* carry; "" for none."""
    value = half.messages[0].headers.get(message.TRACEPARENT, "") if half.messages else ""
    return value if isinstance(value, str) else value.decode("ascii", "replace")
