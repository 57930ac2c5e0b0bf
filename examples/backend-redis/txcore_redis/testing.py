"""The conformance harness: a Redis of its own on loopback, its topics, and their entries as consumers see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import redis
from txcore_conformance.harness import Delivered, Harness
from txcore_conformance.processes import ManagedProcess
from txcore_conformance.server_packages import ServerUnavailableError, find_program, install

import txcore_redis
from txcore.port import Backend
from txcore.records import LogKind
from txcore_redis.data import HEADER_PREFIX
from txcore_redis.scripts import appended_ms_of, id_of, log_key, membership_keys, position_of

_SAVED = "refusing:"


class RedisServer(ManagedProcess):
    """Debian's redis-server in a folder of its own, on a free loopback port; ends with this program."""

    name = "redis"

    def __init__(self) -> None:
        program = find_program("redis-server", "/usr/bin", "/usr/local/bin")
        if program is None:
            install("redis-server")
            program = find_program("redis-server", "/usr/bin")
        if program is None:
            raise ServerUnavailableError("redis-server is still not found after installing it")
        self._program = program
        self.port = 0
        super().__init__()

    def _assign_ports(self) -> None:
        self.port = self._ports.reserve()

    def _command(self) -> list[str]:
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "daemonize": "no",
        }
        return [str(self._program), *(part for name, value in settings.items() for part in (f"--{name}", value))]

    def _check_ready(self) -> None:
        with redis.Redis(port=self.port, socket_timeout=1) as client:
            client.ping()

    @property
    def url(self) -> str:
        """URL of the running server, with a short lease."""
        return f"redis://127.0.0.1:{self.port}?auto_create=false&lease_s=1.0"


class RedisHarness(Harness):
    """A server that starts with the suite. Topics are not created by publishing, so that a missing one is found."""

    quiet_s = 0.0
    silent_member_max_s = 2.0

    def start(self) -> None:
        """See `Harness.start`."""
        self._server = RedisServer()
        self._server.start()
        self.url = self._server.url
        self._client = redis.Redis(port=self._server.port)

    def stop(self) -> None:
        """See `Harness.stop`; deletes the server's folder."""
        self._client.close()
        self._server.remove()

    def private(self) -> Self:
        """See `Harness.private`."""
        other = type(self)()
        other.start()
        return other

    def open(self) -> Backend:
        """See `Harness.open`; opens it without its entry point, so that it need not be installed."""
        return txcore_redis.PLUGIN.connect(self.url)

    def create_topic(self, topic: str) -> None:
        """See `Harness.create_topic`: an empty stream."""
        self._client.xgroup_create(topic, "made", mkstream=True)
        self._client.xgroup_destroy(topic, "made")

    def read_topic(self, topic: str) -> Sequence[Delivered]:
        """See `Harness.read_topic`."""
        key = _SAVED + topic if self._client.exists(_SAVED + topic) else topic
        entries: Any = self._client.xrange(key)
        return [_delivered(entry_id, fields) for entry_id, fields in entries]

    def missing_topic(self) -> str:
        """See `Harness.missing_topic`."""
        return "never-made-topic"

    def refuse_topic(self, topic: str, *, refuses: bool) -> bool:
        """See `Harness.refuse_topic`: while it refuses, the key holds no stream."""
        if refuses:
            self._client.rename(topic, _SAVED + topic)
            self._client.set(topic, "no stream")
        else:
            self._client.rename(_SAVED + topic, topic)
        return True

    def append_stray(self, group: str, kind: LogKind, partition: int, body: bytes) -> bool:
        """See `Harness.append_stray`."""
        self._client.xadd(log_key(group, kind, partition), {"strange": body})
        return True

    def expire_member(self, group: str, member: str) -> bool:
        """See `Harness.expire_member`."""
        _, joined, leases, owners, revoked = membership_keys(group)
        names: Any = self._client.zrange(joined, 0, -1)
        for name in names:
            if name.startswith(f"{member}#".encode()):
                self._client.zrem(joined, name)
                self._client.zrem(leases, name)
        self._client.delete(owners, revoked)
        return True

    def trim(self, group: str, kind: LogKind, partition: int, before: int) -> bool:
        """See `Harness.trim`."""
        self._client.xtrim(log_key(group, kind, partition), minid=id_of(before), approximate=False)
        return True


def _delivered(entry_id: bytes, fields: dict[bytes, bytes]) -> Delivered:
    headers = {
        name.decode().removeprefix(HEADER_PREFIX): value
        for name, value in fields.items()
        if name.startswith(HEADER_PREFIX.encode())
    }
    position = position_of(entry_id)
    return Delivered(position, fields.get(b"key"), fields[b"body"], headers, appended_ms_of(position))
