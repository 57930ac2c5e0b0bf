"""TLS for drivers that take a context of Python's `ssl`, and the name of the server beside it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from txcore.backends.options import TlsOptions, text
from txcore.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOptions(TlsOptions):
    """The options of TLS, and the context that they make."""

    tls_server_name: str = text("the name that the server's certificate must have, if it is not the host's")

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the context of encrypted connections, or None if they are not encrypted.

        Raises:
            ConfigError: a file of certificates or keys cannot be used; `key` names its option.
        """
        if not self.is_encrypted:
            return None
        key = "tls_ca"
        try:
            context = ssl.create_default_context(cafile=self.tls_ca or None)
            if self.tls_cert:
                key = "tls_cert"
                context.load_cert_chain(self.tls_cert, self.tls_key, self._password)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{key}={getattr(self, key)!r} cannot be used: {error}", key=key) from error
        if not self.tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def _password(self) -> str:
        # OpenSSL asks only for a key that has one; without this it would ask on the terminal.
        if not self.tls_key_password:
            raise ValueError("the key has a password, and there is no tls_key_password")
        return self.tls_key_password
