"""A broker that is killed, frozen, alarmed, cut off or absent: items end in time, and no certain outcome is wrong."""

from __future__ import annotations

import contextlib
import logging
import threading

import pytest
from txcore_conformance import raw
from txcore_conformance.kit import COMMIT, Answers, Recorder, error_of

import txcore
from txcore import wire
from txcore.errors import BackendUnavailableError, BusyError, ClosedError, ConfigError
from txcore.records import LogKind, OpKind, Status

_log = logging.getLogger("tests")
DURABLE, REFUSED, UNKNOWN = Status.DURABLE, Status.REFUSED, Status.UNKNOWN


@contextlib.contextmanager
def alarmed(broker):
    broker.control("set_vm_memory_high_watermark", "0")
    try:
        yield
    finally:
        broker.control("set_vm_memory_high_watermark", "0.6")


class Load:
    """A thread that appends halves and releases them until stopped."""

    def __init__(self, kit, backend, queue):
        self._kit, self._backend, self._queue = kit, backend, queue
        self._stop = threading.Event()
        self.halves, self.releases = [], []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._stop.wait(0.01):
            halves = [raw.half(self._kit, self._queue) for _ in range(20)]
            appended = Recorder(halves)
            self._backend.append_halves(appended)
            self.halves.append(appended)
            released = Recorder([raw.commit(half, flush=False) for half in halves])
            self._backend.release(released)
            self.releases.append(released)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def has(self, status, since=0):
        """Return whether a half has ended so, of the batches from number *since* on."""
        return any(status in raw.statuses(filter(None, batch.outcomes)) for batch in self.halves[since:])

    def stop(self):
        """Return (half, outcome of its append, outcome of its release) of all halves."""
        self.__exit__()
        found = []
        for appended, released in zip(self.halves, self.releases, strict=True):
            ends = appended.wait(self._backend, 10.0), released.wait(self._backend, 10.0)
            found += zip(appended.items, *ends, strict=True)
        return found


def stored_ids(kit, backend, last):
    """Return the ids in the half log up to *last*, which is appended when the broker is back."""
    kit.until(lambda: raw.append(kit, last, backend=backend)[0].status is DURABLE)
    records, reader = [], backend.read(kit.group, LogKind.HALF, 0)

    def is_read():
        with contextlib.suppress(BackendUnavailableError):
            records.extend(reader.read(1_000))
        return any(record.body == last.body for record in records)

    kit.until(is_read)
    reader.close()
    return {wire.decode_half(record.body).transaction_id for record in records}


def judge(kit, ended, stored, delivered):
    """Check that DURABLE halves and targets are stored, and REFUSED halves are not."""
    counts = {status.value: sum(append.status is status for _, append, _ in ended) for status in Status}
    _log.info("halves: %s; releases durable: %d", counts, sum(end.status is DURABLE for *_, end in ended))
    for half, append, release in ended:
        assert append.status is not DURABLE or half.transaction_id in stored
        assert append.status is not REFUSED or half.transaction_id not in stored
        assert release.status is not DURABLE or wire.target_id(half.transaction_id, 0) in delivered


def ids_in(kit, queue):
    found = [message.headers[wire.HEADER_ID] for message in kit.harness.read_topic(queue)]
    return {each.decode() if isinstance(each, bytes) else each for each in found}


def test_a_broker_killed_in_mid_stream(hurt):
    """After kill -9 under load and a restart, all items are settled, and no certain outcome is wrong."""
    backend, queue = hurt.connect(), hurt.queue()
    with Load(hurt, backend, queue) as load:
        hurt.until(lambda: len(load.releases) > 20 and load.has(DURABLE))
        hurt.broker.kill()
        down = len(load.halves)
        hurt.until(lambda: len(load.halves) > down + 20 and load.has(REFUSED, since=down))
    ended = load.stop()
    hurt.broker.start()
    stored = stored_ids(hurt, backend, raw.half(hurt, queue))
    judge(hurt, ended, stored, ids_in(hurt, queue))
    assert {append.status for _, append, _ in ended} >= {DURABLE, REFUSED}


def test_a_broker_frozen_for_ten_seconds(hurt):
    """Items end within their timeout while the broker is frozen, and no certain outcome is wrong after the thaw."""
    backend, queue = hurt.connect(delivery_timeout_s=1), hurt.queue()
    with Load(hurt, backend, queue) as load:
        hurt.until(lambda: len(load.releases) > 20)
        with hurt.broker.paused():
            frozen = len(load.halves)
            last = hurt.until(lambda: len(load.halves) > frozen + 20 and load.halves[-1])
            assert DURABLE not in raw.statuses(last.wait(backend, hurt.timeout_s))
            assert not threading.Event().wait(9.0)  # the freeze lasts ten seconds in any case
    ended = load.stop()
    stored = stored_ids(hurt, backend, raw.half(hurt, queue))
    judge(hurt, ended, stored, ids_in(hurt, queue))


def test_a_release_to_a_stalled_broker_is_unknown_and_may_take_effect_later(hurt):
    """A release to a stalled broker is UNKNOWN and its op is not written, but its target may be published later."""
    backend, queue = hurt.connect(delivery_timeout_s=1), hurt.queue()
    warm, half = raw.half(hurt, queue), raw.half(hurt, queue)
    raw.append(hurt, warm, half, backend=backend)
    raw.release(hurt, raw.commit(warm), backend=backend)
    with hurt.broker.paused():
        (outcome,) = raw.release(hurt, raw.commit(half), backend=backend)
        assert (outcome.status, outcome.missing) == (UNKNOWN, (0,))
    hurt.until(lambda: wire.target_id(half.transaction_id, 0) in ids_in(hurt, queue))
    assert [op.kind for op in raw.ops(hurt, backend=backend)] == [OpKind.COMMIT]


def test_confirms_that_lie_in_the_socket_are_read_before_a_message_is_given_up(kit):
    """Confirms that arrived while the publishing thread was blocked past the deadline make the releases DURABLE."""
    backend, queue = kit.connect(delivery_timeout_s=1), kit.queue()
    first, *halves = [raw.half(kit, queue) for _ in range(50)]
    raw.append(kit, first, *halves, backend=backend)
    raw.release(kit, raw.commit(first), backend=backend)  # this opens the lane
    batch, loop, publisher = Recorder([raw.commit(half) for half in halves]), backend._publishing, backend._publisher

    def stall_when_sent():
        """Block the thread in the turn that sends the last byte, so that no confirm is read."""
        if publisher._live_count < len(halves) or publisher._link.unsent_bytes:
            loop.ioloop.add_callback_threadsafe(stall_when_sent)  # before the timers of its turn
            return
        kit.until(lambda: len(ids_in(kit, queue)) == 1 + len(halves))
        assert not threading.Event().wait(1.2)

    backend.release(batch)
    loop.ioloop.add_callback_threadsafe(stall_when_sent)
    assert {DURABLE} == set(raw.statuses(batch.wait(backend, 2 * kit.timeout_s)))


def test_what_was_handed_over_before_a_freeze_is_not_published_after_its_deadline(kit):
    """Items handed over before a freeze past their deadline are not published, as a checker may have decided."""
    backend, queue = kit.connect(delivery_timeout_s=0.5), kit.queue()
    half = raw.half(kit, queue)
    raw.append(kit, half, backend=backend)
    frozen = threading.Event()
    backend._publishing.call(lambda: frozen.wait(30.0))
    batch, late = Recorder([raw.commit(half)]), Recorder([raw.half(kit, queue)])
    backend.release(batch)
    backend.append_halves(late)
    assert not threading.Event().wait(0.7)  # longer than the delivery timeout in any case
    frozen.set()
    (outcome,) = batch.wait(backend, kit.timeout_s)
    assert (outcome.status, outcome.missing) == (UNKNOWN, (0,))
    assert raw.statuses(late.wait(backend, kit.timeout_s)) == [REFUSED]
    raw.append(kit, raw.half(kit, queue), backend=backend)  # comes after any message published late
    assert ids_in(kit, queue) == set()
    assert len(raw.halves(kit, 2)) == 2


def test_a_confirm_lost_with_its_connection_is_unknown(hurt):
    """A half whose confirm is lost with the connection is UNKNOWN, and later halves are DURABLE."""
    backend, queue = hurt.connect(proxied=True), hurt.queue()
    proxy, half, later = hurt.broker.proxy, raw.half(hurt, queue), raw.half(hurt, queue)
    raw.append(hurt, raw.half(hurt, queue), backend=backend)
    proxy.swallow_replies()
    batch = Recorder([half])
    backend.append_halves(batch)
    direct = hurt.connect()
    hurt.until(lambda: len(raw.read(hurt, LogKind.HALF, bool, backend=direct)) >= 1)
    hurt.until(lambda: half.body in [record.body for record in raw.halves(hurt, 2)])
    proxy.cut()
    proxy.forward()
    assert raw.statuses(batch.wait(backend, 5.0)) == [UNKNOWN]
    hurt.until(lambda: raw.statuses(raw.append(hurt, later, backend=backend)) == [DURABLE])


def test_an_alarm_blocks_publishers_and_is_named(hurt, caplog):
    """During a memory alarm items end in time, the error names the alarm, and reading continues; all works after it."""
    caplog.set_level(logging.WARNING, "txcore.rabbitmq")
    backend, queue = hurt.connect(delivery_timeout_s=0.5), hurt.queue()
    first, stored = raw.half(hurt, queue), raw.half(hurt, queue)
    raw.append(hurt, stored, backend=backend)
    with alarmed(hurt.broker):
        # After the first publish during the alarm the broker stops reading and reports the alarm.
        outcomes = raw.append(hurt, first, backend=backend)
        assert raw.statuses(outcomes) != [DURABLE]

        def refused():
            (outcome,) = raw.append(hurt, raw.half(hurt, queue), backend=backend)
            return outcome if outcome.status is REFUSED else None

        outcome = hurt.until(refused)
        assert isinstance(outcome.error, BackendUnavailableError)
        assert "blocks publishers" in str(outcome.error)
        assert "memory" in str(outcome.error)
        (release,) = raw.release(hurt, raw.commit(stored), backend=backend)
        assert (release.status, release.missing) == (UNKNOWN, (0,))
        assert hurt.lasts_s(lambda: error_of(lambda: backend.load_checkpoint(hurt.group, 0), 20.0))[0] < 5.0
        assert raw.halves(hurt, 1, backend=backend)  # reading continues
    hurt.until(lambda: raw.statuses(raw.append(hurt, raw.half(hurt, queue), backend=backend)) == [DURABLE])
    assert raw.statuses(raw.release(hurt, raw.commit(stored), backend=backend)) == [DURABLE]
    messages = [record.message for record in caplog.records]
    assert "rabbitmq.blocked" in messages
    assert "rabbitmq.unblocked" in messages


def test_members_keep_their_partitions_through_an_alarm(hurt):
    """No member loses a partition during an alarm, although no announcements arrive."""
    claims = [hurt.connect().claim(hurt.group, name) for name in ("a", "b")]
    held = [[], []]

    def poll():
        for claim, events in zip(claims, held, strict=True):
            for event in claim.poll():
                events.append(event)
                if event.kind.value == "revoking":
                    claim.give_up(event.partition)
        return [events[-1].kind.value if events else "" for events in held]

    hurt.until(lambda: poll()[1] == "assigned")
    before = [list(events) for events in held]
    ended = threading.Event()
    living = threading.Thread(target=lambda: [poll() for _ in iter(lambda: ended.wait(0.05), True)], daemon=True)
    living.start()  # a member that is not polled for long, as while the alarm is set under load, gives up by itself
    with alarmed(hurt.broker):
        assert not ended.wait(6.0)  # twice as long as a member may be silent
    ended.set()
    living.join()
    poll()
    assert held == before
    for claim in claims:
        hurt.wait(claim.close(5.0))


def test_a_broker_that_is_absent_at_the_start_is_waited_for(hurt):
    """Without a broker, control calls fail with the reason and halves are refused in time; all work when it is back."""
    broker, queue = hurt.broker, hurt.queue()
    hurt.wait(hurt.backend.ensure_group(hurt.group))
    broker.kill()
    try:
        backend = hurt.connect(partition_count=None, delivery_timeout_s=0.5, control_timeout_s=3)
        took_s, error = hurt.lasts_s(lambda: error_of(lambda: backend.ensure_group(hurt.group, 2), 30.0))
        assert took_s < 5.0
        assert isinstance(error, BackendUnavailableError)
        assert "ConnectionRefused" in str(error)
        took_s, (outcome,) = hurt.lasts_s(lambda: raw.append(hurt, raw.half(hurt, queue), backend=backend))
        assert took_s < 2.0
        assert (outcome.status, type(outcome.error)) == (REFUSED, BackendUnavailableError)
        (outcome,) = raw.release(hurt, raw.commit(raw.half(hurt, queue)), backend=backend)
        assert (outcome.status, outcome.missing) == (UNKNOWN, (0,))
        claim = backend.claim(hurt.group, "early")
        assert list(claim.poll()) == []
    finally:
        broker.start()
    hurt.until(lambda: error_of(lambda: backend.ensure_group(hurt.group, 2), 20.0) is None)
    assert raw.statuses(raw.append(hurt, raw.half(hurt, queue), backend=backend)) == [DURABLE]
    assert len(hurt.until(lambda: list(claim.poll()))) >= 1
    hurt.wait(claim.close(5.0))


@pytest.mark.parametrize(
    ("login", "words"),
    [
        ("guest:wrong-pass", "user or password are refused"),
        ("no-user:guest", "user or password are refused"),
        ("guest:guest", "virtual host"),
    ],
)
def test_a_refused_login_is_reported_at_once(kit, login, words):
    """Each call after a refused login fails at once, and the error does not show the password."""
    host = kit.broker.url.rpartition("@")[2].rstrip("/")
    vhost = "none-of-that-name" if login == "guest:guest" else ""
    backend = txcore.connect(f"rabbitmq://{login}@{host}/{vhost}?delivery_timeout_s=5")
    try:
        for call in (
            lambda: backend.ensure_group(kit.group),
            lambda: backend.load_checkpoint(kit.group, 0),
            lambda: backend.read(kit.group, LogKind.HALF, 0).read(1),
        ):
            took_s, error = kit.lasts_s(lambda call=call: error_of(call, kit.timeout_s))
            assert isinstance(error, BackendUnavailableError)
            assert words in str(error)
            assert "wrong-pass" not in str(error) + repr(error)
            assert took_s < 4.0
        took_s, (outcome,) = kit.lasts_s(lambda: raw.append(kit, raw.half(kit, "queue"), backend=backend))
        assert (outcome.status, words in str(outcome.error)) == (REFUSED, True)
        assert took_s < 2.0
    finally:
        backend.close(5.0).result(10.0)


def test_a_connection_lost_while_logging_in_is_no_refused_login(hurt):
    """A connection lost during its login is not reported as a refused login, although pika reports both the same."""
    hurt.wait(hurt.backend.ensure_group(hurt.group))
    proxy, backend = hurt.broker.proxy, hurt.connect(proxied=True, partition_count=None)
    stop = threading.Event()

    def cut():
        while not stop.wait(0.002):
            proxy.cut()

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        asked = [backend.ensure_group(hurt.group) for _ in range(20)]
        assert not threading.Event().wait(2.0)  # enough for a few dozen logins, cut at any point
    finally:
        stop.set()
        cutter.join()
    for future in asked:
        error = future.exception(hurt.timeout_s)
        assert error is None or ("refused:" not in str(error).lower() and "user or password" not in str(error))


def test_a_missing_right_to_write_is_named(hurt):
    """A missing write permission is a ConfigError with the broker's answer, and other backends are not affected."""
    broker, queue = hurt.broker, hurt.queue()
    hurt.wait(hurt.backend.ensure_group(hurt.group))
    with contextlib.suppress(Exception):
        broker.control("add_user", "reader", "reader")
    broker.control("set_permissions", "reader", "^$", "^$", ".*")
    url = broker.url.replace("guest:guest", "reader:reader")
    backend = hurt.harness.open(url)
    hurt.opened.append(backend)
    error = error_of(lambda: backend.ensure_group(hurt.group), 20.0)
    assert isinstance(error, ConfigError)
    assert "ACCESS_REFUSED" in str(error)
    (outcome,) = raw.append(hurt, raw.half(hurt, queue), backend=backend)
    assert outcome.status is not DURABLE
    assert raw.statuses(raw.append(hurt, raw.half(hurt, queue))) == [DURABLE]


def test_what_waits_is_bounded_by_count_and_by_bytes(hurt):
    """While the broker is frozen, halves above the bounds of count or bytes are REFUSED at once."""
    queue = hurt.queue()
    many = hurt.connect(delivery_timeout_s=5, window_count=10, queue_count=50)
    large = hurt.connect(delivery_timeout_s=5, window_bytes=100_000, queue_bytes=300_000)
    for backend in (many, large):
        raw.append(hurt, raw.half(hurt, queue), backend=backend)
    with hurt.broker.paused():
        for backend, body in ((many, b""), (large, bytes(10_000))):
            batch = Recorder([raw.half(hurt, queue, body=body) for _ in range(200)])
            backend.append_halves(batch)
            # 65 at most wait in the end; the thread that refuses the others may still be at it.
            hurt.until(lambda batch=batch: sum(outcome is None for outcome in batch.outcomes) <= 65)
            refused = [outcome for outcome in batch.outcomes if outcome is not None]
            assert {(outcome.status, type(outcome.error)) for outcome in refused} == {(REFUSED, BusyError)}
            assert len(refused) <= 170
    for backend in (many, large):
        half = raw.half(hurt, queue)

        def is_stored(backend=backend, half=half):
            return raw.statuses(raw.append(hurt, half, backend=backend)) == [DURABLE]

        hurt.until(is_stored)


@pytest.mark.parametrize("trouble", ["gone", "frozen", "alarmed"])
def test_closing_is_bounded_whatever_the_broker_does(hurt, trouble):
    """Closing ends in time, settles all items and ends the threads, with a broker gone, frozen or alarmed."""
    backend, queue = hurt.connect(delivery_timeout_s=30), hurt.queue()
    claim = backend.claim(hurt.group, "me")
    hurt.until(lambda: list(claim.poll()))
    half = raw.half(hurt, queue)
    raw.append(hurt, half, backend=backend)
    threads = [backend._publishing._thread, backend._reading._thread]
    with contextlib.ExitStack() as stack:
        if trouble == "gone":
            hurt.broker.kill()
            stack.callback(hurt.broker.start)
        else:
            stack.enter_context(hurt.broker.paused() if trouble == "frozen" else alarmed(hurt.broker))
        batch = Recorder([raw.commit(half) for _ in range(5)])
        backend.release(batch)
        fetched = backend.load_checkpoint(hurt.group, 0)
        took_s, _ = hurt.lasts_s(lambda: backend.close(2.0).result(10.0))
        assert took_s < 3.0
        assert DURABLE not in raw.statuses(batch.wait(backend, 0.1))
        assert fetched.exception(0.1) is not None
        for thread in threads:
            thread.join(2.0)
            assert not thread.is_alive()
    with pytest.raises(ClosedError):
        backend.append_halves(Recorder([half]))


def test_a_checker_continues_after_its_broker_was_killed(hurt):
    """A checker decides every stored half after its broker was killed and restarted, without a restart of its own."""
    backend, queue = hurt.connect(), hurt.queue()
    hurt.adopt(backend)
    identities = [hurt.orphan(txcore.Message(queue, b"%d" % number)).transaction_id for number in range(30)]
    checker = hurt.checker(Answers(COMMIT), backend=backend)
    checker.start()
    hurt.until(lambda: checker.partitions)
    hurt.broker.kill()
    hurt.broker.start()
    hurt.timeout_s = 60.0
    hurt.until(lambda: len(ids_in(hurt, queue)) >= 30)
    checker.stop()
    assert ids_in(hurt, queue) == {wire.target_id(identity, 0) for identity in identities}


def test_a_forked_child_opens_its_own(kit):
    """In a forked child the parent's backend refuses calls, and a new one works; the parent's still works there."""
    kit.wait(kit.backend.ensure_group(kit.group))
    child = kit.child("fork", kit.address(), kit.group, kit.queue())
    lines, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    assert [line.partition(":")[0] for line in lines.splitlines()] == ["before", "child", "own", "parent"]
    assert lines.count("durable") == 3
    assert "fork" in lines.splitlines()[1]
