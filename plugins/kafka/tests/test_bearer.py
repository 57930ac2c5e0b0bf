"""Bearer tokens (SASL OAUTHBEARER): from an OpenID Connect issuer and from a file, on a broker that checks them."""

from __future__ import annotations

import base64
import json
import logging
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from txcore_conformance.brokers.security import make_certificates
from txcore_conformance.kit import error_of, wait_until
from txcore_kafka import PLUGIN
from txcore_kafka.tokens import OPAQUE_S, file_tokens

import txcore
from txcore.errors import BackendTimeoutError, BackendUnavailableError, ConfigError

TIMEOUT_S = 30.0
CLIENT, SECRET = "orders", "no-word-to-be-shown"
ISSUER, AUDIENCE, SCOPE = "https://issuer.example", "kafka", "messages"
LOGIN_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
VALIDATOR = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
REAUTH_S = 4
REFUSED = BackendUnavailableError | BackendTimeoutError | ConfigError


def encoded(value):
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Issuer:
    """Signs tokens, and gives them over https to the client that knows its secret."""

    def __init__(self, folder):
        self.certificates = make_certificates(folder / "issuer")
        self._key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
        public = self._key.public_key().public_numbers()
        numbers = {
            name: encoded(n.to_bytes((n.bit_length() + 7) // 8)) for name, n in (("n", public.n), ("e", public.e))
        }
        self.keys_file = folder / "keys.json"
        self.keys_file.write_text(
            json.dumps({"keys": [{"kty": "RSA", "kid": "1", "alg": "RS256", "use": "sig", **numbers}]})
        )
        self.scopes = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificates.cert_file("server"), self.certificates.key_file("server"))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"https://127.0.0.1:{self._server.server_port}/token"

    def token(self, life_s=600.0, **changed):
        now_s = time.time()
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": CLIENT, "scope": SCOPE, "iat": now_s, "exp": now_s + life_s}
        signed = f"{encoded({'alg': 'RS256', 'kid': '1'})}.{encoded(claims | changed)}"
        return f"{signed}.{encoded(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def _handler(self):
        issuer, account = self, base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
                is_known = self.headers["authorization"] == f"Basic {account}"
                issuer.scopes += form.get("scope", [])
                answer = {"access_token": issuer.token(), "token_type": "Bearer", "expires_in": 600}
                body = json.dumps(answer if is_known else {"error": "invalid_client"}).encode()
                self.send_response(200 if is_known else 401)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        return Handler


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    made = Issuer(tmp_path_factory.mktemp("issuer"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def guarded_broker(started_broker, issuer):
    """A broker that takes bearer tokens of the issuer only, over TLS, and ends a connection with its token."""
    of_listener = {
        "sasl_enabled_mechanisms": "OAUTHBEARER",
        "oauthbearer_sasl_jaas_config": LOGIN_MODULE,
        "oauthbearer_sasl_server_callback_handler_class": VALIDATOR,
        "oauthbearer_connections_max_reauth_ms": str(REAUTH_S * 1_000),
    }
    keys_url = issuer.keys_file.as_uri()
    settings = {f"listener_name_accounts_{name}": value for name, value in of_listener.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys_url}")
        broker = started_broker(
            tls=True,
            credentials=True,
            sasl_oauthbearer_jwks_endpoint_url=keys_url,
            sasl_oauthbearer_expected_audience=AUDIENCE,
            sasl_oauthbearer_expected_issuer=ISSUER,
            **settings,
        )
    yield broker
    broker.remove()


@pytest.fixture
def address(guarded_broker):
    """Return a URL of the broker's guarded listener; the login is that of the options."""

    def made(account="", **options):
        place = guarded_broker.credentials_url.rpartition("@")[2]
        query = urlencode({"tls_ca": guarded_broker.ca_file, "control_timeout_s": 4, "partitions": 1, **options})
        return f"kafka://{account}{place}?{query}"

    return made


@pytest.fixture
def asked(address, issuer):
    """Return a URL that asks the issuer for tokens."""

    def made(secret=SECRET, **options):
        given = {"token_url": issuer.url, "token_ca": issuer.certificates.ca_file, **options}
        return address(f"{CLIENT}:{secret}@", **given)

    return made


def refusal(url):
    """Return the error of the first call on *url*."""
    backend = txcore.connect(url)
    try:
        return error_of(lambda: backend.ensure_group("orders", 1), TIMEOUT_S)
    finally:
        backend.close(3.0).result(TIMEOUT_S)


def commit(producer, topic):
    """Commit one transaction; return the state of its end."""
    transaction = producer.begin()
    transaction.publish(txcore.Message(topic, b"body"))
    transaction.prepare()
    return transaction.commit().state


def works(url, topic):
    """Commit a transaction and consume its message; return its body."""
    consumer = PLUGIN.open_consumer(url, topic, "reader")
    try:
        with txcore.connect(url) as backend, txcore.TransactionProducer(backend, topic) as producer:
            assert commit(producer, topic) is txcore.EndState.ACCEPTED
        return wait_until(consumer.poll, "the message", TIMEOUT_S)[0].body
    finally:
        consumer.close()


def test_an_issuer_s_tokens_open_the_door(asked, issuer):
    """With tokens that the driver gets for a client's id and secret, a transaction's message reaches its consumer."""
    assert works(asked(token_scope=SCOPE), "by-issuer") == b"body"
    assert {SCOPE} == set(issuer.scopes)


def test_the_token_of_a_file_opens_the_door(address, issuer, tmp_path):
    """With a token in a file, a transaction's message reaches its consumer."""
    (tmp_path / "token").write_text(issuer.token() + "\n")
    assert works(address(token_file=tmp_path / "token"), "by-file") == b"body"


def test_a_renewed_file_keeps_a_client_signed_in(address, issuer, tmp_path):
    """A backend outlives the first token in its file, while another program renews the file."""
    path, is_over = tmp_path / "token", threading.Event()
    ends_s = time.time() + REAUTH_S
    path.write_text(issuer.token(REAUTH_S))

    def renew():
        while not is_over.wait(0.5):
            (tmp_path / "next").write_text(issuer.token(REAUTH_S))
            (tmp_path / "next").replace(path)

    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        with (
            txcore.connect(address(token_file=path)) as backend,
            txcore.TransactionProducer(backend, "renewed") as producer,
        ):
            PLUGIN.open_consumer(address(token_file=path), "renewed", "reader").close()
            assert commit(producer, "renewed") is txcore.EndState.ACCEPTED
            wait_until(lambda: time.time() > ends_s + REAUTH_S, "the end of the first token")
            assert commit(producer, "renewed") is txcore.EndState.ACCEPTED
    finally:
        is_over.set()
        renewing.join()


def test_a_wrong_secret_is_reported_and_not_shown(asked, caplog):
    """The error for a wrong secret names authentication; no error, log or repr shows the secret."""
    wrong = "another-secret"
    with caplog.at_level(logging.DEBUG):
        error = refusal(asked(wrong))
    assert isinstance(error, REFUSED)
    assert "auth" in str(error).lower()
    shown = f"{error} {error!r} {error.__cause__!r} {caplog.text} {[record.__dict__ for record in caplog.records]}"
    assert wrong not in shown


def test_an_issuer_that_cannot_be_trusted_gets_no_secret(asked, issuer):
    """A client sends nothing to an issuer whose certificate its authorities did not sign."""
    assert isinstance(refusal(asked(token_ca=issuer.certificates.stranger_ca_file)), REFUSED)


@pytest.mark.parametrize("changed", [{"aud": "another-service"}, {"iss": "https://another.example"}, {"exp": 1}])
def test_a_token_that_the_broker_refuses_opens_no_door(address, issuer, tmp_path, changed):
    """A token for another service, of another issuer, or after its end is refused, and the error says so."""
    (tmp_path / "token").write_text(issuer.token(**changed))
    error = refusal(address(token_file=tmp_path / "token"))
    assert isinstance(error, REFUSED)
    assert "auth" in str(error).lower()


@pytest.mark.parametrize(("text", "words"), [(None, "No such file"), ("", "no token"), ("two words", "no token")])
def test_a_file_without_a_token_is_named_at_the_first_call(text, words, tmp_path):
    """A missing or empty file is a ConfigError that names the option and the file."""
    path = tmp_path / "token"
    if text is not None:
        path.write_text(text)
    error = refusal(f"kafka://127.0.0.1:1?token_file={path}")
    assert isinstance(error, ConfigError)
    assert error.key == "token_file"
    assert str(path) in str(error)
    assert words in str(error)


def test_a_token_ends_as_it_says_itself(issuer, tmp_path):
    """The driver learns the end of a JWT from its `exp`; any other token is read again after a minute."""
    (tmp_path / "token").write_text(issuer.token(exp=2_000_000_000))
    assert file_tokens(str(tmp_path / "token"))("")[1] == 2_000_000_000
    (tmp_path / "token").write_text("opaque")
    token, end_s = file_tokens(str(tmp_path / "token"))("")
    assert token == "opaque"
    assert time.time() + OPAQUE_S - 5 < end_s <= time.time() + OPAQUE_S
