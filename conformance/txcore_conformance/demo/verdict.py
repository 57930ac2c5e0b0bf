"""Reads everything back after the run, and judges it: database, topic and txcore's logs, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from txcore.clock import SystemClock
from txcore.errors import UsageError
from txcore.history.journey import Journey
from txcore.ids import parse_id
from txcore.port import Backend
from txcore.records import OpKind
from txcore.wire import HEADER_BY, HEADER_ID
from txcore_conformance import oracle
from txcore_conformance.checkpoint_bounds import judge_checkpoint
from txcore_conformance.demo.consuming import Consumer, Received
from txcore_conformance.demo.settings import Settings
from txcore_conformance.demo.shop import Order, Shop
from txcore_conformance.demo.supervisor import Progress
from txcore_conformance.harness import Delivered, Harness
from txcore_conformance.invariants import Invariant, Violation
from txcore_conformance.oracle import History

QUIET_S: Final = 0.3
READ_COUNT_MAX: Final = 500


@dataclass(slots=True)
class Verdict:
    """The verdict of a run.

    Attributes:
        orders: Committed orders in the database.
        identical: Orders whose message is equal to their row, in the topic and in the consumer's table.
        rolled_back: Transactions that the check rolled back because their process died before the COMMIT.
        in_doubt: Transactions that are neither committed nor rolled back.
        lost: Committed orders without a message.
        leaked: Messages without a committed order.
        violations: Every broken invariant, with its id.
    """

    orders: int = 0
    identical: int = 0
    rolled_back: int = 0
    in_doubt: int = 0
    lost: int = 0
    leaked: int = 0
    violations: list[Violation] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether there is no finding."""
        wrong = self.in_doubt + self.lost + self.leaked + len(self.violations)
        return wrong == 0 and self.identical == self.orders


class TopicView(Harness):
    """The oracle's view: the topic as it was read to its end."""

    def __init__(self, backend: Backend, topic: str, messages: Sequence[Received]) -> None:
        self._backend = backend
        self._topic = topic
        self._messages = messages

    def open(self) -> Backend:
        """Return the backend that is open already."""
        return self._backend

    def create_topic(self, topic: str) -> None:
        """Create nothing: the run is over."""

    def read_topic(self, topic: str) -> Sequence[Delivered]:
        """Return the messages that were read."""
        if topic != self._topic:
            return []
        return [Delivered(each.position, each.key, each.body, each.headers) for each in self._messages]


def read_to_end(consumer: Consumer, at_least: int, patience_s: float = 5.0) -> Sequence[Received]:
    """Return all messages of a topic: at least *at_least*, and until none arrives for a moment."""
    clock = SystemClock()
    began_s = quiet_since_s = clock.elapsed_s()
    messages: list[Received] = []
    while True:
        batch = consumer.poll(READ_COUNT_MAX)
        now_s = clock.elapsed_s()
        if batch:
            messages.extend(batch)
            quiet_since_s = now_s
        elif now_s - quiet_since_s > QUIET_S and (len(messages) >= at_least or now_s - began_s > patience_s):
            return messages


def judge(
    settings: Settings, shop: Shop, backend: Backend, messages: Sequence[Received], progress: Progress
) -> Verdict:
    """Compare the database with *messages* and with txcore's own logs.

    Args:
        progress: The events of the run, from which the legal number of copies of a message follows.
    """
    rows = shop.rows()
    view = TopicView(backend, settings.topic, messages)
    logs = oracle.read_group(backend, settings.group)
    journeys: dict[bytes, Journey] = {}
    for part in logs:
        journeys.update(oracle.journeys_of(part.partition, part.halves, part.ops, part.parked))
    history = _history(rows, journeys)
    if oracle.causes_of_a_crash(backend.capabilities):
        history.causes.update(causes_of(messages, progress))
    facts = oracle.collect(view, backend, settings.group, history, logs)
    by_row = _by_transaction(messages)
    verdict = Verdict(
        orders=len(rows),
        rolled_back=sum(each.final == OpKind.ROLLBACK for each in journeys.values()),
        in_doubt=sum(each.is_pending or each.is_parked for each in journeys.values()),
        lost=sum(identity not in by_row for identity in rows),
        leaked=sum(len(found) for identity, found in by_row.items() if identity not in rows),
        violations=oracle.judge_facts(facts, backend.capabilities, at_rest=True) + _passed(logs),
    )
    _compare(verdict, rows, by_row, dict(shop.applied_rows()))
    return verdict


def _passed(logs: Sequence[oracle.PartitionLogs]) -> list[Violation]:
    """Return the violations by checkpoints."""
    reasons = (judge_checkpoint(part.checkpoint, part.halves, part.ops) for part in logs if part.checkpoint)
    return [Violation(Invariant.S11, bytes(16), reason) for reason in reasons if reason]


def _compare(
    verdict: Verdict,
    rows: Mapping[str, Order],
    by_row: Mapping[str, Sequence[Received]],
    applied: Mapping[str, Order],
) -> None:
    """Compare every order's row with its message and with the consumer's row."""
    for identity, order in rows.items():
        found = by_row.get(identity, ())
        is_same = bool(found) and all(_says(each, order) for each in found)
        if is_same and applied.get(f"{identity}:0") == order:
            verdict.identical += 1
        elif found:
            text = f"order {order.number} differs from its delivered message or its applied row"
            verdict.violations.append(Violation(Invariant.S7, parse_id(identity), text))
    for message_id in sorted(set(applied) - {f"{identity}:0" for identity in rows}):
        text = "the consumer applied it, but it was never ordered"
        verdict.violations.append(Violation(Invariant.S2, parse_id(message_id.partition(":")[0]), text))


def causes_of(messages: Sequence[Received], progress: Progress) -> dict[bytes, int]:
    """Return the number of second deliveries of each transaction that the demo itself caused.

    One cause is an attempt that published, and whose process died before its op was stored: the next checker publishes
    again, and may be killed at the same step. Another one is a release with an uncertain outcome.
    """
    causes: dict[bytes, int] = {}
    for identity, found in _by_transaction(messages).items():
        try:
            transaction_id = parse_id(identity)
        except UsageError:
            continue  # a foreign message; the comparison reports it
        attempts = {_header(each, HEADER_BY) for each in found}
        causes[transaction_id] = len(attempts & progress.dead_attempts) + progress.uncertain[transaction_id]
    return causes


def _history(rows: Mapping[str, Order], journeys: Mapping[bytes, Journey]) -> History:
    history = History(at_rest=True)
    for identity in rows:
        history.committed(parse_id(identity))
    for transaction_id in journeys:
        if transaction_id not in history.local:
            history.rolled_back(transaction_id)
    return history


def _by_transaction(messages: Sequence[Received]) -> Mapping[str, Sequence[Received]]:
    found: dict[str, list[Received]] = {}
    for each in messages:
        found.setdefault(_identity(each), []).append(each)
    return found


def _identity(message: Received) -> str:
    return _header(message, HEADER_ID).rpartition(":")[0]


def _header(message: Received, name: str) -> str:
    value = message.headers.get(name, "")
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _says(message: Received, order: Order) -> bool:
    customer = message.headers.get("customer")
    named = customer.decode() if isinstance(customer, bytes) else customer
    return message.body == order.to_json() and message.key == str(order.number).encode() and named == order.customer
