"""Every event's name in one place, and the reporter that logs it and hands it to plugins."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pluggy

from txcore import hookspecs, message
from txcore.clock import Clock
from txcore.ids import TransactionId, known_id
from txcore.records import Half, Status

ALERTS: Final = set[str]()
"""The names of the events that an operator should hear of."""


def _alert(name: str) -> str:
    ALERTS.add(name)
    return name


CHECKER_ASSIGNED: Final = "checker.assigned"
CHECKER_CLAIMED: Final = "checker.claimed"
CHECKER_STOOD_DOWN: Final = "checker.stood_down"
CHECKER_ERROR: Final = _alert("checker.error")
BROKER_DOWN: Final = _alert("broker.down")  #: it gives a checker no answer
BROKER_UP: Final = _alert("broker.up")  #: that is over
TRANSACTION_PREPARED: Final = "transaction.prepared"
TRANSACTION_LOCAL: Final = "transaction.local"
TRANSACTION_ENDED: Final = "transaction.ended"
TRANSACTION_VIA_TABLE: Final = "transaction.via_table"
PRODUCER_TO_TABLE: Final = _alert("producer.to_table")  #: the circuit opened, messages go into the message table
PRODUCER_TO_BROKER: Final = _alert("producer.to_broker")  #: that one is over: halves are written again
RELAY_SENT: Final = "relay.sent"
RELAY_DOWN: Final = _alert("relay.down")  #: database or broker failed; the messages in hand are sent again
RELAY_UP: Final = _alert("relay.up")  #: that is over
RELAY_REFUSED: Final = "relay.refused"
RELAY_PARKED: Final = _alert("relay.parked")  #: a message that its target refuses, or that cannot be read
RELAY_NEWER: Final = _alert("relay.newer")  #: a message of a newer txcore waits, with its key, for an upgraded relay
CHECK_ASKED: Final = "check.asked"
CHECK_ANSWERED: Final = "check.answered"
CHECK_NO_ANSWER: Final = _alert("check.no_answer")  #: nothing was counted, the check is repeated
CHECK_WRONG_LISTENER: Final = _alert("check.wrong_listener")  #: group and topic without a listener here
CHECK_WRONG_DATABASE: Final = _alert("check.wrong_database")  #: the fence here is not of the producer's database
FENCE_FORGOTTEN: Final = _alert("fence.forgotten")  #: a listener has committed without `transaction.fence`
HALF_FINISHED: Final = "half.finished"
HALF_CARRIED: Final = "half.carried"
HALF_UNPROVEN: Final = _alert("half.unproven")  #: a copy has no proof in the op log
HALF_PARKED: Final = _alert("half.parked")
RELEASE_REFUSED: Final = "release.refused"
RELEASE_UNKNOWN: Final = "release.unknown"
OP_CONFLICT: Final = _alert("op.conflict")  #: a final op contradicts the first one
OP_STALE: Final = "op.stale"
OP_WITHOUT_HALF: Final = _alert("op.without_half")
LOG_TRUNCATED: Final = _alert("log.truncated")
LOG_POISON: Final = _alert("log.poison")
PARTITION_BLOCKED: Final = _alert("partition.blocked")  #: a newer txcore's record, which this one would misjudge


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
        is_logged = self._log.isEnabledFor(level)
        if not is_logged and self._manager is None:
            return
        if "transaction_id" in fields:
            fields["transaction_id"] = known_id(fields["transaction_id"])
        if is_logged:
            self._log.log(level, name, extra={"txcore": self._always | fields})
        if self._manager is not None:
            self._call("txcore_on_event", event=hookspecs.Event(name, fields))

    @property
    def is_logging(self) -> bool:
        """Whether ordinary events are logged now."""
        return self._log.isEnabledFor(logging.DEBUG)

    def discard(self, half: Half | None, reason: str) -> None:
        """Report that a half was parked."""
        if self._manager is not None:
            self._call("txcore_on_discard", half=half, reason=reason)

    def headers(self, transaction_id: TransactionId) -> Mapping[str, str]:
        """Return the headers that observers want the messages of a new transaction to carry."""
        found = self._call("txcore_trace_headers", transaction_id=transaction_id) if self._manager is not None else None
        return {name: value for each in found or () for name, value in each.items()}

    def _call(self, hook: str, **arguments: Any) -> Any:
        try:
            return getattr(self._manager.hook, hook)(**arguments)  # type: ignore[union-attr]
        except Exception:  # noqa: BLE001 - an observer must not stop the protocol
            self._log.warning("plugin.failed", exc_info=True, extra={"txcore": self._always | {"hook": hook}})
            return None


class ProducerReporter(Reporter):
    """Turns the reports of a producer's flows into events; None instead of one costs nothing."""

    def __init__(self, group: str, plugins: Sequence[object], clock: Clock) -> None:
        super().__init__("txcore.producer", plugins, group=group)
        self._clock = clock

    def prepared(self, transaction_id: bytes, began_s: float, status: Status) -> None:
        """Report the result of the half's append."""
        self._timed(TRANSACTION_PREPARED, transaction_id, began_s, status=status.name)

    def ran_local(self, transaction_id: bytes, began_s: float, state: str) -> None:
        """Report the end of the local transaction."""
        self._timed(TRANSACTION_LOCAL, transaction_id, began_s, state=state)

    def enqueued(self, transaction_id: bytes, reason: str) -> None:
        """Report that the messages travel by the message table, and why ("" where they always do)."""
        self.event(TRANSACTION_VIA_TABLE, transaction_id=transaction_id, reason=reason)

    def switched(self, *, is_open: bool, reason: str) -> None:
        """Report that the circuit to the broker opened, or closed again."""
        self.event(PRODUCER_TO_TABLE if is_open else PRODUCER_TO_BROKER, reason=reason)

    def ended(self, transaction_id: bytes, began_s: float, end: str, state: str) -> None:
        """Report the result of a commit or rollback."""
        self._timed(TRANSACTION_ENDED, transaction_id, began_s, end=end, state=state)

    def forgot_fence(self, transaction_id: bytes) -> None:
        """Report that a listener has committed without the fence row."""
        self.event(FENCE_FORGOTTEN, transaction_id=transaction_id)

    def _timed(self, name: str, transaction_id: bytes, began_s: float, **fields: str) -> None:
        self.event(name, transaction_id=transaction_id, took_s=self._clock.elapsed_s() - began_s, **fields)


def trace_of(half: Half) -> str:
    """Return the W3C `traceparent` that the messages of *half* carry; "" for none."""
    value = half.messages[0].headers.get(message.TRACEPARENT, "") if half.messages else ""
    return value if isinstance(value, str) else value.decode("ascii", "replace")
