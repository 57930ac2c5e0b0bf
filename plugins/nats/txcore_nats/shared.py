"""What the parts of one backend share."""

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
    """What ends with its backend."""

    def close(self) -> None:
        """End it; idempotent."""


@dataclass(frozen=True, slots=True)
class Shared:
    """One backend's thread, connection and what depends on them."""

    options: Options
    clock: Clock
    loop: LoopThread
    link: Link
    api: Api
    publisher: Publisher
    groups: Groups
    housekeeper: Housekeeper
    readers: set[Closable] = field(default_factory=set)
    """Open readers; they end with their backend."""
    half_tails: dict[tuple[str, int], list[Tail]] = field(default_factory=dict)
    """Readers of halves that have not brought yet what was in the log when they were opened, by partition."""
