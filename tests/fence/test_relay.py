"""The relay: all committed messages are sent, in order for each key, by any relay that is alive."""

from __future__ import annotations

import itertools
import threading
import tracemalloc
from dataclasses import replace

import pytest
from sqlalchemy import event, text
from txcore_conformance.kit import Observed, wait_until

from txcore import Message, Relay, RelayLimits, TransactionProducer, wire
from txcore.clock import SystemClock
from txcore.errors import BackendTimeoutError, BackendUnavailableError, ClosedError, HalfRefusedError, UsageError
from txcore.fence import FenceAnswer
from txcore.memory import MemoryBackend, MemoryBroker
from txcore.message_table import SLOT_COUNT, Refused, lane_of
from txcore.outbox import slots as slots_of_relay
from txcore.outbox.sql_table import SLOTS_MAX, SqlMessageTable
from txcore.port import SettlesEach
from txcore.records import Outcome, Status
from txcore.runtime import instrumentation

GROUP = "orders"
HIGHEST_ID = b"\xff" * 16
TOPIC = "orders.created"
FAST = RelayLimits(retry_s=0.001, retry_max_s=0.002, poll_s=0.002, idle_poll_s=0.02, tries_max=3)


class Bench:
    """A database of the world, a broker in memory, and the rows of a relay."""

    def __init__(self, world):
        self.world = world
        self.broker = MemoryBroker()
        self.backend = MemoryBackend(self.broker)
        self.producer = TransactionProducer(self.backend, GROUP, fence=world.fence, mode="table")
        self.observed = Observed()
        self.numbers = itertools.count()

    def put(self, key=b"key", body=None, topic=TOPIC):
        """Commit one message and return its transaction's id."""
        with self.producer.transaction(self.world.engine) as tx:
            tx.publish(Message(topic, str(next(self.numbers)).encode() if body is None else body, key))
        return tx.transaction_id

    def relay(self, **options):
        options = {"limits": FAST, "plugins": (self.observed,)} | options
        return Relay(MemoryBackend(self.broker), GROUP, self.world.engine, table=self.world.fence_table, **options)

    def table(self, owner, **options):
        table = SqlMessageTable(self.world.new_engine(), GROUP, owner, table=self.world.fence_table, **options)
        table.join()
        return table

    def bodies(self, topic=TOPIC):
        return [each.body for each in self.broker.topics.get(topic, [])]


@pytest.fixture
def bench(world):
    return Bench(world)


@pytest.fixture
def server_bench(server_world):
    return Bench(server_world)


@pytest.fixture
def sqlite_bench(sqlite):
    return Bench(sqlite)


class LateClock(SystemClock):
    """The machine's clock, moved forward by a test."""

    late_s = 0.0

    def elapsed_s(self):
        return super().elapsed_s() + self.late_s


class Part(SettlesEach):
    """A batch of some items of another batch."""

    def __init__(self, batch, indexes):
        self.batch = batch
        self.indexes = indexes
        self.items = [batch.items[index] for index in indexes]

    def settle(self, index, outcome):
        self.batch.settle(self.indexes[index], outcome)


def body_of(resolution):
    """Return the body of the one message that a relay's resolution publishes."""
    (index,) = resolution.targets
    return resolution.half.messages[index].body


def key_elsewhere(key):
    """Return a key with another slot than *key* has."""
    slot = lane_of(GROUP, key, b"") % SLOT_COUNT
    return next(k for n in range(1000) if lane_of(GROUP, k := str(n).encode(), b"") % SLOT_COUNT != slot)


def test_messages_of_a_key_are_sent_in_the_order_of_their_transactions(bench):
    """A relay sends the messages of each key in the order of their transactions, and empties the table."""
    for number in range(40):
        bench.put(key=b"%d" % (number % 3))
    assert bench.relay(limits=RelayLimits(row_max=7)).run_once().sent == 40
    for key in range(3):
        assert [b"%d" % n for n in range(40) if n % 3 == key] == [
            each.body for each in bench.broker.topics[TOPIC] if each.key == b"%d" % key
        ]
    assert bench.relay().waiting().waiting == 0


def test_messages_of_one_transaction_without_a_key_stay_in_order(bench):
    """The messages of a transaction without a key share a lane of their own and keep their order."""
    with bench.producer.transaction(bench.world.engine) as tx:
        for number in range(150):
            tx.publish(Message(TOPIC, b"%d" % number))
    bench.relay().run_once()
    assert [b"%d" % number for number in range(150)] == bench.bodies()
    assert [wire.target_id(tx.transaction_id, n) for n in range(150)] == [
        each.headers[wire.HEADER_ID] for each in bench.broker.topics[TOPIC]
    ]


def test_page_of_large_messages_takes_no_more_memory_than_its_bound(bench, monkeypatch):
    """However many large messages wait, a page has as many as fit in the bound, and is read in little more memory."""
    monkeypatch.setattr(slots_of_relay, "PAGE_BYTES_MAX", 1 << 20)
    for number in range(90):
        bench.put(b"%d" % (number % 20), b"%04d" % number + b"x" * 90_000)
    table, each_max = bench.table("one"), (1 << 20) // 90_000
    for number in range(3):  # the first page looks at all rows, the next ones at some
        tracemalloc.start()
        taken = table.take(GROUP, (), 1_000)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak_bytes < 2 << 20
        assert len(taken.rows) == each_max
        table.settle(taken, taken.rows, [])
        assert table.stats().waiting == 90 - (number + 1) * each_max


def test_messages_of_all_sizes_are_sent_in_order(bench, monkeypatch):
    """Small and large messages, and those above the bound, are all sent in the order of each key."""
    monkeypatch.setattr(slots_of_relay, "PAGE_BYTES_MAX", 100_000)
    sizes = itertools.cycle([10, 20_000, 10, 150_000, 40_000])
    bodies = {b"%d" % key: [b"%d" % n + b"x" * next(sizes) for n in range(8)] for key in range(9)}
    for key, body in itertools.chain.from_iterable(zip(*([(k, b) for b in bodies[k]] for k in bodies), strict=True)):
        bench.put(key, body)
    relay = bench.relay()
    assert relay.run_once().sent == 72
    for key, expected in bodies.items():
        assert expected == [each.body for each in bench.broker.topics[TOPIC] if each.key == key]
    assert relay.waiting().waiting == 0


def test_slots_take_turns_where_each_message_is_above_the_bound(bench, monkeypatch):
    """Each slot's first message is read before the second one of any slot, also if each fills a page of its own."""
    monkeypatch.setattr(slots_of_relay, "PAGE_BYTES_MAX", 1_000)
    for number in range(80):
        bench.put(b"%d" % (number % 40), b"x" * 2_000)
    slots = {lane_of(GROUP, b"%d" % key, b"") % SLOT_COUNT for key in range(40)}
    assert len(slots) > SLOTS_MAX
    table, seen = bench.table("one"), []
    while taken := table.take(GROUP, (), 1_000):
        seen += [row.slot for row in taken.rows]
        assert len(taken.rows) == 1
        table.settle(taken, taken.rows, [])
    assert len(seen) == 80
    assert set(seen[: len(slots)]) == slots


def test_row_with_a_lower_number_that_commits_later_is_sent(server_bench):
    """A row that commits late is sent, because the relay has no cursor that could pass it."""
    world, producer = server_bench.world, server_bench.producer
    tx = producer.begin()
    tx.publish(Message(TOPIC, b"late", b"a"))
    with world.engine.connect() as connection:
        tx.prepare(connection)
        server_bench.put(key=b"b", body=b"early")
        assert server_bench.relay().run_once().sent == 1
        connection.commit()
    assert server_bench.relay().run_once().sent == 1
    assert server_bench.bodies() == [b"early", b"late"]


def test_refused_message_holds_up_its_key_and_nothing_else(bench):
    """A refused message delays only its key, until it is parked."""
    refused = bench.put(key=b"a", topic="refusing")
    bench.put(key=b"a", body=b"after")
    bench.put(key=b"b", body=b"beside")
    bench.broker.refusing.add("refusing")
    relay = bench.relay(limits=RelayLimits(retry_s=100, retry_max_s=100, tries_max=2))
    relay.run_once()
    assert bench.bodies() == [b"beside"]
    bench.relay(limits=RelayLimits(tries_max=2)).run_once()
    assert bench.bodies() == [b"beside", b"after"]
    (parked,) = bench.relay().parked()
    assert (parked.transaction_id, parked.index, parked.tries) == (refused, 0, 2)
    assert "refuses" in parked.reason
    assert len(bench.observed.named(instrumentation.RELAY_PARKED)) == 1


def test_parked_message_is_sent_when_it_is_resumed(bench):
    """A parked message is sent only after an operator has resumed it."""
    identity = bench.put(topic="refusing")
    bench.broker.refusing.add("refusing")
    relay = bench.relay(limits=RelayLimits(tries_max=1))
    relay.run_once()
    bench.broker.refusing.clear()
    assert relay.run_once().sent == 0
    assert (relay.resume(identity), relay.run_once().sent) == (1, 1)
    assert len(bench.bodies("refusing")) == 1


def test_stats_have_the_reason_of_the_oldest_refused_message(bench):
    """A message that waits comes before a parked one, and one that was resumed or not tried yet has no reason."""
    identity = bench.put(topic="refusing")
    assert bench.relay().waiting().reason == ""
    bench.broker.refusing.add("refusing")
    bench.relay(limits=RelayLimits(tries_max=1)).run_once()
    stats = bench.relay().waiting()
    assert (stats.waiting, stats.parked, "'refusing'" in stats.reason) == (0, 1, True)
    bench.put(topic="later", key=b"later")
    bench.broker.refusing.add("later")
    bench.relay(limits=RelayLimits(tries_max=9)).run_once()
    stats = bench.relay().waiting()
    assert (stats.waiting, stats.parked, "'later'" in stats.reason) == (1, 1, True)
    bench.broker.refusing.clear()
    bench.relay().run_once()
    bench.relay().resume(identity)
    assert (bench.relay().waiting().waiting, bench.relay().waiting().reason) == (1, "")


def test_resumed_message_has_all_its_tries_again(bench):
    """A resumed message has all its tries again, and a parked one gives the relay no work."""
    identity = bench.put(topic="refusing")
    bench.broker.refusing.add("refusing")
    relay = bench.relay(limits=RelayLimits(tries_max=2, retry_s=0.0001, retry_max_s=0.0001))
    for _ in range(2):
        relay._batch()
    assert [each.tries for each in relay.parked()] == [2]
    assert relay.table.take(GROUP, (), 10) is None
    assert relay.resume(identity) == 1
    assert (relay._batch().parked, relay._batch().parked) == (0, 1)


def test_parked_message_is_not_sent_with_others_of_its_slot(bench):
    """A parked message is not sent with others of its slot, even after its target has recovered."""
    bench.put(topic="refusing")
    bench.broker.refusing.add("refusing")
    relay = bench.relay(limits=RelayLimits(tries_max=1))
    relay.run_once()
    bench.broker.refusing.clear()
    bench.put()
    assert (relay.run_once().sent, bench.bodies("refusing"), len(relay.parked())) == (1, [], 1)


def test_parked_message_that_is_dropped_is_never_sent_and_stays_on_record(bench):
    """Only a parked message can be dropped; it is never sent, and its fence row is not pruned."""
    identity, waiting = bench.put(topic="refusing"), bench.put(topic="refusing", key=b"b")
    bench.broker.refusing.add("refusing")
    relay = bench.relay(limits=RelayLimits(tries_max=1))
    with pytest.raises(UsageError, match="say why"):
        relay.drop(identity, " ", "ann")
    assert relay.drop(identity, "a test order", "ann") == 0
    relay.run_once()
    assert bench.world.check(identity) is FenceAnswer.VIA_TABLE
    assert relay.drop(identity, "a test order", "ann") == 1
    bench.broker.refusing.clear()
    assert (relay.resume(identity), relay.resume(waiting), relay.run_once().sent) == (0, 1, 1)
    stats = relay.waiting()
    assert (stats.waiting, stats.parked, stats.dropped, relay.parked()) == (0, 0, 1, [])
    (record,) = relay.table.parked(is_dropped=True)
    assert (record.transaction_id, bench.bodies("refusing")) == (identity, [b"1"])
    assert record.reason.startswith("dropped by ann at ")
    assert ": a test order; it was parked for: " in record.reason
    assert "refuses" in record.reason
    assert bench.world.check(identity) is FenceAnswer.SENT
    bench.world.fence.prune(HIGHEST_ID, lambda ids: ids)
    assert bench.world.row(identity) is FenceAnswer.VIA_TABLE


def test_row_that_is_no_message_is_parked_at_once(bench):
    """A row that is no message is parked at once, and the later rows of its lane are sent."""
    identity = bench.put(key=b"a")
    with bench.world.engine.begin() as connection:
        connection.execute(text(f"UPDATE {bench.world.fence_table}_msg SET body = :body"), {"body": b"\xff"})
    bench.put(key=b"a", body=b"after")
    relay = bench.relay()
    relay.run_once()
    assert [each.transaction_id for each in relay.parked()] == [identity]
    assert bench.bodies() == [b"after"]


def test_row_of_a_newer_txcore_waits_for_an_upgraded_relay(bench, monkeypatch):
    """A row of a newer txcore uses up no try and delays only its key, until an upgraded relay sends it."""
    with monkeypatch.context() as patch:
        patch.setattr(wire, "VERSION", 3)
        newer = bench.put(key=b"a", body=b"newer")
    bench.put(key=b"a", body=b"next")
    bench.put(key=key_elsewhere(b"a"), body=b"other")
    relay = bench.relay(limits=replace(FAST, tries_max=1))

    def looks():
        return bench.observed.named(instrumentation.RELAY_NEWER)

    wait_until(lambda: relay.run_once() and len(looks()) >= 3, "three looks at the row")
    assert (bench.bodies(), relay.parked(), relay.stats().refused) == ([b"other"], [], 0)
    assert "a newer txcore reads it" in relay.stats().newer
    assert looks()[0]["transaction_id"] == newer
    monkeypatch.setattr(wire, "VERSION_READ_MAX", 3)
    upgraded = bench.relay()
    upgraded.run_once()
    assert (bench.bodies(), upgraded.stats().newer) == ([b"other", b"newer", b"next"], "")
    wait_until(lambda: relay.run_once() and not relay.stats().newer, "the end of the notice")


def test_outage_of_the_broker_uses_up_no_try(bench):
    """Only a target's own refusal is a try; after an outage each message is sent."""
    bench.put()
    bench.broker.down = True
    relay = bench.relay(limits=RelayLimits(tries_max=1))
    for _ in range(3):
        assert relay.run_once().uncertain == 1
    assert relay.parked() == []
    bench.broker.down = False
    assert relay.run_once().sent == 1


@pytest.mark.parametrize("error", [BackendUnavailableError("down"), ClosedError("closed")], ids=["down", "closed"])
def test_backend_that_did_not_take_it_for_an_outage_is_an_outage(sqlite_bench, error):
    """A refusal because the broker is unreachable or the backend closed does not count as a try."""
    sqlite_bench.put()
    relay = sqlite_bench.relay(limits=RelayLimits(tries_max=1))
    backend = relay._backend
    refusal = Outcome(Status.REFUSED, error)
    backend.release = lambda batch, claim=None: [batch.settle(n, refusal) for n in range(len(batch.items))]
    assert relay.run_once().uncertain == 1
    assert relay.parked() == []


def test_lane_stops_at_a_message_without_a_certain_answer(sqlite_bench):
    """After a message without a certain answer its key waits, so that no later message overtakes it."""
    sqlite_bench.put(key=b"a", body=b"first")
    sqlite_bench.put(key=b"a", body=b"second")
    sqlite_bench.put(key=key_elsewhere(b"a"), body=b"beside")
    relay = sqlite_bench.relay()
    release = relay._backend.release
    lost = [b"first"]

    def losing(batch, claim=None):
        """Lose the first message, and settle it as UNKNOWN."""
        kept = [index for index, item in enumerate(batch.items) if body_of(item) not in lost]
        for index in {*range(len(batch.items))} - {*kept}:
            lost.remove(body_of(batch.items[index]))
            batch.settle(index, Outcome(Status.UNKNOWN, BackendTimeoutError("no answer")))
        release(Part(batch, kept), claim)

    relay._backend.release = losing
    report = relay._batch()
    assert (report.sent, report.uncertain) == (1, 1)
    assert sqlite_bench.bodies() == [b"beside"]
    assert relay.run_once().sent == 2
    assert sqlite_bench.bodies() == [b"beside", b"first", b"second"]


def test_slot_in_one_relays_hands_is_passed_over_by_another(bench):
    """A second relay takes only slots that the first one does not hold."""
    other = key_elsewhere(b"a")
    bench.put(key=b"a")
    first, second = bench.table("first"), bench.table("second")
    mine = first.take(GROUP, (), 10)
    bench.put(key=other)
    theirs = second.take(GROUP, (), 10)
    assert [len(mine.rows), len(theirs.rows)] == [1, 1]
    assert second.take(GROUP, (), 10) is None if bench.world.kind == "sqlite" else True
    first.settle(mine, mine.rows, [])
    second.settle(theirs, theirs.rows, [])
    assert first.stats().waiting == 0


def test_new_message_does_not_wait_for_slots_that_rest(bench):
    """A new message is taken at once, however many slots have only messages that wait for their topic."""
    waiting = [bench.put(key=b"%d" % number) for number in range(100)]
    table = bench.table("relay", hold_s=60.0)
    resting = {lane_of(GROUP, b"%d" % number, b"") for number in range(len(waiting))}
    assert len({lane % SLOT_COUNT for lane in resting}) > 2 * SLOTS_MAX
    assert table.take(GROUP, resting, 10) is None
    new = bench.put(key=b"new")
    taken = table.take(GROUP, resting, 10)
    assert [row.transaction_id for row in taken.rows] == [new]
    table.drop(taken)


def test_look_at_messages_that_rest_writes_nothing(sqlite_bench):
    """While all messages wait for their topic, a relay's look writes nothing, and so waits for no disk."""
    sqlite_bench.put(key=b"a")
    table = sqlite_bench.table("relay")
    with sqlite_bench.world.engine.connect() as connection:
        version = text("PRAGMA data_version")  # changes with each commit of another connection that wrote
        before = connection.execute(version).scalar_one()
        connection.rollback()
        assert table.take(GROUP, {lane_of(GROUP, b"a", b"")}, 10) is None
        assert connection.execute(version).scalar_one() == before


def test_dropped_slots_are_free_at_once(bench):
    """Dropped slots are free at once, with their rows unchanged."""
    bench.put()
    first, second = bench.table("first"), bench.table("second")
    first.drop(first.take(GROUP, (), 10))
    taken = second.take(GROUP, (), 10)
    assert len(taken.rows) == 1
    second.drop(taken)


def test_slots_of_a_relay_whose_connection_died_are_free(server_bench):
    """The database frees the slots of a dead connection, and their messages are sent again."""
    server_bench.put()
    first = server_bench.table("first")
    taken = first.take(GROUP, (), 10)
    server_bench.world.kill_session(server_bench.world.session_id(taken.hold.connection))
    second = server_bench.table("second")
    second.drop(wait_until(lambda: second.take(GROUP, (), 10), "a free slot"))
    with pytest.raises(BackendUnavailableError):
        first.settle(taken, taken.rows, [])


def test_slots_of_a_frozen_relay_are_taken_from_it(bench):
    """A frozen relay loses its slots by the server or by its lease, and its late settling has no effect."""
    bench.put()
    first, second = bench.table("first", hold_s=1.0), bench.table("second")
    taken = first.take(GROUP, (), 10)
    again = wait_until(lambda: second.take(GROUP, (), 10), "a free slot")
    assert again.rows == taken.rows
    second.settle(again, again.rows, [])
    if bench.world.kind == "sqlite":
        first.settle(taken, taken.rows, [])
    else:
        with pytest.raises(BackendUnavailableError):
            first.settle(taken, taken.rows, [])
    assert second.stats().waiting == 0


def test_late_relay_ends_no_lease_but_its_own(sqlite_bench):
    """A late relay does not end the lease of the relay that holds the slot now."""
    sqlite_bench.put()
    first, second, third = (sqlite_bench.table(name, hold_s=1.0 if name == "a" else 60.0) for name in "abc")
    taken = first.take(GROUP, (), 10)
    again = wait_until(lambda: second.take(GROUP, (), 10), "a free slot")
    first.drop(taken)
    assert third.take(GROUP, (), 10) is None
    second.drop(again)
    assert third.take(GROUP, (), 10) is not None


def test_late_relay_does_not_undo_what_an_operator_has_dropped(sqlite_bench):
    """A refusal by a relay whose lease is over leaves a message dropped that another relay has parked meanwhile."""
    identity = sqlite_bench.put()
    late, other = sqlite_bench.table("late", hold_s=0), sqlite_bench.table("other")
    taken, again = late.take(GROUP, (), 10), other.take(GROUP, (), 10)
    other.settle(again, [], [Refused(again.rows[0], "refuses", is_parked=True)])
    assert other.give_up(identity, "a test order", "ann") == 1
    late.settle(taken, [], [Refused(taken.rows[0], "refuses", is_parked=False)])
    assert (other.stats().dropped, other.take(GROUP, (), 10)) == (1, None)


def test_mariadb_commits_a_write_before_anything_is_published(mariadb):
    """A relay commits a write before it publishes, because InnoDB shows commits before they are on disk."""
    bench = Bench(mariadb)
    bench.put()
    table = bench.table("relay")

    def beats():
        with mariadb.engine.connect() as connection:
            return connection.execute(
                text(f"SELECT beats FROM {mariadb.fence_table}_slot WHERE slot = -1")
            ).scalar_one()

    before = beats()
    taken = table.take(GROUP, (), 10)
    assert (len(taken.rows), beats()) == (1, before + 1)
    table.drop(taken)
    assert beats() == before + 1


def test_connection_of_a_relay_keeps_none_of_its_settings(server_bench):
    """A relay resets its connection's settings, because the checks share the pool."""
    table = SqlMessageTable(
        server_bench.world.new_engine(pool_size=1, max_overflow=1), GROUP, "r", table=server_bench.world.fence_table
    )
    table.join()
    sql = {
        "postgresql": "SELECT current_setting('idle_in_transaction_session_timeout'), current_setting('lock_timeout')",
        "mariadb": "SELECT @@SESSION.wait_timeout, @@SESSION.innodb_lock_wait_timeout",
    }[server_bench.world.kind]
    with table._engine.connect() as connection:
        before = connection.execute(text(sql)).one()
    server_bench.put()
    taken = table.take(GROUP, (), 10)
    table.settle(taken, taken.rows, [])
    with table._engine.connect() as connection:
        assert connection.execute(text(sql)).one() == before


def test_relay_resets_its_connection_when_the_server_refuses_its_limit_for_idle_transactions(mariadb):
    """A relay that cannot set its limit for idle transactions still resets the limits for locks, which it has set."""
    bench = Bench(mariadb)
    table = SqlMessageTable(mariadb.new_engine(pool_size=1, max_overflow=0), GROUP, "r", table=mariadb.fence_table)
    sql = "SELECT @@SESSION.innodb_lock_wait_timeout, @@SESSION.lock_wait_timeout"
    with table._engine.connect() as connection:
        before = connection.execute(text(sql)).one()
    bench.put()

    @event.listens_for(table._engine, "before_cursor_execute")
    def refuse_limit(_connection, _cursor, statement, *_):
        if statement.startswith("SET @txcore_wait"):
            raise BackendTimeoutError("the server refuses the limit")

    with pytest.raises(BackendTimeoutError):
        table.take(GROUP, (), 10)
    with table._engine.connect() as connection:
        assert connection.execute(text(sql)).one() == before


def test_several_relays_send_everything_once_while_none_dies(bench):
    """Several relays share the slots, and send each message once."""
    count = 200
    for number in range(count):
        bench.put(key=b"%d" % (number % 20))
    relays = [bench.relay(limits=RelayLimits(row_max=10, poll_s=0.002, idle_poll_s=0.02)) for _ in range(3)]
    for relay in relays:
        relay.start()
    wait_until(lambda: len(bench.bodies()) >= count, "all messages")
    assert all(relay.stop() for relay in relays)
    assert sorted(bench.bodies(), key=int) == [b"%d" % n for n in range(count)]
    for key in range(20):
        numbers = [int(each.body) for each in bench.broker.topics[TOPIC] if each.key == b"%d" % key]
        assert numbers == sorted(numbers)


def test_transactions_that_overlap_are_all_sent(server_bench):
    """A relay skips no message of concurrent writers, in whatever order they commit."""
    relay = server_bench.relay()
    relay.start()

    def write(writer):
        for number in range(20):
            tx = server_bench.producer.begin()
            tx.publish(Message(TOPIC, b"%d.%d" % (writer, number), b"%d" % writer))
            with server_bench.world.engine.connect() as connection:
                tx.prepare(connection)
                for _ in range((writer * 7 + number) % 5):
                    connection.execute(text("SELECT 1"))
                connection.commit()

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(8)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    wait_until(lambda: len(server_bench.bodies()) >= 160, "all messages")
    assert relay.stop()
    for writer in range(8):
        mine = [each.body for each in server_bench.broker.topics[TOPIC] if each.key == b"%d" % writer]
        assert mine == [b"%d.%d" % (writer, number) for number in range(20)]


def test_commit_wakes_a_relay_that_sleeps(postgresql):
    """A producer's commit wakes a relay that sleeps."""
    bench = Bench(postgresql)
    relay = bench.relay(limits=RelayLimits(poll_s=0.05, idle_poll_s=1_000.0))
    relay.start()
    sql = text(f"SELECT count(*) FROM {postgresql.fence_table}_slot WHERE owner = 'asleep'")

    def is_asleep():
        with postgresql.engine.connect() as connection:
            return connection.execute(sql).scalar_one()

    wait_until(is_asleep, "a relay that sleeps")
    for number in range(3):
        bench.put()
        wait_until(lambda number=number: len(bench.bodies()) == number + 1, "the message")
    assert relay.stop()


def test_rows_that_a_batch_reads_do_not_grow_with_the_waiting_rows(postgresql):
    """A relay's statements read few rows of a large table."""
    bench, world, counts = Bench(postgresql), postgresql, []
    table, message_table = bench.table("one"), f"{world.fence_table}_msg"
    with world.engine.begin() as connection:
        connection.execute(
            text(
                f"INSERT INTO {message_table} (transaction_id, message_index, producer_group, lane, slot, body) "
                f"SELECT gen_random_uuid(), 0, '{GROUP}', n, n % {SLOT_COUNT}, decode(repeat('ab', 200), 'hex') "
                "FROM generate_series(1, 50000) n"
            )
        )

    @event.listens_for(table._engine, "commit")
    def count(connection):
        sql = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = :name"
        counts.append(connection.execute(text(sql), {"name": message_table}).scalar_one())

    taken = table.take(GROUP, (), 1_000)
    table.settle(taken, taken.rows, [])
    assert len(taken.rows) > 900
    assert sum(counts) < 3 * len(taken.rows)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(BackendUnavailableError("gone"), "gone"), (OSError("a driver's own"), """OSError("a driver's own")""")],
    ids=["ours", "driver's"],
)
def test_relay_reports_trouble_and_goes_on_behind_it(bench, error, reason):
    """A relay reports a database error once, whatever its type, and continues after it; ours is a plain sentence."""
    relay = bench.relay()
    take, failures = relay.table.take, iter(range(3))

    def failing(*args):
        if next(failures, None) is not None:
            raise error
        return take(*args)

    relay.table.take = failing
    bench.put()
    relay.start()
    wait_until(bench.bodies, "the message")
    assert relay.stop()
    assert (
        len(bench.observed.named(instrumentation.RELAY_DOWN))
        == len(bench.observed.named(instrumentation.RELAY_UP))
        == 1
    )
    assert bench.observed.named(instrumentation.RELAY_DOWN)[0]["reason"] == reason
    assert (relay.stats().sent, relay.stats().trouble) == (1, "")


def test_lane_continues_after_a_temporary_refusal(sqlite_bench):
    """A temporary refusal does not change the order of a key's messages."""
    for _ in range(5):
        sqlite_bench.put()
    relay = sqlite_bench.relay()
    backend = relay._backend
    refusals = iter([True, False, True, False, False, True])
    release = backend.release

    def sometimes(batch, claim=None):
        if next(refusals, False):
            for number in range(len(batch.items)):
                batch.settle(number, Outcome(Status.REFUSED, HalfRefusedError("not now", topic=TOPIC)))
        else:
            release(batch, claim)

    backend.release = sometimes
    relay.start()
    wait_until(lambda: len(sqlite_bench.bodies()) == 5, "all messages")
    assert relay.stop()
    assert [b"%d" % n for n in range(5)] == sqlite_bench.bodies()


def test_batch_that_is_late_from_the_start_sends_one_of_each_key(sqlite_bench):
    """A relay that is too slow for the batch's time still sends one message of each key."""
    sqlite_bench.put(key=b"a")
    sqlite_bench.put(key=b"a")
    sqlite_bench.put(key=b"b")
    clock = LateClock()
    relay = sqlite_bench.relay(limits=RelayLimits(batch_s=60), clock=clock)
    release = relay._backend.release

    def release_late(batch, claim=None):
        clock.late_s += 100
        release(batch, claim)

    relay._backend.release = release_late
    assert relay._batch().sent == 2
    assert relay.run_once().sent == 1
