"""The permissions that README.md names are enough, and each missing one is reported by name."""

from __future__ import annotations

import contextlib

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from txcore_conformance.brokers.security import USER
from txcore_conformance.kit import Answers, error_of, wait_until

import txcore
from txcore import Message
from txcore.errors import ConfigError, HalfRefusedError
from txcore.records import LogKind

TIMEOUT_S = 30.0
EVERYTHING = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)
TARGET, SECRET = "orders.created", "salaries"
COMMIT_STATE = txcore.LocalTransactionState.COMMIT
LOGS = ("CREATE", "DESCRIBE", "DESCRIBE_CONFIGS", "READ", "WRITE")
#: As in README.md: resource type, name, pattern, operations.
NEEDED = (
    ("TOPIC", "txc.orders.", "PREFIXED", LOGS),
    ("TOPIC", TARGET, "LITERAL", ("DESCRIBE", "DESCRIBE_CONFIGS", "WRITE")),
    ("GROUP", "txc.orders", "LITERAL", ("DESCRIBE", "READ")),
)
FOR_TRANSACTIONS = (("TRANSACTIONAL_ID", "txc.", "PREFIXED", ("DESCRIBE", "WRITE")),)


@pytest.fixture(scope="module")
def guarded(started_broker):
    """A broker that allows a user nothing but the given permissions; a client without a name may do everything."""
    broker = started_broker(
        credentials=True,
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:ANONYMOUS",
        transaction_abort_timed_out_transaction_cleanup_interval_ms="1000",
    )
    yield broker
    broker.remove()


@pytest.fixture
def admin(guarded):
    made = AdminClient({"bootstrap.servers": guarded.url.partition("://")[2], "log_level": 2})
    for answer in made.create_topics([NewTopic(TARGET, 1), NewTopic(SECRET, 1)]).values():
        with contextlib.suppress(Exception):  # The topics exist since an earlier test.
            answer.result(TIMEOUT_S)
    yield made
    for answer in made.delete_acls([EVERYTHING]).values():
        answer.result(TIMEOUT_S)


def allow(admin, *rules):
    bindings = [
        AclBinding(
            ResourceType[kind],
            name,
            ResourcePatternType[pattern],
            f"User:{USER}",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        for kind, name, pattern, operations in rules
        for operation in operations
    ]
    for answer in admin.create_acls(bindings).values():
        answer.result(TIMEOUT_S)
    # The controller has answered; the broker applies the rules after it has read them.
    wait_until(lambda: set(bindings) <= set(admin.describe_acls(EVERYTHING).result(TIMEOUT_S)), "the rules in force")


@contextlib.contextmanager
def opened(guarded, **options):
    query = "&".join(
        f"{key}={value}" for key, value in ({"partitions": "2", "control_timeout_s": "3"} | options).items()
    )
    backend = txcore.connect(f"{guarded.credentials_url}?{query}")
    try:
        yield backend
    finally:
        backend.close(5).result(TIMEOUT_S)


def walk(backend):
    """Send one transaction and let a checker run once; return the stored checkpoints."""
    policy = txcore.CheckPolicy(immunity_s=backend.capabilities.release_time_max_s + 20.0)
    producer = txcore.TransactionProducer(backend, "orders", policy=policy)
    transaction = producer.begin()
    transaction.publish(Message(TARGET, b"body"))
    transaction.prepare()
    assert transaction.commit().state is txcore.EndState.ACCEPTED
    checker = txcore.Checker(backend, "orders", listener=Answers(COMMIT_STATE))
    assert checker.run_once(TIMEOUT_S).partitions == 2
    checker.stop()
    return [backend.load_checkpoint("orders", partition).result(TIMEOUT_S) for partition in (0, 1)]


def test_the_documented_permissions_are_enough(guarded, admin):
    """Producers and checkers work with the documented permissions, from halves to checkpoints."""
    allow(admin, *NEEDED)
    with opened(guarded) as backend:
        assert any(walk(backend))


def test_transactions_need_their_ids_besides(guarded, admin):
    """With `release=transaction` the documented permissions and those for transactional ids are enough."""
    allow(admin, *NEEDED, *FOR_TRANSACTIONS)
    options = {"release": "transaction", "transaction_timeout_s": "2.5", "transaction_sweep_s": "1"}
    with opened(guarded, **options) as backend:
        assert any(walk(backend))


def test_a_group_that_may_not_be_made_is_an_error(guarded, admin):
    """The error names the topic that could not be made."""
    with opened(guarded) as backend:
        error = error_of(lambda: backend.ensure_group("orders"), TIMEOUT_S)
    assert isinstance(error, ConfigError)
    assert "txc.orders." in str(error)
    assert "authoriz" in str(error).lower()


def test_a_log_that_may_not_be_written_reports_no_end(guarded, admin):
    """A reader that may not write a marker to its log gets a ConfigError that names the topic."""
    allow(admin, *NEEDED)
    with opened(guarded) as backend:
        backend.ensure_group("orders").result(TIMEOUT_S)
    for answer in admin.delete_acls([EVERYTHING]).values():
        answer.result(TIMEOUT_S)
    allow(admin, ("TOPIC", "txc.orders.", "PREFIXED", LOGS[:-1]), ("TOPIC", "txc.orders.op", "LITERAL", LOGS[-1:]))
    with opened(guarded) as backend:
        reader = backend.read("orders", LogKind.HALF, 0)
        error = error_of(reader.end, TIMEOUT_S)
        assert isinstance(error, ConfigError)
        assert "txc.orders.half" in str(error)
        reader.close()


def test_a_target_that_may_not_be_written_is_refused_before_the_half(guarded, admin):
    """A half is refused if its target topic is hidden from the user, who has no DESCRIBE permission for it."""
    allow(admin, *NEEDED)
    with opened(guarded) as backend:
        transaction = txcore.TransactionProducer(backend, "orders").begin()
        transaction.publish(Message(SECRET, b"body"))
        with pytest.raises(HalfRefusedError, match=SECRET):
            transaction.prepare()


def test_a_target_whose_limit_is_secret_is_taken_for_a_usual_one(guarded, admin):
    """Messages to a target are sent without the permission DESCRIBE_CONFIGS; the broker itself checks their size."""
    allow(admin, *NEEDED[:1], ("TOPIC", TARGET, "LITERAL", ("DESCRIBE", "WRITE")), NEEDED[2])
    with opened(guarded) as backend:
        assert any(walk(backend))


def test_a_checker_that_may_not_join_says_so(guarded, admin):
    """The claim of a checker that may not join its group raises ConfigError instead of waiting for ever."""
    allow(admin, *NEEDED[:2])
    with opened(guarded) as backend:
        backend.ensure_group("orders").result(TIMEOUT_S)
        claim = backend.claim("orders", "me")
        error = None
        for _ in range(600):
            error = error or error_of(claim.poll, 1)
            if error is not None:
                break
            claim._thread.join(0.05)
        assert isinstance(error, ConfigError)
        assert "txc.orders" in str(error) or "orders" in str(error)
