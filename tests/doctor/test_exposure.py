"""What others may read, and log in as: each check is broken on a real server."""

from __future__ import annotations

import uuid

import pytest


@pytest.fixture
def group_on(make_group):
    """Return a function that makes a group on a broker."""

    def make(url):
        name = f"g{uuid.uuid4().hex[:8]}"
        make_group(url, name, 1)
        return name

    return make


@pytest.fixture(scope="module")
def kafka(start):
    with start("kafka") as broker:
        yield broker


@pytest.fixture(scope="module")
def rabbitmq(start):
    with start("rabbitmq") as broker:
        yield broker


@pytest.fixture(scope="module")
def nats(start):
    with start("nats") as broker:
        yield broker


@pytest.mark.breaks("kafka.encryption")
def test_kafka_without_tls_to_another_machine_fails(kafka, broker_line, from_elsewhere):
    """The loopback is accepted; another machine's address is not."""
    broker_line(kafka.url, "g")("OK", "stay on this machine's loopback")
    broker_line(from_elsewhere(kafka.url), "g")("FAIL", "no TLS to", "messages can be read", "tls=true")


@pytest.mark.breaks("kafka.anonymous")
def test_kafka_that_accepts_clients_without_user_is_found(kafka, broker_line, from_elsewhere):
    """An open listener is a failure if it is on another machine, else a warning."""
    broker_line(kafka.url, "g")("WARN", "without user and certificate", "not known", "SASL_SSL")
    broker_line(from_elsewhere(kafka.url), "g")("FAIL", "every program that reaches it", "SASL_SSL")


@pytest.mark.breaks("kafka.rights")
def test_kafka_without_an_authorizer_gives_too_many_rights(kafka, broker_line, group_on):
    """A user that may delete the group's topics has more rights than any role."""
    finding = broker_line(kafka.url, group_on(kafka.url))("WARN", "DELETE", "txcore permissions")
    assert finding.is_for_production


@pytest.mark.breaks("rabbitmq.encryption")
def test_rabbitmq_without_tls_to_another_machine_fails(rabbitmq, broker_line, from_elsewhere):
    """The loopback is accepted; to another machine the password would be sent readable."""
    broker_line(rabbitmq.url, "g")("OK", "stay on this machine's loopback")
    broker_line(from_elsewhere(rabbitmq.url), "g")("FAIL", "messages and the password of 'guest'", "listeners.ssl")


@pytest.mark.breaks("rabbitmq.anonymous")
def test_rabbitmq_with_its_first_user_is_found(rabbitmq, broker_line, from_elsewhere):
    """The user guest with its default password is a failure on another machine, else a warning."""
    broker_line(rabbitmq.url, "g")("WARN", "the user guest with its default password", "delete_user guest")
    broker_line(from_elsewhere(rabbitmq.url), "g")("FAIL", "every program that reaches it")


@pytest.mark.breaks("rabbitmq.rights")
def test_rabbitmq_user_with_all_rights_is_found(rabbitmq, broker_line):
    """A user that may use what is another group's has too many rights."""
    broker_line(rabbitmq.url, "g")("WARN", "may read, write, delete what is another group's", "set_permissions")


@pytest.mark.breaks("nats.encryption")
def test_nats_without_tls_to_another_machine_fails(nats, broker_line, from_elsewhere):
    """The loopback is accepted; another machine's address is not."""
    broker_line(nats.url, "g")("OK", "stay on this machine's loopback")
    broker_line(from_elsewhere(nats.url), "g")("FAIL", "no TLS to", "messages can be read", "tls=true")


@pytest.mark.breaks("nats.anonymous")
def test_nats_that_accepts_clients_without_credentials_is_found(nats, broker_line, from_elsewhere):
    """An open server is a failure if it is on another machine, else a warning."""
    broker_line(nats.url, "g")("WARN", "clients without credentials", "no_auth_user")
    broker_line(from_elsewhere(nats.url), "g")("FAIL", "every program that reaches it")


@pytest.mark.breaks("nats.rights")
def test_nats_user_with_all_rights_is_found(nats, broker_line):
    """A user that may use what is another group's has too many rights."""
    broker_line(nats.url, "g")("WARN", "may read, purge, write what is another group's", "permissions {…}")


@pytest.mark.breaks("postgresql.encryption")
def test_postgresql_without_tls_to_another_machine_fails(postgresql_server, database_line, from_elsewhere):
    """The loopback is accepted; another machine's address is not."""
    database_line(postgresql_server.url)("OK", "stay on this machine's loopback")
    database_line(from_elsewhere(postgresql_server.url))("FAIL", "rows and messages can be read", "sslmode")


@pytest.mark.breaks("mysql.encryption")
def test_mariadb_without_tls_to_another_machine_fails(mariadb_server, database_line, from_elsewhere):
    """The loopback is accepted; another machine's address is not."""
    database_line(mariadb_server.url)("OK", "stay on this machine's loopback")
    database_line(from_elsewhere(mariadb_server.url))("FAIL", "rows and messages can be read", "ssl_ca")


@pytest.mark.breaks("callback.encryption")
@pytest.mark.parametrize(
    ("url", "level", "words"),
    [
        ("https://checks.example/half", "OK", "encrypted"),
        ("http://127.0.0.1:8080/half", "OK", "loopback"),
        ("http://checks.invalid/half", "FAIL", "no TLS to checks.invalid: messages and answers"),
    ],
)
def test_callback_without_tls_to_another_machine_fails(url, level, words, callback_line):
    """Plain http is accepted to the loopback only."""
    callback_line(url)(level, words)
