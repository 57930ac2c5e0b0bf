"""TLS and credentials, against servers that demand them; and the errors when they are wrong."""

from __future__ import annotations

import contextlib
import gc
import logging
from urllib.parse import quote

import pytest
from txcore_conformance.brokers.security import PASSWORD, USER
from txcore_conformance.kit import Recorder, error_of
from txcore_nats.consumer import NatsConsumer
from txcore_nats.doctor_access import NatsSubject
from txcore_nats.options import parse_url

import txcore
from txcore.errors import BackendUnavailableError, ConfigError, MessageRejectedError
from txcore.findings import Request
from txcore.records import Half, HalfRecord, Resolution, Status, TargetMessage
from txcore.wire import encode_half

TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def secured(started_broker):
    """A server with TLS that demands a certificate, a user and a password."""
    broker = started_broker(tls=True, credentials=True, client_certificate=True)
    yield broker
    broker.remove()


@pytest.fixture(scope="module")
def encrypted(started_broker):
    """A server with TLS that demands no credentials."""
    broker = started_broker(tls=True)
    yield broker
    broker.remove()


def answer_of(url, **options):
    """Return the result of `ensure_group` on *url*, or its error; the backend is closed."""
    query = "&".join(f"{key}={quote(str(value))}" for key, value in options.items())
    backend = txcore.connect(f"{url}?half_bytes_max=1000000&control_timeout_s=3&{query}")
    try:
        error = error_of(lambda: backend.ensure_group("orders", 2), TIMEOUT_S)
        return error or backend.ensure_group("orders").result(TIMEOUT_S)
    finally:
        backend.close(2.0).result(TIMEOUT_S)


def test_the_right_files_and_password_open_the_door(secured):
    """A client with the right authority, client certificate and password connects."""
    files = {"tls_ca": secured.ca_file, "tls_cert": secured.cert_file, "tls_key": secured.key_file}
    assert answer_of(secured.credentials_url, **files) == 2


def test_a_client_without_a_certificate_is_refused(secured):
    """A client without a certificate gets a BackendUnavailableError from a server that demands one."""
    error = answer_of(secured.credentials_url, tls_ca=secured.ca_file)
    assert isinstance(error, BackendUnavailableError)


def test_a_wrong_password_is_said_and_not_shown(secured, caplog):
    """The error for a wrong password names the credentials; neither error, log nor repr shows the password."""
    caplog.set_level(logging.DEBUG)
    url = secured.credentials_url.replace(f":{PASSWORD}@", ":hidden-one@")
    assert url != secured.credentials_url
    files = {"tls_ca": secured.ca_file, "tls_cert": secured.cert_file, "tls_key": secured.key_file}
    error = answer_of(url, **files)
    assert isinstance(error, BackendUnavailableError)
    assert "credentials" in str(error)
    assert "hidden-one" not in f"{error!r} {error.__cause__!r} {caplog.text}"
    assert USER in url


def test_closing_leaves_no_socket_open_on_a_server_that_hangs(encrypted):
    """Closing leaves no socket open on a server that never answers the end of TLS; an open one causes a warning."""
    backend = txcore.connect(f"{encrypted.url}?half_bytes_max=1000000&tls_ca={quote(str(encrypted.ca_file))}")
    backend.ensure_group("orders", 2).result(TIMEOUT_S)
    with encrypted.paused():
        backend.close(2.0).result(TIMEOUT_S)
    del backend
    gc.collect()


def test_tls_with_an_own_authority(encrypted):
    """A client connects with the authority's file, but not without it or with another authority's file."""
    assert answer_of(encrypted.url, tls_ca=encrypted.ca_file) == 2
    for options in ({}, {"tls": "true"}, {"tls_ca": encrypted.stranger_ca_file}):
        error = answer_of(encrypted.url, **options)
        assert isinstance(error, BackendUnavailableError)
        assert "certificate" in str(error).lower()


def test_the_name_in_the_certificate_counts(encrypted):
    """A `tls_server_name` that is not in the certificate is refused; one in it may differ from the URL's host."""
    assert answer_of(encrypted.url, tls_ca=encrypted.ca_file, tls_server_name="localhost") == 2
    error = answer_of(encrypted.url, tls_ca=encrypted.ca_file, tls_server_name="elsewhere.example")
    assert isinstance(error, BackendUnavailableError)


def test_demanding_tls_of_a_server_without_is_refused(harness):
    """A client with `tls=true` refuses a server without TLS, and the error names TLS."""
    error = answer_of(harness.broker.url, tls="true")
    assert isinstance(error, BackendUnavailableError)
    assert "TLS" in str(error)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"tls_ca": "/nowhere/ca.pem"}, "tls_ca"),
        ({"tls_cert": "/nowhere/c.pem", "tls_key": "/nowhere/k.pem"}, "tls_cert"),
        ({"creds": "/nowhere/me.creds"}, "creds"),
        ({"nkey_seed": "/nowhere/seed"}, "nkey_seed"),
    ],
)
def test_a_missing_file_is_named(harness, options, key):
    """The error for a missing file has the file's option as its key."""
    error = answer_of(harness.broker.url, **options)
    assert isinstance(error, ConfigError)
    assert key == error.key


def test_a_token_is_a_user_without_a_password(started_broker):
    """A URL `nats://token@host` logs in with the token; the error for a wrong token does not show it."""
    broker = started_broker(**{"authorization.token": '"s3cret"'})
    try:
        address = broker.url.partition("://")[2]
        assert answer_of(f"nats://s3cret@{address}") == 2
        error = answer_of(f"nats://wrong@{address}")
        assert isinstance(error, BackendUnavailableError)
        assert "credentials" in str(error)
        assert "wrong" not in str(error)
    finally:
        broker.remove()


def test_replies_arrive_where_only_this_user_listens(started_broker):
    """Backend, consumer and doctor hear replies where their user alone listens; a backend with another prefix fails."""
    permissions = '{subscribe: ["_INBOX_me.>"]}'
    broker = started_broker(**{"authorization.users": f'[{{user: "me", password: "pw", permissions: {permissions}}}]'})
    try:
        url = broker.url.replace("nats://", "nats://me:pw@")
        assert answer_of(url) == 2
        NatsConsumer(parse_url(url), "mail", "readers").close()
        with contextlib.closing(NatsSubject(parse_url(url), Request("orders"))) as doctor:
            doctor.connect()
            assert doctor.account
        error = answer_of(url, inbox_prefix="_INBOX")
        assert isinstance(error, ConfigError)
        assert (error.key, "subscribe to _INBOX.>" in str(error)) == ("inbox_prefix", True)
    finally:
        broker.remove()


def test_a_subject_that_is_not_permitted_is_refused_by_name(started_broker):
    """A target on a subject that the user may not publish to is REFUSED with that reason, not UNKNOWN."""
    permissions = '{publish: {deny: ["secret.>"]}}'
    broker = started_broker(**{"authorization.users": f'[{{user: "me", password: "pw", permissions: {permissions}}}]'})
    try:
        _refuse_secret(broker.url.replace("nats://", "nats://me:pw@"))
    finally:
        broker.remove()


def _refuse_secret(url):
    backend = txcore.connect(url)
    try:
        backend.ensure_group("orders", 1).result(TIMEOUT_S)
        message = TargetMessage("secret.plan", None, b"body", {})
        half = Half(1, b"i" * 16, "orders", 0, 0, 5, 6_000, 0, 0, False, "by", [message])
        record = HalfRecord("orders", 0, b"i" * 16, 0, encode_half(half), [message])
        batch = Recorder([Resolution(record, None, (0,), b"", "by")])
        backend.release(batch)
        (outcome,) = batch.wait(backend, TIMEOUT_S)
        assert Status.REFUSED is outcome.status
        assert isinstance(outcome.error, MessageRejectedError)
        assert (outcome.error.reason, outcome.error.topic) == ("permission", "secret.plan")
    finally:
        backend.close(2.0).result(TIMEOUT_S)
