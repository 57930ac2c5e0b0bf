"""The life of a checker process: it starts, reloads or stops on signals, and ends with an exit code.

SIGTERM and SIGINT drain and end within `checker.shutdown_s`; a second one ends the process at once. SIGHUP reloads.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from txcore.clock import SystemClock
from txcore.config import ConfigFileError, Loaded
from txcore.errors import BackendNotInstalledError, ConfigError
from txcore.sidecar import logs
from txcore.sidecar.process import Sidecar
from txcore.signals import END, received

if TYPE_CHECKING:
    from txcore.sidecar.web.endpoint import Endpoint

LOG: Final = logging.getLogger("txcore.sidecar")
DONE: Final = 0
NOT_DRAINED: Final = 4
"""Exit code: the groups did not finish in time; nothing is lost, other checkers repeat some work."""
KILLED: Final = 128
"""Base of the exit code after a second signal: the signal's number is added."""


class Life:
    """See the module.

    Args:
        loaded: The configuration at the start.
        reload: Reads the configuration again; raises ConfigError when it has mistakes now.
    """

    def __init__(self, loaded: Loaded, reload: Callable[[], Loaded]) -> None:
        self._loaded = loaded
        self._reload = reload
        self._clock = SystemClock()
        self._signals: queue.SimpleQueue[signal.Signals] = queue.SimpleQueue()
        self._is_ending = False

    def run(self) -> int:
        """Run until a signal stops the process; return the exit code. In the main thread only.

        Raises:
            ConfigError: the HTTP address cannot be used.
            BackendNotInstalledError: the HTTP endpoint's libraries are missing.
        """
        logs.configure(self._loaded.config.log, self._clock)
        with received((*END, signal.SIGHUP), self._take):
            return self._work()

    def _work(self) -> int:
        sidecar = Sidecar(self._loaded, clock=self._clock)
        server = _serve(sidecar, self._loaded)
        sidecar.start()
        facts = {
            "groups": sorted(self._loaded.config.groups),
            "http": server.url if server is not None else None,
            "pid": os.getpid(),
        }
        LOG.info("checker.started", extra={"txcore": facts})
        notify("READY=1")
        while (number := self._signals.get()) not in END:
            self._reload_into(sidecar, number)
        LOG.info("signal.received", extra={"txcore": {"signal": number.name}})
        notify("STOPPING=1")
        is_drained = sidecar.stop()
        if server is not None:
            server.stop()
        LOG.info("checker.stopped", extra={"txcore": {"drained": is_drained}})
        return DONE if is_drained else NOT_DRAINED

    def _take(self, number: signal.Signals) -> None:
        """Pass a signal on to the main thread; end the process at a second request to end."""
        if number in END and self._is_ending:
            os._exit(KILLED + number)
        self._is_ending = self._is_ending or number in END
        self._signals.put(number)

    def _reload_into(self, sidecar: Sidecar, number: signal.Signals) -> None:
        if number != signal.SIGHUP:
            return
        LOG.info("signal.received", extra={"txcore": {"signal": "SIGHUP"}})
        notify("RELOADING=1", f"MONOTONIC_USEC={int(self._clock.elapsed_s() * 1_000_000)}")
        try:
            loaded = self._reload()
        except ConfigFileError as error:
            _refuse(*error.problems)
        except ConfigError as error:
            _refuse(error)
        else:
            logs.configure(loaded.config.log, self._clock)
            sidecar.reload(loaded)
        notify("READY=1")


def _refuse(*problems: object) -> None:
    for problem in problems:
        LOG.log(logging.ERROR, "config.refused", extra={"txcore": {"problem": str(problem)}})


def _serve(sidecar: Sidecar, loaded: Loaded) -> Any:
    if not loaded.config.http.enabled:
        return None
    endpoint = load_endpoint()(sidecar, loaded)
    endpoint.start()
    return endpoint


def load_endpoint() -> type[Endpoint]:
    """Return the class of the HTTP endpoint, which alone needs the web libraries.

    Raises:
        BackendNotInstalledError: one of them is missing; the text names the extra.
    """
    try:
        from txcore.sidecar.web.endpoint import Endpoint  # noqa: PLC0415 - see above
    except ModuleNotFoundError as error:
        raise BackendNotInstalledError("the HTTP endpoint", error.name or "starlette", "checker") from error
    return Endpoint


def notify(*lines: str) -> None:
    """Notify systemd, where it listens (NOTIFY_SOCKET); elsewhere do nothing.

    Source: sd_notify(3).
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    name = f"\0{address[1:]}" if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto("\n".join(lines).encode(), name)
    except OSError as error:
        LOG.warning("systemd.not_notified", extra={"txcore": {"error": repr(error)}})
