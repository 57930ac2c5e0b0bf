"""Targets on a real broker: refusals, the step that finds them, and no effect on other messages."""

from __future__ import annotations

import pytest
from txcore_conformance import raw

from txcore.errors import ConfigError, MessageRejectedError
from txcore.ids import id_text
from txcore.records import OpKind, Resolution, Status

DURABLE, REFUSED, UNKNOWN = Status.DURABLE, Status.REFUSED, Status.UNKNOWN


def count_in(channel, queue):
    return channel.queue_declare(queue, passive=True).method.message_count


def test_a_target_is_an_ordinary_persistent_message(kit):
    """A target is persistent, with the given body, headers and key; its message id is its txcore-id."""
    queue = kit.queue()
    half = raw.half(kit, queue, body=b"\x00body", key=b"42", headers={"colour": "red", "raw": b"\xff"})
    raw.append(kit, half)
    assert raw.statuses(raw.release(kit, raw.commit(half, by="someone"))) == [DURABLE]
    _, properties, body = kit.channel().basic_get(queue, auto_ack=True)
    identity = f"{id_text(half.transaction_id)}:0"
    assert (body, properties.delivery_mode, properties.message_id) == (b"\x00body", 2, identity)
    assert properties.headers == {
        "colour": "red",
        "raw": b"\xff",
        "txcore-id": identity,
        "txcore-group": kit.group,
        "txcore-by": "someone",
        "txcore-key": b"42",
    }


def test_the_type_of_the_body_is_a_property_too(kit):
    """Consumers that decode by AMQP's properties get what `Message.json` says in a header."""
    queue = kit.queue()
    half = raw.half(kit, queue, body=b"{}", headers={"content-type": "application/json", "content-encoding": "utf-8"})
    raw.append(kit, half)
    assert raw.statuses(raw.release(kit, raw.commit(half))) == [DURABLE]
    _, properties, _ = kit.channel().basic_get(queue, auto_ack=True)
    assert (properties.content_type, properties.content_encoding) == ("application/json", "utf-8")
    assert properties.headers["content-type"] == "application/json"


def test_missing_queue_and_missing_exchange_refuse_the_half(kit):
    """A half for a missing queue or exchange is refused, and stored after the queue or exchange was declared."""
    queue, exchange = f"late-{kit.group}", f"late-exchange-{kit.group}"
    halves = [raw.half(kit, queue), raw.half(kit, f"{exchange}/key"), raw.half(kit, kit.queue())]
    outcomes = raw.append(kit, *halves)
    assert raw.statuses(outcomes) == [REFUSED, REFUSED, DURABLE]
    assert [type(outcome.error) for outcome in outcomes[:2]] == [MessageRejectedError] * 2
    assert [outcome.error.topic for outcome in outcomes[:2]] == [queue, exchange]
    channel = kit.channel()
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "classic"})
    channel.exchange_declare(exchange, "topic", durable=True)
    assert raw.statuses(raw.append(kit, *halves[:2])) == [DURABLE, DURABLE]


def test_an_exclusive_queue_of_another_client_is_a_target(kit):
    """An exclusive queue of another connection can be a target, although txcore cannot declare it."""
    channel, queue = kit.channel(), f"exclusive-{kit.group}"
    channel.queue_declare(queue, exclusive=True, arguments={"x-queue-type": "classic"})
    half = raw.half(kit, queue)
    assert raw.statuses(raw.append(kit, half)) == [DURABLE]
    assert raw.statuses(raw.release(kit, raw.commit(half))) == [DURABLE]


def test_an_unroutable_key_is_refused_by_name_and_its_twin_is_delivered(kit):
    """A target with an unroutable key is REFUSED by name, and other targets under way are confirmed."""
    channel, exchange, queue = kit.channel(), f"exchange-{kit.group}", kit.queue()
    channel.exchange_declare(exchange, "topic", durable=True)
    channel.queue_bind(queue, exchange, "known.*")
    lost = [raw.half(kit, f"{exchange}/known.{number}", f"{exchange}/nowhere.{number}") for number in range(20)]
    good = [raw.half(kit, f"{exchange}/known.{number}") for number in range(20)]
    pairs = [half for pair in zip(lost, good, strict=True) for half in pair]
    raw.append(kit, *pairs)
    outcomes = raw.release(kit, *[raw.commit(half) for half in pairs])
    assert raw.statuses(outcomes) == [REFUSED, DURABLE] * 20
    assert {outcome.missing for outcome in outcomes[::2]} == {(1,)}
    assert [outcome.error.topic for outcome in outcomes[::2]] == [f"{exchange}/nowhere.{n}" for n in range(20)]
    assert {outcome.error.reason for outcome in outcomes[::2]} == {"unroutable"}
    assert {each.transaction_id for each in raw.ops(kit)} == {half.transaction_id for half in good}
    assert count_in(channel, queue) == 40


def test_a_full_queue_refuses_and_takes_it_later(kit):
    """A release to a full queue is REFUSED with the missing target, which the next release publishes."""
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    full, other, channel = kit.queue("full", **arguments), kit.queue(), kit.channel()
    channel.basic_publish("", full, b"full now")
    half = raw.half(kit, other, full)
    raw.append(kit, half)
    (outcome,) = raw.release(kit, raw.commit(half))
    assert (outcome.status, outcome.missing, outcome.error.reason) == (REFUSED, (1,), "full")
    channel.queue_purge(full)
    again = Resolution(half, raw.op(half, OpKind.COMMIT), outcome.missing, b"", raw.BY, flush=True)
    assert raw.statuses(raw.release(kit, again)) == [DURABLE]
    assert (count_in(channel, other), count_in(channel, full)) == (1, 1)


def test_two_targets_on_one_topic(kit):
    """Two targets of a transaction on one queue arrive in their order, each with its own id."""
    queue = kit.queue()
    half = raw.half(kit, queue, queue)
    raw.append(kit, half)
    assert raw.statuses(raw.release(kit, raw.commit(half))) == [DURABLE]
    channel = kit.channel()
    found = [channel.basic_get(queue, auto_ack=True)[1].message_id for _ in range(2)]
    assert found == [f"{id_text(half.transaction_id)}:{index}" for index in range(2)]


def test_one_target_twice_under_way_and_one_of_them_returned(kit):
    """Concurrent releases of one unroutable target are REFUSED or UNKNOWN, as they share a message id."""
    channel, exchange = kit.channel(), f"exchange-{kit.group}"
    channel.exchange_declare(exchange, "topic", durable=True)
    half = raw.half(kit, f"{exchange}/nowhere")
    raw.append(kit, half)
    outcomes = raw.release(kit, *[raw.commit(half)] * 5)
    assert set(raw.statuses(outcomes)) <= {REFUSED, UNKNOWN}
    assert raw.statuses(raw.release(kit, raw.commit(half))) == [REFUSED]
    assert raw.ops(kit) == []


def test_an_exchange_that_vanishes_hurts_only_its_own_messages(kit):
    """After an exchange is deleted, only releases to it fail, as other targets have channels of their own."""
    channel, exchange, queue = kit.channel(), f"gone-{kit.group}", kit.queue()
    channel.exchange_declare(exchange, "fanout", durable=True)
    channel.queue_bind(queue, exchange)
    doomed = [raw.half(kit, f"{exchange}/any") for _ in range(30)]
    good = [raw.half(kit, queue) for _ in range(30)]
    raw.append(kit, *doomed, *good)
    raw.release(kit, Resolution(doomed[0], None, (0,)))  # this opens its lane
    channel.exchange_delete(exchange)
    pairs = [half for pair in zip(doomed, good, strict=True) for half in pair]
    outcomes = raw.release(kit, *[raw.commit(half) for half in pairs])
    assert raw.statuses(outcomes[1::2]) == [DURABLE] * 30
    assert DURABLE not in raw.statuses(outcomes[::2])
    # Messages under way when the channel was closed are uncertain; the broker itself refuses a message sent now.
    (outcome,) = raw.release(kit, raw.commit(doomed[0]))
    assert (outcome.status, type(outcome.error)) == (REFUSED, MessageRejectedError)
    assert exchange in str(outcome.error)
    assert {each.transaction_id for each in raw.ops(kit)} == {half.transaction_id for half in good}


def test_a_queue_deleted_after_the_half_was_stored_is_refused(kit):
    """A release to a queue that was deleted after the half is REFUSED, and so is the next half for it."""
    queue = kit.queue()
    half = raw.half(kit, queue)
    raw.append(kit, half)
    kit.channel().queue_delete(queue)
    (outcome,) = raw.release(kit, raw.commit(half))
    assert (outcome.status, outcome.missing) == (REFUSED, (0,))
    assert raw.statuses(raw.append(kit, raw.half(kit, queue))) == [REFUSED]


def test_a_stream_is_a_target(kit):
    """A stream can be a target; at its limit it drops its oldest messages and refuses none."""
    name, channel = f"stream-{kit.group}", kit.channel()
    arguments = {
        "x-queue-type": "stream",
        "x-max-length-bytes": 200_000,
        "x-stream-max-segment-size-bytes": 100_000,
    }
    channel.queue_declare(name, durable=True, arguments=arguments)
    for _ in range(6):
        halves = [raw.half(kit, name, body=bytes(50_000)) for _ in range(4)]
        raw.append(kit, *halves)
        assert raw.statuses(raw.release(kit, *[raw.commit(half) for half in halves])) == [DURABLE] * 4


def test_more_exchanges_than_lanes(kit):
    """Releases to more exchanges than lanes are all DURABLE, as idle channels are closed and opened again."""
    from txcore_rabbitmq import publishing  # noqa: PLC0415

    channel, queue, count = kit.channel(), kit.queue(), 12
    names = [f"many-{number}-{kit.group}" for number in range(count)]
    for name in names:
        channel.exchange_declare(name, "fanout")
        channel.queue_bind(queue, name)
    halves = [raw.half(kit, f"{name}/any") for name in names for _ in range(2)]
    raw.append(kit, *halves)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing, "LANE_COUNT_MAX", 4)
        for half in halves:
            assert raw.statuses(raw.release(kit, raw.commit(half))) == [DURABLE]
    assert len(kit.backend._publisher._lanes) <= 5
    assert count_in(channel, queue) == 2 * count


@pytest.mark.parametrize(
    ("topic", "headers", "reason"),
    [
        ("", {}, "topic"),
        ("q" * 256, {}, "topic"),
        ("e/" + "k" * 256, {}, "topic"),
        ("{queue}", {"n" * 256: "v"}, "headers"),
        ("{queue}", {"big": "v" * 70_000}, "headers"),
    ],
)
def test_what_amqp_cannot_carry_is_refused_before_the_half(kit, topic, headers, reason):
    """A half with a topic or headers that AMQP cannot carry is refused alone, and the connection stays open."""
    queue = kit.queue()
    bad, good = raw.half(kit, topic.format(queue=queue), headers=headers), raw.half(kit, queue)
    outcomes = raw.append(kit, bad, good)
    assert raw.statuses(outcomes) == [REFUSED, DURABLE]
    assert (type(outcomes[0].error), outcomes[0].error.reason) == (MessageRejectedError, reason)


def test_large_headers_that_fit_arrive(kit):
    """A target with headers just below the limit is published."""
    queue = kit.queue()
    half = raw.half(kit, queue, headers={f"h{number}": "v" * 6_000 for number in range(10)})
    assert raw.statuses(raw.append(kit, half)) == [DURABLE]
    assert raw.statuses(raw.release(kit, raw.commit(half))) == [DURABLE]


def test_a_queue_with_a_slash_in_its_name(kit):
    """A topic with a slash in front names a queue with a slash in its name."""
    queue = kit.queue("with/slash")
    half = raw.half(kit, f"/{queue}")
    assert raw.statuses(raw.append(kit, half)) == [DURABLE]
    assert raw.statuses(raw.release(kit, raw.commit(half))) == [DURABLE]
    assert count_in(kit.channel(), queue) == 1


def test_nothing_is_published_for_a_group_that_does_not_exist(kit):
    """A release for a missing group is REFUSED and publishes no target, as its op could not be written."""
    queue = kit.queue()
    half = raw.half(kit, queue)
    half.group = f"never-made-{kit.group}"
    (outcome,) = raw.release(kit, raw.commit(half))
    assert (outcome.status, type(outcome.error)) == (REFUSED, ConfigError)
    assert count_in(kit.channel(), queue) == 0
    backend = kit.connect(partition_count=None)
    known = raw.half(kit, queue)
    assert raw.statuses(raw.release(kit, raw.commit(known), backend=backend)) == [DURABLE]
