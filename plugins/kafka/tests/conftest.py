"""The shared parts of this folder's tests: brokers, groups on them, topics with settings, other processes."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import shlex
import sys
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from txcore_conformance import brokers
from txcore_conformance.brokers.kit import BrokerKit
from txcore_conformance.kit import wait_until
from txcore_conformance.required import obtained

import txcore
from txcore.permissions import Access, Role

# Lets these tests find the plugin's package from a source tree in which it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from txcore_kafka import PLUGIN
from txcore_kafka.options import parse_url
from txcore_kafka.testing import TIMEOUT_S, TRANSACTION_OPTIONS, KafkaHarness, KafkaTransactionHarness

PASSWORD = "secret"
RESOURCES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
}
OPERATIONS = {"Read": "READ", "Write": "WRITE", "Create": "CREATE", "DescribeConfigs": "DESCRIBE_CONFIGS"}


class KafkaKit(BrokerKit):
    """The conformance kit with additions for Kafka."""

    def __init__(self, harness):
        super().__init__(harness, Path(__file__).with_name("child.py"))
        self.servers = harness.broker.url.partition("://")[2]

    @property
    def admin(self):
        return self.harness._admin

    def make_topic(self, name="", partition_count=1, **settings):
        """Create a topic with the plain client; settings have Kafka's names, with underscores for dots."""
        name = name or f"own-{secrets.token_hex(4)}"
        config = {key.replace("_", "."): str(value) for key, value in settings.items()}
        self.harness._create(NewTopic(name, num_partitions=partition_count, config=config))
        return name

    def settings(self, topic):
        """Return a topic's settings, as the plain client sees them."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entries = self.admin.describe_configs([resource])[resource].result(TIMEOUT_S)
        return {name: entry.value for name, entry in entries.items()}

    def delete(self, topic):
        self.admin.delete_topics([topic])[topic].result(TIMEOUT_S)

    def plain_producer(self, **settings):
        return Producer({"bootstrap.servers": self.servers, "log_level": 2, **settings})

    def publish(self, topic, body, partition=0, **settings):
        """Publish with the plain client."""
        producer = self.plain_producer(**settings)
        producer.produce(topic, body, partition=partition)
        assert producer.flush(TIMEOUT_S) == 0

    def offsets(self, topic, partition=0):
        """Return a log's first offset and the one after its last."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "plain", "log_level": 2})
        try:
            return consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S, cached=False)
        finally:
            consumer.close()


def acls_of(text):
    """Return the ACLs that the commands of `kafka-acls.sh` in *text* add."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--add", action="store_true", required=True)
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--allow-principal", required=True)
    parser.add_argument("--operation", action="append", choices=OPERATIONS, required=True)
    parser.add_argument("--resource-pattern-type", choices=("literal", "prefixed"), default="literal")
    for option in RESOURCES:
        parser.add_argument(f"--{option.replace('_', '-')}", action="append", default=[])
    found = []
    for line in text.replace("\\\n", "").splitlines():
        program, *words = shlex.split(line, comments=True) or [""]
        if not program:
            continue
        assert program == "kafka-acls.sh"
        said = parser.parse_args(words)
        pattern = ResourcePatternType[said.resource_pattern_type.upper()]
        found += [
            AclBinding(
                kind,
                name,
                pattern,
                said.allow_principal,
                "*",
                AclOperation[OPERATIONS[operation]],
                AclPermissionType.ALLOW,
            )
            for option, kind in RESOURCES.items()
            for name in getattr(said, option)
            for operation in said.operation
        ]
    return found


class Guarded:
    """A broker on which a named user may do only what an ACL allows; a client without a name may do everything.

    The user `orders-producer-steps`, and so on, has the rights that `txcore permissions` prints for its group, role and
    release. The user `newcomer` has none.
    """

    groups = ("orders", "billing", "orders.eu")
    releases = MappingProxyType({"steps": "release=steps", "transaction": f"release=transaction&{TRANSACTION_OPTIONS}"})
    newcomer = "newcomer"
    acls_of = staticmethod(acls_of)

    def __init__(self):
        named = [
            (self.user(group, role, release), group, role, release)
            for group in self.groups
            for role in Role
            for release in self.releases
        ]
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        passwords = " ".join(f'user_{user}="{PASSWORD}"' for user in (self.newcomer, *(user for user, *_ in named)))
        self.broker = brokers.kafka(
            credentials=True,
            authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            allow_everyone_if_no_acl_found="false",
            super_users="User:ANONYMOUS",
            listener_name_accounts_plain_sasl_jaas_config=f"{login} {passwords};",
        )
        self.servers = self.broker.url.partition("://")[2]
        self.admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 2})
        self.make(*(f"{group}.created" for group in self.groups), "salaries")
        with contextlib.closing(txcore.connect(self.broker.url)) as backend:
            for group in self.groups:
                backend.ensure_group(group, 2).result(TIMEOUT_S)
        texts = [self.printed(user, group, role, release) for user, group, role, release in named]
        self.allow(acls_of("".join(texts)))

    @staticmethod
    def user(group, role, release="steps"):
        return f"{group}-{role.value}-{release}"

    def printed(self, user, group, role, release="steps", **fields):
        """Return the output of `txcore permissions`."""
        fields = {"targets": (f"{group}.created",)} | fields
        access = Access(user=user, group=group, role=role, **fields)
        return PLUGIN.permissions_of(f"{self.broker.url}?release={release}", access)

    def make(self, *topics):
        """Create topics of one partition."""
        for answer in self.admin.create_topics([NewTopic(topic, 1) for topic in topics]).values():
            answer.result(TIMEOUT_S)

    def acls(self, user=None):
        """Return the ACLs that the broker applies, of *user* or of all users."""
        principal = None if user is None else f"User:{user}"
        wanted = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, principal, None, AclOperation.ANY, AclPermissionType.ANY
        )
        return set(self.admin.describe_acls(wanted).result(TIMEOUT_S))

    def allow(self, acls):
        """Add *acls*, and wait until the broker has read them."""
        for answer in self.admin.create_acls(list(acls)).values():
            answer.result(TIMEOUT_S)
        wait_until(lambda: set(acls) <= self.acls(), "the rules in force")

    def forbid(self, user):
        """Delete all ACLs of *user*."""
        wanted = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            f"User:{user}",
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for answer in self.admin.delete_acls([wanted]).values():
            answer.result(TIMEOUT_S)
        wait_until(lambda: not self.acls(user), "no rules of the user")

    def url(self, user, release="steps", **options):
        """Return the URL with which *user* logs in; without one, the administrator's."""
        options = {"partitions": "2", "control_timeout_s": "5", "session_timeout_s": "6"} | options
        query = "&".join([self.releases[release], *(f"{key}={value}" for key, value in options.items())])
        login = f"{quote(user, safe='')}:{PASSWORD}@" if user else ""
        port = (self.broker.credentials_url if user else self.broker.url).rpartition(":")[2]
        return f"kafka://{login}127.0.0.1:{port}?{query}"

    @contextlib.contextmanager
    def opened(self, user, release="steps", **options):
        """Open a backend as *user*, and close it after the block."""
        backend = txcore.connect(self.url(user, release, **options))
        try:
            yield backend
        finally:
            backend.close(5.0).result(TIMEOUT_S)

    def login(self, user):
        """Return the settings with which the driver's plain clients log in as *user*."""
        return parse_url(self.url(user)).connection()

    def admin_client(self, user):
        """Return the driver's admin client, logged in as *user*."""
        return AdminClient(self.login(user))


@pytest.fixture(scope="session")
def guarded():
    """A broker with an authorizer, and users of three groups."""
    made = obtained("kafka", Guarded)
    yield made
    made.broker.remove()


@pytest.fixture
def newcomer(guarded):
    """A user whose ACLs are deleted after the test."""
    yield guarded.newcomer
    guarded.forbid(guarded.newcomer)


@pytest.fixture(scope="session")
def started_broker():
    """A function that starts a broker with options of its own; the caller removes the broker."""
    return lambda version="", **options: obtained("kafka", lambda: brokers.kafka(version, **options))


@pytest.fixture(scope="session")
def harness():
    made = KafkaHarness()
    obtained("kafka", made.start)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def private(harness):
    """A broker of these tests only, which may be killed."""
    made = obtained("kafka", harness.private)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def transaction_harness():
    made = obtained("kafka", KafkaTransactionHarness().private)
    yield made
    made.stop()


@pytest.fixture
def cluster():
    """A cluster of three nodes of these tests only."""
    made = obtained("kafka", lambda: brokers.cluster("kafka"))
    yield made
    made.remove()


@pytest.fixture
def kit(harness):
    """A group on the broker of this run."""
    made = KafkaKit(harness)
    yield made
    made.close()


@pytest.fixture
def hurt(private):
    """A group on the broker that may be killed; the broker runs again afterwards."""
    made = KafkaKit(private)
    yield made
    private.broker.resume()
    if not private.broker.is_running:
        private.broker.start()
    private.broker.proxy.forward()
    made.close()


@pytest.fixture
def together(transaction_harness):
    """A group with `release=transaction`; its `backend` waits for a slow broker, and `connect()` gives up soon."""
    made = KafkaKit(transaction_harness)
    made.adopt(made.connect(transaction_timeout_s="20"))
    yield made
    made.close()


@pytest.fixture
def topic(kit):
    """An existing, empty target topic."""
    return kit.topic()
