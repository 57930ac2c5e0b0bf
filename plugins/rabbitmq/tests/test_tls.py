"""A real TLS listener: private authority, client certificate, names, and the errors when one of them is wrong."""

from __future__ import annotations

import pytest
from txcore_conformance import brokers, raw
from txcore_conformance.kit import error_of
from txcore_rabbitmq import PLUGIN, parse_url
from txcore_rabbitmq.doctor_access import RabbitmqSubject

from txcore.errors import BackendUnavailableError, ConfigError
from txcore.findings import Request
from txcore.records import LogKind, Status


def options(broker, **changed):
    """Return the URL's options for the broker's TLS listener; None leaves an option out."""
    given = {
        "tls": "true",
        "tls_ca": broker.ca_file,
        "tls_cert": broker.cert_file,
        "tls_key": broker.key_file,
    } | changed
    return "&".join(f"{key}={value}" for key, value in given.items() if value is not None)


def connect(kit, *, url="", **changed):
    base = (url or kit.broker.credentials_url).partition("?")[0]
    backend = kit.harness.open(f"{base}?{options(kit.broker, **changed)}")
    kit.opened.append(backend)
    return backend


def test_everything_works_over_tls(secure):
    """Halves, targets, logs, claims and consumers work over TLS with a client certificate and a password."""
    backend, queue = connect(secure), secure.queue()
    assert secure.wait(backend.ensure_group(secure.group, 1)) == 1
    half = raw.half(secure, queue)
    assert [each.status for each in raw.append(secure, half, backend=backend)] == [Status.DURABLE]
    assert [each.status for each in raw.release(secure, raw.commit(half), backend=backend)] == [Status.DURABLE]
    assert raw.read(secure, LogKind.HALF, bool, backend=backend)[0].body == half.body
    claim = backend.claim(secure.group, "me")
    assert secure.until(lambda: list(claim.poll()))
    secure.wait(claim.close(5.0))
    url = f"{secure.broker.credentials_url.partition('?')[0]}?{options(secure.broker)}"
    consumer = PLUGIN.open_consumer(url, f"topic-{secure.group}", "group")
    assert consumer.poll() == []
    consumer.close()


def test_large_records_travel_over_tls(secure):
    """Large records are stored and read over TLS, which has buffers of its own."""
    backend, queue = connect(secure), secure.queue()
    secure.wait(backend.ensure_group(secure.group, 1))
    halves = [raw.half(secure, queue, body=bytes(800_000)) for _ in range(20)]
    assert {Status.DURABLE} == {each.status for each in raw.append(secure, *halves, backend=backend)}
    records = raw.read(secure, LogKind.HALF, lambda found: len(found) >= 20, backend=backend)
    assert [record.body for record in records] == [half.body for half in halves]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tls_ca": None}, "CERTIFICATE_VERIFY_FAILED"),
        ({"tls_server_name": "broker.example"}, "CERTIFICATE_VERIFY_FAILED"),
        ({"tls_ca": "{stranger}"}, "CERTIFICATE_VERIFY_FAILED"),
    ],
)
def test_a_broker_that_cannot_be_trusted_is_reported_at_once(secure, changed, words):
    """A broker with an untrusted certificate, or one for another name, is a BackendUnavailableError at once."""
    stranger = secure.broker.certificates.stranger_ca_file
    backend = connect(secure, **{key: value and value.format(stranger=stranger) for key, value in changed.items()})
    took_s, error = secure.lasts_s(lambda: error_of(lambda: backend.ensure_group(secure.group), 20.0))
    assert isinstance(error, BackendUnavailableError)
    assert words in str(error)
    assert took_s < 5.0


def test_without_verification_any_certificate_will_do(secure):
    """With `tls_verify=false` a client accepts any certificate; the README allows this for tests only."""
    backend = connect(secure, tls_ca=None, tls_verify="false")
    assert secure.wait(backend.ensure_group(secure.group, 1)) == 1


def test_a_missing_client_certificate_is_refused(secure):
    """A client without a certificate gets a BackendUnavailableError in time."""
    backend = connect(secure, tls_cert=None, tls_key=None, control_timeout_s=3)
    error = error_of(lambda: backend.ensure_group(secure.group), 20.0)
    assert isinstance(error, BackendUnavailableError)


def test_a_wrong_password_over_tls_is_reported_at_once(secure):
    """The error for a wrong password over TLS names the login, and does not show the password."""
    url = secure.broker.credentials_url.replace(brokers.PASSWORD, "wrong-pass")
    backend = connect(secure, url=url)
    error = error_of(lambda: backend.ensure_group(secure.group), 20.0)
    assert isinstance(error, BackendUnavailableError)
    assert "user or password" in str(error)
    assert "wrong-pass" not in str(error)


def test_tls_to_a_listener_without_it_is_no_hang(secure):
    """TLS to a plain listener, and plain AMQP to a TLS listener, are BackendUnavailableErrors in time."""
    plain = connect(secure, url=secure.broker.url, control_timeout_s=3)
    assert isinstance(error_of(lambda: plain.ensure_group(secure.group), 20.0), BackendUnavailableError)
    base = secure.broker.credentials_url.partition("?")[0]
    other = secure.harness.open(f"{base}?control_timeout_s=3&connect_timeout_s=1")
    secure.opened.append(other)
    assert isinstance(error_of(lambda: other.ensure_group(secure.group), 20.0), BackendUnavailableError)


def test_a_key_that_does_not_fit_is_named_before_anything_is_contacted(secure, tmp_path):
    """A file that is no certificate is a ConfigError with its option, before any connection."""
    strange = tmp_path / "strange.pem"
    strange.write_text("no certificate")
    for changed in ({"tls_cert": strange}, {"tls_ca": strange}):
        with pytest.raises(ConfigError) as raised:
            connect(secure, **changed)
        assert raised.value.key == next(iter(changed))


def by_certificate(kit, name="client"):
    """Return the URL of a login by the client's certificate, whose name is a user, or the server's, whose is not."""
    certificates = kit.broker.certificates
    files = {"tls_cert": certificates.cert_file(name), "tls_key": certificates.key_file(name)}
    place = kit.broker.tls_url.rpartition("@")[2]
    return f"rabbitmq://{place}?{options(kit.broker, sasl='EXTERNAL', **files)}"


def test_a_certificate_signs_in_without_a_password(secure):
    """With EXTERNAL the certificate's name is the user: halves, targets, claims, a consumer and the doctor work."""
    backend, queue = secure.harness.open(by_certificate(secure)), secure.queue()
    secure.opened.append(backend)
    assert secure.wait(backend.ensure_group(secure.group, 1)) == 1
    half = raw.half(secure, queue)
    assert [each.status for each in raw.append(secure, half, backend=backend)] == [Status.DURABLE]
    assert [each.status for each in raw.release(secure, raw.commit(half), backend=backend)] == [Status.DURABLE]
    claim = backend.claim(secure.group, "me")
    assert secure.until(lambda: list(claim.poll()))
    secure.wait(claim.close(5.0))
    consumer = PLUGIN.open_consumer(by_certificate(secure), f"topic-{secure.group}", "group")
    assert consumer.poll() == []
    consumer.close()
    examined = RabbitmqSubject(parse_url(by_certificate(secure)), Request(secure.group))
    examined.connect()
    assert examined.partition_count == 1
    examined.close()


def test_a_certificate_without_a_user_is_refused_at_once(secure):
    """A certificate of the trusted authority whose name is no user is refused, and the error names the certificate."""
    backend = secure.harness.open(by_certificate(secure, "server"))
    secure.opened.append(backend)
    took_s, error = secure.lasts_s(lambda: error_of(lambda: backend.ensure_group(secure.group), 20.0))
    assert isinstance(error, BackendUnavailableError)
    assert "its name is no user here" in str(error)
    assert took_s < 5.0
