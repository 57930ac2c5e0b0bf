"""The doctor's checks of what others may read on Kafka, or log in to, and of too many rights."""

from __future__ import annotations

from txcore.backends.exposure import anonymous_finding, encryption_finding
from txcore.findings import Finding, for_production, ok, shortened, warn
from txcore_kafka.doctor_access import KafkaSubject


def encryption(subject: KafkaSubject) -> Finding:
    """Judge whether what is sent to the brokers can be read on the way."""
    options = subject.options
    sent = f"messages and the password of {options.user!r}" if options.sasl == "PLAIN" else "messages"
    return encryption_finding(
        subject.hosts,
        is_encrypted=options.is_encrypted,
        is_verified=options.tls_verify,
        sent=sent,
        change="tls=true and tls_ca=FILE in the URL, and a listener SASL_SSL or SSL in each broker's server.properties",
    )


def anonymous(subject: KafkaSubject) -> Finding:
    """Judge whether the cluster serves a client without credentials."""
    login = "clients without user and certificate" if subject.accepts_anonymous() else ""
    change = "only listeners SASL_SSL, or SSL with ssl.client.auth=required, in each broker's server.properties"
    return anonymous_finding(subject.hosts, login, change)


def rights(subject: KafkaSubject) -> Finding:
    """Judge whether this user may do what no role of the group needs."""
    excess = subject.excess_rights()
    if not excess:
        return ok("this user has no right that no role needs")
    rights = sorted(set().union(*excess.values()))
    text = f"this user may {', '.join(rights)} {shortened(list(excess), 1)}: no role of the group needs that"
    change = "an authorizer in each broker's server.properties, and the rights that `txcore permissions` prints"
    return for_production(warn(text, change))
