"""The HTTP endpoint as a whole: server, application, and the figures of the last hour."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txcore.sidecar.web.app import make_app
from txcore.sidecar.web.guard import Guard
from txcore.sidecar.web.history import History
from txcore.sidecar.web.server import WebServer, check_certificate
from txcore.sidecar.web.tokens import tokens_of

if TYPE_CHECKING:
    from txcore.config import Loaded
    from txcore.sidecar.process import Sidecar


class Endpoint:
    """Serves a sidecar on the configured address.

    Raises:
        ConfigError: the address or the certificate cannot be used.
    """

    def __init__(self, sidecar: Sidecar, loaded: Loaded) -> None:
        http = loaded.config.http
        self._server = WebServer(http.host, http.port, *_pem(loaded), trusted_proxies=http.trusted_proxies)
        self._history = History(sidecar, sidecar.clock)
        self._app = make_app(sidecar, Guard(tokens_of(loaded), sidecar.clock), history=self._history)
        self._has_console = http.console
        self.url = self._server.url

    @staticmethod
    def check(loaded: Loaded) -> None:
        """Check what shows without taking the port.

        Raises:
            ConfigError: the certificate cannot be used.
        """
        check_certificate(*_pem(loaded))

    def start(self) -> None:
        """Serve, in threads; returns at once."""
        if self._has_console:
            self._history.start()
        self._server.start(self._app)

    def stop(self) -> None:
        """Stop, in bounded time."""
        self._server.stop()
        self._history.stop()


def _pem(loaded: Loaded) -> tuple[str, str]:
    return loaded.secret("http", "certificate_file"), loaded.secret("http", "key_file")
