"""The server: a socket that is bound before any group starts, and uvicorn on it in a thread of its own."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import threading
from collections.abc import Sequence
from functools import partial
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from txcore.errors import ConfigError
from txcore.sidecar.web.connections import BACKLOG, HEAD_S, BoundedProtocol, Connections, connections_max

GRACE_S: Final = 2
LOOK_S: Final = 0.5


class WebServer:
    """Serves an application on one address.

    Args:
        certificate_file, key_file: PEM files, to serve HTTPS; the key may be in the first one.
        trusted_proxies: Addresses and networks whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed.

    Raises:
        ConfigError: the address or the certificate cannot be used.
    """

    def __init__(
        self,
        host: str,
        port: int,
        certificate_file: str = "",
        key_file: str = "",
        trusted_proxies: Sequence[str] = (),
    ) -> None:
        self._trusted_proxies = list(trusted_proxies)
        self._certificate = (certificate_file, key_file or None) if certificate_file else None
        check_certificate(certificate_file, key_file)
        try:
            self._socket = _bound(host, port)
        except OSError as error:
            advice = "; http.port=0 takes any free port" if error.errno == errno.EADDRINUSE else ""
            text = f"cannot listen on {host}:{port}: {error.strerror or error}{advice}"
            raise ConfigError(text, key="http.port") from error
        name, bound_port = self._socket.getsockname()[:2]
        self.url = f"http{'s' if self._certificate else ''}://{f'[{name}]' if ':' in name else name}:{bound_port}"
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self, app: ASGIApp) -> None:
        """Serve *app* in a daemon thread; connections wait in the socket until it serves."""
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=bool(self._trusted_proxies),
            forwarded_allow_ips=self._trusted_proxies,
            timeout_keep_alive=round(HEAD_S),
            timeout_graceful_shutdown=GRACE_S,
            ssl_certfile=self._certificate[0] if self._certificate else None,
            ssl_keyfile=self._certificate[1] if self._certificate else None,
        )
        self._server = _Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="txcore-http", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop serving; bounded by `GRACE_S`."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(GRACE_S + 1)
        self._socket.close()


def check_certificate(certificate_file: str, key_file: str) -> None:
    """Check a server's certificate; "" for none.

    Raises:
        ConfigError: it cannot be used.
    """
    if not certificate_file:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate_file, key_file or None, password="")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the certificate cannot be used: {error}", key="http.certificate_file") from error


class _Server(uvicorn.Server):
    """Bounds its connections, and looks for its stop twice a second instead of ten times: an idle checker is cheap."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server.startup`; it serves the first socket."""
        assert sockets is not None
        protocol = partial(BoundedProtocol, config=self.config, server_state=self.server_state, app_state={})
        self._connections = Connections(sockets[0], protocol, self.config.ssl, connections_max())
        self.servers = []
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server.shutdown`."""
        self._connections.close()
        await super().shutdown(sockets)

    async def main_loop(self) -> None:
        """See `uvicorn.Server.main_loop`."""
        while not await self.on_tick(0):  # noqa: ASYNC110 - `should_exit` is a flag
            await asyncio.sleep(LOOK_S)


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound
