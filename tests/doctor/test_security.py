"""The doctor connects as the backend does: with the URL's own options for TLS and login."""

from __future__ import annotations

import pytest
from txcore_conformance import brokers
from txcore_conformance.required import obtained

from txcore.errors import BackendUnavailableError
from txcore.findings import Level, Request, examine, ok
from txcore.registry import open_doctor

#: Option of the certificate authority's file, and the other options of TLS.
OPTIONS = {"kafka": "tls_ca={}", "rabbitmq": "tls_ca={}", "nats": "tls_ca={}"}


@pytest.fixture(params=OPTIONS)
def broker(request):
    """A broker with a TLS listener and a login."""
    broker = obtained(request.param, lambda: brokers.start(request.param, own=True, tls=True, credentials=True))
    yield broker
    broker.remove()


def test_doctor_speaks_tls_and_logs_in(broker):
    """The doctor connects with the right authority; with a foreign one the error has no password."""
    url = (broker.credentials_url if broker.name == "kafka" else broker.tls_url) or broker.tls_url
    options = OPTIONS[broker.name]
    examination = open_doctor(f"{url}?{options.format(broker.certificates.ca_file)}", Request("orders"))
    lines = {line.name: line.finding for line in examine(examination).lines}
    examination.close()
    assert lines[f"{broker.name}.version"].text
    assert lines[f"{broker.name}.encryption"] == ok("connections are encrypted, and the certificate is verified")
    # RabbitMQ's first user stays beside the others, for this machine.
    assert lines[f"{broker.name}.anonymous"].level is (Level.WARN if broker.name == "rabbitmq" else Level.OK)
    assert "has no" in next(line.text for line in lines.values() if "'orders'" in line.text)
    with pytest.raises(BackendUnavailableError, match=f"(?i){broker.name} at 127.0.0.1") as caught:
        open_doctor(f"{url}?{options.format(broker.certificates.stranger_ca_file)}", Request("orders"))
    assert "secret" not in str(caught.value)
