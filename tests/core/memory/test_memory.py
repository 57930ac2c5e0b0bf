"""The broker in memory applies its faults to each request, and keeps the promises of its profile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from txcore_conformance.sim.play import lose_tail

import txcore
from txcore import wire
from txcore.errors import BackendUnavailableError, ClosedError, ConfigError, DataLossError
from txcore.memory import KAFKA_LIKE, NATS_LIKE, PROFILES, STRONG, Fate, Faults, MemoryBackend, MemoryBroker
from txcore.port import SettlesEach
from txcore.records import Half, HalfRecord, LogKind, Op, OpKind, Resolution, Status, TargetMessage

A, B = b"a" * 16, b"b" * 16
MESSAGES = [TargetMessage("t", None, b"0", {}), TargetMessage("u", None, b"1", {})]


class Chosen(Faults):
    """Faults with one fate for one kind of request."""

    def __init__(self, what, fate):
        self._what = what
        self._fate = fate

    def fate(self, what, transaction_ids):
        return self._fate if what == self._what else Fate.DONE


class Batch(SettlesEach):
    """A batch that keeps its outcomes."""

    def __init__(self, *items):
        self.items = items
        self.outcomes = {}

    def settle(self, index, outcome):
        assert index not in self.outcomes
        self.outcomes[index] = outcome


def broker_with(profile=STRONG, what="", fate=Fate.DONE):
    """Return a broker with one group, and a client."""
    broker = MemoryBroker(profile, faults=Chosen(what, fate))
    backend = MemoryBackend(broker)
    backend.ensure_group("g", 1).result()
    return broker, backend


def half(identity=A):
    """Return a half with messages for two topics."""
    made = Half(1, identity, "g", 0, 0, 0, 100, 0, 0, fenced=False, by="p", messages=MESSAGES)
    return HalfRecord("g", 0, identity, 0, wire.encode_half(made), MESSAGES)


def appended(backend, record):
    """Append one half and return its outcome."""
    batch = Batch(record)
    backend.append_halves(batch)
    return batch.outcomes[0]


def released(backend, kind=OpKind.COMMIT, record=None):
    """Release one half and return its outcome."""
    record = record or half()
    targets = (0, 1) if kind is OpKind.COMMIT else ()
    batch = Batch(Resolution(record, Op(kind, record.transaction_id, by="p"), targets, b"", "p", flush=True))
    backend.release(batch)
    return batch.outcomes[0]


@pytest.mark.parametrize(
    ("fate", "status", "stored"),
    [
        (Fate.DONE, Status.DURABLE, 1),
        (Fate.LOST, Status.UNKNOWN, 0),
        (Fate.ACK_LOST, Status.UNKNOWN, 1),
        (Fate.LATE, Status.UNKNOWN, 1),
        (Fate.REFUSED, Status.REFUSED, 0),
        (Fate.TWICE, Status.DURABLE, 2),
    ],
)
def test_each_fate_of_a_half(fate, status, stored):
    """For each fate of a half, the client gets its outcome, and the log holds the half zero, one or two times."""
    broker, backend = broker_with(what="half", fate=fate)
    assert status is appended(backend, half()).status
    assert stored == len(broker.log("g", LogKind.HALF, 0))


def test_late_requests_come_after_their_client_gave_up():
    """A late request is carried out after its client has got UNKNOWN."""
    planned = []
    broker = MemoryBroker(
        faults=Chosen("half", Fate.LATE), schedule=lambda delay_s, run: planned.append((delay_s, run))
    )
    backend = MemoryBackend(broker)
    backend.ensure_group("g", 1).result()
    batch = Batch(half())
    backend.append_halves(batch)
    assert [1.0, 2.0] == [delay_s for delay_s, _ in planned]
    planned[0][1]()
    assert (Status.UNKNOWN, 0) == (batch.outcomes[0].status, len(broker.log("g", LogKind.HALF, 0)))
    planned[1][1]()
    assert 1 == len(broker.log("g", LogKind.HALF, 0))


def test_dead_client_gets_no_outcome():
    """A dead client gets no outcome, and the broker still carries out its requests."""
    planned = []
    broker = MemoryBroker(schedule=lambda delay_s, run: planned.append(run))
    backend = MemoryBackend(broker)
    backend.ensure_group("g", 1).result()
    batch = Batch(half())
    backend.append_halves(batch)
    backend.alive = False
    for run in planned:
        run()
    assert ({}, 1) == (batch.outcomes, len(broker.log("g", LogKind.HALF, 0)))


def test_a_broker_that_is_down_answers_nothing():
    """While the broker is down, requests are UNKNOWN and reading raises the reason."""
    broker, backend = broker_with()
    broker.down = True
    assert Status.UNKNOWN is appended(backend, half()).status
    with pytest.raises(BackendUnavailableError):
        backend.read("g", LogKind.HALF, 0).read(10)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_a_release_puts_targets_and_op_there(profile):
    """On every profile, a release stores the op and the targets, which carry our headers."""
    broker, backend = broker_with(profile)
    assert Status.DURABLE is released(backend).status
    assert {"t": [b"0"], "u": [b"1"]} == {name: [each.body for each in topic] for name, topic in broker.topics.items()}
    assert f"{wire.id_text(A)}:1" == broker.topics["u"][0].headers["txcore-id"]
    assert 1 == len(broker.log("g", LogKind.OP, 0))


def test_a_refusing_topic_of_an_atomic_release_refuses_all():
    """If one topic of an atomic release refuses, every target is missing and no op is written."""
    broker, backend = broker_with()
    broker.refusing.add("u")
    outcome = released(backend)
    assert (Status.REFUSED, (0, 1)) == (outcome.status, outcome.missing)
    assert (0, []) == (len(broker.log("g", LogKind.OP, 0)), list(broker.topics.get("t", ())))


def test_a_refusing_topic_of_a_stepped_release_is_named():
    """If one topic of a stepped release refuses, the other target is out and no op is written."""
    broker, backend = broker_with(KAFKA_LIKE)
    broker.refusing.add("u")
    outcome = released(backend)
    assert (Status.REFUSED, (1,)) == (outcome.status, outcome.missing)
    assert (0, 1) == (len(broker.log("g", LogKind.OP, 0)), len(broker.topics["t"]))


def test_unique_resolutions_hold_the_first_end():
    """With unique resolutions, the second end gets the kind of the first one."""
    broker, backend = broker_with()
    assert Status.DURABLE is released(backend, OpKind.ROLLBACK).status
    outcome = released(backend)
    assert (Status.SUPERSEDED, OpKind.ROLLBACK) == (outcome.status, outcome.decision)
    assert {} == broker.topics


def test_without_uniqueness_both_ends_are_in_the_log():
    """Without unique resolutions, both ends are in the log; the first one counts, as on Kafka."""
    broker, backend = broker_with(KAFKA_LIKE)
    released(backend, OpKind.ROLLBACK)
    assert Status.DURABLE is released(backend).status
    assert 2 == len(broker.log("g", LogKind.OP, 0))


def test_known_target_ids_are_dropped_where_the_broker_remembers_them():
    """A broker that remembers target ids drops a repeated target, as NATS does for its window."""
    broker, backend = broker_with(NATS_LIKE)
    for _ in range(2):
        batch = Batch(Resolution(half(), None, (0,), b"", "p"))
        backend.release(batch)
        assert Status.DURABLE is batch.outcomes[0].status
    assert 1 == len(broker.topics["t"])


def test_unknown_topics_and_oversize_are_refused_before_the_half_is_stored():
    """A broker that does not create topics refuses unknown topics and oversize before it stores the half (R14)."""
    broker = MemoryBroker(replace(STRONG, auto_create=False))
    backend = MemoryBackend(broker)
    backend.ensure_group("g", 1).result()
    outcome = appended(backend, half())
    assert (Status.REFUSED, "t") == (outcome.status, outcome.error.topic)
    broker.create_topic("t")
    broker.create_topic("u")
    assert Status.DURABLE is appended(backend, half()).status
    large = half(B)
    large.body = bytes(STRONG.capabilities.body_size_max + 1)
    assert "size" == appended(backend, large).error.reason


def test_a_trimmed_log_says_where_it_begins_now():
    """A trimmed log names its first position to a reader that asks for a position which is gone."""
    broker, backend = broker_with()
    for identity in (A, B):
        appended(backend, half(identity))
    first, second = (record.position for record in broker.log("g", LogKind.HALF, 0))
    broker.trim("g", LogKind.HALF, 0, second)
    with pytest.raises(DataLossError) as caught:
        backend.read("g", LogKind.HALF, 0, first).read(10)
    assert second == caught.value.first
    assert [second] == [record.position for record in backend.read("g", LogKind.HALF, 0, second).read(10)]


def test_a_lost_tail_forgets_what_it_resolved():
    """A lost tail (a power failure before fsync) takes its resolutions along; positions are not used again."""
    broker, backend = broker_with()
    appended(backend, half())
    released(backend, OpKind.ROLLBACK)
    before = broker.log("g", LogKind.OP, 0)[-1].position
    assert 1 == len(lose_tail(broker, "g", LogKind.OP, 0, 1))
    assert Status.DURABLE is released(backend).status
    assert before < broker.log("g", LogKind.OP, 0)[-1].position


def test_positions_ascend_and_have_gaps():
    """Positions ascend with gaps, so that records cannot be counted with them."""
    broker, backend = broker_with(KAFKA_LIKE)
    for number in range(20):
        appended(backend, half(number.to_bytes(16, "big")))
    positions = [record.position for record in broker.log("g", LogKind.HALF, 0)]
    assert sorted(set(positions)) == positions
    assert positions[-1] - positions[0] > 19


class TestUrl:
    def test_one_name_is_one_broker(self):
        """A name is one broker within a process; each URL without a name is a broker of its own."""
        one, two = txcore.connect("memory://test-url-a"), txcore.connect("memory://test-url-a")
        assert one.broker is two.broker
        assert txcore.connect("memory://").broker is not txcore.connect("memory://").broker

    def test_a_profile_imitates_a_broker(self):
        """The option `profile` names the broker to imitate."""
        assert not txcore.connect("memory://?profile=kafka-like").capabilities.atomic_release

    @pytest.mark.parametrize(
        ("option", "key"),
        [
            ("colour=red", "colour"),
            ("profile=strnog", "profile"),
            ("auto_create=perhaps", "auto_create"),
            ("partitions=0", "partitions"),
            ("partitions=x", "partitions"),
        ],
    )
    def test_a_wrong_option_is_refused_by_name(self, option, key):
        """An unknown key or value is refused by its key."""
        with pytest.raises(ConfigError) as caught:
            txcore.connect(f"memory://?{option}")
        assert key == caught.value.key

    def test_partitions_are_what_the_url_says(self):
        """The option `partitions` sets the number of a group's partitions."""
        backend = txcore.connect("memory://?partitions=7")
        assert 7 == backend.ensure_group("g").result()

    def test_a_second_opening_with_other_options_is_refused(self):
        """A second opening with other options is refused, because they would have no effect."""
        first = txcore.connect("memory://test-url-b?partitions=7")
        assert first.broker is txcore.connect("memory://test-url-b").broker
        assert first.broker is txcore.connect("memory://test-url-b?partitions=7").broker
        with pytest.raises(ConfigError, match="open already, with other options"):
            txcore.connect("memory://test-url-b?profile=kafka-like")

    def test_closing_twice_is_harmless_and_a_closed_backend_refuses(self):
        """A backend may be closed twice, and raises ClosedError afterwards."""
        backend = txcore.connect("memory://")
        backend.close().result()
        backend.close().result()
        with pytest.raises(ClosedError):
            backend.ensure_group("g")
