"""Brokers with access control: TLS with their own authority, client certificates, user and password."""

from __future__ import annotations

import pytest
from txcore_conformance import brokers

pytestmark = pytest.mark.filterwarnings("default::ResourceWarning")


@pytest.fixture(scope="module", params=brokers.NAMES)
def guarded(request, started):
    """A broker with TLS, client certificates and the user."""
    made = started(request.param, tls=True, credentials=True, client_certificate=True)
    yield made
    made.remove()


def test_known_user_with_certificate_comes_in(guarded, client):
    """A client with user and certificate connects, and trusts the authority of the server's certificate."""
    url = guarded.credentials_url
    assert f"{brokers.USER}:{brokers.PASSWORD}@" in url
    made = client(guarded.name, url, ca=guarded.ca_file, certificate=(guarded.cert_file, guarded.key_file))
    made.create()
    made.put("secret")
    assert ["secret"] == made.texts()


@pytest.mark.parametrize("lack", ["password", "authority", "TLS"])
def test_client_without_a_credential_is_refused(guarded, client, trouble, lack):
    """The broker refuses a client without one of the credentials."""
    known = {"ca": guarded.ca_file, "certificate": (guarded.cert_file, guarded.key_file)}
    url, options = {
        "password": (guarded.credentials_url.replace("secret", "guess"), known),
        "authority": (guarded.credentials_url, known | {"ca": guarded.stranger_ca_file}),
        "TLS": (guarded.credentials_url, {}),
    }[lack]
    with pytest.raises(trouble):
        client(guarded.name, url, time_max_s=3, **options).create()


def test_client_without_certificate_stays_outside_where_one_is_asked_for(guarded, client, trouble):
    """The broker refuses a client without certificate and user on the TLS listener."""
    with pytest.raises(trouble):
        client(guarded.name, guarded.tls_url, ca=guarded.ca_file, time_max_s=3).create()


def test_files_exist_only_with_tls(nats):
    """A broker without TLS raises an error for its authority's file."""
    with pytest.raises(brokers.ServerUnavailableError, match="without tls=True"):
        _ = nats.ca_file
    assert ("", "") == (nats.tls_url, nats.credentials_url)
