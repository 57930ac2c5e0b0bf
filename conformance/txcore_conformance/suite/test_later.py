"""Section `later`: a delayed message comes in time, as what it is, and a cancelled one never."""

from __future__ import annotations

from typing import Any

from txcore import CancelState, EndState, Message, Relay, RelayLimits
from txcore.wire import HEADER_DUE, HEADER_ID, OWN_HEADERS, target_id
from txcore_conformance.kit import Kit

LIMITS = RelayLimits(poll_s=0.002, idle_poll_s=0.05)


def test_delayed_message_comes_in_time_with_its_time(kit: Kit, topic: str, engine: Any, fence: Any) -> None:
    """The relay publishes it with its id, key, headers and due time, not before the database's clock says so."""
    producer = kit.producer(fence=fence)
    with producer.transaction(engine) as transaction:
        transaction.publish(Message(topic, b"now", b"key"))
        transaction.publish(Message(topic, b"later", b"key", {"h": "v"}, delay_s=0.5))
    assert transaction.result is not None
    assert transaction.result.state is EndState.VIA_TABLE
    kit.history.via_table.add(transaction.transaction_id)
    with Relay(kit.backend, kit.group, engine, limits=LIMITS):
        kit.until(lambda: len(kit.bodies(topic)) == 2)
        with engine.connect() as connection:
            seen_ms = fence.now_ms(connection)
    now, later = kit.delivered(topic)
    assert now.body == b"now"
    headers = {name: _text(value) for name, value in later.headers.items()}
    assert (later.body, headers[HEADER_ID]) == (b"later", target_id(transaction.transaction_id, 1))
    assert {name: value for name, value in headers.items() if name not in OWN_HEADERS} == {"h": "v"}
    assert seen_ms >= int(headers[HEADER_DUE]) > transaction.transaction_id.born_ms


def test_cancelled_message_never_comes(kit: Kit, topic: str, engine: Any, fence: Any) -> None:
    """A committed cancel holds, one that is rolled back has no effect, and one that is too late says so."""
    producer = kit.producer(fence=fence)
    names = [b"cancelled", b"rolled back"]
    identities = []
    for name in names:
        with producer.transaction(engine) as transaction:
            transaction.publish(Message(topic, name, delay_s=0.8))
        identities.append(transaction.transaction_id)
        kit.history.via_table.add(transaction.transaction_id)
    with engine.begin() as connection:
        assert producer.cancel(identities[0], connection) is CancelState.CANCELLED
    with engine.connect() as connection:
        assert producer.cancel(identities[1], connection) is CancelState.CANCELLED
        connection.rollback()
    relay = Relay(kit.backend, kit.group, engine, limits=LIMITS)
    with relay:
        kit.until(lambda: bool(kit.bodies(topic)))
        kit.until(lambda: relay.waiting().later == 0)
    assert kit.bodies(topic) == [b"rolled back"]
    with engine.begin() as connection:
        states = [producer.cancel(each, connection) for each in identities]
    assert states == [CancelState.CANCELLED, CancelState.TOO_LATE]


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()
