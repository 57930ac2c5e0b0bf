"""The doctor's questions to NATS: JetStream's API on a connection of its own, and the server's monitoring port.

The doctor creates and changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlsplit

from nats import errors
from nats.aio.client import Client

from txcore.errors import BackendUnavailableError, ConfigError, TxcoreError
from txcore.findings import Request, UntoldError
from txcore.records import LogKind
from txcore_nats.codec import STREAM_NOT_FOUND, ApiError, as_json, from_json, translate
from txcore_nats.connection import close_client, require_connected
from txcore_nats.login import login
from txcore_nats.options import GroupNames, Options
from txcore_nats.targets import is_covered

NANOSECONDS: Final = 1_000_000_000
TIMEOUT_S: Final = 10.0
ATTEMPTS: Final = 10
"""Number of attempts to connect: on a busy machine 8 of 300 refusals were lost with their connection, some in a row;
see `require_connected`."""
CREDENTIALS: Final = frozenset({"user", "password", "token", "user_credentials", "nkeys_seed"})
"""The arguments of a connection that hold credentials; a certificate stays, as a server may demand one of everybody."""
PROBE_TIMEOUT_S: Final = 2
CUT_SHORT: Final = (ConnectionResetError, BrokenPipeError, errors.UnexpectedEOF)


@dataclass(frozen=True, slots=True)
class StreamView:
    """One stream, as JetStream reports it."""

    name: str
    config: Mapping[str, Any]
    state: Mapping[str, Any]
    cluster: Mapping[str, Any]

    @property
    def age_max_s(self) -> float:
        """How long the stream keeps a message, in seconds; infinity if it has no limit."""
        return self.config.get("max_age", 0) / NANOSECONDS or float("inf")

    @property
    def replica_count(self) -> int:
        """The number of servers that hold the stream."""
        return int(self.config.get("num_replicas", 1))


@dataclass
class NatsSubject:
    """One server and one group on it. Each answer of a property is remembered."""

    options: Options
    request: Request
    _runner: asyncio.Runner = field(default_factory=asyncio.Runner, repr=False)
    _client: Client | None = field(default=None, repr=False)

    def connect(self) -> None:
        """Connect to the server.

        Raises:
            BackendUnavailableError: the server cannot be reached, or refuses the credentials.
            ConfigError: a file of the credentials cannot be used.
        """
        place = f"NATS at {', '.join(server.removeprefix('nats://') for server in self.options.servers)}"
        try:
            self._client = self._runner.run(self._connected())
        except Exception as error:
            self.close()
            if isinstance(error, ConfigError):
                raise
            raise _unavailable(error, place) from error

    async def _connected(self) -> Client:
        """Return a connected client, after some attempts if the server ends them without a reason."""
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(*CUT_SHORT):
                return await self._attempt()
        return await self._attempt()

    async def _attempt(self, *, is_anonymous: bool = False) -> Client:
        """Return a connected client; raise the last error, one of `CUT_SHORT` if the server sent no reason."""
        client, reasons = Client(), list[Exception]()

        async def failed(error: Exception) -> None:
            reasons.append(error)

        attempt = client.connect(
            servers=list(self.options.servers),
            name="txcore-doctor",
            error_cb=failed,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=self.options.connect_timeout_s,  # type: ignore[arg-type] # passed on to wait_for
            **{
                name: value for name, value in login(self.options).items() if not (is_anonymous and name in CREDENTIALS)
            },
        )
        try:
            await asyncio.wait_for(attempt, 3 * self.options.connect_timeout_s * len(self.options.servers))
            require_connected(client)
        except Exception as error:
            await close_client(client)
            raise (reasons[-1] if reasons else error) from error
        return client

    def close(self) -> None:
        """Close the connection; idempotent."""
        if self._client is not None:
            self._runner.run(close_client(self._client))
        self._client = None
        self._runner.close()

    @property
    def hosts(self) -> list[str]:
        """The hosts of the URL."""
        return [urlsplit(server).hostname or "" for server in self.options.servers]

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection is encrypted; a server may demand it of a URL that does not."""
        assert self._client is not None
        transport: Any = self._client._transport  # noqa: SLF001 - the library does not show it
        return transport._io_writer.get_extra_info("ssl_object") is not None  # noqa: SLF001

    def accepts_anonymous(self) -> bool:
        """Return whether the server serves a client without credentials."""
        if not self._information.get("auth_required"):
            return True

        async def attempt() -> None:
            await close_client(await self._attempt(is_anonymous=True))

        try:
            self._runner.run(attempt())
        except Exception:  # noqa: BLE001 - whatever refuses the client
            return False
        return True

    def foreign_rights(self) -> list[str]:
        """Return what this user may do with the streams of another group, which does not exist: read, purge, write."""
        names = GroupNames(f"doctor-{secrets.token_hex(8)}", self.options)
        api, stream = f"{self.options.api_prefix}.STREAM", names.stream(LogKind.HALF)
        subjects = {
            "read": f"{api}.MSG.GET.{stream}",
            "purge": f"{api}.PURGE.{stream}",
            "write": names.subject(LogKind.HALF, 0),
        }
        return [what for what, subject in subjects.items() if self._may_publish(subject)]

    def _may_publish(self, subject: str) -> bool:
        client, refusals = self._client, list[str]()
        assert client is not None

        async def attempt() -> None:
            async def failed(error: Exception) -> None:
                refusals.append(str(error))

            former, client._error_cb = client._error_cb, failed  # noqa: SLF001 - set with a connection only
            await client.publish(subject, b"")
            # nats-py writes the first PING before the message; a refusal comes before the answer to the second one.
            await client.flush(PROBE_TIMEOUT_S)
            await client.flush(PROBE_TIMEOUT_S)
            client._error_cb = former  # noqa: SLF001

        self._runner.run(attempt())
        return not any("permissions violation" in each.lower() for each in refusals)

    @property
    def server_version(self) -> str:
        """The version that the server reports."""
        return str(self._information.get("version", ""))

    @property
    def payload_max(self) -> int:
        """The most bytes of one message with its headers."""
        return int(self._information.get("max_payload", 0))

    @property
    def _information(self) -> Mapping[str, Any]:
        assert self._client is not None
        found: Mapping[str, Any] = self._client._server_info  # noqa: SLF001 - the library shows parts of it only
        return found

    @cached_property
    def account(self) -> Mapping[str, Any]:
        """The limits and the usage of the account.

        Raises:
            UntoldError: no server answers, or JetStream is off.
        """
        return self.asked("INFO")

    def asked(self, name: str, request: Any = None) -> Mapping[str, Any]:
        """Return JetStream's answer.

        Raises:
            ApiError: JetStream answered with an error.
            UntoldError: there is no answer.
        """
        client = self._client
        assert client is not None

        async def ask() -> bytes:
            payload = b"" if request is None else as_json(request)
            message = await client.request(f"{self.options.api_prefix}.{name}", payload, timeout=TIMEOUT_S)
            return bytes(message.data)

        try:
            answer = from_json(self._runner.run(ask()))
        except Exception as error:
            subject = f"{self.options.api_prefix}.{name}"
            change = f"allow this user to publish to {subject} and to subscribe to {self.options.inbox}.>"
            raise UntoldError(str(translate(error, "asking JetStream")), change) from error
        refusal = answer.get("error")
        if refusal:
            raise ApiError(refusal.get("code", 0), refusal.get("err_code", 0), refusal.get("description", ""))
        return answer

    def stream(self, name: str) -> StreamView | None:
        """Return a stream, or None when it does not exist."""
        try:
            answer = self.asked(f"STREAM.INFO.{name}")
        except ApiError as error:
            if error.err_code == STREAM_NOT_FOUND:
                return None
            raise
        return StreamView(name, answer["config"], answer.get("state", {}), answer.get("cluster") or {})

    @cached_property
    def names(self) -> GroupNames:
        """The names of the group's streams."""
        return GroupNames(self.request.group, self.options)

    @cached_property
    def own_streams(self) -> dict[str, StreamView | None]:
        """The streams that the group should have."""
        names = [self.names.bucket_stream, *(self.names.stream(kind) for kind in LogKind)]
        return {name: self.stream(name) for name in names}

    @property
    def present_streams(self) -> list[StreamView]:
        """Those of the group's streams that exist."""
        return [view for view in self.own_streams.values() if view is not None]

    @cached_property
    def target_streams(self) -> dict[str, StreamView | None]:
        """Subject -> its stream, for the subjects that the doctor was asked to look at.

        Raises:
            UntoldError: the request names no subject.
        """
        if not self.request.targets:
            raise UntoldError("no target was named", "--target TOPIC, once for each")
        found: dict[str, StreamView | None] = {}
        for subject in self.request.targets:
            names = self.options.target_streams or self.asked("STREAM.NAMES", {"subject": subject}).get("streams") or ()
            views = [view for view in map(self.stream, map(str, names)) if view is not None]
            found[subject] = next((view for view in views if is_covered(subject, view.config)), None)
        return found

    def monitored(self, path: str) -> Mapping[str, Any]:
        """Return the answer of the monitoring port.

        Raises:
            UntoldError: the port is not known, or cannot be read.
        """
        url = self.request.monitor_url.rstrip("/")
        if not url:
            host = urlsplit(self.options.servers[0]).hostname
            raise UntoldError(
                "the server does not report it to clients",
                f"--monitor http://{host}:8222 (http: 8222 in the server's config)",
                is_for_production=True,
            )
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or "@" in parts.netloc:
            raise UntoldError("--monitor is an http URL without a password", "--monitor http://host:8222")
        try:
            with urllib.request.urlopen(f"{url}/{path}", timeout=TIMEOUT_S) as answer:  # noqa: S310 - checked above
                found: Mapping[str, Any] = json.load(answer)
        except (OSError, ValueError) as error:
            raise UntoldError(
                f"the monitoring port cannot be read at {url}/{path}: {error}", "check --monitor"
            ) from error
        return found


def _unavailable(error: Exception, place: str) -> TxcoreError:
    if isinstance(error, OSError) and error.errno:
        return BackendUnavailableError(f"{place} cannot be reached: {os.strerror(error.errno)}")
    return BackendUnavailableError(str(translate(error, place)))
