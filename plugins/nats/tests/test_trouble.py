"""A broker that is killed, frozen, cut off or absent: items end in time, and no certain outcome is wrong."""

from __future__ import annotations

import contextlib
import logging
import threading

import pytest
from nats.aio.client import Client
from txcore_conformance import raw
from txcore_conformance.kit import COMMIT, Answers, Recorder, error_of
from txcore_nats import publishing

import txcore
from txcore import Message, wire
from txcore.errors import BackendTimeoutError, BackendUnavailableError, BusyError, ClosedError
from txcore.records import Checkpoint, LogKind, OpKind, Position, Resolution, Status

_log = logging.getLogger("tests")
DURABLE, REFUSED, UNKNOWN = Status.DURABLE, Status.REFUSED, Status.UNKNOWN


class Load:
    """A thread that appends halves and releases them until stopped."""

    def __init__(self, kit, backend, topic):
        self._kit, self._backend, self._topic = kit, backend, topic
        self._stop = threading.Event()
        self.halves, self.releases = [], []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._stop.wait(0.01):
            halves = [raw.half(self._kit, self._topic) for _ in range(20)]
            appended = Recorder(halves)
            self._backend.append_halves(appended)
            self.halves.append(appended)
            released = Recorder([raw.commit(half) for half in halves])
            self._backend.release(released)
            self.releases.append(released)

    def stop(self):
        self._stop.set()
        self._thread.join()
        for batch in (*self.halves, *self.releases):
            batch.wait(self._backend, self._kit.timeout_s)

    def durable(self):
        """Return the halves whose append is DURABLE, and those whose release is."""
        halves = [
            half
            for batch in self.halves
            for half, outcome in zip(batch.items, batch.outcomes, strict=True)
            if outcome.status is DURABLE
        ]
        releases = [
            resolution.half
            for batch in self.releases
            for resolution, outcome in zip(batch.items, batch.outcomes, strict=True)
            if outcome.status is DURABLE
        ]
        return halves, releases


def check_kept(kit, load, topic):
    """Check that DURABLE records are stored, each op has its target, and no id is delivered twice."""
    halves, releases = load.durable()
    count = kit.state(f"txc_{kit.group}_half")["messages"]
    stored = {wire.decode_half(record.body).transaction_id for record in raw.halves(kit, count)}
    ended = {op.transaction_id for op in raw.ops(kit) if op.kind == OpKind.COMMIT}
    delivered = [each.headers["txcore-id"] for each in kit.delivered(topic)]
    assert {half.transaction_id for half in halves} <= stored
    assert {half.transaction_id for half in releases} <= ended
    assert {wire.target_id(identity, 0) for identity in ended} <= set(delivered)
    assert len(delivered) == len(set(delivered))
    return len(halves)


def test_a_killed_broker_comes_back_with_all_that_was_durable(hurt):
    """After SIGKILL under load all items are settled, DURABLE records are stored, and the backend continues."""
    topic = hurt.topic()
    load = Load(hurt, hurt.backend, topic)
    hurt.until(lambda: len(load.releases) > 20, "some load")
    hurt.broker.kill()
    count = len(load.releases)
    hurt.until(lambda: len(load.releases) > count + 20, "load while it is away")
    hurt.broker.start()
    hurt.until(lambda: raw.statuses(raw.append(hurt, raw.half(hurt, topic))) == [DURABLE], "the connection")
    load.stop()
    assert check_kept(hurt, load, topic) > 100


def test_a_frozen_broker_leaves_nothing_hanging(hurt):
    """Halves and releases to a frozen broker are UNKNOWN within the timeout; the backend continues after the thaw."""
    topic = hurt.topic()
    half = raw.half(hurt, topic)
    raw.append(hurt, half)
    time_max_s = hurt.promises.release_time_max_s + 2.0
    with hurt.broker.paused():
        lasts_s, outcomes = hurt.lasts_s(lambda: raw.append(hurt, *[raw.half(hurt, topic) for _ in range(100)]))
        assert UNKNOWN is outcomes[-1].status
        assert lasts_s < time_max_s
        lasts_s, (outcome,) = hurt.lasts_s(lambda: raw.release(hurt, raw.commit(half)))
        assert (outcome.status, outcome.missing) == (UNKNOWN, (0,))
        assert lasts_s < time_max_s
        assert isinstance(error_of(lambda: hurt.backend.load_checkpoint(hurt.group, 0), 20), BackendTimeoutError)
    hurt.until(lambda: raw.release(hurt, raw.commit(half))[0].status is not UNKNOWN, "the broker")
    assert 1 == len(hurt.bodies(topic)) == len([op for op in raw.ops(hurt) if op.kind == OpKind.COMMIT])


def test_ten_seconds_of_freeze_are_survived_by_checkers(hurt):
    """A checker decides pending halves after a freeze of ten seconds, without a restart."""
    topic = hurt.topic()
    assert hurt.backend
    checker = hurt.checker(Answers(COMMIT), backend=hurt.open())
    checker.start()
    hurt.until(lambda: len(checker.partitions) == 2, "the partitions")
    with hurt.broker.paused():
        outcome = Recorder([raw.half(hurt, topic, body=b"never")])
        hurt.backend.append_halves(outcome)
        outcome.wait(hurt.backend, hurt.timeout_s)
        threading.Event().wait(10.0)
    identity = hurt.orphan(Message(topic, b"body")).transaction_id
    hurt.until(lambda: b"body" in hurt.bodies(topic), "the delivery")
    assert hurt.journey(identity).final == OpKind.COMMIT
    hurt.history.unjudged = "what became of the half that was sent to a frozen broker is its own affair"


def test_swallowed_answers_are_unknown_and_never_twice(kit, proxy):
    """Items whose answers are lost are UNKNOWN and stored once; a COMMIT after a stored ROLLBACK is SUPERSEDED."""
    topic = kit.topic()
    backend = kit.connect(proxied=True)
    half = raw.half(kit, topic)
    raw.append(kit, half, backend=backend)
    proxy.swallow_replies()
    (outcome,) = raw.append(kit, raw.half(kit, topic, body=b"lost answer"), backend=backend)
    assert UNKNOWN is outcome.status
    (outcome,) = raw.release(kit, Resolution(half, None, (0,), b"", raw.BY), backend=backend)
    assert (outcome.status, outcome.missing) == (UNKNOWN, (0,))
    (outcome,) = raw.release(kit, raw.rollback(half), backend=backend)
    assert (outcome.status, outcome.missing) == (UNKNOWN, ())
    proxy.forward()
    proxy.cut()
    assert len(raw.halves(kit, 2)) == 2
    assert [op.kind for op in raw.ops(kit)] == [OpKind.ROLLBACK]
    kit.until(lambda: raw.release(kit, raw.commit(half), backend=backend)[0].status is Status.SUPERSEDED)
    assert len(kit.bodies(topic)) == 1


def test_a_cut_connection_comes_back_and_sends_nothing_late(kit, proxy):
    """Halves under way are UNKNOWN at once when the connection is cut, and the next connection does not send them."""
    topic = kit.topic()
    backend = kit.connect(proxied=True, delivery_timeout_s=20)
    raw.append(kit, raw.half(kit, topic), backend=backend)
    proxy.swallow_replies()
    batch = Recorder([raw.half(kit, topic) for _ in range(50)])
    backend.append_halves(batch)
    kit.until(lambda: kit.state(f"txc_{kit.group}_half")["messages"] == 51, "the arrival")
    lasts_s, _ = kit.lasts_s(lambda: (proxy.cut(), batch.wait(backend, kit.timeout_s)))
    assert {UNKNOWN} == set(raw.statuses(batch.outcomes))
    assert lasts_s < 5.0
    proxy.forward()
    assert raw.statuses(raw.append(kit, raw.half(kit, topic), backend=backend)) == [DURABLE]
    assert kit.state(f"txc_{kit.group}_half")["messages"] == 52


def test_what_waits_for_the_connection_goes_out_with_the_next_one(kit, proxy):
    """Halves handed over during a short interruption are DURABLE with the next connection."""
    topic = kit.topic()
    backend = kit.connect(proxied=True, delivery_timeout_s=20)
    raw.append(kit, raw.half(kit, topic), backend=backend)
    proxy.refuse()
    proxy.cut()
    kit.until(lambda: backend._link.client is None, "the loss")
    batch = Recorder([raw.half(kit, topic) for _ in range(50)])
    backend.append_halves(batch)
    proxy.forward()
    assert {DURABLE} == set(raw.statuses(batch.wait(backend, kit.timeout_s)))


def test_a_frozen_network_is_noticed_by_unanswered_pings(kit, proxy):
    """A connection whose pings have no answer is given up, and a new one is opened."""
    backend = kit.connect(proxied=True, ping_interval_s="0.5")
    raw.append(kit, raw.half(kit, kit.topic()), backend=backend)
    first = backend._link.client
    proxy.freeze()
    kit.until(lambda: backend._link.client is not first, "the end of the old connection")
    proxy.forward()
    proxy.cut()
    kit.until(lambda: backend._link.client not in {first, None}, "a new connection")
    assert isinstance(backend._link.client, Client)


def test_an_absent_broker_is_named_and_may_come_later(hurt):
    """Without a broker, control calls fail in time, halves are REFUSED, releases UNKNOWN; all work when it is back."""
    topic = hurt.topic()
    half = raw.half(hurt, topic)
    raw.append(hurt, half)
    hurt.broker.kill()
    backend = hurt.connect(partition_count=0, control_timeout_s=1, delivery_timeout_s="0.5")
    lasts_s, error = hurt.lasts_s(lambda: error_of(lambda: backend.ensure_group(hurt.group), 20))
    assert isinstance(error, BackendUnavailableError)
    assert lasts_s < 5.0
    assert raw.statuses(raw.append(hurt, raw.half(hurt, topic), backend=backend)) == [REFUSED]
    (outcome,) = raw.release(hurt, raw.commit(half), backend=backend)
    assert (outcome.status, outcome.missing) == (UNKNOWN, (0,))
    reader = backend.read(hurt.group, LogKind.HALF, 0)
    with pytest.raises(BackendUnavailableError):
        hurt.until(lambda: reader.read(1))
    claim = backend.claim(hurt.group, "early")
    assert list(claim.poll()) == []
    assert error_of(lambda: claim.checkpoint(0, Checkpoint(Position(1), None)), 20) is not None
    hurt.broker.start()
    hurt.until(lambda: error_of(lambda: backend.ensure_group(hurt.group), 20) is None, "the broker")

    def read():
        with contextlib.suppress(BackendUnavailableError):  # From an attempt that began before the broker was back.
            return list(reader.read(1))
        return []

    assert [half.body] == [record.body for record in hurt.until(read, "the half")]
    hurt.until(lambda: len(claim.poll()) > 0, "the partitions")
    claim.close(1.0).result(5)


def test_close_is_bounded_with_the_broker_gone_or_frozen(hurt):
    """Closing ends in time, settles all items and ends the threads; closing twice is allowed."""
    topic = hurt.topic()
    half = raw.half(hurt, topic)
    raw.append(hurt, half)
    frozen, gone = hurt.connect(), hurt.connect()
    for backend in (frozen, gone):
        assert DURABLE is raw.mark(hurt, OpKind.TICK, backend=backend)[1].status
        backend.claim(hurt.group, "member")
    batches = []

    def close(backend):
        batch = Recorder([raw.half(hurt, topic) for _ in range(10)])
        backend.append_halves(batch)
        batches.append(batch)
        lasts_s, _ = hurt.lasts_s(lambda: backend.close(1.0).result(20))
        backend.close(1.0).result(20)
        assert lasts_s < 6.0
        assert None not in batch.outcomes

    with hurt.broker.paused():
        close(frozen)
    hurt.broker.kill()
    close(gone)
    hurt.broker.start()
    hurt.until(lambda: raw.statuses(raw.append(hurt, raw.half(hurt, topic))) == [DURABLE], "the broker")
    names = [thread.name for thread in threading.enumerate()]
    assert len([name for name in names if name == "txcore-nats"]) == len(hurt._backends)


def test_a_flood_is_turned_away_and_not_hoarded(hurt, monkeypatch):
    """Halves above the limit of waiting messages are REFUSED with BusyError; the sent ones are UNKNOWN."""
    monkeypatch.setattr(publishing, "WAITING_COUNT_MAX", 500)
    monkeypatch.setattr(publishing, "WINDOW_COUNT", 100)
    topic = hurt.topic()
    raw.append(hurt, raw.half(hurt, topic))
    with hurt.broker.paused():
        outcomes = raw.append(hurt, *[raw.half(hurt, topic) for _ in range(2_000)])
    assert any(isinstance(outcome.error, BusyError) for outcome in outcomes)
    assert {REFUSED, UNKNOWN} == set(raw.statuses(outcomes))
    hurt.until(lambda: raw.statuses(raw.append(hurt, raw.half(hurt, topic))) == [DURABLE], "the broker")


def test_a_forked_child_opens_its_own(kit):
    """In a forked child the parent's backend refuses calls, and a new one works; the parent's still works there."""
    topic = kit.topic()
    kit.wait(kit.backend.ensure_group(kit.group))
    child = kit.child("fork", kit.address(), kit.group, topic)
    lines, _ = child.communicate(timeout=60)
    before, refused, own, parent = lines.splitlines()
    assert (before, own, parent) == ("before: durable", "own: durable", "parent: durable 0")
    assert refused.startswith("child:")
    assert "fork" in refused
    assert child.returncode == 0


def test_a_backend_that_was_never_used_closes_without_a_word(kit):
    """A backend that was never used closes at once, and refuses calls afterwards."""
    backend = txcore.connect(kit.address())
    backend.close(1.0).result(1)
    with pytest.raises(ClosedError):
        backend.append_halves(Recorder([]))


def test_an_error_inside_the_driver_ends_one_write_only(kit, monkeypatch):
    """If nats-py raises an error while it writes, the messages of this write are UNKNOWN; the next ones are sent."""
    topic = kit.topic()
    raw.append(kit, raw.half(kit, topic))
    client = kit.backend._link.client
    write, calls = client.write, []

    async def broken(commands):
        calls.append(commands)
        if len(calls) == 1:
            raise RuntimeError("a caller's bug")
        await write(commands)

    monkeypatch.setattr(client, "write", broken)
    outcomes = raw.append(kit, *[raw.half(kit, topic) for _ in range(4)])
    assert raw.statuses(outcomes) == [UNKNOWN] * 4
    assert isinstance(outcomes[1].error, BackendUnavailableError)
    assert len(calls) == 1, "one write for all of a batch"
    assert raw.statuses(raw.append(kit, raw.half(kit, topic))) == [DURABLE]


def test_what_expired_before_it_was_sent_takes_no_room(kit, proxy, monkeypatch):
    """Halves that expired without a connection leave the queue, so that their bytes cause no BusyError later."""
    topic = kit.topic()
    backend = kit.connect(proxied=True, delivery_timeout_s="0.3")
    body = b"x" * 1_000
    raw.append(kit, raw.half(kit, topic), backend=backend)
    monkeypatch.setattr(publishing, "WAITING_BYTES_MAX", 20_000)
    proxy.refuse()
    proxy.cut()
    kit.until(lambda: backend._link.client is None, "the loss")
    for _ in range(3):
        outcomes = raw.append(kit, *[raw.half(kit, topic, body=body) for _ in range(10)], backend=backend)
        assert not any(isinstance(outcome.error, BusyError) for outcome in outcomes)
        assert {REFUSED} == set(raw.statuses(outcomes))
    proxy.forward()
    kit.until(lambda: raw.statuses(raw.append(kit, raw.half(kit, topic), backend=backend)) == [DURABLE], "the way back")


def test_a_server_that_is_not_there_is_named(caplog):
    """The error and the log have its address and the reason, in plain words."""
    caplog.set_level(logging.DEBUG, "txcore.nats")
    backend = txcore.connect("nats://127.0.0.1:1?control_timeout_s=2")
    with contextlib.closing(backend):
        error = error_of(lambda: backend.ensure_group("orders"), 10.0)
    assert isinstance(error, BackendUnavailableError)
    assert str(error) == "connecting to 127.0.0.1:1: Connection refused"
    assert {str(error)} == {each.txcore["reason"] for each in caplog.records if each.message == "nats.link_down"}
