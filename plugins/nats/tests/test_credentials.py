"""Credentials files and nkeys, against servers that demand them: the servers know public keys only."""

from __future__ import annotations

import base64
import json
import logging
import os
import time
from urllib.parse import urlencode

import nkeys
import pytest
from txcore_conformance.kit import error_of, wait_until
from txcore_nats import PLUGIN
from txcore_nats.doctor_access import NatsSubject
from txcore_nats.options import parse_url

import txcore
from txcore.errors import BackendUnavailableError, ConfigError
from txcore.findings import Request

TIMEOUT_S = 20.0
UNLIMITED = dict.fromkeys(("subs", "data", "payload"), -1)
ACCOUNT_LIMITS = UNLIMITED | dict.fromkeys(("imports", "exports", "conn", "leaf"), -1) | {"wildcards": True}
JETSTREAM_LIMITS = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
CREDS = """\
-----BEGIN NATS USER JWT-----
{jwt}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------
"""


class Key:
    """An nkey of an operator, an account or a user."""

    def __init__(self, prefix):
        self.seed = bytes(nkeys.encode_seed(os.urandom(32), prefix))
        self._pair = nkeys.from_seed(bytearray(self.seed))
        self.public = self._pair.public_key.decode()

    def sign(self, subject, kind, /, **claims):
        """Return a JWT about the public key *subject*, as `nsc` makes them."""
        nats = claims.pop("nats", {}) | {"type": kind, "version": 2}
        body = {"iss": self.public, "sub": subject, "iat": int(time.time()), "jti": "1", "name": kind, "nats": nats}
        parts = ({"typ": "JWT", "alg": "ed25519-nkey"}, body | claims)
        signed = ".".join(encoded(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{encoded(self._pair.sign(signed.encode()))}"


def answer_of(url, **options):
    """Return the error of the first call on *url*, or None; the backend is closed."""
    query = urlencode({"half_bytes_max": 1_000_000, "control_timeout_s": 3, **options})
    backend = txcore.connect(f"{url}?{query}")
    try:
        return error_of(lambda: backend.ensure_group("orders", 2), TIMEOUT_S)
    finally:
        backend.close(2.0).result(TIMEOUT_S)


def encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Operator:
    """A server's operator with one account, which gives users their credentials files."""

    def __init__(self):
        self._operator, self.account = Key(nkeys.PREFIX_BYTE_OPERATOR), Key(nkeys.PREFIX_BYTE_ACCOUNT)
        self._system = Key(nkeys.PREFIX_BYTE_ACCOUNT)  # JetStream wants one

    def settings(self):
        """Return what the server knows: three JWTs, and no user."""
        limits = {self.account: ACCOUNT_LIMITS | JETSTREAM_LIMITS, self._system: ACCOUNT_LIMITS}
        return {
            "operator": self._operator.sign(self._operator.public, "operator"),
            "resolver": "MEMORY",
            "system_account": self._system.public,
            **{
                f"resolver_preload.{key.public}": self._operator.sign(key.public, "account", nats={"limits": each})
                for key, each in limits.items()
            },
        }

    def write_creds(self, path, account=None, **claims):
        """Write a new user's file; return the user's seed."""
        user = Key(nkeys.PREFIX_BYTE_USER)
        jwt = (account or self.account).sign(user.public, "user", nats={"pub": {}, "sub": {}, **UNLIMITED}, **claims)
        path.write_text(CREDS.format(jwt=jwt, seed=user.seed.decode()))
        return user.seed.decode()


@pytest.fixture(scope="module")
def operator():
    return Operator()


@pytest.fixture(scope="module")
def operated(started_broker, operator):
    """A server that takes the users of the operator's account, and no others."""
    broker = started_broker(**operator.settings())
    yield broker
    broker.remove()


def test_a_credentials_file_signs_in(operated, operator, tmp_path):
    """With a `.creds` file, a transaction's message reaches its consumer, and the doctor connects."""
    path = tmp_path / "orders.creds"
    operator.write_creds(path)
    url = f"{operated.url}?half_bytes_max=1000000&creds={path}"
    consumer = PLUGIN.open_consumer(url, "signed.created", "reader")
    try:
        with txcore.connect(url) as backend, txcore.TransactionProducer(backend, "signed") as producer:
            transaction = producer.begin()
            transaction.publish(txcore.Message("signed.created", b"body"))
            transaction.prepare()
            assert transaction.commit().state is txcore.EndState.ACCEPTED
        assert wait_until(consumer.poll, "the message")[0].body == b"body"
    finally:
        consumer.close()
    subject = NatsSubject(parse_url(url), Request("signed"))
    subject.connect()
    assert subject.server_version
    subject.close()


def test_a_client_without_the_file_is_refused(operated):
    """A client without credentials gets a BackendUnavailableError that names them."""
    error = answer_of(operated.url)
    assert isinstance(error, BackendUnavailableError)
    assert "credentials" in str(error)


@pytest.mark.parametrize("fault", ["ended", "another account"])
def test_a_file_that_the_server_does_not_take_is_refused_and_not_shown(operated, operator, tmp_path, caplog, fault):
    """A JWT after its end, or by an account that the server does not know, is refused; no log shows the seed."""
    path = tmp_path / "orders.creds"
    given = {"exp": int(time.time()) - 60} if fault == "ended" else {"account": Key(nkeys.PREFIX_BYTE_ACCOUNT)}
    seed = operator.write_creds(path, **given)
    with caplog.at_level(logging.DEBUG):
        error = answer_of(operated.url, creds=path)
    assert isinstance(error, BackendUnavailableError)
    assert "credentials" in str(error)
    assert seed not in f"{error!r} {error.__cause__!r} {caplog.text}"


def test_a_renewed_file_is_read_at_the_next_connection(operated, operator, tmp_path):
    """A backend whose first credentials are refused connects after the file was replaced."""
    path = tmp_path / "orders.creds"
    operator.write_creds(path, exp=int(time.time()) - 60)
    backend = txcore.connect(f"{operated.url}?half_bytes_max=1000000&control_timeout_s=1&creds={path}")
    try:
        refused = backend.ensure_group("renewed", 2).exception(TIMEOUT_S)
        assert isinstance(refused, BackendUnavailableError)
        operator.write_creds(path)
        assert wait_until(lambda: backend.ensure_group("renewed", 2).exception(TIMEOUT_S) is None, "the connection")
    finally:
        backend.close(2.0).result(TIMEOUT_S)


@pytest.mark.parametrize("option", ["creds", "nkey_seed"])
@pytest.mark.parametrize("text", ["", "no credentials"], ids=["empty", "strange"])
def test_a_file_of_another_kind_is_named(operated, tmp_path, option, text):
    """A file that is empty or holds something else is a ConfigError that names option and file, not its content."""
    path = tmp_path / "file"
    path.write_text(text)
    error = answer_of(operated.url, **{option: path})
    assert isinstance(error, ConfigError)
    assert error.key == option
    assert str(path) in str(error)
    assert not text or text not in str(error)


def test_an_nkey_signs_in(started_broker, tmp_path):
    """A client with the file of an nkey seed can log in; one without it, or with another one, cannot."""
    key, other, path = Key(nkeys.PREFIX_BYTE_USER), Key(nkeys.PREFIX_BYTE_USER), tmp_path / "seed"
    broker = started_broker(**{"authorization.users": f'[{{nkey: "{key.public}"}}]'})
    try:
        path.write_bytes(key.seed + b"\n")
        assert answer_of(broker.url, nkey_seed=path) is None
        path.write_bytes(other.seed)
        for error in (answer_of(broker.url), answer_of(broker.url, nkey_seed=path)):
            assert isinstance(error, BackendUnavailableError)
            assert "credentials" in str(error)
    finally:
        broker.remove()
