"""The shared parts of one backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from txcore.clock import Clock
from txcore_nats.connection import Api, Link, LoopThread
from txcore_nats.control import Groups
from txcore_nats.housekeeping import Housekeeper
from txcore_nats.options import Options
from txcore_nats.publishing import Publisher
from txcore_nats.tailing import Tail


class Closable(Protocol):
    """An object that the backend closes with itself."""

    def close(self) -> None:
        """Close this object; idempotent."""


@dataclass(frozen=True, slots=True)
class Shared:
    """One backend's thread, its connection, and the parts that use them."""

    options: Options
    clock: Clock
    loop: LoopThread
    link: Link
    api: Api
    publisher: Publisher
    groups: Groups
    housekeeper: Housekeeper
    readers: set[Closable] = field(default_factory=set)
    """Open readers; the backend closes them with itself."""
    half_tails: dict[tuple[str, int], list[Tail]] = field(default_factory=dict)
    """Tails of halves, by group and partition, that may not have delivered all records from before their opening."""
