"""Section `order`: halves with the same order key are published one after the other, and a parked one holds its key."""

from __future__ import annotations

from txcore import EndState, Message
from txcore.ids import TransactionId
from txcore.records import LogKind
from txcore.wire import HEADER_KEY, decode_half
from txcore_conformance import raw
from txcore_conformance.kit import COMMIT, ROLLBACK, UNKNOWN, Answers, Kit

KEY = b"account-7"


def _bytes(key: str | bytes | None) -> bytes | None:
    return key.encode() if isinstance(key, str) else key


def _message(topic: str, body: bytes, order_key: bytes = KEY) -> Message:
    return Message(topic, body, order_key=order_key)


def _committed(kit: Kit, topic: str, *bodies: bytes, order_key: bytes = KEY) -> None:
    """Store halves whose producers have stored their decision."""
    for body in bodies:
        transaction = kit.producer(release="owner").begin()
        transaction.publish(_message(topic, body, order_key))
        transaction.prepare()
        assert EndState.ACCEPTED is transaction.commit().state
        kit.history.committed(transaction.transaction_id)


def _undecided(kit: Kit, topic: str, body: bytes) -> TransactionId:
    """Store a half whose producer does nothing more."""
    return kit.orphan(_message(topic, body), release="owner").transaction_id


def test_halves_of_one_key_are_published_in_the_order_of_their_storing(kit: Kit, topic: str) -> None:
    """All halves of a key are in one partition; their messages have it as key, and come in their order."""
    bodies = [b"m%02d" % number for number in range(20)]
    _committed(kit, topic, *bodies)
    kit.sweep(kit.checker(Answers(ROLLBACK)))
    kit.history.at_rest = True
    delivered = kit.delivered(topic)
    keys = {each.headers.get(HEADER_KEY, each.key) for each in delivered}  # a header where records have no key
    assert (bodies, {KEY}) == ([each.body for each in delivered], {_bytes(key) for key in keys})


def test_a_batch_of_one_key_is_published_in_the_order_of_its_halves(kit: Kit, topic: str) -> None:
    """Each message of `send_many` is published after the one before, in the order that the broker gave the halves."""
    bodies = {b"m%02d" % number for number in range(20)}
    results = kit.producer(Answers(), release="owner").send_many((_message(topic, body), COMMIT) for body in bodies)
    for result in results:
        kit.history.committed(result.transaction_id)
    kit.sweep(kit.checker(Answers(ROLLBACK)))
    kit.history.at_rest = True
    partition = kit.journey(results[0].transaction_id).partition
    halves = raw.read(kit, LogKind.HALF, lambda found: len(found) >= len(bodies), partition=partition)
    stored = [decode_half(each.body).messages[0].body for each in halves]
    assert (bodies, stored) == ({*stored}, kit.bodies(topic))


def test_an_undecided_half_holds_up_its_own_key_only(kit: Kit, topic: str) -> None:
    """Later halves of its key wait until it is decided; those of another key do not."""
    first = _undecided(kit, topic, b"first")
    _committed(kit, topic, b"second", b"third")
    _committed(kit, topic, b"other", order_key=b"account-8")
    listener = Answers(UNKNOWN)
    checker = kit.checker(listener, check_max=1_000)
    kit.sweep(checker, lambda: len(listener.asked) > 2 and bool(kit.bodies(topic)))
    assert [b"other"] == kit.bodies(topic)
    kit.history.committed(first)
    listener.answer = COMMIT
    kit.sweep(checker)
    kit.history.at_rest = True
    assert [b"other", b"first", b"second", b"third"] == kit.bodies(topic)


def test_a_parked_half_holds_its_key_over_a_takeover_until_it_is_resumed(kit: Kit, topic: str) -> None:
    """The next checker begins after the parked half's DISCARD, and publishes nothing that comes after it."""
    first = _undecided(kit, topic, b"first")
    _committed(kit, topic, b"second")
    checker = kit.checker(Answers(UNKNOWN), check_max=1)
    kit.sweep(checker, lambda: bool(kit.operator().parked()))
    checker.stop()
    checker = kit.checker(Answers(COMMIT))
    kit.sweep(checker, lambda: 1 == sum(each.held for each in checker.stats().partitions))
    checker.run_once()
    assert [] == kit.bodies(topic)
    kit.history.committed(first)
    kit.operator().resume(first, "the service is back")
    kit.sweep(checker)
    kit.history.at_rest = True
    assert ([b"first", b"second"], []) == (kit.bodies(topic), kit.operator().parked())


def test_a_parked_half_that_is_rolled_back_frees_its_key(kit: Kit, topic: str) -> None:
    """A forced ROLLBACK ends the wait: the parked half is not published, and the next one is."""
    first = _undecided(kit, topic, b"first")
    _committed(kit, topic, b"second")
    checker = kit.checker(Answers(UNKNOWN), check_max=1)
    kit.sweep(checker, lambda: bool(kit.operator().parked()))
    kit.operator().rollback(first, "it was never paid")
    kit.sweep(checker)
    kit.history.at_rest = True
    assert ([b"second"], []) == (kit.bodies(topic), kit.operator().parked())
