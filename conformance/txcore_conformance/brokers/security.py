"""Certificates and the user that a broker for one test may require."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from txcore_conformance.machine import run

USER: Final = "txcore"
PASSWORD: Final = "secret"  # noqa: S105 - of brokers that live for one test
_DAYS: Final = "30"
_NEW_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", _DAYS)
_ADDRESSES: Final = "subjectAltName=IP:127.0.0.1,DNS:localhost"


@dataclass(frozen=True, slots=True)
class Security:
    """A broker's requirements on its clients.

    Attributes:
        tls: The broker has a TLS listener; NATS then has no other.
        credentials: The user `txcore` with the password `secret` exists; NATS then refuses all other clients.
        client_certificate: The TLS listener refuses clients without a certificate of the same authority. On RabbitMQ
            the certificate's name, `txcore`, is a login too (EXTERNAL).
    """

    tls: bool = False
    credentials: bool = False
    client_certificate: bool = False


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files in one folder: an authority, a server's and a client's certificate by it, and a strange authority."""

    folder: Path

    @property
    def ca_file(self) -> Path:
        """File of the authority that clients and the server trust."""
        return self.folder / "ca.pem"

    @property
    def stranger_ca_file(self) -> Path:
        """File of an authority that has signed nothing here."""
        return self.folder / "stranger.pem"

    def cert_file(self, name: str) -> Path:
        """Return the certificate of the server or the client."""
        return self.folder / f"{name}.pem"

    def key_file(self, name: str) -> Path:
        """Return the key of the server or the client, unencrypted PKCS 8."""
        return self.folder / f"{name}.key"

    def chain_file(self, name: str) -> Path:
        """Return the file with key and certificate, as Kafka requires."""
        return self.folder / f"{name}.chain.pem"


def make_certificates(folder: Path) -> Certificates:
    """Make the certificates with the openssl program.

    Raises:
        ServerUnavailableError: the openssl program is missing or too old.
    """
    folder.mkdir()
    made = Certificates(folder)
    for name in ("ca", "stranger"):
        files = ("-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem"))
        abilities = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign")
        added = [part for ability in abilities for part in ("-addext", ability)]
        run(["openssl", "req", "-x509", *_NEW_KEY, *files, "-subj", f"/CN=txcore {name}", *added])
    signed = ("-CA", str(made.ca_file), "-CAkey", str(folder / "ca.key"))
    for name, subject in (("server", "/CN=localhost"), ("client", f"/CN={USER}")):
        files = ("-keyout", str(made.key_file(name)), "-out", str(made.cert_file(name)))
        extensions = ("-addext", "basicConstraints=CA:FALSE", "-addext", _ADDRESSES)
        run(["openssl", "req", "-x509", *signed, *_NEW_KEY, *files, "-subj", subject, *extensions])
        parts = (made.key_file(name), made.cert_file(name), made.ca_file)
        made.chain_file(name).write_bytes(b"".join(part.read_bytes() for part in parts))
    return made
