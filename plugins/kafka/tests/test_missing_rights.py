"""A missing right is one error, which names the topic, group or transactional id, and the command that helps."""

from __future__ import annotations

from functools import partial

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType
from txcore_conformance.kit import error_of, wait_until
from txcore_kafka.options import transactional_id_prefix

import txcore
from txcore import CheckPolicy, Message
from txcore.errors import ConfigError, HalfRefusedError
from txcore.permissions import Role
from txcore.records import LogKind

TIMEOUT_S = 30.0
CURE = "txcore permissions"
PRODUCER, CHECKER = Role.PRODUCER, Role.CHECKER


@pytest.fixture
def allow(guarded, newcomer):
    """Give the newcomer what is printed for a user of `orders`, except some operations on some resources."""

    def give(role, *but, release="steps", **fields):
        acls = guarded.acls_of(guarded.printed(newcomer, "orders", role, release, **fields))
        kept = [acl for acl in acls if (acl.name, acl.operation.name) not in but]
        assert len(kept) == len(acls) - len(but)
        guarded.allow(kept)

    return give


def assert_names(error, *words):
    assert isinstance(error, ConfigError), repr(error)
    assert [word for word in (*words, CURE) if word not in str(error)] == [], str(error)


def describing(user, topic):
    """Return the right of *user* to see *topic*, and no more."""
    place = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL)
    return AclBinding(*place, f"User:{user}", "*", AclOperation.DESCRIBE, AclPermissionType.ALLOW)


def prepared(backend, topic="orders.created"):
    policy = CheckPolicy(immunity_s=backend.capabilities.release_time_max_s + 20.0)
    transaction = txcore.TransactionProducer(backend, "orders", policy=policy).begin()
    transaction.publish(Message(topic, b"body"))
    transaction.prepare()
    return transaction


def refusal_of(claim):
    """Return the error of a claim that was not admitted."""
    found = []

    def is_refused():
        error = error_of(claim.poll, 1)
        found.append(error)
        return error is not None

    wait_until(is_refused, "the refusal of the claim", TIMEOUT_S)
    return found[-1]


def test_a_user_without_rights_gets_one_error(guarded, newcomer):
    """The error names the first topic; the producer's client, which the broker refuses, is not made again and again."""
    with guarded.opened(newcomer) as backend:
        assert_names(error_of(lambda: backend.ensure_group("orders"), TIMEOUT_S), "txc.orders.half")
        producing = backend._producing
        wait_until(lambda: producing._refusal is not None, "the refusal of the client", TIMEOUT_S)
        assert_names(producing._refusal)
        assert producing.rebuilt_count == 0


def test_a_user_that_was_refused_produces_once_it_may(guarded, newcomer, allow):
    """A backend whose client was refused works after its user got the rights, without a restart."""
    with guarded.opened(newcomer) as backend:
        wait_until(lambda: error_of(lambda: backend.ensure_group("orders"), TIMEOUT_S) is not None, "an error")
        wait_until(lambda: backend._producing._refusal is not None, "the refusal of the client", TIMEOUT_S)
        allow(PRODUCER)

        def is_sent():
            try:
                return prepared(backend).commit().state is txcore.EndState.ACCEPTED
            except txcore.TxcoreError:
                return False

        wait_until(is_sent, "a transaction", TIMEOUT_S)


def test_a_group_that_may_not_be_made_is_an_error(guarded, newcomer, allow):
    """Without `--create` the error names the topic that could not be made."""
    group = "unmade"
    guarded.allow(guarded.acls_of(guarded.printed(newcomer, group, CHECKER, targets=("orders.created",))))
    with guarded.opened(newcomer) as backend:
        assert_names(error_of(lambda: backend.ensure_group(group), TIMEOUT_S), f"making topic 'txc.{group}.")


def test_a_producer_that_may_not_see_ops_does_not_open(guarded, newcomer, allow):
    """A producer from which the op topic is hidden is refused with its first call."""
    allow(PRODUCER, ("txc.orders.op", "WRITE"))
    with guarded.opened(newcomer) as backend:
        assert_names(error_of(lambda: backend.ensure_group("orders"), TIMEOUT_S), "txc.orders.op")


def test_a_producer_that_may_not_write_ops_stores_no_half(guarded, newcomer, allow):
    """Without the right to write ops nothing is stored: else each message would wait for the checker, unnoticed."""
    allow(PRODUCER, ("txc.orders.op", "WRITE"))
    guarded.allow([describing(newcomer, "txc.orders.op")])
    with guarded.opened(newcomer) as backend:
        with pytest.raises(HalfRefusedError) as raised:
            prepared(backend)
        assert_names(raised.value.__cause__, "write topic 'txc.orders.op'")


@pytest.mark.parametrize("is_hidden", [True, False])
def test_a_target_that_may_not_be_written_is_refused_before_the_half(guarded, newcomer, allow, is_hidden):
    """A half is refused if its target is hidden from the user, and if the user may see it and not write to it."""
    allow(PRODUCER)
    if not is_hidden:
        guarded.allow([describing(newcomer, "salaries")])
    with guarded.opened(newcomer) as backend:
        with pytest.raises(HalfRefusedError, match="salaries") as raised:
            prepared(backend, "salaries")
        assert_names(raised.value.__cause__)
        assert prepared(backend).commit().state is txcore.EndState.ACCEPTED


def test_a_target_whose_limit_is_secret_is_taken_for_a_usual_one(guarded, newcomer, allow):
    """Messages are sent without `DescribeConfigs`; the broker itself checks their size."""
    allow(PRODUCER, ("orders.created", "DESCRIBE_CONFIGS"))
    with guarded.opened(newcomer) as backend:
        assert prepared(backend).commit().state is txcore.EndState.ACCEPTED


def test_a_release_without_its_transactional_id_ends_at_once(guarded, newcomer, allow):
    """The end of a transaction names the id; its client is made again for a later release only."""
    release = "transaction"
    prefix = transactional_id_prefix("orders")
    allow(PRODUCER, (prefix, "WRITE"), release=release)
    with guarded.opened(newcomer, release) as backend:
        lane = backend._releaser.lanes.of("orders")
        for _ in range(2):
            result = prepared(backend).commit()
            assert result.state is txcore.EndState.UNKNOWN
            assert_names(result.error, prefix)
        assert lane.rebuilt_count <= 3


@pytest.mark.parametrize(
    ("right", "words"),
    [
        (("txc.orders.half", "READ"), "read topic 'txc.orders.half'"),
        (("txc.orders.checkpoint", "READ"), "read topic 'txc.orders.checkpoint'"),
        (("txc.orders.parked", "WRITE"), "write topic 'txc.orders.parked'"),
        (("txc.orders", "READ"), "group 'orders'"),
    ],
    ids=str,
)
def test_a_checker_that_lacks_a_right_does_not_join(guarded, newcomer, allow, right, words):
    """The claim of a checker that lacks one right raises ConfigError, before the checker writes its first claim."""
    allow(CHECKER, right)
    with guarded.opened(newcomer) as backend:
        assert_names(refusal_of(backend.claim("orders", "me")), words)


def test_a_log_that_may_not_be_read_is_an_error(guarded, newcomer, allow):
    """A reader, the question for a log's end and the question for a checkpoint name the topic."""
    allow(CHECKER, ("txc.orders.half", "READ"), ("txc.orders.parked", "WRITE"), ("txc.orders.checkpoint", "READ"))
    with guarded.opened("") as backend:
        prepared(backend).rollback()
    with guarded.opened(newcomer) as backend:
        halves = [backend.read("orders", LogKind.HALF, partition) for partition in (0, 1)]
        found = []

        def is_refused():
            found.extend(filter(None, (error_of(partial(half.read, 10), 1) for half in halves)))
            return found

        wait_until(is_refused, "the refusal of a reader", TIMEOUT_S)
        assert_names(found[0], "txc.orders.half")
        reader = backend.read("orders", LogKind.PARKED, 0)
        assert_names(error_of(reader.end, TIMEOUT_S), "txc.orders.parked")
        for each in (*halves, reader):
            each.close()


def test_a_checkpoint_that_may_not_be_read_is_an_error(guarded, newcomer, allow):
    """The error of an operator with a producer's rights names the hidden topic, and does not deny the group."""
    allow(PRODUCER)
    with guarded.opened(newcomer) as backend, txcore.Operator(backend, "orders", by="ann") as operator:
        assert_names(error_of(operator.pending, TIMEOUT_S), "txc.orders.checkpoint")
