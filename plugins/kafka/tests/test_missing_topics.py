"""A target topic that is gone: the broker's own answer is a refusal, which counts; a missing answer is none."""

from __future__ import annotations

import itertools
import threading

import pytest
from confluent_kafka import KafkaError, KafkaException
from sqlalchemy import create_engine
from txcore_conformance import raw
from txcore_conformance.kit import COMMIT, Answers, Recorder

from txcore import Message, Relay, RelayLimits, SqlFence, TransactionProducer
from txcore.errors import MessageRejectedError
from txcore.records import OpKind, ParkCode, Status

DURABLE, REFUSED, UNKNOWN = Status.DURABLE, Status.REFUSED, Status.UNKNOWN
MANY = 30
TRIES = 10
"""Number of tries; after fewer, the driver itself reports at once that it does not know the topic."""


@pytest.fixture(params=["kit", "together"])
def form(request):
    """Kits of both forms of release."""
    return request.getfixturevalue(request.param)


def delete(kit, topic):
    """Delete a topic, and wait until the broker reports it as missing."""
    kit.delete(topic)
    kit.until(lambda: kit.admin.list_topics(topic, 10).topics[topic].error, "the topic to go")


def test_every_try_for_a_topic_that_is_gone_is_refused(form):
    """Every release to a deleted topic is REFUSED, although from the second try on the driver raises at once."""
    gone = form.make_topic()
    half, again = raw.half(form, gone), raw.half(form, gone)
    raw.append(form, half, again)
    assert raw.statuses(raw.release(form, raw.commit(again))) == [DURABLE]
    delete(form, gone)
    form.until(lambda: raw.statuses(raw.release(form, raw.commit(half))) == [REFUSED], "the refusal")
    outcomes = [*itertools.chain(*(raw.release(form, raw.commit(half)) for _ in range(TRIES)))]
    assert [(each.status, each.missing) for each in outcomes] == [(REFUSED, (0,))] * TRIES
    assert {each.error.topic for each in outcomes if isinstance(each.error, MessageRejectedError)} == {gone}
    assert half.transaction_id not in [each.transaction_id for each in raw.ops(form) if each.kind == OpKind.COMMIT]


def test_a_committed_half_whose_topic_is_gone_is_parked_as_undeliverable(form):
    """The checker parks a committed half as UNDELIVERABLE if its target topic is deleted."""
    gone = form.make_topic()
    identity = form.orphan(Message(gone, b"body")).transaction_id
    delete(form, gone)
    form.history.unjudged = True
    form.sweep(form.checker(Answers(COMMIT)), lambda: bool(form.journey(identity).parked))
    assert [each.code for each in form.journey(identity).parked] == [ParkCode.UNDELIVERABLE]


def test_a_topic_that_is_known_to_be_gone_is_not_sent_to(kit, topic, monkeypatch):
    """A release to a topic known as missing sends no record, which the driver would hold for a second."""
    (refused,) = raw.release(kit, raw.target_only(kit.group, "never-made-topic", b"lost"))
    assert refused.status is REFUSED
    sent = []
    send_all = kit.backend._producing.send_all

    def watched(report, numbers, records):
        sent.extend(topic for topic, *_ in records)
        return send_all(report, numbers, records)

    monkeypatch.setattr(kit.backend._producing, "send_all", watched)
    good, bad = raw.target_only(kit.group, topic, b"good"), raw.target_only(kit.group, "never-made-topic", b"bad")
    assert raw.statuses(raw.release(kit, bad, good)) == [REFUSED, DURABLE]
    assert sent == [topic]


def test_other_targets_of_the_transaction_are_published(kit, topic):
    """The other targets are published and the missing one is named, so that a resume sends only this one."""
    half = raw.half(kit, "never-made-topic", topic)
    for _ in range(2):
        (outcome,) = raw.release(kit, raw.commit(half))
        assert (outcome.status, outcome.missing) == (REFUSED, (0,))
    assert kit.bodies(topic) == [b"payload"] * 2


def test_a_topic_that_is_made_again_is_found(kit, monkeypatch):
    """Releases to a topic that was deleted and created again become DURABLE soon."""
    monkeypatch.setattr("txcore_kafka.presence.ABSENT_FOR_S", 3_600.0)
    gone = kit.make_topic()
    half = raw.half(kit, gone)
    raw.append(kit, half)
    delete(kit, gone)
    kit.until(lambda: raw.statuses(raw.release(kit, raw.commit(half))) == [REFUSED], "the refusal")
    kit.make_topic(gone)
    kit.until(lambda: raw.statuses(raw.release(kit, raw.commit(half))) == [DURABLE], "the topic to be known")


def test_a_topic_that_is_made_after_a_release_missed_it_takes_what_halves_found_it(kit):
    """After a half's check has found a topic, releases are not refused by an earlier answer that it is missing."""
    topic = kit.make_topic()
    delete(kit, topic)
    assert raw.statuses(raw.release(kit, raw.target_only(kit.group, topic, b"early"))) == [REFUSED]
    kit.make_topic(topic)
    half = raw.half(kit, topic)
    kit.until(lambda: raw.statuses(raw.append(kit, half)) == [DURABLE], "the topic to be known")
    for _ in range(3):
        assert raw.statuses(raw.release(kit, raw.commit(half))) == [DURABLE]


def test_a_topic_that_the_broker_knows_a_moment_later_is_not_refused(kit, topic, monkeypatch):
    """A first "no" for a topic does not count, as a thawed node may not know a new topic yet; a second "no" does."""
    asked = []
    has_topic = kit.backend._producing.has_topic
    answers = iter([False])
    monkeypatch.setattr(
        kit.backend._presence, "_has_topic", lambda name: asked.append(name) or next(answers, has_topic(name))
    )
    assert raw.statuses(raw.release(kit, raw.target_only(kit.group, topic, b"first"))) == [DURABLE]
    assert asked == [topic] * 2
    (refused,) = raw.release(kit, raw.target_only(kit.group, "never-made-topic", b"x"))
    assert (refused.status, asked[2:]) == (REFUSED, ["never-made-topic"] * 2)


def test_a_broker_that_does_not_answer_for_one_topic_is_not_asked_for_the_others(kit, monkeypatch):
    """After a topic's question got no answer, the other topics are not asked for, and none of them is refused."""
    asked = []

    def silent(name):
        asked.append(name)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr(kit.backend._presence, "_has_topic", silent)
    kit.wait(kit.backend._presence.seek(["one", "two", "three"]))
    assert asked == ["one"]
    assert kit.backend._presence.refusal("two") is None


def test_many_topics_that_are_gone_hold_nothing_else_up(kit, topic):
    """Releases to many missing topics are all refused in time, and a half for an existing topic does not wait."""
    resolutions = [raw.target_only(kit.group, f"never-made-{number}", b"x") for number in range(MANY)]
    batches = [Recorder([each]) for each in resolutions]
    backend = kit.connect(delivery_timeout_s="5")
    for batch in batches:
        backend.release(batch, None)
    assert raw.statuses(raw.append(kit, raw.half(kit, topic), backend=backend)) == [DURABLE]
    assert {raw.statuses(batch.wait(backend, kit.timeout_s))[0] for batch in batches} == {REFUSED}


def test_a_topic_that_is_still_there_is_not_refused_on_the_drivers_word(kit, topic, monkeypatch):
    """A release is UNKNOWN if the driver does not know the topic and the broker reports that it exists."""
    half = raw.half(kit, topic)
    raw.append(kit, half)
    delete(kit, topic)
    kit.until(lambda: raw.statuses(raw.release(kit, raw.commit(half))) == [REFUSED], "the refusal")
    monkeypatch.setattr(kit.backend._presence, "_has_topic", lambda _: True)
    kit.until(lambda: raw.statuses(raw.release(kit, raw.commit(half))) == [UNKNOWN], "the refusal to be forgotten")
    for _ in range(TRIES):
        (outcome,) = raw.release(kit, raw.commit(half))
        assert (outcome.status, outcome.missing) == (UNKNOWN, (0,))


def test_an_outage_is_no_refusal_although_the_topic_was_gone_before(hurt):
    """During an outage a release is UNKNOWN, although the broker reported the topic as missing before."""
    backend = hurt.connect(delivery_timeout_s="1.5", control_timeout_s="1")
    for _ in range(2):
        outcomes = raw.release(hurt, raw.target_only(hurt.group, "never-made-topic", b"x"), backend=backend)
        assert raw.statuses(outcomes) == [REFUSED]
    hurt.broker.kill()
    target = raw.target_only(hurt.group, "never-made-topic", b"x")
    hurt.until(lambda: raw.statuses(raw.release(hurt, target, backend=backend)) == [UNKNOWN], "the outage")
    for _ in range(2):
        assert raw.statuses(raw.release(hurt, target, backend=backend)) == [UNKNOWN]


def test_a_relay_parks_a_row_whose_topic_is_missing_and_delivers_the_others(kit, topic, tmp_path):
    """The relay parks the row after all tries, reports no trouble, and meanwhile sends messages of other keys."""
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    fence = SqlFence(engine)
    fence.create()
    producer = TransactionProducer(kit.backend, kit.group, fence=fence, mode="table")

    def put(target, key):
        with producer.transaction(engine) as transaction:
            transaction.publish(Message(target, key, key))

    limits = RelayLimits(tries_max=TRIES, retry_s=0.01, retry_max_s=0.02)
    relay = Relay(kit.backend, kit.group, engine, limits=limits)
    put(topic, b"before")
    relay.run_once()
    put("never-made-topic", b"lost")
    put(topic, b"beside")
    assert (report := relay._batch()).uncertain == 0
    assert (report.sent, report.refused) == (1, 1)
    relay.start()
    kit.until(relay.parked, "the row to be parked")
    put(topic, b"after")
    kit.until(lambda: relay.stats().sent == 3, "the others")
    assert relay.stats().trouble == ""
    assert relay.stop()
    (parked,) = relay.parked()
    assert (parked.tries, "does not exist" in parked.reason) == (TRIES, True)
    assert sorted(kit.bodies(topic)) == [b"after", b"before", b"beside"]
    engine.dispose()


def test_in_a_transaction_a_topic_that_is_gone_hurts_no_other_release(together):
    """In a transaction the release to a missing topic is refused, the others are committed, and the client is kept."""
    gone, topic = together.make_topic(), together.topic()
    bad, again = raw.half(together, gone), raw.half(together, gone)
    good = [raw.half(together, topic, body=b"%d" % number) for number in range(5)]
    raw.append(together, bad, again, *good)
    assert raw.statuses(raw.release(together, raw.commit(again))) == [DURABLE]
    delete(together, gone)
    together.until(lambda: raw.statuses(raw.release(together, raw.commit(bad))) == [REFUSED], "the refusal")
    before = together.backend._releaser.lanes.of(together.group).rebuilt_count
    outcomes = raw.release(together, *map(raw.commit, [*good[:2], bad, *good[2:]]))
    assert raw.statuses(outcomes) == [DURABLE] * 2 + [REFUSED] + [DURABLE] * 3
    assert together.backend._releaser.lanes.of(together.group).rebuilt_count == before
    assert together.bodies(topic) == [half.messages[0].body for half in good]


def test_in_a_transaction_a_question_without_an_answer_ends_with_the_backend(together, monkeypatch):
    """Closing the backend settles a release as UNKNOWN while the question for its topic has no answer."""
    backend = together.connect()
    gone = together.make_topic()
    half, again = raw.half(together, gone), raw.half(together, gone)
    raw.append(together, half, again, backend=backend)
    assert raw.statuses(raw.release(together, raw.commit(again), backend=backend)) == [DURABLE]
    delete(together, gone)
    is_asked, may_answer = threading.Event(), threading.Event()
    monkeypatch.setattr(backend._presence, "_has_topic", lambda _: is_asked.set() or may_answer.wait(60))

    def unanswered():
        """Release once more: a message is accepted, or gets no answer, until its leader has deleted the topic."""
        recorder = Recorder([raw.commit(half)])
        backend.release(recorder, None)
        together.until(lambda: is_asked.is_set() or recorder.outcomes != [None], "an outcome or the question")
        return recorder if is_asked.is_set() else None

    recorder = together.until(unanswered, "the question")
    backend.close(3.0).result(20)
    try:
        assert [each.status for each in recorder.wait(backend, 5.0)] == [UNKNOWN]
    finally:
        may_answer.set()
