"""The printed permissions on a real broker: each role can do its work, and nothing in another group."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from pika import exceptions
from rabbitmq_tenants import GROUPS, KEY, Tenants, events
from txcore_conformance import raw
from txcore_conformance.kit import COMMIT, PARTITION_COUNT, UNKNOWN, Answers, error_of
from txcore_rabbitmq import PLUGIN
from txcore_rabbitmq.names import (
    checkpoint_name,
    checks_name,
    claim_name,
    log_exchange,
    log_name,
    logs_name,
    member_name,
    members_name,
    stream_arguments,
    stream_exchanges,
)
from txcore_rabbitmq.options import Options

from txcore import Message
from txcore.doctor.backend_checks import port_examination
from txcore.errors import ConfigError, UsageError
from txcore.findings import Level, Request, examine
from txcore.permissions import Access, Role
from txcore.records import LogKind, Status
from txcore.registry import open_doctor


@pytest.fixture(scope="module")
def tenants(harness):
    made = Tenants(harness)
    try:
        made.make_groups()
        yield made
    finally:
        made.close()


@pytest.fixture
def opened(tenants):
    """A function that returns a kit of one group and role; it is closed at the end."""
    kits = []

    def open_kit(group, role):
        kits.append(tenants.kit(group, role))
        return kits[-1]

    yield open_kit
    for kit in kits:
        kit.close()


# -- allowed ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", GROUPS)
def test_a_producer_does_its_whole_work(tenants, opened, group):
    """A producer's user stores halves, publishes to its exchange and writes ops; a target that is gone is refused."""
    kit = opened(group, Role.PRODUCER)
    topic = f"{events(group)}/{KEY}"
    half, other = raw.half(kit, topic, body=b"sent"), raw.half(kit, topic, body=b"dropped")
    assert raw.statuses(raw.append(kit, half, other)) == [Status.DURABLE] * 2
    resolutions = raw.commit(half), raw.rollback(other)
    assert raw.statuses(raw.release(kit, *resolutions)) == [Status.DURABLE] * 2
    sent = kit.producer(Answers()).send_message_in_transaction(Message(topic, b"also sent"), arg=COMMIT)
    assert sent.end.state.name == "ACCEPTED"
    assert sorted(tenants.mailed(group)) == [b"also sent", b"sent"]


@pytest.mark.parametrize("group", GROUPS)
def test_a_checker_does_its_whole_work(tenants, opened, group):
    """A checker's user claims, reads, decides, parks and stores checkpoints; its operator lists, resumes and ends."""
    producer, kit = opened(group, Role.PRODUCER), opened(group, Role.CHECKER)
    topic = f"{events(group)}/{KEY}"
    producer.orphan(Message(topic, b"decided"))
    parked = [producer.orphan(Message(topic, body)).transaction_id for body in (b"resumed", b"ended")]
    answers = Answers(UNKNOWN, by_body={b"decided": COMMIT})
    checker, operator = kit.checker(answers), kit.operator()
    kit.sweep(checker)
    assert tenants.mailed(group) == [b"decided"]
    assert {each.transaction_id for each in operator.parked()} == set(parked)
    answers.answer = COMMIT
    operator.resume(parked[0], "the listener was down")
    operator.rollback(parked[1], "test data")
    mailed = []
    kit.sweep(checker, lambda: bool(mailed.extend(tenants.mailed(group)) or (mailed and not operator.parked())))
    assert mailed == [b"resumed"]

    def is_stored():  # a partition without records has no checkpoint
        return any(kit.wait(kit.backend.load_checkpoint(group, each)) for each in range(PARTITION_COUNT))

    kit.sweep(checker, is_stored)


def test_two_checkers_share_the_partitions(opened):
    """Checkers of one user see each other through the group's exchange, and share its partitions."""
    kit = opened("orders.eu", Role.CHECKER)
    claims = [kit.backend.claim("orders.eu", name) for name in ("a", "b")]
    for claim in claims:
        assert kit.until(lambda claim=claim: list(claim.poll()))
    for claim in claims:
        kit.wait(claim.close(5.0))


def test_the_doctor_works_under_a_checker(tenants, opened):
    """The doctor's lines need no right of the creator, except the comparison of the streams' arguments."""
    kit, request = opened("orders", Role.CHECKER), Request("orders", (f"{events('orders')}/{KEY}",))
    examination = open_doctor(tenants.url("orders checker"), request)
    try:
        report = examine(examination)
    finally:
        examination.close()
    report = report.joined(examine(port_examination(kit.backend, request)))
    levels = {line.name: line.finding.level for line in report.lines}
    untold = [line for line in report.lines if line.name in {"rabbitmq.arguments", "rabbitmq.parked"}]
    assert {line.finding.change for line in untold} == {"run the doctor under a user that may create"}
    needed = (
        "rabbitmq.rights",
        "rabbitmq.alarm",
        "rabbitmq.message-size",
        "rabbitmq.streams",
        "rabbitmq.targets",
        "port.group",
    )
    assert {levels[name] for name in (*needed, "port.probe")} == {Level.OK}


def test_a_queue_as_target_works_and_the_text_asks_for_a_virtual_host(tenants, opened):
    """A queue as target needs the default exchange, and the printed text says that this isolates no groups."""
    queue = "orders-queue"
    tenants.channel().queue_declare(queue, durable=True)
    user = tenants.add("orders", Role.PRODUCER, targets=(queue,))
    kit = opened("orders", Role.PRODUCER)
    kit.url = tenants.url(user)
    half = raw.half(kit, queue)
    assert raw.statuses(raw.append(kit, half)) == [Status.DURABLE]
    assert raw.statuses(raw.release(kit, raw.commit(half))) == [Status.DURABLE]
    tenants.channel().queue_delete(queue)
    (refused,) = raw.append(kit, raw.half(kit, queue), backend=kit.open())
    assert (refused.status, refused.error.reason) == (Status.REFUSED, "unknown")
    text = PLUGIN.permissions_of(tenants.url(), Access(user=user, group="orders", role=Role.PRODUCER, targets=(queue,)))
    assert "# This user can therefore write into the logs of every group there" in text
    assert "give each group a virtual host of its own" in text


def test_a_group_without_its_exchange_gets_it_from_a_user_who_may_create(tenants, opened):
    """Without the right to create, the missing exchange is a ConfigError that names the command; then it works."""
    kit = opened("billing", Role.PRODUCER)
    channel = tenants.channel()
    channel.exchange_delete(logs_name("billing"))
    error = error_of(lambda: kit.backend.ensure_group("billing"), kit.timeout_s)
    assert isinstance(error, ConfigError)
    assert logs_name("billing") in str(error)
    assert "txcore topics create" in str(error)
    with PLUGIN.connect(tenants.url("billing producer creates")) as backend:
        assert kit.wait(backend.ensure_group("billing")) == PARTITION_COUNT
    half = raw.half(kit, f"{events('billing')}/{KEY}")
    assert raw.statuses(raw.append(kit, half)) == [Status.DURABLE]
    assert raw.statuses(raw.release(kit, raw.commit(half))) == [Status.DURABLE]
    assert tenants.mailed("billing")


# -- refused ----------------------------------------------------------------------------------------------------------


def publish(exchange, routing_key):
    def call(channel):
        channel.confirm_delivery()
        channel.basic_publish(exchange, routing_key, b"forged", mandatory=True)

    return call


def streams_of(group):
    return stream_arguments(Options(), group, 0)


def on_each_stream(group, name, call):
    return {f"{name} {stream}": lambda channel, stream=stream: call(channel, stream) for stream in streams_of(group)}


def attacks_on(mine, theirs):
    """Return what a user of the group *mine* must not do to the group *theirs*, or to its own group."""
    logs, checks, members = logs_name(theirs), checks_name(theirs), members_name(theirs)
    calls = {}
    for stream, exchange in stream_exchanges(theirs, 0).items():
        calls[f"publish to {stream}"] = publish(exchange, stream)
        calls[f"publish to {stream} by default"] = publish("", stream)
    for name, call in {
        "declare": lambda channel, stream: channel.queue_declare(
            stream, durable=True, arguments=streams_of(theirs)[stream]
        ),
        "delete": lambda channel, stream: channel.queue_delete(stream),
        "unbind": lambda channel, stream: channel.queue_unbind(stream, stream_exchanges(theirs, 0)[stream], stream),
    }.items():
        calls |= on_each_stream(theirs, name, call)
    for exchange in (logs, checks):
        calls[f"delete {exchange}"] = lambda channel, exchange=exchange: channel.exchange_delete(exchange)
        calls[f"declare {exchange}"] = lambda channel, exchange=exchange: channel.exchange_declare(
            exchange, "direct", durable=True
        )
        calls[f"dead letters to {exchange}"] = lambda channel, exchange=exchange: dead_letters(channel, mine, exchange)
        calls[f"listen to {exchange}"] = lambda channel, exchange=exchange: channel.queue_bind(
            log_name(mine, LogKind.HALF, 0), exchange, log_name(theirs, LogKind.HALF, 0)
        )
        calls[f"bind exchange to {exchange}"] = lambda channel, exchange=exchange: channel.exchange_bind(
            members_name(mine), exchange, "#"
        )
        calls[f"bind {exchange} to exchange"] = lambda channel, exchange=exchange: channel.exchange_bind(
            exchange, members_name(mine), ""
        )
    calls["dead letters by default"] = lambda channel: dead_letters(channel, mine, "")
    for exchange in ("amq.direct", "amq.topic", "amq.fanout", "unlisted"):
        calls[f"publish to {exchange}"] = publish(exchange, KEY)
    return calls | ({} if mine == theirs else attacks_on_others(mine, theirs, members))


def attacks_on_others(mine, theirs, members):
    calls = {
        "announce": publish(members, ""),
        "publish to a foreign target": publish(events(theirs), KEY),
        "lock": lambda channel: channel.queue_declare(claim_name(theirs, 0), exclusive=True),
        "be a member": lambda channel: channel.queue_declare(member_name(theirs, "a#b", 1), exclusive=True),
        "delete members": lambda channel: channel.exchange_delete(members),
    }
    for name, call in {
        "purge": lambda channel, stream: channel.queue_purge(stream),
        "consume": consume,
        "get": lambda channel, stream: channel.basic_get(stream),
        "bind": lambda channel, stream: channel.queue_bind(stream, logs_name(mine), stream),
        "bind to members": lambda channel, stream: channel.queue_bind(stream, members_name(mine), ""),
    }.items():
        calls |= on_each_stream(theirs, name, call)
    return calls


def attacks_of_a_producer(mine):
    """Return what a producer must not do in its own group although a checker may."""
    calls = {"lock": lambda channel: channel.queue_declare(claim_name(mine, 0), exclusive=True)}
    for name, call in {"consume": consume, "purge": lambda channel, stream: channel.queue_purge(stream)}.items():
        calls |= on_each_stream(mine, name, call)
    parked = log_name(mine, LogKind.PARKED, 0)
    checkpoint = checkpoint_name(mine, 0)
    return calls | {
        "publish parked": publish(log_exchange(mine, LogKind.PARKED), parked),
        "publish checkpoint": publish(checks_name(mine), checkpoint),
        "announce": publish(members_name(mine), ""),
    }


def consume(channel, stream):
    channel.basic_qos(prefetch_count=10)
    channel.basic_consume(stream, lambda *_: None, arguments={"x-stream-offset": "first"})


def dead_letters(channel, mine, exchange):
    """Let messages of a queue that a checker may declare expire into *exchange*."""
    arguments = {"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": "any", "x-message-ttl": 0}
    channel.queue_declare(member_name(mine, "a#b", 1), exclusive=True, arguments=arguments)


REFUSED = [
    *(
        pytest.param(mine, role, call, id=f"{mine} {role.value} in {theirs}: {name}")
        for mine, theirs in (("orders", "billing"), ("orders", "orders.eu"), ("orders.eu", "orders"))
        for role in Role
        for name, call in attacks_on(mine, theirs).items()
    ),
    *(
        pytest.param("orders", Role.PRODUCER, call, id=f"own orders producer: {name}")
        for name, call in attacks_of_a_producer("orders").items()
    ),
]


@pytest.mark.parametrize(("group", "role", "attack"), REFUSED)
def test_each_attack_is_refused(tenants, group, role, attack):
    """Under the printed permissions the broker refuses the call with 403, ACCESS_REFUSED."""
    channel = tenants.channel(f"{group} {role.value}")
    with pytest.raises(exceptions.ChannelClosedByBroker) as refused:
        attack(channel)
    assert (refused.value.reply_code, refused.value.reply_text[:14]) == (403, "ACCESS_REFUSED")


def test_a_checker_makes_no_way_around_through_its_own_exchange(tenants):
    """An alternate exchange for the exchange of announcements, which a checker may declare, needs rights on it."""
    for other in (logs_name("billing"), "amq.default", "amq.direct"):
        channel = tenants.channel("orders checker")
        channel.exchange_delete(members_name("orders"))
        with pytest.raises(exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
            channel.exchange_declare(members_name("orders"), "fanout", arguments={"alternate-exchange": other})


# -- the text ---------------------------------------------------------------------------------------------------------


def names_of(group):
    """Return names of all kinds of objects of a group."""
    member = "me#0123456789abcdef"
    streams = [name for partition in (0, 17) for name in stream_arguments(Options(), group, partition)]
    locks = [
        claim_name(group, 3),
        claim_name(group, 3, 2),
        member_name(group, member, 1),
        member_name(group, member, 12),
    ]
    return {*streams, *locks, logs_name(group), checks_name(group), members_name(group)}


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("creates", [False, True])
def test_no_pattern_matches_a_name_of_another_group(role, creates):
    """Patterns match their own group's names alone, also where names of groups contain one another."""
    groups = [
        "a",
        "a.b",
        "a.half",
        "a.half.0",
        "a.claim.0",
        "a.member.1",
        "a.members",
        "a+b",
        "a|b",
        "größe",
        "g" * 235,
    ]
    for group in groups:
        access = Access(user="u", group=group, role=role, creates=creates)
        *_, configure, write, read = shlex.split(PLUGIN.permissions_of("rabbitmq://host", access))
        matched = {name for pattern in (configure, write, read) for name in names_of(group) if re.search(pattern, name)}
        assert matched == names_of(group) or role is Role.PRODUCER
        others = {name for other in groups if other != group for name in names_of(other)}
        assert not {name for pattern in (configure, write, read) for name in others if re.search(pattern, name)}


@pytest.mark.parametrize(
    ("group", "target", "words"),
    [
        ("", "events/created", "1 to 235 bytes"),
        ("orders", "txc.billing.logs/key", "txcore's own objects"),
        ("orders", "txc.billing.op.0", "txcore's own objects"),
        ("orders", "/", "neither queue nor exchange"),
    ],
)
def test_names_that_cannot_be_are_refused(group, target, words):
    """A name that no group or target can have, or one of txcore's own, is a UsageError."""
    access = Access(user="u", group=group, role=Role.PRODUCER, targets=(target,))
    with pytest.raises(UsageError, match=words):
        PLUGIN.permissions_of("rabbitmq://host", access)


def test_the_readme_shows_what_is_printed():
    """The example in the README is the text of the command above it."""
    access = Access(user="orders-producer", group="orders", role=Role.PRODUCER, targets=("events/created",))
    readme = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
    assert f"\n{PLUGIN.permissions_of('rabbitmq://localhost', access)}" in readme


def test_words_are_quoted_for_a_shell():
    """User, virtual host and patterns are each one word of a shell."""
    access = Access(user="o'r ders", group="a'b $c", role=Role.PRODUCER)
    words = shlex.split(PLUGIN.permissions_of("rabbitmq://host/a%20b", access))
    assert words[:5] == ["rabbitmqctl", "set_permissions", "-p", "a b", "o'r ders"]
    assert len(words) == 8
    assert re.search(words[6], logs_name("a'b $c"))
