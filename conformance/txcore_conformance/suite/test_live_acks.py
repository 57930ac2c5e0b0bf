"""A connection that is cut before an acknowledgement: the broker did the work, and the client does not know."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from txcore import (
    BackendTimeoutError,
    BackendUnavailableError,
    CheckPolicy,
    EndState,
    HalfRefusedError,
    HalfUnknownError,
    Message,
    Transaction,
    TransactionProducer,
)
from txcore.port import Backend
from txcore_conformance.kit import COMMIT, ROLLBACK, Answers, Kit

IMMUNITY_SPARE_S = 2.0


class _Call(threading.Thread):
    """A call under way in another thread; `result` is what it returned or raised."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self.result: Any = None

    def run(self) -> None:
        try:
            self.result = self._function()
        except Exception as error:  # noqa: BLE001 - judged by the test
            self.result = error


def _proxied(live: Kit) -> Backend:
    harness: Any = live.harness
    return live.enlist(harness.open(harness.broker.proxied_url + harness.url_options))


def _begun(live: Kit, topic: str) -> Transaction:
    backend = _proxied(live)
    immunity_s = backend.capabilities.release_time_max_s + IMMUNITY_SPARE_S
    producer = TransactionProducer(backend, live.group, policy=CheckPolicy(immunity_s=immunity_s))
    # The first transaction opens the driver's connections and fills its caches: after it a request is one message to
    # the broker.
    for body in (b"first", b"body"):
        transaction = producer.begin()
        transaction.publish(Message(topic, body, key=b"key", headers={"name": "value"}))
        if body == b"first":
            transaction.prepare()
            live.history.committed(transaction.transaction_id)
            assert transaction.commit().state is EndState.ACCEPTED
            _may_be_doubled(live, transaction.transaction_id, "the op was queued when the connection was cut")
    return transaction


def _may_be_doubled(live: Kit, identity: bytes, why: str) -> None:
    if not (live.promises.atomic_release and live.promises.resolution_is_unique):
        live.history.caused(identity, why)


def _cut_after(live: Kit, call: Callable[[], Any], has_arrived: Callable[[], Any]) -> Any:
    """Make *call* while replies are dropped; cut after the broker has done the work, and return the call's result.

    A backend that first sends another request gets no answer, and gives up before it has sent the awaited one.
    """
    harness: Any = live.harness
    proxy = harness.broker.proxy
    proxy.swallow_replies()
    under_way = _Call(call)
    under_way.start()
    live.until(lambda: has_arrived() or not under_way.is_alive(), "the arrival at the broker, or giving up")
    print("cut while its ack was outstanding" if has_arrived() else "given up before it was sent")
    proxy.cut()
    proxy.forward()
    under_way.join(live.timeout_s)
    assert not under_way.is_alive()
    return under_way.result


def test_a_half_whose_ack_is_lost_is_unknown_or_sent_again(live: Kit) -> None:
    """After a half's lost ack the producer gets UNKNOWN and the check rolls back, or the driver sends it again."""
    topic = live.topic()
    transaction = _begun(live, topic)
    identity = transaction.transaction_id
    error = _cut_after(live, transaction.prepare, lambda: live.journey(identity).half)
    if error is None:
        live.history.committed(identity)
        assert transaction.commit().state in {EndState.ACCEPTED, EndState.TOO_LATE}
    else:
        assert isinstance(error, HalfUnknownError), repr(error)
        live.history.rolled_back(identity)
    live.sweep(live.checker(Answers(by_body={b"first": COMMIT, b"body": COMMIT if error is None else ROLLBACK})))
    live.history.at_rest = True
    assert {b"first"} | ({b"body"} if error is None else set()) == set(live.bodies(topic))


def test_a_target_whose_ack_is_lost_is_delivered_and_decided(live: Kit) -> None:
    """A target whose ack is lost is delivered, perhaps again with the same id, and its half is decided."""
    topic = live.topic()
    transaction = _begun(live, topic)
    transaction.prepare()
    identity = transaction.transaction_id
    live.history.committed(identity)
    end = _cut_after(live, transaction.commit, lambda: b"body" in live.bodies(topic))
    assert end.state in {EndState.ACCEPTED, EndState.ALREADY_DONE, EndState.UNKNOWN}, repr(end)
    _may_be_doubled(live, identity, "a request repeated on a new connection")
    if end.state is EndState.UNKNOWN:
        _may_be_doubled(live, identity, "ambiguous answer")
    live.sweep(live.checker(Answers(COMMIT)))
    live.history.at_rest = True
    print(f"{end.state.value}: {live.bodies(topic).count(b'body')} copies")
    assert {b"first", b"body"} == set(live.bodies(topic))


def test_connections_that_are_cut_repeatedly_recover(live: Kit) -> None:
    """After repeated cuts at any step the same connections can publish, read and own partitions again."""
    topic = live.topic()
    harness: Any = live.harness
    backend = _proxied(live)
    checker = live.checker(Answers(COMMIT), backend=backend)
    checker.start()
    live.until(lambda: checker.partitions, "the checker's partitions")
    pause = threading.Event()
    for number in range(300):
        harness.broker.proxy.cut()
        pause.wait((number % 30) / 1_000)
    immunity_s = backend.capabilities.release_time_max_s + IMMUNITY_SPARE_S
    policy = CheckPolicy(immunity_s=immunity_s)

    def prepared() -> bool:
        try:
            transaction = TransactionProducer(backend, live.group, policy=policy).begin()
            transaction.publish(Message(topic, transaction.transaction_id.hex().encode()))
            transaction.prepare()
        except (BackendUnavailableError, BackendTimeoutError, HalfRefusedError, HalfUnknownError) as error:
            print(f"not yet: {error}")
            return False
        live.history.committed(transaction.transaction_id)
        transaction.commit()
        return True

    live.until(prepared, "a half that is acknowledged")
    orphan = live.orphan(Message(topic, b"left to the checker"))
    live.until(lambda: b"left to the checker" in live.bodies(topic), "a check after the cuts")
    live.stop_checkers()
    live.sweep(live.checker(Answers(COMMIT)))
    live.history.causes_default = 1
    live.history.at_rest = True
    assert live.journey(orphan.transaction_id).final
