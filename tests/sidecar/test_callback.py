"""The HTTP callback: the request, the form of an answer, and that nothing else counts as one."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import ssl
import threading
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from txcore_conformance.brokers.security import make_certificates

from txcore import CheckPostponedError, ConfigError, HalfView, LocalTransactionState, Message, TxcoreError
from txcore.clock import SystemClock, system_randomness
from txcore.config import CallbackSection
from txcore.sidecar.callback import Credentials, HttpCallback
from txcore.sidecar.source_circuit import SourceCircuit

HALF = HalfView(
    bytes.fromhex("0190a0b0c0d070008000000000000001"),
    "orders",
    (
        Message("orders.created", b"\xff\x00body", b"42", {"trace": "abc", "raw": b"\xff"}),
        Message("orders.mailed", b"", None),
    ),
    check_times=2,
    born_ms=1_700_000_000_123,
)


class Asking:
    """Makes callbacks and closes them."""

    def __init__(self):
        self.made = []
        self.count = Counter()
        self.latencies = []

    def __call__(self, url, *, credentials=None, deadline_s=60.0, failures_max=100, **section):
        circuit = SourceCircuit("callback", SystemClock(), system_randomness(), failures_max=failures_max, first_s=30.0)
        made = HttpCallback(
            CallbackSection(url=url, **{"timeout_s": 30.0, "retry_s": 0.01, **section}),
            credentials or Credentials(),
            circuit,
            SystemClock(),
            deadline_s=deadline_s,
            connections_max=4,
            count=self.count,
            observe=self.latencies.append,
        )
        self.made.append(made)
        return made


@pytest.fixture
def asking():
    asking = Asking()
    yield asking
    for each in asking.made:
        each.close()


def no_answer(callback):
    """Return the reason why there was no answer."""
    with pytest.raises(TxcoreError) as raised:
        callback.check_local_transaction(HALF)
    return str(raised.value)


@pytest.mark.parametrize("state", list(LocalTransactionState))
def test_a_well_formed_answer_counts(asking, callback_server, state):
    """An answer counts although it has further keys and white space around it."""
    body = b' {"state": "%s", "why": "looked it up"}\n' % state.value.encode()
    callback_server.answer = lambda _: (200, {"content-type": "text/plain"}, body)
    assert state is asking(callback_server.start().url).check_local_transaction(HALF)
    assert (Counter(answered=1), 1) == (asking.count, len(asking.latencies))


def test_the_half_is_sent_as_json(asking, callback_server):
    """The request holds bytes in base64 and text headers as text; it has credentials only if they are configured."""
    asking(callback_server.start().url).check_local_transaction(HALF)
    (asked,) = callback_server.asked
    assert ("POST", "application/json") == (asked.method, asked.headers["content-type"])
    assert not {"authorization", "txcore-signature"} & set(asked.headers)
    assert {
        "version": 1,
        "transaction_id": "0190a0b0-c0d0-7000-8000-000000000001",
        "group": "orders",
        "check_times": 2,
        "born_ms": 1_700_000_000_123,
        "messages": [
            {
                "topic": "orders.created",
                "key_base64": base64.b64encode(b"42").decode(),
                "headers": {"trace": "abc"},
                "headers_base64": {"raw": base64.b64encode(b"\xff").decode()},
                "body_base64": base64.b64encode(b"\xff\x00body").decode(),
            },
            {
                "topic": "orders.mailed",
                "key_base64": None,
                "headers": {},
                "headers_base64": {},
                "body_base64": "",
            },
        ],
    } == asked.half


def test_bodies_are_not_sent_when_configured_so(asking, callback_server):
    """With `bodies = false` the request has no bodies; most services need only the id."""
    asking(callback_server.start().url, bodies=False).check_local_transaction(HALF)
    assert ["body_base64" in message for message in callback_server.asked[0].half["messages"]] == [False, False]


def test_requests_are_signed_and_carry_the_token(asking, callback_server):
    """The signature covers the time and the body as they were sent."""
    credentials = Credentials(secret="s3cret", token="t0ken")
    asking(callback_server.start().url, credentials=credentials).check_local_transaction(HALF)
    (asked,) = callback_server.asked
    assert "Bearer t0ken" == asked.headers["authorization"]
    at, mac = (part.partition("=")[2] for part in asked.headers["txcore-signature"].split(","))
    assert abs(int(at) - SystemClock().wall_ms() / 1000) < 60
    assert hmac.new(b"s3cret", f"{at}.".encode() + asked.body, hashlib.sha256).hexdigest() == mac
    assert "s3cret" not in repr(credentials) + repr(vars(asking.made[0]))


@pytest.mark.parametrize(
    ("status", "headers", "body", "words"),
    [
        (200, {}, b"", "no usable state"),
        (200, {}, b"COMMIT", "no usable state"),
        (200, {}, b'"COMMIT"', "no usable state"),
        (200, {}, b'{"state": "commit"}', "no usable state"),
        (200, {}, b'{"state": "MAYBE"}', "no usable state"),
        (200, {}, b'{"state": null}', "no usable state"),
        (200, {}, b'{"status": "COMMIT"}', "no usable state"),
        (200, {}, b'[{"state": "COMMIT"}]', "no usable state"),
        (200, {}, b'{"state": "COMMIT"', "no usable state"),
        (200, {}, b"\xff\xfe{}", "no usable state"),
        (200, {}, b"[" * 60_000, "no usable state"),
        (200, {}, b" " * 100_000 + b'{"state": "COMMIT"}', "more than 65536 bytes"),
        (201, {}, b'{"state": "COMMIT"}', "status 201"),
        (204, {}, b"", "status 204"),
        (302, {"location": "/elsewhere"}, b'{"state": "COMMIT"}', "status 302"),
        (400, {}, b'{"state": "ROLLBACK"}', "status 400"),
        (404, {}, b'{"state": "ROLLBACK"}', "status 404"),
        (500, {}, b'{"state": "COMMIT"}', "status 500"),
    ],
)
def test_anything_else_is_no_answer(asking, callback_server, status, headers, body, words):
    """Any other answer is refused, even if it contains a state."""
    callback_server.answer = lambda _: (status, headers, body)
    assert words in no_answer(asking(callback_server.start().url))
    assert [] == asking.latencies
    assert len(callback_server.asked) == (3 if status == 500 else 1), "a redirect is not followed"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=200) | st.text(max_size=50).map(str.encode), status=st.integers(200, 599))
def test_no_garbage_is_ever_an_answer(asking, callback_server, body, status):
    """Any answer of a broken service leads to an error with a reason of bounded length."""
    callback_server.answer = lambda _: (status, {}, b"" if status in {204, 304} else body)
    if not callback_server.url:
        callback_server.start()
        asking(callback_server.url, tries_max=1, failures_max=1_000_000)
    assert 500 > len(no_answer(asking.made[0]))


@pytest.mark.parametrize(
    ("status", "tries"), [(500, 3), (502, 3), (503, 3), (504, 3), (429, 3), (400, 1), (401, 1), (404, 1)]
)
def test_only_passing_errors_are_tried_again(asking, callback_server, status, tries):
    """A request that the service refuses for good is not sent again."""
    callback_server.answer = lambda _: (status, {}, b"")
    no_answer(asking(callback_server.start().url, tries_max=3))
    assert tries == len(callback_server.asked)


def test_the_last_try_may_bring_the_answer(asking, callback_server):
    """The answer of the last try counts, so a short failure costs no check."""
    answers = iter([(503, {}, b""), (500, {}, b""), (200, {}, b'{"state": "ROLLBACK"}')])
    callback_server.answer = lambda _: next(answers)
    assert LocalTransactionState.ROLLBACK is asking(callback_server.start().url).check_local_transaction(HALF)
    assert Counter(refused=2, answered=1) == asking.count


def test_tries_end_with_the_checks_deadline(asking, callback_server):
    """The callback is not retried after the check's deadline, even with tries left."""
    callback_server.answer = lambda _: (503, {}, b"")
    no_answer(asking(callback_server.start().url, tries_max=20, retry_s=0.2, deadline_s=0.5))
    assert 2 == len(callback_server.asked)


def test_a_callback_that_is_down_is_soon_left_alone(asking, callback_server):
    """Three refused connections open the circuit; the error has the time of the next try."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        callback = asking(f"http://127.0.0.1:{taken.getsockname()[1]}/", failures_max=3, tries_max=20)
        with pytest.raises(CheckPostponedError) as raised:
            callback.check_local_transaction(HALF)
    assert 25 < raised.value.retry_after_s
    assert Counter(unreachable=3) == asking.count


def test_one_half_that_the_service_cannot_digest_does_not_open_the_circuit(asking, callback_server):
    """A 500 is about this half; the callback asks about the others as before."""
    callback_server.answer = lambda _: (500, {}, b"")
    callback = asking(callback_server.start().url, failures_max=1)
    for _ in range(3):
        assert "status 500" in no_answer(callback)
    assert "" == callback.circuit.reason


@pytest.mark.parametrize(
    ("value", "at_least_s", "at_most_s"), [("45", 44, 46), ("999999999", 299, 301), ("soon", 25, 40)]
)
def test_retry_after_is_obeyed_within_bounds(asking, callback_server, value, at_least_s, at_most_s):
    """A number of seconds is obeyed, up to five minutes; with any other value the circuit uses its own pause."""
    callback_server.answer = lambda _: (503, {"retry-after": value}, b"")
    callback = asking(callback_server.start().url, failures_max=1, tries_max=1)
    no_answer(callback)
    assert at_least_s <= callback.circuit.retry_after_s <= at_most_s


def test_a_slow_callback_is_no_answer_in_time(asking, callback_server):
    """A callback that sends nothing before the time-out gives no answer, and each try counts as a time-out."""
    release = threading.Event()
    callback_server.answer = lambda _: release.wait(5) and (200, {}, b'{"state": "COMMIT"}')
    callback = asking(callback_server.start().url, timeout_s=0.1, tries_max=2)
    assert "ReadTimeout" in no_answer(callback)
    assert Counter(timeout=2) == asking.count
    release.set()


def test_an_answer_that_drips_is_cut_off(asking):
    """The callback gives up an answer whose bytes come in time but that takes too long as a whole."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def drip():
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
                while not stop.wait(0.05):
                    try:
                        connection.sendall(b" ")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        callback = asking(f"http://127.0.0.1:{server.getsockname()[1]}/", timeout_s=1.0, tries_max=1)
        assert "did not finish its answer in time" in no_answer(callback)
        stop.set()
        thread.join(5)


def test_a_proxy_in_the_environment_is_not_used(asking, callback_server, monkeypatch):
    """The callback connects to its URL directly, without the environment's proxy."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    callback = asking(callback_server.start().url)
    assert LocalTransactionState.COMMIT is callback.check_local_transaction(HALF)


def test_closing_ends_the_wait_for_another_try(asking, callback_server):
    """Closing the callback ends the pause before the next try, so that a process can stop."""
    callback_server.answer = lambda _: (503, {}, b"")
    callback = asking(callback_server.start().url, retry_s=60, deadline_s=300)
    thread = threading.Thread(target=lambda: no_answer(callback))
    thread.start()
    thread.join(0.2)
    callback.close()
    thread.join(5)
    assert not thread.is_alive()


def test_the_probe_says_whether_something_listens(asking, callback_server, make_callback_server):
    """The probe accepts any answer, and reports a refused connection."""
    callback_server.answer = lambda _: (405, {}, b"")
    assert "" == asking(callback_server.start().url).probe()
    gone = make_callback_server()
    gone.stop()
    assert "refused" in asking(gone.url).probe()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("tls") / "certificates")


def server_context(certificates, *, wants_client):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert_file("server"), certificates.key_file("server"))
    if wants_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates.ca_file)
    return context


def test_tls_with_an_authority_of_ones_own(asking, make_callback_server, certificates):
    """The callback trusts only the authority that is configured, neither the system's authorities nor another one."""
    url = make_callback_server(context=server_context(certificates, wants_client=False)).url
    trusting = asking(url, credentials=Credentials(ca_file=str(certificates.ca_file)))
    assert LocalTransactionState.COMMIT is trusting.check_local_transaction(HALF)
    for ca_file in ("", str(certificates.stranger_ca_file)):
        assert "CERTIFICATE_VERIFY_FAILED" in no_answer(asking(url, credentials=Credentials(ca_file=ca_file)))


def test_tls_with_a_client_certificate(asking, make_callback_server, certificates):
    """The server refuses a client without a certificate."""
    url = make_callback_server(context=server_context(certificates, wants_client=True)).url
    ca_file = str(certificates.ca_file)
    known = Credentials("", "", ca_file, str(certificates.cert_file("client")), str(certificates.key_file("client")))
    assert LocalTransactionState.COMMIT is asking(url, credentials=known).check_local_transaction(HALF)
    no_answer(asking(url, credentials=Credentials(ca_file=ca_file), tries_max=1))


def test_a_certificate_that_is_none_is_a_mistake_of_the_configuration(asking, tmp_path):
    """The error comes when the callback is made, before any request."""
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match="certificates cannot be used") as raised:
        asking("https://127.0.0.1/", credentials=Credentials(ca_file=str(tmp_path / "ca.pem")))
    assert "callback" == raised.value.key
