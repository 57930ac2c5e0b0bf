"""The conformance harness: a Redis of its own on loopback, its topics, and their entries as consumers see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis
from txcore_conformance.brokers import PASSWORD
from txcore_conformance.brokers.broker import ManagedBroker
from txcore_conformance.brokers.harness import BrokerHarness
from txcore_conformance.harness import Delivered
from txcore_conformance.server_packages import find_program, install

import txcore_redis
from txcore.port import Backend
from txcore.records import LogKind
from txcore_redis.data import HEADER_PREFIX
from txcore_redis.scripts import LIMITS_KEY, appended_ms_of, id_of, log_key, membership_keys, position_of


class RedisBroker(ManagedBroker):
    """Debian's redis-server in a folder of its own, on a free loopback port; ends with this program."""

    name = "redis"

    def __init__(self, *, credentials: bool = False) -> None:
        if find_program("redis-server") is None:
            install("redis-server")
        super().__init__({})
        self._password = PASSWORD if credentials else ""

    def _command(self) -> list[str]:
        settings = f"bind=127.0.0.1 port={self.port} dir={self.folder} appendonly=yes requirepass={self._password}"
        return ["redis-server", *(part for each in settings.split() for part in f"--{each}".split("=", 1))]

    def _check_ready(self) -> None:
        self._read_version()

    def _read_version(self) -> str:
        with redis.Redis(port=self.port, password=self._password or None, socket_timeout=1) as client:
            return str(client.info()["redis_version"])

    def _url_at(self, port: int, account: str = "") -> str:
        self.credentials_url = f"redis://:{self._password}@127.0.0.1:{port}"
        return f"redis://{account}127.0.0.1:{port}"


class RedisHarness(BrokerHarness):
    """A server that starts with the suite. Topics are not created by publishing, so that a missing one is found."""

    broker_name = "redis"
    url_options = "?auto_create=false&lease_s=1.0"
    silent_member_max_s = 5.0

    def new_broker(self, *, own: bool, **options: Any) -> RedisBroker:  # noqa: ARG002 - each is a new one
        """See `BrokerHarness.new_broker`."""
        broker = RedisBroker(**options)
        broker.start()
        return broker

    def start(self) -> None:
        """See `Harness.start`."""
        super().start()
        self._client = redis.Redis(port=int(self.broker.url.rpartition(":")[2]))

    def stop(self) -> None:
        """See `Harness.stop`; deletes the server's folder."""
        self._client.close()
        super().stop()

    def open(self, url: str = "") -> Backend:
        """See `Harness.open`; opens it without its entry point, so that it need not be installed."""
        return txcore_redis.PLUGIN.connect(url or self.url)

    def create_topic(self, topic: str) -> None:
        """See `Harness.create_topic`: an empty stream."""
        self._client.xgroup_create(topic, "made", mkstream=True)
        self._client.xgroup_destroy(topic, "made")

    def read_topic(self, topic: str) -> Sequence[Delivered]:
        """See `Harness.read_topic`."""
        entries: Any = self._client.xrange(topic)
        return [_delivered(entry_id, fields) for entry_id, fields in entries]

    def missing_topic(self) -> str:
        """See `Harness.missing_topic`."""
        return "never-made-topic"

    def refuse_topic(self, topic: str, *, refuses: bool) -> bool:
        """See `Harness.refuse_topic`."""
        if refuses:
            self._client.hset(LIMITS_KEY, topic, "0")
        else:
            self._client.hdel(LIMITS_KEY, topic)
        return True

    def limited_topic(self, name: str, *, message_size_max: int = 0, message_count_max: int = 0) -> str | None:
        """See `Harness.limited_topic`; a stream bounds the number of its entries, not their size."""
        if message_size_max:
            return None
        self.create_topic(name)
        self._client.hset(LIMITS_KEY, name, str(message_count_max))
        return name

    def append_stray(self, group: str, kind: LogKind, partition: int, body: bytes) -> bool:
        """See `Harness.append_stray`."""
        self._client.xadd(log_key(group, kind, partition), {"strange": body})
        return True

    def expire_member(self, group: str, member: str) -> bool:
        """See `Harness.expire_member`."""
        _, leases, owners, revoked = membership_keys(group)
        names: Any = self._client.zrange(leases, 0, -1)
        for name in names:
            if name.startswith(f"{member}#".encode()):
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
