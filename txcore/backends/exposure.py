"""The doctor's rules on what others may read or log in to, for brokers, databases and callbacks.

An address of this machine's loopback is reached by its own programs only. Whether a broker that is examined there can
be reached in other ways is not known, so such a finding is a warning, which a developer's broker may have.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from txcore.findings import Finding, fail, for_production, ok, shortened, warn


def remote_hosts(hosts: Iterable[str]) -> list[str]:
    """Return those of *hosts* that have an address beyond this machine's loopback, or none that is known."""
    return sorted(host for host in set(hosts) if not _is_local(host))


def encryption_finding(
    hosts: Iterable[str], *, is_encrypted: bool, is_verified: bool = True, sent: str, change: str
) -> Finding:
    """Judge whether what is *sent* to *hosts* can be read on the way; *change* names the settings of TLS."""
    remote = shortened(remote_hosts(hosts))
    if is_encrypted and is_verified:
        return ok("connections are encrypted, and the certificate is verified")
    if not remote:
        return ok("connections are not protected, and stay on this machine's loopback")
    if is_encrypted:
        text = f"the certificate of {remote} is not verified: another server may take its place, and get {sent}"
        return fail(text, "tls_verify=true and tls_ca=FILE in the URL")
    return fail(f"no TLS to {remote}: {sent} can be read and changed on the way", change)


def anonymous_finding(hosts: Iterable[str], login: str, change: str) -> Finding:
    """Judge that *login*, which needs no secret, was accepted; "" when it was not."""
    if not login:
        return ok("a client without credentials of its own is refused")
    if remote := remote_hosts(hosts):
        return fail(f"{shortened(remote)} accepts {login}: every program that reaches it may be a producer", change)
    text = f"the broker accepts {login} from this machine; whether it does so from others is not known"
    return for_production(warn(text, change))


def _is_local(host: str) -> bool:
    if not host or host.startswith("/"):
        return True  # a socket of the file system
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in found)
