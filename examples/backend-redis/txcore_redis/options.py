"""The options of a `redis://` URL: their names, units, ranges and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from txcore.backends.options import (
    Server,
    TlsOptions,
    account_of,
    choice,
    parse_options,
    seconds,
    servers_of,
    split_url,
    switch,
    whole,
)
from txcore.errors import ConfigError

SCHEME: Final = "redis"
PORT: Final = 6379
PARTITION_COUNT_MAX: Final = 256
LEASE_MAX_S: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TlsOptions):
    """How one backend uses its server."""

    server: Server = field(default_factory=lambda: Server("127.0.0.1", PORT))
    database: int = 0
    user: str = ""
    password: str = field(default="", repr=False)
    partitions: int = whole(4, 1, PARTITION_COUNT_MAX, "of a group that is made without a number; they never change")
    auto_create: bool = switch(
        True, "unknown target topics are created; `false`: a half that names one is refused before it is stored"
    )
    persistence: str = choice(
        "aof", ("aof", "any"), "`aof` refuses a server without an append-only file, which forgets all when it dies"
    )
    delivery_timeout_s: float = seconds(4.0, 0.5, 60, "from handing an item over to its being settled")
    control_timeout_s: float = seconds(6.0, 0.5, 60, "for reads, groups, checkpoints and membership")
    lease_s: float = seconds(5.0, 0.2, LEASE_MAX_S, "silence after which a checker has lost its partitions")
    body_size_max: int = whole(1_000_000, 1_024, 64 << 20, "bytes of one encoded half")
    queue_max: int = whole(10_000, 1, 1_000_000, "items that wait in one process; beyond, new ones are refused")


def parse_url(url: str) -> Options:
    """Return the options of `redis://user:password@host:port/database?option=value`.

    Raises:
        ConfigError: a part of the URL is wrong, or an option is unknown or out of range; `key` names it.
    """
    servers = servers_of(url, PORT)
    if len(servers) != 1:
        raise ConfigError("a redis URL names one server: an atomic release cannot span several", key="url")
    path = split_url(url).path.strip("/")
    if path and not (path.isascii() and path.isdigit()):
        raise ConfigError(f"the path of a redis URL is the number of a database, not {path!r}", key="url")
    user, password = account_of(url)
    return parse_options(Options, url, server=servers[0], database=int(path or 0), user=user, password=password or "")
