"""TLS and credentials, against brokers that demand them; and the errors when they are wrong."""

from __future__ import annotations

import logging
import threading

import pytest
from txcore_conformance.brokers.security import PASSWORD, USER
from txcore_conformance.kit import error_of
from txcore_kafka import PLUGIN

import txcore
from txcore.errors import BackendTimeoutError, BackendUnavailableError, ConfigError

TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def secured(started_broker):
    """A broker that demands TLS with a client's certificate, or a user with a password over TLS."""
    broker = started_broker(tls=True, credentials=True, client_certificate=True)
    yield broker
    broker.remove()


def answer_of(url, **options):
    """Return the result of `ensure_group` on *url*, or its error; the backend is closed."""
    query = "&".join(f"{key}={value}" for key, value in options.items())
    backend = txcore.connect(f"{url}?control_timeout_s=4&{query}".rstrip("&"))
    try:
        error = error_of(lambda: backend.ensure_group("orders", 2), TIMEOUT_S)
        return error or backend.ensure_group("orders").result(TIMEOUT_S)
    finally:
        backend.close(3.0).result(TIMEOUT_S)


def files(broker, **others):
    return {"tls_ca": broker.ca_file, "tls_cert": broker.cert_file, "tls_key": broker.key_file} | others


def test_the_right_files_open_the_door(secured):
    """A client with the right authority, certificate and key connects."""
    assert answer_of(secured.tls_url, **files(secured)) == 2


def test_the_right_password_opens_the_door(secured):
    """With the right password over TLS, a transaction's message reaches its consumer."""
    assert answer_of(secured.credentials_url, **files(secured)) == 2
    query = "&".join(f"{key}={value}" for key, value in files(secured).items())
    url = f"{secured.credentials_url}?{query}"
    backend = txcore.connect(url)
    consumer = PLUGIN.open_consumer(url, "secret-orders", "reader")
    try:
        producer = txcore.TransactionProducer(backend, "secret")
        transaction = producer.begin()
        transaction.publish(txcore.Message("secret-orders", b"body"))
        transaction.prepare()
        assert transaction.commit().state is txcore.EndState.ACCEPTED
        pause = threading.Event()
        while not (received := consumer.poll()):
            assert not pause.wait(0.01)
        assert [each.body for each in received] == [b"body"]
    finally:
        consumer.close()
        backend.close(5).result(TIMEOUT_S)


def test_a_client_without_a_certificate_is_refused(secured):
    """A client without a certificate cannot connect to a broker that demands one."""
    error = answer_of(secured.tls_url, tls_ca=secured.ca_file)
    assert isinstance(error, BackendUnavailableError | BackendTimeoutError | ConfigError)


def test_a_broker_without_a_trusted_certificate_is_refused(secured):
    """A client does not connect if its authority did not sign the broker's certificate."""
    stranger = secured.certificates.stranger_ca_file
    error = answer_of(secured.tls_url, **files(secured, tls_ca=stranger))
    assert isinstance(error, BackendUnavailableError | BackendTimeoutError | ConfigError)


def test_a_wrong_password_is_said_and_not_shown(secured, caplog):
    """The error for a wrong password names authentication; no error, log or repr shows the password."""
    wrong = "no-such-secret"
    with caplog.at_level(logging.DEBUG):
        error = answer_of(secured.credentials_url.replace(PASSWORD, wrong), **files(secured))
    assert isinstance(error, ConfigError | BackendUnavailableError | BackendTimeoutError)
    assert "auth" in str(error).lower()
    shown = f"{error} {error!r} {error.__cause__!r} {caplog.text} {[record.__dict__ for record in caplog.records]}"
    assert wrong not in shown


def test_no_backend_shows_its_password(secured):
    """The repr of a backend and of its options shows no password."""
    backend = txcore.connect(secured.credentials_url)
    assert PASSWORD not in f"{backend!r} {backend._options!r}"
    assert USER in repr(backend._options)
    backend.close().result(5)


def test_a_file_that_is_not_there_is_named(secured):
    """A missing CA file is a ConfigError at the first call."""
    error = answer_of(secured.tls_url, tls_ca="/nowhere/ca.pem")
    assert isinstance(error, ConfigError)
    assert "ca" in str(error).lower()
