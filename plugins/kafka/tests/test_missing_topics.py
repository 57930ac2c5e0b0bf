"""A target topic that is gone: the broker's own word is a refusal, and it is counted; no answer never is."""

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
"""More than it takes until the driver itself says at once that it does not know the topic."""


@pytest.fixture(params=["kit", "together"])
def form(request):
    """Kits of both forms of release."""
    return request.getfixturevalue(request.param)


def delete(kit, topic):
    """Delete a topic, and wait until the broker says so."""
    kit.delete(topic)
    kit.until(lambda: kit.admin.list_topics(topic, 10).topics[topic].error, "the topic to go")


def test_every_try_for_a_topic_that_is_gone_is_refused(form):
    """The driver raises at once from the second try on; the broker is asked, and its answer counts."""
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
    """After the refusals that the checker's limits allow."""
    gone = form.make_topic()
    identity = form.orphan(Message(gone, b"body")).transaction_id
    delete(form, gone)
    form.history.unjudged = True
    form.sweep(form.checker(Answers(COMMIT)), lambda: bool(form.journey(identity).parked))
    assert [each.code for each in form.journey(identity).parked] == [ParkCode.UNDELIVERABLE]


def test_a_topic_that_is_known_to_be_gone_is_not_sent_to(kit, topic, monkeypatch):
    """The driver would hold such a record for a second, and with it all that is waited for together."""
    (refused,) = raw.release(kit, raw.target_only(kit.group, "never-made-topic", b"lost"))
    assert refused.status is REFUSED
    sent = []
    send = kit.backend._producing.send
    monkeypatch.setattr(kit.backend._producing, "send", lambda record: (sent.append(record.topic), send(record))[1])
    good, bad = raw.target_only(kit.group, topic, b"good"), raw.target_only(kit.group, "never-made-topic", b"bad")
    assert raw.statuses(raw.release(kit, bad, good)) == [REFUSED, DURABLE]
    assert sent == [topic]


def test_other_targets_of_the_transaction_are_published(kit, topic):
    """What is missing is named, so that a resume sends this alone."""
    half = raw.half(kit, "never-made-topic", topic)
    for _ in range(2):
        (outcome,) = raw.release(kit, raw.commit(half))
        assert (outcome.status, outcome.missing) == (REFUSED, (0,))
    assert kit.bodies(topic) == [b"payload"] * 2


def test_a_topic_that_is_made_again_is_found(kit, monkeypatch):
    """Neither we nor the driver remember for long that it was gone: the next release asks."""
    monkeypatch.setattr("txcore_kafka.presence.ABSENT_FOR_S", 3_600.0)
    gone = kit.make_topic()
    half = raw.half(kit, gone)
    raw.append(kit, half)
    delete(kit, gone)
    kit.until(lambda: raw.statuses(raw.release(kit, raw.commit(half))) == [REFUSED], "the refusal")
    kit.make_topic(gone)
    kit.until(lambda: raw.statuses(raw.release(kit, raw.commit(half))) == [DURABLE], "the topic to be known")


def test_a_topic_that_is_made_after_a_release_missed_it_takes_what_halves_found_it(kit):
    """A half's check finds the topic; the releases after that are not refused by what an earlier one heard."""
    topic = kit.make_topic()
    delete(kit, topic)
    assert raw.statuses(raw.release(kit, raw.target_only(kit.group, topic, b"early"))) == [REFUSED]
    kit.make_topic(topic)
    half = raw.half(kit, topic)
    kit.until(lambda: raw.statuses(raw.append(kit, half)) == [DURABLE], "the topic to be known")
    for _ in range(3):
        assert raw.statuses(raw.release(kit, raw.commit(half))) == [DURABLE]


def test_a_topic_that_the_broker_knows_a_moment_later_is_not_refused(kit, topic, monkeypatch):
    """A node that thaws has not heard yet of what was made meanwhile; its second word counts."""
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
    """Each question would wait for its own timeout, and nothing else could be looked up meanwhile."""
    asked = []

    def silent(name):
        asked.append(name)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr(kit.backend._presence, "_has_topic", silent)
    kit.wait(kit.backend._presence.seek(["one", "two", "three"]))
    assert asked == ["one"]
    assert kit.backend._presence.refusal("two") is None


def test_many_topics_that_are_gone_hold_nothing_else_up(kit, topic):
    """Each is asked for twice; one pause serves all, and a half for a topic that is there does not wait for it."""
    resolutions = [raw.target_only(kit.group, f"never-made-{number}", b"x") for number in range(MANY)]
    batches = [Recorder([each]) for each in resolutions]
    backend = kit.connect(delivery_timeout_s="5")
    for batch in batches:
        backend.release(batch, None)
    assert raw.statuses(raw.append(kit, raw.half(kit, topic), backend=backend)) == [DURABLE]
    assert {raw.statuses(batch.wait(backend, kit.timeout_s))[0] for batch in batches} == {REFUSED}


def test_a_topic_that_is_still_there_is_not_refused_on_the_drivers_word(kit, topic, monkeypatch):
    """What the driver does not know may be there: that is UNKNOWN."""
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
    """What the broker said a while ago is no answer."""
    backend = hurt.connect(delivery_timeout_s="1.5", request_timeout_s="1")
    for _ in range(2):
        outcomes = raw.release(hurt, raw.target_only(hurt.group, "never-made-topic", b"x"), backend=backend)
        assert raw.statuses(outcomes) == [REFUSED]
    hurt.broker.kill()
    target = raw.target_only(hurt.group, "never-made-topic", b"x")
    hurt.until(lambda: raw.statuses(raw.release(hurt, target, backend=backend)) == [UNKNOWN], "the outage")
    for _ in range(2):
        assert raw.statuses(raw.release(hurt, target, backend=backend)) == [UNKNOWN]


def test_a_relay_parks_a_row_whose_topic_is_missing_and_delivers_the_others(kit, topic, tmp_path):
    """Each try counts, the relay reports no trouble, and messages of other keys are sent meanwhile."""
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
    """The driver raises at once; the client is kept, and the others are committed."""
    gone, topic = together.make_topic(), together.topic()
    bad, again = raw.half(together, gone), raw.half(together, gone)
    good = [raw.half(together, topic, body=b"%d" % number) for number in range(5)]
    raw.append(together, bad, again, *good)
    assert raw.statuses(raw.release(together, raw.commit(again))) == [DURABLE]
    delete(together, gone)
    together.until(lambda: raw.statuses(raw.release(together, raw.commit(bad))) == [REFUSED], "the refusal")
    before = together.backend._releaser.lane.rebuilt_count
    outcomes = raw.release(together, *map(raw.commit, [*good[:2], bad, *good[2:]]))
    assert raw.statuses(outcomes) == [DURABLE] * 2 + [REFUSED] + [DURABLE] * 3
    assert together.backend._releaser.lane.rebuilt_count == before
    assert together.bodies(topic) == [half.messages[0].body for half in good]


def test_in_a_transaction_a_question_without_an_answer_ends_with_the_backend(together, monkeypatch):
    """The release is settled by its close, although the broker never says whether the topic is gone."""
    backend = together.connect()
    gone = together.make_topic()
    half, again = raw.half(together, gone), raw.half(together, gone)
    raw.append(together, half, again, backend=backend)
    assert raw.statuses(raw.release(together, raw.commit(again), backend=backend)) == [DURABLE]
    delete(together, gone)
    is_asked, may_answer = threading.Event(), threading.Event()
    monkeypatch.setattr(backend._presence, "_has_topic", lambda _: is_asked.set() or may_answer.wait(60))

    def unanswered():
        """Release once more: until its leader has deleted the topic, a message is accepted, or stays without answer."""
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
